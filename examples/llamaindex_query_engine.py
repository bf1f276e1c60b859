"""A LlamaIndex query engine over fused BM25 and vector retrievers, with a half-life and a receipt for every source.

Runs offline: the embedding counts words and the language model repeats its prompt. Replace both with your own.

pip install 'hybridmem[llamaindex]' && python examples/llamaindex_query_engine.py
"""

import asyncio
import zlib
from datetime import datetime, timedelta, timezone

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.response.schema import StreamingResponse
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine

from llamaindex_hybridmem import BM25Retriever, FusionRetriever

NOW = datetime.now(timezone.utc)


class Words(BaseEmbedding):
    """Counts words into 64 buckets."""

    def _get_text_embedding(self, text: str) -> list[float]:
        vector = [0.0] * 64
        for word in text.lower().split():
            vector[zlib.crc32(word.strip(".?!").encode()) % 64] += 1.0
        return vector

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def document(name: str, text: str, *, days: int) -> Document:
    """A document that was last changed some days ago."""
    return Document(id_=name, text=text, metadata={"updated_at": (NOW - timedelta(days=days)).isoformat()})


documents = [
    document("runbook-2021", "The export job runs at noon. Restart it by hand when it fails.", days=1500),
    document("runbook-2024", "The export job runs at nine. It restarts by itself, up to three times.", days=3),
    document("incident", "Error E0427: the export job could not reach POST /v2/exports.", days=20),
    document("menu", "On Fridays there is soup at noon.", days=1),
]
nodes = SentenceSplitter().get_nodes_from_documents(documents)

retriever = FusionRetriever(
    {
        "bm25": BM25Retriever.from_defaults(nodes=nodes),
        "vector": VectorStoreIndex(nodes, embed_model=Words()).as_retriever(),
    },
    retriever_weights={"bm25": 0.6, "vector": 0.4},
    dedup=True,  # the best passage of each document
    half_life=90,  # days: recent documents score higher
    similarity_top_k=3,
)
engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM(max_tokens=8))

QUESTION = "When does the export job run?"
response = engine.query(QUESTION)
print(QUESTION)
for source in response.source_nodes:
    print(f"  {source.score:.3f}  {source.text}")
assert response.source_nodes[0].node.ref_doc_id == "runbook-2024", "the fresh runbook comes first"

print("\nWhy this order?")
for receipt in retriever.explain(QUESTION).receipts:
    print(f"  {receipt}")

print("\nThe same engine in async code and as a stream:")
again = asyncio.run(engine.aquery(QUESTION))
assert [n.node_id for n in again.source_nodes] == [n.node_id for n in response.source_nodes]
streaming = RetrieverQueryEngine.from_args(retriever, llm=MockLLM(max_tokens=8), streaming=True)
stream = streaming.query(QUESTION)
assert isinstance(stream, StreamingResponse)
print("  " + str(stream.get_response())[:60])

print("\nIdentifiers are found literally:")
best = retriever.retrieve("E0427", similarity_top_k=1)[0]
print(f"  {best.text}")
assert best.node.ref_doc_id == "incident"

print("\nWhy not the menu?")
menu = next(node.node_id for node in nodes if node.ref_doc_id == "menu")
print("  " + retriever.explain(QUESTION, similarity_top_k=2).why_not(menu))

print("\nAs a tool for an agent:")
print("  " + str(retriever.as_tool(name="runbooks").call(input="restart export job").raw_input))
