"""Spreading activation over links, entities and threads."""
