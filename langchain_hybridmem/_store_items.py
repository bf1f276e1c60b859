"""Conversion between LangGraph store items and memories: namespaces, keys, indexed text, filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from langgraph.store.base import Item, SearchItem, get_text_at_path

from hybridmem.core.types import Memory
from hybridmem.core.validation import clean
from hybridmem.errors import ConfigError
from hybridmem.filters.predicate import compile_predicate

__all__ = [
    "RESERVED",
    "indexed_text",
    "join_path",
    "key_of",
    "likely_filter",
    "matcher",
    "memory_id",
    "split_path",
    "to_item",
    "to_search_item",
]

RESERVED = "_langgraph"
"""The metadata key that holds what the store needs to know of an item; all other keys are the item's value."""
_MARK = "%:"
_ESCAPE = re.compile("[%/\x00\ud800-\udfff]")
_ESCAPED = re.compile("%([0-9A-F]{2}|u[0-9A-F]{4})")


# --- namespaces and keys


def join_path(labels: Sequence[str], base: str = "", /) -> str:
    """The name of a memory's namespace for a LangGraph namespace, below `base`.

    A label is kept as it is, unless it is empty, has a slash or cannot be stored: then it is escaped after "%:".

    >>> join_path(("users", "ana")), join_path(("a/b", ""), "team")
    ('users/ana', 'team/%:a%2Fb/%:')
    """
    path = "/".join(label if "/" not in label and _plain(label) else _escaped(label) for label in labels)
    return f"{base}/{path}" if base and labels else base or path


def split_path(name: str, base: str = "", /) -> tuple[str, ...] | None:
    """The labels behind a name: the inverse of `join_path`; None for a name that is not below `base`.

    >>> split_path("team/%:a%2Fb/%:", "team")
    ('a/b', '')
    """
    if base:
        if name != base and not name.startswith(f"{base}/"):
            return None
        name = name[len(base) + 1 :] if name != base else ""
        return tuple(map(_unescaped, name.split("/"))) if name else ()
    return tuple(map(_unescaped, name.split("/"))) if name else ()


def memory_id(key: str, /) -> str:
    """The id of the memory that keeps the item of a key."""
    return key if _plain(key) else _escaped(key)


def key_of(id: str, /) -> str:
    """The key of the item that a memory keeps."""
    return _unescaped(id)


def _plain(label: str) -> bool:
    return bool(label) and not label.startswith(_MARK) and clean(label) == label


def _escaped(label: str) -> str:
    def code(found: re.Match[str]) -> str:
        number = ord(found[0])
        return f"%{number:02X}" if number < 256 else f"%u{number:04X}"  # noqa: PLR2004 - one byte

    return _MARK + _ESCAPE.sub(code, label)


def _unescaped(label: str) -> str:
    if not label.startswith(_MARK):
        return label
    return _ESCAPED.sub(lambda found: chr(int(found[1].removeprefix("u"), 16)), label[len(_MARK) :])


# --- items


def value_of(memory: Memory, /) -> dict[str, Any]:
    """The value of an item; a memory that was not written by a store is shown with its text."""
    if RESERVED not in memory.metadata:
        return {"text": memory.text, **memory.metadata}
    return {name: value for name, value in memory.metadata.items() if name != RESERVED}


def to_item(memory: Memory, namespace: tuple[str, ...], /) -> Item:
    """A memory as the item that `get` returns."""
    return Item(**_fields(memory, namespace))


def to_search_item(memory: Memory, namespace: tuple[str, ...], score: float | None, /) -> SearchItem:
    """A memory as an item of a search; `score` is None where nothing was ranked."""
    return SearchItem(**_fields(memory, namespace), score=score)


def _fields(memory: Memory, namespace: tuple[str, ...]) -> dict[str, Any]:
    created, updated = memory.created_at, memory.updated_at
    times = {"created_at": created or updated, "updated_at": updated or created}
    return {"namespace": namespace, "key": key_of(memory.id), "value": value_of(memory), **times}


def indexed_text(value: Mapping[str, Any], paths: Sequence[str], /) -> str:
    r"""The texts of a value that are searched: those at these paths; "$" is every text in it.

    Texts of several words stand by themselves, short values with their key.

    >>> indexed_text({"text": "Ana likes tea", "theme": "dark", "n": [1]}, ["$"])
    'Ana likes tea\ntheme dark\nn 1'
    """
    found: list[str] = []
    for path in paths:
        found += _leaves(value, "") if path == "$" else get_text_at_path(dict(value), path)
    return "\n".join(dict.fromkeys(text for text in found if text.strip()))


def _leaves(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, key)
    elif isinstance(value, str) and (len(value.split()) > 1 or not key):
        yield value
    elif value is not None and value != "":
        yield f"{key} {value}".strip()


# --- filters


def matcher(filter: Mapping[str, Any], /) -> Callable[[Memory], bool]:
    """A function that tells whether a memory's value passes a filter.

    LangGraph's filters mean what they mean in its own stores. Beyond them: $in, $nin, $exists and $contains on a key,
    and $and, $or, $not around filters.
    """
    checks = [_check(name, wanted) for name, wanted in filter.items()]
    return lambda memory: all(check(memory) for check in checks)


def likely_filter(filter: Mapping[str, Any], /) -> dict[str, Any]:
    """A filter of the memory that every item passes that passes LangGraph's: equality of texts, which SQL can test."""
    return {
        "metadata." + name.replace(".", "\\."): wanted
        for name, wanted in filter.items()
        if isinstance(wanted, str) and wanted and name != "text" and not name.startswith("$")
    }


def _check(name: str, wanted: Any) -> Callable[[Memory], bool]:
    if name in ("$and", "$or"):
        parts = [matcher(part) for part in wanted]
        combine = all if name == "$and" else any
        return lambda memory: combine(part(memory) for part in parts)
    if name == "$not":
        part = matcher(wanted)
        return lambda memory: not part(memory)
    if isinstance(wanted, Mapping) and any(op in _BEYOND for op in wanted):
        path = name.replace(".", "\\.")
        return compile_predicate({f"metadata.{path}": dict(wanted)})
    _refuse_unknown(name, wanted)
    return lambda memory: _equal(value_of(memory).get(name), wanted)


_BEYOND = ("$in", "$nin", "$exists", "$contains")
_RANGES: Mapping[str, Callable[[Any, Any], bool]] = {
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
}


def _refuse_unknown(name: str, wanted: Any) -> None:
    if isinstance(wanted, Mapping):
        for op in wanted:
            if op.startswith("$") and op not in ("$eq", "$ne", *_RANGES):
                known = ", ".join(("$eq", "$ne", *_RANGES, *_BEYOND, "$and", "$or", "$not"))
                raise ConfigError(f"unknown operator {op!r} on {name!r}; allowed: {known}")


def _equal(value: Any, wanted: Any) -> bool:
    """LangGraph's comparison: operators, nested values, lists element by element."""
    if isinstance(wanted, Mapping):
        if any(key.startswith("$") for key in wanted):
            return all(_operator(value, op, operand) for op, operand in wanted.items())
        return isinstance(value, Mapping) and all(_equal(value.get(key), inner) for key, inner in wanted.items())
    if isinstance(wanted, list | tuple):
        same = isinstance(value, list | tuple) and len(value) == len(wanted)
        return same and all(map(_equal, value, wanted))
    return bool(value == wanted)


def _operator(value: Any, op: str, operand: Any) -> bool:
    if op == "$eq":
        return bool(value == operand)
    if op == "$ne":
        return bool(value != operand)
    try:
        return _RANGES[op](float(value), float(operand))
    except (TypeError, ValueError):  # texts such as ISO dates have an order too; anything else has none
        return isinstance(value, str) and isinstance(operand, str) and _RANGES[op](value, operand)
