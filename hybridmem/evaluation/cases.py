"""Labelled cases (a query and its relevant ids), and their readers for JSONL files and BEIR folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from hybridmem.core import validation
from hybridmem.core.times import as_datetime
from hybridmem.errors import ConfigError

__all__ = ["Case", "check_cases", "judged_cases", "load_cases", "load_corpus", "load_questions", "read_rows"]


@dataclass(frozen=True, slots=True)
class Case:
    """A query, and the relevant ids with their grades (1.0 where relevance is binary).

    >>> Case("Where does Ana live?", {"m1": 1.0}, category="single-hop").relevant
    {'m1': 1.0}
    """

    query: str
    relevant: Mapping[str, float] = field(default_factory=dict)
    category: str = ""
    as_of: datetime | None = None
    id: str = ""


def check_cases(cases: Iterable[Case], /) -> list[Case]:
    """The cases as a validated list."""
    given = validation.listed("cases", cases, "cases: Case(query, relevant)")
    for case in given:
        if not isinstance(case, Case):
            validation.refuse("a case", case, "Case(query, relevant)")
        validation.text("Case.query", case.query, "a text")
        if not isinstance(case.relevant, Mapping):
            validation.refuse("Case.relevant", case.relevant, "a mapping from ids to grades")
        for grade in case.relevant.values():
            validation.number("a grade", grade, "a finite number")
    return given


def judged_cases(cases: Iterable[Case], /) -> list[Case]:
    """The cases that name a relevant id; the others cannot be measured."""
    return [case for case in cases if any(grade > 0 for grade in case.relevant.values())]


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


def load_questions(source: str | Path | IO[str], *, answerable: bool = False) -> list[str]:
    """The queries of plain lines, JSONL cases, or a BEIR folder; `answerable` leaves out cases without relevant ids."""
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        cases = load_cases(source)
        return [case.query for case in (judged_cases(cases) if answerable else cases)]
    questions = []
    for line, where in _lines(source):
        if not line.startswith("{"):
            questions.append(line)
        elif not answerable or "relevant" not in (row := _row(line, where)) or judged_cases([_case(row, where)]):
            questions.append(_case(_row(line, where), where).query)
    if not questions:
        raise ConfigError(f"{_name(source)} holds no question: write one per line")
    return questions


def load_corpus(folder: str | Path) -> Iterator[dict[str, Any]]:
    """The rows of a BEIR folder's corpus.jsonl (or of that file itself), each with an `id`."""
    place = Path(folder)
    for row, where in read_rows(place / "corpus.jsonl" if place.is_dir() else place):
        name = row.pop("_id", None)
        if "id" not in row and name is None:
            raise ConfigError(f"{where}: a document needs an id; it has {', '.join(row) or 'nothing'}")
        yield {"id": str(row.pop("id", name)), **row}


def _name(source: str | Path | IO[str]) -> str:
    return str(source) if isinstance(source, (str, Path)) else str(getattr(source, "name", "standard input"))


def _lines(source: str | Path | IO[str]) -> Iterator[tuple[str, str]]:
    """Each line that is not empty, with its position for messages."""
    if not isinstance(source, (str, Path)):
        numbered = enumerate(source, start=1)
        try:
            yield from ((line.strip(), f"{_name(source)}:{number}") for number, line in numbered if line.strip())
        except UnicodeDecodeError as error:
            raise ConfigError(f"{_name(source)} is not UTF-8: {error}") from error
        return
    try:
        file = Path(source).open(encoding="utf-8-sig")  # noqa: SIM115  only opening it may fail with this message
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from error
    with file:
        yield from _lines(file)


def read_rows(source: str | Path | IO[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Each JSON object of a JSONL file with its position for messages: `notes.jsonl:12`."""
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
    as_of = as_datetime(dated)
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
