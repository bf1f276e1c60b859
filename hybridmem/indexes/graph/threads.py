"""Order of memories within threads: the previous and the next memory of each."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.indexes.graph.adjacency import Column

__all__ = ["ThreadPosition", "Threads"]

Links = npt.NDArray[np.int32]


class ThreadPosition(NamedTuple):
    """A memory's position in its thread: by time, then by the order of insertion."""

    at: float
    seq: int
    node: int


class _Loaded(NamedTuple):
    """Nodes as loaded, in columns: the number of the thread (-1 for none), time and seq."""

    thread: npt.NDArray[np.int32]
    at: npt.NDArray[np.float64]
    seq: npt.NDArray[np.int64]


_NONE = _Loaded(np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int64))


class Threads:
    """The order within each thread under insertions, updates and deletions. Nodes and threads are numbers."""

    __slots__ = ("_after", "_before", "_loaded", "_place", "_positions")

    def __init__(self) -> None:
        self._after = Column(np.int32, fill=-1)
        self._before = Column(np.int32, fill=-1)
        self._positions: dict[int, list[ThreadPosition]] = {}
        self._place: dict[int, tuple[int, ThreadPosition]] = {}
        self._loaded = _NONE

    def load(
        self,
        thread: npt.NDArray[np.int32],
        at: npt.NDArray[np.float64],
        seq: npt.NDArray[np.int64],
        links: tuple[Links, Links] | None = None,
    ) -> None:
        """Fill an empty object with thread (-1 for none), time (inf for none) and seq of each node.

        `links`, when known, are the next and previous node of each.
        """
        self._loaded = _Loaded(thread, at, seq)
        for column, values in zip((self._after, self._before), links or _sorted_links(thread, at, seq), strict=True):
            column.fill(values)

    def after(self, nodes: npt.NDArray[Any], /) -> npt.NDArray[np.intp]:
        """The next node of each, -1 for none."""
        return self._after.take(nodes)

    def before(self, nodes: npt.NDArray[Any], /) -> npt.NDArray[np.intp]:
        """The previous node of each, -1 for none."""
        return self._before.take(nodes)

    def neighbours(self, node: int, /) -> tuple[int, int]:
        """The previous and the next node, -1 for none."""
        return self._before[node], self._after[node]

    def put(self, thread: int, position: ThreadPosition) -> None:
        """Set a memory's thread and position."""
        node = position.node
        placed = self._placed(node)
        if placed is not None:
            if placed == (thread, position):
                return
            self.drop(node)
        positions = self._opened(thread)
        if not positions or positions[-1] < position:
            place = len(positions)
            positions.append(position)
        else:
            place = bisect_left(positions, position)
            insort(positions, position)
        self._place[node] = (thread, position)
        if place:
            self._join(positions[place - 1].node, node)
        if place + 1 < len(positions):
            self._join(node, positions[place + 1].node)
        elif placed is not None:
            self._after.set(node, -1, link=True)

    def drop(self, node: int) -> None:
        """Remove a memory from its thread and join its two neighbours."""
        placed = self._placed(node)
        if placed is None:
            return
        del self._place[node]
        thread, position = placed
        positions = self._positions[thread]
        del positions[bisect_left(positions, position)]
        self._join(self._before[node], self._after[node])
        self._before.set(node, -1, link=True)
        self._after.set(node, -1, link=True)

    def seq_of(self, node: int) -> int | None:
        """The seq with which this memory entered its thread; an update keeps it."""
        placed = self._placed(node)
        return None if placed is None else placed[1].seq

    def freeze(self, count: int) -> tuple[Links, Links]:
        """Snapshots of the next and the previous node of the first `count` nodes."""
        return self._after.freeze(count), self._before.freeze(count)

    def _opened(self, thread: int) -> list[ThreadPosition]:
        """The positions of a thread as a list; loaded columns are converted on the first write."""
        positions = self._positions.get(thread)
        if positions is None:
            loaded = self._loaded
            nodes = np.flatnonzero(loaded.thread == thread)
            columns = (loaded.at[nodes].tolist(), loaded.seq[nodes].tolist(), nodes.tolist())
            positions = self._positions[thread] = sorted(map(ThreadPosition._make, zip(*columns, strict=True)))
            self._place.update((position.node, (thread, position)) for position in positions)
        return positions

    def _placed(self, node: int) -> tuple[int, ThreadPosition] | None:
        """A memory's thread and position; None when it is in no thread."""
        if node not in self._place and node < len(self._loaded.thread):
            thread = int(self._loaded.thread[node])
            if thread >= 0 and thread not in self._positions:
                self._opened(thread)
        return self._place.get(node)

    def _join(self, first: int, second: int) -> None:
        if first >= 0:
            self._after.set(first, second, link=True)
        if second >= 0:
            self._before.set(second, first, link=True)


def _sorted_links(
    thread: npt.NDArray[np.int32], at: npt.NDArray[np.float64], seq: npt.NDArray[np.int64]
) -> tuple[Links, Links]:
    order = np.lexsort((seq, at, thread))
    first, second = order[:-1], order[1:]
    joined = (thread[first] == thread[second]) & (thread[first] >= 0)
    after, before = (np.full(len(thread), -1, np.int32) for _ in range(2))
    after[first[joined]] = second[joined]
    before[second[joined]] = first[joined]
    return after, before
