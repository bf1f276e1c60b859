"""A board on which a whole set of questions is fused at once, so that a search can try thousands of settings.

```
share  = what the mode makes of an arm's scores       F = Σ wᵢ · shareᵢ
spread : F + λ · max over seeds of (F_seed · path) + τ · best of the thread        dedup: the best of each source
boost  : F · (1 + s · freshness)       substance, dated: as in the stages
place  = 1 + how many stand above      figure = recall@k, mrr@k, ndcg@k or hit@k of the places
```

A setting costs milliseconds here. `Fusion.run` defines the result: a property test holds the two together, and what a
search finds here is measured again with the real one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from hybridmem.columns import Bools, Columns, Floats
from hybridmem.evaluate import Case
from hybridmem.fusion import Fusion, Mode
from hybridmem.metrics import metric
from hybridmem.stages import HalfLife, QualityGate, Spread

__all__ = ["Board", "Setting", "read_setting", "with_setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What tuning may turn, as one hashable value; `lexical` numbers the recorded variant of the BM25 arm."""

    mode: Mode
    c: float
    weights: tuple[float, ...]
    floors: tuple[float | None, ...]
    spread: float = 0.0
    boost: float = 0.0
    lexical: int = 0


def read_setting(recipe: Fusion, names: Sequence[str]) -> Setting:
    """The setting that a recipe stands for."""
    given: Any = None if recipe.gate is None else recipe.gate.floor
    return Setting(
        mode=recipe.mode,
        c=recipe.c,
        weights=tuple(recipe.weights_for(names)),
        floors=tuple(given.get(name) if isinstance(given, Mapping) else given for name in names),
        spread=0.0 if recipe.spread is None else recipe.spread.strength,
        boost=recipe.boost.strength if isinstance(recipe.boost, HalfLife) else 0.0,
    )


def with_setting(recipe: Fusion, setting: Setting, names: Sequence[str]) -> Fusion:
    """The recipe with a setting's values; what tuning does not turn stays as it is."""
    floors = {name: floor for name, floor in zip(names, setting.floors, strict=True) if floor is not None}
    gate = replace(recipe.gate or QualityGate(), floor=floors or None)
    spread = replace(recipe.spread or Spread(), strength=setting.spread)
    boost = recipe.boost
    if boost is None or isinstance(boost, HalfLife):
        boost = replace(boost or HalfLife(), strength=setting.boost) if setting.boost > 0 else None
    return replace(
        recipe,
        mode=setting.mode,
        c=setting.c,
        weights=dict(zip(names, setting.weights, strict=True)),
        complete=recipe.complete and setting.mode != "rrf",  # a rank among hits that were not listed means little
        gate=gate if floors or gate.relative is not None else None,
        spread=spread if spread.strength or spread.thread else None,
        boost=boost,
    )


class Board:
    """Columns, a recipe and the right answers: `figures(setting, "ndcg@10")` gives one number a case."""

    def __init__(self, columns: Columns, cases: Sequence[Case], *, recipe: Fusion) -> None:
        self.columns = columns
        self.recipe = recipe
        self._listed = columns.listed
        self._to, start, self._worth = columns.edges
        self._first = np.searchsorted(start, np.arange(columns.fresh.size + 1))
        self._threads = _groups(columns.threads)
        self._collapses = recipe.dedup is not None and _repeats(columns)
        found = []
        for row, (case, keys) in enumerate(zip(cases, columns.keys, strict=True)):
            place = {key: column for column, key in enumerate(keys)}
            found += [(row, place[key], grade) for key, grade in case.relevant.items() if grade > 0 and key in place]
        table = np.array(found, dtype=np.float64).reshape(-1, 3)
        self._case, self._column, self._grade = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2]
        self._before = np.arange(columns.fresh.shape[1])[None, :] < self._column[:, None]
        self._relevant = [sorted((g for g in case.relevant.values() if g > 0), reverse=True) for case in cases]
        self._best = lru_cache(maxsize=8)(self._compute_best)
        self._shares = lru_cache(maxsize=64)(self._compute_shares)

    # --- figures

    def figures(self, setting: Setting, name: str) -> Floats:
        """The metric of each case under a setting."""
        places = self._places(self.scores(setting))
        kind, k = name.partition("@")[0], metric(name)[1]
        inside = places <= k
        if kind in ("recall", "ndcg"):
            gains = (
                inside.astype(np.float64)
                if kind == "recall"
                else np.where(inside, self._grade / np.log2(places + 1.0), 0.0)
            )
            return np.bincount(self._case, weights=gains, minlength=len(self._relevant)) / self._best(kind, k)
        first = np.zeros(len(self._relevant))
        np.maximum.at(first, self._case, np.where(inside, 1.0 / places if kind == "mrr" else 1.0, 0.0))
        return first

    def _compute_best(self, kind: str, k: int) -> Floats:
        """What the best order possible would gain."""
        if kind == "recall":
            return np.array([float(max(1, len(grades))) for grades in self._relevant])
        ideal = [sum(g / np.log2(r + 2.0) for r, g in enumerate(grades[:k])) for grades in self._relevant]
        return np.array([value or 1.0 for value in ideal])

    def _places(self, scores: Floats) -> Floats:
        """Where each relevant candidate stands, from 1; infinity when it is not a result."""
        own = scores[self._case, self._column][:, None]
        rows = scores[self._case]
        above = (rows > own).sum(axis=1) + ((rows == own) & self._before).sum(axis=1)
        return np.where(np.isfinite(own[:, 0]), above + 1.0, np.inf)

    # --- the path of a fusion

    def scores(self, setting: Setting) -> Floats:
        """Every candidate's final score under a setting; -infinity for what is no result."""
        active = tuple(weight > 0 for weight in setting.weights)
        shares, alive = self._shares(setting.mode, setting.c, setting.floors, active)
        total = np.zeros(alive.shape)
        for weight, share in zip(setting.weights, shares, strict=True):
            if weight > 0:
                total += weight / share if setting.mode == "rrf" else weight * share
        total, alive = self._surroundings(total, alive, setting.spread)
        if self._collapses:
            alive = alive & self._kept(np.where(alive, total, -np.inf))
        if setting.boost > 0:
            total = total * (1.0 + setting.boost * self.columns.fresh)
        return np.where(alive, self._priors(total, alive), -np.inf)

    def _surroundings(self, total: Floats, alive: Bools, strength: float) -> tuple[Floats, Bools]:
        """What neighbours and the thread bring; both look at the merged scores."""
        spread = self.recipe.spread or Spread()
        merged = np.where(alive, total, 0.0)
        raised = merged
        if strength > 0 and len(self._to):
            incoming = self._incoming(merged, spread.seeds)
            raised = merged + strength * incoming
            alive = alive | (incoming > 0.0)
        if spread.thread and self.recipe.spread is not None:
            heard = merged.copy().ravel()
            order, starts, sizes = self._threads
            if len(order):
                heard[order] = np.repeat(np.maximum.reduceat(heard[order], starts), sizes)
            raised = raised + spread.thread * heard.reshape(merged.shape)
        return raised, alive

    def _incoming(self, merged: Floats, seeds: int) -> Floats:
        """The best that any of each case's first `seeds` candidates brings to another."""
        start = np.flatnonzero(_top(merged, seeds))
        sizes = self._first[start + 1] - self._first[start]
        ends = np.cumsum(sizes)
        edges = np.arange(sizes.sum()) + np.repeat(self._first[start] - (ends - sizes), sizes)
        incoming = np.zeros(merged.size)
        np.maximum.at(incoming, self._to[edges], np.repeat(merged.ravel()[start], sizes) * self._worth[edges])
        return incoming.reshape(merged.shape)

    def _kept(self, scores: Floats) -> Bools:
        """Where each source's best stands; what has no source is always kept."""
        order = np.argsort(-scores, axis=1, kind="stable")
        sources = np.take_along_axis(self.columns.sources, order, axis=1)
        first = np.zeros(sources.size, dtype=np.bool_)
        first[np.unique(sources.ravel(), return_index=True)[1]] = True  # numbers are unique over cases
        kept = np.empty(scores.shape, dtype=np.bool_)
        np.put_along_axis(kept, order, first.reshape(scores.shape) | (sources < 0), axis=1)
        return kept

    def _priors(self, total: Floats, alive: Bools) -> Floats:
        substance, dated = self.recipe.substance, self.recipe.dated
        if substance is not None:
            words = self.columns.words
            mean = np.einsum("ij,ij->i", words, alive) / np.maximum(alive.sum(axis=1), 1)
            enough = np.maximum(np.minimum(float(substance.words), mean), 1e-12)[:, None]
            factor = np.minimum(words, enough)
            factor *= substance.strength / enough
            factor += 1.0 - substance.strength
            total = total * factor
        if dated is not None and self.columns.dated.any():
            best = np.where(alive, total, 0.0).max(axis=1, keepdims=True)
            total = total + dated.strength * best * self.columns.dated
        return total

    def _compute_shares(
        self, mode: Mode, c: float, floors: tuple[float | None, ...], active: tuple[bool, ...]
    ) -> tuple[Floats, Bools]:
        """Each arm's normalised scores (for RRF: c + rank), and who is a candidate: gate, complete, normalise."""
        asked = np.array(active)[:, None, None]
        listed = self._gate(self._listed & asked, floors)
        alive = np.asarray(listed.any(axis=0))
        if mode == "rrf":
            return np.where(listed, c + self.columns.rank, np.inf), alive
        raw, within = self.columns.raw, listed
        if self.recipe.complete:
            within = listed | (alive[None] & np.isfinite(raw) & asked)
        share = _NORMALISERS[mode](raw, within)
        if self.recipe.smooth:
            size = within.sum(axis=2, keepdims=True)
            share = (1.0 + size * share) / (1.0 + size)
        return np.where(within, share, 0.0), alive

    def _gate(self, heard: Bools, floors: tuple[float | None, ...]) -> Bools:
        gate = self.recipe.gate or QualityGate()
        if gate.relative is None and all(floor is None for floor in floors):
            return heard
        raw = np.where(heard, self.columns.raw, -np.inf)
        best = raw.max(axis=2)
        bounds = np.full(best.shape, -np.inf)
        for arm, (name, floor) in enumerate(zip(self.columns.names, floors, strict=True)):
            used = replace(gate, floor=floor)
            bounds[arm] = [used.bound(name, top) if np.isfinite(top) else 0.0 for top in best[arm]]
        kept: Bools = heard & (raw >= bounds[:, :, None])
        for row in np.flatnonzero(~kept.any(axis=(0, 2)) & heard.any(axis=(0, 2))):
            arms = [arm for arm in range(len(heard)) if heard[arm, row].any()]
            chosen = [arm for arm in arms if gate.fallback in ("first", self.columns.names[arm])][:1]
            kept[chosen, row] = heard[chosen, row]
        return kept


def _top(scores: Floats, count: int) -> Bools:
    """The best `count` of each row that are above 0; of equals the one that stands first."""
    if count >= scores.shape[1]:
        return np.asarray(scores > 0.0)
    lowest = np.partition(scores, -count, axis=1)[:, -count][:, None]
    top = np.asarray((scores >= lowest) & (scores > 0.0))
    for row in np.flatnonzero(top.sum(axis=1) > count):
        top[row] = False
        top[row, np.argsort(-scores[row], kind="stable")[:count]] = True
    return top


def _groups(numbers: Any) -> tuple[Any, Any, Any]:
    """Flat positions sorted by group, where each group starts, and its size; -1 belongs to none."""
    flat = numbers.ravel()
    order = np.argsort(flat, kind="stable")
    order = order[flat[order] >= 0]
    _, starts, sizes = np.unique(flat[order], return_index=True, return_counts=True)
    return order, starts, sizes


def _repeats(columns: Columns) -> bool:
    named = columns.sources[columns.sources >= 0]
    return len(np.unique(named)) < len(named)


def _relative(raw: Floats, within: Bools) -> Floats:
    low = np.where(within, raw, np.inf).min(axis=2, keepdims=True)
    high = np.where(within, raw, -np.inf).max(axis=2, keepdims=True)
    spans = high > low
    return np.where(spans, (raw - np.where(spans, low, 0.0)) / np.where(spans, high - low, 1.0), 1.0)


def _distribution(raw: Floats, within: Bools) -> Floats:
    size = np.maximum(within.sum(axis=2, keepdims=True), 1)
    mean = np.where(within, raw, 0.0).sum(axis=2, keepdims=True) / size
    sigma = np.sqrt((np.where(within, raw - mean, 0.0) ** 2).sum(axis=2, keepdims=True) / size)
    placed = np.clip((raw - mean + 3.0 * sigma) / np.where(sigma > 0, 6.0 * sigma, 1.0), 0.0, 1.0)
    return np.where(sigma > 0, placed, 1.0)


def _convex(raw: Floats, within: Bools) -> Floats:
    high = np.where(within, raw, -np.inf).max(axis=2, keepdims=True)
    return np.where(high > 0, np.maximum(raw / np.where(high > 0, high, 1.0), 0.0), 0.0)


_NORMALISERS = {"relative": _relative, "distribution": _distribution, "convex": _convex}
