"""The graph as an arm of its own: how it came to each hit, as data and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hybridmem.core.types import Activation, Graph, Hits
from hybridmem.fusion.explain import ArmShare, Explanation, Receipt

__all__ = ["arm_paths", "explain_arm", "explain_paths", "path_line"]


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


def explain_paths(
    query: str, found: Mapping[str, Activation], lines: Mapping[str, str], /, *, brought: str = ""
) -> Explanation:
    """Receipts for hits, best first, from their paths as data and in words."""
    receipts = []
    for place, (key, won) in enumerate(found.items(), start=1):
        share = ArmShare("graph", place, won.value, won.value, lines.get(key, ""))
        receipts.append(Receipt(key, place, won.value, won.value, (share,)))
    return Explanation(query, tuple(receipts), {"graph": brought or f"{len(found)} hits"}, activations=dict(found))


def explain_arm(
    graph: Graph, query: str, seeds: Hits, hits: Hits, /, *, hops: int = 2, decay: float = 0.5, arm: str = "bm25"
) -> Explanation:
    """Receipts for the hits of a graph arm whose seeds came from another arm."""
    told = arm_paths(graph, dict(zip(*seeds, strict=True)), hits.ids, hops=hops, decay=decay)
    found = {key: told[key] for key in hits.ids if key in told}
    names = {key: f"{arm} #{place}" for place, key in enumerate(seeds.ids, start=1)}
    lines = {key: path_line(won, seed=names[won.path[0]]) for key, won in found.items()}
    return explain_paths(query, found, lines, brought=f"{len(hits.ids)} hits from {len(seeds.ids)} seeds of {arm}")
