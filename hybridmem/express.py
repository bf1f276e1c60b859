"""The express lane: two arms, RRF, floors, dedup by a field and the half-life in one pass, without stages in between.

This is the recipe most queries run, and the steps between stages would cost more than the stages. `Fusion.run` takes
this lane only when nobody asks for receipts; the staged path defines the result, and a property test holds the two
to the same keys and scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridmem.stages import HalfLife, QualityGate, SourceDedup
from hybridmem.stages.boost import DAY, MILLISECONDS
from hybridmem.stages.gate import NO_FLOOR
from hybridmem.types import ArmList, Ranking, Reader

if TYPE_CHECKING:
    from hybridmem.fusion import Fusion

__all__ = ["Boosting", "boosting", "express", "fits"]

_NO_FIELDS = frozenset({"text", "vector"})
"""Names that a reader answers from the item itself, not from its fields."""


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


def express(  # noqa: C901, PLR0912  one pass without calls is the point
    recipe: Fusion,
    lists: Sequence[ArmList],
    shares: Any,
    reader: Reader,
    now: float,
    k: int | None,
    boosting: Boosting | tuple[()],
) -> Ranking | None:
    """The ranking of two lists, or None where the staged path must decide (repetitions, an empty arm)."""
    gate = recipe.gate
    one, two = lists
    ones = one.items if gate is None else _passing(gate, one)
    twos = two.items if gate is None else _passing(gate, two)
    a_keys, b_keys = reader.keys(ones), reader.keys(twos)
    a_size, b_size = len(a_keys), len(b_keys)
    found, own = dict(zip(b_keys, twos)), dict(zip(a_keys, ones))  # noqa: B905
    if len(found) != b_size or len(own) != a_size or not a_size or not b_size:
        return None
    found.update(own)
    x, y = (0.5, 0.5) if recipe.weights is None else recipe.weights_for((one.name, two.name))
    a_shares, b_shares = shares(a_size, x, recipe.c), shares(b_size, y, recipe.c)
    totals: dict[str, float] = {}  # by best rank, then key: that breaks ties in the stable sort below
    for a, b, x, y in zip(a_keys, b_keys, a_shares, b_shares):  # noqa: B905  the longer one goes on below
        if a in totals:
            totals[a] += x
            totals[b] = totals[b] + y if b in totals else y
        elif b in totals:
            totals[b] += y
            totals[a] = x
        elif a < b:
            totals[a] = x
            totals[b] = y
        elif a == b:
            totals[a] = x + y
        else:
            totals[b] = y
            totals[a] = x
    if a_size != b_size:
        both = min(a_size, b_size)
        longer, more = (a_keys, a_shares) if a_size > both else (b_keys, b_shares)
        for key, share in zip(longer[both:], more[both:]):  # noqa: B905
            totals[key] = totals[key] + share if key in totals else share
    order = sorted(totals, key=totals.__getitem__, reverse=True)
    quick = None
    if boosting and (fields_of := getattr(reader, "fields", None)) is not None:
        quick = _thinned_and_boosted(order, totals, found, fields_of, boosting, now)
    if quick is not None:
        totals, order = quick, sorted(quick, key=quick.__getitem__, reverse=True)
    else:
        totals, order = _by_columns(order, totals, found, reader, recipe, now)
    if k is not None:
        order = order[:k]
    return Ranking(order, [found[key] for key in order], [totals[key] for key in order])


def _by_columns(
    order: list[str], totals: dict[str, float], found: dict[str, Any], reader: Reader, recipe: Fusion, now: float
) -> tuple[dict[str, float], list[str]]:
    """Dedup, then boost, each over a whole column."""
    item_of = found.__getitem__
    if recipe.dedup is not None:
        seen: set[Any] = set()
        sources = reader.column(list(map(item_of, order)), recipe.dedup.key)  # type: ignore[arg-type]
        order = [
            key for key, source in zip(order, sources)  # noqa: B905
            if source is None or (source not in seen and not seen.add(source))  # type: ignore[func-returns-value]
        ]  # fmt: skip
    if recipe.boost is not None:
        values = reader.column(list(map(item_of, order)), recipe.boost.field)  # type: ignore[union-attr]
        scores = list(map(totals.__getitem__, order))
        totals = dict(zip(order, recipe.boost.boosted(scores, values, now)))  # type: ignore[union-attr]  # noqa: B905
        order = sorted(totals, key=totals.__getitem__, reverse=True)
    return totals, order


def _thinned_and_boosted(
    order: list[str], totals: dict[str, float], found: dict[str, Any], fields_of: Any, boosting: Boosting, now: float
) -> dict[str, float] | None:
    """Dedup and boost in one loop, for readers that show an item's fields as a mapping (`fields`).

    Only where every item has a source and a date in plain epoch seconds, as most stores give them; else None, and
    the columns decide.
    """
    source_key, date_key, strength, rate = boosting
    boosted: dict[str, float] = {}
    claimed: dict[Any, str] = {}
    claim = claimed.setdefault
    try:
        for key in order:
            fields = fields_of(found[key])
            if claim(fields.get(source_key), key) is key:
                when = fields.get(date_key)
                if when < now:
                    boosted[key] = totals[key] * (1.0 + strength * 2.0 ** ((now - when) * rate))
                elif now <= when < MILLISECONDS:
                    boosted[key] = totals[key] * (1.0 + strength)
                else:
                    return None
    except (TypeError, OverflowError):
        return None  # a date that is no number
    return None if None in claimed else boosted


def _passing(gate: QualityGate, arm: ArmList) -> Sequence[Any]:
    scores, floor = arm.scores, gate.floor
    if not scores:
        return arm.items
    if gate.relative is None and type(floor) is dict:
        floor = floor.get(arm.name, NO_FLOOR)
    else:
        floor = gate.bound(arm.name, max(scores))
    return [item for item, score in zip(arm.items, scores) if score >= floor]  # noqa: B905
