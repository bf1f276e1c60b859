"""From query terms to a plan, and from scored rows to hits: pure functions over one state of a BM25 index."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.indexes.kernels import Curve, Part, Plan
from hybridmem.indexes.live import State
from hybridmem.indexes.segments import Codes, Floats, Rows
from hybridmem.types import Hits

_MANY = 256
"""More rows than this are cut down to k before they are sorted."""

__all__ = ["Lists", "coverage", "find", "holding", "idf", "order", "plan"]


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
