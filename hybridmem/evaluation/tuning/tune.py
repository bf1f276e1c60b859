"""Tuning of a recipe on labelled cases, with cross-validation.

Each arm runs once per case; after that a setting is arithmetic on the recorded lists. The search changes one group of
settings after another (k1 with b, mode with weights and c, each weight of evidence, spread, hops with decay, boost,
floors) on the training cases and is measured on the others with the recipe itself, for every fold. The result is
refused when the interval of the held-out gain includes zero, or when a sign-flip test finds it likely by chance.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridmem.core import validation
from hybridmem.core.protocols import Progress
from hybridmem.errors import ConfigError
from hybridmem.evaluation.cases import Case, check_cases, judged_cases
from hybridmem.evaluation.metrics import Interval, interval, judge, metric, sign_flip
from hybridmem.evaluation.metrics import metric as find_metric
from hybridmem.evaluation.recording import Curve, Recorded, curve_recorder, memory_curve, replay, retriever_recorder
from hybridmem.evaluation.tuning.candidates import Bools, Floats, Ints, Walks, read_candidates, to_columns
from hybridmem.evaluation.tuning.vectorized import Setting, VectorizedRanking, changes, read_setting, with_setting
from hybridmem.fusion.recipe import Fusion, Mode, recipe_to_dict, save_recipe
from hybridmem.fusion.stages.evidence import PARTS
from hybridmem.memory.memory import HybridMemory
from hybridmem.retrievers.arms import Explainer, SupportsExplainer

__all__ = ["CURVES", "DEPTH", "Search", "Tuning", "simplex", "tune"]

DEPTH = 50
"""How many hits each arm of a memory is asked for, when its recipe has no `depth`."""
CURVES = tuple(
    Curve(k1, b)
    for k1, b in (
        (0.6, 0.4),
        (0.9, 0.25),
        (0.9, 0.4),
        (0.9, 0.75),
        (1.2, 0.4),
        (1.2, 0.75),
        (1.6, 0.4),
        (1.6, 0.75),
        (2.0, 0.75),
    )
)


@dataclass(frozen=True)
class Tuning:
    """The result of tuning. `recipe` is the one to use: the old one when the tuned one was refused."""

    accepted: bool
    recipe: Fusion
    proposed: Fusion
    metric: str
    gain: Interval
    """Held-out gain over the old recipe, with its bounds."""
    chance: float
    """The p-value of the gain by a sign-flip test."""
    before: float
    after: float
    """Held-out means of the old and of the tuned recipe."""
    arms: Mapping[str, float]
    """The metric of each arm alone."""
    curve: Curve | None
    """BM25 constants of the proposal, where they were tuned."""
    changes: tuple[str, ...]
    settings: int
    seconds: float
    picks: tuple[Setting, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready data."""
        return {
            "accepted": self.accepted,
            "metric": self.metric,
            "gain": self.gain._asdict(),
            "chance": self.chance,
            "before": self.before,
            "after": self.after,
            "arms": dict(self.arms),
            "changes": list(self.changes),
            "curve": None if self.curve is None else self.curve._asdict(),
            "settings": self.settings,
            "seconds": self.seconds,
            "recipe": recipe_to_dict(self.recipe),
        }

    def save(self, path: str | Path, /, *, force: bool = False) -> None:
        """Write the tuned recipe to a file that `recipe=path` takes; `force` writes a refused one."""
        if not self.accepted and not force:
            raise ConfigError(f"refused: {self._gain()} is not significant; force=True writes the proposal anyway")
        save_recipe(self.proposed, path)

    def _gain(self) -> str:
        return (
            f"a held-out gain of {self.gain.mean:+.4f} [{self.gain.low:+.4f}, {self.gain.high:+.4f}] in {self.metric}"
        )

    def __str__(self) -> str:
        summary = f"{self._gain()} ({self.before:.4f} → {self.after:.4f})"
        proposal = "the best found, not used:" if self.changes else "nothing better was found"
        lines = [
            f"accepted: {summary}" if self.accepted else f"refused: {summary} is not significant",
            *([] if self.accepted else [f"  the recipe is unchanged; {proposal}"]),
            *(f"  {change}" if self.accepted else f"    {change}" for change in self.changes),
            *(f"  {name} alone: {value:.4f}" for name, value in self.arms.items()),
            f"  {self.settings} settings tried in {self.seconds:.1f} s",
        ]
        best = max(self.arms, key=self.arms.__getitem__)
        if self.arms[best] >= max(self.before, self.after):
            lines.insert(1, f"  fusing does not beat its best arm here: {best} alone is as good")
        return "\n".join(lines)


def tune(
    source: HybridMemory | SupportsExplainer | Callable[[Case], Recorded],
    cases: Iterable[Case],
    *,
    recipe: Fusion | None = None,
    metric: str = "ndcg@10",
    folds: int = 5,
    repeats: int = 2,
    level: float = 0.998,
    depth: int | None = None,
    curves: Sequence[Curve] = CURVES,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tuning:
    """Search for better settings on labelled cases; refused when the cross-validated gain is not significant.

    `source` is a `HybridMemory`, a `FusionRetriever` of either framework, or a function from a case to `Recorded`
    lists (then give the `recipe` to start from). Relevant ids of a retriever are the ids of its documents or nodes.
    `depth` is how many hits each arm is asked for (default: the recipe's own, or 100); the tuned recipe contains it.
    `progress(done, total)` counts the recorded cases first, then as many steps for the searches.
    `level` is the confidence with which the held-out gain must exclude zero. The default is strict, because even random
    labels reward a setting that prefers frequent answers.
    """
    start = time.perf_counter()
    judged = judged_cases(check_cases(cases))
    _check(judged, folds, repeats, level, metric)
    tuned: Any = source
    if isinstance(source, SupportsExplainer):
        tuned, recipe, depth = _retriever_source(source.explainer(), recipe, depth)
    base, record, known = _recorder(tuned, recipe, depth, curves)
    present: Fusion = recipe or tuned.recipe
    counter = _ProgressCounter(progress, len(judged), folds * repeats + 1)
    answers = [counter.recorded(record(case)) for case in judged]
    search = Search(list(zip(*answers, strict=True)), judged, base, metric, known)
    gains, picks = _cross_validate(search, counter, _folds(len(judged), folds, repeats, seed), len(judged))
    gain = interval(gains / repeats, level=level, seed=seed, resamples=10_000)
    best = search.ascend(np.ones(len(judged), dtype=np.bool_), counter.search(search.steps))
    proposed = search.recipe(best)
    chance = sign_flip(gains, seed=seed)
    accepted = gain.low > 0.0 and chance <= (1.0 - level) / 2.0 and best != search.start
    before = float(search.exact(search.start).mean())
    return Tuning(
        accepted=accepted,
        recipe=proposed if accepted else present,
        proposed=present if best == search.start else proposed,
        metric=metric,
        gain=gain,
        chance=chance,
        before=before,
        after=before + gain.mean,
        arms={name: search.alone(arm) for arm, name in enumerate(search.names)},
        curve=known[best.lexical] if known else None,
        changes=tuple(changes(search.start, best, search.names, known)),
        settings=search.tried,
        seconds=time.perf_counter() - start,
        picks=tuple(picks),
    )


def _check(judged: Sequence[Case], folds: int, repeats: int, level: float, name: str) -> None:
    """Validate the arguments before an arm runs."""
    validation.integer("folds", folds, "2 folds or more", low=2)
    if len(judged) < 2 * folds:
        raise ConfigError(
            f"{len(judged)} cases with relevant ids are too few for folds={folds}: give at least {2 * folds}, "
            "or fewer folds; with less than a few dozen no gain is significant"
        )
    validation.integer("repeats", repeats, "at least 1", low=1)
    validation.number("level", level, "a confidence between 0 and 1, such as 0.998", low=0, above=True)
    if level >= 1:
        validation.refuse("level", level, "a confidence between 0 and 1, such as 0.998")
    find_metric(name)


def _cross_validate(
    search: Search, progress: _ProgressCounter, folds: Iterable[NDArray[np.bool_]], cases: int
) -> tuple[NDArray[np.float64], list[Setting]]:
    """The gain of each held-out case by the settings tuned on the others, summed over the repetitions."""
    gains, picks = np.zeros(cases), []
    for held in folds:
        pick = search.ascend(~held, progress.search(search.steps))
        picks.append(pick)
        gains[held] += search.exact(pick, held) - search.exact(search.start, held)
    return gains, picks


def _folds(cases: int, folds: int, repeats: int, seed: int) -> Iterator[NDArray[np.bool_]]:
    """Which cases are held out: each case once in every repetition."""
    rng = np.random.default_rng(seed)
    for _ in range(repeats):
        fold_of = rng.permutation(cases) % folds
        yield from (fold_of == fold for fold in range(folds))


def _retriever_source(explainer: Explainer, recipe: Fusion | None, depth: int | None) -> tuple[Any, Fusion, int | None]:
    """What to tune behind a framework retriever: its memory, or a recorder of its arms; and where to start."""
    start = recipe or explainer.recipe
    if explainer.memory is not None:
        return explainer.memory, start, depth
    asked = depth or start.depth or DEPTH
    return retriever_recorder(explainer, depth=asked), start, asked


def _recorder(
    source: Any, recipe: Fusion | None, depth: int | None, curves: Sequence[Curve]
) -> tuple[Fusion, Callable[[Case], list[Recorded]], list[Curve]]:
    """The recipe to start from, a recorder with one record per BM25 variant, and their curves (present first)."""
    if not isinstance(source, HybridMemory):
        if recipe is None or not callable(source):
            raise ConfigError(f"cannot tune {source!r}: give a HybridMemory, or a function to Recorded and a recipe")
        start = recipe if depth is None else replace(recipe, depth=depth)
        return start, lambda case: [source(case)], []
    start = source.engine.recipe_for(recipe or source.recipe)  # without weights of missing arms
    asked = depth or start.depth or DEPTH
    present = memory_curve(source)
    known = [] if present is None else [present, *(curve for curve in curves if curve != present)]
    return replace(start, depth=asked), curve_recorder(source, depth=asked, curves=[None, *known[1:]]), known


class _ProgressCounter:
    """Progress over everything: one step for each recorded case, then as many steps in total for the searches."""

    def __init__(self, progress: Progress | None, cases: int, searches: int) -> None:
        self._progress, self._cases, self._searches = progress, cases, searches
        self._recorded = self._searched = 0

    def recorded(self, answers: list[Recorded]) -> list[Recorded]:
        self._recorded += 1
        self._report(0.0)
        return answers

    def search(self, steps: int) -> Callable[[int], None]:
        """The callback of one search."""
        before = self._searched
        self._searched += 1
        return lambda step: self._report((before + step / steps) / self._searches)

    def _report(self, searched: float) -> None:
        if self._progress is not None:
            self._progress(self._recorded + round(searched * self._cases), 2 * self._cases)


# --- coordinate ascent over settings, one group after another

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
