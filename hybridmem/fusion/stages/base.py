"""Context and type of a stage, sorting after scores have changed, and stage names for receipts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import ge
from typing import Any

from hybridmem.core.types import ArmList, Graph, Ranking, Reader
from hybridmem.fusion.explain import Trace

__all__ = ["Context", "Stage", "reorder", "stage_name", "take"]


@dataclass(slots=True)
class Context:
    """Inputs of a stage beside the ranking: the query, the clock, the reader of items, the arms' lists."""

    query: str
    now: float
    reader: Reader
    lists: Sequence[ArmList] = ()
    k: int | None = None
    graph: Graph | None = None
    contradictions: Callable[[Sequence[str]], Iterable[tuple[str, str]]] | None = None
    """Returns the pairs among these keys that contradict each other; None: read each item's `contradicts` field."""
    trace: Trace | None = None
    degraded: bool = False
    """Every arm was gated empty and the fallback arm's ungated list was used instead."""


Stage = Callable[[Ranking, Context], Ranking]
"""A stage: a small frozen dataclass with `__call__`, or any function of this shape."""


def reorder(ranking: Ranking, scores: Sequence[float], /) -> Ranking:
    """The ranking with new scores, best first; equal scores keep the order they had."""
    if all(map(ge, scores, scores[1:])):  # in order already: nothing moves
        return Ranking(ranking.keys, ranking.items, list(scores))
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    return take(ranking, order, scores)


def take(ranking: Ranking, places: Sequence[int], scores: Sequence[float] | None = None, /) -> Ranking:
    """The items at these places, in this order, with these scores (or their own)."""
    keys, items, own = ranking
    used = own if scores is None else scores
    return Ranking(
        list(map(keys.__getitem__, places)),
        list(map(items.__getitem__, places)),
        list(map(used.__getitem__, places)),
    )


def stage_name(stage: Any, /) -> str:
    """What a receipt calls a stage: its `name`, its function's name, or its class in lower case."""
    name = getattr(stage, "name", None) or getattr(stage, "__name__", None)
    return str(name) if name else type(stage).__name__.lower()
