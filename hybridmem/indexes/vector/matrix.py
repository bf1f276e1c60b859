"""The rows below VectorIndex: pictures of a growing float32 matrix, exact ranking over one, and its bytes.

A `Picture` never changes. Rows are only appended behind the last one (older pictures end before it), an update is a new
row and a tombstone for the old, so a reader on an older picture is never disturbed and never locked out.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hybridmem.core.protocols import Change
from hybridmem.core.types import Hits
from hybridmem.embedding.embedder import Vector
from hybridmem.errors import CorruptStoreError

__all__ = [
    "NEVER",
    "NONE",
    "Floats",
    "Picture",
    "Put",
    "Rows",
    "append",
    "batch_of",
    "compact",
    "cosines",
    "dump",
    "empty",
    "epoch",
    "least_of_best",
    "load",
    "ranked",
    "room_for",
    "top",
]

NEVER = float("-inf")


class Put(NamedTuple):
    """What a batch does to one id: a new vector, no vector any more (`gone`), or only a new time."""

    vector: Any
    updated: float
    gone: bool = False


def batch_of(changes: Iterable[Change], watermark: int, /) -> tuple[dict[str, Put], int]:
    """The last word of the batch on each id, and the watermark after it."""
    batch: dict[str, Put] = {}
    for change in changes:
        watermark = max(watermark, change.seq)
        if change.edge is None:
            batch[change.id] = _merged(batch.get(change.id), _put(change))
    return batch, watermark


def epoch(moment: datetime | None, /) -> float:
    """Seconds since 1970; naive times are UTC, no time is before all others."""
    if moment is None:
        return NEVER
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _put(change: Change) -> Put:
    if change.memory is None or change.gone:
        return Put(None, NEVER, gone=True)
    lost = change.vector is None and change.text_changed
    return Put(change.vector, epoch(change.memory.updated_at), gone=lost)


def _merged(before: Put | None, put: Put) -> Put:
    """A later change of the same batch; one that only brings a new time leaves the vector as the batch had it."""
    if before is None or put.gone or put.vector is not None:
        return put
    return before if before.gone else before._replace(updated=put.updated)


Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]
Scalar = TypeVar("Scalar", bound=np.generic)
NONE: Rows = np.zeros(0, dtype=np.intp)

_SLACK = 4e-6  # more than float32 can be wrong about a cosine: whoever is this close is rescored in float64
_CHUNK = 8192
_MAGIC = b"HMVEC001"


class Picture(NamedTuple):
    """One consistent state. The buffers are longer than `n`; what lies behind belongs to later pictures."""

    matrix: Vector
    ids: list[str]
    updated: Floats
    n: int = 0
    dead: Rows = NONE
    """Rows of deleted or replaced vectors."""


def empty(dim: int | None) -> Picture:
    """A picture without rows."""
    return Picture(np.zeros((0, dim or 0), np.float32), [], np.zeros(0))


def room_for(buffer: npt.NDArray[Scalar], n: int, end: int, /) -> npt.NDArray[Scalar]:
    """A buffer with room for `end` rows: the same one, or a larger copy of its first n."""
    if end <= len(buffer):
        return buffer
    larger = np.empty((max(2 * n, end + end // 4, 16), *buffer.shape[1:]), buffer.dtype)
    larger[:n] = buffer[:n]
    return larger


def append(picture: Picture, rows: Vector, ids: list[str], updated: list[float], /) -> Picture:
    """A picture with more rows: written in place where there is room, else into buffers of twice the size."""
    if not ids:
        return picture
    end = picture.n + len(ids)
    matrix = picture.matrix if picture.matrix.shape[1:] == rows.shape[1:] else rows[:0]
    matrix = room_for(matrix, picture.n, end)
    times = room_for(picture.updated, picture.n, end)
    matrix[picture.n : end] = rows
    times[picture.n : end] = updated
    picture.ids.extend(ids)
    return picture._replace(matrix=matrix, updated=times, n=end)


def compact(picture: Picture, /) -> Picture:
    """The living rows, moved together."""
    if not len(picture.dead):
        return picture._replace(
            matrix=picture.matrix[: picture.n], ids=picture.ids[: picture.n], updated=picture.updated[: picture.n]
        )
    alive = np.setdiff1d(np.arange(picture.n), picture.dead, assume_unique=True)
    ids = [picture.ids[row] for row in alive.tolist()]
    return Picture(picture.matrix[alive], ids, picture.updated[alive], len(ids))


def least_of_best(scores: npt.NDArray[np.float32], k: int, /) -> float:
    """A number that at least k of the scores reach, and hardly more: the k-th best of the blocks' maxima."""
    block = len(scores) // (16 * k)
    if block < 8:  # noqa: PLR2004 - too few scores for blocks to pay
        return float(np.partition(scores, len(scores) - k)[len(scores) - k]) if k < len(scores) else NEVER
    count = len(scores) // block
    peaks = scores[: block * count].reshape(block, count).max(axis=0)  # every count-th: maxima of whole columns at once
    return float(np.partition(peaks, len(peaks) - k)[len(peaks) - k])


def top(scores: npt.NDArray[np.float32], k: int, /) -> Rows:
    """Positions that surely hold the k best of float32 scores, and those too close to tell."""
    found = np.flatnonzero(scores >= least_of_best(scores, k) - _SLACK)
    if len(found) <= k:
        return found
    picked = scores[found]
    least = np.partition(picked, len(picked) - k)[len(picked) - k]
    best: Rows = found[picked >= least - _SLACK]
    return best


def cosines(rows: Vector, question: Vector, /) -> Floats:
    """Row by row in float64: the same vector gives the same number, whatever stands beside it."""
    values: Floats = np.multiply(rows, question.astype(np.float64)).sum(axis=1)
    return np.minimum(np.maximum(values, -1.0, out=values), 1.0, out=values)


def ranked(picture: Picture, question: Vector, rows: Rows, k: int, /) -> Hits:
    """The k best of these rows, exactly: by cosine, then the newer, then the smaller id."""
    if len(rows) <= _CHUNK:
        scores = cosines(picture.matrix[rows], question)
    else:
        parts = range(0, len(rows), _CHUNK)
        scores = np.concatenate([cosines(picture.matrix[rows[start : start + _CHUNK]], question) for start in parts])
    order = np.argsort(-scores, kind="stable")
    if k < len(order):
        order = order[scores[order] >= scores[order[k - 1]]]
    rows, scores = rows[order], scores[order]
    ids, values = [picture.ids[row] for row in rows.tolist()], scores.tolist()
    if (scores[1:] == scores[:-1]).any():
        ties = sorted(zip((-scores).tolist(), (-picture.updated[rows]).tolist(), ids, strict=True))
        ids, values = [key for _, _, key in ties], [0.0 - score for score, _, _ in ties]
    return Hits(ids[:k], values[:k])


def dump(picture: Picture, watermark: int, /) -> bytes:
    """The living rows as bytes: magic, checksum, a JSON header and the raw arrays. No pickle."""
    small = compact(picture)
    head = {"watermark": watermark, "shape": small.matrix.shape, "ids": small.ids}
    header = json.dumps(head).encode()
    parts = (len(header).to_bytes(8, "little"), header, _raw(small.updated), _raw(small.matrix))
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join((_MAGIC, checksum.to_bytes(4, "little"), *parts))


def _raw(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of an array without copying them."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def load(data: bytes, /) -> tuple[Picture, int]:
    """The picture and watermark of `dump`; damaged bytes are refused, never half-loaded."""
    body = memoryview(data)[12:]
    if data[:8] != _MAGIC or zlib.crc32(body) != int.from_bytes(data[8:12], "little"):
        raise CorruptStoreError(f"these {len(data)} bytes are not a saved vector index, or are damaged: rebuild it")
    start = 8 + int.from_bytes(body[:8], "little")
    head = json.loads(bytes(body[8:start]))
    n, dim = head["shape"]
    updated = np.frombuffer(body, np.float64, n, start)
    matrix = np.frombuffer(body, np.float32, n * dim, start + 8 * n)
    return Picture(matrix.reshape(n, dim).copy(), head["ids"], updated.copy(), n), head["watermark"]
