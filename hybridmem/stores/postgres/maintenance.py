"""Looking after the store: is it sound, and building again what is derived."""

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
from hybridmem.stores.postgres.derived import Derived, Deriver
from hybridmem.stores.postgres.schema import get_setting, has_vectors, set_setting
from hybridmem.stores.postgres.search.vectors import LIMIT, index_name, index_sql
from hybridmem.stores.sql.codec import BODY
from hybridmem.stores.sqlite.log import COLUMNS as HEAD
from hybridmem.stores.sqlite.log import Head

__all__ = ["VectorIndexes", "adopt", "check", "rebuild"]

log = logging.getLogger("hybridmem")
_ASK_AGAIN = 0.5
"""Seconds between two looks at a build, one's own or another client's."""


class VectorIndexes:
    """Builds the HNSW indexes of one store: one for each dimension (and Matryoshka prefix)."""

    def __init__(self, db: Database, /, *, prefix: int | None, auto: bool) -> None:
        self._db, self._prefix, self._auto = db, prefix, auto
        self._wanted: set[int] = set()
        self._lock = threading.Lock()

    def want(self, dim: int, /) -> None:
        """A search has met many vectors without an index: build it in the background, once, if that is allowed.

        Whoever only loads never gets here, so a bulk load is not slowed down by an index that grows with it.
        """
        if not self._auto or (self._prefix or dim) > LIMIT:
            return
        with self._lock:
            if dim in self._wanted:
                return
            self._wanted.add(dim)
        threading.Thread(target=self._try, args=(dim,), name="hybridmem-index", daemon=True).start()

    def _try(self, dim: int) -> None:
        """If this process ends meanwhile, the server finishes the index all the same."""
        try:
            self.build(dim, patient=False)
        except HybridMemError as error:
            log.warning("the HNSW index for vectors of %d dimensions was not built, search stays exact: %s", dim, error)

    def build(
        self,
        dim: int,
        /,
        *,
        m: int = 16,
        ef_construction: int = 64,
        memory: str = "256MB",
        progress: Progress | None = None,
        patient: bool = True,
    ) -> None:
        """Build the index; where another client is building it, wait for that one (or leave it to it)."""
        if (self._prefix or dim) > LIMIT:
            raise ConfigError(
                f"pgvector indexes up to {LIMIT} dimensions, not {dim}: open the store with a prefix= of that "
                "or less if the model allows it; without an index the search is exact"
            )
        with self._db.alone() as conn, self._turn(conn, patient=patient) as mine:
            if mine:
                statement = index_sql(dim, self._prefix, m=m, ef=ef_construction)
                with self._told(conn, progress):
                    _build(conn, index_name(dim, self._prefix), statement, memory)

    @contextmanager
    def _turn(self, conn: Conn, *, patient: bool) -> Iterator[bool]:
        """One builder at a time. Asked again and again: a session that waits for a lock would hold up the build."""
        key = (LOCK + 1, zlib.crc32(self._db.schema.encode()) >> 1)
        while not (mine := conn.raw.execute("SELECT pg_try_advisory_lock(%s, %s)", key).fetchone() == (True,)):
            if not patient:
                break
            time.sleep(_ASK_AGAIN)
        try:
            yield mine
        finally:
            if mine and not conn.raw.closed:
                conn.raw.execute("SELECT pg_advisory_unlock(%s, %s)", key)

    @contextmanager
    def _told(self, conn: Conn, progress: Progress | None) -> Iterator[None]:
        """Meanwhile, tell how many blocks of the table are in, of how many."""
        if progress is None:
            yield
            return
        done, pid = threading.Event(), conn.raw.info.backend_pid
        query = (
            "SELECT blocks_done, blocks_total FROM pg_stat_progress_create_index WHERE pid = ? AND blocks_total > 0 "
            "AND phase LIKE 'building index%'"
        )

        def look() -> None:
            while not done.wait(_ASK_AGAIN):
                row = self._db.read(lambda other: other.execute(query, (pid,)).fetchone())
                if row is not None:
                    progress(*row)

        watcher = threading.Thread(target=look, name="hybridmem-index-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _build(conn: Conn, name: str, statement: str, memory: str) -> None:
    """An index that was broken off half-way is built anew."""
    valid = conn.raw.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", (name,)).fetchone()
    if valid == (False,):
        conn.raw.execute(f"DROP INDEX CONCURRENTLY {name}")
    conn.raw.execute("SELECT set_config('maintenance_work_mem', %s, false)", (memory,))
    if conn.raw.execute("SELECT relkind FROM pg_class WHERE oid = 'embeddings'::regclass").fetchone() == ("p",):
        statement = statement.replace("CONCURRENTLY ", "")  # over partitions PostgreSQL cannot build beside the work
    conn.raw.execute(statement.encode())
    conn.raw.execute("RESET maintenance_work_mem")


# ruff: noqa: S608, ISC004 - every name put into a statement is ours; what users give is bound


_MOST = 5
_BATCH = 2000
_SHOWN = "m.live AND m.status <> 'superseded'"

# Each row that a query finds is a broken promise; its columns fill the sentence.
_PROMISES = (
    (
        "memory {0!r} of namespace {1!r} stands at version {2}, but its newest is {3}",
        "SELECT m.id, m.namespace, m.seq, v.newest FROM memories m LEFT JOIN (SELECT mem, max(seq) AS newest FROM "
        "versions GROUP BY mem) v USING (mem) WHERE v.newest IS DISTINCT FROM m.seq",
    ),
    (
        "memory {0!r} of namespace {1!r} does not show what its version {2} says",
        "SELECT m.id, m.namespace, m.seq FROM memories m JOIN versions v USING (seq) WHERE "
        "(m.live, m.body, m.vector, m.status, m.strength, m.access_count, m.last_accessed, m.decayed, m.born, "
        "m.namespace) IS DISTINCT FROM (v.live, v.body, v.vector, v.status, v.strength, v.access_count, "
        "v.last_accessed, v.decayed, v.born, v.namespace)",
    ),
    (
        "memory {0!r} of namespace {1!r} does not show the fields of its body {2}",
        "SELECT m.id, m.namespace, m.body FROM memories m JOIN bodies b ON b.seq = m.body WHERE "
        "(m.source_id, m.thread, m.created_at, m.updated_at, m.confidence, m.words, m.namespace) IS DISTINCT FROM "
        "(b.source_id, b.thread, b.created_at, b.updated_at, b.confidence, b.words, b.namespace)",
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
        "the recorded time of version {0} lies before that of an earlier one",
        "SELECT seq FROM (SELECT seq, at, lag(at) OVER (ORDER BY seq) AS earlier FROM versions) t WHERE at < earlier",
    ),
    (
        "namespace {0!r} says that its newest version is {1}, but it is {2}",
        "SELECT s.namespace, s.seq, v.newest FROM spaces s JOIN (SELECT namespace, max(seq) AS newest FROM (SELECT "
        "namespace, seq FROM versions UNION ALL SELECT namespace, seq FROM edge_log) u GROUP BY 1) v USING (namespace) "
        "WHERE v.newest > s.seq",
    ),
    (
        "the link {1!r} - {2!r} ({3}) of namespace {0!r} is not what the log says",
        "SELECT e.namespace, e.a, e.b, e.relation FROM edges e LEFT JOIN edge_log l USING (seq) WHERE "
        "(l.namespace, l.a, l.b, l.relation, l.weight, l.gone) IS DISTINCT FROM "
        "(e.namespace, e.a, e.b, e.relation, e.weight, false)",
    ),
    (
        "the link {1!r} - {2!r} ({3}) of namespace {0!r} has an end that is not there",
        "SELECT e.namespace, e.a, e.b, e.relation FROM edges e "
        "LEFT JOIN memories a ON a.namespace = e.namespace AND a.id = e.a AND a.live "
        "LEFT JOIN memories b ON b.namespace = e.namespace AND b.id = e.b AND b.live "
        "WHERE a.mem IS NULL OR b.mem IS NULL",
    ),
    (
        "memory {0!r} of namespace {1!r} cannot be found by its words: reindex",
        f"SELECT m.id, m.namespace FROM memories m LEFT JOIN documents d USING (namespace, mem) WHERE {_SHOWN} "
        "AND d.mem IS NULL",
    ),
    (
        "document {0} of namespace {1!r} belongs to no memory on show: reindex",
        "SELECT d.mem, d.namespace FROM documents d LEFT JOIN memories m ON m.mem = d.mem AND m.namespace = "
        f"d.namespace AND {_SHOWN} WHERE m.mem IS NULL",
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
        "namespace {0!r} counts {1} memories of length {2}, but shows {3} of length {4}: reindex",
        "SELECT s.namespace, s.memories, s.length, COALESCE(d.n, 0), COALESCE(d.l, 0) FROM spaces s LEFT JOIN (SELECT "
        "namespace, count(*) AS n, sum(length::float8) AS l FROM documents GROUP BY 1) d USING (namespace) "
        "WHERE s.memories <> COALESCE(d.n, 0) OR abs(s.length - COALESCE(d.l, 0)) > 1e-6 * (1 + s.length)",
    ),
    (
        "the saved state {1!r} of namespace {0!r} has {2} of its {3} parts",
        "SELECT namespace, name, count(*), min(parts) FROM snapshots GROUP BY 1, 2 HAVING count(*) <> min(parts)",
    ),
)
_WORDS = (
    "memory {0!r} of namespace {1!r} is not as the lexical engine has it: reindex",
    "SELECT m.id, m.namespace FROM memories m FULL JOIN {table} w USING (namespace, mem) WHERE "
    f"(m.mem IS NOT NULL AND {_SHOWN}) IS DISTINCT FROM (w.mem IS NOT NULL)",
)
_VECTORS = (
    "memory {0!r} of namespace {1!r} cannot be found by its vector: reindex",
    "SELECT m.id, m.namespace FROM memories m LEFT JOIN embeddings e USING (namespace, mem) WHERE "
    f"(m.vector IS NOT NULL AND {_SHOWN}) <> (e.mem IS NOT NULL)",
)


def check(conn: Conn, /) -> list[str]:
    """What is wrong, in words: promises of ours that do not hold."""
    problems: list[str] = []
    words = Deriver.from_dict(get_setting(conn, "derived") or Deriver().to_dict()).lexical.words
    beside = [] if words is None else [(_WORDS[0], _WORDS[1].replace("{table}", words.table))]
    for sentence, query in (*_PROMISES, *beside, *([_VECTORS] if has_vectors(conn) else [])):
        rows = conn.raw.execute(f"{query} LIMIT {_MOST + 1}").fetchall()
        problems += [sentence.format(*row) for row in rows[:_MOST]]
        if len(rows) > _MOST:
            problems.append("… and more of the same kind")
    return problems


def adopt(conn: Conn, deriver: Deriver, name: str, /) -> None:
    """Put on record how memories become terms; refuse to change it under memories that are there."""
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
    """Build everything derived again from the log; in a transaction that holds the store alone."""
    raw = conn.raw
    tables = ["documents", "postings", "terms", "mentions", "pointers"] + (["embeddings"] if has_vectors(conn) else [])
    for table in tables:
        raw.execute(f"DELETE FROM {table}")
    deriver.lexical.create(conn, anew=True)
    raw.execute("UPDATE spaces SET memories = 0, length = 0, vectors = 0")
    set_setting(conn, "derived", deriver.to_dict())
    found = raw.execute(f"SELECT count(*) FROM memories m WHERE {_SHOWN}").fetchone()
    total, done, last = (found[0] if found else 0), 0, 0
    while rows := _next(conn, last):
        derived = Derived()
        for row in rows:
            head = Head(*row[: len(HEAD)])
            derived.note(head, shown=True, before=False, body=tuple(row[len(HEAD) :]), vector=None, text=True)
        for namespace, stats in deriver.write(raw, derived).items():
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
    columns = ", ".join([*(f"m.{name}" for name in HEAD), *(f"b.{name}" for name in BODY)])
    return conn.raw.execute(
        f"SELECT {columns} FROM memories m JOIN bodies b ON b.seq = m.body WHERE m.mem > %s AND {_SHOWN} "
        f"ORDER BY m.mem LIMIT {_BATCH}",
        (last,),
    ).fetchall()
