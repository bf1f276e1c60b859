"""Searching inside the PostgreSQL server."""
