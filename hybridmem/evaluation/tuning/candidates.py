"""Recorded lists of many cases as numpy arrays (arms, cases, candidates), padded to the longest case plus one.

Of the graph a replay needs only the neighbours of possible seeds. A candidate that at least `seeds` others beat in
every arm, in rank and in score, is below them under all weights, modes and floors, so it is never a seed. Not so in a
pool: a candidate that an arm of weight 0 lists alone, or none, stays when a gate removes those that beat it.

The activation from a seed is `max over h ≤ hops of decay^h · W(h)`, where W(h) is the best product of edge weights
along at most h edges. With W stored for each h, hops and decay can change without another walk of the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridmem.core.times import epoch
from hybridmem.core.types import Graph, Ranking
from hybridmem.evaluation.cases import Case
from hybridmem.evaluation.recording import Recorded
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import HalfLife, Spread
from hybridmem.fusion.stages.base import Context
from hybridmem.fusion.stages.evidence import PARTS, Turns, previous_positions

__all__ = [
    "Bools",
    "CaseCandidates",
    "Columns",
    "Edges",
    "Floats",
    "Ints",
    "Walks",
    "possible_seeds",
    "read_candidates",
    "read_columns",
    "to_columns",
]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
DAY = 86_400.0
MOST_COMPARED = 4_000
"""Above this number all candidates are possible seeds: comparing them in pairs would cost more than it saves."""
MISSING = -1
"""The position of a neighbour for which the graph has no item."""
_PARTS = tuple(PARTS)


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


@dataclass(frozen=True, slots=True)
class Columns:
    """Everything a recipe reads. Candidates are in the order that breaks ties: best rank, then key."""

    names: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    raw: Floats
    """Raw scores by arm, NaN where an arm has no score."""
    rank: Floats
    """Ranks from 1 by arm, infinity for what the arm did not list."""
    fresh: Floats
    """0.5^(age / half-life), 0 without a date."""
    baseline: Floats
    """The raw score of an unrelated item, by arm: (arms, cases, 1)."""
    in_pool: Bools
    """Candidates of the pool, which stay candidates when no arm lists them."""
    evidence: Floats
    """The parts of evidence that do not depend on the merge; 0 for the others: (parts, cases, candidates)."""
    previous: Ints
    """The column of the previous turn, where that asks a question; the last column for none."""
    mentions: Floats
    """Rows (case, column that mentions or −1 for the query, column that is mentioned, weight of the name)."""
    shared: Floats
    """Rows (case, column, column of another candidate whose text has the same name, weight of the name)."""
    sources: Ints
    threads: Ints
    """Numbers of sources and threads, unique over all cases; -1 for none."""
    seeds: Ints
    edges: Edges

    @property
    def listed(self) -> Bools:
        """What each arm listed."""
        listed: Bools = np.isfinite(self.rank)
        return listed

    def has_evidence(self, part: str) -> bool:
        """Whether a part of evidence is above 0 for any candidate."""
        if part == "thread":
            return bool((self.threads >= 0).any())
        if part == "mention":
            return len(self.mentions) > 0
        if part == "shared_name":
            return len(self.shared) > 0
        if part == "previous_question":
            return bool((self.previous < self.previous.shape[1] - 1).any())
        return bool(self.evidence[_PARTS.index(part)].any())


class CaseCandidates(NamedTuple):
    """One case: its candidates, the arms' scores and ranks of those listed, and what seeds would activate."""

    keys: list[str]
    items: list[Any]
    raw: Floats
    rank: Floats
    reached: Reached


def read_columns(
    records: Sequence[Recorded], cases: Sequence[Case], *, recipe: Fusion, walks: Walks | None = None
) -> Columns:
    """Columns for replaying this recipe, and others that differ in their numbers only."""
    walks = walks or Walks((recipe.spread or Spread()).hops)
    return to_columns([read_candidates(record, recipe, walks) for record in records], records, cases, recipe=recipe)


def to_columns(
    rows: Sequence[CaseCandidates], records: Sequence[Recorded], cases: Sequence[Case], *, recipe: Fusion
) -> Columns:
    """The candidates of all cases in arrays, with the fields that stages read."""
    names = tuple(arm.name for arm in records[0].lists)
    wide = max(len(row.keys) for row in rows) + 1
    by_arm, plain = (len(names), len(rows), wide), (len(rows), wide)
    seeds, edges = to_edges([(row.keys, row.reached) for row in rows], wide=wide)
    columns = Columns(
        names=names,
        keys=tuple(tuple(row.keys) for row in rows),
        raw=np.full(by_arm, np.nan),
        rank=np.full(by_arm, np.inf),
        fresh=np.zeros(plain),
        baseline=np.zeros((len(names), len(rows), 1)),
        in_pool=np.zeros(plain, dtype=np.bool_),
        evidence=np.zeros((len(_PARTS), *plain)),
        previous=np.full(plain, wide - 1, dtype=np.int64),
        mentions=np.array(list(_mentions(rows, records)), np.float64).reshape(-1, 4),
        shared=np.array(list(_shared(rows, records)), np.float64).reshape(-1, 4),
        sources=np.full(plain, -1, dtype=np.int64),
        threads=np.full(plain, -1, dtype=np.int64),
        seeds=seeds,
        edges=edges,
    )
    taken = itertools.count()
    for at, (row, record, case) in enumerate(zip(rows, records, cases, strict=True)):
        columns.raw[:, at, : row.raw.shape[1]] = row.raw
        columns.rank[:, at, : row.rank.shape[1]] = row.rank
        columns.baseline[:, at, 0] = [arm.baseline for arm in record.lists]
        pooled = set() if record.pool is None or not recipe.complete else set(record.pool.candidates.ids)
        columns.in_pool[at, : len(row.keys)] = [key in pooled for key in row.keys]
        _fill_fields(columns, at, row.items, record, recipe, case, taken)
    return columns


def read_candidates(record: Recorded, recipe: Fusion, walks: Walks) -> CaseCandidates:
    """The keys of all lists by best rank, then those that possible seeds would activate in the graph."""
    best: dict[str, int] = {}
    items: dict[str, Any] = {}
    lists = [record.reader.keys(arm.items) for arm in record.lists]
    for keys, arm in zip(lists, record.lists, strict=True):
        for place, (key, item) in enumerate(zip(keys, arm.items, strict=True)):
            if key not in best:
                best[key], items[key] = place, item
            elif place < best[key]:
                best[key] = place
    order = sorted(best, key=lambda key: (best[key], key))
    if record.pool is not None and recipe.complete:
        pooled = dict(zip(record.pool.candidates.ids, record.pool.items, strict=True))
        order += sorted(pooled.keys() - best.keys())
        items = {**pooled, **items}
    raw, rank = _votes(record, lists, order)
    graph = record.graph
    if graph is None:
        return CaseCandidates(order, [items[key] for key in order], raw, rank, {})
    able = np.ones(len(order), np.bool_)  # evidence may raise any candidate
    if recipe.evidence is None:
        able = possible_seeds(raw, rank, seeds=(recipe.spread or Spread()).seeds)
        if record.pool is not None and recipe.complete:  # a gate removes only what arms with a weight list
            able |= np.isinf(rank).any(axis=0)
    reached = {key: walks.of(graph, key) for key, can in zip(order, able.tolist(), strict=True) if can}
    new = sorted(set().union(*(paths.targets for paths in reached.values())).difference(order))
    activated = walks.items(graph, new)
    both = [*(items[key] for key in order), *activated.values()]
    return CaseCandidates([*order, *activated], both, raw, rank, reached)


def _votes(record: Recorded, lists: Sequence[Sequence[str]], order: Sequence[str]) -> tuple[Floats, Floats]:
    """Raw scores and ranks, a row for each arm."""
    place = {key: column for column, key in enumerate(order)}
    raw, rank = np.full((len(lists), len(order)), np.nan), np.full((len(lists), len(order)), np.inf)
    for row, (keys, arm) in enumerate(zip(lists, record.lists, strict=True)):
        scores: Mapping[str, float] = arm.known or {}
        if record.pool is not None and arm.name in record.pool.candidates.scores:
            scores = dict(zip(record.pool.candidates.ids, record.pool.candidates.scores[arm.name], strict=True))
        known = {place[key]: score for key, score in scores.items() if score and key in place}
        raw[row, list(known)] = list(known.values())
        if keys:
            size = len(keys)
            where = [place[key] for key in reversed(keys)]  # reversed, so that a repeated key keeps its best rank
            given = arm.scores if arm.scores is not None else [1.0 - at / size for at in range(size)]
            raw[row, where] = given[::-1]
            rank[row, where] = np.arange(size, 0.0, -1.0)
    return raw, rank


def _fill_fields(
    columns: Columns,
    row: int,
    items: Sequence[Any],
    record: Recorded,
    recipe: Fusion,
    case: Case,
    taken: Iterator[int],
) -> None:
    size, column = len(items), record.reader.column
    boost = recipe.boost if isinstance(recipe.boost, HalfLife) else HalfLife()
    when = np.array(list(map(epoch, boost.dates(record.reader, items))), dtype=np.float64)  # None: NaN
    age = np.maximum(record.now - when, 0.0)
    columns.fresh[row, :size] = np.nan_to_num(0.5 ** (age / (boost.days * DAY)), nan=0.0)
    if recipe.dedup is not None:
        key = recipe.dedup.key
        columns.sources[row, :size] = _numbers(list(map(key, items)) if callable(key) else column(items, key), taken)
    columns.threads[row, :size] = _numbers(column(items, "thread"), taken)
    _fill_evidence(columns, row, items, record, case)


def _mentions(rows: Sequence[CaseCandidates], records: Sequence[Recorded]) -> Iterator[tuple[int, int, int, float]]:
    for at, (row, record) in enumerate(zip(rows, records, strict=True)):
        if record.pool is None or not record.pool.candidates.mentions:
            continue
        place = {key: column for column, key in enumerate(row.keys)}
        ids = record.pool.candidates.ids
        for link in record.pool.candidates.mentions:
            source, target = -1 if link.source < 0 else place.get(ids[link.source]), place.get(ids[link.target])
            if source is not None and target is not None:
                yield at, source, target, link.weight


def _shared(rows: Sequence[CaseCandidates], records: Sequence[Recorded]) -> Iterator[tuple[int, int, int, float]]:
    for at, (row, record) in enumerate(zip(rows, records, strict=True)):
        if record.pool is None or not record.pool.candidates.shared:
            continue
        place = {key: column for column, key in enumerate(row.keys)}
        ids = record.pool.candidates.ids
        for name in record.pool.candidates.shared:
            columns = [place[ids[member]] for member in name.members if ids[member] in place]
            for source, target in itertools.permutations(columns, 2):
                yield at, source, target, name.weight


def _fill_evidence(columns: Columns, row: int, items: Sequence[Any], record: Recorded, case: Case) -> None:
    """The values of the parts, from the functions that the recipe itself uses, with merged scores of 1."""
    size = len(items)
    if not size:
        return
    context = Context(case.query, record.now, record.reader, pool=record.pool)
    turns = Turns(Ranking(list(columns.keys[row]), list(items), [1.0] * size), context)
    for number, part in enumerate(_PARTS):
        found = PARTS[part](turns)
        if found is not None and part == "previous_question":
            applies = np.flatnonzero(found.values)
            columns.previous[row, applies] = previous_positions(turns)[applies]
        elif found is not None and part not in ("thread", "mention", "shared_name"):
            columns.evidence[number, row, :size] = found.values


def _numbers(names: Sequence[Any], taken: Iterator[int]) -> list[int]:
    """A new number for each different name; -1 for None."""
    known = {name: -1 if name is None else next(taken) for name in dict.fromkeys(names)}
    return [known[name] for name in names]
