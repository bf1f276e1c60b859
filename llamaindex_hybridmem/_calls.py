"""Base of our retrievers: settings that can be given to each call, a memory to search, a tool for agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType

from hybridmem.core import validation
from hybridmem.core.fanout import in_thread
from hybridmem.errors import ConfigError
from llamaindex_hybridmem._conversion import to_node
from llamaindex_hybridmem._results import scored_nodes
from llamaindex_hybridmem._settings import Settings
from llamaindex_hybridmem._tool import CleanRetrieverTool, retriever_tool

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["SearchRetriever", "exactly_one", "memory_nodes", "memory_settings"]

dispatcher = get_dispatcher(__name__)
_CALL: ContextVar[tuple[Any, Settings]] = ContextVar("hybridmem_call")
"""The retriever that was called, and the settings of the call: LlamaIndex passes only the query to `_retrieve`."""


class SearchRetriever(BaseRetriever):
    """A retriever whose `retrieve` and `aretrieve` take settings for this call beside the query."""

    _settings: Settings
    _memory: HybridMemory | None = None

    @property
    def default_filter(self) -> Mapping[str, Any] | None:
        """The filter of the constructor, in hybridmem's language."""
        return self._settings.filter

    def as_tool(self, *, name: str | None = None, description: str | None = None) -> CleanRetrieverTool:
        """A tool for an agent, which passes the agent's question on as it is."""
        return retriever_tool(self, name=name, description=description)

    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """The results for a query, best first."""
        return super().retrieve(_checked_query(str_or_query_bundle))

    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """The same, without blocking the event loop."""
        return await super().aretrieve(_checked_query(str_or_query_bundle))

    @dispatcher.span
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Search on the event loop; a subclass that overrides only `_retrieve` gets that, in a thread."""
        if _overrides_search(type(self)):
            return await in_thread(lambda: self._retrieve(query_bundle))
        return await self._asearch(query_bundle)

    async def _asearch(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        raise NotImplementedError

    @contextmanager
    def _calling(self, settings: Settings) -> Iterator[None]:
        """Make these the settings of the call that follows."""
        token = _CALL.set((self, self._checked(settings)))
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


def _checked_query(query: QueryType) -> QueryType:
    if not isinstance(query, str | QueryBundle):
        shown = validation.display(query)
        raise ConfigError(f"query = {shown} is not allowed: retrieve takes a str or a QueryBundle")
    return query


def _overrides_search(cls: type) -> bool:
    """Whether a user's subclass overrides `_retrieve`, which LlamaIndex's async default would call too."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == __package__:
            return False
        if "_retrieve" in vars(base):
            return True
    return False


def memory_settings(call: Settings, /) -> dict[str, Any]:
    """The settings of a call that a memory's arm takes."""
    given = {"k": call.k, "filter": call.filter, **call.more}
    return {name: value for name, value in given.items() if value is not None and name != "score_threshold"}


def memory_nodes(results: Sequence[Any], /) -> list[NodeWithScore]:
    """The results of a memory's arm as nodes with raw scores."""
    return scored_nodes((to_node(result.memory), result.score) for result in results)


def exactly_one(given: Mapping[str, Any], /, *, none: str = "none") -> None:
    """Check that exactly one of several arguments is given."""
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise ConfigError(f"got {' and '.join(named) or none}: give exactly one of {', '.join(given)}")
