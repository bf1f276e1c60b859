"""Output of the command line: progress, JSON, colours, and text wrapped to the width of the terminal."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hybridmem.core.types import Memory

__all__ = ["Progress", "clip", "memory_fields", "paint", "print_json", "shows_colour", "wrap", "write_text"]

BAR = 24
OFTEN, FIRST, SELDOM = 0.1, 1.0, 5.0
"""Seconds between two updates of a bar; before the first line in a pipe; between two such lines."""
STYLES = {"bold": "1", "dim": "2", "green": "32", "yellow": "33", "cyan": "36"}


class Progress:
    """A progress callback: a bar on a terminal, otherwise a line on stderr every few seconds and one at the end.

    Use it in a `with` statement: an unfinished bar then ends its line.
    """

    def __init__(self, label: str, *, rate: bool = True) -> None:
        self._label, self._rate = label, rate
        self._started = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._last = -math.inf if self._terminal else self._started - SELDOM + FIRST
        self._printed = self._open = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._open:
            print(file=sys.stderr, flush=True)
            self._open = False

    def __call__(self, done: int, total: int | None) -> None:
        """Report that `done` of `total` are finished."""
        now, finished = time.monotonic(), total is not None and done >= total
        pause = OFTEN if self._terminal else SELDOM
        if now - self._last < pause and not (finished and (self._terminal or self._printed)):
            return
        self._last, self._printed = now, True
        count = f"{done}" if total is None else f"{done} of {total}"
        if not self._terminal:
            print(f"{self._label}: {count}", file=sys.stderr, flush=True)
            return
        speed = f" ({done / max(now - self._started, 1e-9):,.0f}/s)" if self._rate else ""
        line = f"{self._label} {_bar(done, total)} {count}" if total else f"{self._label}: {count}"
        print(f"\r\x1b[K{line}{speed}", end="\n" if finished else "", file=sys.stderr, flush=True)
        self._open = not finished


def _bar(done: int, total: int) -> str:
    """A progress bar with its percentage.

    >>> _bar(6, 12)
    '[############............]  50 %'
    """
    share = min(1.0, done / total)
    full = int(share * BAR)
    return f"[{'#' * full}{'.' * (BAR - full)}] {share * 100:3.0f} %"


def shows_colour() -> bool:
    """Whether to print colours: on a terminal, unless NO_COLOR is set or TERM is "dumb"."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout is not None and sys.stdout.isatty()


def paint(text: str, *styles: str) -> str:
    """The text in these styles, or unchanged where colours are not shown."""
    if not styles or not shows_colour():
        return text
    return f"\x1b[{';'.join(STYLES[style] for style in styles)}m{text}\x1b[0m"


def _width() -> int:
    return max(40, shutil.get_terminal_size().columns)


def wrap(text: str, *, indent: int = 0) -> Iterable[str]:
    """The text as indented lines of the terminal's width; one line where the output is not a terminal."""
    flat = " ".join(text.split())
    if sys.stdout is None or not sys.stdout.isatty():
        return [" " * indent + flat]
    margin = " " * indent
    return textwrap.wrap(flat, _width(), initial_indent=margin, subsequent_indent=margin) or [margin]


def clip(text: str, used: int) -> str:
    """The text on one line, cut to what is left of the terminal's width; whole where the output is not a terminal."""
    flat = " ".join(text.split())
    left = max(20, _width() - used)
    if sys.stdout is None or not sys.stdout.isatty() or len(flat) <= left:
        return flat
    return f"{flat[: left - 1]}…"


def memory_fields(memory: Memory) -> dict[str, Any]:
    """Every field of a memory as JSON-ready data, with times in ISO 8601."""
    return memory.to_dict()


def print_json(value: Any) -> None:
    """Print one JSON value on one line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, default=str)  # ASCII with escapes is valid JSON in every encoding
    print(text)


def write_text(text: str, path: str) -> None:
    """Write text to a file, or to standard output for `-`."""
    if path == "-":
        print(text, end="" if text.endswith("\n") else "\n")
    else:
        Path(path).write_text(text, encoding="utf-8")
