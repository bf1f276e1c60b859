"""Spreading activation over a graph and the mentions of names, which are read from the texts of activated memories."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from heapq import nlargest
from typing import Any

from hybridmem.core.types import Activation, Graph, Hits

__all__ = ["MentionGraph", "Mentions"]

Mentions = Callable[[Sequence[str]], Iterable[tuple[str, str, float, str]]]
"""From ids to (id, mentioned id, weight, name)."""
READ = 50
"""At each hop the texts of this many of the most activated memories are read."""


class MentionGraph:
    """A graph with one more source of edges: a text that mentions a memory by name is linked to it, directed.

    neighbour = activation · weight of the name · decay, as for every other edge; the highest value counts.
    """

    def __init__(self, graph: Graph, mentions: Mentions, allowed: Set[str] | None = None) -> None:
        self._graph = graph
        self._mentions = mentions
        self._allowed = allowed

    def search(self, seeds: Mapping[str, float], /, *, k: int, hops: int = 2, decay: float = 0.5) -> Hits:
        """The k keys of highest activation, seeds (scaled so that the best is 1) included."""
        finite = {key: value for key, value in seeds.items() if value > 0 and math.isfinite(value)}
        top = max(finite.values(), default=1.0)
        reached = self._reached({key: value / top for key, value in finite.items()}, hops, decay)
        best = nlargest(k, ((activation.value, key) for key, activation in reached.items()), key=_order)
        return Hits([key for _, key in best], [value for value, _ in best])

    def spread(
        self, seeds: Mapping[str, float], /, *, hops: int = 2, decay: float = 0.5, include_seeds: bool = False
    ) -> dict[str, float]:
        """Activation of each neighbour; of seeds only what exceeds their own, with `include_seeds`."""
        reached = self._reached(seeds, hops, decay)
        return {
            key: activation.value
            for key, activation in reached.items()
            if activation.hops and (include_seeds or key not in seeds)
        }

    def paths(
        self, seeds: Mapping[str, float], targets: Sequence[str], /, *, hops: int = 2, decay: float = 0.5
    ) -> dict[str, Activation]:
        """The path of highest activation to each target that is not its own seed."""
        reached = self._reached(seeds, hops, decay)
        return {key: reached[key] for key in targets if key in reached and reached[key].hops}

    def items(self, keys: Sequence[str], /) -> list[Any]:
        """The items of keys."""
        return self._graph.items(keys)

    def _reached(self, seeds: Mapping[str, float], hops: int, decay: float) -> dict[str, Activation]:
        """The best activation of every memory within `hops`, hop by hop."""
        best = {key: Activation(value, 0, (key,)) for key, value in seeds.items()}
        frontier = dict(best)
        for hop in range(1, hops + 1):
            values = {key: activation.value for key, activation in frontier.items()}
            improved: dict[str, Activation] = {}
            for source, label, target, value in self._edges(values, decay):
                standing = improved.get(target) or best.get(target)
                if standing is None or value > standing.value:
                    improved[target] = Activation(value, hop, (*frontier[source].path, label, target))
            best |= improved
            frontier = improved
            if not frontier:
                break
        return best

    def _edges(self, values: Mapping[str, float], decay: float) -> Iterable[tuple[str, str, str, float]]:
        """One hop from these: (source, label, target, activation)."""
        neighbours = list(self._graph.spread(values, hops=1, decay=decay, include_seeds=True))
        for target, step in self._graph.paths(values, neighbours, hops=1, decay=decay).items():
            yield step.path[0], step.path[1], target, step.value
        strongest = [key for _, key in nlargest(READ, ((value, key) for key, value in values.items()), key=_order)]
        for source, target, weight, name in self._mentions(strongest):
            if self._allowed is None or target in self._allowed:
                yield source, f"mentions {name}", target, values[source] * weight * decay


def _order(item: tuple[float, str]) -> tuple[float, tuple[int, ...]]:
    """Highest value first, then the lower key."""
    value, key = item
    return value, tuple(-ord(letter) for letter in key)
