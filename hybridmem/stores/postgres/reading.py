"""Reading the PostgreSQL store: the statements are those of the SQLite store, each on a connection that is alive."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from hybridmem.core.protocols import Change, Version, View
from hybridmem.core.types import Edge, Entry, Memory
from hybridmem.errors import ConfigError, StoreError
from hybridmem.filters import predicate as filters
from hybridmem.stores.postgres.connection import Database
from hybridmem.stores.postgres.search.filters import PostgreSQL
from hybridmem.stores.sql import read as reads
from hybridmem.stores.sql import snapshots
from hybridmem.stores.sql.writer import cleaned

__all__ = ["Reading", "sql_of"]

T = TypeVar("T")
_list = list  # `Reading.list` hides the builtin inside the class
_PAGE = 500
_CACHED = 8
_DIALECT = PostgreSQL()
_Key = tuple[View, filters.Condition, int]


class Reading:
    """The half of the store that reads, and its side tables."""

    def __init__(self, db: Database, /) -> None:
        self._db = db
        self._ids: OrderedDict[_Key, frozenset[str]] = OrderedDict()

    def _read(self, work: Callable[[Any], T]) -> T:
        return self._db.read(work)

    def get(self, ids: Sequence[str], /, *, view: View) -> _list[Memory | None]:
        """The memories of some ids, in their order; None where the view has none."""
        found: dict[str, Memory] = {}
        for start in range(0, len(ids), _PAGE):
            part = cleaned(ids[start : start + _PAGE])
            found |= self._read(lambda conn, part=part: reads.get(conn, view, part))  # type: ignore[misc]
        return [found.get(id_) for id_ in ids]

    def list(
        self, *, view: View, filter: Any = None, limit: int | None = None, after: str | None = None
    ) -> Iterator[Memory]:
        """The memories in view, by id: those after a given id, at most `limit` of them."""
        condition = sql_of(filters.parse(filter), view)
        if limit is not None and limit < 0:
            raise ConfigError(f"limit must be >= 0 or None, not {limit!r}")
        return self._pages(view, condition, limit, after or "")

    def _pages(self, view: View, condition: filters.SQL, limit: int | None, after: str) -> Iterator[Memory]:
        left = limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            page = self._page(view, condition, after, size)
            yield from page
            if len(page) < size:
                return
            after = page[-1].id
            left = None if left is None else left - size

    def _page(self, view: View, condition: filters.SQL, after: str, size: int) -> _list[Memory]:
        return self._read(lambda conn: reads.page(conn, view, condition, after=after, size=size))

    def ids(self, *, view: View, filter: Any = None) -> frozenset[str]:
        """The ids in view that match a filter; the same set object as long as the store has not changed."""
        condition = filters.parse(filter)
        sql = None if condition == filters.All() else sql_of(condition, view)

        def work(conn: Any) -> tuple[_Key, frozenset[str]]:
            key = (view, condition, reads.last_seq(conn))
            cached = self._ids.get(key)
            return key, reads.ids(conn, view, sql) if cached is None else cached

        key, found = self._read(work)
        self._remember(key, found)
        return found

    def _remember(self, key: _Key, ids: frozenset[str]) -> None:
        cache = self._ids
        cache[key] = ids
        for old in [*cache]:
            if old[2] < key[2] or len(cache) > _CACHED:
                cache.pop(old, None)

    def count(self, *, view: View) -> int:
        """How many memories are in view."""
        return self._read(lambda conn: reads.count(conn, view))

    def history(self, id: str, /, *, namespace: str = "", vitals: bool = False) -> _list[Version]:
        """Every version of a memory, oldest first; with `vitals` also each touch, reinforcement and decay."""
        return self._read(lambda conn: reads.history(conn, namespace, *cleaned([id]), vitals=vitals))

    def edges(self, *, view: View) -> _list[Edge]:
        """The links whose both ends are in view."""
        with self._snapshot() as conn:
            return reads.edges(conn, view)

    def entries(self, *, view: View) -> _list[Entry]:
        """What ranking needs to know of every memory in view."""
        return self._read(lambda conn: reads.entries(conn, view))

    def vectors(self, ids: Sequence[str], /, *, view: View) -> _list[Any]:
        """The stored vectors of some ids, in their order; None where there is none."""
        found: dict[str, Any] = {}
        for start in range(0, len(ids), _PAGE):
            part = cleaned(ids[start : start + _PAGE])
            found |= self._read(lambda conn, part=part: reads.vectors(conn, view, part))  # type: ignore[misc]
        return [found.get(id_) for id_ in ids]

    def namespaces(self) -> _list[str]:
        """The namespaces that hold at least one memory."""
        with self._snapshot() as conn:
            return reads.namespaces(conn)

    def changed_namespaces(self, since: int, /) -> _list[str]:
        """The namespaces with a change after `since`."""
        query = "SELECT namespace FROM spaces WHERE seq > ? ORDER BY namespace"
        return self._read(lambda conn: [row[0] for row in conn.execute(query, (since,))])

    def last_seq(self) -> int:
        """The newest seq of the whole store."""
        return self._read(reads.last_seq)

    def changes(self, since: int, /, *, view: View, vectors: bool = False) -> Iterator[Change]:
        """The view's changes after `since`, oldest first, all from one moment; from 0 the state as it stands."""
        with self._snapshot(stream=not since) as conn:
            stream = reads.changes(conn, since, view, vectors=vectors)
            first = [*islice(stream, _PAGE)]
            if len(first) == _PAGE:
                yield from first
                yield from stream
                return
        yield from first  # the usual few: the connection is free again before anyone looks at them

    @contextmanager
    def _snapshot(self, *, stream: bool = False) -> Iterator[Any]:
        with self._db.snapshot(stream=stream) as conn:
            yield conn

    # --- side tables

    def get_meta(self, key: str, /) -> str | None:
        """A setting that was stored with `set_meta`."""
        return self._read(lambda conn: snapshots.get_meta(conn, key))

    def set_meta(self, key: str, value: str, /) -> None:
        """Store a setting beside the memories."""
        try:
            with self._db.write() as conn:
                snapshots.set_meta(conn, key, value)
        except StoreError as error:
            if getattr(error.__cause__, "sqlstate", None) != "42501":
                raise
            raise StoreError(
                f"{self._db.name}: the setting {key!r} belongs to everybody, so only the owner of the tables writes "
                "it: open the memory once as the owner, with the same embedder, and call reindex()"
            ) from error

    def load_snapshot(self, index: str, /, *, namespace: str = "") -> tuple[int, bytes] | None:
        """An index's last saved state and the seq it stands for."""
        with self._snapshot() as conn:
            return snapshots.load(conn, index, namespace)

    def save_snapshot(self, index: str, watermark: int, blob: bytes, /, *, namespace: str = "") -> None:
        """Save an index's state, replacing the last one at once or not at all."""
        with self._db.write() as conn:
            conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (f"{namespace}/{index}",))
            snapshots.save(conn, index, namespace, watermark, blob)


def sql_of(condition: filters.Condition, view: View, /) -> filters.SQL:
    """A condition over a view as PostgreSQL's SQL."""
    return filters.to_sql(condition, columns=reads.columns(view), dialect=_DIALECT)
