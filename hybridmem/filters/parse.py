"""Parser of the filter language: a mapping becomes a frozen tree of conditions with typed operands."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from numbers import Real
from typing import Any, Literal

from hybridmem.core.times import epoch
from hybridmem.core.validation import clean
from hybridmem.errors import ConfigError

__all__ = ["FIELDS", "All", "AnyOf", "Condition", "Field", "Filter", "Kind", "Not", "Operand", "Test", "parse"]

Kind = Literal["null", "bool", "number", "text", "time"]
FieldType = Literal["text", "list", "time", "number", "json"]

FIELDS: Mapping[str, FieldType] = {
    **dict.fromkeys(("id", "text", "title", "predicate", "subject", "source_id", "thread", "type"), "text"),
    **dict.fromkeys(("namespace", "status", "supersedes", "speaker"), "text"),
    **dict.fromkeys(("tags", "entities"), "list"),
    **dict.fromkeys(("created_at", "updated_at", "last_accessed", "event_at", "expires_at"), "time"),
    **dict.fromkeys(("strength", "confidence", "access_count"), "number"),
}
"""The fields of a Memory that a filter may name; every other name is a metadata key."""

RANGES = ("$gt", "$gte", "$lt", "$lte")
OPERATORS = ("$eq", "$ne", *RANGES, "$in", "$nin", "$exists", "$contains")
LOGIC = ("$and", "$or", "$not")
_DEPTH = 64
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DOT = re.compile(r"(?<!\\)\.")


@dataclass(frozen=True, slots=True)
class Operand:
    """A value to compare with. The kind is part of it, because True == 1 in Python but not in a filter."""

    kind: Kind
    value: Any


@dataclass(frozen=True, slots=True)
class Field:
    """The field of a test: a Memory field (no path), or a path of keys inside the metadata."""

    name: str
    path: tuple[str, ...] = ()

    @property
    def type(self) -> FieldType:
        """The type of its values."""
        return "json" if self.path else FIELDS[self.name]


@dataclass(frozen=True, slots=True)
class Test:
    """One comparison of one field. `$in` has many operands, `$exists` none, the others one."""

    field: Field
    op: str
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class All:
    """True when every part is; the empty one is always true."""

    parts: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True when some part is; the empty one never is."""

    parts: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Not:
    """True when its part is false, a missing value included."""

    part: Condition


Condition = Test | All | AnyOf | Not
Filter = Mapping[str, Any] | Condition
"""A filter as users give it: a mapping such as {"type": "fact"}, or a parsed condition."""


def parse(filter: Filter | None, /) -> Condition:
    """Parse a filter; None and {} match everything; a Condition is returned unchanged.

    >>> parse({"type": "fact"})
    Test(field=Field(name='type', path=()), op='$eq', operands=(Operand(kind='text', value='fact'),))
    """
    if filter is None:
        return All()
    return _parse(filter, 0)


def _parse(filter_: Any, depth: int) -> Condition:
    if isinstance(filter_, Test | All | AnyOf | Not):
        return filter_
    if depth > _DEPTH:
        raise ConfigError(f"a filter may be nested {_DEPTH} levels deep, this one is deeper")
    if not isinstance(filter_, Mapping):
        raise ConfigError(f"a filter is a mapping such as {{'type': 'fact'}}, not {filter_!r}")
    parts = [_entry(name, value, depth) for name, value in filter_.items()]
    return parts[0] if len(parts) == 1 else All(tuple(parts))


def _entry(name: Any, value: Any, depth: int) -> Condition:
    if not isinstance(name, str):
        raise ConfigError(f"a filter's names are str, not {name!r}")
    if name == "$not":
        return Not(_parse(value, depth + 1))
    if name in ("$and", "$or"):
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ConfigError(f"{name} takes a list of filters, not {value!r}")
        parts = tuple(_parse(part, depth + 1) for part in value)
        return All(parts) if name == "$and" else AnyOf(parts)
    if name.startswith("$"):
        raise ConfigError(f"unknown operator {name!r} in a filter; allowed here: {', '.join(LOGIC)}")
    field = _field(name)
    if not isinstance(value, Mapping):
        return _test(field, "$eq", value, name)
    if not value:
        raise ConfigError(f"the filter on {name!r} is empty; give a value or one of {', '.join(OPERATORS)}")
    parts = tuple(_test(field, op, operand, name) for op, operand in value.items())
    return parts[0] if len(parts) == 1 else All(parts)


def _field(name: str) -> Field:
    if name in FIELDS:
        return Field(name)
    path = tuple(part.replace("\\.", ".") for part in _DOT.split(name))
    if path[0] == "metadata":
        path = path[1:]
    if not path:
        raise ConfigError("a filter on 'metadata' needs a key: 'metadata.key'")
    return Field("metadata", tuple(map(clean, path)))


def _test(field: Field, op: Any, value: Any, name: str) -> Condition:
    if op not in OPERATORS:
        hint = "" if str(op).startswith("$") else f"; for a nested key write '{name}.{op}'"
        raise ConfigError(f"unknown operator {op!r} on {name!r}; allowed: {', '.join((*OPERATORS, *LOGIC))}{hint}")
    if op == "$ne":
        return Not(_test(field, "$eq", value, name))
    if op == "$nin":
        return Not(_test(field, "$in", value, name))
    if op == "$exists":
        if not isinstance(value, bool):
            raise ConfigError(f"$exists on {name!r} takes True or False, not {value!r}")
        return Test(field, op) if value else Not(Test(field, op))
    if op == "$in":
        if isinstance(value, str | Mapping) or not isinstance(value, Sequence | set | frozenset):
            raise ConfigError(f"$in and $nin on {name!r} take a list of values, not {value!r}")
        operands = dict.fromkeys(_operand(field, op, item, name) for item in value)
        return Test(field, op, tuple(sorted(operands, key=lambda one: (one.kind, repr(one.value)))))
    return Test(field, op, (_operand(field, op, value, name),))


def _operand(field: Field, op: str, value: Any, name: str) -> Operand:
    operand = _typed(value)
    if operand is None:
        hint = "; use $in for one of several" if isinstance(value, Sequence | set) else ""
        raise ConfigError(f"cannot compare {name!r} with {value!r}: use text, a finite number, a bool, a time{hint}")
    if op in ("$eq", "$in"):
        if operand.kind == "null" or (field.type == "text" and operand.value == ""):
            return Operand("null", None)
    elif operand.kind == "null" or (operand.kind == "bool" and op != "$contains"):
        raise ConfigError(f"{op} on {name!r} needs a value that has an order, not {value!r}")
    return _as_time(field, op, operand, value, name)


def _as_time(field: Field, op: str, operand: Operand, value: Any, name: str) -> Operand:
    """Read the operand as a time where the field is one, or where a range is given by a date."""
    if field.type == "time" and operand.kind != "null":
        moment = None if operand.kind == "bool" else epoch(value)
        if moment is None or op == "$contains":
            raise ConfigError(f"{name!r} is a time: compare it with a datetime, ISO-8601 text or epoch, not {value!r}")
        return Operand("time", moment)
    if operand.kind == "time" and field.type != "json":
        raise ConfigError(f"{name!r} is not a time and cannot be compared with {value!r}")
    if field.type == "json" and op in RANGES and operand.kind == "text" and _DATE.match(operand.value):
        moment = epoch(operand.value)
        return operand if moment is None else Operand("time", moment)
    return operand


def _typed(value: Any) -> Operand | None:
    if value is None:
        return Operand("null", None)
    if isinstance(value, bool):
        return Operand("bool", value)
    if isinstance(value, str):
        return Operand("text", clean(str(value)))
    if isinstance(value, Real):
        number = value if isinstance(value, int) else float(value)
        return Operand("number", number) if _finite(number) else None
    if isinstance(value, date):
        moment = epoch(value)
        return None if moment is None else Operand("time", moment)
    return None


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer larger than any float
        return False
