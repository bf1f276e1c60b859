"""Memories and links as input: conversion of texts, dicts and documents into Memory objects, and their validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple, get_args

from hybridmem.core import validation
from hybridmem.core.protocols import CheckEmbedder, Embed
from hybridmem.core.times import as_datetime, epoch, iso
from hybridmem.core.types import Edge, Memory, Status
from hybridmem.core.validation import clean
from hybridmem.errors import ConfigError

__all__ = [
    "METADATA_FIELDS",
    "UNSET",
    "Batch",
    "Content",
    "as_memories",
    "as_memory",
    "check_memory",
    "checked_batch",
    "checked_edge",
    "checked_edges",
    "from_metadata",
    "given",
    "to_metadata",
    "with_changes",
]

Content = str | Memory | Mapping[str, Any]
"""What can be added: a text, a Memory, or a dict of the fields of a Memory."""
_FIELDS = tuple(field.name for field in dataclasses.fields(Memory))
METADATA_FIELDS = {
    field.name: field.default for field in dataclasses.fields(Memory) if field.name not in ("text", "id", "metadata")
}
"""The fields of a memory that are metadata of a framework's document, with their defaults."""
_TIMES = ("created_at", "updated_at", "last_accessed", "event_at", "expires_at")


class _Unset:
    """Default of a keyword that was not given, where None is a value."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


def given(**fields: Any) -> dict[str, Any]:
    """The keywords that were given."""
    return {name: value for name, value in fields.items() if value is not UNSET}


def as_memory(content: Content, fields: Mapping[str, Any], /) -> Memory:
    """Return a Memory from a text, a dict or a Memory, with more fields; an unknown field raises ConfigError."""
    if isinstance(content, Memory):
        given: dict[str, Any] = dict(fields)
    elif isinstance(content, str):
        given = {"text": content, **fields}
    elif isinstance(content, Mapping):
        given = {**content, **fields}
    else:
        raise ConfigError(f"content of type {type(content).__name__} is not allowed: a text, a Memory or a dict")
    for name in given:
        if name not in _FIELDS:
            raise ConfigError(f"unknown field {name!r}: put it into metadata, or use {', '.join(_FIELDS)}")
    for name in ("tags", "entities"):
        if name in given:
            given[name] = _words(given[name], name)
    if isinstance(content, Memory):
        return dataclasses.replace(content, **given)
    if "text" not in given:
        raise ConfigError(f"a memory needs a 'text'; given: {', '.join(given) or 'nothing'}")
    return Memory(**given)


def as_memories(contents: Iterable[Content], /) -> Iterator[Memory]:
    """Yield a Memory for each item; a single text or dict is refused instead of iterated."""
    if isinstance(contents, str | Mapping | Memory) or not isinstance(contents, Iterable):
        raise ConfigError(f"add_many takes a list of texts, memories or dicts, not {contents!r}: add takes one")
    return (content if isinstance(content, Memory) else as_memory(content, {}) for content in contents)


def with_changes(memory: Memory, changes: Mapping[str, Any], /) -> Memory:
    """Return a copy with some fields changed and `updated_at` cleared."""
    return as_memory(dataclasses.replace(memory, updated_at=None), changes)


def _words(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise ConfigError(f"Memory.{name} must be a sequence of str, not {value!r}")
    return tuple(sorted(value, key=str) if isinstance(value, Set) else value)


# --- documents of frameworks: their metadata and the fields of a memory


def to_metadata(memory: Memory, /) -> dict[str, Any]:
    """A memory's own metadata and its fields that are not the default, times as ISO-8601 text in UTC.

    >>> to_metadata(Memory("Ana moved to Lisbon", id="m1", tags=("home",), metadata={"page": 3}))
    {'page': 3, 'tags': ['home']}
    """
    metadata: dict[str, Any] = dict(memory.metadata)
    for name, default in METADATA_FIELDS.items():
        value = getattr(memory, name)
        if value != default:
            metadata[name] = _plain(value)
    return metadata


def from_metadata(text: str, id: str, metadata: Mapping[str, Any], /, *, without: Iterable[str] = ()) -> Memory:
    """A memory: metadata named like a field becomes that field, the rest stays metadata, `without` is left out."""
    fields = {name: value for name, value in metadata.items() if name in METADATA_FIELDS and value is not None}
    dropped = {*fields, *without}
    for name in ("tags", "entities"):
        if name in fields:
            fields[name] = (fields[name],) if isinstance(fields[name], str) else tuple(fields[name])
    for name in _TIMES:
        if name in fields:
            fields[name] = as_datetime(fields[name])
    rest = {name: value for name, value in metadata.items() if name not in dropped}
    return Memory(text, id=id, metadata=rest, **fields)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        seconds = epoch(value)
        return None if seconds is None else iso(seconds)
    return list(value) if isinstance(value, tuple) else value


# --- validation of what a store is given

_STATUSES: tuple[str, ...] = get_args(Status)
_TEXTS = ("text", "id", "title", "predicate", "subject", "type", "namespace", "speaker")
_OPTIONAL_TEXTS = ("source_id", "thread", "supersedes")
_OPTIONAL = (str, type(None))
_texts, _optional_texts = attrgetter(*_TEXTS), attrgetter(*_OPTIONAL_TEXTS)


def check_memory(memory: Memory, /, *, namespace: str) -> None:
    """Refuse a memory that this namespace cannot store: the error names the field, its value and what is allowed."""
    if not isinstance(memory, Memory):
        raise ConfigError(f"a store takes Memory objects, not {type(memory).__name__}")
    _check_texts(memory)
    if clean(memory.id) != memory.id:
        validation.refuse("Memory.id", memory.id, "encodable text")
    if memory.namespace not in ("", namespace):
        raise ConfigError(
            f"memory {memory.id!r} belongs to namespace {memory.namespace!r} and cannot be put into {namespace!r}: "
            "pass that namespace, or a copy with namespace=''"
        )
    if not isinstance(memory.status, str) or memory.status not in _STATUSES:
        validation.refuse("Memory.status", memory.status, ", ".join(_STATUSES))
    if not isinstance(memory.metadata, Mapping):
        validation.refuse("Memory.metadata", memory.metadata, "a mapping")
    if memory.supersedes and memory.supersedes == memory.id:
        raise ConfigError(f"memory {memory.id!r} cannot supersede itself: put it again to update it")
    _check_numbers(memory)


def _check_texts(memory: Memory) -> None:
    if set(map(type, _texts(memory))) == {str} and set(map(type, _optional_texts(memory))) <= set(_OPTIONAL):
        return
    for name in _TEXTS:  # a subclass of str, or an error
        if not isinstance(getattr(memory, name), str):
            validation.refuse(f"Memory.{name}", getattr(memory, name), "a str")
    for name in _OPTIONAL_TEXTS:
        if not isinstance(getattr(memory, name), _OPTIONAL):
            validation.refuse(f"Memory.{name}", getattr(memory, name), "a str or None")


def _check_numbers(memory: Memory) -> None:
    for name in ("strength", "confidence"):
        value = getattr(memory, name)
        if type(value) is not float or not 0 <= value <= 1:
            validation.number(f"Memory.{name}", value, "a number from 0 to 1", low=0, high=1)
    count = memory.access_count
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 2**63:
        validation.refuse("Memory.access_count", count, "a whole number from 0 up")


class Batch(NamedTuple):
    """The validated arguments of one `put`."""

    namespace: str
    memories: list[Memory]
    vectors: list[Any] | None
    base: list[Memory]
    """The memories as the caller read them; empty: not given."""
    unless_duplicate: bool = False
    """Do not write a memory whose normalized text and thread are already stored."""
    check_embedder: CheckEmbedder | None = None


def checked_batch(
    memories: Sequence[Memory],
    /,
    *,
    namespace: str,
    vectors: Sequence[Any] | Embed | None = None,
    base: Sequence[Memory] | None = None,
    unless_duplicate: bool = False,
    check_embedder: CheckEmbedder | None = None,
) -> Batch:
    """The arguments of `put`, validated before a lock is taken; a function for vectors is called."""
    validation.namespace(namespace)
    new = validation.listed("memories", memories, "Memory objects")
    old = [] if base is None else validation.listed("base", base, "Memory objects, as they were read")
    for memory in (*new, *old):
        check_memory(memory, namespace=namespace)
    if callable(vectors):
        vectors = vectors(new) if new else None
    if vectors is not None:
        vectors = validation.listed("vectors", vectors, "vectors, one for each memory")
        if len(vectors) != len(new):
            raise ConfigError(f"put got {len(new)} memories but {len(vectors)} vectors: one each, or None")
    return Batch(namespace, new, vectors, old, unless_duplicate, check_embedder)


def checked_edge(edge: Edge, /) -> Edge:
    """The edge as it is stored, or an error that names the wrong part."""
    if not isinstance(edge, tuple) or not 2 <= len(edge) <= 4:  # noqa: PLR2004 - a, b, relation, weight
        validation.refuse("edge", edge, "Edge(a, b, relation, weight)")
    edge = Edge(*edge)
    for name in ("a", "b", "relation"):
        value = getattr(edge, name)
        if not isinstance(value, str) or not value:
            validation.refuse(f"Edge.{name}", value, "a non-empty str")
    validation.number("Edge.weight", edge.weight, "a finite number from 0 up", low=0)
    return Edge(clean(edge.a), clean(edge.b), clean(edge.relation), float(edge.weight))


def checked_edges(edges: Sequence[Edge], /) -> list[Edge]:
    """Edges as they are stored."""
    return [checked_edge(edge) for edge in validation.listed("edges", edges, "Edge(a, b, relation, weight)")]
