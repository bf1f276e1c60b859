"""hybridmem for LlamaIndex: retrievers that fuse, remember and explain, on llama-index-core alone.

| name | what it is |
|---|---|
| `FusionRetriever` | any retrievers, or a `HybridMemory`, fused and explained |
| `QueryFusionRetriever` | the drop-in for LlamaIndex's class of that name |
| `BM25Retriever`, `VectorRetriever`, `GraphRetriever` | the arms, each a retriever of its own |
| `HybridMemoryBlock` | a block for LlamaIndex's `Memory`, each session by itself |
| `LocalEmbedding` | an offline embedding model for any index |
| `add_nodes` | nodes into a `HybridMemory` |
| `memory_tools` | tools to search, save and forget for an agent |
| `to_filter` | LlamaIndex's `MetadataFilters` as hybridmem's filter |
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hybridmem.errors import MissingExtraError

try:
    _core = find_spec("llama_index.core")
except ModuleNotFoundError:
    _core = None
if _core is None:
    raise MissingExtraError("llamaindex", needs="llama-index-core")

if TYPE_CHECKING:
    from llamaindex_hybridmem._conversion import aadd_nodes, add_nodes, as_scorer
    from llamaindex_hybridmem._vectorstores import to_filter
    from llamaindex_hybridmem.bm25 import BM25Retriever
    from llamaindex_hybridmem.embeddings import LocalEmbedding
    from llamaindex_hybridmem.fusion import FusedNode, FusionRetriever
    from llamaindex_hybridmem.graph import GraphRetriever
    from llamaindex_hybridmem.memory_block import HybridMemoryBlock
    from llamaindex_hybridmem.query_fusion import FUSION_MODES, QueryFusionRetriever
    from llamaindex_hybridmem.tools import memory_tools
    from llamaindex_hybridmem.vector import VectorRetriever

__all__ = [
    "FUSION_MODES",
    "BM25Retriever",
    "FusedNode",
    "FusionRetriever",
    "GraphRetriever",
    "HybridMemoryBlock",
    "LocalEmbedding",
    "QueryFusionRetriever",
    "VectorRetriever",
    "aadd_nodes",
    "add_nodes",
    "as_scorer",
    "memory_tools",
    "to_filter",
]

_HOMES = {
    "BM25Retriever": "bm25",
    "VectorRetriever": "vector",
    "GraphRetriever": "graph",
    "FusionRetriever": "fusion",
    "FusedNode": "fusion",
    "QueryFusionRetriever": "query_fusion",
    "FUSION_MODES": "query_fusion",
    "HybridMemoryBlock": "memory_block",
    "LocalEmbedding": "embeddings",
    "aadd_nodes": "_conversion",
    "add_nodes": "_conversion",
    "as_scorer": "_conversion",
    "memory_tools": "tools",
    "to_filter": "_vectorstores",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that `import llamaindex_hybridmem` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {', '.join(__all__)}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
