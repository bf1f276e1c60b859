"""The same loops compiled by numba (extra `fast`): the same bits, sooner. Importing this module imports numba.

`_best` walks the rows in windows that fit the first-level cache. Terms whose bounds together cannot reach the k-th best
score so far are not walked at all: a row that the other terms found is merely looked up in them.
"""

# numba compiles plain functions of arrays: no classes, no keywords, loops written out
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: ANN001, ANN202, C901, PLR0912

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from hybridmem.indexes.bm25.postings import Floats, Rows
from hybridmem.indexes.bm25.scoring import SLACK, Flags, Kernels, Part, Plan

__all__ = ["NumbaKernels"]

_WINDOW = 2048
_FAR = np.int64(1 << 40)
_PRIME = 8192
"""A heavy term with at most so many rows is looked through first, for a floor to start from ..."""
_TRIES = 2
"""... and one more."""
_STRIDE = 16
"""Walking past so many postings costs as much as looking one row up."""


def _jit(function: Any) -> Any:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # nowhere to keep compiled code: compile anew in each process
        return numba.njit(nogil=True)(function)


@_jit
def _push(heap, score):
    """Put a score in place of the smallest of the heap."""
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
    """The first place from `low` on whose row is not below the target: in leaps, then by halving."""
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
def _prime(rows, codes, table, lows, highs, weights, fit, filtered, k):
    """A floor to start from: the k-th best of what a single heavy term gives."""
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
            if score > heap[0] and (not filtered or fit[rows[place]]):
                _push(heap, score)
        floor = max(floor, heap[0])
        tried += 1
        if tried == _TRIES:
            break
    return floor


@_jit
def _walk(rows, codes, table, weight, place, high, base, sums, touched, seen):
    """Add one term to the window; rows that had nothing before are noted. Where the term goes on, and how many."""
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
    """Add one term to the rows still in play: by walking it, or by looking each row up where they are few."""
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
def _thin(sums, touched, seen, least, base, fit, filtered):
    """Drop the rows of the window that have too little, or are not fit; how many are left."""
    kept = 0
    for i in range(seen):
        slot = touched[i]
        total = sums[slot]
        stays = total >= least
        if filtered:
            stays = stays and fit[base + slot]
        touched[kept] = slot  # no branch on the score: it would be guessed wrong half of the time
        kept += stays
        sums[slot] = total if stays else 0.0
    return kept


@_jit
def _best(rows, codes, table, lows, highs, bounds, weights, fit, filtered, heap, floor):
    """Rows and scores of one part that reach the floor, which rises as the heap of the k best fills."""
    terms = len(lows)
    floor = max(floor, _prime(rows, codes, table, lows, highs, weights, fit, filtered, len(heap)))
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
        seen = _thin(sums, touched, seen, floor - rest[walked], base, fit, filtered)
        for term in range(walked, terms):
            if seen == 0:
                break
            places[term] = _seek(rows, places[term], highs[term], base)
            _top_up(rows, codes, table, weights[term], places[term], highs[term], base, sums, touched, seen)
            seen = _thin(sums, touched, seen, floor - rest[term + 1], base, fit, False)
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
    """Keep what reaches the floor."""
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
    """Compiled on first use; the compiled code is kept on disk."""

    def warm(self) -> None:
        """Compile now."""
        places = np.array([0]), np.array([1]), np.ones(1)
        part = Part(np.zeros(1, np.int32), np.zeros(1, np.uint16), np.ones(1), *places)
        plan = Plan(["warm"], np.ones(1), [part])
        self.best(plan, k=1, size=1, fit=None)
        self.look_up(plan, part.rows)

    def best(self, plan: Plan, /, *, k: int, size: int, fit: Flags | None) -> tuple[Rows, Floats]:
        """The k best rows and all that tie with them: part by part, with the floor that the parts before reached."""
        filtered = fit is not None
        fit = _ANY if fit is None else fit
        heap = np.zeros(min(k, size))
        floor = 0.0
        found, scores = [], []
        for part in plan.parts:
            rows, sums, floor = _best(*part, plan.weights, fit, filtered, heap, floor)
            found.append(rows)
            scores.append(sums)
        return (found[0], scores[0]) if len(found) == 1 else (np.concatenate(found), np.concatenate(scores))

    def look_up(self, plan: Plan, rows: Rows, /) -> Floats:
        """The scores of the given rows (ascending), 0 where nothing matches."""
        sums = np.zeros(len(rows))
        for part in plan.parts:
            _look_up(*part[:5], plan.weights, rows, sums)
        return sums
