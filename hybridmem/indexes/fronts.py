"""Activations on their way over a graph, in numpy columns: joining them, and choosing the strongest of each node."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.indexes.adjacency import Floats, Ints

__all__ = ["Front", "among", "highest", "join", "peaks", "strongest"]


class Front(NamedTuple):
    """Activations on their way: at which node, from which seed, how much, and which entry of the log each is."""

    node: Ints
    origin: Ints
    value: Floats
    at: Ints

    def take(self, places: npt.NDArray[Any]) -> Front:
        """Only these of them."""
        return Front(self.node[places], self.origin[places], self.value[places], self.at[places])


def join(fronts: Sequence[Front]) -> Front:
    """One after the other."""
    if len(fronts) == 1:
        return fronts[0]
    return Front(*map(np.concatenate, zip(*fronts, strict=True)))


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
    """Places of each node's highest activation, the first of equals; with `rivals` also of the best from another seed.

    A seed whose best activation is its own needs the rival; and so does everyone on the way to a seed.
    """
    best, slot = _borrow(size)
    first = _winners(front.node, front.value, np.arange(len(front.node)), best, slot)
    if rivals and len(first):
        slot[front.node[first]] = first
        other = (front.origin != front.origin[slot[front.node]]).nonzero()[0]
        second = _winners(front.node[other], front.value[other], other, best, slot)
        first = np.concatenate((first, second))
        first.sort()
    _BUFFERS.append((best, slot))
    return first


def _winners(nodes: Ints, values: Floats, places: Ints, best: Floats, slot: Ints) -> Ints:
    np.maximum.at(best, nodes, values)
    top = (values == best[nodes]).nonzero()[0]
    best[nodes] = 0.0
    nodes, places = nodes[top], places[top]
    slot[nodes[::-1]] = places[::-1]  # of equals the first stays: it is written last
    won: Ints = places[slot[nodes] == places]
    return won


def highest(node: Ints, value: Floats, most: int) -> Ints:
    """Places of the `most` highest values; of equals at the edge the older nodes."""
    floor = np.partition(value, -most)[-most]
    above = (value > floor).nonzero()[0]
    level = (value == floor).nonzero()[0]
    level = level[np.argsort(node[level], kind="stable")]
    kept = np.concatenate((above, level[: most - len(above)]))
    kept.sort()
    return kept


def peaks(node: Ints, value: Floats, *, size: int) -> tuple[Ints, Floats]:
    """Each node once, with its highest value."""
    best, slot = _borrow(size)
    first = _winners(node, value, np.arange(len(node)), best, slot)
    _BUFFERS.append((best, slot))
    return node[first], value[first]


def among(node: Ints, others: Ints, *, size: int) -> npt.NDArray[np.bool_]:
    """Which of these nodes are among the others."""
    mark, slot = _borrow(size)
    mark[others] = 1.0
    found: npt.NDArray[np.bool_] = mark[node] > 0
    mark[others] = 0.0
    _BUFFERS.append((mark, slot))
    return found
