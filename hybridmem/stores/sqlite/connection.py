"""Connections to one SQLite file, which any thread may borrow, with one writer at a time; translation of its errors."""

from __future__ import annotations

import ctypes
import os
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, TypeVar

from hybridmem.core import validation
from hybridmem.core.forks import PATIENCE, guard, interrupted
from hybridmem.core.times import epoch
from hybridmem.errors import CorruptStoreError, HybridMemError, StoreBusyError, StoreClosedError, StoreError
from hybridmem.filters.sql import dig
from hybridmem.stores.sqlite import schema

__all__ = ["SQLITE_ERRORS", "ConnectionPool", "Synchronous", "explain", "is_busy", "translated"]

Synchronous = Literal["full", "normal"]
T = TypeVar("T")

_LONGEST = 2_000_000.0  # seconds: SQLite counts milliseconds in 31 bits
_PAGE = 8192  # five 384-dimension vectors fit a page; at 4096 a quarter of the file would be padding
_CACHE_KIB = 4_096  # per connection; the operating system caches the file, too
_WAL_LIMIT = 64 * 1024 * 1024  # a WAL grown by a bulk load shrinks back to this


class Connection(sqlite3.Connection):
    """A connection with a cache of the last seq at the times of past views."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.moments: dict[float, tuple[int, int]] = {}
        self.identity: FileIdentity | None = None
        """The file that is open; None for ":memory:"."""
        self.wal: FileIdentity | None = None
        """The write-ahead log of this connection, once it is known."""


class FileIdentity(NamedTuple):
    """Which file a path names: another device or inode means that the file was replaced."""

    device: int
    inode: int

    @classmethod
    def of(cls, path: str, /) -> FileIdentity | None:
        """The identity of the file at a path; None when there is none."""
        try:
            state = os.stat(path)  # noqa: PTH116 - the cheapest call, made for every read
        except OSError:
            return None
        return cls(state.st_dev, state.st_ino)


class ConnectionPool:
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
        self._idle: deque[Connection] = deque()
        self._identity: FileIdentity | None = None
        """The file that the store was opened with."""
        self._wal: FileIdentity | None = None
        """Its write-ahead log at the last write."""
        self._lent: deque[None] = deque()
        """One item for each connection that is lent, or about to be."""
        self._write_lock = threading.Lock()
        self._memory_lock = threading.RLock()
        self._purge_due = False
        """Whether a checkpoint could not empty the write-ahead log; it is repeated after the next write."""
        self._forking = False
        self._unusable_in: int | None = os.getpid() if interrupted() else None
        """A process that was forked during a call; its children may use the store."""
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
        if not self.in_memory:
            self._identity = conn.identity = FileIdentity.of(self.path)
            self._wal = conn.wal = FileIdentity.of(f"{self.path}-wal")
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

    def _connect(self) -> Connection:
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
            conn.identity = self._identity
        except BaseException:
            conn.close()
            raise
        return conn

    # --- reading

    def take(self) -> Connection:
        """Borrow a connection; the caller returns it with `give` in a `finally`."""
        self._enter()
        if self.in_memory:
            self._memory_lock.acquire()
        if self._closed:
            self._leave()
            raise StoreClosedError(f"the store {self.path} is closed")
        if self.in_memory:
            return self._idle[0]
        try:
            self._check_file()
            return self._idle.pop() if self._idle else self._connect()
        except IndexError:  # taken by another thread
            return self._connect_or_leave()
        except BaseException:
            self._leave()
            raise

    def _check_wal(self, conn: Connection) -> None:
        """Raise when the write-ahead log is no longer there: no other process would see what is written to it."""
        seen = FileIdentity.of(f"{self.path}-wal")
        if conn.wal not in (None, seen):
            raise StoreError(
                f"{self.path}-wal was removed while the store was open: nothing was written; close this store, which "
                "saves its earlier writes, and open it again"
            )
        self._wal = conn.wal = seen

    def _remove_stale_wal(self) -> None:
        """Remove the write-ahead log of the old file: SQLite would apply it to the new file of that name."""
        if self._wal is not None and FileIdentity.of(f"{self.path}-wal") == self._wal:
            for ending in ("-wal", "-shm"):
                with suppress(OSError):
                    os.unlink(f"{self.path}{ending}")  # noqa: PTH108

    def _connect_or_leave(self) -> Connection:
        try:
            return self._connect()
        except BaseException:
            self._leave()
            raise

    def _check_file(self) -> None:
        """Raise when the path names another file than the one that is open: writes to that one would be lost."""
        if FileIdentity.of(self.path) != self._identity:
            self._remove_stale_wal()
            raise StoreError(
                f"{self.path} was removed or replaced by another file while it was open: nothing was written; "
                "close this store and open it again"
            )

    def _enter(self) -> None:
        """Count the connection as lent before checking for a fork; `acquire` does both in the reverse order."""
        self._lent.append(None)
        while self._forking:
            self._lent.pop()
            time.sleep(0.0005)
            self._lent.append(None)
        if self._unusable_in is not None and self._unusable_in == os.getpid():
            self._lent.pop()
            raise StoreError(_FORKED.format(path=self.path, patience=PATIENCE))

    def _leave(self) -> None:
        if self.in_memory:
            self._memory_lock.release()
        self._lent.pop()

    def give(self, conn: Connection, /) -> None:
        """Return a borrowed connection."""
        if not self.in_memory:
            if self._closed:
                self._close_connection(conn)
            else:
                self._idle.append(conn)
                if self._closed:  # closed between the two lines above
                    self._close_idle()
        self._leave()

    def read(self, work: Callable[[Connection], T], /) -> T:
        """The result of a read on a borrowed connection; errors of SQLite become StoreErrors."""
        try:
            conn = self.take()
            try:
                return work(conn)
            finally:
                self.give(conn)
        except HybridMemError:
            raise
        except (*SQLITE_ERRORS, *_UNREADABLE) as error:
            raise explain(error, self.path) from error

    @contextmanager
    def snapshot(self, *, stream: bool = False) -> Iterator[Connection]:  # noqa: ARG002 - SQLite always streams
        """A connection in a read transaction: all its statements see the same state of the file."""
        with translated(self.path, *_UNREADABLE):
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
    def write(self, *, undo: Callable[[], None] | None = None) -> Iterator[Connection]:
        """One write transaction: it is committed as a whole or rolled back.

        `undo` is called before the rollback, while no other process can write.
        """
        if not self._write_lock.acquire(timeout=self.busy_timeout):
            raise StoreBusyError(self._busy())
        try:
            conn = self.take()
            try:
                self._retry(conn, "BEGIN IMMEDIATE")
                try:
                    yield conn
                    if not self.in_memory:
                        self._check_file()
                        self._check_wal(conn)
                    conn.execute("COMMIT")
                except BaseException as error:
                    committed = not (conn.in_transaction or isinstance(error, sqlite3.Error))  # and interrupted then
                    try:
                        if undo is not None and not committed:
                            undo()
                    finally:
                        if conn.in_transaction:
                            conn.execute("ROLLBACK")
                    raise
            finally:
                self.give(conn)
        finally:
            self._write_lock.release()
        if self._purge_due:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file and empty it, as far as other readers allow."""
        busy = self.read(lambda conn: conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
        self._purge_due = bool(busy)

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

    def acquire(self, *, timeout: float) -> bool:
        """Stop lending and close every connection, so that a child process inherits none; False when one is in use."""
        deadline = time.monotonic() + timeout
        if not self._write_lock.acquire(timeout=timeout):
            return False
        self._forking = True
        while self._lent:
            if time.monotonic() >= deadline:
                self.release()
                return False
            time.sleep(0.0005)
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
        self._unusable_in = os.getpid()
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
            self._close_connection(conn)

    def _close_connection(self, conn: Connection) -> None:
        """Close a connection, or keep it open for ever when its file was replaced.

        The last connection to a file removes the write-ahead log by its name, which may now be that of the new file.
        """
        if conn.identity is None or conn.identity == FileIdentity.of(self.path):
            conn.close()
        else:
            self._remove_stale_wal()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(conn))

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()


_INHERITED: list[Any] = []
_FORKED = (
    "{path} was in use by other threads for longer than {patience:g} s while this process was forked from another: "
    "fork before they start, or start processes by 'spawn'"
)


# --- SQLite's errors as errors of this package

_BUSY = ("locked", "busy")
_MESSAGES: tuple[tuple[str, type[StoreError], str], ...] = (
    ("locked", StoreBusyError, "{path} was held by another process for longer than the busy timeout"),
    ("malformed", CorruptStoreError, "{path} is damaged: restore a backup, or export what can still be read"),
    ("not a database", CorruptStoreError, "{path} is not an SQLite file, or its beginning is damaged"),
    (
        "disk is full",
        StoreError,
        "no space left for {path}: this call wrote nothing, all earlier writes are kept",
    ),
    ("readonly", StoreError, "{path} is read-only: hybridmem needs to write the file and its folder"),
    ("unable to open", StoreError, "cannot open {path}: the folder must exist and both must be writable"),
    ("disk i/o", StoreError, "the disk failed under {path}: this call was not acknowledged"),
    ("closed database", StoreClosedError, "the store {path} is closed"),
)


def is_busy(error: sqlite3.Error, /) -> bool:
    """Whether another connection held the file."""
    text = str(error).lower()
    return any(word in text for word in _BUSY)


SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises; the second for a damaged file whose bytes are part of SQLite's message."""
_UNREADABLE = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""What reading raises for a damaged file: SQLite keeps a value of any type in any column."""


def explain(error: Exception, path: str, /) -> StoreError:
    """The StoreError for an error of SQLite, or for a value that cannot be read; its message says what to do."""
    if not isinstance(error, sqlite3.Error):
        return CorruptStoreError(f"{path} is damaged: restore a backup, or export what can still be read ({error!r})")
    text = str(error).lower()
    for word, kind, message in _MESSAGES:
        if word in text:
            return kind(f"{message.format(path=path)} (SQLite: {error})")
    return StoreError(f"{path}: {error}")


@contextmanager
def translated(path: str, /, *more: type[Exception]) -> Iterator[None]:
    """Raise a StoreError instead of any error of SQLite, or of one of `more`, inside the `with`."""
    try:
        yield
    except HybridMemError:
        raise
    except SQLITE_ERRORS + more as error:
        raise explain(error, path) from error
