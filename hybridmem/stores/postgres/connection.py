"""Connections to PostgreSQL: a pool that survives restarts of the server, errors, and bulk insertion of rows."""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound or copied

from __future__ import annotations

import os
import random
import re
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import psycopg
from psycopg import Connection, sql
from psycopg.adapt import Dumper, Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format, TransactionStatus
from psycopg.types.array import ListDumper
from psycopg.types.string import StrDumperUnknown
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from hybridmem.core import validation
from hybridmem.core.validation import clean
from hybridmem.errors import (
    ConfigError,
    HybridMemError,
    SchemaVersionError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
)
from hybridmem.stores.postgres.cancellation import Raw, cancellable, in_limited_call

__all__ = [
    "Conn",
    "Database",
    "Limits",
    "Packed",
    "Raw",
    "adapt",
    "explain",
    "insert",
    "insert_vectors",
    "is_lost",
    "is_refused",
    "one_line",
    "translate",
]


class Conn:
    """A connection for the SQL shared with SQLite: `?` for bound values; `stream` reads rows as they are consumed."""

    __slots__ = ("_cursors", "_stream", "moments", "raw")

    def __init__(self, raw: Raw, /, *, stream: bool = False) -> None:
        self.raw = raw
        self._stream = stream
        self._cursors: list[Any] = []
        self.moments: dict[float, tuple[int, int]] = {}

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> Any:
        """Run one statement; returns a cursor over its rows."""
        if not self._stream or not statement.startswith("SELECT"):
            return self.raw.execute(translate(statement), parameters)
        cursor = self.raw.cursor(name=f"s{random.getrandbits(48):x}")
        cursor.itersize = 1000
        self._cursors.append(cursor)
        return cursor.execute(translate(statement), parameters)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Run one statement for each row."""
        with self.raw.cursor() as cursor:
            cursor.executemany(translate(statement), rows)

    def close(self) -> None:
        """Close the cursors of streamed statements."""
        for cursor in self._cursors:
            cursor.close()


_INSERT_NEW = re.compile(r"^INSERT OR IGNORE INTO (.*)$", re.DOTALL)


class _Dumper(StrDumperUnknown):
    """Replaces NUL and lone surrogates, which the server does not accept."""

    def dump(self, obj: str) -> Any:
        try:
            return super().dump(obj)
        except (psycopg.DataError, UnicodeEncodeError):
            return super().dump(clean(obj))


class _ListDumper(ListDumper):
    """Writes a list of texts at once; psycopg calls a dumper and a regular expression for each text."""

    def dump(self, obj: list[Any]) -> Any:
        return _array(obj).encode() if set(map(type, obj)) == {str} else super().dump(obj)


class Packed(bytes):
    """A value in the server's binary format, bound unchanged; the statement casts it to its type."""


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Packed) -> Any:
        return obj


class _JsonLoader(Loader):
    """Leaves JSON as text, which all stores parse in the same way."""

    format = Format.TEXT

    def load(self, data: Any) -> str:
        return bytes(data).decode()


def adapt(conn: Connection[Any], /) -> None:
    """Register the dumpers and loaders above with a connection."""
    conn.adapters.register_dumper(str, _Dumper)
    conn.adapters.register_dumper(list, _ListDumper)
    conn.adapters.register_dumper(Packed, _PackedDumper)
    conn.adapters.register_loader("json", _JsonLoader)


@lru_cache(maxsize=2048)
def translate(sql: str, /) -> str:
    """A statement shared with SQLite in psycopg's notation."""
    sql = _INSERT_NEW.sub(r"INSERT INTO \1 ON CONFLICT DO NOTHING", sql)
    return sql.replace("%", "%%").replace("?", "%s")


def is_lost(error: BaseException, /) -> bool:
    """Whether the connection to the server failed or was lost."""
    if isinstance(error, TooManyRequests | PoolClosed):
        return False
    state = getattr(error, "sqlstate", None)
    return state is None or (state[:2] in ("08", "57") and state != "57014")


def is_refused(error: BaseException | None, /) -> bool:
    """Whether the server refuses this login for good, so that a repeated attempt is pointless."""
    return error is not None and "FATAL" in str(error) and any(reason in str(error) for reason in _REFUSALS)


_REFUSALS = ("does not exist", "authentication failed", "pg_hba.conf", "not permitted to log in")
_POOL: tuple[tuple[type[Exception], type[StoreError], str], ...] = (
    (PoolClosed, StoreClosedError, "the store is closed"),
    (TooManyRequests, StoreBusyError, "no connection within busy_timeout; raise pool_size"),
    (PoolTimeout, StoreError, "the server cannot be reached, there was no connection in time"),
)
_STATES: dict[str, tuple[type[StoreError], str]] = {
    "55P03": (StoreBusyError, "{name}: another writer held this namespace for longer than busy_timeout"),
    "57014": (StoreBusyError, "{name}: a statement took longer than statement_timeout and was stopped"),
    "53300": (StoreBusyError, "{name}: the server has no connection left; lower pool_size or raise max_connections"),
    "42501": (StoreError, "{name}: this role may not do that"),
    "53100": (StoreError, "{name}: the server's disk is full; nothing of this call was written"),
    "42P01": (SchemaVersionError, "{name}: a table is missing; was the schema changed by hand?"),
    "25006": (StoreError, "{name} is read-only (a standby?): write to the primary, give the standby as replica="),
}


def explain(error: BaseException, name: str, why: BaseException | None = None, /) -> StoreError:
    """The StoreError for an error of the driver; `why` is the last failed attempt to connect, if any."""
    if is_refused(error):
        return StoreError(f"{name}: the server refuses the login (PostgreSQL: {one_line(error)})")
    for kind, ours, message in _POOL:
        if isinstance(error, kind):
            reason = why if kind is PoolTimeout and why is not None else error
            return ours(f"{name}: {message} ({one_line(reason)})")
    state = getattr(error, "sqlstate", None) or ""
    if state in _STATES:
        ours, text = _STATES[state]
        return ours(f"{text.format(name=name)} (PostgreSQL: {one_line(error)})")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and is_lost(error):
        return StoreError(
            f"{name}: the connection was lost or refused. Repeat a read. A write may or may not have been "
            f"committed: check before writing again (PostgreSQL: {one_line(error)})"
        )
    return StoreError(f"{name}: {one_line(error)}")


def one_line(error: BaseException, /) -> str:
    """An error's message without its line breaks."""
    return " ".join(str(error).split())


LOCK = 0x48794D65
"""The advisory lock of a schema: writers share it; a rebuild holds it exclusively."""
_SECOND_CONNECTION_WAIT = 0.001
"""Seconds to wait for an optional second connection; the pool grows meanwhile."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Timeouts in seconds, and the size of the pool."""

    pool_size: int = 10
    statement_timeout: float = 30.0
    busy_timeout: float = 5.0
    reconnect: float = 10.0
    """How long a read is repeated while the server cannot be reached, such as during its restart."""

    def __post_init__(self) -> None:
        validation.integer("pool_size", self.pool_size, "a whole number from 1 up", low=1)
        for name in ("statement_timeout", "busy_timeout", "reconnect"):
            validation.number(name, getattr(self, name), "a number of seconds from 0 up", low=0)


class Database:
    """One server and schema: the pool of connections, reads, snapshots and write transactions."""

    def __init__(
        self,
        url: str,
        /,
        *,
        schema: str,
        limits: Limits,
        settings: dict[str, str] | None = None,
        must_admit: bool = True,
    ) -> None:
        """Open the pool; with `must_admit` a refused login raises at once."""
        self.url, self.schema, self.limits = url, schema, limits
        self.name = _without_password(url)
        _checked_address(url, self.name)
        self._settings = settings or {}
        self._closed = False
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._opened = 0.0
        self._lent: set[int] = set()
        self._why: psycopg.Error | None = None
        if must_admit and (refusal := self._probe()) is not None and is_refused(refusal):
            raise explain(refusal, self.name) from refusal
        self._pool = self._open()

    def _open(self) -> ConnectionPool[Raw]:
        limits = self.limits
        self._opened = time.monotonic()
        return ConnectionPool(
            self.url,
            min_size=1,
            max_size=limits.pool_size,
            timeout=max(limits.busy_timeout, 0.1),
            configure=self._configure,
            # planning a search takes longer than running it: its statements are prepared when they are repeated
            kwargs={
                "autocommit": True,
                "connect_timeout": 10,
                "application_name": "hybridmem",
                "prepare_threshold": 1,
            },
            open=True,
            reconnect_timeout=max(limits.reconnect, 1.0),
            name=self.name,
        )

    def _configure(self, conn: Raw) -> None:
        adapt(conn)
        milliseconds = {
            "statement_timeout": self.limits.statement_timeout,
            "lock_timeout": self.limits.busy_timeout,
        }
        for name, seconds in milliseconds.items():
            conn.execute(sql.SQL("SET {} = {}").format(sql.Identifier(name), int(seconds * 1000)))
        places = [self.schema, "public"]
        found = conn.execute(
            "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
            "WHERE extname = 'vector'"
        )
        places += [name for (name,) in found if name not in places]
        conn.execute(sql.SQL("SET search_path = {}").format(sql.SQL(", ").join(map(sql.Identifier, places))))
        for name, value in self._settings.items():  # PostgreSQL accepts settings of extensions that are not loaded yet
            conn.execute("SELECT set_config(%s, %s, false)", (name, value))

    @property
    def pool(self) -> ConnectionPool[Raw]:
        """The pool of this process: after a fork the child opens its own."""
        if self._closed:
            raise StoreClosedError(f"the store {self.name} is closed")
        if os.getpid() != self._pid:
            with self._lock:
                if os.getpid() != self._pid:
                    self._pool, self._pid, self._lent = self._open(), os.getpid(), set()
        return self._pool

    # --- reading

    def read(self, work: Callable[[Conn], T], /) -> T:
        """The result of a read, repeated after a lost connection until `reconnect` seconds have passed."""
        deadline = time.monotonic() + self.limits.reconnect
        while True:
            start = time.monotonic()
            try:
                pool, raw = self._take()
                try:
                    with cancellable(raw):
                        return work(Conn(raw))
                finally:
                    self._give(pool, raw)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if not self._renewed(error, start, deadline):
                    raise explain(error, self.name, self._why) from error
            except (psycopg.Error, TooManyRequests) as error:
                raise explain(error, self.name) from error

    def read_on_two(self, work: Callable[[Conn, Conn], T], /) -> T:
        """The result of a read on two connections; the same one is passed twice when no second one is free."""

        def on_two(conn: Conn) -> T:
            pool = self.pool
            try:
                raw = self._lend(pool, _SECOND_CONNECTION_WAIT)
            except PoolTimeout:
                return work(conn, conn)
            try:
                with cancellable(raw):
                    return work(conn, Conn(raw))
            finally:
                self._give(pool, raw)

        return self.read(on_two)

    @contextmanager
    def snapshot(self, *, stream: bool = False) -> Iterator[Conn]:
        """A connection in a read transaction: all its statements see the same state of the store."""
        with self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") as raw:
            conn = Conn(raw, stream=stream)
            try:
                yield conn
            finally:
                conn.close()

    # --- writing

    @contextmanager
    def write(self, *, alone: bool = False) -> Iterator[Conn]:
        """One write transaction: it is committed as a whole or rolled back.

        Writers share the lock of the store; `alone` holds it exclusively, for changes to the whole store.
        """
        shared = "" if alone else "_shared"
        begin = f"BEGIN; SELECT pg_advisory_xact_lock{shared}({LOCK}, {zlib.crc32(self.schema.encode()) >> 1})"
        with self._transaction(begin) as raw:
            yield Conn(raw)

    @contextmanager
    def alone(self) -> Iterator[Conn]:
        """A connection outside a transaction and without timeouts, for long work such as building an index."""
        with self._translated(), self.pool.connection() as raw:  # not counted among the lent connections
            raw.execute("SET statement_timeout = 0")
            raw.execute("SET lock_timeout = 0")
            try:
                yield Conn(raw)
            finally:
                if not raw.closed:
                    self._configure(raw)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Raw]:
        with self._translated():
            pool, raw = self._begin(begin)
            try:
                with cancellable(raw):
                    yield raw
                raw.execute("COMMIT")
            except BaseException:
                if raw.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                    raw.execute("ROLLBACK")
                raise
            finally:
                self._give(pool, raw)

    def _begin(self, begin: str) -> tuple[ConnectionPool[Raw], Raw]:
        """A connection with an open transaction; a connection that broke while idle is replaced first."""
        deadline = time.monotonic() + self.limits.reconnect
        while True:
            start = time.monotonic()
            try:
                pool, raw = self._take()
                try:
                    raw.execute(begin.encode())
                except BaseException:
                    if raw.pgconn.transaction_status == TransactionStatus.INERROR:
                        raw.execute("ROLLBACK")
                    self._give(pool, raw)
                    raise
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if not self._renewed(error, start, deadline):
                    raise
            else:
                return pool, raw

    def _renewed(self, error: psycopg.Error, since: float, deadline: float) -> bool:
        """Whether to repeat the work after an error; after a lost server the pool is opened again once it answers."""
        replaced = isinstance(error, PoolClosed) and not self._closed  # replaced by another thread
        if not replaced and not is_lost(error):
            return False
        while True:
            with self._lock:
                if self._opened > since:  # another thread has replaced the pool
                    return True
                if self._probe() is None:
                    old, self._pool = self._pool, self._open()
                    old.close(timeout=0)
                    return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)

    def _probe(self) -> psycopg.Error | None:
        """The error of an attempt to connect; None when the server answers."""
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.Error as error:
            self._why = error
            return error
        return None

    def _take(self) -> tuple[ConnectionPool[Raw], Raw]:
        pool = self.pool
        patience = (self.limits.statement_timeout or float("inf")) if in_limited_call() else 0.0
        deadline = time.monotonic() + patience
        while True:
            try:
                return pool, self._lend(pool)
            except PoolTimeout as error:  # noqa: PERF203 - each attempt may time out
                if len(self._lent) < self.limits.pool_size:
                    raise
                if time.monotonic() >= deadline:  # all connections are lent: the server is not lost
                    raise TooManyRequests(f"all {self.limits.pool_size} connections are in use") from error

    def _lend(self, pool: ConnectionPool[Raw], timeout: float | None = None) -> Raw:
        raw = pool.getconn(timeout)
        self._lent.add(id(raw))
        return raw

    def _give(self, pool: ConnectionPool[Raw], raw: Raw) -> None:
        self._lent.discard(id(raw))
        pool.putconn(raw)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except HybridMemError:
            raise
        except (psycopg.Error, PoolTimeout, TooManyRequests) as error:
            raise explain(error, self.name, self._why) from error

    def close(self) -> None:
        """Close every connection."""
        if not self._closed:
            self._closed = True
            if os.getpid() == self._pid:
                self._pool.close()


def _without_password(url: str) -> str:
    """The address for messages: without a password, whether in the login, the query or a `password=` option."""
    if "://" not in url:
        return _SECRET_OPTION.sub(r"\1…", url)
    head, _, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    if at:
        rest = f"{login.split(':', 1)[0]}{':…' if ':' in login else ''}@{place}"
    return _SECRET_OPTION.sub(r"\1…", f"{head}://{rest}")


_SECRET_OPTION = re.compile(
    r"(\w*(?:pas+w|passfile|pwd|secret|token|key)\w*\s*=\s*)('(?:[^'\\]|\\.)*'|[^&\s]*)", re.IGNORECASE
)


def _checked_address(url: str, name: str) -> None:
    """Refuse an address that cannot be read; the message has no part of it that may be secret."""
    try:
        conninfo_to_dict(url)
    except psycopg.Error as error:
        option = re.search(r'invalid (?:URI query parameter|connection option):? "([a-z_]{1,30})"', str(error))
        reason = f"it has the unknown option {option[1]!r}" if option else "it cannot be read"
        raise ConfigError(
            f"the address {name} is not allowed: {reason}; postgresql://user:password@host:port/database?option=value"
        ) from None


# --- bulk insertion: arrays in one statement for few rows, COPY for many

_COPY_FROM = 1000
_FEW = 20
_LINES = 5000
_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def insert(raw: Raw, table: str, types: Sequence[str], rows: Sequence[tuple[Any, ...]], /) -> None:
    """Insert rows of texts, numbers and lists of texts."""
    if not rows:
        return
    lists = any(kind.endswith("[]") for kind in types)
    if len(rows) < (_FEW if lists else _COPY_FROM):
        if lists:
            marks = ", ".join(f"%s::{kind}" for kind in types)
            with raw.cursor() as cursor:
                cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            return
        arrays = ", ".join(f"%s::{kind}[]" for kind in types)
        columns = tuple(map(list, zip(*rows, strict=True)))
        raw.execute(f"INSERT INTO {table} SELECT * FROM unnest({arrays})", columns)
        return
    with raw.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:
        for start in range(0, len(rows), _LINES):
            copy.write("".join(map(_line, rows[start : start + _LINES])))


def _line(row: tuple[Any, ...]) -> str:
    return "\t".join(map(_field, row)) + "\n"


def _field(value: Any) -> str:
    if isinstance(value, str):
        return _escaped(clean(value))
    if isinstance(value, list):
        return _escaped(_array(value))
    return repr(value)


def _array(texts: Iterable[str]) -> str:
    """A list of texts in the server's notation."""
    items = [clean(text).replace("\\", "\\\\").replace('"', '\\"') for text in texts]
    return '{"' + '","'.join(items) + '"}' if items else "{}"


def _escaped(text: str) -> str:
    return text if text.isalnum() else text.translate(_ESCAPES)


def insert_vectors(raw: Raw, rows: Sequence[tuple[str, int, int, Any]], /) -> None:
    """Insert (namespace, mem, dimension, unit vector) rows: in pgvector's binary format for many rows."""
    if not rows:
        return
    ordered = sorted(rows, key=lambda row: row[1])
    if len(rows) < _FEW:
        with raw.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO embeddings VALUES (%s, %s, %s, %s::vector)",
                [(*row[:3], "[" + ",".join(map(repr, row[3].tolist())) + "]") for row in ordered],
            )
        return
    with raw.cursor() as cursor, cursor.copy("COPY embeddings FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(_HEADER)
        for namespace, mem, dim, vector in ordered:
            name, data = namespace.encode(), vector.astype(">f4").tobytes()
            head = struct.pack(f">hi{len(name)}siqiiihh", 4, len(name), name, 8, mem, 4, dim, 4 + len(data), dim, 0)
            copy.write(head + data)
        copy.write(b"\xff\xff")
