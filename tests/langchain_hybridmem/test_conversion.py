"""Documents as the core sees them, memories as documents, and filters in the language of each store."""

import uuid
from datetime import datetime, timezone

import pytest
from langchain_chroma import Chroma
from langchain_classic.retrievers.document_compressors import (
    CrossEncoderReranker,
    DocumentCompressorPipeline,
    EmbeddingsFilter,
)
from langchain_community.cross_encoders import BaseCrossEncoder
from langchain_community.document_transformers import LongContextReorder as LangChainReorder
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from hybridmem import Fusion, HybridMemory, Rerank
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from langchain_hybridmem import FusionRetriever
from langchain_hybridmem._conversion import DocumentReader, as_scorer, to_document, to_memory
from langchain_hybridmem._vectorstores import check_of, store_filter
from tests.support.langchain_fakes import plain, texts

FULL = Memory(
    "Ana moved to Lisbon",
    id="m1",
    title="Home",
    tags=("home", "city"),
    source_id="chat-1",
    thread="t",
    entities=("Ana",),
    created_at=datetime(2024, 5, 1, 12, tzinfo=timezone.utc),
    status="superseded",
    strength=0.5,
    metadata={"lang": "en"},
)


def test_a_memory_becomes_a_document_and_back():
    document = to_document(FULL, score=0.5)
    assert document == Document(
        "Ana moved to Lisbon",
        id="m1",
        metadata={
            "lang": "en",
            "title": "Home",
            "tags": ["home", "city"],
            "source_id": "chat-1",
            "thread": "t",
            "entities": ["Ana"],
            "created_at": "2024-05-01T12:00:00Z",
            "status": "superseded",
            "strength": 0.5,
            "score": 0.5,
        },
    )
    assert to_memory(document) == FULL
    assert to_document(Memory("bare")) == Document("bare")
    assert to_memory(Document("bare", metadata={"tags": "one", "x": None})) == Memory(
        "bare", tags=("one",), metadata={"x": None}
    )


def test_a_reader_knows_who_documents_are():
    documents = [Document("a", id="1"), Document("b"), Document("c", metadata={"uid": 7})]
    assert DocumentReader().keys(documents) == ["1", "b", "c"]
    assert DocumentReader("uid").keys(documents) == ["1", "b", "7"]
    assert DocumentReader(lambda d: d.page_content * 2).keys(documents) == ["aa", "bb", "cc"]
    assert DocumentReader.over([documents, [Document("a"), Document("b", id="2")]]).keys(documents) == ["1", "2", "c"]


def test_a_reader_reads_columns():
    documents = [
        Document("a", metadata={"source_id": "s", "n": 1}),
        Document("b", metadata={"source": "f"}),
        Document("c"),
    ]
    reader = DocumentReader()
    assert reader.column(documents, "text") == ["a", "b", "c"]
    assert reader.column(documents, "n") == [1, None, None]
    assert reader.column(documents, "source_id") == ["s", "f", None]
    together = DocumentReader.over([documents, [Document("c", metadata={"n": 3}), Document("a", metadata={"n": 9})]])
    assert together.column(documents, "n") == [1, None, 3]
    assert together.metadata(["a", "c"]) == {"a": {"source_id": "s", "n": 1}, "c": {"n": 3}}


class Other(VectorStore):
    def similarity_search(self, query, k=4, **kwargs):
        return []

    @classmethod
    def from_texts(cls, texts, embedding, metadatas=None, **kwargs):
        return cls()


def test_a_filter_is_translated_for_each_store():
    yes, no = Document("x", metadata={"n": 2}), Document("x", metadata={"n": 1})
    ours = {"n": {"$gt": 1}}
    given, left = store_filter(InMemoryVectorStore(DeterministicFakeEmbedding(size=2)), ours)
    assert (given(yes), given(no), left) == (True, False, None)
    given, left = store_filter(Other(), ours)
    assert (given, left(yes), left(no)) == (None, True, False)  # its language is not known
    given, left = store_filter(Other(), lambda document: document.metadata["n"] == 1)
    assert (given, left(yes), left(no)) == (None, False, True)
    assert store_filter(Other(), {"n": {"$near": 1}}) == ({"n": {"$near": 1}}, None)  # the store's own language
    native = object()
    assert store_filter(Other(), native) == (native, None)
    with pytest.raises(ConfigError):
        check_of({"n": {"$near": 1}})


def test_chroma_answers_in_our_language():
    store = Chroma(f"c{uuid.uuid4().hex}", DeterministicFakeEmbedding(size=4))
    store.add_documents([Document(f"d{n}", metadata={"n": n, "lang": "en" if n % 2 else "de"}) for n in range(30)])
    retriever = FusionRetriever(retrievers=[store.as_retriever()], k=3)
    found = retriever.invoke("d1", filter={"lang": "en", "n": {"$gte": 20}})
    assert len(found) == 3
    assert all(document.metadata["lang"] == "en" and document.metadata["n"] >= 20 for document in found)
    assert all(-1 <= share.score <= 1 for receipt in retriever.explain("d1").receipts for share in receipt.arms)
    odd = retriever.invoke("d1", filter=lambda document: document.metadata["n"] in (3, 4, 5))
    assert sorted(document.metadata["n"] for document in odd) == [3, 4, 5]


TEXTS_TO_RANK = ["a tea", "green tea here", "nothing", "green green tea"]


class Overlap(BaseCrossEncoder):
    def score(self, text_pairs):
        return [sum(text.count(word) for word in query.split()) for query, text in text_pairs]


class Counts(Embeddings):
    def embed_documents(self, texts):
        return [[text.count("green") + 0.01, text.count("tea") + 0.02] for text in texts]

    def embed_query(self, text):
        return self.embed_documents([text])[0]


def order(reranker, query="green tea"):
    scores = as_scorer(reranker)(query, TEXTS_TO_RANK)
    return sorted(range(len(TEXTS_TO_RANK)), key=lambda place: -scores[place])


def test_document_compressors_of_langchain():
    assert order(CrossEncoderReranker(model=Overlap(), top_n=4)) == [3, 1, 0, 2]
    assert order(CrossEncoderReranker(model=Overlap(), top_n=1)) == [3, 0, 1, 2]  # what is dropped follows as it was
    assert order(EmbeddingsFilter(embeddings=Counts(), k=1))[0] == 1
    pipeline = DocumentCompressorPipeline(
        transformers=[CrossEncoderReranker(model=Overlap(), top_n=4), LangChainReorder()]
    )
    assert sorted(order(pipeline)) == [0, 1, 2, 3]


def test_a_recipe_with_a_compressor():
    recipe = Fusion(rerank=Rerank(scorer=CrossEncoderReranker(model=Overlap(), top_n=4), top=4))
    made = FusionRetriever(retrievers=[plain(TEXTS_TO_RANK)], recipe=recipe)
    assert texts(made.invoke("green tea")) == [TEXTS_TO_RANK[place] for place in (3, 1, 0, 2)]
    assert "rerank" in str(made.explain("green tea").receipts[0])


def test_as_scorer_refuses_rerankers_of_others():
    with pytest.raises(ConfigError, match="a function or a document compressor"):
        as_scorer(object())
    assert as_scorer(len) is len


def test_a_memory_takes_the_function_of_a_compressor():
    reranker = CrossEncoderReranker(model=Overlap(), top_n=4)
    with HybridMemory(embedder=None, recipe=Fusion(rerank=Rerank(scorer=as_scorer(reranker)))) as memory:
        memory.add_many(TEXTS_TO_RANK)
        assert memory.search("green tea")[0].text == TEXTS_TO_RANK[3]
    with HybridMemory(embedder=None, recipe=Fusion(rerank=Rerank(scorer=reranker))) as memory:
        memory.add("green tea")
        with pytest.raises(ConfigError, match=r"use as_scorer\(\) of its adapter"):
            memory.search("tea")
