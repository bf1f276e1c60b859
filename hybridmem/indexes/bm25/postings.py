"""Immutable postings in numpy: the rows of each term with their frequencies; built, merged, never changed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

_next_key = count().__next__

__all__ = ["Codes", "Floats", "Ints", "RowNumbers", "Segment", "Slice", "build", "merge"]

Ints = npt.NDArray[np.signedinteger[Any]]
Floats = npt.NDArray[np.float64]
RowNumbers = npt.NDArray[np.int32]
Codes = npt.NDArray[np.unsignedinteger[Any]]


Slice = tuple[int, int, float, float]
"""One term in a segment: start and end of its postings, the highest frequency and the shortest length of its rows.

The last two give an upper bound of the term's contribution to a score.
"""

_ABSENT: Slice = (0, 0, 0.0, 0.0)
_FEW = 1 << 22


@dataclass(frozen=True, slots=True)
class Segment:
    """Postings of a range of rows: term `terms[i]` owns the slice `starts[i]:starts[i + 1]` of `rows` and `codes`.

    When nearly all terms occur, `terms` is 0, 1, 2, …, and a term that does not occur has an empty slice.

    A code is the number of a pair (weighted frequency, length of the row). There are few distinct pairs: a query
    computes the saturation once per pair, and each posting is one table lookup. Exact, with two bytes per posting.
    """

    terms: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    rows: RowNumbers
    codes: Codes
    frequencies: Floats
    lengths: Floats
    most: Floats
    shortest: Floats
    key: int = field(default_factory=_next_key, init=False, compare=False)
    _views: tuple[memoryview, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Reading single numbers from a memoryview is several times faster than from an array.
        arrays: tuple[Any, ...] = (self.terms, self.starts, self.most, self.shortest)
        views = tuple(memoryview(array) for array in arrays)
        object.__setattr__(self, "_views", views)

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, wanted: Iterable[int], /) -> list[Slice]:
        """The slice of each term, with its bounds."""
        terms, starts, most, shortest = self._views
        size = len(terms)
        every = size > 0 and terms[size - 1] == size - 1
        found: list[Slice] = []
        for term in wanted:
            at = term if every else bisect_left(terms, term)
            here = at < size and terms[at] == term and starts[at] < starts[at + 1]
            found.append((starts[at], starts[at + 1], most[at], shortest[at]) if here else _ABSENT)
        return found


def build(terms: Ints, rows: Ints, weights: Floats | None, lengths: Floats, /) -> Segment:
    """A segment from (term, row) pairs in any order; equal pairs add their weights (1 each when None).

    A pair whose weights add up to 0 or less is left out.
    """
    keys = terms.astype(np.int64) << 32 | rows
    if weights is None:
        keys.sort()
    else:
        order = keys.argsort(kind="stable")  # stable: fields are always added in the same order
        keys, weights = keys[order], weights[order]
    first = _run_starts(keys)
    if weights is None:
        amounts = np.diff(np.append(first, len(keys))).astype(np.float64)
    else:
        amounts = np.add.reduceat(weights, first) if len(first) else np.zeros(0)
        here = amounts > 0
        first, amounts = first[here], amounts[here]
    keys = keys[first]
    row = (keys & 0xFFFFFFFF).astype(np.int32)
    frequencies, by_frequency = _distinct(amounts)
    sizes, by_row = _distinct(lengths[row.min() : row.max() + 1] if len(row) else lengths[:0])
    both = by_frequency * max(len(sizes), 1) + (by_row[row - row.min()] if len(row) else row)
    pairs, codes = _numbered(both, len(frequencies) * len(sizes))
    pair_frequencies, pair_lengths = frequencies[pairs // max(len(sizes), 1)], sizes[pairs % max(len(sizes), 1)]
    return _assemble((keys >> 32).astype(np.int32), row, codes, pair_frequencies, pair_lengths)


def _distinct(values: Floats) -> tuple[Floats, Ints]:
    """The distinct values, ascending, and the index of each. Multiples of 0.5 are counted: faster than sorting."""
    halves = (values * 2).astype(np.int64)
    if not len(values) or halves.max() > _FEW or not np.array_equal(halves, values * 2):
        found, places = np.unique(values, return_inverse=True)
        return found, places.astype(np.int64)
    numbers, codes = _numbered(halves, int(halves.max()) + 1)
    return numbers / 2, codes.astype(np.int64)


def _numbered(values: Ints, limit: int) -> tuple[Ints, Codes]:
    """The distinct values below the limit, ascending, and the index of each."""
    if limit > _FEW:
        found, places = np.unique(values, return_inverse=True)
        return found, places.astype(_code_type(len(found)))
    here = np.zeros(limit, bool)
    here[values] = True
    found = np.flatnonzero(here)
    places = here.cumsum() - 1
    return found, places[values].astype(_code_type(len(found)))


def merge(segments: Sequence[Segment], /, *, alive: npt.NDArray[np.bool_] | None = None) -> Segment:
    """One segment from several with ascending row ranges, without deleted rows."""
    both = np.concatenate([segment.frequencies + 1j * segment.lengths for segment in segments])
    pairs, places = np.unique(both, return_inverse=True)
    codes = places.astype(_code_type(len(pairs)))
    all_terms, all_rows, all_codes = [], [], []
    start = 0
    for segment in segments:
        end = start + len(segment.frequencies)
        term = segment.terms.repeat(np.diff(segment.starts))
        row, code = segment.rows, codes[start:end][segment.codes]
        if alive is not None:
            keep = alive[row]
            term, code, row = term[keep], code[keep], row[keep]
        all_terms.append(term)
        all_rows.append(row)
        all_codes.append(code)
        start = end
    terms = np.concatenate(all_terms)
    order = terms.argsort(kind="stable")  # the rows of a term stay ascending, since the segments' ranges do
    rows = np.concatenate(all_rows)[order]
    return _assemble(terms[order], rows, np.concatenate(all_codes)[order], pairs.real.copy(), pairs.imag.copy())


def _assemble(terms: Ints, rows: RowNumbers, codes: Codes, frequencies: Floats, lengths: Floats) -> Segment:
    """The segment of postings that are already sorted by term and row."""
    first = _run_starts(terms)
    names = terms[first].astype(np.int32)
    counts = np.diff(np.append(first, len(terms)))
    most, shortest = np.zeros(0), np.zeros(0)
    if len(first):
        most = np.maximum.reduceat(frequencies[codes], first)
        shortest = np.minimum.reduceat(lengths[codes], first)
        if int(names[-1]) < 2 * len(names):  # nearly all terms occur: one slot per term, so that lookup needs no search
            names, counts, most, shortest = _dense(names, counts, most, shortest)
    starts = np.append(0, counts.cumsum()).astype(np.int64)
    return Segment(names, starts, rows, codes, frequencies, lengths, most, shortest)


def _dense(names: RowNumbers, *columns: Any) -> Any:
    """Columns with a slot for every number up to the last term, 0 where it does not occur."""
    size = int(names[-1]) + 1
    dense = [np.arange(size, dtype=np.int32)]
    for column in columns:
        whole = np.zeros(size, column.dtype)
        whole[names] = column
        dense.append(whole)
    return dense


def _run_starts(values: Ints) -> npt.NDArray[np.intp]:
    """The start of each run of equal values."""
    return np.flatnonzero(np.concatenate((np.ones(min(len(values), 1), bool), values[1:] != values[:-1])))


def _code_type(count: int) -> type[np.uint16 | np.uint32]:
    return np.uint16 if count <= 1 << 16 else np.uint32
