"""Shared by all commands: the `Command` description, opening a memory, progress, JSON input and output."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hybridmem.errors import ConfigError
from hybridmem.memory.memory import HybridMemory

__all__ = [
    "NOTHING",
    "Command",
    "exists",
    "no_options",
    "open_memory",
    "print_json",
    "progress",
    "read_json",
    "write_text",
]

NOTHING = 3
"""Exit code for no results, or refused."""
BAR = 24
OFTEN, FIRST, SELDOM = 0.1, 1.0, 5.0
"""Seconds between two updates of a bar; before the first line in a pipe; between two such lines."""


class Command(NamedTuple):
    """One command: name, help, example, options and the function that runs it."""

    name: str
    help: str
    example: str
    options: Callable[[argparse.ArgumentParser], object]
    run: Callable[[argparse.Namespace], int]
    description: str = ""
    memory: bool = True


def no_options(_sub: argparse.ArgumentParser) -> None:
    """Add no options."""


def open_memory(args: argparse.Namespace, *, must_exist: bool = True) -> HybridMemory:
    """Open the memory that the options name."""
    if must_exist:
        exists(args.memory, otherwise="add something first, or name one with --memory")
    embedder = None if args.embedder == "none" else args.embedder
    return HybridMemory(args.memory, embedder=embedder, namespace=args.namespace, recipe=args.recipe)


def exists(path: str, *, otherwise: str) -> None:
    """Raise ConfigError if there is no memory at `path`; `otherwise` says what to do."""
    if "://" not in path and path != ":memory:" and not Path(path).exists():
        raise ConfigError(f"there is no memory at {path!r}: {otherwise}")


def progress(label: str, *, rate: bool = True) -> Callable[[int, int | None], None]:
    """A progress callback: a bar on a terminal, otherwise a line on stderr every few seconds and one at the end."""
    started = time.monotonic()
    last, started_output = [-math.inf if sys.stderr.isatty() else started - SELDOM + FIRST], [False]

    def report(done: int, total: int | None) -> None:
        now, watched = time.monotonic(), sys.stderr.isatty()
        finished = total is not None and done >= total
        if now - last[0] < (OFTEN if watched else SELDOM) and not (finished and (watched or started_output[0])):
            return
        last[0], started_output[0] = now, True
        count = f"{done}" if total is None else f"{done} of {total}"
        if watched:
            speed = f" ({done / max(now - started, 1e-9):,.0f}/s)" if rate else ""
            shown = f"{label}: {count}" if not total else f"{label} {_bar(done, total)} {count}"
            print(f"\r\x1b[K{shown}{speed}", end="\n" if finished else "", file=sys.stderr, flush=True)
        else:
            print(f"{label}: {count}", file=sys.stderr, flush=True)

    return report


def _bar(done: int, total: int) -> str:
    """A progress bar with its percentage.

    >>> _bar(6, 12)
    '[############............]  50 %'
    """
    share = min(1.0, done / total)
    full = int(share * BAR)
    return f"[{'#' * full}{'.' * (BAR - full)}] {share * 100:3.0f} %"


def print_json(value: Any) -> None:
    """Print one JSON value on one line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, default=str)  # ASCII with escapes is valid JSON in every encoding
    print(text)


def read_json(text: str | None, option: str) -> Any:
    """Parse the value of an option that takes JSON."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is not JSON: {error}") from error


def write_text(text: str, path: str) -> None:
    """Write text to a file, or to standard output for `-`."""
    if path == "-":
        print(text, end="" if text.endswith("\n") else "\n")
    else:
        Path(path).write_text(text, encoding="utf-8")
