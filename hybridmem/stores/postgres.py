"""PostgresStore: the same memory on PostgreSQL, shared by many machines, searching inside the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from hybridmem import filters
from hybridmem.errors import ConfigError, MissingExtraError, StoreError
from hybridmem.stores import codec, transfer, writes
from hybridmem.stores.base import Progress, View
from hybridmem.types import Edge, Memory

try:
    import pgvector  # noqa: F401 - part of the extra
    import psycopg  # noqa: F401
    import psycopg_pool  # noqa: F401
except ImportError as error:
    raise MissingExtraError("postgres", needs="psycopg with its pool (for PostgreSQL)") from error

from hybridmem.space import IndexSettings, LocalSpace, Space
from hybridmem.stores.pg import links, schema, security, upkeep
from hybridmem.stores.pg.adapt import translate
from hybridmem.stores.pg.chosen import Chosen
from hybridmem.stores.pg.database import Conn, Database, Limits
from hybridmem.stores.pg.derive import Deriver
from hybridmem.stores.pg.indexing import VectorIndexes
from hybridmem.stores.pg.log import PgLog
from hybridmem.stores.pg.reading import Reading, clean_ids, sql_of
from hybridmem.stores.pg.space import PgSpace

__all__ = ["PostgresStore"]

_MOST_WALKED = 4000
"""So many neighbours are asked whether they pass a filter; if fewer than k do, all that pass are looked at instead."""
_list = list  # `PostgresStore.list` hides the builtin inside the class


class PostgresStore(Reading):
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
        auto_index: bool = True,
        replica: str | None = None,
        read_your_writes: bool = False,
    ) -> None:
        """Open or create the store in one schema.

        `exact_below`: namespaces of fewer vectors are searched exactly; a search of a larger one has the HNSW index
        built in the background, if there is none and `auto_index` is on; `prefix`: see `build_vector_index`;
        `replica`: a standby that answers searches, `read_your_writes`: only when it shows what this store wrote.
        """
        limits = Limits(
            pool_size=pool_size, statement_timeout=statement_timeout, busy_timeout=busy_timeout, reconnect=reconnect
        )
        self._clock = clock
        self._schema = _checked_schema(schema)
        # iterative scans: a selective filter or a small namespace among large ones still gets its k nearest
        # and no compiling of statements that take milliseconds
        tuning = {"hnsw.iterative_scan": "strict_order", "hnsw.ef_search": str(ef_search), "jit": "off"}
        tuning["hnsw.max_scan_tuples"] = str(_MOST_WALKED)
        super().__init__(Database(url, schema=schema, limits=limits, settings=tuning))
        self._exact_below, self._prefix = exact_below, prefix
        self._indexes = VectorIndexes(self._db, prefix=prefix, auto=auto_index)
        short = replace(limits, reconnect=0.0, busy_timeout=min(1.0, busy_timeout))  # the primary is there instead
        self._replica = None if replica is None else Database(replica, schema=schema, limits=short, settings=tuning)
        self._patient, self._written, self._behind = read_your_writes, "", False
        self._deriver = Deriver()
        self._vectors_ready = False
        try:
            self._prepare()
        except BaseException:
            self.close()
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
            want_index=self._indexes.want,
            catch_up=None if self._replica is None else self._look_at_replica,
        )

    def _search(self, statement: filters.SQL) -> Sequence[tuple[Any, ...]]:
        rows: Sequence[tuple[Any, ...]]
        text = translate(statement.text)

        def work(conn: Conn) -> Any:  # vectors come as they are rather than as hexadecimal text
            return conn.raw.execute(text, statement.params, binary=True).fetchall()

        if self._replica is not None and not self._behind:
            try:
                rows = self._replica.read(work)
            except StoreError:
                self._behind = True  # gone: the primary answers until the next question finds it again
            else:
                return rows
        rows = self._db.read(work)
        return rows

    def _look_at_replica(self) -> None:
        """Before a question: find out whether the replica is there and (if that was asked) shows what was written."""
        if self._replica is None:
            return
        try:
            query = "SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= ?::pg_lsn"
            self._behind = not self._replica.read(
                lambda conn: conn.execute(query, (self._written or "0/0",)).fetchone()[0]
            )
        except StoreError:
            self._behind = True

    def choose(self, *, view: View, filter: Any = None) -> Set[str]:
        """The ids that match a filter, read only when somebody looks: a search in the server filters there."""
        condition = filters.parse(filter)
        return Chosen(sql_of(condition, view), lambda: self.ids(view=view, filter=condition))

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
    ) -> _list[str]:
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
            return writes.delete(log, clean_ids(ids), namespace=namespace)

    def erase(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Remove memories for good, history included; how many there were."""
        with self._writing(namespace) as log:
            return writes.erase(log, clean_ids(ids), namespace=namespace)

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
            writes.touch(log, clean_ids(ids), namespace=namespace)

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
        if self._replica is not None and self._patient:
            self._written = self._db.read(
                lambda conn: conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0]
            )

    def _make_room_for_vectors(self) -> None:
        if not self._has_vectors():
            with self._db.write(alone=True) as conn:
                schema.ensure_vectors(conn, self.path)
            self._vectors_ready = True

    # --- upkeep

    def check(self) -> _list[str]:
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

    def restore(
        self, rows: Iterable[Mapping[str, Any]], /, *, progress: Progress | None = None, exact: bool | None = None
    ) -> int:
        """Replay exported rows: into an empty store an exact copy, into another one as new entries of its log.

        `exact=True` goes on with an exact copy whose beginning is there already.
        """
        self._make_room_for_vectors()
        with self._writing(None) as log:
            return transfer.restore(log, log.prefetched(rows), progress, exact=exact)

    def rebuild(self, settings: IndexSettings | None = None, /, *, progress: Progress | None = None) -> int:
        """Build all that is derived again from the log, for everybody, with other settings if given; how many."""
        deriver = self._deriver if settings is None else Deriver.of(settings.analyzer, settings.graph)
        with self._db.write(alone=True) as conn:
            done = upkeep.rebuild(conn, deriver, progress)
        self._deriver = deriver
        return done

    def build_vector_index(
        self,
        dim: int,
        /,
        *,
        m: int = 16,
        ef_construction: int = 64,
        memory: str = "256MB",
        progress: Progress | None = None,
    ) -> None:
        """Build the HNSW index for vectors of one dimension, while others go on reading and writing.

        With the store's `prefix` only that many leading dimensions are indexed (Matryoshka models) and four times as
        many candidates are scored by their full vectors.
        """
        self._make_room_for_vectors()
        self._indexes.build(dim, m=m, ef_construction=ef_construction, memory=memory, progress=progress)

    def grant(self, role: str, /, *, namespace: str) -> None:
        """Row-level security: let a role see and change one namespace, nothing else. Run by the tables' owner."""
        with suppress(StoreError):  # without pgvector there are no vectors to protect
            self._make_room_for_vectors()
        with self._db.write(alone=True) as conn:
            security.grant(conn, self._schema, role, namespace)

    def revoke(self, role: str, /, *, namespace: str) -> None:
        """Take a namespace away from a role."""
        with self._db.write(alone=True) as conn:
            security.revoke(conn, role, namespace)

    def close(self) -> None:
        """Close the connections; using the store afterwards is a StoreClosedError."""
        self._db.close()
        if self._replica is not None:
            self._replica.close()

    def __enter__(self) -> PostgresStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_namespace(namespace: str) -> None:
    if not isinstance(namespace, str) or codec.clean(namespace) != namespace:
        raise ConfigError(f"a namespace must be encodable text, not {namespace!r}")


def _checked_schema(name: str) -> str:
    if not isinstance(name, str) or not name or len(name.encode()) > 63 or "\0" in name:  # noqa: PLR2004
        raise ConfigError(f"schema must be a PostgreSQL name of 1 to 63 bytes, not {name!r}")
    return name
