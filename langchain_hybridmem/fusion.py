"""FusionRetriever: any LangChain retrievers, or a HybridMemory, fused by a recipe, with scores and receipts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import set_config_context
from langchain_core.runnables.utils import ConfigurableFieldSpec, coro_with_context, get_unique_config_specs
from pydantic import ConfigDict, Field, PrivateAttr, SkipValidation
from typing_extensions import Unpack

from hybridmem.core.fanout import Job, OnError, Steps, adrive, apply_policy, drive, in_thread
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Explanation
from hybridmem.fusion.recipe import Fusion
from hybridmem.retrievers.arms import (
    MEMORY_ARMS,
    ArmFusion,
    ArmRequest,
    Explainer,
    FusedArms,
    check_timeout,
    make_recipe,
    turns_around,
)
from hybridmem.retrievers.options import check_memory, refuse_keywords, refuse_settings, taken
from langchain_hybridmem._arms import Arm, ArmOptions, arms_of
from langchain_hybridmem._conversion import (
    DocumentReader,
    ScoredDocuments,
    add_documents,
    as_scorer,
    to_document,
    with_metadata,
)
from langchain_hybridmem._runs import ParentRetriever, RunManager, child_config, is_overridden
from langchain_hybridmem._settings import (
    ClockOption,
    DedupOption,
    FilterOption,
    GateOption,
    HalfLifeOption,
    HybridMemory,
    IdKey,
    RecipeOption,
    TimeOption,
    check_k,
    check_query,
    clear_errors,
)

if TYPE_CHECKING:
    from hybridmem.embedding.sources import EmbeddingOption
    from langchain_hybridmem._settings import FusionCall, MemoryFusionSettings

__all__ = ["FusionRetriever"]

Self = TypeVar("Self", bound="FusionRetriever")
Mode = Literal["rrf", "relative", "distribution", "convex"]
_RECIPE = ("mode", "weights", "c", "gate", "dedup", "half_life")
_SETUP = (*_RECIPE, "retrievers", "memory", "recipe", "id_key", "on_error", "timeout", "clock", "k", "search_kwargs")
_CALL = ("k", "filter", "search_kwargs", "with_scores", "receipts", "as_of", "namespace", "min_confidence", "context")


class FusionRetriever(ParentRetriever):
    """Fuse retrievers by weighted reciprocal ranks (or another mode), with gates, dedup, half-life and receipts.

    >>> from langchain_core.runnables import RunnableLambda
    >>> bm25, vector = (RunnableLambda(lambda q, texts=texts: texts) for texts in (["a", "b"], ["b", "c"]))
    >>> results = FusionRetriever(retrievers={"bm25": bm25, "vector": vector}, k=2).invoke("?")
    >>> [(document.page_content, round(document.metadata["score"], 3)) for document in results]
    [('b', 0.992), ('a', 0.5)]

    Arms are asked at the same time, with scores where they have them. `k`, `filter`, `search_kwargs`, `with_scores`,
    `receipts`, `as_of`, `namespace`, `min_confidence` and `context` can be set here and again in `invoke(query, …)`.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    retrievers: SkipValidation[Sequence[RetrieverLike] | Mapping[str, RetrieverLike]] = Field(default_factory=list)
    """Any runnables from a query to documents; a dict names them. In a list they are called by their kind: "bm25",
    "vector", "graph", else "retriever_1"…n."""
    memory: HybridMemory | None = None
    """A HybridMemory to search instead of retrievers."""
    weights: SkipValidation[Sequence[float] | Mapping[str, float] | None] = None
    """One for each arm, in order or by name; equal when omitted. An arm of weight 0 is not asked."""
    c: float = 60
    mode: Mode = "rrf"
    id_key: SkipValidation[IdKey] = None
    """What makes two documents the same: a metadata key or a function. None: `Document.id`, else the text."""
    k: int | None = None
    """How many documents to return; None: all that the arms return."""
    filter: FilterOption | None = None
    """`{"lang": "en", "year": {"$gte": 2020}}`, or a function of the document."""
    search_kwargs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Keywords for single arms, by their names."""
    gate: GateOption = None
    """A floor on raw scores: one for all arms, `{"bm25": 1.0, "vector": 0.5}`, or a `QualityGate`."""
    dedup: DedupOption = None
    """Keep the best of each source: True (`source_id`, else `source`), a metadata key, or a `SourceDedup`."""
    half_life: HalfLifeOption = None
    """Prefer recent documents: days, a timedelta, or a `HalfLife` with strength and field."""
    recipe: RecipeOption = None
    """A `Fusion`, the name of a recipe, or a recipe file; the settings above change parts of it, False removes one."""
    on_error: Literal["raise", "skip"] = "raise"
    timeout: float | dict[str, float] | None = None
    """Seconds that an arm may take: one number, or by name."""
    with_scores: bool = True
    """Put the score, in (0, 1], into `metadata["score"]`."""
    receipts: bool = False
    """Put each result's receipt into `metadata["hybridmem"]`."""
    as_of: TimeOption = None
    namespace: str | None = None
    min_confidence: float | None = None
    context: int = 0
    """Over a memory: put so many turns before and after each result in its thread into `metadata["context"]`."""
    clock: ClockOption | None = None
    """The time in epoch seconds, for the half-life; None: now."""

    _setup: _Setup = PrivateAttr()

    if not TYPE_CHECKING:  # type checkers read the fields above instead

        def __init__(self, **settings: Any) -> None:  # a wrong setting is a ConfigError, not pydantic's own error
            refuse_settings(type(self).__name__, settings, type(self).model_fields)
            setup = _setup({name: settings.get(name) for name in _SETUP})
            with clear_errors():
                super().__init__(**{**settings, "c": setup.recipe.c, "mode": setup.recipe.mode})
            self._setup = setup

    def _change(self, settings: Mapping[str, Any]) -> None:
        """Set fields, and check and put together all settings."""
        given = {name: getattr(self, name) for name in _SETUP}
        if "recipe" in settings or "memory" in settings:  # each brings its own
            given.update(c=None, mode=None)
        setup = _setup({**given, **settings})
        super()._change({**settings, "_setup": setup, "c": setup.recipe.c, "mode": setup.recipe.mode})

    def _current(self) -> _Setup:
        """The checked settings; lists and dicts that were changed in place are checked again and take effect."""
        if self._setup.mutable != _mutable(self.retrievers, self.weights, self.timeout):
            self._change({})
        return self._setup

    @classmethod
    def from_memory(cls: type[Self], memory: HybridMemory, /, **settings: Unpack[MemoryFusionSettings]) -> Self:
        """A retriever over a HybridMemory: the same ids and scores as `memory.search`."""
        return cls(memory=memory, **settings)

    @classmethod
    def from_documents(
        cls: type[Self],
        documents: Iterable[Document],
        *,
        path: str | Path = ":memory:",
        embedder: EmbeddingOption | None = "auto",
        **settings: Unpack[MemoryFusionSettings],
    ) -> Self:
        """A retriever over a new HybridMemory with these documents: BM25, vectors and graph behind one call.

        path: a file for the memory, which is `retriever.memory`. embedder: any kind of embedding object, "local", or
        None for BM25 alone.
        """
        from hybridmem.memory.memory import HybridMemory as Memory

        memory = Memory(path, embedder=embedder)
        add_documents(memory, documents)
        return cls.from_memory(memory, **settings)

    @classmethod
    async def afrom_documents(
        cls: type[Self],
        documents: Iterable[Document],
        *,
        path: str | Path = ":memory:",
        embedder: EmbeddingOption | None = "auto",
        **settings: Unpack[MemoryFusionSettings],
    ) -> Self:
        """The same without blocking the event loop."""
        made: Self = await in_thread(lambda: cls.from_documents(documents, path=path, embedder=embedder, **settings))
        return made

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What can be configured in the arms."""
        arms = self._current().arms
        return get_unique_config_specs(
            spec for arm in arms.values() for spec in getattr(arm.runnable, "config_specs", ())
        )

    # --- search

    def invoke(  # type: ignore[override]
        self, input: str, config: RunnableConfig | None = None, **kwargs: Unpack[FusionCall]
    ) -> list[Document]:
        """The fused documents, best first. What is not given here is taken from the constructor."""
        given: dict[str, Any] = dict(kwargs)
        search = partial(self._search, input, given, None)
        if is_overridden(self, "_get_relevant_documents"):
            search = partial(self._overridden, input, given)
        return self._in_run(check_query(input), config, given, search)

    async def ainvoke(  # type: ignore[override]
        self, input: str, config: RunnableConfig | None = None, **kwargs: Unpack[FusionCall]
    ) -> list[Document]:
        """The same, without blocking the event loop."""
        given: dict[str, Any] = dict(kwargs)
        search = partial(self._asearch, input, given, None)
        if any(is_overridden(self, name) for name in ("_get_relevant_documents", "_aget_relevant_documents")):
            search = partial(self._aoverridden, input, given)
        return await self._in_arun(check_query(input), config, given, search)

    def _overridden(
        self, query: str, given: Mapping[str, Any], run: CallbackManagerForRetrieverRun, config: RunnableConfig
    ) -> list[Document]:
        """The search of a subclass, such as one that filters by user; its `super()` call gets the config."""
        with set_config_context(config) as context:
            own: Callable[..., list[Document]] = self._get_relevant_documents
            return context.run(partial(own, query, **taken(own, {**given, "run_manager": run})))

    async def _aoverridden(
        self, query: str, given: Mapping[str, Any], run: AsyncCallbackManagerForRetrieverRun, config: RunnableConfig
    ) -> list[Document]:
        """The same in async code; a subclass that overrides the sync search alone gets it here too."""
        if not is_overridden(self, "_aget_relevant_documents"):
            found: list[Document] = await in_thread(partial(self._overridden, query, given, run.get_sync(), config))
            return found
        with set_config_context(config) as context:
            own: Callable[..., Coroutine[Any, Any, list[Document]]] = self._aget_relevant_documents
            search = context.run(partial(own, query, **taken(own, {**given, "run_manager": run})))
            return await coro_with_context(search, context)

    def explain(self, query: str, config: RunnableConfig | None = None, **kwargs: Unpack[FusionCall]) -> Explanation:
        """Why each result is there, and `.why_not(key)` for one that is not."""
        explanations: list[Explanation] = []
        given: dict[str, Any] = dict(kwargs)
        self._in_run(check_query(query), config, given, partial(self._search, query, given, explanations.append))
        return explanations[0]

    async def aexplain(
        self, query: str, config: RunnableConfig | None = None, **kwargs: Unpack[FusionCall]
    ) -> Explanation:
        """The same, without blocking the event loop."""
        explanations: list[Explanation] = []
        given: dict[str, Any] = dict(kwargs)
        await self._in_arun(
            check_query(query), config, given, partial(self._asearch, query, given, explanations.append)
        )
        return explanations[0]

    def explainer(self) -> Explainer:
        """What the inspector needs: the arms, the recipe, and explanations under other recipes."""
        setup = self._current()

        def explain(
            query: str, /, *, recipe: Fusion, k: int | None = None, filter: Any = None, as_of: Any = None
        ) -> Explanation:
            other = self.model_copy(update={**dict.fromkeys(_RECIPE), "recipe": recipe})
            return other.explain(query, k=k, filter=filter, as_of=as_of)

        arms = tuple(setup.arms) if setup.memory is None else setup.memory.arms
        return Explainer(arms, setup.recipe, explain, setup.memory, self.k)

    def _search(
        self,
        query: str,
        given: Mapping[str, Any],
        note: Callable[[Explanation], None] | None,
        run: CallbackManagerForRetrieverRun,
        config: RunnableConfig,
    ) -> list[Document]:
        setup = self._current()
        steps = self._steps(setup, _Call(query, run, config, note, **self._call_settings(given, setup)))
        return drive(steps, limit=config.get("max_concurrency"), on_error=setup.on_error)

    async def _asearch(
        self,
        query: str,
        given: Mapping[str, Any],
        note: Callable[[Explanation], None] | None,
        run: AsyncCallbackManagerForRetrieverRun,
        config: RunnableConfig,
    ) -> list[Document]:
        setup = self._current()
        steps = self._steps(setup, _Call(query, run, config, note, **self._call_settings(given, setup)))
        return await adrive(steps, limit=config.get("max_concurrency"), on_error=setup.on_error)

    def _steps(self, setup: _Setup, call: _Call) -> Steps[list[Document]]:
        return _search_arms(setup, call) if setup.fusion is not None else _search_memory(setup, call)

    def _call_settings(self, given: Mapping[str, Any], setup: _Setup) -> dict[str, Any]:
        refuse_keywords("invoke", given, _CALL)
        settings = {name: getattr(self, name) for name in _CALL}
        settings.update({name: value for name, value in given.items() if value is not None})
        if "k" in given:
            check_k(settings["k"])
        if given.get("search_kwargs"):
            settings["search_kwargs"] = _merged(self.search_kwargs, given["search_kwargs"], setup.arms)
        return settings

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: FilterOption | None = None,
        with_scores: bool | None = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        min_confidence: float | None = None,
        context: int | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        given = {"k": k, "filter": filter, "with_scores": with_scores, "as_of": as_of, "namespace": namespace}
        more = {"min_confidence": min_confidence, "context": context}
        return self._search(query, {**kwargs, **given, **more}, None, run_manager, ensure_config())

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return await self._asearch(query, kwargs, None, run_manager, ensure_config())


# --- one query


class _Call(NamedTuple):
    """One query with the settings of the call and of the constructor."""

    query: str
    run: RunManager
    config: RunnableConfig
    note: Callable[[Explanation], None] | None
    """Receives the explanation, when one was asked for."""
    k: int | None
    filter: Any
    search_kwargs: Mapping[str, Mapping[str, Any]]
    with_scores: bool
    receipts: bool
    as_of: Any
    namespace: str | None
    min_confidence: float | None
    context: int

    @property
    def options(self) -> dict[str, Any]:
        """The settings that every arm must understand."""
        options: dict[str, Any] = {
            "as_of": self.as_of,
            "namespace": self.namespace,
            "min_confidence": self.min_confidence,
        }
        options["context"] = self.context or None  # 0: none
        return {name: value for name, value in options.items() if value is not None}


def _search_arms(setup: _Setup, call: _Call) -> Steps[list[Document]]:
    def request(arm: Arm, name: str, depth: int | None) -> ArmRequest:
        query = ArmOptions(depth, call.filter, True, call.options, call.search_kwargs.get(name, {}))
        return arm.request(call.query, query, child_config(call.config, call.run, arm.place, arm=name))

    fusion = setup.fusion
    if fusion is None:
        raise ConfigError("this FusionRetriever has no retrievers")
    reader = partial(DocumentReader.over, id_key=setup.id_key)
    traced = call.receipts or call.note is not None
    fused: FusedArms = yield from fusion.search(request, reader, query=call.query, k=call.k, traced=traced)
    if call.note is not None:
        call.note(fused.explanation())
    return _documents(fused, call)


def _documents(fused: FusedArms, call: _Call) -> list[Document]:
    """The ranked documents as copies: with metadata of all their duplicates, and scores and receipts when wanted."""
    reader, ranking, shares = fused.reader, fused.ranking, fused.shares()
    if not isinstance(reader, DocumentReader):
        raise TypeError(f"reader is a {type(reader).__name__}")
    receipts = fused.explanation().receipts if call.receipts else ()
    merged = reader.metadata(ranking.keys)
    degraded = fused.is_degraded
    documents = []
    for place, (key, item) in enumerate(zip(ranking.keys, ranking.items, strict=True)):
        metadata = merged[key]
        if call.with_scores:
            metadata["score"] = shares[place]
        if receipts:
            metadata["hybridmem"] = receipts[place].to_dict()
        if degraded:
            metadata["degraded"] = True
        documents.append(with_metadata(item, metadata, id=reader.id_of(item)))
    return ScoredDocuments(documents, shares)


def _search_memory(setup: _Setup, call: _Call) -> Steps[list[Document]]:
    """Search a HybridMemory: it has the arms, this retriever only puts its results into documents."""
    memory = setup.memory
    if memory is None:
        raise ConfigError("this FusionRetriever has no memory")
    recipe = None if setup.recipe == memory.recipe else setup.recipe
    settings: dict[str, Any] = {"k": call.k, "filter": call.filter, "recipe": recipe, **call.options}
    settings = {name: value for name, value in settings.items() if value is not None}
    search = partial(memory.search, call.query, **settings)
    asearch = partial(memory.asearch, call.query, **settings)
    settings.pop("context", None)  # an explanation has none
    timeout = setup.timeout.get("memory") if isinstance(setup.timeout, Mapping) else setup.timeout
    jobs = [Job("memory", search, asearch, timeout)]
    if call.note is not None:
        jobs.append(Job("explain", partial(memory.explain, call.query, **settings)))
    outcomes = yield jobs
    failed = apply_policy(outcomes, on_error=setup.on_error, wrap=False)
    results = [] if "memory" in failed else outcomes[0].value
    documents = []
    for result in results:
        more: dict[str, Any] = {"score": result.score} if call.with_scores else {}
        if call.receipts and result.receipt is not None:
            more["hybridmem"] = result.receipt.to_dict()
        if call.context:
            more["context"] = turns_around(result)
        documents.append(to_document(result.memory, **more))
    if call.note is not None and failed:
        reason = next(iter(failed.values()))
        call.note(Explanation(call.query, arms={"memory": f"skipped: {reason}"}))
    elif call.note is not None:
        call.note(outcomes[1].value)
    return ScoredDocuments(documents, [result.score for result in results])


# --- settings


class _Setup(NamedTuple):
    """The settings of a constructor, checked: arms and how they are fused, or a memory."""

    recipe: Fusion
    arms: dict[str, Arm]
    fusion: ArmFusion[Arm] | None
    memory: HybridMemory | None
    id_key: IdKey
    on_error: Literal["raise", "skip"]
    timeout: float | Mapping[str, float] | None
    mutable: tuple[Any, ...]


def _mutable(retrievers: Any, weights: Any, timeout: Any) -> tuple[Any, ...]:
    """The settings that can be changed in place, as values to compare; retrievers by identity."""
    arms = list(retrievers.items()) if isinstance(retrievers, Mapping) else list(enumerate(retrievers or ()))
    numbers = [dict(one) if isinstance(one, Mapping) else one if one is None else list(one) for one in (weights,)]
    return [(name, id(one)) for name, one in arms], *numbers, dict(timeout) if isinstance(timeout, Mapping) else timeout


def _setup(given: Mapping[str, Any]) -> _Setup:
    """The settings checked and put together; every mistake is a ConfigError that says what is allowed."""
    parts = {name: given[name] for name in _RECIPE}
    on_error: OnError = given["on_error"] or "raise"
    timeout, memory = given["timeout"], given["memory"]
    check_k(given["k"])
    if memory is not None:
        for name in ("retrievers", "id_key", "search_kwargs", "clock"):
            if given[name]:
                raise ConfigError(
                    f"{name} = {given[name]!r} does not go with a memory: it has arms, ids and clock of its own"
                )
        check_memory(memory)
        check_timeout(on_error, timeout, ["memory"])
        recipe = make_recipe(given["recipe"] or memory.recipe, **parts, arms=MEMORY_ARMS, as_scorer=as_scorer)
        mutable = _mutable(given["retrievers"], given["weights"], timeout)
        return _Setup(recipe, {}, None, memory, None, on_error, timeout, mutable)
    arms = arms_of(given["retrievers"] or [])
    recipe = make_recipe(given["recipe"], **parts, arms=list(arms), as_scorer=as_scorer)
    fusion = ArmFusion(arms, recipe, on_error, timeout, given["clock"])
    _merged({}, given["search_kwargs"] or {}, arms)
    mutable = _mutable(given["retrievers"], given["weights"], timeout)
    return _Setup(recipe, arms, fusion, None, given["id_key"], on_error, timeout, mutable)


def _merged(
    before: Mapping[str, Mapping[str, Any]], given: Mapping[str, Mapping[str, Any]], arms: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Each arm's keywords: those of the call, then those of the constructor."""
    if not isinstance(given, Mapping) or not all(isinstance(own, Mapping) for own in given.values()):
        raise ConfigError(
            f"search_kwargs = {given!r} is not allowed: keywords by arm, such as {{'vector': {{'k': 5}}}}"
        )
    known = list(arms)
    for name in given:
        if name not in known:
            raise ConfigError(f"search_kwargs names unknown arm {name!r}: the arms are {', '.join(map(repr, known))}")
    return {name: {**before.get(name, {}), **given.get(name, {})} for name in {**before, **given}}
