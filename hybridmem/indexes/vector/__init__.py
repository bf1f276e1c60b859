"""Exact vector search in memory, and Chroma."""
