"""Arms of a fusion, for both adapters: names, queries in deeper rounds, failures, ranking, explanation, settings."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from hybridmem.core.fanout import Job, Latency, OnError, Outcome, Steps, apply_policy, check_policy, one_job
from hybridmem.core.inputs import to_metadata
from hybridmem.core.types import ArmList, Ranking, Reader
from hybridmem.errors import ArmError, ConfigError
from hybridmem.fusion.explain import Explanation, Trace
from hybridmem.fusion.recipe import RECIPES, Fusion, load_recipe
from hybridmem.fusion.stages import Competition, HalfLife, QualityGate, Rerank, SourceDedup
from hybridmem.fusion.stages.rerank import Scorer

__all__ = [
    "ARM_NAMES",
    "MEMORY_ARMS",
    "ArmFusion",
    "ArmHits",
    "ArmRequest",
    "DedupOption",
    "Explain",
    "Explainer",
    "FusedArms",
    "GateOption",
    "HalfLifeOption",
    "RecipeOption",
    "SupportsExplainer",
    "TimeOption",
    "Timeout",
    "check_options",
    "check_timeout",
    "make_recipe",
    "memory_hits",
    "named_arms",
    "turns_around",
]

T = TypeVar("T")
Timeout = float | Mapping[str, float] | None
ARM_NAMES = {
    "BM25Retriever": "bm25",
    "VectorRetriever": "vector",
    "VectorStoreRetriever": "vector",
    "VectorIndexRetriever": "vector",
    "GraphRetriever": "graph",
}
"""The name of an arm in a list, by the class of the retriever."""
DEEPER = 4
"""Arms are asked ×4 deeper while dedup or a filter leaves fewer than k results."""


class ArmHits(NamedTuple):
    """One arm's hits, best first, with raw scores where it has them."""

    items: list[Any]
    scores: list[float] | None
    returned: int
    """How many hits the arm returned before the filter."""
    filtered: bool = False
    """The filter was applied here, because the arm does not understand it."""
    notes: Callable[[], Sequence[str]] | None = None
    """A line about each hit (or "") for its receipt, made when somebody reads one."""


class ArmRequest(NamedTuple):
    """One call of an arm in sync and async code, and what reads its answer."""

    call: Callable[[], Any]
    acall: Callable[[], Awaitable[Any]] | None
    read: Callable[[Any], ArmHits]
    can_deepen: bool = False
    latency: Latency | None = None


class _Notes(Mapping[str, str]):
    """The notes of one arm by key, made when somebody reads one."""

    def __init__(self, keys: Callable[[], Sequence[str]], lines: Callable[[], Sequence[str]]) -> None:
        self._keys, self._lines = keys, lines

    @cached_property
    def _notes(self) -> dict[str, str]:
        return {key: line for key, line in zip(self._keys(), self._lines(), strict=True) if line}

    def __getitem__(self, key: str) -> str:
        return self._notes[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._notes)

    def __len__(self) -> int:
        return len(self._notes)


def named_arms(retrievers: Any, name_of: Callable[[T], str | None], /) -> list[tuple[str, T]]:
    """The arms under their names: a mapping's keys, or the kind of each retriever ("bm25", "vector", …).

    A retriever of an unknown kind is called `retriever_<place>`, and so is the second of one kind: `bm25_2`.
    """
    if isinstance(retrievers, Mapping):
        named = [(str(name), retriever) for name, retriever in retrievers.items()]
    elif isinstance(retrievers, Sequence) and not isinstance(retrievers, str):
        named = []
        for place, retriever in enumerate(retrievers, start=1):
            name = name_of(retriever) or f"retriever_{place}"
            taken = any(name == other for other, _ in named)
            named.append((f"{name}_{place}" if taken else name, retriever))
    else:
        raise ConfigError(f"retrievers = {retrievers!r} is not allowed: a list of retrievers, or a dict of named ones")
    if not named:
        raise ConfigError(f"retrievers = {retrievers!r} is not allowed: give at least one retriever")
    return named


def check_options(arm: str, options: Mapping[str, Any], understood: Iterable[str], /) -> None:
    """Refuse `as_of`, `namespace` and the like for an arm that does not understand them."""
    known = set(understood)
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"{name} = {value!r}: arm {arm!r} does not understand {name!r}")


def check_timeout(on_error: str, timeout: Timeout, names: Iterable[str], /) -> None:
    """Validate the failure policy and the timeouts, which may name only arms that exist."""
    check_policy(on_error, None if isinstance(timeout, Mapping) else timeout)
    known = list(names)
    for name, seconds in timeout.items() if isinstance(timeout, Mapping) else ():
        if name not in known:
            raise ConfigError(f"timeout names unknown arm {name!r}: the arms are {', '.join(map(repr, known))}")
        check_policy(on_error, seconds)


class FusedArms:
    """The arms' lists and their ranking; the same pure function ranks them now and explains them later."""

    def __init__(
        self,
        recipe: Fusion,
        lists: Sequence[ArmList],
        reader: Reader,
        /,
        *,
        query: str,
        now: float,
        k: int | None,
        traced: bool = False,
    ) -> None:
        self.recipe, self.lists, self.reader = recipe, lists, reader
        self._query, self._now, self._k = query, now, k
        self._trace = Trace() if traced or recipe.rerank is not None or recipe.extra else None
        self.ranking = self._rank(self._trace)

    def _rank(self, trace: Trace | None) -> Ranking:
        return self.recipe.run(self.lists, reader=self.reader, query=self._query, now=self._now, k=self._k, trace=trace)

    def shares(self) -> list[float]:
        """The results' scores as shares of the best score possible, in (0, 1]."""
        return self.recipe.shares(self.ranking.scores)

    def explanation(self) -> Explanation:
        """Why each result is there. The ranking runs once more with tracing enabled, unless it did so before.

        Rerankers and stages of the user's own may be slow or not deterministic, so recipes with one are always traced.
        """
        if self._trace is None:
            self._trace = Trace()
            self._rank(self._trace)
        texts: dict[str, str] = {}
        metadata: dict[str, dict[str, Any]] = {}
        for arm in self.lists:
            keys = self.reader.keys(arm.items)
            texts.update(zip(keys, self.reader.column(arm.items, "text"), strict=True))
            for key, item in zip(keys, arm.items, strict=True):
                metadata[key] = {**getattr(item, "metadata", {}), **metadata.get(key, {})}
        explanation = self._trace.explanation(
            self.ranking, query=self._query, lists=self.lists, shown=self.shares(), texts=texts
        )
        return replace(explanation, metadata=metadata)

    @property
    def is_degraded(self) -> bool:
        """Whether no arm's best hit passed the gate, so that the results are the fallback's."""
        gate = self.recipe.gate
        filled = [arm for arm in self.lists if arm.items]
        if gate is None or not filled:
            return False
        return not any(not arm.scores or max(arm.scores) >= gate.bound(arm.name, arm.scores) for arm in filled)


@dataclass(frozen=True, slots=True)
class ArmFusion(Generic[T]):
    """Named arms and how their hits are fused. An arm of weight 0 is not asked."""

    arms: Mapping[str, T]
    recipe: Fusion
    on_error: OnError = "raise"
    timeout: Timeout = None
    clock: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        check_timeout(self.on_error, self.timeout, self.arms)
        self.recipe.weights_for(list(self.arms))

    def search(
        self,
        request: Callable[[T, str, int | None], ArmRequest],
        reader: Callable[[Sequence[Sequence[Any]]], Reader],
        /,
        *,
        query: str,
        k: int | None,
        traced: bool = False,
    ) -> Steps[FusedArms]:
        """Ask every arm that has a weight, and fuse; ask deeper while fewer than k are left and an arm has more.

        request: how to ask one arm, by its name, for so many hits (None: as many as it likes).
        reader: how to read the items of these lists together.
        """
        weights = self.recipe.weights_for(list(self.arms))
        skipped = {name: "weight 0" for name, weight in zip(self.arms, weights, strict=True) if weight == 0}
        pending = [name for name in self.arms if name not in skipped]
        hits: dict[str, ArmHits] = {}
        depth = None if k is None else self.recipe.depth_for(k)
        now = time.time() if self.clock is None else self.clock()
        while True:
            requests = {name: request(self.arms[name], name, depth) for name in pending}
            outcomes = yield [
                Job(name, one.call, one.acall, self._timeout_of(name), one.latency) for name, one in requests.items()
            ]
            failed = apply_policy(outcomes, on_error=self.on_error)
            failed.update(self._read(outcomes, requests, hits))
            skipped.update({name: reason for name, reason in failed.items() if name not in hits})
            lists, read = self._lists(hits, skipped, reader)
            fused = FusedArms(self.recipe, lists, read, query=query, now=now, k=k, traced=traced)
            thinned = self.recipe.dedup is not None or any(one.filtered for one in hits.values())
            if depth is None or k is None or len(fused.ranking.keys) >= k or not thinned:
                return fused
            pending = [
                name for name in pending if name in hits and requests[name].can_deepen and hits[name].returned >= depth
            ]
            if not pending:
                return fused
            depth = DEEPER * max(depth, *(hits[name].returned for name in pending))

    def _read(
        self, outcomes: Sequence[Outcome], requests: Mapping[str, ArmRequest], hits: dict[str, ArmHits]
    ) -> dict[str, str]:
        """Read the answers into `hits`; the reasons for arms whose answer is not a list of results."""
        unreadable: dict[str, str] = {}
        for outcome in outcomes:
            if outcome.error is not None:
                continue
            try:
                hits[outcome.name] = requests[outcome.name].read(outcome.value)
            except ArmError as error:
                if self.on_error == "raise":
                    raise
                unreadable[outcome.name] = str(error)
        return unreadable

    def _lists(
        self,
        hits: Mapping[str, ArmHits],
        skipped: Mapping[str, str],
        reader: Callable[[Sequence[Sequence[Any]]], Reader],
    ) -> tuple[list[ArmList], Reader]:
        found = [hits.get(name, _NO_HITS) for name in self.arms]
        read = reader([one.items for one in found])
        lists = []
        for name, one in zip(self.arms, found, strict=True):
            notes = None if one.notes is None else _Notes(partial(read.keys, one.items), one.notes)
            lists.append(ArmList(name, one.items, one.scores, notes, skipped=None if name in hits else skipped[name]))
        return lists, read

    def _timeout_of(self, arm: str) -> float | None:
        return self.timeout.get(arm) if isinstance(self.timeout, Mapping) else self.timeout


_NO_HITS = ArmHits([], None, 0)


def memory_hits(memory: Any, arm: str, query: str, settings: Mapping[str, Any], /) -> Steps[list[Any]]:
    """The results of one arm of a HybridMemory, with its raw scores; settings that are None are its defaults."""
    given = {name: value for name, value in settings.items() if value is not None}
    found: list[Any] = yield from one_job(
        Job(arm, partial(memory.search_arm, arm, query, **given), partial(memory.asearch_arm, arm, query, **given))
    )
    return found


def turns_around(result: Any, /) -> list[dict[str, Any]]:
    """The turns before and after a result of `search(context=n)` in reading order, as metadata of a document."""
    return [{"id": turn.id, "text": turn.text, **to_metadata(turn)} for turn in result.context]


# --- what the inspector and the tuner need of a retriever


class Explain(Protocol):
    """A function that answers a query under a recipe and explains the answer."""

    def __call__(
        self, query: str, /, *, recipe: Fusion, k: int | None = None, filter: Any = None, as_of: Any = None
    ) -> Explanation:
        """The explanation: receipts of the results, and each arm's list."""
        ...


@dataclass(frozen=True, slots=True)
class Explainer:
    """A retriever's arms and recipe, and a function that explains a query under any recipe."""

    arms: tuple[str, ...]
    recipe: Fusion
    explain: Explain
    memory: Any = None
    """The HybridMemory that answers, where the retriever is over one."""
    k: int | None = None
    """How many results the retriever returns; None: all."""


@runtime_checkable
class SupportsExplainer(Protocol):
    """A retriever that the inspector can show; both `FusionRetriever` classes are."""

    def explainer(self) -> Explainer:
        """The retriever's arms and recipe, and how to explain a query."""
        ...


# --- settings of a retriever as a recipe: half_life=30, dedup=True, gate={"vector": 0.5}

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
