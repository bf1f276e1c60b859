"""A growing float32 matrix: immutable snapshots, exact ranking, and compact copies (sketches) that rule out rows.

A `MatrixSnapshot` is immutable. Rows are only appended after the last one, and an update is a new row plus a tombstone
for the old row, so a reader of an older snapshot needs no lock.

When a matrix is larger than the processor's cache, a search takes as long as reading it. A `Sketch` is read instead,
and only the rows that it cannot rule out are scored exactly. Two layers, each used where it is faster:

whole   all numbers as one byte each, with a SIMD library (pip install 'hybridmem[fast]'):
        |x·q − code(x)·code(q)| ≤ |x − code(x)|·|q| + |q − code(q)|·|code(x)|.
short   the first numbers of each vector: the prefix of a Matryoshka embedding, or (without a SIMD library) of vectors
        rotated so that the prefix has most of their length. The rest adds at most |x_rest|·|q_rest| (Cauchy-Schwarz).

Without a library, vectors that no rotation shortens (random ones) have no sketch. A Matryoshka prefix given by the
user is trusted: at most 5 % of the rows pass it, so that search is as exact as the model's prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hybridmem.core.fanout import Job, Latency, apply_policy, run
from hybridmem.core.protocols import Change
from hybridmem.core.types import Hits
from hybridmem.embedding.embedder import Vector

__all__ = [
    "NEVER",
    "NONE",
    "Bytes",
    "Floats",
    "Kernel",
    "Layer",
    "MatrixSnapshot",
    "RowNumbers",
    "Sketch",
    "VectorUpdate",
    "append",
    "batch_of",
    "best_hits",
    "compact",
    "cosines",
    "empty",
    "empty_layer",
    "epoch",
    "kernel",
    "least_of_best",
    "make",
    "ranked",
    "room_for",
    "top",
]

NEVER = float("-inf")


class VectorUpdate(NamedTuple):
    """The effect of a batch on one id: a new vector, removal (`gone`), or only a new time."""

    vector: Any
    updated: float
    gone: bool = False
    seq: int = 0
    """The number of the vector in the store."""


def batch_of(changes: Iterable[Change], watermark: int, /) -> tuple[dict[str, VectorUpdate], int]:
    """The net effect of the batch on each id, and the watermark after it."""
    batch: dict[str, VectorUpdate] = {}
    for change in changes:
        watermark = max(watermark, change.seq)
        if change.edge is None:
            before, put = batch.get(change.id), _put(change)
            batch[change.id] = put if before is None else _merged(before, put)
    return batch, watermark


def epoch(moment: datetime | None, /) -> float:
    """Epoch seconds (naive times are UTC); -inf for None."""
    if moment is None:
        return NEVER
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _put(change: Change) -> VectorUpdate:
    if change.memory is None or change.gone:
        return VectorUpdate(None, NEVER, gone=True)
    lost = change.vector is None and change.text_changed
    return VectorUpdate(change.vector, epoch(change.memory.updated_at), lost, change.vector_seq)


def _merged(before: VectorUpdate, put: VectorUpdate) -> VectorUpdate:
    """Combine two changes of one batch; a change of the time alone keeps the earlier vector."""
    if put.gone or put.vector is not None:
        return put
    return before if before.gone else before._replace(updated=put.updated)


RowNumbers = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]
Scalar = TypeVar("Scalar", bound=np.generic)
NONE: RowNumbers = np.zeros(0, dtype=np.intp)

_SLACK = 4e-6  # above the float32 error of a cosine: rows this close are rescored in float64
_CHUNK = 8192


class MatrixSnapshot(NamedTuple):
    """An immutable state of the matrix. Buffers are longer than `n`: rows from `n` on belong to later snapshots."""

    matrix: Vector
    ids: list[str]
    updated: Floats
    n: int = 0
    dead: RowNumbers = NONE
    """Rows of deleted or replaced vectors."""


def empty(dim: int | None) -> MatrixSnapshot:
    """A snapshot without rows."""
    return MatrixSnapshot(np.zeros((0, dim or 0), np.float32), [], np.zeros(0))


def room_for(buffer: npt.NDArray[Scalar], n: int, end: int, /) -> npt.NDArray[Scalar]:
    """A buffer with room for `end` rows: the same one, or a larger copy of its first n."""
    if end <= len(buffer):
        return buffer
    larger = np.empty((max(2 * n, end + end // 4, 16), *buffer.shape[1:]), buffer.dtype)
    larger[:n] = buffer[:n]
    return larger


def append(snapshot: MatrixSnapshot, rows: Vector, ids: list[str], updated: list[float], /) -> MatrixSnapshot:
    """A snapshot with more rows, written in place where the buffers have room."""
    if not ids:
        return snapshot
    end = snapshot.n + len(ids)
    matrix = snapshot.matrix if snapshot.matrix.shape[1:] == rows.shape[1:] else rows[:0]
    matrix = room_for(matrix, snapshot.n, end)
    times = room_for(snapshot.updated, snapshot.n, end)
    matrix[snapshot.n : end] = rows
    times[snapshot.n : end] = updated
    snapshot.ids.extend(ids)
    return snapshot._replace(matrix=matrix, updated=times, n=end)


def compact(snapshot: MatrixSnapshot, /) -> MatrixSnapshot:
    """A snapshot without tombstones."""
    if not len(snapshot.dead):
        return snapshot._replace(
            matrix=snapshot.matrix[: snapshot.n], ids=snapshot.ids[: snapshot.n], updated=snapshot.updated[: snapshot.n]
        )
    alive = np.setdiff1d(np.arange(snapshot.n), snapshot.dead, assume_unique=True)
    ids = [snapshot.ids[row] for row in alive.tolist()]
    return MatrixSnapshot(snapshot.matrix[alive], ids, snapshot.updated[alive], len(ids))


def least_of_best(scores: npt.NDArray[np.float32], k: int, /) -> float:
    """A lower bound of the k-th best score that few more scores reach: the k-th best of block maxima."""
    block = len(scores) // (16 * k)
    if block < 8:  # noqa: PLR2004 - too few scores for blocks to pay
        return float(np.partition(scores, len(scores) - k)[len(scores) - k]) if k < len(scores) else NEVER
    count = len(scores) // block
    peaks = scores[: block * count].reshape(block, count).max(axis=0)  # strided blocks: column maxima are vectorised
    return float(np.partition(peaks, len(peaks) - k)[len(peaks) - k])


def top(scores: npt.NDArray[np.float32], k: int, /) -> RowNumbers:
    """Positions of the k best float32 scores, and of those within the rounding error of the k-th."""
    found = np.flatnonzero(scores >= least_of_best(scores, k) - _SLACK)
    if len(found) <= k:
        return found
    picked = scores[found]
    least = np.partition(picked, len(picked) - k)[len(picked) - k]
    best: RowNumbers = found[picked >= least - _SLACK]
    return best


def cosines(rows: Vector, question: Vector, /) -> Floats:
    """Cosines computed row by row in float64, so that equal vectors have equal scores in any matrix."""
    values: Floats = np.einsum("ij,j->i", rows.astype(np.float64), question.astype(np.float64))
    return np.minimum(np.maximum(values, -1.0, out=values), 1.0, out=values)


def ranked(snapshot: MatrixSnapshot, question: Vector, rows: RowNumbers, k: int, /) -> Hits:
    """The k best of these rows, exactly: by cosine, then the newer, then the smaller id."""
    if len(rows) <= _CHUNK:
        scores = cosines(snapshot.matrix[rows], question)
    else:
        parts = range(0, len(rows), _CHUNK)
        scores = np.concatenate([cosines(snapshot.matrix[rows[start : start + _CHUNK]], question) for start in parts])
    return best_hits(snapshot.ids, snapshot.updated, rows, scores, k)


def best_hits(ids: Sequence[str], updated: Floats, rows: RowNumbers, scores: Floats, k: int, /) -> Hits:
    """The k best of scored rows: by score, then the newer, then the smaller id."""
    order = np.argsort(-scores, kind="stable")
    if k < len(order):
        order = order[scores[order] >= scores[order[k - 1]]]
    rows, scores = rows[order], scores[order]
    keys, values = [ids[row] for row in rows.tolist()], scores.tolist()
    if (scores[1:] == scores[:-1]).any():
        ties = sorted(zip((-scores).tolist(), (-updated[rows]).tolist(), keys, strict=True))
        keys, values = [key for _, _, key in ties], [0.0 - score for score, _, _ in ties]
    return Hits(keys[:k], values[:k])


Bytes = npt.NDArray[np.int8]
_SHARED = 8 << 20


class Kernel(NamedTuple):
    """The dot product of bytes by a SIMD library."""

    cdist: Callable[[Bytes, Bytes], Any]

    def dots(self, query: Bytes, rows: Bytes, /) -> npt.NDArray[np.float32]:
        """The dot product with every row. Two threads share many rows: one cannot read memory at its full speed."""
        out = np.empty(len(rows), np.float32)

        def fill(start: int, end: int) -> None:
            out[start:end] = np.asarray(self.cdist(query, rows[start:end]))[0]

        if rows.nbytes < _SHARED:
            fill(0, len(rows))
        else:
            middle = len(rows) // 2
            here = Job("here", partial(fill, 0, middle), latency=Latency(0.0))
            apply_policy(run([here, Job("there", partial(fill, middle, len(rows)))]), on_error="raise")
        return out


@lru_cache(maxsize=1)
def kernel() -> Kernel | None:
    """The functions of an installed SIMD library that passes a self-test on this processor, or None."""
    return next((found for found in (_numkong(), _simsimd()) if found is not None and _is_correct(found)), None)


def _numkong() -> Kernel | None:
    try:
        import numkong
    except ImportError:
        return None
    return Kernel(lambda query, rows: numkong.cdist(query, rows, "inner"))


def _simsimd() -> Kernel | None:
    try:
        import simsimd
    except ImportError:
        return None
    return Kernel(lambda query, rows: simsimd.cdist(query, rows, "dot"))


def _is_correct(found: Kernel) -> bool:
    """Compare a small product with numpy's: a broken build must not affect results."""
    rows = (np.arange(3 * 40) * 37 % 255 - 127).astype(np.int8).reshape(3, 40)
    expected = (rows.astype(np.int64) @ rows[0].astype(np.int64)).tolist()
    try:
        return bool(found.dots(rows[:1], rows).tolist() == expected)
    except Exception:  # noqa: BLE001 - any failure means that the library is not used
        return False


_BLOCK = 1024  # rows processed at once: they fit into the cache
_SAMPLE = 4096
_ENERGY = 0.66  # minimum share of the squared length in a rotated prefix; below it too few rows are ruled out
_EXACT = 64  # rows scored exactly to find the score to beat
_FEW_BEST = 32  # above this k a rotated prefix rules out too few rows
_TINY = 1e-30


class Layer(NamedTuple):
    """Rows ≈ scale · table for bytes, = table for float32. `error` is the length of the rounding error of each row."""

    table: npt.NDArray[Any]
    scale: Vector | None
    error: Vector
    longest: float = 0.0

    def grow(self, start: int, end: int, /) -> Layer:
        """The layer with room for rows up to end."""
        return self._replace(
            table=room_for(self.table, start, end),
            scale=None if self.scale is None else room_for(self.scale, start, end),
            error=room_for(self.error, start, end),
        )

    def filled(self, rows: Vector, part: slice, /) -> Layer:
        """The layer with these rows written into its buffers."""
        if self.scale is None:
            self.table[part], self.error[part] = rows, 1e-6
            return self
        step = np.maximum(np.maximum(rows.max(axis=1), -rows.min(axis=1)), _TINY) / np.float32(127)
        code = rows / step[:, None]
        np.rint(code, out=code)
        self.table[part], self.scale[part] = code, step
        code *= step[:, None]
        code -= rows
        error = np.sqrt(np.einsum("ij,ij->i", code, code)) + np.float32(1e-6)
        self.error[part] = error
        norm = np.sqrt(np.einsum("ij,ij->i", rows, rows).max()) + error.max()
        return self._replace(longest=max(self.longest, float(norm)))

    def estimate(self, query: Vector, n: int, rows: RowNumbers | None, /) -> tuple[Vector, Vector]:
        """Estimated dot products with the first n rows (or with `rows`), and bounds of their errors."""
        chosen = slice(0, n) if rows is None else rows
        run = kernel()
        if self.scale is None or run is None:
            return self.table[chosen] @ query, self.error[chosen]
        step = max(float(np.abs(query).max()), _TINY) / 127.0
        code = np.rint(query / np.float32(step)).astype(np.int8)
        lost = float(np.linalg.norm(query - code * np.float32(step))) * self.longest
        dots = run.dots(code[None], self.table[chosen])
        dots *= self.scale[chosen]
        dots *= np.float32(step)
        return dots, self.error[chosen] + np.float32(lost)

    def refined(self, query: Vector, rows: RowNumbers, /) -> tuple[Vector, Vector]:
        """The same for a few rows and the query as it is, so that the bounds are narrower."""
        dots = self.table[rows].astype(np.float32) @ query.astype(np.float32)
        return dots if self.scale is None else dots * self.scale[rows], self.error[rows] + np.float32(_SLACK)


class Sketch(NamedTuple):
    """The layers of a matrix. `rest` is the length of each row's part that the short layer leaves out."""

    short: Layer | None
    basis: Vector | None
    rest: Vector
    whole: Layer | None
    fitted: int

    def grow(self, matrix: Vector, start: int, end: int, /) -> Sketch:
        """The sketch with the rows from start to end appended."""
        short = None if self.short is None else self.short.grow(start, end)
        whole = None if self.whole is None else self.whole.grow(start, end)
        rest = self.rest if short is None else room_for(self.rest, start, end)
        for first in range(start, end, _BLOCK):
            part = slice(first, min(first + _BLOCK, end))
            rows = matrix[part]
            if short is not None:
                rotated = self._rotated(rows, short.table.shape[1])
                left = np.einsum("ij,ij->i", rows, rows) - np.einsum("ij,ij->i", rotated, rotated)
                rest[part] = np.sqrt(np.maximum(left, 0.0)) + np.float32(1e-6)
                short = short.filled(rotated, part)
            if whole is not None:
                whole = whole.filled(rows, part)
        return self._replace(short=short, rest=rest, whole=whole)

    def _rotated(self, rows: Vector, size: int) -> Vector:
        rotated: Vector = rows[..., :size] if self.basis is None else rows @ self.basis
        return rotated

    def candidates(
        self, matrix: Vector, question: Vector, k: int, dead: RowNumbers, rows: RowNumbers | None, /
    ) -> RowNumbers | None:
        """Rows (among `rows`, if given) that include the k best; None when too few can be ruled out."""
        found = rows
        if self.short is not None and (k <= _FEW_BEST or self.basis is None):
            found = self._passed(self.short, matrix, question, k, dead, rows)
        if self.whole is None:
            return None if found is None or len(found) * 6 > len(matrix) else found
        if found is not None and len(found) <= 4 * k:
            return found
        dense = found is not None and len(found) * 8 > len(matrix)  # reading all rows is faster than gathering so many
        estimate, error = self.whole.estimate(question, len(matrix), None if dense else found)
        if found is None:
            estimate[dead] = NEVER
        elif dense:
            estimate, error = estimate[found], error[found]
        best = np.flatnonzero(estimate + error >= least_of_best(estimate - error, k))
        return best if found is None else found[best]

    def _passed(
        self, short: Layer, matrix: Vector, question: Vector, k: int, dead: RowNumbers, rows: RowNumbers | None
    ) -> RowNumbers | None:
        """Rows that the short layer cannot rule out."""
        rotated = self._rotated(question, short.table.shape[1])
        estimate, error = short.estimate(rotated, len(matrix), None)
        rest = self.rest[: len(matrix)]
        if rows is None:
            estimate[dead] = NEVER
        else:
            estimate, error, rest = estimate[rows], error[rows], rest[rows]
        probed = top(estimate, max(_EXACT, 4 * k))
        full = matrix[probed if rows is None else rows[probed]] @ question
        if len(full) < k:
            return rows
        least = np.partition(full, len(full) - k)[len(full) - k] - 1e-5
        most = rest * np.float32(np.sqrt(max(0.0, float(question @ question - rotated @ rotated))))
        most += estimate
        most += error
        found = np.flatnonzero(most >= least)
        if self.basis is None and len(found) * 20 > len(most):
            found = top(most, max(64 * k, len(most) // 20))
        return found if rows is None else rows[found]


def make(matrix: Vector, /, *, prefix: int | None = None) -> Sketch | None:
    """The best sketch for these rows, or None when no sketch is faster than a full scan."""
    n, dim = matrix.shape
    run = kernel()
    if prefix is not None:
        basis, size = None, min(prefix, dim)
    else:  # with bytes, a rotated prefix costs more than it saves
        basis, size = _rotation(matrix) if run is None else (None, dim)
    short = empty_layer(size, run) if size < dim else None
    whole = empty_layer(dim, run) if run is not None else None
    if short is None and whole is None:
        return None
    return Sketch(short, basis, np.zeros(0, np.float32), whole, n).grow(matrix, 0, n)


def empty_layer(size: int, run: Kernel | None = None) -> Layer:
    """A layer without rows: of bytes with a SIMD library, else of float32."""
    run = run or kernel()
    none = np.zeros(0, np.float32)
    return Layer(np.zeros((0, size), np.int8 if run else np.float32), none if run else None, none)


def _rotation(matrix: Vector) -> tuple[Vector | None, int]:
    """A rotation whose first `size` directions have most of the rows' length; (None, dim) when that takes too many."""
    n, dim = matrix.shape
    sample = matrix[:: max(1, n // _SAMPLE)][:_SAMPLE]
    energy, basis = np.linalg.eigh((sample.T @ sample).astype(np.float64))
    carried = np.cumsum(energy[::-1]) / max(float(energy.sum()), _TINY)
    size = 16 * (int(np.searchsorted(carried, _ENERGY)) // 16 + 1)
    if size > dim * 3 // 8:
        return None, dim
    return np.ascontiguousarray(basis[:, ::-1][:, :size], dtype=np.float32), size
