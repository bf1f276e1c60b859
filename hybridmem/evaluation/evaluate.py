"""Cases in, figures out: how well a memory, or any retriever, finds what it should.

>>> report = evaluate({"mine": lambda query: ["a", "b"]}, [Case("who?", {"b": 1.0})], ks=(1, 3))
>>> report.mean("mine", "recall@3"), report.mean("mine", "mrr@10")
(1.0, 0.5)
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybridmem.core import validation
from hybridmem.core.protocols import Progress
from hybridmem.errors import ConfigError
from hybridmem.evaluation.cases import Case, check_cases, judged_cases, load_cases, load_corpus, load_questions
from hybridmem.evaluation.report import Report, Run

__all__ = ["Asked", "Case", "evaluate", "load_cases", "load_corpus", "load_questions", "result_id"]

KS = (1, 3, 5, 8, 10, 20)


@dataclass(frozen=True, slots=True)
class Asked:
    """A system made ready to be asked: `ask(case, k)` gives ids, best first."""

    name: str
    ask: Callable[[Case, int], Sequence[str]]
    arm: bool = False
    dated: bool = False
    """Whether it honours a case's `as_of`."""
    of: str = ""
    """The system that this one is with a part left out."""


def result_id(item: Any, *, id_key: str | None = None) -> str:
    """The id of whatever a retriever returns: a string, a result, a Document, a node with or without its score.

    `id_key` names the metadata key that holds it; without one the item's own id counts, and a LangChain Document
    that has none is known by its text.
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
    systems: Any,
    cases: Iterable[Case],
    *,
    ks: Sequence[int] = KS,
    baseline: str = "",
    id_key: str | None = None,
    stages: bool = True,
    progress: Progress | None = None,
    seed: int = 0,
) -> Report:
    """Ask every system every case, and judge the lists.

    `systems` is a `HybridMemory` (measured arm by arm, fused, and without each of its stages in turn), a LangChain or
    LlamaIndex retriever, a function from a query to ids, an `Asked`, or a mapping from names to any of these.
    `baseline` names the system that the others are compared with (default: the first).
    """
    ks = _depths(ks)
    if progress is not None:
        validation.function("progress", progress, "a function of (done, total), or None")
    validation.flag("stages", stages)
    validation.text("baseline", baseline, "the name of a system")
    everything = check_cases(cases)
    judged = judged_cases(everything)
    if not judged:
        raise ConfigError(f"none of the {len(everything)} cases names a relevant id: nothing to measure")
    asked = _ready(systems, id_key=id_key, stages=stages)
    names = [system.name for system in asked]
    if baseline and baseline not in names:
        raise ConfigError(f"baseline {baseline!r}: must be one of {', '.join(names)}")
    runs = []
    for number, system in enumerate(asked):
        step = _shifted(progress, number * len(judged), len(asked) * len(judged))
        runs.append(_run(system, judged, depth=max(*ks, 10), progress=step))
    metrics = (*(f"recall@{k}" for k in ks), *(f"hit@{k}" for k in ks), "mrr@10", "ndcg@10")
    return Report(
        cases=tuple(judged),
        runs=tuple(runs),
        metrics=metrics,
        baseline=baseline or names[0],
        unjudged=len(everything) - len(judged),
        seed=seed,
    )


def _depths(ks: Sequence[int]) -> list[int]:
    given = validation.listed("ks", ks, "depths, each 1 or more")
    if not given:
        validation.refuse("ks", given, "at least one depth, each 1 or more")
    for k in given:
        validation.integer("one of ks", k, "a depth of 1 or more", low=1)
    return given


def _run(system: Asked, cases: Sequence[Case], *, depth: int, progress: Progress) -> Run:
    """Ask one system all cases, one after another, with a clock beside it."""
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
        notes.append(f"returns at most {longest} results, which bounds its recall beyond that")
    if not system.dated and (dated := sum(case.as_of is not None for case in cases)):
        notes.append(f"cannot answer as of a date: {dated} dated cases were asked without it")
    return Run(
        name=system.name, lists=tuple(lists), seconds=tuple(seconds), notes=tuple(notes), arm=system.arm, of=system.of
    )


def _ready(systems: Any, *, id_key: str | None, stages: bool) -> list[Asked]:
    """Whatever was given, as a list of named systems."""
    if not isinstance(systems, Mapping):
        systems = {"": systems}
    if not systems:
        raise ConfigError("no systems: give a memory, a retriever, a function, or a mapping of names to these")
    ready: list[Asked] = []
    for name, system in systems.items():
        ready.extend(_asked(str(name), system, id_key=id_key, stages=stages))
    return ready


def _asked(name: str, system: Any, *, id_key: str | None, stages: bool) -> list[Asked]:
    if isinstance(system, Asked):
        return [replace(system, name=name or system.name)]
    if hasattr(system, "search") and hasattr(system, "explain"):
        from hybridmem.evaluation.recording import memory_systems

        return memory_systems(system, name=name, stages=stages)
    for method, dated in (("invoke", True), ("retrieve", False)):
        if callable(call := getattr(system, method, None)):
            return [_retriever(name or type(system).__name__, call, id_key=id_key, dated=dated)]
    if callable(system):
        return [_function(name or getattr(system, "__name__", "system"), system, id_key=id_key)]
    raise ConfigError(
        f"system {name or system!r} is a {type(system).__name__}: "
        "must be a HybridMemory, a retriever with invoke() or retrieve(), or a function from a query to ids"
    )


def _retriever(name: str, call: Callable[..., Any], *, id_key: str | None, dated: bool) -> Asked:
    """A framework's retriever; ours on LangChain's side also understands `as_of`."""
    ours = dated and type(getattr(call, "__self__", None)).__module__.startswith("langchain_hybridmem")

    def ask(case: Case, _k: int) -> list[str]:
        extra = {"as_of": case.as_of} if ours and case.as_of is not None else {}
        return [result_id(item, id_key=id_key) for item in call(case.query, **extra)]

    return Asked(name, ask, dated=ours)


def _function(name: str, call: Callable[..., Any], *, id_key: str | None) -> Asked:
    """A plain function; it is told `as_of` when it has a parameter of that name."""
    try:
        dated = "as_of" in inspect.signature(call).parameters
    except (TypeError, ValueError):  # some built-ins have no signature
        dated = False

    def ask(case: Case, _k: int) -> list[str]:
        extra = {"as_of": case.as_of} if dated else {}
        return [result_id(item, id_key=id_key) for item in call(case.query, **extra)]

    return Asked(name, ask, dated=dated)


def _shifted(progress: Progress | None, done: int, total: int) -> Progress:
    """The caller's progress, counted over all systems."""
    if progress is None:
        return lambda _done, _total: None
    return lambda step, _total: progress(done + step, total)
