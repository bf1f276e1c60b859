"""A connection to PostgreSQL that understands the SQL which stores share."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from hybridmem.stores.pg.adapt import translate

__all__ = ["Conn"]

Raw = psycopg.Connection[Any]


class Conn:
    """A connection as the SQL that stores share sees it: `?` for bound values; `stream` reads rows as asked for."""

    __slots__ = ("_cursors", "_stream", "raw")

    def __init__(self, raw: Raw, /, *, stream: bool = False) -> None:
        self.raw = raw
        self._stream = stream
        self._cursors: list[Any] = []

    def seq_at(self, moment: float) -> int:
        """The last seq recorded at or before a moment, in one look."""
        query = "SELECT seq FROM {} WHERE at <= %s ORDER BY at DESC, seq DESC LIMIT 1"
        both = [query.format(table) for table in ("versions", "edge_log")]
        row = self.raw.execute(f"SELECT greatest(0, ({both[0]}), ({both[1]}))", (moment, moment)).fetchone()
        return int(row[0]) if row else 0

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> Any:
        """Run one statement; a cursor over its rows."""
        if not self._stream or not statement.startswith("SELECT"):
            return self.raw.execute(translate(statement), parameters)
        cursor = self.raw.cursor(name=f"s{random.getrandbits(48):x}")
        cursor.itersize = 1000
        self._cursors.append(cursor)
        return cursor.execute(translate(statement), parameters)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Run one statement for each row."""
        with self.raw.cursor() as cursor:
            cursor.executemany(translate(statement), rows)

    def close(self) -> None:
        """Close what was streamed, read to its end or not."""
        for cursor in self._cursors:
            cursor.close()
