"""Translation of SQLite's errors into errors of this package."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from hybridmem.errors import CorruptStoreError, StoreBusyError, StoreClosedError, StoreError

__all__ = ["SQLITE_ERRORS", "explain", "is_busy", "translated"]

_BUSY = ("locked", "busy")
_MESSAGES: tuple[tuple[str, type[StoreError], str], ...] = (
    ("locked", StoreBusyError, "{path} was held by another process for longer than the busy timeout"),
    ("malformed", CorruptStoreError, "{path} is damaged: restore a backup, or export what can still be read"),
    ("not a database", CorruptStoreError, "{path} is not an SQLite file, or its beginning is damaged"),
    (
        "disk is full",
        StoreError,
        "no space left for {path}: this call wrote nothing, all earlier writes are kept",
    ),
    ("readonly", StoreError, "{path} is read-only: hybridmem needs to write the file and its folder"),
    ("unable to open", StoreError, "cannot open {path}: the folder must exist and both must be writable"),
    ("disk i/o", StoreError, "the disk failed under {path}: this call was not acknowledged"),
    ("closed database", StoreClosedError, "the store {path} is closed"),
)


def is_busy(error: sqlite3.Error, /) -> bool:
    """Whether another connection held the file."""
    text = str(error).lower()
    return any(word in text for word in _BUSY)


SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises; the second for a damaged file whose bytes are part of SQLite's message."""


def explain(error: sqlite3.Error | UnicodeDecodeError, path: str, /) -> StoreError:
    """The StoreError for an error of SQLite; its message says what to do."""
    if isinstance(error, UnicodeDecodeError):
        return CorruptStoreError(f"{path} is damaged: restore a backup, or export what can still be read ({error})")
    text = str(error).lower()
    for word, kind, message in _MESSAGES:
        if word in text:
            return kind(f"{message.format(path=path)} (SQLite: {error})")
    return StoreError(f"{path}: {error}")


@contextmanager
def translated(path: str, /) -> Iterator[None]:
    """Raise a StoreError instead of any error of SQLite inside the `with`."""
    try:
        yield
    except SQLITE_ERRORS as error:
        raise explain(error, path) from error
