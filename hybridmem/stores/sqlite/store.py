"""SQLiteStore: one file that is the truth, safe among threads and processes and when a process is killed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from hybridmem.core import validation
from hybridmem.core.protocols import Change, Progress, Version, View
from hybridmem.core.types import Edge, Entry, Memory
from hybridmem.errors import ConfigError
from hybridmem.filters import predicate as filters
from hybridmem.stores.sql import read as reads
from hybridmem.stores.sql import snapshots, transfer
from hybridmem.stores.sql.codec import check_namespace, check_view
from hybridmem.stores.sql.writer import Writer, cleaned
from hybridmem.stores.sqlite import maintenance as upkeep
from hybridmem.stores.sqlite.connection import Pool, Synchronous
from hybridmem.stores.sqlite.errors import guarded, translate
from hybridmem.stores.sqlite.log import Log

__all__ = ["SQLiteStore", "SQLiteWriter"]


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
        self.path = validation.file_path("path", path, "the name of a file, or ':memory:'")
        validation.function("clock", clock, "a function that gives epoch seconds")
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


_list = list  # `SQLiteStore.list` hides the builtin inside the class
_PAGE = 500
_CACHED = 8


class SQLiteStore(SQLiteWriter):
    """The log of memories in one SQLite file (`":memory:"` for none).

    Durable: with `synchronous="full"` a write that returned survives a killed process and a power cut; with
    `"normal"` a killed process still loses nothing, a power cut may take the last writes (never half of one).

    >>> with SQLiteStore(":memory:") as store:
    ...     _ = store.put([Memory("Ana moved to Lisbon", id="m1")])
    ...     store.get(["m1"], view=View())[0].text
    'Ana moved to Lisbon'
    """

    # --- reading

    @guarded
    def get(self, ids: Sequence[str], /, *, view: View) -> _list[Memory | None]:
        """The memories of some ids, in their order; None where the view has none."""
        wanted = cleaned(ids)
        found: dict[str, Memory] = {}
        conn = self._pool.take()
        try:
            for start in range(0, len(wanted), _PAGE):
                found |= reads.get(conn, view, wanted[start : start + _PAGE])
        finally:
            self._pool.give(conn)
        return [found.get(id_) for id_ in wanted]

    @guarded
    def list(
        self,
        *,
        view: View,
        filter: Any = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Iterator[Memory]:
        """The memories in view, by id: those after a given id, at most `limit` of them."""
        condition = self._sql(filters.parse(filter), view)
        if limit is not None:
            validation.integer("limit", limit, "a whole number from 0 up, or None", low=0)
        return self._pages(view, condition, limit, *cleaned([after] if after is not None else [""]))

    def _pages(self, view: View, condition: filters.SQL, limit: int | None, after: str) -> Iterator[Memory]:
        left = limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            with translate(self.path), self._reading() as conn:
                page = reads.page(conn, view, condition, after=after, size=size)
            yield from page
            if len(page) < size:
                return
            after = page[-1].id
            left = None if left is None else left - size

    @guarded
    def ids(self, *, view: View, filter: Any = None) -> frozenset[str]:
        """The ids in view that match a filter; the same set object as long as the store has not changed."""
        condition = filters.parse(filter)
        cached = self._ids.get((view, condition, self.last_seq()))
        if cached is None:
            sql = None if condition == filters.All() else self._sql(condition, view)
            with self._pool.snapshot() as conn:
                seq, cached = reads.last_seq(conn), reads.ids(conn, view, sql)
            newest = [item for item in self._ids.items() if item[0][2] == seq][1 - _CACHED :]
            self._ids = dict([*newest, ((view, condition, seq), cached)])  # a new one: other threads read the old
        return cached

    @staticmethod
    def _sql(condition: filters.Condition, view: View) -> filters.SQL:
        return filters.to_sql(condition, columns=reads.columns(view))

    @guarded
    def count(self, *, view: View) -> int:
        """How many memories are in view."""
        with self._reading() as conn:
            return reads.count(conn, view)

    @guarded
    def history(self, id: str, /, *, namespace: str = "", vitals: bool = False) -> _list[Version]:
        """Every version of a memory, oldest first; with `vitals` also each touch, reinforcement and decay."""
        with self._reading() as conn:
            return reads.history(conn, namespace, *cleaned([id]), vitals=vitals)

    @guarded
    def edges(self, *, view: View) -> _list[Edge]:
        """The links whose both ends are in view."""
        with self._pool.snapshot() as conn:
            return reads.edges(conn, view)

    @guarded
    def entries(self, *, view: View) -> _list[Entry]:
        """What ranking needs to know of every memory in view."""
        with self._reading() as conn:
            return reads.entries(conn, view)

    @contextmanager
    def vector_pieces(self, *, view: View) -> Iterator[tuple[int, Iterator[_list[tuple[str, float | None, bytes]]]]]:
        """Every vector in view, piece by piece, and the seq up to which they are told: read them inside the `with`."""
        with translate(self.path), self._pool.snapshot() as conn:
            yield reads.last_seq(conn), reads.vector_pieces(conn, view)

    @guarded
    def vectors(self, ids: Sequence[str], /, *, view: View) -> _list[Any]:
        """The stored vectors of some ids, in their order; None where there is none."""
        wanted = cleaned(ids)
        found: dict[str, Any] = {}
        with self._reading() as conn:
            for start in range(0, len(wanted), _PAGE):
                found |= reads.vectors(conn, view, wanted[start : start + _PAGE])
        return [found.get(id_) for id_ in wanted]

    @guarded
    def unembedded(self, *, namespace: str = "", after: str = "", limit: int = _PAGE) -> _list[Memory]:
        """Memories that have no vector, superseded ones too, by id: those after a given id, at most `limit`."""
        with self._pool.snapshot() as conn:
            missing = reads.unembedded(conn, namespace, after, min(limit, _PAGE))
            found = reads.get(conn, View(namespace, superseded=True), missing)
        return [found[id_] for id_ in missing]

    @guarded
    def namespaces(self) -> _list[str]:
        """The namespaces that hold at least one memory."""
        with self._pool.snapshot() as conn:
            return reads.namespaces(conn)

    @guarded
    def last_seq(self) -> int:
        """The newest seq of the whole store."""
        conn = self._pool.take()
        try:
            return reads.last_seq(conn)
        finally:
            self._pool.give(conn)

    def changes(self, since: int, /, *, view: View, vectors: bool = False) -> Iterator[Change]:
        """The view's changes after `since`, oldest first, all from one moment; from 0 the state as it stands."""
        check_view(view)
        validation.integer("since", since, "a seq: a whole number from 0 up", low=0)
        since = min(since, 2**62)  # what SQLite counts to
        with translate(self.path):
            with self._pool.snapshot() as conn:
                stream = reads.changes(conn, since, view, vectors=vectors)
                size = None if self._pool.in_memory else _PAGE  # the one connection of :memory: cannot be kept waiting
                first = _list(islice(stream, size))
                if size is not None and len(first) == size:
                    yield from first
                    yield from stream
                    return
            yield from first  # the usual few: the connection is free again before anyone looks at them

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        conn = self._pool.take()
        try:
            yield conn
        finally:
            self._pool.give(conn)

    # --- side tables

    @guarded
    def get_meta(self, key: str, /) -> str | None:
        """A setting that was stored with `set_meta`."""
        with self._reading() as conn:
            return snapshots.get_meta(conn, *cleaned([key]))

    @guarded
    def set_meta(self, key: str, value: str, /) -> None:
        """Store a setting beside the memories."""
        stored = cleaned([key, value])
        with self._pool.write() as conn:
            snapshots.set_meta(conn, *stored)

    @guarded
    def load_snapshot(self, index: str, /, *, namespace: str = "") -> tuple[int, bytes] | None:
        """An index's last saved state and the seq it stands for."""
        with self._pool.snapshot() as conn:
            return snapshots.load(conn, cleaned([index])[0], namespace)

    @guarded
    def save_snapshot(self, index: str, watermark: int, blob: bytes, /, *, namespace: str = "") -> None:
        """Save an index's state, replacing the last one at once or not at all."""
        with self._pool.write() as conn:
            snapshots.save(conn, index, namespace, watermark, blob)

    # --- upkeep

    @guarded
    def check(self) -> _list[str]:
        """What is wrong with the file, in words; an empty list when all is well."""
        with self._pool.snapshot() as conn:
            return upkeep.check(conn)

    @guarded
    def backup(self, path: str | Path, /) -> None:
        """Copy the store to another file while it is in use; the copy appears whole or not at all."""
        target = validation.file_path("path", path, "the name of a file to back up to")
        if Path(target).is_dir():
            raise ConfigError(f"cannot back up to {target!r}: name a file")
        with self._reading() as conn, translate(target):
            upkeep.backup(conn, self.path, target)

    def export(self, *, namespace: str | None = None) -> Iterator[dict[str, Any]]:
        """The whole log as JSON-ready rows, oldest first: versions, links, recorded times, vectors."""
        if namespace is not None:
            check_namespace(namespace)
        with translate(self.path), self._pool.snapshot() as conn:
            rows = transfer.export(conn, namespace)
            if not self._pool.in_memory:
                yield from rows
                return
            kept = _list(rows)  # the one connection of :memory: cannot be kept waiting
        yield from kept

    @guarded
    def restore(
        self, rows: Iterable[Mapping[str, Any]], /, *, progress: Progress | None = None, exact: bool | None = None
    ) -> int:
        """Replay exported rows: into an empty store an exact copy, into another one as new entries of its log.

        `exact=True` goes on with an exact copy whose beginning is there already.
        """
        with self._writing() as log:
            return transfer.restore(log, rows, progress, exact=exact)

    def close(self) -> None:
        """Close the file; using the store afterwards is a StoreClosedError."""
        self._pool.close()

    def __enter__(self) -> SQLiteStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
