"""Shared by all commands: the `Command` description, opening a memory, choosing its embedder, options, and output."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import secrets
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

from hybridmem.core.protocols import Store, SupportsExternalEdits
from hybridmem.errors import ConfigError
from hybridmem.memory.embeddings import recorded
from hybridmem.memory.factory import check_place, open_store
from hybridmem.memory.memory import HybridMemory

__all__ = [
    "NOTHING",
    "Command",
    "ProgressBar",
    "check_output",
    "clip",
    "exists",
    "is_terminal",
    "json_line",
    "load_embedder",
    "no_options",
    "one_line",
    "open_memory",
    "paint",
    "print_json",
    "read_json",
    "say",
    "say_count",
    "say_error",
    "shows_colour",
    "terminal_width",
    "visible",
    "whole_number",
    "wrap",
    "write_json",
    "write_text",
]

NOTHING = 3
"""Exit code for no results, or refused."""
LOCAL = "wordllama-"
"""How the names of the local embedder begin."""


class Command(NamedTuple):
    """One command: name, help, example, options and the function that runs it.

    `memory`: takes the options that name a memory. `embedder`: needs one, so it takes --embedder and --recipe too.
    """

    name: str
    help: str
    example: str
    options: Callable[[argparse.ArgumentParser], object]
    run: Callable[[argparse.Namespace], int]
    description: str = ""
    memory: bool = True
    embedder: bool = True


def no_options(_sub: argparse.ArgumentParser) -> None:
    """Add no options."""


def whole_number(low: int = 1) -> Callable[[str], int]:
    """The type of an option that takes a whole number from `low` up."""

    def parse(text: str) -> int:
        number = int(text) if text.strip().removeprefix("-").isdecimal() else low - 1
        if number < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} up")
        return number

    return parse


def open_memory(args: argparse.Namespace, *, must_exist: bool = True, recipe: str | None = None) -> HybridMemory:
    """Open the memory that the options name; commands without --embedder open it without one."""
    if must_exist:
        exists(args.memory, otherwise="add something first, or name one with --memory")
    given: str = getattr(args, "embedder", "none")  # commands that need no embedder do not have this option
    ranked: str = recipe or getattr(args, "recipe", None) or "default"
    if not must_exist and not _is_there(args.memory) and is_terminal():
        say_error(f"{args.memory} is a new memory")
    if given == "none" or not _is_there(args.memory):
        embedder = None if given == "none" else load_embedder(given)
        return HybridMemory(args.memory, embedder=embedder, namespace=args.namespace, recipe=ranked)
    store = open_store(args.memory, clock=time.time)
    try:
        embedder = _embedder_of(store, given)
        return HybridMemory(store, embedder=embedder, namespace=args.namespace, recipe=ranked)
    except BaseException:
        store.close()
        raise


def _embedder_of(store: Store, given: str) -> Any:
    """The embedder that --embedder names; "auto" is the one that the store was made with, if it is the local one.

    A store that was filled without an embedder stays without one; notes written by hand have no vectors yet. A store
    records a name, never code to load: a data file from somebody else must not choose what is imported.
    """
    known = recorded(store)
    if given != "auto":
        return load_embedder(given)
    if known is None:
        return None if store.last_seq() and not isinstance(store, SupportsExternalEdits) else "auto"
    if known["name"].startswith(LOCAL):
        if find_spec("wordllama") is None:
            raise ConfigError(
                "this memory was made with the offline embedder, which is not installed: pip install "
                "'hybridmem[local]'; --embedder none searches without vectors"
            )
        return "local"
    raise ConfigError(
        f"this memory was made with the embedder {known['name']!r} ({known['dim']} dimensions): name the object in "
        "your code with --embedder module:attribute, such as --embedder my_models:embedder for `embedder` in "
        "my_models.py, or set HYBRIDMEM_EMBEDDER to it; --embedder none searches without vectors"
    )


def load_embedder(given: str) -> Any:
    """The embedder of an option: "auto", "local", or the object that `module:attribute` names."""
    if ":" not in given:
        if given not in ("auto", "local"):
            raise ConfigError(f"--embedder {given!r} is not allowed: auto, local, none or module:attribute")
        return given
    module, _, attribute = given.partition(":")
    sys.path.insert(0, str(Path.cwd()))  # a module beside the data, as with `python -m`
    try:
        value = import_module(module)
        for name in attribute.split("."):
            value = getattr(value, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--embedder {given!r} cannot be loaded: {error}") from error
    finally:
        sys.path.pop(0)
    return value() if isinstance(value, type) else value


def _is_there(path: str) -> bool:
    return "://" in path or Path(path).exists()


def exists(path: str, *, otherwise: str) -> None:
    """Raise ConfigError if there is no memory at `path`; `otherwise` says what to do."""
    if check_place(path) != ":memory:" and not _is_there(path):
        raise ConfigError(f"there is no memory at {path!r}: {otherwise}")


def read_json(text: str | None, option: str) -> Any:
    """Parse the value of an option that takes JSON."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is not JSON: {error}") from error


BAR = 24
OFTEN, FIRST, SELDOM = 0.1, 1.0, 5.0
"""Seconds between two updates of a bar; before the first line in a pipe; between two such lines."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""C0 without tab and newline, DEL, C1, line separators, and the characters that change the direction of text."""
_MARK = secrets.token_hex(8)
"""Marks the colour codes of `paint`, so that a stored text cannot have one that `say` accepts."""
_PAINTED = re.compile(rf"\x1b\[([0-9;]+)m{_MARK}")
STYLES = {"bold": "1", "dim": "2", "green": "32", "yellow": "33", "cyan": "36"}


# --- output: progress, colours, JSON, files


class ProgressBar:
    """A progress callback: a bar on a terminal, otherwise a line on stderr every few seconds and one at the end.

    Use it in a `with` statement: an unfinished bar then ends its line.
    """

    def __init__(self, label: str, *, rate: bool = True) -> None:
        self._label, self._rate = label, rate
        self._started = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._last = -math.inf if self._terminal else self._started - SELDOM + FIRST
        self._printed = self._open = False

    def __enter__(self) -> ProgressBar:
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


def visible(text: str) -> str:
    r"""The text with its control characters escaped; tabs and newlines stay.

    >>> print(visible("a\x1b[2J\u202eb"))
    a\x1b[2J\u202eb
    """
    return _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    """The text with its control characters escaped, newlines and tabs too: for ids and names."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def say(*lines: object, file: IO[str] | None = None) -> None:
    """Print lines, by default on standard output: control characters are escaped, colours of `paint` are kept."""
    for line in lines:
        pieces = _PAINTED.split(str(line))  # text, codes, text, codes, …
        pieces[::2] = map(visible, pieces[::2])
        pieces[1::2] = [f"\x1b[{codes}m" for codes in pieces[1::2]]
        print("".join(pieces), file=file)


def say_count(count: int, what: str) -> None:
    """Print a count: with what was counted on a terminal, the bare number elsewhere."""
    say(f"{count:,} {what}" if is_terminal() else count)


def say_error(message: object) -> None:
    """Print a message on standard error that begins with the name of the command; on a terminal it is wrapped."""
    text = visible(f"hybridmem: {message}")
    if sys.stderr.isatty():
        text = textwrap.fill(text, _width(), break_on_hyphens=False, break_long_words=False)
    print(text, file=sys.stderr, flush=True)


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and not sys.stdout.closed and sys.stdout.isatty()


def shows_colour() -> bool:
    """Whether to print colours: on a terminal, unless NO_COLOR is set or TERM is "dumb"."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_terminal()


def paint(text: str, *styles: str) -> str:
    """One line of text in these styles, for `say`; without colours where they are not shown."""
    shown = one_line(text)
    if not styles or not shows_colour():
        return shown
    return f"\x1b[{';'.join(STYLES[style] for style in styles)}m{_MARK}{shown}\x1b[0m{_MARK}"


def terminal_width() -> int | None:
    """The width of the terminal; None where the output is not one."""
    return _width() if is_terminal() else None


def _width() -> int:
    return max(40, shutil.get_terminal_size().columns)


def wrap(text: str, *, indent: int = 0, lines: int | None = None) -> Iterable[str]:
    """The text as indented lines of the terminal's width, cut to `lines`; one whole line where it is no terminal."""
    flat = _flat(text)
    if not is_terminal():
        return [" " * indent + flat]
    margin = " " * indent
    style: dict[str, Any] = {"initial_indent": margin, "subsequent_indent": margin}
    return textwrap.wrap(flat, _width(), max_lines=lines, placeholder=" …", **style) or [margin]


def _flat(text: str) -> str:
    return " ".join(visible(text).split())


def clip(text: str, used: int) -> str:
    """The text on one line, cut to what is left of the terminal's width; whole where the output is not a terminal."""
    flat = _flat(text)
    left = max(20, _width() - used)
    if not is_terminal() or len(flat) <= left:
        return flat
    return f"{flat[: left - 1]}…"


def json_line(value: Any) -> str:
    """The value as JSON on one line; control characters are escaped, C1 and text direction too."""
    return _json_escaped(json.dumps(value, ensure_ascii=False, default=str))


def _json_escaped(text: str) -> str:
    """JSON with its control characters escaped: only strings can contain them."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(value: Any) -> None:
    """Print one JSON value on one line."""
    _print_encoded(json_line(value))


def _print_encoded(text: str) -> None:
    """Print JSON; characters that the output cannot encode are escaped as JSON does it."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text))  # ASCII with escapes is valid JSON in every encoding
    print(text)


def check_output(option: str, path: str | None) -> None:
    """Raise ConfigError if the file that an option names cannot be created; called before a long run."""
    if path is None or path == "-":
        return
    place = Path(path)
    if place.is_dir():
        raise ConfigError(f"{option} {path!r} is a folder: name a file")
    if not place.parent.is_dir():
        raise ConfigError(f"{option} {path!r}: there is no folder {str(place.parent)!r}")


def write_json(text: str, path: str) -> None:
    """Write JSON to a file, or to standard output for `-`."""
    if path == "-":
        _print_encoded(_json_escaped(text.rstrip("\n")))
    else:
        Path(path).write_text(_json_escaped(text), encoding="utf-8")


def write_text(text: str, path: str) -> None:
    """Write text to a file, or to standard output for `-`."""
    if path == "-":
        say(text.removesuffix("\n"))
    else:
        Path(path).write_text(text, encoding="utf-8")
