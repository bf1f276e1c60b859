"""Order of memories within threads: the previous and the next memory of each."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.indexes.graph.adjacency import Column

__all__ = ["ThreadLinks", "ThreadPosition", "Threads", "asks"]


def asks(text: str, /) -> bool:
    """Whether a text contains a question mark; the next memory of its thread is then treated as the answer."""
    return "?" in text or "？" in text


class ThreadPosition(NamedTuple):
    """A memory's position in its thread: by time, then by the order of insertion."""

    at: float
    seq: int
    node: int


class ThreadLinks(NamedTuple):
    """A snapshot of all threads: the next and previous node (-1 for none), and whether a node asks a question."""

    after: npt.NDArray[np.int32]
    before: npt.NDArray[np.int32]
    asks: npt.NDArray[np.bool_]


class _LoadedThreads(NamedTuple):
    """Threads as loaded, in columns. A thread that is written to is removed from `numbers` and becomes a list."""

    numbers: dict[str, int]
    names: list[str]
    code: npt.NDArray[np.int32]
    """The number of each node's thread, -1 for none."""
    at: npt.NDArray[np.float64]
    seq: npt.NDArray[np.int64]
    order: npt.NDArray[np.intp]
    """Nodes sorted by thread, then by position."""
    starts: list[int]

    def nodes(self, number: int) -> list[int]:
        """A thread's nodes in their order."""
        found: list[int] = self.order[self.starts[number] : self.starts[number + 1]].tolist()
        return found


_NONE = _LoadedThreads({}, [], np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.intp), [0])


class Threads:
    """The order within each thread under insertions, updates and deletions."""

    __slots__ = ("_after", "_asks", "_before", "_loaded", "_threads", "_where")

    def __init__(self) -> None:
        self._after = Column(np.int32, fill=-1)
        self._before = Column(np.int32, fill=-1)
        self._asks = Column(np.bool_, fill=0)
        self._threads: dict[str, list[ThreadPosition]] = {}
        self._where: dict[int, tuple[str, ThreadPosition]] = {}
        self._loaded = _NONE

    def load(
        self, threads: Sequence[str | None], times: Sequence[float | None], seqs: Sequence[int], asking: Sequence[int]
    ) -> None:
        """Fill an empty object at once: thread, time and seq of nodes 0, 1, 2, …, and the nodes that ask a question."""
        numbers: dict[str, int] = {}
        number = numbers.setdefault
        code = np.array([-1 if t is None else number(t, len(numbers)) for t in threads], np.int32)
        at = np.array([math.inf if when is None else when for when in times], np.float64)
        seq = np.array(seqs, np.int64)
        order = np.lexsort((seq, at, code))
        order = order[np.searchsorted(code[order], 0) :]
        starts = np.searchsorted(code[order], np.arange(len(numbers) + 1)).tolist()
        self._loaded = _LoadedThreads(numbers, list(numbers), code, at, seq, order, starts)
        asks = np.zeros(len(code), np.bool_)
        asks[list(asking)] = True
        self._asks.fill(asks)
        first, second = order[:-1], order[1:]
        joined = code[first] == code[second]
        for column, here, there in ((self._after, first, second), (self._before, second, first)):
            links = np.full(len(code), -1, np.int32)
            links[here[joined]] = there[joined]
            column.fill(links)

    def _positions(self, thread: str) -> list[ThreadPosition]:
        """The positions of a thread as a list; loaded columns are converted on the first write."""
        number = self._loaded.numbers.pop(thread, None)
        if number is not None:
            at, seq = self._loaded.at, self._loaded.seq
            positions = [ThreadPosition(float(at[node]), int(seq[node]), node) for node in self._loaded.nodes(number)]
            self._threads[thread] = positions
            self._where.update((position.node, (thread, position)) for position in positions)
        return self._threads.setdefault(thread, [])

    def _place(self, node: int) -> tuple[str, ThreadPosition] | None:
        """A memory's thread and position; None when it is in no thread."""
        loaded = self._loaded
        if node not in self._where and node < len(loaded.code) and loaded.code[node] >= 0:
            thread = loaded.names[int(loaded.code[node])]
            if thread in loaded.numbers:
                self._positions(thread)
        return self._where.get(node)

    def put(self, thread: str, position: ThreadPosition, *, asks: bool) -> None:
        """Set a memory's thread and position."""
        node = position.node
        if bool(self._asks[node]) != asks:
            self._asks.set(node, int(asks))
        if self._place(node) == (thread, position):
            return
        self.drop(node)
        positions = self._positions(thread)
        if not positions or positions[-1] < position:
            place = len(positions)
            positions.append(position)
        else:
            place = bisect_left(positions, position)
            insort(positions, position)
        self._where[node] = (thread, position)
        self._join(positions[place - 1].node if place else -1, node)
        self._join(node, positions[place + 1].node if place + 1 < len(positions) else -1)

    def drop(self, node: int) -> None:
        """Remove a memory from its thread and join its two neighbours."""
        known = self._place(node)
        if known is None:
            return
        del self._where[node]
        thread, position = known
        positions = self._threads[thread]
        del positions[bisect_left(positions, position)]
        if not positions:
            del self._threads[thread]
        self._join(self._before[node], self._after[node])
        self._before.set(node, -1, link=True)
        self._after.set(node, -1, link=True)

    def seq_of(self, node: int) -> int | None:
        """The seq with which this memory entered its thread; an update keeps it."""
        known = self._place(node)
        return None if known is None else known[1].seq

    def freeze(self, count: int) -> ThreadLinks:
        """A snapshot of the threads for the first `count` nodes."""
        columns: list[Any] = [column.freeze(count) for column in (self._after, self._before, self._asks)]
        return ThreadLinks(*columns)

    def _join(self, first: int, second: int) -> None:
        if first >= 0:
            self._after.set(first, second, link=True)
        if second >= 0:
            self._before.set(second, first, link=True)
