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
lc.BM25Retriever(docs=["a"])  # bad
lc.BM25Retriever(vectorizer=3)  # bad
bm25.vectorizer.get_score(["a"])  # bad
lc.HybridStore(memory, field=["text"])  # bad
lc.MemoryMiddleware(memory, save="assistant")  # bad
lc.memory_tools(memory, filters={})  # bad
lc.HybridVectorStore(memory).add_texts(["a"], batchsize=3)  # bad
lc.HybridVectorStore.from_texts(["a"], lc.LocalEmbeddings(), name_space="ana")  # bad
lc.add_documents(memory, ["a"])  # bad
lc.GraphRetriever.from_store(3)  # bad
lc.as_scorer(3)  # bad
nodes.stemmer.stem("drinking")  # bad
nodes.persist("folder", progress=False)  # bad
li.BM25Retriever(existing_bm25=3, stemer=None)  # bad
li.QueryFusionRetriever([nodes], modes="simple")  # bad
li.QueryFusionRetriever([nodes]).retrieve("query", similarity_top_k=3)  # bad
li.HybridMemoryBlock(memory="m.db")  # bad
li.memory_tools(memory, session="t1")  # bad
li.add_nodes(memory, ["a"])  # bad
li.GraphRetriever.from_store(3, seed=nodes)  # bad
str(li.FusionRetriever([nodes]).retrieve("query")[0].receit)  # bad
