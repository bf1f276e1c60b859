"""Snapshots of a growing float32 matrix, and exact ranking over one.

A `MatrixSnapshot` is immutable. Rows are only appended after the last one, and an update is a new row plus a tombstone
for the old row, so a reader of an older snapshot needs no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hybridmem.core.protocols import Change
from hybridmem.core.types import Hits
from hybridmem.embedding.embedder import Vector

__all__ = [
    "NEVER",
    "NONE",
    "Floats",
    "MatrixSnapshot",
    "RowNumbers",
    "VectorUpdate",
    "append",
    "batch_of",
    "best_hits",
    "compact",
    "cosines",
    "empty",
    "epoch",
    "least_of_best",
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


def batch_of(changes: Iterable[Change], watermark: int, /) -> tuple[dict[str, VectorUpdate], int]:
    """The net effect of the batch on each id, and the watermark after it."""
    batch: dict[str, VectorUpdate] = {}
    for change in changes:
        watermark = max(watermark, change.seq)
        if change.edge is None:
            batch[change.id] = _merged(batch.get(change.id), _put(change))
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
    return VectorUpdate(change.vector, epoch(change.memory.updated_at), gone=lost)


def _merged(before: VectorUpdate | None, put: VectorUpdate) -> VectorUpdate:
    """Combine two changes of one batch; a change of the time alone keeps the earlier vector."""
    if before is None or put.gone or put.vector is not None:
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
    values: Floats = np.multiply(rows, question.astype(np.float64)).sum(axis=1)
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
