"""Shared by all commands: the `Command` description, opening a memory, choosing its embedder, options in JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hybridmem.core.protocols import Store
from hybridmem.errors import ConfigError
from hybridmem.memory.factory import check_place, open_store
from hybridmem.memory.memory import HybridMemory
from hybridmem.memory.upkeep import recorded

__all__ = ["NOTHING", "Command", "exists", "load_embedder", "no_options", "open_memory", "read_json", "whole_number"]

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

    A store records a name, never code to load: a data file from somebody else must not choose what is imported.
    """
    known = recorded(store)
    if given != "auto" or known is None:
        return load_embedder(given)
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
