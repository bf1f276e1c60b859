"""Spreading activation over items of any framework: over a corpus in memory, or fetched hop by hop from a store."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from hybridmem.core import validation
from hybridmem.core.fanout import Job, Outcome, Steps, apply_policy, in_thread
from hybridmem.core.protocols import Change
from hybridmem.core.types import Activation, Direction, Edge, Graph, Memory
from hybridmem.errors import ConfigError
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.graph.activation import ExtendedGraph, check_walk, mention_links
from hybridmem.indexes.graph.explain import arm_paths, path_line
from hybridmem.indexes.graph.index import GraphIndex, GraphSettings, ids_in
from hybridmem.indexes.graph.names import Names, name_information
from hybridmem.retrievers.arms import ArmHits, ArmRequest
from hybridmem.retrievers.metadata_edges import ID, EdgeDefinition, FieldIndex, edge_definitions, is_id, values_in
from hybridmem.retrievers.options import check_memory

__all__ = [
    "MAX_FETCHED",
    "TITLE_KEYS",
    "GraphCorpus",
    "GraphHit",
    "GraphItem",
    "GraphQuery",
    "MetadataKeys",
    "SeedScale",
    "check_sources",
    "search_corpus",
    "search_memory",
    "search_store",
    "seed_job",
    "seed_scores",
]

Item = TypeVar("Item")
SeedScale = Literal["max", "range"]
SEEDS_PER_RESULT = 4
"""Seeds for each result: the best 4·k hits of the seed arm."""
MAX_FETCHED = 1000
"""The most items that one query fetches from a store, also where an item has very many links."""


TITLE_KEYS = ("title", "name", "file_name")
"""Metadata keys that frameworks and readers use for titles."""


class GraphItem(NamedTuple):
    """An item with the fields that the graph reads: `memory.metadata["links"]` lists the ids it points to."""

    memory: Memory
    item: Any
    edges: tuple[Edge, ...] = ()
    metadata: Mapping[str, Any] = MappingProxyType({})
    """The item's own metadata, for edges that are defined by two fields."""


@dataclass(frozen=True, slots=True)
class MetadataKeys:
    """The metadata keys from which items get their threads, links and titles."""

    thread: str = "thread"
    links: str | Sequence[str] = "links"
    title: str | Sequence[str] = TITLE_KEYS

    def item(
        self,
        memory: Memory,
        item: Any,
        metadata: Mapping[str, Any],
        /,
        *,
        edges: Iterable[Edge] = (),
        entities: Sequence[str] = (),
    ) -> GraphItem:
        """An item with its thread, links, title and aliases; `entities` are added to those of the memory."""
        thread, keys = metadata.get(self.thread), (self.links,) if isinstance(self.links, str) else self.links
        own: dict[str, Any] = {"aliases": metadata["aliases"]} if "aliases" in metadata else {}
        if links := [one for key in keys for one in ids_in(metadata.get(key))]:
            own["links"] = links
        read = replace(
            memory,
            thread=None if thread is None else str(thread),
            title=_title_in(metadata, self.title),
            entities=(*memory.entities, *entities),
            metadata=own,
        )
        return GraphItem(read, item, tuple(edges), metadata)


class GraphHit(NamedTuple):
    """An item that received activation, with its path as data and as a line of text."""

    item: Any
    activation: Activation
    line: str


@dataclass(frozen=True, slots=True)
class GraphQuery:
    """The extent of a search: k results within `hops`, weaker by `decay` at each hop, among items that pass `check`.

    `seeds` is how many hits of the seed arm to start from; None: 4·k. `edges` are pairs of metadata fields. `weights`
    replaces weights of the settings. Without a direction, links and relationships are walked both ways, mentions and
    `edges` forward; mentions are never walked backward.
    """

    k: int = 4
    hops: int = 2
    decay: float = 0.5
    check: Callable[[Any], bool] | None = None
    seeds: int | None = None
    edges: Sequence[EdgeDefinition] | None = None
    direction: Direction | None = None
    weights: Mapping[str, float] | None = None
    seed_scale: SeedScale = "max"
    """ "max" divides the seeds' scores by the best; "range" spreads them evenly from 1 to 1 / (n + 1)."""
    definitions: tuple[EdgeDefinition, ...] = field(init=False)
    """`edges` in the direction of the search: an edge from b to a is one from a to b walked backward."""

    def __post_init__(self) -> None:
        forward = edge_definitions(self.edges)
        backward = tuple((target, source) for source, target in forward)
        chosen = {"both": (*forward, *backward), "backward": backward}.get(self.direction or "forward", forward)
        object.__setattr__(self, "definitions", tuple(dict.fromkeys(chosen)))
        check_walk(self.direction, self.weights)
        validation.one_of("seed_scale", self.seed_scale, get_args(SeedScale))
        validation.k(self.k)
        validation.integer("hops", self.hops, "a whole number from 0 up", low=0)
        if self.seeds is not None:
            validation.integer("seeds", self.seeds, "a whole number from 1 up", low=1)
        validation.number("decay", self.decay, "a number from 0 to 1", low=0, high=1)

    def scaled(self, seeds: Mapping[str, float], /) -> Mapping[str, float]:
        """The scores of seeds on this scale.

        >>> GraphQuery(seed_scale="range").scaled({"a": 6.0, "b": 4.5, "c": 3.0})
        {'a': 1.0, 'b': 0.625, 'c': 0.25}
        """
        low, top = min(seeds.values(), default=0.0), max(seeds.values(), default=0.0)
        if self.seed_scale == "max" or low == top:
            return seeds
        step = (top - low) / len(seeds)
        return {key: (value - low + step) / (top - low + step) for key, value in seeds.items()}

    @property
    def depth(self) -> int:
        """How many hits to ask the seed arm for."""
        return self.seeds or SEEDS_PER_RESULT * self.k


def _value(outcomes: Sequence[Outcome]) -> Any:
    """The value of a single job; its error is raised as it is."""
    apply_policy(outcomes, wrap=False)
    return outcomes[0].value


class GraphCorpus(Generic[Item]):
    """Items in memory with their graph and, for seeds, a BM25 index. Items can be added and removed at any time."""

    def __init__(self, settings: GraphSettings | None = None, /, *, lexical: bool = True) -> None:
        # the adapter reads links from the items, under whatever key, and stores them under "links"
        self._graph = GraphIndex(replace(settings or GraphSettings(), links_key="links"))
        self._names = Names()
        self._bm25 = BM25Index() if lexical else None
        self._items: dict[str, Item] = {}
        self._edges: dict[str, tuple[Edge, ...]] = {}
        self._seq = 0
        self._settings = settings, lexical
        self._added: dict[str, GraphItem] = {}
        self._fields = FieldIndex()

    def __len__(self) -> int:
        return len(self._items)

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies and pickles: the items are carried over and indexed again."""
        return _rebuilt, (*self._settings, list(self._added.values()))

    @property
    def items(self) -> list[Item]:
        """All items, in the order in which they were added."""
        return list(self._items.values())

    def add(self, items: Iterable[GraphItem], /) -> list[str]:
        """Add items, or replace those of the same id; returns their ids."""
        changes: list[Change] = []
        keys: list[str] = []
        for one in items:
            key = one.memory.id
            keys.append(key)
            self._items[key] = one.item
            self._added[key] = one
            self._fields.put(key, one.metadata)
            changes.append(Change(self._next(), key, one.memory))
            changes += self._removed_edges(key)
            changes += [Change(self._next(), "", edge=edge) for edge in one.edges]
            if one.edges:
                self._edges[key] = one.edges
        self._apply(changes)
        return keys

    def remove(self, keys: Iterable[str], /) -> int:
        """Remove items; returns how many there were."""
        there = [key for key in dict.fromkeys(keys) if self._items.pop(key, None) is not None]
        for key in there:
            self._added.pop(key)
            self._fields.remove(key)
        self._apply([change for key in there for change in (Change(self._next(), key), *self._removed_edges(key))])
        return len(there)

    def allowed(self, check: Callable[[Item], bool] | None, /) -> Set[str] | None:
        """The ids of the items that pass; None for all."""
        return None if check is None else {key for key, item in list(self._items.items()) if check(item)}

    def bm25_seeds(self, query: str, /, *, k: int, allowed: Set[str] | None = None) -> dict[str, float]:
        """The k best hits of BM25 with their scores."""
        if self._bm25 is None:
            return {}
        return dict(zip(*self._bm25.search(query, k=k, allowed=allowed), strict=True))

    def search(
        self, seeds: Mapping[str, float], extent: GraphQuery, /, *, allowed: Set[str] | None = None
    ) -> list[GraphHit]:
        """The most activated items, seeds among them, each with its path."""
        snapshot: Graph = self._graph.snapshot(allowed=allowed).walked(extent.direction, extent.weights)
        weights, sources = {**asdict(self._graph.settings), **(extent.weights or {})}, []
        if self._names and weights["mentions"] and extent.direction != "backward":
            sources.append(mention_links(partial(self._mentions, weights["mentions"])))
        if extent.definitions:
            most = self._graph.settings.max_fanout
            sources.append(self._fields.links(extent.definitions, weight=weights["metadata"], most=most))
        if sources:
            heaviest = max(weights["mentions"], weights["metadata"])
            snapshot = ExtendedGraph(snapshot, *sources, allowed=allowed, heaviest=heaviest)
        seeds = extent.scaled(seeds)
        hits = snapshot.search(seeds, k=extent.k, hops=extent.hops, decay=extent.decay)
        paths = arm_paths(snapshot, seeds, hits.ids, hops=extent.hops, decay=extent.decay)
        return [GraphHit(self._items[key], paths[key], path_line(paths[key])) for key in hits.ids if key in self._items]

    def _mentions(self, factor: float, keys: Sequence[str]) -> list[tuple[str, str, float, str]]:
        """The items that the texts of these mention by name: (id, mentioned id, weight, name)."""
        most, links = self._graph.settings.max_fanout, []
        for key in keys:
            item = self._added.get(key)
            for mention in () if item is None else self._names.mentions(key, item.memory.text):
                if mention.shared <= most:
                    weight = factor * self._information(mention.name) / mention.shared
                    links.append((key, mention.id, weight, mention.name))
        return links

    def _information(self, name: str) -> float:
        """How much a name tells, from 0 to 1; without a BM25 index every name counts as rare."""
        bm25 = self._bm25
        return 1.0 if bm25 is None else name_information(bm25.analyzer(name), bm25.idf, len(bm25))

    def _removed_edges(self, key: str) -> list[Change]:
        return [Change(self._next(), "", edge=edge, gone=True) for edge in self._edges.pop(key, ())]

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _apply(self, changes: Sequence[Change]) -> None:
        if self._bm25 is not None:
            self._bm25.apply(changes)
        self._graph.apply(changes)
        self._names.apply(changes)


def _rebuilt(settings: GraphSettings | None, lexical: bool, items: Sequence[GraphItem]) -> GraphCorpus[Any]:
    corpus: GraphCorpus[Any] = GraphCorpus(settings, lexical=lexical)
    corpus.add(items)
    return corpus


def search_memory(
    memory: Any, query: str, settings: Mapping[str, Any], convert: Callable[[Memory], Any], /
) -> Steps[list[GraphHit]]:
    """Search the graph arm of a HybridMemory; a setting that is None is left to the memory."""
    given = {name: value for name, value in settings.items() if value is not None}
    results = _value((yield [Job("graph", lambda: memory.search_arm("graph", query, **given))]))
    hits = []
    for result in results:
        explanation = result.explanation  # None where the memory has no graph
        activation, line = Activation(result.score, 0, (result.id,)), None
        if explanation is not None:
            activation = explanation.activations.get(result.id, activation)
            line = result.receipt.arms[0].note
        hits.append(GraphHit(convert(result.memory), activation, path_line(activation) if line is None else line))
    return hits


def seed_scores(keys: Sequence[str], scores: Sequence[float] | None, /) -> dict[str, float]:
    """Seeds from a ranked list: its scores, or n/n, (n-1)/n, … by rank where it has no usable ones.

    >>> seed_scores(["a", "b"], None), seed_scores(["a", "b", "a"], [3.0, 1.5, 1.0])
    ({'a': 1.0, 'b': 0.5}, {'a': 3.0, 'b': 1.5})
    """
    usable = scores is not None and all(map(math.isfinite, scores)) and max(scores, default=0.0) > 0
    values = scores if usable and scores is not None else [(len(keys) - n) / len(keys) for n in range(len(keys))]
    seeds: dict[str, float] = {}
    for key, value in zip(keys, values, strict=True):
        seeds.setdefault(key, value)
    return seeds


def search_corpus(
    corpus: GraphCorpus[Any], query: str, extent: GraphQuery, /, *, seeds: Job | None = None
) -> Steps[list[GraphHit]]:
    """Search items in memory. `seeds` is a job that returns {id: score}; without it BM25 provides the seeds."""
    given = None if seeds is None else _value((yield [seeds]))

    def work() -> list[GraphHit]:
        allowed = corpus.allowed(extent.check)
        start = corpus.bm25_seeds(query, k=extent.depth, allowed=allowed) if given is None else given
        return corpus.search(start, extent, allowed=allowed)

    hits: list[GraphHit] = _value((yield [Job("graph", work)]))
    return hits


def seed_job(request: ArmRequest, depth: int, read: Callable[[ArmHits], Any], /) -> Job:
    """A job that asks a retriever and reads its best `depth` hits."""

    def best(value: Any) -> Any:
        hits = request.read(value)
        scores = None if hits.scores is None else hits.scores[:depth]
        return read(hits._replace(items=hits.items[:depth], scores=scores))

    async def later() -> Any:
        return best(await request.acall() if request.acall is not None else await in_thread(request.call))

    return Job("seed", lambda: best(request.call()), later)


def search_store(
    seeds: Job,
    fetch: Callable[[list[str]], Job],
    settings: GraphSettings | None,
    extent: GraphQuery,
    /,
    *,
    find: Callable[[str, list[Any]], Job] | None = None,
) -> Steps[list[GraphHit]]:
    """Search a seed arm and a store: hop by hop the items are fetched that the items before point to.

    `seeds` returns (graph items, {id: score}); `fetch(ids)` and `find(field, values)` return graph items. Only edges
    that items carry count here: links in their metadata, relationships, and pairs of fields. Threads and shared
    entities take no part. An item is not fetched when it cannot be among the k best, nor lead to one.
    """
    chosen = replace(settings or GraphSettings(), thread=0.0, shared=0.0)
    frontier, values = _value((yield [seeds]))
    scaled = extent.scaled(values)
    bounds = {key: value / max(scaled.values()) for key, value in scaled.items()}
    items: list[GraphItem] = []
    seen: set[str] = set()
    asked: set[tuple[str, Hashable]] = set()
    for hop in range(extent.hops + 1):
        frontier = [one for one in frontier if extent.check is None or extent.check(one.item)]
        items += frontier
        seen.update(one.memory.id for one in frontier)
        if hop == extent.hops:
            break
        useful, gain = _useful(frontier, bounds, seen, chosen, extent)
        missing = _next_ids(useful, bounds, seen, gain, extent)[: max(0, MAX_FETCHED - len(seen))]
        wanted = _next_values(useful, asked, extent) if len(seen) < MAX_FETCHED else {}
        jobs = [fetch(missing)] if missing else []
        jobs += [] if find is None else [find(name, found) for name, found in wanted.items()]
        if not jobs:
            break
        seen.update(missing)
        outcomes = yield jobs
        apply_policy(outcomes, wrap=False)
        most = max((bounds.get(one.memory.id, 0.0) for one in useful), default=0.0) * gain
        fetched = {one.memory.id: one for outcome in outcomes for one in outcome.value}
        new = [one for key, one in fetched.items() if key in missing or key not in seen]
        for one in new:
            bounds.setdefault(one.memory.id, most)
        frontier = new[: max(0, MAX_FETCHED - len(items))]
    corpus: GraphCorpus[Any] = GraphCorpus(chosen, lexical=False)
    corpus.add(items)
    return corpus.search(values, extent)


def _useful(
    frontier: Sequence[GraphItem],
    bounds: Mapping[str, float],
    seen: Set[str],
    settings: GraphSettings,
    extent: GraphQuery,
) -> tuple[list[GraphItem], float]:
    """The items whose neighbours can be among the k best, and the most that one hop passes on."""
    weights = {**asdict(settings), **(extent.weights or {})}
    gain = max(weights["metadata"], weights["explicit"]) * extent.decay
    best = sorted((bounds.get(key, 0.0) for key in seen), reverse=True)
    floor = best[extent.k - 1] if len(best) >= extent.k and gain <= 1 else 0.0
    return [one for one in frontier if bounds.get(one.memory.id, 0.0) * gain >= floor], gain


def _next_ids(
    useful: Sequence[GraphItem], bounds: dict[str, float], seen: Set[str], gain: float, extent: GraphQuery
) -> list[str]:
    """Ids not seen before that these items point to.

    `bounds` holds an upper bound of each id's activation, and is extended.
    """
    wanted: dict[str, None] = {}
    for one in useful:
        value = bounds.get(one.memory.id, 0.0) * gain
        for key in _linked_ids(one, extent):
            if key not in seen:
                bounds[key] = max(value, bounds.get(key, 0.0))
                wanted[key] = None
    return list(wanted)


def _next_values(
    useful: Sequence[GraphItem], asked: set[tuple[str, Hashable]], extent: GraphQuery
) -> dict[str, list[Hashable]]:
    """For each field the values that these items point to and that were not asked for before."""
    wanted: dict[str, list[Hashable]] = {}
    for source, target in extent.definitions:
        for one in useful if target != ID else ():
            for value in values_in(one.metadata, one.memory.id, source):
                if (target, value) not in asked:
                    asked.add((target, value))
                    wanted.setdefault(target, []).append(value)
    return {name: values[:MAX_FETCHED] for name, values in wanted.items()}


def _linked_ids(item: GraphItem, extent: GraphQuery) -> list[str]:
    """The ids that an item names, in its links, its relationships, and fields whose values are ids."""
    own, forward = item.memory.id, extent.direction != "backward"
    ids = [str(key) for key in item.memory.metadata.get("links", ())] if forward else []
    ids += [end for edge in item.edges for end in (edge.a, edge.b)]
    for source, target in extent.definitions:
        if is_id(target):
            ids += map(str, values_in(item.metadata, own, source))
    return [key for key in ids if key != own]


def _title_in(metadata: Mapping[str, Any], keys: str | Sequence[str]) -> str:
    """The first text under these metadata keys, without the ending of a file name; empty when there is none."""
    for key in (keys,) if isinstance(keys, str) else keys:
        value = metadata.get(key)
        if isinstance(value, str) and value:
            return re.sub(r"\.\w{1,5}$", "", value) if key == "file_name" else value
    return ""


def check_sources(given: Mapping[str, Any], settings: Mapping[str, Any], methods: Sequence[str], /) -> None:
    """Validate what a GraphRetriever searches: `given` has items at hand, a memory and a store, of which it takes one.

    `methods` fetch the items of ids from a store.
    """
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        *names, last = given
        allowed = f"{', '.join(names)} and {last}"
        raise ConfigError(f"got {' and '.join(chosen) or 'none'}: give exactly one of {allowed}")
    if chosen == ["store"]:
        store, called = given["store"], " or ".join(methods)
        if settings.get("seed") is None:
            raise ConfigError("a store needs a seed retriever: GraphRetriever(store=…, seed=…)")
        if not (callable(store) or any(hasattr(store, name) for name in methods)):
            kind = type(store).__name__
            raise ConfigError(f"store is a {kind}: it needs {called}, or must be a function of ids")
    for name in ("seed", "seeds", "edges") if chosen == ["memory"] else ():
        if settings.get(name) is not None:
            raise ConfigError(f"{name} does not go with a memory: its own BM25 provides the seeds, its links the edges")
    if chosen == ["memory"]:
        check_memory(given["memory"])
    graph = settings.get("graph")
    if graph is not None and not isinstance(graph, GraphSettings):
        validation.refuse("graph", graph, "GraphSettings(…) or None")
