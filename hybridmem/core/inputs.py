"""Conversion of user input (a text, a dict, a document of a framework) into Memory objects, and back into metadata."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Set
from datetime import datetime
from typing import Any

from hybridmem.core.times import as_datetime, epoch, iso
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError

__all__ = [
    "METADATA_FIELDS",
    "UNSET",
    "Content",
    "as_memories",
    "as_memory",
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
