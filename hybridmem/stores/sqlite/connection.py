"""Connections to one SQLite file: borrowed by any thread, one writer at a time."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from hybridmem.core import validation
from hybridmem.core.forks import PATIENCE, guard, interrupted
from hybridmem.core.times import epoch
from hybridmem.errors import StoreBusyError, StoreClosedError, StoreError
from hybridmem.filters.sql import dig
from hybridmem.stores.sqlite import schema
from hybridmem.stores.sqlite.errors import is_busy, translate

__all__ = ["Pool", "Synchronous"]

Synchronous = Literal["full", "normal"]

_LONGEST = 2_000_000.0  # seconds: SQLite counts milliseconds in 31 bits
_PAGE = 8192  # five 384-dimension vectors fit a page; at 4096 a quarter of the file would be padding
_CACHE_KIB = 16_384
_WAL_LIMIT = 64 * 1024 * 1024  # a WAL grown by a bulk load shrinks back to this


class Connection(sqlite3.Connection):
    """A connection that remembers how far the log went at moments that were asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.moments: dict[float, int] = {}


class Pool:
    """Lends connections to readers, the newest first so that its caches are warm; writers take turns.

    Not one connection per thread: short-lived threads would each leave one behind.
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
        """One for each connection that is out, or about to be."""
        self._write_lock = threading.Lock()
        self._memory_lock = threading.RLock()
        self._forking = False
        with translate(path):
            self._open()
        guard(self)

    def _open(self) -> None:
        conn = self._connect()
        try:
            if self.in_memory or not schema.is_ready(conn):  # opening a finished file waits for no writer
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
            conn.execute(f"PRAGMA page_size = {_PAGE}")  # counts only while the file is empty
            conn.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            conn.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
            conn.execute(f"PRAGMA synchronous = {self._synchronous.upper()}")
            conn.execute("PRAGMA secure_delete = ON")  # what is erased is overwritten with zeros
            conn.execute("PRAGMA temp_store = MEMORY")
            conn.execute("PRAGMA trusted_schema = OFF")  # a hostile file's triggers and views may not call functions
            conn.create_function("hybridmem_epoch", 1, epoch, deterministic=True)
            conn.create_function("hybridmem_dig", 2, dig, deterministic=True)
        except BaseException:
            conn.close()
            raise
        return conn

    # --- reading

    def take(self) -> sqlite3.Connection:
        """Borrow a connection; give it back with `give`, whatever happens."""
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
        """Say that a connection is about to be out, before looking whether a fork is: who forks does the reverse."""
        self._lent.append(None)
        while self._forking:
            self._lent.pop()
            time.sleep(0.0005)
            self._lent.append(None)
        if interrupted():
            self._lent.pop()
            raise StoreError(_TORN.format(path=self.path, patience=PATIENCE))

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

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one moment of the file, however many statements are run on it."""
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
        """One write transaction: everything in it happens, or nothing does."""
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
        """Move the write-ahead log into the file and empty it, as far as readers elsewhere allow."""
        conn = self.take()
        try:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self.give(conn)

    def _retry(self, conn: sqlite3.Connection, statement: str) -> None:
        """Run a statement that needs the write lock, asking again every millisecond or so until the timeout.

        SQLite's own busy handler sleeps up to 100 ms between tries, so that under steady writing by others an unlucky
        process can miss every gap for seconds. Asking often and at random makes that practically impossible.
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

    # --- around a fork

    def acquire(self, *, blocking: bool = False) -> bool:  # noqa: ARG002 - as a lock is taken
        """Hold still and close what is open, so that a child process inherits nothing of SQLite's; False: in use."""
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
        """Go on: connections are opened again as they are needed."""
        self._forking = False
        self._write_lock.release()

    def _at_fork_reinit(self) -> None:
        """In a child that was forked in the middle of something: nothing here may be used, nor even be closed."""
        _GRAVEYARD.append(self._idle)
        self._idle, self._lent = deque(), deque()
        self._write_lock, self._memory_lock = threading.Lock(), threading.RLock()
        self._forking = False

    # --- the end

    def close(self) -> None:
        """Close every connection; those lent out are closed when they come back."""
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


_GRAVEYARD: list[Any] = []
_TORN = (
    "{path} was in use by other threads for longer than {patience:g} s while this process was forked from another: "
    "fork before they start, or start processes by 'spawn'"
)
