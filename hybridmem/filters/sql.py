"""Translation of filters to SQL. Column names come from a fixed map and values are bound parameters."""

# ruff: noqa: S608 - names in statements are constants; user values are bound

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hybridmem.filters.parse import AnyOf, Condition, Not, Operand, Test

__all__ = ["SQL", "Dialect", "Elements", "SQLite", "dig", "to_sql"]


class SQL(NamedTuple):
    """A piece of SQL with the values bound to its placeholders, in order."""

    text: str
    params: tuple[Any, ...] = ()


class Elements(NamedTuple):
    """A list or JSON value as rows: one for each element, or one for a plain value; none for objects."""

    rows: SQL
    """The FROM clause."""
    exists: SQL
    """Whether there is a value at all."""
    is_list: SQL
    """Whether it is a list."""
    columns: Mapping[str, str]
    """For each kind of operand, the row's value as that kind, or NULL."""


class Dialect(Protocol):
    """The SQL that differs between databases."""

    mark: str
    """The placeholder of a bound value."""

    def text(self, column: str, /) -> str:
        """A text expression that compares by code point."""
        ...

    def within(self, expression: str, values: Sequence[Any], /) -> SQL:
        """Whether an expression is one of several values of one kind."""
        ...

    def contains(self, expression: str, /) -> str:
        """Whether a text contains the bound one."""
        ...

    def words(self, column: str, /) -> Elements:
        """The elements of a column that holds a list of texts."""
        ...

    def json(self, column: str, path: Sequence[str], /) -> Elements:
        """The elements at a path of keys inside a JSON column."""
        ...


class SQLite:
    """SQLite's JSON functions and two functions of this package: `hybridmem_epoch` and `hybridmem_dig`."""

    mark = "?"
    _plain_key = re.compile(r'[^"\\\x00-\x1f]+')
    _many = 100

    def text(self, column: str, /) -> str:
        """BINARY collation compares UTF-8 bytes, which is code point order."""
        return column

    def within(self, expression: str, values: Sequence[Any], /) -> SQL:
        """Few values are bound one by one; many as one JSON text, because the number of bound values is limited."""
        if len(values) <= (self._many if isinstance(values[0], str) else 30_000):
            return SQL(f"{expression} IN ({', '.join('?' * len(values))})", tuple(values))
        packed = json.dumps(list(values), ensure_ascii=False)
        return SQL(f"{expression} IN (SELECT value FROM json_each(?))", (packed,))

    def contains(self, expression: str, /) -> str:
        """`instr` is case-sensitive and has no wildcards."""
        return f"instr({expression}, ?) > 0"

    def words(self, column: str, /) -> Elements:
        """Lists are JSON text, NULL when empty."""
        return Elements(
            SQL(f"json_each({column}) j"),
            SQL(f"{column} IS NOT NULL"),
            SQL("TRUE"),
            {"text": "j.value", "number": "NULL", "bool": "NULL", "time": "NULL"},
        )

    def json(self, column: str, path: Sequence[str], /) -> Elements:
        """`json_each` returns a list's elements, or a plain value itself; members of objects are left out."""
        if all(map(self._plain_key.fullmatch, path)):
            place, value = f"{column}, ?", "$" + "".join(f'."{key}"' for key in path)
        else:  # a JSON path cannot contain every key
            place, value = f"hybridmem_dig({column}, ?)", json.dumps(list(path), ensure_ascii=False)
        kind = f"json_type({place})"
        return Elements(
            SQL(f"(SELECT * FROM json_each({place}) WHERE {kind} <> 'object') j", (value, value)),
            SQL(f"{kind} <> 'null'", (value,)),
            SQL(f"{kind} = 'array'", (value,)),
            {
                "text": "CASE WHEN j.type = 'text' THEN j.value END",
                "number": "CASE WHEN j.type IN ('integer', 'real') THEN j.value END",
                "bool": "CASE j.type WHEN 'true' THEN 1 WHEN 'false' THEN 0 END",
                "time": "CASE WHEN j.type IN ('integer', 'real', 'text') THEN hybridmem_epoch(j.value) END",
            },
        )


def dig(metadata: str | None, path: str, /) -> str | None:
    """The JSON at a path of keys (`hybridmem_dig` in SQLite), for keys that a JSON path cannot contain."""
    value = json.loads(metadata) if metadata else None
    for key in json.loads(path):
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None else json.dumps(value, ensure_ascii=False)


_MANY = 100
_OPS = {"$eq": "=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


def to_sql(condition: Condition, /, *, columns: Mapping[str, str], dialect: Dialect | None = None) -> SQL:
    """A condition as a boolean SQL expression that is never NULL.

    `columns` maps each field (and "metadata") to the SQL that holds it: times as epoch seconds, lists and metadata as
    the dialect reads them.

    >>> to_sql(parse({"type": "fact"}), columns={"type": "b.type"})  # doctest: +SKIP
    SQL(text="((NULLIF(b.type, '') = ?) IS TRUE)", params=('fact',))
    """
    used = dialect or SQLite()
    if isinstance(condition, Test):
        return _test(condition, columns, used)
    if isinstance(condition, Not):
        inner = to_sql(condition.part, columns=columns, dialect=used)
        return SQL(f"(NOT {inner.text})", inner.params)
    parts = [to_sql(part, columns=columns, dialect=used) for part in condition.parts]
    if not parts:
        return SQL("FALSE" if isinstance(condition, AnyOf) else "TRUE")
    joiner = " OR " if isinstance(condition, AnyOf) else " AND "
    return SQL(_joined([part.text for part in parts], joiner), tuple(p for part in parts for p in part.params))


def _joined(texts: Sequence[str], joiner: str) -> str:
    """The parts joined, in halves if there are many: SQLite allows expressions of 1,000 levels."""
    if len(texts) <= _MANY:
        return f"({joiner.join(texts)})"
    half = len(texts) // 2
    return f"({_joined(texts[:half], joiner)}{joiner}{_joined(texts[half:], joiner)})"


def _test(test: Test, columns: Mapping[str, str], dialect: Dialect) -> SQL:
    field = test.field
    if field.type in ("list", "json"):
        column = columns[field.name]
        elements = dialect.json(column, field.path) if field.path else dialect.words(column)
        return _true(_on_elements(test, elements, dialect))
    column = columns[field.name]
    if field.type == "text":
        column = dialect.text(f"NULLIF({column}, '')")
    return _true(_on_column(test, column, dialect))


def _true(sql: SQL) -> SQL:
    return SQL(f"(({sql.text}) IS TRUE)", sql.params)


def _on_column(test: Test, column: str, dialect: Dialect) -> SQL:
    if test.op == "$exists":
        return SQL(f"{column} IS NOT NULL")
    kind = test.field.type
    if test.op == "$contains":
        operand = test.operands[0]
        return SQL(dialect.contains(column), (operand.value,)) if (kind, operand.kind) == ("text", "text") else _NEVER
    values = [operand for operand in test.operands if operand.kind == kind]
    found = _compare(test.op, column, values, dialect)
    if any(operand.kind == "null" for operand in test.operands):
        return SQL(f"{column} IS NULL OR ({found.text})", found.params)
    return found


def _on_elements(test: Test, elements: Elements, dialect: Dialect) -> SQL:
    if test.op == "$exists":
        return elements.exists
    if test.op == "$contains":
        return _element_contains(test.operands[0], elements, dialect)
    found = [SQL(f"NOT COALESCE({elements.exists.text}, FALSE)", elements.exists.params)]
    if all(operand.kind != "null" for operand in test.operands):
        found = []
    for kind, column in elements.columns.items():
        values = [operand for operand in test.operands if operand.kind == kind]
        if values:
            text = dialect.text(column) if kind == "text" else column
            inner = _compare(test.op, text, values, dialect)
            found.append(_some(elements, inner))
    return _either(found)


def _element_contains(operand: Operand, elements: Elements, dialect: Dialect) -> SQL:
    column = elements.columns[operand.kind]
    equal = _some(elements, _compare("$eq", column, [operand], dialect))
    listed = SQL(f"({elements.is_list.text}) AND {equal.text}", elements.is_list.params + equal.params)
    if operand.kind != "text":
        return listed
    within = _some(elements, SQL(dialect.contains(column), (operand.value,)))
    plain = SQL(f"NOT ({elements.is_list.text}) AND {within.text}", elements.is_list.params + within.params)
    return _either([listed, plain])


_NEVER = SQL("FALSE")


def _some(elements: Elements, inner: SQL) -> SQL:
    return SQL(f"EXISTS (SELECT 1 FROM {elements.rows.text} WHERE {inner.text})", elements.rows.params + inner.params)


def _either(parts: Sequence[SQL]) -> SQL:
    if not parts:
        return _NEVER
    return SQL(" OR ".join(f"({part.text})" for part in parts), tuple(p for part in parts for p in part.params))


def _compare(op: str, expression: str, operands: Sequence[Operand], dialect: Dialect) -> SQL:
    values = [_bindable(operand) for operand in operands]
    if not values:
        return _NEVER
    if op == "$in":
        return dialect.within(expression, values)
    return SQL(f"{expression} {_OPS[op]} {dialect.mark}", (values[0],))


def _bindable(operand: Operand) -> Any:
    value = operand.value
    if operand.kind == "bool":
        return int(value)
    if operand.kind == "number" and isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    return value
