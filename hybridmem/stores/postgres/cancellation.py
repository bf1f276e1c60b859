"""Blocking searches called from an event loop: a limited number in threads, with cancellation.

A search computes between its statements, so it runs in a thread. A search that waits for a free connection waits as a
coroutine. Cancelling a search stops its statement in the server and closes its connection; the pool makes a new one.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from hybridmem.core.fanout import in_thread
from hybridmem.errors import StoreBusyError

__all__ = ["CallLimiter", "Raw", "cancellable", "in_limited_call"]

Raw = psycopg.Connection[Any]
"""A connection of psycopg."""
_STOP_TIMEOUT = 5.0
_current: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("hybridmem_call", default=None)


class CallLimiter:
    """Runs at most `limit` calls at a time for each event loop, in the order of arrival."""

    def __init__(self, limit: int, /) -> None:
        self._limit = limit
        self._semaphores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    async def run(self, call: Callable[[], Any], /) -> Any:
        """Run a blocking call in a thread once a slot is free; cancellation stops its statements in the server."""
        semaphore = self._semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._limit))
        async with semaphore:
            running = _Call()
            token = _current.set(running)  # inherited by the thread and by the threads of its arms
            try:
                return await in_thread(call)
            except asyncio.CancelledError:
                running.cancel()
                raise
            finally:
                _current.reset(token)


class _Call:
    """One running call and the connections that it uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: list[Raw] = []
        self._cancelled = False

    def add(self, raw: Raw) -> bool:
        """Register a connection; False when the call was cancelled."""
        with self._lock:
            if not self._cancelled:
                self._connections.append(raw)
            return not self._cancelled

    def remove(self, raw: Raw) -> bool:
        """Unregister a connection; False when the call was cancelled."""
        with self._lock:
            self._connections.remove(raw)
            return not self._cancelled

    def cancel(self) -> None:
        """Stop the running statements, in threads: a request to stop opens a connection of its own."""
        with self._lock:
            self._cancelled = True
            connections = list(self._connections)
        for raw in connections:
            threading.Thread(target=_stop, args=(raw,), name="hybridmem-cancel", daemon=True).start()


def _stop(raw: Raw) -> None:
    with suppress(psycopg.Error):  # the statement has just ended, or the server cannot be reached
        raw.cancel_safe(timeout=_STOP_TIMEOUT)


def in_limited_call() -> bool:
    """Whether the current code runs inside `CallLimiter.run`: it may wait longer for a connection."""
    return _current.get() is not None


@contextmanager
def cancellable(raw: Raw, /) -> Iterator[None]:
    """Registers a connection with the current call, so that a cancellation stops its statement.

    The connection of a cancelled call is closed: a late request to stop must not reach the next user's statement.
    """
    call = _current.get()
    if call is None:
        yield
        return
    if not call.add(raw):
        raise StoreBusyError("the search was cancelled")
    try:
        yield
    finally:
        if not call.remove(raw):
            raw.close()
