"""Retrieval metrics as pure functions on arrays: one row per case, one column per rank.

```
recall@k = relevant in the first k / relevant at all          hit@k = 1 when recall@k > 0
mrr@k    = 1 / rank of the first relevant one, 0 beyond k     ndcg@k = DCG / DCG of the best order possible
DCG      = Σ grade / log2(rank + 1)
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridmem.errors import ConfigError

__all__ = [
    "Interval",
    "Judged",
    "bootstrap_means",
    "hit",
    "interval",
    "judge",
    "metric",
    "mrr",
    "ndcg",
    "recall",
    "sign_flip",
]

Floats = NDArray[np.float64]

_CHUNK = 4_000_000
"""Resampled cells held at once: bounds the memory of a bootstrap over very many cases."""


class Judged(NamedTuple):
    """Judged lists: the grade at each rank, the grades of the ideal order, and the number of relevant ids."""

    grades: Floats
    ideal: Floats
    relevant: Floats


class Interval(NamedTuple):
    """A mean with the bounds of its bootstrap interval."""

    mean: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Whether zero lies outside."""
        return self.low > 0.0 or self.high < 0.0


def judge(lists: Sequence[Sequence[str]], relevant: Sequence[Mapping[str, float]], *, depth: int) -> Judged:
    """The grades of each list; a repeated id counts once, at its first rank.

    >>> judge([["b", "a"]], [{"a": 2.0, "c": 1.0}], depth=3).grades.tolist()
    [[0.0, 2.0, 0.0]]
    """
    if len(lists) != len(relevant):
        raise ConfigError(f"{len(lists)} lists for {len(relevant)} cases: the counts must be equal")
    grades = np.zeros((len(lists), depth))
    ideal = np.zeros((len(lists), depth))
    counts = np.zeros(len(lists))
    for row, (ids, grade_of) in enumerate(zip(lists, relevant, strict=True)):
        best = sorted((grade for grade in grade_of.values() if grade > 0.0), reverse=True)
        counts[row] = len(best)
        ideal[row, : len(best)] = best[:depth]
        for rank, key in enumerate(list(dict.fromkeys(ids))[:depth]):
            grades[row, rank] = max(0.0, grade_of.get(key, 0.0))
    return Judged(grades, ideal, counts)


def _relevant_at(judged: Judged, k: int) -> Floats:
    """1.0 at each of the first k ranks that is relevant."""
    return (judged.grades[:, :k] > 0.0).astype(np.float64)


def recall(judged: Judged, k: int) -> Floats:
    """The share of the relevant ids among the first k, per case; 0 where nothing is relevant."""
    share: Floats = _relevant_at(judged, k).sum(axis=1) / np.maximum(judged.relevant, 1.0)
    return share


def hit(judged: Judged, k: int) -> Floats:
    """1.0 where at least one of the first k is relevant."""
    best: Floats = _relevant_at(judged, k).max(axis=1, initial=0.0)
    return best


def mrr(judged: Judged, k: int) -> Floats:
    """The reciprocal rank of the first relevant id among the first k, 0 where there is none."""
    relevant = _relevant_at(judged, k)
    best: Floats = (relevant / np.arange(1.0, relevant.shape[1] + 1.0)).max(axis=1, initial=0.0)
    return best


def ndcg(judged: Judged, k: int) -> Floats:
    """Discounted gain over that of the ideal order, as in trec_eval: linear grades, log2(rank + 1)."""
    discount = 1.0 / np.log2(np.arange(2, min(k, judged.grades.shape[1]) + 2))
    best = judged.ideal[:, :k] @ discount
    return np.divide(judged.grades[:, :k] @ discount, best, out=np.zeros(len(best)), where=best > 0.0)


_METRICS: dict[str, Callable[[Judged, int], Floats]] = {"recall": recall, "hit": hit, "mrr": mrr, "ndcg": ndcg}


def metric(name: str) -> tuple[Callable[[Judged, int], Floats], int]:
    """The function and the k behind a name such as "recall@10".

    >>> metric("ndcg@10")[1]
    10
    """
    kind, _, depth = name.partition("@")
    if kind not in _METRICS or not depth.isdecimal() or int(depth) < 1:
        raise ConfigError(f"metric {name!r}: must be one of {', '.join(_METRICS)} with a depth, such as recall@10")
    return _METRICS[kind], int(depth)


def bootstrap_means(values: NDArray[Any], *, resamples: int = 2000, seed: int = 0) -> Floats:
    """The mean of each column over resampled cases: (resamples, columns).

    All columns share each draw, so the difference of two columns is a paired comparison.
    """
    table = np.asarray(values, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    cases = len(table)
    if cases == 0:
        raise ConfigError("no cases: a bootstrap needs at least one")
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, table.shape[1]))
    step = max(1, _CHUNK // cases)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(0, cases, (rows, cases)) + np.arange(rows)[:, None] * cases
        counts = np.bincount(drawn.ravel(), minlength=rows * cases).reshape(rows, cases)
        means[start : start + rows] = counts @ table / cases
    return means


def interval(values: NDArray[Any], *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """The mean of one column with its percentile bootstrap interval; give differences for a paired comparison."""
    drawn = bootstrap_means(values, resamples=resamples, seed=seed)[:, 0]
    low, high = np.quantile(drawn, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Interval(float(np.mean(values)), float(low), float(high))


def sign_flip(differences: NDArray[Any], *, resamples: int = 9999, seed: int = 0) -> float:
    """The p-value of a mean this high, by flipping the signs of the differences at random.

    Cases without a difference do not count, so a gain on very few cases is never significant: four gains and no loss
    give about 1/2⁴.
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0.0]
    if len(values) == 0:
        return 1.0
    rng = np.random.default_rng(seed)
    observed, reached = values.sum(), 0
    step = max(1, _CHUNK // len(values))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        signs = rng.integers(0, 2, (rows, len(values)), dtype=np.int8) * 2 - 1
        reached += int((signs @ values >= observed - 1e-12).sum())
    return (1 + reached) / (1 + resamples)
