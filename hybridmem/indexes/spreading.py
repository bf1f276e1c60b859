"""Spreading activation over a still picture of the graph: neighbour = activation · edge weight · decay, best path wins."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.errors import ConfigError
from hybridmem.indexes.adjacency import Floats, Ints, Rows
from hybridmem.indexes.chains import Links
from hybridmem.types import Activation, Hits

__all__ = ["Front", "Picture", "Weights"]


class Weights(NamedTuple):
    """What a hop over an implicit edge is worth; explicit and metadata edges carry their own weights."""

    thread: float
    answers: float
    shared: float
    max_fanout: int


class Front(NamedTuple):
    """Activations on their way: at which node, from which seed, how much, and where each came from in the log."""

    node: Ints
    origin: Ints
    value: Floats
    at: Ints

    def take(self, places: npt.NDArray[Any]) -> Front:
        return Front(self.node[places], self.origin[places], self.value[places], self.at[places])

    def join(self, other: Front) -> Front:
        return Front(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


_BUFFERS: deque[tuple[Floats, Ints]] = deque(maxlen=4)
"""Scratch space by node number, all zero between uses: clearing what was touched is cheaper than a new array."""


def _borrow(size: int) -> tuple[Floats, Ints]:
    try:
        best, slot = _BUFFERS.pop()
    except IndexError:
        return np.zeros(size), np.empty(size, np.intp)
    if len(best) < size:
        return np.zeros(size + size // 4), np.empty(size + size // 4, np.intp)
    return best, slot


def strongest(front: Front, *, size: int, rivals: bool) -> Ints:
    """Places of the highest activation of each node, the first of equals; with `rivals` also of the best from a
    different seed, which is what a seed needs to know when the best is its own.
    """
    best, slot = _borrow(size)
    places = np.arange(len(front.node))
    first = _winners(front.node, front.value, places, best, slot)
    if rivals and len(first):
        slot[front.node[first]] = first
        other = np.flatnonzero(front.origin != front.origin[slot[front.node]])
        second = _winners(front.node[other], front.value[other], other, best, slot)
        first = np.concatenate((first, second))
        first.sort()
    _BUFFERS.append((best, slot))
    return first


def _winners(nodes: Ints, values: Floats, places: Ints, best: Floats, slot: Ints) -> Ints:
    np.maximum.at(best, nodes, values)
    top = np.flatnonzero(values == best[nodes])
    best[nodes] = 0.0
    nodes, places = nodes[top], places[top]
    slot[nodes[::-1]] = places[::-1]  # of equals the first stays: it is written last
    return places[slot[nodes] == places]


@dataclass(frozen=True, slots=True)
class Picture:
    """The graph as it was at one moment; implements `hybridmem.types.Graph`. Safe to use from any thread.

    `numbers` and `ids` go on growing with the index: a node numbered `count` or above is not in this picture.
    """

    count: int
    ids: Sequence[str]
    numbers: Mapping[str, int]
    alive: npt.NDArray[np.bool_]
    chains: Links
    links: Rows
    entities_of: Rows
    members_of: Rows
    entity_count: int
    labels: Sequence[str]
    entity_names: Sequence[str]
    weights: Weights
    fetch: Callable[[Sequence[str]], list[Any]] | None = None
    allowed: Set[str] | None = None

    # --- the Graph protocol

    def spread(
        self, seeds: Mapping[str, float], /, *, hops: int = 2, decay: float = 0.5, include_seeds: bool = False
    ) -> dict[str, float]:
        """What each neighbour receives: the best over walks of at most `hops` edges of seed · Π(weight · decay).

        A seed is in the result only with `include_seeds`, and then with what OTHER seeds bring to it.
        Seeds that are not in the graph, or whose value is not above 0, bring nothing.
        """
        _check(hops, decay)
        front = state = self._start(seeds)
        for hop in range(hops):
            if not len(front.node):
                break
            reached = self._step(front, decay)
            if hop == hops - 1:
                state = state.join(reached)
                break
            fresh = len(state.node)
            state = state.join(reached)
            kept = strongest(state, size=self.count, rivals=include_seeds)
            front, state = state.take(kept[kept >= fresh]), state.take(kept)
        found = self._best(state)
        if not include_seeds:
            for key in seeds:
                found.pop(key, None)
        return found

    def paths(
        self, seeds: Mapping[str, float], targets: Sequence[str], /, *, hops: int = 2, decay: float = 0.5
    ) -> dict[str, Activation]:
        """The winning path to each target, for receipts: highest value, then fewest hops, then the earlier seed."""
        _check(hops, decay)
        front = state = log = self._start(seeds)
        for _ in range(hops):
            if not len(front.node):
                break
            reached = self._step(front, decay)
            fresh = len(state.node)
            grown = state.join(reached)
            kept = strongest(grown, size=self.count, rivals=True)
            new = grown.take(kept[kept >= fresh])
            old = state.take(kept[kept < fresh])
            front = new._replace(at=np.arange(len(log.node), len(log.node) + len(new.node)))
            log = log.join(new)
            state = old.join(front)
        return self._told(state, log, targets)

    def items(self, keys: Sequence[str], /) -> list[Any]:
        """The items behind keys that no arm had found; None where unknown."""
        return [None] * len(keys) if self.fetch is None else self.fetch(keys)

    # --- the arm

    def search(self, seeds: Mapping[str, float], /, *, k: int, hops: int = 2, decay: float = 0.5) -> Hits:
        """The k most activated memories: seeds (scaled so that the best is 1) and what they remind of.

        A seed counts with the larger of its own value and what other seeds bring to it. Ties: by id.
        """
        if k < 1:
            raise ConfigError(f"k = {k!r} is not allowed: from 1 up")
        finite = {key: value for key, value in seeds.items() if value > 0 and math.isfinite(value)}
        top = max(finite.values(), default=1.0)
        scaled = {key: value / top for key, value in finite.items()}
        found = self.spread(scaled, hops=hops, decay=decay, include_seeds=True)
        for key in self._present(scaled):
            found[key] = max(scaled[key], found.get(key, 0.0))
        pairs = list(found.items())
        if len(pairs) > 4 * k:  # a full sort of a hub's neighbours would cost more than finding them
            floor = np.partition(np.fromiter(found.values(), np.float64, len(found)), -k)[-k]
            pairs = [pair for pair in pairs if pair[1] >= floor]
        pairs.sort(key=lambda pair: (-pair[1], pair[0]))
        return Hits([key for key, _ in pairs[:k]], [value for _, value in pairs[:k]])

    def only(self, allowed: Set[str] | None, /) -> Picture:
        """The same picture in which only these ids receive and pass activation (None: all)."""
        return self if allowed is None else replace(self, allowed=allowed)

    # --- inside

    def _start(self, seeds: Mapping[str, float]) -> Front:
        get, count, allowed = self.numbers.get, self.count, self.allowed
        pairs = [
            (node, value)
            for key, value in seeds.items()
            if (node := get(key, count)) < count and value > 0 and (allowed is None or key in allowed)
        ]
        node = np.array([pair[0] for pair in pairs], np.intp)
        value = np.array([pair[1] for pair in pairs], np.float64)
        alive = self.alive[node] & np.isfinite(value)
        if not alive.all():
            node, value = node[alive], value[alive]
        return Front(node, node, value, np.arange(len(node)))

    def _present(self, keys: Mapping[str, float]) -> list[str]:
        node = self._start(keys).node.tolist()
        return [self.ids[i] for i in node]

    def _step(self, front: Front, decay: float) -> Front:
        """One hop from every activation of the front, over every kind of edge. `at` says where each came from."""
        parts = [*self._along_threads(front), *self._along_links(front), *self._along_entities(front)]
        which = np.concatenate([part[0] for part in parts]) if parts else np.empty(0, np.intp)
        node = np.concatenate([part[1] for part in parts]) if parts else which
        value = front.value[which] * (np.concatenate([part[2] for part in parts]) * decay) if parts else np.empty(0)
        keep = self._open(node) & (value > 0)
        if not keep.all():
            which, node, value = which[keep], node[keep], value[keep]
        return Front(node, front.origin[which], value, front.at[which])

    def _open(self, node: Ints) -> npt.NDArray[np.bool_]:
        alive: npt.NDArray[np.bool_] = self.alive[node]
        if self.allowed is not None:
            ids, allowed = self.ids, self.allowed
            alive = alive & np.fromiter((ids[i] in allowed for i in node.tolist()), np.bool_, len(node))
        return alive

    def _along_threads(self, front: Front) -> list[tuple[Ints, Ints, Floats]]:
        thread = self.weights.thread
        if thread <= 0:
            return []
        parts = []
        forward = np.where(self.chains.asks[front.node], thread * self.weights.answers, thread)
        back = np.full(len(front.node), thread)
        for link, weight in ((self.chains.after, forward), (self.chains.before, back)):
            node = link[front.node].astype(np.intp)
            which = np.flatnonzero((node >= 0) & (node < self.count))
            parts.append((which, node[which], weight[which]))
        return parts

    def _along_links(self, front: Front) -> list[tuple[Ints, Ints, Floats]]:
        if not self.links:
            return []
        which, node, weight = self.links.expand(front.node)
        return [(which, node, weight)] if len(which) else []

    def _along_entities(self, front: Front) -> list[tuple[Ints, Ints, Floats]]:
        """Over what memories share: shared / √(n - 1) for an entity of n memories, nothing beyond max_fanout."""
        if not self.entities_of:
            return []
        which, entity, _ = self.entities_of.expand(front.node)
        shared = Front(entity, front.origin[which], front.value[which], which)
        shared = shared.take(strongest(shared, size=self.entity_count, rivals=True))
        size = self.members_of.degree(shared.node)
        useful = np.flatnonzero((size > 1) & (size <= self.weights.max_fanout))
        if not len(useful):
            return []
        weight = self.weights.shared / np.sqrt(size[useful] - 1)
        through = shared.take(useful)
        member_of, node, _ = self.members_of.expand(through.node)
        return [(through.at[member_of], node, weight[member_of])]

    def _best(self, state: Front) -> dict[str, float]:
        """Each node's highest activation from a seed other than itself."""
        best, slot = _borrow(self.count)
        foreign = np.flatnonzero(state.node != state.origin)
        node, value = state.node[foreign], state.value[foreign]
        np.maximum.at(best, node, value)
        top = np.flatnonzero(value == best[node])
        best[node] = 0.0
        _BUFFERS.append((best, slot))
        return dict(zip(map(self.ids.__getitem__, node[top].tolist()), value[top].tolist(), strict=True))

    def _told(self, state: Front, log: Front, targets: Sequence[str]) -> dict[str, Activation]:
        foreign = state.take(np.flatnonzero(state.node != state.origin))
        foreign = foreign.take(strongest(foreign, size=self.count, rivals=False))
        entry = dict(zip(foreign.node.tolist(), foreign.at.tolist(), strict=True))
        told = {}
        for key in targets:
            at = entry.get(self.numbers.get(key, -1))
            if at is not None:
                told[key] = self._path(at, log)
        return told

    def _path(self, at: int, log: Front) -> Activation:
        """Back from an entry of the log to its seed."""
        value, hops, nodes = float(log.value[at]), 0, [int(log.node[at])]
        while int(log.at[at]) != at:  # a seed is its own origin in the log
            at, hops = int(log.at[at]), hops + 1
            nodes.append(int(log.node[at]))
        nodes.reverse()
        path = [self.ids[nodes[0]]]
        for first, second in zip(nodes, nodes[1:], strict=False):
            path += [self.label(first, second), self.ids[second]]
        return Activation(value, hops, tuple(path))

    def label(self, first: int, second: int) -> str:
        """The name of the heaviest edge from one node to another."""
        edges = [(slot.weight, self.labels[slot.label // 2]) for slot in self.links.row(first) if slot.target == second]
        shared = {slot.target for slot in self.entities_of.row(second)}
        for entity in (slot.target for slot in self.entities_of.row(first)):
            size = int(self.members_of.degree(np.array([entity], np.intp))[0])
            if entity in shared and 1 < size <= self.weights.max_fanout:
                edges.append((self.weights.shared / math.sqrt(size - 1), f"entity {self.entity_names[entity]}"))
        after, before, asks = self.chains
        if int(after[first]) == second:
            edges.append((self.weights.thread * (self.weights.answers if asks[first] else 1.0), "thread"))
        if int(before[first]) == second:
            edges.append((self.weights.thread, "thread"))
        return max(edges, key=lambda edge: edge[0])[1]


def _check(hops: int, decay: float) -> None:
    if hops < 0:
        raise ConfigError(f"hops = {hops!r} is not allowed: from 0 up")
    if not 0 <= decay <= 1:
        raise ConfigError(f"decay = {decay!r} is not allowed: from 0 to 1")
