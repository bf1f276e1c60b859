"""VectorRetriever for LlamaIndex: any index or vector store, Chroma directly, a memory; scores are always cosines."""

import asyncio
import math
import threading
from types import MappingProxyType

import numpy as np
import pytest
from llama_index.core import Settings, StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import IndexNode, NodeRelationship, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters, SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQueryResult
from llama_index.vector_stores.chroma import ChromaVectorStore

from hybridmem.embedding.embedder import unit
from hybridmem.errors import ConfigError, EmbeddingError
from hybridmem.indexes.vector.chroma import connect, disconnect
from hybridmem.memory.memory import HybridMemory
from llamaindex_hybridmem import FusionRetriever, VectorRetriever
from llamaindex_hybridmem._vectorstores import similarity_of
from tests.support.llama_fakes import Fixed, scored

TEXTS = ["aaaa", "aaab", "aabb", "abbb", "bbbb"]


def letters(texts):
    return unit([[text.count("a"), text.count("b"), 0.0] for text in texts]).tolist()


def cosine(one, other):
    return float(np.dot(letters([one])[0], letters([other])[0]))


class Letters(BaseEmbedding):
    def _get_query_embedding(self, query):
        return letters([query])[0]

    async def _aget_query_embedding(self, query):
        return letters([query])[0]

    def _get_text_embedding(self, text):
        return letters([text])[0]


def nodes():
    made = []
    for number, text in enumerate(TEXTS):
        node = TextNode(
            text=text, id_=f"n{number}", metadata={"n": number, "kind": "even" if number % 2 == 0 else "odd"}
        )
        node.excluded_embed_metadata_keys = ["n", "kind"]
        made.append(node)
    return made


def found(results):
    return [result.node.get_content() for result in results]


def scores(results):
    return [result.score for result in results]


@pytest.fixture(params=["simple", "chroma cosine", "chroma l2", "chroma ip"])
def index(request, tmp_path):
    if request.param == "simple":
        yield VectorStoreIndex(nodes(), embed_model=Letters())
        return
    client = connect(path=tmp_path / "chroma")
    collection = client.create_collection(
        "abc", embedding_function=None, configuration={"hnsw": {"space": request.param.split()[1]}}
    )
    storage = StorageContext.from_defaults(vector_store=ChromaVectorStore(chroma_collection=collection))
    yield VectorStoreIndex(nodes(), storage_context=storage, embed_model=Letters())
    disconnect(client)


# --- any index or vector store


def test_scores_are_cosines_whatever_the_store_counts_in(index):
    results = VectorRetriever(index, similarity_top_k=3).retrieve("aaaa")
    assert found(results) == ["aaaa", "aaab", "aabb"]
    assert scores(results) == pytest.approx([1.0, 3 / 10**0.5, 1 / 2**0.5], abs=1e-5)


def test_a_plain_index_in_a_fusion_is_gated_by_cosines_too(index):
    cosines = {"aaaa": 1.0, "aaab": 3 / 10**0.5, "aabb": 1 / 2**0.5}
    ours = FusionRetriever([index.as_retriever()], gate={"vector": 0.7})
    for results in (ours.retrieve("aaaa"), asyncio.run(ours.aretrieve("aaaa", filters={"n": {"$gte": 0}}))):
        assert found(results) == list(cosines)
        raw = [result.receipt.arms[0].score for result in results]
        assert raw == pytest.approx(list(cosines.values()), abs=1e-5)
    by_variety = index.as_retriever(vector_store_query_mode="mmr")
    assert found(FusionRetriever([by_variety]).retrieve("aaaa"))[0] == "aaaa"


@pytest.mark.parametrize(
    "wanted",
    [
        {"id": "n2"},
        {"source_id": "odd"},
        {"seen": {"$gte": "2023-01-01"}},
        {"n": {"$gte": 2.5}},
        {"n": {"$in": [1.0, 2.5]}},
        {"n": {"$in": []}},
        {"n": {"$nin": []}},
    ],
)
def test_a_filter_means_the_same_on_every_arm(wanted, tmp_path):
    made = [TextNode(text="ab" * (n + 1), id_=f"n{n}") for n in range(4)]
    for n, one in enumerate(made):
        one.metadata = {"n": n, "seen": f"202{n + 1}-05-01"}
        one.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="odd" if n % 2 else "even")
    expected = {n.node_id for n in FusionRetriever([Fixed(scored(made))]).retrieve("ab", filters=wanted)}
    client = connect(path=tmp_path / "chroma")
    store = ChromaVectorStore(chroma_collection=client.create_collection("same", embedding_function=None))
    storage = StorageContext.from_defaults(vector_store=store)
    kept = VectorStoreIndex([one.model_copy() for one in made], storage_context=storage, embed_model=Letters())
    here = VectorStoreIndex([one.model_copy() for one in made], embed_model=Letters())
    for retriever in (
        VectorRetriever(kept),
        VectorRetriever(here),
        FusionRetriever([kept.as_retriever()]),
        FusionRetriever([here.as_retriever()]),
        VectorRetriever.from_nodes(made, embed_model=Letters()),
    ):
        assert {n.node_id for n in retriever.retrieve("ab", filters=wanted, similarity_top_k=4)} == expected
    disconnect(client)


async def test_async_gives_the_same(index):
    retriever = VectorRetriever(index)
    assert scores(await retriever.aretrieve("abb", similarity_top_k=3)) == pytest.approx(
        scores(retriever.retrieve("abb", similarity_top_k=3))
    )


def test_k_filters_and_threshold_at_call_time(index):
    retriever = VectorRetriever(index)
    assert found(retriever.retrieve("aaaa")) == ["aaaa", "aaab"]
    odd = MetadataFilters(filters=[MetadataFilter(key="kind", value="odd")])
    for filters in (odd, {"kind": "odd"}, {"$not": {"kind": "even"}}, {"$or": [{"n": 1}, {"n": 3}]}):
        assert found(retriever.retrieve("aaaa", filters=filters)) == ["aaab", "abbb"]
        assert found(asyncio.run(retriever.aretrieve("aaaa", filters=filters))) == ["aaab", "abbb"]
    assert found(retriever.retrieve("aaaa", similarity_top_k=5, score_threshold=0.7)) == ["aaaa", "aaab", "aabb"]
    retriever.similarity_top_k = 1
    assert retriever.similarity_top_k == 1
    assert found(retriever.retrieve("aaaa")) == ["aaaa"]


def test_nodes_are_added_and_deleted_through_it(index):
    retriever = VectorRetriever(index, similarity_top_k=1)
    fresh = TextNode(text="aab", id_="fresh")
    assert retriever.add_nodes([fresh]) == ["fresh"]
    assert fresh.embedding is None
    assert found(retriever.retrieve("aab")) == ["aab"]
    retriever.delete(["fresh"])
    assert found(retriever.retrieve("aab")) != ["aab"]


def test_a_bundle_is_left_as_it_was_and_its_embedding_is_used(index):
    retriever = VectorRetriever(index, similarity_top_k=1)
    bundle = QueryBundle("aaaa")
    retriever.retrieve(bundle)
    assert bundle.embedding is None
    assert found(retriever.retrieve(QueryBundle("aaaa", embedding=letters(["bbbb"])[0]))) == ["bbbb"]
    assert found(retriever.retrieve(QueryBundle("zzz", custom_embedding_strs=["aaaa", "bbbb"]))) == ["aabb"]


def test_over_a_vector_store_alone(tmp_path):
    client = connect(path=tmp_path / "chroma")
    store = ChromaVectorStore(chroma_collection=client.create_collection("abc", embedding_function=None))
    retriever = VectorRetriever(vector_store=store, embed_model=letters)
    retriever.add_nodes(nodes())
    assert found(retriever.retrieve("abbb")) == ["abbb", "bbbb"]
    assert found(VectorRetriever.from_defaults(vector_store=store, embed_model=letters).retrieve("aaaa"))[0] == "aaaa"
    disconnect(client)
    with pytest.raises(ConfigError, match="SimpleVectorStore does not store texts"):
        VectorRetriever(vector_store=SimpleVectorStore(), embed_model=letters)


def test_chromas_exponentials_are_undone():
    class Collection:
        configuration_json = MappingProxyType({"hnsw": {"space": "cosine"}})
        metadata = None

    class ChromaVectorStoreLike:
        _collection = Collection()

    like = type("ChromaVectorStore", (ChromaVectorStoreLike,), {})()
    assert similarity_of(like)(math.exp(-0.25)) == pytest.approx(1 - 0.25)
    assert similarity_of(like)(0.0) == -1.0
    faiss = type("FaissVectorStore", (), {"_faiss_index": type("Flat", (), {"metric_type": 1})})()
    assert similarity_of(faiss)(0.5) == 1 - 0.5 / 2
    inner = type("FaissVectorStore", (), {"_faiss_index": type("Flat", (), {"metric_type": 0})})()
    assert (similarity_of(inner)(0.5), similarity_of(inner)(3.0)) == (0.5, 1.0)


class AsyncStore(SimpleVectorStore):
    """A store whose async query really is one."""

    async def aquery(self, query, **kwargs):
        await asyncio.sleep(0)
        assert asked_on(threading.get_ident())
        return self.query(query, **kwargs)


def asked_on(thread):
    return thread == threading.main_thread().ident


async def test_a_really_async_store_is_awaited_on_the_loop():
    storage = StorageContext.from_defaults(vector_store=AsyncStore())
    index = VectorStoreIndex(nodes(), storage_context=storage, embed_model=Letters())
    assert found(await VectorRetriever(index).aretrieve("aaaa")) == ["aaaa", "aaab"]


async def test_a_blocking_store_does_not_block_the_loop():
    release = threading.Event()

    class Slow(SimpleVectorStore):
        def query(self, query, **kwargs):
            assert release.wait(30)
            return super().query(query, **kwargs)

    storage = StorageContext.from_defaults(vector_store=Slow())
    index = VectorStoreIndex(nodes(), storage_context=storage, embed_model=Letters())
    asked = asyncio.create_task(VectorRetriever(index).aretrieve("aaaa"))
    await asyncio.sleep(0)
    release.set()  # only reached while the store waits because the loop goes on
    assert found(await asked) == ["aaaa", "aaab"]


def test_a_store_without_scores_gives_none_and_fails_the_threshold():
    class NoScores(SimpleVectorStore):
        def query(self, query, **kwargs):
            return VectorStoreQueryResult(ids=super().query(query, **kwargs).ids)

    storage = StorageContext.from_defaults(vector_store=NoScores())
    retriever = VectorRetriever(VectorStoreIndex(nodes(), storage_context=storage, embed_model=Letters()))
    assert scores(retriever.retrieve("aaaa")) == [None, None]
    assert retriever.retrieve("aaaa", score_threshold=0.1) == []


# --- nodes of its own: in this process or in Chroma


@pytest.fixture(params=["here", "chroma"])
def place(request, tmp_path):
    return {} if request.param == "here" else {"persist_directory": tmp_path / "chroma"}


@pytest.fixture
def own(place):
    retriever = VectorRetriever.from_nodes(nodes(), embed_model=letters, **place)
    yield retriever
    retriever.close()


async def test_own_nodes_are_found_with_cosines(own):
    results = own.retrieve("aaab")
    assert found(results) == ["aaab", "aaaa"] == found(await own.aretrieve("aaab"))
    assert scores(results) == pytest.approx([1.0, cosine("aaab", "aaaa")], abs=1e-5)
    assert (results[0].node.id_, results[0].node.metadata) == ("n1", {"n": 1, "kind": "odd"})


def test_own_nodes_filtered(own):
    for filters in ({"kind": "even"}, {"$not": {"kind": "odd"}}, {"n": {"$in": [0, 2, 4]}}):
        assert found(own.retrieve("aaab", similarity_top_k=5, filters=filters)) == ["aaaa", "aabb", "bbbb"]


def test_own_nodes_keep_relationships_and_rich_metadata(place):
    node = TextNode(text="aaaa", metadata={"labels": ["x", "y"]}, excluded_embed_metadata_keys=["labels"])
    node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="doc-1")
    retriever = VectorRetriever.from_nodes([node, *nodes()], embed_model=letters, similarity_top_k=9, **place)
    first = retriever.retrieve("aaaa", filters={"labels": "y"})
    assert [one.node for one in first] == [node]
    assert found(retriever.retrieve("aaaa", filters={"source_id": "doc-1"})) == ["aaaa"]
    retriever.close()


def test_own_nodes_change(own):
    own.add_nodes([TextNode(text="bbba", id_="new")])
    assert {*found(own.retrieve("bbbb", similarity_top_k=3))} == {"bbbb", "abbb", "bbba"}
    assert own.delete(["new", "unknown"]) == 1
    assert own.delete(["new"]) == 0


def test_an_embedding_that_a_node_brings_is_used(place):
    node = TextNode(text="aaaa", embedding=letters(["bbbb"])[0])
    retriever = VectorRetriever.from_nodes([node, TextNode(text="aabb")], embed_model=letters, **place)
    assert found(retriever.retrieve("bbbb", similarity_top_k=1)) == ["aaaa"]
    retriever.close()


def test_a_chroma_folder_is_opened_again(tmp_path):
    where = {"persist_directory": tmp_path / "chroma", "collection_name": "notes"}
    VectorRetriever.from_nodes(nodes(), embed_model=Letters(), **where).close()
    again = VectorRetriever.from_nodes([], embed_model=Letters(), **where)
    assert found(again.retrieve("aabb", similarity_top_k=1)) == ["aabb"]
    again.close()
    with pytest.raises(EmbeddingError, match=r"'llamaindex:Letters'.*'callable'"):
        VectorRetriever.from_nodes([], embed_model=letters, **where)


def test_llamaindex_reads_the_same_folder(tmp_path):
    VectorRetriever.from_nodes(nodes(), embed_model=letters, persist_directory=tmp_path / "chroma").close()
    client = connect(path=tmp_path / "chroma")
    store = ChromaVectorStore(chroma_collection=client.get_collection("hybridmem", embedding_function=None))
    index = VectorStoreIndex.from_vector_store(store, embed_model=Letters())
    assert found(index.as_retriever(similarity_top_k=1).retrieve("abbb")) == ["abbb"]
    disconnect(client)


def test_the_embed_model_of_llamaindex_settings_is_the_default(monkeypatch):
    monkeypatch.setattr(Settings, "_embed_model", Letters())
    assert found(VectorRetriever.from_nodes(nodes()).retrieve("abbb"))[0] == "abbb"
    monkeypatch.setattr(Settings, "_embed_model", None)
    texts = ["The cat sleeps on the sofa", "Interest rates rose in 2021", "A dog barks in the yard"]
    retriever = VectorRetriever.from_defaults(nodes=[TextNode(text=text) for text in texts])
    assert found(retriever.retrieve("a kitten naps on the couch"))[0] == texts[0]


# --- a memory


async def test_over_a_memory(tmp_path):
    with HybridMemory(tmp_path / "memory.db", embedder=letters) as memory:
        memory.add_many(TEXTS)
        retriever = VectorRetriever.from_memory(memory)
        results = retriever.retrieve("aaab")
        assert found(results) == ["aaab", "aaaa"] == found(await retriever.aretrieve("aaab"))
        assert scores(results) == pytest.approx([1.0, cosine("aaab", "aaaa")], abs=1e-6)
        assert found(retriever.retrieve("aaab", similarity_top_k=5, score_threshold=0.9)) == ["aaab", "aaaa"]
        memory.namespace("ana").add("bbbb")
        assert found(retriever.retrieve("bbbb", namespace="ana")) == ["bbbb"]
        with pytest.raises(ConfigError, match="in its memory"):
            retriever.add_nodes([])


# --- at work


async def test_in_a_query_engine(own):
    engine = RetrieverQueryEngine.from_args(own, llm=MockLLM())
    for response in (engine.query("aaab"), await engine.aquery("aaab")):
        assert [one.node.get_content() for one in response.source_nodes] == ["aaab", "aaaa"]


def test_as_a_tool_and_an_arm(own):
    assert "aaab" in str(own.as_tool(name="notes").call("aaab"))
    fusion = FusionRetriever([own], similarity_top_k=2)
    assert found(fusion.retrieve("aaab")) == ["aaab", "aaaa"]


def test_index_nodes_are_followed():
    inner = VectorRetriever.from_nodes([TextNode(text="bbbb", id_="inside")], embed_model=letters)
    pointer = IndexNode(text="aaaa", index_id="inner", obj=inner, id_="pointer")
    retriever = VectorRetriever.from_nodes(
        [IndexNode(text="aaaa", index_id="inner", id_="pointer")], embed_model=letters, objects=[pointer]
    )
    assert found(retriever.retrieve("aaaa")) == ["bbbb"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "nothing to search"),
        ({"memory": object(), "texts": object()}, "memory and texts"),
        ({"memory": object(), "top_k": 3}, "VectorRetriever has no setting 'top_k'"),
        ({"memory": object(), "similarity_top_k": 0}, "similarity_top_k = 0"),
        ({"texts": object(), "as_of": "2024"}, "only a memory"),
        ({"memory": object(), "filters": {"x": {"$like": 1}}}, "like"),
    ],
)
def test_wrong_settings_are_reported(settings, says):
    with pytest.raises(ConfigError, match=says):
        VectorRetriever(**settings)


def test_wrong_arguments_are_reported(tmp_path):
    with pytest.raises(ConfigError, match="exactly one of index, nodes, vector_store"):
        VectorRetriever.from_defaults()
    with pytest.raises(ConfigError, match="VectorRetriever has no setting 'top_k'"):
        VectorRetriever.from_nodes([], embed_model=letters, top_k=1, persist_directory=tmp_path / "chroma")
