"""Recorded lists of many cases as numpy arrays (arms, cases, candidates), padded to the longest case plus one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hybridmem.core.times import as_datetime, epoch
from hybridmem.evaluation.cases import Case
from hybridmem.evaluation.recording import Recorded
from hybridmem.evaluation.tuning.neighbours import Bools, Edges, Floats, Ints, Reached, Walks, possible_seeds, to_edges
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import HalfLife, Spread
from hybridmem.fusion.stages.prior import named_period

__all__ = ["Bools", "CaseCandidates", "Columns", "Floats", "Ints", "read_candidates", "read_columns", "to_columns"]

DAY = 86_400.0


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
    words: Floats
    dated: Bools
    """Whether it is from the date that the query names."""
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
        words=np.zeros(plain),
        dated=np.zeros(plain, dtype=np.bool_),
        sources=np.full(plain, -1, dtype=np.int64),
        threads=np.full(plain, -1, dtype=np.int64),
        seeds=seeds,
        edges=edges,
    )
    taken = itertools.count()
    for at, (row, record, case) in enumerate(zip(rows, records, cases, strict=True)):
        columns.raw[:, at, : row.raw.shape[1]] = row.raw
        columns.rank[:, at, : row.rank.shape[1]] = row.rank
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
    raw, rank = _votes(record, lists, order)
    graph = record.graph
    if graph is None:
        return CaseCandidates(order, [items[key] for key in order], raw, rank, {})
    able = possible_seeds(raw, rank, seeds=(recipe.spread or Spread()).seeds).tolist()
    reached = {key: walks.of(graph, key) for key, can in zip(order, able, strict=True) if can}
    new = sorted(set().union(*(paths.targets for paths in reached.values())).difference(order))
    activated = walks.items(graph, new)
    both = [*(items[key] for key in order), *activated.values()]
    return CaseCandidates([*order, *activated], both, raw, rank, reached)


def _votes(record: Recorded, lists: Sequence[Sequence[str]], order: Sequence[str]) -> tuple[Floats, Floats]:
    """Raw scores and ranks, a row for each arm."""
    place = {key: column for column, key in enumerate(order)}
    raw, rank = np.full((len(lists), len(order)), np.nan), np.full((len(lists), len(order)), np.inf)
    for row, (keys, arm) in enumerate(zip(lists, record.lists, strict=True)):
        known = {place[key]: score for key, score in (arm.known or {}).items() if score and key in place}
        raw[row, list(known)] = list(known.values())
        if keys:
            size = len(keys)
            where = [place[key] for key in reversed(keys)]  # reversed, so that a repeated key keeps its best rank
            scores = arm.scores if arm.scores is not None else [1.0 - at / size for at in range(size)]
            raw[row, where] = scores[::-1]
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
    if recipe.substance is not None:
        known = column(items, "words")
        if None in known:
            texts = column(items, "text")
            known = [len((text or "").split()) if n is None else n for n, text in zip(known, texts, strict=True)]
        columns.words[row, :size] = known
    period = None if recipe.dated is None else named_period(case.query)
    if recipe.dated is not None and period is not None:
        moments = map(as_datetime, column(items, recipe.dated.field))
        columns.dated[row, :size] = [when is not None and period.contains(when) for when in moments]


def _numbers(names: Sequence[Any], taken: Iterator[int]) -> list[int]:
    """A new number for each different name; -1 for None."""
    known = {name: -1 if name is None else next(taken) for name in dict.fromkeys(names)}
    return [known[name] for name in names]
