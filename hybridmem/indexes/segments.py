"""Immutable postings in numpy: which rows hold a term, and how often. Built once, merged later, never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

_next_key = count().__next__

__all__ = ["Postings", "Segment", "build", "merge"]

Ints = npt.NDArray[np.signedinteger[Any]]
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Postings:
    """One term's rows in one segment, ascending, with the code of each row's weighted frequency."""

    rows: npt.NDArray[np.int32]
    codes: Codes
    values: Floats
    """`values[code]` is the weighted term frequency: a byte or two per posting instead of eight, and exact."""
    most: float
    """No row here has a higher frequency."""
    shortest: float
    """No row here is shorter: with `most` it bounds what the term can add to any score."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Postings of a range of rows: term `terms[i]` owns the slice `starts[i]:starts[i + 1]`."""

    terms: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]
    codes: Codes
    values: Floats
    most: Floats
    shortest: Floats
    key: int = field(default_factory=_next_key, compare=False)

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, wanted: npt.NDArray[np.int32], /) -> list[Postings | None]:
        """The postings of each wanted term number, None where this segment has none."""
        found: list[Postings | None] = []
        size = len(self.terms)
        places: list[int] = self.terms.searchsorted(wanted).tolist()
        for term, at in zip(wanted.tolist(), places, strict=True):
            if at >= size or self.terms[at] != term:
                found.append(None)
                continue
            part = slice(self.starts[at], self.starts[at + 1])
            bounds = float(self.most[at]), float(self.shortest[at])
            found.append(Postings(self.rows[part], self.codes[part], self.values, *bounds))
        return found


def build(terms: Ints, rows: Ints, weights: Floats | None, lengths: Floats, /) -> Segment:
    """A segment from (term, row) pairs in any order; equal pairs add their weights (1 each when None)."""
    keys = terms.astype(np.int64) << 32 | rows
    if weights is None:
        keys.sort()
    else:
        order = keys.argsort(kind="stable")  # stable: fields are always added up in the same order
        keys, weights = keys[order], weights[order]
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1]))) if len(keys) else np.zeros(0, np.int64)
    if weights is None:
        amounts = np.diff(np.append(first, len(keys))).astype(np.float64)
    else:
        amounts = np.add.reduceat(weights, first) if len(first) else np.zeros(0)
    keys = keys[first]
    values, codes = _encode(amounts)
    return _assemble((keys >> 32).astype(np.int32), (keys & 0xFFFFFFFF).astype(np.int32), codes, values, lengths)


def merge(segments: Sequence[Segment], lengths: Floats, /, *, alive: npt.NDArray[np.bool_] | None = None) -> Segment:
    """One segment from several whose row ranges ascend, without the rows that are not alive."""
    values = np.unique(np.concatenate([segment.values for segment in segments]))
    terms, rows, codes = [], [], []
    for segment in segments:
        term = segment.terms.repeat(np.diff(segment.starts))
        code = values.searchsorted(segment.values).astype(_code_type(len(values)))[segment.codes]
        row = segment.rows
        if alive is not None:
            keep = alive[row]
            term, code, row = term[keep], code[keep], row[keep]
        terms.append(term)
        rows.append(row)
        codes.append(code)
    term = np.concatenate(terms)
    order = term.argsort(kind="stable")  # the rows of a term stay ascending, since the segments' ranges do
    return _assemble(term[order], np.concatenate(rows)[order], np.concatenate(codes)[order], values, lengths)


def _assemble(terms: Ints, rows: Ints, codes: Codes, values: Floats, lengths: Floats) -> Segment:
    """The segment of postings that are already sorted by term and row."""
    if not len(terms):
        none = np.zeros(0)
        return Segment(terms.astype(np.int32), np.zeros(1, np.int64), rows.astype(np.int32), codes, values, none, none)
    first = np.flatnonzero(np.concatenate(([True], terms[1:] != terms[:-1])))
    return Segment(
        terms=terms[first].astype(np.int32),
        starts=np.append(first, len(terms)).astype(np.int64),
        rows=rows.astype(np.int32, copy=False),
        codes=codes,
        values=values,
        most=values[np.maximum.reduceat(codes, first)],
        shortest=np.minimum.reduceat(lengths[rows], first),
    )


def _code_type(count: int) -> type[np.uint8 | np.uint16 | np.uint32]:
    return np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.uint32


def _encode(amounts: Floats) -> tuple[Floats, Codes]:
    values = np.unique(amounts)
    return values, values.searchsorted(amounts).astype(_code_type(len(values)))
