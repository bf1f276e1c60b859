"""SQLStore: the calls that the SQLite and PostgreSQL stores share. A subclass supplies connections and transactions."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import Any, Protocol, TypeVar

from hybridmem.core import validation
from hybridmem.core.inputs import Batch, checked_batch, checked_edges
from hybridmem.core.protocols import Change, CheckEmbedder, Embed, Progress, Version, View
from hybridmem.core.types import Edge, Entry, Memory
from hybridmem.filters.parse import All, Condition, parse
from hybridmem.filters.sql import SQL
from hybridmem.stores.sql import read, transfer, write
from hybridmem.stores.sql.log import MAX_SKEW, Log

__all__ = ["PAGE", "SQLStore"]

PAGE = 500
"""Ids in one look-up, and memories or changes read at a time."""
_CACHED_FILTERS = 8
_LAST_SEQ = 2**62
_Key = tuple[View, Condition, int]
logger = logging.getLogger("hybridmem")
_list = list  # `SQLStore.list` hides the builtin inside the class
S = TypeVar("S", bound="SQLStore")
T = TypeVar("T")


def _ahead(seconds: float) -> str:
    return f"a write is recorded {seconds:.0f} seconds ahead of this clock: one of the clocks is wrong"


class Database(Protocol):
    """The connections to one database. Its errors are raised as StoreErrors."""

    def read(self, work: Callable[[Any], T], /) -> T:
        """The result of one read on a connection; it may be repeated after a lost connection."""
        ...

    def snapshot(self, *, stream: bool = False) -> AbstractContextManager[Any]:
        """A connection that sees one moment of the store; `stream` reads rows as they are consumed."""
        ...


class SQLStore(ABC):
    """The store protocol over the tables of `memories`, `versions`, `bodies`, `vectors`, `edges` and `snapshots`."""

    path: str
    """The file of the store, or its address without the password."""

    def __init__(self, database: Database, /, *, clock: Callable[[], float], streams: bool = True) -> None:
        """`streams`: a connection may stay in use while the caller consumes what it reads."""
        self._database = database
        self._clock = clock
        self._recorded = -math.inf
        self._clock_reported = False
        self._streams = streams
        self._filter_ids: dict[_Key, frozenset[str]] = {}

    # --- the clock

    def _times(self) -> tuple[float, float]:
        """The clock, and the time to record: that of this store's last write if the clock was set back since.

        Times of other writers do not matter: one of their clocks may be wrong.
        """
        now = validation.clock_seconds(self._clock)
        self._recorded = max(now, self._recorded)
        return now, self._recorded

    def _report_clock(self, now: float, newest: float) -> None:
        """Warn once when another writer has recorded a time far ahead of this clock."""
        if newest - now > MAX_SKEW and not self._clock_reported:
            self._clock_reported = True
            logger.warning("%s: %s", self.path, _ahead(newest - now))

    def _clock_problems(self, conn: Any) -> _list[str]:
        ahead = conn.execute("SELECT at FROM state").fetchone()[0] - validation.clock_seconds(self._clock)
        return [_ahead(ahead)] if ahead > MAX_SKEW else []

    def snapshot(self, *, stream: bool = False) -> AbstractContextManager[Any]:
        """A connection that sees one moment of the store; `stream` reads rows as they are consumed."""
        return self._database.snapshot(stream=stream)

    @abstractmethod
    def transaction(self, namespace: str | None, /) -> AbstractContextManager[Any]:
        """A write transaction and its `Log`, for one namespace or (None) for all of them."""

    @abstractmethod
    def _side_tables(self, name: str, /, *, alone: bool = False) -> AbstractContextManager[Any]:
        """A write transaction for the setting or snapshot `name`, which is not part of the log.

        With `alone` it waits for all other writers.
        """

    @abstractmethod
    def _sql(self, condition: Condition, view: View, /) -> SQL:
        """A filter over a view in the database's own SQL."""

    def _expect_vectors(self) -> None:  # noqa: B027 - a hook with an empty default
        """Called before vectors are written."""

    def _log(self, namespace: str) -> AbstractContextManager[Log]:
        return self.transaction(validation.namespace(namespace))

    # --- writing

    def put(
        self,
        memories: Sequence[Memory],
        /,
        *,
        namespace: str = "",
        vectors: Sequence[Any] | Embed | None = None,
        progress: Progress | None = None,
        base: Sequence[Memory] | None = None,
        unless_duplicate: bool = False,
        check_embedder: CheckEmbedder | None = None,
    ) -> _list[str]:
        """Add or update (same id) memories, all or none of them; returns their ids.

        With `unless_duplicate` a memory whose normalized text and thread are already stored is not written, and the
        id of the stored one is returned.

        A superseded memory must exist in the log. An update keeps confidence and vitals that were not given (1.0, 0,
        None). `vectors` has one vector (or None) for each memory, or is a function that makes them after the memories
        are validated. `base` holds the memories as the caller read them: every field is then stored as given, and
        WriteConflict says that one has changed since.
        """
        batch = checked_batch(
            memories,
            namespace=namespace,
            vectors=vectors,
            base=base,
            unless_duplicate=unless_duplicate,
            check_embedder=check_embedder,
        )
        if progress is not None:
            validation.function("progress", progress, "a function of (done, total), or None")
        if not batch.memories:
            return []
        if batch.vectors is not None and any(vector is not None for vector in batch.vectors):
            self._expect_vectors()
        return self._put(batch, progress)

    def _put(self, batch: Batch, progress: Progress | None, /) -> _list[str]:
        with self._log(batch.namespace) as log:
            return write.put_batch(log, batch, progress=progress)

    def delete(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Delete memories and their links; the history keeps them. Returns how many existed."""
        return self._remove(write.delete, validation.ids(ids), validation.namespace(namespace))

    def erase(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Remove memories with their whole history; returns how many existed."""
        erased = self._remove(write.erase, validation.ids(ids), validation.namespace(namespace))
        self.purge()
        return erased

    def _remove(self, remove: Callable[..., int], ids: Sequence[str], namespace: str, /) -> int:
        """Call `write.delete` or `write.erase` in a transaction."""
        with self._log(namespace) as log:
            return remove(log, ids, namespace=namespace)

    def purge(self) -> None:  # noqa: B027 - a hook with an empty default
        """Remove what the database still keeps of erased rows, such as copies in a write-ahead log."""

    def erase_namespace(self, namespace: str, /) -> int:
        """Remove every memory of a namespace with its whole history; returns how many existed."""
        with self._log(namespace) as log:
            erased = write.erase(log, read.every_id(log.conn, namespace), namespace=namespace)
        self.purge()
        return erased

    def duplicates(self, memories: Sequence[Memory], /, *, namespace: str = "") -> _list[str | None]:
        """For each memory the id of a stored one with the same normalized text and thread, or None."""
        batch = checked_batch(memories, namespace=namespace)
        return self._database.read(lambda conn: read.duplicates(conn, batch.memories, namespace))

    def next_expiry(self, *, namespace: str | None = "") -> float | None:
        """The earliest `expires_at` of the live memories of a namespace, or (None) of all; None: none expires."""
        if namespace is not None:
            validation.namespace(namespace)
        return self._database.read(lambda conn: read.next_expiry(conn, namespace))

    def expire(self, *, now: float, namespace: str = "") -> int:
        """Delete the memories whose `expires_at` has passed; returns how many."""
        with self._log(namespace) as log:
            return write.delete(log, read.expired(log.conn, namespace, now), namespace=namespace)

    def expired(self, *, now: float, namespace: str = "", since: int = 0) -> _list[str]:
        """The ids of expired memories that are not erased: live, or deleted after the number `since` of the log."""
        validation.namespace(namespace)
        return self._database.read(lambda conn: read.expired(conn, namespace, now, since=since))

    def link(self, edges: Sequence[Edge], /, *, namespace: str = "") -> None:
        """Link memories of one namespace; both ends must exist."""
        self._change_links(write.link, checked_edges(edges), validation.namespace(namespace))

    def unlink(self, edges: Sequence[Edge], /, *, namespace: str = "") -> int:
        """Remove links in either direction; returns how many existed."""
        return self._change_links(write.unlink, checked_edges(edges), validation.namespace(namespace))

    def _change_links(self, change: Callable[..., T], edges: Sequence[Edge], namespace: str, /) -> T:
        """Call `write.link` or `write.unlink` in a transaction."""
        with self._log(namespace) as log:
            return change(log, edges, namespace=namespace)

    def touch(self, ids: Sequence[str], /, *, namespace: str = "") -> None:
        """Count an access of each memory at the current time."""
        checked = validation.ids(ids)
        with self._log(namespace) as log:
            write.touch(log, checked, namespace=namespace)

    def reinforce(self, id: str, /, *, namespace: str = "", by: float = 0.1) -> float:
        """Increase the strength of a memory, up to 1.0; returns the new strength."""
        (checked,) = validation.ids([id])
        validation.number("by", by, "a finite number from 0 up", low=0)
        with self._log(namespace) as log:
            return write.reinforce(log, checked, namespace=namespace, by=by)

    def decay(self, *, namespace: str = "", now: datetime | None = None) -> int:
        """Multiply each strength by exp(−0.01) for each whole day since the last decay; returns how many changed."""
        moment = validation.optional_time("now", now)
        with self._log(namespace) as log:
            return write.decay(log, namespace=namespace, now=log.now if moment is None else moment)

    def set_vectors(
        self, vectors: Mapping[str, Any], /, *, namespace: str = "", check_embedder: CheckEmbedder | None = None
    ) -> None:
        """Replace the vectors of memories, as re-embedding does."""
        if not isinstance(vectors, Mapping):
            validation.refuse("vectors", vectors, "a mapping from ids to vectors")
        for id_ in vectors:
            validation.text("id", id_, "a str")
        self._expect_vectors()
        with self._log(namespace) as log:
            write.set_vectors(log, vectors, namespace=namespace, check_embedder=check_embedder)

    # --- reading

    def get(self, ids: Sequence[str], /, *, view: View) -> _list[Memory | None]:
        """The memories of some ids, in their order; None where the view has none."""
        return self._look_up(ids, view, read.get)

    def vectors(self, ids: Sequence[str], /, *, view: View) -> _list[Any]:
        """The stored vectors of some ids, in their order; None where there is none."""
        return self._look_up(ids, view, read.vectors)

    def _look_up(
        self, ids: Sequence[str], view: View, find: Callable[[Any, View, Sequence[str]], dict[str, T]]
    ) -> _list[T | None]:
        validation.view(view)
        wanted = validation.ids(ids)

        def work(conn: Any) -> dict[str, T]:
            if len(wanted) <= PAGE:
                return find(conn, view, wanted)
            found: dict[str, T] = {}
            for start in range(0, len(wanted), PAGE):
                found |= find(conn, view, wanted[start : start + PAGE])
            return found

        return _list(map(self._database.read(work).get, wanted)) if wanted else []

    def list(
        self, *, view: View, filter: Any = None, limit: int | None = None, after: str | None = None
    ) -> Iterator[Memory]:
        """The memories in view in the order of their ids: those after a given id, at most `limit` of them."""
        validation.view(view)
        condition = self._sql(parse(filter), view)
        if limit is not None:
            validation.integer("limit", limit, "a whole number from 0 up, or None", low=0)
        return self._pages(view, condition, limit, *validation.ids(["" if after is None else after]))

    def _pages(self, view: View, condition: SQL, limit: int | None, after: str) -> Iterator[Memory]:
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = self._page(view, condition, after, size)
            yield from page
            if len(page) < size:
                return
            after = page[-1].id
            left = None if left is None else left - size

    def _page(self, view: View, condition: SQL, after: str, size: int) -> _list[Memory]:
        return self._database.read(lambda conn: read.page(conn, view, condition, after=after, size=size))

    def ids(self, *, view: View, filter: Any = None) -> frozenset[str]:
        """The ids in view that match a filter; the same set object as long as the store has not changed."""
        validation.view(view)
        condition = parse(filter)
        cached = self._filter_ids.get((view, condition, self.last_seq()))
        if cached is None:
            sql = None if condition == All() else self._sql(condition, view)
            with self.snapshot() as conn:
                seq, cached = read.last_seq(conn), read.ids(conn, view, sql)
            newest = [item for item in self._filter_ids.items() if item[0][2] == seq][1 - _CACHED_FILTERS :]
            self._filter_ids = dict([*newest, ((view, condition, seq), cached)])  # other threads read the old dict
        return cached

    def count(self, *, view: View) -> int:
        """How many memories are in view."""
        validation.view(view)
        return self._database.read(lambda conn: read.count(conn, view))

    def history(self, id: str, /, *, namespace: str = "", vitals: bool = False) -> _list[Version]:
        """Every version of a memory, oldest first; with `vitals` also each touch, reinforcement and decay."""
        validation.namespace(namespace)
        return self._database.read(lambda conn: read.history(conn, namespace, *validation.ids([id]), vitals=vitals))

    def thread(self, name: str, /, *, view: View) -> _list[str]:
        """The ids of a thread in view, in reading order."""
        validation.view(view)
        (checked,) = validation.ids([name])
        return self._database.read(lambda conn: read.thread(conn, checked, view))

    def edges(self, *, view: View) -> _list[Edge]:
        """The links whose both ends are in view."""
        validation.view(view)
        with self.snapshot() as conn:
            return read.edges(conn, view)

    def entries(self, *, view: View) -> _list[Entry]:
        """The ranking fields of every memory in view."""
        validation.view(view)
        return self._database.read(lambda conn: read.entries(conn, view))

    def namespaces(self) -> _list[str]:
        """The namespaces that hold at least one memory."""
        with self.snapshot() as conn:
            return read.namespaces(conn)

    def changed_namespaces(self, since: int, /) -> _list[str]:
        """The namespaces with a change after `since`, sorted."""
        return self._database.read(lambda conn: read.changed_namespaces(conn, since))

    def last_seq(self) -> int:
        """The newest seq of the whole store."""
        return self._database.read(read.last_seq)

    def view_version(self, *, view: View) -> tuple[int, int]:
        """A value that changes when a view of the past does: by writes up to its time, and by erasures."""
        validation.view(view)
        with self.snapshot() as conn:
            return read.view_version(conn, view)

    def changes(self, since: int, /, *, view: View, vectors: bool = False) -> Iterator[Change]:
        """The view's changes after `since`, oldest first, all from one moment; from 0 the present state."""
        validation.view(view)
        validation.integer("since", since, "a seq: a whole number from 0 up", low=0)
        with self.snapshot(stream=not since) as conn:
            stream = read.changes(conn, min(since, _LAST_SEQ), view, vectors=vectors)
            size = PAGE if self._streams else None
            first = _list(islice(stream, size))
            if size is not None and len(first) == size:
                yield from first
                yield from stream
                return
        yield from first  # the usual few changes: the connection is free before the caller looks at them

    def fingerprint(self, seq: int, /) -> str | None:
        """A digest of the change with this number, for indexes stored elsewhere; None when the log does not have it."""
        return self._database.read(lambda conn: read.fingerprint(conn, seq))

    # --- settings and snapshots of indexes

    def drop_snapshots(self, *, namespace: str = "") -> None:
        """Delete the saved states of the indexes of a namespace: they are built again from the log."""
        validation.namespace(namespace)
        with self._side_tables("snapshots") as conn:
            write.drop_snapshots(conn, namespace)

    def get_meta(self, key: str, /) -> str | None:
        """A setting that was stored with `set_meta`."""
        (stored,) = validation.ids([key])
        return self._database.read(lambda conn: read.get_meta(conn, stored))

    def set_meta(self, key: str, value: str | Callable[[str | None], str], /) -> None:
        """Store a setting beside the memories; a function computes it from the stored one, in one transaction."""
        (name,) = validation.ids([key])
        with self._side_tables(key, alone=callable(value)) as conn:
            text = value(read.get_meta(conn, name)) if callable(value) else value
            write.set_meta(conn, name, *validation.ids([text]))

    def load_snapshot(self, index: str, /, *, namespace: str = "") -> tuple[int, bytes] | None:
        """The last saved state of an index and its watermark."""
        validation.namespace(namespace)
        (name,) = validation.ids([index])
        return self._database.read(lambda conn: read.load_snapshot(conn, name, namespace))

    def save_snapshot(self, index: str, watermark: int, blob: bytes, /, *, namespace: str = "") -> None:
        """Replace the saved state of an index in one transaction.

        A state from before the newest erasure is not stored: it may contain words of erased memories.
        """
        validation.namespace(namespace)
        (name,) = validation.ids([index])
        with self._side_tables(f"{namespace}/{name}") as conn:
            if watermark >= read.last_erase(conn, namespace):
                write.save_snapshot(conn, name, namespace, watermark, blob)

    # --- transfer

    def export(self, *, namespace: str | None = None) -> Iterator[dict[str, Any]]:
        """The whole log as JSON-ready rows, oldest first: versions, links, recorded times, vectors."""
        if namespace is not None:
            validation.namespace(namespace)
        with self.snapshot(stream=True) as conn:
            rows = transfer.export(conn, namespace)
            if self._streams:
                yield from rows
                return
            kept = _list(rows)
        yield from kept

    def restore(
        self, rows: Iterable[Mapping[str, Any]], /, *, progress: Progress | None = None, exact: bool | None = None
    ) -> int:
        """Replay exported rows: into an empty store an exact copy, into another one as new entries of its log.

        `exact=True` continues an exact copy whose beginning is stored already.
        """
        transfer.check_rows(rows, progress)
        self._expect_vectors()
        return self._restore(rows, progress, exact=exact)

    def _restore(self, rows: Iterable[Mapping[str, Any]], progress: Progress | None, /, *, exact: bool | None) -> int:
        with self.transaction(None) as log:
            return transfer.restore(log, log.prefetched(rows), progress, exact=exact)

    @abstractmethod
    def close(self) -> None:
        """Release every connection; later calls raise StoreClosedError."""

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
