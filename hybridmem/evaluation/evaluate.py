"""Evaluation of memories and retrievers on labelled cases, and calibration of the confidence threshold.

>>> report = evaluate({"mine": lambda query: ["a", "b"]}, [Case("who?", {"b": 1.0})], ks=(1, 3))
>>> report.mean("mine", "recall@3"), report.mean("mine", "mrr@10")
(1.0, 0.5)
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from hybridmem.core import validation
from hybridmem.core.protocols import Progress
from hybridmem.errors import ConfigError
from hybridmem.evaluation.cases import Case, check_cases, judged_cases, load_cases, load_corpus, load_questions
from hybridmem.evaluation.report import ExplainCase, Failure, Report, Run, find_failures
from hybridmem.memory.engine import answer_confidence
from hybridmem.memory.memory import HybridMemory

__all__ = [
    "Calibration",
    "Case",
    "Searchable",
    "System",
    "calibrate",
    "evaluate",
    "load_cases",
    "load_corpus",
    "load_questions",
    "result_id",
    "threshold",
]

KS = (1, 3, 5, 8, 10, 20)


@dataclass(frozen=True, slots=True)
class System:
    """A system to evaluate: `ask(case, k)` returns ids, best first."""

    name: str
    ask: Callable[[Case, int], Sequence[str]]
    arm: bool = False
    dated: bool = False
    """Whether it applies a case's `as_of`."""
    of: str = ""
    """The system of which this one is an ablation."""
    explain: ExplainCase | None = None
    """Explains a case: `explain(case, k)`; used for failed cases."""
    text_of: Callable[[str], str] | None = None
    """The text of an id; used for failed cases."""


class SupportsInvoke(Protocol):
    """A retriever of LangChain."""

    def invoke(self, query: str, /) -> Iterable[Any]:
        """The documents for a query."""
        ...


class SupportsRetrieve(Protocol):
    """A retriever of LlamaIndex."""

    def retrieve(self, query: str, /) -> Iterable[Any]:
        """The nodes for a query."""
        ...


Searchable = HybridMemory | System | SupportsInvoke | SupportsRetrieve | Callable[[str], Iterable[Any]]
"""What can be evaluated: a memory, a retriever, or a function from a query to ids."""


def result_id(item: Any, *, id_key: str | None = None) -> str:
    """The id of whatever a retriever returns: a string, a result, a Document, a node with or without its score.

    `id_key` names the metadata key of the id; without one the item's own id is used, and for a LangChain Document
    without an id its text.
    """
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping):
        return str(item[id_key or "id"])
    node = getattr(item, "node", item)
    metadata = getattr(node, "metadata", None) or {}
    if id_key is not None and id_key in metadata:
        return str(metadata[id_key])
    for name in ("node_id", "id"):
        if getattr(node, name, None):
            return str(getattr(node, name))
    if "id" in metadata:
        return str(metadata["id"])
    text = getattr(node, "page_content", None)
    if text is None:
        raise ConfigError(f"no id in a result of type {type(item).__name__}: return ids, or name the key by id_key=")
    return str(text)


def evaluate(
    systems: Searchable | Mapping[str, Searchable],
    cases: Iterable[Case],
    *,
    ks: Sequence[int] = KS,
    baseline: str = "",
    id_key: str | None = None,
    stages: bool = True,
    failures: int = 0,
    progress: Progress | None = None,
    seed: int = 0,
) -> Report:
    """Run every case on every system, and measure the lists.

    `systems` is a `HybridMemory` (measured arm by arm, fused, and without each of its stages in turn), a LangChain or
    LlamaIndex retriever, a function from a query to ids, an `System`, or a mapping from names to any of these.
    `baseline` names the system that the others are compared with (default: the first). `failures` is the number of
    failed cases to explain (`report.failures`): those of the first system that is not a single arm.
    """
    ks = _depths(ks)
    if progress is not None:
        validation.function("progress", progress, "a function of (done, total), or None")
    validation.flag("stages", stages)
    validation.integer("failures", failures, "a number of cases, 0 or more", low=0)
    validation.text("baseline", baseline, "the name of a system")
    everything = check_cases(cases)
    judged = judged_cases(everything)
    if not judged:
        raise ConfigError(f"none of the {len(everything)} cases names a relevant id: nothing to measure")
    named = _all_systems(systems, id_key=id_key, stages=stages)
    names = [system.name for system in named]
    if baseline and baseline not in names:
        raise ConfigError(f"baseline {baseline!r}: must be one of {', '.join(names)}")
    runs = []
    for number, system in enumerate(named):
        step = _shifted(progress, number * len(judged), len(named) * len(judged))
        runs.append(_run(system, judged, depth=max(*ks, 10), progress=step))
    metrics = (*(f"recall@{k}" for k in ks), *(f"hit@{k}" for k in ks), "mrr@10", "ndcg@10")
    return Report(
        cases=tuple(judged),
        runs=tuple(runs),
        metrics=metrics,
        baseline=baseline or names[0],
        unjudged=len(everything) - len(judged),
        failures=tuple(_failures(named, runs, judged, limit=failures)),
        seed=seed,
    )


def _failures(systems: Sequence[System], runs: Sequence[Run], cases: Sequence[Case], *, limit: int) -> list[Failure]:
    """The failed cases of the first system that is not a single arm, at k = 10, or at its depth if that is less."""
    place = next((place for place, system in enumerate(systems) if not system.arm), 0)
    system, run = systems[place], runs[place]
    arms = {other.name: one.lists for other, one in zip(systems, runs, strict=True) if other.arm}
    found = find_failures(
        cases, run.lists, arms, name=system.name, k=10, limit=limit, explain=system.explain, text_of=system.text_of
    )
    return list(found)


def _depths(ks: Sequence[int]) -> list[int]:
    given = validation.listed("ks", ks, "depths, each 1 or more")
    if not given:
        validation.refuse("ks", given, "at least one depth, each 1 or more")
    for k in given:
        validation.integer("one of ks", k, "a depth of 1 or more", low=1)
    return given


def _run(system: System, cases: Sequence[Case], *, depth: int, progress: Progress) -> Run:
    """Run all cases on one system, one after another, and time each call."""
    lists, seconds = [], []
    for number, case in enumerate(cases):
        start = time.perf_counter()
        answer = system.ask(case, depth)
        seconds.append(time.perf_counter() - start)
        lists.append(tuple(dict.fromkeys(answer))[:depth])
        progress(number + 1, None)
    notes = []
    longest = max(map(len, lists))
    if 0 < longest < depth and sum(len(answer) == longest for answer in lists) * 2 > len(lists):
        notes.append(
            f"at most {longest} result{'s' if longest > 1 else ''} for a question, which limits recall beyond that"
        )
    if not system.dated and (dated := sum(case.as_of is not None for case in cases)):
        notes.append(f"cannot answer as of a date: {dated} dated cases were asked without it")
    return Run(
        name=system.name, lists=tuple(lists), seconds=tuple(seconds), notes=tuple(notes), arm=system.arm, of=system.of
    )


def _all_systems(systems: Searchable | Mapping[str, Searchable], *, id_key: str | None, stages: bool) -> list[System]:
    """The given systems as a list of named ones."""
    named = systems if isinstance(systems, Mapping) else {"": systems}
    if not named:
        raise ConfigError("no systems: give a memory, a retriever, a function, or a mapping of names to these")
    all_systems: list[System] = []
    for name, system in named.items():
        all_systems.extend(_systems(str(name), system, id_key=id_key, stages=stages))
    return all_systems


def _systems(name: str, system: Any, *, id_key: str | None, stages: bool) -> list[System]:
    if isinstance(system, System):
        return [replace(system, name=name or system.name)]
    if isinstance(system, HybridMemory):
        from hybridmem.evaluation.recording import memory_systems

        return memory_systems(system, name=name, stages=stages)
    for method, dated in (("invoke", True), ("retrieve", False)):
        if callable(call := getattr(system, method, None)):
            known = _retriever(name or type(system).__name__, call, id_key=id_key, dated=dated)
            return [replace(known, explain=_retriever_explain(system))]
    if callable(system):
        return [_function(name or getattr(system, "__name__", "system"), system, id_key=id_key)]
    raise ConfigError(
        f"system {name or system!r} is a {type(system).__name__}: "
        "must be a HybridMemory, a retriever with invoke() or retrieve(), or a function from a query to ids"
    )


def _retriever(name: str, call: Callable[..., Any], *, id_key: str | None, dated: bool) -> System:
    """A retriever of a framework; those of langchain_hybridmem also take `as_of`."""
    ours = dated and type(getattr(call, "__self__", None)).__module__.startswith("langchain_hybridmem")

    def ask(case: Case, _k: int) -> list[str]:
        extra = {"as_of": case.as_of} if ours and case.as_of is not None else {}
        return [result_id(item, id_key=id_key) for item in call(case.query, **extra)]

    return System(name, ask, dated=ours)


def _retriever_explain(retriever: Any) -> ExplainCase | None:
    """The explanations of a FusionRetriever of either adapter; None for other retrievers."""
    explain = getattr(retriever, "explain", None)
    if not callable(explain) or "_hybridmem" not in type(retriever).__module__:
        return None
    return lambda case, _k: explain(case.query)


def _function(name: str, call: Callable[..., Any], *, id_key: str | None) -> System:
    """A function; `as_of` is passed when it has a parameter of that name."""
    try:
        dated = "as_of" in inspect.signature(call).parameters
    except (TypeError, ValueError):  # some built-ins have no signature
        dated = False

    def ask(case: Case, _k: int) -> list[str]:
        extra = {"as_of": case.as_of} if dated else {}
        return [result_id(item, id_key=id_key) for item in call(case.query, **extra)]

    return System(name, ask, dated=dated)


def _shifted(progress: Progress | None, done: int, total: int) -> Progress:
    """The caller's progress, counted over all systems."""
    if progress is None:
        return lambda _done, _total: None
    return lambda step, _total: progress(done + step, total)


# --- calibration: the confidence below which a memory returns nothing

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
        raise ConfigError(
            f"{len(ordered)} questions are too few for rate={rate:g}: give at least {needed}, or a higher rate"
        )
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
