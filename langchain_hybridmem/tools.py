"""memory_tools: tools of an agent to search, save and forget, and whose memory a run belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import patch_config
from langchain_core.tools import BaseTool, StructuredTool, ToolException

from hybridmem.core.fanout import in_thread
from hybridmem.errors import ConfigError
from hybridmem.memory.results import NOTHING, block
from hybridmem.memory.tools import FORGET, SAVE, SEARCH, MemoryTools, ToolInputError, below, check_date
from hybridmem.retrievers.options import check_memory
from langchain_hybridmem._conversion import to_memory
from langchain_hybridmem.fusion import FusionRetriever

if TYPE_CHECKING:
    from hybridmem.filters.parse import Filter
    from hybridmem.memory.memory import HybridMemory
    from hybridmem.memory.question import RecipeLike

__all__ = ["Views", "memory_tools", "thread_of", "views"]


Views = Callable[[RunnableConfig, Any], "HybridMemory"]
"""The view of a memory for a run, from its config and its context."""


def views(memory: HybridMemory, namespace: str | None, session_key: str | None, /) -> Views:
    """How runs find their view of a memory: one fixed view, or one per session; never a shared one by mistake."""
    check_memory(memory)
    if namespace is not None and session_key is not None:
        raise ConfigError(f"namespace = {namespace!r} and session_key = {session_key!r}: give one of them")
    if session_key is None:
        fixed = memory if namespace is None else memory.namespace(namespace)
        return lambda _config, _context: fixed

    def of_session(config: RunnableConfig, context: Any) -> HybridMemory:
        session = _value(context, session_key)
        if session is None:
            session = (config or {}).get("configurable", {}).get(session_key)
        if session is None or str(session) == "":
            raise ConfigError(
                f"no session: the call needs context with {session_key!r}, "
                f"or config={{'configurable': {{{session_key!r}: …}}}}"
            )
        return memory.namespace(below(memory.name, session))

    return of_session


def _value(context: Any, name: str) -> Any:
    """A field of the run's context, which may be a mapping or any object with attributes."""
    if isinstance(context, Mapping):
        return context.get(name)
    return getattr(context, name, None)


def thread_of(config: RunnableConfig, /) -> str | None:
    """The conversation that a run belongs to."""
    thread = (config or {}).get("configurable", {}).get("thread_id")
    return None if thread is None else str(thread)


T = TypeVar("T")


def memory_tools(
    memory: HybridMemory,
    /,
    *,
    namespace: str | None = None,
    session_key: str | None = None,
    k: int = 5,
    filter: Filter | None = None,
    min_confidence: float | None = None,
    recipe: RecipeLike | None = None,
    search_name: str = "search_memory",
    save_name: str = "save_memory",
    forget_name: str = "forget_memory",
    search_description: str = SEARCH,
    save_description: str = SAVE,
    forget_description: str = FORGET,
) -> tuple[BaseTool, BaseTool, BaseTool]:
    """Tools to search, save to and forget from a HybridMemory; the model cannot leave its namespace.

    namespace: whose memory this is, fixed. session_key: whose it is, read at each call from the run's context or from
    `config["configurable"][session_key]` ("user_id", "thread_id"), refused when it is not there. Neither: this view.
    k, filter, min_confidence and recipe: as in `memory.search`.

    >>> from hybridmem.memory.memory import HybridMemory
    >>> search, save, forget = memory_tools(HybridMemory(embedder=None), namespace="ana")
    >>> kept = save.invoke({"text": "Ana's cat is called Pixel."})
    >>> "Ana's cat is called Pixel." in search.invoke({"query": "Ana's cat"})
    True
    """
    view = views(memory, namespace, session_key)
    how = {"k": k, "filter": filter, "min_confidence": min_confidence, "recipe": recipe}
    given: Any = {name: value for name, value in how.items() if value is not None}
    search = _Search(FusionRetriever.from_memory(memory, **given), view)
    change = _Change(view)
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
            change.save, change.asave, name=save_name, description=save_description, handle_tool_error=True
        ),
        StructuredTool.from_function(
            change.forget, change.aforget, name=forget_name, description=forget_description, handle_tool_error=True
        ),
    )


class _Search:
    """The search tool: the model gives query and as_of; config and callbacks come from the run it is part of."""

    def __init__(self, retriever: FusionRetriever, view: Views) -> None:
        self._retriever = retriever
        self._view = view

    def now(
        self, query: str, config: RunnableConfig, as_of: str | None = None, callbacks: BaseCallbackManager | None = None
    ) -> tuple[str, list[Document]]:
        found = self._retriever.invoke(query, patch_config(config, callbacks=callbacks), **self._how(config, as_of))
        return _listed(found), found

    async def later(
        self, query: str, config: RunnableConfig, as_of: str | None = None, callbacks: BaseCallbackManager | None = None
    ) -> tuple[str, list[Document]]:
        how = self._how(config, as_of)
        found = await self._retriever.ainvoke(query, patch_config(config, callbacks=callbacks), **how)
        return _listed(found), found

    def _how(self, config: RunnableConfig, as_of: str | None) -> dict[str, Any]:
        return {"namespace": self._view(config, _context()).name, "as_of": _refusing(lambda: check_date(as_of))}


class _Change:
    """The tools that change the memory. What was said in one thread stays together."""

    def __init__(self, view: Views) -> None:
        self._view = view

    def _tools(self, config: RunnableConfig) -> MemoryTools:
        return MemoryTools(memory=self._view(config, _context()))

    def save(
        self,
        text: str,
        config: RunnableConfig,
        tags: list[str] | None = None,
        replaces: str | None = None,
        ttl: float | None = None,
    ) -> str:
        tools, thread = self._tools(config), thread_of(config)
        return _refusing(lambda: tools.save(text, tags=tags, replaces=replaces, ttl=ttl, thread=thread).text)

    async def asave(
        self,
        text: str,
        config: RunnableConfig,
        tags: list[str] | None = None,
        replaces: str | None = None,
        ttl: float | None = None,
    ) -> str:
        return str(await in_thread(lambda: self.save(text, config, tags, replaces, ttl)))

    def forget(self, id: str, config: RunnableConfig) -> str:
        tools = self._tools(config)
        return _refusing(lambda: tools.forget(id).text)

    async def aforget(self, id: str, config: RunnableConfig) -> str:
        return str(await in_thread(lambda: self.forget(id, config)))


def _context() -> Any:
    """The context of the LangGraph run that calls a tool; None outside of one."""
    if find_spec("langgraph") is None or find_spec("langgraph.runtime") is None:
        return None
    from langgraph.runtime import get_runtime

    try:
        runtime = get_runtime()
    except (RuntimeError, KeyError):
        return None
    return None if runtime is None else runtime.context


def _refusing(call: Callable[[], T]) -> T:
    """What the model did wrong is reported to the model; a missing session is reported to the developer."""
    try:
        return call()
    except ToolInputError as error:
        raise ToolException(str(error)) from error


def _listed(found: Sequence[Document]) -> str:
    """Results as the model reads them."""
    return block(map(to_memory, found)) or NOTHING
