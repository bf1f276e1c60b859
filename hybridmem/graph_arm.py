"""The graph as an arm of its own: how it came to each hit, as data and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hybridmem.explain import ArmShare, Explanation, Receipt
from hybridmem.types import Activation, Graph, Hits

__all__ = ["arm_paths", "explain_arm", "path_line"]


def arm_paths(
    graph: Graph, seeds: Mapping[str, float], ids: Sequence[str], /, *, hops: int = 2, decay: float = 0.5
) -> dict[str, Activation]:
    """How the graph arm came to each of these hits; a seed that nobody activated more is its own path of no hops."""
    finite = {key: value for key, value in seeds.items() if value > 0 and math.isfinite(value)}
    top = max(finite.values(), default=1.0)
    scaled = {key: value / top for key, value in finite.items()}
    told = dict(graph.paths(scaled, ids, hops=hops, decay=decay))
    for key in ids:
        own = scaled.get(key, 0.0)
        if own > 0 and (key not in told or own >= told[key].value):
            told[key] = Activation(own, 0, (key,))
    return told


def path_line(activation: Activation, /, *, seed: str = "") -> str:
    """One readable line of a path.

    >>> path_line(Activation(0.25, 1, ("m12", "entity Lisbon", "m40")), seed="bm25 #1")
    'seed m12 (bm25 #1) → entity Lisbon → m40 (0.25)'
    """
    start, *rest = activation.path
    head = f"seed {start} ({seed})" if seed else f"seed {start}"
    return f"{' → '.join([head, *rest])} ({activation.value:.4g})"


def explain_arm(
    graph: Graph, query: str, seeds: Hits, hits: Hits, /, *, hops: int = 2, decay: float = 0.5, arm: str = "bm25"
) -> Explanation:
    """Receipts for the hits of a graph arm whose seeds came from another arm."""
    found = arm_paths(graph, dict(zip(*seeds, strict=True)), hits.ids, hops=hops, decay=decay)
    rank = {key: place for place, key in enumerate(seeds.ids, start=1)}
    receipts = []
    for place, (key, score) in enumerate(zip(*hits, strict=True), start=1):
        line = path_line(found[key], seed=f"{arm} #{rank[found[key].path[0]]}") if key in found else ""
        receipts.append(Receipt(key, place, score, score, (ArmShare("graph", place, score, score, line),)))
    brought = {"graph": f"{len(hits.ids)} hits from {len(seeds.ids)} seeds of {arm}"}
    return Explanation(query, tuple(receipts), brought, activations=found)
