"""SQLiteStore: the log of memories in one SQLite file, for many threads and processes; its checks and backups."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hybridmem.core import validation
from hybridmem.core.protocols import View
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError, StoreBusyError
from hybridmem.filters.parse import Condition
from hybridmem.filters.sql import SQL, to_sql
from hybridmem.stores.sql import read
from hybridmem.stores.sql.log import Log
from hybridmem.stores.sql.store import PAGE, SQLStore
from hybridmem.stores.sqlite.connection import ConnectionPool, Synchronous, is_busy, translated

__all__ = ["SQLiteStore", "part_name", "publish", "remove_leftovers"]

T = TypeVar("T")


class SQLiteStore(SQLStore):
    """The log of memories in one SQLite file (`":memory:"` for none).

    Durable: with `synchronous="full"` a write that returned survives a killed process and a power cut; with
    `"normal"` a killed process still loses nothing, a power cut may lose the last writes (never a part of one).

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
        name = validation.file_path("path", path, "the name of a file, or ':memory:'")
        self.path = name if name == ":memory:" else os.path.abspath(name)  # noqa: PTH100 - keeps symbolic links
        validation.function("clock", clock, "a function that returns epoch seconds")
        self.pool = ConnectionPool(self.path, busy_timeout=busy_timeout, synchronous=synchronous)
        super().__init__(
            self.pool, clock=clock, streams=not self.pool.in_memory
        )  # ":memory:" has one connection for everybody

    # --- connections and transactions

    @contextmanager
    def transaction(
        self,
        namespace: str | None = None,  # noqa: ARG002 - one file, one lock
        /,
        *,
        undo: Callable[[], None] | None = None,
    ) -> Iterator[Log]:
        """A write transaction and its log; `undo` is called before a rollback, while no other process can write."""
        with translated(self.path), self.pool.write(undo=undo) as conn:
            now, at = self._times()
            log = Log(conn, now=now, at=at)
            self._report_clock(now, log.newest)
            yield log
            log.finish()

    @contextmanager
    def _side_tables(self, name: str, /, *, alone: bool = False) -> Iterator[Any]:  # noqa: ARG002
        with translated(self.path), self.pool.write() as conn:
            yield conn

    def _sql(self, condition: Condition, view: View, /) -> SQL:
        return to_sql(condition, columns=read.columns(view))

    def purge(self) -> None:
        """Empty the write-ahead log, so that it keeps no copy of erased pages."""
        with translated(self.path):
            self.pool.checkpoint()

    # --- vectors in bulk

    @contextmanager
    def vector_pieces(self, *, view: View) -> Iterator[tuple[int, Iterator[list[tuple[str, float | None, bytes]]]]]:
        """The seq of this state and every vector in view, in batches; to be read inside the `with`."""
        validation.view(view)
        with self.snapshot() as conn:
            yield read.last_seq(conn), read.vector_batches(conn, view)

    def vector_seqs(self, *, view: View) -> dict[str, int]:
        """The number of the vector of each memory in view that has one."""
        validation.view(view)
        with self.snapshot() as conn:
            return read.vector_seqs(conn, view)

    def vector_rows(self, seqs: Sequence[int], /) -> dict[int, bytes]:
        """The little-endian float32 bytes of the vectors of these numbers; erased ones are left out."""
        return self.pool.read(lambda conn: read.vector_rows(conn, seqs))

    def unembedded(self, *, namespace: str = "", after: str = "", limit: int = PAGE) -> list[Memory]:
        """Memories without a vector, superseded ones too, in the order of ids: at most `limit`, after a given id."""
        validation.namespace(namespace)
        with self.snapshot() as conn:
            missing = read.unembedded(conn, namespace, after, min(limit, PAGE))
            found = read.get(conn, View(namespace, superseded=True), missing)
        return [found[id_] for id_ in missing]

    # --- maintenance

    def check(self) -> list[str]:
        """The problems of the file, one sentence each; empty when there are none."""
        with self.snapshot() as conn:
            return [*violations(conn), *self._clock_problems(conn)]

    def backup(self, path: str | Path, /) -> None:
        """Copy the store to another file while it is in use; the copy appears complete or not at all."""
        target = os.path.abspath(validation.file_path("path", path, "the name of a file to back up to"))  # noqa: PTH100
        if Path(target).is_dir():
            raise ConfigError(f"cannot back up to {target!r}: name a file")
        self.pool.read(lambda conn: copy_to(conn, self.path, target))

    def close(self) -> None:
        """Close the file; later calls raise StoreClosedError."""
        self.pool.close()


# --- checks and backups of the file


# Each row that a query returns is a violation; its columns fill the message.
class _Invariant(NamedTuple):
    message: str
    query: str


_INVARIANTS = (
    _Invariant(
        "memory {0!r} of namespace {1!r} is recorded at version {2}, but its newest is {3}",
        "SELECT m.id, m.namespace, m.seq, max(v.seq) AS newest FROM memories m LEFT JOIN versions v ON v.mem = m.mem "
        "GROUP BY m.mem HAVING newest IS NOT m.seq",
    ),
    _Invariant(
        "memory {0!r} of namespace {1!r} differs from its version {2}",
        "SELECT m.id, m.namespace, m.seq FROM memories m JOIN versions v ON v.seq = m.seq WHERE "
        "(m.live, m.body, m.vector, m.status, m.strength, m.access_count, m.last_accessed, m.decayed, m.born) IS NOT "
        "(v.live, v.body, v.vector, v.status, v.strength, v.access_count, v.last_accessed, v.decayed, v.born)",
    ),
    _Invariant(
        "memory {0!r} of namespace {1!r} differs from its body {2}",
        "SELECT m.id, m.namespace, m.body FROM memories m JOIN bodies b ON b.seq = m.body WHERE "
        "(m.source_id, m.thread, m.created_at, m.updated_at, m.confidence, m.words, m.speaker, m.cues, m.event_at, "
        "m.expires_at) IS NOT (b.source_id, b.thread, b.created_at, b.updated_at, b.confidence, b.words, b.spoken_by, "
        "b.cues, b.event_at, b.expires_at)",
    ),
    _Invariant(
        "version {0} belongs to no memory",
        "SELECT v.seq FROM versions v LEFT JOIN memories m ON m.mem = v.mem WHERE m.mem IS NULL",
    ),
    _Invariant(
        "version {0} points at body {1}, which is missing",
        "SELECT v.seq, v.body FROM versions v LEFT JOIN bodies b ON b.seq = v.body "
        "WHERE b.seq IS NULL AND (v.live OR v.body IS NOT NULL)",
    ),
    _Invariant(
        "version {0} points at vector {1}, which is missing",
        "SELECT v.seq, v.vector FROM versions v LEFT JOIN vectors x ON x.seq = v.vector "
        "WHERE v.vector IS NOT NULL AND x.seq IS NULL",
    ),
    _Invariant(
        "vector {0} has {1} bytes, which is no list of float32",
        "SELECT seq, length(data) FROM vectors WHERE length(data) = 0 OR length(data) % 4 <> 0",
    ),
    _Invariant(
        "namespace {0!r} has vectors of {1} different dimensions, {2} to {3}: re-embed it",
        "SELECT m.namespace, count(DISTINCT length(x.data)) AS sizes, min(length(x.data)) / 4, max(length(x.data)) / 4 "
        "FROM memories m JOIN vectors x ON x.seq = m.vector WHERE m.live GROUP BY m.namespace HAVING sizes > 1",
    ),
    _Invariant(
        "body {0} has JSON that cannot be read",
        "SELECT seq FROM bodies WHERE (tags IS NOT NULL AND NOT json_valid(tags)) "
        "OR (entities IS NOT NULL AND NOT json_valid(entities)) OR (metadata IS NOT NULL AND NOT json_valid(metadata))",
    ),
    _Invariant(
        "the recorded time of version {0} is before that of an earlier one by {1:.0f} seconds: a clock was wrong",
        "SELECT seq, earlier - at FROM (SELECT seq, at, lag(at) OVER (ORDER BY seq) AS earlier FROM versions) "
        "WHERE earlier - at > 60",  # MAX_SKEW
    ),
    _Invariant(
        "the counter is at {0}, but the log continues to {1}",
        "SELECT s.seq, max(v.seq, e.seq) AS newest FROM state s, "
        "(SELECT COALESCE(max(seq), 0) AS seq FROM versions) v, "
        "(SELECT COALESCE(max(seq), 0) AS seq FROM edge_log) e WHERE newest > s.seq",
    ),
    _Invariant(
        "the link {1!r} - {2!r} ({3}) of namespace {0!r} differs from the log",
        "SELECT e.namespace, e.a, e.b, e.relation FROM edges e LEFT JOIN edge_log l ON l.seq = e.seq WHERE "
        "(l.namespace, l.a, l.b, l.relation, l.weight, l.gone) IS NOT (e.namespace, e.a, e.b, e.relation, e.weight, 0)",
    ),
    _Invariant(
        "link {0} of the log is missing in the table of links",
        "SELECT l.seq FROM edge_log l LEFT JOIN edges e ON e.seq = l.seq AND e.namespace = l.namespace "
        "WHERE e.seq IS NULL AND NOT l.gone AND l.seq = (SELECT max(k.seq) FROM edge_log k WHERE "
        "k.namespace = l.namespace AND k.a = l.a AND k.b = l.b AND k.relation = l.relation)",
    ),
    _Invariant(
        "the link {1!r} - {2!r} ({3}) of namespace {0!r} has a missing end",
        "SELECT e.namespace, e.a, e.b, e.relation FROM edges e "
        "LEFT JOIN memories a ON a.namespace = e.namespace AND a.id = e.a AND a.live "
        "LEFT JOIN memories b ON b.namespace = e.namespace AND b.id = e.b AND b.live "
        "WHERE a.mem IS NULL OR b.mem IS NULL",
    ),
    _Invariant(
        "the saved state {1!r} of namespace {0!r} has {2} of its {3} parts",
        "SELECT namespace, name, count(*) AS found, parts FROM snapshots "
        "GROUP BY namespace, name HAVING found <> parts",
    ),
)
_MOST = 5  # messages of one kind
_TARGET_TIMEOUT = 2.0  # seconds to wait for other backups to the same target


def violations(conn: sqlite3.Connection, /) -> list[str]:
    """The problems of the file, one sentence each: damaged pages, otherwise violated invariants of the tables."""
    pages = [str(row[0]) for row in conn.execute(f"PRAGMA integrity_check({_MOST})")]
    if pages != ["ok"]:
        return [f"SQLite finds damage: {line}" for line in pages]
    problems = []
    for message, query in _INVARIANTS:
        rows = conn.execute(query).fetchmany(_MOST + 1)
        problems += [message.format(*row) for row in rows[:_MOST]]
        if len(rows) > _MOST:
            problems.append("… and more of the same kind")
    return problems


def copy_to(conn: sqlite3.Connection, source: str, target: str, /) -> None:
    """Copy to a file beside the target, then rename it: the target is the old copy or the complete new one."""
    if source != ":memory:" and os.path.realpath(source) == os.path.realpath(target):
        raise ConfigError(f"cannot back {source} up onto itself: name another file")
    remove_leftovers(target)
    part = part_name(target)
    try:
        with translated(target), closing(sqlite3.connect(part, isolation_level=None)) as copy:
            conn.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file without a write-ahead log
        with open(part, "rb+") as file:  # noqa: PTH123
            os.fsync(file.fileno())
        with translated(target):
            publish(part, target)
    finally:
        for name in (part, f"{part}-wal", f"{part}-shm", f"{part}-journal"):
            with suppress(FileNotFoundError):
                os.unlink(name)  # noqa: PTH108


def part_name(target: str, /) -> str:
    """The name of a temporary file beside the target, for one process and call."""
    return f"{target}.part-{os.getpid()}-{secrets.token_hex(4)}"


def remove_leftovers(target: str, /) -> None:
    """Remove temporary files of backups to this target whose process has ended."""
    folder, name = os.path.split(target)
    with suppress(OSError):
        for entry in os.listdir(folder or "."):  # noqa: PTH208
            match = re.match(re.escape(name) + r"\.part-(\d+)-", entry)
            if match and not _is_running(int(match[1])):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, entry))  # noqa: PTH108, PTH118


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def publish(part: str, target: str, /) -> None:
    """Rename a complete copy over the target, unless somebody has the target open."""
    if os.path.exists(target):  # noqa: PTH110
        _close_old(target)
    os.replace(part, target)  # noqa: PTH105


def _close_old(target: str) -> None:
    """Remove the write-ahead log of an older file, which must not be applied to the new one; refuse if it is in use."""
    deadline = time.monotonic() + _TARGET_TIMEOUT
    while True:
        try:
            with closing(sqlite3.connect(target, isolation_level=None, timeout=0)) as old:
                old.execute("PRAGMA journal_mode = DELETE").fetchone()  # needs exclusive access
        except sqlite3.OperationalError as error:  # noqa: PERF203 - each attempt may find it busy
            if not is_busy(error):
                break
            if time.monotonic() >= deadline:
                raise StoreBusyError(f"cannot back up to {target}: it is open as a store; name another file") from error
            time.sleep(0.01)
        except sqlite3.DatabaseError:  # not a database
            break
        else:
            return
    for stale in (f"{target}-wal", f"{target}-shm"):
        with suppress(FileNotFoundError):
            os.unlink(stale)  # noqa: PTH108
