"""Fusion recipes: ranked lists in, one explained ranking out."""
