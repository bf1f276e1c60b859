"""Threads as chains: each memory knows the one said before it and the one said after it."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.indexes.adjacency import Column

__all__ = ["Chains", "Links", "Turn"]


class Turn(NamedTuple):
    """A memory's place in its thread: by time, then by the order of insertion."""

    at: float
    seq: int
    node: int


class Links(NamedTuple):
    """A still picture of all chains: the next and previous node (-1 for none), and whether a node asks a question."""

    after: npt.NDArray[np.int32]
    before: npt.NDArray[np.int32]
    asks: npt.NDArray[np.bool_]


class Chains:
    """The order within each thread, kept while memories come, go and move."""

    __slots__ = ("_after", "_asks", "_before", "_threads", "_where")

    def __init__(self) -> None:
        self._after = Column(np.int32, fill=-1)
        self._before = Column(np.int32, fill=-1)
        self._asks = Column(np.bool_, fill=0)
        self._threads: dict[str, list[Turn]] = {}
        self._where: dict[int, tuple[str, Turn]] = {}

    def __len__(self) -> int:
        return len(self._where)

    def load(self, places: Sequence[tuple[str | None, float | None, int, bool]], /) -> None:
        """Fill empty chains at once: thread, time, seq and whether it asks, for nodes 0, 1, 2 and so on."""
        self._asks.fill(np.array([asks for *_, asks in places], np.bool_))
        for node, (thread, at, seq, _) in enumerate(places):
            if thread is not None:
                turn = Turn(math.inf if at is None else at, seq, node)
                self._threads.setdefault(thread, []).append(turn)
                self._where[node] = (thread, turn)
        after = np.full(len(places), -1, np.int32)
        before = np.full(len(places), -1, np.int32)
        for turns in self._threads.values():
            turns.sort()
            order = np.array([turn.node for turn in turns], np.int32)
            after[order[:-1]], before[order[1:]] = order[1:], order[:-1]
        self._after.fill(after)
        self._before.fill(before)

    def put(self, thread: str, turn: Turn, *, asks: bool) -> None:
        """Set a memory's thread and place; moving it from where it was, if it was anywhere else."""
        node = turn.node
        if bool(self._asks[node]) != asks:
            self._asks.set(node, int(asks))
        if self._where.get(node) == (thread, turn):
            return
        self.drop(node)
        turns = self._threads.setdefault(thread, [])
        if not turns or turns[-1] < turn:
            place = len(turns)
            turns.append(turn)
        else:
            place = bisect_left(turns, turn)
            insort(turns, turn)
        self._where[node] = (thread, turn)
        self._join(turns[place - 1].node if place else -1, node)
        self._join(node, turns[place + 1].node if place + 1 < len(turns) else -1)

    def drop(self, node: int) -> None:
        """Take a memory out of its thread: its neighbours become each other's."""
        known = self._where.pop(node, None)
        if known is None:
            return
        thread, turn = known
        turns = self._threads[thread]
        del turns[bisect_left(turns, turn)]
        if not turns:
            del self._threads[thread]
        self._join(self._before[node], self._after[node])
        self._before.set(node, -1, link=True)
        self._after.set(node, -1, link=True)

    def seq_of(self, node: int) -> int | None:
        """When this memory was first put into its thread: an update does not move it."""
        known = self._where.get(node)
        return None if known is None else known[1].seq

    def freeze(self, count: int) -> Links:
        """The chains as they are now, for readers that know `count` nodes."""
        columns: list[Any] = [column.freeze(count) for column in (self._after, self._before, self._asks)]
        return Links(*columns)

    def _join(self, first: int, second: int) -> None:
        if first >= 0:
            self._after.set(first, second, link=True)
        if second >= 0:
            self._before.set(second, first, link=True)
