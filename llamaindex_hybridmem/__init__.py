"""hybridmem for LlamaIndex: retrievers that fuse, remember and explain, on llama-index-core alone.

| name | what it is |
|---|---|
| `FusionRetriever` | any retrievers, or a `HybridMemory`, fused and explained |
| `QueryFusionRetriever` | the drop-in for LlamaIndex's class of that name |
| `BM25Retriever`, `VectorRetriever`, `GraphRetriever` | the arms, each a retriever of its own |
| `HybridMemoryBlock` | a block for LlamaIndex's `Memory`, each session by itself |
| `to_filter` | LlamaIndex's `MetadataFilters` as hybridmem's filter |
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hybridmem.errors import MissingExtraError

_HOMES = {
    "BM25Retriever": "bm25",
    "VectorRetriever": "vector",
    "GraphRetriever": "graph",
    "FusionRetriever": "fusion",
    "FusedNode": "fusion",
    "QueryFusionRetriever": "query_fusion",
    "FUSION_MODES": "query_fusion",
    "HybridMemoryBlock": "memory_block",
    "to_filter": "_filters",
}

__all__ = [  # noqa: PLE0604  loaded when they are first used, so that importing this package stays light
    *_HOMES,
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "llama_index":
            raise
        raise MissingExtraError("llamaindex", needs="llama-index-core") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
