"""How well are the right memories found: every set, every system, the same embeddings."""
