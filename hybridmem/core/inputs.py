"""What a memory can be told: a text, a Memory or a dict, with more fields beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError

__all__ = ["Content", "as_memories", "as_memory", "changed"]

Content = str | Memory | Mapping[str, Any]
_FIELDS = tuple(field.name for field in dataclasses.fields(Memory))


def as_memory(content: Content, fields: Mapping[str, Any], /) -> Memory:
    """A Memory from a text, a dict or a Memory, with more fields; unknown ones are refused with the known ones."""
    if isinstance(content, Memory):
        given: dict[str, Any] = dict(fields)
    elif isinstance(content, str):
        given = {"text": content, **fields}
    elif isinstance(content, Mapping):
        given = {**content, **fields}
    else:
        raise ConfigError(f"cannot remember a {type(content).__name__}: give a text, a Memory or a dict")
    for name in given:
        if name not in _FIELDS:
            raise ConfigError(f"a memory has no field {name!r}: put it into metadata, or use {', '.join(_FIELDS)}")
    for name in ("tags", "entities"):
        if name in given:
            given[name] = _words(given[name], name)
    if isinstance(content, Memory):
        return dataclasses.replace(content, **given)
    if "text" not in given:
        raise ConfigError(f"a memory needs a 'text': got only {', '.join(given) or 'nothing'}")
    return Memory(**given)


def as_memories(contents: Iterable[Content], /) -> Iterator[Memory]:
    """Many at once; one text or dict alone is a mistake, not a list of its letters or keys."""
    if isinstance(contents, str | Mapping | Memory) or not isinstance(contents, Iterable):
        raise ConfigError(f"add_many takes a list of texts, memories or dicts, not {contents!r}: add takes one")
    return (as_memory(content, {}) for content in contents)


def changed(memory: Memory, changes: Mapping[str, Any], /) -> Memory:
    """A memory with some fields changed, updated when it is written; its name stays."""
    for name in ("id", "namespace"):
        if name in changes:
            raise ConfigError(f"{name} = {changes[name]!r} is not allowed: a memory keeps its {name}")
    return as_memory(dataclasses.replace(memory, updated_at=None), changes)


def _words(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise ConfigError(f"Memory.{name} must be a sequence of str, not {value!r}")
    return tuple(sorted(value, key=str) if isinstance(value, Set) else value)
