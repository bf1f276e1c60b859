"""Tools for an agent over a memory: search, save and forget, with the names and texts of the LangChain tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from llama_index.core.tools import FunctionTool

from hybridmem.memory.tools import FORGET, SAVE, SEARCH, MemoryTools, ToolAnswer, ToolInputError

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["memory_tools"]


def memory_tools(
    memory: HybridMemory,
    /,
    *,
    namespace: str | None = None,
    thread: str | None = None,
    k: int = 5,
    filter: Any = None,
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
    """The answer; what the model did wrong is the answer too, so that it can correct itself."""
    try:
        return call().text
    except ToolInputError as error:
        return str(error)


async def _atext(call: Awaitable[ToolAnswer]) -> str:
    try:
        return (await call).text
    except ToolInputError as error:
        return str(error)
