"""Spreading: what a memory's neighbours are worth to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hybridmem.errors import ConfigError
from hybridmem.explain import Trace
from hybridmem.stages.base import reorder
from hybridmem.types import Context, Graph, Ranking

__all__ = ["Spread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """score + strength · incoming, where incoming = max over neighbours of (their score · Π edge weight · decay).

    An activation is evidence about a candidate rather than a rival list, so it is added to the merged score.
    Memories that no arm found join the ranking through their neighbours. Without a graph the stage does nothing.
    """

    strength: float = 0.5
    hops: int = 2
    decay: float = 0.5
    seeds: int = 20

    def __post_init__(self) -> None:
        if not (math.isfinite(self.strength) and self.strength >= 0):
            raise ConfigError(f"spread strength = {self.strength!r} is not allowed: a finite number from 0 up")
        if self.hops < 1 or self.seeds < 1:
            raise ConfigError(f"spread hops = {self.hops!r}, seeds = {self.seeds!r} are not allowed: both from 1 up")
        if not 0 < self.decay <= 1:
            raise ConfigError(f"spread decay = {self.decay!r} is not allowed: above 0 and up to 1")

    def ceiling(self, best: float) -> float:
        """The best score possible after spreading: an equally good neighbour one hop away."""
        return best * (1 + self.strength * self.decay)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        graph = context.graph
        if graph is None or not ranking.keys or self.strength == 0:
            return ranking
        keys, items, scores = ranking
        seeds = dict(zip(keys[: self.seeds], scores[: self.seeds], strict=True))
        incoming = graph.spread(seeds, hops=self.hops, decay=self.decay, include_seeds=True)
        known = set(keys)
        fresh = sorted(key for key in incoming if key not in known)
        found = [(key, item) for key, item in zip(fresh, graph.items(fresh), strict=True) if item is not None]
        get = incoming.get
        raised = [score + self.strength * get(key, 0.0) for key, score in zip(keys, scores, strict=True)]
        raised += [self.strength * incoming[key] for key, _ in found]
        if context.trace is not None:
            reached = [key for key in [*keys, *(key for key, _ in found)] if key in incoming]
            self._tell(seeds, reached, graph, context.trace)
        grown = Ranking([*keys, *(key for key, _ in found)], [*items, *(item for _, item in found)], raised)
        return reorder(grown, raised)

    def _tell(self, seeds: dict[str, float], targets: list[str], graph: Graph, trace: Trace) -> None:
        for key, won in graph.paths(seeds, targets, hops=self.hops, decay=self.decay).items():
            seed, *steps = won.path
            path = " → ".join([f"seed {seed}{trace.found(seed)}", *steps])
            trace.say("spread", key, f"+{self.strength * won.value:.4g} by {path} ({won.value:.4g})")
            trace.reached(key, won)
