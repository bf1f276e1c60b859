"""Helpers of all stages: re-sorting after scores have changed, and stage names for receipts."""

from __future__ import annotations

from collections.abc import Sequence
from operator import ge
from typing import Any

from hybridmem.core.types import Ranking

__all__ = ["reorder", "stage_name", "take"]


def reorder(ranking: Ranking, scores: Sequence[float], /) -> Ranking:
    """The ranking with new scores, best first; equal scores keep their order."""
    if all(map(ge, scores, scores[1:])):  # already in order
        return Ranking(ranking.keys, ranking.items, list(scores))
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    return take(ranking, order, scores)


def take(ranking: Ranking, positions: Sequence[int], scores: Sequence[float] | None = None, /) -> Ranking:
    """The items at these positions, in this order, with these scores (or their own)."""
    keys, items, own = ranking
    used = own if scores is None else scores
    return Ranking(
        list(map(keys.__getitem__, positions)),
        list(map(items.__getitem__, positions)),
        list(map(used.__getitem__, positions)),
    )


def stage_name(stage: Any, /) -> str:
    """The name of a stage in receipts: its `name`, its function's name, or its class name in lower case."""
    name = getattr(stage, "name", None) or getattr(stage, "__name__", None)
    return str(name) if name else type(stage).__name__.lower()
