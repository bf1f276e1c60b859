"""The settings that tuning changes, and the vectorized ranking of many cases at once for thousands of settings.

```
share  = normalised scores of an arm by the mode      F = Σ wᵢ · shareᵢ
evidence : F + Σ w · part              spread : F + λ · max over seeds of (F_seed · path)
dedup  : the best of each source       boost  : F · (1 + s · freshness)
rank   = 1 + number of higher scores   figure = recall@k, mrr@k, ndcg@k or hit@k of the ranks
```

Nothing is sorted: a metric needs only the ranks of the relevant candidates, and these are counted. Parts that do not
depend on the setting being changed are cached. `Fusion.run` defines the result: a property test compares the two, and
what a search finds here is measured again with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hybridmem.evaluation.cases import Case
from hybridmem.evaluation.metrics import metric
from hybridmem.evaluation.recording import Curve
from hybridmem.evaluation.tuning.candidates import Bools, Columns, Floats, Ints
from hybridmem.fusion.recipe import Fusion, Mode
from hybridmem.fusion.stages import Evidence, HalfLife, QualityGate, Spread
from hybridmem.fusion.stages.evidence import BACKWARD, PARTS

__all__ = ["NORMALISERS", "Setting", "VectorizedRanking", "changes", "read_setting", "with_setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that tuning changes, hashable; `lexical` is the index of the recorded BM25 variant."""

    mode: Mode
    c: float
    weights: tuple[float, ...]
    floors: tuple[float | None, ...]
    spread: float = 0.0
    hops: int = 2
    decay: float = 0.5
    boost: float = 0.0
    evidence: tuple[float, ...] = (0.0,) * len(PARTS)
    """The weights of the parts of evidence."""
    lexical: int = 0


def read_setting(recipe: Fusion, names: Sequence[str]) -> Setting:
    """The settings of a recipe."""
    given: Any = None if recipe.gate is None else recipe.gate.floor
    spread = recipe.spread or Spread(strength=0.0)
    return Setting(
        mode=recipe.mode,
        c=recipe.c,
        weights=tuple(recipe.weights_for(names)),
        floors=tuple(given.get(name) if isinstance(given, Mapping) else given for name in names),
        spread=spread.strength,
        hops=spread.hops,
        decay=spread.decay,
        boost=recipe.boost.strength if isinstance(recipe.boost, HalfLife) else 0.0,
        evidence=tuple(0.0 if recipe.evidence is None else getattr(recipe.evidence, part) for part in PARTS),
    )


def with_setting(recipe: Fusion, setting: Setting, names: Sequence[str]) -> Fusion:
    """The recipe with a setting's values; everything else is unchanged."""
    floors = {name: floor for name, floor in zip(names, setting.floors, strict=True) if floor is not None}
    gate = replace(recipe.gate or QualityGate(), floor=floors or None)
    spread = replace(
        recipe.spread or Spread(),
        strength=setting.spread,
        hops=setting.hops,
        decay=setting.decay,
    )
    boost = recipe.boost
    if boost is None or isinstance(boost, HalfLife):
        boost = replace(boost or HalfLife(), strength=setting.boost) if setting.boost > 0 else None
    return replace(
        recipe,
        mode=setting.mode,
        c=setting.c,
        weights=dict(zip(names, setting.weights, strict=True)),
        complete=recipe.complete and setting.mode != "rrf",  # ranks of unlisted candidates mean little
        gate=gate if floors or gate.relative is not None else None,
        evidence=Evidence(**dict(zip(PARTS, setting.evidence, strict=True))) if any(setting.evidence) else None,
        spread=spread if spread.strength else None,
        boost=boost,
    )


def changes(start: Setting, best: Setting, names: Sequence[str], curves: Sequence[Curve]) -> Iterator[str]:
    """Descriptions of the differences between two settings."""
    if (start.mode, start.c) != (best.mode, best.c):
        c = f" (c={best.c:g})" if best.mode == "rrf" else ""
        yield f"mode: {start.mode} → {best.mode}{c}"
    for arm, name in enumerate(names):
        if start.weights[arm] != best.weights[arm]:
            yield f"weight of {name}: {start.weights[arm]:.3g} → {best.weights[arm]:.3g}"
        if start.floors[arm] != best.floors[arm]:
            yield f"floor of {name}: {_floor(start.floors[arm])} → {_floor(best.floors[arm])}"
    for label, field in (
        ("spread", "spread"),
        ("hops", "hops"),
        ("decay of a hop", "decay"),
        ("half-life strength", "boost"),
    ):
        old, new = getattr(start, field), getattr(best, field)
        if old != new:
            yield f"{label}: {old:g} → {new:g}"
    for part, old_weight, new_weight in zip(PARTS, start.evidence, best.evidence, strict=True):
        if old_weight != new_weight:
            yield f"{part} evidence: {old_weight:g} → {new_weight:g}"
    if curves and start.lexical != best.lexical:
        old_curve, new_curve = curves[start.lexical], curves[best.lexical]
        yield f"BM25: k1={old_curve.k1:g}, b={old_curve.b:g} → k1={new_curve.k1:g}, b={new_curve.b:g}"


def _floor(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def _relative(raw: Floats, within: Bools, _: Floats) -> Floats:
    low = np.where(within, raw, np.inf).min(axis=2, keepdims=True)
    high = np.where(within, raw, -np.inf).max(axis=2, keepdims=True)
    spans = high > low
    return np.where(spans, (raw - np.where(spans, low, 0.0)) / np.where(spans, high - low, 1.0), 1.0)


def _distribution(raw: Floats, within: Bools, _: Floats) -> Floats:
    size = np.maximum(within.sum(axis=2, keepdims=True), 1)
    mean = np.where(within, raw, 0.0).sum(axis=2, keepdims=True) / size
    sigma = np.sqrt((np.where(within, raw - mean, 0.0) ** 2).sum(axis=2, keepdims=True) / size)
    placed = np.clip((raw - mean + 3.0 * sigma) / np.where(sigma > 0, 6.0 * sigma, 1.0), 0.0, 1.0)
    return np.where(sigma > 0, placed, 1.0)


def _convex(raw: Floats, within: Bools, baseline: Floats) -> Floats:
    span = np.where(within, raw, -np.inf).max(axis=2, keepdims=True) - baseline
    return np.where(span > 0, np.maximum((raw - baseline) / np.where(span > 0, span, 1.0), 0.0), 0.0)


NORMALISERS: dict[str, Callable[[Floats, Bools, Floats], Floats]] = {
    "relative": _relative,
    "distribution": _distribution,
    "convex": _convex,
}


Floors = tuple[float | None, ...]
_RELATIONAL = ("thread", "previous_question", "mention", "shared_name")
"""Parts of evidence that depend on the merged scores of other candidates."""


class _Shares(NamedTuple):
    """Each arm's normalised scores (for RRF: c + rank), and the candidates."""

    shares: Floats
    alive: Bools


class _Scored(NamedTuple):
    """Scores after one step (0 for non-candidates), and the candidates."""

    scores: Floats
    alive: Bools


_Merge = tuple[Mode, float, tuple[float, ...], Floors]


class VectorizedRanking:
    """Columns, a recipe and the relevant ids: `figures(setting, "ndcg@10")` returns one number per case."""

    def __init__(self, columns: Columns, cases: Sequence[Case], *, recipe: Fusion) -> None:
        self.columns = columns
        self.recipe = recipe
        self._listed = columns.listed
        self._seed_count = (recipe.spread or Spread()).seeds
        self._threads, self._thread_count = _tables(columns.threads)
        self._sources = _repeated(columns.sources) if recipe.dedup is not None else None
        self._pooled = columns.in_pool.any(axis=1, keepdims=True)
        self._best = lru_cache(maxsize=8)(self._compute_best)
        self._gated = lru_cache(maxsize=4)(self._compute_gated)
        self._shares = lru_cache(maxsize=4)(self._compute_shares)
        self._merged = lru_cache(maxsize=2)(self._compute_merged)
        self._relational = lru_cache(maxsize=2)(self._compute_relational)
        self._spread = lru_cache(maxsize=2)(self._compute_spread)
        self._edge_weights = lru_cache(maxsize=16)(columns.edges.values)
        self._boosted = lru_cache(maxsize=4)(lambda strength: 1.0 + strength * columns.fresh)
        self._read_answers(cases)

    def _read_answers(self, cases: Sequence[Case]) -> None:
        """The positions of the relevant candidates, and the grades of all relevant ids."""
        found = []
        for row, (case, keys) in enumerate(zip(cases, self.columns.keys, strict=True)):
            wanted = {key: grade for key, grade in case.relevant.items() if grade > 0}
            found += [(row, at, wanted[key]) for at, key in enumerate(keys) if key in wanted]
        table = np.array(found, dtype=np.float64).reshape(-1, 3)
        self._case, self._column, self._grade = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2]
        self._relevant = [sorted((g for g in case.relevant.values() if g > 0), reverse=True) for case in cases]

    # --- figures

    def figures(self, setting: Setting, name: str) -> Floats:
        """The metric of each case under a setting."""
        ranks = self.ranks(setting)
        kind, k = name.partition("@")[0], metric(name)[1]
        inside = ranks <= k
        if kind in ("recall", "ndcg"):
            gains = (
                inside.astype(np.float64)
                if kind == "recall"
                else np.where(inside, self._grade / np.log2(ranks + 1.0), 0.0)
            )
            return np.bincount(self._case, weights=gains, minlength=len(self._relevant)) / self._best(kind, k)
        first = np.zeros(len(self._relevant))
        np.maximum.at(first, self._case, np.where(inside, 1.0 / ranks if kind == "mrr" else 1.0, 0.0))
        return first

    def _compute_best(self, kind: str, k: int) -> Floats:
        """The gain of the ideal order."""
        if kind == "recall":
            return np.array([float(max(1, len(grades))) for grades in self._relevant])
        ideal = [sum(g / np.log2(r + 2.0) for r, g in enumerate(grades[:k])) for grades in self._relevant]
        return np.array([value or 1.0 for value in ideal])

    def ranks(self, setting: Setting) -> Floats:
        """The rank of each relevant candidate, from 1; infinity when it is not a result."""
        scores = self.scores(setting)
        rows, own = scores[self._case], scores[self._case, self._column]
        above = np.add.reduce(rows > own[:, None], axis=1, dtype=np.int32)
        equal = np.add.reduce(rows >= own[:, None], axis=1, dtype=np.int32) - above
        for tied in np.flatnonzero((equal > 1) & np.isfinite(own)).tolist():  # ties: the first one ranks higher
            above[tied] += int((rows[tied, : self._column[tied]] == own[tied]).sum())
        return np.where(np.isfinite(own), above + 1.0, np.inf)

    # --- stages

    def scores(self, setting: Setting) -> Floats:
        """The final score of every candidate under a setting; -infinity for non-results."""
        merge = (setting.mode, setting.c, setting.weights, setting.floors)
        total, alive = self._evident(merge, setting.evidence)
        if setting.spread > 0 and len(self.columns.edges) > 0:
            incoming, alive = self._spread(merge, setting.evidence, setting.hops, setting.decay)
            total = total + setting.spread * incoming
        if self._sources is not None:
            alive = self._kept(np.where(alive, total, -np.inf)) & alive
        if setting.boost > 0:
            total = total * self._boosted(setting.boost)
        if self.recipe.complete and setting.mode != "rrf":
            alive = alive & ((total > 0.0) | ~self._pooled)
        return np.where(alive, total, -np.inf)

    def _compute_merged(self, mode: Mode, c: float, weights: tuple[float, ...], floors: Floors) -> _Scored:
        shares, alive = self._shares(mode, c, floors, tuple(weight > 0 for weight in weights))
        parts = [
            weight / share if mode == "rrf" else weight * share
            for weight, share in zip(weights, shares, strict=True)
            if weight > 0
        ]
        total = parts[0]
        for part in parts[1:]:
            total += part
        return _Scored(total, alive)

    def _evident(self, merge: _Merge, weights: tuple[float, ...]) -> _Scored:
        """The merge with its evidence."""
        merged = self._merged(*merge)
        if not any(weights):
            return merged
        total = merged.scores
        for number, (part, weight) in enumerate(zip(PARTS, weights, strict=True)):
            if weight > 0:
                values = self._relational(part, merge) if part in _RELATIONAL else self.columns.evidence[number]
                total = total + weight * values
        return _Scored(np.where(merged.alive, total, 0.0), merged.alive)

    def _compute_relational(self, part: str, merge: _Merge) -> Floats:
        """The parts that depend on the merged scores of other candidates."""
        scores, alive = self._merged(*merge)
        if part == "previous_question":
            return np.asarray(np.take_along_axis(scores, self.columns.previous, axis=1))
        if part == "mention":
            return self._mention(np.where(alive, scores, 0.0))
        if part == "shared_name":
            return self._shared_name(np.where(alive, scores, 0.0))
        best = np.zeros(self._thread_count)
        np.maximum.at(best, self._threads.ravel(), np.where(alive, scores, 0.0).ravel())
        return np.asarray(best[self._threads] - scores)

    def _mention(self, scores: Floats) -> Floats:
        values = np.zeros(scores.shape)
        if len(self.columns.mentions):
            case, source, target, weight = self.columns.mentions.T
            case, source, target = case.astype(np.int64), source.astype(np.int64), target.astype(np.int64)
            read = source >= 0
            np.maximum.at(values, (case, target), weight * np.where(read, scores[case, source], 1.0))
            back = BACKWARD * weight * scores[case, target]
            np.maximum.at(values, (case[read], source[read]), back[read])
        return np.minimum(values, 1.0)

    def _shared_name(self, scores: Floats) -> Floats:
        values = np.zeros(scores.shape)
        if len(self.columns.shared):
            case, source, target, weight = self.columns.shared.T
            case, source, target = case.astype(np.int64), source.astype(np.int64), target.astype(np.int64)
            np.maximum.at(values, (case, target), weight * scores[case, source] ** 2)
        return np.minimum(values, 1.0)

    def _compute_spread(self, merge: _Merge, evidence: tuple[float, ...], hops: int, decay: float) -> _Scored:
        """The activation by the best seeds of each case, and the candidates with those it adds."""
        scores, alive = self._evident(merge, evidence)
        edges = self.columns.edges
        seeds = scores.ravel()[self.columns.seeds]
        passed = np.where(_top(seeds, self._seed_count), seeds, 0.0).ravel()
        incoming = np.zeros(scores.shape)
        np.maximum.at(incoming.ravel(), edges.to, passed[edges.start] * self._edge_weights(hops, decay))
        return _Scored(incoming, alive | (incoming > 0.0))

    def _kept(self, scores: Floats) -> Bools:
        """Which candidates dedup keeps: the best of each source, and everything without a source."""
        order, group, count = self._sources or (np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
        kept = np.ones(scores.size, dtype=np.bool_)
        kept[order] = False
        left = scores.ravel()[order]
        for _ in range(1 if self.recipe.dedup is None else self.recipe.dedup.max_per_source):
            best = np.full(count, -np.inf)
            np.maximum.at(best, group, left)
            at = np.flatnonzero((left == best[group]) & np.isfinite(left))
            first = at[np.unique(group[at], return_index=True)[1]]  # of ties the first one
            kept[order[first]] = True
            left[first] = -np.inf
        return kept.reshape(scores.shape)

    # --- gate and shares

    def _compute_shares(self, mode: Mode, c: float, floors: Floors, active: tuple[bool, ...]) -> _Shares:
        """Gate, complete, normalise."""
        listed, alive = self._gated(floors, active)
        if self.recipe.complete and mode != "rrf":
            alive = alive | (self.columns.in_pool & ~self._listed[np.array(active)].any(axis=0))
        if mode == "rrf":
            return _Shares(np.where(listed, c + self.columns.rank, np.inf), alive)
        raw, within = self.columns.raw, listed
        if self.recipe.complete:
            within = listed | (alive[None] & np.isfinite(raw) & np.array(active)[:, None, None])
        share = NORMALISERS[mode](raw, within, self.columns.baseline)
        if self.recipe.smooth:
            size = within.sum(axis=2, keepdims=True)
            share = (1.0 + size * share) / (1.0 + size)
        return _Shares(np.where(within, share, 0.0), alive)

    def _compute_gated(self, floors: Floors, active: tuple[bool, ...]) -> tuple[Bools, Bools]:
        """The hits that pass in each arm, and the candidates."""
        listed = self._gate(self._listed & np.array(active)[:, None, None], floors)
        return listed, np.asarray(listed.any(axis=0))

    def _gate(self, hits: Bools, floors: Floors) -> Bools:
        gate = self.recipe.gate or QualityGate()
        if gate.relative is None and all(floor is None for floor in floors):
            return hits
        raw = np.where(hits, self.columns.raw, -np.inf)
        best = raw.max(axis=2)
        bounds = np.full(best.shape, -np.inf)
        for arm, (name, floor) in enumerate(zip(self.columns.names, floors, strict=True)):
            used = replace(gate, floor=floor)
            bounds[arm] = [used.bound(name, [top]) if np.isfinite(top) else 0.0 for top in best[arm]]
        kept: Bools = hits & (raw >= bounds[:, :, None])
        for row in np.flatnonzero(~kept.any(axis=(0, 2)) & hits.any(axis=(0, 2))):
            arms = [arm for arm in range(len(hits)) if hits[arm, row].any()]
            chosen = [arm for arm in arms if gate.fallback in ("first", self.columns.names[arm])][:1]
            kept[chosen, row] = hits[chosen, row]
        return kept


def _top(scores: Floats, count: int) -> Bools:
    """The best `count` of each row that are above 0; of ties the first ones."""
    if count >= scores.shape[1]:
        return np.asarray(scores > 0.0)
    lowest = np.partition(scores, -count, axis=1)[:, -count][:, None]
    top = np.asarray((scores >= lowest) & (scores > 0.0))
    for row in np.flatnonzero(np.add.reduce(top, axis=1, dtype=np.int32) > count):
        top[row] = False
        top[row, np.argsort(-scores[row], kind="stable")[:count]] = True
    return top


def _tables(threads: Ints) -> tuple[Ints, int]:
    """The number of each candidate's thread, and how many there are; an item without a thread gets its own."""
    alone = np.flatnonzero(threads < 0)
    known, places = np.unique(threads, return_inverse=True)
    places = places.reshape(-1).astype(np.int64)
    places[alone] = len(known) + np.arange(len(alone))
    return places.reshape(threads.shape), len(known) + len(alone)


def _repeated(sources: Ints) -> tuple[Ints, Ints, int] | None:
    """Flat positions of candidates whose source has several, the number of each one's source, and the source count."""
    flat = sources.ravel()
    named = np.flatnonzero(flat >= 0)
    _, group, sizes = np.unique(flat[named], return_inverse=True, return_counts=True)
    several = sizes[group] > 1
    if not several.any():
        return None
    return named[several], group[several].astype(np.int64), len(sizes)
