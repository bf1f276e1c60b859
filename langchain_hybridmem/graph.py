"""GraphRetriever: the best hits and items related to them, by spreading activation over links, entities and threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import RunnableConfig
from pydantic import ConfigDict, Field, PrivateAttr, SkipValidation
from typing_extensions import Unpack

from hybridmem.core.fanout import Job, Steps, adrive, drive, in_thread
from hybridmem.core.types import Direction
from hybridmem.errors import ConfigError
from hybridmem.retrievers.arms import ArmHits
from hybridmem.retrievers.graph import (
    MAX_FETCHED,
    TITLE_KEYS,
    GraphCorpus,
    GraphHit,
    GraphItem,
    GraphQuery,
    MetadataKeys,
    SeedScale,
    check_sources,
    search_corpus,
    search_memory,
    search_store,
    seed_job,
    seed_scores,
)
from hybridmem.retrievers.options import refuse_settings
from langchain_hybridmem._arms import Arm, ArmOptions, arms_of
from langchain_hybridmem._conversion import DocumentReader, ScoredDocuments, to_document, to_memory, with_metadata
from langchain_hybridmem._runs import SearchRetriever
from langchain_hybridmem._settings import (
    Built,
    DocumentSource,
    FilterOption,
    GraphSettings,
    HybridMemory,
    IdKey,
    TimeOption,
    call_settings,
    check_query,
    clear_errors,
)
from langchain_hybridmem._vectorstores import check_of

if TYPE_CHECKING:
    from langchain_hybridmem._settings import GraphCall, GraphRetrieverSettings, MemoryGraphSettings

__all__ = ["GraphRetriever"]

Self = TypeVar("Self", bound="GraphRetriever")
_MEMORY_CALL = ("k", "filter", "hops", "decay", "direction", "weights", "as_of", "namespace")
_CALL = (*_MEMORY_CALL, "edges", "with_scores")
_SET_UP = frozenset({"documents", "seed", "graph", "thread_key", "links_key", "title_key", "id_key"})
_FETCH = ("get_by_ids", "mget")


class GraphRetriever(SearchRetriever):
    """The best hits of a seed retriever, and the documents that are related to them.

    Over a HybridMemory, over documents in memory, or over a vector store whose documents list ids in their metadata.

    >>> turns = ["Where did Ana go?", "To the sea.", "With Bo?"]
    >>> documents = [Document(text, id=f"t{n}", metadata={"thread": "chat"}) for n, text in enumerate(turns)]
    >>> [document.page_content for document in GraphRetriever(documents=documents, k=2).invoke("Ana")]
    ['Where did Ana go?', 'To the sea.']

    neighbour = activation · edge weight · decay at each hop, from seeds scaled to 1; the strongest path wins.
    `k`, `filter`, `hops`, `decay`, `direction`, `weights`, `edges` and `with_scores` can be set here and again in
    `invoke(query, …)`.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    memory: HybridMemory | None = None
    """A HybridMemory to search."""
    documents: list[Document] | None = Field(default=None, repr=False, exclude=True)
    """Documents in memory; `add_documents` and `delete` change them later."""
    store: DocumentSource | None = None
    """Where neighbours are fetched from: a vector store (`get_by_ids`), a key-value store (`mget`), or a function."""
    seed: SkipValidation[RetrieverLike | None] = None
    """The retriever whose hits are the seeds; None: BM25 over the documents."""
    seeds: int | None = None
    """How many of its hits to start from; None: 4·k. With fewer seeds, more of the results are related documents."""
    seed_scale: SeedScale = "max"
    """"max": the seeds' scores divided by the best one. "range": from 1 for the best to 1 / (n + 1) for the last, which
    suits cosines, whose values differ little: neighbours of the first seeds then rank above the last seeds."""
    k: int = 4
    filter: FilterOption | None = None
    """`{"lang": "en"}` or a function of the document. A document that does not pass is not a result and passes no
    activation on."""
    hops: int = 2
    decay: float = 0.5
    direction: Direction | None = None
    """"forward", "backward" or "both"; None: links and threads both ways, `edges` and mentions forward."""
    weights: Mapping[str, float] | None = None
    """Weights of kinds of edges that replace those of `graph`, such as `{"thread": 0.5}`."""
    edges: SkipValidation[Sequence[tuple[str, str]] | None] = None
    """Pairs of metadata fields: `("mentions", "title")` links a document to those whose title it lists. "$id" is the
    document's id. The same definitions as in langchain-graph-retriever."""
    with_scores: bool = False
    """Put the activation into `metadata["score"]` and the path into `metadata["hybridmem"]`."""
    thread_key: str = "thread"
    """Metadata that names a document's conversation, or the file it is a chunk of; neighbours in one are linked."""
    links_key: str | list[str] = "links"
    """Metadata that lists ids of other documents."""
    title_key: str | Sequence[str] = TITLE_KEYS
    """Metadata that holds a document's title: a text that mentions it, or links to it as [[title]], is linked to it."""
    id_key: SkipValidation[IdKey] = None
    """What makes two documents the same: a metadata key or a function. None: `Document.id`, else the text."""
    graph: GraphSettings | None = None
    """The weights of the kinds of edges."""
    as_of: TimeOption = None
    namespace: str | None = None

    built: Built | None = Field(default=None, repr=False, exclude=True)
    """The corpus of `documents`, for a retriever that is made from this one's fields."""

    _arm: Arm | None = PrivateAttr(default=None)

    if TYPE_CHECKING:  # type checkers read the fields above, and the keywords of one call

        def invoke(  # type: ignore[override]
            self, input: str, config: RunnableConfig | None = None, **kwargs: Unpack[GraphCall]
        ) -> list[Document]:
            """The documents for a query, best first."""
            ...

        async def ainvoke(  # type: ignore[override]
            self, input: str, config: RunnableConfig | None = None, **kwargs: Unpack[GraphCall]
        ) -> list[Document]:
            """The same, without blocking the event loop."""
            ...

    else:

        def __init__(self, **settings: Any) -> None:  # a wrong setting is a ConfigError, not pydantic's own error
            _check(type(self), settings)
            with clear_errors():
                super().__init__(**settings)
            self._set_up()

    def _change(self, settings: Mapping[str, Any]) -> None:
        """Set fields, which are checked as in the constructor; what is made of them is made again."""
        given = {name: getattr(self, name) for name in GraphRetriever.model_fields}
        _check(type(self), {**given, **settings})
        super()._change(settings)
        if not _SET_UP.isdisjoint(settings):
            self._set_up()

    def _set_up(self) -> None:
        """The seed retriever as an arm, and the graph of the documents."""
        self._arm = None if self.seed is None else next(iter(arms_of([self.seed]).values()))
        if self.documents is not None or self.built is not None:
            super()._change({"built": self._build(), "documents": None})  # the graph has the documents

    def _build(self) -> Built:
        settings = (self.graph, self.thread_key, self.links_key, self.title_key, self.id_key, self.seed is None)
        before = self.built if self.documents is None else None
        if before is not None and before.settings == settings:
            return before
        corpus: GraphCorpus[Document] = GraphCorpus(self.graph, lexical=self.seed is None)
        corpus.add(self._items((self.documents or []) if before is None else before.index.items))
        return Built(corpus, settings)

    # --- constructors

    @classmethod
    def from_memory(cls: type[Self], memory: HybridMemory, /, **settings: Unpack[MemoryGraphSettings]) -> Self:
        """Over a HybridMemory: seeds by its BM25, edges as it stores them."""
        return cls(memory=memory, **settings)

    @classmethod
    def from_documents(
        cls: type[Self],
        documents: Sequence[Document],
        /,
        *,
        seed: RetrieverLike | None = None,
        **settings: Unpack[GraphRetrieverSettings],
    ) -> Self:
        """Over documents in memory; `seed` provides the seeds (None: our BM25)."""
        return cls(documents=list(documents), seed=seed, **settings)

    @classmethod
    def from_store(
        cls: type[Self],
        store: DocumentSource,
        /,
        *,
        seed: RetrieverLike | None = None,
        **settings: Unpack[GraphRetrieverSettings],
    ) -> Self:
        """Over a vector store whose documents list ids under `links_key`; `seed` defaults to its own search."""
        if seed is None and hasattr(store, "as_retriever"):
            seed = store.as_retriever()
        return cls(store=store, seed=seed, **settings)

    # --- documents

    def add_documents(self, documents: Sequence[Document], /) -> list[str]:
        """Add documents, or replace those of the same id; returns their ids."""
        return self._corpus().add(self._items(documents))

    async def aadd_documents(self, documents: Sequence[Document], /) -> list[str]:
        """The same without blocking the event loop."""
        return await in_thread(lambda: self.add_documents(documents))

    def delete(self, ids: Sequence[str], /) -> bool:
        """Remove documents by their ids; False when none was there."""
        return self._corpus().remove(ids) > 0

    async def adelete(self, ids: Sequence[str], /) -> bool:
        """The same without blocking the event loop."""
        return await in_thread(lambda: self.delete(ids))

    def _corpus(self) -> GraphCorpus[Document]:
        if self.built is None:
            raise ConfigError("this GraphRetriever has no documents of its own: change them in its memory or store")
        corpus: GraphCorpus[Document] = self.built.index
        return corpus

    def _items(self, documents: Sequence[Document]) -> list[GraphItem]:
        """Documents with all fields that the graph and BM25 read."""
        read = MetadataKeys(self.thread_key, self.links_key, self.title_key)
        return [
            read.item(replace(to_memory(document), id=key), document, document.metadata)
            for key, document in zip(DocumentReader(self.id_key).keys(documents), documents, strict=True)
        ]

    # --- search

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: FilterOption | None = None,
        hops: int | None = None,
        decay: float | None = None,
        direction: Direction | None = None,
        weights: Mapping[str, float] | None = None,
        edges: Sequence[tuple[str, str]] | None = None,
        with_scores: bool | None = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        **unknown: Any,
    ) -> list[Document]:
        given = {"k": k, "filter": filter, "hops": hops, "decay": decay, "direction": direction, "weights": weights}
        more = {"edges": edges, "as_of": as_of, "namespace": namespace, "with_scores": with_scores}
        call = call_settings(self, _CALL, {**unknown, **given, **more})
        steps = self._steps(check_query(query), call, {"callbacks": run_manager.get_child("seed")})
        return _documents(drive(steps), with_scores=call["with_scores"])

    async def _asearch(
        self, query: str, run_manager: AsyncCallbackManagerForRetrieverRun | None, **given: Any
    ) -> list[Document]:
        call = call_settings(self, _CALL, given)
        config: RunnableConfig = {} if run_manager is None else {"callbacks": run_manager.get_child("seed")}
        hits = await adrive(self._steps(check_query(query), call, config))
        return _documents(hits, with_scores=call["with_scores"])

    def _steps(self, query: str, call: dict[str, Any], config: RunnableConfig) -> Steps[list[GraphHit]]:
        if self.memory is not None:
            if call["edges"] is not None:
                raise ConfigError("edges does not go with a memory: its links, threads and names are the edges")
            return search_memory(self.memory, query, {name: call[name] for name in _MEMORY_CALL}, to_document)
        check = None if call["filter"] is None else check_of(call["filter"])
        more = {name: call[name] for name in ("edges", "direction", "weights")} | {"seed_scale": self.seed_scale}
        extent = GraphQuery(call["k"], call["hops"], call["decay"], check, self.seeds, **more)
        wanted = ArmOptions(extent.depth, call["filter"])

        def seeds(arm: Arm, read: Callable[[ArmHits], Any]) -> Job:
            return seed_job(arm.request(query, wanted, config), extent.depth, read)

        if self.built is not None:
            job = None if self._arm is None else seeds(self._arm, self._scores_of)
            return search_corpus(self._corpus(), query, extent, seeds=job)
        if self._arm is None:  # checked in the constructor
            raise ConfigError("a store needs a seed retriever")
        find = partial(self._find, query, config)
        return search_store(seeds(self._arm, self._first_items), self._fetch, self.graph, extent, find=find)

    def _find(self, query: str, config: RunnableConfig, name: str, values: list[Any]) -> Job:
        """A job that asks a vector store for the documents with one of these values in a metadata field."""
        store: Any = self.store
        if not hasattr(store, "as_retriever"):
            kind = type(store).__name__
            raise ConfigError(f"store is a {kind}: edges to the field {name!r} need a vector store")
        arm = next(iter(arms_of([store.as_retriever()]).values()))
        request = arm.request(query, ArmOptions(MAX_FETCHED, {name: {"$in": values}}), config)
        return seed_job(request, MAX_FETCHED, lambda hits: self._items(hits.items))

    def _scores_of(self, hits: ArmHits) -> dict[str, float]:
        return seed_scores(DocumentReader(self.id_key).keys(hits.items), hits.scores)

    def _first_items(self, hits: ArmHits) -> tuple[list[GraphItem], dict[str, float]]:
        items = self._items(hits.items)
        return items, seed_scores([one.memory.id for one in items], hits.scores)

    def _fetch(self, ids: list[str]) -> Job:
        store: Any = self.store
        if hasattr(store, "get_by_ids"):
            now, later = store.get_by_ids, getattr(store, "aget_by_ids", None)
        elif hasattr(store, "mget"):
            now, later = store.mget, getattr(store, "amget", None)
        else:
            now, later = store, None
        fetch: Any = later

        def items(documents: Sequence[Document | None]) -> list[GraphItem]:
            return self._items([document for document in documents if document is not None])

        async def wait() -> list[GraphItem]:
            return items(await fetch(ids))

        return Job("fetch", lambda: items(now(ids)), None if later is None else wait)


def _documents(hits: Sequence[GraphHit], *, with_scores: bool) -> list[Document]:
    """The hits as documents; copies with activation and path when wanted."""
    documents = [hit.item for hit in hits]
    if with_scores:
        documents = [
            with_metadata(
                document,
                {
                    **document.metadata,
                    "score": activation.value,
                    "hybridmem": {
                        "activation": activation.value,
                        "hops": activation.hops,
                        "path": list(activation.path),
                        "line": line,
                    },
                },
            )
            for document, activation, line in hits
        ]
    lines = [hit.line for hit in hits]
    return ScoredDocuments(documents, [hit.activation.value for hit in hits], lambda: lines)


def _check(cls: type[GraphRetriever], settings: dict[str, Any]) -> None:
    refuse_settings(cls.__name__, settings, cls.model_fields)
    given = {name: settings.get(name) for name in ("memory", "documents", "store")}
    if given["documents"] is None:
        given["documents"] = settings.get("built")
    check_sources(given, settings, _FETCH)
    names = ("k", "hops", "decay", "seeds", "seed_scale", "edges", "direction", "weights")
    GraphQuery(**{name: settings[name] for name in names if name in settings})
    if settings.get("filter") is not None and not callable(settings["filter"]):
        check_of(settings["filter"])
