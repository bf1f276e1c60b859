"""The express lane: two arms, RRF, floors, dedup by a field and the half-life in one pass, without stages in between.

This is the recipe most queries run, and the steps between stages would cost more than the stages. `Fusion.run` takes
this lane only when nobody asks for receipts; the staged path defines the result, and a property test holds the two
to the same keys and scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybridmem.stages import HalfLife, QualityGate, SourceDedup
from hybridmem.types import ArmList, Ranking, Reader

if TYPE_CHECKING:
    from hybridmem.fusion import Fusion

__all__ = ["express", "fits"]


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


def express(  # one pass is the point
    recipe: Fusion,
    lists: Sequence[ArmList],
    shares: Any,
    reader: Reader,
    now: float,
    k: int | None,
) -> Ranking | None:
    """The ranking of two lists, or None where the staged path must decide (repetitions, an empty arm)."""
    gate = recipe.gate
    one, two = lists
    ones = one.items if gate is None else _passing(gate, one)
    twos = two.items if gate is None else _passing(gate, two)
    a_keys, b_keys = reader.keys(ones), reader.keys(twos)
    found = dict(zip(b_keys, twos))  # noqa: B905
    size = len(found)
    items = dict(zip(a_keys, ones))  # noqa: B905
    if size != len(b_keys) or len(items) != len(a_keys) or not items or not size:
        return None
    found.update(items)
    weights = recipe.weights_for((one.name, two.name))
    a_shares, b_shares = shares(len(a_keys), weights[0], recipe.c), shares(size, weights[1], recipe.c)
    totals: dict[str, float] = {}
    have = totals.get
    for a, b, x, y in zip(a_keys, b_keys, a_shares, b_shares):  # noqa: B905  the longer one goes on below
        if a < b:
            totals[a] = have(a, 0.0) + x
            totals[b] = have(b, 0.0) + y
        else:
            totals[b] = have(b, 0.0) + y
            totals[a] = have(a, 0.0) + x
    if len(a_keys) != size:
        both = min(len(a_keys), size)
        longer, more = (a_keys, a_shares) if size == both else (b_keys, b_shares)
        for key, share in zip(longer[both:], more[both:]):  # noqa: B905
            totals[key] = have(key, 0.0) + share
    item_of = found.__getitem__
    order = sorted(totals, key=have, reverse=True)  # type: ignore[arg-type]
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
    if k is not None:
        order = order[:k]
    return Ranking(order, list(map(item_of, order)), list(map(totals.__getitem__, order)))


def _passing(gate: QualityGate, arm: ArmList) -> Sequence[Any]:
    scores = arm.scores
    if not scores:
        return arm.items
    bound = gate.bound(arm.name, max(scores) if gate.relative is not None else 0.0)
    return [item for item, score in zip(arm.items, scores) if score >= bound]  # noqa: B905
