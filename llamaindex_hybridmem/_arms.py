"""The arms of a fusion: what each retriever understands, how it is asked, and whether its async is real."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters, VectorStoreQueryMode

from hybridmem.core.fanout import INLINE_BELOW, Job, Latency
from hybridmem.errors import ConfigError
from hybridmem.filters.predicate import compile_predicate
from llamaindex_hybridmem._conversion import node_source, node_text
from llamaindex_hybridmem._filters import both, to_metadata_filters
from llamaindex_hybridmem._scores import to_cosine

__all__ = ["Arm", "Wish", "arms_of", "copied", "is_natively_async"]

Check = Callable[[BaseNode], bool]
_NAMES = {
    "BM25Retriever": "bm25",
    "VectorRetriever": "vector",
    "VectorIndexRetriever": "vector",
    "GraphRetriever": "graph",
}
_DEPTHS = ("similarity_top_k", "k")
_FILTERS = ("filters", "filter")
_WAITS = 0.002
"""An arm that takes longer than this is slow, whatever it does meanwhile."""
_INLINE = INLINE_BELOW / 0.001
"""Scales our millisecond to the fan-out's bound."""


class ArmPace(Latency):
    """How long an arm keeps the processor, unless it plainly waits: that decides whether it gets a thread.

    Under Python's lock a thread brings nothing to an arm that computes for less than a millisecond, and LlamaIndex's
    own events and spans take a good part of that. Wall time alone would mistake a busy machine for a slow arm.
    """

    __slots__ = ()

    def took(self, seconds: float) -> None:
        """What the fan-out measures is wall time; `timed` knows better."""

    def timed(self, call: Callable[[], Any], /) -> Any:
        """Call, and remember; an arm known to be quick is watched by the wall alone, which costs next to nothing."""
        if self.seconds < INLINE_BELOW:
            start = time.perf_counter()
            value = call()
            if (wall := time.perf_counter() - start) > _WAITS:
                super().took(wall * _INLINE)
            return value
        wall, busy = time.perf_counter(), time.thread_time()
        value = call()
        wall, busy = time.perf_counter() - wall, time.thread_time() - busy
        super().took((wall if wall > _WAITS else busy) * _INLINE)
        return value


class Wish(NamedTuple):
    """What a question wants of an arm, beside the query."""

    k: int | None = None
    filter: Mapping[str, Any] | None = None
    filters: MetadataFilters | None = None
    """The same filter as LlamaIndex's vector stores read it, where it can be written that way."""
    more: Mapping[str, Any] = {}
    """`as_of`, `namespace`: every arm must understand them."""


class Request(NamedTuple):
    """One call of an arm, ready to be made: whom to ask, with which keywords, and what to check afterwards."""

    retriever: Any
    keywords: Mapping[str, Any]
    check: Check | None = None
    convert: Callable[[float], float] | None = None
    """What turns the store's scores into cosines, where they are something else."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One retriever of a fusion under its name, with what it understands."""

    name: str
    retriever: Any
    takes: frozenset[str]
    natively_async: bool
    pace: ArmPace = field(default_factory=ArmPace, compare=False)

    @property
    def deepens(self) -> bool:
        """Whether it can be asked for more."""
        return _is_store_retriever(self.retriever) or any(name in self.takes for name in _DEPTHS)

    def request(self, wish: Wish) -> Request:
        """How to ask this arm for this."""
        for name, value in wish.more.items():
            if name not in self.takes:
                raise ConfigError(f"{name} = {value!r}: arm {self.name!r} does not understand {name!r}")
        if _is_store_retriever(self.retriever):
            return _store_request(self.retriever, wish)
        asked: dict[str, Any] = dict(wish.more)
        depth = next((name for name in _DEPTHS if name in self.takes), None)
        if wish.k is not None and depth is not None:
            asked[depth] = max(wish.k, getattr(self.retriever, "similarity_top_k", None) or 0)
        check = None
        if wish.filter is not None:
            known = next((name for name in _FILTERS if name in self.takes), None)
            if known is None:
                check = check_of(wish.filter)
            else:
                own = getattr(getattr(self.retriever, "_settings", None), "filter", None)  # it stays in force
                asked[known] = wish.filter if own is None else {"$and": [own, wish.filter]}
        return Request(self.retriever, asked, check)

    def job(
        self,
        request: Request,
        bundle: QueryBundle,
        /,
        *,
        timeout: float | None = None,
        on_loop: bool,
        or_async: bool = True,
    ) -> Job:
        """The call as a job: awaited where its async is real, in a thread where it would block the loop.

        `or_async`: sync code may use the async side of a retriever that has no other.
        """
        own = copied(bundle)
        if on_loop and self.natively_async:
            call: Callable[[], Any] = partial(request.retriever.aretrieve, own, **request.keywords)
            return Job(self.name, call, timeout, self.pace, is_async=True)
        work = partial(ask if or_async else _retrieve, request.retriever, own, **request.keywords)
        return Job(self.name, partial(self.pace.timed, work), timeout, self.pace)


def copied(bundle: QueryBundle, /) -> QueryBundle:
    """A bundle of its own for each arm: some write their embedding into it."""
    if type(bundle) is QueryBundle and bundle.custom_embedding_strs is None:  # mostly, and much faster than `copy`
        return QueryBundle(bundle.query_str, bundle.image_path, None, bundle.embedding)
    own = copy.copy(bundle)
    if own.custom_embedding_strs is not None:
        own.custom_embedding_strs = list(own.custom_embedding_strs)
    return own


def _retrieve(retriever: Any, bundle: QueryBundle, /, **keywords: Any) -> Any:
    return retriever.retrieve(bundle, **keywords)


def ask(retriever: Any, bundle: QueryBundle, /, **keywords: Any) -> Any:
    """Ask a retriever in sync code; one that has only an async side runs on a loop of its own."""
    try:
        return retriever.retrieve(bundle, **keywords)
    except NotImplementedError:
        if not overrides(retriever, BaseRetriever, "_aretrieve"):
            raise
    work = partial(asyncio.run, retriever.aretrieve(bundle, **keywords))
    with ThreadPoolExecutor(1) as pool:  # this thread may have a running loop
        return pool.submit(contextvars.copy_context().run, work).result()


def overrides(thing: Any, base: type, method: str) -> bool:
    """Whether an object has a method of its own, rather than the one its base gives it."""
    return getattr(type(thing), method, None) is not getattr(base, method)


def is_natively_async(retriever: Any, /) -> bool:
    """Whether awaiting a retriever leaves the event loop free.

    By default LlamaIndex's `_aretrieve` calls `_retrieve`, and a vector store's `aquery` calls `query`: both block.
    A retriever over others is as async as they are.
    """
    if not isinstance(retriever, BaseRetriever):
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


def arms_of(retrievers: Sequence[Any] | Mapping[str, Any], /) -> tuple[Arm, ...]:
    """The arms under their names: a mapping's keys, or what kind of retriever each is ("bm25", "vector", …)."""
    if isinstance(retrievers, Mapping):
        named = [(str(name), retriever) for name, retriever in retrievers.items()]
    elif isinstance(retrievers, Sequence) and not isinstance(retrievers, str):
        named = list(zip(_names(retrievers), retrievers, strict=True))
    else:
        raise ConfigError(f"retrievers = {retrievers!r} is not allowed: a list of retrievers, or a dict of named ones")
    if not named:
        raise ConfigError(f"retrievers = {retrievers!r} is not allowed: at least one retriever is needed")
    for name, retriever in named:
        if not callable(getattr(retriever, "retrieve", None)):
            kind = type(retriever).__name__
            raise ConfigError(f"retriever {name!r} is a {kind}: a LlamaIndex BaseRetriever is needed")
    return tuple(Arm(name, r, _takes(r), is_natively_async(r)) for name, r in named)


def _names(retrievers: Sequence[Any]) -> list[str]:
    names: list[str] = []
    for place, retriever in enumerate(retrievers, start=1):
        kinds = [_NAMES[cls.__name__] for cls in type(retriever).__mro__ if cls.__name__ in _NAMES]
        name = kinds[0] if kinds else f"retriever_{place}"
        names.append(name if name not in names else f"{name}_{place}")
    return names


def _takes(retriever: Any) -> frozenset[str]:
    """The keywords of a retriever's `retrieve` that we know how to use."""
    known = {*_DEPTHS, *_FILTERS, "as_of", "namespace", "min_confidence"}
    return frozenset(known & inspect.signature(retriever.retrieve).parameters.keys())


def _is_store_retriever(retriever: Any) -> bool:
    """LlamaIndex's own retriever over a vector store, which keeps its depth and filters in attributes."""
    names = {cls.__name__ for cls in type(retriever).__mro__}
    return (
        "VectorIndexRetriever" in names and hasattr(retriever, "_similarity_top_k") and hasattr(retriever, "_filters")
    )


def _store_request(retriever: Any, wish: Wish) -> Request:
    """Ask a copy with the wanted depth and filters, so that the user's retriever stays as it is."""
    own = copy.copy(retriever)
    plain = getattr(own, "_vector_store_query_mode", None) == VectorStoreQueryMode.DEFAULT
    convert = to_cosine(own._vector_store) if plain else None  # noqa: SLF001
    if wish.k is not None:
        own._similarity_top_k = max(wish.k, own._similarity_top_k)  # noqa: SLF001
    if wish.filter is None:
        return Request(own, {}, None, convert)
    wanted = wish.filters if wish.filters is not None else to_metadata_filters(wish.filter)
    joined = None if wanted is None else both(own._filters, wanted)  # noqa: SLF001
    if joined is not None:
        own._filters = joined  # noqa: SLF001
    told = joined is not None and wish.filters is not None
    return Request(own, {}, None if told else check_of(wish.filter), convert)  # not every store counts as we do


def check_of(filter: Mapping[str, Any], /) -> Check:
    """A filter as a yes or no about a node, for retrievers that know no filters."""
    matches = compile_predicate(filter)
    return lambda node: matches(
        {"id": node.id_, "text": node_text(node), "source_id": node_source(node), **node.metadata}
    )
