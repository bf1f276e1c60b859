"""FusionRetriever: any LangChain retrievers, or a HybridMemory, fused by a recipe, with scores and receipts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.utils import ConfigurableFieldSpec, get_unique_config_specs
from pydantic import ConfigDict, Field, PrivateAttr, SerializeAsAny

from hybridmem.core.fanout import OnError, check_policy
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Explanation
from hybridmem.retrievers.options import MEMORY_ARMS, shaped
from langchain_hybridmem._arms import arms_of
from langchain_hybridmem._asking import Asked, Found, Panel, adrive, ask, drive
from langchain_hybridmem._runs import ParentRetriever, RunManager
from langchain_hybridmem._settings import check_k, clear_errors, refuse_unknown

__all__ = ["FusionRetriever"]

Self = TypeVar("Self", bound="FusionRetriever")
Note = Callable[[Explanation], None]
_SHAPE = ("mode", "weights", "c", "gate", "dedup", "half_life")
_SETUP = (*_SHAPE, "retrievers", "memory", "recipe", "id_key", "on_error", "timeout", "clock", "k", "search_kwargs")
_CALL = ("k", "filter", "search_kwargs", "with_scores", "receipts", "as_of", "namespace", "min_confidence")


class FusionRetriever(ParentRetriever):
    """Fuse retrievers by weighted reciprocal ranks (or another mode), with gates, dedup, half-life and receipts.

    >>> from langchain_core.runnables import RunnableLambda
    >>> words, meaning = (RunnableLambda(lambda q, texts=texts: texts) for texts in (["a", "b"], ["b", "c"]))
    >>> found = FusionRetriever(retrievers={"bm25": words, "vector": meaning}, k=2).invoke("?")
    >>> [(document.page_content, round(document.metadata["score"], 3)) for document in found]
    [('b', 0.992), ('a', 0.5)]

    Arms are asked at the same time, with scores where they have them. `k`, `filter`, `search_kwargs`, `with_scores`,
    `receipts`, `as_of`, `namespace` and `min_confidence` can be set here and said again in `invoke(query, …)`.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    retrievers: SerializeAsAny[list[RetrieverLike] | dict[str, RetrieverLike]] = Field(default_factory=list)
    """Any runnables from a query to documents; a dict names them. In a list they are called after what they are:
    "bm25", "vector", "graph", else "retriever_1"…n."""
    memory: Any = None
    """A HybridMemory to ask instead of retrievers."""
    weights: list[float] | dict[str, float] | None = None
    """One for each arm, in order or by name; equal when omitted. An arm of weight 0 is not asked."""
    c: float = 60
    mode: Literal["rrf", "relative", "distribution", "convex"] = "rrf"
    id_key: Any = None
    """What makes two documents the same: a metadata key or a function. None: `Document.id`, else the text."""
    k: int | None = None
    """How many documents to return; None: all that the arms bring."""
    filter: Any = None
    """`{"lang": "en", "year": {"$gte": 2020}}`, or a function of the document."""
    search_kwargs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Keywords for single arms, by their names."""
    gate: Any = None
    """A floor on raw scores: one for all arms, `{"bm25": 1.0, "vector": 0.5}`, or a `QualityGate`."""
    dedup: Any = None
    """Keep the best of each source: True (`source_id`, else `source`), a metadata key, or a `SourceDedup`."""
    half_life: Any = None
    """Prefer what is fresh: days, a timedelta, or a `HalfLife` with strength and field."""
    recipe: Any = None
    """A `Fusion`, the name of a recipe, or a recipe file; the settings above change parts of it, False removes one."""
    on_error: Literal["raise", "skip"] = "raise"
    timeout: float | dict[str, float] | None = None
    """Seconds that an arm may take: one number, or by name."""
    with_scores: bool = True
    """Put the score, in (0, 1], into `metadata["score"]`."""
    receipts: bool = False
    """Put each result's receipt into `metadata["hybridmem"]`."""
    as_of: Any = None
    namespace: str | None = None
    min_confidence: float | None = None
    clock: Any = None
    """What time it is, in epoch seconds, for the half-life; None: now."""

    _panel: Panel = PrivateAttr()

    if not TYPE_CHECKING:  # type checkers read the fields above instead

        def __init__(self, **settings: Any) -> None:
            """Check every setting with a ConfigError, before pydantic would wrap it into its own."""
            panel = _panel(_known(type(self), settings))
            with clear_errors():
                super().__init__(**{**settings, "c": panel.fusion.c, "mode": panel.fusion.mode})
            self._panel = panel

    def __setattr__(self, name: str, value: Any) -> None:
        """Settings can be changed later, and are checked then too."""
        if name in _SETUP:
            self._change({name: value})
        else:
            super().__setattr__(name, value)

    def model_copy(self: Self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy; what is changed in it is checked, and counts."""
        refuse_unknown(type(self), update or {})
        copied = super().model_copy(deep=deep)
        copied._change(update or {})  # noqa: SLF001
        return copied

    def _change(self, settings: Mapping[str, Any]) -> None:
        given = {name: getattr(self, name) for name in _SETUP}
        if "recipe" in settings or "memory" in settings:  # each brings its own
            given.update(c=None, mode=None)
        panel = _panel({**given, **settings})
        for name, value in {**settings, "_panel": panel, "c": panel.fusion.c, "mode": panel.fusion.mode}.items():
            super().__setattr__(name, value)

    @classmethod
    def from_memory(cls: type[Self], memory: Any, /, **settings: Any) -> Self:
        """A retriever over a HybridMemory: the same ids and scores as `memory.search`."""
        return cls(memory=memory, **settings)

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What can be configured in the arms."""
        return get_unique_config_specs(spec for arm in self._panel.arms for spec in arm.runnable.config_specs)

    # --- asking

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """The fused documents, best first. Takes what the class docstring lists as keywords."""
        return self._in_run(input, config, kwargs, partial(self._answer, input, kwargs, None))

    async def ainvoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """The same, without blocking the event loop."""
        return await self._in_arun(input, config, kwargs, partial(self._aanswer, input, kwargs, None))

    def explain(self, query: str, config: RunnableConfig | None = None, **kwargs: Any) -> Explanation:
        """Why each result is there, and `.why_not(key)` for one that is not."""
        notes: list[Explanation] = []
        self._in_run(query, config, kwargs, partial(self._answer, query, kwargs, notes.append))
        return notes[0]

    async def aexplain(self, query: str, config: RunnableConfig | None = None, **kwargs: Any) -> Explanation:
        """The same, without blocking the event loop."""
        notes: list[Explanation] = []
        await self._in_arun(query, config, kwargs, partial(self._aanswer, query, kwargs, notes.append))
        return notes[0]

    def _answer(
        self,
        query: str,
        kwargs: Mapping[str, Any],
        note: Note | None,
        run: CallbackManagerForRetrieverRun,
        config: RunnableConfig,
    ) -> list[Document]:
        asked = self._asked(query, kwargs, run, config, explain=note is not None)
        return _noted(drive(ask(self._panel, asked), limit=config.get("max_concurrency")), note)

    async def _aanswer(
        self,
        query: str,
        kwargs: Mapping[str, Any],
        note: Note | None,
        run: AsyncCallbackManagerForRetrieverRun,
        config: RunnableConfig,
    ) -> list[Document]:
        asked = self._asked(query, kwargs, run, config, explain=note is not None)._replace(is_async=True)
        return _noted(await adrive(ask(self._panel, asked), limit=config.get("max_concurrency")), note)

    def _asked(
        self, query: str, kwargs: Mapping[str, Any], run: RunManager, config: RunnableConfig, *, explain: bool
    ) -> Asked:
        for name in kwargs:
            if name not in _CALL:
                raise ConfigError(f"invoke does not know {name!r}: it takes {', '.join(_CALL)}")
        said = {name: getattr(self, name) for name in _CALL}
        said.update({name: value for name, value in kwargs.items() if value is not None})
        if "k" in kwargs:
            check_k(said["k"])
        if kwargs.get("search_kwargs"):
            said["search_kwargs"] = _joined(self.search_kwargs, kwargs["search_kwargs"], self._panel)
        return Asked(query, run, config, explain=explain, **said)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
        with_scores: bool | None = None,
        as_of: Any = None,
        namespace: str | None = None,
        min_confidence: float | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        said = {"k": k, "filter": filter, "with_scores": with_scores, "as_of": as_of, "namespace": namespace}
        return self._answer(query, {**kwargs, **said, "min_confidence": min_confidence}, None, run_manager, {})

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        **kwargs: Any,
    ) -> list[Document]:
        return await self._aanswer(query, kwargs, None, run_manager, {})


def _noted(found: Found, note: Note | None) -> list[Document]:
    if note is not None and found.explanation is not None:
        note(found.explanation)
    return found.documents


def _known(cls: type[FusionRetriever], settings: Mapping[str, Any]) -> dict[str, Any]:
    refuse_unknown(cls, settings)
    return {name: settings.get(name) for name in cls.model_fields}


def _panel(given: Mapping[str, Any]) -> Panel:
    """The settings checked and put together; every mistake is a ConfigError that says what is allowed."""
    shape = {name: given[name] for name in _SHAPE}
    on_error: OnError = given["on_error"] or "raise"
    _check_policy(on_error, given["timeout"])
    check_k(given["k"])
    if given["memory"] is not None:
        return _memory_panel(given, shape, on_error)
    arms = arms_of(given["retrievers"] or [])
    names = [arm.name for arm in arms]
    if not arms:
        raise ConfigError("retrievers = [] is not allowed: give at least one retriever, or a memory")
    fusion = shaped(given["recipe"], **shape, arms=names)
    fusion.weights_for(names)
    if isinstance(given["timeout"], Mapping):
        _check_names("timeout", given["timeout"], names)
    panel = Panel(fusion, arms, None, None, given["id_key"], on_error, given["timeout"], given["clock"])
    _joined({}, given["search_kwargs"] or {}, panel)
    return panel


def _memory_panel(given: Mapping[str, Any], shape: Mapping[str, Any], on_error: OnError) -> Panel:
    for name in ("retrievers", "id_key", "search_kwargs", "clock"):
        if given[name]:
            raise ConfigError(
                f"{name} = {given[name]!r} does not go with a memory: it has arms, ids and clock of its own"
            )
    memory = given["memory"]
    if isinstance(given["timeout"], Mapping):
        _check_names("timeout", given["timeout"], ["memory"])
    fusion = shaped(given["recipe"] or memory.recipe, **shape, arms=MEMORY_ARMS)
    recipe = None if fusion == memory.recipe else fusion
    return Panel(fusion, (), memory, recipe, None, on_error, given["timeout"])


def _check_names(setting: str, given: Iterable[str], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise ConfigError(f"{setting} names unknown arm {name!r}: the arms are {', '.join(map(repr, names))}")


def _check_policy(on_error: str, timeout: Any) -> None:
    for seconds in timeout.values() if isinstance(timeout, Mapping) else [timeout]:
        check_policy(on_error, seconds)


def _joined(
    before: Mapping[str, Mapping[str, Any]], said: Mapping[str, Mapping[str, Any]], panel: Panel
) -> dict[str, dict[str, Any]]:
    """Each arm's keywords, those of the call over those of the set-up."""
    if not isinstance(said, Mapping) or not all(isinstance(own, Mapping) for own in said.values()):
        raise ConfigError(f"search_kwargs = {said!r} is not allowed: keywords by arm, such as {{'vector': {{'k': 5}}}}")
    _check_names("search_kwargs", said, [arm.name for arm in panel.arms])
    return {name: {**before.get(name, {}), **said.get(name, {})} for name in {**before, **said}}
