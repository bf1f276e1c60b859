"""Whose memory a call belongs to: a fixed namespace, or one per session read from the run's context or config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig

from hybridmem.errors import ConfigError
from hybridmem.memory.tools import below

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["Views", "thread_of", "views"]

Views = Callable[[RunnableConfig, Any], "HybridMemory"]
"""The view of a memory for a run, from its config and its context."""


def views(memory: HybridMemory, namespace: str | None, session_key: str | None, /) -> Views:
    """How runs find their view of a memory: one fixed view, or one per session; never a shared one by mistake."""
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
