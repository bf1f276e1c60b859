"""A retriever of retrievers as a run: children get the caller's config, are child runs, and errors are told to both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForRetrieverRun,
    CallbackManager,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, ensure_config

from hybridmem.core.fanout import INLINE_BELOW, Latency

__all__ = ["Lane", "ParentRetriever", "Patience", "RunManager", "child_config"]

HICCUP = 0.0001
BUSY = 0.01
"""Seconds that a busy machine may take a quick arm's turn away."""

RunManager = CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun
Work = Callable[[CallbackManagerForRetrieverRun, RunnableConfig], list[Document]]
AsyncWork = Callable[[AsyncCallbackManagerForRetrieverRun, RunnableConfig], Awaitable[list[Document]]]


class ParentRetriever(BaseRetriever):
    """What `BaseRetriever.invoke` does, and more: the config (`configurable`, `max_concurrency`) reaches the children.

    The tracing parameters (`ls_retriever_name`) stay with this run, so that children show only their own.
    """

    def _in_run(self, query: str, config: RunnableConfig | None, kwargs: dict[str, Any], work: Work) -> list[Document]:
        config = ensure_config(config)
        manager = CallbackManager.configure(
            config.get("callbacks"),
            None,
            kwargs.pop("verbose", False),
            config.get("tags"),
            self.tags,
            config.get("metadata"),
            self.metadata,
        )
        manager.metadata = {**self._get_ls_params(), **manager.metadata}
        name = config.get("run_name") or self.get_name()
        run = manager.on_retriever_start(None, query, name=name, run_id=_run_id(config, kwargs))
        try:
            found = work(run, config)
        except Exception as error:
            run.on_retriever_error(error)
            raise
        run.on_retriever_end(found)
        return found

    async def _in_arun(
        self, query: str, config: RunnableConfig | None, kwargs: dict[str, Any], work: AsyncWork
    ) -> list[Document]:
        config = ensure_config(config)
        manager = AsyncCallbackManager.configure(
            config.get("callbacks"),
            None,
            kwargs.pop("verbose", False),
            config.get("tags"),
            self.tags,
            config.get("metadata"),
            self.metadata,
        )
        manager.metadata = {**self._get_ls_params(), **manager.metadata}
        name = config.get("run_name") or self.get_name()
        run = await manager.on_retriever_start(None, query, name=name, run_id=_run_id(config, kwargs))
        try:
            found = await work(run, config)
        except Exception as error:
            await run.on_retriever_error(error)
            raise
        await run.on_retriever_end(found)
        return found


def _run_id(config: RunnableConfig, kwargs: dict[str, Any]) -> UUID | None:
    """The run's id where the caller chose one; taken out of the keywords, because the search does not know it."""
    return kwargs.pop("run_id", None) or config.get("run_id")


class Patience(Latency):
    """A pace that forgives one hiccup of a busy machine: a quick arm becomes slow by two slow calls, not by one."""

    __slots__ = ()

    def took(self, seconds: float) -> None:
        """Remember a duration."""
        super().took(min(seconds, max(3 * self.seconds, HICCUP)))


def child_config(config: RunnableConfig, run: RunManager, place: int, /, *, arm: str | None = None) -> RunnableConfig:
    """The config for a child run, tagged `retriever_1…n` (and `arm:<name>`); a run's own name and id are not passed on.

    The child copies what it changes, as every runnable does, so a shallow copy is enough.
    """
    callbacks = run.get_child(f"retriever_{place}")
    if arm is not None:
        callbacks.add_tags([f"arm:{arm}"], inherit=False)
    child = {**config, "callbacks": callbacks}
    child.pop("run_name", None)
    child.pop("run_id", None)
    return child  # type: ignore[return-value]


class Lane:
    """Whether all retrievers are so quick that threads would only cost: learned from how long they take."""

    __slots__ = ("_paces", "_slow", "quick")

    def __init__(self) -> None:
        self.quick = False
        self._slow = 0
        self._paces: list[Patience] = []

    def paces(self, count: int) -> list[Patience]:
        """One pace for each retriever."""
        if len(self._paces) != count:
            self._paces = [Patience() for _ in range(count)]
        return self._paces

    def learn(self) -> None:
        """After a fan-out: tell whether all of them are quick."""
        self.quick = all(pace.seconds < INLINE_BELOW for pace in self._paces)

    def took(self, seconds: float) -> None:
        """After a turn without threads: one slow turn may be a hiccup of a busy machine, several are slow arms."""
        if seconds < INLINE_BELOW:
            self._slow = 0
            return
        self._slow += 2 if seconds > BUSY else 1
        if self._slow > 3:  # noqa: PLR2004  two that plainly waited, or four that took long
            self.quick, self._slow, self._paces = False, 0, []
