"""LangChain runnables as arms of a fusion: the parameters that each takes, and calls that return scores."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
from langchain_core.runnables import RunnableConfig, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import merge_configs
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.vectorstores import VectorStoreRetriever

from hybridmem.core.fanout import Latency, in_thread
from hybridmem.errors import ArmError, ConfigError
from hybridmem.retrievers.arms import ARM_NAMES, ArmHits, ArmRequest, check_options, named_arms
from hybridmem.retrievers.options import hint_of
from langchain_hybridmem._conversion import ScoredDocuments, with_metadata
from langchain_hybridmem._vectorstores import asimilarities, check_of, joined, similarities, store_filter

__all__ = ["Arm", "ArmOptions", "RunnableCall", "arms_of", "documents_of"]

_KEYWORDS = frozenset({"k", "filter", "with_scores", "as_of", "namespace", "min_confidence"})
_OURS = "langchain_hybridmem"
_DOCUMENTS = frozenset({Document})


class ArmOptions(NamedTuple):
    """What one query to an arm has beside its text."""

    k: int | None = None
    filter: Any = None
    scores: bool = True
    options: Mapping[str, Any] = {}
    """`as_of`, `namespace`, `min_confidence`: every arm must understand them."""
    search_kwargs: Mapping[str, Any] = {}
    """This arm's own keywords, passed on as they are."""


# --- retrievers that stand in for others


class _StandIn(BaseRetriever):
    """Calls another retriever in a different way; in traces its run looks like a run of the other."""

    inner: Any

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        return str(self.inner.get_name(suffix, name=name))

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        return cast("LangSmithRetrieverParams", self.inner._get_ls_params(**kwargs))  # noqa: SLF001

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        inner = self.inner
        manager = {"run_manager": run_manager} if inner._new_arg_supported else {}  # noqa: SLF001
        return cast("list[Document]", inner._get_relevant_documents(query, **manager, **kwargs))  # noqa: SLF001


class _InThread(_StandIn):
    """A retriever without async code of its own: called in a thread, with keywords that LangChain would refuse."""

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        manager = run_manager.get_sync()
        return await in_thread(lambda: self._get_relevant_documents(query, run_manager=manager, **kwargs))


class _WithSimilarities(_StandIn):
    """A plain `vectorstore.as_retriever()`, asked for similarities too."""

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002
        **kwargs: Any,
    ) -> list[Document]:
        return ScoredDocuments.of(similarities(self.inner.vectorstore, query, **{**self.inner.search_kwargs, **kwargs}))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,  # noqa: ARG002
        **kwargs: Any,
    ) -> list[Document]:
        keywords = {**self.inner.search_kwargs, **kwargs}
        return ScoredDocuments.of(await asimilarities(self.inner.vectorstore, query, **keywords))


def _stand_in(kind: type[_StandIn], retriever: BaseRetriever) -> _StandIn:
    return kind(inner=retriever, tags=retriever.tags, metadata=retriever.metadata, name=retriever.name)


# --- what a runnable is


def _is(runnable: Any, kind: type) -> bool:
    """Whether a runnable really is of this class; a mock only claims to be."""
    return issubclass(type(runnable), kind)


def _inner(runnable: Any) -> Any:
    """The retriever inside `with_config`, `with_retry`, `bind` and `with_fallbacks`."""
    while True:
        if _is(runnable, RunnableBindingBase):
            runnable = runnable.bound
        elif _is(runnable, RunnableWithFallbacks):
            runnable = runnable.runnable
        else:
            return runnable


def _with_inner(runnable: Any, inner: Any) -> Any:
    """The same wrappers around another retriever."""
    if _is(runnable, RunnableBindingBase):
        return runnable.model_copy(update={"bound": _with_inner(runnable.bound, inner)})
    if _is(runnable, RunnableWithFallbacks):
        return runnable.model_copy(update={"runnable": _with_inner(runnable.runnable, inner)})
    return inner


def _prepared(runnable: Any, config: RunnableConfig) -> tuple[Any, RunnableConfig]:
    """The runnable that a configurable one stands for under this config."""
    if _is(runnable, DynamicRunnable):
        return cast("tuple[Any, RunnableConfig]", runnable.prepare(config))
    inner = _inner(runnable)
    if _is(inner, DynamicRunnable):
        own = runnable.config if _is(runnable, RunnableBindingBase) else None
        return _with_inner(runnable, inner.prepare(merge_configs(own, config))[0]), config
    return runnable, config


def _keywords_of(runnable: Any) -> frozenset[str]:
    """The keywords of a retriever's search that we know how to use; of a fallback, those that all of them take."""
    if _is(runnable, RunnableBindingBase):
        return _keywords_of(runnable.bound)
    if _is(runnable, RunnableWithFallbacks):
        return frozenset.intersection(*map(_keywords_of, (runnable.runnable, *runnable.fallbacks)))
    if _is(runnable, DynamicRunnable):
        return _keywords_of(runnable.default)
    if _is(runnable, VectorStoreRetriever):
        return frozenset({"k", "filter"})
    if _is(runnable, BaseRetriever):
        return frozenset(_KEYWORDS & _parameters(type(runnable)) & _async_parameters(type(runnable)))
    return frozenset()


def _parameters(cls: type) -> set[str]:
    """The parameters of a retriever's search; where it passes on `**kwargs` to one of ours, also those of ours."""
    parameters = inspect.signature(cls._get_relevant_documents).parameters  # type: ignore[attr-defined]
    names = set(parameters)
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        ours = next((base for base in cls.__mro__ if base.__module__.partition(".")[0] == _OURS), None)
        names |= _parameters(ours) if ours not in (None, cls) else set()
    return names


def _async_parameters(cls: type) -> set[str] | frozenset[str]:
    """The parameters of an async search of the class's own; all where it has none, or passes on `**kwargs`."""
    search = cls._aget_relevant_documents  # type: ignore[attr-defined]
    parameters = inspect.signature(search).parameters
    passed_on = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    if search is BaseRetriever._aget_relevant_documents or passed_on:  # noqa: SLF001
        return _KEYWORDS
    return set(parameters)


def _blocks(runnable: Any) -> bool:
    """A retriever that has no async search of its own, only LangChain's default."""
    return (
        _is(runnable, BaseRetriever)
        and type(runnable).ainvoke is BaseRetriever.ainvoke
        and type(runnable)._aget_relevant_documents is BaseRetriever._aget_relevant_documents  # noqa: SLF001
    )


def _is_ours(runnable: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == _OURS for cls in type(runnable).__mro__)


def _is_overridden(runnable: Any) -> bool:
    """A subclass of ours with a search of its own, which may return a plain list."""
    return not type(runnable)._get_relevant_documents.__module__.startswith(_OURS)  # noqa: SLF001


def _is_plain_store(runnable: Any) -> bool:
    """A vector store's own retriever, not a subclass with a search of its own."""
    return (
        _is(runnable, VectorStoreRetriever)
        and type(runnable)._get_relevant_documents is VectorStoreRetriever._get_relevant_documents  # noqa: SLF001
    )


# --- arms


@dataclass(frozen=True, slots=True)
class Arm:
    """One retriever of a fusion under its name."""

    name: str
    place: int
    runnable: Any
    keywords: frozenset[str]
    latency: Latency = field(default_factory=Latency, compare=False)

    def request(self, text: str, query: ArmOptions, config: RunnableConfig) -> ArmRequest:
        """How to ask this arm, and how to read its answer."""
        runnable, config = _prepared(self.runnable, config)
        inner = _inner(runnable)
        check, marked = None, False
        if _is_plain_store(inner):
            stand_in, keywords, check = self._ask_store(inner, query)
            runnable = _with_inner(runnable, stand_in)
        else:
            known = self.keywords if runnable is self.runnable else _keywords_of(runnable)
            keywords, check = self._ask_retriever(inner, query, known)
            if _is_ours(inner) and "with_scores" in known:
                marked = query.scores and _is_overridden(inner)
                keywords["with_scores"] = marked
        keywords.update(query.search_kwargs)
        call = RunnableCall(runnable, config, keywords)
        can_deepen = "k" in self.keywords and "k" not in query.search_kwargs
        read = partial(_hits, arm=self.name, check=check, marked=marked)
        return ArmRequest(partial(call.now, text), partial(call.later, text), read, can_deepen, self.latency)

    def _ask_retriever(
        self, inner: Any, query: ArmOptions, known: frozenset[str]
    ) -> tuple[dict[str, Any], Callable[[Document], bool] | None]:
        check_options(self.name, query.options, known)
        keywords: dict[str, Any] = dict(query.options)
        if query.k is not None and "k" in known:
            own = getattr(inner, "k", None)
            keywords["k"] = max(query.k, own) if isinstance(own, int) else query.k
        if query.filter is None:
            return keywords, None
        both = joined(getattr(inner, "filter", None), query.filter) if "filter" in known else None
        if both is None:
            return keywords, check_of(query.filter)
        return {**keywords, "filter": both}, None

    def _ask_store(
        self, retriever: Any, query: ArmOptions
    ) -> tuple[Any, dict[str, Any], Callable[[Document], bool] | None]:
        """Ask a vector store: by similarity with scores; by its threshold or MMR as it was set up."""
        check_options(self.name, query.options, ())
        keywords: dict[str, Any] = {}
        check = None
        if query.k is not None and retriever.search_type != "mmr":
            keywords["k"] = max(query.k, retriever.search_kwargs.get("k") or 0)
        if query.filter is not None and "filter" in retriever.search_kwargs:
            check = check_of(query.filter)  # the retriever's own filter stays in force: both must hold
        elif query.filter is not None:
            given, check = store_filter(retriever.vectorstore, query.filter)
            if given is not None:
                keywords["filter"] = given
        if retriever.search_type != "similarity" or not query.scores:
            return retriever, keywords, check
        return _stand_in(_WithSimilarities, retriever), keywords, check


class RunnableCall(NamedTuple):
    """A call of a runnable, in sync and async code."""

    runnable: Any
    config: RunnableConfig
    keywords: dict[str, Any]

    def now(self, query: str) -> Any:
        """Call it and wait; an object that has only an async side runs on a loop of its own."""
        if not hasattr(self.runnable, "invoke"):
            return asyncio.run(self.runnable.ainvoke(query, self.config, **self.keywords))
        return self.runnable.invoke(query, self.config, **self.keywords)

    async def later(self, query: str) -> Any:
        """Call it on the event loop; what would block the loop is called in a thread."""
        runnable = self.runnable
        inner = _inner(runnable)
        if _blocks(inner):
            runnable = _with_inner(runnable, _stand_in(_InThread, inner))
        if not hasattr(runnable, "ainvoke"):
            return await in_thread(partial(self.now, query))
        return await runnable.ainvoke(query, self.config, **self.keywords)


def _hits(value: Any, /, *, arm: str, check: Callable[[Document], bool] | None, marked: bool) -> ArmHits:
    """An answer as documents with scores where there are any, after the filter.

    marked: the arm wrote its scores into the metadata because we asked for them; they are taken out again.
    """
    documents = documents_of(value, arm)
    scores = value.scores if isinstance(value, ScoredDocuments) else None
    notes = value.notes if isinstance(value, ScoredDocuments) else None
    if scores is None and marked:
        read = [document.metadata.get("score") for document in documents]
        scores = None if None in read else cast("list[float]", read)
        documents = [
            with_metadata(document, {name: v for name, v in document.metadata.items() if name != "score"})
            for document in documents
        ]
    returned = len(documents)
    if check is None:
        return ArmHits(documents, scores, returned, notes=notes)
    keep = [place for place, document in enumerate(documents) if check(document)]
    lines = None if notes is None else partial(_chosen, notes, keep)
    return ArmHits(
        [documents[place] for place in keep],
        None if scores is None else [scores[place] for place in keep],
        returned,
        filtered=True,
        notes=lines,
    )


def _chosen(notes: Callable[[], Sequence[str]], places: Sequence[int]) -> list[str]:
    lines = notes()
    return [lines[place] for place in places]


def documents_of(value: Any, arm: str, /) -> list[Document]:
    """An arm's answer as a list of documents: bare strings become documents, anything else is an error."""
    if isinstance(value, list) and _DOCUMENTS.issuperset(map(type, value)):
        return value
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


def arms_of(retrievers: Sequence[Any] | Mapping[str, Any], /) -> dict[str, Arm]:
    """The arms by name: a mapping's keys, or the kind of each retriever."""
    arms = {}
    for place, (name, retriever) in enumerate(named_arms(retrievers, _name_of), start=1):
        if not (callable(getattr(retriever, "invoke", None)) or callable(getattr(retriever, "ainvoke", None))):
            kind = type(retriever).__name__
            raise ConfigError(
                f"retriever {name!r} is a {kind}: a Runnable from str to list[Document] is needed{hint_of(retriever)}"
            )
        arms[name] = Arm(name, place, retriever, _keywords_of(retriever))
    return arms


def _name_of(runnable: Any) -> str | None:
    inner = _inner(runnable)
    if _is(inner, DynamicRunnable):
        inner = _inner(inner.default)
    return next((ARM_NAMES[cls.__name__] for cls in type(inner).__mro__ if cls.__name__ in ARM_NAMES), None)
