"""Graph index: spreading activation over links, shared entities and threads."""

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
from hybridmem.indexes.entries import Entries
from hybridmem.indexes.graph.activation import GraphSnapshot, ThreadLinks, Weights
from hybridmem.indexes.graph.adjacency import Adjacency, Column, DirectedEdge, DirectedEdges, ThreadPosition, Threads
from hybridmem.text.conversation import ASKS, cues_of
from hybridmem.text.entities import spot

__all__ = ["GraphIndex", "GraphSettings", "ids_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSettings:
    """Sources of edges and their weights; a weight of 0 switches a source off.

    explicit   multiplies the weight of edges made with `link`
    metadata   edges to the ids listed under `links_key` of a memory's metadata
    shared     edges between memories that share an entity: shared / √(n - 1) for an entity of n memories
    thread     edges to the previous and the next memory of the same thread (by created_at, then insertion)
    answers    multiplies the thread edge from a question (its text contains "?") to the next memory
    mentions   links from a text to the memories that it mentions by name (title, `aliases`, [[wikilinks]]), directed

    `entities`: "own" takes the memories' own lists; "spot" spots names, identifiers, quotes, hashtags and dates where a
    memory lists none; a callable does the same with your function; None switches entities off.
    `max_fanout` bounds implicit edges: an entity of more memories than this is ignored, and at most this many metadata
    links of one memory are followed. Explicit edges are not bounded. When a search activates more than `max_reached`
    memories, only the most activated are returned.
    """

    explicit: float = 1.0
    metadata: float = 1.0
    shared: float = 1.0
    thread: float = 1.0
    answers: float = 2.0
    mentions: float = 1.0
    links_key: str = "links"
    entities: Literal["own", "spot"] | Callable[[str], Iterable[str]] | None = "own"
    max_fanout: int = 256
    max_reached: int = 1024

    def __post_init__(self) -> None:
        for name in ("explicit", "metadata", "thread", "answers", "mentions"):
            validation.number(name, getattr(self, name), "a finite number from 0 up", low=0)
        validation.number("shared", self.shared, "a number from 0 to 1", low=0, high=1)
        validation.text("links_key", self.links_key, "the name of a metadata key")
        named = isinstance(self.entities, str) and self.entities in ("own", "spot")
        if not (named or self.entities is None or callable(self.entities)):
            validation.refuse("entities", self.entities, '"own", "spot", a callable or None')
        for name in ("max_fanout", "max_reached"):
            validation.integer(name, getattr(self, name), "a whole number from 1 up", low=1)


_BULK = 64  # from this many edges on (in a large graph: 1/256 of it), a batch is written into new arrays


class GraphIndex:
    """A graph of memories; spreads activation from seeds: neighbour = activation · weight · decay.

    Writers are serialised; readers take an immutable `snapshot`, which costs microseconds.

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
        self._threads = Threads()
        self._thread_numbers: dict[str, int] = {}
        self._asks = Column(np.bool_, fill=0)
        self._links, self._entities_of, self._members_of = Adjacency(), Adjacency(), Adjacency()
        self._entities: dict[str, int] = {}
        self._entity_names: list[str] = []
        self._label_numbers: dict[tuple[str, str], int] = {}
        self._labels: list[tuple[str, str]] = []
        self._meta = self._label("metadata", self.settings.links_key)
        self._pending: dict[tuple[int, int, int], float] = {}  # edges of this batch: the last value of each wins
        self._snapshot = self._freeze()

    def __len__(self) -> int:
        return self._size

    # --- updating

    def apply(self, changes: Iterable[Change], /) -> None:
        """Apply changes in order. Readers see a whole batch or nothing of it."""
        with self._lock:
            watermark = self.watermark
            for change in changes:
                watermark = max(watermark, change.seq)
                if change.edge is not None:
                    self._add_pending(change.edge, gone=change.gone)
                elif change.memory is None:
                    self._drop(change.id)
                else:
                    self._put(change)
            self._set_edges()
            self._snapshot = self._freeze()
            self.watermark = watermark

    def load(self, entries: Entries, edges: Iterable[Edge] = (), /) -> None:
        """Fill an empty index at once with the same result as `apply`; used to open a large store quickly."""
        settings = self.settings
        with self._lock:
            self._ids = entries.ids()
            self._size = len(self._ids)
            self._numbers = dict(zip(self._ids, range(self._size), strict=True))
            self._alive.fill(np.ones(self._size, np.bool_))
            extras = [(self._numbers[key], extra) for key, extra in entries.extras.items()]
            if settings.thread > 0:
                table = entries.columns()
                self._thread_numbers = {name: number for number, name in enumerate(entries.thread_names)}
                created = np.where(np.isnan(table["created"]), np.inf, table["created"])
                self._threads.load(table["thread"].copy(), created, table["born"].copy())
                self._asks.fill(table["cues"] & ASKS > 0)
            for node, extra in extras:
                if extra.links is not None and settings.metadata > 0:
                    for target in self._targets(node, extra.links):
                        self._pending[node, target, self._meta] = settings.metadata
                if extra.entities and settings.entities is not None and settings.shared > 0:
                    self._put_entities(node, extra.entities)
            for edge in edges:
                self._add_pending(edge, gone=False)
            self._set_edges()
            self._snapshot = self._freeze()
            self.watermark = entries.watermark

    @property
    def reads_texts(self) -> bool:
        """Whether entities are extracted from texts; `load` has no texts and cannot be used then."""
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
            self._put_position(node, memory, change)
        links = memory.metadata.get(settings.links_key) if settings.metadata > 0 else None
        if known:
            self._put_links(node, links)
        elif links is not None:
            for target in self._targets(node, links):
                self._pending[node, target, self._meta] = settings.metadata
        names = self._names(memory)
        if names or known:
            self._put_entities(node, names)

    def _drop(self, key: str) -> None:
        node = self._numbers.get(key)
        if node is None or not self._alive[node]:
            return
        self._alive.set(node, 0)
        self._size -= 1
        self._threads.drop(node)
        self._put_links(node, None)
        self._put_entities(node, ())

    def _put_position(self, node: int, memory: Memory, change: Change) -> None:
        asks = cues_of(memory.text) & ASKS
        if bool(self._asks[node]) != bool(asks):
            self._asks.set(node, int(asks > 0))
        if memory.thread is None:
            self._threads.drop(node)
            return
        at = epoch(memory.created_at)
        first = change.born or self._threads.seq_of(node) or change.seq
        thread = self._thread_numbers.setdefault(memory.thread, len(self._thread_numbers))
        self._threads.put(thread, ThreadPosition(math.inf if at is None else at, first, node))

    def _targets(self, node: int, value: Any) -> dict[int, None]:
        numbers = dict.fromkeys(map(self._number, ids_in(value, most=self.settings.max_fanout)))
        numbers.pop(node, None)
        return numbers

    def _put_links(self, node: int, value: Any) -> None:
        """Replace the metadata links of an existing memory."""
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
                self._entities_of.add(node, DirectedEdge(entity, 1.0, 0))
                self._members_of.add(entity, DirectedEdge(node, 1.0, 0))

    def _names(self, memory: Memory) -> Iterable[str]:
        chosen = self.settings.entities
        if chosen is None or self.settings.shared == 0:
            return ()
        if memory.entities or chosen == "own":
            return memory.entities
        return spot(memory.text) if isinstance(chosen, str) else chosen(memory.text)

    def _add_pending(self, edge: Edge, *, gone: bool) -> None:
        """Queue an edge of this batch. Weight 0 (removed), self-loops and weights that are not finite are no edges."""
        first, second = self._number(edge.a), self._number(edge.b)
        weight = edge.weight * self.settings.explicit
        useful = not gone and weight > 0 and math.isfinite(weight) and first != second
        if gone and not edge.relation:  # an end was erased: no relation is named
            for kind, name in list(self._label_numbers):
                if kind == "explicit":
                    self._pending[first, second, self._label(kind, name)] = 0.0
            return
        self._pending[first, second, self._label("explicit", edge.relation)] = weight if useful else 0.0

    def _set_edges(self) -> None:
        """Write the edges of this batch; many edges are written in one pass."""
        edges, self._pending = self._pending, {}
        if self._links:
            for first, second, label in edges:
                if label != self._meta:  # metadata edges are queued for new memories only, which have none yet
                    self._unlink(first, second, label)
        useful = [(*key, weight) for key, weight in edges.items() if weight > 0]
        if len(useful) < max(_BULK, len(self._links) // 256):
            for first, second, label, weight in useful:
                self._link(first, second, label, weight)
            return
        one, other, labels, weights = (np.array(column) for column in zip(*useful, strict=True))
        both = DirectedEdges(
            np.concatenate((other, one)).astype(np.int32),
            np.concatenate((weights, weights)),
            np.concatenate((2 * labels, 2 * labels + 1)).astype(np.int32),
        )
        self._links.extend(np.concatenate((one, other)), both)

    def _link(self, first: int, second: int, label: int, weight: float) -> None:
        # both directions; the label's lowest bit marks the reverse direction
        self._links.add(first, DirectedEdge(second, weight, 2 * label))
        self._links.add(second, DirectedEdge(first, weight, 2 * label + 1))

    def _unlink(self, first: int, second: int, label: int) -> None:
        if self._links.remove(first, second, 2 * label):
            self._links.remove(second, first, 2 * label + 1)

    # --- numbering of ids, entities and labels

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
            self._labels.append((kind, name))
        return number

    # --- reading

    def _freeze(self) -> GraphSnapshot:
        count, settings = len(self._ids), self.settings
        return GraphSnapshot(
            count=count,
            ids=self._ids,
            numbers=self._numbers,
            alive=self._alive.freeze(count),
            threads=ThreadLinks(*self._threads.freeze(count), self._asks.freeze(count)),
            links=self._links.freeze(),
            entities_of=self._entities_of.freeze(),
            members_of=self._members_of.freeze(),
            entity_count=len(self._entity_names),
            labels=self._labels,
            entity_names=self._entity_names,
            weights=Weights(*(getattr(settings, name) for name in Weights._fields)),
            max_fanout=settings.max_fanout,
            max_reached=settings.max_reached,
        )

    def snapshot(
        self, items: Callable[[Sequence[str]], list[Any]] | None = None, /, *, allowed: Set[str] | None = None
    ) -> GraphSnapshot:
        """The current graph. `items` fetches the items of ids; only `allowed` ids receive and pass activation."""
        if items is None and allowed is None:
            return self._snapshot
        return replace(self._snapshot, fetch=items, allowed=allowed)

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
        """The k most activated memories: the seeds and their neighbours (see `GraphSnapshot.search`)."""
        return self._snapshot.only(allowed).search(seeds, k=k, hops=hops, decay=decay)


def ids_in(value: Any, /, *, most: int = 2**31) -> list[str]:
    """The ids in a metadata value: a str, or a list, tuple or set; anything else gives [].

    >>> ids_in("m1"), ids_in(["m1", 7]), ids_in(None)
    (['m1'], ['m1', '7'], [])
    """
    if isinstance(value, str):
        return [value] if value else []
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        return []
    if isinstance(value, Set):  # the order of a set differs between processes
        value = sorted(map(str, value))
    return [str(key) for key in islice(value, most)]
