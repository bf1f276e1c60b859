"""The inner loops of BM25, in numpy and, where numba is installed, compiled. Both give the same bits.

A term adds `w · f·(k1+1) / (f + (c0 + c1·|D|))` with w = IDF · its count in the query, c0 = k1·(1−b) and
c1 = k1·b/avgdl. Each loop computes exactly that, in that order of operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hybridmem.indexes.segments import Floats, Postings

__all__ = ["Curve", "Kernels", "NumpyKernels", "compiled"]

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Curve:
    """The saturation of one moment: k1 + 1, k1·(1−b), k1·b/avgdl, and every row's length."""

    gain: float
    flat: float
    slope: float
    lengths: Floats

    def at(self, frequency: Any, length: Any, /) -> Any:
        """f·(k1+1) / (f + k1·(1 − b + b·|D|/avgdl)), for numbers and arrays alike."""
        return frequency * self.gain / (frequency + (self.flat + self.slope * length))


class Kernels(Protocol):
    """The three loops. `scores` has a slot per row, zero where no term has added anything yet."""

    def add(self, term: Postings, weight: float, curve: Curve, scores: Floats, /) -> Rows:
        """Add the term to all its rows; the rows that had nothing before."""
        ...

    def top_up(self, term: Postings, weight: float, curve: Curve, scores: Floats, /) -> None:
        """Add the term only to rows that have something already."""
        ...

    def look_up(self, term: Postings, weight: float, curve: Curve, rows: Rows, sums: Floats, /) -> None:
        """Add the term to `sums[i]` for each of the given (ascending) rows that holds it."""
        ...


class NumpyKernels:
    """Plain numpy: always there."""

    @staticmethod
    def add(term: Postings, weight: float, curve: Curve, scores: Floats, /) -> Rows:
        """Add the term to all its rows; the rows that had nothing before."""
        at = term.rows.astype(np.intp)
        before = scores[at]
        scores[at] = before + weight * curve.at(term.values[term.codes], curve.lengths[at])
        fresh: Rows = term.rows[before == 0.0]
        return fresh

    @staticmethod
    def top_up(term: Postings, weight: float, curve: Curve, scores: Floats, /) -> None:
        """Add the term only to rows that have something already."""
        here = np.flatnonzero(scores[term.rows])
        at = term.rows[here]
        scores[at] += weight * curve.at(term.values[term.codes[here]], curve.lengths[at])

    @staticmethod
    def look_up(term: Postings, weight: float, curve: Curve, rows: Rows, sums: Floats, /) -> None:
        """Add the term to `sums[i]` for each of the given (ascending) rows that holds it."""
        at = term.rows.searchsorted(rows)
        at[at == len(term.rows)] = 0
        hit = np.flatnonzero(term.rows[at] == rows)
        codes = term.codes[at[hit]]
        sums[hit] += weight * curve.at(term.values[codes], curve.lengths[rows[hit]])


def compiled() -> Kernels:
    """The same loops compiled by numba (slow to import: a second or so). ImportError when it is not installed."""
    import numba

    try:
        jit = numba.njit(nogil=True, cache=True)
        return _compile(jit)
    except RuntimeError:  # nowhere to keep the compiled code: compile it anew in each process
        return _compile(numba.njit(nogil=True))


def _compile(jit: Any) -> Kernels:  # noqa: C901 - three loops side by side
    @jit
    def add(rows, codes, values, weight, gain, flat, slope, lengths, scores, fresh):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        count = 0
        for i in range(len(rows)):
            row = rows[i]
            f = values[codes[i]]
            before = scores[row]
            if before == 0.0:
                fresh[count] = row
                count += 1
            scores[row] = before + weight * (f * gain / (f + (flat + slope * lengths[row])))
        return count

    @jit
    def top_up(rows, codes, values, weight, gain, flat, slope, lengths, scores):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        for i in range(len(rows)):
            row = rows[i]
            before = scores[row]
            if before != 0.0:
                f = values[codes[i]]
                scores[row] = before + weight * (f * gain / (f + (flat + slope * lengths[row])))

    @jit
    def look_up(rows, codes, values, weight, gain, flat, slope, lengths, wanted, sums):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        low = 0
        size = len(rows)
        for i in range(len(wanted)):
            target = wanted[i]
            step = 1
            high = low
            while high < size and rows[high] < target:  # gallop, since the wanted rows ascend
                low = high + 1
                high += step
                step *= 2
            high = min(high, size)
            while low < high:
                middle = (low + high) // 2
                if rows[middle] < target:
                    low = middle + 1
                else:
                    high = middle
            if low == size:
                return
            if rows[low] == target:
                f = values[codes[low]]
                sums[i] = sums[i] + weight * (f * gain / (f + (flat + slope * lengths[target])))

    return _NumbaKernels(add, top_up, look_up)


class _NumbaKernels:
    def __init__(self, add: Any, top_up: Any, look_up: Any) -> None:
        self._add = add
        self._top_up = top_up
        self._look_up = look_up

    def add(self, term: Postings, weight: float, curve: Curve, scores: Floats, /) -> Rows:
        fresh = np.empty(len(term.rows), np.int32)
        count = self._add(
            term.rows,
            term.codes,
            term.values,
            weight,
            curve.gain,
            curve.flat,
            curve.slope,
            curve.lengths,
            scores,
            fresh,
        )
        return fresh[:count]

    def top_up(self, term: Postings, weight: float, curve: Curve, scores: Floats, /) -> None:
        self._top_up(
            term.rows, term.codes, term.values, weight, curve.gain, curve.flat, curve.slope, curve.lengths, scores
        )

    def look_up(self, term: Postings, weight: float, curve: Curve, rows: Rows, sums: Floats, /) -> None:
        self._look_up(
            term.rows, term.codes, term.values, weight, curve.gain, curve.flat, curve.slope, curve.lengths, rows, sums
        )
