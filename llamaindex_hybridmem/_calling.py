"""What our retrievers share: settings that can be said again in each call, a memory behind them, a tool over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore

from hybridmem.errors import ConfigError
from llamaindex_hybridmem._conversion import to_node
from llamaindex_hybridmem._results import scored_nodes
from llamaindex_hybridmem._settings import Filters, Settings
from llamaindex_hybridmem._tool import CleanRetrieverTool, retriever_tool

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["CalledRetriever", "exactly_one", "memory_nodes", "memory_wish"]

_CALL: ContextVar[tuple[Any, Settings]] = ContextVar("hybridmem_call")
"""Whose call it is and what was given beside the query: LlamaIndex's path to `_retrieve` carries the query alone."""


class CalledRetriever(BaseRetriever):
    """A retriever whose `retrieve` and `aretrieve` take settings for this call beside the query."""

    _settings: Settings
    _memory: HybridMemory | None = None

    def as_tool(self, *, name: str | None = None, description: str | None = None) -> CleanRetrieverTool:
        """A tool for an agent, which passes the agent's question on as it is."""
        return retriever_tool(self, name=name, description=description)

    @contextmanager
    def _said(self, k: int | None, filters: Filters, more: Mapping[str, Any]) -> Iterator[None]:
        """What was said in this call, for `_retrieve`."""
        call = self._checked(self._settings.changed(similarity_top_k=k, filters=filters, **more))
        token = _CALL.set((self, call))
        try:
            yield
        finally:
            _CALL.reset(token)

    def _call(self) -> Settings:
        """The settings of the call that is under way."""
        owner, settings = _CALL.get((self, self._settings))
        return settings if owner is self else self._settings  # a retriever inside ours has its own

    def _checked(self, call: Settings) -> Settings:
        """Refuse what only a memory understands, where there is none."""
        for name in ("as_of", "namespace"):
            if name in call.more and self._memory is None:
                raise ConfigError(f"{name} = {call.more[name]!r}: only a memory understands {name!r}")
        return call


def memory_wish(call: Settings, /) -> dict[str, Any]:
    """What a memory's arm is told."""
    given = {"k": call.k, "filter": call.filter, **call.more}
    return {name: value for name, value in given.items() if value is not None and name != "score_threshold"}


def memory_nodes(results: Sequence[Any], /) -> list[NodeWithScore]:
    """What a memory's arm found, as nodes with raw scores."""
    return scored_nodes((to_node(result.memory), result.score) for result in results)


def exactly_one(given: Mapping[str, Any], /, *, none: str = "none") -> None:
    """Refuse two ways in at once, and no way in."""
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise ConfigError(f"got {' and '.join(named) or none}: give exactly one of {', '.join(given)}")
