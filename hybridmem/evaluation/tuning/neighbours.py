"""Possible seeds of spreading and their neighbours: the part of the graph that a replay needs.

A candidate that at least `seeds` others beat in every arm, in rank and in score, is below them under all weights,
modes and floors. It is never a seed, so its neighbours are not looked up.

The activation from a seed is `max over h ≤ hops of decay^h · W(h)`, where W(h) is the best product of edge weights
along at most h edges. With W stored for each h, hops and decay can change without another walk of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridmem.core.types import Graph

__all__ = ["Edges", "PathWeights", "Reached", "Walks", "possible_seeds", "to_edges"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
MOST_COMPARED = 4_000
"""Above this number all candidates are possible seeds: comparing them in pairs would cost more than it saves."""


MISSING = -1
"""The position of a neighbour for which the graph has no item."""


def possible_seeds(raw: Floats, rank: Floats, *, seeds: int) -> Bools:
    """Which candidates (columns; one row per arm) are beaten or equalled in everything by fewer than `seeds` others."""
    size = raw.shape[1]
    if size <= seeds or size > MOST_COMPARED:
        return np.ones(size, dtype=np.bool_)
    below = ~np.eye(size, dtype=np.bool_)
    for scores, places in zip(np.where(np.isnan(raw), -np.inf, raw), rank, strict=True):
        below &= scores[:, None] >= scores[None, :]
        below &= places[:, None] <= places[None, :]
    return np.asarray(below.sum(axis=0) < seeds)


class PathWeights(NamedTuple):
    """The neighbours of one candidate, and W(1), W(2), … of each: (targets, hops)."""

    targets: list[str]
    weights: Floats


Reached = Mapping[str, PathWeights]


class Walks:
    """W(1) … W(hops) from candidates to their neighbours, cached per graph."""

    def __init__(self, hops: int) -> None:
        self.hops = hops
        self._cached: dict[tuple[int, str], PathWeights] = {}
        self._items: dict[tuple[int, str], Any] = {}
        self._graphs: dict[int, Graph] = {}  # a reference keeps the id unique

    def of(self, graph: Graph, key: str) -> PathWeights:
        """The neighbours of a key with their path weights."""
        name = (id(graph), key)
        if name not in self._cached:
            self._graphs[id(graph)] = graph
            by_hops = [graph.spread({key: 1.0}, hops=hops, decay=1.0) for hops in range(1, self.hops + 1)]
            targets = list(by_hops[-1])
            weights = np.array([[some.get(to, 0.0) for some in by_hops] for to in targets], dtype=np.float64)
            self._cached[name] = PathWeights(targets, weights.reshape(-1, self.hops))
        return self._cached[name]

    def items(self, graph: Graph, keys: Sequence[str]) -> dict[str, Any]:
        """The items of keys that no arm listed, without those that are not in the graph."""
        number = id(graph)
        missing = [key for key in keys if (number, key) not in self._items]
        self._items.update(((number, key), item) for key, item in zip(missing, graph.items(missing), strict=True))
        items = {key: self._items[number, key] for key in keys}
        return {key: item for key, item in items.items() if item is not None}


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges from a seed number to a flat position, with W(h) of the path."""

    start: Ints
    to: Ints
    weights: Floats
    """(hops, edges)"""

    def __len__(self) -> int:
        return len(self.to)

    def values(self, hops: int, decay: float) -> Floats:
        """The share of a seed's score that each edge passes on."""
        steps = self.weights[: max(1, min(hops, len(self.weights)))]
        scaled = steps * (decay ** np.arange(1.0, len(steps) + 1.0))[:, None]
        best: Floats = scaled.max(axis=0)
        return best


def to_edges(rows: Sequence[tuple[Sequence[str], Reached]], *, wide: int) -> tuple[Ints, Edges]:
    """Flat positions of each case's possible seeds, (cases, most seeds), and the edges that leave them.

    A case with fewer seeds is padded with its last column, which holds no candidate.
    """
    most = max([1, *(len(reached) for _, reached in rows)])
    seeds = np.repeat(np.arange(1, len(rows) + 1)[:, None] * wide - 1, most, axis=1)
    numbers: list[int] = []
    sizes: list[int] = []
    to: list[int] = []
    weights: list[Floats] = [np.zeros((0, 1))]
    for row, (keys, reached) in enumerate(rows):
        place = dict(zip(keys, range(row * wide, row * wide + len(keys)), strict=True)).get
        seeds[row, : len(reached)] = [place(key, MISSING) for key in reached]
        for number, ways in enumerate(reached.values(), start=row * most):
            numbers.append(number)
            sizes.append(len(ways.targets))
            to += [place(target, MISSING) for target in ways.targets]
            weights.append(ways.weights)
    there = np.array(to, dtype=np.int64)
    known = there != MISSING
    start = np.repeat(np.array(numbers, dtype=np.int64), np.array(sizes, dtype=np.int64))
    table = np.concatenate(weights[1:] or weights)[known].T
    return seeds, Edges(start[known], there[known], np.ascontiguousarray(table))
