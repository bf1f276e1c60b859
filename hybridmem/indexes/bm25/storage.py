"""Serialisation of a BM25 index to bytes and files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hybridmem.errors import ConfigError, CorruptStoreError
from hybridmem.indexes.arrays import Array, from_bytes, pack_texts, to_bytes, unpack_texts
from hybridmem.indexes.bm25.documents import AnyAnalyzer
from hybridmem.indexes.bm25.postings import Segment
from hybridmem.indexes.bm25.state import State, Tail, Tombstones, Vocabulary, grown
from hybridmem.text.analyzer import Analyzer

__all__ = ["analyzer_settings", "checked_analyzer", "pack", "unpack", "write_file"]

_MAGIC = b"hybridmem bm25 5\n"
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
