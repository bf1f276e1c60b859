"""Values on their way to PostgreSQL and back: texts it can hold, JSON left as text, one spelling of bound values."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from psycopg import Connection
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from psycopg.types.string import StrDumperUnknown

from hybridmem.stores.codec import clean

__all__ = ["Packed", "adapt", "translate"]

_INSERT_NEW = re.compile(r"^INSERT OR IGNORE INTO (.*)$", re.DOTALL)


class _Dumper(StrDumperUnknown):
    """NUL and lone surrogates never reach the server, wherever a text came from."""

    def dump(self, obj: str) -> Any:
        return super().dump(clean(obj))


class Packed(bytes):
    """A value in the server's own bytes: bound as it is, of the type that the statement casts it to."""


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Packed) -> Any:
        return obj


class _JsonLoader(Loader):
    """JSON stays text: the codec reads it, the same way for every store."""

    format = Format.TEXT

    def load(self, data: Any) -> str:
        return bytes(data).decode()


def adapt(conn: Connection[Any], /) -> None:
    """Let a connection speak as above."""
    conn.adapters.register_dumper(str, _Dumper)
    conn.adapters.register_dumper(Packed, _PackedDumper)
    conn.adapters.register_loader("json", _JsonLoader)


@lru_cache(maxsize=2048)
def translate(sql: str, /) -> str:
    """A statement that SQLite and PostgreSQL share, in psycopg's spelling."""
    sql = _INSERT_NEW.sub(r"INSERT INTO \1 ON CONFLICT DO NOTHING", sql)
    return sql.replace("%", "%%").replace("?", "%s")
