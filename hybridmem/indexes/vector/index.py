"""VectorIndex: exact cosine search over one contiguous float32 matrix that follows the store.

score(D, Q) = D·Q for vectors of length 1, in [-1, 1]. Every answer is rescored in float64, row by row, so that equal
vectors have equal scores wherever they stand; ties go to the newer `updated_at`, then to the smaller id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from threading import RLock
from typing import Any, Literal

import numpy as np

from hybridmem.core import validation
from hybridmem.core.forks import guard
from hybridmem.core.protocols import Change
from hybridmem.core.types import Hits
from hybridmem.embedding.embedder import Vector, unit
from hybridmem.errors import EmbeddingError
from hybridmem.indexes.vector import matrix as _matrix
from hybridmem.indexes.vector.matrix import NEVER, Picture, Put, Rows, batch_of, epoch
from hybridmem.indexes.vector.quantized import Sketch, kernel, make

__all__ = ["VectorIndex"]

CompactFrom = int | Literal["auto"] | None

_FEW = 512  # so few rows are simply looked at in full
_COMPACT_FROM = 8 << 20  # bytes from which rows of bytes are read sooner than the matrix ...
_TURNED_FROM = 32 << 20  # ... and, without a SIMD library, turned rows
_PATIENCE = 8  # searches that read a large matrix in full before a sketch of it is made
_UNIT = 1e-5  # how far from 1 the squared length of a float32 unit vector may be


class VectorIndex:
    """Cosine search that is exact, live and safe to use from many threads.

    >>> index = VectorIndex()
    >>> index.add("a", [1.0, 0.0]); index.add("b", [1.0, 1.0])
    >>> index.search([1.0, 0.0], k=1)
    Hits(ids=['a'], scores=[1.0])
    """

    def __init__(
        self, dim: int | None = None, *, prefix: int | None = None, compact_from: CompactFrom = "auto"
    ) -> None:
        """`compact_from`: bytes from which a sketch is searched first (None: never). `prefix`: see `Sketch`."""
        for name, value, least in (("dim", dim, 1), ("prefix", prefix, 1), ("compact_from", compact_from, 0)):
            auto = name == "compact_from" and isinstance(value, str) and value == "auto"
            if value is not None and not auto:
                validation.integer(name, value, f"at least {least}, or None", low=least)
        self.watermark = 0
        self._dim = dim
        self._prefix, self._compact_from = prefix, compact_from
        self._lock = guard(RLock())
        self._rows: dict[str, int] = {}
        self._now: tuple[Picture, Sketch | None] = (_matrix.empty(dim), None)
        self._asked: tuple[frozenset[str], Rows] | None = None
        self._scans = self._tried = 0

    @property
    def dim(self) -> int | None:
        """How many numbers each vector has; None until the first one."""
        return self._dim

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    # --- writing
    def apply(self, changes: Iterable[Change], /) -> None:
        """Take changes in order: all of them are seen by the next search, none of them by one under way."""
        batch, last = batch_of(changes, self.watermark)
        with self._lock:
            self._write(batch)
            self.watermark = last

    def load(self, pieces: Iterable[tuple[list[str], list[float], Vector]], /, *, size: int, watermark: int) -> None:
        """Fill an empty index with at most `size` rows, piece by piece: ids, their times, their vectors.

        For opening a large store quickly: each piece goes straight to its place in the one matrix.
        """
        with self._lock:
            picture = self._now[0]
            for ids, updated, rows in pieces:
                if not picture.n:
                    self._dim = self._dim or rows.shape[1]
                    picture = picture._replace(matrix=np.empty((size + size // 4, self._dim), np.float32))
                picture = _matrix.append(picture, self._loadable(rows, ids), ids, updated)
            self._rows = dict(zip(picture.ids, range(picture.n), strict=True))
            self._now, self._asked = (picture, None), None
            self.watermark = watermark

    def _loadable(self, rows: Vector, ids: list[str]) -> Vector:
        if rows.shape[1] != self._dim:
            raise EmbeddingError(f"the vector of {ids[0]!r} has dimension {rows.shape[1]}, expected {self._dim}")
        lengths = np.einsum("ij,ij->i", rows, rows)
        stored = (np.abs(lengths - 1.0) < _UNIT).all()  # by us they were stored with length 1 already
        return rows if stored else self._checked(list(rows), ids)

    def add(self, key: str, vector: Any, /, *, updated_at: datetime | None = None) -> None:
        """Add one vector, or replace the one of this id."""
        validation.text("id", key, "a str")
        with self._lock:
            self._write({key: Put(vector, epoch(updated_at))})

    def remove(self, key: str, /) -> bool:
        """Take a vector out; False when there was none."""
        with self._lock:
            known = key in self._rows
            self._write({key: Put(None, NEVER, gone=True)})
            return known

    def _write(self, batch: Mapping[str, Put]) -> None:
        new = {key: put for key, put in batch.items() if put.vector is not None}
        rows = self._checked([put.vector for put in new.values()], list(new))
        old = {key: self._rows[key] for key in batch if key in self._rows}
        dead = [row for key, row in old.items() if key in new or batch[key].gone]
        times = {row: batch[key].updated for key, row in old.items() if key not in new and not batch[key].gone}
        picture = self._now[0]
        if times:
            picture = picture._replace(updated=picture.updated.copy())  # readers keep the old times
            picture.updated[list(times)] = list(times.values())
        picture = _matrix.append(picture, rows, list(new), [put.updated for put in new.values()])
        if dead:
            picture = picture._replace(dead=np.union1d(picture.dead, np.array(dead, dtype=np.intp)))
        for key in old:
            if batch[key].gone:
                del self._rows[key]
        self._rows.update(zip(new, range(picture.n - len(new), picture.n), strict=True))
        if len(picture.dead) > max(1024, picture.n // 3):
            picture = _matrix.compact(picture)
            self._rows = {key: row for row, key in enumerate(picture.ids)}
        self._now, self._asked = (picture, self._sketched(picture)), None

    def _sketched(self, picture: Picture) -> Sketch | None:
        """The sketch grown by the new rows; none when the rows have moved or doubled: one is made again by searches."""
        before, sketch = self._now
        if sketch is None or picture.n < before.n or picture.n >= 2 * sketch.fitted:
            return None
        return sketch.grow(picture.matrix, before.n, picture.n)

    def _consider(self) -> None:
        """Make a sketch once a few searches have read the whole of a large matrix: it takes as long as dozens."""
        picture, sketch = self._now
        if sketch is not None or picture.n < 2 * self._tried or not self._large(picture.n * (self._dim or 0) * 4):
            return
        self._scans += 1
        if self._scans <= _PATIENCE:
            return
        with self._lock:
            picture, sketch = self._now
            if sketch is None:
                sketch = make(picture.matrix[: picture.n], prefix=self._prefix)
                self._now, self._scans = (picture, sketch), 0
                self._tried = picture.n if sketch is None else 0

    def _large(self, size: int) -> bool:
        """Whether so many bytes are worth a sketch."""
        if self._compact_from == "auto":
            return size >= _COMPACT_FROM and (size >= _TURNED_FROM or kernel() is not None)
        return self._compact_from is not None and size >= self._compact_from

    def _checked(self, vectors: list[Any], keys: list[str]) -> Vector:
        """Vectors as unit rows of the one dimension this index has."""
        if not vectors:
            return np.zeros((0, self._dim or 0), np.float32)
        for key, vector in zip(keys, vectors, strict=True):
            if isinstance(vector, str) or not hasattr(vector, "__len__"):
                raise EmbeddingError(
                    f"the vector of {key!r} is {validation.display(vector)}, expected a list of numbers"
                )
        dim = self._dim or len(vectors[0])
        for key, vector in zip(keys, vectors, strict=True):
            if len(vector) != dim:
                raise EmbeddingError(f"the vector of {key!r} has dimension {len(vector)}, expected {dim}")
        rows = np.empty((len(vectors), dim), np.float32)
        for start in range(0, len(vectors), 4096):  # in parts: a whole load in float64 would take twice its size
            part = np.asarray(vectors[start : start + 4096])
            if part.dtype == np.float32 and (np.abs(np.einsum("ij,ij->i", part, part) - 1.0) < _UNIT).all():
                rows[start : start + 4096] = part  # an embedder's own: of length 1 already
                continue
            part = part.astype(np.float64)
            finite = np.isfinite(part).all(axis=1)
            if not finite.all():
                raise EmbeddingError(
                    f"the vector of {keys[start + int(finite.argmin())]!r} has a value that is not finite"
                )
            rows[start : start + 4096] = unit(part)
        self._dim = dim
        return rows

    # --- reading
    def search(self, query: Any, /, *, k: int, allowed: AbstractSet[str] | None = None) -> Hits:
        """The k most similar ids, among `allowed` when given. The same frozenset asked again costs nothing extra."""
        if type(k) is not int or k < 1:
            validation.integer("k", k, "a whole number of at least 1", low=1)
        self._consider()
        (picture, sketch), rows = (self._now, None) if allowed is None else self._allowed(allowed)
        if picture.n == len(picture.dead) or (rows is not None and not len(rows)):
            return Hits([], [])
        question = self._question(query)
        return _matrix.ranked(picture, question, _candidates(picture, sketch, question, k, rows), k)

    def score(self, vector: Any, ids: Sequence[str], /) -> list[float | None]:
        """The cosine of each id, None where it has no vector."""
        with self._lock:
            picture, rows = self._now[0], [self._rows.get(key, -1) for key in ids]
        found = np.array([row for row in rows if row >= 0], dtype=np.intp)
        if not len(found):
            return [None] * len(rows)
        values = iter(_matrix.cosines(picture.matrix[found], self._question(vector)).tolist())
        return [next(values) if row >= 0 else None for row in rows]

    def vectors(self, ids: Sequence[str], /) -> list[Vector | None]:
        """The stored vector of each id (a copy), None where it has none."""
        with self._lock:
            picture, rows = self._now[0], [self._rows.get(key) for key in ids]
        return [None if row is None else picture.matrix[row].copy() for row in rows]

    def items(self) -> Iterator[tuple[str, Vector]]:
        """Every id with its vector, as of now."""
        with self._lock:
            picture, rows = self._now[0], list(self._rows.items())
        for key, row in rows:
            yield key, picture.matrix[row].copy()

    def _question(self, query: Any) -> Vector:
        question = np.asarray(query)
        if question.ndim != 1 or (self._dim is not None and len(question) != self._dim):
            raise EmbeddingError(f"the query vector has shape {question.shape}, expected ({self._dim},)")
        if question.dtype == np.float32 and abs(float(question @ question) - 1.0) < _UNIT:
            return question  # an embedder's own: of length 1 already
        if not np.isfinite(question := question.astype(np.float64)).all():
            raise EmbeddingError("the query vector has a value that is not finite")
        return unit(question)

    def _allowed(self, allowed: AbstractSet[str]) -> tuple[tuple[Picture, Sketch | None], Rows]:
        """The rows of allowed ids, ascending; remembered for the last frozenset, since that one cannot change."""
        with self._lock:
            if self._asked is not None and self._asked[0] is allowed:
                return self._now, self._asked[1]
            if not isinstance(allowed, AbstractSet):
                allowed = set(validation.texts("allowed", allowed))
            if len(allowed) < len(self._rows):
                picked = [self._rows[key] for key in allowed if key in self._rows]
            else:
                picked = [row for key, row in self._rows.items() if key in allowed]
            rows = np.array(picked, dtype=np.intp)
            rows.sort()
            if isinstance(allowed, frozenset):
                self._asked = (allowed, rows)
            return self._now, rows

    # --- bytes
    def to_bytes(self) -> bytes:
        """The index as bytes (checksummed, no pickle), for a file or a database."""
        with self._lock:
            picture, watermark = self._now[0], self.watermark
        return _matrix.dump(picture, watermark)

    @classmethod
    def from_bytes(
        cls, data: bytes, /, *, prefix: int | None = None, compact_from: CompactFrom = "auto"
    ) -> VectorIndex:
        """The index of `to_bytes`; damaged bytes raise CorruptStoreError."""
        picture, watermark = _matrix.load(data)
        index = cls(picture.matrix.shape[1] or None, prefix=prefix, compact_from=compact_from)
        index._now, index.watermark = (picture, index._sketched(picture)), watermark
        index._rows = {key: row for row, key in enumerate(picture.ids)}
        return index


def _candidates(picture: Picture, sketch: Sketch | None, question: Vector, k: int, rows: Rows | None) -> Rows:
    """Rows that hold the k best."""
    matrix = picture.matrix[: picture.n]
    if rows is not None and len(rows) <= max(k, _FEW):
        return rows if len(rows) <= k else rows[_matrix.top(matrix[rows] @ question, k)]
    k = min(k, picture.n - len(picture.dead))
    if sketch is not None:
        found = sketch.candidates(matrix, question, k, picture.dead, rows)
        if found is not None:
            return found if len(found) <= k else found[_matrix.top(matrix[found] @ question, k)]
    if rows is not None:
        few = 4 * len(rows) < picture.n
        return rows[_matrix.top(matrix[rows] @ question if few else (matrix @ question)[rows], k)]
    scores = matrix @ question
    if len(picture.dead):
        scores[picture.dead] = NEVER
    return _matrix.top(scores, k)
