"""Pool of connections to one SQLite file: any thread may borrow one; one writer at a time."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from hybridmem.core import validation
from hybridmem.core.forks import PATIENCE, guard, interrupted
from hybridmem.core.times import epoch
from hybridmem.errors import StoreBusyError, StoreClosedError, StoreError
from hybridmem.filters.sql import dig
from hybridmem.stores.sqlite import schema
from hybridmem.stores.sqlite.errors import is_busy, translated

__all__ = ["Pool", "Synchronous"]

Synchronous = Literal["full", "normal"]
T = TypeVar("T")

_LONGEST = 2_000_000.0  # seconds: SQLite counts milliseconds in 31 bits
_PAGE = 8192  # five 384-dimension vectors fit a page; at 4096 a quarter of the file would be padding
_CACHE_KIB = 16_384
_WAL_LIMIT = 64 * 1024 * 1024  # a WAL grown by a bulk load shrinks back to this


class Connection(sqlite3.Connection):
    """A connection with a cache of the last seq at the times of past views."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.moments: dict[float, int] = {}


class Pool:
    """Lends connections to readers, the most recently used first because its caches are warm; one writer at a time.

    There is no connection per thread, since short-lived threads would each leave one behind.
    """

    def __init__(self, path: str, /, *, busy_timeout: float = 5.0, synchronous: Synchronous = "full") -> None:
        validation.one_of("synchronous", synchronous, ("full", "normal"))
        validation.number("busy_timeout", busy_timeout, "a number of seconds from 0 up", low=0, high=_LONGEST)
        self.path = path
        self.in_memory = path == ":memory:"
        self.busy_timeout = busy_timeout
        self._synchronous = synchronous
        self._closed = False
        self._idle: deque[sqlite3.Connection] = deque()
        self._lent: deque[None] = deque()
        """One item for each connection that is lent, or about to be."""
        self._write_lock = threading.Lock()
        self._memory_lock = threading.RLock()
        self._forking = False
        with translated(path):
            self._open()
        guard(self)

    def _open(self) -> None:
        conn = self._connect()
        try:
            if self.in_memory or not schema.is_ready(conn):  # opening an existing store does not wait for a writer
                self._create(conn)
        except BaseException:
            conn.close()
            raise
        self._idle.append(conn)

    def _create(self, conn: sqlite3.Connection) -> None:
        schema.refuse(conn, self.path)
        if not self.in_memory:
            self._retry(conn, "PRAGMA journal_mode = WAL")
        self._retry(conn, "BEGIN IMMEDIATE")
        try:
            schema.prepare(conn, self.path)
        except BaseException:
            conn.execute("ROLLBACK")
            raise
        conn.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        conn = sqlite3.connect(
            self.path,
            timeout=self.busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=Connection,
        )
        try:
            conn.execute(f"PRAGMA page_size = {_PAGE}")  # has an effect only while the file is empty
            conn.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            conn.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
            conn.execute(f"PRAGMA synchronous = {self._synchronous.upper()}")
            conn.execute("PRAGMA secure_delete = ON")  # what is erased is overwritten with zeros
            conn.execute("PRAGMA temp_store = MEMORY")
            conn.execute("PRAGMA trusted_schema = OFF")  # triggers and views of a hostile file must not call functions
            conn.create_function("hybridmem_epoch", 1, epoch, deterministic=True)
            conn.create_function("hybridmem_dig", 2, dig, deterministic=True)
        except BaseException:
            conn.close()
            raise
        return conn

    # --- reading

    def take(self) -> sqlite3.Connection:
        """Borrow a connection; the caller returns it with `give` in a `finally`."""
        self._enter()
        if self.in_memory:
            self._memory_lock.acquire()
        if self._closed:
            self._leave()
            raise StoreClosedError(f"the store {self.path} is closed")
        try:
            return self._idle.pop() if not self.in_memory else self._idle[0]
        except IndexError:
            pass
        try:
            return self._connect()
        except BaseException:
            self._leave()
            raise

    def _enter(self) -> None:
        """Count the connection as lent before checking for a fork; `acquire` does both in the reverse order."""
        self._lent.append(None)
        while self._forking:
            self._lent.pop()
            time.sleep(0.0005)
            self._lent.append(None)
        if interrupted():
            self._lent.pop()
            raise StoreError(_FORKED.format(path=self.path, patience=PATIENCE))

    def _leave(self) -> None:
        if self.in_memory:
            self._memory_lock.release()
        self._lent.pop()

    def give(self, conn: sqlite3.Connection, /) -> None:
        """Return a borrowed connection."""
        if not self.in_memory:
            if self._closed:
                conn.close()
            else:
                self._idle.append(conn)
                if self._closed:  # closed between the two lines above
                    self._close_idle()
        self._leave()

    def read(self, work: Callable[[sqlite3.Connection], T], /) -> T:
        """The result of a read on a borrowed connection."""
        conn = self.take()
        try:
            return work(conn)
        finally:
            self.give(conn)

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection in a read transaction: all its statements see the same state of the file."""
        conn = self.take()
        try:
            nested = conn.in_transaction
            if not nested:
                conn.execute("BEGIN")
            try:
                yield conn
            finally:
                if not nested:
                    conn.execute("COMMIT")
        finally:
            self.give(conn)

    # --- writing

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One write transaction: it is committed as a whole or rolled back."""
        if not self._write_lock.acquire(timeout=self.busy_timeout):
            raise StoreBusyError(self._busy())
        try:
            conn = self.take()
            try:
                self._retry(conn, "BEGIN IMMEDIATE")
                try:
                    yield conn
                    conn.execute("COMMIT")
                except BaseException:
                    if conn.in_transaction:
                        conn.execute("ROLLBACK")
                    raise
            finally:
                self.give(conn)
        finally:
            self._write_lock.release()

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file and empty it, as far as other readers allow."""
        conn = self.take()
        try:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self.give(conn)

    def _retry(self, conn: sqlite3.Connection, statement: str) -> None:
        """Run a statement that needs the write lock, repeated about every millisecond until the timeout.

        SQLite's own busy handler sleeps up to 100 ms between attempts. While others write steadily, a process could
        miss every gap for seconds; frequent attempts at random intervals prevent that.
        """
        deadline = time.monotonic() + self.busy_timeout
        conn.execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    conn.execute(statement)
                except sqlite3.OperationalError as error:
                    if not is_busy(error):
                        raise
                    if time.monotonic() >= deadline:
                        raise StoreBusyError(self._busy()) from error
                else:
                    return
                time.sleep(random.uniform(0.0002, 0.003))  # noqa: S311 - not a secret
        finally:
            conn.execute(f"PRAGMA busy_timeout = {int(self.busy_timeout * 1000)}")

    def _busy(self) -> str:
        return f"{self.path} was held by another writer for longer than {self.busy_timeout:g} s (busy_timeout)"

    # --- fork safety (the lock protocol of core.forks)

    def acquire(self, *, blocking: bool = False) -> bool:  # noqa: ARG002 - the signature of a lock
        """Stop lending and close every connection, so that a child process inherits none; False when one is in use."""
        if not self._write_lock.acquire(blocking=False):
            return False
        self._forking = True
        if self._lent:
            self.release()
            return False
        if not self.in_memory:
            self._close_idle()
        return True

    def release(self) -> None:
        """Lend again: connections are opened when they are needed."""
        self._forking = False
        self._write_lock.release()

    def _at_fork_reinit(self) -> None:
        """In a child that was forked during a call: the inherited connections must not be used or closed."""
        _INHERITED.append(self._idle)
        self._idle, self._lent = deque(), deque()
        self._write_lock, self._memory_lock = threading.Lock(), threading.RLock()
        self._forking = False

    # --- closing

    def close(self) -> None:
        """Close every connection; lent ones are closed when they are returned."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            try:
                conn = self._idle.pop()
            except IndexError:
                return
            conn.close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()


_INHERITED: list[Any] = []
_FORKED = (
    "{path} was in use by other threads for longer than {patience:g} s while this process was forked from another: "
    "fork before they start, or start processes by 'spawn'"
)
