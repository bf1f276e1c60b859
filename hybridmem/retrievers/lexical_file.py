"""SQLite file of a lexical corpus: its items, the settings of their index, and a snapshot of a BM25 index."""

from __future__ import annotations

import json
import logging
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from hybridmem.errors import ConfigError, CorruptStoreError, StoreBusyError
from hybridmem.indexes.bm25.index import BM25Index

__all__ = ["LexicalFile", "LexicalItem", "StoredCorpus"]

T = TypeVar("T")
_APPLICATION = 0x68796231
_SNAPSHOT_EVERY = 1_000
"""Changes (or half of all items) after which the index snapshot is written again."""
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
CREATE TABLE IF NOT EXISTS items (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    fields TEXT NOT NULL,
    item TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    version INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS info (name TEXT PRIMARY KEY, value BLOB);
"""
_PUT = "INSERT OR REPLACE INTO items (key, fields, item, checksum, version) VALUES (?, ?, ?, ?, ?)"

log = logging.getLogger(__name__)


class LexicalItem(NamedTuple):
    """An item under its key, with its searchable fields."""

    key: str
    fields: Mapping[str, str]
    item: Any


class StoredCorpus(NamedTuple):
    """The content of a file; `snapshot` is None when the index must be built from the items."""

    items: list[LexicalItem]
    snapshot: BM25Index | None
    changed: list[LexicalItem]
    """Items that are newer than the index."""


class LexicalFile(Generic[T]):
    """Items in a SQLite file, open only during a call. `write` makes an item a JSON value, `read` reverts it."""

    def __init__(self, path: str | Path, *, write: Callable[[T], Any], read: Callable[[Any], T]) -> None:
        self.path = Path(path)
        self.write, self.read = write, read
        self._since_snapshot = 0

    @property
    def exists(self) -> bool:
        """Whether there is a file to read."""
        return self.path.exists()

    # --- writing

    def put(self, items: Sequence[LexicalItem], /) -> None:
        """Add items, or replace those of the same key."""
        rows = [self._row(item) for item in items]  # before anything is written: an item may be refused
        with self._open() as db:
            version = self._next_version(db)
            db.executemany(_PUT, [(*row, version) for row in rows])
        self._since_snapshot += len(rows)

    def remove(self, keys: Sequence[str], /) -> None:
        """Remove items."""
        with self._open() as db:
            self._next_version(db)
            db.executemany("DELETE FROM items WHERE key = ?", [(key,) for key in keys])
        self._since_snapshot += len(keys)

    def wants_snapshot(self, size: int, /) -> bool:
        """Whether so much has changed that the index of a corpus of this size should be written again."""
        return self._since_snapshot > max(_SNAPSHOT_EVERY, size // 2)

    def save_snapshot(self, index: Any, /) -> None:
        """Write the index; engines other than ours are built again from the items."""
        with self._open() as db:
            self._write_snapshot(db, index)

    def save(self, items: Sequence[LexicalItem], index: Any, settings: Mapping[str, Any], /) -> None:
        """Replace the whole content in one transaction."""
        rows = [self._row(item) for item in items]
        with self._open() as db:
            db.execute("DELETE FROM items")
            version = self._next_version(db)
            db.executemany(_PUT, [(*row, version) for row in rows])
            self._write_info(db, "settings", _json(dict(settings)))
            self._write_snapshot(db, index)

    def _write_snapshot(self, db: sqlite3.Connection, index: Any) -> None:
        if isinstance(index, BM25Index):
            self._write_info(db, "index", index.to_bytes())
            self._write_info(db, "index version", self._read_info(db, "version", 0))
        self._since_snapshot = 0

    def _next_version(self, db: sqlite3.Connection) -> int:
        version = int(self._read_info(db, "version", 0)) + 1
        self._write_info(db, "version", version)
        return version

    def _row(self, item: LexicalItem) -> tuple[str, str, str, int]:
        fields, value = _json(dict(item.fields)), _json(self.write(item.item))
        return item.key, fields, value, _checksum(item.key, fields, value)

    def content(self, fields: Mapping[str, str], item: T, /) -> tuple[str, str]:
        """The stored form of an item, to compare it with another."""
        return _json(dict(fields)), _json(self.write(item))

    # --- reading

    def settings(self) -> dict[str, Any]:
        """The settings that `save` was given."""
        with self._open() as db:
            settings: dict[str, Any] = json.loads(self._read_info(db, "settings", "{}"))
            return settings

    def load(self, like: Any, /) -> StoredCorpus:
        """The file's content. `like` is an empty index of the wanted kind; a stored one that differs is ignored."""
        with self._open() as db:
            rows = db.execute("SELECT key, fields, item, checksum, version FROM items ORDER BY position").fetchall()
            blob, version = self._read_info(db, "index", None), self._read_info(db, "index version", 0)
        for key, fields, item, checksum, _ in rows:
            if _checksum(key, fields, item) != checksum:
                raise CorruptStoreError(f"{self.path} is damaged: item {key!r} does not match its checksum")
        items = [LexicalItem(row[0], json.loads(row[1]), self.read(_revived(json.loads(row[2])))) for row in rows]
        index = self._index(blob, like)
        if index is None and blob is not None and isinstance(like, BM25Index):
            log.warning("%s: the index snapshot does not fit the settings and is rebuilt from the items", self.path)
        changed = [item for item, row in zip(items, rows, strict=True) if row[4] > version]
        return StoredCorpus(items, index, changed)

    def _index(self, blob: bytes | None, like: Any) -> BM25Index | None:
        if blob is None or not isinstance(like, BM25Index):
            return None
        try:
            index = BM25Index.from_bytes(blob, analyzer=like.analyzer)
        except (ConfigError, CorruptStoreError):
            return None
        if index.weights != like.weights:
            return None
        return index if (index.k1, index.b) == (like.k1, like.b) else index.with_curve(k1=like.k1, b=like.b)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction."""
        try:
            with closing(sqlite3.connect(self.path)) as db, db:
                if db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
                    if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                        raise CorruptStoreError(f"{self.path} is not a file of a BM25Retriever")
                    db.executescript(_SCHEMA)
                db.execute("BEGIN IMMEDIATE")
                yield db
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise StoreBusyError(f"{self.path} is locked by another process") from error
            raise CorruptStoreError(f"{self.path} cannot be opened: {error}") from error
        except sqlite3.DatabaseError as error:
            raise CorruptStoreError(f"{self.path} is damaged, or is not a file of a BM25Retriever: {error}") from error

    def _read_info(self, db: sqlite3.Connection, name: str, default: Any) -> Any:
        row = db.execute("SELECT value FROM info WHERE name = ?", (name,)).fetchone()
        return default if row is None else row[0]

    def _write_info(self, db: sqlite3.Connection, name: str, value: Any) -> None:
        db.execute("INSERT OR REPLACE INTO info VALUES (?, ?)", (name, value))


def _checksum(*parts: str) -> int:
    return zlib.crc32("\0".join(parts).encode())


def _json(value: Any) -> str:
    try:
        return json.dumps(value, default=_plain, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"cannot be kept in a file: {error}; allowed in metadata: JSON values and times") from error


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return {"__time__": value.isoformat()}
    if isinstance(value, date):
        return {"__date__": value.isoformat()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "item") and not isinstance(value, type):  # a numpy number
        return value.item()
    raise TypeError(f"a {type(value).__name__}")


def _revived(value: Any) -> Any:
    if isinstance(value, list):
        return [_revived(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(name, text)] = value.items()
        if name == "__time__":
            return datetime.fromisoformat(text)
        if name == "__date__":
            return date.fromisoformat(text)
    return {name: _revived(one) for name, one in value.items()}
