"""Entries of a view: the fields of every memory that ranking and the graph use, in columns, without the texts.

They also hold what depends on several memories: the order within threads, the speakers, and a fixed sample of ids.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence, Set
from hashlib import md5
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.core.forks import guard
from hybridmem.core.protocols import Change
from hybridmem.core.times import epoch
from hybridmem.core.types import Entry, Memory
from hybridmem.indexes import arrays
from hybridmem.indexes.arrays import Array
from hybridmem.indexes.graph.adjacency import ThreadPosition, Threads
from hybridmem.text.conversation import ASKS, cues_of, frequent_prefixes, is_person, speaker_of

__all__ = ["Entries", "Extra", "TurnDocument"]

_MAGIC = b"hybridmem entries 5\n"
_COLUMNS = {
    "source": np.int32,
    "thread": np.int32,
    "created": np.float64,
    "updated": np.float64,
    "status": np.int32,
    "strength": np.float64,
    "confidence": np.float64,
    "accesses": np.int64,
    "accessed": np.float64,
    "words": np.int32,
    "speaker": np.int32,
    "cues": np.uint8,
    "event": np.float64,
    "expires": np.float64,
    "born": np.int64,
    "flags": np.uint8,
    "asked": np.int32,
}
"""The columns of a memory. Texts are codes of `_TextCodes` and missing numbers are NaN or -1.

`born` is the seq of the first version; it orders memories of one thread that have the same time. `asked` is the row of
the previous turn whose question belongs to this memory's BM25 document, -1 for none.
"""
_NAMED, _PERSON, _HALVED = 1, 2, 4
"""Flags: `Memory.speaker` is set; the speaker is not a role; the document counts its own question by half."""
_MAX_SECONDS = 99_999_999_999.0
_SAMPLE, _SPARE = 128, 256
"""The size of the sample, and how many ids are kept so that a deletion rarely needs a new selection."""
_CACHED = 20_000


class Extra(NamedTuple):
    """Fields that only the graph uses. Most memories have none of them, so they are stored sparsely."""

    entities: tuple[str, ...] = ()
    links: Any = None
    """The metadata value under `links_key`."""


class TurnDocument(NamedTuple):
    """A memory whose BM25 document must be written: `previous` is the memory whose question it answers."""

    id: str
    previous: str | None = None
    halved: bool = False
    """Whether the words of its own question sentences count by half."""


class Entries:
    """The entries of a view. Applies the store's changes; can be saved as bytes. Safe to read from any thread."""

    def __init__(self, links_key: str = "links") -> None:
        self.links_key = links_key
        self.extras: dict[str, Extra] = {}
        self.watermark = 0
        self._lock = guard(threading.RLock())
        self._ids: list[str] = []
        self._rows: dict[str, int] = {}
        self._table = _Table()
        self._new: list[tuple[Any, ...]] = []
        self._sources, self._threads, self._speakers, self._statuses = (_TextCodes() for _ in range(4))
        self._order = Threads()
        self._named: dict[int, int] = {}
        self._prefixed: dict[int, int] = {}
        self._sample = _Sample()
        self._cache: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id_: object) -> bool:
        return id_ in self._rows

    # --- reading

    def get(self, ids: Sequence[str], /) -> list[Entry | None]:
        """The entries of these ids; None where unknown."""
        cache = self._cache
        found = list(map(cache.get, ids))
        if None in found:
            self._decode([id_ for id_, entry in zip(ids, found, strict=True) if entry is None])
            found = list(map(self._cache.get, ids))
        return found

    def _decode(self, ids: list[str]) -> None:
        with self._lock:
            known = [id_ for id_ in ids if id_ in self._rows]
            if len(self._cache) + len(known) > _CACHED:
                self._cache = {}
            rows, table = np.array([self._rows[id_] for id_ in known], np.intp), self._table

            def texts(name: str, codes: _TextCodes) -> list[Any]:
                return list(map(codes.values.__getitem__, table[name][rows].tolist()))

            def numbers(name: str) -> list[Any]:
                column = table[name][rows]
                missing = column < 0 if name == "words" else np.isnan(column)
                if missing.all():
                    return [None] * len(rows)
                values: list[Any] = column.tolist()
                for place in np.flatnonzero(missing).tolist():
                    values[place] = None
                return values

            columns = (
                known,
                texts("source", self._sources),
                texts("thread", self._threads),
                numbers("created"),
                numbers("updated"),
                texts("status", self._statuses),
                table["strength"][rows].tolist(),
                table["confidence"][rows].tolist(),
                table["accesses"][rows].tolist(),
                numbers("accessed"),
                numbers("words"),
                texts("speaker", self._speakers),
                table["cues"][rows].tolist(),
                numbers("event"),
                numbers("expires"),
            )
            self._cache.update(zip(known, map(Entry._make, zip(*columns, strict=True)), strict=True))

    def ids(self) -> list[str]:
        """All ids, in the order in which they were added."""
        with self._lock:
            return list(self._rows)

    def rows(self) -> dict[str, int]:
        """All ids with their rows, ascending."""
        with self._lock:
            return dict(self._rows)

    def columns(self) -> dict[str, Array]:
        """The columns of all memories, in the order of `ids`."""
        with self._lock:
            rows = np.fromiter(self._rows.values(), np.intp, len(self._rows))
            return {name: self._table[name][rows] for name in _COLUMNS}

    def count_empty(self) -> int:
        """The number of memories without words."""
        with self._lock:
            rows = np.flatnonzero(self._table["words"] == 0)
            return sum(self._ids[row] in self._rows for row in rows.tolist())

    @property
    def thread_names(self) -> list[str]:
        """The names of the threads by their number in `columns`."""
        return self._threads.values[:-1]

    def speakers(self) -> dict[str, int]:
        """The speakers of the view with their number of memories.

        A "Name:" at the start of a text counts when it begins enough of the memories, `Memory.speaker` always.
        """
        with self._lock:
            names = self._speakers.values
            named = {names[code]: count for code, count in self._named.items()}
            prefixed = {names[code]: count for code, count in self._prefixed.items()}
            counts = frequent_prefixes(prefixed, len(self._rows))
        for name, count in named.items():
            counts[name] = count + prefixed.get(name, 0)
        return counts

    def sample(self, size: int = _SAMPLE, /) -> list[str]:
        """The ids with the smallest md5, ascending: a sample that is the same in every process and store."""
        with self._lock:
            return self._sample.smallest(size, self._rows)

    def around(self, ids: Sequence[str], hops: int, /) -> list[list[str | None]]:
        """The memories of the same thread before (-1, -2, … `-hops`) and after (1, 2, …) each id; None for none.

        The lists are ordered -1, 1, -2, 2, …
        """
        with self._lock:
            if len(self._threads.values) == 1:  # no memory has a thread
                return [[None] * len(ids)] * (2 * hops)
            back = ahead = np.array([self._rows.get(id_, -1) for id_ in ids], np.intp)
            lists = []
            for _ in range(hops):
                back, ahead = self._order.before(back), self._order.after(ahead)
                lists += [back.tolist(), ahead.tolist()]
            names = self._ids
            return [[names[row] if row >= 0 else None for row in rows] for rows in lists]

    # --- writing

    def apply(self, changes: Iterable[Change], /, *, since: int = 0) -> tuple[list[TurnDocument], list[str]]:
        """Apply changes; returns the documents to write and the ids that left the view.

        Documents are those of changes after `since`, and of memories whose previous turn changed. The ids that left
        keep their entry until `forget`.
        """
        touched: set[int] = set()
        written: set[int] = set()
        gone: dict[str, int] = {}
        with self._lock:
            for change in changes:
                self.watermark = max(self.watermark, change.seq)
                if change.edge is not None:
                    continue
                row = self._rows.get(change.id)
                if change.memory is not None:
                    gone.pop(change.id, None)
                    new = row is None
                    row = self._put(change, change.memory, row, touched)
                    if change.seq > since and (new or change.text_changed):
                        written.add(row)
                elif row is not None:
                    gone[change.id] = row
                    touched.update(self._order.neighbours(row))
                    self._order.drop(row)
                    written.discard(row)
            self._write_new()
            return self._turns(touched, written, set(gone.values())), list(gone)

    def set_entry(self, id_: str, entry: Entry, born: int, extra: Extra, /) -> None:
        """Add or replace one memory by its entry."""
        with self._lock:
            row = self._rows.get(id_)
            self._place(entry._replace(id=id_), row, born, named=False, touched=set())
            self._write_new()
            self._set_extra(id_, extra)

    def forget(self, ids: Iterable[str], /) -> None:
        """Remove the entries of memories that left the view."""
        with self._lock:
            for id_ in ids:
                row = self._rows.pop(id_, None)
                if row is None:
                    continue
                self._count(row, -1)
                self._sample.remove(id_)
                self.extras.pop(id_, None)
                self._cache.pop(id_, None)
            if len(self._ids) > 2 * len(self._rows) + _CACHED:  # rows of deleted memories are not used again
                self._load(*arrays.from_bytes(_MAGIC, self.to_bytes(), what="entries snapshot"))

    def _put(self, change: Change, memory: Memory, row: int | None, touched: set[int]) -> int:
        if row is None or change.text_changed:
            text = memory.text
            words, cues, speaker = change.derived or (
                len(text.split()),
                cues_of(text),
                speaker_of(text, memory.speaker),
            )
        else:
            self._write_new()
            table = self._table
            speaker = self._speakers.values[table["speaker"][row]]
            cues, words = int(table["cues"][row]), int(table["words"][row])
        created = _seconds(memory.created_at)
        entry = Entry(
            change.id,
            memory.source_id,
            memory.thread,
            created,
            created if memory.updated_at is memory.created_at else _seconds(memory.updated_at),
            memory.status,
            memory.strength,
            memory.confidence,
            memory.access_count,
            _seconds(memory.last_accessed),
            words,
            speaker,
            cues,
            _seconds(memory.event_at),
            _seconds(memory.expires_at),
        )
        born = change.born or (change.seq if row is None else int(self._table["born"][row]))
        links = memory.metadata.get(self.links_key)
        if memory.entities or links is not None or row is not None:
            self._set_extra(change.id, Extra(memory.entities, links))
        return self._place(entry, row, born, named=bool(memory.speaker.strip()), touched=touched)

    def _set_extra(self, id_: str, extra: Extra) -> None:
        if extra != _NO_EXTRA:
            self.extras[id_] = extra
        else:
            self.extras.pop(id_, None)

    def _place(self, entry: Entry, row: int | None, born: int, *, named: bool, touched: set[int]) -> int:
        """Write the row of an entry, and its position in its thread; collects the neighbours before and after."""
        asked, halved, before = -1, 0, _NO_NEIGHBOURS
        new = row is None
        if row is None:
            row = self._rows[entry.id] = len(self._ids)
            self._ids.append(entry.id)
            self._sample.add(entry.id)
        else:
            self._write_new()
            self._count(row, -1)
            self._cache.pop(entry.id, None)
            asked, halved = int(self._table["asked"][row]), int(self._table["flags"][row]) & _HALVED
            before = self._order.neighbours(row)
        flags = halved | (_NAMED if named else 0) | (_PERSON if is_person(entry.speaker) else 0)
        thread, speaker = self._threads.code(entry.thread), self._speakers.code(entry.speaker)
        values = (
            self._sources.code(entry.source_id),
            thread,
            _number(entry.created_at),
            _number(entry.updated_at),
            self._statuses.code(entry.status),
            entry.strength,
            entry.confidence,
            entry.access_count,
            _number(entry.last_accessed),
            -1 if entry.words is None else entry.words,
            speaker,
            entry.cues,
            _number(entry.event_at),
            _number(entry.expires_at),
            born,
            flags,
            asked,
        )
        if new:
            self._new.append(values)
        else:
            self._table.set(row, values)
        if speaker >= 0:
            counts = self._named if named else self._prefixed
            counts[speaker] = counts.get(speaker, 0) + 1
        if thread >= 0:
            at = np.inf if entry.created_at is None else entry.created_at
            self._order.put(thread, ThreadPosition(at, born, row))
        elif not new:
            self._order.drop(row)
        if thread >= 0 or not new:
            after = self._order.neighbours(row)
            if before != after:
                touched.update((*before, row, *after))
        return row

    def _write_new(self) -> None:
        """Write the new rows of a batch into the table at once: several times as fast as one by one."""
        if not self._new:
            return
        self._table.extend(self._new)
        self._new = []

    def _count(self, row: int, by: int) -> None:
        code = int(self._table["speaker"][row])
        if code >= 0:
            counts = self._named if self._table["flags"][row] & _NAMED else self._prefixed
            counts[code] = counts.get(code, 0) + by
            if not counts[code]:
                del counts[code]

    def _turns(self, touched: set[int], written: set[int], gone: set[int]) -> list[TurnDocument]:
        """The documents that changed: written ones, and those whose previous question or neighbours changed."""
        if not (touched or written):
            return []
        after = self._order.after(np.fromiter(written, np.intp, len(written)))
        wanted = (touched | written | set(after.tolist())) - gone - {-1}
        rows = np.fromiter(sorted(wanted), np.intp, len(wanted))
        table = self._table
        before, after = self._order.before(rows), self._order.after(rows)
        flags = table["flags"][rows]
        answers = (before >= 0) & self._asks(before) & (flags & _PERSON > 0)
        asked = np.where(answers, before, -1).astype(np.int32)
        halved = self._asks(rows) & ((before >= 0) | (after >= 0))
        stale = (asked != table["asked"][rows]) | (halved != (flags & _HALVED > 0))
        stale |= _among(rows, written) | _among(asked, written)
        table.put("asked", rows, asked)
        table.put("flags", rows, (flags & ~np.uint8(_HALVED)) | np.where(halved, _HALVED, 0).astype(np.uint8))
        names = self._ids
        columns = zip(rows[stale].tolist(), asked[stale].tolist(), halved[stale].tolist(), strict=True)
        return [TurnDocument(names[row], None if source < 0 else names[source], half) for row, source, half in columns]

    def _asks(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Whether these are turns of a person who asks."""
        asks: npt.NDArray[np.bool_] = self._table["cues"][rows] & ASKS > 0
        return asks & (self._table["flags"][rows] & _PERSON > 0)

    # --- bytes

    def to_bytes(self) -> bytes:
        """The entries as checksummed columns (no pickle)."""
        with self._lock:
            rows = np.fromiter(self._rows.values(), np.intp, len(self._rows))
            number = np.full(len(self._ids) + 1, -1, np.int32)  # the last one stands for -1
            number[rows] = np.arange(len(rows), dtype=np.int32)
            columns = self.columns()
            columns["asked"] = number[columns["asked"]]
            links = {"after": number[self._order.after(rows)], "before": number[self._order.before(rows)]}
            packed = arrays.pack_texts("ids", list(self._rows)) | links | columns
            named, prefixed = self._named, self._prefixed
            for name, column, texts in self._texts():
                kept, codes = texts.used(columns[column])  # without names that only erased memories had
                packed |= arrays.pack_texts(name, kept) | {column: codes[columns[column]]}
                if column == "speaker":
                    named, prefixed = ({int(codes[code]): n for code, n in one.items()} for one in (named, prefixed))
            head = {
                "watermark": self.watermark,
                "links_key": self.links_key,
                "extras": [[id_, *extra] for id_, extra in self.extras.items()],
                "sample": self._sample.to_list(),
                "named": list(named.items()),
                "prefixed": list(prefixed.items()),
            }
            return arrays.to_bytes(_MAGIC, head, packed)

    def _texts(self) -> tuple[tuple[str, str, _TextCodes], ...]:
        """The columns of codes: (name of the texts in a snapshot, column, texts)."""
        return (
            ("sources", "source", self._sources),
            ("threads", "thread", self._threads),
            ("speakers", "speaker", self._speakers),
            ("statuses", "status", self._statuses),
        )

    @classmethod
    def from_bytes(cls, data: bytes, /) -> Entries:
        """What `to_bytes` wrote; damaged bytes raise CorruptStoreError."""
        head, packed = arrays.from_bytes(_MAGIC, data, what="entries snapshot")
        read = cls(head["links_key"])
        read._load(head, packed)
        return read

    def _load(self, head: dict[str, Any], packed: Mapping[str, Array]) -> None:
        self._ids = arrays.unpack_texts("ids", packed)
        self._rows = dict(zip(self._ids, range(len(self._ids)), strict=True))
        self._table = table = _Table({name: packed[name] for name in _COLUMNS})
        for name, _, texts in self._texts():
            texts.values = [*arrays.unpack_texts(name, packed), None]
        created = np.where(np.isnan(table["created"]), np.inf, table["created"])
        self._order = Threads()
        if self._ids:
            links = packed["after"], packed["before"]
            self._order.load(table["thread"], created, table["born"], links)
        self.extras = {id_: Extra(tuple(entities), links) for id_, entities, links in head["extras"]}
        self._sample = _Sample.from_list(head["sample"])
        self._named, self._prefixed = dict(head["named"]), dict(head["prefixed"])
        self.watermark = head["watermark"]


class _Table:
    """The columns of `_COLUMNS`, growable. Loaded columns are read in place and copied when they are written to."""

    def __init__(self, columns: Mapping[str, Array] | None = None) -> None:
        self._columns = dict(columns or {name: np.zeros(0, kind) for name, kind in _COLUMNS.items()})
        self.size = len(self._columns["born"])

    def __getitem__(self, name: str) -> Array:
        return self._columns[name][: self.size]

    def put(self, name: str, rows: Any, values: Any) -> None:
        """Write values of a column where they differ."""
        column = self._columns[name]
        if np.array_equal(column[rows], values, equal_nan=column.dtype.kind == "f"):
            return
        if not column.flags.writeable:
            column = self._columns[name] = column.copy()
        column[rows] = values

    def set(self, row: int, values: tuple[Any, ...]) -> None:
        """Write a row."""
        for name, value in zip(self._columns, values, strict=True):
            self.put(name, row, value)

    def extend(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Append rows: several times as fast for many as one by one."""
        size = self.size + len(rows)
        for name, values in zip(list(self._columns), zip(*rows, strict=True), strict=True):
            column = self._columns[name]
            if size > len(column):
                larger = np.empty(size + size // 4 + 64, column.dtype)
                larger[: self.size] = column[: self.size]
                column = self._columns[name] = larger
            column[self.size : size] = values
        self.size = size


class _TextCodes:
    """Texts by code, with None as code -1. The dict of codes is made on the first write."""

    def __init__(self) -> None:
        self.values: list[Any] = [None]
        self._codes: dict[str, int] | None = None

    def used(self, codes: Array, /) -> tuple[list[str], Array]:
        """The texts that these codes stand for, and the new code of each old one; -1 stays the last one."""
        number = np.full(len(self.values), -1, np.int32)
        number[codes] = 0
        number[-1] = -1
        kept = np.flatnonzero(number == 0)
        number[kept] = np.arange(len(kept), dtype=np.int32)
        return [self.values[code] for code in kept.tolist()], number

    def code(self, text: str | None) -> int:
        """The code of a text; a new one gets the next code."""
        if text is None:
            return -1
        if self._codes is None:
            self._codes = {value: code for code, value in enumerate(self.values[:-1])}
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self._codes)
            self.values.insert(code, text)
        return code


class _Sample:
    """The ids with the smallest md5 digests. It holds all ids whose digest is below `bound` (None: all ids)."""

    def __init__(self) -> None:
        self._items: list[tuple[str, str]] = []
        self._bound: str | None = None

    def add(self, id_: str) -> None:
        digest = _digest(id_)
        if self._bound is None or digest < self._bound:
            insort(self._items, (digest, id_))
            if len(self._items) > _SPARE:
                self._bound = self._items.pop()[0]

    def remove(self, id_: str) -> None:
        item = (_digest(id_), id_)
        at = bisect_left(self._items, item)
        if self._items[at : at + 1] == [item]:
            del self._items[at]

    def smallest(self, size: int, ids: Mapping[str, int]) -> list[str]:
        """The `size` ids with the smallest digests; selected again when too few are left."""
        if len(self._items) < size and self._bound is not None:
            items = heapq.nsmallest(max(size, _SPARE) + 1, ((_digest(id_), id_) for id_ in ids))
            self._bound = items.pop()[0] if len(items) > max(size, _SPARE) else None
            self._items = items
        return [id_ for _, id_ in self._items[:size]]

    def to_list(self) -> list[Any]:
        """The sample as JSON."""
        return [self._bound, [id_ for _, id_ in self._items]]

    @classmethod
    def from_list(cls, saved: list[Any]) -> _Sample:
        """The sample of `to_list`."""
        sample = cls()
        sample._bound = saved[0]
        sample._items = [(_digest(id_), id_) for id_ in saved[1]]
        return sample


_NO_EXTRA = Extra()
_NO_NEIGHBOURS = (-1, -1)


def _digest(id_: str) -> str:
    return md5(id_.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


def _among(rows: npt.NDArray[Any], written: Set[int]) -> npt.NDArray[np.bool_]:
    """Whether each row is written; numpy's `isin` imports numpy.ma, which takes 45 ms."""
    return np.fromiter((row in written for row in rows.tolist()), np.bool_, len(rows))


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _seconds(when: Any) -> float | None:
    """Epoch seconds, capped below the values that are read as milliseconds (9999-12-31 must not become 1978)."""
    seconds = None if when is None else epoch(when)
    return seconds if seconds is None or seconds < _MAX_SECONDS else _MAX_SECONDS
