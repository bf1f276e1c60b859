"""Embedder: unit vectors from any embedding object, validated, batched, retried and cached.

```
as_embedder(obj)   obj = LangChain Embeddings | LlamaIndex BaseEmbedding | Chroma EmbeddingFunction
                       | SentenceTransformer-like (.encode) | texts -> vectors | Embedder | "local"
   .documents(texts) -> float32 (n, dim), rows of length 1 (a zero vector stays zero: cosine 0)
   .query(text)      -> float32 (dim,)
   .adocuments / .aquery: the same, and the event loop is never blocked
```
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

from hybridmem.core import validation
from hybridmem.core.fanout import in_thread
from hybridmem.core.forks import guard
from hybridmem.embedding.sources import EmbeddingSource, source_of
from hybridmem.errors import ConfigError, EmbeddingError, HybridMemError

if TYPE_CHECKING:  # typing.Unpack came with Python 3.11
    from typing_extensions import Unpack

    from hybridmem.embedding.sources import EmbeddingOption

__all__ = ["Embedder", "EmbedderSettings", "Vector", "VectorLike", "as_embedder", "check_same", "is_same", "unit"]

Vector = npt.NDArray[np.float32]
VectorLike = Sequence[float] | npt.NDArray[np.floating[Any]]
"""A vector as users give it."""
_NOT_RETRIED = (TypeError, AttributeError, NameError, ImportError, NotImplementedError, AssertionError, HybridMemError)
"""Errors in code rather than failures of a service: a second attempt would fail too."""


class EmbedderSettings(TypedDict, total=False):
    """Settings of an `Embedder`."""

    prefix: int | None
    batch_size: int
    retries: int
    backoff: float
    cache_size: int
    sleep: Callable[[float], object]
    asleep: Callable[[float], Awaitable[object]]


def unit(vectors: VectorLike | Sequence[VectorLike], /) -> Vector:
    """Rows scaled to length 1, as float32: x / |x|. A zero row stays zero, so that its cosine with anything is 0."""
    rows = np.asarray(vectors, dtype=np.float64)
    peak = np.abs(rows).max(axis=-1, keepdims=True, initial=0.0)
    rows = rows / np.where(peak > 0, peak, 1.0)  # divide by the largest value first, because squares of 1e200 overflow
    norms = np.sqrt((rows * rows).sum(axis=-1, keepdims=True))
    scaled: Vector = (rows / np.where(norms > 0, norms, 1.0)).astype(np.float32)
    return scaled


class Embedder:
    """Embeds texts as unit vectors. Created by `as_embedder`; thread-safe.

    `name` is the identity that a store records; `dim` is None until the first vector is known;
    `prefix` is the number of leading dimensions that are a good embedding by themselves (Matryoshka), or None.
    """

    def __init__(
        self,
        source: EmbeddingSource,
        *,
        name: str | None = None,
        dim: int | None = None,
        prefix: int | None = None,
        batch_size: int = 256,
        retries: int = 2,
        backoff: float = 0.5,
        cache_size: int = 1024,
        sleep: Callable[[float], object] = time.sleep,
        asleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        counts = (("batch_size", batch_size, 1), ("retries", retries, 0), ("cache_size", cache_size, 0))
        for label, value, least in counts:
            validation.integer(label, value, f"a whole number of at least {least}", low=least)
        validation.number("backoff", backoff, "a number of seconds of at least 0", low=0)
        for label, wide in (("dim", dim), ("prefix", prefix)):
            if wide is not None:
                validation.integer(label, wide, "a whole number of at least 1, or None", low=1)
        if name is not None:
            validation.text("name", name, "a text, or None")
        validation.function("sleep", sleep, "a function of seconds")
        validation.function("asleep", asleep, "an async function of seconds")
        self.name = name or source.name
        self.prefix = prefix
        self._dim = dim
        self._source = source
        self._batch_size, self._retries, self._backoff = batch_size, retries, backoff
        self._sleep, self._asleep = sleep, asleep
        self._queries, self._texts = VectorCache(cache_size), VectorCache(cache_size)

    def __repr__(self) -> str:
        return f"Embedder(name={self.name!r}, dim={self._dim})"

    @property
    def dim(self) -> int | None:
        """The dimension of the vectors; None until the first one is known."""
        return self._dim

    def probe(self) -> int:
        """The dimension; embeds one word if it is not known yet."""
        if self._dim is None:
            self.query("dimension")
        return int(self._dim or 0)

    # --- sync
    def documents(self, texts: Sequence[str], /) -> Vector:
        """The vectors of texts, in order; equal texts are embedded once, cached ones not at all."""
        plan = EmbeddingBatch(validation.texts("texts", texts), self._texts)
        for batch in plan.batches(self._batch_size):
            plan.store(batch, self._checked(self._attempt(self._source.documents, batch), len(batch)))
        return plan.rows(self._dim)

    def query(self, text: str, /) -> Vector:
        """The vector of a query; recent queries are cached."""
        validation.text("query", text, "a text")
        key = _text_key(text)
        row = self._queries.get(key)
        if row is None:
            row = self._checked([self._attempt(self._source.query, text)], 1)[0]
            self._queries.put(key, _frozen(row))
        return row

    def _attempt(self, call: Callable[[Any], Any], argument: Any) -> Any:
        for attempt in range(self._retries + 1):
            try:
                return call(argument)
            except _NOT_RETRIED as error:
                raise self._failed(error, attempt + 1) from error
            except Exception as error:
                if attempt == self._retries:
                    raise self._failed(error, attempt + 1) from error
            self._sleep(self._backoff * 2.0**attempt)
        raise AssertionError  # pragma: no cover - the loop always returns or raises

    # --- async
    async def adocuments(self, texts: Sequence[str], /) -> Vector:
        """Async twin of `documents`; runs in a thread where the embedding object has no real async methods."""
        if self._source.adocuments is None:
            rows: Vector = await in_thread(lambda: self.documents(texts))
            return rows
        plan = EmbeddingBatch(validation.texts("texts", texts), self._texts)
        for batch in plan.batches(self._batch_size):
            plan.store(batch, self._checked(await self._aattempt(self._source.adocuments, batch), len(batch)))
        return plan.rows(self._dim)

    async def aquery(self, text: str, /) -> Vector:
        """Async twin of `query`; runs in a thread where the embedding object has no real async methods."""
        validation.text("query", text, "a text")
        key = _text_key(text)
        row = self._queries.get(key)
        if row is not None:
            return row
        if self._source.aquery is None:
            asked: Vector = await in_thread(lambda: self.query(text))
            return asked
        fresh: Vector = self._checked([await self._aattempt(self._source.aquery, text)], 1)[0]
        self._queries.put(key, _frozen(fresh))
        return fresh

    async def _aattempt(self, call: Callable[[Any], Awaitable[Any]], argument: Any) -> Any:
        for attempt in range(self._retries + 1):
            try:
                return await call(argument)
            except _NOT_RETRIED as error:
                raise self._failed(error, attempt + 1) from error
            except Exception as error:
                if attempt == self._retries:
                    raise self._failed(error, attempt + 1) from error
            await self._asleep(self._backoff * 2.0**attempt)
        raise AssertionError  # pragma: no cover - the loop always returns or raises

    # --- checks
    def _failed(self, error: Exception, attempts: int) -> EmbeddingError:
        times = "once" if attempts == 1 else f"{attempts} times"
        return EmbeddingError(f"embedder {self.name!r} failed, tried {times}: {type(error).__name__}: {error}")

    def _checked(self, raw: Any, count: int) -> Vector:
        """Raw vectors as a unit float32 matrix; EmbeddingError if their number, dimension or values are wrong."""
        if isinstance(raw, Iterator):
            raw = list(raw)
        try:
            rows = np.asarray(raw, dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise EmbeddingError(f"embedder {self.name!r} gave {_shape(raw)}, expected {count} vectors") from error
        if rows.ndim == 0:
            raise EmbeddingError(f"embedder {self.name!r} gave {_shape(raw)}, expected {count} vectors")
        if len(rows) != count:
            raise EmbeddingError(f"embedder {self.name!r} gave {len(rows)} vectors for {count} texts")
        if rows.ndim != 2 or rows.shape[1] == 0:  # noqa: PLR2004
            raise EmbeddingError(
                f"embedder {self.name!r} gave an array of shape {rows.shape}, expected ({count}, dimension)"
            )
        if self._dim is not None and rows.shape[1] != self._dim:
            raise EmbeddingError(f"embedder {self.name!r} gave dimension {rows.shape[1]}, expected {self._dim}")
        good = np.isfinite(rows).all(axis=1)
        if not good.all():
            raise EmbeddingError(
                f"embedder {self.name!r} gave a value that is not finite for text {int(good.argmin())} of {count}"
            )
        self._dim = rows.shape[1]
        return unit(rows)


def _shape(raw: Any) -> str:
    try:
        return f"vectors of lengths {sorted({len(row) for row in raw})}"
    except TypeError:
        return f"a {type(raw).__name__}"


def as_embedder(
    obj: EmbeddingOption, /, *, name: str | None = None, dim: int | None = None, **settings: Unpack[EmbedderSettings]
) -> Embedder:
    """Any embedding object as an `Embedder`; `name=` overrides the recorded identity.

    Settings: prefix, batch_size, retries, backoff, cache_size, sleep, asleep (see `Embedder`).

    >>> as_embedder(lambda texts: [[float(len(t)), 1.0] for t in texts]).query("abc").round(2).tolist()
    [0.949999988079071, 0.3199999928474426]
    """
    if isinstance(obj, Embedder):
        if name is not None or dim is not None or settings:
            given = sorted([*settings, *(["name"] if name else []), *(["dim"] if dim else [])])
            raise ConfigError(f"obj is an Embedder ({obj.name!r}): {', '.join(given)} cannot be set")
        return obj
    if isinstance(obj, str):
        if obj != "local":
            raise ConfigError(f"embedder = {obj!r} is not allowed: 'local', or an embedding object")
        from hybridmem.embedding.local import LocalEmbedder

        return LocalEmbedder(name=name, **settings)
    return Embedder(source_of(obj), name=name, dim=dim, **settings)


def is_same(stored_name: str, stored_dim: int | None, embedder: Embedder, /) -> bool:
    """Whether an embedder is the recorded one: same name, and same dimension if both are known."""
    dims = (stored_dim, embedder.dim)
    return stored_name == embedder.name and (None in dims or dims[0] == dims[1])


def check_same(stored_name: str | None, stored_dim: int | None, embedder: Embedder, /) -> None:
    """Raise EmbeddingError for another embedder than the recorded one: their vectors cannot be compared."""
    if stored_name is None or is_same(stored_name, stored_dim, embedder):
        return
    raise EmbeddingError(
        f"stored vectors come from {stored_name!r} ({stored_dim or 'unknown'} dimensions), but the embedder given is "
        f"{embedder.name!r} ({embedder.dim or 'unknown'} dimensions); open with the former, or with "
        f"embedder=None and re-embed everything by reindex(embedder=...)"
    )


# --- the cache


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


def _text_key(text: str) -> bytes:
    """The cache key of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class EmbeddingBatch:
    """The texts of one call: those not cached are embedded, each once; `rows` returns all in order."""

    def __init__(self, texts: list[str], cache: VectorCache) -> None:
        self._cache = cache
        self._keys = [_text_key(text) for text in texts]
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
            self._cache.put(key, _frozen(row.copy()))  # a copy: a view would keep the whole batch alive

    def rows(self, dim: int | None) -> Vector:
        """The vectors of all texts, in order."""
        if not self._keys:
            return np.zeros((0, dim or 0), dtype=np.float32)
        if len(self._missing) == len(self._keys):  # none is cached, and all are different
            return np.concatenate(self._embedded)
        return np.stack([self._rows[key] for key in self._keys])


def _frozen(row: Vector) -> Vector:
    """The same array, made read-only."""
    row.flags.writeable = False
    return row
