"""Entries of a view: the fields of every memory that ranking and the graph use, without its text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import starmap
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from hybridmem.core.protocols import Change
from hybridmem.core.times import epoch
from hybridmem.core.types import Entry, Memory
from hybridmem.indexes import arrays
from hybridmem.indexes.arrays import Array
from hybridmem.indexes.graph.threads import asks

__all__ = ["Entries", "Extra"]

_MAGIC = b"hybridmem entries 1\n"
_NUMBERS = ("created_at", "updated_at", "strength", "confidence", "last_accessed")
_COUNTS = ("access_count", "words")
_NAMED = ("thread", "status")
"""Columns with few distinct values, stored as codes."""
_MAX_SECONDS = 99_999_999_999.0


class Extra(NamedTuple):
    """Fields that only the graph uses. Most memories have none of them, so they are stored sparsely."""

    asks: bool = False
    """Whether the text contains a question mark."""
    entities: tuple[str, ...] = ()
    links: Any = None
    """The metadata value under `links_key`."""


class Entries:
    """The entries of a view by id. Applies the store's changes; can be saved as bytes."""

    def __init__(self, links_key: str = "links") -> None:
        self.links_key = links_key
        self.by_id: dict[str, Entry] = {}
        self.born: dict[str, int] = {}
        """The seq of each memory's first version: it orders memories of one thread that have the same time."""
        self.extras: dict[str, Extra] = {}
        self.watermark = 0

    def __len__(self) -> int:
        return len(self.by_id)

    def put(self, changes: Sequence[Change], /) -> None:
        """Add or update the memories of these changes; removals are ignored (see `remove`)."""
        for change in changes:
            memory = change.memory
            if memory is None or change.edge is not None:
                continue
            extra = Extra(asks(memory.text), memory.entities, memory.metadata.get(self.links_key))
            self.set(change.id, entry_of(memory), change.born or self.born.get(change.id, change.seq), extra)

    def set(self, id_: str, entry: Entry, born: int, extra: Extra, /) -> None:
        """Add or replace one memory."""
        self.by_id[id_] = entry
        self.born[id_] = born
        if extra != _NO_EXTRA:
            self.extras[id_] = extra
        else:
            self.extras.pop(id_, None)

    def remove(self, changes: Sequence[Change], /) -> None:
        """Remove the memories that left the view, and advance the watermark."""
        for change in changes:
            self.watermark = max(self.watermark, change.seq)
            if change.memory is None and change.edge is None:
                for column in (self.by_id, self.born, self.extras):
                    column.pop(change.id, None)

    def to_bytes(self) -> bytes:
        """The entries as checksummed columns (no pickle)."""
        entries = list(self.by_id.values())
        columns = {name: list(map(attrgetter(name), entries)) for name in Entry._fields}
        packed: dict[str, Array] = {"born": np.array([self.born[entry.id] for entry in entries], np.int64)}
        for name in ("id", "source_id"):
            packed |= arrays.pack_texts(name, columns[name])
        for name in _NAMED:
            numbers = {value: number for number, value in enumerate(dict.fromkeys(columns[name]))}
            packed[name] = np.array([numbers[value] for value in columns[name]], np.int32)
            packed |= arrays.pack_texts(f"{name}.names", list(numbers))
        for name in _NUMBERS:
            packed[name] = np.array(columns[name], np.float64)  # None becomes NaN
        for name in _COUNTS:
            packed[name] = np.array([-1 if count is None else count for count in columns[name]], np.int64)
        extras = [[id_, *extra] for id_, extra in self.extras.items()]
        head = {"watermark": self.watermark, "links_key": self.links_key, "extras": extras}
        return arrays.to_bytes(_MAGIC, head, packed)

    @classmethod
    def from_bytes(cls, data: bytes, /) -> Entries:
        """What `to_bytes` wrote; damaged bytes raise CorruptStoreError."""
        head, packed = arrays.from_bytes(_MAGIC, data, what="entries snapshot")
        read = cls(head["links_key"])
        columns = {name: arrays.unpack_texts(name, packed) for name in ("id", "source_id")}
        for name in _NAMED:
            names = arrays.unpack_texts(f"{name}.names", packed)
            columns[name] = list(map(names.__getitem__, packed[name].tolist()))
        for name in _NUMBERS:
            columns[name] = _present(packed[name], np.isnan(packed[name]))
        for name in _COUNTS:
            columns[name] = _present(packed[name], packed[name] < 0)
        ids = columns["id"]
        stored = [name for name in Entry._fields if name in columns]
        rows = starmap(Entry, zip(*(columns[name] for name in stored), strict=True))
        read.by_id = dict(zip(ids, rows, strict=True))
        read.born = dict(zip(ids, packed["born"].tolist(), strict=True))
        read.extras = {id_: Extra(asks, tuple(entities), links) for id_, asks, entities, links in head["extras"]}
        read.watermark = head["watermark"]
        return read


_NO_EXTRA = Extra()


def _present(column: Array, missing: Array) -> list[Any]:
    values: list[Any] = column.tolist()
    for place in np.flatnonzero(missing).tolist():
        values[place] = None
    return values


def entry_of(memory: Memory, /) -> Entry:
    """The entry of a memory."""
    return Entry(
        memory.id,
        memory.source_id,
        memory.thread,
        _seconds(memory.created_at),
        _seconds(memory.updated_at),
        memory.status,
        memory.strength,
        memory.confidence,
        memory.access_count,
        _seconds(memory.last_accessed),
        len(memory.text.split()),
    )


def _seconds(when: datetime | None) -> float | None:
    """Epoch seconds, capped below the values that are read as milliseconds (9999-12-31 must not become 1978)."""
    seconds = epoch(when)
    return seconds if seconds is None or seconds < _MAX_SECONDS else _MAX_SECONDS
