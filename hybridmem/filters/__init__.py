"""One filter language: parse it, then evaluate it as a Python predicate, as SQL or as Chroma `where`."""
