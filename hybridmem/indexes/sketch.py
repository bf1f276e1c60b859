"""A compact copy of a vector matrix: a cheap first look that tells which rows can be among the best at all.

Once a matrix has outgrown the processor's cache, a search costs what reading it costs. The sketch is read instead, and
only the few rows that it cannot rule out are looked at in full. Two savings, each where it pays:

short   only the first numbers of each vector: of a Matryoshka embedding as it is, of any other one after turning it so
        that they carry most of its length. What is left out adds at most κ·|x_rest|·|q_rest|, with
        κ = mean + 5 standard deviations of what it adds for the rows that look best (κ = 1 would be certain).
bytes   one byte a number, by a SIMD library (pip install 'hybridmem[simd]'):
        |x·q − estimate| ≤ |x − code(x)| + |q − code(q)|·|code(x)|: certain.

Vectors that no turning makes shorter (random ones) are kept whole, in bytes. Without a SIMD library those have no
sketch and are read in full.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.embed import Vector
from hybridmem.indexes._matrix import NEVER, Rows, least_of_best, room_for, top
from hybridmem.indexes._simd import Packed, kernel

__all__ = ["Sketch", "make"]

_CHUNK = 8192
_SAMPLE = 4096
_ENERGY = 0.66  # a turned prefix must carry this share of the squared length, or too few rows are ruled out
_LOOKS = 256  # rows looked at in full to learn κ and the score to beat
_SPREAD = 5.0
_PACKED = 256  # longer rows are read as fast as they are
_TINY = 1e-30


class Sketch(NamedTuple):
    """x ≈ turned back (table, or scale · table in bytes); `missed` and `rest` are the lengths of what is lost."""

    basis: Vector | None
    table: npt.NDArray[Any]
    rest: Vector | None
    """None when nothing is left out."""
    scale: Vector | None
    """None when the table is in float32."""
    missed: Vector
    fitted: int
    reach: float = 0.0
    packed: Packed = ()

    def grow(self, matrix: Vector, start: int, end: int, /) -> Sketch:
        """The sketch with the rows from start to end: written behind the others, which do not change."""
        grown = self._replace(
            table=room_for(self.table, start, end),
            rest=None if self.rest is None else room_for(self.rest, start, end),
            scale=None if self.scale is None else room_for(self.scale, start, end),
            missed=room_for(self.missed, start, end),
        )
        for first in range(start, end, _CHUNK):
            grown = grown.filled(matrix, slice(first, min(first + _CHUNK, end)))
        return grown.laid_out(end)

    def filled(self, matrix: Vector, part: slice, /) -> Sketch:
        """The sketch with these rows written into its buffers."""
        rows = matrix[part]
        short = self._short(rows)
        if self.rest is not None:
            self.rest[part] = np.sqrt(np.maximum((rows * rows).sum(axis=1) - (short * short).sum(axis=1), 0.0))
        if self.scale is None:
            self.table[part], self.missed[part] = short, 1e-6
            return self
        step = np.maximum(np.abs(short).max(axis=1), _TINY) / np.float32(127)
        code = np.rint(short / step[:, None])
        near = code * step[:, None]
        self.table[part], self.scale[part] = code, step
        self.missed[part] = np.sqrt(((short - near) ** 2).sum(axis=1)) + 1e-6
        return self._replace(reach=max(self.reach, float(np.sqrt((near * near).sum(axis=1).max()))))

    def laid_out(self, end: int, /) -> Sketch:
        """The sketch with what has gathered since its last piece packed, when that is worth it."""
        run = kernel() if self.table.shape[1] <= _PACKED else None
        start = self.packed[-1][0] if self.packed else 0
        if run is None or run.pack is None or self.scale is None or end - start < _CHUNK:
            return self
        return self._replace(packed=(*self.packed, (end, run.pack(np.ascontiguousarray(self.table[start:end])))))

    def _short(self, rows: Vector) -> Vector:
        short: Vector = rows[..., : self.table.shape[1]] if self.basis is None else rows @ self.basis
        return short

    def _estimate(self, short: Vector, n: int) -> tuple[Vector, float]:
        """x·q for n rows as far as the sketch knows, and what the query's own rounding may add to its error."""
        if self.scale is None:
            return self.table[:n] @ short, 0.0
        run = kernel()
        if run is None:  # pragma: no cover - a table in bytes is only made where there is a kernel
            raise AssertionError
        step = max(float(np.abs(short).max()), _TINY) / 127.0
        code = np.rint(short / np.float32(step)).astype(np.int8)
        lost = float(np.linalg.norm(short - code * np.float32(step))) * self.reach
        estimate = run.dots(code[None], self.table[:n], self.packed)
        estimate *= self.scale[:n]
        estimate *= np.float32(step)
        return estimate, lost

    def candidates(self, matrix: Vector, question: Vector, k: int, dead: Rows, rows: Rows | None, /) -> Rows | None:
        """Rows (of `rows`, if given) that hold the k best; None when too few can be ruled out to be worth it."""
        short = self._short(question)
        estimate, lost = self._estimate(short, len(matrix))
        missed = self.missed[: len(matrix)]
        if rows is None:
            estimate[dead] = NEVER
        else:
            estimate, missed = estimate[rows], missed[rows]
        if self.rest is None:
            least = least_of_best(estimate - missed, k) - 2.0 * lost
            found = np.flatnonzero(estimate + missed >= least)
            return found if rows is None else rows[found]
        rest = self.rest[: len(matrix)] if rows is None else self.rest[rows]
        left = np.sqrt(max(0.0, float(question @ question - short @ short)))
        return self._ruled(matrix, question, k, rows, estimate, missed + lost, rest * np.float32(left))

    def _ruled(
        self, matrix: Vector, question: Vector, k: int, rows: Rows | None, estimate: Vector, error: Vector, rest: Vector
    ) -> Rows | None:
        looked = top(estimate, max(_LOOKS, 2 * k))
        full = matrix[looked if rows is None else rows[looked]] @ question
        if len(full) < k:
            return None
        share = (full - estimate[looked]) / np.maximum(rest[looked], 1e-9)
        rest *= np.float32(min(1.0, max(0.0, float(share.mean() + _SPREAD * share.std()))))
        rest += estimate
        rest += error
        found = np.flatnonzero(rest >= np.partition(full, len(full) - k)[len(full) - k] - 1e-5)
        if len(found) * 6 > len(estimate):  # picking so many rows costs more than reading all
            return None
        return found if rows is None else rows[found]


def make(matrix: Vector, /, *, prefix: int | None = None) -> Sketch | None:
    """The best sketch there is for these rows, or None when none pays."""
    n, dim = matrix.shape
    simd = kernel() is not None
    basis, size = (None, min(prefix, dim)) if prefix is not None else _turn(matrix)
    if size >= dim and not simd:
        return None
    none = np.zeros(0, np.float32)
    table = np.zeros((0, size), np.int8 if simd else np.float32)
    return Sketch(basis, table, none if size < dim else None, none if simd else None, none, n).grow(matrix, 0, n)


def _turn(matrix: Vector) -> tuple[Vector | None, int]:
    """The rotation whose first `size` directions carry most of the rows' length; all of them when that is too many."""
    n, dim = matrix.shape
    sample = matrix[:: max(1, n // _SAMPLE)][:_SAMPLE]
    energy, basis = np.linalg.eigh((sample.T @ sample).astype(np.float64))
    carried = np.cumsum(energy[::-1]) / max(float(energy.sum()), _TINY)
    size = 16 * (int(np.searchsorted(carried, _ENERGY)) // 16 + 1)
    if size > dim * 3 // 8:
        return None, dim
    return np.ascontiguousarray(basis[:, ::-1][:, :size], dtype=np.float32), size
