"""Spreading: what a memory's neighbours are worth to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hybridmem.errors import ConfigError
from hybridmem.explain import Trace
from hybridmem.stages.base import reorder
from hybridmem.types import Context, Graph, Ranking

__all__ = ["Spread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """score + strength · incoming + thread · (the best score in its thread).

    incoming = max over neighbours of (their score · Π edge weight · decay), by the graph. An activation is evidence
    about a candidate rather than a rival list, so it is added to the merged score. Memories that no arm found join the
    ranking through their neighbours. A memory without a thread is a thread of its own, so that it loses nothing.
    """

    strength: float = 0.5
    hops: int = 2
    decay: float = 0.5
    seeds: int = 20
    thread: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.strength) and self.strength >= 0):
            raise ConfigError(f"spread strength = {self.strength!r} is not allowed: a finite number from 0 up")
        if not (math.isfinite(self.thread) and self.thread >= 0):
            raise ConfigError(f"spread thread = {self.thread!r} is not allowed: a finite number from 0 up")
        if self.hops < 1 or self.seeds < 1:
            raise ConfigError(f"spread hops = {self.hops!r}, seeds = {self.seeds!r} are not allowed: both from 1 up")
        if not 0 < self.decay <= 1:
            raise ConfigError(f"spread decay = {self.decay!r} is not allowed: above 0 and up to 1")

    def ceiling(self, best: float) -> float:
        """The best score possible after spreading: an equally good neighbour one hop away, in the best thread."""
        return best * (1 + self.strength * self.decay + self.thread)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        if not ranking.keys:
            return ranking
        heard = self._thread(ranking, context) if self.thread else None
        graph = context.graph
        if graph is None or self.strength == 0:
            return ranking if heard is None else reorder(ranking, heard(ranking.items, ranking.scores, ranking.scores))
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
        if heard is not None:
            raised = heard(grown.items, raised, [*scores, *([0.0] * len(found))])
        return reorder(grown, raised)

    def _thread(
        self, ranking: Ranking, context: Context
    ) -> Callable[[list[Any], list[float], list[float]], list[float]]:
        """A function that adds to raised scores what the thread of each item brings, by the merged scores."""
        column = context.reader.column
        best: dict[Any, float] = {}
        for thread, score in zip(column(ranking.items, "thread"), ranking.scores, strict=True):
            if thread is not None and score > best.get(thread, 0.0):
                best[thread] = score

        def heard(items: list[Any], raised: list[float], own: list[float]) -> list[float]:
            threads = column(items, "thread")
            rows = zip(raised, threads, own, strict=True)
            return [score + self.thread * best.get(thread, alone) for score, thread, alone in rows]

        return heard

    def _tell(self, seeds: dict[str, float], targets: list[str], graph: Graph, trace: Trace) -> None:
        for key, won in graph.paths(seeds, targets, hops=self.hops, decay=self.decay).items():
            seed, *steps = won.path
            path = " → ".join([f"seed {seed}{trace.found(seed)}", *steps])
            trace.say("spread", key, f"+{self.strength * won.value:.4g} by {path} ({won.value:.4g})")
            trace.reached(key, won)
