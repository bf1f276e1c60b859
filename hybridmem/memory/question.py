"""A question on its way through the engine, and its answer: the values, and what the arms' answers need to be fused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from hybridmem.core import validation
from hybridmem.core.protocols import Store, View
from hybridmem.core.types import ArmList, Graph, Hits, Ranking
from hybridmem.errors import ConfigError
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import Pack
from hybridmem.indexes.view import Ask, Space
from hybridmem.memory.confidence import check_confidence

__all__ = ["FUSED", "Answer", "Question", "ask", "complete", "hidden", "listed"]


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


FUSED = ("recipe", "tokens", "touch", "min_confidence")
"""What only a fused answer can be told."""
_HOW = ("k", "filter", "as_of", "namespace", "recipe", "superseded", "tokens", "touch", "min_confidence")


def ask(
    query: str, how: Mapping[str, Any], /, *, view: View, k: int, recipe: Fusion, recipe_for: Callable[[Fusion], Fusion]
) -> Question:
    """A question from what a caller says; whatever is wrong with it is told before anything is searched."""
    if not isinstance(query, str):
        raise ConfigError(f"a question is a text, not {validation.display(query)}")
    unknown = [name for name in how if name not in _HOW]
    if unknown:
        raise ConfigError(f"search does not know {unknown[0]!r}: it takes {', '.join(_HOW)}")
    if how.get("tokens") is not None:
        recipe = replace(recipe, pack=Pack(tokens=how["tokens"]))
    for name in ("touch", "superseded"):
        if how.get(name) is not None:
            validation.flag(name, how[name])
    if how.get("as_of") is not None:
        view = view._replace(as_of=validation.as_of(how["as_of"]))
    if how.get("superseded"):
        view = view._replace(superseded=True)
    if how.get("namespace") is not None:
        view = view._replace(namespace=validation.namespace(how["namespace"]))
    k = validation.k(k if how.get("k") is None else how["k"])
    least = check_confidence(how.get("min_confidence"))
    return Question(query, view, k, recipe_for(recipe), how.get("filter"), None, least)


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
