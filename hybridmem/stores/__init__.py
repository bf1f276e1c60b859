"""Stores: the truth that every index follows."""
