"""Translation of filters to Chroma's `where`; a filter that Chroma cannot express raises ConfigError."""

from __future__ import annotations

from typing import Any

from hybridmem.errors import ConfigError
from hybridmem.filters.parse import FIELDS, RANGES, All, Condition, Field, Not, Operand, Test

__all__ = ["to_chroma"]


def to_chroma(condition: Condition, /) -> dict[str, Any]:
    """A condition as `where`; {} matches everything (pass None for it).

    The Chroma metadata must have the same names: fields, times as epoch seconds, and plain metadata values. Chroma has
    no lists, nested keys, text ranges or "is missing", so a filter with one of these raises ConfigError.

    >>> from hybridmem.filters.parse import parse
    >>> to_chroma(parse({"$not": {"$or": [{"type": "fact"}, {"page": {"$in": [1, 2]}}]}}))
    {'$and': [{'type': {'$ne': 'fact'}}, {'page': {'$nin': [1, 2]}}]}
    """
    return _where(condition, negated=False)


def _where(condition: Condition, *, negated: bool) -> dict[str, Any]:
    if isinstance(condition, Not):
        return _where(condition.part, negated=not negated)
    if isinstance(condition, Test):
        return _test(condition, negated=negated)
    parts = [_where(part, negated=negated) for part in condition.parts]
    every = isinstance(condition, All) != negated  # not (a and b) = (not a) or (not b)
    if not every and (not parts or {} in parts):
        return _always(bool(parts))
    parts = [part for part in parts if part]
    if len(parts) < 2:  # noqa: PLR2004 - Chroma needs two or more parts in $and and $or
        return parts[0] if parts else {}
    return {"$and" if every else "$or": parts}


def _always(matches: bool) -> dict[str, Any]:
    if matches:
        return {}
    raise ConfigError("Chroma has no filter that matches nothing ($or and $in need at least one value)")


def _test(test: Test, *, negated: bool) -> dict[str, Any]:
    name = _name(test.field)
    if test.op in ("$exists", "$contains"):
        raise ConfigError(f"Chroma has no {test.op} for metadata; it has $eq $ne $gt $gte $lt $lte $in $nin")
    kinds = {operand.kind for operand in test.operands}
    if "null" in kinds or (test.field.type == "json" and "time" in kinds):
        raise ConfigError(f"Chroma cannot tell whether {name!r} is missing or a time")
    if test.op in RANGES:
        if negated or not kinds <= {"number", "time"}:
            raise ConfigError(f"Chroma cannot express this range of {name!r}: only numbers, and not negated")
        return {name: {test.op: _number(test.operands[0])}}
    if test.op == "$eq":
        return {name: {"$ne" if negated else "$eq": _value(test.operands[0])}}
    return _within(name, test.operands, negated=negated)


def _within(name: str, operands: tuple[Operand, ...], *, negated: bool) -> dict[str, Any]:
    """One list for each kind of value: Chroma's lists hold one type."""
    kinds: dict[str, list[Any]] = {}
    for operand in operands:
        kinds.setdefault(operand.kind, []).append(_value(operand))
    for values in kinds.values():
        if any(isinstance(value, float) for value in values):
            values[:] = map(float, values)
    if not kinds:
        return _always(negated)
    parts = [{name: {"$nin" if negated else "$in": values}} for values in kinds.values()]
    return parts[0] if len(parts) == 1 else {"$and" if negated else "$or": parts}


def _name(field: Field) -> str:
    name = field.path[-1] if field.path else field.name
    if len(field.path) > 1 or name.startswith("$") or (field.path and name in FIELDS):
        raise ConfigError(f"Chroma cannot look at {'.'.join(field.path)!r} inside the metadata")
    if name == "text" or field.type == "list":
        raise ConfigError(f"Chroma's metadata does not store {name!r}")
    return name


def _value(operand: Operand) -> Any:
    return _number(operand) if operand.kind in ("number", "time") else operand.value


def _number(operand: Operand) -> float:
    value = operand.value
    return value if isinstance(value, float) or -(2**63) <= value < 2**63 else float(value)
