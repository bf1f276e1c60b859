"""Expiry: removing memories from the live view as soon as their `expires_at` has passed, without a sweep."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

from hybridmem.core.forks import guard
from hybridmem.core.protocols import Store
from hybridmem.core.times import epoch
from hybridmem.core.types import Memory
from hybridmem.errors import StoreError

__all__ = ["Expiry", "has_expired"]

log = logging.getLogger("hybridmem")


def has_expired(memory: Memory, at: float, /) -> bool:
    """Whether a memory has expired at a time.

    >>> has_expired(Memory("x", expires_at="1970-01-02"), 86_400.0), has_expired(Memory("x"), 86_400.0)
    (True, False)
    """
    expires = epoch(memory.expires_at)
    return expires is not None and expires <= at


class _Check(NamedTuple):
    """The result of the last look-up: the store's seq then, and the earliest expiry."""

    seq: int
    earliest: float


class Expiry:
    """Deletes expired memories before a read. History and views as of an earlier time still have them.

    The earliest expiry of a namespace is read once for each change of the store.
    """

    def __init__(self, store: Store, clock: Callable[[], float], /) -> None:
        self._store = store
        self._clock = clock
        self._checks: dict[str, _Check] = {}
        self._lock = guard(threading.Lock())

    def apply(self, namespace: str, earliest: float | None = None, /) -> bool:
        """Delete what has expired in a namespace; returns whether anything had.

        `earliest` is the earliest expiry, if it is known. A store that cannot be written to keeps what has expired.
        """
        now = self._clock()
        if (self._earliest(namespace) if earliest is None else earliest) > now:
            return False
        try:
            return self._store.expire(now=now, namespace=namespace) > 0
        except StoreError as error:
            log.warning("expired memories could not be removed from the indexes of %r: %s", namespace, error)
            return False

    def _earliest(self, namespace: str) -> float:
        seq = self._store.last_seq()
        check = self._checks.get(namespace)
        if check is None or check.seq != seq:
            earliest = self._store.next_expiry(namespace=namespace)
            check = _Check(seq, math.inf if earliest is None else earliest)
            with self._lock:
                self._checks[namespace] = check
        return check.earliest
