"""SQLiteStore: one file that is the truth, safe among threads and processes and when a process is killed."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from hybridmem import filters
from hybridmem.errors import ConfigError
from hybridmem.indexes.base import Change, Scanned
from hybridmem.stores import codec, reads, snapshots, transfer, upkeep, writes
from hybridmem.stores.base import Progress, Version, View
from hybridmem.stores.log import Log
from hybridmem.stores.pool import Pool, Synchronous, guarded, translate
from hybridmem.types import Edge, Entry, Memory

__all__ = ["SQLiteStore"]

_list = list  # `SQLiteStore.list` hides the builtin inside the class
_PAGE = 500
_CACHED = 8


class SQLiteStore:
    """The log of memories in one SQLite file (`":memory:"` for none).

    Durable: with `synchronous="full"` a write that returned survives a killed process and a power cut; with
    `"normal"` a killed process still loses nothing, a power cut may take the last writes (never half of one).

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
        self.path = os.fspath(path)
        self._clock = clock
        self._pool = Pool(self.path, busy_timeout=busy_timeout, synchronous=synchronous)
        self._ids: OrderedDict[tuple[View, filters.Condition, int], frozenset[str]] = OrderedDict()

    # --- writing

    @guarded
    def put(
        self,
        memories: Sequence[Memory],
        /,
        *,
        namespace: str = "",
        vectors: Sequence[Any] | None = None,
        progress: Progress | None = None,
        strict: bool = True,
    ) -> _list[str]:
        """Add or update (same id) memories, all or none of them; give their ids.

        What a memory supersedes must be known, unless `strict` is off (an import that holds only a part).
        """
        _check_namespace(namespace)
        if vectors is not None and len(vectors) != len(memories):
            raise ConfigError(f"put got {len(memories)} memories but {len(vectors)} vectors: one each, or None")
        for memory in memories:  # before taking the write lock
            codec.check_memory(memory, namespace=namespace)
        if not len(memories):
            return []
        with self._writing() as log:
            ids = writes.assign_ids(memories, now=log.at)
            writes.put(log, memories, ids, namespace=namespace, vectors=vectors, progress=progress, strict=strict)
        return ids

    @guarded
    def delete(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Delete memories and their links (history keeps them); how many there were."""
        with self._writing() as log:
            return writes.delete(log, _clean(ids), namespace=namespace)

    @guarded
    def erase(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Remove memories from the file for good, history included; how many there were."""
        with self._writing() as log:
            erased = writes.erase(log, _clean(ids), namespace=namespace)
        self._pool.checkpoint()  # the write-ahead log must not keep a copy
        return erased

    @guarded
    def link(self, edges: Sequence[Edge], /, *, namespace: str = "") -> None:
        """Link memories of one namespace; both ends must be there."""
        with self._writing() as log:
            writes.link(log, edges, namespace=namespace)

    @guarded
    def unlink(self, edges: Sequence[Edge], /, *, namespace: str = "") -> int:
        """Remove links, whichever way round; how many there were."""
        with self._writing() as log:
            return writes.unlink(log, edges, namespace=namespace)

    @guarded
    def touch(self, ids: Sequence[str], /, *, namespace: str = "") -> None:
        """Count an access of each memory, now."""
        with self._writing() as log:
            writes.touch(log, _clean(ids), namespace=namespace)

    @guarded
    def reinforce(self, id: str, /, *, namespace: str = "", by: float = 0.1) -> float:
        """Strengthen a memory, up to 1.0; its new strength."""
        with self._writing() as log:
            return writes.reinforce(log, id, namespace=namespace, by=by)

    @guarded
    def decay(self, *, namespace: str = "", now: datetime | None = None) -> int:
        """Weaken every memory by exp(−0.01) for each whole day since it was last weakened; how many changed."""
        with self._writing() as log:
            moment = codec.seconds(now, "now")
            return writes.decay(log, namespace=namespace, now=log.at if moment is None else moment)

    @guarded
    def set_vectors(self, vectors: Mapping[str, Any], /, *, namespace: str = "") -> None:
        """Replace the vectors of memories, as re-embedding does."""
        with self._writing() as log:
            writes.set_vectors(log, vectors, namespace=namespace)

    @contextmanager
    def _writing(self) -> Iterator[Log]:
        with self._pool.write() as conn:
            log = Log(conn, now=self._clock())
            yield log
            log.finish()

    # --- reading

    @guarded
    def get(self, ids: Sequence[str], /, *, view: View) -> _list[Memory | None]:
        """The memories of some ids, in their order; None where the view has none."""
        wanted = _clean(ids)
        found: dict[str, Memory] = {}
        conn = self._pool.take()
        try:
            for start in range(0, len(wanted), _PAGE):
                found |= reads.get(conn, view, wanted[start : start + _PAGE])
        finally:
            self._pool.give(conn)
        return [found.get(id_) for id_ in ids]

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
        if limit is not None and limit < 0:
            raise ConfigError(f"limit must be >= 0 or None, not {limit!r}")
        return self._pages(view, condition, limit, after or "")

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
        with self._reading() as conn:
            key = (view, condition, reads.last_seq(conn))
            cached = self._ids.get(key)
            if cached is None:
                sql = None if condition == filters.All() else self._sql(condition, view)
                cached = reads.ids(conn, view, sql)
        self._remember(key, cached)
        return cached

    def _remember(self, key: tuple[View, filters.Condition, int], ids: frozenset[str]) -> None:
        cache = self._ids
        cache[key] = ids
        for old in _list(cache):
            if old[2] < key[2] or len(cache) > _CACHED:
                cache.pop(old, None)

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
            return reads.history(conn, namespace, codec.clean(id), vitals=vitals)

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

    def scan(self, *, view: View) -> Iterator[Scanned]:
        """Every memory in view without its text, for indexes that open."""
        with translate(self.path), self._pool.snapshot() as conn:
            yield from reads.scan(conn, view)

    @guarded
    def vectors(self, ids: Sequence[str], /, *, view: View) -> _list[Any]:
        """The stored vectors of some ids, in their order; None where there is none."""
        found: dict[str, Any] = {}
        with self._reading() as conn:
            for start in range(0, len(ids), _PAGE):
                found |= reads.vectors(conn, view, _clean(ids[start : start + _PAGE]))
        return [found.get(id_) for id_ in ids]

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
            return snapshots.get_meta(conn, key)

    @guarded
    def set_meta(self, key: str, value: str, /) -> None:
        """Store a setting beside the memories."""
        with self._pool.write() as conn:
            snapshots.set_meta(conn, key, value)

    @guarded
    def load_snapshot(self, index: str, /, *, namespace: str = "") -> tuple[int, bytes] | None:
        """An index's last saved state and the seq it stands for."""
        with self._pool.snapshot() as conn:
            return snapshots.load(conn, index, namespace)

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
        with self._reading() as conn:
            upkeep.backup(conn, self.path, os.fspath(path))

    def export(self, *, namespace: str | None = None) -> Iterator[dict[str, Any]]:
        """The whole log as JSON-ready rows, oldest first: versions, links, recorded times, vectors."""
        with translate(self.path), self._pool.snapshot() as conn:
            rows = transfer.export(conn, namespace)
            yield from _list(rows) if self._pool.in_memory else rows

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


def _clean(ids: Sequence[str]) -> Sequence[str]:
    if isinstance(ids, str):
        raise ConfigError(f"ids must be a sequence of str, not the single str {ids!r}")
    return [codec.clean(id_) for id_ in ids]


def _check_namespace(namespace: str) -> None:
    if not isinstance(namespace, str) or codec.clean(namespace) != namespace:
        raise ConfigError(f"a namespace must be encodable text, not {namespace!r}")
