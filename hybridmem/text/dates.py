"""Dates that a question names, absolute or relative, and how near a memory's date is to them.

Dates are read from numbers and from English words; another language has the numeric forms only. Nearness is graded
evidence between 0 and 1, never a filter.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from typing import NamedTuple

__all__ = ["DateRange", "dates_in"]

NEAR_OPEN_END = 31
"""Days beside the bound of an open range ("before June") that count fully; earlier or later days count half."""


class DateRange(NamedTuple):
    """A range of days, both ends included. None is an open end. `yearly`: the same range of every year."""

    first: date | None
    last: date | None
    yearly: bool = False

    def nearness(self, when: datetime) -> float:
        """Between 0 and 1: how near a time is to the range.

        A day: the same day 1, the day after 0.8, the day before 0.4, 2 to 7 days after 0.5 − 0.05 · days. A longer
        range: 1 inside, 0.4 in the week after it. An open range: 1 near its bound, 0.5 beyond 31 days.
        """
        day = when.date()
        if not self.yearly:
            return _nearness(self.first, self.last, day)
        years = (self.of_year(day.year + shift) for shift in (-1, 0, 1))
        return max(_nearness(one.first, one.last, day) for one in years)

    def of_year(self, year: int) -> DateRange:
        """The same range of another year."""
        year = min(max(year, date.min.year), date.max.year)
        return DateRange(
            None if self.first is None else _clamped(year, self.first.month, self.first.day),
            None if self.last is None else _clamped(year, self.last.month, self.last.day),
        )

    def __str__(self) -> str:
        if self.first is None or self.last is None:
            return f"until {self._text(self.last)}" if self.first is None else f"from {self._text(self.first)}"
        whole_month = self.first.day == 1 and self.last == _clamped(self.first.year, self.first.month, 31)
        if whole_month:
            return f"{self.first:%B}" if self.yearly else f"{self.first:%B} {self.first.year}"
        both = (self._text(self.first), self._text(self.last))
        return both[0] if both[0] == both[1] else f"{both[0]} to {both[1]}"

    def _text(self, day: date | None) -> str:
        if day is None:
            return "any time"
        return f"{day.day} {day:%B}" if self.yearly else f"{day.day} {day:%B} {day.year}"


def _nearness(first: date | None, last: date | None, day: date) -> float:
    if first is None or last is None:
        bound = first or last or day
        inside = day >= bound if last is None else day <= bound
        return 0.0 if not inside else 1.0 if abs((day - bound).days) <= NEAR_OPEN_END else 0.5
    after = (day - last).days
    if first <= day <= last:
        return 1.0
    if first != last:
        return 0.4 if 0 < after <= _WEEK else 0.0
    if after in _NEXT_TO_A_DAY:
        return _NEXT_TO_A_DAY[after]
    return 0.5 - 0.05 * after if 1 < after <= _WEEK else 0.0


_NEXT_TO_A_DAY = {-1: 0.4, 1: 0.8}


def _clamped(year: int, month: int, day: int) -> date:
    """The day of a month, or the month's last day when it has fewer."""
    return date(year, month, min(day, calendar.monthrange(year, month)[1]))


# --- English words

_WEEK = 7
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_COUNTS = {word: number for number, word in enumerate(_NUMBERS)} | {"a": 1, "an": 1, "couple of": 2, "few": 3}
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_WEEKDAY = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)day\b"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?\b"
_YEAR = r"(?:19|20)\d\d\b"
_COUNT = rf"(?:\d{{1,3}}|{'|'.join(_COUNTS)})"
_UNIT = r"(?:day|week|month|year)s?\b"

_PREPOSITION = "during|since|of|by|until|till|before|after|early|late|mid|mid-|from|to|and|between"
_TO = r"\s*(?:-|–|to|and|until|till|through)\s*"
# Absolute dates: each form has the groups that it needs of y, m, d, and e: the last day of a range within a month.
_ABSOLUTE = tuple(
    re.compile(form, re.IGNORECASE | re.ASCII)
    for form in (
        rf"\b(?P<y>{_YEAR})-(?P<m>\d\d)-(?P<d>\d\d)\b",
        rf"\b(?P<y>{_YEAR})-(?P<m>\d\d)\b",
        rf"\b(?P<d>\d{{1,2}})[./](?P<m>\d{{1,2}})[./](?P<y>{_YEAR})",
        rf"\b(?:(?:between|from)\s+)?(?P<d>{_DAY}){_TO}(?P<e>{_DAY})\s+(?:of\s+)?(?P<m>{_MONTH})(?:,?\s*(?P<y>{_YEAR}))?",
        rf"\b(?:(?:between|from)\s+)?(?P<m>{_MONTH})\s+(?P<d>{_DAY}){_TO}(?P<e>{_DAY})(?:,?\s*(?P<y>{_YEAR}))?",
        rf"\b(?P<d>{_DAY})\s+(?:of\s+)?(?P<m>{_MONTH})(?:,?\s*(?:of\s+)?(?P<y>{_YEAR}))?",
        rf"\b(?P<m>{_MONTH})\s+(?P<d>{_DAY})(?:,?\s*(?:of\s+)?(?P<y>{_YEAR}))?",
        rf"\b(?P<m>{_MONTH}),?\s+(?:of\s+)?(?P<y>{_YEAR})",
        # "may" and "march" alone are verbs, so that a month without a day or year needs a preposition
        rf"(?<=\bin\s)(?P<m>{_MONTH})",
        rf"\b(?:{_PREPOSITION})\s*(?P<m>{_MONTH})",
        rf"\b(?:in|during|since|of|by|until|till|before|after|early|late|mid|from|year)\s+(?P<y>{_YEAR})",
    )
)
_BEFORE = re.compile(r"(?:before|until|till|by|up to)\s+(?:the\s+)?(?:end of\s+)?$", re.IGNORECASE)
_AFTER = re.compile(r"(?:after|since|from)\s+(?:the\s+)?(?:end of\s+)?$", re.IGNORECASE)
_STRICT = re.compile(r"(?:before|after)\s+(?:the\s+)?$", re.IGNORECASE)
_JOINED = re.compile(r"\s*(?:and|to|until|till|through|-|–)\s*$", re.IGNORECASE)
_BETWEEN = re.compile(r"(?:between|from)\s*$", re.IGNORECASE)


class _DateMatch(NamedTuple):
    """A date in a question: where it is, and what it names."""

    start: int
    end: int
    range: DateRange


def dates_in(question: str, now: float, /) -> list[DateRange]:
    """The days, months, years and ranges that a question names; relative ones count from `now` (epoch seconds, UTC).

    >>> [str(one) for one in dates_in("What did Ana paint between May and July 2023?", 0.0)]
    ['1 May 2023 to 31 July 2023']
    >>> [str(one) for one in dates_in("Who called yesterday?", 86_400.0 * 365)]
    ['31 December 1970']
    """
    if not _HINT.search(question):
        return []
    today = datetime.fromtimestamp(now, timezone.utc).date()
    found = _without_overlaps([*_absolute(question), *_relative(question, today)])
    ranges: list[DateRange] = []
    place = 0
    while place < len(found):
        one = found[place]
        before = question[found[place - 1].end if place else 0 : one.start]
        following = found[place + 1] if place + 1 < len(found) else None
        year = None if following is None else _year_of(following.range)
        if following is not None and _BETWEEN.search(before) and _JOINED.fullmatch(_gap(question, one, following)):
            ranges.append(_span(one.range, following.range))
            place += 1
        elif following is not None and year is not None and one.range.yearly and _adjacent(question, one, following):
            ranges.append(_bounded(before, one.range.of_year(year), today))  # "May last year"
            place += 1
        else:
            ranges.append(_bounded(before, one.range, today))
        place += 1
    return ranges


_HINT = re.compile(
    rf"\d|{_MONTH}|{_WEEKDAY}|today|tonight|yesterday|tomorrow|\b(?:last|this|past|next|previous)\b|\bago\b",
    re.IGNORECASE,
)


def _gap(question: str, one: _DateMatch, following: _DateMatch) -> str:
    """The text between two dates, with the word that a month's own form may have taken."""
    return question[one.end : following.start] or " and "


def _adjacent(question: str, one: _DateMatch, following: _DateMatch) -> bool:
    return question[one.end : following.start].strip(" ,") in ("", "of")


def _year_of(named: DateRange) -> int | None:
    """The year, if the range is a whole one."""
    year = None if named.first is None or named.yearly else named.first.year
    return year if year is not None and named == _year(year) else None


def _without_overlaps(found: list[_DateMatch]) -> list[_DateMatch]:
    """In the order of the text; of two that overlap the longer one, then the form that comes first."""
    kept: list[_DateMatch] = []
    for one in sorted(found, key=lambda item: item.start - item.end):
        if all(one.end <= other.start or other.end <= one.start for other in kept):
            kept.append(one)
    return sorted(kept)


def _span(one: DateRange, other: DateRange) -> DateRange:
    """From the start of one range to the end of another; a missing year is the other one's."""
    if one.yearly and not other.yearly and one.first is not None and other.last is not None:
        one = one.of_year(other.last.year)
    if one.first is not None and other.last is not None and not other.yearly and one.first > other.last:
        one = one.of_year(one.first.year - 1)
    return DateRange(one.first, other.last, one.yearly and other.yearly)


def _bounded(before: str, named: DateRange, today: date) -> DateRange:
    """The range with an open end after "before", "until", "after" and "since"; without a year, the most recent one."""
    earlier, later = _BEFORE.search(before), _AFTER.search(before)
    if not (earlier or later) or named.first is None or named.last is None:
        return named
    if named.yearly:
        named = _most_recent(named, today)
    first, last = named.first or today, named.last or today
    strict = _STRICT.search(before) is not None
    if earlier:  # what happened before a day is often told on that day
        return DateRange(None, first - timedelta(1) if strict and first != last else last)
    return DateRange(last + timedelta(1) if strict else first, None)


def _most_recent(named: DateRange, today: date) -> DateRange:
    """The range of this year, or of the last one when it has not begun yet."""
    this_year = named.of_year(today.year)
    return this_year if (this_year.first or today) <= today else named.of_year(today.year - 1)


def _absolute(question: str) -> Iterator[_DateMatch]:
    for form in _ABSOLUTE:
        for match in form.finditer(question):
            parts = {"y": None, "m": None, "d": None, "e": None, **match.groupdict()}
            named = _named(parts["y"], parts["m"], parts["d"])
            if named is None:
                continue
            last = None if parts["e"] is None else _named(parts["y"], parts["m"], parts["e"])
            if last is not None:
                yield _DateMatch(match.start(), match.end(), DateRange(named.first, last.last, named.yearly))
            elif parts["e"] is None:
                start = min(match.start(name) for name in "ymd" if parts[name] is not None)
                yield _DateMatch(start, match.end(), named)


def _named(year: str | None, month: str | None, day: str | None) -> DateRange | None:
    """A day, month or year from its parts, None when there is no such date."""
    y = 2000 if year is None else int(year)  # a leap year: 29 February of any year is a date
    if month is None:
        return DateRange(date(y, 1, 1), date(y, 12, 31))
    m = int(month) if month.isdigit() else _MONTHS.index(month[:3].lower()) + 1
    d = None if day is None else int(re.sub(r"\D", "", day))
    if d is not None and m > 12 >= d:  # noqa: PLR2004  12/25/2023
        m, d = d, m
    try:
        first = date(y, m, d or 1)
    except ValueError:
        return None
    return DateRange(first, first if d else _clamped(y, m, 31), year is None)


# --- relative dates


def _day(day: date) -> DateRange:
    return DateRange(day, day)


def _count(text: str) -> int:
    return int(text) if text.isdigit() else _COUNTS[text.lower()]


def _ago(today: date, match: re.Match[str]) -> DateRange:
    return _around(today, _count(match["n"]), match["unit"].lower())


def _around(today: date, count: int, unit: str) -> DateRange:
    """The day, week, month or year that was `count` units ago."""
    if unit.startswith("day"):
        return _day(today - timedelta(count))
    if unit.startswith("week"):
        middle = today - timedelta(_WEEK * count)
        return DateRange(middle - timedelta(3), middle + timedelta(3))
    if unit.startswith("month"):
        middle = _months(today, -count)
        return DateRange(middle - timedelta(15), middle + timedelta(15))
    return _year(today.year - count)


def _recent(today: date, match: re.Match[str]) -> DateRange:
    """The last n days, weeks, months or years."""
    count, unit = _count(match["n"]), match["unit"].lower()
    days = {"d": count, "w": _WEEK * count}.get(unit[0])
    first = today - timedelta(days) if days is not None else _months(today, -count * (1 if unit[0] == "m" else 12))
    return DateRange(first, today)


def _calendar(today: date, match: re.Match[str]) -> DateRange:
    """Last, this or next week, weekend, month or year."""
    which = {"next": 1, "this": 0}.get(match["which"].lower(), -1)
    unit = match["unit"].lower()
    if unit.startswith("week"):
        monday = today - timedelta(today.weekday()) + timedelta(_WEEK * which)
        return DateRange(monday + timedelta(5 if unit == "weekend" else 0), monday + timedelta(6))
    if unit == "month":
        first = _months(today.replace(day=1), which)
        return DateRange(first, _clamped(first.year, first.month, 31))
    return _year(today.year + which)


def _weekday(today: date, match: re.Match[str]) -> DateRange:
    """The most recent such day before today, or the next one after "next"."""
    number = _DAYS.index(match["day"][:3].lower())
    if (match["which"] or "").lower() == "next":
        return _day(today + timedelta((number - today.weekday() - 1) % _WEEK + 1))
    return _day(today - timedelta((today.weekday() - number - 1) % _WEEK + 1))


def _year(year: int) -> DateRange:
    year = min(max(year, date.min.year), date.max.year)
    return DateRange(date(year, 1, 1), date(year, 12, 31))


def _months(day: date, count: int) -> date:
    """A day, some months later."""
    months = min(max(day.year * 12 + day.month - 1 + count, 12), 12 * date.max.year)
    return _clamped(months // 12, months % 12 + 1, day.day)


def _month(today: date, match: re.Match[str]) -> DateRange:
    """Last, this or next May."""
    named = _named(None, match["month"], None) or _day(today)
    if match["which"].lower() != "next":
        return _most_recent(named, today)
    this_year = named.of_year(today.year)
    return this_year if (this_year.first or today) > today else named.of_year(today.year + 1)


_RELATIVE: tuple[tuple[re.Pattern[str], Callable[[date, re.Match[str]], DateRange]], ...] = tuple(
    (re.compile(form, re.IGNORECASE), read)
    for form, read in (
        (r"\bthe day before yesterday\b", lambda today, _: _day(today - timedelta(2))),
        (r"\byesterday\b|\blast night\b", lambda today, _: _day(today - timedelta(1))),
        (r"\b(?:today|tonight|this (?:morning|afternoon|evening))\b", lambda today, _: _day(today)),
        (r"\btomorrow\b", lambda today, _: _day(today + timedelta(1))),
        (rf"\b(?:a\s+)?(?P<n>{_COUNT})\s+(?P<unit>{_UNIT})\s+(?:ago|earlier|back)\b", _ago),
        (rf"\b(?:last|past|previous)\s+(?P<n>{_COUNT})\s+(?P<unit>{_UNIT})", _recent),
        (r"\b(?P<which>last|past|previous|this|next)\s+(?P<unit>weekend|week|month|year)\b", _calendar),
        (rf"\b(?P<which>last|past|previous|this|next|on)\s+(?P<day>{_WEEKDAY})", _weekday),
        (rf"\b(?P<which>last|past|previous|this|next)\s+(?P<month>{_MONTH})(?!\s*\d)", _month),
    )
)


def _relative(question: str, today: date) -> Iterator[_DateMatch]:
    for form, read in _RELATIVE:
        for match in form.finditer(question):
            with suppress(OverflowError):  # "999 weeks ago", soon after the calendar began
                yield _DateMatch(match.start(), match.end(), read(today, match))
