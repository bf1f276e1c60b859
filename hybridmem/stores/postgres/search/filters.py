"""Filters in PostgreSQL: the SQL dialect, and sets of ids that stay in the server until they are read."""

# ruff: noqa: S608 - every name put into a statement is ours; values of users are bound

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from functools import cached_property
from typing import Any

from hybridmem.core.protocols import View
from hybridmem.filters.parse import Condition
from hybridmem.filters.sql import SQL, Elements, to_sql
from hybridmem.stores.sql import read

__all__ = ["FilterIds", "PostgreSQL", "filter_sql", "restriction"]

_FEW = 100


class PostgreSQL:
    """The dialect: lists and metadata are columns of type json; `epoch` is a function of the store's schema."""

    mark = "?"  # `connection.translate` turns it into psycopg's %s

    def text(self, column: str, /) -> str:
        """The C collation compares UTF-8 bytes, which is code point order."""
        return f'({column} COLLATE "C")'

    def within(self, expression: str, values: Sequence[Any], /) -> SQL:
        """Texts are bound as one array; numbers one by one, since integers and floats compare differently."""
        if isinstance(values[0], str):
            return SQL(f"{expression} = ANY(?::text[])", (list(values),))
        if len(values) <= _FEW:
            return SQL(f"{expression} IN ({', '.join('?' * len(values))})", tuple(values))
        return SQL(f"{expression} = ANY(?::float8[])", (list(map(float, values)),))

    def contains(self, expression: str, /) -> str:
        """`strpos` has no wildcards."""
        return f"strpos({expression}, ?) > 0"

    def words(self, column: str, /) -> Elements:
        """A list of texts, NULL when empty."""
        return Elements(
            SQL(f"json_array_elements_text({column}) AS j (value)"),
            SQL(f"{column} IS NOT NULL"),
            SQL("TRUE"),
            {"text": "j.value", "number": "NULL", "bool": "NULL", "time": "NULL"},
        )

    def json(self, column: str, path: Sequence[str], /) -> Elements:
        """A list's elements, or a plain value itself; an object's members are left out."""
        place, keys = column, tuple(path)
        for _ in keys:
            place = f"({place} -> ?::text)"
        kind = f"json_typeof({place})"
        rows = (
            f"(SELECT e AS v, json_typeof(e) AS kind, e #>> '{{}}' AS t FROM json_array_elements(CASE {kind} "
            f"WHEN 'array' THEN {place} WHEN 'object' THEN '[]'::json ELSE json_build_array({place}) END) AS t (e)) j"
        )
        return Elements(
            SQL(rows, keys * 3),
            SQL(f"{kind} <> 'null'", keys),
            SQL(f"{kind} = 'array'", keys),
            {
                "text": "CASE WHEN j.kind = 'string' THEN j.t END",
                "number": "CASE WHEN j.kind = 'number' THEN j.t::numeric END",
                "bool": "CASE WHEN j.kind = 'boolean' THEN j.t::boolean::integer END",
                "time": "CASE WHEN j.kind IN ('string', 'number') THEN epoch(j.t, j.kind = 'number') END",
            },
        )


_DIALECT = PostgreSQL()


def filter_sql(condition: Condition, view: View, /) -> SQL:
    """A filter over a view as PostgreSQL's SQL."""
    return to_sql(condition, columns=read.columns(view), dialect=_DIALECT)


class FilterIds(Set[str]):
    """The ids that match a filter; they are read from the server when the set is first used.

    A search in the server does not use them: it puts the filter's SQL into its own statement.
    """

    def __init__(self, condition: SQL, load: Callable[[], frozenset[str]], /) -> None:
        self.condition = condition
        self._load = load

    @cached_property
    def _ids(self) -> frozenset[str]:
        return self._load()

    def __contains__(self, id_: object) -> bool:
        return id_ in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    @classmethod
    def _from_iterable(cls, it: Any) -> frozenset[str]:  # type: ignore[override]
        return frozenset(it)


def restriction(allowed: Set[str] | None, /) -> SQL:
    """SQL to append to `memories m … WHERE …`: nothing, a filter over the memory and its body, or a list of ids."""
    if allowed is None:
        return SQL("")
    if isinstance(allowed, FilterIds):
        text, parameters = allowed.condition
        return SQL(f" AND EXISTS (SELECT 1 FROM bodies b WHERE b.seq = m.body AND {text})", parameters)
    return SQL(" AND m.id = ANY(?::text[])", (list(allowed),))
