"""When an index cannot follow every write: how far it has drifted from the texts, and how to swap in a new one.

Some engines are built once and then frozen. Instead of answering with silently stale statistics they report drift,
the overlap of the vocabulary they know with the vocabulary of the present, and are rebuilt aside while the old one
goes on serving.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from hybridmem.forks import guard

__all__ = ["LIMIT", "Drift", "Frozen", "drift"]

LIMIT = 0.85
"""A vocabulary overlap below this is flagged."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Drift:
    """How much of the vocabulary is shared: |indexed ∩ current| / |indexed ∪ current|."""

    jaccard: float
    added: int
    """Terms that the frozen index does not know."""
    gone: int
    """Terms that only the frozen index knows."""
    limit: float = LIMIT

    @property
    def flagged(self) -> bool:
        """Whether it is time to rebuild."""
        return self.jaccard < self.limit


def drift(indexed: Set[str], current: Set[str], /, *, limit: float = LIMIT) -> Drift:
    """Compare two vocabularies; two empty ones are alike.

    >>> drift({"ana", "lisbon"}, {"ana", "porto"}).jaccard
    0.3333333333333333
    """
    shared = len(indexed & current)
    union = len(indexed) + len(current) - shared
    return Drift(shared / union if union else 1.0, len(current) - shared, len(indexed) - shared, limit)


class Frozen(Generic[T]):
    """Holds a thing that is built as a whole: the old one serves until the new one is swapped in.

    >>> frozen = Frozen(lambda: sum(range(4)))
    >>> frozen.current
    6
    """

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self._building = guard(threading.Lock())
        self._current = build()

    @property
    def current(self) -> T:
        """What serves now. One attribute read, so a reader never sees half of a swap."""
        return self._current

    def rebuild(self) -> T:
        """Build anew and swap it in; two callers at once build one after the other. A failure leaves the old one."""
        with self._building:
            self._current = self._build()
            return self._current

    def rebuild_aside(self) -> threading.Thread:
        """Rebuild in a thread of its own, which is returned so that it can be waited for."""
        thread = threading.Thread(target=self.rebuild, name="hybridmem-rebuild")
        thread.start()
        return thread
