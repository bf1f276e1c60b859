"""Spreading: what a memory's neighbours are worth to it."""

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
        validation.number("spread strength", self.strength, "a finite number from 0 up", low=0)
        validation.number("spread thread", self.thread, "a finite number from 0 up", low=0)
        validation.integer("spread hops", self.hops, "from 1 up", low=1)
        validation.integer("spread seeds", self.seeds, "from 1 up", low=1)
        validation.number("spread decay", self.decay, "above 0 and up to 1", low=0, high=1, above=True)

    def ceiling(self, best: float) -> float:
        """The best score possible after spreading: an equally good neighbour one hop away, in the best thread."""
        return best * (1 + self.strength * self.decay + self.thread)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        keys, items, scores = ranking
        if not keys:
            return ranking
        graph = context.graph
        raised = scores
        if graph is not None and self.strength > 0:
            seeds = dict(zip(keys[: self.seeds], scores[: self.seeds], strict=True))
            incoming = graph.spread(seeds, hops=self.hops, decay=self.decay, include_seeds=True)
            keys, items = self._joined(ranking, incoming, graph)
            if context.trace is not None:
                self._tell(seeds, [key for key in keys if key in incoming], graph, context.trace)
            strength, get = self.strength, incoming.get
            raised = [score + strength * get(key, 0.0) for key, score in zip(keys, scores)]  # noqa: B905
            raised += [strength * incoming[key] for key in keys[len(scores) :]]
        if self.thread > 0:
            raised = self._heard(keys, items, scores, raised, context)
        return ranking if raised is scores else reorder(Ranking(keys, items, raised), raised)

    @staticmethod
    def _joined(ranking: Ranking, incoming: Mapping[str, float], graph: Graph) -> tuple[list[str], list[Any]]:
        """The ranking's keys and items, followed by those that only their neighbours brought."""
        fresh = sorted(incoming.keys() - ranking.keys)
        found = graph.items(fresh)
        if None in found:
            kept = [(key, item) for key, item in zip(fresh, found, strict=True) if item is not None]
            fresh, found = [key for key, _ in kept], [item for _, item in kept]
        return ranking.keys + fresh, ranking.items + found

    def _heard(
        self, keys: list[str], items: list[Any], scores: list[float], raised: list[float], context: Context
    ) -> list[float]:
        """Raised scores with what the thread of each item brings: thread · the best merged score in it."""
        threads = context.reader.column(items, "thread")
        size = len(scores)  # best first; what joined later has no score of its own
        best: dict[Any, float] = dict(zip(threads[size - 1 :: -1], scores[::-1], strict=True))
        best.pop(None, None)
        have, share = best.get, self.thread
        own = scores + [0.0] * (len(items) - size)
        if context.trace is not None:
            for key, thread, alone in zip(keys, threads, own, strict=True):
                where = "by itself" if thread not in best else f"in thread {thread}"
                context.trace.say("spread", key, f"+{share * have(thread, alone):.4g} for the best score {where}")
        return [score + share * have(thread, alone) for score, thread, alone in zip(raised, threads, own)]  # noqa: B905

    def _tell(self, seeds: dict[str, float], targets: list[str], graph: Graph, trace: Trace) -> None:
        for key, won in graph.paths(seeds, targets, hops=self.hops, decay=self.decay).items():
            seed, *steps = won.path
            path = " → ".join([f"seed {seed}{trace.found(seed)}", *steps])
            trace.say("spread", key, f"+{self.strength * won.value:.4g} by {path} ({won.value:.4g})")
            trace.reached(key, won)
