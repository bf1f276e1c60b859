"""The filter language in PostgreSQL's SQL: every value is bound, every name is ours."""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridmem.filter_sql import SQL, Elements

__all__ = ["PostgreSQL"]

_FEW = 100


class PostgreSQL:
    """Lists and metadata are columns of type json; `epoch` is a function of the store's own schema."""

    mark = "?"  # a connection of ours turns it into psycopg's %s

    def text(self, column: str, /) -> str:
        """The C collation compares UTF-8 bytes, which is code point order."""
        return f'({column} COLLATE "C")'

    def within(self, expression: str, values: Sequence[Any], /) -> SQL:
        """Texts travel as one array; numbers one by one, since whole and broken ones compare differently."""
        if isinstance(values[0], str):
            return SQL(f"{expression} = ANY(?::text[])", (list(values),))
        if len(values) <= _FEW:
            return SQL(f"{expression} IN ({', '.join('?' * len(values))})", tuple(values))
        return SQL(f"{expression} = ANY(?::float8[])", (list(map(float, values)),))

    def contains(self, expression: str, /) -> str:
        """`strpos` knows no wildcards."""
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
