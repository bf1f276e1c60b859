"""Table of the note files as they were last read or written, in the database of the index."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from hybridmem.core.types import Edge
from hybridmem.stores.sql.log import placeholders

__all__ = ["SeenFile", "all_files", "create_table", "delete_files", "files_of", "put_files"]

_CHUNK = 500
_TABLE = """
CREATE TABLE IF NOT EXISTS notes (
  path TEXT PRIMARY KEY, namespace TEXT NOT NULL, id TEXT NOT NULL, modified INTEGER NOT NULL, size INTEGER NOT NULL,
  digest TEXT NOT NULL, status TEXT, supersedes TEXT, vitals TEXT NOT NULL, links TEXT NOT NULL) WITHOUT ROWID
"""


class SeenFile(NamedTuple):
    """One file as it was last read or written."""

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


def create_table(conn: sqlite3.Connection, /) -> None:
    """Create the table where it does not exist."""
    conn.execute(_TABLE)
    conn.execute("CREATE INDEX IF NOT EXISTS notes_by_memory ON notes (namespace, id)")


def all_files(conn: sqlite3.Connection, /) -> dict[str, SeenFile]:
    """Every file by its path."""
    return {row[0]: _seen(row) for row in conn.execute("SELECT * FROM notes ORDER BY path")}


def files_of(conn: sqlite3.Connection, namespace: str, ids: Sequence[str], /) -> dict[str, SeenFile]:
    """The files of some memories, by id."""
    found: dict[str, SeenFile] = {}
    for start in range(0, len(ids), _CHUNK):
        part = ids[start : start + _CHUNK]
        query = f"SELECT * FROM notes WHERE namespace = ? AND id IN ({placeholders(len(part))})"  # noqa: S608
        found |= {row[2]: _seen(row) for row in conn.execute(query, (namespace, *part))}
    return found


def put_files(conn: sqlite3.Connection, files: Sequence[SeenFile], /) -> None:
    """Insert or replace rows."""
    rows = [(*file[:-1], json.dumps(file.links)) for file in files]
    conn.executemany(f"INSERT OR REPLACE INTO notes VALUES ({placeholders(10)})", rows)  # noqa: S608


def delete_files(conn: sqlite3.Connection, paths: Sequence[str], /) -> None:
    """Delete the rows of some files."""
    conn.executemany("DELETE FROM notes WHERE path = ?", [(path,) for path in paths])


def _seen(row: tuple[Any, ...]) -> SeenFile:
    return SeenFile._make((*row[:-1], tuple(Edge(*edge) for edge in json.loads(row[-1]))))
