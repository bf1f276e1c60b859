"""PostgresStore: the log of memories in PostgreSQL, shared by many machines and searched in the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hybridmem.core import validation
from hybridmem.core.protocols import Progress, SearchView, View
from hybridmem.errors import ConfigError, MissingExtraError, StoreError
from hybridmem.filters.parse import Condition, parse
from hybridmem.filters.sql import SQL
from hybridmem.stores.sql.store import SQLStore

try:
    import pgvector  # noqa: F401 - part of the extra
    import psycopg
    import psycopg_pool  # noqa: F401
except ImportError as error:
    raise MissingExtraError("postgres", needs="psycopg with its pool (for PostgreSQL)") from error

from hybridmem.indexes.view import IndexSettings, LocalView
from hybridmem.stores.postgres import maintenance, schema
from hybridmem.stores.postgres.cancellation import CallLimiter
from hybridmem.stores.postgres.connection import Conn, Database, Limits, translate
from hybridmem.stores.postgres.derived import Deriver
from hybridmem.stores.postgres.log import PgLog
from hybridmem.stores.postgres.maintenance import VectorIndexes
from hybridmem.stores.postgres.search.engines import K1, B, Lexical, Rows, checked_engine
from hybridmem.stores.postgres.search.filters import FilterIds, filter_sql
from hybridmem.stores.postgres.search.view import PostgresView

__all__ = ["PostgresStore"]

_MAX_SCAN = 4000
"""Neighbours that HNSW tests against a filter; if fewer than k pass, all memories that pass are scanned instead."""
_list = list  # `SQLStore.list` hides the builtin inside the class
T = TypeVar("T")


class PostgresStore(SQLStore):
    """The log of memories in one schema of a PostgreSQL database.

    `HybridMemory("postgresql://user@host/db")` opens one. Writers of different namespaces do not wait for each other;
    writers of one namespace do. Lost connections are replaced; reads are repeated, writes are not.
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

        `exact_below`: namespaces with fewer vectors are searched exactly; a search of a larger one builds the HNSW
        index in the background, if there is none and `auto_index` is on. `prefix`: see `build_vector_index`.
        `replica`: the address of a standby for searches; `read_your_writes` uses it only once it has this store's
        writes. `lexical`: the lexical engine ("bm25" or "tsvector"); None: the one of the store, else "bm25".
        """
        validation.text("url", url, "an address such as postgresql://user@host/database")
        if replica is not None:
            validation.text("replica", replica, "the address of a standby, or None")
        validation.function("clock", clock, "a function that returns epoch seconds")
        limits = Limits(
            pool_size=pool_size, statement_timeout=statement_timeout, busy_timeout=busy_timeout, reconnect=reconnect
        )
        self._schema = _checked_schema(schema)
        # iterative scans: a selective filter or a small namespace still returns its k nearest; jit costs more than
        # these statements take
        tuning = {"hnsw.iterative_scan": "strict_order", "hnsw.ef_search": str(ef_search), "jit": "off"}
        tuning["hnsw.max_scan_tuples"] = str(_MAX_SCAN)
        self._db = Database(url, schema=schema, limits=limits, settings=tuning)
        super().__init__(self._db, clock=clock)
        self.path = self._db.name
        self._exact_below, self._prefix = exact_below, prefix
        self._engine = None if lexical is None else checked_engine(lexical)
        self._indexes = VectorIndexes(self._db, prefix=prefix, auto=auto_index)
        short = replace(limits, reconnect=0.0, busy_timeout=min(1.0, busy_timeout))  # the primary is used instead
        standby = (
            None
            if replica is None
            else Database(replica, schema=schema, limits=short, settings=tuning, must_admit=False)
        )
        self._router = Router(self._db, standby, read_your_writes=read_your_writes)
        self._deriver = Deriver()
        self._vectors_ready = False
        self.in_thread = CallLimiter(pool_size).run
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        found = self._db.read(lambda conn: schema.version_of(conn, self._schema))
        if found != schema.VERSION:
            with self._db.write(alone=True) as conn:
                schema.prepare(conn, self._schema, self.path)
        record = self._db.read(lambda conn: schema.get_setting(conn, "derived"))
        if record is not None:
            self._deriver = Deriver.from_dict(record)
        if self._engine not in (None, self._deriver.lexical.engine):
            self._adopt(replace(self._deriver, lexical=Lexical(self._engine)))

    # --- connections and transactions

    @contextmanager
    def transaction(self, namespace: str | None = None, /) -> Iterator[PgLog]:
        """A write transaction and its log, for one namespace or the whole store."""
        with self._db.write(alone=namespace is None) as conn:
            now, at = self._times()
            log = PgLog(conn, now=now, at=at, deriver=self._deriver, namespace=namespace)
            self._report_clock(now, log.newest)
            yield log
            log.finish()
        self._router.record_write()

    @contextmanager
    def _side_tables(self, name: str, /, *, alone: bool = False) -> Iterator[Any]:
        with self._db.write(alone=alone) as conn:
            conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (name,))
            yield conn

    def _sql(self, condition: Condition, view: View, /) -> SQL:
        return filter_sql(condition, view)

    def _expect_vectors(self) -> None:
        if not self._has_vectors():
            with self._db.write(alone=True) as conn:
                schema.ensure_vectors(conn, self.path)
            self._vectors_ready = True

    def _has_vectors(self) -> bool:
        if not self._vectors_ready:
            self._vectors_ready = self._db.read(schema.has_vectors)
        return self._vectors_ready

    def set_meta(self, key: str, value: str | Callable[[str | None], str], /) -> None:
        """Store a setting beside the memories; a function computes it from the stored one, in one transaction."""
        try:
            super().set_meta(key, value)
        except StoreError as error:
            if getattr(error.__cause__, "sqlstate", None) != "42501":
                raise
            raise StoreError(
                f"{self.path}: the setting {key!r} is shared by all roles, so that only the owner of the tables can "
                "write it: open the memory once as the owner, with the same embedder, and call reindex()"
            ) from error

    def changed_namespaces(self, since: int, /) -> _list[str]:
        """The namespaces with a change after `since`, from their rows instead of the log."""
        query = "SELECT namespace FROM spaces WHERE seq > ? ORDER BY namespace"
        return self._db.read(lambda conn: [row[0] for row in conn.execute(query, (since,))])

    # --- searching in the server

    def adopt(self, settings: IndexSettings, /) -> None:
        """Adopt the analyzer and graph settings of a memory; refuse others than those of the stored memories."""
        if settings.make_vectors is not None:
            raise ConfigError("PostgreSQL searches vectors by itself (pgvector): open the memory without vectors=")
        wanted = Deriver.of(settings.analyzer, settings.graph)
        if settings.graph is None:
            wanted = replace(self._deriver, analyzer=settings.analyzer)
        b = B if settings.b is None else settings.b
        self._adopt(replace(wanted, lexical=Lexical.of(self._deriver.lexical.engine, settings.k1, b)))

    def _adopt(self, wanted: Deriver) -> None:
        record = self._db.read(lambda conn: schema.get_setting(conn, "derived"))
        if record != wanted.to_dict() and not (record is None and wanted == Deriver()):
            with self._db.write(alone=True) as conn:
                maintenance.adopt(conn, wanted, self.path)
        self._deriver = wanted

    def search_view(self, view: View, settings: IndexSettings, /) -> SearchView:
        """The search view: in the server for the live view; local indexes for past views and superseded memories."""
        if view.as_of is not None or view.superseded:
            return LocalView(self, view, settings)
        return PostgresView(
            view.namespace,
            settings,
            self._router.run,
            run_both=self._router.run_both,
            has_vectors=self._has_vectors,
            exact_below=self._exact_below,
            prefix=self._prefix,
            want_index=self._indexes.request,
            catch_up=None if self._router.replica is None else self._router.check,
            engine=self._deriver.lexical.searcher(view.namespace),
        )

    def lazy_ids(self, *, view: View, filter: Any = None) -> Set[str]:
        """The ids that match a filter, as a set that is read when it is first used; a search filters in the server."""
        validation.view(view)
        condition = parse(filter)
        return FilterIds(filter_sql(condition, view), lambda: self.ids(view=view, filter=condition))

    # --- maintenance

    def check(self) -> _list[str]:
        """The problems of the store, one sentence each; empty when there are none."""
        with self.snapshot() as conn:
            return [*maintenance.check(conn), *self._clock_problems(conn)]

    def backup(self, path: str | Path, /) -> None:
        """Copy the whole store into a SQLite file, which hybridmem can open (`pg_dump` copies the database)."""
        from hybridmem.stores.copying import backup_to_sqlite

        backup_to_sqlite(self, path)

    def rebuild(
        self,
        settings: IndexSettings | None = None,
        /,
        *,
        lexical: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Build all derived rows again, for all clients, with other settings if given; returns how many memories."""
        deriver = self._deriver if settings is None else Deriver.of(settings.analyzer, settings.graph)
        engine = self._deriver.lexical.engine if lexical is None else lexical
        curve = (K1, B) if settings is None else (settings.k1, B if settings.b is None else settings.b)
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
        """Build the HNSW index for vectors of one dimension without blocking readers and writers.

        With the store's `prefix` only the leading dimensions are indexed (Matryoshka models), and four times as many
        candidates are scored by their full vectors.
        """
        self._expect_vectors()
        self._indexes.build(dim, m=m, ef_construction=ef_construction, memory=memory, progress=progress)

    def grant(self, role: str, /, *, namespace: str) -> None:
        """Row-level security: let a role read and write one namespace. Called by the owner of the tables."""
        with suppress(StoreError):  # without pgvector there is no table of vectors
            self._expect_vectors()
        with self._db.write(alone=True) as conn:
            schema.grant(conn, self._schema, role, namespace, self._deriver.lexical)

    def revoke(self, role: str, /, *, namespace: str) -> None:
        """Revoke a role's access to a namespace."""
        with self._db.write(alone=True) as conn:
            schema.revoke(conn, role, namespace)

    def close(self) -> None:
        """Close the connections; later calls raise StoreClosedError."""
        self._router.close()


def _checked_schema(name: str) -> str:
    if not isinstance(name, str) or not name or len(name.encode()) > 63 or "\0" in name:  # noqa: PLR2004
        validation.refuse("schema", name, "a PostgreSQL name of 1 to 63 bytes")
    return name


# --- searches on a replica


class Router:
    """Runs the statements of a search: on the replica while it can be reached and is current, else on the primary.

    `read_your_writes`: use the replica only once it has this store's writes.
    """

    def __init__(self, primary: Database, replica: Database | None, /, *, read_your_writes: bool) -> None:
        self.primary, self.replica = primary, replica
        self.behind = False
        """Whether the primary is used: the replica cannot be reached, or lacks writes of this store."""
        self._read_your_writes, self._written = read_your_writes, ""

    def run(self, statement: SQL, /) -> Rows:
        """The rows of one statement."""
        return self._route(lambda database: database.read(lambda conn: _send(conn, statement).fetchall()))

    def run_both(self, first: SQL, second: SQL, /) -> tuple[Rows, Rows]:
        """The rows of two statements that the server runs at the same time.

        One thread sends both before it waits. Two threads were slower: the operating system put them on one processor
        together with the server processes they woke.
        """

        def work(one: Conn, other: Conn) -> tuple[Rows, Rows]:
            if one is other:  # not in one pipeline, where the failure of either would break both
                return _send(one, first).fetchall(), _send(one, second).fetchall()
            try:
                with one.raw.pipeline(), other.raw.pipeline():
                    sent = _send(one, first), _send(other, second)
                    return sent[0].fetchall(), sent[1].fetchall()
            except psycopg.Error:  # psycopg counts a statement as prepared even if its preparation failed in a pipeline
                one.raw.close()
                other.raw.close()
                raise

        return self._route(lambda database: database.read_on_two(work))

    def _route(self, ask: Callable[[Database], T]) -> T:
        if self.replica is not None and not self.behind:
            try:
                return ask(self.replica)
            except StoreError:
                self.behind = True  # the primary is used until `check` finds the replica again
        return ask(self.primary)

    def check(self) -> None:
        """Before a query: find out whether the replica can be reached and has this store's writes."""
        if self.replica is None:
            return
        query = "SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= ?::pg_lsn"
        try:
            rows = self.replica.read(lambda conn: conn.execute(query, (self._written or "0/0",)).fetchall())
        except StoreError:
            self.behind = True
        else:
            self.behind = not rows[0][0]

    def record_write(self) -> None:
        """After a write: record the position of the primary's log that the replica has to reach."""
        if self.replica is not None and self._read_your_writes:
            query = "SELECT pg_current_wal_insert_lsn()::text"
            self._written = self.primary.read(lambda conn: conn.execute(query).fetchone()[0])

    def close(self) -> None:
        """Close the connections to both."""
        self.primary.close()
        if self.replica is not None:
            self.replica.close()


def _send(conn: Conn, statement: SQL) -> Any:
    """Run a statement with binary results: vectors arrive as bytes instead of hexadecimal text."""
    return conn.raw.execute(translate(statement.text), statement.params, binary=True)
