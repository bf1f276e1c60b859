"""Documents as the core sees them, memories as documents, and filters in the language of each store."""

import uuid
from datetime import datetime, timezone

import pytest
from langchain_chroma import Chroma
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from langchain_hybridmem import FusionRetriever
from langchain_hybridmem._conversion import DocumentReader, to_document, to_memory
from langchain_hybridmem._filters import check_of, store_filter

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
