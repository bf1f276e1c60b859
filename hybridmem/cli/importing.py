"""Readers for `hybridmem import`: JSONL, CSV, plain text, BEIR folders and folders of Markdown notes."""

from __future__ import annotations

import csv
import dataclasses
import io
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from hybridmem.core.inputs import as_memory
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from hybridmem.evaluation.cases import read_rows
from hybridmem.stores.sql.validation import check_memory

__all__ = ["Source", "open_source"]

Row = tuple[dict[str, Any], str]
"""Fields, and the position in the file for messages."""
FORMATS = ("jsonl", "csv", "tsv", "text")
_FIELDS = frozenset(field.name for field in dataclasses.fields(Memory))
_LISTS = ("tags", "entities")
_RENAMED = {"_id": "id", "timestamp": "created_at"}


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """One import: `rows()` reads it from the start each time. `is_export`: written by `hybridmem export`."""

    rows: Callable[[], Iterator[Row]]
    text_column: str
    is_export: bool = False

    def memories(self) -> Iterator[Memory]:
        """Each row as a memory; keys that are not fields become metadata. A wrong row raises ConfigError."""
        for row, where in self.rows():
            yield self._memory(row, where)

    def check(self) -> int:
        """Read everything once and return the number of memories; raises ConfigError for the first wrong row."""
        return sum(1 for _ in self.memories())

    def _memory(self, row: dict[str, Any], where: str) -> Memory:
        fields: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for key, value in row.items():
            if value is None or key == "":
                continue
            name = "text" if key == self.text_column else _RENAMED.get(key, key)
            (fields if name in _FIELDS else extra).setdefault(name, value)
        if "text" not in fields:
            given = ", ".join(row) or "nothing"
            raise ConfigError(f"{where}: there is no {self.text_column!r}, only {given}: name it with --text-column")
        own = fields.get("metadata", {})
        if extra and isinstance(own, dict):
            fields["metadata"] = {**extra, **own}
        try:
            memory = as_memory(fields, {})
            check_memory(memory, namespace=memory.namespace)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        return memory


def open_source(name: str, *, format: str | None = None, text_column: str = "text") -> Source:
    """The source of an import by its name: a file, `-` for standard input, or a folder."""
    place = Path(name)
    if name != "-" and place.is_dir():
        corpus = place / "corpus.jsonl"
        rows = (lambda: read_rows(corpus)) if corpus.is_file() else (lambda: _notes(place))
        return Source(rows, text_column)
    kind = format or {".csv": "csv", ".tsv": "tsv", ".txt": "text", ".md": "text"}.get(place.suffix.lower(), "jsonl")
    opened: Callable[[], IO[str]] = partial(_Named, sys.stdin.read()) if name == "-" else partial(_open, place)
    if kind == "jsonl":
        first = next(_jsonl(opened), ({}, ""))[0]
        return Source(lambda: _jsonl(opened), text_column, is_export=first.get("kind") == "hybridmem")
    if kind == "text":
        return Source(lambda: _text(opened, name, text_column), text_column)
    return Source(lambda: _table(opened, name, "\t" if kind == "tsv" else ","), text_column)


class _Named(io.StringIO):
    """Standard input, read as a whole, with the name that messages use."""

    name = "standard input"


def _open(place: Path) -> IO[str]:
    try:
        return place.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise ConfigError(f"cannot read {place}: {error.strerror}") from error


def _jsonl(opened: Callable[[], IO[str]]) -> Iterator[Row]:
    with opened() as file:
        yield from read_rows(file)


def _text(opened: Callable[[], IO[str]], name: str, column: str) -> Iterator[Row]:
    """One memory for each line that is not empty."""
    with opened() as file:
        for number, line in enumerate(_decoded(file, name), start=1):
            if line.strip():
                yield {column: line.strip()}, f"{name}:{number}"


def _table(opened: Callable[[], IO[str]], name: str, delimiter: str) -> Iterator[Row]:
    """The rows of a CSV file with a header line; empty cells are missing, tags and entities split at semicolons."""
    with opened() as file:
        for row in (reader := csv.DictReader(_decoded(file, name), delimiter=delimiter)):
            where = f"{name}:{reader.line_num}"
            if None in row:
                raise ConfigError(f"{where}: more cells than the header has columns")
            cells: dict[str, Any] = {key: cell for key, cell in row.items() if cell}
            for key in _LISTS:
                if key in cells:
                    cells[key] = [part.strip() for part in cells[key].split(";") if part.strip()]
            yield cells, where


def _decoded(file: IO[str], name: str) -> Iterator[str]:
    try:
        yield from file
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8: {error}") from error


def _notes(place: Path) -> Iterator[Row]:
    from hybridmem.stores.markdown.sync import read_notes

    for memory in read_notes(place):
        fields = {name: getattr(memory, name) for name in _FIELDS}
        yield fields, memory.id
