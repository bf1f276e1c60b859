"""Updates of a BM25 state: appending rows, moving the tail into segments, merging and compacting segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hybridmem.indexes.bm25.documents import ANSWERED, ASKED, AnyAnalyzer, Document, readers, weigh
from hybridmem.indexes.bm25.postings import Floats, Ints, Segment, build, merge
from hybridmem.indexes.bm25.state import State, Tail, Vocabulary, grown, units

__all__ = ["appended", "compacted", "detached", "tidied"]

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
