"""Commands that read: search, show, list, history, stats, namespaces, check, and the servers inspect and mcp."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hybridmem.cli.command import (
    NOTHING,
    Command,
    clip,
    is_terminal,
    open_memory,
    paint,
    print_json,
    read_json,
    say,
    whole_number,
    wrap,
)
from hybridmem.core.protocols import View
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from hybridmem.memory.embeddings import recorded
from hybridmem.memory.results import Result

__all__ = ["READ"]

TOKEN = "HYBRIDMEM_MCP_TOKEN"  # noqa: S105 - the name of a variable
TEXT_LINES = 5
"""Lines of a result's text on a terminal; `show` prints all of it."""
_AS_JSON = "one JSON object per line, with every field"
_NO_VECTORS = "none (`hybridmem reindex --embedder local` adds vectors)"


# --- search


def _search_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("query", help="the question, or any words")
    sub.add_argument("-k", type=whole_number(), default=8, help="number of results (8)")
    sub.add_argument("--filter", metavar="JSON", help='such as {"type": "fact"}')
    sub.add_argument("--as-of", metavar="TIME", help="search the state of the memory at that time")
    sub.add_argument("--time", choices=("graded", "strict"), help="strict: only the days that the query names (graded)")
    sub.add_argument(
        "--context",
        type=whole_number(0),
        metavar="N",
        help="also show N turns before and after each result in its thread",
    )
    sub.add_argument("--arm", choices=("bm25", "vector", "graph"), help="search one arm only; shows its raw scores")
    sub.add_argument(
        "--why-not", metavar="ID", action="append", help="say why this memory is not among the results; may be repeated"
    )
    sub.add_argument("--min-confidence", type=float, metavar="P", help="return nothing below this confidence")
    sub.add_argument("--json", action="store_true", help="one JSON object per result, with every field")


def _search(args: argparse.Namespace) -> int:
    how: dict[str, Any] = {"k": args.k, "filter": read_json(args.filter, "--filter"), "as_of": args.as_of}
    if args.min_confidence is not None:
        how["min_confidence"] = args.min_confidence
    if args.time is not None:
        how["time"] = args.time
    if args.arm is not None and (args.context or "time" in how or "min_confidence" in how):
        raise ConfigError("--arm searches one arm: --time, --context and --min-confidence are for the whole search")
    with open_memory(args) as memory:
        if args.why_not is not None:
            explanation = memory.explain(args.query, **how)
            for key in args.why_not:
                reason = explanation.why_not(key)
                print_json({"id": key, "why_not": reason}) if args.json else say(reason)
            return 0
        if args.arm is not None:
            results = memory.search_arm(args.arm, args.query, **how)
        else:
            results = memory.search(args.query, context=args.context or 0, **how)
        if args.json:
            for rank, result in enumerate(results, start=1):
                print_json(_as_json(rank, result))
        else:
            _print_results(results)
    return 0 if results else NOTHING


def _as_json(rank: int, result: Result) -> dict[str, Any]:
    """A result with every field of its memory, and its receipt."""
    receipt = None if result.receipt is None else result.receipt.to_dict()
    shown = {"rank": rank, "score": result.score, **result.memory.to_dict(), "receipt": receipt}
    return {**shown, "context": [memory.to_dict() for memory in result.context]} if result.context else shown


def _print_results(results: Sequence[Result]) -> None:
    terminal = is_terminal()
    if not results and terminal:
        say(paint("no results", "dim"))
    for rank, result in enumerate(results, start=1):
        head = f"{rank:>3}  {paint(f'{result.score:.3f}', 'green')}  {paint(result.id, 'bold')}"
        if terminal:
            say(head, *wrap(result.text, indent=5, lines=TEXT_LINES))
        else:
            say(f"{head}  {clip(result.text, 0)}")
        if result.receipt is not None:
            for line in wrap(str(result.receipt).split(": ", 1)[1], indent=7):
                say(paint(line, "dim"))
        for place, turn in zip(result.places[1:], result.context, strict=True):
            side = "before" if place < result.places[0] else "after"
            say(paint(f"       {side:<6}  {turn.id}  {clip(turn.text, 0)}", "dim"))


# --- show, list, history, stats, namespaces, check


def _json_option(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--json", action="store_true", help=_AS_JSON)


def _show_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("ids", nargs="+", metavar="ID", help="one or several ids")
    sub.add_argument("--as-of", metavar="TIME", help="as it was at that time")
    _json_option(sub)


def _show(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        shown = [memory.get(key, as_of=args.as_of) for key in args.ids]
    for number, one in enumerate(shown):
        if args.json:
            print_json(one.to_dict())
            continue
        if number:
            say("")
        for name, value in one.to_dict().items():
            if value:
                first, *others = wrap(_plain(value), indent=15)
                say(f"{paint(f'{name:<14}', 'cyan')} {first.strip()}", *others)
    return 0


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _list_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--filter", metavar="JSON", help='such as {"type": "fact"}')
    sub.add_argument("--as-of", metavar="TIME", help="the memories of that time")
    sub.add_argument("--superseded", action="store_true", help="superseded memories too")
    sub.add_argument("--limit", type=whole_number(0), metavar="N", help="the first N by id")
    _json_option(sub)


def _list(args: argparse.Namespace) -> int:
    count = 0
    with open_memory(args) as memory:
        wanted = read_json(args.filter, "--filter")
        every = memory.list(filter=wanted, as_of=args.as_of, superseded=args.superseded)
        for one in itertools.islice(every, args.limit):
            count += 1
            print_json(one.to_dict()) if args.json else say(_line(one))
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
    sub.add_argument("id", metavar="ID", help="the id of the memory")
    _json_option(sub)


def _history(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        versions = memory.history(args.id)
    for version in versions:
        at = datetime.fromtimestamp(version.at, timezone.utc).isoformat(timespec="seconds")
        status = "deleted" if version.deleted else version.memory.status
        if args.json:
            fields = version.memory.to_dict()
            print_json({"seq": version.seq, "at": at, "deleted": version.deleted, **fields})
        else:
            used = len(f"{version.seq:>6}  {at}  {status:<10}  ")
            head = f"{version.seq:>6}  {paint(at, 'dim')}  {paint(f'{status:<10}', 'yellow')}"
            say(f"{head}  {clip(version.memory.text, used)}")
    if not versions and not args.json and is_terminal():
        say(paint("no versions", "dim"))
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
        shown = (
            f"{value:,}" if isinstance(value, int) else value or (_NO_VECTORS if label == "embedder" else "(default)")
        )
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


def _check_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--json", action="store_true", help="the problems as one JSON object")


def _check(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        problems = memory.check()
        count = len(memory)
    if args.json:
        print_json({"memories": count, "problems": list(map(str, problems))})
        return 1 if problems else 0
    for problem in problems:
        say(problem)
    if not problems:
        say(f"no problems in {count} memories")
    return 1 if problems else 0


# --- inspect, mcp


def _inspect_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--port", type=whole_number(0), default=0, help="a port of the loopback address (any free one)")
    sub.add_argument("--open", action="store_true", help="open the page in a browser")


def _inspect(args: argparse.Namespace) -> int:
    from hybridmem.server.inspector import Inspector

    with open_memory(args) as memory:
        namespaces = None if args.namespace else memory.store.namespaces()
        with Inspector(memory, port=args.port, namespaces=namespaces) as inspector:
            say(inspector.url, "Ctrl-C stops it.")
            sys.stdout.flush()
            if args.open:
                import webbrowser

                webbrowser.open(inspector.url)
            inspector.wait()
    return 0


def _mcp_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--http", type=whole_number(0), metavar="PORT", help="streamable HTTP on 127.0.0.1 (0: any free port)"
    )
    sub.add_argument(
        "--namespace-header", metavar="NAME", help="over HTTP: the header that says whose memory a request is about"
    )
    sub.add_argument("-k", type=whole_number(), default=8, help="how many memories a search returns (8)")


def _mcp(args: argparse.Namespace) -> int:
    from hybridmem.server.mcp import HttpServer, build_server, serve_stdio

    with open_memory(args, must_exist=False) as memory:
        if args.http is None:
            asyncio.run(serve_stdio(build_server(memory, k=args.k)))
            return 0
        server = build_server(memory, k=args.k, namespace_header=args.namespace_header)
        http = HttpServer(server, port=args.http, token=os.environ.get(TOKEN))
        say(http.url, f"Authorization: Bearer {http.token}", file=sys.stderr)
        asyncio.run(http.serve())
    return 0


READ = (
    Command(
        "search", "search, with a receipt for each result", 'hybridmem search "cat" -k 3', _search_options, _search
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
    Command("check", "check the store for damage", "hybridmem check", _check_options, _check, embedder=False),
    Command("inspect", "a local web page to try queries and weights", "hybridmem inspect", _inspect_options, _inspect),
    Command(
        "mcp",
        "serve the memory to agents over MCP",
        "hybridmem mcp --memory memory.db",
        _mcp_options,
        _mcp,
        description=f"Serves over stdio; with --http over HTTP, with the token of {TOKEN} or a new one on stderr.",
    ),
)
