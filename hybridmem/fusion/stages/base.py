"""The type of a stage, the context that it receives, and the names of stages in receipts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hybridmem.core.types import ArmList, Candidates, Graph, Ranking, Reader
from hybridmem.fusion.explain import Trace

__all__ = ["Context", "Pool", "Stage", "stage_name"]

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Pool(NamedTuple):
    """All candidates of a query with their scores by every arm, those included that no arm listed."""

    items: Sequence[Any]
    """The item of each candidate."""
    candidates: Candidates
    speakers: Collection[str] | None = None
    """The speakers of the whole store, in lower case; None: unknown."""


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
    pool: Pool | None = None
    fill: bool = True
    """Whether a dedup with `fill` may do so."""


Stage = Callable[[Ranking, Context], Ranking]
"""A stage: a small frozen dataclass with `__call__`, or any function of this shape."""


def stage_name(stage: Any, /) -> str:
    """The name of a stage in receipts: its `name`, its function's name, or its class name (HalfLife: half_life)."""
    name = getattr(stage, "name", None) or getattr(stage, "__name__", None)
    return str(name) if name else _WORD_START.sub("_", type(stage).__name__).lower()
