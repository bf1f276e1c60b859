"""Maintenance of the store: consistency checks, rebuilding derived rows, and HNSW indexes."""

# ruff: noqa: S608, ISC004 - every name put into a statement is ours; values of users are bound

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hybridmem.core.protocols import Progress
from hybridmem.errors import ConfigError, HybridMemError
from hybridmem.stores.postgres.connection import LOCK, Conn, Database
from hybridmem.stores.postgres.derived import DerivedChanges, Deriver
from hybridmem.stores.postgres.schema import get_setting, has_vectors, set_setting
from hybridmem.stores.postgres.search.vectors import LIMIT, index_name, index_sql
from hybridmem.stores.sql.log import COLUMNS, Head
from hybridmem.stores.sql.read import BODY

__all__ = ["VectorIndexes", "adopt", "check", "rebuild"]

log = logging.getLogger("hybridmem")
_POLL = 0.5
"""Seconds between two checks of a running build."""


class VectorIndexes:
    """Builds the HNSW indexes of one store: one for each dimension (and Matryoshka prefix)."""

    def __init__(self, db: Database, /, *, prefix: int | None, auto: bool) -> None:
        self._db, self._prefix, self._auto = db, prefix, auto
        self._requested: set[int] = set()
        self._lock = threading.Lock()

    def request(self, dim: int, /) -> None:
        """Build an index in the background, once, after a search over many vectors without one, if `auto` allows it.

        A client that only loads never calls this, so that a bulk load is not slowed down by an index.
        """
        if not self._auto or (self._prefix or dim) > LIMIT:
            return
        with self._lock:
            if dim in self._requested:
                return
            self._requested.add(dim)
        threading.Thread(target=self._build_in_background, args=(dim,), name="hybridmem-index", daemon=True).start()

    def _build_in_background(self, dim: int) -> None:
        """If this process ends meanwhile, the server still finishes the index."""
        try:
            self.build(dim, wait=False)
        except HybridMemError as error:
            log.warning(
                "the HNSW index for vectors of %d dimensions was not built, the search stays exact: %s", dim, error
            )

    def build(
        self,
        dim: int,
        /,
        *,
        m: int = 16,
        ef_construction: int = 64,
        memory: str = "256MB",
        progress: Progress | None = None,
        wait: bool = True,
    ) -> None:
        """Build the index; if another client is building it, `wait` for that build or return."""
        if (self._prefix or dim) > LIMIT:
            raise ConfigError(
                f"pgvector indexes up to {LIMIT} dimensions, not {dim}: open the store with a prefix= of that "
                "or less if the model allows it; without an index the search is exact"
            )
        with self._db.alone() as conn, self._builder_lock(conn, wait=wait) as mine:
            if mine:
                statement = index_sql(dim, self._prefix, m=m, ef=ef_construction)
                with self._reported(conn, progress):
                    _build(conn, index_name(dim, self._prefix), statement, memory)

    @contextmanager
    def _builder_lock(self, conn: Conn, *, wait: bool) -> Iterator[bool]:
        """Whether the builder's lock was obtained. It is polled: a session waiting for a lock blocks the build."""
        key = (LOCK + 1, zlib.crc32(self._db.schema.encode()) >> 1)
        while not (mine := conn.raw.execute("SELECT pg_try_advisory_lock(%s, %s)", key).fetchone() == (True,)):
            if not wait:
                break
            time.sleep(_POLL)
        try:
            yield mine
        finally:
            if mine and not conn.raw.closed:
                conn.raw.execute("SELECT pg_advisory_unlock(%s, %s)", key)

    @contextmanager
    def _reported(self, conn: Conn, progress: Progress | None) -> Iterator[None]:
        """Reports progress inside the `with`: blocks of the table indexed, and their number."""
        if progress is None:
            yield
            return
        done, pid = threading.Event(), conn.raw.info.backend_pid
        query = (
            "SELECT blocks_done, blocks_total FROM pg_stat_progress_create_index WHERE pid = ? AND blocks_total > 0 "
            "AND phase LIKE 'building index%'"
        )

        def poll() -> None:
            while not done.wait(_POLL):
                row = self._db.read(lambda other: other.execute(query, (pid,)).fetchone())
                if row is not None:
                    progress(*row)

        watcher = threading.Thread(target=poll, name="hybridmem-index-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _build(conn: Conn, name: str, statement: str, memory: str) -> None:
    """Build an index; an invalid one of an interrupted build is dropped first."""
    valid = conn.raw.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", (name,)).fetchone()
    if valid == (False,):
        conn.raw.execute(f"DROP INDEX CONCURRENTLY {name}")
    conn.raw.execute("SELECT set_config('maintenance_work_mem', %s, false)", (memory,))
    if conn.raw.execute("SELECT relkind FROM pg_class WHERE oid = 'embeddings'::regclass").fetchone() == ("p",):
        statement = statement.replace("CONCURRENTLY ", "")  # PostgreSQL cannot build over partitions CONCURRENTLY
    conn.raw.execute(statement.encode())
    conn.raw.execute("RESET maintenance_work_mem")


_MOST = 5
_BATCH = 2000
_VISIBLE = "m.live AND m.status <> 'superseded'"

# Each row that a query returns is a violation; its columns fill the message.
_INVARIANTS = (
    (
        "memory {0!r} of namespace {1!r} is recorded at version {2}, but its newest is {3}",
        "SELECT m.id, m.namespace, m.seq, v.newest FROM memories m LEFT JOIN (SELECT mem, max(seq) AS newest FROM "
        "versions GROUP BY mem) v USING (mem) WHERE v.newest IS DISTINCT FROM m.seq",
    ),
    (
        "memory {0!r} of namespace {1!r} differs from its version {2}",
        "SELECT m.id, m.namespace, m.seq FROM memories m JOIN versions v USING (seq) WHERE "
        "(m.live, m.body, m.vector, m.status, m.strength, m.access_count, m.last_accessed, m.decayed, m.born, "
        "m.namespace) IS DISTINCT FROM (v.live, v.body, v.vector, v.status, v.strength, v.access_count, "
        "v.last_accessed, v.decayed, v.born, v.namespace)",
    ),
    (
        "memory {0!r} of namespace {1!r} differs from its body {2}",
        "SELECT m.id, m.namespace, m.body FROM memories m JOIN bodies b ON b.seq = m.body WHERE "
        "(m.source_id, m.thread, m.created_at, m.updated_at, m.confidence, m.words, m.namespace, m.speaker, m.cues, "
        "m.event_at, m.expires_at) IS DISTINCT FROM (b.source_id, b.thread, b.created_at, b.updated_at, b.confidence, "
        "b.words, b.namespace, b.spoken_by, b.cues, b.event_at, b.expires_at)",
    ),
    (
        "version {0} belongs to no memory",
        "SELECT v.seq FROM versions v LEFT JOIN memories m USING (mem) WHERE m.mem IS NULL",
    ),
    (
        "version {0} points at body {1}, which is missing",
        "SELECT v.seq, v.body FROM versions v LEFT JOIN bodies b ON b.seq = v.body "
        "WHERE b.seq IS NULL AND (v.live OR v.body IS NOT NULL)",
    ),
    (
        "version {0} points at vector {1}, which is missing",
        "SELECT v.seq, v.vector FROM versions v LEFT JOIN vectors x ON x.seq = v.vector "
        "WHERE v.vector IS NOT NULL AND x.seq IS NULL",
    ),
    (
        "the recorded time of version {0} is before that of an earlier one by {1:.0f} seconds: a clock was wrong",
        "SELECT seq, earlier - at FROM (SELECT seq, at, lag(at) OVER (ORDER BY seq) AS earlier FROM versions) t "
        "WHERE earlier - at > 60",  # MAX_SKEW
    ),
    (
        "namespace {0!r} records {1} as its newest version, but it is {2}",
        "SELECT s.namespace, s.seq, v.newest FROM spaces s JOIN (SELECT namespace, max(seq) AS newest FROM (SELECT "
        "namespace, seq FROM versions UNION ALL SELECT namespace, seq FROM edge_log) u GROUP BY 1) v USING (namespace) "
        "WHERE v.newest > s.seq",
    ),
    (
        "the link {1!r} - {2!r} ({3}) of namespace {0!r} differs from the log",
        "SELECT e.namespace, e.a, e.b, e.relation FROM edges e LEFT JOIN edge_log l USING (seq) WHERE "
        "(l.namespace, l.a, l.b, l.relation, l.weight, l.gone) IS DISTINCT FROM "
        "(e.namespace, e.a, e.b, e.relation, e.weight, false)",
    ),
    (
        "the link {1!r} - {2!r} ({3}) of namespace {0!r} has a missing end",
        "SELECT e.namespace, e.a, e.b, e.relation FROM edges e "
        "LEFT JOIN memories a ON a.namespace = e.namespace AND a.id = e.a AND a.live "
        "LEFT JOIN memories b ON b.namespace = e.namespace AND b.id = e.b AND b.live "
        "WHERE a.mem IS NULL OR b.mem IS NULL",
    ),
    (
        "memory {0!r} of namespace {1!r} is missing in the text index: reindex",
        f"SELECT m.id, m.namespace FROM memories m LEFT JOIN documents d USING (namespace, mem) WHERE {_VISIBLE} "
        "AND d.mem IS NULL",
    ),
    (
        "document {0} of namespace {1!r} belongs to no visible memory: reindex",
        "SELECT d.mem, d.namespace FROM documents d LEFT JOIN memories m ON m.mem = d.mem AND m.namespace = "
        f"d.namespace AND {_VISIBLE} WHERE m.mem IS NULL",
    ),
    (
        "document {0} of namespace {1!r} has {2} terms, but {3} postings: reindex",
        "SELECT d.mem, d.namespace, cardinality(d.terms), COALESCE(p.n, 0) FROM documents d LEFT JOIN (SELECT "
        "namespace, mem, count(*) AS n FROM postings GROUP BY 1, 2) p USING (namespace, mem) "
        "WHERE cardinality(d.terms) <> COALESCE(p.n, 0)",
    ),
    (
        "term {1!r} of namespace {0!r} is counted {2} times, but {3} memories have it: reindex",
        "SELECT namespace, term, COALESCE(t.n, 0), COALESCE(p.n, 0) FROM terms t FULL JOIN (SELECT namespace, term, "
        "count(*) AS n FROM postings GROUP BY 1, 2) p USING (namespace, term) WHERE t.n IS DISTINCT FROM p.n",
    ),
    (
        "namespace {0!r} records {1} memories of length {2}, but has {3} of length {4}: reindex",
        "SELECT s.namespace, s.memories, s.length, COALESCE(d.n, 0), COALESCE(d.l, 0) FROM spaces s LEFT JOIN (SELECT "
        "namespace, count(*) AS n, sum(length::float8) AS l FROM documents GROUP BY 1) d USING (namespace) "
        "WHERE s.memories <> COALESCE(d.n, 0) OR abs(s.length - COALESCE(d.l, 0)) > 1e-6 * (1 + s.length)",
    ),
    (
        "speaker {1!r} of namespace {0!r} has wrong counts: reindex",
        "SELECT namespace, speaker FROM (SELECT m.namespace, m.speaker, count(*) FILTER (WHERE btrim(b.speaker) <> '') "
        "AS named, count(*) FILTER (WHERE btrim(b.speaker) = '') AS prefixed FROM memories m JOIN bodies b "
        f"ON b.seq = m.body WHERE {_VISIBLE} AND m.speaker IS NOT NULL GROUP BY 1, 2) c FULL JOIN speakers s "
        "USING (namespace, speaker) WHERE (c.named, c.prefixed) IS DISTINCT FROM (s.named, s.prefixed)",
    ),
    (
        "the saved state {1!r} of namespace {0!r} has {2} of its {3} parts",
        "SELECT namespace, name, count(*), min(parts) FROM snapshots GROUP BY 1, 2 HAVING count(*) <> min(parts)",
    ),
)
_ENGINE = (
    "memory {0!r} of namespace {1!r} differs from the lexical engine's table: reindex",
    "SELECT m.id, m.namespace FROM memories m FULL JOIN {table} w USING (namespace, mem) WHERE "
    f"(m.mem IS NOT NULL AND {_VISIBLE}) IS DISTINCT FROM (w.mem IS NOT NULL)",
)
_VECTORS = (
    "memory {0!r} of namespace {1!r} is missing in the vector index: reindex",
    "SELECT m.id, m.namespace FROM memories m LEFT JOIN embeddings e USING (namespace, mem) WHERE "
    f"(m.vector IS NOT NULL AND {_VISIBLE}) <> (e.mem IS NOT NULL)",
)


def check(conn: Conn, /) -> list[str]:
    """The problems of the store, one sentence each: violated invariants of the tables."""
    problems: list[str] = []
    engine = Deriver.from_dict(get_setting(conn, "derived") or Deriver().to_dict()).lexical.engine_table
    optional = [] if engine is None else [(_ENGINE[0], _ENGINE[1].replace("{table}", engine.table))]
    for message, query in (*_INVARIANTS, *optional, *([_VECTORS] if has_vectors(conn) else [])):
        rows = conn.raw.execute(f"{query} LIMIT {_MOST + 1}").fetchall()
        problems += [message.format(*row) for row in rows[:_MOST]]
        if len(rows) > _MOST:
            problems.append("… and more of the same kind")
    return problems


def adopt(conn: Conn, deriver: Deriver, name: str, /) -> None:
    """Store the settings of the deriver; refuse to change them while there are memories."""
    record, wanted = get_setting(conn, "derived"), deriver.to_dict()
    filled = conn.raw.execute("SELECT EXISTS (SELECT 1 FROM documents)").fetchone() == (True,)
    known = record or Deriver().to_dict()
    if filled and known != wanted:
        keys = [key for key in {**known, **wanted} if known.get(key) != wanted.get(key)]
        changed = ", ".join(f"{key} {known.get(key, 'bm25')!r}, not {wanted.get(key, 'bm25')!r}" for key in keys)
        raise ConfigError(
            f"{name} was filled with {changed}: open it with the same settings, or rebuild it for everybody with "
            "PostgresStore(url).rebuild(settings, lexical=…)"
        )
    if record != wanted:
        deriver.lexical.create(conn, anew=True)
        set_setting(conn, "derived", wanted)


def rebuild(conn: Conn, deriver: Deriver, progress: Progress | None = None, /) -> int:
    """Build all derived rows again, in a transaction that locks the whole store; returns how many memories."""
    raw = conn.raw
    tables = ["documents", "postings", "terms", "mentions", "pointers", "speakers", "names"] + (
        ["embeddings"] if has_vectors(conn) else []
    )
    for table in tables:
        raw.execute(f"DELETE FROM {table}")
    deriver.lexical.create(conn, anew=True)
    raw.execute("UPDATE spaces SET memories = 0, length = 0, vectors = 0")
    set_setting(conn, "derived", deriver.to_dict())
    found = raw.execute(f"SELECT count(*) FROM memories m WHERE {_VISIBLE}").fetchone()
    total, done, last = (found[0] if found else 0), 0, 0
    while rows := _next(conn, last):
        derived = DerivedChanges()
        for row in rows:
            head = Head(*row[: len(COLUMNS)])
            derived.record(head, visible=True, old=None, body=tuple(row[len(COLUMNS) :]), vector=None, text=True)
        for namespace, stats in deriver.write(raw, derived, rebuild=True).items():
            raw.execute(
                "UPDATE spaces SET memories = memories + %s, length = length + %s, vectors = vectors + %s "
                "WHERE namespace = %s",
                (*stats, namespace),
            )
        done, last = done + len(rows), rows[-1][0]
        if progress is not None:
            progress(done, total)
    return done


def _next(conn: Conn, last: int) -> list[tuple[Any, ...]]:
    columns = ", ".join([*(f"m.{name}" for name in COLUMNS), *(f"b.{name}" for name in BODY)])
    return conn.raw.execute(
        f"SELECT {columns} FROM memories m JOIN bodies b ON b.seq = m.body WHERE m.mem > %s AND {_VISIBLE} "
        f"ORDER BY m.mem LIMIT {_BATCH}",
        (last,),
    ).fetchall()
