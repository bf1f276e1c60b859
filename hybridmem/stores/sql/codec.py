"""Conversion of memories to database columns and back: texts, JSON, times and vectors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from hybridmem.core import validation
from hybridmem.core.times import epoch, from_epoch, iso
from hybridmem.core.types import Memory
from hybridmem.core.validation import clean
from hybridmem.errors import ConfigError, CorruptStoreError, EmbeddingError

__all__ = [
    "BODY",
    "BodyTimes",
    "body_row",
    "decode_vector",
    "dump",
    "encode_vector",
    "memory_from",
    "placeholders",
    "word_count",
]

BODY = (
    "title",
    "tags",
    "predicate",
    "subject",
    "source_id",
    "thread",
    "type",
    "entities",
    "created_at",
    "updated_at",
    "confidence",
    "supersedes",
    "speaker",
    "event_at",
    "expires_at",
    "metadata",
    "text",
)
"""The columns of a memory's body, in the order of `body_row`; the other fields can change without a new body."""

_DEPTH = 100
_MAX_INT = 10**300


# --- to the database


class BodyTimes(NamedTuple):
    """The times of a memory's body in epoch seconds."""

    created_at: float | None
    updated_at: float | None
    event_at: float | None = None
    expires_at: float | None = None


def body_row(memory: Memory, times: BodyTimes, confidence: float, /) -> tuple[Any, ...]:
    """The columns of a memory's body in the order of BODY."""
    return (
        clean(memory.title),
        _strings(memory.tags, "tags"),
        clean(memory.predicate),
        clean(memory.subject),
        _optional_name(memory.source_id),
        _optional_name(memory.thread),
        clean(memory.type),
        _strings(memory.entities, "entities"),
        times.created_at,
        times.updated_at,
        confidence,
        _optional_name(memory.supersedes),
        clean(memory.speaker),
        times.event_at,
        times.expires_at,
        dump(memory.metadata) if memory.metadata else None,
        clean(memory.text),
    )


def _optional_name(text: str | None) -> str | None:
    """An empty name is stored as NULL, so that memories without a source or thread are not grouped together."""
    return clean(text) if text else None


def _strings(values: Sequence[str], field: str) -> str | None:
    if values is None:
        return None
    if type(values) is not tuple:
        values = validation.listed(f"Memory.{field}", values, "str")
    if not values:
        return None
    for value in values:
        if not isinstance(value, str):
            validation.refuse(f"one of Memory.{field}", value, "a str")
    return _json_list(tuple(values))


@lru_cache(maxsize=2048)  # most memories share a few lists of tags
def _json_list(values: tuple[str, ...]) -> str:
    return _encode(list(map(clean, values)))


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def dump(metadata: Mapping[str, Any], /) -> str:
    """Metadata as JSON: times become ISO-8601 text, tuples and sets become lists, numpy numbers become plain numbers.

    >>> dump({"when": date(2024, 5, 1), "n": (1, 2)})
    '{"when": "2024-05-01", "n": [1, 2]}'
    """
    if not isinstance(metadata, Mapping):
        validation.refuse("Memory.metadata", metadata, "a mapping")
    try:
        text = _encode(metadata)
    except (TypeError, ValueError, RecursionError):  # not plain JSON yet
        return _encode(_plain(metadata, "metadata", 0))
    plain = text.isascii() and "\\u0000" not in text and text.count("{") + text.count("[") <= _DEPTH
    return text if plain else _encode(_plain(metadata, "metadata", 0))


def _plain(value: Any, where: str, depth: int) -> Any:  # noqa: C901, PLR0911 - one line per kind of value
    if isinstance(value, int) and abs(value) > _MAX_INT:
        raise ConfigError(f"{where} is an integer of more than 300 digits: store it as text")
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return clean(str(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"{where} is {value!r}: JSON has no such number, use None")
        return float(value)
    if depth > _DEPTH:
        raise ConfigError(f"metadata is nested deeper than {_DEPTH} levels (or contains itself)")
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [_plain(item, where, depth + 1) for item in sorted(value, key=repr)]
    if isinstance(value, datetime):
        stamp = epoch(value)
        return value.isoformat() if stamp is None else iso(stamp)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist(), where, depth + 1)
    raise ConfigError(
        f"{where} is a {type(value).__name__}, which JSON cannot represent; use str, numbers, lists, mappings"
    )


def _key(key: Any, where: str) -> str:
    if isinstance(key, str):
        return clean(key)
    if not isinstance(key, int | float) or not abs(key) <= _MAX_INT:
        raise ConfigError(f"{where} has the key {validation.display(key)}: keys must be str")
    return _encode(key)


def placeholders(count: int, /) -> str:
    """`?, ?, ?`: placeholders for a list of bound values."""
    return ", ".join("?" * count)


def word_count(text: str, /) -> int:
    """The number of words of a text (`Entry.words`)."""
    return len(text.split())


# --- from the database


_decode = json.JSONDecoder().raw_decode  # json.loads without its checks of the argument's type


@lru_cache(maxsize=2048)  # most memories share a few lists of tags
def _tuple(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


class _MutableMemory:
    """A Memory before it is frozen, with the same slots.

    A frozen dataclass sets each of its 23 fields through `object.__setattr__`, which takes longer than the rest of
    reading a row. Plain assignments and a change of class at the end take a sixth of that time.
    """

    __slots__ = Memory.__slots__


def _decoded(metadata: str) -> dict[str, Any]:
    value = _decode(metadata)[0]
    if not isinstance(value, dict):
        raise TypeError("its metadata is not a mapping")
    return value


def memory_from(row: Sequence[Any], namespace: str, /) -> Memory:
    """A Memory from (id, status, strength, access_count, last_accessed, *BODY)."""
    try:
        return _memory_from(row, namespace)
    except (ValueError, TypeError, OverflowError, LookupError, OSError, RecursionError) as error:
        raise CorruptStoreError(
            f"memory {validation.display(row[0])} of namespace {namespace!r} is damaged ({error!r}): restore a backup"
        ) from error


def _memory_from(row: Sequence[Any], namespace: str) -> Memory:
    m: Any = _MutableMemory()
    (m.id, m.status, m.strength, m.access_count, accessed, m.title, tags, m.predicate, m.subject, m.source_id, m.thread,
     m.type, entities, created, updated, m.confidence, m.supersedes, m.speaker, event, expires, metadata,
     m.text) = row  # fmt: skip
    m.namespace = namespace
    m.tags = _tuple(tags) if tags else ()
    m.entities = _tuple(entities) if entities else ()
    m.created_at = moment = None if created is None else from_epoch(created)
    m.updated_at = moment if updated == created else None if updated is None else from_epoch(updated)
    m.event_at = None if event is None else from_epoch(event)
    m.expires_at = None if expires is None else from_epoch(expires)
    m.last_accessed = None if accessed is None else from_epoch(accessed)
    m.metadata = _decoded(metadata) if metadata else {}
    if not (type(m.text) is type(m.id) is type(m.title) is type(m.speaker) is type(m.type) is type(m.subject) is str):
        raise TypeError("a text field has another type")
    if type(m.predicate) is not str or type(m.status) is not str or type(m.access_count) is not int:
        raise TypeError("a field has another type")
    m.strength, m.confidence = float(m.strength), float(m.confidence)
    m.__class__ = Memory
    return cast("Memory", m)


# --- vectors


def encode_vector(vector: Any, id_: str, /) -> bytes | None:
    """A vector as little-endian float32 bytes; None stays None."""
    if vector is None:
        return None
    try:
        array = np.asarray(vector, dtype="<f4")
    except (TypeError, ValueError, OverflowError) as error:
        raise EmbeddingError(f"the vector of memory {id_!r} is not numeric: {error}") from error
    if array.ndim != 1 or array.size == 0:
        raise EmbeddingError(f"the vector of memory {id_!r} must have one dimension, not the shape {array.shape}")
    if not (math.isfinite(array @ array) or np.isfinite(array).all()):  # the sum of squares alone may overflow
        raise EmbeddingError(f"the vector of memory {id_!r} has values that are not finite")
    return array.tobytes()


def decode_vector(data: bytes | None, /) -> Any:
    """The float32 array of stored bytes (read-only, no copy); None stays None."""
    if data is None:
        return None
    try:
        return np.frombuffer(data, dtype="<f4")
    except (ValueError, TypeError) as error:
        raise CorruptStoreError(f"a stored vector is damaged ({error}): restore a backup, or call reindex()") from error
