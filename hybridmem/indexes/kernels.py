"""The inner loops of BM25 in numpy: always there, and the reference for the compiled ones.

A term adds `w · f·(k1+1) / (f + (c0 + c1·|D|))` with w = IDF · its count in the query, c0 = k1·(1−b) and
c1 = k1·b/avgdl. Terms are added heaviest first, so that a score has the same bits however it was reached.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.indexes.segments import Codes, Floats, Rows, Segment

__all__ = ["SLACK", "Curve", "Flags", "Kernels", "Part", "Plan"]

Flags = npt.NDArray[np.bool_]

_FEW = 8192
"""So many postings are cheaper to add up than to think about."""

SLACK = 1 + 1e-9
"""Bounds are widened by this much, so that a rounded-off last bit never prunes a real hit."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The saturation of one moment: k1 + 1, k1·(1−b) and k1·b/avgdl."""

    gain: float
    flat: float
    slope: float
    tables: dict[int, Floats] = field(default_factory=dict, compare=False)

    def at(self, frequency: Any, length: Any, /) -> Any:
        """f·(k1+1) / (f + k1·(1 − b + b·|D|/avgdl)), for numbers and arrays alike."""
        return frequency * self.gain / (frequency + (self.flat + self.slope * length))

    def table(self, segment: Segment, /) -> Floats:
        """The saturated value of each of the segment's codes."""
        found = self.tables.get(segment.key)
        if found is None:
            found = self.tables[segment.key] = self.at(segment.frequencies, segment.lengths)
        return found


class Part(NamedTuple):
    """The query's postings in one segment (or the tail): term i has the slice `lows[i]:highs[i]`."""

    rows: Rows
    codes: Codes
    table: Floats
    """What a posting of this code adds, times the term's weight."""
    lows: npt.NDArray[np.int64]
    highs: npt.NDArray[np.int64]
    bounds: Floats
    """No row of this part gets more than `bounds[i]` from term i."""


class Plan(NamedTuple):
    """A query's known terms, heaviest first, with their weights (IDF · count in the query) and postings."""

    terms: list[str]
    weights: Floats
    parts: list[Part]

    @property
    def ends(self) -> list[int]:
        """How many postings the terms up to and including each one have."""
        counts = sum((part.highs - part.lows for part in self.parts[1:]), self.parts[0].highs - self.parts[0].lows)
        ends: list[int] = counts.cumsum().tolist()
        return ends


class Kernels:
    """The loops of a query in numpy, a handful of whole-array operations; a faster kind may replace each of them."""

    def __init__(self) -> None:
        self._local = threading.local()

    def best(self, plan: Plan, /, *, k: int, size: int, fit: Flags | None) -> tuple[Rows, Floats]:
        """Rows (below `size`, and fit) and their scores: the k best and all that tie with them, perhaps others.

        Terms are added heaviest first. As soon as the k-th best sum exceeds all that the remaining terms could give,
        no new row can reach the k best: the remaining lists, the longest, are only looked up for rows in play.
        """
        rest = _suffix(plan.parts)
        ends = plan.ends
        total = len(plan.terms)
        scores = self._take_scratch(size)
        touched = np.zeros(0, np.int32)
        used = 0
        while used < total:
            first = used
            used += 1
            # Take more terms at once while they could not outweigh the others anyway, or cost next to nothing.
            while used < total and (ends[used - 1] < k or rest[0] < 2 * rest[used] or ends[used] < _FEW):
                used += 1
            touched = self.add(plan, first, used, scores, touched)
            if used < total:
                floor = self.kth(touched, scores, fit, k)
                if floor > rest[used]:
                    rows, sums = _in_play(touched, scores, fit, floor - rest[used])
                    rows, sums = self.complete(plan, used, rows, sums, rest, floor)
                    break
        else:
            rows, sums = _in_play(touched, scores, fit, 0.0)
        scores[touched] = 0.0
        self._local.scores = scores  # only now: after an exception it would not be clean
        return rows, sums

    def _take_scratch(self, size: int) -> Floats:
        """Zeros with a slot per row, kept from this thread's last query where possible."""
        scores: Floats | None = self._local.__dict__.pop("scores", None)
        return scores if scores is not None and len(scores) >= size else np.zeros(size + size // 4 + 64)

    def look_up(self, plan: Plan, rows: Rows, /) -> Floats:
        """The scores of the given rows (ascending), 0 where nothing matches."""
        return self.complete(plan, 0, rows, np.zeros(len(rows)), [0.0] * len(plan.terms), 0.0)[1]

    def add(self, plan: Plan, first: int, last: int, scores: Floats, touched: Rows, /) -> Rows:
        """Add terms to the scores of all their rows; the rows touched before, and those touched now."""
        slices: list[tuple[Part, slice, float]] = [
            (part, slice(int(part.lows[term]), int(part.highs[term])), float(plan.weights[term]))
            for term in range(first, last)
            for part in plan.parts
            if part.lows[term] < part.highs[term]
        ]
        if not slices:
            return touched
        held = np.concatenate([part.rows[at] for part, at, _ in slices])
        rows = held.astype(np.intp)
        given = np.concatenate([weight * part.table[part.codes[at]] for part, at, weight in slices])
        fresh = held[scores[rows] == 0.0] if len(touched) else held
        np.add.at(scores, rows, given)
        if len(slices) > 1:
            fresh = np.sort(fresh)
            fresh = fresh[np.concatenate((fresh[:1] >= 0, fresh[1:] != fresh[:-1]))]
        return np.concatenate((touched, fresh)) if len(touched) else fresh

    def kth(self, touched: Rows, scores: Floats, fit: Flags | None, k: int, /) -> float:
        """The k-th largest score of the fit rows, or 0 when there are fewer."""
        return _kth(scores[touched if fit is None else touched[fit[touched]]], k)

    def complete(
        self, plan: Plan, used: int, rows: Rows, sums: Floats, rest: list[float], floor: float, /
    ) -> tuple[Rows, Floats]:
        """Add the terms from `used` on to the sums of rows (ascending), dropping those that cannot reach the floor."""
        for term in range(used, len(plan.terms)):
            if floor:
                keep = sums + rest[term] >= floor
                rows, sums = rows[keep], sums[keep]
            for part in plan.parts:
                _look_up(part, term, float(plan.weights[term]), rows, sums)
        return rows, sums


def _suffix(parts: list[Part], /) -> list[float]:
    """What the terms from i on can add to any row at most."""
    bounds = parts[0].bounds if len(parts) == 1 else np.maximum.reduce([part.bounds for part in parts])
    return [*((bounds[::-1] * SLACK).cumsum()[::-1]).tolist(), 0.0]


def _in_play(touched: Rows, scores: Floats, fit: Flags | None, least: float) -> tuple[Rows, Floats]:
    """The fit rows with at least that much, ascending."""
    sums = scores[touched]
    if least > 0:
        keep = sums >= least
        touched, sums = touched[keep], sums[keep]
    if fit is not None:
        keep = fit[touched]
        touched, sums = touched[keep], sums[keep]
    order = touched.argsort()
    return touched[order], sums[order]


def _look_up(part: Part, term: int, weight: float, rows: Rows, sums: Floats) -> None:
    """Add the term to `sums[i]` for each of the given rows that holds it."""
    low, high = int(part.lows[term]), int(part.highs[term])
    if low == high or not len(rows):
        return
    held = part.rows[low:high]
    at = held.searchsorted(rows)
    hit = (held.take(at, mode="clip") == rows).nonzero()[0]  # a row beyond the last one held is not that one
    if len(hit):
        sums[hit] += weight * part.table[part.codes[low:high][at[hit]]]


def _kth(sums: Floats, k: int) -> float:
    return float(np.partition(sums, len(sums) - k)[len(sums) - k]) if len(sums) >= k else 0.0
