"""Ask a memory once, replay its fusion as often as you like: what evaluating and tuning stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridmem.evaluate import Asked, Case
from hybridmem.fusion import Fusion
from hybridmem.stages import Spread
from hybridmem.types import ArmList, Graph, Reader

if TYPE_CHECKING:
    from hybridmem.memory import HybridMemory

__all__ = ["Recorded", "memory_recorder", "memory_systems", "replay", "variants"]


class Recorded(NamedTuple):
    """The arms' answers to one case, with all that a fusion needs beside them."""

    lists: Sequence[ArmList]
    reader: Reader
    graph: Graph | None = None
    now: float = 0.0


def replay(recipe: Fusion, recorded: Recorded, *, query: str = "", k: int) -> list[str]:
    """The keys that this recipe ranks first; an arm without weight is left out, as a memory would not ask it."""
    weights = recipe.weights_for([arm.name for arm in recorded.lists])
    heard = [arm for arm, weight in zip(recorded.lists, weights, strict=True) if weight > 0]
    ranking = recipe.run(
        heard,
        reader=recorded.reader,
        query=query,
        now=recorded.now,
        k=k,
        graph=recorded.graph if recipe.spread is not None else None,
    )
    return ranking.keys


def memory_recorder(memory: HybridMemory, *, depth: int) -> Callable[[Case], Recorded]:
    """A function that asks every arm of a memory one case, and lets each arm score what the others found."""
    engine = memory._engine  # noqa: SLF001  recording is the engine's own path, stopped before the fusion
    asking = Fusion(mode="relative", depth=depth, complete=True, spread=memory.recipe.spread or Spread())

    def record(case: Case) -> Recorded:
        question = memory._question(case.query, k=1, recipe=asking, as_of=case.as_of)  # noqa: SLF001
        answer = engine.answer(question)
        return Recorded(answer.lists, engine.reader(question.view), answer.graph, answer.now)

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
