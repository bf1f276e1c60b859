"""The peers over the same documents and the same embeddings, as their own documentation sets them up."""

import warnings

import numpy as np
from langchain_classic.retrievers import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from llama_index.core.llms.mock import MockLLM
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.retrievers.bm25 import BM25Retriever as LlamaBM25

from benchmarks.quality.sets import Part

K = 20


class Nearest:
    """Exact cosine over stored vectors: the vector arm of every peer."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def __call__(self, query: str) -> list[tuple[int, float]]:
        scores = self.part.documents @ self.part.questions[query]
        order = np.argsort(-scores, kind="stable")[:K]
        return [(int(row), float(scores[row])) for row in order]


class VectorDocuments(BaseRetriever):
    nearest: object
    documents: list[Document]

    def _get_relevant_documents(self, query, *, run_manager):  # noqa: ARG002
        return [self.documents[row] for row, _ in self.nearest(query)]


class VectorNodes(LlamaRetriever):
    def __init__(self, nearest: Nearest, nodes: list[TextNode]) -> None:
        super().__init__()
        self._nearest, self._nodes = nearest, nodes

    def _retrieve(self, query_bundle):
        return [
            NodeWithScore(node=self._nodes[row], score=score) for row, score in self._nearest(query_bundle.query_str)
        ]


def langchain_peers(part: Part) -> dict[str, object]:
    documents = [Document(memory.text, metadata={"id": memory.id}) for memory in part.memories]
    bm25 = BM25Retriever.from_documents(documents, k=K)
    vector = VectorDocuments(nearest=Nearest(part), documents=documents)
    ensemble = EnsembleRetriever(retrievers=[bm25, vector], weights=[0.5, 0.5], id_key="id")
    return {"LangChain BM25Retriever": bm25, "LangChain EnsembleRetriever": ensemble}


def llamaindex_peers(part: Part) -> dict[str, object]:
    nodes = [TextNode(text=memory.text, id_=memory.id) for memory in part.memories]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bm25 = LlamaBM25.from_defaults(nodes=nodes, similarity_top_k=min(K, len(nodes)))
    vector = VectorNodes(Nearest(part), nodes)

    def fused(mode: str) -> QueryFusionRetriever:
        return QueryFusionRetriever(
            [bm25, vector], llm=MockLLM(), mode=mode, similarity_top_k=K, num_queries=1, use_async=False
        )

    return {
        "LlamaIndex QueryFusion, RRF": fused("reciprocal_rerank"),
        "LlamaIndex QueryFusion, relative": fused("relative_score"),
        "LlamaIndex QueryFusion, distribution": fused("dist_based_score"),
    }
