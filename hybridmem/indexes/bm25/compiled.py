"""BM25 kernels compiled by numba (extra `fast`), with the same results as scoring.py. Importing this imports numba.

`_best` processes rows in windows that fit the first-level cache. Terms whose bounds together cannot reach the k-th
best score so far are not scanned: they are looked up only for rows that other terms matched.
"""

# numba compiles plain functions of arrays: no classes, no keywords, loops written out
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ANN001, ANN202, C901, PLR0912

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from hybridmem.indexes.bm25.postings import Floats, RowNumbers
from hybridmem.indexes.bm25.scoring import SLACK, Flags, Kernels, QueryPlan, SegmentPlan

__all__ = ["NumbaKernels"]

_WINDOW = 2048
_FAR = np.int64(1 << 40)
_PRIME = 8192
"""Terms with at most this many rows are scanned first to find an initial floor ..."""
_TRIES = 2
"""... for at most this many terms."""
_STRIDE = 16
"""Scanning this many postings costs as much as looking up one row."""


def _jit(function: Any) -> Any:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no writable cache directory: compile in each process
        return numba.njit(nogil=True)(function)


@_jit
def _push(heap, score):
    """Replace the smallest score of the heap."""
    at = 0
    size = len(heap)
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= score:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = score


@_jit
def _seek(rows, low, high, target):
    """The first position from `low` on whose row is at least the target (galloping, then binary search)."""
    step = 1
    end = low
    while end < high and rows[end] < target:
        low = end + 1
        end += step
        step *= 2
    end = min(end, high)
    while low < end:
        middle = (low + end) // 2
        if rows[middle] < target:
            low = middle + 1
        else:
            end = middle
    return low


@_jit
def _prime(rows, codes, table, lows, highs, weights, mask, filtered, k):
    """An initial floor: the k-th best score of a single term."""
    floor = 0.0
    tried = 0
    for term in range(len(lows)):
        count = highs[term] - lows[term]
        if count < k or count > _PRIME:
            continue
        heap = np.zeros(k)
        weight = weights[term]
        for place in range(lows[term], highs[term]):
            score = weight * table[codes[place]]
            if score > heap[0] and (not filtered or mask[rows[place]]):
                _push(heap, score)
        floor = max(floor, heap[0])
        tried += 1
        if tried == _TRIES:
            break
    return floor


@_jit
def _walk(rows, codes, table, weight, place, high, base, sums, touched, seen):
    """Add one term to the window. Returns the term's next position and the number of touched rows."""
    end = base + len(sums)
    while place < high:
        row = rows[place]
        if row >= end:
            break
        slot = row - base
        before = sums[slot]
        touched[seen] = slot
        seen += before == 0.0
        sums[slot] = before + weight * table[codes[place]]
        place += 1
    return place, seen


@_jit
def _top_up(rows, codes, table, weight, place, high, base, sums, touched, seen):
    """Add one term to the remaining rows: by scanning its postings, or by lookups when the rows are few."""
    if place < high and seen * _STRIDE * (np.int64(rows[high - 1]) - rows[place] + 1) > (high - place) * len(sums):
        end = base + len(sums)
        while place < high:
            row = rows[place]
            if row >= end:
                break
            before = sums[row - base]
            if before != 0.0:
                sums[row - base] = before + weight * table[codes[place]]
            place += 1
        return
    for i in range(seen):
        row = base + touched[i]
        at = _seek(rows, place, high, row)
        if at < high and rows[at] == row:
            sums[touched[i]] += weight * table[codes[at]]


@_jit
def _thin(sums, touched, seen, least, base, mask, filtered):
    """Drop the rows of the window below `least` or not allowed; returns how many remain."""
    kept = 0
    for i in range(seen):
        slot = touched[i]
        total = sums[slot]
        stays = total >= least
        if filtered:
            stays = stays and mask[base + slot]
        touched[kept] = slot  # without a branch, which would be mispredicted half of the time
        kept += stays
        sums[slot] = total if stays else 0.0
    return kept


@_jit
def _best(rows, codes, table, lows, highs, bounds, weights, mask, filtered, heap, floor):
    """Rows and scores of one segment that reach the floor, which rises as the heap of the k best fills."""
    terms = len(lows)
    floor = max(floor, _prime(rows, codes, table, lows, highs, weights, mask, filtered, len(heap)))
    rest = np.zeros(terms + 1)
    for term in range(terms - 1, -1, -1):
        rest[term] = rest[term + 1] + bounds[term] * SLACK
    places = lows.copy()
    sums = np.zeros(_WINDOW)
    touched = np.empty(_WINDOW + 1, np.int32)
    found = np.empty(256, np.int32)
    scores = np.empty(256)
    count = 0
    walked = terms
    while True:
        while walked > 0 and rest[walked - 1] < floor:
            walked -= 1
        base = _FAR
        for term in range(walked):
            if places[term] < highs[term]:
                base = min(base, np.int64(rows[places[term]]))
        if base == _FAR:
            break
        seen = 0
        for term in range(walked):
            place, high = places[term], highs[term]
            places[term], seen = _walk(rows, codes, table, weights[term], place, high, base, sums, touched, seen)
        seen = _thin(sums, touched, seen, floor - rest[walked], base, mask, filtered)
        for term in range(walked, terms):
            if seen == 0:
                break
            places[term] = _seek(rows, places[term], highs[term], base)
            _top_up(rows, codes, table, weights[term], places[term], highs[term], base, sums, touched, seen)
            seen = _thin(sums, touched, seen, floor - rest[term + 1], base, mask, False)
        for i in range(seen):
            slot = touched[i]
            total = sums[slot]
            sums[slot] = 0.0
            if total < floor:
                continue
            if total > heap[0]:
                _push(heap, total)
                floor = max(floor, heap[0])
            if count == len(found):
                count = _sift(found, scores, count, floor)
                if 2 * count > len(found):
                    found = np.concatenate((found, np.empty(len(found), np.int32)))
                    scores = np.concatenate((scores, np.empty(len(scores))))
            found[count] = base + slot
            scores[count] = total
            count += 1
    count = _sift(found, scores, count, floor)
    return found[:count], scores[:count], floor


@_jit
def _sift(found, scores, count, floor):
    """Keep the rows that reach the floor."""
    kept = 0
    for i in range(count):
        if scores[i] >= floor:
            found[kept] = found[i]
            scores[kept] = scores[i]
            kept += 1
    return kept


@_jit
def _look_up(rows, codes, table, lows, highs, weights, wanted, sums):
    """Add all terms to the sums of the wanted rows."""
    for term in range(len(lows)):
        place = lows[term]
        for i in range(len(wanted)):
            place = _seek(rows, place, highs[term], wanted[i])
            if place == highs[term]:
                break
            if rows[place] == wanted[i]:
                sums[i] += weights[term] * table[codes[place]]


_ANY = np.ones(1, np.bool_)


class NumbaKernels(Kernels):
    """Kernels compiled on first use; numba caches the compiled code on disk."""

    def warm(self) -> None:
        """Compile now."""
        places = np.array([0]), np.array([1]), np.ones(1)
        part = SegmentPlan(np.zeros(1, np.int32), np.zeros(1, np.uint16), np.ones(1), *places, np.ones(1))
        plan = QueryPlan(["warm"], np.ones(1), [part])
        self.best(plan, k=1, size=1, mask=None)
        self.look_up(plan, part.rows)

    def best(self, plan: QueryPlan, /, *, k: int, size: int, mask: Flags | None) -> tuple[RowNumbers, Floats]:
        """The k best rows and all that tie with them; each segment starts with the floor of the one before."""
        filtered = mask is not None
        mask = _ANY if mask is None else mask
        heap = np.zeros(min(k, size))
        floor = 0.0
        found, scores = [], []
        for part in plan.parts:
            rows, sums, floor = _best(*part[:6], plan.weights, mask, filtered, heap, floor)
            found.append(rows)
            scores.append(sums)
        return (found[0], scores[0]) if len(found) == 1 else (np.concatenate(found), np.concatenate(scores))

    def look_up(self, plan: QueryPlan, rows: RowNumbers, /) -> Floats:
        """The scores of the given rows (ascending), 0 where nothing matches."""
        sums = np.zeros(len(rows))
        for part in plan.parts:
            _look_up(*part[:5], plan.weights, rows, sums)
        return sums
