"""Filters as Python predicates. The same filter as SQL or as Chroma's `where` matches the same memories.

    {"type": "fact"}                                   equal; on a list, contains
    {"created_at": {"$gte": "2024-01-01"}}             times in any form
    {"$or": [{"tags": {"$in": ["home", "work"]}}, {"$not": {"metadata.draft": True}}]}

A missing value (no key, None, an empty text field) equals only `None`; `$ne`, `$nin` and `$not` are plain negations and
match it. A comparison with a list is true when it is true for one of its elements.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from hybridmem.core.times import epoch
from hybridmem.core.types import Memory
from hybridmem.filters.chroma import to_chroma
from hybridmem.filters.parse import All, AnyOf, Condition, Field, Filter, Kind, Not, Operand, Test, parse
from hybridmem.filters.sql import SQL, Dialect, SQLite, to_sql

__all__ = [
    "SQL",
    "All",
    "AnyOf",
    "Condition",
    "Dialect",
    "Field",
    "Not",
    "Operand",
    "SQLite",
    "Test",
    "compile_predicate",
    "parse",
    "to_chroma",
    "to_sql",
]

Predicate = Callable[[Mapping[str, Any] | Memory], bool]
_Check = Callable[[Any], bool]
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def compile_predicate(filter: Filter | None, /) -> Predicate:
    """A function that returns whether a Memory, or a plain metadata mapping, matches.

    >>> compile_predicate({"pages": {"$gt": 3}})({"pages": 7})
    True
    """
    return _compile(parse(filter))


def _compile(condition: Condition) -> Predicate:
    if isinstance(condition, Test):
        read, check = _reader(condition.field), _check(condition)
        return lambda item: check(read(item))
    if isinstance(condition, Not):
        inner = _compile(condition.part)
        return lambda item: not inner(item)
    parts = [_compile(part) for part in condition.parts]
    if isinstance(condition, AnyOf):
        return lambda item: any(part(item) for part in parts)
    return lambda item: all(part(item) for part in parts)


# --- reading a field


def _reader(field: Field) -> Callable[[Any], Any]:
    name, path, kind = field.name, field.path, field.type

    def read(item: Any) -> Any:
        if path:
            value: Any = _metadata(item)
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            return value
        value = getattr(item, name) if isinstance(item, Memory) else item.get(name)
        return None if kind in ("text", "list") and value in ("", (), []) else value

    return read


def _metadata(item: Any) -> Any:
    """The metadata of a Memory, the `metadata` of a row, or the mapping itself."""
    if isinstance(item, Memory):
        return item.metadata
    inner = item.get("metadata")
    return inner if isinstance(inner, Mapping) else item


# --- testing a value


def _check(test: Test) -> _Check:
    if test.op == "$exists":
        return lambda value: value is not None
    if test.op == "$contains":
        return _contains(test.operands[0])
    compare = _COMPARE["$eq" if test.op == "$in" else test.op]
    checks = [_element(operand, compare) for operand in test.operands if operand.kind != "null"]
    null = len(checks) < len(test.operands)

    def check(value: Any) -> bool:
        if value is None:
            return null
        if isinstance(value, list | tuple | set | frozenset):
            return any(one(element) for element in value for one in checks)
        return any(one(value) for one in checks)

    return check


def _contains(operand: Operand) -> _Check:
    equal = _element(operand, operator.eq)

    def check(value: Any) -> bool:
        if isinstance(value, list | tuple | set | frozenset):
            return any(equal(element) for element in value)
        return operand.kind == "text" and isinstance(value, str) and operand.value in value

    return check


def _element(operand: Operand, compare: Callable[[Any, Any], bool]) -> _Check:
    of_kind, wanted = _OF_KIND[operand.kind], operand.value

    def check(value: Any) -> bool:
        found = of_kind(value)
        return found is not None and bool(compare(found, wanted))

    return check


_OF_KIND: Mapping[Kind, Callable[[Any], Any]] = {
    "bool": lambda value: value if isinstance(value, bool) else None,
    "number": lambda value: value if isinstance(value, Real) and not isinstance(value, bool) else None,
    "text": lambda value: value if isinstance(value, str) else None,
    "time": epoch,
}
