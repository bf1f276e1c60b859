"""Conformance suites for people who write their own store or index."""
