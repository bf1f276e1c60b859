"""Bulk insertion of rows: arrays in one statement for few rows, COPY for many."""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound or copied

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import psycopg

from hybridmem.core.validation import clean

__all__ = ["insert", "insert_vectors"]

Raw = psycopg.Connection[Any]
_COPY_FROM = 1000
_FEW = 20
_LINES = 5000
_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def insert(raw: Raw, table: str, types: Sequence[str], rows: Sequence[tuple[Any, ...]], /) -> None:
    """Insert rows of texts, numbers and lists of texts."""
    if not rows:
        return
    lists = any(kind.endswith("[]") for kind in types)
    if len(rows) < (_FEW if lists else _COPY_FROM):
        if lists:
            marks = ", ".join(f"%s::{kind}" for kind in types)
            with raw.cursor() as cursor:
                cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            return
        arrays = ", ".join(f"%s::{kind}[]" for kind in types)
        columns = tuple(map(list, zip(*rows, strict=True)))
        raw.execute(f"INSERT INTO {table} SELECT * FROM unnest({arrays})", columns)
        return
    with raw.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:
        for start in range(0, len(rows), _LINES):
            copy.write("".join(map(_line, rows[start : start + _LINES])))


def _line(row: tuple[Any, ...]) -> str:
    return "\t".join(map(_field, row)) + "\n"


def _field(value: Any) -> str:
    if isinstance(value, str):
        return _escaped(clean(value))
    if isinstance(value, list):
        items = (item.replace("\\", "\\\\").replace('"', '\\"') for item in map(clean, value))
        return _escaped("{" + ",".join([f'"{item}"' for item in items]) + "}")
    return repr(value)


def _escaped(text: str) -> str:
    return text if text.isalnum() else text.translate(_ESCAPES)


def insert_vectors(raw: Raw, rows: Sequence[tuple[str, int, int, Any]], /) -> None:
    """Insert (namespace, mem, dimension, unit vector) rows: in pgvector's binary format for many rows."""
    if not rows:
        return
    ordered = sorted(rows, key=lambda row: row[1])
    if len(rows) < _FEW:
        with raw.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO embeddings VALUES (%s, %s, %s, %s::vector)",
                [(*row[:3], "[" + ",".join(map(repr, row[3].tolist())) + "]") for row in ordered],
            )
        return
    with raw.cursor() as cursor, cursor.copy("COPY embeddings FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(_HEADER)
        for namespace, mem, dim, vector in ordered:
            name, data = namespace.encode(), vector.astype(">f4").tobytes()
            head = struct.pack(f">hi{len(name)}siqiiihh", 4, len(name), name, 8, mem, 4, dim, 4 + len(data), dim, 0)
            copy.write(head + data)
        copy.write(b"\xff\xff")
