"""The arms of a fusion: what each retriever understands, and how it is asked so that scores come back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.vectorstores import VectorStoreRetriever

from hybridmem.core.fanout import in_thread
from hybridmem.errors import ArmError, ConfigError
from langchain_hybridmem._filtering import check_of, joined, store_filter
from langchain_hybridmem._runs import Patience
from langchain_hybridmem._scores import Scored, asimilarities, similarities

__all__ = ["Arm", "Brought", "Wish", "are_documents", "arms_of", "documents_of"]

_NAMES = {
    "BM25Retriever": "bm25",
    "VectorRetriever": "vector",
    "VectorStoreRetriever": "vector",
    "GraphRetriever": "graph",
}
_ASKABLE = frozenset({"k", "filter", "with_scores", "as_of", "namespace", "min_confidence"})
_OURS = "langchain_hybridmem"
_DOCUMENTS = frozenset({Document})


class Wish(NamedTuple):
    """What a question wants of an arm, beside the query."""

    k: int | None = None
    filter: Any = None
    scores: bool = True
    more: Mapping[str, Any] = {}
    """`as_of`, `namespace`, `min_confidence`: every arm must understand them."""
    own: Mapping[str, Any] = {}
    """This arm's `search_kwargs`: passed on as they are."""


class Brought(NamedTuple):
    """An arm's documents, with raw scores where it has them; `given` counts them before the filter."""

    documents: list[Document]
    scores: list[float] | None
    given: int
    checked: bool = False
    """The filter was applied to the results, because the arm does not know filters."""
    marked: bool = False
    """The scores came in the documents' metadata, because we asked for them."""


class ScoredList(list[Document]):
    """A list of documents that carries their raw scores beside them."""

    __slots__ = ("scores",)

    def __init__(self, scored: Scored) -> None:
        super().__init__([document for document, _ in scored])
        scores = [score for _, score in scored]
        self.scores: list[float] | None = None if None in scores else cast("list[float]", scores)


class _StandIn(BaseRetriever):
    """Asks another retriever in its own way; the run looks as if that one had been asked."""

    inner: Any

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        return str(self.inner.get_name(suffix, name=name))

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        return cast("LangSmithRetrieverParams", self.inner._get_ls_params(**kwargs))  # noqa: SLF001

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        inner = self.inner
        shown = {"run_manager": run_manager} if inner._new_arg_supported else {}  # noqa: SLF001
        return cast("list[Document]", inner._get_relevant_documents(query, **shown, **kwargs))  # noqa: SLF001


class _InThread(_StandIn):
    """A retriever without async code of its own: asked in a thread, and with keywords, which LangChain would refuse."""

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        manager = run_manager.get_sync()
        found = await in_thread(lambda: self._get_relevant_documents(query, run_manager=manager, **kwargs))
        return cast("list[Document]", found)


class _AskedWithScores(_StandIn):
    """A plain `vectorstore.as_retriever()`, asked for similarities too."""

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002
        **kwargs: Any,
    ) -> list[Document]:
        return ScoredList(similarities(self.inner.vectorstore, query, **{**self.inner.search_kwargs, **kwargs}))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,  # noqa: ARG002
        **kwargs: Any,
    ) -> list[Document]:
        asked = {**self.inner.search_kwargs, **kwargs}
        return ScoredList(await asimilarities(self.inner.vectorstore, query, **asked))


def _standing_in(kind: type[_StandIn], retriever: BaseRetriever) -> _StandIn:
    return kind(inner=retriever, tags=retriever.tags, metadata=retriever.metadata, name=retriever.name)


def _blocks(runnable: Any) -> bool:
    """A retriever that has no async search of its own, only LangChain's default."""
    return (
        isinstance(runnable, BaseRetriever)
        and type(runnable).ainvoke is BaseRetriever.ainvoke
        and type(runnable)._aget_relevant_documents.__qualname__.startswith("BaseRetriever.")  # noqa: SLF001
    )


@dataclass(frozen=True, slots=True)
class Arm:
    """One retriever of a fusion under its name, with what it understands."""

    name: str
    place: int
    runnable: Runnable[str, list[Document]]
    takes: frozenset[str]
    ours: bool
    pace: Patience = field(default_factory=Patience, compare=False)

    @property
    def deepens(self) -> bool:
        """Whether it can be asked for more."""
        return "k" in self.takes

    def request(self, wish: Wish, config: RunnableConfig) -> Request:
        """How to ask this arm: the runnable, its config and keywords, and what to check afterwards."""
        runnable = self.runnable
        if isinstance(runnable, DynamicRunnable):
            runnable, config = runnable.prepare(config)
        if _is_store(runnable):
            return _store_request(runnable, wish, config)
        takes = self.takes if runnable is self.runnable else _takes(runnable)
        for name in wish.more:
            if name not in takes:
                raise ConfigError(f"{name} = {wish.more[name]!r}: arm {self.name!r} does not understand {name!r}")
        asked: dict[str, Any] = dict(wish.more)
        if wish.k is not None and "k" in takes:
            asked["k"] = wish.k
        check = None
        if wish.filter is not None:
            told = joined(getattr(runnable, "filter", None), wish.filter) if "filter" in takes else None
            if told is not None:
                asked["filter"] = told
            else:
                check = check_of(wish.filter)
        if wish.scores and "with_scores" in takes and (self.ours or _is_ours(runnable)):
            asked["with_scores"] = True
        return Request(runnable, config, {**asked, **wish.own}, check)


class Request(NamedTuple):
    """One call of an arm, ready to be made in sync or async code."""

    runnable: Runnable[str, list[Document]]
    config: RunnableConfig
    keywords: dict[str, Any]
    check: Callable[[Document], bool] | None = None

    def call(self, query: str) -> Any:
        """Ask, and wait."""
        return self.runnable.invoke(query, self.config, **self.keywords)

    async def acall(self, query: str) -> Any:
        """Ask on the event loop; what would block it is asked in a thread."""
        runnable = self.runnable
        if _blocks(runnable):
            runnable = _standing_in(_InThread, cast("BaseRetriever", runnable))
        return await runnable.ainvoke(query, self.config, **self.keywords)

    def read(self, value: Any, arm: str) -> Brought:
        """What came back, as documents with scores where there are any, after the filter."""
        documents = documents_of(value, arm)
        scores = value.scores if isinstance(value, ScoredList) else None
        if scores is None and self.keywords.get("with_scores"):
            found = [document.metadata.get("score") for document in documents]
            scores = None if None in found else cast("list[float]", found)
        marked = scores is not None and not isinstance(value, ScoredList)
        given = len(documents)
        if self.check is not None:
            keep = list(map(self.check, documents))
            documents = [document for document, kept in zip(documents, keep, strict=True) if kept]
            scores = None if scores is None else [s for s, kept in zip(scores, keep, strict=True) if kept]
        return Brought(documents, scores, given, self.check is not None, marked)


def are_documents(value: Any, /) -> bool:
    """Whether an answer is what it should be, so that nothing need be done."""
    return type(value) is list and _DOCUMENTS.issuperset(map(type, value))


def documents_of(value: Any, arm: str, /) -> list[Document]:
    """An arm's answer as a list of documents: bare strings become documents, anything else is an error that says so."""
    if are_documents(value):
        return value  # type: ignore[no-any-return]
    if value is None or isinstance(value, str | Mapping | Document) or not isinstance(value, Iterable):
        kind = "None" if value is None else f"a {type(value).__name__}"
        raise ArmError(f"arm {arm!r} returned {kind}: a retriever returns a list of Documents", arm=arm)
    return [_document(item, arm) for item in value]


def _document(item: Any, arm: str) -> Document:
    if isinstance(item, Document):
        return item
    if isinstance(item, str):
        return Document(page_content=item)
    kind = type(item).__name__
    raise ArmError(f"arm {arm!r} returned a list with a {kind}: a retriever returns Documents or texts", arm=arm)


def arms_of(retrievers: Sequence[Any] | Mapping[str, Any], /) -> tuple[Arm, ...]:
    """The arms under their names: a mapping's keys, or what kind of retriever each is ("bm25", "vector", …)."""
    if isinstance(retrievers, Mapping):
        named = list(retrievers.items())
    elif isinstance(retrievers, Sequence) and not isinstance(retrievers, str):
        named = list(zip(_names(retrievers), retrievers, strict=True))
    else:
        raise ConfigError(f"retrievers = {retrievers!r} is not allowed: a list of retrievers, or a dict of named ones")
    for name, retriever in named:
        if not isinstance(retriever, Runnable):
            kind = type(retriever).__name__
            raise ConfigError(f"retriever {name!r} is a {kind}: a Runnable from str to list[Document] is needed")
    return tuple(Arm(str(n), i, r, _takes(r), _is_ours(r)) for i, (n, r) in enumerate(named, start=1))


def _names(retrievers: Sequence[Any]) -> list[str]:
    names: list[str] = []
    for place, retriever in enumerate(retrievers, start=1):
        kinds = [_NAMES[cls.__name__] for cls in type(retriever).__mro__ if cls.__name__ in _NAMES]
        name = kinds[0] if kinds else f"retriever_{place}"
        names.append(name if name not in names else f"{name}_{place}")
    return names


def _is_ours(runnable: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == _OURS for cls in type(runnable).__mro__)


def _takes(runnable: Any) -> frozenset[str]:
    """The keywords of a retriever's search that we know how to use."""
    if isinstance(runnable, VectorStoreRetriever):
        return frozenset({"k", "filter"})
    if isinstance(runnable, BaseRetriever):
        return _ASKABLE & inspect.signature(runnable._get_relevant_documents).parameters.keys()  # noqa: SLF001
    return frozenset()


def _is_store(runnable: Any) -> bool:
    """A vector store's own retriever, not a subclass with a search of its own."""
    return (
        isinstance(runnable, VectorStoreRetriever)
        and type(runnable)._get_relevant_documents is VectorStoreRetriever._get_relevant_documents  # noqa: SLF001
    )


def _store_request(retriever: Any, wish: Wish, config: RunnableConfig) -> Request:
    """Ask a vector store: by similarity with scores; by its threshold or MMR as it was set up."""
    for name in wish.more:
        raise ConfigError(f"{name} = {wish.more[name]!r}: a plain vector store does not understand {name!r}")
    asked: dict[str, Any] = {}
    check = None
    if wish.k is not None and retriever.search_type != "mmr":
        asked["k"] = max(wish.k, retriever.search_kwargs.get("k") or 0)
    if wish.filter is not None and "filter" in retriever.search_kwargs:
        check = check_of(wish.filter)  # the retriever's own filter stays in force: both must hold
    elif wish.filter is not None:
        given, check = store_filter(retriever.vectorstore, wish.filter)
        if given is not None:
            asked["filter"] = given
    asked.update(wish.own)
    if retriever.search_type != "similarity" or not wish.scores:
        return Request(retriever, config, asked, check)
    return Request(_standing_in(_AskedWithScores, retriever), config, asked, check)
