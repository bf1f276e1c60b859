"""The inner loops of BM25 in numpy: always there, and the reference for the compiled ones.

A term adds `w · f·(k1+1) / (f + (c0 + c1·|D|))` with w = IDF · its count in the query, c0 = k1·(1−b) and
c1 = k1·b/avgdl. Terms are added heaviest first, so that a score has the same bits however it was reached.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.core.types import Hits
from hybridmem.indexes.bm25.postings import Codes, Floats, Rows, Segment
from hybridmem.indexes.bm25.state import State

__all__ = [
    "SLACK",
    "Curve",
    "Flags",
    "Kernels",
    "Lists",
    "Part",
    "Plan",
    "coverage",
    "find",
    "holding",
    "idf",
    "order",
    "plan",
]

_MANY = 256
"""More rows than this are cut down to k before they are sorted."""


def idf(count: int, holding: int, /) -> float:
    """ln(1 + (N − n + 0.5)/(n + 0.5)): never negative, never zero."""
    return math.log(1 + (count - holding + 0.5) / (holding + 0.5))


class Lists(NamedTuple):
    """The wanted terms in one segment or the tail. Bounds are for a weight of 1; dead rows are in the postings."""

    rows: Rows
    codes: Codes
    table: Floats
    lows: list[int]
    highs: list[int]
    bounds: list[float]
    living: list[int]


def find(state: State, numbers: list[int], curve: Curve, /) -> list[Lists]:
    """Where the postings of the wanted terms are, and how many living rows hold each."""
    lists: list[Lists] = []
    for segment in state.segments:
        slices = segment.find(numbers)
        lows = [low for low, _, _, _ in slices]
        highs = [high for _, high, _, _ in slices]
        if not any(highs):
            continue
        bounds = [curve.at(most, shortest) if high else 0.0 for _, high, most, shortest in slices]
        if state.deaths is None:
            living = [high - low for low, high, _, _ in slices]
        else:
            living = [
                state.deaths.count(segment, number, low, high) if high else 0
                for number, (low, high, _, _) in zip(numbers, slices, strict=True)
            ]
        lists.append(Lists(segment.rows, segment.codes, curve.table(segment), lows, highs, bounds, living))
    if state.size > state.tail.start:
        lists.extend(_tail(state, numbers, curve))
    return lists


def _tail(state: State, numbers: list[int], curve: Curve) -> Iterator[Lists]:
    """The same for the tail, whose lists become arrays here: they are short."""
    found, frequencies = state.tail.find(numbers, state.size)
    highs = list(accumulate(map(len, found)))
    if not highs or not highs[-1]:
        return
    lows = [0, *highs[:-1]]
    rows = np.fromiter(chain.from_iterable(found), np.int32, highs[-1])
    values = np.fromiter(chain.from_iterable(frequencies), np.float64, highs[-1])
    table = curve.at(values, state.lengths[rows])
    codes = np.arange(len(rows), dtype=np.uint16 if len(rows) <= 1 << 16 else np.uint32)
    alive = np.ones(len(rows), bool) if state.deaths is None else state.deaths.alive[rows]
    ends = list(zip(lows, highs, strict=True))
    bounds = [float(table[low:high].max()) if low < high else 0.0 for low, high in ends]
    living = [int(np.count_nonzero(alive[low:high])) for low, high in ends]
    yield Lists(rows, codes, table, lows, highs, bounds, living)


def holding(state: State, term: str, curve: Curve, /) -> tuple[int, list[Lists]]:
    """How many living rows hold one term, and where."""
    number = state.vocabulary.get(term)
    lists = [] if number is None else find(state, [number], curve)
    return sum(part.living[0] for part in lists), lists


def coverage(state: State, terms: list[str], curve: Curve, rows: list[int], /) -> list[float]:
    """Of each row, the share of the terms' IDF that it holds; of a row below 0, none."""
    wanted = np.array(rows, np.int32)
    covered = np.zeros(len(wanted))
    total = 0.0
    for term in terms:
        living, lists = holding(state, term, curve)
        weight = idf(state.count, living)
        total += weight
        for part in lists:
            held = part.rows[part.lows[0] : part.highs[0]]
            covered[held[np.minimum(held.searchsorted(wanted), len(held) - 1)] == wanted] += weight
    shares: list[float] = (covered / total).tolist() if total else covered.tolist()
    return shares


def plan(state: State, query: Mapping[str, float], curve: Curve, /) -> Plan | None:
    """The query's known terms, heaviest first: the order in which contributions are added up, always the same."""
    number_of = state.vocabulary.get
    known = [(term, number) for term in query if (number := number_of(term)) is not None]
    lists = find(state, [number for _, number in known], curve)
    if not lists:
        return None
    living = lists[0].living if len(lists) == 1 else list(map(sum, zip(*(part.living for part in lists), strict=True)))
    count = state.count
    ranked = sorted(
        [
            (-idf(count, held) * query[term], term, i)
            for i, ((term, _), held) in enumerate(zip(known, living, strict=True))
            if held
        ]
    )
    if not ranked:
        return None
    weights = [-weight for weight, _, _ in ranked]
    places = [i for _, _, i in ranked]
    parts = [_part(part, places, weights) for part in lists]
    return Plan([term for _, term, _ in ranked], np.array(weights), parts)


def _part(part: Lists, places: list[int], weights: list[float]) -> Part:
    slices = np.array([[part.lows[i] for i in places], [part.highs[i] for i in places]], np.int64)
    bounds = np.array([part.bounds[i] * weight for i, weight in zip(places, weights, strict=True)])
    return Part(part.rows, part.codes, part.table, slices[0], slices[1], bounds)


def order(rows: Rows, scores: Floats, state: State, /, *, k: int) -> Hits:
    """The k best as ids and scores: by score, then the newer, then the smaller id."""
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


def _first(scores: Floats, rows: Rows, state: State, k: int) -> npt.NDArray[np.intp]:
    """Which k to keep. Of many equal scores the newest, of those as old as each other the smallest ids."""
    kept, tied = _split(scores, np.arange(len(scores)), k)
    if len(kept) + len(tied) > k:
        newest, tied = _split(state.stamps[rows[tied]], tied, k - len(kept))
        kept = np.concatenate((kept, newest))
        ids = state.ids
        smallest = heapq.nsmallest(k - len(kept), tied.tolist(), key=lambda at: ids[rows[at]])
        tied = np.array(smallest, np.intp)
    return np.concatenate((kept, tied))


def _split(values: Floats, places: npt.NDArray[np.intp], k: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The places of the values above the k-th largest, and of those equal to it."""
    limit = np.partition(values, len(values) - k)[len(values) - k]
    return places[values > limit], places[values == limit]


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
