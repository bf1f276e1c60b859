"""Hybrid retrieval for agent memory: BM25, vectors and graph, fused by a recipe that explains itself."""
