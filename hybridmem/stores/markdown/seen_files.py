"""Table of the note files as they were last read: path, time, size, digest and stated fields."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from hybridmem.core.types import Edge
from hybridmem.stores.sql.log import placeholders
from hybridmem.stores.sqlite.store import SQLiteStore

__all__ = ["SeenFile", "SeenFiles"]

_TABLE = """
CREATE TABLE IF NOT EXISTS notes (
  path TEXT PRIMARY KEY, namespace TEXT NOT NULL, id TEXT NOT NULL, modified INTEGER NOT NULL, size INTEGER NOT NULL,
  digest TEXT NOT NULL, status TEXT, supersedes TEXT, vitals TEXT NOT NULL, links TEXT NOT NULL) WITHOUT ROWID
"""


class SeenFile(NamedTuple):
    """One file as it was last read."""

    path: str
    namespace: str
    id: str
    modified: int
    size: int
    digest: str
    status: str | None
    """The status that the file states; None when it states none."""
    supersedes: str | None
    vitals: str
    links: tuple[Edge, ...]


class SeenFiles:
    """Reads and writes the table. A lost row only means that its file is read again."""

    def __init__(self, index: SQLiteStore, /) -> None:
        self._pool = index.pool  # the table is in the same file as the index
        with self._pool.snapshot() as conn:
            missing = not conn.execute("SELECT 1 FROM sqlite_master WHERE name = 'notes'").fetchone()
        if missing:
            with self._pool.write() as conn:
                conn.execute(_TABLE)
                conn.execute("CREATE INDEX IF NOT EXISTS notes_by_memory ON notes (namespace, id)")

    def all(self) -> dict[str, SeenFile]:
        """Every file by its path."""
        with self._pool.snapshot() as conn:
            return {row[0]: _seen(row) for row in conn.execute("SELECT * FROM notes ORDER BY path")}

    def of(self, namespace: str, ids: Sequence[str], /) -> dict[str, SeenFile]:
        """The files of some memories, by id."""
        query = f"SELECT * FROM notes WHERE namespace = ? AND id IN ({placeholders(len(ids))})"  # noqa: S608
        with self._pool.snapshot() as conn:
            return {row[2]: _seen(row) for row in conn.execute(query, (namespace, *ids))}

    def put(self, entries: Sequence[SeenFile], /) -> None:
        """Insert or replace rows."""
        rows = [(*entry[:-1], json.dumps(entry.links)) for entry in entries]
        with self._pool.write() as conn:
            conn.executemany(f"INSERT OR REPLACE INTO notes VALUES ({placeholders(10)})", rows)  # noqa: S608

    def remove(self, paths: Sequence[str], /) -> None:
        """Delete the rows of some files."""
        if paths:
            with self._pool.write() as conn:
                conn.executemany("DELETE FROM notes WHERE path = ?", [(path,) for path in paths])


def _seen(row: tuple[Any, ...]) -> SeenFile:
    return SeenFile._make((*row[:-1], tuple(Edge(*edge) for edge in json.loads(row[-1]))))
