"""Exact, live BM25."""
