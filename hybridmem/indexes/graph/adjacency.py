"""Adjacency lists: immutable compressed rows with a small tail of recent changes, and copy-on-write columns.

`Threads` keeps the order of memories within threads in such columns: the previous and the next memory of each.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "Adjacency",
    "Column",
    "CompressedRows",
    "DirectedEdge",
    "DirectedEdges",
    "Floats",
    "Ints",
    "ThreadPosition",
    "Threads",
]

Ints = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]

_TAIL = 4096
"""Maximum number of recent changes kept beside the arrays: copying them takes microseconds, merging is rare."""

_FEW = 64
"""The maximum in a small graph: merging is cheap there, and reading arrays is faster than reading the tail."""

_NONE: Ints = np.empty(0, np.intp)
_NO_WEIGHTS: Floats = np.empty(0, np.float64)


class DirectedEdge(NamedTuple):
    """One directed edge in a row."""

    target: int
    weight: float
    label: int


class CompressedRows:
    """A snapshot of an adjacency: compressed rows, without the `cut` slots, plus a `tail` of later ones.

    Row r holds slots starts[r] … starts[r+1]; rows beyond the end are empty.
    """

    __slots__ = ("cut", "labels", "rows", "starts", "tail", "targets", "weights")

    def __init__(
        self,
        *,
        starts: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int32],
        weights: Floats,
        labels: npt.NDArray[np.int32],
        cut: Ints,
        tail: Mapping[int, tuple[DirectedEdge, ...]],
    ) -> None:
        self.starts, self.targets, self.weights, self.labels = starts, targets, weights, labels
        self.cut, self.tail = cut, tail
        self.rows = len(starts) - 2  # the last start is repeated, so that any row beyond the end reads as empty

    def __bool__(self) -> bool:
        return len(self.targets) > 0 or len(self.tail) > 0

    def expand(self, rows: Ints) -> tuple[Ints, Ints, Floats]:
        """All slots of these rows: (which of the given rows, target, weight)."""
        which, targets, weights = self._expand_base(rows)
        if not self.tail:
            return which, targets, weights
        late_which, late = self._expand_tail(rows)
        if not late:
            return which, targets, weights
        return (
            np.concatenate((which, np.array(late_which, np.intp))),
            np.concatenate((targets, np.array([slot[0] for slot in late], np.intp))),
            np.concatenate((weights, np.array([slot[1] for slot in late], np.float64))),
        )

    def _expand_base(self, rows: Ints) -> tuple[Ints, Ints, Floats]:
        first, counts = self._spans(rows)
        ends = counts.cumsum()
        total = int(ends[-1]) if len(ends) else 0
        if not total:
            return _NONE, _NONE, _NO_WEIGHTS
        which = np.repeat(np.arange(len(rows)), counts)
        slots = (first - ends + counts)[which] + np.arange(total)
        if len(self.cut):
            keep = ~self._is_cut(slots)
            which, slots = which[keep], slots[keep]
        return which, self.targets[slots].astype(np.intp), self.weights[slots]

    def _expand_tail(self, rows: Ints) -> tuple[list[int], list[DirectedEdge]]:
        tail = self.tail
        if len(rows) > 4 * len(tail):  # a wide frontier: select the few rows with a tail without a loop over all
            places: list[int] = np.flatnonzero(np.isin(rows, np.fromiter(tail, np.intp, len(tail)))).tolist()
            found = [(place, tail[int(rows[place])]) for place in places]
        else:
            found = [(place, tail[row]) for place, row in enumerate(rows.tolist()) if row in tail]
        which = [place for place, slots in found for _ in slots]
        return which, [slot for _, slots in found for slot in slots]

    def degree(self, rows: Ints) -> Ints:
        """How many slots each of these rows has."""
        first, counts = self._spans(rows)
        if len(self.cut):
            counts = counts - (np.searchsorted(self.cut, first + counts) - np.searchsorted(self.cut, first))
        if self.tail:
            tail = self.tail
            counts = counts + np.array([len(tail.get(row, ())) for row in rows.tolist()], np.intp)
        return counts

    def row(self, row: int) -> list[DirectedEdge]:
        """The slots of one row, oldest first."""
        places = self.places(row)
        columns = (self.targets[places].tolist(), self.weights[places].tolist(), self.labels[places].tolist())
        return [*map(DirectedEdge._make, zip(*columns, strict=True)), *self.tail.get(row, ())]

    def places(self, row: int) -> Ints:
        """Where the arrays hold this row's live slots."""
        at = min(row, self.rows)
        places = np.arange(self.starts[at], self.starts[at + 1], dtype=np.intp)
        return places[~self._is_cut(places)] if len(self.cut) and len(places) else places

    def scaled(self, factors: Floats) -> CompressedRows:
        """The same rows with each weight times the factor of its label."""
        tail = {
            row: tuple(slot._replace(weight=slot.weight * float(factors[slot.label])) for slot in slots)
            for row, slots in self.tail.items()
        }
        return CompressedRows(
            starts=self.starts,
            targets=self.targets,
            weights=self.weights * factors[self.labels],
            labels=self.labels,
            cut=self.cut,
            tail=tail,
        )

    def _spans(self, rows: Ints) -> tuple[Ints, Ints]:
        at = np.minimum(rows, self.rows)
        first = self.starts[at]
        return first, self.starts[at + 1] - first

    def _is_cut(self, slots: Ints) -> npt.NDArray[np.bool_]:
        at = np.minimum(np.searchsorted(self.cut, slots), len(self.cut) - 1)
        found: npt.NDArray[np.bool_] = self.cut[at] == slots
        return found


class Adjacency:
    """Mutable rows. `freeze` returns a snapshot that later changes do not affect."""

    __slots__ = ("_cut", "_frozen", "_rows", "_shared", "_size", "_tail")

    def __init__(self, rows: CompressedRows | None = None) -> None:
        self._rows = rows or _whole(np.zeros(2, np.int64), DirectedEdges.of([]))
        self._tail: dict[int, tuple[DirectedEdge, ...]] = {}
        self._cut: set[int] = set()
        self._size = 0  # slots in the tail
        self._shared = False  # a snapshot refers to the tail: copy it before the next change
        self._frozen: CompressedRows | None = None

    def __len__(self) -> int:
        return len(self._rows.targets) + self._size - len(self._cut)

    def add(self, row: int, slot: DirectedEdge) -> None:
        """Append a slot to a row."""
        self._touch()
        self._tail[row] = (*self._tail.get(row, ()), slot)
        self._size += 1
        if self._size > max(_TAIL, len(self._rows.targets) // 4):  # during a bulk load merges become rarer
            self._merge()

    def remove(self, row: int, target: int, label: int) -> bool:
        """Remove the slot with this target and label from a row; False if there is none."""
        late = self._tail.get(row, ())
        for place, slot in enumerate(late):
            if slot.target == target and slot.label == label:
                self._touch()
                self._tail[row] = late[:place] + late[place + 1 :]
                if not self._tail[row]:
                    del self._tail[row]
                self._size -= 1
                return True
        base = self._rows
        if row >= base.rows:
            return False
        start, stop = int(base.starts[row]), int(base.starts[row + 1])
        if start == stop:
            return False
        same = (base.targets[start:stop] == target) & (base.labels[start:stop] == label)
        for place in (np.flatnonzero(same) + start).tolist():
            if place not in self._cut:
                self._touch()
                self._cut.add(place)
                return True
        return False

    def row(self, row: int) -> list[DirectedEdge]:
        """The slots of one row, oldest first."""
        if row >= self._rows.rows or self._rows.starts[row] == self._rows.starts[row + 1]:
            return list(self._tail.get(row, ()))
        return self._snapshot().row(row)

    def freeze(self) -> CompressedRows:
        """A snapshot of the rows. The arrays are never copied."""
        if self._frozen is None:
            if self._size + len(self._cut) > min(_TAIL, max(_FEW, len(self._rows.targets) // 16)):
                self._merge()
            self._frozen = self._snapshot()
            self._shared = True
        return self._frozen

    def _touch(self) -> None:
        self._frozen = None
        if self._shared:
            self._tail = dict(self._tail)
            self._shared = False

    def _snapshot(self) -> CompressedRows:
        base = self._rows
        cut = np.array(sorted(self._cut), np.intp) if self._cut else _NONE
        return CompressedRows(
            starts=base.starts,
            targets=base.targets,
            weights=base.weights,
            labels=base.labels,
            cut=cut,
            tail=self._tail,
        )

    def extend(self, rows: Ints, slots: DirectedEdges) -> None:
        """Append many slots at once by building new arrays."""
        self._merge()
        self._rows = _inserted(self._rows, rows, slots)
        self._frozen = None

    def _merge(self) -> None:
        """Build new arrays without the cut slots and with each row's tail inserted at its end."""
        if self._cut:
            self._rows = _without(self._rows, np.array(sorted(self._cut), np.intp))
        if self._tail:
            rows = np.repeat(np.fromiter(self._tail, np.intp), [len(slots) for slots in self._tail.values()])
            self._rows = _inserted(
                self._rows, rows, DirectedEdges.of([slot for row in self._tail.values() for slot in row])
            )
        self._tail, self._cut, self._size, self._shared, self._frozen = {}, set(), 0, False, None


class DirectedEdges(NamedTuple):
    """Many directed edges in columns."""

    targets: npt.NDArray[np.int32]
    weights: Floats
    labels: npt.NDArray[np.int32]

    @classmethod
    def of(cls, slots: list[DirectedEdge]) -> DirectedEdges:
        """Columns of single slots."""
        return cls(
            np.array([slot.target for slot in slots], np.int32),
            np.array([slot.weight for slot in slots], np.float64),
            np.array([slot.label for slot in slots], np.int32),
        )


def _without(old: CompressedRows, cut: Ints) -> CompressedRows:
    """The same rows without these slots (ascending)."""
    starts = old.starts - np.searchsorted(cut, old.starts)
    columns: Iterator[Any] = (np.delete(column, cut) for column in (old.targets, old.weights, old.labels))
    return _whole(starts, DirectedEdges(*columns))


def _inserted(old: CompressedRows, rows: Ints, slots: DirectedEdges) -> CompressedRows:
    """The same rows with slots added, each at the end of its row, in the order given."""
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    count = max(old.rows, int(rows[-1]) + 1)
    ends = np.full(count, old.starts[-1])
    ends[: old.rows] = old.starts[1 : old.rows + 1]
    starts = np.zeros(count + 2, np.int64)
    starts[1:-1] = ends + np.bincount(rows, minlength=count).cumsum()
    starts[-1] = starts[-2]
    at = ends[rows]
    kept: tuple[Any, ...] = (old.targets, old.weights, old.labels)
    fresh: tuple[Any, ...] = tuple(slots)
    columns = (np.insert(column, at, added[order]) for column, added in zip(kept, fresh, strict=True))
    return _whole(starts, DirectedEdges(*columns))


def _whole(starts: npt.NDArray[np.int64], slots: DirectedEdges) -> CompressedRows:
    targets, weights, labels = slots
    return CompressedRows(starts=starts, targets=targets, weights=weights, labels=labels, cut=_NONE, tail={})


class Column:
    """One value per node, growable, with snapshots that usually need no copy.

    Readers of a snapshot read only the nodes it had. Writing to a newer node therefore needs no copy; nor does setting
    an empty link of an old node to a newer node, because readers treat any number beyond their last node as empty.
    """

    __slots__ = ("_data", "_fill", "_private", "_seen")

    def __init__(self, dtype: type[np.generic], *, fill: int) -> None:
        self._fill = fill
        self._data: npt.NDArray[Any] = np.full(1024, fill, dtype)
        self._seen = 0  # number of nodes in the newest snapshot
        self._private = True  # no snapshot refers to this array

    def __getitem__(self, node: int) -> int:
        return int(self._data[node]) if node < len(self._data) else self._fill

    def take(self, nodes: npt.NDArray[Any], /) -> npt.NDArray[np.intp]:
        """The values of several nodes; the fill value for a number that is no node, such as -1."""
        nodes = np.asarray(nodes, np.intp)
        if not len(self._data):
            return np.full(len(nodes), self._fill, np.intp)
        values: npt.NDArray[np.intp] = self._data.take(nodes, mode="clip").astype(np.intp)
        values[(nodes < 0) | (nodes >= len(self._data))] = self._fill
        return values

    def set(self, node: int, value: int, *, link: bool = False) -> None:
        """Write one value; `link` says that the values are node numbers (-1 for none)."""
        if node >= len(self._data):
            grown = np.full(max(node + 1, 2 * len(self._data)), self._fill, self._data.dtype)
            grown[: len(self._data)] = self._data
            self._data, self._private = grown, True
        elif not self._private and node < self._seen and self._data[node] != value:
            unseen = link and value >= self._seen and self._data[node] == self._fill
            if not unseen:
                self._data, self._private = self._data.copy(), True
        self._data[node] = value

    def fill(self, values: npt.NDArray[Any]) -> None:
        """Set the values of the first nodes at once, in a column without snapshots."""
        grown = np.full(max(len(values), len(self._data)), self._fill, self._data.dtype)
        grown[: len(values)] = values
        self._data, self._private = grown, True

    def freeze(self, count: int) -> npt.NDArray[Any]:
        """The values of the first `count` nodes (the array is longer; readers must not look beyond)."""
        if count > len(self._data):
            self.set(count - 1, self._fill)
        self._seen, self._private = count, False
        return self._data


NodeColumn = npt.NDArray[np.int32]


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


_EMPTY = _Loaded(np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int64))


class Threads:
    """The order within each thread under insertions, updates and deletions. Nodes and threads are numbers."""

    __slots__ = ("_after", "_before", "_loaded", "_place", "_positions")

    def __init__(self) -> None:
        self._after = Column(np.int32, fill=-1)
        self._before = Column(np.int32, fill=-1)
        self._positions: dict[int, list[ThreadPosition]] = {}
        self._place: dict[int, tuple[int, ThreadPosition]] = {}
        self._loaded = _EMPTY

    def load(
        self,
        thread: npt.NDArray[np.int32],
        at: npt.NDArray[np.float64],
        seq: npt.NDArray[np.int64],
        links: tuple[NodeColumn, NodeColumn] | None = None,
    ) -> None:
        """Fill an empty object with thread (-1 for none), time (inf for none) and seq of each node.

        `links`, when known, are the next and previous node of each.
        """
        self._loaded = _Loaded(thread, at, seq)
        for column, values in zip((self._after, self._before), links or _sorted_links(thread, at, seq), strict=True):
            column.fill(values)

    def after(self, nodes: npt.NDArray[Any], /) -> npt.NDArray[np.intp]:
        """The next node of each, -1 for none and for -1."""
        return self._after.take(nodes)

    def before(self, nodes: npt.NDArray[Any], /) -> npt.NDArray[np.intp]:
        """The previous node of each, -1 for none and for -1."""
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

    def freeze(self, count: int) -> tuple[NodeColumn, NodeColumn]:
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
) -> tuple[NodeColumn, NodeColumn]:
    order = np.lexsort((seq, at, thread))
    first, second = order[:-1], order[1:]
    joined = (thread[first] == thread[second]) & (thread[first] >= 0)
    after, before = (np.full(len(thread), -1, np.int32) for _ in range(2))
    after[first[joined]] = second[joined]
    before[second[joined]] = first[joined]
    return after, before
