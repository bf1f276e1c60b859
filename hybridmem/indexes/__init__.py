"""Indexes: each follows a store's changes and answers searches."""
