"""Errors of the driver, its pool and the server, in our own words."""

from __future__ import annotations

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from hybridmem.errors import SchemaVersionError, StoreBusyError, StoreClosedError, StoreError

__all__ = ["explain", "is_lost", "is_refused", "one_line"]


def is_lost(error: BaseException, /) -> bool:
    """Whether the server could not be reached, or went away: the state of the work is not the cause."""
    if isinstance(error, TooManyRequests | PoolClosed):
        return False
    state = getattr(error, "sqlstate", None)
    return state is None or (state[:2] in ("08", "57") and state != "57014")


def is_refused(error: BaseException | None, /) -> bool:
    """Whether the server is there but will never let us in: another try would end the same."""
    return error is not None and "FATAL" in str(error) and any(words in str(error) for words in _NEVER)


_NEVER = ("does not exist", "authentication failed", "pg_hba.conf", "not permitted to log in")
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
    """An error of the driver in our own words; `why` the last attempt to connect failed, where that is the matter."""
    if is_refused(error):
        return StoreError(f"{name}: the server does not let us in (PostgreSQL: {one_line(error)})")
    for kind, ours, words in _POOL:
        if isinstance(error, kind):
            reason = why if kind is PoolTimeout and why is not None else error
            return ours(f"{name}: {words} ({one_line(reason)})")
    state = getattr(error, "sqlstate", None) or ""
    if state in _STATES:
        ours, text = _STATES[state]
        return ours(f"{text.format(name=name)} (PostgreSQL: {one_line(error)})")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and is_lost(error):
        return StoreError(
            f"{name}: the connection was lost or refused. A read can be asked again; of a write it is not known "
            f"whether it was kept: look before writing again (PostgreSQL: {one_line(error)})"
        )
    return StoreError(f"{name}: {one_line(error)}")


def one_line(error: BaseException, /) -> str:
    """An error's message without its line breaks."""
    return " ".join(str(error).split())
