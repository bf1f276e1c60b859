"""The express lane: two arms, RRF, floors, dedup by a field and the half-life in one pass, without stages in between.

This is the recipe most queries run, and the steps between stages would cost more than the stages. `Fusion.run` takes
this lane only when nobody asks for receipts; the staged path defines the result, and a property test holds the two
to the same keys and scores.

Hits are numbered: the first list's are places 0, 1, 2 …, the second's follow. Everything after that is about numbers,
because a list asked by number is the cheapest thing Python has. Sorting by score leaves equal scores in the order of
places, not yet by best single rank and key: that is put right only where it can be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridmem.merging import rank_shares
from hybridmem.stages import HalfLife, QualityGate, SourceDedup
from hybridmem.stages.boost import DAY, MILLISECONDS
from hybridmem.types import ArmList, Reader

if TYPE_CHECKING:
    from hybridmem.fusion import Fusion

__all__ = ["Boosting", "Passing", "boosting", "express", "fits", "passing"]

_NO_FIELDS = frozenset({"text", "vector"})
"""Names that a reader answers from the item itself, not from its fields."""
Union = tuple[list[str], list[Any], list[float], int]
"""Keys, items and scores of both lists, one after the other, and how many of them are the first list's."""
Placed = tuple[list[str], list[Any], dict[int, float], list[int]]
"""Keys and items of both lists, one after the other; the places that are left with their scores; the best, in order."""
Passing = Callable[[QualityGate | None, Any], Sequence[Any]]
"""How to take the items that pass the gate out of an arm's list, whatever that is: it begins with the arm's name."""
WIDE = 4
"""From how many times k on it pays to look which hits can still reach the best k."""


class Boosting(NamedTuple):
    """Dedup and half-life, ready for one loop: fields to read, and strength · 2^(rate · age)."""

    source_key: str
    date_key: str
    strength: float
    rate: float


def boosting(recipe: Fusion, /) -> Boosting | tuple[()]:
    """The recipe's dedup and half-life for one loop; empty when it has not both, or on fields that are none."""
    dedup, boost = recipe.dedup, recipe.boost
    if dedup is None or not isinstance(boost, HalfLife) or not isinstance(dedup.key, str):
        return ()
    if dedup.key in _NO_FIELDS or boost.field in _NO_FIELDS:
        return ()
    return Boosting(dedup.key, boost.field, boost.strength, -1.0 / (float(boost.half_life) * DAY))  # type: ignore[arg-type]


def fits(recipe: Fusion) -> bool:
    """Whether the express lane knows this recipe."""
    priors = (recipe.substance, recipe.dated)
    staged = (recipe.spread, recipe.conflicts, recipe.rerank, recipe.diversity, recipe.pack, *priors, *recipe.extra)
    return (
        recipe.mode == "rrf"
        and not recipe.complete
        and all(stage is None for stage in staged)
        and (recipe.dedup is None or _plain_dedup(recipe.dedup))
        and (recipe.boost is None or (type(recipe.boost) is HalfLife and recipe.boost.max_shift is None))
    )


def _plain_dedup(dedup: SourceDedup) -> bool:
    return type(dedup) is SourceDedup and isinstance(dedup.key, str) and dedup.max_per_source == 1


class Ties:
    """Who stands first of hits with equal scores: the one with the better single rank, then the one with the lower key.

    Made only when there is something to settle.
    """

    __slots__ = ("_keys", "_ranks")

    def __init__(self, keys: list[str], first: int) -> None:
        other = {key: rank for rank, key in enumerate(keys[first:])}
        ones = [min(i, other.get(key, i)) for i, key in enumerate(keys[:first])]
        self._keys, self._ranks = keys, [*ones, *range(len(keys) - first)]

    def __getitem__(self, place: int) -> tuple[int, str]:
        return self._ranks[place], self._keys[place]


def express(
    recipe: Fusion,
    lists: Sequence[Any],
    reader: Reader,
    now: float,
    k: int | None,
    boosting: Boosting | tuple[()],
    passing: Passing,
) -> Placed | None:
    """The best of two lists, or None where the staged path must decide (repetitions, an empty arm)."""
    one, two = lists
    ones, twos = passing(recipe.gate, one), passing(recipe.gate, two)
    a_keys, b_keys = reader.keys(ones), reader.keys(twos)
    first, rest = len(a_keys), len(b_keys)
    place = dict(zip(a_keys, range(first)))  # noqa: B905
    if len(place) != first or len(set(b_keys)) != rest or not first or not rest:
        return None
    x, y = (0.5, 0.5) if recipe.weights is None else recipe.weights_for((one[0], two[0]))
    totals = rank_shares(first, x, recipe.c) + rank_shares(rest, y, recipe.c)
    alone = []
    for i, key in enumerate(b_keys, first):
        if key in place:
            totals[place[key]] += totals[i]
        else:
            alone.append(i)
    union = a_keys + b_keys, [*ones, *twos], totals, first
    scored = None
    if boosting and getattr(reader, "reads_metadata", False):
        scored = _by_metadata(union, alone, boosting, now, k)
    if scored is None:
        try:
            scored = _by_columns(union, alone, reader, recipe, now, k)
        except TypeError:  # a source that cannot be one: the stages say so
            return None
    return _ordered(union, scored, k)


def passing(gate: QualityGate | None, arm: ArmList) -> Sequence[Any]:
    """The items of a list that are not below its floor."""
    name, items, scores, _, _, _ = arm
    if gate is None or not scores:
        return items
    floor = gate.lowest(name, scores)
    return [item for item, score in zip(items, scores) if score >= floor]  # noqa: B905


def _by_metadata(  # noqa: C901 - three plain loops; as functions of their own they would cost every query
    union: Union, alone: list[int], boosting: Boosting, now: float, k: int | None
) -> dict[int, float] | None:
    """Dedup and boost for readers whose fields are the items' own `metadata`, read on the spot.

    Only where every item has a source and a date in plain epoch seconds, as most stores give them; else None, and
    the columns decide.
    """
    source_key, date_key, strength, rate = boosting
    keys, items, totals, first = union
    claimed: dict[Any, int] = {}
    fresh, ties = 1.0 + strength, None
    try:
        for i in alone:  # best first, so the first one has the source
            source = items[i].metadata[source_key]
            if source not in claimed:
                claimed[source] = i
        for i, item in enumerate(items[:first]):
            source = item.metadata[source_key]
            if source in claimed and (total := totals[i]) <= (best := totals[claimed[source]]):
                if total < best:
                    continue
                ties = ties or Ties(keys, first)
                if ties[claimed[source]] < ties[i]:
                    continue
            claimed[source] = i
        scored: dict[int, float] = {}
        for i in claimed.values() if k is None else _within_reach(claimed.values(), totals, fresh, k):
            when = items[i].metadata[date_key]  # no comprehension: it would need a cell for each of these names
            if 1 < when < now:  # True is 1, and no date
                scored[i] = totals[i] * (1.0 + strength * 2.0 ** ((now - when) * rate))
            elif 1 < when < MILLISECONDS:
                scored[i] = totals[i] * fresh
            else:
                return None  # not in seconds
    except (KeyError, TypeError, OverflowError):
        return None  # no source, no date, or a date that is no number
    return None if None in claimed else scored


def _by_columns(
    union: Union, alone: list[int], reader: Reader, recipe: Fusion, now: float, k: int | None
) -> dict[int, float]:
    """Dedup, then boost, each over a whole column."""
    _, items, totals, first = union
    places: Collection[int] = [*range(first), *alone]
    if recipe.dedup is not None:
        places = _one_of_each(union, places, reader.column([items[i] for i in places], recipe.dedup.key))  # type: ignore[arg-type]
    boost = recipe.boost
    if k is not None:
        places = _within_reach(places, totals, 1.0 if boost is None else boost.ceiling(1.0), k)
    if boost is None:
        return {i: totals[i] for i in places}
    values = reader.column([items[i] for i in places], boost.field)  # type: ignore[union-attr]
    return dict(zip(places, boost.boosted([totals[i] for i in places], values, now)))  # type: ignore[union-attr]  # noqa: B905


def _one_of_each(union: Union, places: list[int], sources: list[Any]) -> list[int]:
    """The best place of each source, and all that have none."""
    keys, _, totals, first = union
    claimed: dict[Any, int] = {}
    free, ties = [], None
    for i, source in zip(places, sources, strict=True):
        if source is None:
            free.append(i)
        elif source not in claimed or totals[i] > totals[claimed[source]]:
            claimed[source] = i
        elif totals[i] == totals[claimed[source]]:
            ties = ties or Ties(keys, first)
            claimed[source] = min(i, claimed[source], key=ties.__getitem__)
    return [*claimed.values(), *free]


def _within_reach(places: Collection[int], totals: list[float], fresh: float, k: int) -> Collection[int]:
    """The places that a boost of at most ×`fresh` can lift into the best k; the others' dates need no reading."""
    if len(places) < WIDE * k:
        return places
    least = sorted([totals[i] for i in places], reverse=True)[k - 1]
    return [i for i in places if totals[i] * fresh >= least]


def _ordered(union: Union, scored: dict[int, float], k: int | None) -> Placed:
    """The best k of these places, best first."""
    order = sorted(scored, key=scored.__getitem__, reverse=True)
    if len(set(scored.values())) != len(order):
        _settle(order, scored, union)
    if k is not None:
        del order[k:]
    return union[0], union[1], scored, order


def _settle(order: list[int], scored: dict[int, float], union: Union) -> None:
    """Put equal scores in order by total, best single rank and key, as the stages leave them."""
    keys, _, totals, first = union
    ties = Ties(keys, first)
    order.sort(key=lambda i: (-scored[i], -totals[i], ties[i]))
