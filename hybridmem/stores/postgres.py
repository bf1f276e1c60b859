"""PostgresStore: the same memory on PostgreSQL, shared by many machines, searching inside the server."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from hybridmem import filters
from hybridmem.errors import ConfigError, MissingExtraError
from hybridmem.indexes.base import Change
from hybridmem.stores import codec, reads, snapshots, transfer, writes
from hybridmem.stores.base import Progress, Version, View
from hybridmem.types import Edge, Entry, Memory

try:
    import pgvector  # noqa: F401 - part of the extra
    import psycopg  # noqa: F401
    import psycopg_pool  # noqa: F401
except ImportError as error:
    raise MissingExtraError("postgres", needs="psycopg with its pool (for PostgreSQL)") from error

from hybridmem.space import IndexSettings, LocalSpace, Space
from hybridmem.stores.pg import links, schema, upkeep
from hybridmem.stores.pg.chosen import Chosen
from hybridmem.stores.pg.database import Conn, Database, Limits
from hybridmem.stores.pg.derive import Deriver
from hybridmem.stores.pg.dialect import PostgreSQL
from hybridmem.stores.pg.log import PgLog
from hybridmem.stores.pg.space import PgSpace

__all__ = ["PostgresStore"]

T = TypeVar("T")
_PAGE = 500
_CACHED = 8
_DIALECT = PostgreSQL()


class PostgresStore:
    """The log of memories in one schema of a PostgreSQL database.

    `HybridMemory("postgresql://user@host/db")` opens one. Writers of different namespaces do not wait for each other;
    writers of one namespace take turns. Lost connections are replaced; reads are repeated, writes never silently.
    """

    def __init__(
        self,
        url: str,
        /,
        *,
        schema: str = "hybridmem",
        clock: Callable[[], float] = time.time,
        pool_size: int = 10,
        statement_timeout: float = 30.0,
        busy_timeout: float = 5.0,
        reconnect: float = 10.0,
        exact_below: int = 20_000,
        prefix: int | None = None,
        ef_search: int = 200,
    ) -> None:
        """`exact_below`: namespaces of fewer vectors are searched exactly; `prefix`: see `build_vector_index`."""
        limits = Limits(
            pool_size=pool_size, statement_timeout=statement_timeout, busy_timeout=busy_timeout, reconnect=reconnect
        )
        self._clock = clock
        self._schema = _checked_schema(schema)
        self._exact_below, self._prefix = exact_below, prefix
        # iterative scans: a selective filter or a small namespace among large ones still gets its k nearest
        tuning = {"hnsw.iterative_scan": "strict_order", "hnsw.ef_search": str(ef_search)}
        self._db = Database(url, schema=schema, limits=limits, settings=tuning)
        self._deriver = Deriver()
        self._vectors_ready = False
        self._ids: OrderedDict[tuple[View, filters.Condition, int], frozenset[str]] = OrderedDict()
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    @property
    def path(self) -> str:
        """Where the store is, without its password."""
        return self._db.name

    def _prepare(self) -> None:
        found = self._db.read(lambda conn: schema.version_of(conn, self._schema))
        if found != schema.VERSION:
            with self._db.write(alone=True) as conn:
                schema.prepare(conn, self._schema, self.path)
        record = self._db.read(lambda conn: schema.get_setting(conn, "derived"))
        if record is not None:
            self._deriver = Deriver.from_dict(record)

    # --- searching inside the server

    def adopt(self, settings: IndexSettings, /) -> None:
        """Take the analyzer and the graph's sources of a memory; refuse others than those the store was filled with."""
        if settings.make_vectors is not None:
            raise ConfigError("PostgreSQL searches vectors by itself (pgvector): open the memory without vectors=")
        wanted = Deriver.of(settings.analyzer, settings.graph)
        if settings.graph is None:
            wanted = replace(self._deriver, analyzer=settings.analyzer)
        record = self._db.read(lambda conn: schema.get_setting(conn, "derived"))
        if record != wanted.to_dict() and not (record is None and wanted == Deriver()):
            with self._db.write(alone=True) as conn:
                upkeep.adopt(conn, wanted, self.path)
        self._deriver = wanted

    def space(self, view: View, settings: IndexSettings, /) -> Space:
        """What searches a view: the server, now; for the past and the superseded, indexes built here from its log."""
        if view.as_of is not None or view.superseded:
            return LocalSpace(self, view, settings)
        return PgSpace(
            view.namespace,
            settings,
            self._search,
            has_vectors=self._has_vectors,
            exact_below=self._exact_below,
            prefix=self._prefix,
        )

    def _search(self, statement: filters.SQL) -> Sequence[tuple[Any, ...]]:
        rows: Sequence[tuple[Any, ...]] = self._db.read(lambda conn: conn.execute(*statement).fetchall())
        return rows

    def choose(self, *, view: View, filter: Any = None) -> Set[str]:
        """The ids that match a filter, read only when somebody looks: a search in the server filters there."""
        condition = filters.parse(filter)
        return Chosen(_sql(condition, view), lambda: self.ids(view=view, filter=condition))

    def _has_vectors(self) -> bool:
        if not self._vectors_ready:
            self._vectors_ready = self._db.read(schema.has_vectors)
        return self._vectors_ready

    # --- writing

    def put(
        self,
        memories: Sequence[Memory],
        /,
        *,
        namespace: str = "",
        vectors: Sequence[Any] | None = None,
        progress: Progress | None = None,
        strict: bool = True,
    ) -> list[str]:
        """Add or update (same id) memories, all or none of them; give their ids.

        What a memory supersedes must be known, unless `strict` is off (an import that holds only a part).
        """
        _check_namespace(namespace)
        if vectors is not None and len(vectors) != len(memories):
            raise ConfigError(f"put got {len(memories)} memories but {len(vectors)} vectors: one each, or None")
        for memory in memories:  # before taking a lock
            codec.check_memory(memory, namespace=namespace)
        if not len(memories):
            return []
        if vectors is not None and any(vector is not None for vector in vectors):
            self._make_room_for_vectors()
        with self._writing(namespace) as log:
            ids = writes.assign_ids(memories, now=log.at)
            writes.put(log, memories, ids, namespace=namespace, vectors=vectors, progress=progress, strict=strict)
        return ids

    def delete(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Delete memories and their links (history keeps them); how many there were."""
        with self._writing(namespace) as log:
            return writes.delete(log, _clean(ids), namespace=namespace)

    def erase(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Remove memories for good, history included; how many there were."""
        with self._writing(namespace) as log:
            return writes.erase(log, _clean(ids), namespace=namespace)

    def link(self, edges: Sequence[Edge], /, *, namespace: str = "") -> None:
        """Link memories of one namespace; both ends must be there."""
        with self._writing(namespace) as log:
            links.link(log, edges, namespace=namespace)

    def unlink(self, edges: Sequence[Edge], /, *, namespace: str = "") -> int:
        """Remove links, whichever way round; how many there were."""
        with self._writing(namespace) as log:
            return links.unlink(log, edges, namespace=namespace)

    def touch(self, ids: Sequence[str], /, *, namespace: str = "") -> None:
        """Count an access of each memory, now."""
        with self._writing(namespace) as log:
            writes.touch(log, _clean(ids), namespace=namespace)

    def reinforce(self, id: str, /, *, namespace: str = "", by: float = 0.1) -> float:
        """Strengthen a memory, up to 1.0; its new strength."""
        with self._writing(namespace) as log:
            return writes.reinforce(log, id, namespace=namespace, by=by)

    def decay(self, *, namespace: str = "", now: datetime | None = None) -> int:
        """Weaken every memory by exp(−0.01) for each whole day since it was last weakened; how many changed."""
        with self._writing(namespace) as log:
            moment = codec.seconds(now, "now")
            return writes.decay(log, namespace=namespace, now=log.at if moment is None else moment)

    def set_vectors(self, vectors: Mapping[str, Any], /, *, namespace: str = "") -> None:
        """Replace the vectors of memories, as re-embedding does."""
        self._make_room_for_vectors()
        with self._writing(namespace) as log:
            writes.set_vectors(log, vectors, namespace=namespace)

    @contextmanager
    def _writing(self, namespace: str | None) -> Iterator[PgLog]:
        with self._db.write(alone=namespace is None) as conn:
            log = PgLog(conn, now=self._clock(), deriver=self._deriver, namespace=namespace)
            yield log
            log.finish()

    def _make_room_for_vectors(self) -> None:
        if not self._has_vectors():
            with self._db.write(alone=True) as conn:
                schema.ensure_vectors(conn, self.path)
            self._vectors_ready = True

    # --- reading

    def _read(self, work: Callable[[Any], T]) -> T:
        return self._db.read(work)

    def get(self, ids: Sequence[str], /, *, view: View) -> list[Memory | None]:
        """The memories of some ids, in their order; None where the view has none."""
        found: dict[str, Memory] = {}
        for start in range(0, len(ids), _PAGE):
            found |= self._read(lambda conn, at=start: reads.get(conn, view, _clean(ids[at : at + _PAGE])))
        return [found.get(id_) for id_ in ids]

    def list(
        self, *, view: View, filter: Any = None, limit: int | None = None, after: str | None = None
    ) -> Iterator[Memory]:
        """The memories in view, by id: those after a given id, at most `limit` of them."""
        condition = _sql(filters.parse(filter), view)
        if limit is not None and limit < 0:
            raise ConfigError(f"limit must be >= 0 or None, not {limit!r}")
        return self._pages(view, condition, limit, after or "")

    def _pages(self, view: View, condition: filters.SQL, limit: int | None, after: str) -> Iterator[Memory]:
        left = limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            page = self._read(lambda conn, a=after, s=size: reads.page(conn, view, condition, after=a, size=s))
            yield from page
            if len(page) < size:
                return
            after = page[-1].id
            left = None if left is None else left - size

    def ids(self, *, view: View, filter: Any = None) -> frozenset[str]:
        """The ids in view that match a filter; the same set object as long as the store has not changed."""
        condition = filters.parse(filter)
        sql = None if condition == filters.All() else _sql(condition, view)

        def work(conn: Any) -> tuple[tuple[View, filters.Condition, int], frozenset[str]]:
            key = (view, condition, reads.last_seq(conn))
            cached = self._ids.get(key)
            return key, reads.ids(conn, view, sql) if cached is None else cached

        key, found = self._read(work)
        self._remember(key, found)
        return found

    def _remember(self, key: tuple[View, filters.Condition, int], ids: frozenset[str]) -> None:
        cache = self._ids
        cache[key] = ids
        for old in [*cache]:
            if old[2] < key[2] or len(cache) > _CACHED:
                cache.pop(old, None)

    def count(self, *, view: View) -> int:
        """How many memories are in view."""
        return self._read(lambda conn: reads.count(conn, view))

    def history(self, id: str, /, *, namespace: str = "", vitals: bool = False) -> list[Version]:
        """Every version of a memory, oldest first; with `vitals` also each touch, reinforcement and decay."""
        return self._read(lambda conn: reads.history(conn, namespace, codec.clean(id), vitals=vitals))

    def edges(self, *, view: View) -> list[Edge]:
        """The links whose both ends are in view."""
        with self._snapshot() as conn:
            return reads.edges(conn, view)

    def entries(self, *, view: View) -> list[Entry]:
        """What ranking needs to know of every memory in view."""
        return self._read(lambda conn: reads.entries(conn, view))

    def vectors(self, ids: Sequence[str], /, *, view: View) -> list[Any]:
        """The stored vectors of some ids, in their order; None where there is none."""
        found: dict[str, Any] = {}
        for start in range(0, len(ids), _PAGE):
            found |= self._read(lambda conn, at=start: reads.vectors(conn, view, _clean(ids[at : at + _PAGE])))
        return [found.get(id_) for id_ in ids]

    def namespaces(self) -> list[str]:
        """The namespaces that hold at least one memory."""
        with self._snapshot() as conn:
            return reads.namespaces(conn)

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
        with self._db.write() as conn:
            links.set_meta(conn, key, value)

    def load_snapshot(self, index: str, /, *, namespace: str = "") -> tuple[int, bytes] | None:
        """An index's last saved state and the seq it stands for."""
        with self._snapshot() as conn:
            return snapshots.load(conn, index, namespace)

    def save_snapshot(self, index: str, watermark: int, blob: bytes, /, *, namespace: str = "") -> None:
        """Save an index's state, replacing the last one at once or not at all."""
        with self._db.write() as conn:
            links.save_snapshot(conn, index, namespace, watermark, blob)

    # --- upkeep

    def check(self) -> list[str]:
        """What is wrong with the store, in words; an empty list when all is well."""
        with self._snapshot() as conn:
            return upkeep.check(conn)

    def backup(self, path: str | Path, /) -> None:
        """Copy the whole store into a SQLite file, which hybridmem opens by itself (`pg_dump` copies the database)."""
        from hybridmem.copying import backup_to_sqlite

        backup_to_sqlite(self, path)

    def export(self, *, namespace: str | None = None) -> Iterator[dict[str, Any]]:
        """The whole log as JSON-ready rows, oldest first: versions, links, recorded times, vectors."""
        with self._snapshot(stream=True) as conn:
            yield from transfer.export(conn, namespace)

    def restore(self, rows: Iterable[Mapping[str, Any]], /, *, progress: Progress | None = None) -> int:
        """Replay exported rows: into an empty store an exact copy, into another one as new entries of its log."""
        self._make_room_for_vectors()
        with self._writing(None) as log:
            return transfer.restore(log, rows, progress)

    def close(self) -> None:
        """Close the connections; using the store afterwards is a StoreClosedError."""
        self._db.close()

    def __enter__(self) -> PostgresStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sql(condition: filters.Condition, view: View) -> filters.SQL:
    return filters.to_sql(condition, columns=reads.columns(view), dialect=_DIALECT)


def _clean(ids: Sequence[str]) -> Sequence[str]:
    if isinstance(ids, str):
        raise ConfigError(f"ids must be a sequence of str, not the single str {ids!r}")
    return [codec.clean(id_) for id_ in ids]


def _check_namespace(namespace: str) -> None:
    if not isinstance(namespace, str) or codec.clean(namespace) != namespace:
        raise ConfigError(f"a namespace must be encodable text, not {namespace!r}")


def _checked_schema(name: str) -> str:
    if not isinstance(name, str) or not name or len(name.encode()) > 63 or "\0" in name:  # noqa: PLR2004
        raise ConfigError(f"schema must be a PostgreSQL name of 1 to 63 bytes, not {name!r}")
    return name
