"""Validation of arguments at the public API, and the forms in which texts are stored and compared.

Every error names the parameter, its value and what is allowed.
"""

from __future__ import annotations

import math
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from numbers import Integral, Real
from typing import Any, NoReturn

from hybridmem.core.protocols import View
from hybridmem.core.times import epoch
from hybridmem.errors import ConfigError

__all__ = [
    "as_of",
    "bm25_constants",
    "clean",
    "clock_seconds",
    "display",
    "file_path",
    "flag",
    "function",
    "ids",
    "in_namespace",
    "integer",
    "k",
    "listed",
    "namespace",
    "normalized",
    "number",
    "one_of",
    "optional_time",
    "refuse",
    "text",
    "text_digest",
    "texts",
    "time",
    "view",
    "view_of",
    "weights",
]

MAX_DISPLAYED = 200
"""How many characters of a wrong value a message repeats."""
_YEAR_9999 = 253_402_300_799.0


def display(value: Any, /) -> str:
    """The value as it appears in an error message, shortened.

    >>> display([1, "a"]), display(10**5000)
    ("[1, 'a']", 'a value of type int')
    """
    try:
        result = repr(value)
    except Exception:  # noqa: BLE001 - a foreign __repr__, or a number of too many digits
        return f"a value of type {type(value).__name__}"
    return result if len(result) <= MAX_DISPLAYED else f"{result[:MAX_DISPLAYED]}…"


def in_namespace(name: str, /) -> str:
    """The namespace as it appears after "in" in an error message.

    >>> in_namespace("ana"), in_namespace("")
    ("namespace 'ana'", 'the default namespace')
    """
    return f"namespace {name!r}" if name else "the default namespace"


def refuse(name: str, value: Any, allowed: str, /) -> NoReturn:
    """Raise ConfigError in the one wording that all checks use.

    >>> refuse("k", 0, "a whole number from 1 up")
    Traceback (most recent call last):
    hybridmem.errors.ConfigError: k = 0 is not allowed: a whole number from 1 up
    """
    raise ConfigError(f"{name} = {display(value)} is not allowed: {allowed}")


def number(
    name: str, value: Any, allowed: str, /, *, low: float = -math.inf, high: float = math.inf, above: bool = False
) -> None:
    """Check for a finite number from `low` (`above=True`: greater than `low`) to `high`; a bool is not a number."""
    if type(value) is not float:
        if isinstance(value, bool) or not isinstance(value, Real):
            refuse(name, value, allowed)
        try:
            float(value)
        except OverflowError:
            refuse(name, value, allowed)
    if not (math.isfinite(value) and low <= value <= high) or (above and value == low):
        refuse(name, value, allowed)


def integer(name: str, value: Any, allowed: str, /, *, low: int) -> None:
    """Check for an integer from `low` up; a bool is not an integer."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        refuse(name, value, allowed)


def k(value: Any, /, *, name: str = "k") -> int:
    """The number of results to return, as an int; it must be an integer from 1 up."""
    if type(value) is not int or value < 1:
        integer(name, value, "a whole number from 1 up", low=1)
    return int(value)


def flag(name: str, value: Any, /) -> None:
    """Check for True or False; a text is refused because "false" would count as true."""
    if value is not True and value is not False and type(value).__name__ not in ("bool", "bool_"):  # numpy's bool
        refuse(name, value, "True or False")


def text(name: str, value: Any, allowed: str, /) -> None:
    """Check for a str."""
    if not isinstance(value, str):
        refuse(name, value, allowed)


def namespace(value: Any, /) -> str:
    """The namespace; it must be text that every database can store."""
    if not isinstance(value, str) or clean(value) != value:
        refuse("namespace", value, "encodable text")
    return value


def as_of(value: Any, /) -> float | None:
    """The time of an `as_of` search in epoch seconds; None (now) stays None."""
    return optional_time("as_of", value)


def time(name: str, value: Any, /) -> float:
    """A time in epoch seconds."""
    seconds = epoch(value)
    if seconds is None:
        refuse(name, value, "a datetime, date, ISO-8601 text or epoch seconds")
    return seconds


def optional_time(name: str, value: Any, /) -> float | None:
    """A time in epoch seconds; None stays None."""
    return None if value is None else time(name, value)


def clock_seconds(clock: Callable[[], float], /) -> float:
    """The time of a clock; an error when it does not return a finite number of seconds."""
    now = clock()
    number("the value of clock()", now, "epoch seconds: a finite number", low=-_YEAR_9999, high=_YEAR_9999)
    return float(now)


def view(value: View, /) -> None:
    """Check for a `View(namespace, as_of, superseded)`."""
    if not isinstance(value, View):
        refuse("view", value, "View(namespace, as_of, superseded)")
    namespace(value.namespace)
    if value.as_of is not None and type(value.as_of) is not float:
        number("View.as_of", value.as_of, "epoch seconds, or None")
    if value.superseded is not True and value.superseded is not False:
        flag("View.superseded", value.superseded)


def view_of(name: Any, moment: Any, /, *, superseded: bool) -> View:
    """The view of the arguments `namespace`, `as_of` and `superseded` of a call."""
    flag("superseded", superseded)
    return View(namespace(name), as_of(moment), superseded)


def one_of(name: str, value: Any, choices: Iterable[str], /) -> None:
    """Check for one of several words."""
    allowed = list(choices)
    if not isinstance(value, str) or value not in allowed:
        refuse(name, value, ", ".join(map(repr, allowed)))


def function(name: str, value: Any, allowed: str, /) -> None:
    """Check for a callable."""
    if not callable(value):
        refuse(name, value, allowed)


def listed(name: str, values: Any, what: str, /) -> list[Any]:
    """The values as a list; a single text or a mapping is refused instead of iterated."""
    if isinstance(values, str | bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        refuse(name, values, f"a list of {what}")
    try:
        return list(values)
    except TypeError:  # a numpy array without dimensions
        refuse(name, values, f"a list of {what}")


def texts(name: str, values: Any, /) -> list[str]:
    """The values as a list of texts."""
    given = listed(name, values, "texts")
    for value in given:
        text(f"one of {name}", value, "a text")
    return given


def ids(values: Sequence[str], /) -> list[str]:
    """Ids as they are stored (see `clean`); a single str is refused."""
    if type(values) is not list:
        values = listed("ids", values, "str")
    try:
        return [clean(value) for value in values]
    except (TypeError, AttributeError):
        for value in values:
            text("id", value, "a str")
        raise


def weights(values: Any, /) -> list[float]:
    """The weights of lists or arms as a list of finite numbers from 0 up."""
    given = listed("weights", values, "numbers, one for each arm")
    for value in given:
        try:
            valid = isinstance(value, Real) and 0 <= float(value) < math.inf
        except OverflowError:
            valid = False
        if not valid:
            shown = display(float(value)) if isinstance(value, int) else display(value)
            raise ConfigError(f"weight {shown} is not allowed: weights are finite numbers from 0 up")
    return given


def bm25_constants(k1: Any, b: Any, /) -> None:
    """Check BM25's k1 (at least 0) and b (0 to 1)."""
    number("k1", k1, "a finite number of at least 0", low=0)
    number("b", b, "a number from 0 to 1", low=0, high=1)


def file_path(name: str, value: Any, allowed: str, /) -> str:
    """The path of a file or folder as a str that the operating system accepts."""
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


def clean(text: str, /) -> str:
    r"""The text with characters that databases cannot store (NUL, unpaired surrogates) replaced by U+FFFD.

    Stores keep texts in this form, and filters compare them in this form.

    >>> clean("ok \ud83d") == "ok \ufffd"
    True
    """
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def normalized(text: str, /) -> str:
    """The text in lower case with single spaces and without compatibility forms: equal for duplicates.

    >>> normalized("  The  Cat ") == normalized("the cat")
    True
    """
    plain = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    return " ".join(plain.split())


def text_digest(text: str, /) -> int:
    """A signed 64-bit hash of the normalized text, by which stores find duplicates."""
    data = normalized(text).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)
