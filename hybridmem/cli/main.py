"""The `hybridmem` command: its parser, its exit codes and the handling of errors."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence

from hybridmem import __version__
from hybridmem.cli import commands
from hybridmem.cli.completion import SHELLS, completion_script
from hybridmem.errors import HybridMemError

__all__ = ["build_parser", "main"]

DEFAULT_PATH = "memory.db"
EXIT_ERROR = 1
EXIT_INTERRUPTED = 130

_EPILOG = """\
examples:
  hybridmem add "Ana has moved to Lisbon." --subject ana
  hybridmem import notes.jsonl
  hybridmem search "Where does Ana live?" -k 3
  hybridmem search "Where does Ana live?" --why-not 01HX…
  hybridmem list --limit 10
  hybridmem eval cases.jsonl
  hybridmem tune cases.jsonl -o recipe.json
  hybridmem inspect

The memory is the file memory.db in the current folder, or the value of --memory or HYBRIDMEM: a file, a folder of
Markdown notes, or a postgresql:// address. HYBRIDMEM_EMBEDDER is the default of --embedder. Exit codes: 0 success,
1 error (message on stderr), 2 wrong usage, 3 no results or refused, 130 interrupted.
"""


_COMPLETION = """\
example:
  eval "$(hybridmem completion bash)"
  hybridmem completion fish > ~/.config/fish/completions/hybridmem.fish
"""


def build_parser() -> argparse.ArgumentParser:
    """The argument parser with every command."""
    parser = argparse.ArgumentParser(
        prog="hybridmem",
        description="Hybrid retrieval for agent memory: BM25, vectors and graph, fused and explained.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hybridmem {__version__}")
    subs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for spec in commands.COMMANDS:
        example = f"example:\n  {spec.example}"
        sub = subs.add_parser(
            spec.name,
            help=spec.help,
            description=spec.description,
            epilog=example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if spec.memory:
            _memory_options(sub, embedder=spec.embedder)
        spec.options(sub)
        sub.set_defaults(run=spec.run)
    sub = subs.add_parser("completion", help="print a completion script for your shell", epilog=_COMPLETION)
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.add_argument("shell", choices=SHELLS)
    sub.set_defaults(run=_completion)
    return parser


def _completion(args: argparse.Namespace) -> int:
    print(completion_script(args.shell, build_parser()), end="")
    return 0


def _memory_options(sub: argparse.ArgumentParser, *, embedder: bool) -> None:
    group = sub.add_argument_group("the memory")
    where = os.environ.get("HYBRIDMEM", DEFAULT_PATH)
    group.add_argument("-m", "--memory", default=where, metavar="PATH", help=f"file, folder or address ({where})")
    group.add_argument("-n", "--namespace", default="", metavar="NAME", help="namespace to use (the default namespace)")
    if not embedder:
        return
    chosen = os.environ.get("HYBRIDMEM_EMBEDDER", "auto")
    group.add_argument(
        "--embedder",
        default=chosen,
        metavar="NAME",
        help="local: the offline embedder; none: BM25 and graph only; module:attribute: an embedding object or "
        "function; "
        f"auto: the one the memory was made with, else local if it is installed ({chosen})",
    )
    group.add_argument("--recipe", default="default", metavar="NAME|FILE", help="recipe for ranking (default)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = build_parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # characters that the terminal cannot encode are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = args.run(args)
        if sys.stdout is not None and not sys.stdout.closed:  # `hybridmem search … >&-`
            sys.stdout.flush()
    except HybridMemError as error:
        print(f"hybridmem: {error}", file=sys.stderr)
        return EXIT_ERROR
    except BrokenPipeError:  # `hybridmem search … | head -1`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("hybridmem: interrupted; everything reported as done is kept", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        print(f"hybridmem: {error}", file=sys.stderr)
        return EXIT_ERROR
    return code
