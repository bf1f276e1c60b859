"""GraphIndex: memories that remind of each other, by spreading activation over links, shared entities and threads."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import numpy as np

from hybridmem.core import validation
from hybridmem.core.forks import guard
from hybridmem.core.protocols import Change
from hybridmem.core.times import epoch
from hybridmem.core.types import Edge, Hits, Memory
from hybridmem.indexes.entries import Roster
from hybridmem.indexes.graph.activation import Picture, Weights
from hybridmem.indexes.graph.adjacency import Adjacency, Column, Slot, Slots
from hybridmem.indexes.graph.threads import Chains, Turn, asks
from hybridmem.text.entities import spot

__all__ = ["GraphIndex", "GraphSettings", "ids_in"]


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
            validation.number(name, getattr(self, name), "a finite number from 0 up", low=0)
        validation.number("shared", self.shared, "a number from 0 to 1", low=0, high=1)
        validation.text("links_key", self.links_key, "the name of a metadata key")
        named = isinstance(self.entities, str) and self.entities in ("own", "spot")
        if not (named or self.entities is None or callable(self.entities)):
            validation.refuse("entities", self.entities, '"own", "spot", a callable or None')
        for name in ("max_fanout", "max_reached"):
            validation.integer(name, getattr(self, name), "a whole number from 1 up", low=1)


_BULK = 64  # edges of one batch from which on they go straight into new arrays (in a large graph: 1/256 of it)


class GraphIndex:
    """Follows a store's changes; spreads activation from seeds: neighbour = activation · weight · decay.

    Writers are serialised; readers take a `snapshot`, which costs microseconds and never changes.

    >>> graph = GraphIndex()
    >>> graph.apply([Change(n, f"m{n}", Memory(f"turn {n}", id=f"m{n}", thread="chat")) for n in (1, 2, 3)])
    >>> graph.snapshot().spread({"m1": 1.0})
    {'m2': 0.5, 'm3': 0.25}
    """

    def __init__(self, settings: GraphSettings | None = None) -> None:
        if not isinstance(settings, GraphSettings | None):
            validation.refuse("settings", settings, "GraphSettings(…), or None")
        self.settings = settings or GraphSettings()
        self.watermark = 0
        self._lock = guard(threading.Lock())
        self._numbers: dict[str, int] = {}
        self._ids: list[str] = []
        self._alive = Column(np.bool_, fill=0)
        self._size = 0
        self._chains = Chains()
        self._links, self._entities_of, self._members_of = Adjacency(), Adjacency(), Adjacency()
        self._entities: dict[str, int] = {}
        self._entity_names: list[str] = []
        self._label_numbers: dict[tuple[str, str], int] = {}
        self._labels: list[str] = []
        self._meta = self._label("metadata", self.settings.links_key)
        self._noted: dict[tuple[int, int, int], float] = {}  # edges of this batch; the last one of a kind counts
        self._picture = self._freeze()

    def __len__(self) -> int:
        return self._size

    # --- following the store

    def apply(self, changes: Iterable[Change], /) -> None:
        """Take changes in order. Readers see all of a batch or nothing of it."""
        with self._lock:
            watermark = self.watermark
            for change in changes:
                watermark = max(watermark, change.seq)
                if change.edge is not None:
                    self._note_edge(change.edge, gone=change.gone)
                elif change.memory is None:
                    self._drop(change.id)
                else:
                    self._put(change)
            self._set_edges()
            self._picture = self._freeze()
            self.watermark = watermark

    def load(self, roster: Roster, edges: Iterable[Edge] = (), /) -> None:
        """Fill an empty index at once, as `apply` would have: for opening a large store quickly."""
        entries, settings = roster.entries.values(), self.settings
        with self._lock:
            self._ids = list(roster.entries)
            self._size = len(self._ids)
            self._numbers = dict(zip(self._ids, range(self._size), strict=True))
            self._alive.fill(np.ones(self._size, np.bool_))
            extras = [(self._numbers[key], extra) for key, extra in roster.extras.items()]
            if settings.thread > 0:
                threads, times = [entry.thread for entry in entries], [entry.created_at for entry in entries]
                born = list(map(roster.born.__getitem__, self._ids))
                self._chains.load(threads, times, born, [node for node, extra in extras if extra.asks])
            for node, extra in extras:
                if extra.links is not None and settings.metadata > 0:
                    for target in self._targets(node, extra.links):
                        self._noted[node, target, self._meta] = settings.metadata
                if extra.entities and settings.entities is not None and settings.shared > 0:
                    self._put_entities(node, extra.entities)
            for edge in edges:
                self._note_edge(edge, gone=False)
            self._set_edges()
            self._picture = self._freeze()
            self.watermark = roster.watermark

    @property
    def reads_texts(self) -> bool:
        """Whether this index looks for names in the texts, so that `load`, which sees none, is not enough."""
        return self.settings.shared > 0 and self.settings.entities not in ("own", None)

    def _put(self, change: Change) -> None:
        memory = change.memory
        if memory is None:
            return
        node = self._number(change.id or memory.id)
        known = bool(self._alive[node])
        if known and not change.text_changed:
            return
        if not known:
            self._alive.set(node, 1)
            self._size += 1
        settings = self.settings
        if settings.thread > 0:
            self._put_turn(node, memory, change)
        links = memory.metadata.get(settings.links_key) if settings.metadata > 0 else None
        if known:
            self._put_links(node, links)
        elif links is not None:
            for target in self._targets(node, links):
                self._noted[node, target, self._meta] = settings.metadata
        names = self._names(memory)
        if names or known:
            self._put_entities(node, names)

    def _drop(self, key: str) -> None:
        node = self._numbers.get(key)
        if node is None or not self._alive[node]:
            return
        self._alive.set(node, 0)
        self._size -= 1
        self._chains.drop(node)
        self._put_links(node, None)
        self._put_entities(node, ())

    def _put_turn(self, node: int, memory: Memory, change: Change) -> None:
        if memory.thread is None:
            self._chains.drop(node)
            return
        at = epoch(memory.created_at)
        first = change.born or self._chains.seq_of(node) or change.seq
        turn = Turn(math.inf if at is None else at, first, node)
        self._chains.put(memory.thread, turn, asks=asks(memory.text))

    def _targets(self, node: int, value: Any) -> dict[int, None]:
        numbers = dict.fromkeys(map(self._number, ids_in(value, most=self.settings.max_fanout)))
        numbers.pop(node, None)
        return numbers

    def _put_links(self, node: int, value: Any) -> None:
        """Make a known memory's metadata links what they are now."""
        self._set_edges()
        wanted = self._targets(node, value)
        if not (wanted or self._links):
            return
        known = {slot.target for slot in self._links.row(node) if slot.label == 2 * self._meta}
        for target in known - wanted.keys():
            self._unlink(node, target, self._meta)
        for target in wanted:
            if target not in known:
                self._link(node, target, self._meta, self.settings.metadata)

    def _put_entities(self, node: int, names: Iterable[str]) -> None:
        wanted = dict.fromkeys(self._entity(name) for name in names if name.strip())
        known = {slot.target for slot in self._entities_of.row(node)} if self._entities else set()
        for entity in known - wanted.keys():
            self._entities_of.remove(node, entity, 0)
            self._members_of.remove(entity, node, 0)
        for entity in wanted:
            if entity not in known:
                self._entities_of.add(node, Slot(entity, 1.0, 0))
                self._members_of.add(entity, Slot(node, 1.0, 0))

    def _names(self, memory: Memory) -> Iterable[str]:
        chosen = self.settings.entities
        if chosen is None or self.settings.shared == 0:
            return ()
        if memory.entities or chosen == "own":
            return memory.entities
        return spot(memory.text) if isinstance(chosen, str) else chosen(memory.text)

    def _note_edge(self, edge: Edge, *, gone: bool) -> None:
        """An edge of no weight is no edge; self-loops bring nothing; a weight that is no number cannot count."""
        first, second = self._number(edge.a), self._number(edge.b)
        weight = edge.weight * self.settings.explicit
        useful = not gone and weight > 0 and math.isfinite(weight) and first != second
        self._noted[first, second, self._label("explicit", edge.relation)] = weight if useful else 0.0

    def _set_edges(self) -> None:
        """Write down the edges noted in this batch, all at once where they are many."""
        edges, self._noted = self._noted, {}
        if self._links:
            for first, second, label in edges:
                if label != self._meta:  # those were noted for new memories only, which have none yet
                    self._unlink(first, second, label)
        useful = [(*key, weight) for key, weight in edges.items() if weight > 0]
        if len(useful) < max(_BULK, len(self._links) // 256):
            for first, second, label, weight in useful:
                self._link(first, second, label, weight)
            return
        one, other, labels, weights = (np.array(column) for column in zip(*useful, strict=True))
        both = Slots(
            np.concatenate((other, one)).astype(np.int32),
            np.concatenate((weights, weights)),
            np.concatenate((2 * labels, 2 * labels + 1)).astype(np.int32),
        )
        self._links.extend(np.concatenate((one, other)), both)

    def _link(self, first: int, second: int, label: int, weight: float) -> None:
        # both ways; the label's lowest bit tells an edge from its way back
        self._links.add(first, Slot(second, weight, 2 * label))
        self._links.add(second, Slot(first, weight, 2 * label + 1))

    def _unlink(self, first: int, second: int, label: int) -> None:
        if self._links.remove(first, second, 2 * label):
            self._links.remove(second, first, 2 * label + 1)

    # --- numbers for names

    def _number(self, key: str) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = len(self._ids)
            self._ids.append(key)
            self._numbers[key] = number
        return number

    def _entity(self, name: str) -> int:
        key = " ".join(name.split()).casefold()
        number = self._entities.get(key)
        if number is None:
            number = self._entities[key] = len(self._entity_names)
            self._entity_names.append(" ".join(name.split()))
        return number

    def _label(self, kind: str, name: str) -> int:
        number = self._label_numbers.get((kind, name))
        if number is None:
            number = self._label_numbers[kind, name] = len(self._labels)
            self._labels.append(name)
        return number

    # --- reading

    def _freeze(self) -> Picture:
        count, settings = len(self._ids), self.settings
        return Picture(
            count=count,
            ids=self._ids,
            numbers=self._numbers,
            alive=self._alive.freeze(count),
            chains=self._chains.freeze(count),
            links=self._links.freeze(),
            entities_of=self._entities_of.freeze(),
            members_of=self._members_of.freeze(),
            entity_count=len(self._entity_names),
            labels=self._labels,
            entity_names=self._entity_names,
            weights=Weights(settings.thread, settings.answers, settings.shared, settings.max_fanout),
            max_reached=settings.max_reached,
        )

    def snapshot(
        self, items: Callable[[Sequence[str]], list[Any]] | None = None, /, *, allowed: Set[str] | None = None
    ) -> Picture:
        """The graph as it is now, for a fusion. `items` fetches what is behind ids; only `allowed` ids take part."""
        picture = self._picture
        if items is None and allowed is None:
            return picture
        return replace(picture, fetch=items, allowed=allowed)

    def search(
        self,
        seeds: Mapping[str, float],
        /,
        *,
        k: int,
        allowed: Set[str] | None = None,
        hops: int = 2,
        decay: float = 0.5,
    ) -> Hits:
        """The k most activated memories: the seeds themselves and what they remind of (see `Picture.search`)."""
        return self._picture.only(allowed).search(seeds, k=k, hops=hops, decay=decay)


def ids_in(value: Any, /, *, most: int = 2**31) -> list[str]:
    """The ids in a metadata value: one id, or any list, tuple or set of them; nothing in anything else.

    >>> ids_in("m1"), ids_in(["m1", 7]), ids_in(None)
    (['m1'], ['m1', '7'], [])
    """
    if isinstance(value, str):
        return [value] if value else []
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        return []
    if isinstance(value, Set):  # a set has no order of its own that every process would agree on
        value = sorted(map(str, value))
    return [str(key) for key in islice(value, most)]
