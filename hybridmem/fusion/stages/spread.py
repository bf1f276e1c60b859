"""Spreading activation from graph neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridmem.core import validation
from hybridmem.core.types import Graph, Ranking
from hybridmem.fusion.explain import Trace
from hybridmem.fusion.stages.base import Context, reorder

__all__ = ["Spread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """score + strength · incoming, where incoming = max over neighbours of (their score · Π edge weight · decay).

    Items that no arm found are added to the ranking. The edges of threads count only with `threads`: `Evidence` covers
    threads better.
    """

    strength: float = 0.5
    hops: int = 2
    decay: float = 0.5
    seeds: int = 20
    threads: bool = False

    def __post_init__(self) -> None:
        validation.number("spread strength", self.strength, "a finite number from 0 up", low=0)
        validation.integer("spread hops", self.hops, "from 1 up", low=1)
        validation.integer("spread seeds", self.seeds, "from 1 up", low=1)
        validation.number("spread decay", self.decay, "above 0 and up to 1", low=0, high=1, above=True)
        validation.flag("spread threads", self.threads)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        keys, items, scores = ranking
        graph = context.graph
        if not keys or graph is None or self.strength == 0:
            return ranking
        seeds = dict(zip(keys[: self.seeds], scores[: self.seeds], strict=True))
        incoming = graph.spread(seeds, hops=self.hops, decay=self.decay, include_seeds=True)
        if not incoming:
            return ranking
        keys, items = self._with_neighbours(ranking, incoming, graph)
        if context.trace is not None:
            self._trace(seeds, [key for key in keys if key in incoming], graph, context.trace)
        strength, get = self.strength, incoming.get
        raised = [score + strength * get(key, 0.0) for key, score in zip(keys, scores)]  # noqa: B905
        raised += [strength * incoming[key] for key in keys[len(scores) :]]
        return reorder(Ranking(keys, items, raised), raised)

    @staticmethod
    def _with_neighbours(ranking: Ranking, incoming: Mapping[str, float], graph: Graph) -> tuple[list[str], list[Any]]:
        """The ranking's keys and items, followed by those that only the graph activated."""
        new = sorted(incoming.keys() - ranking.keys)
        items = graph.items(new)
        if None in items:
            kept = [(key, item) for key, item in zip(new, items, strict=True) if item is not None]
            new, items = [key for key, _ in kept], [item for _, item in kept]
        return ranking.keys + new, ranking.items + items

    def _trace(self, seeds: dict[str, float], targets: list[str], graph: Graph, trace: Trace) -> None:
        for key, activation in graph.paths(seeds, targets, hops=self.hops, decay=self.decay).items():
            seed, *steps = activation.path
            path = " → ".join([f"{seed}{trace.best_rank(seed)}", *steps])
            trace.note("spread", key, f"graph +{self.strength * activation.value:.4g} from {path}")
            trace.activated(key, activation)
