"""The four modes of LlamaIndex's `QueryFusionRetriever` with its scores, and with weights in every mode.

Ranks count from 0 here and shares are not normalised, because its users expect these scores: first in two lists of
equal weight is 1/60 + 1/60. Every mode takes the lists in the order of the queries and retrievers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from llama_index.core.schema import BaseNode, NodeWithScore, TextNode

from llamaindex_hybridmem._conversion import node_text

__all__ = ["RankedList", "dist_based_score", "identities", "reciprocal_rerank", "relative_score", "simple"]

C = 60.0
Scored = list[tuple[NodeWithScore, float | None]]
"""Results as they came in, with the scores that they get."""


class RankedList(NamedTuple):
    """One retriever's answer to one query; `weight` is its share of all retrievers', `factor` n times that."""

    nodes: Sequence[NodeWithScore]
    keys: Sequence[str]
    weight: float
    factor: float


def identities(lists: Sequence[Sequence[NodeWithScore]], /) -> list[list[str]]:
    """A key for each node: the same id, or the same text and metadata, is the same result.

    Ids alone decide unless two of them share a text, as when two indexes were built from the same files.
    """
    columns = [[hit.node.id_ for hit in nodes] for nodes in lists]
    texts: list[str] = []
    for nodes in lists:
        texts += [node.text if type(node := hit.node) is TextNode else node_text(node) for hit in nodes]
    holders = set(zip(texts, chain.from_iterable(columns), strict=True))
    return columns if len(holders) == len(set(texts)) else _joined(lists, columns)


def _joined(lists: Sequence[Sequence[NodeWithScore]], columns: Sequence[Sequence[str]]) -> list[list[str]]:
    """Join ids through equal content, however many steps that takes."""
    parent: dict[str, str] = {}
    content: dict[object, str] = {}

    def root(key: str) -> str:
        while (above := parent.setdefault(key, key)) != key:
            parent[key] = key = parent[above]
        return key

    for nodes, keys in zip(lists, columns, strict=True):
        for hit, key in zip(nodes, keys, strict=True):
            first = content.setdefault(_content(hit.node), key)
            parent[root(key)] = root(first)
    return [[root(key) for key in keys] for keys in columns]


def _content(node: BaseNode) -> object:
    """What LlamaIndex hashes, without the hashing."""
    if isinstance(node, TextNode) and type(node).hash is TextNode.hash:
        return node.text, str(node.metadata)
    return node.hash


def reciprocal_rerank(lists: Sequence[RankedList], _queries: int, /) -> Scored:
    """Σ factor / (60 + rank), ranks from 0 by falling score.

    A node that its retriever scored 0 although it scored others above 0 is padding, not a hit, and adds nothing.
    """
    totals: dict[str, float] = {}
    latest: dict[str, NodeWithScore] = {}
    for nodes, keys, _, factor in lists:
        scores = [hit.score or 0.0 for hit in nodes]
        padded = 0.0 in scores and max(scores) > 0
        order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        for i, share in zip(order, _rank_shares(len(order), factor)):  # noqa: B905
            key = keys[i]
            latest[key] = nodes[i]
            if padded and nodes[i].score == 0:
                share = 0.0  # noqa: PLW2901
            totals[key] = totals[key] + share if key in totals else share
    return [(latest[key], totals[key]) for key in sorted(totals, key=totals.__getitem__, reverse=True)]


@lru_cache(maxsize=256)
def _rank_shares(count: int, factor: float) -> list[float]:
    return [factor / (rank + C) for rank in range(count)]


def relative_score(lists: Sequence[RankedList], queries: int, /) -> Scored:
    """Σ weight · (s − min) / (max − min) / number of queries."""
    return _scaled(lists, queries, lambda scores: (min(scores), max(scores)))


def dist_based_score(lists: Sequence[RankedList], queries: int, /) -> Scored:
    """The same between mean − 3σ and mean + 3σ."""
    return _scaled(lists, queries, _three_sigma)


def _three_sigma(scores: Sequence[float]) -> tuple[float, float]:
    mean = sum(scores) / len(scores)
    sigma = (sum((score - mean) ** 2 for score in scores) / len(scores)) ** 0.5
    return mean - 3 * sigma, mean + 3 * sigma


def _scaled(
    lists: Sequence[RankedList], queries: int, bounds: Callable[[Sequence[float]], tuple[float, float]]
) -> Scored:
    totals: dict[str, float] = {}
    first: dict[str, NodeWithScore] = {}
    for nodes, keys, weight, _ in lists:
        if not nodes:
            continue
        scores = [hit.score or 0.0 for hit in nodes]
        low, high = bounds(scores)
        even = 1.0 if high > 0 else 0.0
        for hit, key, score in zip(nodes, keys, scores, strict=True):
            scaled = even if high == low else (score - low) / (high - low)
            share = scaled * weight / queries
            totals[key] = totals[key] + share if key in totals else share
            first.setdefault(key, hit)
    return [(first[key], totals[key]) for key in sorted(totals, key=totals.__getitem__, reverse=True)]


def simple(lists: Sequence[RankedList], _queries: int, /) -> Scored:
    """The best of factor · s; a node without a score stays without one."""
    best: dict[str, float | None] = {}
    first: dict[str, NodeWithScore] = {}
    for nodes, keys, _, factor in lists:
        for hit, key in zip(nodes, keys, strict=True):
            score = None if hit.score is None else hit.score * factor
            if key in first:
                score = max(score or 0.0, best[key] or 0.0)
            best[key] = score
            first.setdefault(key, hit)
    return [(first[key], best[key]) for key in sorted(best, key=lambda key: best[key] or 0.0, reverse=True)]
