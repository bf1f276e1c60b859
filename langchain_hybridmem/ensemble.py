"""EnsembleRetriever: the old class's name and contract on the new engine. Changing the import line is enough."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.utils import ConfigurableFieldSpec, get_unique_config_specs
from pydantic import PrivateAttr, model_validator

from hybridmem.core.fanout import Job, Outcome, apply_policy, arun, check_policy, run
from hybridmem.errors import ConfigError
from langchain_hybridmem._arms import Request, Wish, are_documents, arms_of, documents_of
from langchain_hybridmem._conversion import with_metadata
from langchain_hybridmem._runs import Lane, ParentRetriever, RunManager, child_config
from langchain_hybridmem._settings import check_k

__all__ = ["EnsembleRetriever"]

_TEXT = attrgetter("page_content")
_CALL = ("k", "filter")


class EnsembleRetriever(ParentRetriever):
    """Weighted reciprocal rank fusion, Σ w / (rank + c), of several retrievers: a drop-in for LangChain's class.

    The same documents in the same order: the first-seen document of each text (or `id_key`), the whole union, ties by
    retriever and rank. The arms run at the same time. A document that stands twice in one list counts once; one
    without the `id_key` is known by its id or text. New, and off unless asked for: `k`, `filter` (here or in `invoke`),
    `with_scores`, `merge_metadata`, `on_error="skip"` and `timeout`. For gates, half-life and receipts see
    `FusionRetriever`.
    """

    retrievers: list[RetrieverLike]
    weights: list[float]
    c: int = 60
    id_key: str | None = None
    k: int | None = None
    """How many documents to return; None: the whole union, as ever."""
    filter: Any = None
    """`{"lang": "en"}`, or a function of the document."""
    with_scores: bool = False
    """Return copies with the fused score in `metadata["score"]`."""
    merge_metadata: bool = False
    """Return copies that also have what later duplicates know."""
    on_error: Literal["raise", "skip"] = "raise"
    timeout: float | None = None
    """Seconds that each retriever may take."""

    _lane: Lane = PrivateAttr(default_factory=Lane)

    if not TYPE_CHECKING:  # type checkers read the fields above instead

        def __init__(self, **settings: Any) -> None:
            """Refuse what the old class accepted and then failed on, with an error that says what is allowed."""
            _check(settings)
            super().__init__(**settings)

    @model_validator(mode="before")
    @classmethod
    def _complete_weights(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("retrievers"), Sequence):
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
        return get_unique_config_specs(spec for retriever in self.retrievers for spec in retriever.config_specs)

    # --- asking

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """The fused documents, best first; `k` and `filter` can be said here."""
        said = {name: kwargs[name] for name in _CALL if name in kwargs} if kwargs else {}
        return self._in_run(
            input, config, kwargs, lambda run, config: self.rank_fusion(input, run_manager=run, config=config, **said)
        )

    async def ainvoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """The same, without blocking the event loop."""
        said = {name: kwargs[name] for name in _CALL if name in kwargs}
        return await self._in_arun(
            input, config, kwargs, lambda run, config: self.arank_fusion(input, run_manager=run, config=config, **said)
        )

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None, filter: Any = None
    ) -> list[Document]:
        return self.rank_fusion(query, run_manager, k=k, filter=filter)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None, filter: Any = None
    ) -> list[Document]:
        return await self.arank_fusion(query, run_manager, k=k, filter=filter)

    def rank_fusion(
        self,
        query: str,
        run_manager: CallbackManagerForRetrieverRun,
        *,
        config: RunnableConfig | None = None,
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        """Ask the retrievers at the same time and fuse what they bring."""
        config = ensure_config() if config is None else config
        lane = self._lane
        if lane.quick and filter is None and self._is_plain():
            return self._cut(self.weighted_reciprocal_rank(self._in_turn(lane, query, run_manager, config)), k)
        requests = self._requests(run_manager, config, filter)
        jobs = [
            Job(f"retriever_{i}", partial(request.call, query), self.timeout, pace)
            for i, (request, pace) in enumerate(zip(requests, lane.paces(len(requests)), strict=True), start=1)
        ]
        outcomes = run(jobs, limit=config.get("max_concurrency"))
        lane.learn()
        return self._fused(outcomes, requests, k)

    async def arank_fusion(
        self,
        query: str,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        *,
        config: RunnableConfig | None = None,
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        """The same, without blocking the event loop."""
        config = ensure_config() if config is None else config
        requests = self._requests(run_manager, config, filter)
        jobs = [
            Job(f"retriever_{i}", partial(request.acall, query), self.timeout, is_async=True)
            for i, request in enumerate(requests, start=1)
        ]
        return self._fused(await arun(jobs, limit=config.get("max_concurrency")), requests, k)

    def _is_plain(self) -> bool:
        return self.filter is None and self.timeout is None and self.on_error == "raise"

    def _in_turn(
        self, lane: Lane, query: str, run: CallbackManagerForRetrieverRun, config: RunnableConfig
    ) -> list[list[Document]]:
        """Retrievers that answer faster than a thread starts, without any ceremony."""
        started = time.perf_counter()
        lists: list[list[Document]] = []
        for place, retriever in enumerate(self.retrievers, start=1):
            value = retriever.invoke(query, child_config(config, run, place))
            lists.append(value if are_documents(value) else documents_of(value, f"retriever_{place}"))
        lane.took((time.perf_counter() - started) / max(1, len(lists)))
        return lists

    def _requests(self, run: RunManager, config: RunnableConfig, filter: Any) -> list[Request]:
        configs = [child_config(config, run, place) for place in range(1, len(self.retrievers) + 1)]
        wanted = self.filter if filter is None else filter
        if wanted is None:
            return [Request(retriever, own, {}) for retriever, own in zip(self.retrievers, configs, strict=True)]
        wish = Wish(filter=wanted, scores=False)
        return [arm.request(wish, own) for arm, own in zip(arms_of(self.retrievers), configs, strict=True)]

    def _fused(self, outcomes: Sequence[Outcome], requests: Sequence[Request], k: int | None) -> list[Document]:
        apply_policy(outcomes, on_error=self.on_error, wrap=False)
        lists: list[list[Document]] = []
        for (name, value, error, _), request in zip(outcomes, requests, strict=True):
            if error is not None:
                lists.append([])
            elif request.check is None:
                lists.append(documents_of(value, name))
            else:
                lists.append(request.read(value, name).documents)
        return self._cut(self.weighted_reciprocal_rank(lists), k)

    def _cut(self, found: list[Document], k: int | None) -> list[Document]:
        cut = self.k if k is None else k
        if cut is None:
            return found
        check_k(cut)
        return found[:cut]

    # --- fusing

    def weighted_reciprocal_rank(self, doc_lists: list[list[Document]]) -> list[Document]:
        """Σ w / (rank + c) over the lists, ranks from 1, best first; ties by list, then rank."""
        if len(doc_lists) != len(self.weights):
            raise ValueError("Number of rank lists must be equal to the number of weights.")
        columns = self._keys(doc_lists)
        first: dict[Any, Document] = {}
        scores: dict[Any, float] = {}
        for keys, documents, weight in zip(columns, doc_lists, self.weights, strict=True):
            shares = _shares(len(keys), weight, self.c)
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
        """What tells documents apart: the text, or `id_key`; one without it is known by its id, else its text."""
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
        """Copies with what was asked for in their metadata; what came in is never changed."""
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
    """A document that stands twice in one list counts once, where it stands best."""
    best: dict[Any, tuple[Any, Document, float]] = {}
    for row in zip(keys, documents, shares, strict=True):
        best.setdefault(row[0], row)
    return best.values()


@lru_cache(maxsize=256)
def _shares(count: int, weight: float, c: float) -> list[float]:
    return [weight / (rank + c) for rank in range(1, count + 1)]


def _check(settings: Mapping[str, Any]) -> None:
    """The mistakes that the old class let through until a query failed or came back in a wrong order."""
    retrievers = settings.get("retrievers")
    if isinstance(retrievers, Sequence) and not retrievers:
        raise ConfigError("retrievers = [] is not allowed: give at least one retriever")
    for weight in settings.get("weights") or []:
        if isinstance(weight, int | float) and not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"weight {weight!r} is not allowed: weights are finite numbers from 0 up")
    c = settings.get("c", 60)
    if isinstance(c, int | float) and not (math.isfinite(c) and c >= 0):
        raise ConfigError(f"c = {c!r} is not allowed: c is a number from 0 up")
    check_k(settings.get("k"))
    check_policy(settings.get("on_error", "raise"), settings.get("timeout"))
