"""Keywords of `from_nodes`, `from_memory` and the like, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import IndexNode, MetadataMode
from llama_index.core.vector_stores.types import VectorStoreQueryMode

from hybridmem.core.types import Direction
from llamaindex_hybridmem._settings import Filters

if TYPE_CHECKING:
    from hybridmem.indexes.graph.index import GraphSettings
    from hybridmem.retrievers.options import DedupOption, GateOption, HalfLifeOption, RecipeOption, TimeOption

__all__ = [
    "BM25DefaultsSettings",
    "BM25Settings",
    "FusionCall",
    "GraphSearchSettings",
    "MemoryFusionSettings",
    "MemoryGraphSettings",
    "MemorySettings",
    "StoreSettings",
    "VectorSettings",
]


class _Retriever(TypedDict, total=False):
    callback_manager: CallbackManager | None
    objects: list[IndexNode] | None
    object_map: dict[str, Any] | None
    verbose: bool


class FusionCall(TypedDict, total=False):
    """Settings of one call of a FusionRetriever."""

    similarity_top_k: int | None
    filters: Filters
    as_of: TimeOption
    namespace: str | None
    min_confidence: float | None


class MemorySettings(_Retriever, total=False):
    """Settings of `BM25Retriever.from_memory`."""

    similarity_top_k: int
    filters: Filters
    as_of: TimeOption
    namespace: str | None


class BM25DefaultsSettings(TypedDict, total=False):
    """Further settings of `BM25Retriever.from_defaults`."""

    callback_manager: CallbackManager | None
    objects: list[IndexNode] | None
    object_map: dict[str, Any] | None
    engine: Literal["hybridmem", "fts5", "rank-bm25", "bm25s"] | None
    k1: float | None
    b: float | None
    preprocess_func: Callable[[str], list[str]] | None
    tokenizer: Callable[[str], list[str]] | None
    bm25_variant: str
    bm25_params: Mapping[str, Any] | None
    fields: Mapping[str, str] | None
    metadata_mode: MetadataMode
    persist_path: str | Path | None
    corpus_weight_mask: Sequence[int] | None


class BM25Settings(BM25DefaultsSettings, total=False):
    """Settings of `BM25Retriever.from_nodes` and `from_persist_dir`."""

    similarity_top_k: int
    filters: Filters
    language: str | None
    stemmer: Any
    skip_stemming: bool
    token_pattern: str | None
    verbose: bool


class VectorSettings(MemorySettings, total=False):
    """Settings of `VectorRetriever.from_nodes` and `from_memory`."""

    score_threshold: float | None


class StoreSettings(VectorSettings, total=False):
    """Settings of `VectorRetriever.from_defaults`."""

    embed_model: Any
    node_ids: list[str] | None
    doc_ids: list[str] | None
    vector_store_query_mode: VectorStoreQueryMode | str
    alpha: float | None
    sparse_top_k: int | None
    hybrid_top_k: int | None
    vector_store_kwargs: Mapping[str, Any] | None


class MemoryGraphSettings(MemorySettings, total=False):
    """Settings of `GraphRetriever.from_memory`."""

    hops: int
    decay: float
    direction: Direction | None
    weights: Mapping[str, float] | None


class GraphSearchSettings(MemoryGraphSettings, total=False):
    """Settings of `GraphRetriever.from_nodes` and `from_store`."""

    seeds: int | None
    thread_key: str
    links_key: str | Sequence[str]
    title_key: str | Sequence[str]
    graph: GraphSettings | None
    edges: Sequence[tuple[str, str]] | None


class MemoryFusionSettings(_Retriever, total=False):
    """Settings of `FusionRetriever.from_memory`."""

    similarity_top_k: int | None
    filters: Filters
    as_of: TimeOption
    namespace: str | None
    min_confidence: float | None
    recipe: RecipeOption
    mode: str | None
    retriever_weights: Sequence[float] | Mapping[str, float] | None
    c: float | None
    gate: GateOption
    dedup: DedupOption
    half_life: HalfLifeOption
