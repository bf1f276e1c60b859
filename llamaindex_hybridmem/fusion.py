"""FusionRetriever: any LlamaIndex retrievers, or a HybridMemory, fused by a recipe, with scores and receipts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, QueryType

from hybridmem.core.fanout import OnError, check_policy
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Explanation
from hybridmem.fusion.recipe import Fusion
from hybridmem.retrievers.options import MEMORY_ARMS, make_recipe
from llamaindex_hybridmem._arms import arms_of
from llamaindex_hybridmem._calling import CalledRetriever
from llamaindex_hybridmem._results import FusedNode
from llamaindex_hybridmem._settings import Filters, Settings, check_k, refuse
from llamaindex_hybridmem._sources import ArmsSource, Asked, MemorySource, Source, Timeout

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["FusedNode", "FusionRetriever"]

dispatcher = get_dispatcher(__name__)

_CALLED = ("similarity_top_k", "filters", "as_of", "namespace", "min_confidence")
_SHAPE = ("recipe", "mode", "retriever_weights", "c", "gate", "dedup", "half_life")
_BASE = ("callback_manager", "objects", "object_map", "verbose")


class FusionRetriever(CalledRetriever):
    """Retrievers fused into one list: weighted, gated, deduplicated, fresh first, and explained.

    >>> FusionRetriever([bm25, vectors], retriever_weights=[0.6, 0.4], half_life=30)  # doctest: +SKIP

    retrievers: a list, or a dict of named ones (an index's `as_retriever()`, ours, any `BaseRetriever`).
    retriever_weights: one for each, or a dict by name; an arm of weight 0 is not asked.
    mode: "rrf" (with c = 60), "relative", "distribution" or "convex". recipe: a name, a file, or a `Fusion`.
    gate, dedup, half_life: see `hybridmem.retrievers.options.make_recipe`. filters: `MetadataFilters` or hybridmem's filter.
    on_error: "raise", or "skip" to go on without an arm that fails or takes longer than `timeout` seconds
    (one number for all, or a dict by name).

    Scores lie in (0, 1]; each result has a `.receipt`. `similarity_top_k` and `filters` can also be given to
    `retrieve` and `aretrieve`.
    """

    def __init__(
        self,
        retrievers: Sequence[BaseRetriever] | Mapping[str, BaseRetriever],
        *,
        retriever_weights: Sequence[float] | Mapping[str, float] | None = None,
        c: float | None = None,
        similarity_top_k: int | None = 8,
        mode: str | None = None,
        filters: Filters = None,
        on_error: OnError = "raise",
        timeout: Timeout = None,
        half_life: Any = None,
        gate: Any = None,
        dedup: Any = None,
        recipe: Any = None,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
        clock: Callable[[], float] = time.time,
        **unknown: Any,
    ) -> None:
        refuse(unknown, ("retrievers", *(FusionRetriever.__init__.__kwdefaults__ or ())))
        arms = arms_of(retrievers)
        names = [arm.name for arm in arms]
        _check_timeouts(on_error, timeout, names)
        parts = {"weights": retriever_weights, "gate": gate, "dedup": dedup, "half_life": half_life}
        shape = make_recipe(recipe, mode=mode, c=c, arms=names, **parts)
        self._retrievers = {arm.name: arm.retriever for arm in arms}
        source = ArmsSource.over(arms, shape, on_error, timeout, clock)
        base = {"callback_manager": callback_manager, "objects": objects, "object_map": object_map, "verbose": verbose}
        self._open(source, source.recipe, Settings().changed(similarity_top_k=similarity_top_k, filters=filters), base)

    @classmethod
    def from_memory(cls, memory: HybridMemory, **settings: Any) -> FusionRetriever:
        """A `HybridMemory` as a retriever: the same ids and scores as `memory.search`.

        Settings: similarity_top_k, filters, as_of, namespace, min_confidence; recipe, or parts of it (mode,
        retriever_weights, c, gate, dedup, half_life); callback_manager, objects, object_map, verbose.
        """
        known = (*_CALLED, *_SHAPE, *_BASE)
        refuse([name for name in settings if name not in known], known)
        shape = {name: settings[name] for name in _SHAPE if settings.get(name) is not None}
        recipe: Fusion | None = None
        if shape:
            weights = shape.pop("retriever_weights", None)
            recipe = make_recipe(shape.pop("recipe", memory.recipe), weights=weights, arms=MEMORY_ARMS, **shape)
        called = Settings().changed(**{name: settings[name] for name in _CALLED if name in settings})
        made = cls.__new__(cls)
        made._retrievers = {}  # noqa: SLF001
        base = {name: settings[name] for name in _BASE if name in settings}
        made._open(  # noqa: SLF001
            MemorySource(memory, recipe), recipe or memory.recipe, called, base
        )
        return made

    def _open(self, source: Source, recipe: Fusion, settings: Settings, base: Mapping[str, Any]) -> None:
        self._source = source
        self._recipe = recipe
        self._settings = settings
        super().__init__(**base)

    # --- what it is

    @property
    def recipe(self) -> Fusion:
        """How results are ranked."""
        return self._recipe

    @property
    def retrievers(self) -> dict[str, BaseRetriever]:
        """The arms by name; empty over a memory, which has its own."""
        return dict(self._retrievers)

    @property
    def similarity_top_k(self) -> int | None:
        """How many results come back; None: all that were found (over a memory: as many as it likes)."""
        return self._settings.k

    @similarity_top_k.setter
    def similarity_top_k(self, value: int | None) -> None:
        self._settings = self._settings._replace(k=None if value is None else check_k(value))

    # --- asking

    def retrieve(
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        as_of: Any = None,
        namespace: str | None = None,
        min_confidence: float | None = None,
    ) -> list[NodeWithScore]:
        """The best nodes for a question; what is given here wins over the constructor's.

        `as_of`, `namespace` and `min_confidence` are for a memory.
        """
        more = {"as_of": as_of, "namespace": namespace, "min_confidence": min_confidence}
        with self._said(similarity_top_k, filters, more):
            return super().retrieve(str_or_query_bundle)

    async def aretrieve(
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        as_of: Any = None,
        namespace: str | None = None,
        min_confidence: float | None = None,
    ) -> list[NodeWithScore]:
        """The same, without blocking the event loop."""
        more = {"as_of": as_of, "namespace": namespace, "min_confidence": min_confidence}
        with self._said(similarity_top_k, filters, more):
            return await super().aretrieve(str_or_query_bundle)

    def explain(self, str_or_query_bundle: QueryType, **settings: Any) -> Explanation:
        """Why each result is there, and `.why_not(node_id)` for one that is not. Settings as for `retrieve`."""
        return self._source.answer(self._asked(str_or_query_bundle, settings)).why.explanation()

    async def aexplain(self, str_or_query_bundle: QueryType, **settings: Any) -> Explanation:
        """The same, without blocking the event loop."""
        answer = await self._source.aanswer(self._asked(str_or_query_bundle, settings))
        return answer.why.explanation()

    # --- inside

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._source.answer(Asked(query_bundle, self._call())).nodes

    @dispatcher.span
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        answer = await self._source.aanswer(Asked(query_bundle, self._call()))
        return answer.nodes

    def _checked(self, call: Settings) -> Settings:
        return call  # arms may understand what a memory does: each says so itself

    def _asked(self, query: QueryType, settings: Mapping[str, Any]) -> Asked:
        refuse([name for name in settings if name not in _CALLED], _CALLED)
        return Asked(QueryBundle(query) if isinstance(query, str) else query, self._settings.changed(**settings))


def _check_timeouts(on_error: OnError, timeout: Timeout, names: Sequence[str]) -> None:
    check_policy(on_error, None if isinstance(timeout, Mapping) else timeout)
    for name, seconds in timeout.items() if isinstance(timeout, Mapping) else ():
        if name not in names:
            raise ConfigError(f"timeout names unknown arm {name!r}: the arms are {', '.join(map(repr, names))}")
        check_policy(on_error, seconds)
