"""What stages share: sorting again after scores have changed, and names for receipts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridmem.types import Ranking

__all__ = ["reorder", "stage_name"]


def reorder(ranking: Ranking, scores: Sequence[float], /) -> Ranking:
    """The ranking with new scores, best first; equal scores keep the order they had."""
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    keys, items, _ = ranking
    return Ranking([keys[i] for i in order], [items[i] for i in order], [scores[i] for i in order])


def stage_name(stage: Any, /) -> str:
    """What a receipt calls a stage: its `name`, its function's name, or its class in lower case."""
    name = getattr(stage, "name", None) or getattr(stage, "__name__", None)
    return str(name) if name else type(stage).__name__.lower()
