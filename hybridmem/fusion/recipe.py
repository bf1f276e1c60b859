"""The recipe `Fusion`: merge mode, weights and the table of stage slots, and the function that runs them.

Running a recipe is a pure function of (ranked lists, clock, recipe): gate → merge → stages in the order of the slots.
Named recipes (`RECIPES`) and recipe files are at the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from hybridmem.core import validation
from hybridmem.core.types import ArmList, Graph, Ranking, Reader
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Trace
from hybridmem.fusion.merge import (
    ArmVotes,
    Ints,
    PoolVotes,
    by_id,
    columns_at,
    completed,
    merge,
    merge_pool,
    normalise_weights,
    pool_votes,
    rank_shares,
    score_shares,
    take,
)
from hybridmem.fusion.stages.base import Context, Pool, Stage, stage_name
from hybridmem.fusion.stages.boost import Competition, Conflicts, HalfLife
from hybridmem.fusion.stages.evidence import Evidence, Spread
from hybridmem.fusion.stages.gate import QualityGate
from hybridmem.fusion.stages.rerank import Diversity, Rerank
from hybridmem.fusion.stages.selection import IdenticalTexts, Pack, SourceDedup

__all__ = [
    "RECIPES",
    "SLOTS",
    "Fusion",
    "Mode",
    "Slot",
    "load_recipe",
    "recipe_from_dict",
    "recipe_to_dict",
    "save_recipe",
]

Mode = Literal["rrf", "relative", "distribution", "convex"]
MODES: tuple[str, ...] = get_args(Mode)
CONVEX_WEIGHTS = {"vector": 0.7, "bm25": 0.3}
ALMOST_ALL, ALMOST_NONE = 1 - 1e-12, 1e-9
"""Shares of the best score outside these bounds are shown as 1 and as the lower bound."""


class Slot(NamedTuple):
    """One slot of the recipe: which stage types it takes, and whether a recipe file can hold it."""

    name: str
    types: tuple[type[Any], ...]
    doc: str
    in_file: bool = True
    """A file cannot hold a slot whose stages are functions."""
    function: bool = True
    """Whether any function (ranking, context) -> ranking is accepted too."""
    many: bool = False
    """Whether the slot holds a tuple of stages."""

    @property
    def allowed(self) -> str:
        """What the slot takes, for error messages."""
        names = " or ".join(f"{kind.__name__}(…)" for kind in self.types)
        return (
            f"a {names}, a function (ranking, context) -> ranking, or None" if self.function else f"a {names}, or None"
        )


def _slot(
    *types: type[Any], doc: str, in_file: bool = True, function: bool = True, many: bool = False
) -> dict[str, Slot]:
    """Metadata that makes a field of `Fusion` a slot."""
    return {"slot": Slot("", types, doc, in_file, function, many)}


def _is_function(stage: Any) -> bool:
    return callable(stage) and not isinstance(stage, type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A recipe: how ranked lists become one ranking.

    gate → merge (mode, weights, c) → the other slots in the order below → pack to k

    To add a stage, write it in `fusion/stages/` and add its slot here: validation, recipe files and the ablations of
    `evaluate` read this table.

    >>> Fusion(weights={"bm25": 0.6, "vector": 0.4}, boost=HalfLife(strength=0.05)).mode
    'rrf'
    """

    mode: Mode = "rrf"
    weights: Mapping[str, float] | tuple[float, ...] | None = None
    c: float = 60
    depth: int | None = None
    """How many hits each arm is asked for; None: k, at least 10, or enough to fill k after gate and stages."""
    complete: bool = False
    """Let each arm score the candidates that only other arms listed, where it can."""
    smooth: bool = False
    """In score modes, share = (1 + n · normalised) / (1 + n) in a list of n hits, so that the last hit of a list is
    worth 1 / (1 + n) of the first instead of 0."""
    omit_speakers: bool = False
    """Embed the query without the names of speakers, which dominate its vector."""
    gate: QualityGate | None = field(
        default=None, metadata=_slot(QualityGate, doc="removes hits below a raw score of their arm", function=False)
    )
    evidence: Evidence | None = field(
        default=None, metadata=_slot(Evidence, doc="adds evidence from threads, speakers and dates")
    )
    spread: Spread | None = field(default=None, metadata=_slot(Spread, doc="adds activation from graph neighbours"))
    dedup: SourceDedup | None = field(
        default=None, metadata=_slot(SourceDedup, doc="keeps the best chunks of each source")
    )
    boost: HalfLife | Competition | None = field(
        default=None, metadata=_slot(HalfLife, Competition, doc="raises recent items")
    )
    extra: tuple[Stage, ...] = field(default=(), metadata=_slot(doc="stages of your own", in_file=False, many=True))
    conflicts: Conflicts | None = field(
        default=None, metadata=_slot(Conflicts, doc="lowers the weaker of two contradicting items")
    )
    duplicates: IdenticalTexts | None = field(
        default=None, metadata=_slot(IdenticalTexts, doc="makes results with identical texts one result")
    )
    rerank: Rerank | None = field(
        default=None, metadata=_slot(Rerank, doc="reorders the top by a cross-encoder", in_file=False)
    )
    diversity: Diversity | None = field(
        default=None, metadata=_slot(Diversity, doc="reorders the top by maximal marginal relevance")
    )
    pack: Pack | None = field(
        default=None, metadata=_slot(Pack, doc="cuts to k results or a token budget", function=False)
    )
    k1: float | None = None
    b: float | None = None
    """BM25 constants for a memory that is opened with this recipe; None: the memory's own (1.2 and 0.75)."""
    _stages: tuple[Stage, ...] = field(init=False, repr=False, compare=False)
    _best: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_numbers()
        stages: list[Stage] = []
        for slot in SLOTS:
            value = self._checked(slot)
            if slot.name not in ("gate", "pack"):  # the gate runs before the merge, packing depends on k
                stages += value if slot.many else [] if value is None else [value]
        object.__setattr__(self, "_stages", tuple(stages))
        object.__setattr__(self, "_best", self.ceiling())

    def _check_numbers(self) -> None:
        if not isinstance(self.mode, str) or self.mode not in MODES:
            raise ConfigError(f"mode {validation.display(self.mode)} is not known: the modes are {', '.join(MODES)}")
        validation.number("c", self.c, "c is a finite number from 0 up", low=0)
        if self.depth is not None:
            validation.integer("depth", self.depth, "an arm is asked for at least 1 hit", low=1)
        for name in ("complete", "smooth", "omit_speakers"):
            validation.flag(name, getattr(self, name))
        validation.bm25_constants(1.2 if self.k1 is None else self.k1, 0.75 if self.b is None else self.b)
        if isinstance(self.weights, Mapping):
            validation.weights(self.weights.values())
            normalise_weights(list(self.weights), self.weights)
        elif self.weights is not None:
            object.__setattr__(self, "weights", tuple(validation.weights(self.weights)))
            normalise_weights([str(i) for i in range(len(self.weights))], self.weights)

    def _checked(self, slot: Slot) -> Any:
        """The value of a slot: one of its types or, where functions are allowed, anything callable but a class."""
        value = getattr(self, slot.name)
        if slot.many:
            value = tuple(validation.listed(slot.name, value, "stages"))
            object.__setattr__(self, slot.name, value)
            for stage in value:
                if not _is_function(stage):
                    validation.refuse(f"a stage in {slot.name}", stage, "a function (ranking, context) -> ranking")
        elif not (value is None or isinstance(value, slot.types) or (slot.function and _is_function(value))):
            validation.refuse(slot.name, value, slot.allowed)
        return value

    def weights_for(self, names: Sequence[str]) -> list[float]:
        """Each arm's weight, summing to 1; `convex` without weights is 0.7 vector / 0.3 BM25."""
        weights = self.weights
        if weights is None:
            if self.mode != "convex" or set(names) != set(CONVEX_WEIGHTS):
                return [1.0 / len(names)] * len(names) if names else []
            weights = CONVEX_WEIGHTS
        return normalise_weights(names, weights)

    def depth_for(self, k: int | None) -> int:
        """How many hits to ask of each arm so that k results survive the stages."""
        if self.depth is not None:
            return max(self.depth, k or 0)
        wide = self.gate or self._stages
        if not k:
            return 100
        return max(4 * k, 20) if wide else max(k, 10)  # RRF over deeper lists than needed ranks worse

    def run(
        self,
        lists: Sequence[ArmList],
        /,
        *,
        reader: Reader,
        query: str = "",
        now: float | None = None,
        k: int | None = None,
        graph: Graph | None = None,
        contradictions: Callable[[Sequence[str]], Any] | None = None,
        trace: Trace | None = None,
        pool: Pool | None = None,
        fill: bool = True,
    ) -> Ranking:
        """Rank the union of the lists. The same lists, clock and recipe always give the same ranking.

        Ties go to the best rank in any list, then to the earlier list, as in LangChain's EnsembleRetriever.
        """
        if k is not None and not (type(k) is int and k >= 1):
            validation.integer("k", k, "ask for at least 1 result", low=1)
        now = time.time() if now is None else now
        context = Context(query, now, reader, lists, k, graph, contradictions, trace, pool, fill)
        if trace is not None:
            trace.listed(lists, reader)
        if self.gate is not None:
            context.lists = self.gate.apply(lists, context)
        stages = self._stages
        if pool is not None and self.complete:
            ranking, stages = self._merge_pool(lists, context.lists, context, pool), (*stages, _matching)
        else:
            ranking = self._merge(context.lists, context)
        if self.pack is not None or k is not None:
            stages = (*stages, self.pack or _PACK)
        for stage in stages:
            after = stage(ranking, context)
            if trace is not None:
                trace.step(stage_name(stage), ranking, after)
            ranking = after
        return ranking

    def ceiling(self) -> float:
        """The merged score of a result that is first in every arm, or the highest one of a stage that replaces it."""
        best = 1.0 / (self.c + 1) if self.mode == "rrf" else 1.0
        for stage in self._stages:
            if isinstance(stage, Competition):
                best = stage.ceiling
        return best

    def shares(self, scores: Sequence[float], /) -> list[float]:
        """The scores that are shown, in (0, 1]: 1 is first in every arm, or the best result where stages add more."""
        best = max(self._best, *scores) if scores else self._best
        return [
            1.0 if (x := score / best) > ALMOST_ALL
            else ALMOST_NONE if x < ALMOST_NONE else x  # noqa: FURB136  a call of `max` would dominate the cost
            for score in scores
        ]  # fmt: skip

    def _merge(self, lists: Sequence[ArmList], context: Context) -> Ranking:
        """One ranking of all lists; of items with the same key the first arm's first is returned."""
        weights = self.weights_for([arm.name for arm in lists])
        keys_of = context.reader.keys
        pairs = zip(lists, weights, strict=True)
        votes = [ArmVotes(arm, keys_of(arm.items), arm.scores, weight) for arm, weight in pairs]
        if self.complete:
            first: dict[str, Any] = {}
            for one in reversed(votes):
                first.update(zip(reversed(one.keys), reversed(one.arm.items), strict=True))
            votes = [completed(one, first) for one in votes]
        keys: list[str] = []
        items: list[Any] = []
        columns, shares = [], []
        for one in votes:
            keys += one.keys
            items += one.arm.items
            columns.append(one.keys)
            shares.append(self._shares(one))
        if context.trace is not None:
            context.trace.merged(votes, shares)
        order, totals = merge(columns, shares)
        return Ranking(*columns_at(order, keys, items, totals))

    def _shares(self, votes: ArmVotes | PoolVotes) -> list[float]:
        """What each hit of an arm adds to its merged score."""
        if self.mode == "rrf":
            return rank_shares(len(votes.keys), votes.weight, self.c)
        shares: list[float] = score_shares(self.mode, votes, smooth=self.smooth).tolist()
        return shares

    def _merge_pool(self, listed: Sequence[ArmList], lists: Sequence[ArmList], context: Context, pool: Pool) -> Ranking:
        """One ranking of a pool, in which every arm scores what it can; a hit that no gate lets pass is left out."""
        ids = pool.candidates.ids
        place = dict(zip(ids, range(len(ids)), strict=True))
        every = {id(arm): arm for arm in (*listed, *lists)}
        rows_of = {key: _rows(place, context.reader.keys(arm.items)) for key, arm in every.items()}
        present = np.ones(len(ids), np.bool_)
        if self.gate is not None:
            for arms, is_in in ((listed, False), (lists, True)):
                for arm in arms:
                    present[rows_of[id(arm)]] = is_in
        votes, places = [], by_id(ids)
        for arm, weight in zip(lists, self.weights_for([arm.name for arm in lists]), strict=True):
            rows, others = rows_of[id(arm)], present.copy()
            others[rows] = False
            votes.append(pool_votes(pool.candidates, arm, rows, others, weight, places=places))
        shares = [self._shares(one) for one in votes]
        if context.trace is not None:
            context.trace.merged([one.by_key(ids) for one in votes], shares)
        order, totals = merge_pool(places, votes, shares)
        kept = order[present[order]].tolist()
        return Ranking([ids[row] for row in kept], [pool.items[row] for row in kept], totals[present[order]].tolist())


def _rows(place: Mapping[str, int], keys: Sequence[str]) -> Ints:
    return np.array([place[key] for key in keys], np.intp)


def _matching(ranking: Ranking, context: Context) -> Ranking:
    """The ranking without the candidates of a pool whose score is 0, such as those that no arm listed."""
    if not ranking.scores or ranking.scores[-1] > 0.0:
        return ranking
    if context.trace is not None:
        listed = {key for arm in context.lists for key in context.reader.keys(arm.items)}
        for key, score in zip(ranking.keys, ranking.scores, strict=True):
            if score <= 0.0:
                reason = "the last hit of an arm counts 0" if key in listed else "no arm listed it"
                context.trace.drop("", key, f"its score is 0: {reason}, and no evidence adds to it")
    return take(ranking, [i for i, score in enumerate(ranking.scores) if score > 0.0])


SLOTS: tuple[Slot, ...] = tuple(
    item.metadata["slot"]._replace(name=item.name) for item in fields(Fusion) if "slot" in item.metadata
)
"""The slots of a recipe in the order in which they run."""
_PACK = Pack()


FORMAT = 1
_NOT_IN_FILE = tuple(slot.name for slot in SLOTS if not slot.in_file)
_IN_FILE = tuple(item.name for item in fields(Fusion) if item.init and item.name not in _NOT_IN_FILE)
_STAGES = {slot.name: slot for slot in SLOTS if slot.in_file}

_DEFAULT = Fusion(
    mode="convex",
    weights={"bm25": 0.5, "vector": 0.5},
    depth=50,
    complete=True,
    omit_speakers=True,
    evidence=Evidence(),
    spread=Spread(strength=0.3),
    dedup=SourceDedup(fill=True),
    boost=HalfLife(strength=0.01),
    duplicates=IdenticalTexts(),
)
"""Tuned on the tuning parts of the evaluation sets; docs/quality.md reports the effect of each part."""

RECIPES: dict[str, Fusion] = {
    "rrf": Fusion(),
    "default": _DEFAULT,
    "competition": replace(_DEFAULT, boost=Competition(), conflicts=Conflicts()),
}


def load_recipe(recipe: str | Path | Mapping[str, Any] | Fusion, /) -> Fusion:
    """A recipe from its name, a file written by `save_recipe` or `hybridmem tune`, a dict, or as it is."""
    if isinstance(recipe, Fusion):
        return recipe
    if isinstance(recipe, Mapping):
        return recipe_from_dict(recipe)
    if isinstance(recipe, str) and recipe in RECIPES:
        return RECIPES[recipe]
    named = ", ".join(map(repr, RECIPES))
    if not isinstance(recipe, str | Path):
        raise ConfigError(f"recipe = {recipe!r} is not allowed: a Fusion, a dict, a file, or one of {named}")
    path = Path(recipe)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"recipe {str(recipe)!r} is neither a file nor a name: the names are {named}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"recipe file {str(path)!r} cannot be read: {error}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"recipe file {str(path)!r} cannot be read: it holds a {type(data).__name__}, not an object")
    return recipe_from_dict(data)


def save_recipe(recipe: Fusion, path: str | Path, /) -> None:
    """Write a recipe as JSON, to be read by `HybridMemory(recipe=path)` and both `FusionRetriever`s."""
    text = json.dumps(recipe_to_dict(recipe), indent=2) + "\n"
    place = validation.file_path("path", path, "the name of a file")
    try:
        Path(place).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"recipe file {place!r} cannot be written: {error}") from error


def recipe_to_dict(recipe: Fusion, /) -> dict[str, Any]:
    """The recipe as JSON-ready data, without defaults; a recipe with functions is refused."""
    if not isinstance(recipe, Fusion):
        validation.refuse("recipe", recipe, "a Fusion(…)")
    for name in _NOT_IN_FILE:
        if getattr(recipe, name):
            raise ConfigError(f"the recipe's {name!r} slot is a function, which a file cannot store: set it in code")
    data: dict[str, Any] = {"hybridmem": FORMAT}
    for item in fields(recipe):
        value = getattr(recipe, item.name)
        if item.name not in _IN_FILE or value == item.default:
            continue
        slot = _STAGES.get(item.name)
        data[item.name] = _plain(value) if slot is None else _stage_to_dict(slot, value)
    return data


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _stage_to_dict(slot: Slot, stage: Any) -> dict[str, Any]:
    if not is_dataclass(stage):
        raise ConfigError(f"the recipe's {slot.name!r} slot is a function, which a file cannot store: set it in code")
    data: dict[str, Any] = {"kind": type(stage).__name__} if len(slot.types) > 1 else {}
    for item in fields(stage):
        value = getattr(stage, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if value == default:
            continue
        if callable(value):
            raise ConfigError(f"{slot.name}.{item.name} is a function, which a file cannot store: set it in code")
        data[item.name] = _plain(value)
    return data


def recipe_from_dict(data: Mapping[str, Any], /) -> Fusion:
    """A recipe from the data of `recipe_to_dict`; an unknown name is an error that lists the known ones."""
    given = dict(data)
    version = given.pop("hybridmem", FORMAT)
    if version != FORMAT:
        raise ConfigError(f"recipe format {version!r} is not known: this version reads {FORMAT}")
    for name, value in given.items():
        if name not in _IN_FILE:
            raise ConfigError(f"recipe has an unknown slot {name!r}: the slots are {', '.join(_IN_FILE)}")
        if name in _STAGES and isinstance(value, Mapping):
            given[name] = _stage_from_dict(_STAGES[name], value)
    if isinstance(given.get("weights"), list):
        given["weights"] = tuple(given["weights"])
    return Fusion(**given)


def _stage_from_dict(slot: Slot, data: Mapping[str, Any]) -> Any:
    types = {kind.__name__: kind for kind in slot.types}
    given = dict(data)
    name = given.pop("kind", next(iter(types)))
    if name not in types:
        raise ConfigError(f"{slot.name} kind {name!r} is not known: {', '.join(types)}")
    allowed = [item.name for item in fields(types[name])]
    for key in given:
        if key not in allowed:
            raise ConfigError(f"{slot.name} has an unknown setting {key!r}: the settings are {', '.join(allowed)}")
    return types[name](**given)
