"""User code with one mistake in each marked line, which type checkers must reject."""

from __future__ import annotations

from langchain_core.documents import Document
from llama_index.core.schema import TextNode

import langchain_hybridmem as lc
import llamaindex_hybridmem as li
from hybridmem import HybridMemory

memory = HybridMemory(embedder=None)
bm25 = lc.BM25Retriever.from_texts(["a"])
nodes = li.BM25Retriever([TextNode(text="a")])
fusion = lc.FusionRetriever(retrievers=[bm25])

lc.BM25Retriever.from_texts(["a"], languages="german")  # bad
lc.BM25Retriever.from_documents([Document("a")], k="many")  # bad
bm25.invoke("query", filters={"a": 1})  # bad
bm25.invoke("query", k="3")  # bad
lc.VectorRetriever.from_texts(["a"], score_treshold=0.5)  # bad
fusion.invoke("query", top_k=3)  # bad
fusion.explain("query", recepts=True)  # bad
lc.FusionRetriever.from_memory(memory, weigths=[1.0])  # bad
lc.FusionRetriever(retrievers=[bm25], mode="reciprocal_rerank")  # bad
lc.GraphRetriever.from_documents([Document("a")], hop=1)  # bad
lc.EnsembleRetriever(retrievers=[bm25], weights="equal")  # bad
lc.HybridVectorStore(memory).similarity_search("query", min_confidense=0.2)  # bad
lc.VectorRetriever.from_texts(["a"], 3)  # bad
lc.FusionRetriever.from_memory(memory, context="two")  # bad

li.BM25Retriever([TextNode(text="a")], top_k=3)  # bad
li.BM25Retriever.from_nodes([TextNode(text="a")], similarity_topk=3)  # bad
nodes.retrieve("query", k=3)  # bad
nodes.retrieve("query", similarity_top_k="3")  # bad
li.FusionRetriever([nodes], weights=[1.0])  # bad
li.FusionRetriever([nodes]).retrieve("query", filter={"a": 1})  # bad
li.FusionRetriever.from_memory(memory, k=3)  # bad
li.VectorRetriever.from_nodes([TextNode(text="a")], score_treshold=0.2)  # bad
li.GraphRetriever([TextNode(text="a")]).retrieve("query", hop=2)  # bad
li.FusionRetriever.from_memory(memory).retrieve("query", contxt=1)  # bad
li.VectorRetriever.from_nodes([TextNode(text="a")], embed_model=3)  # bad
li.BM25Retriever([TextNode(text="a")], stemmer="english")  # bad
