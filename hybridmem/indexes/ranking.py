"""From query terms to the best rows: pure functions over one state of a BM25 index."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.indexes.kernels import Curve, Kernels, Rows
from hybridmem.indexes.live import State
from hybridmem.indexes.segments import Floats, Postings
from hybridmem.types import Hits

__all__ = ["Planned", "idf", "order", "plan", "score_all", "score_rows"]

_SLACK = 1 + 1e-9
"""Bounds are widened by this much, so that a rounded-off last bit never prunes a real hit."""


class Planned(NamedTuple):
    """One query term, ready to be scored: its weight (IDF · count in the query) and where its postings are."""

    term: str
    weight: float
    lists: list[Postings]
    size: int
    bound: float
    """No row gets more than this from the term."""


def idf(count: int, holding: int, /) -> float:
    """ln(1 + (N − n + 0.5)/(n + 0.5)): never negative, never zero."""
    return math.log(1 + (count - holding + 0.5) / (holding + 0.5))


def holding(state: State, number: int, /) -> tuple[int, list[Postings]]:
    """How many living rows hold a term, and its postings (dead rows included)."""
    found: list[Postings] = []
    living = 0
    wanted = np.array([number], np.int32)
    for segment in state.segments:
        postings = segment.find(wanted)[0]
        if postings is not None:
            found.append(postings)
            deaths = state.deaths
            living += len(postings.rows) if deaths is None else deaths.count(segment.key, number, postings)
    postings = state.tail.find(number, state.size, state.lengths)
    if postings is not None:
        found.append(postings)
        living += len(postings.rows) if state.deaths is None else state.deaths.count(-1, number, postings)
    return living, found


def plan(state: State, vocabulary: Mapping[str, int], query: Mapping[str, float], curve: Curve, /) -> list[Planned]:
    """The query's known terms, heaviest first: the order in which contributions are added up, always the same."""
    planned: list[Planned] = []
    for term, times in query.items():
        number = vocabulary.get(term)
        if number is None:
            continue
        living, lists = holding(state, number)
        if not living:
            continue
        weight = idf(state.count, living) * times
        bound = weight * max(float(curve.at(found.most, found.shortest)) for found in lists) * _SLACK
        planned.append(Planned(term, weight, lists, sum(len(found.rows) for found in lists), bound))
    planned.sort(key=lambda item: (-item.weight, item.term))
    return planned


def score_rows(planned: list[Planned], curve: Curve, kernels: Kernels, rows: Rows, /) -> Floats:
    """The scores of the given rows (ascending), 0 where nothing matches."""
    sums = np.zeros(len(rows))
    for item in planned:
        for postings in item.lists:
            kernels.look_up(postings, item.weight, curve, rows, sums)
    return sums


def score_all(
    planned: list[Planned],
    curve: Curve,
    kernels: Kernels,
    scores: Floats,
    /,
    *,
    k: int,
    alive: npt.NDArray[np.bool_] | None,
    mask: npt.NDArray[np.bool_] | None,
) -> tuple[Rows, Floats]:
    """Rows and scores among which the k best are. `scores` is scratch: all zero before and after.

    Terms are added heaviest first. As soon as the k-th best sum so far exceeds all that the remaining terms could
    give, no new row can enter the top k: the remaining, longest lists are only looked up for the rows still in play.
    """
    bounds, sizes = _suffixes(planned)
    touched: list[Rows] = []
    reached = 0.0
    try:
        for i, item in enumerate(planned, 1):
            touched.extend(kernels.add(postings, item.weight, curve, scores) for postings in item.lists)
            reached += item.bound
            seen = sum(map(len, touched))
            if i < len(planned) and seen >= k and sizes[i] > 2 * seen and reached > bounds[i]:
                rows = _living(touched, alive, mask)
                floor = _kth(scores[rows], k)
                if floor > bounds[i]:
                    return _finish(planned[i:], curve, kernels, scores, rows, k)
        rows = _living(touched, alive, mask)
        return rows, scores[rows]
    finally:
        for rows in touched:
            scores[rows] = 0.0


def _finish(
    rest: list[Planned], curve: Curve, kernels: Kernels, scores: Floats, rows: Rows, k: int
) -> tuple[Rows, Floats]:
    """Complete the scores of the rows still in play, dropping those that can no longer reach the k best."""
    rows = np.sort(rows)
    bounds, _ = _suffixes(rest)
    for i, item in enumerate(rest):
        sums = scores[rows]
        keep = sums + bounds[i] >= _kth(sums, k)
        rows, sums = rows[keep], sums[keep]
        for postings in item.lists:
            if 8 * len(rows) < len(postings.rows):
                kernels.look_up(postings, item.weight, curve, rows, sums)
                scores[rows] = sums
            else:
                kernels.top_up(postings, item.weight, curve, scores)
                sums = scores[rows]
    return rows, scores[rows]


def _suffixes(planned: list[Planned]) -> tuple[list[float], list[int]]:
    """What the terms from i on can add at most, and how many postings they have."""
    bounds = [0.0] * (len(planned) + 1)
    sizes = [0] * (len(planned) + 1)
    for i in range(len(planned) - 1, -1, -1):
        bounds[i] = (bounds[i + 1] + planned[i].bound) * _SLACK
        sizes[i] = sizes[i + 1] + planned[i].size
    return bounds, sizes


def _living(touched: list[Rows], alive: npt.NDArray[np.bool_] | None, mask: npt.NDArray[np.bool_] | None) -> Rows:
    rows = touched[0] if len(touched) == 1 else np.concatenate(touched) if touched else np.zeros(0, np.int32)
    if alive is not None:
        rows = rows[alive[rows]]
    return rows if mask is None else rows[mask[rows]]


def _kth(sums: Floats, k: int) -> float:
    """The k-th largest, or 0 when there are fewer."""
    return float(np.partition(sums, len(sums) - k)[len(sums) - k]) if len(sums) >= k else 0.0


def order(rows: Rows, scores: Floats, state: State, /, *, k: int) -> Hits:
    """The k best as ids and scores: by score, then the newer, then the smaller id."""
    if len(rows) > k:
        floor = _kth(scores, k)
        sure = np.flatnonzero(scores > floor)
        tied = np.flatnonzero(scores == floor)
        room = k - len(sure)
        if len(tied) > room:
            tied = _break_ties(tied, rows, state, room)
        kept = np.concatenate((sure, tied))
        rows, scores = rows[kept], scores[kept]
    ids = state.ids
    best = sorted(
        (-score, -stamp, ids[row])
        for score, stamp, row in zip(scores.tolist(), state.stamps[rows].tolist(), rows.tolist(), strict=True)
    )
    return Hits([item[2] for item in best], [-item[0] for item in best])


def _break_ties(tied: npt.NDArray[np.intp], rows: Rows, state: State, room: int) -> npt.NDArray[np.intp]:
    """Of many equal scores, the newest; of those as old as each other, the smallest ids."""
    stamps = state.stamps[rows[tied]]
    limit = _kth_any(stamps, room)
    newer, same = tied[stamps > limit], tied[stamps == limit]
    ids = state.ids
    first = heapq.nsmallest(room - len(newer), same.tolist(), key=lambda at: ids[rows[at]])
    return np.concatenate((newer, np.array(first, np.intp)))


def _kth_any(values: Floats, k: int) -> float:
    return float(np.partition(values, len(values) - k)[len(values) - k])
