"""Commands that write and read memories: add, import, search, export."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from hybridmem.cli.commands.base import NOTHING, Command, open_memory, print_json, progress, read_json
from hybridmem.core.inputs import as_memory
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from hybridmem.evaluation.cases import read_rows
from hybridmem.stores.sql.codec import check_memory

__all__ = ["CONTENT"]


def _add_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("text", help="the text of the memory; - reads it from standard input")
    for name in ("id", "title", "subject", "thread", "source-id", "type", "supersedes", "created-at"):
        sub.add_argument(f"--{name}", metavar=name.upper().replace("-", "_"))
    sub.add_argument("--tag", action="append", default=[], dest="tags", metavar="TAG", help="may be repeated")
    sub.add_argument("--metadata", metavar="JSON", help='more fields, such as {"lang": "en"}')


def _add(args: argparse.Namespace) -> int:
    names = ("id", "title", "subject", "thread", "source_id", "type", "supersedes", "created_at", "tags")
    fields = {name: getattr(args, name) for name in names if getattr(args, name)}
    if args.metadata is not None:
        fields["metadata"] = read_json(args.metadata, "--metadata")
    text = sys.stdin.read() if args.text == "-" else args.text
    with open_memory(args, must_exist=False) as memory:
        print(memory.add(text, **fields))
    return 0


def _import_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("source", help="a JSONL file of memories or of `hybridmem export`, a Markdown folder, or -")


def _import(args: argparse.Namespace) -> int:
    source = Path(args.source)
    if args.source != "-" and source.is_dir():
        from hybridmem.stores.markdown.sync import read_notes

        with open_memory(args, must_exist=False) as memory:
            print(len(memory.add_many(read_notes(source), progress=progress("imported"))))
        return 0
    rows = read_rows(sys.stdin if args.source == "-" else source)
    first = next(rows, None)  # read before the store is created, so that an unreadable file creates none
    if first is None:
        print(0)
        return 0
    everything = itertools.chain([first], rows)
    with open_memory(args, must_exist=False) as memory:
        if first[0].get("kind") == "hybridmem":  # the header of an export
            print(memory.store.restore((row for row, _ in everything), progress=progress("restored")))
        else:
            print(len(memory.add_many(itertools.starmap(_row_memory, everything), progress=progress("imported"))))
    return 0


def _row_memory(row: dict[str, Any], where: str) -> Memory:
    """Convert a row to a memory: `timestamp` becomes `created_at`, and null fields are dropped."""
    given = {key: value for key, value in row.items() if value is not None}
    if "timestamp" in given:
        given.setdefault("created_at", given.pop("timestamp"))
    try:
        memory = as_memory(given, {})
        check_memory(memory, namespace=memory.namespace)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return memory


def _export_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("-o", "--output", default="-", metavar="FILE", help="a JSONL file (standard output)")
    sub.add_argument("--everyone", action="store_true", help="every namespace instead of one")


def _export(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        rows = memory.store.export(namespace=None if args.everyone else args.namespace)
        if args.output == "-":
            for row in rows:
                print_json(row)
            return 0
        with Path(args.output).open("w", encoding="utf-8") as handle:
            for row in rows:
                handle.write(json.dumps(row, ensure_ascii=False) + "\n")
    return 0


def _search_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("query")
    sub.add_argument("-k", type=int, default=8, help="number of results (8)")
    sub.add_argument("--filter", metavar="JSON", help='such as {"type": "fact"}')
    sub.add_argument("--as-of", metavar="TIME", help="search the state of the memory at that time")
    sub.add_argument("--arm", choices=("bm25", "vector", "graph"), help="search one arm only; shows its raw scores")
    sub.add_argument("--why-not", metavar="ID", help="say why this memory is not among the results")
    sub.add_argument("--min-confidence", type=float, metavar="P", help="return nothing below this confidence")
    sub.add_argument("--json", action="store_true", help="one JSON object a line")


def _search(args: argparse.Namespace) -> int:
    how = {"k": args.k, "filter": read_json(args.filter, "--filter"), "as_of": args.as_of}
    if args.min_confidence is not None:
        how["min_confidence"] = args.min_confidence
    with open_memory(args) as memory:
        if args.why_not is not None:
            print(memory.explain(args.query, **how).why_not(args.why_not))
            return 0
        if args.arm is not None:
            results = memory.search_arm(args.arm, args.query, **how)
        else:
            results = memory.search(args.query, **how)
        for rank, result in enumerate(results, start=1):
            receipt = result.receipt
            if args.json:
                described = None if receipt is None else receipt.to_dict()
                print_json({"id": result.id, "score": result.score, "text": result.text, "receipt": described})
            else:
                print(f"{rank:>3}  {result.score:.3f}  {result.id}  {' '.join(result.text.split())}")
                if receipt is not None:
                    print(f"       {str(receipt).split(': ', 1)[1]}")
    return 0 if results else NOTHING


CONTENT = (
    Command("add", "add one memory", 'hybridmem add "Ana has moved." --subject ana', _add_options, _add),
    Command(
        "import",
        "add many memories, from JSONL or a folder of Markdown notes",
        "hybridmem import notes.jsonl",
        _import_options,
        _import,
        "Each JSONL line is an object with `text` and any field of a memory. Memories are written in batches of "
        "1,000; after an interruption, everything the progress has counted is kept.",
    ),
    Command(
        "search", "search, with a receipt for each result", 'hybridmem search "cat" -k 3', _search_options, _search
    ),
    Command("export", "the whole log as JSONL", "hybridmem export -o all.jsonl", _export_options, _export),
)
