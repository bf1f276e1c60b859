"""FusionRetriever: any LlamaIndex retrievers, or a HybridMemory, fused by a recipe, with scores and receipts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import BaseNode, IndexNode, QueryBundle, QueryType
from typing_extensions import Unpack

from hybridmem.core.fanout import Job, OnError, Steps, adrive, apply_policy, drive, in_thread
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Explanation
from hybridmem.fusion.recipe import Fusion
from hybridmem.retrievers.arms import (
    MEMORY_ARMS,
    ArmFusion,
    ArmRequest,
    DedupOption,
    Explainer,
    FusedArms,
    GateOption,
    HalfLifeOption,
    RecipeOption,
    TimeOption,
    Timeout,
    make_recipe,
    turns_around,
)
from hybridmem.retrievers.options import check_memory, refuse_keywords, refuse_settings
from llamaindex_hybridmem._arms import Arm, ArmOptions, arms_of
from llamaindex_hybridmem._calls import SearchRetriever
from llamaindex_hybridmem._conversion import FusedNode, NodeReader, Why, add_nodes, as_scorer, fused_nodes, to_node
from llamaindex_hybridmem._settings import Filters, Settings, check_k

if TYPE_CHECKING:
    from hybridmem.embedding.sources import EmbeddingOption
    from hybridmem.memory.memory import HybridMemory
    from llamaindex_hybridmem._settings import FusionCall, MemoryFusionSettings

__all__ = ["FusedNode", "FusionRetriever"]

_CALL = ("similarity_top_k", "filters", "as_of", "namespace", "min_confidence", "context")
_PARTS = ("recipe", "mode", "retriever_weights", "c", "gate", "dedup", "half_life")
_BASE = ("callback_manager", "objects", "object_map", "verbose")
_READER = NodeReader()


class FusionRetriever(SearchRetriever):
    """Retrievers fused into one list: weighted, gated, deduplicated, recent first where wanted, and explained.

    >>> FusionRetriever([bm25, vectors], retriever_weights=[0.6, 0.4], half_life=30)  # doctest: +SKIP

    retrievers: a list, or a dict of named ones (an index's `as_retriever()`, ours, any `BaseRetriever`).
    retriever_weights: one for each, or a dict by name; an arm of weight 0 is not asked.
    mode: "rrf" (with c = 60), "relative", "distribution" or "convex". recipe: a name, a file, or a `Fusion`.
    gate, dedup, half_life: see `hybridmem.retrievers.arms.make_recipe`. filters: `MetadataFilters` or hybridmem's
    filter. on_error: "raise", or "skip" to go on without an arm that fails or takes longer than `timeout` seconds
    (one number for all, or a dict by name).

    Scores are in (0, 1]; each result has a `.receipt`. `similarity_top_k` and `filters` can also be given to
    `retrieve` and `aretrieve`.
    """

    _memory_recipe: Fusion | None = None

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
        half_life: HalfLifeOption = None,
        gate: GateOption = None,
        dedup: DedupOption = None,
        recipe: RecipeOption = None,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
        clock: Callable[[], float] = time.time,
        **unknown: NoReturn,
    ) -> None:
        refuse_settings(type(self).__name__, unknown, ("retrievers", *(FusionRetriever.__init__.__kwdefaults__ or ())))
        arms = arms_of(retrievers)
        parts = {"weights": retriever_weights, "gate": gate, "dedup": dedup, "half_life": half_life}
        chosen = make_recipe(recipe, mode=mode, c=c, arms=list(arms), as_scorer=as_scorer, **parts)  # type: ignore[arg-type]
        self._fusion: ArmFusion[Arm] | None = ArmFusion(arms, chosen, on_error, timeout, clock)
        self._recipe = chosen
        self._settings = Settings().changed(similarity_top_k=similarity_top_k, filters=filters)
        super().__init__(callback_manager=callback_manager, objects=objects, object_map=object_map, verbose=verbose)

    @classmethod
    def from_memory(cls, memory: HybridMemory, /, **settings: Unpack[MemoryFusionSettings]) -> FusionRetriever:
        """A `HybridMemory` as a retriever: the same ids and scores as `memory.search`."""
        check_memory(memory)
        known = (*_CALL, *_PARTS, *_BASE)
        given: dict[str, Any] = dict(settings)
        refuse_settings(cls.__name__, given, known)
        parts = {name: given[name] for name in _PARTS if given.get(name) is not None}
        recipe: Fusion | None = None
        if parts or memory.recipe.rerank is not None:
            weights, start = parts.pop("retriever_weights", None), parts.pop("recipe", memory.recipe)
            recipe = make_recipe(start, weights=weights, arms=MEMORY_ARMS, as_scorer=as_scorer, **parts)
        made = cls.__new__(cls)
        made._open_memory(memory, recipe, Settings().changed(**{name: given[name] for name in _CALL if name in given}))  # noqa: SLF001
        BaseRetriever.__init__(made, **{name: given[name] for name in _BASE if name in given})
        return made

    @classmethod
    def from_nodes(
        cls,
        nodes: Iterable[BaseNode],
        /,
        *,
        path: str | Path = ":memory:",
        embedder: EmbeddingOption | None = "auto",
        **settings: Unpack[MemoryFusionSettings],
    ) -> FusionRetriever:
        """A retriever over a new HybridMemory with these nodes: BM25, vectors and graph behind one call.

        path: a file for the memory, which is `retriever.memory`. embedder: any kind of embedding object, "local", or
        None for BM25 alone.
        """
        from hybridmem.memory.memory import HybridMemory as Memory

        memory = Memory(path, embedder=embedder)
        add_nodes(memory, nodes)
        return cls.from_memory(memory, **settings)

    @classmethod
    async def afrom_nodes(
        cls,
        nodes: Iterable[BaseNode],
        /,
        *,
        path: str | Path = ":memory:",
        embedder: EmbeddingOption | None = "auto",
        **settings: Unpack[MemoryFusionSettings],
    ) -> FusionRetriever:
        """The same without blocking the event loop."""
        made: FusionRetriever = await in_thread(lambda: cls.from_nodes(nodes, path=path, embedder=embedder, **settings))
        return made

    @property
    def memory(self) -> HybridMemory | None:
        """The memory that is searched; None over retrievers."""
        return self._memory

    def _open_memory(self, memory: HybridMemory, recipe: Fusion | None, settings: Settings) -> None:
        self._memory, self._fusion = memory, None
        self._memory_recipe, self._recipe = recipe, recipe or memory.recipe
        self._settings = settings

    # --- settings

    @property
    def recipe(self) -> Fusion:
        """How results are ranked."""
        return self._recipe

    @property
    def retrievers(self) -> Mapping[str, BaseRetriever]:
        """The arms by name, read-only; empty over a memory, which has its own."""
        arms = {} if self._fusion is None else self._fusion.arms
        return MappingProxyType({name: arm.retriever for name, arm in arms.items()})

    @property
    def similarity_top_k(self) -> int | None:
        """How many results come back; None: all that were found (over a memory: its default)."""
        return self._settings.k

    @similarity_top_k.setter
    def similarity_top_k(self, value: int | None) -> None:
        self._settings = self._settings._replace(k=None if value is None else check_k(value))

    # --- search

    def retrieve(  # type: ignore[override]
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        min_confidence: float | None = None,
        context: int | None = None,
        **unknown: NoReturn,
    ) -> list[FusedNode]:
        """The best nodes for a query; what is given here has priority over the constructor's.

        `as_of`, `namespace`, `min_confidence` and `context` are for a memory: `context=2` puts the two turns before and
        after each result in its thread into its metadata.
        """
        return self._answer(
            str_or_query_bundle,
            unknown,
            similarity_top_k=similarity_top_k,
            filters=filters,
            as_of=as_of,
            namespace=namespace,
            min_confidence=min_confidence,
            context=context,
        )

    async def aretrieve(  # type: ignore[override]
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        min_confidence: float | None = None,
        context: int | None = None,
        **unknown: NoReturn,
    ) -> list[FusedNode]:
        """The same, without blocking the event loop."""
        return await self._aanswer(
            str_or_query_bundle,
            unknown,
            similarity_top_k=similarity_top_k,
            filters=filters,
            as_of=as_of,
            namespace=namespace,
            min_confidence=min_confidence,
            context=context,
        )

    def explain(self, str_or_query_bundle: QueryType, **settings: Unpack[FusionCall]) -> Explanation:
        """Why each result is there, and `.why_not(node_id)` for one that is not. Settings as for `retrieve`."""
        steps = self._steps(*self._explained(str_or_query_bundle, settings))
        return drive(steps, on_error=self._on_error).why.explanation()

    async def aexplain(self, str_or_query_bundle: QueryType, **settings: Unpack[FusionCall]) -> Explanation:
        """The same, without blocking the event loop."""
        steps = self._steps(*self._explained(str_or_query_bundle, settings))
        return (await adrive(steps, on_error=self._on_error)).why.explanation()

    def explainer(self) -> Explainer:
        """What the inspector needs: the arms, the recipe, and explanations under other recipes."""
        memory, fusion = self._memory, self._fusion

        def explain(
            query: str, /, *, recipe: Fusion, k: int | None = None, filter: Any = None, as_of: Any = None
        ) -> Explanation:
            settings = self._settings.changed(similarity_top_k=k, filters=filter, as_of=as_of)
            if fusion is not None:
                steps = _search_arms(replace(fusion, recipe=recipe), QueryBundle(query), settings)
                return drive(steps, on_error=fusion.on_error).why.explanation()
            if memory is None:
                raise ConfigError("this FusionRetriever has no retrievers")
            return drive(_search_memory(memory, recipe, query, settings)).why.explanation()

        arms = memory.arms if memory is not None else () if fusion is None else tuple(fusion.arms)
        return Explainer(arms, self._recipe, explain, memory, self.similarity_top_k)

    def _explained(self, query: QueryType, settings: Any) -> tuple[QueryBundle, Settings]:
        refuse_keywords("retrieve", settings, _CALL)
        return QueryBundle(query) if isinstance(query, str) else query, self._settings.changed(**settings)

    def _retrieve(self, query_bundle: QueryBundle) -> list[Any]:
        return drive(self._steps(query_bundle, self._call()), on_error=self._on_error).nodes

    async def _asearch(self, query_bundle: QueryBundle) -> list[Any]:
        return (await adrive(self._steps(query_bundle, self._call()), on_error=self._on_error)).nodes

    @property
    def _on_error(self) -> OnError:
        return "raise" if self._fusion is None else self._fusion.on_error

    def _steps(self, bundle: QueryBundle, call: Settings) -> Steps[FusedNodes]:
        if self._memory is not None:
            return _search_memory(self._memory, self._memory_recipe, bundle.query_str, call)
        if self._fusion is None:
            raise ConfigError("this FusionRetriever has no retrievers")
        return _search_arms(self._fusion, bundle, call)

    def _checked(self, settings: Settings) -> Settings:
        return settings  # arms may understand what a memory does: each is asked


class FusedNodes(NamedTuple):
    """The results of one query and their explanation."""

    nodes: list[FusedNode]
    why: Why


def _search_arms(fusion: ArmFusion[Arm], bundle: QueryBundle, call: Settings) -> Steps[FusedNodes]:
    options = {name: value for name, value in call.more.items() if (name, value) != ("context", 0)}

    def request(arm: Arm, _name: str, depth: int | None) -> ArmRequest:
        return arm.request(bundle, ArmOptions(depth, call.filter, call.filters, options))

    fused: FusedArms = yield from fusion.search(request, lambda _: _READER, query=bundle.query_str, k=call.k)
    return nodes_of_ranking(fused)


def nodes_of_ranking(fused: FusedArms, /) -> FusedNodes:
    """A ranking as results; their receipts are made when somebody reads one."""
    why = Why(fused.explanation)
    return FusedNodes(fused_nodes(zip(fused.ranking.items, fused.shares(), strict=True), why), why)


def _search_memory(memory: HybridMemory, recipe: Fusion | None, query: str, call: Settings) -> Steps[FusedNodes]:
    """Search a HybridMemory, which has the arms."""
    given = {"k": call.k, "filter": call.filter, "recipe": recipe, **call.more}
    settings: Any = {name: value for name, value in given.items() if value is not None}
    search, asearch = partial(memory.search, query, **settings), partial(memory.asearch, query, **settings)
    around = settings.pop("context", 0)  # an explanation has none
    outcomes = yield [Job("memory", search, asearch)]
    apply_policy(outcomes, wrap=False)
    results = outcomes[0].value

    def explain() -> Explanation:
        explanation = results[0].explanation if results else None  # one explanation for all of them
        return memory.explain(query, **settings) if explanation is None else explanation

    why = Why(explain)
    nodes = [to_node(result.memory) for result in results]
    if around:
        for node, result in zip(nodes, results, strict=True):
            node.metadata["context"] = turns_around(result)
            node.excluded_embed_metadata_keys.append("context")
    return FusedNodes(fused_nodes(zip(nodes, [result.score for result in results], strict=True), why), why)
