"""LlamaIndex retrievers as arms of a fusion: the parameters that each takes, how it is called, and native async."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters, VectorStoreQueryMode

from hybridmem.core.fanout import Job, Latency
from hybridmem.core.types import ArmList
from hybridmem.errors import ArmError, ConfigError
from hybridmem.filters.predicate import compile_predicate
from hybridmem.retrievers.arms import ARM_NAMES, ArmHits, ArmRequest, check_options, named_arms
from hybridmem.retrievers.options import hint_of
from llamaindex_hybridmem._conversion import FusedNode, node_source, node_text, notes_of
from llamaindex_hybridmem._vectorstores import both, store_filters, to_cosine

__all__ = ["Arm", "ArmOptions", "arm_list", "arms_of", "copied", "is_natively_async", "nodes_of", "run_coroutine"]

T = TypeVar("T")
Check = Callable[[BaseNode], bool]
_DEPTHS = ("similarity_top_k", "k")
_FILTERS = ("filters", "filter")
_OPTIONS = ("as_of", "namespace", "min_confidence")
_RESULTS = frozenset({NodeWithScore, FusedNode})
"""The usual classes of results, recognised by their type alone."""


class ArmOptions(NamedTuple):
    """What one query to an arm has beside its text."""

    k: int | None = None
    filter: Mapping[str, Any] | None = None
    filters: MetadataFilters | None = None
    """The filter as it was given, when it was given in LlamaIndex's own classes."""
    options: Mapping[str, Any] = {}
    """`as_of`, `namespace`, `min_confidence`: every arm must understand them."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One retriever of a fusion under its name."""

    name: str
    retriever: Any
    keywords: frozenset[str]
    natively_async: bool
    latency: Latency = field(default_factory=Latency, compare=False)

    def request(self, bundle: QueryBundle, query: ArmOptions) -> ArmRequest:
        """How to ask this arm, and how to read its answer."""
        if _is_store_retriever(self.retriever):
            check_options(self.name, query.options, ())
            retriever, check, convert = _store_request(self.retriever, query)
            keywords: dict[str, Any] = {}
            can_deepen = True
        else:
            retriever, convert = self.retriever, None
            keywords, check = self._keywords_for(query)
            can_deepen = any(name in self.keywords for name in _DEPTHS)
        call = partial(retrieve, retriever, copied(bundle), **keywords)
        acall = partial(retriever.aretrieve, copied(bundle), **keywords) if self.natively_async else None
        read = partial(_hits, arm=self.name, check=check, convert=convert)
        return ArmRequest(call, acall, read, can_deepen, self.latency)

    def _keywords_for(self, query: ArmOptions) -> tuple[dict[str, Any], Check | None]:
        check_options(self.name, query.options, self.keywords)
        keywords: dict[str, Any] = dict(query.options)
        depth = next((name for name in _DEPTHS if name in self.keywords), None)
        if query.k is not None and depth is not None:
            keywords[depth] = max(query.k, getattr(self.retriever, "similarity_top_k", None) or 0)
        if query.filter is None:
            return keywords, None
        name = next((name for name in _FILTERS if name in self.keywords), None)
        if name is None:
            return keywords, check_of(query.filter)
        own = getattr(self.retriever, "default_filter", None)  # our retrievers' own filter stays in force
        keywords[name] = query.filter if own is None else {"$and": [own, query.filter]}
        return keywords, None

    def job(self, bundle: QueryBundle, /, *, name: str) -> Job:
        """A plain call with this query alone, as a drop-in makes it."""
        acall = partial(self.retriever.aretrieve, copied(bundle)) if self.natively_async else None
        return Job(name, partial(retrieve, self.retriever, copied(bundle)), acall, latency=self.latency)


def _hits(value: Any, /, *, arm: str, check: Check | None, convert: Callable[[float], float] | None) -> ArmHits:
    """An answer as nodes and scores, after the filter; a list in which a score is missing counts as unscored."""
    results = nodes_of(value, arm)
    returned = len(results)
    if check is not None:
        results = [one for one in results if check(one.node)]
    scores = [one.score for one in results]
    known = None if None in scores else [float(score) for score in scores if score is not None]
    if known is not None and convert is not None:
        known = [convert(score) for score in known]
    return ArmHits([one.node for one in results], known, returned, check is not None, notes_of(results))


def arm_list(name: str, results: Sequence[NodeWithScore], /) -> ArmList:
    """Results of a retriever as a list for a fusion."""
    hits = _hits(results, arm=name, check=None, convert=None)
    return ArmList(name, hits.items, hits.scores)


def nodes_of(value: Any, arm: str, /) -> list[NodeWithScore]:
    """An arm's answer as a list of results; anything else is an error."""
    if type(value) is list and _RESULTS.issuperset(map(type, value)):
        return value
    if not isinstance(value, list | tuple):
        kind = "None" if value is None else f"a {type(value).__name__}"
        raise ArmError(f"arm {arm!r} returned {kind}: a retriever returns a list of NodeWithScore", arm=arm)
    for item in value:
        if not isinstance(item, NodeWithScore):
            kind = f"a list with a {type(item).__name__}"
            raise ArmError(f"arm {arm!r} returned {kind}: a retriever returns a list of NodeWithScore", arm=arm)
    return list(value)


def copied(bundle: QueryBundle, /) -> QueryBundle:
    """A bundle of its own for each arm: some arms write their embedding into it."""
    if type(bundle) is QueryBundle and bundle.custom_embedding_strs is None:  # the usual case, faster than `copy`
        return QueryBundle(bundle.query_str, bundle.image_path, None, bundle.embedding)
    own = copy.copy(bundle)
    if own.custom_embedding_strs is not None:
        own.custom_embedding_strs = list(own.custom_embedding_strs)
    return own


def retrieve(retriever: Any, bundle: QueryBundle, /, **keywords: Any) -> Any:
    """Call a retriever in sync code; one that has only an async side runs on a loop of its own."""
    if not hasattr(retriever, "retrieve"):
        return run_coroutine(lambda: retriever.aretrieve(bundle, **keywords))
    try:
        return retriever.retrieve(bundle, **keywords)
    except NotImplementedError:
        if not overrides(retriever, BaseRetriever, "_aretrieve"):
            raise
    return run_coroutine(lambda: retriever.aretrieve(bundle, **keywords))


def run_coroutine(make: Callable[[], Coroutine[Any, Any, T]], /) -> T:
    """Run a coroutine to its end in sync code, in a thread where this one has a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(context.run, lambda: asyncio.run(make())).result()


def overrides(thing: Any, base: type, method: str) -> bool:
    """Whether an object's class defines a method itself, instead of inheriting it from its base."""
    return getattr(type(thing), method, None) is not getattr(base, method)


def is_natively_async(retriever: Any, /) -> bool:
    """Whether awaiting a retriever leaves the event loop free.

    By default LlamaIndex's `_aretrieve` calls `_retrieve`, and a vector store's `aquery` calls `query`: both block.
    A retriever over others is as async as they are.
    """
    if not issubclass(type(retriever), BaseRetriever):  # a mock only claims to be one
        return inspect.iscoroutinefunction(getattr(retriever, "aretrieve", None))
    if not overrides(retriever, BaseRetriever, "_aretrieve"):
        return False
    for value in vars(retriever).values():
        if isinstance(value, BasePydanticVectorStore) and not overrides(value, BasePydanticVectorStore, "aquery"):
            return False
        if type(retriever).__module__.startswith("llama_index.") and not all(map(is_natively_async, _inner(value))):
            return False
    return True


def _inner(value: Any) -> Iterable[BaseRetriever]:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    return [part for part in parts if isinstance(part, BaseRetriever)]


def arms_of(retrievers: Sequence[Any] | Mapping[str, Any], /) -> dict[str, Arm]:
    """The arms by name: a mapping's keys, or the kind of each retriever."""
    arms = {}
    for name, retriever in named_arms(retrievers, _name_of):
        sides = (getattr(retriever, side, None) for side in ("retrieve", "aretrieve"))
        if not any(map(callable, sides)):
            kind = type(retriever).__name__
            raise ConfigError(
                f"retriever {name!r} is a {kind}: a LlamaIndex BaseRetriever is needed{hint_of(retriever)}"
            )
        arms[name] = Arm(name, retriever, _keywords_of(retriever), is_natively_async(retriever))
    return arms


def _name_of(retriever: Any) -> str | None:
    return next((ARM_NAMES[cls.__name__] for cls in type(retriever).__mro__ if cls.__name__ in ARM_NAMES), None)


def _keywords_of(retriever: Any) -> frozenset[str]:
    """The keywords of a retriever's `retrieve` that we know how to use."""
    known = {*_DEPTHS, *_FILTERS, *_OPTIONS}
    method = retriever.retrieve if hasattr(retriever, "retrieve") else retriever.aretrieve
    return frozenset(known & inspect.signature(method).parameters.keys())


def _is_store_retriever(retriever: Any) -> bool:
    """LlamaIndex's own retriever over a vector store, which keeps its depth and filters in attributes."""
    names = {cls.__name__ for cls in type(retriever).__mro__}
    return (
        "VectorIndexRetriever" in names and hasattr(retriever, "_similarity_top_k") and hasattr(retriever, "_filters")
    )


def _store_request(retriever: Any, query: ArmOptions) -> tuple[Any, Check | None, Callable[[float], float] | None]:
    """A copy of a store's retriever with the wanted depth and filters, the check of its results, and of its scores."""
    own = copy.copy(retriever)
    store = own._vector_store  # noqa: SLF001
    plain = getattr(own, "_vector_store_query_mode", None) == VectorStoreQueryMode.DEFAULT
    convert = to_cosine(store) if plain else None
    if query.k is not None:
        own._similarity_top_k = max(query.k, own._similarity_top_k)  # noqa: SLF001
    if query.filter is None:
        return own, None, convert
    handed = store_filters(store, query.filter, query.filters)
    joined = None if handed is None else both(own._filters, handed)  # noqa: SLF001
    if joined is not None:
        own._filters = joined  # noqa: SLF001
    return own, check_of(query.filter), convert


def check_of(filter: Mapping[str, Any], /) -> Check:
    """A filter as a predicate of nodes."""
    matches = compile_predicate(filter)
    return lambda node: matches(
        {"id": node.id_, "text": node_text(node), "source_id": node_source(node), **node.metadata}
    )
