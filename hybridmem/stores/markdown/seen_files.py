"""Which file held what when it was last read: the Markdown store's own table inside its index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from hybridmem.core.types import Edge
from hybridmem.stores.sqlite.log import marks
from hybridmem.stores.sqlite.store import SQLiteStore

__all__ = ["Ledger", "Seen"]

_TABLE = """
CREATE TABLE IF NOT EXISTS notes (
  path TEXT PRIMARY KEY, namespace TEXT NOT NULL, id TEXT NOT NULL, modified INTEGER NOT NULL, size INTEGER NOT NULL,
  digest TEXT NOT NULL, status TEXT, supersedes TEXT, vitals TEXT NOT NULL, links TEXT NOT NULL) WITHOUT ROWID
"""


class Seen(NamedTuple):
    """One file as it was last read."""

    path: str
    namespace: str
    id: str
    modified: int
    size: int
    digest: str
    status: str | None
    """What the file itself says; None when it leaves that to others."""
    supersedes: str | None
    vitals: str
    links: tuple[Edge, ...]


class Ledger:
    """Reads and writes the table. A lost row only means that a file is read once more."""

    def __init__(self, index: SQLiteStore, /) -> None:
        self._pool = index._pool  # noqa: SLF001 - the two live in one file
        with self._pool.snapshot() as conn:
            missing = not conn.execute("SELECT 1 FROM sqlite_master WHERE name = 'notes'").fetchone()
        if missing:
            with self._pool.write() as conn:
                conn.execute(_TABLE)
                conn.execute("CREATE INDEX IF NOT EXISTS notes_by_memory ON notes (namespace, id)")

    def all(self) -> dict[str, Seen]:
        """Every file by its path."""
        with self._pool.snapshot() as conn:
            return {row[0]: _seen(row) for row in conn.execute("SELECT * FROM notes ORDER BY path")}

    def of(self, namespace: str, ids: Sequence[str], /) -> dict[str, Seen]:
        """The files of some memories, by id."""
        query = f"SELECT * FROM notes WHERE namespace = ? AND id IN ({marks(len(ids))})"  # noqa: S608
        with self._pool.snapshot() as conn:
            return {row[2]: _seen(row) for row in conn.execute(query, (namespace, *ids))}

    def put(self, entries: Sequence[Seen], /) -> None:
        """Note what was read."""
        rows = [(*entry[:-1], json.dumps(entry.links)) for entry in entries]
        with self._pool.write() as conn:
            conn.executemany(f"INSERT OR REPLACE INTO notes VALUES ({marks(10)})", rows)  # noqa: S608

    def remove(self, paths: Sequence[str], /) -> None:
        """Forget files."""
        if paths:
            with self._pool.write() as conn:
                conn.executemany("DELETE FROM notes WHERE path = ?", [(path,) for path in paths])


def _seen(row: tuple[Any, ...]) -> Seen:
    return Seen._make((*row[:-1], tuple(Edge(*edge) for edge in json.loads(row[-1]))))
