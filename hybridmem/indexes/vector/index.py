"""Vector index: exact cosine search over one contiguous float32 matrix.

score(D, Q) = D·Q for vectors of length 1, in [-1, 1]. The best rows are rescored in float64, row by row, so that equal
vectors have equal scores. Ties: the newer `updated_at`, then the smaller id.
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
from hybridmem.indexes.vector.matrix import (
    NEVER,
    MatrixSnapshot,
    RowNumbers,
    Sketch,
    VectorUpdate,
    append,
    batch_of,
    compact,
    cosines,
    empty,
    epoch,
    kernel,
    make,
    ranked,
    top,
)

__all__ = ["VectorIndex", "as_question", "stored_matrix", "unit_matrix", "unit_rows"]

CompactFrom = int | Literal["auto"] | None

_FEW = 512  # up to this many allowed rows are scored directly
_COMPACT_FROM = 8 << 20  # from this matrix size (bytes) on, a sketch of one byte per number is faster ...
_ROTATED_FROM = 32 << 20  # ... and, without a SIMD library, a sketch of rotated rows
_SCANS_BEFORE_SKETCH = 8  # full scans of a large matrix before a sketch of it is made
_UNIT = 1e-5  # tolerance of the squared length of a float32 unit vector


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
        """`compact_from`: matrix size in bytes from which a sketch is used (None: never). `prefix`: see `Sketch`."""
        for name, value, least in (("dim", dim, 1), ("prefix", prefix, 1), ("compact_from", compact_from, 0)):
            auto = name == "compact_from" and isinstance(value, str) and value == "auto"
            if value is not None and not auto:
                validation.integer(name, value, f"at least {least}, or None", low=least)
        self.watermark = 0
        self._dim = dim
        self._prefix, self._compact_from = prefix, compact_from
        self._lock = guard(RLock())
        self._rows: dict[str, int] = {}
        self._current: tuple[MatrixSnapshot, Sketch | None] = (empty(dim), None)
        self._last_allowed: tuple[frozenset[str], RowNumbers] | None = None
        self._scans = self._sketch_failed_at = 0

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: everything but the lock."""
        with self._lock:
            return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=guard(RLock()))

    @property
    def dim(self) -> int | None:
        """The dimension of the vectors; None before the first one."""
        return self._dim

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    # --- writing
    def apply(self, changes: Iterable[Change], /) -> None:
        """Apply changes in order. Readers see a whole batch or nothing of it."""
        batch, last = batch_of(changes, self.watermark)
        with self._lock:
            self._write(batch)
            self.watermark = last

    def load(self, pieces: Iterable[tuple[list[str], list[float], Vector]], /, *, size: int, watermark: int) -> None:
        """Fill an empty index with at most `size` rows, in pieces of (ids, times, vectors).

        Used to open a large store quickly: each piece is written directly into the final matrix.
        """
        with self._lock:
            snapshot = self._current[0]
            for ids, updated, rows in pieces:
                if not snapshot.n:
                    self._dim = self._dim or rows.shape[1]
                    snapshot = snapshot._replace(matrix=np.empty((size + size // 4, self._dim), np.float32))
                snapshot = append(snapshot, self._loadable(rows, ids), ids, updated)
            self._rows = dict(zip(snapshot.ids, range(snapshot.n), strict=True))
            self._current, self._last_allowed = (snapshot, None), None
            self.watermark = watermark

    def _loadable(self, rows: Vector, ids: list[str]) -> Vector:
        if rows.shape[1] != self._dim:
            raise EmbeddingError(f"the vector of {ids[0]!r} has dimension {rows.shape[1]}, expected {self._dim}")
        return unit_matrix(rows, ids)

    def add(self, key: str, vector: Any, /, *, updated_at: datetime | None = None) -> None:
        """Add one vector, or replace the one of this id."""
        validation.text("id", key, "a str")
        with self._lock:
            self._write({key: VectorUpdate(vector, epoch(updated_at))})

    def remove(self, key: str, /) -> bool:
        """Remove a vector; False when there was none."""
        with self._lock:
            known = key in self._rows
            self._write({key: VectorUpdate(None, NEVER, gone=True)})
            return known

    def _write(self, batch: Mapping[str, VectorUpdate]) -> None:
        new = {key: put for key, put in batch.items() if put.vector is not None}
        rows = self._checked([put.vector for put in new.values()], list(new))
        old = {key: self._rows[key] for key in batch if key in self._rows}
        dead = [row for key, row in old.items() if key in new or batch[key].gone]
        times = {row: batch[key].updated for key, row in old.items() if key not in new and not batch[key].gone}
        snapshot = self._current[0]
        if times:
            snapshot = snapshot._replace(updated=snapshot.updated.copy())  # readers keep the old times
            snapshot.updated[list(times)] = list(times.values())
        snapshot = append(snapshot, rows, list(new), [put.updated for put in new.values()])
        if dead:
            snapshot = snapshot._replace(dead=np.union1d(snapshot.dead, np.array(dead, dtype=np.intp)))
        for key in old:
            if batch[key].gone:
                del self._rows[key]
        self._rows.update(zip(new, range(snapshot.n - len(new), snapshot.n), strict=True))
        if len(snapshot.dead) > max(1024, snapshot.n // 3):
            snapshot = compact(snapshot)
            self._rows = {key: row for row, key in enumerate(snapshot.ids)}
        self._current, self._last_allowed = (snapshot, self._sketched(snapshot)), None

    def _sketched(self, snapshot: MatrixSnapshot) -> Sketch | None:
        """The sketch with the new rows; None when rows were moved or have doubled."""
        before, sketch = self._current
        if sketch is None or snapshot.n < before.n or snapshot.n >= 2 * sketch.fitted:
            return None
        return sketch.grow(snapshot.matrix, before.n, snapshot.n)

    def _maybe_sketch(self) -> None:
        """Make a sketch after a few full scans of a large matrix: making one takes as long as dozens of scans."""
        snapshot, sketch = self._current
        if (
            sketch is not None
            or snapshot.n < 2 * self._sketch_failed_at
            or not self._large(snapshot.n * (self._dim or 0) * 4)
        ):
            return
        self._scans += 1
        if self._scans <= _SCANS_BEFORE_SKETCH:
            return
        with self._lock:
            snapshot, sketch = self._current
            if sketch is None:
                sketch = make(snapshot.matrix[: snapshot.n], prefix=self._prefix)
                self._current, self._scans = (snapshot, sketch), 0
                self._sketch_failed_at = snapshot.n if sketch is None else 0

    def _large(self, size: int) -> bool:
        """Whether a matrix of this many bytes is large enough for a sketch."""
        if self._compact_from == "auto":
            return size >= _COMPACT_FROM and (size >= _ROTATED_FROM or kernel() is not None)
        return self._compact_from is not None and size >= self._compact_from

    def _checked(self, vectors: list[Any], keys: list[str]) -> Vector:
        """Vectors as unit rows of the dimension of this index, which the first vector sets."""
        rows = unit_rows(vectors, keys, self._dim)
        if len(rows):
            self._dim = rows.shape[1]
        return rows

    @property
    def snapshot(self) -> MatrixSnapshot:
        """The current rows."""
        return self._current[0]

    # --- reading
    def search(self, query: Any, /, *, k: int, allowed: AbstractSet[str] | None = None) -> Hits:
        """The k most similar ids, among `allowed` when given (rows of the last frozenset are cached)."""
        validation.k(k)
        self._maybe_sketch()
        (snapshot, sketch), rows = (self._current, None) if allowed is None else self._allowed(allowed)
        if snapshot.n == len(snapshot.dead) or (rows is not None and not len(rows)):
            return Hits([], [])
        question = as_question(query, self._dim)
        return ranked(snapshot, question, _candidates(snapshot, sketch, question, k, rows), k)

    def score(self, vector: Any, ids: Sequence[str], /) -> list[float | None]:
        """The cosine of each id, None where it has no vector."""
        with self._lock:
            snapshot, rows = self._current[0], list(map(self._rows.get, ids))
        known = [row for row in rows if row is not None]
        if not known:
            return [None] * len(rows)
        values: list[float | None] = cosines(snapshot.matrix[known], as_question(vector, self._dim)).tolist()
        if len(known) == len(rows):
            return values
        found = iter(values)
        return [None if row is None else next(found) for row in rows]

    def vectors(self, ids: Sequence[str], /) -> list[Vector | None]:
        """The stored vector of each id (a copy), None where it has none."""
        with self._lock:
            snapshot, rows = self._current[0], [self._rows.get(key) for key in ids]
        return [None if row is None else snapshot.matrix[row].copy() for row in rows]

    def items(self) -> Iterator[tuple[str, Vector]]:
        """Every id with its vector, as of now."""
        with self._lock:
            snapshot, rows = self._current[0], list(self._rows.items())
        for key, row in rows:
            yield key, snapshot.matrix[row].copy()

    def _allowed(self, allowed: AbstractSet[str]) -> tuple[tuple[MatrixSnapshot, Sketch | None], RowNumbers]:
        """The rows of allowed ids, ascending; cached for the last frozenset, which cannot change."""
        with self._lock:
            if self._last_allowed is not None and self._last_allowed[0] is allowed:
                return self._current, self._last_allowed[1]
            if not isinstance(allowed, AbstractSet):
                allowed = set(validation.texts("allowed", allowed))
            if len(allowed) < len(self._rows):
                picked = [self._rows[key] for key in allowed if key in self._rows]
            else:
                picked = [row for key, row in self._rows.items() if key in allowed]
            rows = np.array(picked, dtype=np.intp)
            rows.sort()
            if isinstance(allowed, frozenset):
                self._last_allowed = (allowed, rows)
            return self._current, rows


def unit_rows(vectors: Sequence[Any], keys: Sequence[str], dim: int | None) -> Vector:
    """Vectors as float32 rows of length 1 and of one dimension; others raise EmbeddingError."""
    if not vectors:
        return np.zeros((0, dim or 0), np.float32)
    for key, vector in zip(keys, vectors, strict=True):
        if isinstance(vector, str) or not hasattr(vector, "__len__"):
            raise EmbeddingError(f"the vector of {key!r} is {validation.display(vector)}, expected a list of numbers")
    dim = dim or len(vectors[0])
    for key, vector in zip(keys, vectors, strict=True):
        if len(vector) != dim:
            raise EmbeddingError(f"the vector of {key!r} has dimension {len(vector)}, expected {dim}")
    return unit_matrix(vectors, keys)


def stored_matrix(vectors: Sequence[bytes], keys: Sequence[Any], dim: int) -> Vector:
    """Stored vectors, as little-endian float32 bytes, in one matrix; another dimension raises EmbeddingError."""
    if not set(map(len, vectors)) <= {4 * dim}:
        key, size = next((key, len(data)) for key, data in zip(keys, vectors, strict=True) if len(data) != 4 * dim)
        raise EmbeddingError(f"the vector of {key!r} has dimension {size // 4}, expected {dim}")
    return np.frombuffer(b"".join(vectors), "<f4").reshape(-1, dim)


def unit_matrix(vectors: Any, keys: Sequence[Any]) -> Vector:
    """Vectors of one dimension as float32 rows of length 1; a value that is not finite raises EmbeddingError."""
    plain = isinstance(vectors, np.ndarray) and vectors.dtype == np.float32
    rows = vectors if plain else np.empty((len(vectors), len(vectors[0])), np.float32)
    for start in range(0, len(vectors), 4096):  # in parts: float64 copies of everything would double the memory
        part = np.asarray(vectors[start : start + 4096])
        single = part.dtype == np.float32
        other = ~(np.abs(np.einsum("ij,ij->i", part, part) - 1.0) < _UNIT) if single else np.ones(len(part), np.bool_)
        if not plain and single:
            rows[start : start + 4096] = part
        if not other.any():
            continue
        places = start + np.flatnonzero(other)
        part = part[other].astype(np.float64)
        finite = np.isfinite(part).all(axis=1)
        if not finite.all():
            raise EmbeddingError(f"the vector of {keys[places[finite.argmin()]]!r} has a value that is not finite")
        if rows is vectors:
            rows = rows.copy()
        rows[places] = unit(part)
    return rows


def as_question(query: Any, dim: int | None) -> Vector:
    """A query vector of length 1 and of this dimension; others raise EmbeddingError."""
    question = np.asarray(query)
    if question.ndim != 1 or (dim is not None and len(question) != dim):
        raise EmbeddingError(f"the query vector has shape {question.shape}, expected ({dim},)")
    if question.dtype == np.float32 and abs(float(question @ question) - 1.0) < _UNIT:
        return question  # already of length 1
    if not np.isfinite(question := question.astype(np.float64)).all():
        raise EmbeddingError("the query vector has a value that is not finite")
    return unit(question)


def _candidates(
    snapshot: MatrixSnapshot, sketch: Sketch | None, question: Vector, k: int, rows: RowNumbers | None
) -> RowNumbers:
    """Rows that include the k best."""
    matrix = snapshot.matrix[: snapshot.n]
    if rows is not None and len(rows) <= max(k, _FEW):
        return rows if len(rows) <= k else rows[top(matrix[rows] @ question, k)]
    k = min(k, snapshot.n - len(snapshot.dead))
    if sketch is not None:
        found = sketch.candidates(matrix, question, k, snapshot.dead, rows)
        if found is not None:
            return found if len(found) <= k else found[top(matrix[found] @ question, k)]
    if rows is not None:
        few = 4 * len(rows) < snapshot.n
        return rows[top(matrix[rows] @ question if few else (matrix @ question)[rows], k)]
    scores = matrix @ question
    if len(snapshot.dead):
        scores[snapshot.dead] = NEVER
    return top(scores, k)
