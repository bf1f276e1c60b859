"""Merge modes and operations on rankings: pure functions that turn ranked lists into one, and sort or cut it.

| function | returns |
|---|---|
| `rank_shares` | weight / (c + rank) for each rank of a list |
| `score_shares` | weight · normalised score, for the modes that use scores |
| `completed`, `pool_votes` | an arm's votes, with scores for candidates that only other arms listed |
| `by_id` | the places of ids in order, which break ties |
| `merge`, `merge_pool` | the keys of lists, or the rows of a pool, by the sum of their shares; and those sums |
| `normalise_weights` | one weight per arm, summing to 1 |
| `reorder`, `take`, `columns_at` | a ranking with new scores, or some of its items |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridmem.core import validation
from hybridmem.core.types import ArmList, Candidates, Ranking
from hybridmem.errors import ConfigError

__all__ = [
    "ArmVotes",
    "PoolVotes",
    "by_id",
    "columns_at",
    "completed",
    "merge",
    "merge_pool",
    "normalise_weights",
    "pool_votes",
    "rank_shares",
    "reorder",
    "score_shares",
    "take",
    "weighted_rrf",
]


Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]


class ArmVotes(NamedTuple):
    """One arm's hits: keys of its items, best first, their raw scores (None: only ranks), and the arm's weight."""

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
    order, totals = merge(lists, shares)
    best: dict[str, int] = {}
    for keys in lists:
        for rank, key in enumerate(keys):
            best[key] = min(rank, best.get(key, rank))
    every = list(chain.from_iterable(lists))
    return sorted(((every[row], totals[row]) for row in order), key=lambda hit: (-hit[1], best[hit[0]], hit[0]))


def merge(columns: Sequence[Sequence[str]], shares: Sequence[Sequence[float]], /) -> tuple[list[int], list[float]]:
    """The first position of each key in the lists, one after the other, by the sum of its shares; and those sums.

    Ties are in the order of best rank, then of the lists, as in LangChain's EnsembleRetriever. Sums of more than two
    shares use `math.fsum`, so that the order of the lists cannot change a score.

    >>> merge(["ab", "ca"], [[1.0, 0.5], [1.0, 0.5]])
    ([0, 2, 1], [1.5, 0.5, 1.0, 0.5])
    """
    width = len(columns)
    first: dict[str, int] = {}
    by_rank = [-1] * (width * max(map(len, columns), default=0))
    totals: list[float] = []
    several: dict[int, list[float]] = {}
    for i, (keys, share) in enumerate(zip(columns, shares, strict=True)):
        start = len(totals)
        totals += share
        rows = list(map(first.setdefault, keys, range(start, len(totals))))
        by_rank[i : width * len(rows) : width] = rows
        for row, value in _first_places(rows, share) if i else ():
            if row < start:
                if width > 2:  # noqa: PLR2004
                    several.setdefault(row, [totals[row]]).append(value)
                else:
                    totals[row] += value
    for row, values in several.items():
        totals[row] = math.fsum(values)
    order = dict.fromkeys(by_rank)
    order.pop(-1, None)  # stands for the end of a shorter list
    return sorted(order, key=totals.__getitem__, reverse=True), totals


def _first_places(rows: Sequence[int], values: Sequence[float]) -> Iterable[tuple[int, float]]:
    """Each row with the value at its first (best) rank."""
    if len(set(rows)) == len(rows):
        return zip(rows, values, strict=True)
    return dict(zip(reversed(rows), reversed(values), strict=True)).items()


def completed(votes: ArmVotes, candidates: Mapping[str, Any], /) -> ArmVotes:
    """An arm's votes, followed by the other candidates that it can score (`ArmList.known`), best first.

    `candidates` maps keys to items. A score of 0 counts as no vote. An arm without scores keeps only what it listed.
    """
    arm, keys, scores, weight = votes
    known = arm.known
    if not known or scores is None:
        return votes
    more = sorted([(-known[key], key) for key in candidates.keys() - keys if known.get(key)])
    items = [*arm.items, *[candidates[key] for _, key in more]]
    return ArmVotes(
        arm._replace(items=items), [*keys, *[key for _, key in more]], [*scores, *[-score for score, _ in more]], weight
    )


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


def score_shares(mode: str, votes: ArmVotes | PoolVotes, /, *, smooth: bool) -> Floats:
    """The shares weight · normalised score of an arm's hits; `smooth` makes them (1 + n · x) / (1 + n).

    An arm without scores counts as n scores that fall evenly from 1 to 1/n.
    """
    given, weight = votes.scores, votes.weight
    n = len(votes.keys) if given is None else len(given)
    if not n:
        return np.zeros(0)
    least, step = (weight / (1 + n), weight * n / (1 + n)) if smooth else (0.0, weight)
    scores: Floats = 1.0 - np.arange(n) / n if given is None else np.asarray(given, np.float64)
    baseline = 0.0 if given is None else votes.arm.baseline
    with np.errstate(invalid="ignore"):  # scores of others may be infinite
        return least + step * _NORMALISERS[mode](scores, baseline)


def _relative(scores: Floats, _: float) -> Floats:
    """Min–max: (s − min) / (max − min); all 1 when they are equal."""
    low = scores.min()
    span = scores.max() - low
    return (scores - low) / span if span > 0 else np.ones(len(scores))


def _distribution(scores: Floats, _: float) -> Floats:
    """Distribution-based: the position of s between mean − 3σ and mean + 3σ, cut to [0, 1]; all 1 when equal."""
    mean = math.fsum(scores) / len(scores)
    sigma = math.sqrt(math.fsum((scores - mean) ** 2) / len(scores))
    if sigma == 0:
        return np.ones(len(scores))
    return np.clip((scores - mean + 3 * sigma) / (6 * sigma), 0.0, 1.0)


_ROUNDING = 1e-6
"""A share below this is 0: scores of the same memory differ by less between a database and this process."""


def _convex(scores: Floats, baseline: float) -> Floats:
    """(s − baseline) / (max − baseline), at least 0: an unrelated item is worth 0, not the worst hit of the list."""
    best = scores.max()
    span = best - baseline
    if span <= _ROUNDING * abs(best):  # the best one is an unrelated item but for rounding
        return np.zeros(len(scores))
    shares = (scores - baseline) / span
    return np.where(shares > _ROUNDING, shares, 0.0)


_NORMALISERS: dict[str, Callable[[Floats, float], Floats]] = {
    "relative": _relative,
    "distribution": _distribution,
    "convex": _convex,
}


class PoolVotes(NamedTuple):
    """One arm's votes in a pool: rows of the pool, best first, and their raw scores."""

    arm: ArmList
    keys: Ints
    scores: Floats | None
    weight: float

    def by_key(self, ids: Sequence[str], /) -> ArmVotes:
        """The same with the ids of the pool."""
        scores = None if self.scores is None else self.scores.tolist()
        return ArmVotes(self.arm, [ids[row] for row in self.keys.tolist()], scores, self.weight)


def by_id(ids: Sequence[str], /) -> Ints:
    """The place of each id among all of them in order; it breaks ties."""
    places = np.empty(len(ids), np.intp)
    places[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return places


def pool_votes(
    pool: Candidates, arm: ArmList, rows: Ints, others: Bools, weight: float, /, *, places: Ints
) -> PoolVotes:
    """The arm's list, at these rows of the pool, followed by the `others` that it can score, best first.

    A score of 0 counts as no vote. An arm without scores keeps only what it listed. `places` is `by_id` of the pool.
    """
    if arm.scores is None or arm.name not in pool.scores:
        return PoolVotes(arm, rows, None if arm.scores is None else np.array(arm.scores, np.float64), weight)
    known = np.array(pool.scores[arm.name], np.float64)
    more = (others & (known != 0.0)).nonzero()[0]
    more = more[np.lexsort((places[more], -known[more]))]
    return PoolVotes(arm, np.concatenate((rows, more)), np.concatenate((arm.scores, known[more])), weight)


def merge_pool(places: Ints, votes: Sequence[PoolVotes], shares: Sequence[Sequence[float]], /) -> tuple[Ints, Floats]:
    """The rows of a pool by the sum of their shares, then best rank, then id (`by_id`); and the sums."""
    totals, best = np.zeros(len(places)), np.full(len(places), np.inf)
    for one, share in zip(votes, shares, strict=True):
        totals[one.keys] += share
        best[one.keys] = np.minimum(best[one.keys], np.arange(len(one.keys)))
    order: Ints = np.lexsort((places, best, -totals))
    return order, totals[order]


# --- operations on rankings


def reorder(ranking: Ranking, scores: Sequence[float], /) -> Ranking:
    """The ranking with new scores, best first; equal scores keep their order."""
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    return take(ranking, order, scores)


def take(ranking: Ranking, positions: Sequence[int], scores: Sequence[float] | None = None, /) -> Ranking:
    """The items at these positions, in this order, with these scores (or their own)."""
    return Ranking(*columns_at(positions, ranking.keys, ranking.items, ranking.scores if scores is None else scores))


def columns_at(positions: Sequence[int], /, *columns: Sequence[Any]) -> list[list[Any]]:
    """For each column its values at these positions."""
    if len(positions) < 2:  # noqa: PLR2004
        return [[column[position] for position in positions] for column in columns]
    get = itemgetter(*positions)  # half the time of a loop
    return [list(get(column)) for column in columns]
