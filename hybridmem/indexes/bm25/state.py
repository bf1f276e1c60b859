"""Immutable state of a BM25 index: rows, deletions, vocabulary, segments, recent rows; its updates and its bytes."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridmem.errors import ConfigError, CorruptStoreError
from hybridmem.indexes.arrays import Array, from_bytes, pack_texts, to_bytes, unpack_texts
from hybridmem.indexes.bm25.documents import ANSWERED, ASKED, AnyAnalyzer, Document, readers, weigh
from hybridmem.indexes.bm25.postings import Floats, Ints, RowNumbers, Segment, build, merge
from hybridmem.text.analyzer import Analyzer

__all__ = [
    "Selection",
    "SelectionCache",
    "State",
    "Tail",
    "Tombstones",
    "Vocabulary",
    "analyzer_settings",
    "appended",
    "checked_analyzer",
    "compacted",
    "detached",
    "digest",
    "grown",
    "pack",
    "tidied",
    "units",
    "unpack",
    "write_file",
]

_KEPT = 16


@dataclass(frozen=True)
class Selection:
    """The rows of a set of ids among the first `size` rows, ascending; may include deleted rows."""

    allowed: Set[str]
    rows: RowNumbers
    size: int
    epoch: int

    @classmethod
    def of(cls, allowed: Set[str], where: Mapping[str, int], state: State, /) -> Selection:
        """The selection of `allowed` ids in a state."""
        if len(allowed) <= len(where):
            found = [where[name] for name in allowed if name in where]
        else:
            found = [row for name, row in where.items() if name in allowed]
        return cls(allowed, np.sort(np.array(found, np.int32)), state.size, state.epoch)

    def extended(self, state: State, /) -> Selection:
        """The selection with the rows added since."""
        if state.size == self.size:
            return self
        new = [row for row in range(self.size, state.size) if state.ids[row] in self.allowed]
        rows = np.concatenate((self.rows, np.array(new, np.int32))) if new else self.rows
        return Selection(self.allowed, rows, state.size, self.epoch)

    @cached_property
    def mask(self) -> npt.NDArray[np.bool_]:
        """True for each of the rows."""
        mask = np.zeros(self.size, bool)
        mask[self.rows] = True
        return mask

    def live_mask(self, alive: npt.NDArray[np.bool_] | None, /) -> npt.NDArray[np.bool_]:
        """True for each of the rows that is not deleted."""
        return self.mask if alive is None else self.mask & alive[: self.size]

    def is_few(self, postings: int, terms: int, /) -> bool:
        """Whether lookups of these rows are cheaper than scanning the postings."""
        return len(self.rows) * terms * 8 < postings


class SelectionCache:
    """The most recent selections. Only frozensets are cached: other sets may change."""

    def __init__(self) -> None:
        self._kept: dict[int, Selection] = {}

    def get(self, allowed: Set[str], /) -> Selection | None:
        """The selection of this set object."""
        found = self._kept.get(id(allowed))
        return found if found is not None and found.allowed is allowed else None

    def keep(self, allowed: Set[str], selection: Selection, /) -> None:
        """Cache a selection and drop the oldest."""
        if not isinstance(allowed, frozenset) or self._kept.get(id(allowed)) is selection:
            return
        kept = dict(list(self._kept.items())[-_KEPT + 1 :])
        kept[id(allowed)] = selection
        self._kept = kept  # replaced as a whole: readers need no lock


_UNIT = 1 << 40
"""Lengths are summed as integers of 2⁻⁴⁰, so that the average does not depend on the order of writes."""


class Vocabulary(dict[str, int]):
    """Term → number; a new term gets the next number. It only grows, so that readers need no lock."""

    def __missing__(self, term: str) -> int:
        number = self[term] = len(self)
        return number


class Tail:
    """The newest rows, not yet in a segment. Lists only grow: a reader stops at the size of its state."""

    __slots__ = ("postings", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.postings: dict[int, tuple[list[int], list[float]]] = {}

    def add(self, row: int, frequencies: Mapping[int, float], /) -> None:
        """Append one row."""
        for term, frequency in frequencies.items():
            found = self.postings.get(term)
            if found is None:
                self.postings[term] = [row], [frequency]
            else:
                found[1].append(frequency)  # before the row, so that a reader of the row finds its frequency
                found[0].append(row)

    def cut(self, size: int, /) -> Tail:
        """The tail without the rows from `size` on: undoes a failed write."""
        tail = Tail(self.start)
        for term, (rows, frequencies) in self.postings.items():
            count = bisect_left(rows, size)
            if count:
                tail.postings[term] = rows[:count], frequencies[:count]
        return tail

    def find(self, wanted: Sequence[int], size: int, /) -> tuple[list[list[int]], list[list[float]]]:
        """The rows below `size` of each term, and their frequencies."""
        rows: list[list[int]] = []
        frequencies: list[list[float]] = []
        for term in wanted:
            found = self.postings.get(term, _NO_POSTINGS)
            count = bisect_left(found[0], size)
            rows.append(found[0][:count])
            frequencies.append(found[1][:count])
        return rows, frequencies

    def to_segment(self, size: int, lengths: Floats, /) -> Segment:
        """The same postings as a segment."""
        terms: list[int] = []
        rows: list[int] = []
        weights: list[float] = []
        for term, (found, frequencies) in self.postings.items():
            count = bisect_left(found, size)
            terms.extend([term] * count)
            rows.extend(found[:count])
            weights.extend(frequencies[:count])
        return build(np.array(terms, np.int64), np.array(rows, np.int64), np.array(weights), lengths)


_NO_POSTINGS: tuple[list[int], list[float]] = ([], [])


@dataclass(frozen=True, slots=True)
class Tombstones:
    """Which rows are not deleted, and how many of a term's rows are not (counted on demand).

    Counts are shared by successive states: they were taken before the rows in `since` were deleted.
    """

    alive: npt.NDArray[np.bool_]
    since: RowNumbers = field(default_factory=lambda: np.zeros(0, np.int32))
    counts: dict[tuple[int, int], int] = field(default_factory=dict)

    def after(self, gone: list[int], size: int, /) -> Tombstones:
        """With these rows deleted as well, and room for `size` rows."""
        alive = np.ones(size, bool)
        alive[: len(self.alive)] = self.alive
        alive[gone] = False
        since = np.sort(np.append(self.since, np.array(gone, np.int32)))
        return Tombstones(alive, since, self.counts) if len(since) <= _RECENT else Tombstones(alive)

    def count(self, segment: Segment, term: int, low: int, high: int, /) -> int:
        """The number of a term's rows in a segment that are not deleted."""
        rows = segment.rows[low:high]
        places = rows.searchsorted(self.since)
        places[places == len(rows)] = 0
        lost = int(np.count_nonzero(rows[places] == self.since))
        before = self.counts.get((segment.key, term))
        if before is None:
            before = int(np.count_nonzero(self.alive[rows])) + lost
            self.counts[segment.key, term] = before
        return before - lost


_RECENT = 256


@dataclass(frozen=True, slots=True)
class State:
    """An immutable state of the index. Arrays may be longer than `size`: the rest belongs to later states."""

    ids: list[str]
    size: int
    lengths: Floats
    stamps: Floats
    tombstones: Tombstones | None
    count: int
    total: int
    vocabulary: Vocabulary
    segments: tuple[Segment, ...]
    tail: Tail
    watermark: int = 0
    epoch: int = 0
    """Row numbers are stable within an epoch; compaction starts a new one."""
    average: float = field(init=False)
    """The mean length (avgdl) of the rows; 0 when there are none."""

    @classmethod
    def empty(cls, *, epoch: int = 0) -> State:
        """A state without rows."""
        return cls([], 0, np.zeros(16), np.zeros(16), None, 0, 0, Vocabulary(), (), Tail(0), epoch=epoch)

    def __post_init__(self) -> None:
        object.__setattr__(self, "average", self.total / _UNIT / self.count if self.count else 0.0)

    def without(self, rows: Iterable[int], /) -> State:
        """The next state, with these rows deleted."""
        gone = list(rows)
        if not gone:
            return self
        tombstones = (self.tombstones or Tombstones(np.zeros(0, bool))).after(gone, len(self.lengths))
        total = self.total - units(self.lengths[gone])
        return replace(self, tombstones=tombstones, count=self.count - len(gone), total=total)


def units(lengths: Floats, /) -> int:
    """The sum of lengths as a whole number of 2⁻⁴⁰."""
    whole = np.floor(lengths)
    rest = np.rint((lengths - whole) * _UNIT).astype(np.int64)
    return int(whole.sum()) * _UNIT + int(rest.sum())


def grown(array: Floats, size: int, /) -> Floats:
    """The array with room for `size` items: itself, or a copy of twice the length."""
    if size <= len(array):
        return array
    larger = np.zeros(max(size, 2 * len(array)))
    larger[: len(array)] = array
    return larger


_TAIL = 512
"""Maximum number of rows in the tail."""
_BULK = 64
"""A batch of at least this many documents becomes a segment."""
_RATIO = 2
"""A segment is merged with the one before it unless that is at least this many times larger."""


def appended(
    state: State,
    documents: Sequence[Document],
    /,
    *,
    analyzer: AnyAnalyzer,
    weights: Mapping[str, float],
) -> State:
    """The next state, with these documents as its last rows."""
    if not documents:
        return state
    if len(documents) < _BULK:
        return _append_few(state, documents, analyzer, weights)
    return _append_many(state, documents, analyzer, weights)


def _append_few(
    state: State,
    documents: Sequence[Document],
    analyzer: AnyAnalyzer,
    weights: Mapping[str, float],
) -> State:
    weighed = [
        weigh(document.fields, analyzer=analyzer, weights=weights, questions=document.questions)
        for document in documents
    ]
    state = _with_rows(state, documents, np.array([length for _, length in weighed]))
    start = state.size - len(documents)
    for row, (frequencies, _) in enumerate(weighed, start):
        state.tail.add(row, {state.vocabulary[term]: frequency for term, frequency in frequencies.items()})
    return state


def _append_many(
    state: State,
    documents: Sequence[Document],
    analyzer: AnyAnalyzer,
    weights: Mapping[str, float],
) -> State:
    state = tidied(state, all=True)
    vocabulary = state.vocabulary
    lengths = np.zeros(len(documents))
    pieces: list[tuple[Ints, Ints, float]] = []
    stops: list[bool] = []
    for name, weight in weights.items():
        terms, rows = _tokens([document.fields.get(name, "") for document in documents], vocabulary, analyzer)
        if not len(terms):
            continue
        _, is_stop = readers(analyzer)
        stops.extend(map(is_stop, list(vocabulary)[len(stops) :]))
        content = rows[~np.array(stops, bool)[terms]]
        lengths += weight * np.bincount(content, minlength=len(documents))
        pieces.append((terms, rows, weight))
    for name, share in (("asked", ASKED), ("previous", ANSWERED)):
        terms, rows = _tokens([getattr(document, name) for document in documents], vocabulary, analyzer)
        if len(terms):
            pieces.append((terms, rows, share * weights.get("text", 0.0)))
    state = _with_rows(state, documents, lengths)
    start = state.size - len(documents)
    segment = _segment(pieces, start, state.lengths)
    return replace(state, segments=(*state.segments, segment), tail=Tail(state.size))


def _tokens(texts: Sequence[str], vocabulary: Vocabulary, analyzer: AnyAnalyzer) -> tuple[Ints, Ints]:
    """All tokens of a column of texts as two arrays: term numbers and text numbers."""
    if not any(texts):
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    all_terms, _ = readers(analyzer)
    number = vocabulary.__getitem__
    parts, counts = [], []
    for begin in range(0, len(texts), 4096):  # in parts, because lists of Python ints are large
        flat: list[int] = []
        for text in texts[begin : begin + 4096]:
            terms = all_terms(text) if text else []
            flat.extend(map(number, terms))
            counts.append(len(terms))
        parts.append(np.array(flat, np.int32))
    return np.concatenate(parts), np.arange(len(texts), dtype=np.int32).repeat(counts)


def _segment(pieces: Sequence[tuple[Ints, Ints, float]], start: int, lengths: Floats) -> Segment:
    if len(pieces) == 1 and pieces[0][2] == 1.0:
        terms, rows, _ = pieces[0]
        return build(terms, rows + start, None, lengths)
    terms = np.concatenate([piece[0] for piece in pieces]) if pieces else np.zeros(0, np.int32)
    rows = np.concatenate([piece[1] for piece in pieces]) if pieces else np.zeros(0, np.int32)
    amounts = np.concatenate([np.full(len(piece[0]), piece[2]) for piece in pieces]) if pieces else np.zeros(0)
    return build(terms, rows + start, amounts, lengths)


def _with_rows(state: State, documents: Sequence[Document], lengths: Floats) -> State:
    """The state with lengths and times of new rows; their postings are not added yet."""
    start, size = state.size, state.size + len(documents)
    all_lengths, stamps = grown(state.lengths, size), grown(state.stamps, size)
    all_lengths[start:size] = lengths
    stamps[start:size] = [document.stamp for document in documents]
    tombstones = state.tombstones
    if tombstones is not None and len(tombstones.alive) < len(all_lengths):
        tombstones = tombstones.after([], len(all_lengths))
    del state.ids[start:]  # rows of a failed write
    state.ids.extend(document.id for document in documents)
    return replace(
        state,
        size=size,
        lengths=all_lengths,
        stamps=stamps,
        tombstones=tombstones,
        count=state.count + len(documents),
        total=state.total + units(lengths),
    )


def tidied(state: State, /, *, all: bool = False) -> State:
    """The same content with a short tail (none when `all`) and few segments."""
    if state.size - state.tail.start >= (1 if all else _TAIL):
        segment = state.tail.to_segment(state.size, state.lengths)
        state = replace(state, segments=(*state.segments, segment), tail=Tail(state.size))
    segments = list(state.segments)
    alive = None if state.tombstones is None else state.tombstones.alive
    while len(segments) > 1 and len(segments[-2]) < _RATIO * len(segments[-1]):
        last = segments.pop()
        segments.append(merge((segments.pop(), last), alive=alive))
    return state if len(segments) == len(state.segments) else replace(state, segments=tuple(segments))


def detached(state: State, /) -> State:
    """A copy that shares only immutable data, so that both can be written to."""
    state = tidied(state, all=True)
    return replace(
        state,
        ids=state.ids[: state.size],
        lengths=state.lengths.copy(),
        stamps=state.stamps.copy(),
        vocabulary=Vocabulary(state.vocabulary),
        tail=Tail(state.size),
    )


def compacted(state: State, /) -> State | None:
    """The state without deleted rows, renumbered, when more than half of many rows are deleted; otherwise None."""
    if state.tombstones is None or state.size < 2 * _TAIL or 2 * state.count >= state.size:
        return None
    alive = state.tombstones.alive[: state.size]
    state = tidied(state, all=True)
    living = np.flatnonzero(alive)
    number = np.cumsum(alive) - 1
    lengths, stamps = state.lengths[living], state.stamps[living]
    segments: tuple[Segment, ...] = ()
    if state.segments:
        whole = merge(state.segments, alive=alive)
        segments = (replace(whole, rows=number[whole.rows].astype(np.int32)),)
    return replace(
        state,
        ids=[state.ids[row] for row in living],
        size=len(living),
        lengths=grown(lengths, 16),
        stamps=grown(stamps, 16),
        tombstones=None,
        segments=segments,
        tail=Tail(len(living)),
        epoch=state.epoch + 1,
    )


# --- the state as bytes and files

_MAGIC = b"hybridmem bm25 5\n"
_MIX = np.uint64(0x9E3779B97F4A7C15)
_ARRAYS = ("terms", "starts", "rows", "codes", "frequencies", "lengths", "most", "shortest")


def pack(state: State, /, *, settings: Mapping[str, Any]) -> bytes:
    """The bytes of a state (whose tail is already in segments) and of the index settings."""
    columns: dict[str, Array] = {
        "lengths": state.lengths[: state.size],
        "stamps": state.stamps[: state.size],
    }
    if state.tombstones is not None:
        columns["alive"] = state.tombstones.alive[: state.size]
    ids, terms = _living(state)
    columns |= pack_texts("ids", ids) | pack_texts("vocabulary", terms)
    for i, segment in enumerate(state.segments):
        columns.update({f"{i}.{name}": getattr(segment, name) for name in _ARRAYS})
    head = {
        "settings": settings,
        "watermark": state.watermark,
        "count": state.count,
        "total": str(state.total),
        "segments": len(state.segments),
    }
    return to_bytes(_MAGIC, head, columns)


def _living(state: State) -> tuple[list[str], list[str]]:
    """The ids and terms of a state; those of deleted documents alone are replaced, so that no file keeps them."""
    alive = np.ones(state.size, np.bool_) if state.tombstones is None else state.tombstones.alive[: state.size]
    used = np.zeros(len(state.vocabulary), np.bool_)
    for segment in state.segments:
        counts = np.concatenate(([0], np.cumsum(alive[segment.rows])))
        used[segment.terms[counts[segment.starts[1:]] > counts[segment.starts[:-1]]]] = True
    ids = [id_ if lives else "" for id_, lives in zip(state.ids[: state.size], alive.tolist(), strict=True)]
    terms = [
        term if kept else f"\0{n}" for n, (term, kept) in enumerate(zip(state.vocabulary, used.tolist(), strict=True))
    ]
    return ids, terms


def digest(state: State, /) -> int:
    """A number that is the same for the same documents (whose tail is already in segments), in any order of writes."""
    alive = np.ones(state.size, np.bool_) if state.tombstones is None else state.tombstones.alive[: state.size]
    ids, terms = _digests(state.ids[: state.size]), _digests(state.vocabulary)
    found = int(ids[alive].sum())
    for segment in state.segments:
        kept = alive[segment.rows]
        posted = np.repeat(terms[segment.terms], np.diff(segment.starts))[kept]
        frequencies = np.ascontiguousarray(segment.frequencies[segment.codes[kept]]).view(np.uint64)
        mixed = (ids[segment.rows[kept]] ^ (posted * _MIX)) * (frequencies | np.uint64(1))
        found += int((mixed ^ (mixed >> np.uint64(29))).sum())
    return found % 2**64


def _digests(texts: Iterable[str]) -> npt.NDArray[np.uint64]:
    made = b"".join(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(made, "<u8")


def unpack(data: bytes, /) -> tuple[State, dict[str, Any]]:
    """The state and settings that `pack` wrote; damaged bytes raise CorruptStoreError."""
    head, columns = from_bytes(_MAGIC, data, what="BM25 index")
    tombstones = Tombstones(columns["alive"].copy()) if "alive" in columns else None
    ids, terms = unpack_texts("ids", columns), unpack_texts("vocabulary", columns)
    size = len(ids)
    segments = tuple(Segment(**{name: columns[f"{i}.{name}"] for name in _ARRAYS}) for i in range(head["segments"]))
    state = State(
        ids=ids,
        size=size,
        lengths=grown(columns["lengths"], max(size, 16)),
        stamps=grown(columns["stamps"], max(size, 16)),
        tombstones=tombstones,
        count=head["count"],
        total=int(head["total"]),
        vocabulary=Vocabulary(zip(terms, range(len(terms)), strict=True)),
        segments=segments,
        tail=Tail(size),
        watermark=head["watermark"],
    )
    return state, head["settings"]


def analyzer_settings(analyzer: AnyAnalyzer, /) -> dict[str, Any]:
    """The stored form of an analyzer: its settings, or the name of a function."""
    if isinstance(analyzer, Analyzer):
        return analyzer.to_dict()
    return {"custom": getattr(analyzer, "__qualname__", type(analyzer).__qualname__)}


def checked_analyzer(stored: Mapping[str, Any], given: AnyAnalyzer | None, /) -> AnyAnalyzer:
    """The analyzer of a stored index; ConfigError when the given one differs."""
    if given is None:
        if "custom" in stored:
            raise ConfigError(f"the index was made with the function {stored['custom']!r}: pass it as analyzer=")
        try:
            return Analyzer.from_dict(stored)
        except ConfigError as error:
            raise CorruptStoreError(f"the index was written by an incompatible version; rebuild it: {error}") from error
    if analyzer_settings(given) != stored:
        raise ConfigError(f"the index was made with {stored}, not with {analyzer_settings(given)}: rebuild it")
    return given


def write_file(path: str | Path, data: bytes, /) -> None:
    """Replace a file atomically."""
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
