"""SQLite's errors in our own words, and what every call of a store is asked for, checked."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from hybridmem.errors import CorruptStoreError, StoreBusyError, StoreClosedError, StoreError
from hybridmem.stores.sql import codec

__all__ = ["guarded", "is_busy", "translate"]

P = ParamSpec("P")
T = TypeVar("T")

_BUSY = ("locked", "busy")
_WORDS: tuple[tuple[str, type[StoreError], str], ...] = (
    ("locked", StoreBusyError, "{path} was held by another process for longer than the busy timeout"),
    ("malformed", CorruptStoreError, "{path} is damaged: restore a backup, or export what can still be read"),
    ("not a database", CorruptStoreError, "{path} is not an SQLite file, or its beginning is damaged"),
    (
        "disk is full",
        StoreError,
        "no space left for {path}: nothing of this call was written, all earlier writes stand",
    ),
    ("readonly", StoreError, "{path} is read-only: hybridmem needs to write the file and its folder"),
    ("unable to open", StoreError, "cannot open {path}: the folder must exist and both must be writable"),
    ("disk i/o", StoreError, "the disk failed under {path}: nothing of this call was acknowledged"),
    ("closed database", StoreClosedError, "the store {path} is closed"),
)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else held the file."""
    text = str(error).lower()
    return any(word in text for word in _BUSY)


def _explain(error: sqlite3.Error, path: str) -> StoreError:
    text = str(error).lower()
    for word, kind, message in _WORDS:
        if word in text:
            return kind(f"{message.format(path=path)} (SQLite: {error})")
    return StoreError(f"{path}: {error}")


@contextmanager
def translate(path: str, /) -> Iterator[None]:
    """Turn sqlite3's errors into ours.

    Its Python-side mistakes (a value that cannot be bound) stay as they are: those would be bugs of ours.
    """
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
        raise _explain(error, path) from error


def guarded(method: Callable[P, T], /) -> Callable[P, T]:
    """The same for every method of a store (an object with `.path`), without a context manager's cost.

    Whose view or namespace it is asked for is looked at here too, so that no method forgets.
    """

    @functools.wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if "view" in kwargs:
            codec.check_view(kwargs["view"])
        elif "namespace" in kwargs:
            codec.check_namespace(kwargs["namespace"])  # type: ignore[arg-type]
        try:
            return method(*args, **kwargs)
        except sqlite3.Error as error:
            raise _explain(error, str(args[0].path)) from error  # type: ignore[attr-defined]

    return wrapper
