"""Forking while threads work: a child must find no lock held by a thread that it does not have.

```
before the fork      take every guarded lock, all or none, so that nothing is half done; stores close their connections
after, in the parent give them back
after, in the child  the same; what could not be had in time is freed, and `torn()` tells it from then on
```

SQLite keeps its file locks by process and file, also for connections that a child opens later: a child must not inherit
an open connection. So a guarded thing is a lock, or anything that is taken and given back like one.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from typing import Any, TypeVar

__all__ = ["guard", "torn"]

L = TypeVar("L")
PATIENCE = 5.0
"""Seconds that a fork waits for threads to come to an end of what they are at."""

_guarded: weakref.WeakSet[Any] = weakref.WeakSet()
_growing = threading.Lock()
"""Held while the set is added to or read: always for a moment, and never while another lock is waited for."""
_taken: list[Any] = []
_missed: list[Any] = []
_torn_in: list[int] = []


def guard(lock: L, /) -> L:
    """The same lock, from now on taken around every fork."""
    with _growing:
        _guarded.add(lock)
    return lock


def torn() -> bool:
    """Whether this process was forked in the middle of something, so that nothing may be trusted."""
    return bool(_torn_in) and _torn_in[0] == os.getpid()


def _everything() -> list[Any]:
    with _growing:
        return list(_guarded)


def _before() -> None:
    """Take everything at one moment: never wait for one while holding another."""
    deadline = time.monotonic() + PATIENCE
    while not _take_all():
        if time.monotonic() > deadline:
            _missed.extend(_everything())
            break
        time.sleep(random.uniform(0.0001, 0.001))  # noqa: S311 - not a secret
    _growing.acquire()


def _take_all() -> bool:
    for lock in _everything():
        if not lock.acquire(blocking=False):
            _give_back()
            return False
        _taken.append(lock)
    return True


def _give_back() -> None:
    while _taken:
        _taken.pop().release()


def _in_parent() -> None:
    _growing.release()
    _missed.clear()
    _give_back()


def _in_child() -> None:
    _growing.release()
    _give_back()
    if _missed:
        _torn_in[:] = [os.getpid()]
        for lock in _missed:
            lock._at_fork_reinit()  # noqa: SLF001 - what threading itself calls here
        _missed.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
