"""Retrievers over other retrievers as LangChain runs: children get the caller's config and are child runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
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
from typing_extensions import Unpack

from hybridmem.core.fanout import Steps, adrive, drive, in_thread
from hybridmem.retrievers.options import overrides, refuse_settings
from langchain_hybridmem._settings import FilterOption, TimeOption, check_query

if TYPE_CHECKING:
    from langchain_hybridmem._settings import BM25Call

__all__ = ["ChangeableRetriever", "ParentRetriever", "RunManager", "SearchRetriever", "child_config", "is_overridden"]

Self = TypeVar("Self", bound="ChangeableRetriever")
RunManager = CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun
Work = Callable[[CallbackManagerForRetrieverRun, RunnableConfig], list[Document]]
AsyncWork = Callable[[AsyncCallbackManagerForRetrieverRun, RunnableConfig], Awaitable[list[Document]]]


class ChangeableRetriever(BaseRetriever):
    """A retriever whose fields can be changed later, also in a copy: what is made of them is made again."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).model_fields:
            self._change({name: value})
        else:
            super().__setattr__(name, value)

    def model_copy(self: Self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy; what is changed in it is checked, and takes effect."""
        fields = type(self).model_fields
        changed = dict(update or {})
        if self.model_config.get("extra") == "forbid":
            refuse_settings(type(self).__name__, changed, fields)
        others = {name: changed.pop(name) for name in [*changed] if name not in fields}
        copied = super().model_copy(update=others, deep=deep)
        copied._change(changed)  # noqa: SLF001
        return copied

    def _change(self, settings: Mapping[str, Any]) -> None:
        """Set fields."""
        for name, value in settings.items():
            super().__setattr__(name, value)


class ParentRetriever(ChangeableRetriever):
    """`BaseRetriever.invoke`, with the config (`configurable`, `max_concurrency`) passed on to the children.

    The tracing parameters (`ls_retriever_name`) stay with this run, so that children show only their own.
    """

    def _in_run(self, query: str, config: RunnableConfig | None, kwargs: dict[str, Any], work: Work) -> list[Document]:
        config = ensure_config(config)
        manager = CallbackManager.configure(*_callback_settings(self, config, kwargs))
        manager.metadata = {**self._get_ls_params(), **manager.metadata}
        name = config.get("run_name") or self.get_name()
        run = manager.on_retriever_start(None, query, name=name, run_id=_run_id(config, kwargs))
        try:
            documents = work(run, config)
        except Exception as error:
            run.on_retriever_error(error)
            raise
        run.on_retriever_end(documents)
        return documents

    async def _in_arun(
        self, query: str, config: RunnableConfig | None, kwargs: dict[str, Any], work: AsyncWork
    ) -> list[Document]:
        config = ensure_config(config)
        manager = AsyncCallbackManager.configure(*_callback_settings(self, config, kwargs))
        manager.metadata = {**self._get_ls_params(), **manager.metadata}
        name = config.get("run_name") or self.get_name()
        run = await manager.on_retriever_start(None, query, name=name, run_id=_run_id(config, kwargs))
        try:
            documents = await work(run, config)
        except Exception as error:
            await run.on_retriever_error(error)
            raise
        await run.on_retriever_end(documents)
        return documents


def _callback_settings(retriever: BaseRetriever, config: RunnableConfig, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return (
        config.get("callbacks"),
        None,
        kwargs.pop("verbose", False),
        config.get("tags"),
        retriever.tags,
        config.get("metadata"),
        retriever.metadata,
    )


def _run_id(config: RunnableConfig, kwargs: dict[str, Any]) -> UUID | None:
    """The run's id where the caller chose one; taken out of the keywords, because the search does not take it."""
    return kwargs.pop("run_id", None) or config.get("run_id")


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


class SearchRetriever(ChangeableRetriever):
    """A retriever with a search of its own, in steps that sync and async code share.

    A subclass that overrides only the sync search gets it in both: otherwise code such as a per-user filter in
    `_get_relevant_documents` would not run in async programs.
    """

    if TYPE_CHECKING:  # type checkers read the keywords of one call

        def invoke(  # type: ignore[override]
            self, input: str, config: RunnableConfig | None = None, **kwargs: Unpack[BM25Call]
        ) -> list[Document]:
            """The documents for a query, best first."""
            ...

        async def ainvoke(  # type: ignore[override]
            self, input: str, config: RunnableConfig | None = None, **kwargs: Unpack[BM25Call]
        ) -> list[Document]:
            """The same, without blocking the event loop."""
            ...

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002
        k: int | None = None,
        filter: FilterOption | None = None,
        with_scores: bool | None = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        **more: Any,
    ) -> list[Document]:
        given = {"k": k, "filter": filter, "with_scores": with_scores, "as_of": as_of, "namespace": namespace}
        return drive(self._found(check_query(query), {**more, **given}))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun | None = None, **kwargs: Any
    ) -> list[Document]:
        if not is_overridden(self, "_get_relevant_documents"):
            return await self._asearch(query, run_manager, **kwargs)
        if self._new_arg_supported and run_manager is not None:
            kwargs["run_manager"] = run_manager.get_sync()
        return await in_thread(lambda: self._get_relevant_documents(query, **kwargs))

    async def _asearch(
        self,
        query: str,
        run_manager: AsyncCallbackManagerForRetrieverRun | None,  # noqa: ARG002
        **given: Any,
    ) -> list[Document]:
        return await adrive(self._found(check_query(query), given))

    def _found(self, query: str, given: Mapping[str, Any]) -> Steps[list[Document]]:
        """The documents for a query, with the settings given to this call."""
        raise NotImplementedError


def is_overridden(retriever: BaseRetriever, method: str, /) -> bool:
    """Whether a user's subclass of one of our retrievers overrides a method."""
    return overrides(type(retriever), method, "langchain_hybridmem")
