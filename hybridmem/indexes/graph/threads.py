"""Threads as chains: each memory knows the one said before it and the one said after it."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.indexes.graph.adjacency import Column

__all__ = ["Chains", "Links", "Turn", "asks"]


def asks(text: str, /) -> bool:
    """Whether a memory asks a question, so that the next one of its thread is its answer."""
    return "?" in text or "？" in text


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


class _Resting(NamedTuple):
    """Threads as they were loaded, in columns; one that is written to is taken out of `numbers` and becomes a list."""

    numbers: dict[str, int]
    names: list[str]
    code: npt.NDArray[np.int32]
    """Each node's thread by number, -1 for none."""
    at: npt.NDArray[np.float64]
    seq: npt.NDArray[np.int64]
    order: npt.NDArray[np.intp]
    """Nodes by thread, then by their place in it."""
    starts: list[int]

    def nodes(self, number: int) -> list[int]:
        """A thread's nodes in their order."""
        found: list[int] = self.order[self.starts[number] : self.starts[number + 1]].tolist()
        return found


_NONE = _Resting({}, [], np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.intp), [0])


class Chains:
    """The order within each thread, kept while memories come, go and move."""

    __slots__ = ("_after", "_asks", "_before", "_resting", "_threads", "_where")

    def __init__(self) -> None:
        self._after = Column(np.int32, fill=-1)
        self._before = Column(np.int32, fill=-1)
        self._asks = Column(np.bool_, fill=0)
        self._threads: dict[str, list[Turn]] = {}
        self._where: dict[int, tuple[str, Turn]] = {}
        self._resting = _NONE

    def load(
        self, threads: Sequence[str | None], times: Sequence[float | None], seqs: Sequence[int], asking: Sequence[int]
    ) -> None:
        """Fill empty chains at once: thread, time and seq of nodes 0, 1, 2 and so on, and which of them ask."""
        numbers: dict[str, int] = {}
        number = numbers.setdefault
        code = np.array([-1 if t is None else number(t, len(numbers)) for t in threads], np.int32)
        at = np.array([math.inf if when is None else when for when in times], np.float64)
        seq = np.array(seqs, np.int64)
        order = np.lexsort((seq, at, code))
        order = order[np.searchsorted(code[order], 0) :]
        starts = np.searchsorted(code[order], np.arange(len(numbers) + 1)).tolist()
        self._resting = _Resting(numbers, list(numbers), code, at, seq, order, starts)
        asks = np.zeros(len(code), np.bool_)
        asks[list(asking)] = True
        self._asks.fill(asks)
        first, second = order[:-1], order[1:]
        joined = code[first] == code[second]
        for column, here, there in ((self._after, first, second), (self._before, second, first)):
            links = np.full(len(code), -1, np.int32)
            links[here[joined]] = there[joined]
            column.fill(links)

    def _turns(self, thread: str) -> list[Turn]:
        """The turns of a thread, awake: what was loaded as columns becomes a list when it is first written to."""
        number = self._resting.numbers.pop(thread, None)
        if number is not None:
            at, seq = self._resting.at, self._resting.seq
            turns = [Turn(float(at[node]), int(seq[node]), node) for node in self._resting.nodes(number)]
            self._threads[thread] = turns
            self._where.update((turn.node, (thread, turn)) for turn in turns)
        return self._threads.setdefault(thread, [])

    def _place(self, node: int) -> tuple[str, Turn] | None:
        """Where a memory stands; None when it is in no thread."""
        resting = self._resting
        if node not in self._where and node < len(resting.code) and resting.code[node] >= 0:
            thread = resting.names[int(resting.code[node])]
            if thread in resting.numbers:
                self._turns(thread)
        return self._where.get(node)

    def put(self, thread: str, turn: Turn, *, asks: bool) -> None:
        """Set a memory's thread and place; moving it from where it was, if it was anywhere else."""
        node = turn.node
        if bool(self._asks[node]) != asks:
            self._asks.set(node, int(asks))
        if self._place(node) == (thread, turn):
            return
        self.drop(node)
        turns = self._turns(thread)
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
        known = self._place(node)
        if known is None:
            return
        del self._where[node]
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
        known = self._place(node)
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
