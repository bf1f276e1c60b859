"""Who can be a seed of spreading, and whom it would reach: the part of the graph that a replay can ever need.

A candidate that at least `seeds` others beat in every arm, in rank and in score, is below them under all weights, all
modes and all floors. So it never is a seed, and its neighbours need not be looked up.

What a seed brings to a neighbour is `max over h ≤ hops of decay^h · W(h)`, where W(h) is the best product of edge
weights along at most h edges. With W kept for each h, hops and decay can be turned without asking the graph again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridmem.core.types import Graph

__all__ = ["Edges", "Reached", "Walks", "Ways", "lay_edges", "possible_seeds"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
MOST_COMPARED = 4_000
"""More candidates than this are all taken as possible seeds: comparing them in pairs would cost more than it saves."""


NOBODY = -1
"""Where a neighbour would stand that the graph cannot give an item for."""


def possible_seeds(raw: Floats, rank: Floats, *, seeds: int) -> Bools:
    """Which candidates (columns; a row for each arm) fewer than `seeds` others beat or equal in everything."""
    size = raw.shape[1]
    if size <= seeds or size > MOST_COMPARED:
        return np.ones(size, dtype=np.bool_)
    below = ~np.eye(size, dtype=np.bool_)
    for scores, places in zip(np.where(np.isnan(raw), -np.inf, raw), rank, strict=True):
        below &= scores[:, None] >= scores[None, :]
        below &= places[:, None] <= places[None, :]
    return np.asarray(below.sum(axis=0) < seeds)


class Ways(NamedTuple):
    """Whom one candidate reaches, and W(1), W(2), … of the way to each: (targets, hops)."""

    targets: list[str]
    worth: Floats


Reached = Mapping[str, Ways]


class Walks:
    """W(1) … W(hops) from one candidate to its neighbours, asked of each graph once."""

    def __init__(self, hops: int) -> None:
        self.hops = hops
        self._known: dict[tuple[int, str], Ways] = {}
        self._items: dict[tuple[int, str], Any] = {}
        self._graphs: dict[int, Graph] = {}  # held, so that no other graph gets the same number

    def of(self, graph: Graph, key: str) -> Ways:
        """The neighbours of a key with the worth of the way to them."""
        name = (id(graph), key)
        if name not in self._known:
            self._graphs[id(graph)] = graph
            found = [graph.spread({key: 1.0}, hops=hops, decay=1.0) for hops in range(1, self.hops + 1)]
            targets = list(found[-1])
            worth = np.array([[some.get(to, 0.0) for some in found] for to in targets], dtype=np.float64)
            self._known[name] = Ways(targets, worth.reshape(-1, self.hops))
        return self._known[name]

    def items(self, graph: Graph, keys: Sequence[str]) -> dict[str, Any]:
        """The items behind keys that no arm listed, without those that the graph does not have."""
        number = id(graph)
        missing = [key for key in keys if (number, key) not in self._items]
        self._items.update(((number, key), item) for key, item in zip(missing, graph.items(missing), strict=True))
        found = {key: self._items[number, key] for key in keys}
        return {key: item for key, item in found.items() if item is not None}


@dataclass(frozen=True, slots=True)
class Edges:
    """From which place among the seeds to which flat position, and W(h) of the way."""

    start: Ints
    to: Ints
    worth: Floats
    """(hops, edges)"""

    def __len__(self) -> int:
        return len(self.to)

    def values(self, hops: int, decay: float) -> Floats:
        """What share of a seed's score arrives."""
        steps = self.worth[: max(1, min(hops, len(self.worth)))]
        scaled = steps * (decay ** np.arange(1.0, len(steps) + 1.0))[:, None]
        best: Floats = scaled.max(axis=0)
        return best


def lay_edges(rows: Sequence[tuple[Sequence[str], Reached]], *, wide: int) -> tuple[Ints, Edges]:
    """Flat positions of each case's possible seeds, (cases, most seeds), and the edges that leave them.

    A case with fewer seeds is filled up with its last column, which is nobody's.
    """
    most = max([1, *(len(reached) for _, reached in rows)])
    seeds = np.repeat(np.arange(1, len(rows) + 1)[:, None] * wide - 1, most, axis=1)
    numbers: list[int] = []
    sizes: list[int] = []
    to: list[int] = []
    worth: list[Floats] = [np.zeros((0, 1))]
    for row, (keys, reached) in enumerate(rows):
        place = dict(zip(keys, range(row * wide, row * wide + len(keys)), strict=True)).get
        seeds[row, : len(reached)] = [place(key, NOBODY) for key in reached]
        for number, ways in enumerate(reached.values(), start=row * most):
            numbers.append(number)
            sizes.append(len(ways.targets))
            to += [place(target, NOBODY) for target in ways.targets]
            worth.append(ways.worth)
    there = np.array(to, dtype=np.int64)
    known = there != NOBODY
    start = np.repeat(np.array(numbers, dtype=np.int64), np.array(sizes, dtype=np.int64))
    table = np.concatenate(worth[1:] or worth)[known].T
    return seeds, Edges(start[known], there[known], np.ascontiguousarray(table))
