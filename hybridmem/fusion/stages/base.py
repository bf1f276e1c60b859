"""Context and type of a stage, sorting after scores have changed, and stage names for receipts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import ge, itemgetter
from typing import Any, NamedTuple

from hybridmem.core.types import ArmList, Candidates, Graph, Ranking, Reader
from hybridmem.fusion.explain import Trace

__all__ = ["Context", "Pool", "Stage", "pick", "reorder", "stage_name", "take"]


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
    return Ranking(pick(keys, positions), pick(items, positions), pick(used, positions))


def pick(values: Any, places: Sequence[Any], /) -> list[Any]:
    """The values at these positions of a sequence, or under these keys of a mapping."""
    if len(places) > 1:
        return list(itemgetter(*places)(values))  # half the time of a loop
    return [values[place] for place in places]


def stage_name(stage: Any, /) -> str:
    """The name of a stage in receipts: its `name`, its function's name, or its class name in lower case."""
    name = getattr(stage, "name", None) or getattr(stage, "__name__", None)
    return str(name) if name else type(stage).__name__.lower()
