"""Recorded arm lists of a memory, and their replay through any recipe: the base of evaluation and tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hybridmem.core.protocols import SearchView, SupportsBM25Constants, View
from hybridmem.core.types import ArmList, Graph, Ranking, Reader
from hybridmem.errors import ConfigError
from hybridmem.evaluation.cases import Case
from hybridmem.evaluation.evaluate import System
from hybridmem.fusion.explain import Explanation
from hybridmem.fusion.recipe import SLOTS, Fusion
from hybridmem.fusion.stages import Spread
from hybridmem.fusion.stages.base import Context, Pool
from hybridmem.fusion.stages.evidence import PARTS
from hybridmem.memory.engine import arm_lists, pool_of
from hybridmem.memory.memory import HybridMemory
from hybridmem.retrievers.arms import Explainer

__all__ = [
    "Curve",
    "Recorded",
    "curve_recorder",
    "memory_curve",
    "memory_recorder",
    "memory_systems",
    "replay",
    "retriever_recorder",
    "variants",
]


class Recorded(NamedTuple):
    """The arms' lists for one case, with everything else that a recipe needs."""

    lists: Sequence[ArmList]
    reader: Reader
    graph: Graph | None = None
    now: float = 0.0
    pool: Pool | None = None


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
        pool=recorded.pool,
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


def retriever_recorder(explainer: Explainer, *, depth: int) -> Callable[[Case], Recorded]:
    """A function that runs one case on every arm of a framework retriever and returns the arms' lists."""

    def record(case: Case) -> Recorded:
        seen: list[Recorded] = []

        def capture(ranking: Ranking, context: Context) -> Ranking:
            seen.append(Recorded(context.lists, context.reader, now=context.now))
            return ranking

        explainer.explain(case.query, recipe=Fusion(depth=depth, extra=(capture,)), k=depth, as_of=case.as_of)
        return seen[-1]

    return record


def curve_recorder(
    memory: HybridMemory, *, depth: int, curves: Sequence[Curve | None]
) -> Callable[[Case], list[Recorded]]:
    """The same for several curves (None: the memory's own): only the BM25 arm runs again for each."""
    engine = memory.engine  # its own query path, without the fusion
    spread = memory.recipe.spread or Spread()
    asking = Fusion(mode="convex", depth=depth, omit_speakers=memory.recipe.omit_speakers, spread=spread)

    def record(case: Case) -> list[Recorded]:
        question = memory.question(case.query, k=1, recipe=asking, as_of=case.as_of)
        view = engine.search_view(question.view)
        query, hits = engine.arm_hits(view, engine.arm_query(question), asking, depth)
        graph, reader, now = (
            view.graph(None, threads=spread.threads),
            engine.reader(question.view),
            engine.now(question),
        )
        records = []
        for curve in curves:
            read = view if curve is None else _with_constants(view, curve)
            own = hits if curve is None else {**hits, "bm25": read.search("bm25", query, k=depth)}
            pool = pool_of(read, query, own)
            records.append(Recorded(arm_lists(engine.arms, own, read, pool), reader, graph, now, pool))
        return records

    return record


def _with_constants(view: SearchView, curve: Curve) -> SearchView:
    if not isinstance(view, SupportsBM25Constants):
        raise ConfigError("the BM25 arm of this store cannot be searched with other constants: leave out curves")
    return view.with_bm25_constants(k1=curve.k1, b=curve.b)


def variants(recipe: Fusion) -> Iterator[tuple[str, Fusion]]:
    """The ablations of a recipe: without each stage (but packing) and each part of evidence in turn."""
    for slot in SLOTS:
        if slot.name != "pack" and getattr(recipe, slot.name):
            without: dict[str, Any] = {slot.name: () if slot.many else None}
            yield f"without {slot.name}", replace(recipe, **without)
    if recipe.evidence is not None:
        for part in PARTS:
            if getattr(recipe.evidence, part) > 0:
                off: dict[str, Any] = {part: 0.0}
                yield f"without {part} evidence", replace(recipe, evidence=replace(recipe.evidence, **off))
    for name in ("complete", "omit_speakers"):
        if getattr(recipe, name):
            changed: dict[str, Any] = {name: False}
            yield f"without {name}", replace(recipe, **changed)


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

    def explain(case: Case, k: int) -> Explanation:
        return memory.explain(case.query, k=k, as_of=case.as_of)

    def text_of(key: str) -> str:
        (stored,) = memory.store.get([key], view=View(memory.name, superseded=True))
        return "" if stored is None else stored.text

    systems.append(System(f"{start}fused", fused(None), dated=True, explain=explain, text_of=text_of))
    if stages:
        whole = f"{start}fused"
        systems += [
            System(f"{start}{label}", fused(changed), dated=True, of=whole)
            for label, changed in variants(memory.recipe)
        ]
    return systems
