"""Spreading: activation from graph neighbours, and a bonus for the thread."""

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

    incoming = max over neighbours of (their score · Π edge weight · decay). It is added to the merged score, and
    items that no arm found are added to the ranking. An item without a thread counts as a thread of its own.
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

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        keys, items, scores = ranking
        if not keys:
            return ranking
        graph = context.graph
        raised = scores
        if graph is not None and self.strength > 0:
            seeds = dict(zip(keys[: self.seeds], scores[: self.seeds], strict=True))
            incoming = graph.spread(seeds, hops=self.hops, decay=self.decay, include_seeds=True)
            keys, items = self._with_neighbours(ranking, incoming, graph)
            if context.trace is not None:
                self._trace(seeds, [key for key in keys if key in incoming], graph, context.trace)
            strength, get = self.strength, incoming.get
            raised = [score + strength * get(key, 0.0) for key, score in zip(keys, scores)]  # noqa: B905
            raised += [strength * incoming[key] for key in keys[len(scores) :]]
        if self.thread > 0:
            raised = self._with_thread_bonus(keys, items, scores, raised, context)
        return ranking if raised is scores else reorder(Ranking(keys, items, raised), raised)

    @staticmethod
    def _with_neighbours(ranking: Ranking, incoming: Mapping[str, float], graph: Graph) -> tuple[list[str], list[Any]]:
        """The ranking's keys and items, followed by those that only the graph activated."""
        new = sorted(incoming.keys() - ranking.keys)
        items = graph.items(new)
        if None in items:
            kept = [(key, item) for key, item in zip(new, items, strict=True) if item is not None]
            new, items = [key for key, _ in kept], [item for _, item in kept]
        return ranking.keys + new, ranking.items + items

    def _with_thread_bonus(
        self, keys: list[str], items: list[Any], scores: list[float], raised: list[float], context: Context
    ) -> list[float]:
        """Raised scores plus thread · the best merged score in the thread of each item."""
        threads = context.reader.column(items, "thread")
        size = len(scores)  # best first; items from the graph have no score of their own
        best: dict[Any, float] = dict(zip(threads[size - 1 :: -1], scores[::-1], strict=True))
        best.pop(None, None)
        best_in, share = best.get, self.thread
        own = scores + [0.0] * (len(items) - size)
        if context.trace is not None:
            for key, thread, alone in zip(keys, threads, own, strict=True):
                bonus = share * best_in(thread, alone)
                context.trace.note("spread", key, f"thread bonus +{bonus:.4g} ({thread})" if thread in best else "")
        return [score + share * best_in(thread, alone) for score, thread, alone in zip(raised, threads, own)]  # noqa: B905

    def _trace(self, seeds: dict[str, float], targets: list[str], graph: Graph, trace: Trace) -> None:
        for key, activation in graph.paths(seeds, targets, hops=self.hops, decay=self.decay).items():
            seed, *steps = activation.path
            path = " → ".join([f"{seed}{trace.best_rank(seed)}", *steps])
            trace.note("spread", key, f"graph +{self.strength * activation.value:.4g} from {path}")
            trace.activated(key, activation)
