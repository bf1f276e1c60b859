"""BM25 scoring in numpy: query plans and kernels.

A term adds `w · f·(k1+1) / (f + (c0 + c1·|D|))` with w = IDF · its count in the query, c0 = k1·(1−b) and
c1 = k1·b/avgdl. Terms are added in order of falling weight, so that a score has the same bits on every path.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.core import validation
from hybridmem.core.types import Hits
from hybridmem.errors import MissingExtraError
from hybridmem.indexes.bm25.postings import Codes, Floats, RowNumbers, Segment
from hybridmem.indexes.bm25.state import State

__all__ = [
    "SLACK",
    "Flags",
    "Kernels",
    "QueryPlan",
    "Saturation",
    "SegmentPlan",
    "TermPostings",
    "coverage",
    "document_frequency",
    "find",
    "frequencies",
    "idf",
    "kernels_of",
    "order",
    "plan",
]

_MANY = 256
"""More rows than this are reduced to k before they are sorted."""


def idf(count: int, frequency: int, /) -> float:
    """ln(1 + (N − n + 0.5)/(n + 0.5)): never negative, never zero."""
    return math.log(1 + (count - frequency + 0.5) / (frequency + 0.5))


class TermPostings(NamedTuple):
    """Postings of the query's terms in one segment or the tail. Bounds are for weight 1; deleted rows are included."""

    rows: RowNumbers
    codes: Codes
    table: Floats
    frequencies: Floats
    lows: list[int]
    highs: list[int]
    bounds: list[float]
    living: list[int]


def find(state: State, numbers: list[int], curve: Saturation, /) -> list[TermPostings]:
    """The postings of the terms in every segment, with the number of live rows of each term."""
    lists: list[TermPostings] = []
    for segment in state.segments:
        slices = segment.find(numbers)
        lows = [low for low, _, _, _ in slices]
        highs = [high for _, high, _, _ in slices]
        if not any(highs):
            continue
        bounds = [curve.at(most, shortest) if high else 0.0 for _, high, most, shortest in slices]
        if state.tombstones is None:
            living = [high - low for low, high, _, _ in slices]
        else:
            living = [
                state.tombstones.count(segment, number, low, high) if high else 0
                for number, (low, high, _, _) in zip(numbers, slices, strict=True)
            ]
        postings = (segment.rows, segment.codes, curve.table(segment), segment.frequencies)
        lists.append(TermPostings(*postings, lows, highs, bounds, living))
    if state.size > state.tail.start:
        lists.extend(_tail(state, numbers, curve))
    return lists


def _tail(state: State, numbers: list[int], curve: Saturation) -> Iterator[TermPostings]:
    """The same for the tail, whose (short) lists are converted to arrays."""
    found, frequencies = state.tail.find(numbers, state.size)
    highs = list(accumulate(map(len, found)))
    if not highs or not highs[-1]:
        return
    lows = [0, *highs[:-1]]
    rows = np.fromiter(chain.from_iterable(found), np.int32, highs[-1])
    values = np.fromiter(chain.from_iterable(frequencies), np.float64, highs[-1])
    table = curve.at(values, state.lengths[rows])
    codes = np.arange(len(rows), dtype=np.uint16 if len(rows) <= 1 << 16 else np.uint32)
    alive = np.ones(len(rows), bool) if state.tombstones is None else state.tombstones.alive[rows]
    ends = list(zip(lows, highs, strict=True))
    bounds = [float(table[low:high].max()) if low < high else 0.0 for low, high in ends]
    living = [int(np.count_nonzero(alive[low:high])) for low, high in ends]
    yield TermPostings(rows, codes, table, values, lows, highs, bounds, living)


def document_frequency(state: State, term: str, /) -> int:
    """The number of live documents with a term."""
    number = state.vocabulary.get(term)
    if number is None:
        return 0
    count = 0
    for segment in state.segments:
        [(low, high, _, _)] = segment.find((number,))
        tombstones = state.tombstones if low < high else None
        count += high - low if tombstones is None else tombstones.count(segment, number, low, high)
    rows = state.tail.find((number,), state.size)[0][0]
    return count + (len(rows) if state.tombstones is None else int(np.count_nonzero(state.tombstones.alive[rows])))


def coverage(state: State, terms: list[str], curve: Saturation, rows: list[int], /) -> list[float]:
    """The share of the terms' total IDF that each row contains; 0 for a negative row number."""
    wanted = np.array(rows, np.int32)
    covered = np.zeros(len(wanted))
    total = 0.0
    for term in terms:
        weight = idf(state.count, document_frequency(state, term))
        total += weight
        number = state.vocabulary.get(term)
        for part in [] if number is None else find(state, [number], curve):
            held = part.rows[part.lows[0] : part.highs[0]]
            covered[held[np.minimum(held.searchsorted(wanted), len(held) - 1)] == wanted] += weight
    shares: list[float] = (covered / total).tolist() if total else covered.tolist()
    return shares


def plan(state: State, query: Mapping[str, float], curve: Saturation, /) -> QueryPlan | None:
    """The plan of a query: its indexed terms in order of falling weight; None when no term is indexed."""
    number_of = state.vocabulary.get
    indexed = [(term, number) for term in query if (number := number_of(term)) is not None]
    lists = find(state, [number for _, number in indexed], curve)
    if not lists:
        return None
    living = lists[0].living if len(lists) == 1 else list(map(sum, zip(*(part.living for part in lists), strict=True)))
    count = state.count
    ranked = sorted(
        [
            (-idf(count, held) * query[term], term, i)
            for i, ((term, _), held) in enumerate(zip(indexed, living, strict=True))
            if held
        ]
    )
    if not ranked:
        return None
    weights = [-weight for weight, _, _ in ranked]
    places = [i for _, _, i in ranked]
    parts = [_part(part, places, weights) for part in lists]
    return QueryPlan([term for _, term, _ in ranked], np.array(weights), parts)


def _part(part: TermPostings, places: list[int], weights: list[float]) -> SegmentPlan:
    slices = np.array([[part.lows[i] for i in places], [part.highs[i] for i in places]], np.int64)
    bounds = np.array([part.bounds[i] * weight for i, weight in zip(places, weights, strict=True)])
    return SegmentPlan(part.rows, part.codes, part.table, slices[0], slices[1], bounds, part.frequencies)


def frequencies(plan: QueryPlan, rows: RowNumbers, /) -> Floats:
    """The frequency of each of the plan's terms (one row each) in these rows, in any order; 0 for a row below 0."""
    wanted, place = np.unique(rows, return_inverse=True)
    found = np.zeros((len(plan.terms), len(wanted)))
    for part in plan.parts:
        for term, (low, high) in enumerate(zip(part.lows.tolist(), part.highs.tolist(), strict=True)):
            if low == high:
                continue
            held = part.rows[low:high]
            if high - low < len(wanted):  # the shorter list is looked up in the longer one
                at = wanted.searchsorted(held)
                hit = (wanted.take(at, mode="clip") == held).nonzero()[0]
                found[term, at[hit]] = part.frequencies[part.codes[low:high][hit]]
            else:
                at = held.searchsorted(wanted)
                hit = (held.take(at, mode="clip") == wanted).nonzero()[0]
                found[term, hit] = part.frequencies[part.codes[low:high][at[hit]]]
    return found[:, place.ravel()]


def order(rows: RowNumbers, scores: Floats, state: State, /, *, k: int) -> Hits:
    """The k best as ids and scores: by score, then newer first, then the smaller id."""
    ids = state.ids
    if len(rows) > max(k, _MANY):
        kept = _first(scores, rows, state, k)
        rows, scores = rows[kept], scores[kept]
    falling = (-scores).argsort()
    rows, scores = rows[falling], scores[falling]
    if (scores[1:] == scores[:-1]).any():
        stamps = state.stamps
        best = sorted(
            zip(scores.tolist(), rows.tolist(), strict=True), key=lambda hit: (-hit[0], -stamps[hit[1]], ids[hit[1]])
        )[:k]
        return Hits([ids[row] for _, row in best], [score for score, _ in best])
    return Hits(list(map(ids.__getitem__, rows[:k].tolist())), scores[:k].tolist())


def _first(scores: Floats, rows: RowNumbers, state: State, k: int) -> npt.NDArray[np.intp]:
    """The positions of the k best; among equal scores the newest, then the smallest ids."""
    kept, tied = _split(scores, np.arange(len(scores)), k)
    if len(kept) + len(tied) > k:
        newest, tied = _split(state.stamps[rows[tied]], tied, k - len(kept))
        kept = np.concatenate((kept, newest))
        ids = state.ids
        smallest = heapq.nsmallest(k - len(kept), tied.tolist(), key=lambda at: ids[rows[at]])
        tied = np.array(smallest, np.intp)
    return np.concatenate((kept, tied))


def _split(values: Floats, places: npt.NDArray[np.intp], k: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The positions of values above the k-th largest, and of those equal to it."""
    limit = np.partition(values, len(values) - k)[len(values) - k]
    return places[values > limit], places[values == limit]


Flags = npt.NDArray[np.bool_]

_FEW = 8192
"""Up to this many postings are added without checking bounds first."""

SLACK = 1 + 1e-9
"""Bounds are multiplied by this, so that a rounding error never prunes a hit."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """The saturation function for the current avgdl: k1 + 1, k1·(1−b) and k1·b/avgdl."""

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


class SegmentPlan(NamedTuple):
    """The query's postings in one segment (or the tail): term i has the slice `lows[i]:highs[i]`."""

    rows: RowNumbers
    codes: Codes
    table: Floats
    """The contribution of a posting by its code, before the term's weight."""
    lows: npt.NDArray[np.int64]
    highs: npt.NDArray[np.int64]
    bounds: Floats
    """Upper bound of the contribution of term i to any row of this segment."""
    frequencies: Floats
    """The frequency of a posting by its code."""


class QueryPlan(NamedTuple):
    """A query's indexed terms by falling weight (IDF · count in the query), with their postings."""

    terms: list[str]
    weights: Floats
    parts: list[SegmentPlan]

    def scores(self, frequencies: Floats, lengths: Floats, curve: Saturation, /) -> list[float]:
        """The scores of documents with these frequencies (one row for each term) and lengths."""
        saturated = frequencies + (curve.flat + curve.slope * lengths)
        np.divide(frequencies * curve.gain, saturated, out=saturated, where=frequencies > 0)
        saturated[frequencies == 0] = 0.0
        scores: list[float] = (self.weights[:, None] * saturated).sum(axis=0).tolist()  # summed term by term
        return scores

    @property
    def ends(self) -> list[int]:
        """Cumulative number of postings of the terms."""
        counts = sum((part.highs - part.lows for part in self.parts[1:]), self.parts[0].highs - self.parts[0].lows)
        ends: list[int] = counts.cumsum().tolist()
        return ends


class Kernels:
    """Query kernels in numpy; `NumbaKernels` overrides them."""

    def __init__(self) -> None:
        self._local = threading.local()

    def best(self, plan: QueryPlan, /, *, k: int, size: int, mask: Flags | None) -> tuple[RowNumbers, Floats]:
        """Rows (below `size`, and in `mask`) and their scores: the k best, all that tie with them, perhaps others.

        Terms are added by falling weight. When the k-th best sum exceeds the bound of all remaining terms, no new row
        can reach the k best: the remaining (longest) postings are only looked up for the candidate rows.
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
            # Take more terms at once while they cannot end the loop, or have few postings.
            while used < total and (ends[used - 1] < k or rest[0] < 2 * rest[used] or ends[used] < _FEW):
                used += 1
            touched = self.add(plan, first, used, scores, touched)
            if used < total:
                floor = self.kth(touched, scores, mask, k)
                if floor > rest[used]:
                    rows, sums = _candidates(touched, scores, mask, floor - rest[used])
                    rows, sums = self.complete(plan, used, rows, sums, rest, floor)
                    break
        else:
            rows, sums = _candidates(touched, scores, mask, 0.0)
        scores[touched] = 0.0
        self._local.scores = scores  # only on success: after an exception it would not be zero
        return rows, sums

    def _take_scratch(self, size: int) -> Floats:
        """Zeros with a slot per row, reused from this thread's last query where possible."""
        scores: Floats | None = self._local.__dict__.pop("scores", None)
        return scores if scores is not None and len(scores) >= size else np.zeros(size + size // 4 + 64)

    def look_up(self, plan: QueryPlan, rows: RowNumbers, /) -> Floats:
        """The scores of the given rows (ascending), 0 where nothing matches."""
        return self.complete(plan, 0, rows, np.zeros(len(rows)), [0.0] * len(plan.terms), 0.0)[1]

    def add(self, plan: QueryPlan, first: int, last: int, scores: Floats, touched: RowNumbers, /) -> RowNumbers:
        """Add terms to the scores of all their rows; returns all touched rows."""
        slices: list[tuple[SegmentPlan, slice, float]] = [
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

    def kth(self, touched: RowNumbers, scores: Floats, mask: Flags | None, k: int, /) -> float:
        """The k-th largest score of the allowed rows, or 0 when there are fewer."""
        return _kth(scores[touched if mask is None else touched[mask[touched]]], k)

    def complete(
        self, plan: QueryPlan, used: int, rows: RowNumbers, sums: Floats, rest: list[float], floor: float, /
    ) -> tuple[RowNumbers, Floats]:
        """Add the terms from `used` on to the sums of rows (ascending), dropping those that cannot reach the floor."""
        for term in range(used, len(plan.terms)):
            if floor:
                keep = sums + rest[term] >= floor
                rows, sums = rows[keep], sums[keep]
            for part in plan.parts:
                _look_up(part, term, float(plan.weights[term]), rows, sums)
        return rows, sums


def _suffix(parts: list[SegmentPlan], /) -> list[float]:
    """Upper bounds of the sum of the terms from i on."""
    bounds = parts[0].bounds if len(parts) == 1 else np.maximum.reduce([part.bounds for part in parts])
    return [*((bounds[::-1] * SLACK).cumsum()[::-1]).tolist(), 0.0]


def _candidates(touched: RowNumbers, scores: Floats, mask: Flags | None, least: float) -> tuple[RowNumbers, Floats]:
    """The allowed rows with a score of at least `least`, ascending."""
    sums = scores[touched]
    if least > 0:
        keep = sums >= least
        touched, sums = touched[keep], sums[keep]
    if mask is not None:
        keep = mask[touched]
        touched, sums = touched[keep], sums[keep]
    order = touched.argsort()
    return touched[order], sums[order]


def _look_up(part: SegmentPlan, term: int, weight: float, rows: RowNumbers, sums: Floats) -> None:
    """Add the term to `sums[i]` for each of the given rows that holds it."""
    low, high = int(part.lows[term]), int(part.highs[term])
    if low == high or not len(rows):
        return
    held = part.rows[low:high]
    at = held.searchsorted(rows)
    hit = (held.take(at, mode="clip") == rows).nonzero()[0]  # positions beyond the end are clipped and do not match
    if len(hit):
        sums[hit] += weight * part.table[part.codes[low:high][at[hit]]]


def _kth(sums: Floats, k: int) -> float:
    return float(np.partition(sums, len(sums) - k)[len(sums) - k]) if len(sums) >= k else 0.0


_PLAIN = Kernels()


@lru_cache(maxsize=1)
def _compiled() -> Kernels:
    from hybridmem.indexes.bm25.compiled import NumbaKernels

    kernels = NumbaKernels()
    kernels.warm()
    return kernels


def kernels_of(*, accelerate: bool) -> Kernels:
    """The kernels of an index: numpy's, or those that numba compiles."""
    validation.flag("accelerate", accelerate)
    if not accelerate:
        return _PLAIN
    try:
        return _compiled()
    except ImportError as error:
        raise MissingExtraError("fast", needs="numba") from error
