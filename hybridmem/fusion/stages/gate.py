"""The quality gate: floors on the raw scores of each arm, before the merge."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from hybridmem.core import validation
from hybridmem.core.types import ArmList
from hybridmem.errors import ConfigError
from hybridmem.fusion.stages.base import Context

__all__ = ["QualityGate"]

Floor = float | Mapping[str, float] | None
NO_FLOOR = -math.inf
_FLOORS = (
    ("floor", "a floor is a finite number, or a mapping from arms to numbers", -math.inf, math.inf),
    ("relative", "it is a share of the best, from 0 to 1, or a mapping from arms to shares", 0.0, 1.0),
)


def _for_arm(setting: Floor, arm: str) -> float | None:
    # Mappings are kept as dicts, because a check against the abstract class takes four times as long.
    return setting.get(arm) if isinstance(setting, dict) else setting  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityGate:
    """Keep a hit when `score ≥ floor` and `score ≥ relative · (the arm's best)`, arm by arm, on raw scores.

    Give one number for every arm or a mapping from arm to number; good starting points are
    `floor={"bm25": 1.0, "vector": 0.5}`. An arm without scores is not gated. When every arm is empty after gating,
    the `fallback` arm's ungated list is used and the results are marked degraded: "first" takes the first arm
    that has anything, a name takes that arm, None returns nothing.
    """

    floor: Floor = None
    relative: Floor = None
    fallback: str | None = "first"

    def __post_init__(self) -> None:
        for name, allowed, low, high in _FLOORS:
            given = getattr(self, name)
            if isinstance(given, Mapping):
                object.__setattr__(self, name, dict(given))
            for value in given.values() if isinstance(given, Mapping) else [given]:
                if value is not None:
                    validation.number(f"gate {name}", value, allowed, low=low, high=high)
        if self.fallback is not None:
            validation.text("gate fallback", self.fallback, "the name of an arm, 'first' or None")

    def check_arms(self, names: Sequence[str], /) -> None:
        """Raise ConfigError for a floor or a fallback that names none of these arms."""
        given = {"floor": self.floor, "relative": self.relative, "fallback": [self.fallback or "first"]}
        for setting, arms in given.items():
            for arm in arms if isinstance(arms, Mapping | list) else ():
                if arm not in names and (setting, arm) != ("fallback", "first"):
                    known = ", ".join(map(repr, names))
                    raise ConfigError(f"gate {setting} names unknown arm {arm!r}: the arms are {known}")

    def apply(self, lists: Sequence[ArmList], context: Context) -> list[ArmList]:
        """The lists without hits below their floor, or the fallback's list alone when nothing is left."""
        kept = [self._one(arm, context) for arm in lists]
        if any([arm.items for arm in kept]) or not any([arm.items for arm in lists]):  # noqa: C419  a list is faster
            return kept
        chosen = self._fallback(lists)
        if context.trace is not None:
            context.trace.fell_back(chosen)
        return [arm if arm.name == chosen else none for arm, none in zip(lists, kept, strict=True)]

    def _fallback(self, lists: Sequence[ArmList]) -> str | None:
        if self.fallback == "first":
            return next(arm.name for arm in lists if arm.items)
        return self.fallback

    def bound(self, arm: str, scores: Sequence[float]) -> float:
        """The lowest raw score that passes for this arm, whose hits have these scores."""
        floor, share = _for_arm(self.floor, arm), _for_arm(self.relative, arm)
        bound = NO_FLOOR if floor is None else floor
        return bound if share is None else max(bound, share * max(scores))

    def _one(self, arm: ArmList, context: Context) -> ArmList:
        name, items, scores = arm.name, arm.items, arm.scores
        if not scores:
            return arm
        bound = self.bound(name, scores)
        keep = [score >= bound for score in scores]  # NaN does not pass
        if False not in keep:
            return arm
        if context.trace is not None:
            low = [i for i, passes in enumerate(keep) if not passes]
            keys = context.reader.keys([items[i] for i in low])
            context.trace.gated(name, {key: (scores[i], bound) for key, i in zip(keys, low, strict=True)})
        return ArmList(name, list(compress(items, keep)), list(compress(scores, keep)), *arm[3:])
