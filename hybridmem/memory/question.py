"""Questions and answers of the engine: views, readers, pools, confidence, dates, why a memory is not searched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from hybridmem.core import validation
from hybridmem.core.protocols import ArmQuery, SearchView, Store, View
from hybridmem.core.times import Time, epoch, from_epoch
from hybridmem.core.types import ArmList, Candidates, Entry, Graph, Hits, Memory, Ranking
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages.base import Pool
from hybridmem.text.dates import DateRange, dates_in

__all__ = [
    "Answer",
    "EntryReader",
    "Question",
    "RecipeLike",
    "answer_confidence",
    "check_confidence",
    "confidence",
    "date_filter",
    "has_expired",
    "hidden",
    "listed",
    "pool_of",
    "view_of",
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


class Answer(NamedTuple):
    """A ranking with the inputs it was computed from, so that it can be explained later by the same pure function."""

    ranking: Ranking
    lists: Sequence[ArmList]
    question: Question
    view: SearchView
    reader: EntryReader
    graph: Graph | None
    now: float
    pool: Pool | None = None


_FIELDS = {name: itemgetter(place) for place, name in enumerate(Entry._fields)}  # faster than getattr


class EntryReader:
    """Reads the fields of entries for a fusion; fields that an entry lacks are read from the store."""

    def __init__(
        self, memories: Callable[[Sequence[str]], list[Memory | None]], vectors: Callable[[Sequence[str]], list[Any]], /
    ) -> None:
        self._read = memories
        self._vectors = vectors
        self._known: dict[str, Memory | None] = {}

    def memories(self, ids: Sequence[str], /) -> list[Memory | None]:
        """The memories of these ids, each read once; None for one that left the view."""
        known = self._known
        missing = [id_ for id_ in ids if id_ not in known]
        if missing:
            known.update(zip(missing, self._read(missing), strict=True))
        return list(map(known.__getitem__, ids))

    def keys(self, items: Sequence[Entry], /) -> list[str]:
        """The ids of the memories."""
        return [item[0] for item in items]

    def column(self, items: Sequence[Entry], name: str, /) -> list[Any]:
        """One field of each memory, or of its metadata."""
        field = _FIELDS.get(name)
        if field is not None:
            return list(map(field, items))
        ids = self.keys(items)
        if name == "vector":
            return self._vectors(ids)
        found = self.memories(ids)
        if name in Memory.__dataclass_fields__:
            return [None if memory is None else getattr(memory, name) for memory in found]
        path = name.removeprefix("metadata.")
        return [None if memory is None else memory.metadata.get(path) for memory in found]


RecipeLike = str | Path | Mapping[str, Any] | Fusion
"""A recipe as users give it: a name, a file, a dict or a Fusion."""


def view_of(namespace: str, as_of: Time | None, /, *, superseded: bool) -> View:
    """The view of these arguments of a call, after validation."""
    validation.flag("superseded", superseded)
    return View(validation.namespace(namespace), validation.as_of(as_of), superseded)


def listed(arms: Sequence[str], hits: Mapping[str, Hits], view: SearchView, pool: Pool | None) -> list[ArmList]:
    """The hits of each arm as a list of entries; a memory that left the view is dropped."""
    known = {} if pool is None else dict(zip(pool.candidates.ids, pool.items, strict=True))
    baseline: Mapping[str, float] = {} if pool is None else pool.candidates.baseline
    lists = []
    for arm in arms:
        if arm not in hits:
            lists.append(ArmList(arm, [], skipped="weight 0"))
            continue
        ids, scores = hits[arm]
        entries = view.entries(ids) if pool is None else list(map(known.get, ids))
        if None in entries:
            rows = [(e, s) for e, s in zip(entries, scores, strict=True) if e is not None]
            entries, scores = [entry for entry, _ in rows], [score for _, score in rows]
        lists.append(ArmList(arm, entries, scores, baseline=baseline.get(arm, 0.0)))
    return lists


def pool_of(view: SearchView, query: ArmQuery, hits: Mapping[str, Hits]) -> Pool:
    """All candidates of a query with their entries; a memory that left the view meanwhile is dropped."""
    searched = {arm: own for arm, own in hits.items() if arm != "vector" or query.vector is not None}
    candidates = view.complete(query, searched)
    entries = view.entries(candidates.ids)
    if None in entries:
        candidates, entries = _present(candidates, entries)
    return Pool(entries, candidates, view.speakers())


def _present(candidates: Candidates, entries: Sequence[Entry | None]) -> tuple[Candidates, list[Entry | None]]:
    """The candidates that have an entry."""
    places = [i for i, entry in enumerate(entries) if entry is not None]
    position = {place: i for i, place in enumerate(places)}
    window, previous = candidates.window, candidates.previous
    kept = Candidates(
        [candidates.ids[i] for i in places],
        {arm: [scores[i] for i in places] for arm, scores in candidates.scores.items()},
        candidates.baseline,
        None if window is None else [window[i] for i in places],
        None if previous is None else [position.get(previous[i], -1) for i in places],
        [
            link._replace(source=position[link.source], target=position[link.target])
            for link in candidates.mentions
            if link.source in position and link.target in position
        ],
    )
    return kept, [entries[i] for i in places]


def has_expired(memory: Memory, at: float, /) -> bool:
    """Whether a memory has expired at a time.

    >>> has_expired(Memory("x", expires_at="1970-01-02"), 86_400.0), has_expired(Memory("x"), 86_400.0)
    (True, False)
    """
    expires = epoch(memory.expires_at)
    return expires is not None and expires <= at


def hidden(store: Store, key: str, question: Question, now: float) -> str | None:
    """Why a memory is not searched at all; None if it is. Nothing is said about other namespaces."""
    view = question.view
    versions = store.history(key, namespace=view.namespace)
    if view.as_of is not None:
        versions = [version for version in versions if version.at <= view.as_of]
    if not versions:
        return "there is no such memory" + ("" if view.as_of is None else " at that time")
    if has_expired(versions[-1].memory, now if view.as_of is None else view.as_of):
        return "it has expired"
    if versions[-1].deleted:
        return "it was forgotten"
    if versions[-1].memory.status == "superseded" and not view.superseded:
        return "it was superseded"
    if question.filter is not None and key not in store.ids(view=view, filter=question.filter):
        return f"it does not pass the filter {question.filter!r}"
    return None


FIRST = 5
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
        parts.append(max(coverage[:FIRST]))
    if cosines:
        nearest = sorted(cosines, reverse=True)[:FIRST]
        parts.append(math.fsum(nearest) / len(nearest))
    if not parts:
        return 0.0
    return min(1.0, max(0.0, math.fsum(parts) / len(parts)))


def answer_confidence(answer: Answer) -> float:
    """The confidence of an answer of the engine."""
    by_name = {arm.name: arm for arm in answer.lists}
    question, best = answer.question, answer.ranking.keys[:FIRST]
    coverage = answer.view.coverage(ArmQuery(question.text), best) if best else ()
    vector = by_name.get("vector")
    return confidence(coverage=coverage, cosines=(vector.scores or ()) if vector is not None else ())


def check_confidence(value: float | None, /) -> float | None:
    """The value, if it is None or a number from 0 to 1."""
    if value is not None:
        validation.number("min_confidence", value, "a number from 0 to 1; calibrate() fits one", low=0, high=1)
    return value


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
