"""Fork safety: locks that are acquired around `os.fork`, so that a child never inherits a locked lock.

```
before the fork      acquire every guarded lock, all or none; stores close their connections
after, in the parent release them
after, in the child  release them; locks that were not free in time are reinitialised, and `interrupted()` is True
```

SQLite keeps its file locks per process and file, also for connections that a child opens later, so a child must not
inherit an open connection. A guarded object is a lock, or any object with `acquire` and `release`.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from typing import Any, TypeVar

__all__ = ["guard", "interrupted"]

L = TypeVar("L")
PATIENCE = 5.0
"""Seconds that a fork waits for the guarded locks."""

_WAIT = 0.02
"""Seconds to wait for one of them."""

_guarded: weakref.WeakSet[Any] = weakref.WeakSet()
_set_lock = threading.Lock()
"""Protects the set; held briefly, and never while waiting for another lock."""
_taken: list[Any] = []
_missed: list[Any] = []
_interrupted_in: list[int] = []


def guard(lock: L, /) -> L:
    """Register a lock to be acquired around every fork, and return it."""
    with _set_lock:
        _guarded.add(lock)
    return lock


def interrupted() -> bool:
    """Whether this process was forked during another thread's critical section; guarded state may be inconsistent."""
    return bool(_interrupted_in) and _interrupted_in[0] == os.getpid()


def _all_guarded() -> list[Any]:
    with _set_lock:
        return list(_guarded)


def _before() -> None:
    """Acquire all locks. Waiting for one while holding others is cut short, since it could deadlock."""
    deadline = time.monotonic() + PATIENCE
    while not _acquire_all():
        if time.monotonic() > deadline:
            _missed.extend(_all_guarded())
            break
        time.sleep(random.uniform(0.0001, 0.001))  # noqa: S311 - not cryptographic
    _set_lock.acquire()


def _acquire_all() -> bool:
    # Connections last: a thread that holds a lock may need one, and without the locks nobody takes new ones.
    for lock in sorted(_all_guarded(), key=lambda lock: hasattr(lock, "take")):
        if not lock.acquire(timeout=_WAIT):
            _release_all()
            return False
        _taken.append(lock)
    return True


def _release_all() -> None:
    while _taken:
        _taken.pop().release()


def _in_parent() -> None:
    _set_lock.release()
    _missed.clear()
    _release_all()


def _in_child() -> None:
    _set_lock.release()
    _release_all()
    if _missed:
        _interrupted_in[:] = [os.getpid()]
        for lock in _missed:
            lock._at_fork_reinit()  # noqa: SLF001 - the threading module calls it here too
        _missed.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
