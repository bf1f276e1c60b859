"""Cache of embeddings, and the batches of texts that still need embedding."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from threading import Lock

import numpy as np
import numpy.typing as npt

from hybridmem.core.forks import guard

__all__ = ["EmbeddingBatch", "Vector", "VectorCache", "frozen", "text_key"]

Vector = npt.NDArray[np.float32]


class VectorCache:
    """LRU cache of the last `size` vectors by the hash of their text. Its arrays are read-only."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._rows: OrderedDict[bytes, Vector] = OrderedDict()
        self._lock = guard(Lock())

    def __reduce__(self) -> tuple[type[VectorCache], tuple[int]]:
        """Copies and pickles start empty."""
        return VectorCache, (self.size,)

    def get(self, key: bytes) -> Vector | None:
        """The vector of a text key, or None."""
        with self._lock:
            row = self._rows.get(key)
            if row is not None:
                self._rows.move_to_end(key)
            return row

    def put(self, key: bytes, row: Vector) -> None:
        """Store a vector; the least recently used one is removed when the cache is full."""
        if not self.size:
            return
        with self._lock:
            self._rows[key] = row
            while len(self._rows) > self.size:
                self._rows.popitem(last=False)


def text_key(text: str) -> bytes:
    """The cache key of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class EmbeddingBatch:
    """The texts of one call: those not cached are embedded, each once; `rows` returns all in order."""

    def __init__(self, texts: list[str], cache: VectorCache) -> None:
        self._cache = cache
        self._keys = [text_key(text) for text in texts]
        self._rows: dict[bytes, Vector] = {}
        self._missing: dict[bytes, str] = {}
        self._embedded: list[Vector] = []
        self._done = 0
        for key, text in zip(self._keys, texts, strict=True):
            if key in self._rows or key in self._missing:
                continue
            row = cache.get(key)
            if row is None:
                self._missing[key] = text
            else:
                self._rows[key] = row

    def batches(self, size: int) -> Iterator[list[str]]:
        """The texts to embed, `size` at a time."""
        texts = list(self._missing.values())
        for start in range(0, len(texts), size):
            yield texts[start : start + size]

    def store(self, batch: list[str], rows: Vector) -> None:
        """Store the vectors of the next batch."""
        self._embedded.append(rows)
        keys = list(islice(self._missing, self._done, self._done + len(batch)))
        self._done += len(batch)
        self._rows.update(zip(keys, rows, strict=True))
        size = self._cache.size
        for key, row in list(zip(keys, rows, strict=True))[-size:] if size else ():
            self._cache.put(key, frozen(row.copy()))  # a copy: a view would keep the whole batch alive

    def rows(self, dim: int | None) -> Vector:
        """The vectors of all texts, in order."""
        if not self._keys:
            return np.zeros((0, dim or 0), dtype=np.float32)
        if len(self._missing) == len(self._keys):  # none is cached, and all are different
            return np.concatenate(self._embedded)
        return np.stack([self._rows[key] for key in self._keys])


def frozen(row: Vector) -> Vector:
    """The same array, made read-only."""
    row.flags.writeable = False
    return row
