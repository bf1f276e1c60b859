"""Confidence of an answer: how much of the query the best hits cover. It tells when nothing is relevant.

```
coverage   = the largest share of the query's information (Σ IDF) that one of the first five hits contains; a word
             that no memory has counts as the rarest of all
nearness   = mean cosine of the five nearest memories
confidence = (coverage + nearness) / 2, or the one of them that exists
```

A useful threshold differs from store to store: `hybridmem.evaluation.calibration.calibrate` fits it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hybridmem.core import validation
from hybridmem.core.protocols import ArmQuery
from hybridmem.memory.question import Answer

__all__ = ["answer_confidence", "check_confidence", "confidence"]

FIRST = 5
"""How many of the best hits count."""


def confidence(*, coverage: Sequence[float] = (), cosines: Sequence[float] = ()) -> float:
    """The confidence, from 0 to 1, from the coverage and the cosines of the best hits.

    >>> confidence(coverage=[0.2, 0.8], cosines=[0.6, 0.4])
    0.65
    """
    parts = []
    if coverage:
        parts.append(max(coverage[:FIRST]))
    if cosines:
        nearest = sorted(cosines, reverse=True)[:FIRST]
        parts.append(math.fsum(nearest) / len(nearest))
    if not parts:
        return 0.0
    return min(1.0, max(0.0, math.fsum(parts) / len(parts)))


def answer_confidence(answer: Answer) -> float:
    """The confidence of an answer of the engine."""
    by_name = {arm.name: arm for arm in answer.lists}
    question, best = answer.question, answer.ranking.keys[:FIRST]
    coverage = answer.view.coverage(ArmQuery(question.text), best) if best else ()
    vector = by_name.get("vector")
    return confidence(coverage=coverage, cosines=(vector.scores or ()) if vector is not None else ())


def check_confidence(value: float | None, /) -> float | None:
    """The value, if it is None or a number from 0 to 1."""
    if value is not None:
        validation.number("min_confidence", value, "a number from 0 to 1; calibrate() fits one", low=0, high=1)
    return value
