"""Failed cases of an evaluation: the rank of the missing id in each arm, the results instead of it, and the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridmem.evaluation.cases import Case
from hybridmem.fusion.explain import Explanation

__all__ = ["Explain", "Failure", "find_failures"]

Explain = Callable[[Case, int], Explanation]
SHOWN = 3
"""Results that a failure lists."""
WIDTH = 80
"""Characters of a text that a line shows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case for which a relevant id is not among the first k results.

    `ranks`: the rank of that id in each arm and in the fused list, None where it is not listed. `instead`: the first
    results, as (id, text). `why`: the explanation of `why_not`.
    """

    case: Case
    missing: str
    k: int
    ranks: Mapping[str, int | None]
    instead: tuple[tuple[str, str], ...]
    text: str = ""
    """The text of the missing memory, where it is known."""
    why: str = ""

    def __str__(self) -> str:
        ranks = ", ".join(f"{name} {'–' if rank is None else f'#{rank}'}" for name, rank in self.ranks.items())
        lines = [f"✗ {self.case.query}", f"    missing  {_line(self.missing, self.text)}", f"    ranks    {ranks}"]
        lines += [f"    #{place}       {_line(key, text)}" for place, (key, text) in enumerate(self.instead, start=1)]
        return "\n".join([*lines, f"    why      {self.why}"] if self.why else lines)

    def to_dict(self) -> dict[str, Any]:
        """The failure as JSON-ready data."""
        return {
            "query": self.case.query,
            "category": self.case.category,
            "missing": self.missing,
            "text": self.text,
            "ranks": dict(self.ranks),
            "instead": [{"id": key, "text": text} for key, text in self.instead],
            "why": self.why,
        }


def find_failures(
    cases: Sequence[Case],
    lists: Sequence[Sequence[str]],
    others: Mapping[str, Sequence[Sequence[str]]],
    *,
    name: str,
    k: int,
    limit: int,
    explain: Explain | None = None,
    text_of: Callable[[str], str] | None = None,
) -> Iterator[Failure]:
    """The first `limit` failures of one system, cases with no relevant id in the first k first.

    `lists` are the results of the system `name`, `others` those of its arms, for each case.
    """
    failed = []
    for place, (case, results) in enumerate(zip(cases, lists, strict=True)):
        absent = [key for key, grade in case.relevant.items() if grade > 0 and key not in results[:k]]
        if absent:
            found = sum(grade > 0 for grade in case.relevant.values()) - len(absent)
            failed.append((found > 0, place, max(absent, key=lambda key: case.relevant[key])))
    for _, place, missing in sorted(failed, key=lambda one: one[:2])[:limit]:
        case, results = cases[place], lists[place]
        ranks = {arm: _rank(listed[place], missing) for arm, listed in others.items()}
        why, texts = "", dict[str, str]()
        if explain is not None:
            explained = explain(case, k)
            ranks.update({arm: _rank([hit.key for hit in hits], missing) for arm, hits in explained.hits.items()})
            why, texts = explained.why_not(missing).removeprefix(f"{missing}: "), dict(explained.texts)
        ranks[name] = _rank(results, missing)
        if text_of is not None:
            texts |= {key: text_of(key) for key in (missing, *results[:SHOWN]) if key not in texts}
        instead = tuple((key, texts.get(key, "")) for key in results[:SHOWN])
        yield Failure(case, missing, k, ranks, instead, texts.get(missing, ""), why)


def _rank(keys: Sequence[str], key: str) -> int | None:
    return keys.index(key) + 1 if key in keys else None


def _line(key: str, text: str) -> str:
    flat = " ".join(text.split())
    short = flat if len(flat) <= WIDTH else f"{flat[: WIDTH - 1]}…"
    return f"{key}  {short}" if short else key
