"""Knowing when nothing is relevant, without a model: how much of the question do the best hits account for.

```
coverage   = the largest share of the question's information (Σ IDF) that one of the first hits holds; a word that
             no memory has counts as the rarest of all
nearness   = mean cosine of the five nearest memories
confidence = (coverage + nearness) / 2, or the one of them that a memory has
```

What is enough differs from store to store, so the threshold is fitted: `calibrate(memory, questions)` takes questions
that the memory can answer, and gives the threshold that refuses at most 5 % of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hybridmem.core import validation
from hybridmem.errors import ConfigError

if TYPE_CHECKING:
    from hybridmem.evaluation.cases import Case
    from hybridmem.memory.memory import HybridMemory
    from hybridmem.memory.question import Answer

__all__ = ["Calibration", "answer_confidence", "calibrate", "check_confidence", "confidence", "threshold"]

_RATE = "a share between 0 and 1, such as 0.05"
FIRST = 5
"""How many of the best hits are looked at."""


def confidence(*, coverage: Sequence[float] = (), cosines: Sequence[float] = ()) -> float:
    """Between 0 and 1: what the first hits say about whether there is an answer at all.

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
    """The confidence of an engine's answer, from the lists that made it."""
    by_name = {arm.name: arm for arm in answer.lists}
    coverage: Sequence[float] = ()
    covered: Any = getattr(answer.space, "coverage", None)
    if covered is not None and answer.ranking.keys:
        coverage = covered(answer.question, answer.ranking.keys[:FIRST])
    vector = by_name.get("vector")
    return confidence(coverage=coverage, cosines=(vector.scores or ()) if vector is not None else ())


def check_confidence(value: float | None, /) -> float | None:
    """The value itself, when it is one that a confidence can reach."""
    if value is not None:
        validation.number("min_confidence", value, "a number from 0 to 1; calibrate() fits one", low=0, high=1)
    return value


def threshold(confidences: Iterable[float], *, rate: float = 0.05) -> float:
    """The highest threshold below which at most a share `rate` of answerable questions is expected to fall.

    The ⌊rate · (n + 1)⌋-th smallest of n confidences: what was not seen falls below it with probability ≤ rate.
    """
    validation.number("rate", rate, _RATE, low=0, high=math.nextafter(1, 0), above=True)
    ordered: list[float] = validation.listed("confidences", confidences, "numbers from 0 to 1")
    for value in ordered:
        validation.number("a confidence", value, "a number from 0 to 1", low=0, high=1)
    ordered.sort()
    place = math.floor(rate * (len(ordered) + 1))
    if place < 1:
        needed = math.ceil(1 / rate) - 1
        raise ConfigError(f"{len(ordered)} questions are too few for rate={rate:g}: give at least {needed}")
    return ordered[place - 1]


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted threshold: `memory.search(query, min_confidence=calibration.threshold)`."""

    threshold: float
    rate: float
    questions: int
    refused: float
    """The share of the answerable questions that it refuses."""
    off_topic: float | None = None
    """The share of the off-topic questions that it refuses, where some were given."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        text = (
            f"min_confidence={self.threshold:.4f} refuses {self.refused:.1%} of {self.questions} answerable questions"
        )
        return text if self.off_topic is None else f"{text} and {self.off_topic:.1%} of the off-topic ones"


def calibrate(
    memory: HybridMemory,
    questions: Iterable[str | Case],
    *,
    rate: float = 0.05,
    off_topic: Iterable[str | Case] = (),
) -> Calibration:
    """Fit the threshold on questions this memory can answer; measure it on off-topic ones where you have them.

    Cases of `questions` that name no relevant id are left out: the memory cannot answer them.
    """
    if not hasattr(memory, "_question"):
        validation.refuse("memory", memory, "a HybridMemory")
    given = validation.listed("questions", questions, "questions or cases")
    known = [_ask(memory, question) for question in given if isinstance(question, str) or _answerable(question)]
    limit = threshold(known, rate=rate)
    strange = [_ask(memory, question) for question in validation.listed("off_topic", off_topic, "questions or cases")]
    return Calibration(
        threshold=limit,
        rate=rate,
        questions=len(known),
        refused=_below(known, limit),
        off_topic=_below(strange, limit) if strange else None,
    )


def _answerable(case: Case) -> bool:
    return not isinstance(getattr(case, "relevant", None), Mapping) or any(
        grade > 0 for grade in case.relevant.values()
    )


def _ask(memory: HybridMemory, question: str | Case) -> float:
    if not isinstance(question, str) and not hasattr(question, "query"):
        validation.refuse("a question", question, "a text or a Case")
    text, as_of = (question, None) if isinstance(question, str) else (question.query, question.as_of)
    asked = memory._question(text, as_of=as_of)  # noqa: SLF001  one path for asking and for calibrating
    return answer_confidence(memory._engine.answer(asked))  # noqa: SLF001


def _below(values: Sequence[float], limit: float) -> float:
    return sum(value < limit for value in values) / len(values)
