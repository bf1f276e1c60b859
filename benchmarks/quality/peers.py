"""The peers and our framework retrievers over the same documents and the same embeddings."""

import warnings
from typing import Any

import numpy as np
from langchain_classic.retrievers import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from llama_index.core.llms.mock import MockLLM
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.retrievers.bm25 import BM25Retriever as LlamaBM25

from benchmarks.quality.sets import Part
from langchain_hybridmem import BM25Retriever as OurBM25
from langchain_hybridmem import FusionRetriever
from llamaindex_hybridmem import BM25Retriever as OurLlamaBM25
from llamaindex_hybridmem import FusionRetriever as LlamaFusion

__all__ = ["langchain_systems", "llamaindex_systems"]

K = 20


class Nearest:
    """Exact cosine over stored vectors: the vector arm of every system."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def __call__(self, query: str) -> list[tuple[int, float]]:
        scores = self.part.documents @ self.part.questions[query]
        order = np.argsort(-scores, kind="stable")[:K]
        return [(int(row), float(scores[row])) for row in order]


class VectorDocuments(BaseRetriever):
    """The vector arm for LangChain."""

    nearest: Any
    documents: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:  # noqa: ARG002
        return [self.documents[row] for row, _ in self.nearest(query)]


class VectorNodes(LlamaRetriever):
    """The vector arm for LlamaIndex."""

    def __init__(self, nearest: Nearest, nodes: list[TextNode]) -> None:
        super().__init__()
        self._nearest, self._nodes = nearest, nodes

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self._nearest(query_bundle.query_str)
        return [NodeWithScore(node=self._nodes[row], score=score) for row, score in hits]


def langchain_systems(part: Part) -> dict[str, Any]:
    """LangChain's retrievers, and ours at their defaults over the same arms."""
    documents = [Document(memory.embedded, metadata={"id": memory.id}, id=memory.id) for memory in part.memories]
    bm25, ours = BM25Retriever.from_documents(documents, k=K), OurBM25.from_documents(documents, k=K)
    vector = VectorDocuments(nearest=Nearest(part), documents=documents)
    return {
        "LangChain BM25Retriever": bm25,
        "LangChain EnsembleRetriever": EnsembleRetriever(retrievers=[bm25, vector], id_key="id"),
        "LangChain EnsembleRetriever, our BM25": EnsembleRetriever(retrievers=[ours, vector], id_key="id"),
        "FusionRetriever (LangChain), defaults": FusionRetriever(retrievers=[ours, vector]),
    }


def llamaindex_systems(part: Part) -> dict[str, Any]:
    """LlamaIndex's retrievers, and ours at their defaults over the same arms."""
    nodes = [
        TextNode(
            text=memory.embedded,
            id_=memory.id,
            metadata={name: value for name, value in found.items() if value is not None},
            excluded_embed_metadata_keys=list(found),
        )
        for memory in part.memories
        for found in [{"thread": memory.thread, "created_at": memory.created_at}]
    ]
    now = part.clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bm25 = LlamaBM25.from_defaults(nodes=nodes, similarity_top_k=min(K, len(nodes)))
    ours = OurLlamaBM25.from_defaults(nodes=nodes, similarity_top_k=K)
    vector = VectorNodes(Nearest(part), nodes)

    def fused(arm: LlamaRetriever, mode: str) -> QueryFusionRetriever:
        return QueryFusionRetriever(
            [arm, vector], llm=MockLLM(), mode=mode, similarity_top_k=K, num_queries=1, use_async=False
        )

    return {
        "LlamaIndex QueryFusionRetriever, RRF": fused(bm25, "reciprocal_rerank"),
        "LlamaIndex QueryFusionRetriever, relative": fused(bm25, "relative_score"),
        "LlamaIndex QueryFusionRetriever, RRF, our BM25": fused(ours, "reciprocal_rerank"),
        "LlamaIndex QueryFusionRetriever, relative, our BM25": fused(ours, "relative_score"),
        "LlamaIndex QueryFusionRetriever, distribution, our BM25": fused(ours, "dist_based_score"),
        "FusionRetriever (LlamaIndex), defaults": LlamaFusion([ours, vector], similarity_top_k=K),
        'FusionRetriever (LlamaIndex), recipe="default"': LlamaFusion(
            [ours, vector], recipe="default", similarity_top_k=K, clock=lambda: now
        ),
    }
