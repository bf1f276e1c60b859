"""hybridmem for LangChain: BM25, vector and graph retrievers, fused, scored and explained.

| name | what it is |
|---|---|
| `BM25Retriever` | exact BM25 over documents that can change |
| `VectorRetriever` | vector search over any vector store, Chroma or a memory |
| `GraphRetriever` | hits and related documents, by spreading activation |
| `FusionRetriever` | any retrievers, or a HybridMemory, fused by a recipe |
| `EnsembleRetriever` | the drop-in for LangChain's class of that name |
| `HybridStore` | LangGraph's store over a HybridMemory |
| `LocalEmbeddings` | offline embeddings for any vector store |
| `HybridVectorStore` | LangChain's `VectorStore` over a HybridMemory |
| `MemoryMiddleware` | recall and saving for `create_agent`, without tool calls |
| `add_documents` | documents into a HybridMemory |
| `as_scorer` | a reranker of the framework as a function, for `Rerank` |
| `memory_tools` | tools to search, save and forget for an agent |
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hybridmem.errors import MissingExtraError

try:
    _core = find_spec("langchain_core")
except ModuleNotFoundError:
    _core = None
if _core is None:
    raise MissingExtraError("langchain", needs="langchain-core")

if TYPE_CHECKING:
    from langchain_hybridmem._conversion import aadd_documents, add_documents, as_scorer
    from langchain_hybridmem.bm25 import BM25Retriever
    from langchain_hybridmem.embeddings import LocalEmbeddings
    from langchain_hybridmem.ensemble import EnsembleRetriever
    from langchain_hybridmem.fusion import FusionRetriever
    from langchain_hybridmem.graph import GraphRetriever
    from langchain_hybridmem.middleware import MemoryMiddleware
    from langchain_hybridmem.store import HybridStore
    from langchain_hybridmem.tools import memory_tools
    from langchain_hybridmem.vector import VectorRetriever
    from langchain_hybridmem.vectorstore import HybridVectorStore

__all__ = [
    "BM25Retriever",
    "EnsembleRetriever",
    "FusionRetriever",
    "GraphRetriever",
    "HybridStore",
    "HybridVectorStore",
    "LocalEmbeddings",
    "MemoryMiddleware",
    "VectorRetriever",
    "aadd_documents",
    "add_documents",
    "as_scorer",
    "memory_tools",
]

_HOMES = {
    "BM25Retriever": "bm25",
    "EnsembleRetriever": "ensemble",
    "FusionRetriever": "fusion",
    "GraphRetriever": "graph",
    "HybridStore": "store",
    "HybridVectorStore": "vectorstore",
    "LocalEmbeddings": "embeddings",
    "MemoryMiddleware": "middleware",
    "VectorRetriever": "vector",
    "aadd_documents": "_conversion",
    "add_documents": "_conversion",
    "as_scorer": "_conversion",
    "memory_tools": "tools",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that `import langchain_hybridmem` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {', '.join(__all__)}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
