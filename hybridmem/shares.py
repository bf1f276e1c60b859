"""The normalisers of a fusion for many cases at once: (arms, cases, candidates) in, shares out.

`within` says who takes part; what the others get does not matter.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybridmem.reach import Bools, Floats

__all__ = ["NORMALISERS"]


def _relative(raw: Floats, within: Bools) -> Floats:
    low = np.where(within, raw, np.inf).min(axis=2, keepdims=True)
    high = np.where(within, raw, -np.inf).max(axis=2, keepdims=True)
    spans = high > low
    return np.where(spans, (raw - np.where(spans, low, 0.0)) / np.where(spans, high - low, 1.0), 1.0)


def _distribution(raw: Floats, within: Bools) -> Floats:
    size = np.maximum(within.sum(axis=2, keepdims=True), 1)
    mean = np.where(within, raw, 0.0).sum(axis=2, keepdims=True) / size
    sigma = np.sqrt((np.where(within, raw - mean, 0.0) ** 2).sum(axis=2, keepdims=True) / size)
    placed = np.clip((raw - mean + 3.0 * sigma) / np.where(sigma > 0, 6.0 * sigma, 1.0), 0.0, 1.0)
    return np.where(sigma > 0, placed, 1.0)


def _convex(raw: Floats, within: Bools) -> Floats:
    high = np.where(within, raw, -np.inf).max(axis=2, keepdims=True)
    return np.where(high > 0, np.maximum(raw / np.where(high > 0, high, 1.0), 0.0), 0.0)


NORMALISERS: dict[str, Callable[[Floats, Bools], Floats]] = {
    "relative": _relative,
    "distribution": _distribution,
    "convex": _convex,
}
