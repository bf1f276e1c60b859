"""Ask a memory once, replay its fusion as often as you like: what evaluating and tuning stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridmem.evaluate import Asked, Case
from hybridmem.fusion import Fusion
from hybridmem.indexes.bm25 import BM25Index
from hybridmem.stages import Spread
from hybridmem.stores.base import View
from hybridmem.types import ArmList, Graph, Hits, Reader

if TYPE_CHECKING:
    from hybridmem.memory import HybridMemory

__all__ = ["Curve", "Recorded", "memory_curve", "memory_recorder", "memory_systems", "replay", "variants"]


class Recorded(NamedTuple):
    """The arms' answers to one case, with all that a fusion needs beside them."""

    lists: Sequence[ArmList]
    reader: Reader
    graph: Graph | None = None
    now: float = 0.0


def replay(recipe: Fusion, recorded: Recorded, *, query: str = "", k: int) -> list[str]:
    """The keys that this recipe ranks first; an arm without weight is left out, as a memory would not ask it."""
    weights = recipe.weights_for([arm.name for arm in recorded.lists])
    heard = [
        arm if weight > 0 else ArmList(arm.name, [], skipped="weight 0")
        for arm, weight in zip(recorded.lists, weights, strict=True)
    ]
    ranking = recipe.run(
        heard,
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
    """The constants of a memory's BM25 arm; None where they cannot be turned without building it again."""
    settings = memory._engine.settings  # noqa: SLF001
    space = memory._engine.space(View(memory.name))  # noqa: SLF001
    return Curve(settings.k1, settings.b) if isinstance(getattr(space, "_text", None), BM25Index) else None


class _OtherCurve:
    """A space whose BM25 arm scores with other constants: the same postings, read through another curve."""

    def __init__(self, space: Any, curve: Curve, /) -> None:
        self._space = space
        self._text = space._text.with_curve(k1=curve.k1, b=curve.b)  # noqa: SLF001

    def search(self, arm: str, ask: Any, /, *, k: int) -> Hits:
        found = self._text if arm == "bm25" else self._space
        hits: Hits = found.search(ask.text, k=k, allowed=ask.allowed) if arm == "bm25" else found.search(arm, ask, k=k)
        return hits

    def score(self, arm: str, ask: Any, ids: Sequence[str], /) -> list[float | None]:
        return list(self._text.score(ask.text, ids)) if arm == "bm25" else list(self._space.score(arm, ask, ids))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._space, name)


def memory_recorder(memory: HybridMemory, *, depth: int, curve: Curve | None = None) -> Callable[[Case], Recorded]:
    """A function that asks every arm of a memory one case, and lets each arm score what the others found.

    `curve` lets the BM25 arm answer as if the memory had been opened with those constants.
    """
    engine = memory._engine  # noqa: SLF001  recording is the engine's own path, stopped before the fusion
    asking = Fusion(mode="relative", depth=depth, complete=True, spread=memory.recipe.spread or Spread())
    pictures: dict[Any, Graph | None] = {}  # one still picture for all cases of a view

    def record(case: Case) -> Recorded:
        question = memory._question(case.query, k=1, recipe=asking, as_of=case.as_of)  # noqa: SLF001
        space = engine.space(question.view)
        if curve is not None:
            space = _OtherCurve(space, curve)
        answer = engine._once(space, engine._ask(question), question, depth)  # noqa: SLF001
        graph = pictures.setdefault(question.view, answer.graph)
        return Recorded(answer.lists, engine.reader(question.view), graph, answer.now)

    return record


def variants(recipe: Fusion) -> Iterator[tuple[str, Fusion]]:
    """The recipe without each of its stages in turn, named by what is missing."""
    for slot in ("gate", "spread", "dedup", "boost", "substance", "dated", "conflicts", "rerank", "diversity"):
        if getattr(recipe, slot) is not None:
            without: dict[str, Any] = {slot: None}
            yield f"without {slot}", replace(recipe, **without)
    if recipe.complete:
        yield "without complete", replace(recipe, complete=False)
    if recipe.extra:
        yield "without extra", replace(recipe, extra=())


def memory_systems(memory: HybridMemory, *, name: str = "", stages: bool = True) -> list[Asked]:
    """A memory as systems to compare: each arm alone, fused, and fused without each stage in turn."""
    start = f"{name} " if name else ""

    def fused(recipe: Fusion | None) -> Callable[[Case, int], list[str]]:
        def ask(case: Case, k: int) -> list[str]:
            extra: dict[str, Any] = {} if recipe is None else {"recipe": recipe}
            return [result.id for result in memory.search(case.query, k=k, as_of=case.as_of, **extra)]

        return ask

    def alone(arm: str) -> Callable[[Case, int], list[str]]:
        return lambda case, k: [hit.id for hit in memory.search_arm(arm, case.query, k=k, as_of=case.as_of)]

    systems = [Asked(f"{start}{arm}", alone(arm), arm=True, dated=True) for arm in memory.arms]
    systems.append(Asked(f"{start}fused", fused(None), dated=True))
    if stages:
        systems += [Asked(f"{start}{label}", fused(changed), dated=True) for label, changed in variants(memory.recipe)]
    return systems
