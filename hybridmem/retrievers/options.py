"""Recipe settings of retrievers: `half_life=30, dedup=True, gate={"vector": 0.5}` as a `Fusion`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from hybridmem.errors import ConfigError
from hybridmem.fusion.recipe import RECIPES, Fusion, load_recipe
from hybridmem.fusion.stages import Competition, HalfLife, QualityGate, Rerank, SourceDedup
from hybridmem.fusion.stages.top import Scorer

__all__ = [
    "MEMORY_ARMS",
    "DedupOption",
    "GateOption",
    "HalfLifeOption",
    "RecipeOption",
    "TimeOption",
    "make_recipe",
]

GateOption = float | Mapping[str, float] | QualityGate | bool | None
DedupOption = bool | str | Callable[[Any], Any] | SourceDedup | None
HalfLifeOption = float | timedelta | bool | HalfLife | Competition | None
RecipeOption = str | Path | Fusion | None
TimeOption = datetime | date | str | float | None

MEMORY_ARMS = ("bm25", "vector")
"""The arms that a memory's recipe may name, also where the memory has no embedder yet."""

_MODES_OF_LLAMAINDEX = {"reciprocal_rerank": "rrf", "relative_score": "relative", "dist_based_score": "distribution"}
"""The names of LlamaIndex's modes, and ours."""
STARTING_FLOORS = {"bm25": 1.0, "vector": 0.5}


def make_recipe(
    recipe: RecipeOption = None,
    /,
    *,
    mode: str | None = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    c: float | None = None,
    gate: GateOption = None,
    dedup: DedupOption = None,
    half_life: HalfLifeOption = None,
    arms: Sequence[str] | None = None,
    as_scorer: Callable[[Any], Scorer] | None = None,
) -> Fusion:
    """A recipe with some of its parts set; None leaves a part as the recipe has it, False switches it off.

    gate: a floor for all arms, a floor for each by name, or a `QualityGate`; True: BM25 1.0, cosine 0.5.
    dedup: True for `source_id`, a metadata key, a function, or a `SourceDedup`.
    half_life: days, a timedelta, or a `HalfLife` (or `Competition`).
    arms: the arms' names, where they are known: a gate may name no others.
    as_scorer: makes a function of a framework's reranker.

    >>> make_recipe(half_life=30, dedup=True).boost
    HalfLife(half_life=30, strength=1.0, field='updated_at', max_shift=None)
    """
    if mode in _MODES_OF_LLAMAINDEX:
        raise ConfigError(f"mode = {mode!r} is not allowed: use {_MODES_OF_LLAMAINDEX[mode]!r}")
    base = Fusion() if recipe is None else load_recipe(recipe)
    if isinstance(recipe, str) and recipe in RECIPES and arms is not None and not set(base.weights or ()) <= set(arms):
        base = replace(base, weights=None)  # a named recipe has weights for the arms of a memory; others are equal
    try:
        parts: dict[str, Any] = {
            "mode": mode,
            "weights": _weights(weights),
            "c": c,
            "gate": _gate(gate),
            "dedup": _dedup(dedup),
            "boost": _boost(half_life, base),
        }
        given: dict[str, Any] = {
            name: None if part is False else part for name, part in parts.items() if part is not None
        }
        if arms is not None and isinstance(given.get("gate"), QualityGate) and gate is not True:
            given["gate"].check_arms(arms)
        if as_scorer is not None and isinstance(base.rerank, Rerank):
            given["rerank"] = replace(base.rerank, scorer=as_scorer(base.rerank.scorer))
        return replace(base, **given)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the settings do not make a recipe: {error}") from error


def _weights(weights: Any) -> Any:
    if weights is None or isinstance(weights, Mapping):
        return weights
    return tuple(weights)


def _gate(gate: Any) -> Any:
    if gate is None or gate is False or isinstance(gate, QualityGate):
        return gate
    if gate is True:
        return QualityGate(floor=STARTING_FLOORS)
    return QualityGate(floor=gate)


def _dedup(dedup: Any) -> Any:
    if dedup is None or dedup is False or isinstance(dedup, SourceDedup):
        return dedup
    if dedup is True:
        return SourceDedup()
    if not isinstance(dedup, str) and not callable(dedup):
        raise ConfigError(f"dedup = {dedup!r} is not allowed: True, a metadata key, a function or a SourceDedup")
    return SourceDedup(key=dedup)


def _boost(half_life: Any, base: Fusion) -> Any:
    if half_life is None or half_life is False or isinstance(half_life, HalfLife | Competition):
        return half_life
    known = base.boost if isinstance(base.boost, HalfLife) else HalfLife()
    if half_life is True:
        return known
    if not isinstance(half_life, int | float | timedelta):
        raise ConfigError(f"half_life = {half_life!r} is not allowed: days, a timedelta or a HalfLife")
    return replace(known, half_life=half_life)
