"""Arm health: how much each arm contributes, and warnings about arms that cannot contribute.

```
empty rate   share of queries without a hit of the arm
solo         share of the final results that only this arm returned
share        share of the final results that this arm returned
overlap      mean Jaccard similarity of two arms' first k hits
```
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations
from typing import Any, NamedTuple

from hybridmem.core import validation
from hybridmem.fusion.recipe import Fusion

__all__ = ["ArmHealth", "Health", "Observation", "first_place", "measure", "reach_warnings"]


class Observation(NamedTuple):
    """One query: each arm's keys, best first, and the keys of the final ranking."""

    arms: Mapping[str, Sequence[str]]
    final: Sequence[str]


@dataclass(frozen=True, slots=True)
class ArmHealth:
    """One arm over many queries; all but `hits` are shares between 0 and 1."""

    name: str
    empty: float
    hits: float
    """Mean length of its list."""
    share: float
    solo: float


@dataclass(frozen=True, slots=True)
class Health:
    """Figures of all arms. `print(health)` prints a table."""

    queries: int
    k: int
    arms: tuple[ArmHealth, ...]
    overlap: Mapping[tuple[str, str], float]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON-ready data."""
        return {
            "queries": self.queries,
            "k": self.k,
            "arms": {
                arm.name: {"empty": arm.empty, "hits": arm.hits, "share": arm.share, "solo": arm.solo}
                for arm in self.arms
            },
            "overlap": {f"{a}/{b}": value for (a, b), value in self.overlap.items()},
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        width = max([3, *(len(arm.name) for arm in self.arms)])
        lines = [f"{'arm':<{width}}  empty   hits  in top {self.k}  only it"]
        wide = len(f"in top {self.k}")
        lines += [
            f"{arm.name:<{width}}  {arm.empty:5.0%}  {arm.hits:5.1f}  {arm.share:{wide}.0%}  {arm.solo:7.0%}"
            for arm in self.arms
        ]
        lines += [f"overlap of {a} and {b}: {value:.0%}" for (a, b), value in self.overlap.items()]
        return "\n".join([*lines, *(f"warning: {line}" for line in self.warnings)])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("arm", "empty", "hits", f"in top {self.k}", "only it"))
        rows = "".join(
            f"<tr><td>{escape(arm.name)}</td><td>{arm.empty:.0%}</td><td>{arm.hits:.1f}</td><td>{arm.share:.0%}</td>"
            f"<td>{arm.solo:.0%}</td></tr>"
            for arm in self.arms
        )
        overlap = [f"overlap of {a} and {b}: {value:.0%}" for (a, b), value in self.overlap.items()]
        notes = "".join(f"<li>{escape(line)}</li>" for line in [*overlap, *self.warnings])
        return (
            f"<table><caption>{self.queries} queries</caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table><ul>{notes}</ul>"
        )


def measure(observations: Iterable[Observation], *, k: int, recipe: Fusion | None = None) -> Health:
    """Figures over observed queries; with a recipe also warnings about weights that are too small.

    >>> health = measure([Observation({"bm25": ["a", "b"], "vector": []}, ["a", "b"])], k=2)
    >>> health.arms[0].solo, health.arms[1].empty
    (1.0, 1.0)
    """
    validation.k(k)
    seen = list(observations)
    names = list(dict.fromkeys(name for observation in seen for name in observation.arms))
    finals = [list(observation.final)[:k] for observation in seen]
    found = [{name: set(observation.arms.get(name, ())) for name in names} for observation in seen]
    total = max(1, sum(map(len, finals)))
    arms = tuple(_arm(name, seen, finals, found, total) for name in names)
    overlap = {(a, b): _overlap(seen, a, b, k) for a, b in combinations(names, 2)}
    warnings = _habits(arms, len(seen)) if seen else []
    if recipe is not None and names:
        warnings = [*reach_warnings(recipe, names, k=k), *warnings]
    return Health(len(seen), k, arms, overlap, tuple(warnings))


def _arm(
    name: str,
    seen: Sequence[Observation],
    finals: Sequence[Sequence[str]],
    found: Sequence[Mapping[str, set[str]]],
    total: int,
) -> ArmHealth:
    counts = [len(observation.arms.get(name, ())) for observation in seen]
    share = solo = 0
    for keys, sets in zip(finals, found, strict=True):
        others = set().union(*(keys_of for other, keys_of in sets.items() if other != name))
        mine = [key for key in keys if key in sets[name]]
        share += len(mine)
        solo += sum(key not in others for key in mine)
    queries = max(1, len(seen))
    return ArmHealth(name, sum(n == 0 for n in counts) / queries, sum(counts) / queries, share / total, solo / total)


def _overlap(seen: Sequence[Observation], a: str, b: str, k: int) -> float:
    """Mean Jaccard similarity of the first k, over queries to which one of them has a hit."""
    values = []
    for observation in seen:
        one, two = set(observation.arms.get(a, ())[:k]), set(observation.arms.get(b, ())[:k])
        if one or two:
            values.append(len(one & two) / len(one | two))
    return math.fsum(values) / len(values) if values else 0.0


def _habits(arms: Sequence[ArmHealth], queries: int) -> list[str]:
    lines = []
    for arm in arms:
        if arm.empty == 1.0:
            lines.append(f"arm {arm.name!r} was empty for all {queries} queries")
        elif arm.share == 0.0:
            lines.append(
                f"arm {arm.name!r} returned {arm.hits:.1f} hits per query, and none of them was among the results"
            )
    return lines


def first_place(weights: Mapping[str, float], *, c: float = 60) -> dict[str, int]:
    """The best rank that a hit of only this arm can reach under RRF, when the other lists are long.

    Its w/(c + 1) is beaten by a rival's W/(c + r) for all r ≤ W·(c + 1)/w - c.

    >>> first_place({"bm25": 0.5, "vector": 0.2})
    {'bm25': 1, 'vector': 93}
    """
    places = {}
    for name, weight in weights.items():
        rivals = [other for rival, other in weights.items() if rival != name]
        if weight <= 0:
            continue
        ahead = max((_ahead(weight, other, c) for other in rivals), default=0)
        places[name] = ahead + 1
    return places


def _ahead(weight: float, rival: float, c: float) -> int:
    """How many ranks of a rival score more than the first rank of this arm; ties do not count."""
    if rival <= weight:
        return 0
    exact = rival * (c + 1) / weight - c
    return max(0, math.ceil(round(exact, 9)) - 1)


def reach_warnings(recipe: Fusion, names: Sequence[str], *, k: int) -> list[str]:
    """A warning for each arm whose own hits cannot reach the first k, because its weight is too small for c."""
    if recipe.mode != "rrf":
        return []  # other modes use scores, so a strong hit of a weak arm can win
    weights = dict(zip(names, recipe.weights_for(names), strict=True))
    lines = []
    for name, place in first_place(weights, c=recipe.c).items():
        if place > k:
            lines.append(
                f"arm {name!r} (weight {weights[name]:.2g} of 1) cannot put a hit of its own into the top {k} at "
                f"c={recipe.c:g}: its best possible rank is {place}; raise its weight or lower c"
            )
    return lines
