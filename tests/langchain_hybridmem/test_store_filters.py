"""Filters on real vector stores: whatever the store can filter, the results are those of a plain predicate."""

from __future__ import annotations

import asyncio
import math
import random

import faiss
import pytest
from langchain_chroma import Chroma
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_postgres import PGVector
from langchain_qdrant import QdrantVectorStore
from qdrant_client import QdrantClient, models

from hybridmem.filters.predicate import compile_predicate
from langchain_hybridmem import EnsembleRetriever, FusionRetriever, VectorRetriever
from tests.support import postgres_server
from tests.support.filters import SIZE, metadata, random_filter

EMBEDDED = {"Chroma", "FAISS", "InMemory", "Qdrant", "PGVector"}


class Circle(Embeddings):
    """Document n stands at angle n·0.02; the query "0" is at angle 0, so nearer numbers are more similar."""

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        angle = 0.02 * int(text) if text.isdecimal() else 0.0  # Qdrant tries a text of its own
        return [float(x) for x in (math.cos(angle), math.sin(angle))]


def documents():
    rng = random.Random(5)
    made = []
    for n in range(SIZE):
        made.append(Document(str(n), metadata=metadata(n, rng), id=f"00000000-0000-0000-0000-{n:012}"))
    return made


DOCUMENTS = documents()


@pytest.fixture(scope="module")
def server():
    with postgres_server.server(**postgres_server.FAST) as running:
        yield running


@pytest.fixture(scope="module", params=sorted(EMBEDDED))
def store(request):
    kind, embed = request.param, Circle()
    if kind == "InMemory":
        made = InMemoryVectorStore(embed)
    elif kind == "Chroma":
        made = Chroma("filters", embed, collection_configuration={"hnsw": {"space": "cosine"}})
    elif kind == "FAISS":
        made = FAISS(embed, faiss.IndexFlatL2(2), InMemoryDocstore(), {})
    elif kind == "Qdrant":
        client = QdrantClient(":memory:")
        client.create_collection("filters", models.VectorParams(size=2, distance=models.Distance.COSINE))
        made = QdrantVectorStore(client, "filters", embed)
    else:
        url = request.getfixturevalue("server").url().replace("postgresql://", "postgresql+psycopg://")
        made = PGVector(embed, connection=url, collection_name="filters")
    made.add_documents(DOCUMENTS, ids=[document.id for document in DOCUMENTS])
    yield made
    if kind == "Qdrant":
        made.client.close()
    if kind == "PGVector":
        made._engine.dispose()


def expected(filter, k):
    matches = compile_predicate(filter)
    return [document.page_content for document in DOCUMENTS if matches(document.metadata)][:k]


def texts(documents):
    return [document.page_content for document in documents]


def test_a_vector_retriever_filters_any_store_as_a_predicate_does(store):
    rng = random.Random(7)
    retriever = VectorRetriever(vectorstore=store, k=4)
    for _ in range(60):
        wanted, k = random_filter(rng), rng.choice([1, 4, 30])
        assert texts(retriever.invoke("0", filter=wanted, k=k)) == expected(wanted, k), wanted


def test_the_same_in_async_code(store):
    if isinstance(store, PGVector):
        with pytest.raises(AssertionError):  # as without us: it needs async_mode=True
            asyncio.run(VectorRetriever(vectorstore=store).ainvoke("0"))
        return
    rng = random.Random(8)
    retriever = VectorRetriever(vectorstore=store, k=4)
    for _ in range(15):
        wanted = random_filter(rng)
        assert texts(asyncio.run(retriever.ainvoke("0", filter=wanted))) == expected(wanted, 4), wanted


def test_a_plain_store_retriever_inside_a_fusion_is_filtered_and_asked_deeper(store):
    rng = random.Random(9)
    fusion = FusionRetriever(retrievers={"vector": store.as_retriever(search_kwargs={"k": 3})}, k=5)
    for _ in range(40):
        wanted = random_filter(rng)
        assert texts(fusion.invoke("0", filter=wanted)) == expected(wanted, 5), wanted


def test_the_fortieth_match_is_found_behind_eighty_that_do_not(store):
    """FAISS filters its 20 nearest alone, and would find none."""
    retriever = VectorRetriever(vectorstore=store, k=40)
    assert texts(retriever.invoke("0", filter={"rare": "yes"})) == [str(n) for n in range(80, 120)]


def test_the_drop_in_filters_the_lists_it_gets(store):
    ensemble = EnsembleRetriever(retrievers=[store.as_retriever(search_kwargs={"k": 10})])
    found = texts(ensemble.invoke("0", filter={"n": {"$gte": 3}}))
    assert found == [str(n) for n in range(3, 3 + len(found))]
    assert len(found) >= 7


def test_a_function_of_the_document_filters_too(store):
    retriever = VectorRetriever(vectorstore=store, k=3, filter=lambda document: document.metadata["n"] % 50 == 0)
    assert texts(retriever.invoke("0")) == ["0", "50", "100"]


def test_a_filter_in_the_stores_own_language_is_handed_over():
    client = QdrantClient(":memory:")
    client.create_collection("own", models.VectorParams(size=2, distance=models.Distance.COSINE))
    store = QdrantVectorStore(client, "own", Circle())
    store.add_documents(DOCUMENTS, ids=[document.id for document in DOCUMENTS])
    own = models.Filter(must=[models.FieldCondition(key="metadata.rare", match=models.MatchValue(value="yes"))])
    retriever = VectorRetriever(vectorstore=store, k=2, search_kwargs={"filter": own})
    assert texts(retriever.invoke("0")) == ["80", "81"]
    assert texts(retriever.invoke("0", filter={"n": {"$gt": 90}})) == ["91", "92"]  # both hold
    assert texts(VectorRetriever(vectorstore=store, k=2).invoke("0", filter=own)) == ["80", "81"]
    client.close()


@pytest.mark.filterwarnings("ignore:Relevance scores must be between:UserWarning")
@pytest.mark.filterwarnings("ignore:legacy embedding function config:DeprecationWarning")
@pytest.mark.parametrize("search_type", ["mmr", "similarity_score_threshold"])
def test_other_search_types_give_the_same_documents_with_scores(store, search_type):
    kwargs = {"fetch_k": 12, "lambda_mult": 0.3} if search_type == "mmr" else {"score_threshold": 0.2}
    plain = store.as_retriever(search_type=search_type, search_kwargs={"k": 5, **kwargs})
    ours = VectorRetriever(vectorstore=store, k=5, search_type=search_type, search_kwargs=kwargs, with_scores=True)
    try:
        original = texts(plain.invoke("7"))
    except NotImplementedError:
        with pytest.raises(NotImplementedError):
            ours.invoke("7")
        return
    found = ours.invoke("7")
    assert texts(found) == original
    for document in found:
        angle = 0.02 * (int(document.page_content) - 7)
        assert document.metadata["score"] == pytest.approx(math.cos(angle), abs=1e-5)
