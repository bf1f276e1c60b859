"""PostgresStore: the same memory on PostgreSQL, shared by many machines, searching inside the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from hybridmem.core.protocols import Progress, View
from hybridmem.errors import ConfigError, MissingExtraError, StoreError
from hybridmem.filters import predicate as filters
from hybridmem.stores.sql import transfer
from hybridmem.stores.sql.writer import Writer

try:
    import pgvector  # noqa: F401 - part of the extra
    import psycopg  # noqa: F401
    import psycopg_pool  # noqa: F401
except ImportError as error:
    raise MissingExtraError("postgres", needs="psycopg with its pool (for PostgreSQL)") from error

from hybridmem.core.protocols import SearchView
from hybridmem.indexes.view import IndexSettings, LocalView
from hybridmem.stores.postgres import maintenance, schema, security
from hybridmem.stores.postgres.cancellation import Turns
from hybridmem.stores.postgres.connection import Database, Limits
from hybridmem.stores.postgres.derived import Deriver
from hybridmem.stores.postgres.log import PgLog
from hybridmem.stores.postgres.maintenance import VectorIndexes
from hybridmem.stores.postgres.reading import Reading, sql_of
from hybridmem.stores.postgres.replica import Router
from hybridmem.stores.postgres.search.engines import K1, B, Lexical, checked_engine
from hybridmem.stores.postgres.search.filters import Chosen
from hybridmem.stores.postgres.search.view import PgSpace

__all__ = ["PostgresStore"]

_MOST_WALKED = 4000
"""So many neighbours are asked whether they pass a filter; if fewer than k do, all that pass are looked at instead."""
_list = list  # `PostgresStore.list` hides the builtin inside the class


class PostgresStore(Reading, Writer):
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
        lexical: str | None = None,
    ) -> None:
        """Open or create the store in one schema.

        `exact_below`: namespaces of fewer vectors are searched exactly; a search of a larger one has the HNSW index
        built in the background, if there is none and `auto_index` is on; `prefix`: see `build_vector_index`;
        `replica`: a standby that answers searches, `read_your_writes`: only when it shows what this store wrote;
        `lexical`: what ranks words ("bm25" or "tsvector"), None: what is on record, else "bm25".
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
        self._engine = None if lexical is None else checked_engine(lexical)
        self._indexes = VectorIndexes(self._db, prefix=prefix, auto=auto_index)
        short = replace(limits, reconnect=0.0, busy_timeout=min(1.0, busy_timeout))  # the primary is there instead
        standby = (
            None
            if replica is None
            else Database(replica, schema=schema, limits=short, settings=tuning, must_admit=False)
        )
        self._router = Router(self._db, standby, patient=read_your_writes)
        self._deriver = Deriver()
        self._vectors_ready = False
        self.in_thread = Turns(pool_size).run
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
        if self._engine not in (None, self._deriver.lexical.engine):
            self._take(replace(self._deriver, lexical=Lexical(self._engine)))

    # --- searching inside the server

    def adopt(self, settings: IndexSettings, /) -> None:
        """Take the analyzer and the graph's sources of a memory; refuse others than those the store was filled with."""
        if settings.make_vectors is not None:
            raise ConfigError("PostgreSQL searches vectors by itself (pgvector): open the memory without vectors=")
        wanted = Deriver.of(settings.analyzer, settings.graph)
        if settings.graph is None:
            wanted = replace(self._deriver, analyzer=settings.analyzer)
        self._take(replace(wanted, lexical=Lexical.of(self._deriver.lexical.engine, settings.k1, settings.b)))

    def _take(self, wanted: Deriver) -> None:
        record = self._db.read(lambda conn: schema.get_setting(conn, "derived"))
        if record != wanted.to_dict() and not (record is None and wanted == Deriver()):
            with self._db.write(alone=True) as conn:
                maintenance.adopt(conn, wanted, self.path)
        self._deriver = wanted

    def search_view(self, view: View, settings: IndexSettings, /) -> SearchView:
        """What searches a view: the server, now; for the past and the superseded, indexes built here from its log."""
        if view.as_of is not None or view.superseded:
            return LocalView(self, view, settings)
        return PgSpace(
            view.namespace,
            settings,
            self._router.run,
            run_both=self._router.run_both,
            has_vectors=self._has_vectors,
            exact_below=self._exact_below,
            prefix=self._prefix,
            want_index=self._indexes.want,
            catch_up=None if self._router.replica is None else self._router.look,
            words=self._deriver.lexical.searcher(view.namespace),
        )

    def lazy_ids(self, *, view: View, filter: Any = None) -> Set[str]:
        """The ids that match a filter, read only when somebody looks: a search in the server filters there."""
        condition = filters.parse(filter)
        return Chosen(sql_of(condition, view), lambda: self.ids(view=view, filter=condition))

    def _has_vectors(self) -> bool:
        if not self._vectors_ready:
            self._vectors_ready = self._db.read(schema.has_vectors)
        return self._vectors_ready

    # --- writing

    @contextmanager
    def _writing(self, namespace: str | None, /) -> Iterator[PgLog]:
        with self._db.write(alone=namespace is None) as conn:
            log = PgLog(conn, now=self._clock(), deriver=self._deriver, namespace=namespace)
            yield log
            log.finish()
        self._router.wrote()

    def _expect_vectors(self) -> None:
        if not self._has_vectors():
            with self._db.write(alone=True) as conn:
                schema.ensure_vectors(conn, self.path)
            self._vectors_ready = True

    # --- upkeep

    def check(self) -> _list[str]:
        """What is wrong with the store, in words; an empty list when all is well."""
        with self._snapshot() as conn:
            return maintenance.check(conn)

    def backup(self, path: str | Path, /) -> None:
        """Copy the whole store into a SQLite file, which hybridmem opens by itself (`pg_dump` copies the database)."""
        from hybridmem.stores.copying import backup_to_sqlite

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
        self._expect_vectors()
        with self._writing(None) as log:
            return transfer.restore(log, log.prefetched(rows), progress, exact=exact)

    def rebuild(
        self,
        settings: IndexSettings | None = None,
        /,
        *,
        lexical: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Build all that is derived again from the log, for everybody, with other settings if given; how many."""
        deriver = self._deriver if settings is None else Deriver.of(settings.analyzer, settings.graph)
        engine = self._deriver.lexical.engine if lexical is None else lexical
        curve = (K1, B) if settings is None else (settings.k1, settings.b)
        deriver = replace(deriver, lexical=Lexical.of(engine, *curve))
        with self._db.write(alone=True) as conn:
            done = maintenance.rebuild(conn, deriver, progress)
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
        self._expect_vectors()
        self._indexes.build(dim, m=m, ef_construction=ef_construction, memory=memory, progress=progress)

    def grant(self, role: str, /, *, namespace: str) -> None:
        """Row-level security: let a role see and change one namespace, nothing else. Run by the tables' owner."""
        with suppress(StoreError):  # without pgvector there are no vectors to protect
            self._expect_vectors()
        with self._db.write(alone=True) as conn:
            security.grant(conn, self._schema, role, namespace, self._deriver.lexical)

    def revoke(self, role: str, /, *, namespace: str) -> None:
        """Take a namespace away from a role."""
        with self._db.write(alone=True) as conn:
            security.revoke(conn, role, namespace)

    def close(self) -> None:
        """Close the connections; using the store afterwards is a StoreClosedError."""
        self._router.close()

    def __enter__(self) -> PostgresStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _checked_schema(name: str) -> str:
    if not isinstance(name, str) or not name or len(name.encode()) > 63 or "\0" in name:  # noqa: PLR2004
        raise ConfigError(f"schema must be a PostgreSQL name of 1 to 63 bytes, not {name!r}")
    return name
