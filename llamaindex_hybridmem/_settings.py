"""Settings of our retrievers: their types, the keywords of one call, and validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypedDict

from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import IndexNode, MetadataMode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters, VectorStoreQueryMode

from hybridmem.core import validation
from hybridmem.core.types import Direction
from llamaindex_hybridmem._vectorstores import to_filter

if TYPE_CHECKING:
    from hybridmem.embedding.sources import EmbeddingOption
    from hybridmem.indexes.graph.index import GraphSettings
    from hybridmem.retrievers.arms import DedupOption, GateOption, HalfLifeOption, RecipeOption, TimeOption

__all__ = [
    "BM25DefaultsSettings",
    "BM25FolderSettings",
    "BM25Settings",
    "BM25sFiles",
    "Filters",
    "FusionCall",
    "GraphSearchSettings",
    "MemoryFusionSettings",
    "MemoryGraphSettings",
    "MemorySettings",
    "Settings",
    "StoreSettings",
    "VectorSettings",
    "WordStemmer",
    "check_k",
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
    context: int | None


class MemorySettings(_Retriever, total=False):
    """Settings of `BM25Retriever.from_memory`."""

    similarity_top_k: int
    filters: Filters
    as_of: TimeOption
    namespace: str | None


class WordStemmer(Protocol):
    """A stemmer such as `Stemmer.Stemmer("english")`."""

    def stemWord(self, word: str, /) -> str:  # noqa: N802 - PyStemmer's name
        """The stem of a word."""
        ...


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
    stemmer: WordStemmer | None
    skip_stemming: bool
    token_pattern: str | None
    verbose: bool


class BM25sFiles(TypedDict, total=False):
    """Options of the files of the bm25s library, which we ignore: ours is one SQLite file."""

    allow_pickle: bool
    mmap: bool
    show_progress: bool


class BM25FolderSettings(BM25Settings, BM25sFiles, total=False):
    """Settings of `BM25Retriever.from_persist_dir`."""


class VectorSettings(MemorySettings, total=False):
    """Settings of `VectorRetriever.from_nodes` and `from_memory`."""

    score_threshold: float | None


class StoreSettings(VectorSettings, total=False):
    """Settings of `VectorRetriever.from_defaults`."""

    embed_model: EmbeddingOption | None
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
    seed_scale: Literal["max", "range"]
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
    context: int | None
    recipe: RecipeOption
    mode: str | None
    retriever_weights: Sequence[float] | Mapping[str, float] | None
    c: float | None
    gate: GateOption
    dedup: DedupOption
    half_life: HalfLifeOption


Filters = MetadataFilters | MetadataFilter | Mapping[str, Any] | None


class Settings(NamedTuple):
    """The number of results and the filter, and further settings such as `as_of`."""

    k: int | None = None
    filter: Mapping[str, Any] | None = None
    filters: MetadataFilters | None = None
    """The filter as it was given, when it was given in LlamaIndex's own classes."""
    more: Mapping[str, Any] = {}
    """`as_of`, `namespace`, `min_confidence`, `context`, `score_threshold`, and those of the graph."""

    def changed(
        self,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        min_confidence: float | None = None,
        score_threshold: float | None = None,
        context: int | None = None,
        **graph: Any,
    ) -> Settings:
        """The same with these settings; None leaves one as it is."""
        changed = self
        if similarity_top_k is not None:
            changed = changed._replace(k=check_k(similarity_top_k))
        if filters is not None:
            native = filters if isinstance(filters, MetadataFilters) else None
            changed = changed._replace(filter=to_filter(filters), filters=native)
        more = {"as_of": as_of, "namespace": namespace, "min_confidence": min_confidence}
        more.update(score_threshold=score_threshold, context=context, **graph)
        given = {name: value for name, value in more.items() if value is not None}
        return changed._replace(more={**self.more, **given}) if given else changed


def check_k(k: Any, /, *, name: str = "similarity_top_k") -> int:
    """A number of results as an int."""
    return validation.k(k, name=name)
