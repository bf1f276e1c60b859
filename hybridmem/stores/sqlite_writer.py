"""The writing half of SQLiteStore: each call is one transaction, numbered by the store's own clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hybridmem import checks, filters
from hybridmem.stores.base import View
from hybridmem.stores.log import Log
from hybridmem.stores.pool import Pool, Synchronous
from hybridmem.stores.sqlite_errors import guarded, translate
from hybridmem.stores.writer import Writer

__all__ = ["SQLiteWriter"]


class SQLiteWriter(Writer):
    """One file and the calls that change it."""

    def __init__(
        self,
        path: str | Path,
        /,
        *,
        clock: Callable[[], float] = time.time,
        busy_timeout: float = 5.0,
        synchronous: Synchronous = "full",
    ) -> None:
        self.path = checks.file_path("path", path, "the name of a file, or ':memory:'")
        checks.function("clock", clock, "a function that gives epoch seconds")
        self._clock = clock
        self._pool = Pool(self.path, busy_timeout=busy_timeout, synchronous=synchronous)
        self._ids: dict[tuple[View, filters.Condition, int], frozenset[str]] = {}

    @guarded
    def erase(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Remove memories from the file for good, history included; how many there were."""
        erased = super().erase(ids, namespace=namespace)
        self._pool.checkpoint()  # the write-ahead log must not keep a copy
        return erased

    @contextmanager
    def _writing(self, namespace: str | None = None, /) -> Iterator[Log]:  # noqa: ARG002 - one file, one lock
        with translate(self.path), self._pool.write() as conn:
            log = Log(conn, now=self._clock())
            yield log
            log.finish()
