"""Question and Answer of the engine, conversion of hits to arm lists, and why a memory is not searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from hybridmem.core.protocols import ArmQuery, SearchesPool, SearchView, Store, View
from hybridmem.core.types import ArmList, Candidates, Entry, Graph, Hits, Ranking
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages.base import Pool
from hybridmem.memory.expiry import has_expired

__all__ = ["Answer", "Question", "RecipeLike", "complete", "hidden", "listed", "pool_of"]


class Question(NamedTuple):
    """A validated query with all its options."""

    text: str
    view: View
    k: int
    recipe: Fusion
    filter: Any = None
    vector: Any = None
    min_confidence: float | None = None
    context: int = 0
    """How many turns before and after each result are returned with it."""


class Answer(NamedTuple):
    """A ranking with the inputs it was computed from, so that it can be explained later by the same pure function."""

    ranking: Ranking
    lists: Sequence[ArmList]
    question: Question
    view: SearchView
    graph: Graph | None
    now: float
    pool: Pool | None = None


RecipeLike = str | Path | Mapping[str, Any] | Fusion
"""A recipe as users give it: a name, a file, a dict or a Fusion."""


def listed(name: str, hits: Hits, view: SearchView, scores: Pool | Mapping[str, Mapping[str, float]]) -> ArmList:
    """Hits as a list of entries, with the arm's scores of other candidates; a memory that left the view is dropped."""
    if isinstance(scores, Pool):
        entries = list(map(dict(zip(scores.candidates.ids, scores.items, strict=True)).get, hits.ids))
    else:
        entries = list(view.entries(hits.ids))
    values = hits.scores
    if None in entries:
        rows = [(e, s) for e, s in zip(entries, values, strict=True) if e is not None]
        entries, values = [entry for entry, _ in rows], [score for _, score in rows]
    if not isinstance(scores, Pool):
        return ArmList(name, entries, values, known=scores.get(name))
    return ArmList(name, entries, values, baseline=scores.candidates.baseline.get(name, 0.0))


def pool_of(view: SearchesPool, query: ArmQuery, hits: Mapping[str, Hits]) -> Pool:
    """All candidates of a query with their entries; a memory that left the view meanwhile is dropped."""
    searched = {arm: own for arm, own in hits.items() if arm != "vector" or query.vector is not None}
    candidates = view.complete(query, searched)
    entries = view.entries(candidates.ids)
    if None in entries:
        candidates, entries = _present(candidates, entries)
    return Pool(entries, candidates, view.speakers())


def _present(candidates: Candidates, entries: Sequence[Entry | None]) -> tuple[Candidates, list[Entry | None]]:
    """The candidates that have an entry."""
    places = [i for i, entry in enumerate(entries) if entry is not None]
    position = {place: i for i, place in enumerate(places)}
    window, previous = candidates.window, candidates.previous
    kept = Candidates(
        [candidates.ids[i] for i in places],
        {arm: [scores[i] for i in places] for arm, scores in candidates.scores.items()},
        candidates.baseline,
        None if window is None else [window[i] for i in places],
        None if previous is None else [position.get(previous[i], -1) for i in places],
        [
            link._replace(source=position[link.source], target=position[link.target])
            for link in candidates.mentions
            if link.source in position and link.target in position
        ],
    )
    return kept, [entries[i] for i in places]


def complete(view: SearchView, query: ArmQuery, hits: Mapping[str, Hits]) -> dict[str, dict[str, float]]:
    """Scores of all hits by every arm, also of hits that only other arms returned; scores of 0 are left out."""
    result = {arm: dict(zip(*own, strict=True)) for arm, own in hits.items()}
    pool = dict.fromkeys(chain.from_iterable([own.ids for own in hits.values()]))
    for arm, scores in result.items():
        missing = [key for key in pool if key not in scores]
        if missing:
            found = view.score(arm, query, missing)
            scores.update([pair for pair in zip(missing, found, strict=True) if pair[1]])  # type: ignore[misc]
    return result


def hidden(store: Store, key: str, question: Question, now: float) -> str | None:
    """Why a memory is not searched at all; None if it is. Nothing is said about other namespaces."""
    view = question.view
    versions = store.history(key, namespace=view.namespace)
    if view.as_of is not None:
        versions = [version for version in versions if version.at <= view.as_of]
    if not versions:
        return "there is no such memory" + ("" if view.as_of is None else " at that time")
    if has_expired(versions[-1].memory, now if view.as_of is None else view.as_of):
        return "it has expired"
    if versions[-1].deleted:
        return "it was forgotten"
    if versions[-1].memory.status == "superseded" and not view.superseded:
        return "it was superseded"
    if question.filter is not None and key not in store.ids(view=view, filter=question.filter):
        return f"it does not pass the filter {question.filter!r}"
    return None
