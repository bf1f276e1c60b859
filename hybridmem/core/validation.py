"""What comes in at the doors, checked in one place: every refusal names the setting, its value and what is allowed."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, NoReturn

from hybridmem.errors import ConfigError

__all__ = [
    "curve",
    "file_path",
    "flag",
    "function",
    "listed",
    "number",
    "one_of",
    "refuse",
    "shown",
    "text",
    "texts",
    "weights",
    "whole",
]

SHOWN = 200
"""How many characters of a wrong value a message repeats."""


def shown(value: Any, /) -> str:
    """A value as a message shows it, whatever it is and however long.

    >>> shown([1, "a"]), shown(10**5000)
    ("[1, 'a']", 'a value of type int')
    """
    try:
        told = repr(value)
    except Exception:  # noqa: BLE001 - somebody else's __repr__, or a number of too many digits
        return f"a value of type {type(value).__name__}"
    return told if len(told) <= SHOWN else f"{told[:SHOWN]}…"


def refuse(name: str, value: Any, allowed: str, /) -> NoReturn:
    """The one form of a refusal.

    >>> refuse("k", 0, "a whole number from 1 up")
    Traceback (most recent call last):
    hybridmem.errors.ConfigError: k = 0 is not allowed: a whole number from 1 up
    """
    raise ConfigError(f"{name} = {shown(value)} is not allowed: {allowed}")


def number(
    name: str, value: Any, allowed: str, /, *, low: float = -math.inf, high: float = math.inf, above: bool = False
) -> None:
    """A finite number from `low` (or above it) to `high`; numpy's numbers are numbers, booleans are none."""
    if type(value) is not float:
        if isinstance(value, bool) or not isinstance(value, Real):
            refuse(name, value, allowed)
        try:
            float(value)
        except OverflowError:
            refuse(name, value, allowed)
    if not (math.isfinite(value) and low <= value <= high) or (above and value == low):
        refuse(name, value, allowed)


def whole(name: str, value: Any, allowed: str, /, *, low: int) -> None:
    """A whole number from `low` up; booleans are none."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        refuse(name, value, allowed)


def flag(name: str, value: Any, /) -> None:
    """True or False. A text is neither: "false" would be true."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):  # numpy's own has no other base
        refuse(name, value, "True or False")


def text(name: str, value: Any, allowed: str, /) -> None:
    """A str."""
    if not isinstance(value, str):
        refuse(name, value, allowed)


def one_of(name: str, value: Any, choices: Iterable[str], /) -> None:
    """One of some words."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        refuse(name, value, ", ".join(map(repr, known)))


def function(name: str, value: Any, allowed: str, /) -> None:
    """Something that can be called."""
    if not callable(value):
        refuse(name, value, allowed)


def listed(name: str, values: Any, what: str, /) -> list[Any]:
    """Several things; one text, or a mapping, is a mistake and not a list of its letters or keys."""
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        refuse(name, values, f"a list of {what}")
    try:
        return list(values)
    except TypeError:  # numpy's array of no dimension
        refuse(name, values, f"a list of {what}")


def texts(name: str, values: Any, /) -> list[str]:
    """A list of texts."""
    given = listed(name, values, "texts")
    for value in given:
        text(f"one of {name}", value, "a text")
    return given


def weights(values: Any, /) -> list[float]:
    """One weight for each list or arm."""
    given = listed("weights", values, "numbers, one for each arm")
    for value in given:
        try:
            fits = isinstance(value, Real) and 0 <= float(value) < math.inf
        except OverflowError:
            fits = False
        if not fits:
            told = shown(float(value)) if isinstance(value, int) else shown(value)
            raise ConfigError(f"weight {told} is not allowed: weights are finite numbers from 0 up")
    return given


def curve(k1: Any, b: Any, /) -> None:
    """BM25's constants."""
    number("k1", k1, "a finite number of at least 0", low=0)
    number("b", b, "a number from 0 to 1", low=0, high=1)


def file_path(name: str, value: Any, allowed: str, /) -> str:
    """The name of a file or folder, as the system can take it."""
    if not isinstance(value, str | os.PathLike):
        refuse(name, value, allowed)
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        refuse(name, value, allowed)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        refuse(name, value, allowed)
    return path
