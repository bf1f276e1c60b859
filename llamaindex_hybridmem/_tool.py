"""A retriever as a tool for an agent, asked with the agent's words and nothing else."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.tools import RetrieverTool, ToolMetadata, ToolOutput

from hybridmem.errors import ConfigError

__all__ = ["CleanRetrieverTool", "retriever_tool"]

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
    """The one text among the arguments, whatever the agent called it."""
    given = [value for value in (*args, *kwargs.values()) if value is not None]
    if len(given) == 1 and isinstance(given[0], str):
        return given[0]
    if isinstance(kwargs.get("input"), str):
        return str(kwargs["input"])
    raise ConfigError(f"the tool was called with {(*args, *kwargs.items())!r}: it takes one text, `input`")


def retriever_tool(
    retriever: BaseRetriever, /, *, name: str | None = None, description: str | None = None, postprocessors: Any = None
) -> CleanRetrieverTool:
    """A tool over any retriever."""
    metadata = ToolMetadata(name=name or "search", description=description or DESCRIPTION)
    return CleanRetrieverTool(retriever=retriever, metadata=metadata, node_postprocessors=postprocessors)
