"""Conversion of datetimes, dates, ISO-8601 texts and epoch numbers to epoch seconds (UTC), and back."""

from __future__ import annotations

import math
import re
from datetime import date, datetime, timedelta, timezone
from functools import lru_cache
from numbers import Real
from typing import Any

__all__ = ["Time", "as_datetime", "epoch", "from_epoch", "has_passed", "iso"]

Time = datetime | date | str | float
"""A time as users give it: a datetime or date (naive means UTC), ISO-8601 text, or epoch seconds or milliseconds."""

_UTC = timezone.utc
_ZERO = datetime(1970, 1, 1, tzinfo=_UTC)
_fromtimestamp = datetime.fromtimestamp
_ZERO_DAY = _ZERO.toordinal()
_MILLISECONDS = 1e11  # as seconds this is the year 5138, so larger numbers are milliseconds
_FIRST = float((date.min.toordinal() - _ZERO_DAY) * 86400)
_END = float((date.max.toordinal() - _ZERO_DAY + 1) * 86400)
_LAST = math.nextafter(_END, 0.0)

# A pattern, because `fromisoformat` accepts different formats on Python 3.10 and on 3.11+.
_ISO = re.compile(
    r"(\d{4})(-?)(\d\d)\2(\d\d)"
    r"(?:[Tt ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)?\s*([Zz]|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
_NUMBER = re.compile(r"[+-]?\d{9,}(?:\.\d+)?", re.ASCII)


def epoch(value: Any, /) -> float | None:  # noqa: PLR0911 - one return per kind of time
    """Epoch seconds of a datetime, date, ISO-8601 text or epoch number (milliseconds above 1e11); None if unreadable.

    Naive times are UTC. Booleans, NaN, infinities and years outside 1-9999 are unreadable.

    >>> epoch("1970-01-02T00:00:00Z"), epoch(86_400), epoch(1_700_000_000_000), epoch("soon")
    (86400.0, 86400.0, 1700000000.0, None)
    """
    kind = type(value)
    if kind is str:
        return _from_text(value)
    if kind is float or kind is int:
        return _from_number(value)
    if value is None or kind is bool:
        return None
    if isinstance(value, datetime):
        return _from_datetime(value)
    if isinstance(value, date):
        return float((value.toordinal() - _ZERO_DAY) * 86400)
    if isinstance(value, str):
        return _from_text(str(value))
    if isinstance(value, Real):
        return _from_number(float(value))
    if kind.__module__ == "numpy" and kind.__name__ == "datetime64":
        return epoch(value.astype("datetime64[us]").item())
    return None


def has_passed(when: Any, now: float, /) -> bool:
    """Whether a time is at or before `now`; False for None and for what is unreadable.

    >>> has_passed("1970-01-02", 86_400.0), has_passed(None, 86_400.0)
    (True, False)
    """
    seconds = epoch(when)
    return seconds is not None and seconds <= now


def as_datetime(value: Any, /) -> datetime | None:
    """The time as an aware UTC datetime; None if unreadable.

    >>> as_datetime("2024-05-01T12:00+02:00")
    datetime.datetime(2024, 5, 1, 10, 0, tzinfo=datetime.timezone.utc)
    """
    seconds = epoch(value)
    return None if seconds is None else from_epoch(seconds)


def from_epoch(seconds: float, /) -> datetime:
    """The aware UTC datetime of epoch seconds (never taken for milliseconds).

    >>> from_epoch(86_400.0)
    datetime.datetime(1970, 1, 2, 0, 0, tzinfo=datetime.timezone.utc)
    """
    if 0 <= seconds < _END:
        return _fromtimestamp(seconds, _UTC)
    return _ZERO + timedelta(seconds=seconds)  # before 1970, where some platforms fail


def iso(seconds: float, /) -> str:
    """Epoch seconds as ISO-8601 text in UTC.

    >>> iso(86_400.5)
    '1970-01-02T00:00:00.500000Z'
    """
    return from_epoch(seconds).isoformat().replace("+00:00", "Z")


def _from_datetime(value: datetime) -> float | None:
    try:
        seconds = (value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)).timestamp()
    except (OverflowError, ValueError):  # an offset moves it out of years 1-9999; pandas' NaT
        return None
    return _within(seconds) if value.microsecond else seconds if _FIRST <= seconds < _END else None


def _within(seconds: float) -> float | None:
    """The seconds if they lie in years 1-9999; the last microseconds of 9999, which round up, become the last value."""
    if _FIRST <= seconds < _END:
        return seconds
    return _LAST if seconds == _END else None


def _from_number(value: float) -> float | None:
    try:
        seconds = float(value)
    except OverflowError:
        return None
    if abs(seconds) > _MILLISECONDS:
        seconds /= 1000.0
    return seconds if _FIRST <= seconds < _END else None  # NaN and infinities fail the comparison


@lru_cache(maxsize=8192)
def _from_text(text: str) -> float | None:
    stripped = text.strip()
    match = _ISO.fullmatch(stripped)
    if match is None:
        return _from_number(float(stripped)) if _NUMBER.fullmatch(stripped) else None
    year, _, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _ZERO_DAY
    except ValueError:
        return None
    clock = _clock_seconds(int(hour or 0), int(minute or 0), int(second or 0))
    offset = _zone_seconds(zone)
    if clock is None or offset is None:
        return None
    seconds = float(days * 86400 + clock - offset)
    if fraction is None:
        return seconds if _FIRST <= seconds < _END else None
    return _within(seconds + int(fraction[:6].ljust(6, "0")) / 1e6)  # microseconds, the precision of datetime


def _clock_seconds(hour: int, minute: int, second: int) -> int | None:
    if hour > 23 or minute > 59 or second > 59:  # noqa: PLR2004 - limits of a clock
        return None
    return hour * 3600 + minute * 60 + second


def _zone_seconds(zone: str | None) -> int | None:
    if zone is None or zone in "Zz":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    clock = _clock_seconds(int(digits[:2]), int(digits[2:]), 0)
    if clock is None:
        return None
    return -clock if zone[0] == "-" else clock
