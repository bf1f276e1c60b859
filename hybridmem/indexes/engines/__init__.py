"""Other lexical engines behind the same protocol: SQLite FTS5 and rank-bm25."""
