"""Searches from an event loop: a few at a time in threads, the others wait as coroutines; a cancelled one lets go.

A search computes between its statements (fusing, spreading), so it belongs in a thread; one that only waits for a free
connection does not. Cancelling stops the statement in the server and closes its connection; the pool makes a new one.
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

__all__ = ["Turns", "held", "in_turn"]

Raw = psycopg.Connection[Any]
_STOP_WITHIN = 5.0
_current: contextvars.ContextVar[_Turn | None] = contextvars.ContextVar("hybridmem_turn", default=None)


class Turns:
    """Lets `limit` calls run at once on each event loop, in the order in which they came."""

    def __init__(self, limit: int, /) -> None:
        self._limit = limit
        self._gates: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    async def run(self, call: Callable[[], Any], /) -> Any:
        """Wait for a turn, then run a blocking call in a thread; cancelling it ends what it asks of the server."""
        gate = self._gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._limit))
        async with gate:
            turn = _Turn()
            mine = _current.set(turn)  # the thread, and those of its arms, inherit it
            try:
                return await in_thread(call)
            except asyncio.CancelledError:
                turn.end()
                raise
            finally:
                _current.reset(mine)


class _Turn:
    """One call on its way: the connections that it holds right now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holds: list[Raw] = []
        self._over = False

    def take(self, raw: Raw) -> bool:
        with self._lock:
            if not self._over:
                self._holds.append(raw)
            return not self._over

    def give(self, raw: Raw) -> bool:
        """Let go of a connection; whether it is still good."""
        with self._lock:
            self._holds.remove(raw)
            return not self._over

    def end(self) -> None:
        """Stop what is running. Asking the server to stop it takes a connection of its own: not on the loop."""
        with self._lock:
            self._over = True
            running = list(self._holds)
        for raw in running:
            threading.Thread(target=_stop, args=(raw,), name="hybridmem-cancel", daemon=True).start()


def _stop(raw: Raw) -> None:
    with suppress(psycopg.Error):  # it has just ended by itself, or the server is gone
        raw.cancel_safe(timeout=_STOP_WITHIN)


def in_turn() -> bool:
    """Whether this is the work of a call that waited for its turn: it may wait for the others' statements too."""
    return _current.get() is not None


@contextmanager
def held(raw: Raw, /) -> Iterator[None]:
    """While a connection does the work of a call that may be cancelled.

    One whose call was cancelled is closed: a late request to stop must not meet the next user's statement.
    """
    turn = _current.get()
    if turn is None:
        yield
        return
    if not turn.take(raw):
        raise StoreBusyError("the search was cancelled")
    try:
        yield
    finally:
        if not turn.give(raw):
            raw.close()
