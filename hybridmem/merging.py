"""Merging ranked lists: the pure arithmetic under `Fusion`, one function a rule.

| function | gives |
|---|---|
| `rank_shares` | weight / (c + rank) for each place of a list |
| `score_shares` | weight · normalised score, for the modes that read scores |
| `merge` | each key's shares added up over the lists, ties in order |
| `normalise_weights` | one weight an arm, summing to 1 |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Any

from hybridmem.errors import ConfigError
from hybridmem.types import ArmList

__all__ = ["first_places", "merge", "normalise_weights", "rank_shares", "score_shares", "weighted_rrf"]


def weighted_rrf(
    lists: Sequence[Sequence[str]], /, *, weights: Sequence[float] | None = None, c: float = 60
) -> list[tuple[str, float]]:
    """Fuse lists of keys by Σ wᵢ / (c + rankᵢ), ranks from 1; a list without the key adds 0.

    Weights are taken as they are (1 each when omitted). Ties: best single rank, then key. A key that stands twice
    in one list counts once, at its best rank. The order of the lists does not matter.

    >>> [key for key, _ in weighted_rrf([["A", "D", "B", "E", "C"], ["B", "A", "F", "C", "D"]])]
    ['A', 'B', 'D', 'C', 'F', 'E']
    """
    used = [1.0] * len(lists) if weights is None else list(weights)
    if len(used) != len(lists):
        raise ConfigError(f"{len(used)} weights for {len(lists)} lists: give one weight for each list")
    shares = [rank_shares(len(keys), weight, c) for keys, weight in zip(lists, used, strict=True)]
    scores = merge(lists, shares)
    return [(key, scores[key]) for key in sorted(scores, key=scores.__getitem__, reverse=True)]


def merge(columns: Sequence[Sequence[str]], shares: Sequence[Sequence[float]], /) -> dict[str, float]:
    """Add up each key's shares over the lists; keys come in the order of their best rank, then by key.

    That order is what breaks ties when the result is sorted stably by score. Sums are exact (`math.fsum`), so the
    order of the lists cannot change a score.
    """
    if len(columns) == 2 and all(len(set(keys)) == len(keys) for keys in columns):  # noqa: PLR2004
        return _pair(columns[0], columns[1], shares[0], shares[1])
    maps = [first_places(keys, share) for keys, share in zip(columns, shares, strict=True)]
    return {key: math.fsum([m[key] for m in maps if key in m]) for key in _by_best_rank(columns)}


def _pair(one: Sequence[str], two: Sequence[str], ones: Sequence[float], twos: Sequence[float]) -> dict[str, float]:
    """Two lists without repetitions: the usual case in one pass, because it is on the path of every query."""
    totals: dict[str, float] = {}
    have = totals.get
    for a, b, x, y in zip(one, two, ones, twos):  # noqa: B905  the longer one goes on below
        if a < b:
            totals[a] = have(a, 0.0) + x
            totals[b] = have(b, 0.0) + y
        else:
            totals[b] = have(b, 0.0) + y
            totals[a] = have(a, 0.0) + x
    both = min(len(one), len(two))
    longer, more = (one, ones) if len(one) > both else (two, twos)
    for key, share in zip(longer[both:], more[both:]):  # noqa: B905
        totals[key] = have(key, 0.0) + share
    return totals


def first_places(keys: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Each key with the value of its first (best) place."""
    return dict(zip(reversed(keys), reversed(values), strict=True))


def _by_best_rank(columns: Sequence[Sequence[str]]) -> list[str]:
    """Distinct keys, by the best place they have in any list, then by key."""
    levels = zip_longest(*columns)
    return list(dict.fromkeys(chain.from_iterable(sorted(k for k in level if k is not None) for level in levels)))


@lru_cache(maxsize=512)
def rank_shares(n: int, weight: float, c: float) -> list[float]:
    """Give weight / (c + rank), ranks from 1; kept, so nobody may change it."""
    return [weight / (c + rank) for rank in range(1, n + 1)]


def normalise_weights(names: Sequence[str], weights: Mapping[str, float] | Sequence[float] | None) -> list[float]:
    """One weight an arm, summing to 1. Omitted weights are equal; a mapping names its arms."""
    if isinstance(weights, Mapping):
        unknown = [name for name in weights if name not in names]
        if unknown:
            raise ConfigError(f"weights name unknown arm {unknown[0]!r}: the arms are {', '.join(map(repr, names))}")
        given = [float(weights.get(name, 0.0)) for name in names]
    elif weights is None:
        given = [1.0] * len(names)
    else:
        given = [float(w) for w in weights]
    if len(given) != len(names):
        raise ConfigError(f"{len(given)} weights for {len(names)} arms: give one weight for each arm")
    for weight in given:
        if not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"weight {weight!r} is not allowed: weights are finite numbers from 0 up")
    total = math.fsum(given)
    if names and total <= 0:
        raise ConfigError(f"weights {given!r} are all zero: at least one must be greater than zero")
    return [weight / total for weight in given]


def score_shares(mode: str, arm: ArmList, weight: float, /, *, smooth: bool) -> list[float]:
    """Give weight · normalised score for each hit of an arm; `smooth` lifts them off 0: (1 + n · x) / (1 + n)."""
    normed = _NORMALISERS[mode](_scores_or_ranks(arm))
    if smooth:
        normed = [(1 + len(normed) * x) / (1 + len(normed)) for x in normed]
    return [weight * x for x in normed]


def _scores_or_ranks(arm: ArmList) -> Sequence[float]:
    """The arm's raw scores; for an arm that has none, its ranks as evenly falling numbers from 1 to 1/n."""
    if arm.scores is not None:
        return arm.scores
    n = len(arm.items)
    return [1.0 - rank / n for rank in range(n)]


def _relative(scores: Sequence[float]) -> list[float]:
    """Min–max: (s − min) / (max − min), all 1 when they are equal."""
    low, high = min(scores), max(scores)
    span = high - low
    return [(s - low) / span for s in scores] if span > 0 else [1.0] * len(scores)


def _distribution(scores: Sequence[float]) -> list[float]:
    """Distribution-based: s placed between mean − 3σ and mean + 3σ, cut to [0, 1]; all 1 when they are equal."""
    mean = math.fsum(scores) / len(scores)
    sigma = math.sqrt(math.fsum([(s - mean) ** 2 for s in scores]) / len(scores))
    if sigma == 0:
        return [1.0] * len(scores)
    return [min(1.0, max(0.0, (s - mean + 3 * sigma) / (6 * sigma))) for s in scores]


def _convex(scores: Sequence[float]) -> list[float]:
    """Max-norm: s / max, cut at 0, so that a weak list does not pretend that its worst hit is worthless."""
    high = max(scores)
    return [max(0.0, s / high) for s in scores] if high > 0 else [0.0] * len(scores)


_NORMALISERS: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "relative": _relative,
    "distribution": _distribution,
    "convex": _convex,
}
