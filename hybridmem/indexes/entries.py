"""The roster of a view: what ranking and the graph need to know of every memory, without its text."""

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

__all__ = ["Extra", "Roster"]

_MAGIC = b"hybridmem roster 1\n"
_NUMBERS = ("created_at", "updated_at", "strength", "confidence", "last_accessed")
_COUNTS = ("access_count", "words")
_NAMED = ("thread", "status")
"""Columns in which few names stand for many memories."""
_FAR = 99_999_999_999.0


class Extra(NamedTuple):
    """What a graph looks for in a memory beside its entry; most memories have nothing of it."""

    asks: bool = False
    """Whether the text holds a question mark."""
    entities: tuple[str, ...] = ()
    links: Any = None
    """The metadata's value under the key of links."""


class Roster:
    """Every memory of a view by id, following the store's changes, and as bytes for the next open."""

    def __init__(self, links_key: str = "links") -> None:
        self.links_key = links_key
        self.entries: dict[str, Entry] = {}
        self.born: dict[str, int] = {}
        """The seq of each memory's first version: its place in its thread among others of the same time."""
        self.extras: dict[str, Extra] = {}
        self.watermark = 0

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, changes: Sequence[Change], /) -> None:
        """Take in what the changes say of memories that are there."""
        for change in changes:
            memory = change.memory
            if memory is None or change.edge is not None:
                continue
            extra = Extra(asks(memory.text), memory.entities, memory.metadata.get(self.links_key))
            self.note(change.id, entry_of(memory), change.born or self.born.get(change.id, change.seq), extra)

    def note(self, id_: str, entry: Entry, born: int, extra: Extra, /) -> None:
        """Write down one memory, in place of what was known of it."""
        self.entries[id_] = entry
        self.born[id_] = born
        if extra != _NOTHING:
            self.extras[id_] = extra
        else:
            self.extras.pop(id_, None)

    def drop(self, changes: Sequence[Change], /) -> None:
        """Strike out the memories that left the view; after this the roster has followed these changes."""
        for change in changes:
            self.watermark = max(self.watermark, change.seq)
            if change.memory is None and change.edge is None:
                for column in (self.entries, self.born, self.extras):
                    column.pop(change.id, None)

    def to_bytes(self) -> bytes:
        """The roster in columns (checksummed, no pickle)."""
        entries = list(self.entries.values())
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
    def from_bytes(cls, data: bytes, /) -> Roster:
        """What `to_bytes` wrote; damaged bytes raise CorruptStoreError."""
        head, packed = arrays.from_bytes(_MAGIC, data, what="roster")
        roster = cls(head["links_key"])
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
        entries = starmap(Entry, zip(*(columns[name] for name in stored), strict=True))
        roster.entries = dict(zip(ids, entries, strict=True))
        roster.born = dict(zip(ids, packed["born"].tolist(), strict=True))
        roster.extras = {id_: Extra(asks, tuple(entities), links) for id_, asks, entities, links in head["extras"]}
        roster.watermark = head["watermark"]
        return roster


_NOTHING = Extra()


def _present(column: Array, missing: Array) -> list[Any]:
    values: list[Any] = column.tolist()
    for place in np.flatnonzero(missing).tolist():
        values[place] = None
    return values


def entry_of(memory: Memory, /) -> Entry:
    """What ranking needs to know of a memory."""
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
    """Epoch seconds below those that stages would take for milliseconds: `9999-12-31` is the future, not 1978."""
    seconds = epoch(when)
    return seconds if seconds is None or seconds < _FAR else _FAR
