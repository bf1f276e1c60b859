"""Embedder: unit vectors from any embedding object, with a cache and an offline default model."""
