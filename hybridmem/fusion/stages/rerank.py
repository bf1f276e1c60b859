"""Stages that reorder the top of the ranking: a reranker, and diversity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybridmem.core import validation
from hybridmem.core.types import Ranking
from hybridmem.errors import ConfigError
from hybridmem.fusion.stages.base import Context

__all__ = ["Diversity", "Rerank", "Scorer", "scores_of_order"]

Scorer = Callable[[str, list[str]], Sequence[float]]
_RERANKER = "a function (query, texts) -> scores, a LangChain document compressor or a LlamaIndex node postprocessor"
_CONVERTED = ("compress_documents", "postprocess_nodes")
"""The methods of rerankers that the adapters turn into functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank:
    """Reorder the top by a cross-encoder or another reranker; the rest keeps its order.

    `scorer` is a function `(query, texts) -> scores`. The `FusionRetriever` of a framework also takes that framework's
    rerankers: a LangChain document compressor or a LlamaIndex node postprocessor; `as_scorer` of the adapter makes a
    function of one for a HybridMemory.
    The scores of the top are assigned again in the new order, so that scores never increase down the list.
    """

    scorer: Scorer | Any
    top: int = 20

    def __post_init__(self) -> None:
        known = callable(self.scorer) or any(hasattr(self.scorer, name) for name in _CONVERTED)
        if isinstance(self.scorer, type) or not known:
            validation.refuse("rerank scorer", self.scorer, _RERANKER)
        validation.integer("rerank top", self.top, "from 1 up", low=1)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        head = min(self.top, len(ranking.keys))
        if head == 0:
            return ranking
        texts = [str(text or "") for text in context.reader.column(ranking.items[:head], "text")]
        if not callable(self.scorer):
            raise ConfigError(f"rerank scorer {self.scorer!r} is a framework's: use as_scorer() of its adapter")
        given = [float(score) for score in self.scorer(context.query, texts)]
        if len(given) != head or not all(map(math.isfinite, given)):
            raise ConfigError(f"the reranker gave {given!r} for {head} texts: one finite score for each is needed")
        order = sorted(range(head), key=given.__getitem__, reverse=True)
        if context.trace is not None:
            for place, i in enumerate(order, start=1):
                context.trace.note("rerank", ranking.keys[i], f"rerank {given[i]:.4g}: #{i + 1} → #{place}")
        keys, items, scores = ranking
        return Ranking([keys[i] for i in order] + keys[head:], [items[i] for i in order] + items[head:], list(scores))


def scores_of_order(order: Sequence[int], size: int, /) -> list[float]:
    """Scores that put `size` texts in this order; those that it leaves out follow as they were.

    >>> scores_of_order([2, 0], 3)
    [1.0, -2.0, 2.0]
    """
    scores = [-float(place) - 1.0 for place in range(size)]
    for rank, place in enumerate(order):
        scores[place] = float(len(order) - rank)
    return scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversity:
    """Maximal marginal relevance: repeatedly take the best of λ · relevance − (1 − λ) · similarity to those taken.

    Relevance is score / best score; similarity is the cosine of the items' vectors, or the share of common words
    where there are none. Only the `top` items are reordered.
    """

    balance: float = 0.5
    """λ: 1 is relevance alone, 0 is variety alone."""
    top: int = 50

    def __post_init__(self) -> None:
        validation.number("diversity balance", self.balance, "from 0 to 1", low=0, high=1)
        validation.integer("diversity top", self.top, "from 1 up", low=1)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        head = min(self.top, len(ranking.keys))
        if head == 0:
            return ranking
        best = max(ranking.scores[:head])
        relevance = [score / best if best > 0 else 0.0 for score in ranking.scores[:head]]
        similarity = _similarity(ranking.items[:head], context)
        left = list(range(head))
        nearest = [0.0] * head
        order: list[int] = []
        while left:
            chosen = max(left, key=lambda i: (self.balance * relevance[i] - (1 - self.balance) * nearest[i], -i))
            left.remove(chosen)
            if context.trace is not None and chosen != len(order):
                moved = f"#{chosen + 1} → #{len(order) + 1}"
                context.trace.note(
                    "diversity", ranking.keys[chosen], f"diversity {moved} (similarity {nearest[chosen]:.2f})"
                )
            order.append(chosen)
            for i in left:
                near = similarity(chosen, i)
                nearest[i] = max(nearest[i], near) if len(order) > 1 else near  # a cosine may be negative
        keys, items, scores = ranking
        falling: list[float] = []
        for score in [scores[i] for i in order] + scores[head:]:
            falling.append(min(score, falling[-1]) if falling else score)
        return Ranking([keys[i] for i in order] + keys[head:], [items[i] for i in order] + items[head:], falling)


def _similarity(items: Sequence[Any], context: Context) -> Callable[[int, int], float]:
    vectors = context.reader.column(items, "vector")
    if all(vector is not None for vector in vectors):
        return lambda i, j: _cosine(vectors[i], vectors[j])
    words = [set(str(text or "").casefold().split()) for text in context.reader.column(items, "text")]
    return lambda i, j: len(words[i] & words[j]) / (len(words[i] | words[j]) or 1)


def _cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot = math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))
    norm = math.sqrt(math.fsum(float(x) ** 2 for x in a) * math.fsum(float(y) ** 2 for y in b))
    return dot / norm if norm else 0.0
