"""The settings that tuning changes, read from a recipe and written back into one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybridmem.evaluation.recording import Curve
from hybridmem.fusion.recipe import Fusion, Mode
from hybridmem.fusion.stages import Evidence, HalfLife, QualityGate, Spread
from hybridmem.fusion.stages.evidence import PARTS

__all__ = ["Setting", "changes", "read_setting", "with_setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that tuning changes, hashable; `lexical` is the index of the recorded BM25 variant."""

    mode: Mode
    c: float
    weights: tuple[float, ...]
    floors: tuple[float | None, ...]
    spread: float = 0.0
    hops: int = 2
    decay: float = 0.5
    boost: float = 0.0
    evidence: tuple[float, ...] = (0.0,) * len(PARTS)
    """The weights of the parts of evidence."""
    lexical: int = 0


def read_setting(recipe: Fusion, names: Sequence[str]) -> Setting:
    """The settings of a recipe."""
    given: Any = None if recipe.gate is None else recipe.gate.floor
    spread = recipe.spread or Spread(strength=0.0)
    return Setting(
        mode=recipe.mode,
        c=recipe.c,
        weights=tuple(recipe.weights_for(names)),
        floors=tuple(given.get(name) if isinstance(given, Mapping) else given for name in names),
        spread=spread.strength,
        hops=spread.hops,
        decay=spread.decay,
        boost=recipe.boost.strength if isinstance(recipe.boost, HalfLife) else 0.0,
        evidence=tuple(0.0 if recipe.evidence is None else getattr(recipe.evidence, part) for part in PARTS),
    )


def with_setting(recipe: Fusion, setting: Setting, names: Sequence[str]) -> Fusion:
    """The recipe with a setting's values; everything else is unchanged."""
    floors = {name: floor for name, floor in zip(names, setting.floors, strict=True) if floor is not None}
    gate = replace(recipe.gate or QualityGate(), floor=floors or None)
    spread = replace(
        recipe.spread or Spread(),
        strength=setting.spread,
        hops=setting.hops,
        decay=setting.decay,
    )
    boost = recipe.boost
    if boost is None or isinstance(boost, HalfLife):
        boost = replace(boost or HalfLife(), strength=setting.boost) if setting.boost > 0 else None
    return replace(
        recipe,
        mode=setting.mode,
        c=setting.c,
        weights=dict(zip(names, setting.weights, strict=True)),
        complete=recipe.complete and setting.mode != "rrf",  # ranks of unlisted candidates mean little
        gate=gate if floors or gate.relative is not None else None,
        evidence=Evidence(**dict(zip(PARTS, setting.evidence, strict=True))) if any(setting.evidence) else None,
        spread=spread if spread.strength else None,
        boost=boost,
    )


def changes(start: Setting, best: Setting, names: Sequence[str], curves: Sequence[Curve]) -> Iterator[str]:
    """Descriptions of the differences between two settings."""
    if (start.mode, start.c) != (best.mode, best.c):
        c = f" (c={best.c:g})" if best.mode == "rrf" else ""
        yield f"mode: {start.mode} → {best.mode}{c}"
    for arm, name in enumerate(names):
        if start.weights[arm] != best.weights[arm]:
            yield f"weight of {name}: {start.weights[arm]:.3g} → {best.weights[arm]:.3g}"
        if start.floors[arm] != best.floors[arm]:
            yield f"floor of {name}: {_floor(start.floors[arm])} → {_floor(best.floors[arm])}"
    for label, field in (
        ("spread", "spread"),
        ("hops", "hops"),
        ("decay of a hop", "decay"),
        ("half-life strength", "boost"),
    ):
        old, new = getattr(start, field), getattr(best, field)
        if old != new:
            yield f"{label}: {old:g} → {new:g}"
    for part, old_weight, new_weight in zip(PARTS, start.evidence, best.evidence, strict=True):
        if old_weight != new_weight:
            yield f"{part} evidence: {old_weight:g} → {new_weight:g}"
    if curves and start.lexical != best.lexical:
        old_curve, new_curve = curves[start.lexical], curves[best.lexical]
        yield f"BM25: k1={old_curve.k1:g}, b={old_curve.b:g} → k1={new_curve.k1:g}, b={new_curve.b:g}"


def _floor(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
