"""EnsembleRetriever: a drop-in for LangChain's class of that name; changing the import line is enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.utils import ConfigurableFieldSpec, get_unique_config_specs
from pydantic import PrivateAttr, model_validator
from typing_extensions import Unpack

from hybridmem.core.fanout import Job, Latency, Outcome, apply_policy, arun, check_policy, run
from hybridmem.errors import ConfigError
from hybridmem.fusion.merge import rank_shares
from langchain_hybridmem._arms import ArmOptions, RunnableCall, arms_of, documents_of
from langchain_hybridmem._conversion import with_metadata
from langchain_hybridmem._runs import ParentRetriever, RunManager, child_config
from langchain_hybridmem._settings import FilterOption, check_k, check_query

if TYPE_CHECKING:
    from hybridmem.retrievers.arms import ArmHits
    from langchain_hybridmem._settings import EnsembleCall

__all__ = ["EnsembleRetriever"]

_TEXT = attrgetter("page_content")
_CALL = ("k", "filter")


class EnsembleRetriever(ParentRetriever):
    """Weighted reciprocal rank fusion, Σ w / (rank + c), of several retrievers: a drop-in for LangChain's class.

    The same documents in the same order: the first-seen document of each text (or `id_key`), the whole union, ties by
    retriever and rank. The arms run at the same time. A document that is twice in one list counts once; one without
    the `id_key` is identified by its id or text. New, and off by default: `k`, `filter` (here or in `invoke`),
    `with_scores`, `merge_metadata`, `on_error="skip"` and `timeout`. For gates, half-life and receipts see
    `FusionRetriever`.
    """

    retrievers: list[RetrieverLike]
    weights: list[float]
    c: int = 60
    id_key: str | None = None
    k: int | None = None
    """How many documents to return; None: the whole union, as the original does."""
    filter: FilterOption | None = None
    """`{"lang": "en"}`, or a function of the document."""
    with_scores: bool = False
    """Return copies with the fused score in `metadata["score"]`."""
    merge_metadata: bool = False
    """Return copies that also have the metadata of later duplicates."""
    on_error: Literal["raise", "skip"] = "raise"
    timeout: float | None = None
    """Seconds that each retriever may take."""

    _latencies: list[Latency] = PrivateAttr(default_factory=list)

    if not TYPE_CHECKING:  # type checkers read the fields above instead

        def __init__(self, **settings: Any) -> None:  # refuses what the original accepts and then fails on
            _check(settings)
            super().__init__(**settings)

    @model_validator(mode="before")
    @classmethod
    def _set_weights(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("retrievers"), Sequence | Mapping):
            return values
        count = len(values["retrievers"])
        weights = values.get("weights")
        if weights is None or len(weights) == 0:
            return {**values, "weights": [1 / count] * count if count else []}
        if len(weights) != count:
            raise ValueError(
                "Length of weights must match number of retrievers "
                f"(got {len(weights)} weights for {count} retrievers)."
            )
        if not any(weight > 0 for weight in weights):
            raise ValueError("At least one ensemble weight must be greater than zero.")
        return values

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What can be configured in the retrievers."""
        return get_unique_config_specs(spec for retriever in self._children() for spec in retriever.config_specs)

    def _children(self) -> list[RetrieverLike]:
        """The retrievers; a subclass may keep them in a dict."""
        given: Any = self.retrievers
        return list(given.values()) if isinstance(given, Mapping) else list(given)

    # --- search

    def invoke(  # type: ignore[override]
        self, input: str, config: RunnableConfig | None = None, **kwargs: Unpack[EnsembleCall]
    ) -> list[Document]:
        """The fused documents, best first; `k` and `filter` can be given here."""
        given: dict[str, Any] = dict(kwargs)
        own = {name: given[name] for name in _CALL if name in given}

        def work(run: CallbackManagerForRetrieverRun, config: RunnableConfig) -> list[Document]:
            return self.rank_fusion(input, run_manager=run, config=config, **own)

        return self._in_run(check_query(input) if input is None else input, config, given, work)

    async def ainvoke(  # type: ignore[override]
        self, input: str, config: RunnableConfig | None = None, **kwargs: Unpack[EnsembleCall]
    ) -> list[Document]:
        """The same, without blocking the event loop."""
        given: dict[str, Any] = dict(kwargs)
        own = {name: given[name] for name in _CALL if name in given}

        async def work(run: AsyncCallbackManagerForRetrieverRun, config: RunnableConfig) -> list[Document]:
            return await self.arank_fusion(input, run_manager=run, config=config, **own)

        return await self._in_arun(check_query(input) if input is None else input, config, given, work)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: FilterOption | None = None,
    ) -> list[Document]:
        return self.rank_fusion(query, run_manager, k=k, filter=filter)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: FilterOption | None = None,
    ) -> list[Document]:
        return await self.arank_fusion(query, run_manager, k=k, filter=filter)

    def rank_fusion(
        self,
        query: str,
        run_manager: CallbackManagerForRetrieverRun,
        *,
        config: RunnableConfig | None = None,
        k: int | None = None,
        filter: FilterOption | None = None,
    ) -> list[Document]:
        """Ask the retrievers at the same time and fuse their lists."""
        config = ensure_config() if config is None else config
        jobs, readers = self._jobs(query, run_manager, config, filter)
        outcomes = run(jobs, limit=config.get("max_concurrency"), on_error=self.on_error)
        return self._fused(outcomes, readers, k)

    async def arank_fusion(
        self,
        query: str,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        *,
        config: RunnableConfig | None = None,
        k: int | None = None,
        filter: FilterOption | None = None,
    ) -> list[Document]:
        """The same, without blocking the event loop."""
        config = ensure_config() if config is None else config
        jobs, readers = self._jobs(query, run_manager, config, filter)
        outcomes = await arun(jobs, limit=config.get("max_concurrency"), on_error=self.on_error)
        return self._fused(outcomes, readers, k)

    def _jobs(
        self, query: str, run: RunManager, config: RunnableConfig, filter: FilterOption | None
    ) -> tuple[list[Job], list[Callable[[Any], ArmHits] | None]]:
        """One job for each retriever, and what reads its answer where a filter has to be applied."""
        children = self._children()
        if len(self._latencies) != len(children):
            self._latencies = [Latency() for _ in children]
        jobs: list[Job] = []
        readers: list[Callable[[Any], ArmHits] | None] = []
        wanted = self.filter if filter is None else filter
        arms = None if wanted is None else list(arms_of(children).values())
        for place, (child, latency) in enumerate(zip(children, self._latencies, strict=True), start=1):
            own = child_config(config, run, place)
            name = f"retriever_{place}"
            if arms is None:
                call = RunnableCall(child, own, {})
                jobs.append(Job(name, partial(call.now, query), partial(call.later, query), self.timeout, latency))
                readers.append(None)
            else:
                request = arms[place - 1].request(query, ArmOptions(filter=wanted, scores=False), own)
                jobs.append(Job(name, request.call, request.acall, self.timeout, latency))
                readers.append(request.read)
        return jobs, readers

    def _fused(
        self, outcomes: Sequence[Outcome], readers: Sequence[Callable[[Any], ArmHits] | None], k: int | None
    ) -> list[Document]:
        apply_policy(outcomes, on_error=self.on_error, wrap=False)
        lists: list[list[Document]] = []
        for (name, value, error, _), read in zip(outcomes, readers, strict=True):
            if error is not None:
                lists.append([])
            else:
                lists.append(documents_of(value, name) if read is None else read(value).items)
        return self._cut(self.weighted_reciprocal_rank(lists), k)

    def _cut(self, found: list[Document], k: int | None) -> list[Document]:
        cut = self.k if k is None else k
        if cut is None:
            return found
        check_k(cut)
        return found[:cut]

    # --- fusion

    def weighted_reciprocal_rank(self, doc_lists: list[list[Document]]) -> list[Document]:
        """Σ w / (rank + c) over the lists, ranks from 1, best first; ties by list, then rank."""
        if len(doc_lists) != len(self.weights):
            raise ValueError("Number of rank lists must be equal to the number of weights.")
        columns = self._keys(doc_lists)
        first: dict[Any, Document] = {}
        scores: dict[Any, float] = {}
        for keys, documents, weight in zip(columns, doc_lists, self.weights, strict=True):
            shares = rank_shares(len(keys), weight, self.c)
            once = len(set(keys)) == len(keys)
            for key, document, share in zip(keys, documents, shares) if once else _once(keys, documents, shares):  # noqa: B905
                if key in scores:
                    scores[key] += share
                else:
                    scores[key] = share
                    first[key] = document
        order = sorted(scores, key=scores.__getitem__, reverse=True)
        found = list(map(first.__getitem__, order))
        if not (self.with_scores or self.merge_metadata):
            return found
        return self._marked(found, order, scores, columns, doc_lists)

    def _keys(self, doc_lists: Sequence[Sequence[Document]]) -> list[list[Any]]:
        """The identity of each document: the text, or `id_key`; without that, its id or text."""
        name = self.id_key
        if name is None:
            return [list(map(_TEXT, documents)) for documents in doc_lists]
        return [[doc.metadata.get(name, doc.id or doc.page_content) for doc in documents] for documents in doc_lists]

    def _marked(
        self,
        found: Sequence[Document],
        order: Sequence[Any],
        scores: Mapping[Any, float],
        columns: Sequence[Sequence[Any]],
        doc_lists: Sequence[Sequence[Document]],
    ) -> list[Document]:
        """Copies with scores and merged metadata; the input documents are never changed."""
        merged: dict[Any, dict[str, Any]] = {key: doc.metadata for key, doc in zip(order, found, strict=True)}
        if self.merge_metadata:
            for keys, documents in zip(columns, doc_lists, strict=True):
                for key, document in zip(keys, documents, strict=True):
                    merged[key] = {**document.metadata, **merged[key]}
        if self.with_scores:
            merged = {key: {**metadata, "score": scores[key]} for key, metadata in merged.items()}
        return [with_metadata(document, dict(merged[key])) for key, document in zip(order, found, strict=True)]


def _once(
    keys: Sequence[Any], documents: Sequence[Document], shares: Sequence[float]
) -> Iterable[tuple[Any, Document, float]]:
    """The first entry of each key: a document that is twice in one list counts once, at its best rank."""
    best: dict[Any, tuple[Any, Document, float]] = {}
    for row in zip(keys, documents, shares, strict=True):
        best.setdefault(row[0], row)
    return best.values()


def _check(settings: Mapping[str, Any]) -> None:
    """Refuse settings with which the original fails at the first query or ranks wrongly."""
    retrievers = settings.get("retrievers")
    if isinstance(retrievers, Sequence | Mapping) and not retrievers:
        raise ConfigError("retrievers = [] is not allowed: give at least one retriever")
    for weight in settings.get("weights") or []:
        if isinstance(weight, int | float) and not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"weight {weight!r} is not allowed: weights are finite numbers from 0 up")
    c = settings.get("c", 60)
    if isinstance(c, int | float) and not (math.isfinite(c) and c >= 0):
        raise ConfigError(f"c = {c!r} is not allowed: c is a number from 0 up")
    check_k(settings.get("k"))
    check_policy(settings.get("on_error", "raise"), settings.get("timeout"))
