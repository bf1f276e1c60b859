"""Commands that serve and maintain a memory: inspect, mcp, check, reindex, backup, copy."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time

from hybridmem.cli.commands.base import Command, exists, load_embedder, no_options, open_memory
from hybridmem.cli.output import Progress, say

__all__ = ["UPKEEP"]

TOKEN = "HYBRIDMEM_MCP_TOKEN"  # noqa: S105 - the name of a variable


def _check(args: argparse.Namespace) -> int:
    with open_memory(args) as memory:
        problems = memory.check()
        count = len(memory)
    for problem in problems:
        say(problem)
    if not problems:
        say(f"no problems in {count} memories")
    return 1 if problems else 0


def _reindex(args: argparse.Namespace) -> int:
    """Embed everything again; opens without an embedder, because the new one may differ from the recorded one."""
    from hybridmem.memory.factory import pick_embedder

    plain = argparse.Namespace(memory=args.memory, namespace=args.namespace)
    with open_memory(plain) as memory, Progress("embedded") as progress:
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
            with Progress("copied") as progress:
                done = copy_store(source, target, progress=progress)
            earlier = f", {done.resumed} of them by an earlier run" if done.resumed else ""
            say(f"copied {done.rows} entries{earlier}; both sides have checksum {done.checksum}")
        finally:
            target.close()
    finally:
        source.close()
    return 0


def _inspect_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--port", type=int, default=0, help="a port of the loopback address (any free one)")
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
    sub.add_argument("--http", type=int, metavar="PORT", help="streamable HTTP on 127.0.0.1 (0: any free port)")
    sub.add_argument(
        "--namespace-header", metavar="NAME", help="over HTTP: the header that says whose memory a request is about"
    )
    sub.add_argument("-k", type=int, default=8, help="how many memories a search returns (8)")


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


UPKEEP = (
    Command("inspect", "a local web page to try queries and weights", "hybridmem inspect", _inspect_options, _inspect),
    Command(
        "mcp",
        "serve the memory to agents over MCP",
        "hybridmem mcp --memory memory.db",
        _mcp_options,
        _mcp,
        description=f"Serves over stdio; with --http over HTTP, with the token of {TOKEN} or a new one on stderr.",
    ),
    Command("check", "check the store for damage", "hybridmem check", no_options, _check, embedder=False),
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
        "copy one store to another, SQLite or PostgreSQL",
        "hybridmem copy memory.db postgresql://localhost/memory",
        _copy_options,
        _copy,
        memory=False,
    ),
)
