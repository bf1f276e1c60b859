"""GraphSettings: where the edges of a graph come from, and what each is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from hybridmem import checks

__all__ = ["GraphSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSettings:
    """Where edges come from and what each is worth; a weight of 0 switches a source off.

    explicit   multiplies the weight of edges made with `link`
    metadata   edges to the ids listed under `links_key` of a memory's metadata
    shared     edges between memories that share an entity: shared / √(n - 1) for an entity of n memories
    thread     edges to the previous and the next memory of the same thread (by created_at, then insertion)
    answers    multiplies the thread edge from a question (its text contains "?") to the next memory

    `entities`: "own" takes the memories' own lists; "spot" spots names, identifiers, quotes, hashtags and dates where a
    memory lists none; a callable does the same with your function; None switches entities off.
    `max_fanout` bounds implicit edges: an entity of more memories than this reminds of nothing, and no more than this
    many metadata links of one memory are followed. Explicit edges are never cut; but where one spreading reaches more
    than `max_reached` memories, only the most activated are told.
    """

    explicit: float = 1.0
    metadata: float = 1.0
    shared: float = 1.0
    thread: float = 1.0
    answers: float = 2.0
    links_key: str = "links"
    entities: Literal["own", "spot"] | Callable[[str], Iterable[str]] | None = "own"
    max_fanout: int = 256
    max_reached: int = 1024

    def __post_init__(self) -> None:
        for name in ("explicit", "metadata", "thread", "answers"):
            checks.number(name, getattr(self, name), "a finite number from 0 up", low=0)
        checks.number("shared", self.shared, "a number from 0 to 1", low=0, high=1)
        checks.text("links_key", self.links_key, "the name of a metadata key")
        named = isinstance(self.entities, str) and self.entities in ("own", "spot")
        if not (named or self.entities is None or callable(self.entities)):
            checks.refuse("entities", self.entities, '"own", "spot", a callable or None')
        for name in ("max_fanout", "max_reached"):
            checks.whole(name, getattr(self, name), "a whole number from 1 up", low=1)
