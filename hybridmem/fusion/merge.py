"""Merge modes: pure functions that turn ranked lists into one list of summed shares.

| function | returns |
|---|---|
| `rank_shares` | weight / (c + rank) for each rank of a list |
| `score_shares` | weight · normalised score, for the modes that use scores |
| `completed` | an arm's votes, with scores for candidates that only other arms listed |
| `merge` | the sum of each key's shares over the lists |
| `normalise_weights` | one weight per arm, summing to 1 |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Any, NamedTuple

from hybridmem.core import validation
from hybridmem.core.types import ArmList
from hybridmem.errors import ConfigError

__all__ = [
    "ArmVotes",
    "completed",
    "first_places",
    "merge",
    "normalise_weights",
    "rank_shares",
    "score_shares",
    "weighted_rrf",
]


class ArmVotes(NamedTuple):
    """One arm's hits: keys, best first, their raw scores (None: the arm has only ranks), and the arm's weight."""

    arm: ArmList
    keys: Sequence[str]
    scores: Sequence[float] | None
    weight: float


def weighted_rrf(
    lists: Sequence[Sequence[str]], /, *, weights: Sequence[float] | None = None, c: float = 60
) -> list[tuple[str, float]]:
    """Fuse lists of keys by Σ wᵢ / (c + rankᵢ), ranks from 1; a list without the key adds 0.

    Weights are not normalised (1 each when omitted). Ties: best single rank, then key. A key that is repeated
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


def merge(
    columns: Sequence[Sequence[str]], shares: Sequence[Sequence[float]], /, *, by_list: bool = False
) -> dict[str, float]:
    """The sum of each key's shares over the lists, in the order of best rank, then key.

    A stable sort by score then breaks ties in that order. `by_list`: keys of the same best rank are in the order of
    their lists instead, as in LangChain's EnsembleRetriever. Sums of more than two shares use `math.fsum`, so the
    order of the lists cannot change a score.
    """
    maps = [first_places(keys, share) for keys, share in zip(columns, shares, strict=True)]
    order = _by_best_rank(columns, sorting=not by_list)
    if len(maps) > 2:  # noqa: PLR2004
        return {key: math.fsum([m[key] for m in maps if key in m]) for key in order}
    totals = dict.fromkeys(order, 0.0)
    for places in maps:
        for key, share in places.items():
            totals[key] += share
    return totals


def completed(votes: ArmVotes, candidates: Mapping[str, Any], /) -> ArmVotes:
    """An arm's votes, followed by the other candidates that it can score (`ArmList.known`), best first.

    A score of 0 counts as no vote. An arm without scores keeps only what it listed.
    """
    known, (arm, keys, scores, weight) = votes.arm.known, votes
    if not known or scores is None:
        return votes
    more = sorted([(-known[key], key) for key in candidates.keys() - keys if known.get(key)])
    return ArmVotes(arm, [*keys, *[key for _, key in more]], [*scores, *[-score for score, _ in more]], weight)


def first_places(keys: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Each key with the value at its first (best) rank."""
    return dict(zip(reversed(keys), reversed(values), strict=True))


def _by_best_rank(columns: Sequence[Sequence[str]], *, sorting: bool) -> list[str]:
    """Distinct keys by their best rank in any list, then by key, or without sorting in the order of the lists."""
    shared = min(map(len, columns), default=0)
    levels: Iterable[Sequence[str]] = zip(*columns)  # noqa: B905  the rest of the longer lists follows
    rest: Iterable[Sequence[str]] = (
        [key for key in level if key is not None] for level in zip_longest(*[column[shared:] for column in columns])
    )
    if sorting:
        levels, rest = map(sorted, levels), map(sorted, rest)
    return list(dict.fromkeys(chain.from_iterable(chain(levels, rest))))


@lru_cache(maxsize=512)
def rank_shares(n: int, weight: float, c: float) -> list[float]:
    """The shares weight / (c + rank), ranks from 1. The list is cached: do not change it."""
    return [weight / (c + rank) for rank in range(1, n + 1)]


def normalise_weights(names: Sequence[str], weights: Mapping[str, float] | Sequence[float] | None) -> list[float]:
    """One weight per arm, summing to 1. Omitted weights are equal; a mapping names its arms."""
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


def score_shares(mode: str, votes: ArmVotes, /, *, smooth: bool) -> list[float]:
    """The shares weight · normalised score of an arm's hits; `smooth` makes them (1 + n · x) / (1 + n).

    An arm without scores counts as n scores that fall evenly from 1 to 1/n.
    """
    n, weight = len(votes.keys), votes.weight
    scores = [1.0 - rank / n for rank in range(n)] if votes.scores is None else votes.scores
    least, step = (weight / (1 + n), weight * n / (1 + n)) if smooth else (0.0, weight)
    baseline = 0.0 if votes.scores is None else votes.arm.baseline
    return [least + step * x for x in _NORMALISERS[mode](scores, baseline)]


def _relative(scores: Sequence[float], _: float) -> list[float]:
    """Min–max: (s − min) / (max − min); all 1 when they are equal."""
    low = min(scores)
    span = max(scores) - low
    return [(s - low) / span for s in scores] if span > 0 else [1.0] * len(scores)


def _distribution(scores: Sequence[float], _: float) -> list[float]:
    """Distribution-based: the position of s between mean − 3σ and mean + 3σ, cut to [0, 1]; all 1 when equal."""
    mean = math.fsum(scores) / len(scores)
    sigma = math.sqrt(math.fsum([(s - mean) ** 2 for s in scores]) / len(scores))
    if sigma == 0:
        return [1.0] * len(scores)
    return [min(1.0, max(0.0, (s - mean + 3 * sigma) / (6 * sigma))) for s in scores]


_ROUNDING = 1e-6
"""A share below this is 0: scores of the same memory differ by less between a database and this process."""


def _convex(scores: Sequence[float], baseline: float) -> list[float]:
    """(s − baseline) / (max − baseline), at least 0: an unrelated item is worth 0, not the worst hit of the list."""
    span = max(scores) - baseline
    if span <= 0:
        return [0.0] * len(scores)
    return [x if x > _ROUNDING else 0.0 for x in ((s - baseline) / span for s in scores)]


_NORMALISERS: dict[str, Callable[[Sequence[float], float], list[float]]] = {
    "relative": _relative,
    "distribution": _distribution,
    "convex": _convex,
}
