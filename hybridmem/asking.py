"""A question on its way through the engine, and its answer: the values, and what the arms' answers need to be fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from hybridmem.fusion import Fusion
from hybridmem.space import Ask, Space
from hybridmem.stores.base import Store, View
from hybridmem.types import ArmList, Graph, Hits, Ranking

__all__ = ["Answer", "Question", "complete", "hidden", "listed"]


class Question(NamedTuple):
    """Everything that decides an answer, beside the store."""

    text: str
    view: View
    k: int
    recipe: Fusion
    filter: Any = None
    vector: Any = None
    min_confidence: float | None = None


class Answer(NamedTuple):
    """A ranking with all that made it, so that it can be explained later by the same pure function."""

    ranking: Ranking
    lists: Sequence[ArmList]
    question: Question
    space: Space
    graph: Graph | None
    now: float
    degraded: bool = False


def listed(name: str, hits: Hits, space: Space, known: Mapping[str, float] | None) -> ArmList:
    """An arm's hits as entries; one that left the view between two reads is dropped."""
    entries = space.entries(hits.ids)
    if None in entries:
        rows = [(e, s) for e, s in zip(entries, hits.scores, strict=True) if e is not None]
        return ArmList(name, [entry for entry, _ in rows], [score for _, score in rows], known=known)
    return ArmList(name, entries, hits.scores, known=known)


def complete(space: Space, ask: Ask, found: Mapping[str, Hits]) -> dict[str, dict[str, float]]:
    """What each arm thinks of the candidates that only the others found; a score of 0 is no opinion."""
    known = {arm: dict(zip(*hits, strict=True)) for arm, hits in found.items()}
    everything = dict.fromkeys(chain.from_iterable([hits.ids for hits in found.values()]))
    for arm, opinions in known.items():
        missing = [key for key in everything if key not in opinions]
        if missing:
            scores = space.score(arm, ask, missing)
            opinions.update([pair for pair in zip(missing, scores, strict=True) if pair[1]])  # type: ignore[misc]
    return known


def hidden(store: Store, key: str, question: Question) -> str | None:
    """Why a memory is not even searched: nothing is said of other namespaces."""
    view = question.view
    versions = store.history(key, namespace=view.namespace)
    if view.as_of is not None:
        versions = [version for version in versions if version.at <= view.as_of]
    if not versions:
        return "there is no such memory" + ("" if view.as_of is None else " at that time")
    if versions[-1].deleted:
        return "it was forgotten"
    if versions[-1].memory.status == "superseded" and not view.superseded:
        return "it was superseded"
    if question.filter is not None and key not in store.ids(view=view, filter=question.filter):
        return f"it does not pass the filter {question.filter!r}"
    return None
