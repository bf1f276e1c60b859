"""Settings from your own cases, and only when they hold on cases that were not used to find them.

Each arm is asked once per case; after that a setting is only arithmetic on the recorded lists. The search climbs one
group of settings after another (mode with weights and c, floors, spread, boost, k1 with b) on some of the cases and
is measured on the others, for every fold. When the bounds of that held-out gain do not exclude zero, or when flipping
the signs of the gains at random does as well, the tuner refuses.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hybridmem.board import Setting
from hybridmem.climb import Search
from hybridmem.errors import ConfigError
from hybridmem.evaluate import Case
from hybridmem.fusion import Fusion
from hybridmem.metrics import Interval, interval, sign_flip
from hybridmem.recipes import recipe_to_dict, save_recipe
from hybridmem.replay import Curve, Recorded, memory_curve, memory_recorder
from hybridmem.stores.base import Progress

__all__ = ["CURVES", "Tuning", "tune"]

CURVES = (Curve(0.9, 0.4), Curve(1.2, 0.5), Curve(1.2, 0.75), Curve(1.6, 0.75), Curve(2.0, 0.75))


@dataclass(frozen=True)
class Tuning:
    """What a search found, and whether it holds. `recipe` is the one to use: the old one when refused."""

    accepted: bool
    recipe: Fusion
    proposed: Fusion
    metric: str
    gain: Interval
    """Held-out gain over the old recipe, with its bounds."""
    chance: float
    """How likely such a gain is when settings make no difference: the signs of the cases' gains flipped at random."""
    before: float
    after: float
    """Held-out means of the old and of the tuned recipe."""
    arms: Mapping[str, float]
    """What each arm reaches alone."""
    curve: Curve | None
    """BM25 constants of the proposal, where they were tuned."""
    changes: tuple[str, ...]
    settings: int
    seconds: float
    picks: tuple[Setting, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "accepted": self.accepted,
            "metric": self.metric,
            "gain": self.gain._asdict(),
            "chance": self.chance,
            "before": self.before,
            "after": self.after,
            "arms": dict(self.arms),
            "changes": list(self.changes),
            "curve": None if self.curve is None else self.curve._asdict(),
            "settings": self.settings,
            "seconds": self.seconds,
            "recipe": recipe_to_dict(self.recipe),
        }

    def save(self, path: str | Path, /, *, force: bool = False) -> None:
        """Write the tuned recipe for `HybridMemory(recipe=path)` and both `FusionRetriever`s; refused ones by force."""
        if not self.accepted and not force:
            raise ConfigError(f"refused: {self._gain()} is not significant; force=True writes the proposal anyway")
        save_recipe(self.proposed, path)

    def _gain(self) -> str:
        return (
            f"a held-out gain of {self.gain.mean:+.4f} [{self.gain.low:+.4f}, {self.gain.high:+.4f}] in {self.metric}"
        )

    def __str__(self) -> str:
        lines = [
            f"{'accepted' if self.accepted else 'refused'}: {self._gain()} ({self.before:.4f} → {self.after:.4f})",
            *(f"  {change}" for change in self.changes),
            *(f"  {name} alone: {value:.4f}" for name, value in self.arms.items()),
            f"  {self.settings} settings tried in {self.seconds:.1f} s",
        ]
        best = max(self.arms, key=self.arms.__getitem__)
        if self.arms[best] >= max(self.before, self.after):
            lines.insert(1, f"  fusing does not beat its best arm here: {best} alone is as good")
        return "\n".join(lines)


def tune(
    source: Any,
    cases: Iterable[Case],
    *,
    recipe: Fusion | None = None,
    metric: str = "ndcg@10",
    folds: int = 5,
    repeats: int = 2,
    level: float = 0.998,
    depth: int = 100,
    curves: Sequence[Curve] = CURVES,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tuning:
    """Search for better settings on the user's cases; cross-validated, and refused when the gain is not significant.

    `source` is a `HybridMemory`, or a function from a case to `Recorded` lists (then give the `recipe` to start from).
    `level` is the confidence with which the held-out gain must exclude zero. It is strict, because even meaningless
    labels reward a setting that prefers what is often right.
    """
    start = time.perf_counter()
    judged = [case for case in cases if any(grade > 0 for grade in case.relevant.values())]
    if len(judged) < 2 * folds or folds < 2:  # noqa: PLR2004
        raise ConfigError(f"{len(judged)} judged cases for folds={folds}: give 2 folds or more, and 2 cases for each")
    base, recorders, known = _recorders(source, recipe, depth, curves)
    told = _counter(progress, len(judged) * len(recorders))
    records = [[_told(record(case), told) for case in judged] for record in recorders]
    search = Search(records, judged, base, metric, known)
    rng = np.random.default_rng(seed)
    gains, picks = np.zeros(len(judged)), []
    for _ in range(repeats):
        fold_of = rng.permutation(len(judged)) % folds
        for fold in range(folds):
            pick = search.climb(fold_of != fold)
            picks.append(pick)
            gains[fold_of == fold] += search.real(pick, fold_of == fold) - search.real(search.start, fold_of == fold)
    gain = interval(gains / repeats, level=level, seed=seed, resamples=10_000)
    best = search.climb(np.ones(len(judged), dtype=np.bool_))
    proposed = search.recipe(best)
    chance = sign_flip(gains, seed=seed)
    accepted = gain.low > 0.0 and chance <= (1.0 - level) / 2.0 and best != search.start
    before = float(search.real(search.start).mean())
    return Tuning(
        accepted=accepted,
        recipe=proposed if accepted else base,
        proposed=proposed,
        metric=metric,
        gain=gain,
        chance=chance,
        before=before,
        after=before + gain.mean,
        arms={name: search.alone(arm) for arm, name in enumerate(search.names)},
        curve=known[best.lexical] if known else None,
        changes=tuple(_changes(search.start, best, search.names, known)),
        settings=search.tried,
        seconds=time.perf_counter() - start,
        picks=tuple(picks),
    )


def _recorders(
    source: Any, recipe: Fusion | None, depth: int, curves: Sequence[Curve]
) -> tuple[Fusion, list[Callable[[Case], Recorded]], list[Curve]]:
    """The recipe to start from, and one recorder for each variant of the BM25 arm, the present one first."""
    if not (hasattr(source, "search") and hasattr(source, "explain")):
        if recipe is None or not callable(source):
            raise ConfigError(f"cannot tune {source!r}: give a HybridMemory, or a function to Recorded and a recipe")
        return recipe, [source], []
    base = recipe or source.recipe
    present = memory_curve(source)
    if present is None:
        return base, [memory_recorder(source, depth=depth)], []
    known = [present, *(curve for curve in curves if curve != present)]
    others = [memory_recorder(source, depth=depth, curve=curve) for curve in known[1:]]
    return base, [memory_recorder(source, depth=depth), *others], known


def _changes(start: Setting, best: Setting, names: Sequence[str], curves: Sequence[Curve]) -> Iterator[str]:
    """In words, what the proposal turns."""
    if (start.mode, start.c) != (best.mode, best.c):
        c = f" (c={best.c:g})" if best.mode == "rrf" else ""
        yield f"mode: {start.mode} → {best.mode}{c}"
    for arm, name in enumerate(names):
        if start.weights[arm] != best.weights[arm]:
            yield f"weight of {name}: {start.weights[arm]:.3g} → {best.weights[arm]:.3g}"
        if start.floors[arm] != best.floors[arm]:
            yield f"floor of {name}: {start.floors[arm]} → {best.floors[arm]}"
    for label, old, new in (("spread", start.spread, best.spread), ("half-life strength", start.boost, best.boost)):
        if old != new:
            yield f"{label}: {old:g} → {new:g}"
    if curves and start.lexical != best.lexical:
        old_curve, new_curve = curves[start.lexical], curves[best.lexical]
        yield f"BM25: k1={old_curve.k1:g}, b={old_curve.b:g} → k1={new_curve.k1:g}, b={new_curve.b:g}"


def _counter(progress: Progress | None, total: int) -> Callable[[], None]:
    done = itertools.count(1)
    return (lambda: None) if progress is None else lambda: progress(next(done), total)


def _told(record: Recorded, tell: Callable[[], None]) -> Recorded:
    tell()
    return record
