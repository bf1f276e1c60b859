"""Half-life boost with an optional bound on moves, competition scoring, and conflict resolution."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hybridmem.core import validation
from hybridmem.core.times import epoch
from hybridmem.core.types import Ranking, Reader
from hybridmem.fusion.explain import Trace
from hybridmem.fusion.merge import reorder, take
from hybridmem.fusion.stages.base import Context

__all__ = ["Competition", "Conflicts", "HalfLife", "bounded"]

DAY = 86_400.0
MILLISECONDS = 1e11
STATUS_FACTOR: Mapping[str, float] = {"active": 1.0, "superseded": 0.5, "contradicted": 0.3}
RECENCY_RATE = 0.05
CONFLICT_FACTOR = 0.3


def _seconds(value: Any) -> float:
    when = epoch(value)
    return math.nan if when is None else when


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfLife:
    """score · (1 + strength · 0.5^(age / half_life)): recent items gain, old ones lose nothing.

    At strength 1 a new item gets ×2, one half-life old ×1.5. A future date counts as now; a missing or unreadable
    date is neutral (×1). Where queries are not about recency a large strength harms the ranking, because RRF scores of
    neighbouring ranks are close: 0.05 costs nothing. With `max_shift=m` no item moves more than m ranks.
    """

    half_life: float | timedelta = 30.0
    """Days, or a timedelta."""
    strength: float = 1.0
    field: str = "updated_at"
    max_shift: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.half_life, timedelta):
            object.__setattr__(self, "half_life", self.half_life.total_seconds() / DAY)
        validation.number("half_life", self.half_life, "a number of days above 0, or a timedelta", low=0, above=True)
        validation.number("strength", self.strength, "a finite number from 0 up", low=0)
        validation.text("half-life field", self.field, "the name of a field, such as 'updated_at'")
        if self.max_shift is not None:
            validation.integer("max_shift", self.max_shift, "a number of places from 0 up, or None", low=0)

    @property
    def days(self) -> float:
        """The half-life in days, as a number."""
        return self.half_life  # type: ignore[return-value]

    def factor(self, age: float) -> float:
        """The boost for an age in seconds."""
        halvings = max(age, 0.0) / (self.days * DAY)
        return 1.0 + self.strength * math.pow(0.5, halvings)

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        values = self.dates(context.reader, ranking.items)
        scores = self.boosted(ranking.scores, values, context.now)
        if context.trace is not None:
            self._trace(ranking, context, context.trace)
        if self.max_shift is None:
            return reorder(ranking, scores)
        limited = bounded(ranking, scores, places=self.max_shift)
        if context.trace is not None:
            self._trace_bound(dict(zip(ranking.keys, scores, strict=True)), limited, context.trace)
        return limited

    def dates(self, reader: Reader, items: Sequence[Any], /) -> list[Any]:
        """The date of each item: when it happened (`event_at`), else its field."""
        values, events = reader.column(items, self.field), reader.column(items, "event_at")
        if events.count(None) == len(events):
            return values
        return [value if event is None else event for value, event in zip(values, events, strict=True)]

    def boosted(self, scores: list[float], values: list[Any], now: float) -> list[float]:
        """The scores times their boost, for a column of dates of any kind."""
        plain = set(map(type, values)) == {float} and -MILLISECONDS < min(values) <= max(values) < MILLISECONDS
        seconds = values if plain else list(map(_seconds, values))
        strength, rate = self.strength, -1.0 / (self.days * DAY)
        fresh = 1.0 + strength
        return [
            score * (1.0 + strength * 2.0 ** ((now - when) * rate)) if when < now
            else score * fresh if when >= now
            else score  # NaN: no date
            for score, when in zip(scores, seconds)  # noqa: B905
        ]  # fmt: skip

    def _trace(self, ranking: Ranking, context: Context, trace: Trace) -> None:
        values = self.dates(context.reader, ranking.items)
        for key, value in zip(ranking.keys, values, strict=True):
            when = epoch(value)
            if when is None:
                what = f"no {self.field}" if value is None else f"{self.field} {value!r} is not a date"
                trace.note("half_life", key, f"recency ×1 ({what})")
                continue
            age = max(0.0, context.now - when)
            factor = f"{self.factor(age):.4g}"
            trace.note(
                "half_life", key, "" if factor == "1" else f"recency ×{factor} ({round(age / DAY, 2):g} days old)"
            )

    def _trace_bound(self, boosted: Mapping[str, float], limited: Ranking, trace: Trace) -> None:
        for key, score in zip(limited.keys, limited.scores, strict=True):
            if score != boosted[key]:
                trace.note("half_life", key, f"cut from {boosted[key]:.4g} to {score:.4g} (max_shift={self.max_shift})")


def bounded(ranking: Ranking, scores: Sequence[float], /, *, places: int) -> Ranking:
    """The order nearest to the new scores in which no item moves more than `places` ranks.

    For each rank: the item that may not fall further, else the best-scored of those that may rise to it.
    Scores are cut so that they never increase down the list.
    """
    size = len(scores)
    placed = [False] * size
    ready: list[tuple[float, int]] = []
    order: list[int] = []
    upto = 0
    for position in range(size):
        while upto < size and upto <= position + places:
            heapq.heappush(ready, (-scores[upto], upto))
            upto += 1
        due = position - places
        if due >= 0 and not placed[due]:
            chosen = due
        else:
            chosen = heapq.heappop(ready)[1]
            while placed[chosen]:
                chosen = heapq.heappop(ready)[1]
        placed[chosen] = True
        order.append(chosen)
    falling: list[float] = []
    lowest = math.inf
    for i in order:
        lowest = min(lowest, scores[i])
        falling.append(lowest)
    return take(ranking, order)._replace(scores=falling)


def _recency(context: Context, items: Sequence[Any]) -> list[float]:
    """exp(−0.05 · days since last access), or since the last change or the creation of items never accessed."""
    columns = [context.reader.column(items, name) for name in ("last_accessed", "updated_at", "created_at")]
    recency = []
    for row in zip(*columns, strict=True):
        when = next((seen for seen in map(epoch, row) if seen is not None), None)
        days = math.inf if when is None else max(0.0, context.now - when) / DAY
        recency.append(math.exp(-RECENCY_RATE * days))
    return recency


def _numbers(context: Context, items: Sequence[Any], name: str) -> list[float]:
    """A numeric column, 1.0 where an item does not have it."""
    return [1.0 if value is None else float(value) for value in context.reader.column(items, name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Competition:
    """(0.5·activation + 0.2·recency + 0.2·strength + 0.1·confidence) · status factor: an alternative to `HalfLife`.

    activation = score / best score; recency = exp(−0.05 · days since last access); the status factor is 1.0 for
    active, 0.5 for superseded, 0.3 for contradicted memories.
    """

    activation: float = 0.5
    recency: float = 0.2
    strength: float = 0.2
    confidence: float = 0.1

    def __post_init__(self) -> None:
        for name in ("activation", "recency", "strength", "confidence"):
            validation.number(f"competition {name}", getattr(self, name), "a finite share from 0 up", low=0)

    @property
    def ceiling(self) -> float:
        """The highest possible score: all four parts at 1."""
        return self.activation + self.recency + self.strength + self.confidence

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        if not ranking.keys:
            return ranking
        items = ranking.items
        top = max(ranking.scores)
        activations = [score / top if top > 0 else 0.0 for score in ranking.scores]
        recency = _recency(context, items)
        strength, confidence = (_numbers(context, items, name) for name in ("strength", "confidence"))
        states = context.reader.column(items, "status")
        scores = []
        for i, (key, state) in enumerate(zip(ranking.keys, states, strict=True)):
            parts = (
                self.activation * activations[i],
                self.recency * recency[i],
                self.strength * strength[i],
                self.confidence * confidence[i],
            )
            factor = STATUS_FACTOR.get(state or "active", 1.0)
            scores.append(math.fsum(parts) * factor)
            if context.trace is not None:
                named = " + ".join(f"{part:.4g} {n}" for part, n in zip(parts, _PARTS, strict=True))
                context.trace.note("competition", key, f"competition ({named}) × {factor:g} {state or 'active'}")
        return reorder(ranking, scores)


_PARTS = ("activation", "recency", "strength", "confidence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicts:
    """Of two results that contradict each other, the one with less strength · confidence · recency gets · 0.3.

    Pairs come from `pairs(keys)`, else from the memory's `contradicts` edges, else from each item's `contradicts`
    field (a key or a list of keys). Of equally strong items the lower-ranked one loses. No item loses twice.
    """

    factor: float = CONFLICT_FACTOR
    pairs: Callable[[Sequence[str]], Iterable[tuple[str, str]]] | None = None

    def __post_init__(self) -> None:
        validation.number("conflict factor", self.factor, "from 0 to 1", low=0, high=1)
        if self.pairs is not None:
            validation.function("conflict pairs", self.pairs, "a function from keys to pairs of keys, or None")

    def __call__(self, ranking: Ranking, context: Context) -> Ranking:
        find = self.pairs or context.contradictions
        pairs = find(ranking.keys) if find is not None else self._own(ranking, context)
        place = {key: i for i, key in enumerate(ranking.keys)}
        joined = sorted({(min(a, b), max(a, b)) for a, b in pairs if a in place and b in place and a != b})
        if not joined:
            return ranking
        items = ranking.items
        columns = zip(
            _recency(context, items),
            _numbers(context, items, "strength"),
            _numbers(context, items, "confidence"),
            strict=True,
        )
        standing = [math.prod(row) for row in columns]
        losers: dict[str, str] = {}
        for a, b in joined:
            winner, loser = sorted((a, b), key=lambda key: (-standing[place[key]], place[key]))
            losers.setdefault(loser, winner)
        if context.trace is not None:
            for loser, winner in losers.items():
                text = f"conflict ×{self.factor:g}: contradicted by {winner}"
                context.trace.note(
                    "conflicts", loser, f"{text} ({standing[place[loser]]:.4g} ≤ {standing[place[winner]]:.4g})"
                )
        rows = zip(ranking.keys, ranking.scores, strict=True)
        return reorder(ranking, [score * self.factor if key in losers else score for key, score in rows])

    @staticmethod
    def _own(ranking: Ranking, context: Context) -> list[tuple[str, str]]:
        column = context.reader.column(ranking.items, "contradicts")
        return [
            (key, str(other))
            for key, value in zip(ranking.keys, column, strict=True)
            if value is not None
            for other in ([value] if isinstance(value, str) else value)
        ]
