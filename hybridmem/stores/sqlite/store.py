"""SQLiteStore: the log of memories in one SQLite file, for many threads and processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hybridmem.core import validation
from hybridmem.core.protocols import View
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from hybridmem.filters.parse import Condition
from hybridmem.filters.sql import SQL, to_sql
from hybridmem.stores.sql import read
from hybridmem.stores.sql.log import Log
from hybridmem.stores.sql.store import PAGE, SQLStore
from hybridmem.stores.sql.validation import check_namespace, check_view
from hybridmem.stores.sqlite import maintenance
from hybridmem.stores.sqlite.connection import SQLITE_ERRORS, Pool, Synchronous, explain, translated

__all__ = ["SQLiteStore"]

T = TypeVar("T")


class SQLiteStore(SQLStore):
    """The log of memories in one SQLite file (`":memory:"` for none).

    Durable: with `synchronous="full"` a write that returned survives a killed process and a power cut; with
    `"normal"` a killed process still loses nothing, a power cut may lose the last writes (never a part of one).

    >>> with SQLiteStore(":memory:") as store:
    ...     _ = store.put([Memory("Ana moved to Lisbon", id="m1")])
    ...     store.get(["m1"], view=View())[0].text
    'Ana moved to Lisbon'
    """

    def __init__(
        self,
        path: str | Path,
        /,
        *,
        clock: Callable[[], float] = time.time,
        busy_timeout: float = 5.0,
        synchronous: Synchronous = "full",
    ) -> None:
        name = validation.file_path("path", path, "the name of a file, or ':memory:'")
        self.path = name if name == ":memory:" else os.path.abspath(name)  # noqa: PTH100 - keeps symbolic links
        validation.function("clock", clock, "a function that returns epoch seconds")
        self.pool = Pool(self.path, busy_timeout=busy_timeout, synchronous=synchronous)
        super().__init__(clock=clock, streams=not self.pool.in_memory)  # ":memory:" has one connection for everybody

    # --- connections and transactions

    def _read(self, work: Callable[[Any], T], /) -> T:
        try:
            return self.pool.read(work)
        except SQLITE_ERRORS as error:
            raise explain(error, self.path) from error

    @contextmanager
    def snapshot(self, *, stream: bool = False) -> Iterator[Any]:  # noqa: ARG002 - SQLite always streams
        """A connection that sees one moment of the file."""
        with translated(self.path), self.pool.snapshot() as conn:
            yield conn

    @contextmanager
    def transaction(self, namespace: str | None = None, /) -> Iterator[Log]:  # noqa: ARG002 - one file, one lock
        """A write transaction and its log."""
        with translated(self.path), self.pool.write() as conn:
            now, at = self._times()
            log = Log(conn, now=now, at=at)
            self._report_clock(now, log.newest)
            yield log
            log.finish()

    @contextmanager
    def _side_tables(self, name: str, /, *, alone: bool = False) -> Iterator[Any]:  # noqa: ARG002
        with translated(self.path), self.pool.write() as conn:
            yield conn

    def _sql(self, condition: Condition, view: View, /) -> SQL:
        return to_sql(condition, columns=read.columns(view))

    def erase(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Remove memories from the file with their whole history; returns how many existed."""
        erased = super().erase(ids, namespace=namespace)
        self.purge()
        return erased

    def purge(self) -> None:
        """Empty the write-ahead log, so that it keeps no copy of erased pages."""
        with translated(self.path):
            self.pool.checkpoint()

    # --- vectors in bulk

    @contextmanager
    def vector_pieces(self, *, view: View) -> Iterator[tuple[int, Iterator[list[tuple[str, float | None, bytes]]]]]:
        """The seq of this state and every vector in view, in batches; to be read inside the `with`."""
        check_view(view)
        with self.snapshot() as conn:
            yield read.last_seq(conn), read.vector_batches(conn, view)

    def vector_seqs(self, *, view: View) -> dict[str, int]:
        """The number of the vector of each memory in view that has one."""
        check_view(view)
        with self.snapshot() as conn:
            return read.vector_seqs(conn, view)

    def vector_rows(self, seqs: Sequence[int], /) -> dict[int, bytes]:
        """The little-endian float32 bytes of the vectors of these numbers; erased ones are left out."""
        return self._read(lambda conn: read.vector_rows(conn, seqs))

    def unembedded(self, *, namespace: str = "", after: str = "", limit: int = PAGE) -> list[Memory]:
        """Memories without a vector, superseded ones too, in the order of ids: at most `limit`, after a given id."""
        check_namespace(namespace)
        with self.snapshot() as conn:
            missing = read.unembedded(conn, namespace, after, min(limit, PAGE))
            found = read.get(conn, View(namespace, superseded=True), missing)
        return [found[id_] for id_ in missing]

    # --- maintenance

    def check(self) -> list[str]:
        """The problems of the file, one sentence each; empty when there are none."""
        with self.snapshot() as conn:
            return [*maintenance.check(conn), *self._clock_problems(conn)]

    def backup(self, path: str | Path, /) -> None:
        """Copy the store to another file while it is in use; the copy appears complete or not at all."""
        target = os.path.abspath(validation.file_path("path", path, "the name of a file to back up to"))  # noqa: PTH100
        if Path(target).is_dir():
            raise ConfigError(f"cannot back up to {target!r}: name a file")
        with translated(target):
            self.pool.read(lambda conn: maintenance.backup(conn, self.path, target))

    def close(self) -> None:
        """Close the file; later calls raise StoreClosedError."""
        self.pool.close()
