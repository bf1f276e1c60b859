"""Query-independent evidence: the length of a text, and dates that a query names."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from hybridmem.core import validation
from hybridmem.core.times import as_datetime
from hybridmem.core.types import Ranking
from hybridmem.fusion.stages.base import Context, reorder

__all__ = ["NamedDate", "Period", "Substance", "named_period"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Substance:
    """score · (1 − strength · (1 − min(1, n / enough))): short texts are rarely the answer.

    n is the item's number of words; enough is `words`, or the mean of the ranking where that is less, so that a store
    of short facts is compared with its own mean. Items of `words` and more lose nothing.
    """

    strength: float = 0.4
    words: int = 30

    def __post_init__(self) -> None:
        validation.number("substance strength", self.strength, "from 0 to 1", low=0, high=1)
        validation.integer("substance words", self.words, "from 1 up", low=1)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        if not ranking.keys:
            return ranking
        counts = _words(ranking.items, context)
        enough = min(float(self.words), math.fsum(counts) / len(counts))
        if min(counts) >= enough:
            return ranking
        factors = [1.0 - self.strength * (1.0 - min(1.0, n / enough)) for n in counts]
        if context.trace is not None:
            for key, n, factor in zip(ranking.keys, counts, factors, strict=True):
                if factor < 1.0:
                    than = f"results average {enough:.0f}" if enough < self.words else f"{self.words} are enough"
                    context.trace.note("substance", key, f"short text ×{factor:.2f} ({n:g} words; {than})")
        scores = [score * factor for score, factor in zip(ranking.scores, factors, strict=True)]
        return reorder(ranking, scores)


def _words(items: Sequence[Any], context: Context) -> list[float]:
    """The column `words`, counted from the text where it is missing."""
    counts = context.reader.column(items, "words")
    if None not in counts:
        return counts
    texts = context.reader.column(items, "text")
    return [len((text or "").split()) if n is None else n for n, text in zip(counts, texts, strict=True)]


class Period(NamedTuple):
    """A day or a month that a query names; without a year, that day or month of every year."""

    year: int | None
    month: int
    day: int | None

    def contains(self, when: datetime) -> bool:
        """Whether a datetime (UTC) is in it."""
        return (
            self.month == when.month
            and (self.year is None or self.year == when.year)
            and (self.day is None or self.day == when.day)
        )

    def __str__(self) -> str:
        parts = (f"{self.year or '*':>04}", f"{self.month:02}", "" if self.day is None else f"{self.day:02}")
        return "-".join(part for part in parts if part)


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?\b"
_YEAR = r"(?P<year>(?:19|20)\d\d)\b"
_FORMS = tuple(
    re.compile(form, re.IGNORECASE | re.ASCII)
    for form in (
        rf"\b{_YEAR}-(?P<month>\d\d)(?:-(?P<day>\d\d))?\b",
        rf"\b{_DAY}\s+(?:of\s+)?{_MONTH},?(?:\s*{_YEAR})?",
        rf"\b{_MONTH}\s+{_DAY},?(?:\s*{_YEAR})?",
        rf"\b{_MONTH},?\s+(?:of\s+)?{_YEAR}",
        rf"\b(?:in|during|since|of|last|this)\s+{_MONTH}",  # "may" alone is a verb
    )
)


def named_period(question: str, /) -> Period | None:
    """The first day or month that a query names in numbers or in English, or None.

    >>> named_period("What did Ana paint on 7 July, 2023?"), named_period("Who called in March?")
    (Period(year=2023, month=7, day=7), Period(year=None, month=3, day=None))
    """
    for form in _FORMS:
        match = form.search(question)
        if match is not None:
            parts = match.groupdict()
            name = parts["month"].lower()
            month = int(name) if name.isdigit() else _MONTHS.index(name[:3]) + 1
            period = Period(_number(parts.get("year")), month, _number(parts.get("day")))
            if month in range(1, 13) and (period.day is None or period.day in range(1, 32)):
                return period
    return None


def _number(digits: str | None) -> int | None:
    return None if digits is None else int(digits)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDate:
    """score + strength · best score, for items from the day or month that the query names."""

    strength: float = 0.2
    field: str = "created_at"

    def __post_init__(self) -> None:
        validation.number("named date strength", self.strength, "a finite number from 0 up", low=0)
        validation.text("named date field", self.field, "the name of a field, such as 'created_at'")

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        period = named_period(context.query)
        if period is None or not ranking.keys or self.strength == 0:
            return ranking
        added = self.strength * max(ranking.scores)
        moments = map(as_datetime, context.reader.column(ranking.items, self.field))
        inside = [when is not None and period.contains(when) for when in moments]
        if not any(inside):
            return ranking
        if context.trace is not None:
            for key, matches in zip(ranking.keys, inside, strict=True):
                if matches:
                    context.trace.note("nameddate", key, f"date {period} +{added:.4g}")
        rows = zip(ranking.scores, inside, strict=True)
        return reorder(ranking, [score + added if matches else score for score, matches in rows])
