"""Commands that write, search and show memories, from `add` to `namespaces`."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hybridmem.cli.commands.base import NOTHING, Command, open_memory, read_json
from hybridmem.cli.importing import FORMATS, Source, open_source
from hybridmem.cli.output import (
    Progress,
    clip,
    is_terminal,
    json_line,
    memory_fields,
    one_line,
    paint,
    print_json,
    say,
    wrap,
)
from hybridmem.core.protocols import View
from hybridmem.core.types import Memory
from hybridmem.errors import HybridMemError
from hybridmem.memory.embeddings import recorded
from hybridmem.memory.results import Result

__all__ = ["CONTENT"]

_FIELDS = ("id", "title", "subject", "thread", "speaker", "source_id", "type", "supersedes", "created_at", "expires_at")
"""Fields of a memory that `add` has an option for."""


def _add_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("text", help="the text of the memory; - reads it from standard input")
    for name in _FIELDS:
        sub.add_argument(f"--{name.replace('_', '-')}", metavar=name.upper())
    sub.add_argument("--tag", action="append", default=[], dest="tags", metavar="TAG", help="may be repeated")
    sub.add_argument("--metadata", metavar="JSON", help='more fields, such as {"lang": "en"}')


def _add(args: argparse.Namespace) -> int:
    fields = {name: value for name, value in vars(args).items() if name in (*_FIELDS, "tags") and value}
    if args.metadata is not None:
        fields["metadata"] = read_json(args.metadata, "--metadata")
    text = sys.stdin.read() if args.text == "-" else args.text
    with open_memory(args, must_exist=False) as memory:
        say(one_line(memory.add({"text": text, **fields})))
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


def _import(args: argparse.Namespace) -> int:
    source = open_source(args.source, format=args.format, text_column=args.text_column)
    if not source.is_export:
        source.check()  # a wrong row is refused before anything is written
    created = _new_file(args.memory)
    try:
        say(_write(args, source))
    except HybridMemError:
        if created is not None:
            _remove_if_empty(args, created)
        raise
    return 0


def _write(args: argparse.Namespace, source: Source) -> int:
    if next(source.rows(), None) is None:
        return 0
    with open_memory(args, must_exist=False) as memory:
        if source.is_export:
            with Progress("restored") as progress:
                return memory.store.restore((row for row, _ in source.rows()), progress=progress)
        with Progress("imported") as progress:
            return len(memory.add_many(source.memories(), progress=progress))


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


# --- search


def _search_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("query")
    sub.add_argument("-k", type=int, default=8, help="number of results (8)")
    sub.add_argument("--filter", metavar="JSON", help='such as {"type": "fact"}')
    sub.add_argument("--as-of", metavar="TIME", help="search the state of the memory at that time")
    sub.add_argument("--arm", choices=("bm25", "vector", "graph"), help="search one arm only; shows its raw scores")
    sub.add_argument("--why-not", metavar="ID", help="say why this memory is not among the results")
    sub.add_argument("--min-confidence", type=float, metavar="P", help="return nothing below this confidence")
    sub.add_argument("--json", action="store_true", help="one JSON object per result, with every field")


def _search(args: argparse.Namespace) -> int:
    how: dict[str, Any] = {"k": args.k, "filter": read_json(args.filter, "--filter"), "as_of": args.as_of}
    if args.min_confidence is not None:
        how["min_confidence"] = args.min_confidence
    with open_memory(args) as memory:
        if args.why_not is not None:
            say(memory.explain(args.query, **how).why_not(args.why_not))
            return 0
        if args.arm is not None:
            results = memory.search_arm(args.arm, args.query, **how)
        else:
            results = memory.search(args.query, **how)
        if args.json:
            for rank, result in enumerate(results, start=1):
                print_json(_as_json(rank, result))
        else:
            _print_results(results)
    return 0 if results else NOTHING


def _as_json(rank: int, result: Result) -> dict[str, Any]:
    """A result with every field of its memory, and its receipt."""
    receipt = None if result.receipt is None else result.receipt.to_dict()
    return {"rank": rank, "score": result.score, **memory_fields(result.memory), "receipt": receipt}


def _print_results(results: Sequence[Result]) -> None:
    terminal = is_terminal()
    if not results and terminal:
        say(paint("no results", "dim"))
    for rank, result in enumerate(results, start=1):
        head = f"{rank:>3}  {paint(f'{result.score:.3f}', 'green')}  {paint(result.id, 'bold')}"
        if terminal:
            say(head, *wrap(result.text, indent=5))
        else:
            say(f"{head}  {clip(result.text, 0)}")
        if result.receipt is not None:
            for line in wrap(str(result.receipt).split(": ", 1)[1], indent=7):
                say(paint(line, "dim"))


def _forget_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("ids", nargs="+", metavar="ID")
    sub.add_argument("--erase", action="store_true", help="remove every version and vector too, for good")


def _forget(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        count = memory.erase(*args.ids) if args.erase else memory.forget(*args.ids)
    say(count)
    return 0 if count else NOTHING


def _sweep_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--erase", action="store_true", help="remove every version and vector too, for good")


def _sweep(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        say(memory.sweep(erase=args.erase))
    return 0


# --- show, list, history, stats, namespaces


_AS_JSON = "one JSON object per line, with every field"


def _json_option(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--json", action="store_true", help=_AS_JSON)


def _show_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("ids", nargs="+", metavar="ID")
    sub.add_argument("--as-of", metavar="TIME", help="as it was at that time")
    _json_option(sub)


def _show(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        shown = [memory.get(key, as_of=args.as_of) for key in args.ids]
    for number, one in enumerate(shown):
        if args.json:
            print_json(memory_fields(one))
            continue
        if number:
            say("")
        for name, value in memory_fields(one).items():
            if value not in (None, "", (), {}, 0):
                first, *others = wrap(_plain(value), indent=15)
                say(f"{paint(f'{name:<14}', 'cyan')} {first.strip()}", *others)
    return 0


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _list_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--filter", metavar="JSON", help='such as {"type": "fact"}')
    sub.add_argument("--as-of", metavar="TIME", help="the memories of that time")
    sub.add_argument("--superseded", action="store_true", help="superseded memories too")
    sub.add_argument("--limit", type=int, metavar="N", help="the first N by id")
    _json_option(sub)


def _list(args: argparse.Namespace) -> int:
    count = 0
    with open_memory(args) as memory:
        wanted = read_json(args.filter, "--filter")
        every = memory.list(filter=wanted, as_of=args.as_of, superseded=args.superseded)
        for one in itertools.islice(every, args.limit):
            count += 1
            print_json(memory_fields(one)) if args.json else say(_line(one))
    if not count and not args.json and is_terminal():
        say(paint("no memories", "dim"))
    return 0 if count else NOTHING


def _line(memory: Memory) -> str:
    """Id, date, status unless it is active, and the beginning of the text."""
    day = "" if memory.created_at is None else memory.created_at.strftime("%Y-%m-%d")
    status = "" if memory.status == "active" else f"{memory.status}  "
    used = len(memory.id) + len(day) + len(status) + 4
    return f"{paint(memory.id, 'bold')}  {paint(day, 'dim')}  {paint(status, 'yellow')}{clip(memory.text, used)}"


def _history_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("id", metavar="ID")
    _json_option(sub)


def _history(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        versions = memory.history(args.id)
    for version in versions:
        at = datetime.fromtimestamp(version.at, timezone.utc).isoformat(timespec="seconds")
        status = "deleted" if version.deleted else version.memory.status
        if args.json:
            fields = memory_fields(version.memory)
            print_json({"seq": version.seq, "at": at, "deleted": version.deleted, **fields})
        else:
            used = len(f"{version.seq:>6}  {at}  {status:<10}  ")
            head = f"{version.seq:>6}  {paint(at, 'dim')}  {paint(f'{status:<10}', 'yellow')}"
            say(f"{head}  {clip(version.memory.text, used)}")
    return 0 if versions else NOTHING


def _stats(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        model = recorded(memory.store)
        figures = {**memory.stats().to_dict(), "namespaces": len(memory.namespaces())}
    del figures["arms"]  # this command opens the memory without an embedder
    figures["embedder"] = None if model is None else f"{model['name']} ({model['dim']} dimensions)"
    path = Path(args.memory)
    if "://" not in args.memory and path.is_file():
        figures["bytes"] = path.stat().st_size
    if args.json:
        print_json(figures)
        return 0
    for label, value in figures.items():
        shown = f"{value:,}" if isinstance(value, int) else value or ("none" if label == "embedder" else "(default)")
        say(f"{paint(f'{label:<12}', 'cyan')} {shown}")
    return 0


def _namespaces(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        counts = {name: memory.store.count(view=View(name)) for name in memory.namespaces()}
    for name, count in counts.items():
        if args.json:
            print_json({"namespace": name, "memories": count})
        else:
            say(f"{count:>10,}  {paint(name) if name else paint('(default)', 'dim')}")
    return 0 if counts else NOTHING


CONTENT = (
    Command("add", "add one memory", 'hybridmem add "Ana has moved." --subject ana', _add_options, _add),
    Command(
        "import",
        "add many memories, from JSONL, CSV, text, BEIR or Markdown notes",
        "hybridmem import notes.jsonl\n  hybridmem import tickets.csv --text-column body",
        _import_options,
        _import,
        "A JSONL object or CSV row has a text and any fields of a memory; other keys become metadata. A text file\n"
        "has one memory per line. Every row is checked before the first one is written. Memories are written in\n"
        "batches of 1,000; after an interruption, everything the progress has counted is kept.",
    ),
    Command(
        "search", "search, with a receipt for each result", 'hybridmem search "cat" -k 3', _search_options, _search
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
        "Searches ignore expired memories without a sweep.",
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
    Command("show", "show memories with every field", "hybridmem show m1", _show_options, _show, embedder=False),
    Command("list", "list memories", "hybridmem list --limit 20", _list_options, _list, embedder=False),
    Command("history", "every version of a memory", "hybridmem history m1", _history_options, _history, embedder=False),
    Command("stats", "size and settings of a memory", "hybridmem stats", _json_option, _stats, embedder=False),
    Command(
        "namespaces",
        "list namespaces with their sizes",
        "hybridmem namespaces",
        _json_option,
        _namespaces,
        embedder=False,
    ),
)
