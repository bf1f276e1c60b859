"""Which texts still need embedding: equal ones once, and those embedded lately not at all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from threading import Lock

import numpy as np
import numpy.typing as npt

from hybridmem.core.forks import guard

__all__ = ["Lru", "Plan", "Vector", "frozen", "text_key"]

Vector = npt.NDArray[np.float32]


class Lru:
    """The last `size` vectors by the hash of their text. Arrays in it are read-only."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._rows: OrderedDict[bytes, Vector] = OrderedDict()
        self._lock = guard(Lock())

    def get(self, key: bytes) -> Vector | None:
        """The vector of a text, or None."""
        with self._lock:
            row = self._rows.get(key)
            if row is not None:
                self._rows.move_to_end(key)
            return row

    def put(self, key: bytes, row: Vector) -> None:
        """Keep a vector; the least recently used one is dropped when the cache is full."""
        with self._lock:
            self._rows[key] = row
            while len(self._rows) > self.size:
                self._rows.popitem(last=False)


def text_key(text: str) -> bytes:
    """The cache key of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Plan:
    """Which texts of a call still need embedding, each once; then all rows in the order asked."""

    def __init__(self, texts: list[str], cache: Lru) -> None:
        self._cache = cache
        self._keys = [text_key(text) for text in texts]
        self._known: dict[bytes, Vector] = {}
        self._missing: dict[bytes, str] = {}
        for key, text in zip(self._keys, texts, strict=True):
            if key in self._known or key in self._missing:
                continue
            row = cache.get(key)
            if row is None:
                self._missing[key] = text
            else:
                self._known[key] = row

    def batches(self, size: int) -> Iterator[list[str]]:
        """The texts without a vector, in batches."""
        texts = list(self._missing.values())
        for start in range(0, len(texts), size):
            yield texts[start : start + size]

    def store(self, batch: list[str], rows: Vector) -> None:
        """Take the vectors of a batch, here and in the cache."""
        for text, row in zip(batch, rows, strict=True):
            key = text_key(text)
            self._known[key] = row
            self._cache.put(key, frozen(row.copy()))  # a copy: a view would keep the whole batch alive

    def rows(self, dim: int | None) -> Vector:
        """The vectors of all texts in the order of the call."""
        if not self._keys:
            return np.zeros((0, dim or 0), dtype=np.float32)
        return np.stack([self._known[key] for key in self._keys])


def frozen(row: Vector) -> Vector:
    """The same row, read-only."""
    row.flags.writeable = False
    return row
