"""A BM25 index as bytes: a magic line, a JSON head, raw arrays, and a checksum over all of it. No pickle."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridmem.errors import ConfigError, CorruptStoreError
from hybridmem.indexes.lexical import AnyAnalyzer
from hybridmem.indexes.live import Deaths, State, Tail, Vocabulary, grown
from hybridmem.indexes.segments import Segment
from hybridmem.text import Analyzer

__all__ = ["analyzer_settings", "checked_analyzer", "pack", "unpack", "write_file"]

_MAGIC = b"hybridmem bm25 1\n"
_DIGEST = 16
_ARRAYS = ("terms", "starts", "rows", "codes", "frequencies", "lengths", "most", "shortest")


def pack(state: State, /, *, settings: Mapping[str, Any]) -> bytes:
    """The state (its tail already in segments) and what is needed to read it again."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "lengths": state.lengths[: state.size],
        "stamps": state.stamps[: state.size],
    }
    if state.deaths is not None:
        arrays["alive"] = state.deaths.alive[: state.size]
    arrays["id_sizes"], arrays["ids"] = _strings(state.ids[: state.size])
    arrays["term_sizes"], arrays["vocabulary"] = _strings(list(state.vocabulary))
    for i, segment in enumerate(state.segments):
        arrays.update({f"{i}.{name}": getattr(segment, name) for name in _ARRAYS})
    head = {
        "settings": settings,
        "watermark": state.watermark,
        "count": state.count,
        "total": str(state.total),
        "segments": len(state.segments),
        "arrays": {name: [array.dtype.str, len(array)] for name, array in arrays.items()},
    }
    text = json.dumps(head).encode()
    body = [_MAGIC, len(text).to_bytes(8, "little"), text]
    body.extend(np.ascontiguousarray(array).tobytes() for array in arrays.values())
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for part in body:
        digest.update(part)
    return b"".join((*body, digest.digest()))


def unpack(data: bytes, /) -> tuple[State, dict[str, Any]]:
    """What `pack` wrote, or CorruptStoreError: never a part of it."""
    head, arrays = _read(data)
    deaths = Deaths(arrays["alive"].copy()) if "alive" in arrays else None
    ids = _texts(arrays["id_sizes"], arrays["ids"])
    terms = _texts(arrays["term_sizes"], arrays["vocabulary"])
    size = len(ids)
    segments = tuple(
        Segment(**{name: arrays[f"{i}.{name}"].copy() for name in _ARRAYS}) for i in range(head["segments"])
    )
    state = State(
        ids=ids,
        size=size,
        lengths=grown(arrays["lengths"].copy(), max(size, 16)),
        stamps=grown(arrays["stamps"].copy(), max(size, 16)),
        deaths=deaths,
        count=head["count"],
        total=int(head["total"]),
        vocabulary=Vocabulary(zip(terms, range(len(terms)), strict=True)),
        segments=segments,
        tail=Tail(size),
        watermark=head["watermark"],
    )
    return state, head["settings"]


def _read(data: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    start = len(_MAGIC) + 8
    if not data.startswith(_MAGIC):
        raise CorruptStoreError(f"these {len(data)} bytes do not begin with {_MAGIC!r}: no BM25 index of this version")
    if hashlib.blake2b(memoryview(data)[:-_DIGEST], digest_size=_DIGEST).digest() != data[-_DIGEST:]:
        raise CorruptStoreError(f"the checksum of the BM25 index ({len(data)} bytes) does not fit: rebuild it")
    end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
    head = json.loads(data[start:end])
    arrays = {}
    for name, (kind, count) in head["arrays"].items():
        arrays[name] = np.frombuffer(data, np.dtype(kind), count, end)
        end += arrays[name].nbytes
    return head, arrays


def _strings(texts: list[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    sizes = np.fromiter(map(len, texts), np.int32, len(texts))
    return sizes, np.frombuffer("".join(texts).encode("utf-8", "surrogatepass"), np.uint8)


def _texts(sizes: npt.NDArray[Any], blob: npt.NDArray[Any]) -> list[str]:
    text = blob.tobytes().decode("utf-8", "surrogatepass")
    return [text[begin:end] for begin, end in pairwise(accumulate(sizes.tolist(), initial=0))]


def analyzer_settings(analyzer: AnyAnalyzer, /) -> dict[str, Any]:
    """What is stored of an analyzer: its settings, or the name of the function it is."""
    if isinstance(analyzer, Analyzer):
        return analyzer.to_dict()
    return {"custom": getattr(analyzer, "__qualname__", type(analyzer).__qualname__)}


def checked_analyzer(stored: Mapping[str, Any], given: AnyAnalyzer | None, /) -> AnyAnalyzer:
    """The analyzer of a stored index; ConfigError when the given one would make other terms."""
    if given is None:
        if "custom" in stored:
            raise ConfigError(f"the index was made with the function {stored['custom']!r}: pass it as analyzer=")
        try:
            return Analyzer.from_dict(stored)
        except ConfigError as error:
            raise CorruptStoreError(f"the index is of another time and must be rebuilt: {error}") from error
    if analyzer_settings(given) != stored:
        raise ConfigError(f"the index was made with {stored}, not with {analyzer_settings(given)}: rebuild it")
    return given


def write_file(path: str | Path, data: bytes, /) -> None:
    """Write a file so that readers and crashes see the old one or the new one, never a part."""
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
