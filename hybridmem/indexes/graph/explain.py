"""Paths, receipts and explanations of the graph when it is searched as an arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hybridmem.core.types import Activation, Graph, Hits
from hybridmem.fusion.explain import ArmShare, Explanation, Receipt

__all__ = ["arm_paths", "explain_arm", "explain_paths", "path_line"]


def arm_paths(
    graph: Graph, seeds: Mapping[str, float], ids: Sequence[str], /, *, hops: int = 2, decay: float = 0.5
) -> dict[str, Activation]:
    """The path to each hit of the graph arm; a seed with no higher activation is its own path of 0 hops."""
    finite = {key: value for key, value in seeds.items() if value > 0 and math.isfinite(value)}
    top = max(finite.values(), default=1.0)
    scaled = {key: value / top for key, value in finite.items()}
    paths = dict(graph.paths(scaled, ids, hops=hops, decay=decay))
    for key in ids:
        own = scaled.get(key, 0.0)
        if own > 0 and (key not in paths or own >= paths[key].value):
            paths[key] = Activation(own, 0, (key,))
    return paths


def path_line(activation: Activation, /, *, seed: str = "") -> str:
    """A path as one line of text.

    >>> path_line(Activation(0.25, 1, ("m12", "entity Lisbon", "m40")), seed="bm25 #1")
    'seed m12 (bm25 #1) → entity Lisbon → m40 (0.25)'
    """
    start, *rest = activation.path
    head = f"seed {start} ({seed})" if seed else f"seed {start}"
    return f"{' → '.join([head, *rest])} ({activation.value:.4g})"


def explain_paths(
    query: str, paths: Mapping[str, Activation], lines: Mapping[str, str], /, *, summary: str = ""
) -> Explanation:
    """Receipts for hits, best first, from their paths as data and as text."""
    receipts = []
    for place, (key, activation) in enumerate(paths.items(), start=1):
        share = ArmShare("graph", place, activation.value, activation.value, lines.get(key, ""))
        receipts.append(Receipt(key, place, activation.value, activation.value, (share,)))
    return Explanation(query, tuple(receipts), {"graph": summary or f"{len(paths)} hits"}, activations=dict(paths))


def explain_arm(
    graph: Graph, query: str, seeds: Hits, hits: Hits, /, *, hops: int = 2, decay: float = 0.5, arm: str = "bm25"
) -> Explanation:
    """Receipts for the hits of the graph arm, with seeds from another arm."""
    paths = arm_paths(graph, dict(zip(*seeds, strict=True)), hits.ids, hops=hops, decay=decay)
    found = {key: paths[key] for key in hits.ids if key in paths}
    names = {key: f"{arm} #{place}" for place, key in enumerate(seeds.ids, start=1)}
    lines = {key: path_line(activation, seed=names[activation.path[0]]) for key, activation in found.items()}
    return explain_paths(query, found, lines, summary=f"{len(hits.ids)} hits from {len(seeds.ids)} seeds of {arm}")
