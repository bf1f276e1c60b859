"""Commands that write: add, import with its readers, forget, sweep, reindex, backup, copy, export."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from hybridmem.cli.command import (
    NOTHING,
    Command,
    ProgressBar,
    check_output,
    exists,
    json_line,
    load_embedder,
    no_options,
    one_line,
    open_memory,
    print_json,
    read_json,
    say,
    say_count,
)
from hybridmem.core.inputs import as_memory, check_memory
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError, HybridMemError
from hybridmem.evaluation.cases import read_rows

__all__ = ["WRITE", "ImportSource", "open_source"]

ImportRow = tuple[dict[str, Any], str]
"""Fields, and the position in the file for messages."""
FORMATS = ("jsonl", "csv", "tsv", "text")
_MEMORY_FIELDS = frozenset(field.name for field in dataclasses.fields(Memory))
_LISTS = ("tags", "entities")
_RENAMED = {"_id": "id", "timestamp": "created_at"}
_FIELDS = {
    "id": ("ID", "an id of your own (a new one); an id that exists is updated"),
    "title": ("TEXT", "a title; texts that contain it are linked to this memory"),
    "subject": ("NAME", "whom or what it is about"),
    "thread": ("NAME", "the conversation it belongs to"),
    "speaker": ("NAME", "who said it"),
    "source_id": ("ID", "the document it was cut from"),
    "type": ("NAME", "a kind of your own, such as fact or event"),
    "supersedes": ("ID", "the memory that this one replaces"),
    "created_at": ("TIME", "when it was said or written (now)"),
    "event_at": ("TIME", "when it happened, if that is another time"),
    "expires_at": ("TIME", "when it is no longer found"),
}
"""Fields of a memory that `add` has an option for, with what the help says."""


# --- add


def _add_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("text", help="the text of the memory; - reads it from standard input")
    for name, (metavar, text) in _FIELDS.items():
        sub.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    sub.add_argument("--tag", action="append", default=[], dest="tags", metavar="TAG", help="a tag; may be repeated")
    sub.add_argument("--metadata", metavar="JSON", help='more fields, such as {"lang": "en"}')
    sub.add_argument("--ttl", type=float, metavar="SECONDS", help="how long it is found; instead of --expires-at")
    _duplicate_option(sub)


def _duplicate_option(sub: argparse.ArgumentParser) -> None:
    text = "what to do with a text that the namespace and thread have already (keep)"
    sub.add_argument("--on-duplicate", choices=("keep", "skip", "merge"), default="keep", help=text)


def _add(args: argparse.Namespace) -> int:
    fields = {name: value for name, value in vars(args).items() if name in (*_FIELDS, "tags") and value}
    if args.metadata is not None:
        fields["metadata"] = read_json(args.metadata, "--metadata")
    text = sys.stdin.read() if args.text == "-" else args.text
    if not text.strip():
        raise ConfigError("the text is empty: nothing was added")
    with open_memory(args, must_exist=False) as memory:
        say(one_line(memory.add({"text": text, **fields}, ttl=args.ttl, on_duplicate=args.on_duplicate)))
    return 0


# --- import, export


def _import_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "source",
        help="a file of memories (JSONL, CSV, TSV, text, or the output of `hybridmem export`), a BEIR folder, "
        "a folder of Markdown notes, or - for standard input",
    )
    sub.add_argument("--format", choices=FORMATS, help="the format of the file (by its suffix, else jsonl)")
    sub.add_argument("--text-column", default="text", metavar="NAME", help="the column or key with the text (text)")
    _duplicate_option(sub)


def _import(args: argparse.Namespace) -> int:
    source = open_source(args.source, format=args.format, text_column=args.text_column)
    if not source.is_export:
        source.check()  # a wrong row is refused before anything is written
    created = _new_file(args.memory)
    try:
        say_count(_write(args, source), "added")
    except HybridMemError:
        if created is not None:
            _remove_if_empty(args, created)
        raise
    return 0


def _write(args: argparse.Namespace, source: ImportSource) -> int:
    if next(source.rows(), None) is None:
        return 0
    with open_memory(args, must_exist=False) as memory:
        if source.is_export:
            with ProgressBar("restored") as progress:
                return memory.store.restore((row for row, _ in source.rows()), progress=progress)
        with ProgressBar("imported") as progress:
            found = memory.add_many(source.memories(), on_duplicate=args.on_duplicate, progress=progress)
            return len(found)


def _new_file(path: str) -> Path | None:
    """The file that this import creates; None when it is there already, or not a file."""
    return None if "://" in path or path.endswith("/") or Path(path).exists() else Path(path)


def _remove_if_empty(args: argparse.Namespace, created: Path) -> None:
    """Remove the file of a refused import into which nothing was written."""
    if not created.is_file():
        return
    with open_memory(argparse.Namespace(memory=args.memory, namespace=args.namespace)) as memory:
        empty = memory.store.last_seq() == 0
    if empty:
        for ending in ("", "-wal", "-shm"):
            created.with_name(created.name + ending).unlink(missing_ok=True)


def _export_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("-o", "--output", default="-", metavar="FILE", help="a JSONL file (standard output)")
    sub.add_argument("--everyone", action="store_true", help="every namespace instead of one")


def _export(args: argparse.Namespace) -> int:
    check_output("--output", args.output)
    with open_memory(args) as memory:
        rows = memory.store.export(namespace=None if args.everyone else args.namespace)
        if args.output == "-":
            for row in rows:
                print_json(row)
            return 0
        with Path(args.output).open("w", encoding="utf-8") as handle:
            for row in rows:
                handle.write(json_line(row) + "\n")
    return 0


# --- reading the formats of an import


@dataclasses.dataclass(frozen=True, slots=True)
class ImportSource:
    """One import: `rows()` reads it from the start each time. `is_export`: written by `hybridmem export`."""

    rows: Callable[[], Iterator[ImportRow]]
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
            (fields if name in _MEMORY_FIELDS else extra).setdefault(name, value)
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


def open_source(name: str, *, format: str | None = None, text_column: str = "text") -> ImportSource:
    """The source of an import by its name: a file, `-` for standard input, or a folder."""
    place = Path(name)
    if name != "-" and place.is_dir():
        corpus = place / "corpus.jsonl"
        rows = (lambda: read_rows(corpus)) if corpus.is_file() else (lambda: _notes(place))
        return ImportSource(rows, text_column)
    kind = format or {".csv": "csv", ".tsv": "tsv", ".txt": "text", ".md": "text"}.get(place.suffix.lower(), "jsonl")
    opened: Callable[[], IO[str]] = partial(_Named, sys.stdin.read()) if name == "-" else partial(_open, place)
    if kind == "jsonl":
        first = next(_jsonl(opened), ({}, ""))[0]
        return ImportSource(lambda: _jsonl(opened), text_column, is_export=first.get("kind") == "hybridmem")
    if kind == "text":
        return ImportSource(lambda: _text(opened, name, text_column), text_column)
    return ImportSource(lambda: _table(opened, name, "\t" if kind == "tsv" else ","), text_column)


class _Named(io.StringIO):
    """Standard input, read as a whole, with the name that messages use."""

    name = "standard input"


def _open(place: Path) -> IO[str]:
    try:
        return place.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise ConfigError(f"cannot read {place}: {error.strerror}") from error


def _jsonl(opened: Callable[[], IO[str]]) -> Iterator[ImportRow]:
    with opened() as file:
        yield from read_rows(file)


def _text(opened: Callable[[], IO[str]], name: str, column: str) -> Iterator[ImportRow]:
    """One memory for each line that is not empty."""
    with opened() as file:
        for number, line in enumerate(_decoded(file, name), start=1):
            if line.strip():
                yield {column: line.strip()}, f"{name}:{number}"


def _table(opened: Callable[[], IO[str]], name: str, delimiter: str) -> Iterator[ImportRow]:
    """The rows of a CSV file with a header line; empty cells are missing, tags and entities split at semicolons.

    A header with semicolons and no commas, as spreadsheets of many countries write it, separates cells by semicolons.
    """
    with opened() as file:
        lines = _decoded(file, name)
        header = next(lines, "")
        if delimiter == "," and ";" in header and "," not in header:
            delimiter = ";"
        for row in (reader := csv.DictReader(itertools.chain([header], lines), delimiter=delimiter)):
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


def _notes(place: Path) -> Iterator[ImportRow]:
    from hybridmem.stores.markdown.sync import read_notes

    memory = None
    for memory in read_notes(place):
        yield {name: getattr(memory, name) for name in _MEMORY_FIELDS}, memory.id
    if memory is None:
        raise ConfigError(f"there is neither a corpus.jsonl nor a Markdown note in the folder {str(place)!r}")


# --- forget, sweep


def _forget_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("ids", nargs="*", metavar="ID", help="one or several ids")
    sub.add_argument("--all", action="store_true", help="every memory of the namespace")
    sub.add_argument("--erase", action="store_true", help="remove every version and vector too, for good")


def _forget(args: argparse.Namespace) -> int:
    if bool(args.ids) == args.all:
        raise ConfigError("name the memories by their ids, or give --all for every memory of the namespace")
    with open_memory(args) as memory:
        if args.all:
            count = memory.erase(namespace=memory.name) if args.erase else memory.clear()
        else:
            count = memory.erase(*args.ids) if args.erase else memory.forget(*args.ids)
    say_count(count, "erased" if args.erase else "forgotten")
    return 0 if count else NOTHING


def _sweep_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--erase", action="store_true", help="remove every version and vector too, for good")


def _sweep(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        say_count(memory.sweep(erase=args.erase), "erased" if args.erase else "removed")
    return 0


# --- reindex, backup, copy


def _reindex(args: argparse.Namespace) -> int:
    """Embed everything again; opens without an embedder, because the new one may differ from the recorded one."""
    from hybridmem.memory.factory import pick_embedder

    plain = argparse.Namespace(memory=args.memory, namespace=args.namespace)
    with open_memory(plain) as memory, ProgressBar("embedded") as progress:
        embedder = None if args.embedder == "none" else pick_embedder(load_embedder(args.embedder))
        memory.reindex(embedder=embedder, progress=progress)
        say(f"indexed {len(memory)} memories with the arms {', '.join(memory.arms)}")
    return 0


def _backup_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("target", help="the file to write")


def _backup(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        memory.backup(args.target)
    say(args.target)
    return 0


def _copy_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("source", help="a file, a folder of notes or a postgresql:// address")
    sub.add_argument("target", help="a file, a folder of notes or a postgresql:// address")


def _copy(args: argparse.Namespace) -> int:
    from hybridmem.memory.factory import open_store
    from hybridmem.stores.copying import copy_store

    exists(args.source, otherwise="name a file or a postgresql:// address to copy from")
    source = open_store(args.source, clock=time.time)
    try:
        target = open_store(args.target, clock=time.time)
        try:
            with ProgressBar("copied") as progress:
                done = copy_store(source, target, progress=progress)
            earlier = f", {done.resumed} of them by an earlier run" if done.resumed else ""
            say(f"copied {done.rows} entries{earlier}; both sides have checksum {done.checksum}")
        finally:
            target.close()
    finally:
        source.close()
    return 0


WRITE = (
    Command("add", "add one memory", 'hybridmem add "Ana has moved." --subject ana', _add_options, _add),
    Command(
        "import",
        "add memories from JSONL, CSV, text, BEIR or notes",
        "hybridmem import notes.jsonl\n  hybridmem import tickets.csv --text-column body",
        _import_options,
        _import,
        "A JSONL object or CSV row has a text and any fields of a memory; other keys become metadata. A text file\n"
        "has one memory per line. Every row is checked before the first one is written. Memories are written in\n"
        "batches of 1,000; after an interruption, everything the progress has counted is kept.",
    ),
    Command(
        "forget",
        "forget memories; they stay in the history",
        "hybridmem forget m1 m2",
        _forget_options,
        _forget,
        embedder=False,
    ),
    Command(
        "sweep",
        "remove expired memories",
        "hybridmem sweep",
        _sweep_options,
        _sweep,
        "Removes the memories whose --expires-at has passed. Searches ignore them without a sweep too.",
        embedder=False,
    ),
    Command(
        "export",
        "write the whole log as JSONL",
        "hybridmem export -o all.jsonl",
        _export_options,
        _export,
        embedder=False,
    ),
    Command("reindex", "embed and index everything again", "hybridmem reindex --embedder local", no_options, _reindex),
    Command(
        "backup",
        "copy the store while it is in use",
        "hybridmem backup copy.db",
        _backup_options,
        _backup,
        embedder=False,
    ),
    Command(
        "copy",
        "copy one store to another: SQLite, Markdown notes or PostgreSQL",
        "hybridmem copy memory.db postgresql://localhost/memory",
        _copy_options,
        _copy,
        memory=False,
    ),
)
