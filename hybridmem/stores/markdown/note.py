"""Conversion between a memory and the text of a Markdown note with YAML front matter.

---
id: m1
tags: [home]
created_at: 2024-05-01T12:00:00Z
links: [{to: m2, relation: contradicts, weight: 0.5}]
mood: cheerful
---

Ana moved to Lisbon
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote

from hybridmem.core.inputs import check_memory, checked_edge
from hybridmem.core.times import epoch, from_epoch, iso
from hybridmem.core.types import Edge, Memory
from hybridmem.errors import ConfigError, MissingExtraError
from hybridmem.stores.sql.log import dump

__all__ = ["Note", "file_name", "format_note", "parse_note"]

_FENCE = re.compile(r"\A\ufeff?---[ \t]*\r?\n(?P<front>.*?)(?:^|\n)---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_TEXTS = ("title", "predicate", "subject", "source_id", "thread", "type", "supersedes", "speaker")
_LISTS = ("tags", "entities")
_TIMES = ("created_at", "updated_at", "last_accessed", "event_at", "expires_at")
_NUMBERS = ("strength", "confidence", "access_count")
_RESERVED = {"id", "namespace", "status", "links", "metadata", "text", *_TEXTS, *_LISTS, *_TIMES, *_NUMBERS}
_TAG = re.compile(r"(?<![\w#/&])#([^\W\d][\w/-]{0,80})")
_LONGEST = 120  # characters of a file name, which every file system accepts


class Note(NamedTuple):
    """The contents of a file: a memory and its links."""

    memory: Memory
    links: tuple[Edge, ...] = ()
    states_status: bool = True
    """Whether the file states a status; otherwise the memory is superseded when another note supersedes it."""


# --- reading


def parse_note(text: str, /, *, default_id: str, modified: float) -> Note:
    """The note in a file's text. Without front matter all is text, the id is the path, the time that of the file.

    A note without an `id`, as people keep them, is called by its file name, and by its `title` if it has one. Its #tags
    are tags, too.

    >>> memory = parse_note("Hello #greeting", default_id="a/b", modified=0.0).memory
    >>> memory.id, memory.title, memory.tags
    ('a/b', 'b', ('greeting',))
    """
    first = text.find("\n")
    if text[:first].endswith("\r"):  # saved with Windows line ends, which this module never writes
        text = text.replace("\r\n", "\n")
    fence = _FENCE.match(text)
    front = _load(fence["front"]) if fence else {}
    body = text[fence.end() :].removeprefix("\n") if fence else text.removeprefix("\ufeff")
    body = body.removesuffix("\n")
    memory = _memory(front, body, default_id=default_id, modified=modified)
    check_memory(memory, namespace=memory.namespace)
    dump(memory.metadata)
    return Note(memory, _links(front.get("links"), memory.id), front.get("status") is not None)


def _load(front: str) -> dict[str, Any]:
    yaml = _yaml()
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(front, Loader=_loader(yaml))):
            raise ConfigError(
                "its front matter has aliases (*name), which are not allowed: few lines can expand to a billion values"
            )
        found = yaml.load(front, Loader=_loader(yaml))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"its front matter is not readable YAML: {' '.join(str(error).split())}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"its front matter must be `key: value` lines, not {found!r}")
    return {str(key): value for key, value in found.items()}


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError("markdown", needs="PyYAML") from error
    return yaml


def _loader(yaml: Any) -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the compiled one is many times faster


def _memory(front: Mapping[str, Any], body: str, *, default_id: str, modified: float) -> Memory:
    given: dict[str, Any] = {name: front[name] for name in _NUMBERS if front.get(name) is not None}
    given |= {name: str(front[name]) for name in _TEXTS if front.get(name) is not None}
    given |= {name: _list(front[name], name) for name in _LISTS if front.get(name) is not None}
    plain = front.get("id") in (None, "")  # not written by this module
    stem = default_id.rpartition("/")[2]
    if plain:
        given.setdefault("title", stem)
        given["tags"] = tuple(dict.fromkeys((*given.get("tags", ()), *_TAG.findall(body))))
    for name in _TIMES:
        if front.get(name) is not None:
            given[name] = _time(front[name], name)
    if front.get("status") is not None:
        given["status"] = str(front["status"])
    inner = front.get("metadata")
    if not isinstance(inner, dict | None):
        raise ConfigError(f"its `metadata` must be a mapping, not {inner!r}")
    metadata = {key: value for key, value in front.items() if key not in _RESERVED} | (inner or {})
    if plain and given["title"] != stem:  # links to the note still name its file
        aliases = metadata.get("aliases") or []
        metadata["aliases"] = [*([aliases] if isinstance(aliases, str) else aliases), stem]
    memory = Memory(
        body,
        id=default_id if front.get("id") in (None, "") else str(front["id"]),
        namespace="" if front.get("namespace") is None else str(front["namespace"]),
        metadata=metadata,
        **given,
    )
    return memory if memory.updated_at is not None else replace(memory, updated_at=from_epoch(modified))


def _list(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if not isinstance(value, list):
        raise ConfigError(f"its `{name}` must be a list, not {value!r}")
    return tuple(str(item) for item in value)


def _time(value: Any, name: str) -> Any:
    moment = epoch(value)
    if moment is None:
        raise ConfigError(f"its `{name}` must be a time such as 2024-05-01T12:00:00Z, not {value!r}")
    return from_epoch(moment)


def _links(value: Any, id_: str) -> tuple[Edge, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ConfigError(f"its `links` must be a list of ids or of {{to, relation, weight}}, not {value!r}")
    edges = []
    for item in value:
        if isinstance(item, dict):
            known = {"to", "relation", "weight"}
            if not item.keys() <= known or "to" not in item:
                raise ConfigError(f"a link has `to`, `relation` and `weight`, not {item!r}")
            edges.append(Edge(id_, str(item["to"]), str(item.get("relation", "related")), item.get("weight", 1.0)))
        else:
            edges.append(Edge(id_, str(item)))
    return tuple(map(checked_edge, edges))


# --- writing


def format_note(note: Note, /) -> str:
    """The text of a note; `parse_note` reads it back as the same memory and links."""
    yaml = _yaml()
    memory = note.memory
    front: dict[str, Any] = {"id": memory.id}
    if memory.namespace:
        front["namespace"] = memory.namespace
    front |= {name: getattr(memory, name) for name in _TEXTS if getattr(memory, name)}
    front |= {name: list(getattr(memory, name)) for name in _LISTS if getattr(memory, name)}
    for name in _TIMES:
        moment = epoch(getattr(memory, name))
        if moment is not None:
            front[name] = iso(moment)
    front["status"] = memory.status
    front |= {name: getattr(memory, name) for name, default in _DEFAULTS if getattr(memory, name) != default}
    if note.links:
        front["links"] = [_link(edge) for edge in note.links]
    front |= {key: value for key, value in memory.metadata.items() if key not in _RESERVED}
    inner = {key: value for key, value in memory.metadata.items() if key in _RESERVED}
    if inner:
        front["metadata"] = inner
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    lines = yaml.dump(front, Dumper=dumper, sort_keys=False, allow_unicode=True, width=2**30)
    return f"---\n{lines}---\n\n{memory.text}\n"


_DEFAULTS: Sequence[tuple[str, float]] = (("strength", 1.0), ("confidence", 1.0), ("access_count", 0))


def _link(edge: Edge) -> Any:
    if edge.relation == "related" and edge.weight == 1.0:
        return edge.b
    return {"to": edge.b, "relation": edge.relation, "weight": edge.weight}


def file_name(text: str, /) -> str:
    """A file or folder name for any text, valid on every system: readable where possible, never hidden.

    >>> file_name("people/ana"), file_name(".."), file_name("m1")
    ('people%2Fana', '%2E.', 'm1')
    """
    name = quote(text, safe=" !#$&'()+,;=@[]^{}~-_.") or "%00"
    if name.startswith("."):
        name = "%2E" + name[1:]
    name = name.rstrip(". ") + "".join(f"%{ord(c):02X}" for c in name[len(name.rstrip(". ")) :])
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 17]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return name
