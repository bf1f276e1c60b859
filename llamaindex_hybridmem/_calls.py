"""Base of our retrievers: settings that can be given to each call, a memory to search, a tool for agents."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType

from hybridmem.core import validation
from hybridmem.core.fanout import Steps, adrive, drive, in_thread
from hybridmem.errors import ConfigError
from hybridmem.retrievers.arms import TimeOption, memory_hits
from hybridmem.retrievers.options import overrides, refuse_keywords
from llamaindex_hybridmem._conversion import scored_nodes, to_node
from llamaindex_hybridmem._settings import Filters, Settings
from llamaindex_hybridmem.tools import CleanRetrieverTool, retriever_tool

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["SearchRetriever", "checked_query", "exactly_one", "is_overridden", "memory_nodes"]

dispatcher = get_dispatcher(__name__)
_CALL: ContextVar[tuple[Any, Settings]] = ContextVar("hybridmem_call")
"""The retriever that was called, and the settings of the call: LlamaIndex passes only the query to `_retrieve`."""


class SearchRetriever(BaseRetriever):
    """A retriever whose `retrieve` and `aretrieve` take settings for this call beside the query."""

    _settings: Settings
    _memory: HybridMemory | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to change a setting of the constructor that is read only there: it would have no effect."""
        if "object_map" in vars(self) and name in _fixed(type(self)):
            raise ConfigError(
                f"{name} cannot be changed afterwards: make a new {type(self).__name__}, or give filters and the "
                "number of results to retrieve()"
            )
        super().__setattr__(name, value)

    @property
    def default_filter(self) -> Mapping[str, Any] | None:
        """The filter of the constructor, in hybridmem's language."""
        return self._settings.filter

    def as_tool(self, *, name: str | None = None, description: str | None = None) -> CleanRetrieverTool:
        """A tool for an agent, which passes the agent's question on as it is."""
        return retriever_tool(self, name=name, description=description)

    def retrieve(
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        **unknown: NoReturn,
    ) -> list[NodeWithScore]:
        """The results for a query, best first; what is given here has priority over the constructor's.

        `as_of` and `namespace` are for a memory.
        """
        return self._answer(
            str_or_query_bundle,
            unknown,
            similarity_top_k=similarity_top_k,
            filters=filters,
            as_of=as_of,
            namespace=namespace,
        )

    async def aretrieve(
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        **unknown: NoReturn,
    ) -> list[NodeWithScore]:
        """The same, without blocking the event loop."""
        return await self._aanswer(
            str_or_query_bundle,
            unknown,
            similarity_top_k=similarity_top_k,
            filters=filters,
            as_of=as_of,
            namespace=namespace,
        )

    def _answer(self, query: QueryType, unknown: Iterable[str], /, **given: Any) -> list[Any]:
        """The results for a query, with these settings for this call."""
        with self._calling(unknown, given):
            return super().retrieve(checked_query(query))

    async def _aanswer(self, query: QueryType, unknown: Iterable[str], /, **given: Any) -> list[Any]:
        with self._calling(unknown, given):
            return await super().aretrieve(checked_query(query))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return drive(self._found(query_bundle, self._call()))

    @dispatcher.span
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Search on the event loop; a subclass that overrides only `_retrieve` gets that, in a thread."""
        if is_overridden(self, "_retrieve"):
            return await in_thread(lambda: self._retrieve(query_bundle))
        return await self._asearch(query_bundle)

    async def _asearch(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await adrive(self._found(query_bundle, self._call()))

    def _found(self, bundle: QueryBundle, call: Settings) -> Steps[list[NodeWithScore]]:
        """The results for a query, in steps that sync and async code share."""
        raise NotImplementedError

    @contextmanager
    def _calling(self, unknown: Iterable[str], given: Mapping[str, Any]) -> Iterator[None]:
        """Make these the settings of the call that follows."""
        refuse_keywords("retrieve", unknown, given)
        token = _CALL.set((self, self._checked(self._call().changed(**given))))
        try:
            yield
        finally:
            _CALL.reset(token)

    def _call(self) -> Settings:
        """The settings of the current call; a retriever inside ours has its own."""
        owner, settings = _CALL.get((self, self._settings))
        return settings if owner is self else self._settings

    def _checked(self, settings: Settings) -> Settings:
        """Refuse settings that only a memory understands, where there is none."""
        for name in ("as_of", "namespace"):
            if name in settings.more and self._memory is None:
                raise ConfigError(f"{name} = {settings.more[name]!r}: only a memory understands {name!r}")
        return settings


def checked_query(query: QueryType) -> QueryType:
    """Validate a query."""
    if not isinstance(query.query_str if isinstance(query, QueryBundle) else query, str):
        shown = validation.display(query)
        raise ConfigError(f"query = {shown} is not allowed: retrieve takes a str or a QueryBundle")
    return query


_READ_LATER = frozenset({"callback_manager", "object_map", "corpus_weight_mask"})
"""Settings of a constructor that a retriever reads at each call."""


@cache
def _fixed(cls: type) -> frozenset[str]:
    """The settings that only the constructor reads; none for a user's subclass, which may use these names itself."""
    if cls.__module__.partition(".")[0] != __package__:
        return frozenset()
    names = inspect.signature(cls).parameters.keys() - _READ_LATER
    return frozenset(name for name in names if not hasattr(cls, name))


def is_overridden(retriever: BaseRetriever, method: str, /) -> bool:
    """Whether a user's subclass of one of our retrievers overrides a method."""
    return overrides(type(retriever), method, "llamaindex_hybridmem")


def memory_nodes(memory: HybridMemory, arm: str, bundle: QueryBundle, call: Settings, /) -> Steps[list[NodeWithScore]]:
    """The results of an arm of a memory as nodes with raw scores."""
    given = {name: value for name, value in call.more.items() if name != "score_threshold"}
    results = yield from memory_hits(memory, arm, bundle.query_str, {"k": call.k, "filter": call.filter, **given})
    return scored_nodes((to_node(result.memory), result.score) for result in results)


def exactly_one(given: Mapping[str, Any], /, *, none: str = "none") -> None:
    """Check that exactly one of several arguments is given."""
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise ConfigError(f"got {' and '.join(named) or none}: give exactly one of {', '.join(given)}")
