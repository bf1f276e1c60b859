"""User code that type checkers must accept."""

from __future__ import annotations

from datetime import datetime, timedelta

from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from rank_bm25 import BM25Okapi

import langchain_hybridmem as lc
import llamaindex_hybridmem as li
from hybridmem import Fusion, HybridMemory, QualityGate
from hybridmem.fusion.explain import Receipt

memory = HybridMemory(embedder=None)
arm: RunnableLambda[str, list[Document]] = RunnableLambda(lambda query: [Document(query)])


def langchain() -> list[Document]:
    bm25 = lc.BM25Retriever.from_texts(["a"], k=3, language="german", filter={"lang": "en"})
    bm25.add_documents([Document("b")])
    vector = lc.VectorRetriever.from_documents([Document("a")], "local", score_threshold=0.3)
    graph = lc.GraphRetriever.from_documents([Document("a")], seed=bm25, hops=1)
    fusion = lc.FusionRetriever(
        retrievers={"bm25": bm25, "vector": vector, "graph": graph, "mine": arm},
        weights={"bm25": 0.5, "vector": 0.5, "graph": 0.0, "mine": 0.1},
        k=4,
        gate={"bm25": 1.0},
        half_life=timedelta(days=3),
        dedup="source",
        timeout={"mine": 2.0},
    )
    fusion.invoke("query", k=3, filter={"year": {"$gte": 2020}}, receipts=True)
    fusion.invoke("query", filter=lambda document: len(document.page_content) > 3)
    fusion.explain("query", k=2).why_not("x")
    over = lc.FusionRetriever.from_memory(memory, k=3, recipe=Fusion(gate=QualityGate(floor=1.0)), as_of=datetime.now())
    ensemble = lc.EnsembleRetriever(retrievers=[bm25, arm], weights=[0.5, 0.5], c=60, with_scores=True)
    return [
        *ensemble.invoke("query", k=2),
        *over.invoke("query", as_of="2024-05-01", context=2),
        *lc.HybridVectorStore(memory).similarity_search("query", k=2, as_of="2024-05-01", min_confidence=0.2),
        *lc.VectorRetriever.from_texts(["a"], lc.LocalEmbeddings(), k=1, collection_name="c").invoke("q"),
        *bm25.invoke("q", with_scores=True),
    ]


class Limited(lc.BM25Retriever):
    top: int = 3


def bm25_as_langchains() -> list[Document]:
    retriever = lc.BM25Retriever(docs=[Document("a")], vectorizer=BM25Okapi([["a"]]), k=2)
    terms = retriever.preprocess_func("a b")
    best = max(retriever.vectorizer.get_scores(terms))
    retriever.docs = [*retriever.docs, Document("b")]
    retriever.vectorizer = BM25Okapi([["a"], ["b"]])
    return [*Limited(docs=[Document("a")], top=2).invoke("a", k=1), Document(str(best))]


def agents(document: Document, compressor: BaseDocumentCompressor) -> list[str]:
    store = lc.HybridStore(memory, fields=["text"])
    store.put(("users", "ana"), "k", {"text": "a"})
    lc.MemoryMiddleware(memory, session_key="user_id", k=3, save="user")
    search, save, forget = lc.memory_tools(memory, namespace="ana", filter={"type": "fact"})
    scores = lc.as_scorer(compressor)("query", ["a", "b"])
    vectors = lc.HybridVectorStore.from_texts(["a"], lc.LocalEmbeddings(), namespace="ana", k=3)
    vectors.add_texts(["b"], ids=["1"], batch_size=10)
    tools = li.memory_tools(memory, thread="t1", min_confidence=0.2)
    li.HybridMemoryBlock(memory=memory, shared=True)
    ids = [*lc.add_documents(memory, [document]), *li.add_nodes(memory, [TextNode(text="a")])]
    return [search.name, save.name, forget.name, str(scores), *(one.metadata.get_name() for one in tools), *ids]


async def later() -> list[Document]:
    await lc.aadd_documents(memory, [Document("a")])
    await li.aadd_nodes(memory, [TextNode(text="a")])
    fusion = lc.FusionRetriever.from_documents([Document("a")], embedder=None, k=2)
    return await fusion.ainvoke("query", k=1)


def llamaindex() -> list[Receipt | None]:
    nodes = [TextNode(text="a")]
    bm25 = li.BM25Retriever(nodes, similarity_top_k=3, engine="bm25s", language="en")
    vector = li.VectorRetriever.from_nodes(nodes, embed_model="local", score_threshold=0.2)
    graph = li.GraphRetriever(nodes, seed=bm25, hops=1)
    fusion = li.FusionRetriever({"bm25": bm25, "vector": vector}, retriever_weights=[0.6, 0.4], gate=0.1, half_life=30)
    filters = MetadataFilters(filters=[MetadataFilter(key="a", value="b")])
    results = fusion.retrieve("query", similarity_top_k=3, filters=filters)
    related = graph.retrieve("query", hops=2, decay=0.4)
    over = li.FusionRetriever.from_memory(memory, similarity_top_k=3, namespace="ana", context=1)
    li.VectorRetriever.from_nodes(nodes, embed_model=li.LocalEmbedding())
    li.VectorRetriever.from_nodes(nodes, embed_model=lambda texts: [[1.0] for _ in texts])
    drop_in = li.QueryFusionRetriever([bm25], num_queries=1, mode="simple")
    drop_in.retrieve("query")
    drop_in.mode = li.FUSION_MODES.SIMPLE
    by_store = li.GraphRetriever.from_store(lambda ids: nodes, seed=bm25)
    by_store.retrieve("query")
    bm25.stemmer.stemWord("drinking")
    bm25.persist("folder", show_progress=False)
    scorer = li.as_scorer(SimilarityPostprocessor(similarity_cutoff=0.2))
    everything: list[li.FusedNode] = fusion.retrieve("query", filters=li.to_filter(filters))
    everything.sort(key=lambda one: scorer("query", [one.text])[0])
    return [one.receipt for one in (*results, *related, *over.retrieve("query", as_of="2024-05-01"))]
