"""Filters on real vector stores: whatever the store can filter, the results are those of a plain predicate."""

from __future__ import annotations

import asyncio
import math
import random

import chromadb
import faiss
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index.vector_stores.faiss import FaissVectorStore
from llama_index.vector_stores.postgres import PGVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import AsyncQdrantClient, QdrantClient

from hybridmem.filters.predicate import compile_predicate
from llamaindex_hybridmem import FusionRetriever, VectorRetriever, to_filter
from tests.support import postgres_server
from tests.support.filters import SIZE, metadata, random_filter

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant:UserWarning")
KINDS = ("Chroma", "FAISS", "PGVector", "Qdrant", "Simple")


class Circle(BaseEmbedding):
    """Node n stands at angle n·0.02; the query "0" is at angle 0, so nearer numbers are more similar."""

    def _get_query_embedding(self, query):
        angle = 0.02 * int(query)
        return [math.cos(angle), math.sin(angle)]

    def _get_text_embedding(self, text):
        return self._get_query_embedding(text.split()[-1])

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


def nodes():
    rng = random.Random(5)
    made = []
    for n in range(SIZE):
        made.append(TextNode(text=str(n), metadata=metadata(n, rng), id_=f"00000000-0000-0000-0000-{n:012}"))
    return made


NODES = nodes()


@pytest.fixture(scope="module")
def server():
    with postgres_server.server(**postgres_server.FAST) as running:
        yield running


def open_store(kind, request):
    if kind == "Chroma":
        client = chromadb.EphemeralClient()
        return ChromaVectorStore(client.get_or_create_collection("llama", metadata={"hnsw:space": "cosine"}))
    if kind == "FAISS":
        return FaissVectorStore(faiss.IndexFlatL2(2))
    if kind == "Qdrant":
        return QdrantVectorStore("llama", QdrantClient(":memory:"))
    if kind == "PGVector":
        running = request.getfixturevalue("server")
        url = running.url()
        return PGVectorStore(
            connection_string=url.replace("postgresql://", "postgresql+psycopg://"),
            async_connection_string=url.replace("postgresql://", "postgresql+psycopg://"),
            table_name="llama",
            embed_dim=2,
        )
    return None


@pytest.fixture(scope="module", params=KINDS)
def index(request):
    store = open_store(request.param, request)
    context = StorageContext.from_defaults(vector_store=store)
    yield VectorStoreIndex(NODES, storage_context=context, embed_model=Circle())
    if isinstance(store, PGVectorStore):
        store._engine.dispose()


def expected(filter, k):
    matches = compile_predicate(filter)
    return [node.text for node in NODES if matches(node.metadata)][:k]


def texts(results):
    return [result.text for result in results]


def test_a_vector_retriever_filters_any_store_as_a_predicate_does(index):
    rng = random.Random(7)
    retriever = VectorRetriever(index, similarity_top_k=4)
    for _ in range(50):
        wanted, k = random_filter(rng), rng.choice([1, 4, 30])
        assert texts(retriever.retrieve("0", filters=wanted, similarity_top_k=k)) == expected(wanted, k), wanted


def test_missing_fields_count_as_different(index):
    """A store that leaves out nodes without the field for `!=` would lose them."""
    retriever = VectorRetriever(index, similarity_top_k=200)
    for wanted in ({"topic": {"$ne": "tea"}}, {"topic": {"$nin": ["tea"]}}, {"rare": {"$ne": "yes"}}):
        assert texts(retriever.retrieve("0", filters=wanted)) == expected(wanted, 200), wanted


def test_the_index_retriever_inside_a_fusion_is_filtered_and_asked_deeper(index):
    rng = random.Random(9)
    fusion = FusionRetriever({"vector": index.as_retriever(similarity_top_k=3)}, similarity_top_k=5)
    for _ in range(30):
        wanted = random_filter(rng)
        assert texts(fusion.retrieve("0", filters=wanted)) == expected(wanted, 5), wanted


def test_llama_indexs_own_filters_work_on_every_store(index):
    own = MetadataFilters(
        filters=[
            MetadataFilter(key="rare", value="yes"),
            MetadataFilter(key="n", value=90, operator=FilterOperator.GT),
        ]
    )
    wanted = [str(n) for n in range(91, 96)]
    assert texts(VectorRetriever(index, similarity_top_k=5, filters=own).retrieve("0")) == wanted
    fusion = FusionRetriever([index.as_retriever()], similarity_top_k=5)
    assert texts(fusion.retrieve("0", filters=own)) == wanted


LISTS = (FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL)
UNKNOWN = "text_match_insensitive"


def random_test(rng):
    """A comparison with any operator that we know."""
    key = rng.choice(["n", "lang", "part", "topic", "rare"])
    values = [node.metadata[key] for node in rng.sample(NODES[-40:], 6) if key in node.metadata] or ["x"]
    operator = rng.choice([one for one in FilterOperator if one.value != UNKNOWN])
    return MetadataFilter(key=key, value=values[:2] if operator in LISTS else values[0], operator=operator)


def random_tests(rng, depth=0):
    parts = [
        random_tests(rng, 1) if rng.random() < 0.2 > depth else random_test(rng) for _ in range(rng.choice([1, 2]))
    ]
    return MetadataFilters(filters=parts, condition=rng.choice(["and", "or", "not"]))


def test_every_operator_of_llama_index_means_the_same_on_every_store(index):
    """Qdrant leaves out nodes without a field for `!=`, Chroma and LlamaIndex's own store refuse nested filters."""
    rng = random.Random(11)
    retriever = VectorRetriever(index, similarity_top_k=5)
    fusion = FusionRetriever({"vector": index.as_retriever(similarity_top_k=3)}, similarity_top_k=5)
    for _ in range(40):
        wanted = random_tests(rng)
        found = expected(to_filter(wanted), 5)
        assert texts(retriever.retrieve("0", filters=wanted)) == found, wanted
        assert texts(fusion.retrieve("0", filters=wanted)) == found, wanted


def test_async_code_gives_the_same():
    rng = random.Random(3)
    stores = (None, FaissVectorStore(faiss.IndexFlatL2(2)))
    for store in stores:
        context = StorageContext.from_defaults(vector_store=store)
        retriever = VectorRetriever(VectorStoreIndex(NODES, storage_context=context, embed_model=Circle()))
        for _ in range(10):
            wanted = random_filter(rng)
            assert texts(asyncio.run(retriever.aretrieve("0", filters=wanted))) == expected(wanted, 2)


async def test_async_qdrant():
    store = QdrantVectorStore("async", aclient=AsyncQdrantClient(":memory:"), client=QdrantClient(":memory:"))
    index = VectorStoreIndex([], storage_context=StorageContext.from_defaults(vector_store=store), embed_model=Circle())
    await index.ainsert_nodes([node.model_copy() for node in NODES])
    found = await VectorRetriever(index, similarity_top_k=3).aretrieve("0", filters={"topic": {"$exists": False}})
    assert texts(found) == expected({"topic": {"$exists": False}}, 3)
