"""A compact copy of a vector matrix: a cheap first look that rules out, for certain, rows that cannot be the best.

Once a matrix has outgrown the processor's cache, a search costs what reading it costs. A sketch is read instead, and
only the few rows that it cannot rule out are looked at in full. Two layers, each where it pays:

whole   all numbers, one byte each, by a SIMD library (pip install 'hybridmem[fast]'):
        |x·q − code(x)·code(q)| ≤ |x − code(x)|·|q| + |q − code(q)|·|code(x)|.
short   the first numbers of each vector: of a Matryoshka embedding as it is; without a SIMD library of any other one,
        turned so that they carry most of its length. What is left out adds at most |x_rest|·|q_rest| (Cauchy-Schwarz).

Without a library, vectors that no turning makes shorter (random ones) have no sketch. A Matryoshka prefix given by the
user is trusted: at most a twentieth of the rows passes it, so that search is not certain but as good as the model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.embedding.embedder import Vector
from hybridmem.indexes.vector.matrix import NEVER, Rows, least_of_best, room_for, top

__all__ = ["Bytes", "Kernel", "Layer", "Packed", "Sketch", "kernel", "make"]

Bytes = npt.NDArray[np.int8]
Packed = tuple[tuple[int, Any], ...]
"""Rows already laid out for the library: pieces, each with the row it ends before."""


class Kernel(NamedTuple):
    """`cdist` takes rows as they are; `pack` and `packed` a layout made once, which is read twice as fast."""

    cdist: Callable[[Bytes, Bytes], Any]
    pack: Callable[[Bytes], Any] | None = None
    packed: Callable[[Bytes, Any], Any] | None = None

    def dots(self, query: Bytes, rows: Bytes, pieces: Packed, /) -> npt.NDArray[np.float32]:
        """The dot product with every row: packed ones from their pieces, the rest as they are."""
        out = np.empty(len(rows), np.float32)
        start = 0
        for end, piece in pieces:
            if self.packed is None or end > len(rows):
                break
            out[start:end] = np.asarray(self.packed(query, piece))[0]
            start = end
        if start < len(rows):
            out[start:] = np.asarray(self.cdist(query, rows[start:]))[0]
        return out


@lru_cache(maxsize=1)
def kernel() -> Kernel | None:
    """The library's functions, or None where none is installed, or none that counts right on this processor."""
    return next((found for found in (_numkong(), _simsimd()) if found is not None and _counts(found)), None)


def _numkong() -> Kernel | None:
    try:
        import numkong
    except ImportError:
        return None
    pack, packed = getattr(numkong, "dots_pack", None), getattr(numkong, "dots_packed", None)
    return Kernel(lambda query, rows: numkong.cdist(query, rows, "inner"), pack, packed)


def _simsimd() -> Kernel | None:
    try:
        import simsimd
    except ImportError:
        return None
    return Kernel(lambda query, rows: simsimd.cdist(query, rows, "dot"))


def _counts(found: Kernel) -> bool:
    """A small sum by way of proof: an answer from a broken build must never decide what is found."""
    rows = (np.arange(3 * 40) * 37 % 255 - 127).astype(np.int8).reshape(3, 40)
    expected = (rows.astype(np.int64) @ rows[0].astype(np.int64)).tolist()
    try:
        pieces: Packed = () if found.pack is None else ((2, found.pack(rows[:2].copy())),)
        return bool(found.dots(rows[:1], rows, pieces).tolist() == expected)
    except Exception:  # noqa: BLE001 - any failure means the same: do without
        return False


_CHUNK = 1024  # rows worked on at once: few enough for the cache
_PIECE = 8192  # rows packed at once
_SAMPLE = 4096
_ENERGY = 0.66  # a turned prefix must carry this share of the squared length, or too few rows are ruled out
_LOOKS = 64  # rows looked at in full to know the score to beat
_FEW_BEST = 32  # for more results than this a turned prefix rules out too little
_PACKED = 2048  # longer rows of bytes are read as fast as they are
_TINY = 1e-30


class Layer(NamedTuple):
    """Rows ≈ scale · table when in bytes, = table when in float32; `missed` is the length of what rounding loses."""

    table: npt.NDArray[Any]
    scale: Vector | None
    missed: Vector
    reach: float = 0.0
    packed: Packed = ()

    def grow(self, start: int, end: int, /) -> Layer:
        """The layer with room for rows up to end."""
        return self._replace(
            table=room_for(self.table, start, end),
            scale=None if self.scale is None else room_for(self.scale, start, end),
            missed=room_for(self.missed, start, end),
        )

    def filled(self, rows: Vector, part: slice, /) -> Layer:
        """The layer with these rows written into its buffers."""
        if self.scale is None:
            self.table[part], self.missed[part] = rows, 1e-6
            return self
        step = np.maximum(np.maximum(rows.max(axis=1), -rows.min(axis=1)), _TINY) / np.float32(127)
        code = rows / step[:, None]
        np.rint(code, out=code)
        self.table[part], self.scale[part] = code, step
        code *= step[:, None]
        code -= rows
        missed = np.sqrt(np.einsum("ij,ij->i", code, code)) + np.float32(1e-6)
        self.missed[part] = missed
        longest = np.sqrt(np.einsum("ij,ij->i", rows, rows).max()) + missed.max()
        return self._replace(reach=max(self.reach, float(longest)))

    def laid_out(self, end: int, /) -> Layer:
        """The layer with what has gathered since its last piece packed, when that is worth it."""
        run = kernel() if self.table.shape[1] <= _PACKED else None
        start = self.packed[-1][0] if self.packed else 0
        if run is None or run.pack is None or self.scale is None or end - start < _PIECE:
            return self
        return self._replace(packed=(*self.packed, (end, run.pack(np.ascontiguousarray(self.table[start:end])))))

    def look(self, query: Vector, n: int, rows: Rows | None, /) -> tuple[Vector, Vector]:
        """The dot product with n rows (or these ones), as far as the layer knows, and how far off it may be."""
        chosen = slice(0, n) if rows is None else rows
        run = kernel()
        if self.scale is None or run is None:
            return self.table[chosen] @ query, self.missed[chosen]
        step = max(float(np.abs(query).max()), _TINY) / 127.0
        code = np.rint(query / np.float32(step)).astype(np.int8)
        lost = float(np.linalg.norm(query - code * np.float32(step))) * self.reach
        found = run.dots(code[None], self.table[chosen], self.packed if rows is None else ())
        found *= self.scale[chosen]
        found *= np.float32(step)
        return found, self.missed[chosen] + np.float32(lost)


class Sketch(NamedTuple):
    """The layers of a matrix. `rest` is the length of what the short layer leaves out of each row."""

    short: Layer | None
    basis: Vector | None
    rest: Vector
    whole: Layer | None
    fitted: int

    def grow(self, matrix: Vector, start: int, end: int, /) -> Sketch:
        """The sketch with the rows from start to end: written behind the others, which do not change."""
        short = None if self.short is None else self.short.grow(start, end)
        whole = None if self.whole is None else self.whole.grow(start, end)
        rest = self.rest if short is None else room_for(self.rest, start, end)
        for first in range(start, end, _CHUNK):
            part = slice(first, min(first + _CHUNK, end))
            rows = matrix[part]
            if short is not None:
                turned = self._turned(rows, short.table.shape[1])
                left = np.einsum("ij,ij->i", rows, rows) - np.einsum("ij,ij->i", turned, turned)
                rest[part] = np.sqrt(np.maximum(left, 0.0)) + np.float32(1e-6)
                short = short.filled(turned, part)
            if whole is not None:
                whole = whole.filled(rows, part)
        short, whole = (None if layer is None else layer.laid_out(end) for layer in (short, whole))
        return self._replace(short=short, rest=rest, whole=whole)

    def _turned(self, rows: Vector, size: int) -> Vector:
        turned: Vector = rows[..., :size] if self.basis is None else rows @ self.basis
        return turned

    def candidates(self, matrix: Vector, question: Vector, k: int, dead: Rows, rows: Rows | None, /) -> Rows | None:
        """Rows (of `rows`, if given) that hold the k best; None when too few can be ruled out to be worth it."""
        found = rows
        if self.short is not None and (k <= _FEW_BEST or self.basis is None):
            found = self._passed(self.short, matrix, question, k, dead, rows)
        if self.whole is None:
            return None if found is None or len(found) * 6 > len(matrix) else found
        if found is not None and len(found) <= 4 * k:
            return found
        dense = found is not None and len(found) * 8 > len(matrix)  # reading all is faster than picking so many
        estimate, error = self.whole.look(question, len(matrix), None if dense else found)
        if found is None:
            estimate[dead] = NEVER
        elif dense:
            estimate, error = estimate[found], error[found]
        best = np.flatnonzero(estimate + error >= least_of_best(estimate - error, k))
        return best if found is None else found[best]

    def _passed(
        self, short: Layer, matrix: Vector, question: Vector, k: int, dead: Rows, rows: Rows | None
    ) -> Rows | None:
        """Rows that the short layer cannot rule out."""
        turned = self._turned(question, short.table.shape[1])
        estimate, error = short.look(turned, len(matrix), None)
        rest = self.rest[: len(matrix)]
        if rows is None:
            estimate[dead] = NEVER
        else:
            estimate, error, rest = estimate[rows], error[rows], rest[rows]
        looked = top(estimate, max(_LOOKS, 4 * k))
        full = matrix[looked if rows is None else rows[looked]] @ question
        if len(full) < k:
            return rows
        least = np.partition(full, len(full) - k)[len(full) - k] - 1e-5
        most = rest * np.float32(np.sqrt(max(0.0, float(question @ question - turned @ turned))))
        most += estimate
        most += error
        found = np.flatnonzero(most >= least)
        if self.basis is None and len(found) * 20 > len(most):
            found = top(most, max(64 * k, len(most) // 20))
        return found if rows is None else rows[found]


def make(matrix: Vector, /, *, prefix: int | None = None) -> Sketch | None:
    """The best sketch there is for these rows, or None when none pays."""
    n, dim = matrix.shape
    run = kernel()
    if prefix is not None:
        basis, size = None, min(prefix, dim)
    else:  # bytes are read so fast that a turned prefix before them costs more than it saves
        basis, size = _turn(matrix) if run is None else (None, dim)
    short = _layer(size, run) if size < dim else None
    whole = _layer(dim, run) if run is not None else None
    if short is None and whole is None:
        return None
    return Sketch(short, basis, np.zeros(0, np.float32), whole, n).grow(matrix, 0, n)


def _layer(size: int, run: Kernel | None) -> Layer:
    none = np.zeros(0, np.float32)
    return Layer(np.zeros((0, size), np.int8 if run else np.float32), none if run else None, none)


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
