"""Recorded answers of many cases as numpy columns: (arms, cases, candidates), padded to the longest case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridmem.evaluate import Case
from hybridmem.fusion import Fusion
from hybridmem.replay import Recorded
from hybridmem.stages import HalfLife, Spread
from hybridmem.stages.prior import named_period
from hybridmem.times import epoch, moment

__all__ = ["Bools", "Columns", "Floats", "read_columns"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Reached = dict[str, list[tuple[str, float]]]

NEAR = 3
"""Only hits within this many times the seeds in some list are thought to be seeds that bring in something new."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Everything a fusion looks at. Candidates stand in the order that breaks ties: best rank, then key."""

    names: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    raw: Floats
    """Raw scores by arm, NaN where an arm has no opinion."""
    rank: Floats
    """Ranks from 1 by arm, infinity for what the arm did not list."""
    fresh: Floats
    """0.5^(age / half-life), 0 without a date."""
    words: Floats
    dated: Bools
    """Whether it is from the day that the question names."""
    sources: Ints
    threads: Ints
    """Numbers of sources and threads, unique over all cases; -1 for none."""
    edges: tuple[Ints, Ints, Floats]
    """Flat positions: to whom, from whom (sorted), and what share arrives."""

    @property
    def listed(self) -> Bools:
        """What each arm listed."""
        found: Bools = np.isfinite(self.rank)
        return found


def read_columns(records: Sequence[Recorded], cases: Sequence[Case], *, recipe: Fusion) -> Columns:
    """Columns for replaying this recipe, and others that differ in their numbers only."""
    paths: dict[tuple[int, str], Mapping[str, float]] = {}
    rows = [_candidates(record, recipe, paths) for record in records]
    names = tuple(arm.name for arm in records[0].lists)
    wide = max(1, *(len(keys) for keys, _ in rows))
    by_arm, plain = (len(names), len(rows), wide), (len(rows), wide)
    columns = Columns(
        names=names,
        keys=tuple(tuple(keys) for keys, _ in rows),
        raw=np.full(by_arm, np.nan),
        rank=np.full(by_arm, np.inf),
        fresh=np.zeros(plain),
        words=np.zeros(plain),
        dated=np.zeros(plain, dtype=np.bool_),
        sources=np.full(plain, -1, dtype=np.int64),
        threads=np.full(plain, -1, dtype=np.int64),
        edges=_edges([(keys, reached) for keys, reached in rows], wide),
    )
    numbers: dict[tuple[str, int, Any], int] = {}
    for row, (record, case) in enumerate(zip(records, cases, strict=True)):
        _fill_arms(columns, row, record)
        _fill_fields(columns, row, record, recipe, case, numbers)
    return columns


def _fill_arms(columns: Columns, row: int, record: Recorded) -> None:
    place = {key: column for column, key in enumerate(columns.keys[row])}
    for arm, found in enumerate(record.lists):
        for key, score in (found.known or {}).items():
            if key in place and score:
                columns.raw[arm, row, place[key]] = score
        keys = record.reader.keys(found.items)
        size = len(keys)
        scores = found.scores if found.scores is not None else [1.0 - rank / size for rank in range(size)]
        for rank in range(size - 1, -1, -1):  # backwards: of a repeated key the best rank stays
            columns.raw[arm, row, place[keys[rank]]] = scores[rank]
            columns.rank[arm, row, place[keys[rank]]] = rank + 1


def _fill_fields(
    columns: Columns,
    row: int,
    record: Recorded,
    recipe: Fusion,
    case: Case,
    numbers: dict[tuple[str, int, Any], int],
) -> None:
    items = _items(record, columns.keys[row])
    size, column = len(items), record.reader.column
    boost = replace(recipe.boost if isinstance(recipe.boost, HalfLife) else HalfLife(), strength=1.0)
    dates = [epoch(value) for value in column(items, boost.field)]
    columns.fresh[row, :size] = [0.0 if when is None else boost.factor(record.now - when) - 1.0 for when in dates]
    if recipe.dedup is not None:
        key = recipe.dedup.key
        found = list(map(key, items)) if callable(key) else column(items, key)
        columns.sources[row, :size] = [_number(numbers, ("source", row, source)) for source in found]
    if recipe.spread is not None and recipe.spread.thread:
        columns.threads[row, :size] = [_number(numbers, ("thread", row, name)) for name in column(items, "thread")]
    if recipe.substance is not None:
        known = column(items, "words")
        texts = column(items, "text") if None in known else [""] * size
        counts = [len((text or "").split()) if n is None else n for n, text in zip(known, texts, strict=True)]
        columns.words[row, :size] = counts
    period = None if recipe.dated is None else named_period(case.query)
    if recipe.dated is not None and period is not None:
        moments = map(moment, column(items, recipe.dated.field))
        columns.dated[row, :size] = [when is not None and period.holds(when) for when in moments]


def _number(numbers: dict[tuple[str, int, Any], int], name: tuple[str, int, Any]) -> int:
    return -1 if name[2] is None else numbers.setdefault(name, len(numbers))


def _candidates(
    record: Recorded, recipe: Fusion, paths: dict[tuple[int, str], Mapping[str, float]]
) -> tuple[list[str], Reached]:
    """The keys of all lists by best rank, then what the graph adds; and what each of them would bring to whom."""
    ranks: dict[str, int] = {}
    for arm in record.lists:
        for rank, key in enumerate(record.reader.keys(arm.items)):
            ranks[key] = min(rank, ranks.get(key, rank))
    keys = sorted(ranks, key=lambda key: (ranks[key], key))
    graph = record.graph
    if graph is None:
        return keys, {}
    spread = recipe.spread or Spread()
    reached: Reached = {}
    near = {key for key in keys if ranks[key] < NEAR * spread.seeds}
    for key in keys:
        one = (id(graph), key)  # cases share one still picture, unless they are asked as of different days
        if one not in paths:
            paths[one] = graph.spread({key: 1.0}, hops=spread.hops, decay=spread.decay)
        reached[key] = list(paths[one].items())
    fresh = sorted({to for key in keys if key in near for to, _ in reached[key]} - set(keys))
    known = {key for key, item in zip(fresh, graph.items(fresh), strict=True) if item is not None}
    allowed = known | set(keys)
    kept = {key: [(to, worth) for to, worth in targets if to in allowed] for key, targets in reached.items()}
    return [*keys, *(key for key in fresh if key in known)], kept


def _edges(rows: Sequence[tuple[Sequence[str], Reached]], wide: int) -> tuple[Ints, Ints, Floats]:
    found: list[tuple[int, int, float]] = []
    for row, (keys, reached) in enumerate(rows):
        place = {key: row * wide + column for column, key in enumerate(keys)}
        found += [(place[key], place[to], worth) for key, targets in reached.items() for to, worth in targets]
    found.sort()
    start, to, worth = zip(*found, strict=True) if found else ((), (), ())
    return np.array(to, dtype=np.int64), np.array(start, dtype=np.int64), np.array(worth, dtype=np.float64)


def _items(record: Recorded, keys: Sequence[str]) -> list[Any]:
    """The item behind each key: from the arm that listed it, or from the graph that reached it."""
    items: dict[str, Any] = {}
    for arm in record.lists:
        for key, item in zip(record.reader.keys(arm.items), arm.items, strict=True):
            items.setdefault(key, item)
    missing = [key for key in keys if key not in items]
    if missing and record.graph is not None:
        items.update(zip(missing, record.graph.items(missing), strict=True))
    return [items[key] for key in keys]
