"""The command that serves a memory to agents: mcp."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from hybridmem.cli.commands.base import Command, open_memory

__all__ = ["AGENTS"]

TOKEN = "HYBRIDMEM_MCP_TOKEN"  # noqa: S105 - the name of a variable


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
        print(f"{http.url}\nAuthorization: Bearer {http.token}", file=sys.stderr, flush=True)
        asyncio.run(http.serve())
    return 0


AGENTS = (
    Command(
        "mcp",
        "serve the memory to agents over MCP",
        "hybridmem mcp --memory memory.db",
        _mcp_options,
        _mcp,
        description=f"Serves over stdio; with --http over HTTP, with the token of {TOKEN} or a new one on stderr.",
    ),
)
