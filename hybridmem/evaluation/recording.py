"""Recorded arm lists of a memory, and their replay through any recipe: the base of evaluation and tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from hybridmem.core.protocols import ArmQuery, LexicalIndex, SearchView, SupportsBM25Constants, View
from hybridmem.core.types import ArmList, Graph, Hits, Reader
from hybridmem.errors import ConfigError
from hybridmem.evaluation.cases import Case
from hybridmem.evaluation.evaluate import System
from hybridmem.fusion.recipe import SLOTS, Fusion
from hybridmem.fusion.stages import Spread
from hybridmem.memory.memory import HybridMemory
from hybridmem.memory.question import listed

__all__ = [
    "Curve",
    "Recorded",
    "curve_recorder",
    "memory_curve",
    "memory_recorder",
    "memory_systems",
    "replay",
    "variants",
]


class Recorded(NamedTuple):
    """The arms' lists for one case, with everything else that a recipe needs."""

    lists: Sequence[ArmList]
    reader: Reader
    graph: Graph | None = None
    now: float = 0.0


def replay(recipe: Fusion, recorded: Recorded, *, query: str = "", k: int) -> list[str]:
    """The first k keys by this recipe; an arm with weight 0 is skipped, as in a memory."""
    weights = recipe.weights_for([arm.name for arm in recorded.lists])
    lists = [
        arm if weight > 0 else ArmList(arm.name, [], skipped="weight 0")
        for arm, weight in zip(recorded.lists, weights, strict=True)
    ]
    ranking = recipe.run(
        lists,
        reader=recorded.reader,
        query=query,
        now=recorded.now,
        k=k,
        graph=recorded.graph if recipe.spread is not None else None,
    )
    return ranking.keys


class Curve(NamedTuple):
    """BM25's two constants."""

    k1: float
    b: float


def memory_curve(memory: HybridMemory) -> Curve | None:
    """The constants of a memory's BM25 arm; None where they cannot be changed without a rebuild."""
    view = memory.engine.search_view(View(memory.name))
    return Curve(*view.bm25_constants()) if isinstance(view, SupportsBM25Constants) else None


def memory_recorder(memory: HybridMemory, *, depth: int, curve: Curve | None = None) -> Callable[[Case], Recorded]:
    """A function that runs one case on every arm of a memory, each arm scoring the candidates of the others too.

    With `curve` the BM25 arm answers as if the memory had been opened with those constants.
    """
    record = curve_recorder(memory, depth=depth, curves=[curve])
    return lambda case: record(case)[0]


def curve_recorder(
    memory: HybridMemory, *, depth: int, curves: Sequence[Curve | None]
) -> Callable[[Case], list[Recorded]]:
    """The same for several curves (None: the memory's own): only the BM25 arm runs again for each."""
    engine = memory.engine  # its own query path, without the fusion
    asking = Fusion(mode="relative", depth=depth, spread=memory.recipe.spread or Spread())
    views: dict[View, _View] = {}

    def record(case: Case) -> list[Recorded]:
        question = memory.question(case.query, k=1, recipe=asking, as_of=case.as_of)
        space = engine.search_view(question.view)
        view = views.get(question.view)
        if view is None or view.space is not space:
            view = views[question.view] = _View(space, curves)
        ask, found = engine.arm_hits(space, engine.arm_query(question), asking, depth)
        reader, now = engine.reader(question.view), engine.clock()
        return [Recorded(lists, reader, view.graph, now) for lists in view.lists(engine.arms, ask, found, depth)]

    return record


def _bm25(view: SearchView, curve: Curve) -> LexicalIndex:
    if not isinstance(view, SupportsBM25Constants):
        raise ConfigError("the BM25 arm of this store cannot be searched with other constants: leave out curves")
    return view.bm25_with(k1=curve.k1, b=curve.b)


class _View:
    """What the recordings of one view share: a snapshot of the graph, and BM25 with other constants."""

    def __init__(self, space: SearchView, curves: Sequence[Curve | None], /) -> None:
        self.space = space
        self.graph: Graph | None = space.graph(None)
        self._texts = [None if curve is None else _bm25(space, curve) for curve in curves]

    def lists(
        self, arms: Sequence[str], ask: ArmQuery, found: Mapping[str, Hits], depth: int
    ) -> Iterator[list[ArmList]]:
        """One set of lists for each curve; the other arms score all candidates once."""
        words = [found["bm25"] if text is None else text.search(ask.text, k=depth) for text in self._texts]
        hits = [{**found, "bm25": one} for one in words]
        everything = list(dict.fromkeys(chain.from_iterable(one.ids for some in hits for one in some.values())))
        others: dict[str, dict[str, float | None]] = {
            arm: dict(zip(found[arm].ids, found[arm].scores, strict=True)) for arm in found if arm != "bm25"
        }
        for arm, scores in others.items():
            missing = [key for key in everything if key not in scores]
            scores.update(zip(missing, self.space.score(arm, ask, missing), strict=True))
        for text, some in zip(self._texts, hits, strict=True):
            candidates = list(dict.fromkeys(chain.from_iterable(one.ids for one in some.values())))
            known = {
                arm: {key: score for key in candidates if (score := scores[key])} for arm, scores in others.items()
            }
            known["bm25"] = self._words(text, ask, some["bm25"], candidates)
            yield [listed(arm, some[arm], self.space, known[arm]) for arm in arms]

    def _words(
        self, text: LexicalIndex | None, ask: ArmQuery, hits: Hits, candidates: Sequence[str]
    ) -> dict[str, float]:
        have = dict(zip(hits.ids, hits.scores, strict=True))
        missing = [key for key in candidates if key not in have]
        scores = self.space.score("bm25", ask, missing) if text is None else text.score(ask.text, missing)
        have.update((key, score) for key, score in zip(missing, scores, strict=True) if score)
        return have


def variants(recipe: Fusion) -> Iterator[tuple[str, Fusion]]:
    """The ablations of a recipe: without each of its stages in turn (but packing), named by what is missing."""
    for slot in SLOTS:
        if slot.name != "pack" and getattr(recipe, slot.name):
            without: dict[str, Any] = {slot.name: () if slot.many else None}
            yield f"without {slot.name}", replace(recipe, **without)
    if recipe.complete:
        yield "without complete", replace(recipe, complete=False)


def memory_systems(memory: HybridMemory, *, name: str = "", stages: bool = True) -> list[System]:
    """The systems of a memory: each arm alone, fused, and fused without each stage in turn."""
    start = f"{name} " if name else ""

    def fused(recipe: Fusion | None) -> Callable[[Case, int], list[str]]:
        def ask(case: Case, k: int) -> list[str]:
            extra: dict[str, Any] = {} if recipe is None else {"recipe": recipe}
            return [result.id for result in memory.search(case.query, k=k, as_of=case.as_of, **extra)]

        return ask

    def alone(arm: str) -> Callable[[Case, int], list[str]]:
        return lambda case, k: [hit.id for hit in memory.search_arm(arm, case.query, k=k, as_of=case.as_of)]

    systems = [System(f"{start}{arm}", alone(arm), arm=True, dated=True) for arm in memory.arms]
    systems.append(System(f"{start}fused", fused(None), dated=True))
    if stages:
        whole = f"{start}fused"
        systems += [
            System(f"{start}{label}", fused(changed), dated=True, of=whole)
            for label, changed in variants(memory.recipe)
        ]
    return systems
