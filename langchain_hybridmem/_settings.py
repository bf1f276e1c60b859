"""Settings of our retrievers: their types, the keywords of one call, and validation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

from langchain_core.documents import Document
from pydantic import ValidationError

from hybridmem.core import validation
from hybridmem.core.types import Direction
from hybridmem.errors import ConfigError
from hybridmem.retrievers.options import refuse_keywords

__all__ = [
    "AddingCall",
    "BM25Call",
    "BM25Settings",
    "Built",
    "ClockOption",
    "DedupOption",
    "DocumentSource",
    "EnsembleCall",
    "FilterOption",
    "FusionCall",
    "GateOption",
    "GraphCall",
    "GraphRetrieverSettings",
    "GraphSettings",
    "HalfLifeOption",
    "HybridCall",
    "HybridMemory",
    "IdKey",
    "MemoryBM25Settings",
    "MemoryFusionSettings",
    "MemoryGraphSettings",
    "NearestCall",
    "NewMemorySettings",
    "RecipeOption",
    "TimeOption",
    "VectorCall",
    "VectorCorpusSettings",
    "VectorSettings",
    "call_settings",
    "check_k",
    "check_query",
    "clear_errors",
    "documents_of_texts",
]


IdKey = str | Callable[[Document], Hashable] | None
"""What tells two documents apart: a metadata key, a function of the document, or None for `Document.id`, then text."""

if TYPE_CHECKING:
    from langchain_core.stores import BaseStore
    from langchain_core.vectorstores import VectorStore

    from hybridmem.indexes.graph.index import GraphSettings
    from hybridmem.memory.factory import VectorsOption
    from hybridmem.memory.memory import HybridMemory
    from hybridmem.memory.question import RecipeLike
    from hybridmem.memory.writing import OnDuplicate
    from hybridmem.retrievers.arms import DedupOption, GateOption, HalfLifeOption, RecipeOption, TimeOption
    from hybridmem.text.analyzer import Analyzer

    FilterOption = Mapping[str, Any] | Callable[[Document], bool]
    ClockOption = Callable[[], float]
    DocumentSource = VectorStore | BaseStore[str, Document] | Callable[[list[str]], Sequence[Document | None]]
else:
    ClockOption = DedupOption = DocumentSource = FilterOption = GateOption = GraphSettings = HalfLifeOption = Any
    HybridMemory = RecipeOption = TimeOption = Any


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
    context: int | None


class NearestCall(TypedDict, total=False):
    """Further keywords of searches by vector in a `HybridVectorStore`."""

    as_of: TimeOption


class HybridCall(NearestCall, total=False):
    """Further keywords of `HybridVectorStore.similarity_search` and the like, as in `HybridMemory.search`."""

    recipe: RecipeOption
    superseded: bool
    tokens: int | None
    touch: bool
    min_confidence: float | None


class AddingCall(TypedDict, total=False):
    """Further keywords of `HybridVectorStore.add_texts`."""

    batch_size: int
    ttl: float | timedelta | None
    on_duplicate: OnDuplicate


class NewMemorySettings(TypedDict, total=False):
    """Settings of the memory that `HybridVectorStore.from_texts` opens."""

    recipe: RecipeLike
    k: int
    analyzer: Analyzer | None
    k1: float | None
    b: float | None
    graph: GraphSettings | bool
    vectors: VectorsOption | None
    clock: ClockOption
    busy_timeout: float


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
    bm25_variant: Literal["okapi", "l", "plus"] | None
    language: str | None
    fields: dict[str, str]
    persist_path: str | Path | None


class VectorSettings(MemoryBM25Settings, total=False):
    """Settings of `VectorRetriever.from_documents`, `from_texts` and `from_memory`."""

    score_threshold: float | None
    search_type: Literal["similarity", "similarity_score_threshold", "mmr"]
    search_kwargs: dict[str, Any]


class VectorCorpusSettings(VectorSettings, total=False):
    """Settings of `VectorRetriever.from_texts`: also where the texts are kept."""

    persist_directory: str | PathLike[str] | None
    host: str | None
    port: int | None
    ssl: bool | None
    collection_name: str | None


class MemoryGraphSettings(MemoryBM25Settings, total=False):
    """Settings of `GraphRetriever.from_memory`."""

    hops: int
    decay: float
    direction: Direction | None
    weights: Mapping[str, float] | None


class GraphRetrieverSettings(MemoryGraphSettings, total=False):
    """Settings of `GraphRetriever.from_documents` and `from_store`."""

    seeds: int | None
    seed_scale: Literal["max", "range"]
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
    context: int
    recipe: RecipeOption
    mode: Literal["rrf", "relative", "distribution", "convex"]
    weights: Sequence[float] | Mapping[str, float] | None
    c: float
    gate: GateOption
    dedup: DedupOption
    half_life: HalfLifeOption
    on_error: Literal["raise", "skip"]
    timeout: float | dict[str, float] | None


_MEMORY_ONLY = ("as_of", "namespace")


class Built(NamedTuple):
    """The index that a retriever built from its documents, and the settings that it was built with.

    A retriever made from another's fields, as by `configurable_fields`, takes it over; it builds its own only where
    these settings differ.
    """

    index: Any
    settings: tuple[Any, ...]


def check_k(k: Any, /) -> None:
    """Validate a number of results; None means all."""
    if k is not None:
        validation.k(k)


def check_query(query: Any, /) -> str:
    """Validate a query."""
    if not isinstance(query, str):
        raise ConfigError(f"query = {validation.display(query)} is not allowed: invoke takes the query as a str")
    return query


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn pydantic's validation errors into ConfigErrors."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where} = {first['input']!r} is not allowed: {first['msg']}") from error


def call_settings(retriever: Any, names: Sequence[str], given: Mapping[str, Any], /) -> dict[str, Any]:
    """The settings of one call: those given to it, else those of the constructor."""
    refuse_keywords("invoke", given, names)
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = {**{name: getattr(retriever, name) for name in names}, **chosen}
    for name in _MEMORY_ONLY:
        if settings[name] is not None and retriever.memory is None:
            raise ConfigError(f"{name} = {settings[name]!r}: only a memory understands {name!r}")
    return settings


def documents_of_texts(
    texts: Iterable[str], metadatas: Iterable[Mapping[str, Any]] | None, ids: Iterable[str | None] | None, /
) -> list[Document]:
    """Documents of texts, with metadata and ids when given."""
    texts = list(texts)
    more = [{} for _ in texts] if metadatas is None else [dict(one) for one in metadatas]
    names = [None] * len(texts) if ids is None else list(ids)
    if not len(texts) == len(more) == len(names):
        raise ConfigError(f"{len(texts)} texts, {len(more)} metadatas, {len(names)} ids: give one for each text")
    return [Document(text, metadata=one, id=name) for text, one, name in zip(texts, more, names, strict=True)]
