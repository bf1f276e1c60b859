"""The rows below VectorIndex: pictures of a growing float32 matrix, exact ranking over one, and its bytes.

A `Picture` never changes. Rows are only appended behind the last one (older pictures end before it), an update is a new
row and a tombstone for the old, so a reader on an older picture is never disturbed and never locked out.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.embed import Vector
from hybridmem.errors import CorruptStoreError
from hybridmem.types import Hits

__all__ = [
    "NEVER",
    "NONE",
    "Floats",
    "Picture",
    "Rows",
    "append",
    "compact",
    "cosines",
    "dump",
    "empty",
    "load",
    "ranked",
    "top",
]

Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]
NEVER = float("-inf")
NONE: Rows = np.zeros(0, dtype=np.intp)

_SLACK = 4e-6  # more than float32 can be wrong about a cosine: whoever is this close is rescored in float64
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


def append(picture: Picture, rows: Vector, ids: list[str], updated: list[float], /) -> Picture:
    """A picture with more rows: written in place where there is room, else into buffers of twice the size."""
    if not ids:
        return picture
    end = picture.n + len(ids)
    matrix, times = picture.matrix, picture.updated
    if end > len(matrix):
        room = max(2 * picture.n, end + end // 4, 16)
        matrix = np.empty((room, rows.shape[1]), np.float32)
        times = np.empty(room)
        matrix[: picture.n] = picture.matrix[: picture.n].reshape(picture.n, rows.shape[1])  # from (0, 0), too
        times[: picture.n] = picture.updated[: picture.n]
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


def top(scores: npt.NDArray[np.float32], k: int, /) -> Rows:
    """Positions that surely hold the k best of float32 scores, and those too close to tell."""
    if k < 1:
        return NONE
    if k >= len(scores):
        return np.arange(len(scores))
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero(scores >= least - _SLACK)


def cosines(rows: Vector, question: Vector, /) -> Floats:
    """Row by row in float64: the same vector gives the same number, whatever stands beside it."""
    values: Floats = (rows.astype(np.float64) * question.astype(np.float64)).sum(axis=1)
    return values.clip(-1.0, 1.0)


def ranked(picture: Picture, question: Vector, rows: Rows, k: int, /) -> Hits:
    """The k best of these rows, exactly: by cosine, then the newer, then the smaller id."""
    if not len(rows):
        return Hits([], [])
    parts = [cosines(picture.matrix[rows[start : start + 8192]], question) for start in range(0, len(rows), 8192)]
    scores = np.concatenate(parts)
    if k < len(rows):
        keep = scores >= np.partition(scores, len(rows) - k)[len(rows) - k]
        rows, scores = rows[keep], scores[keep]
    times = picture.updated[rows].tolist()
    order = sorted(
        (-score, -time, picture.ids[row])
        for score, time, row in zip(scores.tolist(), times, rows.tolist(), strict=True)
    )[:k]
    return Hits([key for _, _, key in order], [0.0 - score for score, _, _ in order])


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
