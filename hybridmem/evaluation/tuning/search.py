"""Coordinate ascent over settings, one group after another; results are cached for all folds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hybridmem.evaluation.cases import Case
from hybridmem.evaluation.metrics import judge, metric
from hybridmem.evaluation.recording import Curve, Recorded, replay
from hybridmem.evaluation.tuning.candidates import Bools, Floats, Ints, Walks, read_candidates, to_columns
from hybridmem.evaluation.tuning.settings import Setting, read_setting, with_setting
from hybridmem.evaluation.tuning.vectorized import VectorizedRanking
from hybridmem.fusion.recipe import Fusion, Mode
from hybridmem.fusion.stages.evidence import PARTS

__all__ = ["Search", "simplex"]

STEP = 0.001
"""The least gain on the training cases for which a setting is changed: smaller ones are noise."""
ERRORS = 1.0
"""The least gain in standard errors of the gain."""
ROUNDS = 4
BATCH = 128
CONSTANTS = (1.0, 5.0, 10.0, 20.0, 60.0)
STRENGTHS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SPREADS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25)
WEIGHTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
"""Weights of evidence."""
HOPS_AND_DECAYS = ((1, 0.5), (2, 0.25), (2, 0.5), (2, 0.75))
"""Pairs of hops and decay; over one hop, decay and strength are equivalent."""
FLOORS: Mapping[str, tuple[float | None, ...]] = {
    "bm25": (None, 0.5, 1.0, 2.0, 4.0),
    "vector": (None, 0.1, 0.2, 0.3, 0.4, 0.5),
}
Group = Callable[[Setting], list[Setting]]


class Search:
    """Coordinate ascent over settings; the values of every tried setting are cached for all folds."""

    def __init__(
        self,
        records: Sequence[Sequence[Recorded]],
        cases: Sequence[Case],
        recipe: Fusion,
        name: str,
        curves: Sequence[Curve],
    ) -> None:
        self.records, self.cases, self.base, self.metric, self.curves = records, cases, recipe, name, curves
        walks = Walks(max([2 if recipe.spread is None else recipe.spread.hops, *(hops for hops, _ in HOPS_AND_DECAYS)]))
        pooled = any(record.pool is not None for record in records[0])
        self._tried = replace(recipe, complete=True) if pooled else recipe  # but for RRF, see `with_setting`
        self._batches = [_batches(rows, cases, self._tried, walks) for rows in records]
        present = [batch.columns for _, batch in self._batches[0]]
        self.names = present[0].names
        self.start = read_setting(recipe, self.names)
        self._values: dict[Setting, Floats] = {}
        self._exact: dict[Setting, Floats] = {}
        self._graph = any(len(columns.edges) for columns in present)
        self._parts = [any(columns.has_evidence(part) for columns in present) for part in PARTS]
        self._dates = any(columns.fresh.any() for columns in present)
        self._groups = list(self._directions())

    @property
    def tried(self) -> int:
        """How many settings were tried."""
        return len(self._values)

    @property
    def steps(self) -> int:
        """The largest number of groups that one ascent tries."""
        return ROUNDS * len(self._groups)

    def recipe(self, setting: Setting) -> Fusion:
        """The recipe with a setting."""
        if setting == self.start:
            return self.base
        recipe = with_setting(self._tried, setting, self.names)
        return replace(recipe, **self.curves[setting.lexical]._asdict()) if setting.lexical else recipe

    def alone(self, arm: int) -> float:
        """The metric of one arm's own list."""
        lists = [record.reader.keys(record.lists[arm].items) for record in self.records[0]]
        return float(self._measure(lists, self.cases).mean())

    def _measure(self, lists: Sequence[Sequence[str]], cases: Sequence[Case]) -> Floats:
        measure, k = metric(self.metric)
        return measure(judge(lists, [case.relevant for case in cases], depth=k), k)

    def values(self, settings: Iterable[Setting]) -> list[Floats]:
        """The metric of every case for each setting, batch by batch so that arrays stay in the processor's cache."""
        wanted = list(settings)
        todo = [setting for setting in dict.fromkeys(wanted) if setting not in self._values]
        for lexical, some in itertools.groupby(sorted(todo, key=_lexical), key=_lexical):
            group = list(some)
            table = np.empty((len(group), len(self.cases)))
            for chosen, batch in self._batches[lexical]:
                table[:, chosen] = [batch.figures(one, self.metric) for one in group]
            self._values.update(zip(group, table, strict=True))
        return [self._values[setting] for setting in wanted]

    def exact(self, setting: Setting, cases: Bools | None = None) -> Floats:
        """The metric by the recipe itself (`Fusion.run`), for the given cases."""
        recipe, kept = self.recipe(setting), self._exact.setdefault(setting, np.full(len(self.cases), np.nan))
        wanted = np.ones(len(self.cases), dtype=np.bool_) if cases is None else cases
        todo = np.flatnonzero(wanted & np.isnan(kept)).tolist()
        asked, rows = [self.cases[row] for row in todo], [self.records[setting.lexical][row] for row in todo]
        k = metric(self.metric)[1]
        lists = [replay(recipe, row, query=case.query, k=k) for row, case in zip(rows, asked, strict=True)]
        kept[todo] = self._measure(lists, asked)
        return kept[wanted]

    def ascend(self, train: Bools, report: Callable[[int], None] = lambda _step: None) -> Setting:
        """The best setting for these cases that single changes from the present one lead to.

        `report` is called after each group with the number of groups done, of at most `steps`.
        """
        best = self.start
        figures = self.values([best])[0][train]
        done = 0
        for _ in range(ROUNDS):
            before = best
            for group in self._groups:
                options = group(best)
                table = np.stack(self.values(options))[:, train]
                top = int(table.mean(axis=1).argmax())
                gains = table[top] - figures
                if gains.mean() >= max(STEP, ERRORS * gains.std() / math.sqrt(len(gains))):
                    best, figures = options[top], table[top]
                done += 1
                report(done)
            if best == before:
                break
        report(self.steps)
        return best

    def _directions(self) -> Iterator[Group]:
        """The groups: functions from a setting to the settings that differ in one group."""
        if len(self._batches) > 1:
            yield lambda now: [replace(now, lexical=number) for number in range(len(self._batches))]
        yield self._merges
        for part, present in enumerate(self._parts):
            if present:
                yield partial(_weights, part=part)
        if self._graph:
            yield lambda now: [replace(now, spread=spread) for spread in dict.fromkeys((*SPREADS, now.spread))]
            yield _hops_and_decays
        if self._dates:
            yield lambda now: [replace(now, boost=strength) for strength in STRENGTHS]
        for arm, name in enumerate(self.names):
            if name in FLOORS:
                yield partial(_floors, arm=arm, floors=FLOORS[name])

    def _merges(self, now: Setting) -> list[Setting]:
        modes: list[tuple[Mode, float]] = [("rrf", c) for c in dict.fromkeys((*CONSTANTS, now.c))]
        modes += [("relative", now.c), ("convex", now.c), ("distribution", now.c)]
        both = itertools.product(modes, simplex(len(self.names)))
        return [replace(now, mode=mode, c=c, weights=weights) for (mode, c), weights in both]


def _lexical(setting: Setting) -> int:
    return setting.lexical


def _hops_and_decays(now: Setting) -> list[Setting]:
    if now.spread <= 0:
        return [now]
    return [
        replace(now, hops=hops, decay=decay) for hops, decay in dict.fromkeys((*HOPS_AND_DECAYS, (now.hops, now.decay)))
    ]


def _weights(now: Setting, *, part: int) -> list[Setting]:
    options = dict.fromkeys((*WEIGHTS, now.evidence[part]))
    modes: tuple[Mode, ...] = ("rrf", "convex") if now.mode == "rrf" else (now.mode,)  # RRF has no pool
    return [
        replace(now, mode=mode, evidence=(*now.evidence[:part], weight, *now.evidence[part + 1 :]))
        for mode in modes
        for weight in options
    ]


def _floors(now: Setting, *, arm: int, floors: Sequence[float | None]) -> list[Setting]:
    return [replace(now, floors=(*now.floors[:arm], floor, *now.floors[arm + 1 :])) for floor in floors]


def _batches(
    records: Sequence[Recorded], cases: Sequence[Case], recipe: Fusion, walks: Walks
) -> list[tuple[Ints, VectorizedRanking]]:
    """Batches of cases with their indices, small enough for the processor's cache.

    Cases of similar size share a batch, which keeps padding small.
    """
    rows = [read_candidates(record, recipe, walks) for record in records]
    order = np.array(sorted(range(len(rows)), key=lambda at: len(rows[at].keys)), dtype=np.int64)
    batches = []
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        mine = [(rows[at], records[at], cases[at]) for at in chosen.tolist()]
        some, asked, judged = (list(part) for part in zip(*mine, strict=True))
        columns = to_columns(some, asked, judged, recipe=recipe)
        batches.append((chosen, VectorizedRanking(columns, judged, recipe=recipe)))
    return batches


def simplex(arms: int) -> list[tuple[float, ...]]:
    """Weights that sum to 1: steps of 1/20 for two arms, coarser for more."""
    steps = {1: 1, 2: 20, 3: 10}.get(arms, 4)
    parts = itertools.product(range(steps + 1), repeat=arms - 1)
    return [tuple(n / steps for n in (*part, steps - sum(part))) for part in parts if sum(part) <= steps]
