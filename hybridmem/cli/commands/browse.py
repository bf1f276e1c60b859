"""Commands that show memories without searching: show, list, history, stats, namespaces."""

from __future__ import annotations

import argparse
import itertools
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hybridmem.cli.commands.base import NOTHING, Command, open_memory, read_json
from hybridmem.cli.output import clip, memory_fields, paint, print_json, wrap
from hybridmem.core.protocols import View
from hybridmem.core.types import Memory
from hybridmem.memory.embeddings import recorded

__all__ = ["BROWSE"]

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
            print()
        for name, value in memory_fields(one).items():
            if value not in (None, "", (), {}, 0):
                first, *others = wrap(_plain(value), indent=15)
                print(f"{paint(f'{name:<14}', 'cyan')} {first.strip()}", *others, sep="\n")
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
            print_json(memory_fields(one)) if args.json else print(_line(one))
    if not count and not args.json and sys.stdout is not None and sys.stdout.isatty():
        print(paint("no memories", "dim"))
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
            print(f"{head}  {clip(version.memory.text, used)}")
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
        print(f"{paint(f'{label:<12}', 'cyan')} {shown}")
    return 0


def _namespaces(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        counts = {name: memory.store.count(view=View(name)) for name in memory.namespaces()}
    for name, count in counts.items():
        if args.json:
            print_json({"namespace": name, "memories": count})
        else:
            print(f"{count:>10,}  {name or paint('(default)', 'dim')}")
    return 0 if counts else NOTHING


BROWSE = (
    Command("show", "show memories with every field", "hybridmem show m1", _show_options, _show, embedder=False),
    Command("list", "list memories", "hybridmem list --limit 20", _list_options, _list, embedder=False),
    Command(
        "history", "every version of a memory", "hybridmem history m1", _history_options, _history, embedder=False
    ),
    Command("stats", "size and settings of a memory", "hybridmem stats", _json_option, _stats, embedder=False),
    Command(
        "namespaces", "list namespaces with their sizes", "hybridmem namespaces", _json_option, _namespaces,
        embedder=False,
    ),
)  # fmt: skip
