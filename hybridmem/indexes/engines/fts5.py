"""Lexical index on SQLite's FTS5, in memory or in a file.

It differs from `BM25Index` in what SQLite fixes: k1 = 1.2, b = 0.75, its own stemmer, and
IDF = ln((N − n + 0.5)/(n + 0.5)) clamped at 1e-6: a term in half of the texts scores close to 0.
Use ranks or relative floors on its scores, not absolute ones.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from hybridmem.core import validation
from hybridmem.core.forks import guard
from hybridmem.core.protocols import Change
from hybridmem.core.types import Hits
from hybridmem.errors import CorruptStoreError, MissingExtraError
from hybridmem.indexes.bm25.documents import (
    SOURCES,
    WEIGHTS,
    Document,
    Source,
    as_document,
    check_allowed,
    checked_weights,
    new_document,
)
from hybridmem.text.analyzer import Analyzer, cjk_runs, fold

__all__ = ["FTS5Index"]

_FIELDS = tuple(WEIGHTS)
_WORD = re.compile(r"[^\W_]+")
_MOST = 2**62  # below the largest integer of SQLite
_MOST_WORDS = 512
"""Further words of a query are ignored, because SQLite limits the size of an expression."""

_COLUMNS = ", ".join(_FIELDS)
_OLD = ", ".join(f"old.{name}" for name in _FIELDS)
_NEW = ", ".join(f"new.{name}" for name in _FIELDS)

# The texts are stored in `documents`; the FTS5 table refers to them (external content). Rows are updated in place,
# because INSERT OR REPLACE deletes without firing the trigger and corrupts the FTS5 table.
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS documents
  (row INTEGER PRIMARY KEY, name BLOB UNIQUE NOT NULL, stamp REAL NOT NULL, {_COLUMNS});
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5
  ({_COLUMNS}, content='documents', content_rowid='row', tokenize='porter unicode61 remove_diacritics 2');
CREATE TRIGGER IF NOT EXISTS documents_added AFTER INSERT ON documents BEGIN
  INSERT INTO words(rowid, {_COLUMNS}) VALUES (new.row, {_NEW});
END;
CREATE TRIGGER IF NOT EXISTS documents_gone AFTER DELETE ON documents BEGIN
  INSERT INTO words(words, rowid, {_COLUMNS}) VALUES ('delete', old.row, {_OLD});
END;
CREATE TRIGGER IF NOT EXISTS documents_changed AFTER UPDATE ON documents BEGIN
  INSERT INTO words(words, rowid, {_COLUMNS}) VALUES ('delete', old.row, {_OLD});
  INSERT INTO words(rowid, {_COLUMNS}) VALUES (new.row, {_NEW});
END;
"""  # noqa: S608 - only our own column names are inserted
_PUT = f"""
INSERT INTO documents (name, stamp, {_COLUMNS}) VALUES (?, ?, {", ".join("?" * len(_FIELDS))})
ON CONFLICT (name) DO UPDATE SET stamp = excluded.stamp, {", ".join(f"{name} = excluded.{name}" for name in _FIELDS)}
RETURNING row
"""  # noqa: S608 - only our own column names are inserted


class FTS5Index:
    """A lexical index in SQLite, in memory or in a file. One connection, guarded by a lock.

    >>> index = FTS5Index()
    >>> index.add("m1", "Ana moved to Lisbon")
    >>> index.search("who moved?", k=3).ids
    ['m1']
    """

    def __init__(
        self,
        path: str | Path = ":memory:",
        *,
        analyzer: Analyzer | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.analyzer = Analyzer() if analyzer is None else analyzer
        """Used for stop words only; texts are tokenised by FTS5."""
        self.weights = checked_weights(weights)
        self._lock = guard(threading.RLock())
        where = validation.file_path("path", path, "the name of a file, or ':memory:'")
        self._db = sqlite3.connect(where, check_same_thread=False, isolation_level=None, timeout=5.0)
        weakref.finalize(self, self._db.close)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self._db.close()
            if "no such module: fts5" in str(error):
                raise MissingExtraError("all", needs="SQLite with FTS5") from error
            raise CorruptStoreError(f"{path} is not an FTS5 index of hybridmem: {error}") from error
        except BaseException:
            self._db.close()
            raise

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript(_SCHEMA)
        found = self._db.execute("SELECT value FROM state WHERE name = 'watermark'").fetchone()
        self.watermark = int(found[0]) if found else 0
        self._rows = {_text(name): row for name, row in self._db.execute("SELECT name, row FROM documents")}

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._db.close()

    # --- writing

    def add(self, id: str, text: str, *, updated_at: datetime | float | None = None, **fields: str) -> None:
        """Add or replace one document."""
        self._write([new_document(id, {"text": text, **fields}, updated_at)], self.watermark)

    def add_many(self, documents: Iterable[Source], /) -> None:
        """Add or replace documents; readers see all of them or none."""
        sources = validation.listed("documents", documents, SOURCES)
        self._write(list(map(as_document, sources)), self.watermark)

    def remove(self, id: str, /) -> bool:
        """Remove a document; False when there was none."""
        validation.text("id", id, "a str")
        with self._lock:
            known = id in self._rows
            self._write([id], self.watermark)
            return known

    def apply(self, changes: Iterable[Change], /) -> None:
        """Apply changes in order, in one transaction."""
        operations: list[Document | str] = []
        watermark = self.watermark
        for change in changes:
            watermark = max(watermark, change.seq)
            if change.edge is not None:
                continue
            if change.memory is None:
                operations.append(change.id)
            elif change.text_changed or change.id not in self._rows:
                operations.append(as_document(change.memory)._replace(id=change.id))
        self._write(operations, watermark)

    def _write(self, operations: Sequence[Document | str], watermark: int) -> None:
        """Add or replace documents, remove ids."""
        with self._lock:
            rows: dict[str, int | None] = {}
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for operation in operations:
                    if isinstance(operation, str):
                        self._db.execute("DELETE FROM documents WHERE name = ?", (_blob(operation),))
                        rows[operation] = None
                    else:
                        rows[operation.id] = self._put(operation)
                self._db.execute("INSERT OR REPLACE INTO state VALUES ('watermark', ?)", (watermark,))
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            for name, row in rows.items():
                if row is None:
                    self._rows.pop(name, None)
                else:
                    self._rows[name] = row
            self.watermark = watermark

    def _put(self, document: Document) -> int:
        stamp = max(document.stamp, -1e300)  # SQLite cannot store the -inf of a missing time
        texts = [_spaced(document.fields.get(name, "")) for name in _FIELDS]
        [(row,)] = self._db.execute(_PUT, (_blob(document.id), stamp, *texts)).fetchall()
        return int(row)

    # --- reading

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id: object) -> bool:
        return id in self._rows

    def search(self, query: str | Sequence[str], /, *, k: int = 10, allowed: Set[str] | None = None) -> Hits:
        """The k best documents that share a word with the query, among `allowed` when given."""
        validation.k(k)
        match = self._match(query)
        if match is None:
            return Hits([], [])
        weights = [self.weights.get(name, 0.0) for name in _FIELDS]
        where, rows = "", []
        if allowed is not None:
            where = "AND words.rowid IN (SELECT value FROM json_each(?))"
            with self._lock:
                rows = [str([self._rows[name] for name in check_allowed(allowed) if name in self._rows])]
        sql = f"""
            SELECT name, -bm25(words, {", ".join("?" * len(_FIELDS))}) AS score
            FROM words JOIN documents ON row = words.rowid WHERE words MATCH ? {where}
            ORDER BY score DESC, stamp DESC, name LIMIT ?"""  # noqa: S608 - only placeholders are inserted
        with self._lock:
            found = self._db.execute(sql, (*weights, match, *rows, min(k, _MOST))).fetchall()
        return Hits([_text(name) for name, _ in found], [score for _, score in found])

    def _match(self, query: str | Sequence[str]) -> str | None:
        """The words of the query, each quoted, joined with OR; None when there are none."""
        text = query if isinstance(query, str) else " ".join(validation.texts("query", query))
        words = list(dict.fromkeys(_WORD.findall(_spaced(fold(text)).casefold())))
        words = [word for word in words if not self.analyzer.is_stop(word)] or words
        if not words or not self.weights:
            return None
        columns = " ".join(self.weights)
        return f"{{{columns}}} : (" + " OR ".join(f'"{word}"' for word in words[:_MOST_WORDS]) + ")"


def _spaced(text: str) -> str:
    """The text with CJK runs as bigrams separated by blanks: FTS5 would index a whole sentence as one word."""
    clean = text.encode("utf-8", "replace").decode().replace("\0", " ")
    if clean.isascii():
        return clean
    pieces = cjk_runs(clean)
    return "".join(
        " " + " ".join(map("".join, pairwise(piece)) if len(piece) > 1 else piece) + " " if i % 2 else piece
        for i, piece in enumerate(pieces)
    )


def _blob(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")
