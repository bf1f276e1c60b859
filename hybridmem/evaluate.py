"""Cases in, figures out: how well a memory, or any retriever, finds what it should.

>>> report = evaluate({"mine": lambda query: ["a", "b"]}, [Case("who?", {"b": 1.0})], ks=(1, 3))
>>> report.mean("mine", "recall@3"), report.mean("mine", "mrr@10")
(1.0, 0.5)
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from hybridmem.errors import ConfigError
from hybridmem.report import Report, Run
from hybridmem.stores.base import Progress
from hybridmem.times import moment

__all__ = ["Asked", "Case", "evaluate", "load_cases", "load_corpus", "load_questions", "read_rows", "result_id"]

KS = (1, 3, 5, 8, 10, 20)


@dataclass(frozen=True, slots=True)
class Case:
    """A question, and the ids that answer it with their grades (1.0 where there is only right and wrong).

    >>> Case("Where does Ana live?", {"m1": 1.0}, category="single-hop").relevant
    {'m1': 1.0}
    """

    query: str
    relevant: Mapping[str, float] = field(default_factory=dict)
    category: str = ""
    as_of: datetime | None = None
    id: str = ""


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


def load_cases(source: str | Path | IO[str]) -> list[Case]:
    """Cases from a JSONL file (or an open one), or from a BEIR folder (queries.jsonl, qrels.tsv or qrels/test.tsv).

    A line of JSONL is `{"query": "…", "relevant": ["m1"] or {"m1": 2}, "category": "…", "as_of": "2024-05-01"}`;
    all but the query may be left out.
    """
    if not isinstance(source, (str, Path)) or not Path(source).is_dir():
        return [_case(row, where) for row, where in read_rows(source)]
    place = Path(source)
    grades = _qrels(place)
    cases = []
    for row, where in read_rows(place / "queries.jsonl"):
        name = str(row.get("id", row.get("_id", "")))
        cases.append(_case({**row, "query": row.get("text"), "relevant": grades.get(name, {}), "id": name}, where))
    return cases


def load_questions(source: str | Path | IO[str]) -> list[str]:
    """Questions alone: plain lines, JSONL cases, or a BEIR folder."""
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        return [case.query for case in load_cases(source)]
    questions = []
    for line, where in _lines(source):
        questions.append(_case(_row(line, where), where).query if line.startswith("{") else line)
    if not questions:
        raise ConfigError(f"{_name(source)} holds no question: write one a line")
    return questions


def load_corpus(folder: str | Path) -> Iterator[dict[str, Any]]:
    """The rows of a BEIR folder's corpus.jsonl (or of that file itself), each with an `id`."""
    place = Path(folder)
    for row, where in read_rows(place / "corpus.jsonl" if place.is_dir() else place):
        name = row.pop("_id", None)
        if "id" not in row and name is None:
            raise ConfigError(f"{where}: a document needs an id; it has {', '.join(row) or 'nothing'}")
        yield {"id": str(row.pop("id", name)), **row}


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
    if not ks or any(k < 1 for k in ks):
        raise ConfigError(f"ks={tuple(ks)}: at least one depth, each 1 or more")
    everything = list(cases)
    judged = [case for case in everything if any(grade > 0 for grade in case.relevant.values())]
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
        from hybridmem.replay import memory_systems

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


def _name(source: str | Path | IO[str]) -> str:
    return str(source) if isinstance(source, (str, Path)) else str(getattr(source, "name", "standard input"))


def _lines(source: str | Path | IO[str]) -> Iterator[tuple[str, str]]:
    """Each line that is not empty, with the place it stands at, for messages."""
    if not isinstance(source, (str, Path)):
        numbered = enumerate(source, start=1)
        yield from ((line.strip(), f"{_name(source)}:{number}") for number, line in numbered if line.strip())
        return
    try:
        file = Path(source).open(encoding="utf-8")  # noqa: SIM115  only opening it may fail with this message
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from error
    with file:
        yield from _lines(file)


def read_rows(source: str | Path | IO[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Each JSON object of a JSONL file with the place it stands at, for messages: `notes.jsonl:12`."""
    for line, where in _lines(source):
        yield _row(line, where), where


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: {line[:60]!r} must be a JSON object")
    return row


def _case(row: Mapping[str, Any], where: str) -> Case:
    query, relevant, dated = row.get("query"), row.get("relevant", {}), row.get("as_of")
    if not isinstance(query, str):
        raise ConfigError(f"{where}: query is {query!r}, must be a text")
    if isinstance(relevant, str) or not isinstance(relevant, (list, Mapping)):
        raise ConfigError(f"{where}: relevant is {relevant!r}, must be a list of ids or a mapping of ids to grades")
    grades = relevant if isinstance(relevant, Mapping) else dict.fromkeys(relevant, 1.0)
    try:
        checked = {str(key): float(grade) for key, grade in grades.items()}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: relevant is {relevant!r}, grades must be numbers") from error
    as_of = moment(dated)
    if dated is not None and as_of is None:
        raise ConfigError(f"{where}: as_of is {dated!r}, must be a date such as 2024-05-01T12:00:00Z")
    return Case(query, checked, category=str(row.get("category") or ""), as_of=as_of, id=str(row.get("id", "")))


def _qrels(folder: Path) -> dict[str, dict[str, float]]:
    """Query id → document id → grade, from a tab-separated file with a header line."""
    places = (folder / "qrels.tsv", folder / "qrels" / "test.tsv")
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ConfigError(f"{folder} has neither qrels.tsv nor qrels/test.tsv")
    grades: dict[str, dict[str, float]] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            query, document, grade = line.split("\t")
            grades.setdefault(query, {})[document] = float(grade)
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: {line!r} must be query id, document id and grade, by tabs") from error
    return grades
