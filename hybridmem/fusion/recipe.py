"""Fusion: many ranked lists in, one ranking out. Pure functions of lists, clock and recipe; no I/O here.

| step | takes | gives |
|---|---|---|
| gate | each arm's list with raw scores | the same lists without what is below the floor |
| merge | the gated lists | one ranking, `score = Σ wᵢ · shareᵢ` |
| stages | a ranking | a ranking: spread, dedup, boost, extra, conflicts, rerank, diversity, pack |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hybridmem.core import validation
from hybridmem.core.types import ArmList, Graph, Ranking, Reader
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Trace
from hybridmem.fusion.merge import (
    Opinion,
    completed,
    first_places,
    merge,
    normalise_weights,
    rank_shares,
    ranked,
    score_shares,
    weighted_rrf,
)
from hybridmem.fusion.stages import (
    Competition,
    Conflicts,
    Diversity,
    HalfLife,
    NamedDate,
    Pack,
    QualityGate,
    Rerank,
    SourceDedup,
    Spread,
    Substance,
    stage_name,
)
from hybridmem.fusion.stages.base import Context, Stage

__all__ = ["Fusion", "Mode", "merge", "normalise_weights", "weighted_rrf"]

Mode = Literal["rrf", "relative", "distribution", "convex"]
MODES: tuple[str, ...] = get_args(Mode)
CONVEX_WEIGHTS = {"vector": 0.7, "bm25": 0.3}
_KINDS: Mapping[str, type] = {"gate": QualityGate, "pack": Pack}
_STAGES = {
    "spread": "Spread(…)",
    "dedup": "SourceDedup(…)",
    "boost": "HalfLife(…) or Competition(…)",
    "substance": "Substance(…)",
    "dated": "NamedDate(…)",
    "conflicts": "Conflicts(…)",
    "rerank": "Rerank(…)",
    "diversity": "Diversity(…)",
}
ALMOST_ALL, ALMOST_NONE = 1 - 1e-12, 1e-9
"""Between which shares of the best score are shown as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A recipe: which mode and weights merge the arms, and which stages follow, in this order.

    gate → merge (mode, weights, c) → spread → dedup → boost → substance → dated → extra → conflicts → rerank →
    diversity → pack to k

    >>> Fusion(weights={"bm25": 0.6, "vector": 0.4}, boost=HalfLife(strength=0.05)).mode
    'rrf'
    """

    mode: Mode = "rrf"
    weights: Mapping[str, float] | tuple[float, ...] | None = None
    c: float = 60
    depth: int | None = None
    """How many hits each arm is asked for; None: enough to fill k after dedup."""
    complete: bool = False
    """Let each arm score what only the others listed, where it can, so that like is compared with like."""
    smooth: bool = False
    """In score modes, share = (1 + n · normalised) / (1 + n) in a list of n. Plain min–max says that the second of
    two hits is worthless; smoothed it is worth 1/3, and in a list of a hundred the last is worth 1/101."""
    gate: QualityGate | None = None
    spread: Spread | None = None
    dedup: SourceDedup | None = None
    boost: HalfLife | Competition | None = None
    substance: Substance | None = None
    dated: NamedDate | None = None
    extra: tuple[Stage, ...] = ()
    conflicts: Conflicts | None = None
    rerank: Rerank | None = None
    diversity: Diversity | None = None
    pack: Pack | None = None
    k1: float | None = None
    b: float | None = None
    """BM25's constants for a memory that is opened with this recipe; None: as the memory is told (1.2 and 0.75)."""
    _stages: tuple[Stage, ...] = field(init=False, repr=False, compare=False)
    _best: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_slots()
        priors = (self.substance, self.dated)
        slots = (self.spread, self.dedup, self.boost, *priors, *self.extra, self.conflicts, self.rerank, self.diversity)
        object.__setattr__(self, "_stages", tuple(stage for stage in slots if stage is not None))
        object.__setattr__(self, "_best", self.ceiling())

    def _check_numbers(self) -> None:
        if not isinstance(self.mode, str) or self.mode not in MODES:
            raise ConfigError(f"mode {validation.display(self.mode)} is not known: the modes are {', '.join(MODES)}")
        validation.number("c", self.c, "c is a finite number from 0 up", low=0)
        if self.depth is not None:
            validation.integer("depth", self.depth, "an arm is asked for at least 1 hit", low=1)
        for name in ("complete", "smooth"):
            validation.flag(name, getattr(self, name))
        validation.bm25_constants(1.2 if self.k1 is None else self.k1, 0.75 if self.b is None else self.b)
        if isinstance(self.weights, Mapping):
            validation.weights(self.weights.values())
            normalise_weights(list(self.weights), self.weights)
        elif self.weights is not None:
            object.__setattr__(self, "weights", tuple(validation.weights(self.weights)))
            normalise_weights([str(i) for i in range(len(self.weights))], self.weights)

    def _check_slots(self) -> None:
        """Each slot holds its own kind of value; a stage may be any function of a stage's shape, but no class."""
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                validation.refuse(name, value, f"a {kind.__name__}(…), or None")
        for name, kinds in _STAGES.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, type) or not callable(value)):
                validation.refuse(name, value, f"a {kinds}, a function (ranking, context) -> ranking, or None")
        object.__setattr__(self, "extra", tuple(validation.listed("extra", self.extra, "stages")))
        for stage in self.extra:
            if isinstance(stage, type) or not callable(stage):
                validation.refuse("a stage in extra", stage, "a function (ranking, context) -> ranking")

    def weights_for(self, names: Sequence[str]) -> list[float]:
        """Each arm's weight, summing to 1; `convex` without weights is 0.7 vector / 0.3 BM25."""
        weights = self.weights
        if weights is None:
            if self.mode != "convex" or set(names) != set(CONVEX_WEIGHTS):
                return [1.0 / len(names)] * len(names) if names else []
            weights = CONVEX_WEIGHTS
        return normalise_weights(names, weights)

    def depth_for(self, k: int | None) -> int:
        """How many hits to ask of each arm so that k results survive the stages."""
        if self.depth is not None:
            return max(self.depth, k or 0)
        wide = self.gate or any(stage is not None for stage in self._stages)
        return max(4 * k if wide else k, 20) if k else 100

    def run(
        self,
        lists: Sequence[ArmList],
        /,
        *,
        reader: Reader,
        query: str = "",
        now: float | None = None,
        k: int | None = None,
        graph: Graph | None = None,
        contradictions: Callable[[Sequence[str]], Any] | None = None,
        trace: Trace | None = None,
    ) -> Ranking:
        """Rank the union of the lists. The same lists, clock and recipe give the same ranking, always."""
        if k is not None and not (type(k) is int and k >= 1):
            validation.integer("k", k, "ask for at least 1 result", low=1)
        context = Context(query, time.time() if now is None else now, reader, lists, k, graph, contradictions, trace)
        if trace is not None:
            trace.listed(lists, reader)
        if self.gate is not None:
            context.lists = lists = self.gate.apply(lists, context)
        ranking = self._merge(lists, context)
        stages = self._stages
        if self.pack is not None or k is not None:
            stages = (*stages, self.pack or _PACK)
        for stage in stages:
            after = stage(ranking, context)
            if trace is not None:
                trace.step(stage_name(stage), ranking, after)
            ranking = after
        return ranking

    def ceiling(self) -> float:
        """The best score possible: first in every arm, fresh, and so on through every stage that can raise it."""
        best = 1.0 / (self.c + 1) if self.mode == "rrf" else 1.0
        for stage in self._stages:
            raised = getattr(stage, "ceiling", None)
            if raised is not None:
                best = raised(best)
        return best

    def share(self, score: float, /) -> float:
        """A score as people see it: its share of the best score possible, in (0, 1]."""
        return self.shares([score])[0]

    def shares(self, scores: Sequence[float], /) -> list[float]:
        """The same for a whole ranking; the best is 1, whatever rounding made of it."""
        best = self._best
        return [
            1.0 if (x := score / best) > ALMOST_ALL
            else ALMOST_NONE if x < ALMOST_NONE else x  # noqa: FURB136  calling `max` takes longer than all the rest
            for score in scores
        ]  # fmt: skip

    def _merge(self, lists: Sequence[ArmList], context: Context) -> Ranking:
        """One ranking of all lists."""
        weights = self.weights_for([arm.name for arm in lists])
        keys_of = context.reader.keys
        pairs = zip(lists, weights, strict=True)
        heard = [Opinion(arm, keys_of(arm.items), arm.scores, weight) for arm, weight in pairs]
        items: dict[str, Any] = {}
        for opinion in reversed(heard):  # the first arm's item stands for all of the same key
            items.update(first_places(opinion.keys, opinion.arm.items))
        if self.complete and self.mode == "relative" and context.trace is None:
            quick = ranked(heard, items, smooth=self.smooth)
            if quick is not None:
                return Ranking(quick[0], list(map(items.__getitem__, quick[0])), quick[1])
        if self.complete:
            heard = [completed(opinion, items) for opinion in heard]
        heard = [opinion for opinion in heard if opinion.keys]
        if self.mode == "rrf":
            shares = [rank_shares(len(opinion.keys), opinion.weight, self.c) for opinion in heard]
        else:
            shares = [score_shares(self.mode, opinion, smooth=self.smooth) for opinion in heard]
        if context.trace is not None:
            context.trace.merged(heard, shares)
        totals = merge([opinion.keys for opinion in heard], shares)
        order = sorted(totals, key=totals.__getitem__, reverse=True)
        return Ranking(order, list(map(items.__getitem__, order)), list(map(totals.__getitem__, order)))


_PACK = Pack()
