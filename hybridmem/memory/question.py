"""Questions of the engine, the confidence of answers, dates as a filter, and why a memory is not searched."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from hybridmem.core.protocols import Store, View
from hybridmem.core.times import from_epoch, has_passed
from hybridmem.fusion.recipe import Fusion
from hybridmem.text.dates import DateRange, dates_in

__all__ = [
    "Question",
    "RecipeLike",
    "confidence",
    "date_filter",
    "hidden",
]


class Question(NamedTuple):
    """A validated query with all its options."""

    text: str
    view: View
    k: int
    recipe: Fusion
    filter: Any = None
    vector: Any = None
    min_confidence: float | None = None
    context: int = 0
    """How many turns before and after each result are returned with it."""
    touch: bool = False
    """Whether the search counts as an access of its results."""


RecipeLike = str | Path | Mapping[str, Any] | Fusion
"""A recipe as users give it: a name, a file, a dict or a Fusion."""


def hidden(store: Store, key: str, question: Question, now: float) -> str | None:
    """Why a memory is not searched at all; None if it is. Nothing is said about other namespaces."""
    view = question.view
    versions = store.history(key, namespace=view.namespace)
    if view.as_of is not None:
        versions = [version for version in versions if version.at <= view.as_of]
    if not versions:
        return "there is no such memory" + ("" if view.as_of is None else " at that time")
    if has_passed(versions[-1].memory.expires_at, now if view.as_of is None else view.as_of):
        return "it has expired"
    if versions[-1].deleted:
        return "it was forgotten"
    if versions[-1].memory.status == "superseded" and not view.superseded:
        return "it was superseded"
    if question.filter is not None and key not in store.ids(view=view, filter=question.filter):
        return f"it does not pass the filter {question.filter!r}"
    return None


BEST = 5
"""How many of the best hits count."""


def confidence(*, coverage: Sequence[float] = (), cosines: Sequence[float] = ()) -> float:
    """How much of the query the best hits cover, from 0 to 1. It tells when nothing is relevant.

    coverage = the largest share of the query's information (Σ IDF) that one of the first five hits contains; a word
    that no memory has counts as the rarest of all. nearness = mean cosine of the five nearest memories.
    confidence = (coverage + nearness) / 2, or the one of them that exists. A useful threshold differs from store to
    store: `hybridmem.evaluation.evaluate.calibrate` fits it.

    >>> confidence(coverage=[0.2, 0.8], cosines=[0.6, 0.4])
    0.65
    """
    parts = []
    if coverage:
        parts.append(max(coverage[:BEST]))
    if cosines:
        nearest = sorted(cosines, reverse=True)[:BEST]
        parts.append(math.fsum(nearest) / len(nearest))
    if not parts:
        return 0.0
    return min(1.0, max(0.0, math.fsum(parts) / len(parts)))


YEARS = 30
"""A date without a year ("in May") covers the last 30 years."""


def date_filter(query: str, now: float, /) -> dict[str, Any] | None:
    """A filter for the days that a query names, by `event_at` or else `created_at`; None if it names none.

    >>> date_filter("what did we decide?", 0.0) is None
    True
    """
    ranges = [one for named in dates_in(query, now) for one in _years(named, now)]
    if not ranges:
        return None
    parts: list[Mapping[str, Any]] = []
    for one in ranges:
        bounds = _bounds(one)
        parts += [{"event_at": bounds}, {"event_at": None, "created_at": bounds}]
    return {"$or": parts}


def _years(named: DateRange, now: float) -> Iterator[DateRange]:
    if not named.yearly:
        yield named
        return
    this = from_epoch(now).year
    yield from (named.of_year(year) for year in range(this - YEARS, this + 2))


def _bounds(named: DateRange) -> dict[str, Any]:
    bounds: dict[str, Any] = {} if named.first is None else {"$gte": _midnight(named.first)}
    if named.last is not None:
        bounds["$lt"] = _midnight(named.last) + timedelta(days=1)
    return bounds


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
