"""Looking after the store: is it sound, and building again what is derived."""

from __future__ import annotations

from hybridmem.stores.pg.database import Conn

__all__ = ["check"]


def check(conn: Conn, /) -> list[str]:
    return []
