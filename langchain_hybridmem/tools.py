"""What an agent needs of a memory: a tool to search it and a tool to save to it, each kept to its own session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import patch_config
from langchain_core.tools import BaseTool, StructuredTool, ToolException

from hybridmem.core.fanout import in_thread
from hybridmem.core.times import epoch
from hybridmem.errors import ConfigError, NotFoundError
from langchain_hybridmem.fusion import FusionRetriever

__all__ = ["memory_tools"]

Whose = Callable[[RunnableConfig], str]
NOTHING = "Nothing relevant is remembered."
SEARCH = (
    "Search the long-term memory for what is known about a topic, person or earlier conversation. "
    "Ask in plain words. Give as_of (an ISO-8601 date) to ask what was known at that time."
)
SAVE = (
    "Save one fact to the long-term memory, as a full sentence that can be understood later on its own. "
    "When it corrects a remembered fact, give that one's id as replaces."
)


def memory_tools(
    memory: Any,
    /,
    *,
    namespace: str | None = None,
    session_key: str | None = None,
    search_name: str = "search_memory",
    save_name: str = "save_memory",
    search_description: str = SEARCH,
    save_description: str = SAVE,
    **settings: Any,
) -> tuple[BaseTool, BaseTool]:
    """A search tool and a save tool over a HybridMemory; the model cannot leave its namespace.

    namespace: whose memory this is, fixed. session_key: whose it is, read at each call from
    `config["configurable"][session_key]` ("user_id", "thread_id"), refused when it is not there. Neither: this view.
    Everything else goes to `FusionRetriever.from_memory`: `k` (5), `filter`, `min_confidence`, `recipe`, …

    >>> from hybridmem.memory.memory import HybridMemory
    >>> search, save = memory_tools(HybridMemory(embedder=None), namespace="ana")
    >>> kept = save.invoke({"text": "Ana's cat is called Pixel."})
    >>> search.invoke({"query": "Ana's cat"}).partition("] ")[2]
    "Ana's cat is called Pixel."
    """
    whose = _whose(memory, namespace, session_key)
    retriever = FusionRetriever.from_memory(memory, **{"k": 5, **settings})
    search = _Search(retriever, whose)
    save = _Save(memory, whose)
    return (
        StructuredTool.from_function(
            search.now,
            search.later,
            name=search_name,
            description=search_description,
            response_format="content_and_artifact",
            handle_tool_error=True,
        ),
        StructuredTool.from_function(
            save.now, save.later, name=save_name, description=save_description, handle_tool_error=True
        ),
    )


def _whose(memory: Any, namespace: str | None, session_key: str | None) -> Whose:
    """Which namespace a call belongs to; never a shared one by mistake."""
    if namespace is not None and session_key is not None:
        raise ConfigError(f"namespace = {namespace!r} and session_key = {session_key!r}: give one of them")
    if session_key is None:
        fixed = memory.name if namespace is None else namespace
        return lambda _config: str(fixed)

    def of_session(config: RunnableConfig) -> str:
        session = (config or {}).get("configurable", {}).get(session_key)
        if session is None or str(session) == "":
            raise ConfigError(f"no session: the call needs config={{'configurable': {{{session_key!r}: …}}}}")
        own = str(session).replace("%", "%25").replace("/", "%2F")  # no session reaches into another view
        return f"{memory.name}/{own}" if memory.name else own

    return of_session


class _Search:
    """The search tool: the model says query and as_of; config and callbacks come from the run it is part of."""

    def __init__(self, retriever: FusionRetriever, whose: Whose) -> None:
        self._retriever = retriever
        self._whose = whose

    def now(
        self, query: str, config: RunnableConfig, as_of: str | None = None, callbacks: BaseCallbackManager | None = None
    ) -> tuple[str, list[Document]]:
        how = {"namespace": self._whose(config), "as_of": _date(as_of)}
        found = self._retriever.invoke(query, patch_config(config, callbacks=callbacks), **how)
        return _listed(found), found

    async def later(
        self, query: str, config: RunnableConfig, as_of: str | None = None, callbacks: BaseCallbackManager | None = None
    ) -> tuple[str, list[Document]]:
        how = {"namespace": self._whose(config), "as_of": _date(as_of)}
        found = await self._retriever.ainvoke(query, patch_config(config, callbacks=callbacks), **how)
        return _listed(found), found


class _Save:
    """The save tool. What was said in one thread stays together, so that it reminds of each other."""

    def __init__(self, memory: Any, whose: Whose) -> None:
        self._memory = memory
        self._whose = whose

    def now(self, text: str, config: RunnableConfig, tags: list[str] | None = None, replaces: str | None = None) -> str:
        view = self._memory.namespace(self._whose(config))
        thread = (config or {}).get("configurable", {}).get("thread_id")
        if not text.strip():
            raise ToolException("there is nothing to save: text is empty")
        try:
            kept = view.add(
                text, tags=tuple(tags or ()), supersedes=replaces, thread=None if thread is None else str(thread)
            )
        except NotFoundError as error:
            raise ToolException(f"there is no memory {replaces!r} to replace: {error}") from error
        return f"Saved as {kept}."

    async def later(
        self, text: str, config: RunnableConfig, tags: list[str] | None = None, replaces: str | None = None
    ) -> str:
        return str(await in_thread(lambda: self.now(text, config, tags, replaces)))


def _date(as_of: str | None) -> str | None:
    """What the model said wrongly is told to the model; a missing session is told to the developer."""
    if as_of and epoch(as_of) is None:
        raise ToolException(f"as_of = {as_of!r} is not a date: write it like 2024-05-01")
    return as_of or None


def _listed(found: Sequence[Document]) -> str:
    """Results as the model reads them: one line each, with the id to refer to and the date it was learned."""
    lines = []
    for document in found:
        when = str(document.metadata.get("updated_at") or document.metadata.get("created_at") or "")[:10]
        lines.append(f"[{document.id}{', ' + when if when else ''}] {document.page_content}")
    return "\n".join(lines) or NOTHING
