"""Calibration: the confidence threshold below which a memory returns nothing, fitted on questions it can answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hybridmem.core import validation
from hybridmem.errors import ConfigError
from hybridmem.evaluation.cases import Case, judged_cases
from hybridmem.memory.memory import HybridMemory
from hybridmem.memory.question import answer_confidence

__all__ = ["Calibration", "calibrate", "threshold"]

_RATE = "a share between 0 and 1, such as 0.05"


def threshold(confidences: Iterable[float], *, rate: float = 0.05) -> float:
    """The highest threshold below which at most a share `rate` of answerable questions is expected to fall.

    The ⌊rate · (n + 1)⌋-th smallest of n confidences: a new answerable question falls below it with probability ≤ rate.
    """
    validation.number("rate", rate, _RATE, low=0, high=math.nextafter(1, 0), above=True)
    ordered: list[float] = validation.listed("confidences", confidences, "numbers from 0 to 1")
    for value in ordered:
        validation.number("a confidence", value, "a number from 0 to 1", low=0, high=1)
    ordered.sort()
    position = math.floor(rate * (len(ordered) + 1))
    if position < 1:
        needed = math.ceil(1 / rate) - 1
        raise ConfigError(f"{len(ordered)} questions are too few for rate={rate:g}: give at least {needed}")
    return ordered[position - 1]


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted threshold: `memory.search(query, min_confidence=calibration.threshold)`."""

    threshold: float
    rate: float
    questions: int
    refused: float
    """The share of the answerable questions that it refuses."""
    off_topic: float | None = None
    """The share of the off-topic questions that it refuses; None if none were given."""

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
    """Fit the threshold on questions that this memory can answer; off-topic questions measure how many it refuses.

    Cases of `questions` that name no relevant id are left out: the memory cannot answer them.
    """
    if not isinstance(memory, HybridMemory):
        validation.refuse("memory", memory, "a HybridMemory")
    given = validation.listed("questions", questions, "questions or cases")
    kept = [question for question in given if not isinstance(question, Case) or judged_cases([question])]
    answerable = [_confidence(memory, question) for question in kept]
    limit = threshold(answerable, rate=rate)
    unrelated = [
        _confidence(memory, question) for question in validation.listed("off_topic", off_topic, "questions or cases")
    ]
    return Calibration(
        threshold=limit,
        rate=rate,
        questions=len(answerable),
        refused=_below(answerable, limit),
        off_topic=_below(unrelated, limit) if unrelated else None,
    )


def _confidence(memory: HybridMemory, question: str | Case) -> float:
    if not isinstance(question, str | Case):
        validation.refuse("a question", question, "a text or a Case")
    text, as_of = (question, None) if isinstance(question, str) else (question.query, question.as_of)
    return answer_confidence(memory.engine.answer(memory.question(text, as_of=as_of)))


def _below(values: Sequence[float], limit: float) -> float:
    return sum(value < limit for value in values) / len(values)
