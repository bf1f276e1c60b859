"""Tools for agents: a memory to search, save and forget in, and any retriever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.tools import FunctionTool, RetrieverTool, ToolMetadata, ToolOutput

from hybridmem.errors import ConfigError
from hybridmem.memory.tools import FORGET, SAVE, SEARCH, MemoryTools, ToolAnswer, ToolInputError
from hybridmem.retrievers.options import check_memory

if TYPE_CHECKING:
    from llama_index.core.postprocessor.types import BaseNodePostprocessor

    from hybridmem.filters.parse import Filter
    from hybridmem.memory.memory import HybridMemory

__all__ = ["CleanRetrieverTool", "memory_tools", "retriever_tool"]


DESCRIPTION = "Searches the knowledge base for a question in natural language and gives the most relevant passages."


class CleanRetrieverTool(RetrieverTool):
    """LlamaIndex's `RetrieverTool`, except that the query is what the agent asked, not "input is …"."""

    def call(self, *args: Any, **kwargs: Any) -> ToolOutput:
        """Answer an agent's question."""
        query = _query(args, kwargs)
        nodes = self._retriever.retrieve(query)
        for step in self._node_postprocessors:
            nodes = step.postprocess_nodes(nodes, query_bundle=QueryBundle(query))
        return self._output(query, nodes)

    async def acall(self, *args: Any, **kwargs: Any) -> ToolOutput:
        """The same, without blocking the event loop."""
        query = _query(args, kwargs)
        nodes = await self._retriever.aretrieve(query)
        for step in self._node_postprocessors:
            nodes = await step.apostprocess_nodes(nodes, query_bundle=QueryBundle(query))
        return self._output(query, nodes)

    def _output(self, query: str, nodes: list[NodeWithScore]) -> ToolOutput:
        return ToolOutput(
            content="\n\n".join(found.node.get_content(MetadataMode.LLM) for found in nodes),
            tool_name=self.metadata.get_name(),
            raw_input={"input": query},
            raw_output=nodes,
        )


def _query(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The only text among the arguments; an agent may give it any name."""
    given = [value for value in (*args, *kwargs.values()) if value is not None]
    if len(given) == 1 and isinstance(given[0], str):
        return given[0]
    if isinstance(kwargs.get("input"), str):
        return str(kwargs["input"])
    raise ConfigError(f"the tool was called with {(*args, *kwargs.items())!r}: it takes one text, `input`")


def retriever_tool(
    retriever: BaseRetriever,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    postprocessors: list[BaseNodePostprocessor] | None = None,
) -> CleanRetrieverTool:
    """A tool over any retriever."""
    metadata = ToolMetadata(name=name or "search", description=description or DESCRIPTION)
    return CleanRetrieverTool(retriever=retriever, metadata=metadata, node_postprocessors=postprocessors)


def memory_tools(
    memory: HybridMemory,
    /,
    *,
    namespace: str | None = None,
    thread: str | None = None,
    k: int = 5,
    filter: Filter | None = None,
    min_confidence: float | None = None,
    search_name: str = "search_memory",
    save_name: str = "save_memory",
    forget_name: str = "forget_memory",
    search_description: str = SEARCH,
    save_description: str = SAVE,
    forget_description: str = FORGET,
) -> tuple[FunctionTool, FunctionTool, FunctionTool]:
    """Tools to search, save to and forget from a HybridMemory; the model cannot leave its namespace.

    namespace: whose memory this is; without it, this view. LlamaIndex's tools know no session: make them for each user.
    thread: the conversation that saved facts belong to. k, filter and min_confidence: as in `memory.search`.

    >>> from hybridmem.memory.memory import HybridMemory
    >>> search, save, forget = memory_tools(HybridMemory(embedder=None), namespace="ana")
    >>> kept = save("Ana's cat is called Pixel.")
    >>> "Ana's cat is called Pixel." in search("Ana's cat").content
    True
    """
    check_memory(memory)
    view = memory if namespace is None else memory.namespace(namespace)
    tools = MemoryTools(memory=view, k=k, filter=filter, min_confidence=min_confidence)

    def search(query: str, as_of: str | None = None) -> str:
        return _text(lambda: tools.search(query, as_of=as_of))

    async def asearch(query: str, as_of: str | None = None) -> str:
        return await _atext(tools.asearch(query, as_of=as_of))

    def save(text: str, tags: list[str] | None = None, replaces: str | None = None, ttl: float | None = None) -> str:
        return _text(lambda: tools.save(text, tags=tags, replaces=replaces, ttl=ttl, thread=thread))

    async def asave(
        text: str, tags: list[str] | None = None, replaces: str | None = None, ttl: float | None = None
    ) -> str:
        return await _atext(tools.asave(text, tags=tags, replaces=replaces, ttl=ttl, thread=thread))

    def forget(id: str) -> str:
        return _text(lambda: tools.forget(id))

    async def aforget(id: str) -> str:
        return await _atext(tools.aforget(id))

    made = FunctionTool.from_defaults
    return (
        made(search, name=search_name, description=search_description, async_fn=asearch),
        made(save, name=save_name, description=save_description, async_fn=asave),
        made(forget, name=forget_name, description=forget_description, async_fn=aforget),
    )


def _text(call: Callable[[], ToolAnswer]) -> str:
    """The answer as text; an error in the model's arguments is a text too, so that the model can correct it."""
    try:
        return call().text
    except ToolInputError as error:
        return str(error)


async def _atext(call: Awaitable[ToolAnswer]) -> str:
    try:
        return (await call).text
    except ToolInputError as error:
        return str(error)
