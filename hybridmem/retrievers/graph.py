"""Spreading over items of any framework: over all of them at hand, or fetched edge by edge from a store."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from hybridmem.core.fanout import in_thread
from hybridmem.core.protocols import Change
from hybridmem.core.types import Activation, Edge, Memory
from hybridmem.errors import ConfigError
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.graph.explain import arm_paths, path_line
from hybridmem.indexes.graph.index import GraphIndex, GraphSettings

__all__ = [
    "Call",
    "Corpus",
    "Found",
    "Linked",
    "Reach",
    "adrive",
    "drive",
    "over_corpus",
    "over_memory",
    "over_store",
    "ranks",
]

Item = TypeVar("Item")
SEEDS = 4
"""Seeds for each result wanted: the best 4·k hits of the seed arm."""
FETCHED = 1000
"""The most items fetched from a store for one question: a hub must not empty it."""


class Linked(NamedTuple):
    """An item with what the graph needs to know of it: `memory.metadata["links"]` lists ids it points at."""

    memory: Memory
    item: Any
    edges: tuple[Edge, ...] = ()


class Found(NamedTuple):
    """An item that spreading found, and how: as data, and in a line."""

    item: Any
    activation: Activation
    line: str


@dataclass(frozen=True, slots=True)
class Reach:
    """How far to go: k results, over so many hops, weaker by decay at each, among items that pass `check`.

    `seeds` is how many hits of the seed arm to start from; None: 4·k.
    """

    k: int = 4
    hops: int = 2
    decay: float = 0.5
    check: Callable[[Any], bool] | None = None
    seeds: int | None = None

    def __post_init__(self) -> None:
        for name, low in (("k", 1), ("hops", 0), ("seeds", 1)):
            value = getattr(self, name)
            if name == "seeds" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ConfigError(f"{name} = {value!r} is not allowed: a whole number from {low} up")
        if not (isinstance(self.decay, (int, float)) and 0 <= self.decay <= 1):
            raise ConfigError(f"decay = {self.decay!r} is not allowed: from 0 to 1")

    @property
    def depth(self) -> int:
        """How many hits to ask the seed arm for."""
        return self.seeds or SEEDS * self.k


class Call(NamedTuple):
    """Something to wait for, in sync and in async code."""

    now: Callable[[], Any]
    later: Callable[[], Awaitable[Any]]

    @classmethod
    def of(cls, work: Callable[[], Any], /) -> Call:
        """Plain work; in async code a thread does it, so that the loop stays free."""
        return cls(work, lambda: in_thread(work))


Steps = Generator[Call, Any, list[Found]]


def drive(steps: Steps, /) -> list[Found]:
    """Go through the steps, waiting at each."""
    try:
        call = next(steps)
        while True:
            call = steps.send(call.now())
    except StopIteration as done:
        found: list[Found] = done.value
        return found


async def adrive(steps: Steps, /) -> list[Found]:
    """Go through the steps on the event loop."""
    try:
        call = next(steps)
        while True:
            call = steps.send(await call.later())
    except StopIteration as done:
        found: list[Found] = done.value
        return found


class Corpus(Generic[Item]):
    """Items at hand, with their graph and, for seeds, a BM25 index. Items can be added and removed at any time."""

    def __init__(self, settings: GraphSettings | None = None, /, *, words: bool = True) -> None:
        # links were read from the items by the adapter, whatever their key was there
        self._graph = GraphIndex(replace(settings or GraphSettings(), links_key="links"))
        self._words = BM25Index() if words else None
        self._items: dict[str, Item] = {}
        self._edges: dict[str, tuple[Edge, ...]] = {}
        self._seq = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> list[Item]:
        """All items, in the order in which they came."""
        return list(self._items.values())

    def get(self, key: str, /) -> Item | None:
        """The item of this id."""
        return self._items.get(key)

    def add(self, linked: Iterable[Linked], /) -> list[str]:
        """Add items, or replace those of the same id; gives their ids."""
        changes: list[Change] = []
        keys: list[str] = []
        for memory, item, edges in linked:
            keys.append(memory.id)
            self._items[memory.id] = item
            changes.append(Change(self._next(), memory.id, memory))
            changes += self._cut(memory.id)
            changes += [Change(self._next(), "", edge=edge) for edge in edges]
            if edges:
                self._edges[memory.id] = edges
        self._apply(changes)
        return keys

    def remove(self, keys: Iterable[str], /) -> int:
        """Take items out; how many there were."""
        there = [key for key in dict.fromkeys(keys) if self._items.pop(key, None) is not None]
        self._apply([change for key in there for change in (Change(self._next(), key), *self._cut(key))])
        return len(there)

    def allowed(self, check: Callable[[Item], bool] | None, /) -> Set[str] | None:
        """The ids of the items that pass; None for all."""
        return None if check is None else {key for key, item in list(self._items.items()) if check(item)}

    def words(self, query: str, /, *, k: int, allowed: Set[str] | None = None) -> dict[str, float]:
        """Seeds by BM25."""
        if self._words is None:
            return {}
        return dict(zip(*self._words.search(query, k=k, allowed=allowed), strict=True))

    def search(self, seeds: Mapping[str, float], reach: Reach, /, *, allowed: Set[str] | None = None) -> list[Found]:
        """The most activated items: the seeds and what they remind of, each with its path."""
        picture = self._graph.snapshot(allowed=allowed)
        hits = picture.search(seeds, k=reach.k, hops=reach.hops, decay=reach.decay)
        told = arm_paths(picture, seeds, hits.ids, hops=reach.hops, decay=reach.decay)
        return [Found(self._items[key], told[key], path_line(told[key])) for key in hits.ids if key in self._items]

    def _cut(self, key: str) -> list[Change]:
        return [Change(self._next(), "", edge=edge, gone=True) for edge in self._edges.pop(key, ())]

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _apply(self, changes: Sequence[Change]) -> None:
        if self._words is not None:
            self._words.apply(changes)
        self._graph.apply(changes)


def over_memory(memory: Any, query: str, how: Mapping[str, Any], convert: Callable[[Memory], Any], /) -> Steps:
    """The one step of a question to a HybridMemory; what is None in `how` is left to it."""
    given = {name: value for name, value in how.items() if value is not None}
    results = yield Call.of(lambda: memory.search_arm("graph", query, **given))
    found = []
    for result in results:
        told = result.explanation  # None where the memory keeps no graph
        own = Activation(result.score, 0, (result.id,))
        won = own if told is None else told.activations.get(result.id, own)
        line = path_line(own) if told is None else result.receipt.arms[0].note
        found.append(Found(convert(result.memory), won, line))
    return found


def ranks(keys: Sequence[str], scores: Sequence[float] | None, /) -> dict[str, float]:
    """Seeds from a list, best first: by its scores; by its ranks (n/n, (n-1)/n, …) where scores cannot tell.

    >>> ranks(["a", "b"], None), ranks(["a", "b", "a"], [3.0, 1.5, 1.0])
    ({'a': 1.0, 'b': 0.5}, {'a': 3.0, 'b': 1.5})
    """
    useful = scores is not None and all(map(math.isfinite, scores)) and max(scores, default=0.0) > 0
    values = scores if useful and scores is not None else [(len(keys) - n) / len(keys) for n in range(len(keys))]
    found: dict[str, float] = {}
    for key, value in zip(keys, values, strict=True):
        found.setdefault(key, value)
    return found


def over_corpus(corpus: Corpus[Any], query: str, reach: Reach, /, *, seeds: Call | None = None) -> Steps:
    """The steps of a question to items at hand; `seeds` asks another arm for {id: score}, else BM25 is asked."""
    given = None if seeds is None else (yield seeds)

    def work() -> list[Found]:
        allowed = corpus.allowed(reach.check)
        start = corpus.words(query, k=reach.depth, allowed=allowed) if given is None else given
        return corpus.search(start, reach, allowed=allowed)

    found: list[Found] = yield Call.of(work)
    return found


def over_store(
    seeds: Call, fetch: Callable[[list[str]], Call], settings: GraphSettings | None, reach: Reach, /
) -> Steps:
    """The steps of a question to a seed arm and a store: hop by hop the ids that items point at are fetched.

    `seeds` gives (linked items, {id: score}); `fetch(ids)` gives linked items. Only edges that items carry can be seen
    from here: links in their metadata, and relationships. So threads and shared entities take no part. What could not
    be among the k best, nor lead to one, is not fetched.
    """
    chosen = replace(settings or GraphSettings(), thread=0.0, shared=0.0)
    first, values = yield seeds
    worth = {key: value / max(values.values()) for key, value in values.items()}
    found: list[Linked] = []
    seen: set[str] = set()
    front: list[Linked] = first
    for hop in range(reach.hops + 1):
        front = [linked for linked in front if reach.check is None or reach.check(linked.item)]
        found += front
        seen.update(linked.memory.id for linked in front)
        if hop == reach.hops:
            break
        missing = _promising(front, worth, seen, chosen, reach)[: max(0, FETCHED - len(seen))]
        if not missing:
            break
        seen.update(missing)
        front = yield fetch(missing)
    corpus: Corpus[Any] = Corpus(chosen, words=False)
    corpus.add(found)
    return corpus.search(values, reach)


def _promising(
    front: Sequence[Linked], worth: dict[str, float], seen: Set[str], settings: GraphSettings, reach: Reach
) -> list[str]:
    """Ids not yet seen that the front points at, unless what would reach them is below the k best already there."""
    gain = max(settings.metadata, settings.explicit) * reach.decay
    known = sorted((worth.get(key, 0.0) for key in seen), reverse=True)
    floor = known[reach.k - 1] if len(known) >= reach.k and gain <= 1 else 0.0
    wanted: dict[str, None] = {}
    for linked in front:
        value = worth.get(linked.memory.id, 0.0) * gain
        for key in _pointed(linked) if value >= floor else ():
            if key not in seen:
                worth[key] = max(value, worth.get(key, 0.0))
                wanted[key] = None
    return list(wanted)


def _pointed(linked: Linked) -> list[str]:
    own = linked.memory.id
    ends = [end for edge in linked.edges for end in (edge.a, edge.b)]
    return [key for key in (*linked.memory.metadata.get("links", ()), *ends) if key != own]
