"""Keywords of `invoke`, `from_documents` and the like, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict
from uuid import UUID

from hybridmem.core.types import Direction
from langchain_hybridmem._types import (
    DedupOption,
    FilterOption,
    GateOption,
    GraphSettings,
    HalfLifeOption,
    IdKey,
    RecipeOption,
    TimeOption,
)

__all__ = [
    "BM25Call",
    "BM25Settings",
    "EnsembleCall",
    "FusionCall",
    "GraphCall",
    "GraphRetrieverSettings",
    "MemoryBM25Settings",
    "MemoryFusionSettings",
    "MemoryGraphSettings",
    "VectorCall",
    "VectorSettings",
]


class _Run(TypedDict, total=False):
    run_id: UUID
    verbose: bool


class _Retriever(TypedDict, total=False):
    """Settings of every LangChain retriever."""

    name: str | None
    tags: list[str] | None
    metadata: dict[str, Any] | None


class EnsembleCall(_Run, total=False):
    """Keywords of `EnsembleRetriever.invoke`."""

    k: int | None
    filter: FilterOption | None


class BM25Call(_Run, total=False):
    """Keywords of `BM25Retriever.invoke`."""

    k: int | None
    filter: FilterOption | None
    with_scores: bool | None
    as_of: TimeOption
    namespace: str | None


class VectorCall(BM25Call, total=False):
    """Keywords of `VectorRetriever.invoke`."""

    score_threshold: float | None


class GraphCall(BM25Call, total=False):
    """Keywords of `GraphRetriever.invoke`."""

    hops: int | None
    decay: float | None
    direction: Direction | None
    weights: Mapping[str, float] | None
    edges: Sequence[tuple[str, str]] | None


class FusionCall(BM25Call, total=False):
    """Keywords of `FusionRetriever.invoke`."""

    search_kwargs: Mapping[str, Mapping[str, Any]] | None
    receipts: bool | None
    min_confidence: float | None


class MemoryBM25Settings(_Retriever, total=False):
    """Settings of `BM25Retriever.from_memory`."""

    k: int
    filter: FilterOption | None
    with_scores: bool
    as_of: TimeOption
    namespace: str | None


class BM25Settings(MemoryBM25Settings, total=False):
    """Settings of `BM25Retriever.from_documents` and `from_texts`."""

    engine: Literal["hybridmem", "fts5", "rank-bm25"] | None
    k1: float | None
    b: float | None
    bm25_variant: Literal["okapi", "l", "plus"]
    language: str | None
    fields: dict[str, str]
    persist_path: str | Path | None


class VectorSettings(MemoryBM25Settings, total=False):
    """Settings of `VectorRetriever.from_documents`, `from_texts` and `from_memory`."""

    score_threshold: float | None
    search_type: Literal["similarity", "similarity_score_threshold", "mmr"]
    search_kwargs: dict[str, Any]


class MemoryGraphSettings(MemoryBM25Settings, total=False):
    """Settings of `GraphRetriever.from_memory`."""

    hops: int
    decay: float
    direction: Direction | None
    weights: Mapping[str, float] | None


class GraphRetrieverSettings(MemoryGraphSettings, total=False):
    """Settings of `GraphRetriever.from_documents` and `from_store`."""

    seeds: int | None
    thread_key: str
    links_key: str | list[str]
    title_key: str | Sequence[str]
    id_key: IdKey
    graph: GraphSettings | None
    edges: Sequence[tuple[str, str]] | None


class MemoryFusionSettings(_Retriever, total=False):
    """Settings of `FusionRetriever.from_memory`."""

    k: int | None
    filter: FilterOption | None
    with_scores: bool
    receipts: bool
    as_of: TimeOption
    namespace: str | None
    min_confidence: float | None
    recipe: RecipeOption
    mode: Literal["rrf", "relative", "distribution", "convex"]
    weights: Sequence[float] | Mapping[str, float] | None
    c: float
    gate: GateOption
    dedup: DedupOption
    half_life: HalfLifeOption
    on_error: Literal["raise", "skip"]
    timeout: float | dict[str, float] | None
