"""What surrounds a result: the turns before and after it in its thread, and the filter of dates in a question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from typing import Any

from hybridmem.core.protocols import Store, View
from hybridmem.core.times import from_epoch
from hybridmem.core.types import Memory
from hybridmem.memory.results import Result
from hybridmem.text.dates import DateRange, dates_in

__all__ = ["date_filter", "with_context"]

YEARS = 30
"""A date without a year ("in May") covers the last 30 years."""


def with_context(
    results: Sequence[Result],
    store: Store,
    view: View,
    /,
    *,
    turns: int,
    tokens: int | None,
    count: Callable[[str], int],
) -> list[Result]:
    """The results with up to `turns` turns before and after each in its thread, in reading order.

    A turn that is a result, or the context of a better result, is not repeated. With `tokens` the nearest turns of the
    best results are added first, until results and context together reach the budget.
    """
    used = {result.id for result in results}
    left = None if tokens is None else tokens - sum(count(result.text) for result in results)
    order = {
        thread: store.thread(thread, view=view)
        for thread in dict.fromkeys(result.memory.thread for result in results)
        if thread is not None
    }
    wanted = [_near(order.get(result.memory.thread or "", []), result.id, turns) for result in results]
    ids = list(dict.fromkeys(id_ for near in wanted for id_ in near))
    memories = {memory.id: memory for memory in store.get(ids, view=view) if memory is not None}
    extended = []
    for result, near in zip(results, wanted, strict=True):
        chosen: list[Memory] = []
        for id_ in near:
            memory = memories.get(id_)
            need = 0 if memory is None or left is None else count(memory.text)
            if memory is None or id_ in used or (left is not None and need > left):
                continue
            used.add(id_)
            chosen.append(memory)
            left = None if left is None else left - need
        place = {id_: n for n, id_ in enumerate(order.get(result.memory.thread or "", []))}
        extended.append(replace(result, context=tuple(sorted(chosen, key=lambda memory: place[memory.id]))))
    return extended


def _near(order: Sequence[str], id_: str, turns: int) -> list[str]:
    """The ids around one in its thread, nearest first."""
    if id_ not in order:
        return []
    place = order.index(id_)
    places = (place + side * distance for distance in range(1, min(turns, len(order)) + 1) for side in (-1, 1))
    return [order[other] for other in places if 0 <= other < len(order)]


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
