"""Merging ranked lists: the pure arithmetic under `Fusion`, one function a rule.

| function | gives |
|---|---|
| `rank_shares` | weight / (c + rank) for each place of a list |
| `score_shares` | weight · normalised score, for the modes that read scores |
| `completed` | an arm's list with the candidates of the others that it knows a score of |
| `merge` | each key's shares added up over the lists, ties in order |
| `ranked` | completing, normalising, merging and sorting in arrays, where nothing but scores decides |
| `normalise_weights` | one weight an arm, summing to 1 |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.core import validation
from hybridmem.core.types import ArmList
from hybridmem.errors import ConfigError

__all__ = [
    "Opinion",
    "completed",
    "first_places",
    "merge",
    "normalise_weights",
    "rank_shares",
    "ranked",
    "score_shares",
    "weighted_rrf",
]

Floats = npt.NDArray[np.float64]


class Opinion(NamedTuple):
    """What an arm says: keys, best first, their raw scores (None: it has only ranks), and what its word weighs."""

    arm: ArmList
    keys: Sequence[str]
    scores: Sequence[float] | None
    weight: float


def weighted_rrf(
    lists: Sequence[Sequence[str]], /, *, weights: Sequence[float] | None = None, c: float = 60
) -> list[tuple[str, float]]:
    """Fuse lists of keys by Σ wᵢ / (c + rankᵢ), ranks from 1; a list without the key adds 0.

    Weights are taken as they are (1 each when omitted). Ties: best single rank, then key. A key that stands twice
    in one list counts once, at its best rank. The order of the lists does not matter.

    >>> [key for key, _ in weighted_rrf([["A", "D", "B", "E", "C"], ["B", "A", "F", "C", "D"]])]
    ['A', 'B', 'D', 'C', 'F', 'E']
    """
    for keys in validation.listed("lists", lists, "lists of keys, best first"):
        validation.listed("one of lists", keys, "keys, best first")
    used = [1.0] * len(lists) if weights is None else validation.weights(weights)
    validation.number("c", c, "c is a finite number from 0 up", low=0)
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
    maps = [first_places(keys, share) for keys, share in zip(columns, shares, strict=True)]
    return {key: math.fsum([m[key] for m in maps if key in m]) for key in _by_best_rank(columns)}


def completed(opinion: Opinion, everything: Mapping[str, Any], /) -> Opinion:
    """An arm's list, followed by those of everything that it knows a score of but did not list, best first.

    A score of 0 is no opinion, and an arm that has only ranks has none about what it did not list.
    """
    known, (arm, keys, scores, weight) = opinion.arm.known, opinion
    if not known or scores is None:
        return opinion
    more = sorted([(-known[key], key) for key in everything.keys() - keys if known.get(key)])
    return Opinion(arm, [*keys, *[key for _, key in more]], [*scores, *[-score for score, _ in more]], weight)


def ranked(
    heard: Sequence[Opinion], everything: Mapping[str, Any], /, *, smooth: bool
) -> tuple[list[str], list[float]] | None:
    """Keys and scores, best first, of one or two completed lists merged by min–max: the usual case of a memory.

    The same numbers as by `completed`, `score_shares` and `merge`, sooner. None where these have to decide: an arm
    repeats itself or has only ranks, a score is not finite or 0, or two totals are equal.
    """
    if len(heard) > 2:  # noqa: PLR2004  more shares than two are added up exactly
        return None
    totals: Floats = np.zeros(len(everything))
    for opinion in heard:
        column = _column(opinion, everything)
        if column is None:
            return None
        totals += _relative(column, opinion.weight, smooth=smooth)
    order = (-totals).argsort()
    totals = totals[order]
    if (totals[1:] == totals[:-1]).any():
        return None
    keys = list(everything)
    return list(map(keys.__getitem__, order.tolist())), totals.tolist()


def _column(opinion: Opinion, everything: Mapping[str, Any]) -> Floats | None:
    """An arm's score of every candidate, NaN where it has no opinion; None where its list has to be looked at."""
    arm, keys, scores, _ = opinion
    own = dict(zip(keys, scores or ()))  # noqa: B905
    if scores is None and arm.known:
        return None
    if len(own) != len(keys) or not math.isfinite(sum(own.values())):
        return None
    column = np.array(list(map({**(arm.known or {}), **own}.get, everything)), np.float64)
    return None if (column == 0.0).any() else column


def _relative(column: Floats, weight: float, *, smooth: bool) -> Floats:
    """`score_shares` of min–max for a column, 0 where it is NaN."""
    unknown = np.isnan(column)
    n = len(column) - int(np.count_nonzero(unknown))
    if not n:
        return np.zeros(len(column))
    given = column if n == len(column) else column[~unknown]
    least, step = _lifted(n, weight, smooth=smooth)
    low = given.min()
    span = given.max() - low
    shares: Floats = least + step * ((column - low) / span) if span > 0 else np.full(len(column), least + step)
    if n < len(column):
        shares[unknown] = 0.0
    return shares


def first_places(keys: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Each key with the value of its first (best) place."""
    return dict(zip(reversed(keys), reversed(values), strict=True))


def _by_best_rank(columns: Sequence[Sequence[str]]) -> list[str]:
    """Distinct keys, by the best place they have in any list, then by key."""
    levels = zip_longest(*columns)
    return list(dict.fromkeys(chain.from_iterable(sorted(k for k in level if k is not None) for level in levels)))


@lru_cache(maxsize=512)
def rank_shares(n: int, weight: float, c: float) -> list[float]:
    """The shares weight / (c + rank), ranks from 1; kept, so nobody may change it."""
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


def score_shares(mode: str, opinion: Opinion, /, *, smooth: bool) -> list[float]:
    """The shares weight · normalised score, for each hit of an arm; `smooth` lifts them off 0: (1 + n · x) / (1 + n).

    The ranks of an arm without scores count as evenly falling numbers from 1 to 1/n.
    """
    n, weight = len(opinion.keys), opinion.weight
    scores = [1.0 - rank / n for rank in range(n)] if opinion.scores is None else opinion.scores
    least, step = _lifted(n, weight, smooth=smooth)
    if mode != "relative":
        return [least + step * x for x in _NORMALISERS[mode](scores)]
    low = min(scores)  # min–max: (s − min) / (max − min), all 1 when they are equal
    span = max(scores) - low
    return [least + step * ((s - low) / span) for s in scores] if span > 0 else [least + step] * n


def _lifted(n: int, weight: float, *, smooth: bool) -> tuple[float, float]:
    """What the worst of n hits gets, and by how much the best gets more."""
    return (weight / (1 + n), weight * n / (1 + n)) if smooth else (0.0, weight)


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
    "distribution": _distribution,
    "convex": _convex,
}
