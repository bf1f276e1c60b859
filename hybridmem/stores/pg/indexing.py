"""The HNSW index over the vectors: built beside the running work, by one client at a time, by itself where wanted."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from hybridmem.errors import ConfigError, HybridMemError
from hybridmem.stores.base import Progress
from hybridmem.stores.pg.database import LOCK, Conn, Database
from hybridmem.stores.pg.nearest import LIMIT, index_name, index_sql

__all__ = ["VectorIndexes"]

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
