"""Spreading activation over a snapshot of the graph: neighbour = activation · weight · decay, the best path wins."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import pairwise
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from hybridmem.core import validation
from hybridmem.core.types import Activation, Direction, Graph, Hits
from hybridmem.indexes.graph.adjacency import CompressedRows, Floats, Ints

__all__ = [
    "ExtendedGraph",
    "Frontier",
    "GraphSnapshot",
    "LinkSource",
    "ThreadLinks",
    "Weights",
    "among",
    "check_walk",
    "highest",
    "join",
    "mention_links",
    "peaks",
    "strongest",
]


class Frontier(NamedTuple):
    """Activations of one hop in columns: the node, the seed, the value, and the position in the log of hops."""

    node: Ints
    origin: Ints
    value: Floats
    at: Ints

    def take(self, places: npt.NDArray[Any]) -> Frontier:
        """The activations at these positions."""
        return Frontier(self.node[places], self.origin[places], self.value[places], self.at[places])


def join(frontiers: Sequence[Frontier]) -> Frontier:
    """Concatenate frontiers."""
    if len(frontiers) == 1:
        return frontiers[0]
    return Frontier(*map(np.concatenate, zip(*frontiers, strict=True)))


_BUFFERS: deque[tuple[Floats, Ints]] = deque(maxlen=4)
"""Scratch arrays by node number, all zero between uses: clearing the used part is cheaper than a new array."""


def _borrow(size: int) -> tuple[Floats, Ints]:
    try:
        best, slot = _BUFFERS.pop()
    except IndexError:
        return np.zeros(size), np.empty(size, np.intp)
    if len(best) < size:
        return np.zeros(size + size // 4), np.empty(size + size // 4, np.intp)
    return best, slot


def strongest(frontier: Frontier, *, size: int, rivals: bool) -> Ints:
    """Positions of each node's highest activation (the first of equals).

    With `rivals` also the highest from a different seed: a seed receives no activation from itself, so the second best
    must be kept on every path that leads to a seed.
    """
    best, slot = _borrow(size)
    first = _winners(frontier.node, frontier.value, np.arange(len(frontier.node)), best, slot)
    if rivals and len(first):
        slot[frontier.node[first]] = first
        other = (frontier.origin != frontier.origin[slot[frontier.node]]).nonzero()[0]
        second = _winners(frontier.node[other], frontier.value[other], other, best, slot)
        first = np.concatenate((first, second))
        first.sort()
    _BUFFERS.append((best, slot))
    return first


def _winners(nodes: Ints, values: Floats, places: Ints, best: Floats, slot: Ints) -> Ints:
    np.maximum.at(best, nodes, values)
    top = (values == best[nodes]).nonzero()[0]
    best[nodes] = 0.0
    nodes, places = nodes[top], places[top]
    slot[nodes[::-1]] = places[::-1]  # of equal values the first is kept: it is written last
    won: Ints = places[slot[nodes] == places]
    return won


def highest(node: Ints, value: Floats, most: int) -> Ints:
    """Positions of the `most` highest values; among equal values older nodes are preferred."""
    floor = np.partition(value, -most)[-most]
    above = (value > floor).nonzero()[0]
    level = (value == floor).nonzero()[0]
    level = level[np.argsort(node[level], kind="stable")]
    kept = np.concatenate((above, level[: most - len(above)]))
    kept.sort()
    return kept


def peaks(node: Ints, value: Floats, *, size: int) -> tuple[Ints, Floats]:
    """Each distinct node with its highest value."""
    best, slot = _borrow(size)
    first = _winners(node, value, np.arange(len(node)), best, slot)
    _BUFFERS.append((best, slot))
    return node[first], value[first]


def among(node: Ints, others: Ints, *, size: int) -> npt.NDArray[np.bool_]:
    """A mask of the nodes that are among the others."""
    mark, slot = _borrow(size)
    mark[others] = 1.0
    found: npt.NDArray[np.bool_] = mark[node] > 0
    mark[others] = 0.0
    _BUFFERS.append((mark, slot))
    return found


_Reached = tuple[Ints, Ints, Floats]
"""Result of one hop: position in the frontier, reached node, activation."""

_NONE: Ints = np.empty(0, np.intp)


class ThreadLinks(NamedTuple):
    """A snapshot of all threads: the next and previous node (-1 for none), and whether a node asks a question."""

    after: npt.NDArray[np.int32]
    before: npt.NDArray[np.int32]
    asks: npt.NDArray[np.bool_]


class Weights(NamedTuple):
    """Weights of the kinds of edges. Explicit and metadata edges are stored with these weights applied."""

    explicit: float
    metadata: float
    shared: float
    thread: float
    answers: float
    mentions: float


def check_walk(direction: Direction | None, weights: Mapping[str, float] | None, /) -> None:
    """Validate the direction and the weights of one search."""
    if direction is not None:
        validation.one_of("direction", direction, get_args(Direction))
    if weights is not None and not isinstance(weights, Mapping):
        validation.refuse("weights", weights, 'a mapping from kinds of edges to weights, such as {"thread": 0.5}')
    for name, value in (weights or {}).items():
        validation.one_of("a key of weights", name, Weights._fields)
        validation.number(f"weights[{name!r}]", value, "a finite number from 0 up", low=0)


_PRUNE = 2048
"""Above this number of activations only the best of each node continue; below it, pruning costs more than it saves."""


@dataclass(frozen=True, slots=True)
class GraphSnapshot:
    """An immutable snapshot of the graph; implements `hybridmem.core.types.Graph`. Safe to use from any thread.

    `numbers` and `ids` are shared with the index and keep growing: nodes from number `count` on are not part of this
    snapshot.
    """

    count: int
    ids: Sequence[str]
    numbers: Mapping[str, int]
    alive: npt.NDArray[np.bool_]
    threads: ThreadLinks
    links: CompressedRows
    entities_of: CompressedRows
    members_of: CompressedRows
    entity_count: int
    labels: Sequence[tuple[str, str]]
    """Kind ("explicit" or "metadata") and name of each label of an edge."""
    entity_names: Sequence[str]
    weights: Weights
    max_fanout: int
    max_reached: int
    fetch: Callable[[Sequence[str]], list[Any]] | None = None
    allowed: Set[str] | None = None

    # --- the Graph protocol

    def spread(
        self, seeds: Mapping[str, float], /, *, hops: int = 2, decay: float = 0.5, include_seeds: bool = False
    ) -> dict[str, float]:
        """The activation of each neighbour: the maximum over walks of at most `hops` edges of seed · Π(weight · decay).

        Seeds are in the result only with `include_seeds`, with the activation from OTHER seeds. Seeds that are not in
        the graph or not above 0 are ignored. At most `max_reached` neighbours (and all seeds) are returned.
        """
        _check(hops, decay)
        start = self._start(seeds)
        node, value = self._reached(start, hops, decay, rivals=include_seeds)
        if not include_seeds:
            others = ~among(node, start.node, size=self.count)
            node, value = node[others], value[others]
        if len(node) > self.max_reached:
            worth = np.where(among(node, start.node, size=self.count), np.inf, value)  # seeds are always kept
            kept = highest(node, worth, self.max_reached)
            node, value = node[kept], value[kept]
        activated = dict(zip(map(self.ids.__getitem__, node.tolist()), value.tolist(), strict=True))
        if not include_seeds and len(start.node) < len(seeds):  # a seed that is not above 0 is still a seed
            for key in seeds:
                activated.pop(key, None)
        return activated

    def paths(
        self, seeds: Mapping[str, float], targets: Sequence[str], /, *, hops: int = 2, decay: float = 0.5
    ) -> dict[str, Activation]:
        """The best path to each target, for receipts: highest value, then fewest hops, then the earlier seed."""
        _check(hops, decay)
        frontier = state = self._start(seeds)
        log, size = [frontier], len(frontier.node)
        for _ in range(hops):
            if not len(frontier.node):
                break
            joined = join([state, self._step(frontier, decay)])
            kept = strongest(joined, size=self.count, rivals=True)
            fresh = joined.take(kept[kept >= len(state.node)])
            log.append(fresh)  # in the log `at` is the position of the previous hop
            frontier = fresh._replace(at=np.arange(size, size + len(fresh.node)))
            size += len(fresh.node)
            state = join([state.take(kept[kept < len(state.node)]), frontier])
        return self._best_paths(state, join(log), targets)

    def items(self, keys: Sequence[str], /) -> list[Any]:
        """The items of these keys; None where unknown."""
        return [None] * len(keys) if self.fetch is None else self.fetch(keys)

    # --- the arm

    def search(self, seeds: Mapping[str, float], /, *, k: int, hops: int = 2, decay: float = 0.5) -> Hits:
        """The k most activated memories: seeds (scaled so that the best is 1) and their neighbours.

        A seed scores the larger of its own value and its activation from other seeds. Ties: by id.
        """
        validation.k(k)
        _check(hops, decay)
        finite = {key: value for key, value in seeds.items() if value > 0 and math.isfinite(value)}
        top = max(finite.values(), default=1.0)
        start = self._start({key: value / top for key, value in finite.items()})
        node, value = self._reached(start, hops, decay, rivals=True)
        node, value = peaks(np.concatenate((start.node, node)), np.concatenate((start.value, value)), size=self.count)
        if len(node) > k:  # only nodes that can be among the k best
            floor = np.partition(value, -k)[-k]
            able = (value >= floor).nonzero()[0]
            node, value = node[able], value[able]
        pairs = sorted(zip((-value).tolist(), map(self.ids.__getitem__, node.tolist()), strict=True))[:k]
        return Hits([key for _, key in pairs], [-negative for negative, _ in pairs])

    def only(self, allowed: Set[str] | None, /) -> GraphSnapshot:
        """The same snapshot, restricted: only these ids receive and pass activation (None: all)."""
        return self if allowed is None else replace(self, allowed=allowed)

    def walked(
        self, direction: Direction | None = None, weights: Mapping[str, float] | None = None, /
    ) -> GraphSnapshot:
        """The same snapshot with other weights of some kinds of edges, walked in one direction only.

        "forward" is from the memory that links to the one that is linked, and from a turn to the next. Shared entities
        have no direction. A kind of weight 0 in the settings has no edges, whatever its weight here.
        """
        check_walk(direction, weights)
        if not weights and direction in (None, "both"):
            return self
        chosen = self.weights._replace(**(weights or {}))
        factors = np.zeros(2 * len(self.labels))
        for label, (kind, _) in enumerate(self.labels):
            before = getattr(self.weights, kind)
            factor = getattr(chosen, kind) / before if before else 0.0
            factors[2 * label : 2 * label + 2] = factor * (direction != "backward"), factor * (direction != "forward")
        after, before, asks = self.threads
        none = np.broadcast_to(np.int32(-1), after.shape)
        threads = ThreadLinks(
            none if direction == "backward" else after, none if direction == "forward" else before, asks
        )
        return replace(self, weights=chosen, links=self.links.scaled(factors), threads=threads)

    def without_threads(self) -> GraphSnapshot | None:
        """The same snapshot without the edges of threads; None when there are no other edges."""
        if not self.links and not self.entities_of:
            return None
        return replace(self, weights=self.weights._replace(thread=0.0))

    # --- one hop

    def _start(self, seeds: Mapping[str, float]) -> Frontier:
        get, allowed = self.numbers.get, self.allowed
        if allowed is not None:
            seeds = {key: value for key, value in seeds.items() if key in allowed}
        node = np.array([get(key, -1) for key in seeds], np.intp)
        value = np.fromiter(seeds.values(), np.float64, len(seeds))
        known = ((node >= 0) & (node < self.count) & (value > 0) & (value < np.inf)).nonzero()[0]
        known = known[self.alive[node[known]]]
        if len(known) < len(node):
            node, value = node[known], value[known]
        return Frontier(node, node, value, np.arange(len(node)))

    def _step(self, frontier: Frontier, decay: float) -> Frontier:
        """One hop from the frontier over every kind of edge; `at` is the position of the previous hop."""
        parts = [
            part
            for part in (
                self._along_threads(frontier, decay),
                self._along_links(frontier, decay),
                self._along_entities(frontier, decay),
            )
            if part is not None
        ]
        if not parts:
            return frontier.take(_NONE)
        which, node, value = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        if self.allowed is not None:
            ids, allowed = self.ids, self.allowed
            open_ = np.fromiter((ids[i] in allowed for i in node.tolist()), np.bool_, len(node))
            which, node, value = which[open_], node[open_], value[open_]
        return Frontier(node, frontier.origin[which], value, frontier.at[which])

    def _along_threads(self, frontier: Frontier, decay: float) -> _Reached | None:
        thread, answers = self.weights.thread, self.weights.answers
        if thread <= 0:
            return None
        after, before, asks = self.threads
        plain = answered = frontier.value * (thread * decay)
        if answers != 1:
            answered = np.where(asks[frontier.node], frontier.value * (thread * answers * decay), plain)
        node = np.concatenate((after[frontier.node], before[frontier.node]))
        there = (node.view(np.uint32) < self.count).nonzero()[0]  # as unsigned numbers, -1 is above every node
        return there % len(frontier.node), node[there].astype(np.intp), np.concatenate((answered, plain))[there]

    def _along_links(self, frontier: Frontier, decay: float) -> _Reached | None:
        if not self.links:
            return None
        which, node, weight = self.links.expand(frontier.node)
        alive = self.alive[node]  # an edge may point to a missing memory
        if not alive.all():
            which, node, weight = which[alive], node[alive], weight[alive]
        return which, node, frontier.value[which] * (weight * decay)

    def _along_entities(self, frontier: Frontier, decay: float) -> _Reached | None:
        """Hops over shared entities: weight shared / √(n - 1) for an entity of n memories, 0 above max_fanout."""
        if not self.entities_of:
            return None
        which, entity, _ = self.entities_of.expand(frontier.node)
        shared = Frontier(entity, frontier.origin[which], frontier.value[which], which)
        shared = shared.take(strongest(shared, size=self.entity_count, rivals=True))
        size = self.members_of.degree(shared.node)
        useful = ((size > 1) & (size <= self.max_fanout)).nonzero()[0]
        weight = self.weights.shared / np.sqrt(size[useful] - 1)
        through = shared.take(useful)
        member_of, node, _ = self.members_of.expand(through.node)
        return through.at[member_of], node, through.value[member_of] * (weight[member_of] * decay)

    def _reached(self, start: Frontier, hops: int, decay: float, *, rivals: bool) -> tuple[Ints, Floats]:
        """Each node's highest activation from a seed other than itself."""
        frontier, state = start, [start]
        for hop in range(hops):
            if not len(frontier.node):
                break
            frontier = self._step(frontier, decay)
            state.append(frontier)
            if hop < hops - 1 and (len(frontier.node) > _PRUNE or hop > 0):  # else they go back and forth
                known = sum(len(part.node) for part in state[:-1])
                joined = join(state)
                kept = strongest(joined, size=self.count, rivals=rivals)
                frontier, state = joined.take(kept[kept >= known]), [joined.take(kept)]
        node, origin, value, _ = join(state)
        foreign = ((node != origin) & (value > 0)).nonzero()[0]
        return peaks(node[foreign], value[foreign], size=self.count)

    def _best_paths(self, state: Frontier, log: Frontier, targets: Sequence[str]) -> dict[str, Activation]:
        foreign = state.take(((state.node != state.origin) & (state.value > 0)).nonzero()[0])
        foreign = foreign.take(strongest(foreign, size=self.count, rivals=False))
        entry = dict(zip(foreign.node.tolist(), foreign.at.tolist(), strict=True))
        best = {}
        for key in targets:
            at = entry.get(self.numbers.get(key, -1))
            if at is not None:
                best[key] = self._path(at, log)
        return best

    def _path(self, at: int, log: Frontier) -> Activation:
        """Follow the log from this position back to the seed."""
        value, hops, nodes = float(log.value[at]), 0, [int(log.node[at])]
        while int(log.at[at]) != at:  # a seed refers to itself
            at, hops = int(log.at[at]), hops + 1
            nodes.append(int(log.node[at]))
        nodes.reverse()
        path = [self.ids[nodes[0]]]
        for first, second in pairwise(nodes):
            path += [self.label(first, second), self.ids[second]]
        return Activation(value, hops, tuple(path))

    def label(self, first: int, second: int) -> str:
        """The label of the heaviest edge from one node to another."""
        edges = [
            (slot.weight, self.labels[slot.label // 2][1]) for slot in self.links.row(first) if slot.target == second
        ]
        shared = {slot.target for slot in self.entities_of.row(second)}
        for entity in (slot.target for slot in self.entities_of.row(first)):
            size = int(self.members_of.degree(np.array([entity], np.intp))[0])
            if entity in shared and 1 < size <= self.max_fanout:
                edges.append((self.weights.shared / math.sqrt(size - 1), f"entity {self.entity_names[entity]}"))
        after, before, asks = self.threads
        if int(after[first]) == second:
            edges.append((self.weights.thread * (self.weights.answers if asks[first] else 1.0), "thread"))
        if int(before[first]) == second:
            edges.append((self.weights.thread, "thread"))
        return max(edges, key=lambda edge: edge[0])[1]


def _check(hops: int, decay: float) -> None:
    if type(hops) is not int or hops < 0:
        validation.integer("hops", hops, "from 0 up", low=0)
    validation.number("decay", decay, "from 0 to 1", low=0, high=1)


# --- edges that are computed from the activated items

LinkSource = Callable[[Sequence[str]], Iterable[tuple[str, str, float, str]]]
"""From ids to (id, linked id, weight, label)."""
READ = 50
"""At each hop the links of this many of the most activated memories are computed."""


def mention_links(mentions: LinkSource, /) -> LinkSource:
    """Mentions, whose label is a name, as links of a graph."""

    def links(ids: Sequence[str]) -> Iterable[tuple[str, str, float, str]]:
        for source, target, weight, name in mentions(ids):
            yield source, target, weight, f"mentions {name}"

    return links


class ExtendedGraph:
    """A graph with further sources of directed edges, which are computed when a memory is activated.

    One source are mentions: a text that mentions a memory by name is linked to it.
    neighbour = activation · weight · decay, as for every other edge; the highest value counts.
    `heaviest` is the highest weight that a source gives: links that cannot lead to one of the k best are not computed.
    """

    def __init__(
        self, graph: Graph, *sources: LinkSource, allowed: Set[str] | None = None, heaviest: float = math.inf
    ) -> None:
        self._graph = graph
        self._sources = sources
        self._allowed = allowed
        self._heaviest = heaviest

    def search(self, seeds: Mapping[str, float], /, *, k: int, hops: int = 2, decay: float = 0.5) -> Hits:
        """The k keys of highest activation, seeds (scaled so that the best is 1) included."""
        finite = {key: value for key, value in seeds.items() if value > 0 and math.isfinite(value)}
        top = max(finite.values(), default=1.0)
        reached = self._reached({key: value / top for key, value in finite.items()}, hops, decay, k)
        best = sorted((-activation.value, key) for key, activation in reached.items())[:k]
        return Hits([key for _, key in best], [-negative for negative, _ in best])

    def spread(
        self, seeds: Mapping[str, float], /, *, hops: int = 2, decay: float = 0.5, include_seeds: bool = False
    ) -> dict[str, float]:
        """Activation of each neighbour; of seeds only what exceeds their own, with `include_seeds`."""
        reached = self._reached(seeds, hops, decay)
        return {
            key: activation.value
            for key, activation in reached.items()
            if activation.hops and (include_seeds or key not in seeds)
        }

    def paths(
        self, seeds: Mapping[str, float], targets: Sequence[str], /, *, hops: int = 2, decay: float = 0.5
    ) -> dict[str, Activation]:
        """The path of highest activation to each target that is not its own seed."""
        reached = self._reached(seeds, hops, decay)
        return {key: reached[key] for key in targets if key in reached and reached[key].hops}

    def items(self, keys: Sequence[str], /) -> list[Any]:
        """The items of keys."""
        return self._graph.items(keys)

    def _reached(
        self, seeds: Mapping[str, float], hops: int, decay: float, k: int | None = None
    ) -> dict[str, Activation]:
        """The best activation of every memory within `hops`, hop by hop; with `k`, at least of the k best."""
        best = {key: Activation(value, 0, (key,)) for key, value in seeds.items()}
        frontier = dict(best)
        for hop in range(1, hops + 1):
            values = {key: activation.value for key, activation in frontier.items()}
            improved: dict[str, Activation] = {}
            least = 0.0
            if k is not None and hop == hops and len(best) >= k:
                least = nlargest(k, (activation.value for activation in best.values()))[-1]
            for source, label, target, value in self._edges(values, decay, least):
                standing = improved.get(target) or best.get(target)
                if standing is None or value > standing.value:
                    improved[target] = Activation(value, hop, (*frontier[source].path, label, target))
            best |= improved
            frontier = improved
            if not frontier:
                break
        return best

    def _edges(self, values: Mapping[str, float], decay: float, least: float) -> Iterable[tuple[str, str, str, float]]:
        """One hop from these: (source, label, target, activation); links of sources that may reach `least`."""
        neighbours = list(self._graph.spread(values, hops=1, decay=decay, include_seeds=True))
        paths = self._graph.paths(values, neighbours, hops=1, decay=decay) if neighbours else {}
        for target, step in paths.items():
            yield step.path[0], step.path[1], target, step.value
        able = [(-value, key) for key, value in values.items() if value * decay * self._heaviest >= least]
        strongest = [key for _, key in sorted(able)[:READ]]
        for links in self._sources:
            for source, target, weight, label in links(strongest):
                if weight > 0 and (self._allowed is None or target in self._allowed):
                    yield source, label, target, values[source] * weight * decay
