"""LangChain's vector store interface over a memory: the standard suite, `index()`, retrievers, MMR."""

import asyncio

import pytest
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from hybridmem import HybridMemory
from hybridmem.errors import ConfigError
from langchain_hybridmem import HybridVectorStore, add_documents
from tests.support.langchain_fakes import NOW, Axes, doc, texts


class TestStandard(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self):
        with HybridMemory(embedder=self.get_embeddings()) as memory:
            yield HybridVectorStore(memory)


class TestStandardOnFile(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path):
        with HybridMemory(tmp_path / "memory.db", embedder=self.get_embeddings()) as memory:
            yield HybridVectorStore(memory.namespace("ana"))


@pytest.fixture
def memory():
    with HybridMemory(embedder="local", clock=lambda: NOW) as opened:
        yield opened


@pytest.fixture
def store(memory):
    store = HybridVectorStore(memory)
    store.add_documents(
        [
            doc("Ana moved to Lisbon in May", id="1", kind="fact", year=2024),
            doc("The import failed with error E0427", id="2", kind="log"),
            doc("Ana's cat is called Pixel", id="3", kind="fact"),
        ]
    )
    return store


def test_words_that_vectors_miss_are_found(store):
    assert store.similarity_search("E0427", k=1)[0].id == "2"
    assert store.similarity_search("E0427", k=1, filter={"kind": "fact"})[0].id != "2"
    (document, score), *_ = store.similarity_search_with_score("Ana's cat", k=3)
    assert (document.id, document.metadata) == ("3", {"kind": "fact"})
    assert 0 < score <= 1
    assert store.similarity_search_with_relevance_scores("Ana's cat", k=1)[0][1] == score


def test_the_async_methods_give_the_same(store):
    async def ask():
        return (
            await store.asimilarity_search("Ana's cat", k=2),
            await store.asimilarity_search_with_score("Ana's cat", k=2),
            await store.asimilarity_search_with_relevance_scores("Ana's cat", k=2),
            await store.amax_marginal_relevance_search("Ana's cat", k=2),
            await store.aget_by_ids(["3", "9", "1"]),
        )

    plain, scored, relevant, diverse, got = asyncio.run(ask())
    assert plain == store.similarity_search("Ana's cat", k=2)
    assert scored == relevant == store.similarity_search_with_score("Ana's cat", k=2)
    assert diverse == store.max_marginal_relevance_search("Ana's cat", k=2)
    assert [document.id for document in got] == ["3", "1"]


def test_search_by_vector_is_by_cosine():
    store = HybridVectorStore.from_texts(["1,0", "0,1", "3,4"], Axes(), ids=["x", "y", "z"])
    assert texts(store.similarity_search_by_vector([1.0, 0.0], k=2)) == ["1,0", "3,4"]
    scored = store.similarity_search_with_score_by_vector([2.0, 0.0], k=3)
    assert [round(score, 6) for _, score in scored] == [1.0, 3 / 5, 0.0]
    assert texts(asyncio.run(store.asimilarity_search_by_vector([0.0, 1.0], k=1))) == ["0,1"]
    assert texts(store.similarity_search_by_vector([1.0, 0.0], k=3, filter={"id": "y"})) == ["0,1"]
    store.memory.close()


def test_mmr_prefers_what_differs():
    store = HybridVectorStore.from_texts(["1,0", "1,0.01", "0,1"], Axes())
    assert texts(store.max_marginal_relevance_search_by_vector([1.0, 0.2], k=2, lambda_mult=0.1)) == ["1,0.01", "0,1"]
    assert texts(store.max_marginal_relevance_search_by_vector([1.0, 0.2], k=2, lambda_mult=1)) == ["1,0.01", "1,0"]
    assert len(asyncio.run(store.amax_marginal_relevance_search_by_vector([1.0, 0.2], k=2))) == 2
    assert len(store.max_marginal_relevance_search("1,0", k=2, fetch_k=3)) == 2
    store.memory.close()


def test_mmr_gives_k_documents_where_the_gate_leaves_fewer():
    with HybridMemory(embedder="local") as memory:
        store = HybridVectorStore(memory)
        store.add_texts(["Ana moved to Lisbon with her cat", "Bob plays chess on Sundays"], ids=["1", "2"])
        assert len(memory.search("cat")) == 1
        for search in (store.similarity_search, store.max_marginal_relevance_search):
            assert [document.id for document in search("cat", k=2)] == ["1", "2"]


def test_expiry_and_duplicates():
    now = [1_700_000_000.0]
    with HybridMemory(embedder=None, clock=lambda: now[0]) as memory:
        store = HybridVectorStore(memory)
        store.add_texts(["the code is 7"], ids=["code"], ttl=10)
        assert store.add_texts(["tea", "TEA"], ids=["a", "b"], on_duplicate="skip") == ["a", "a"]
        assert add_documents(memory, [Document("Tea")], ttl=20, on_duplicate="merge") == ["a"]
        assert [document.id for document in store.get_by_ids(["a", "x", "code", "a"])] == ["a", "code", "a"]
        now[0] += 10
        assert [document.id for document in store.get_by_ids(["code", "a"])] == ["a"]
        assert store.similarity_search("code") == []


def test_as_retriever_in_each_of_its_ways(store):
    assert store.as_retriever(search_kwargs={"k": 1, "filter": {"kind": "log"}}).invoke("Ana")[0].id == "2"
    assert store.as_retriever(search_type="mmr", search_kwargs={"k": 2}).invoke("cat")
    threshold = store.as_retriever(search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.99})
    assert len(threshold.invoke("Ana's cat is called Pixel")) <= 1
    assert asyncio.run(store.as_retriever(search_kwargs={"k": 1}).ainvoke("E0427"))[0].id == "2"


def test_index_with_a_record_manager_and_each_cleanup(memory):
    store, manager = HybridVectorStore(memory), InMemoryRecordManager("ns")
    manager.create_schema()

    def page(text, source):
        return Document(page_content=text, metadata={"source": source})

    def run(documents, cleanup):
        counts = index(documents, manager, store, cleanup=cleanup, source_id_key="source", key_encoder="sha256")
        return {name: count for name, count in counts.items() if count}

    first = [page("one", "a"), page("two", "a"), page("three", "b")]
    assert run(first, None) == {"num_added": 3}
    assert run(first, None) == {"num_skipped": 3}
    assert run([page("one", "a"), page("two changed", "a")], "incremental") == {
        "num_added": 1,
        "num_skipped": 1,
        "num_deleted": 1,
    }
    assert sorted(memory.text for memory in memory.list()) == ["one", "three", "two changed"]
    assert run([page("three", "b")], "scoped_full") == {"num_skipped": 1}
    assert run([page("three", "b")], "full") == {"num_skipped": 1, "num_deleted": 2}
    assert [memory.text for memory in memory.list()] == ["three"]
    again = asyncio.run(aindex([], manager, store, cleanup="full", source_id_key="source", key_encoder="sha256"))
    assert again["num_deleted"] == 1


def test_deleting_and_the_history(store):
    store.delete(["1"])
    assert [version.deleted for version in store.memory.history("1")] == [False, True]
    store.delete()
    assert store.similarity_search("Ana") == []
    assert asyncio.run(store.adelete(["1"])) is True


def test_embeddings(store, memory):
    assert len(store.embeddings.embed_query("x")) == memory.embedder.dim
    assert asyncio.run(store.embeddings.aembed_query("x")) == store.embeddings.embed_query("x")
    assert asyncio.run(store.embeddings.aembed_documents(["x"])) == store.embeddings.embed_documents(["x"])
    with HybridMemory(embedder=None) as words:
        assert HybridVectorStore(words).embeddings is None
        with pytest.raises(ConfigError, match="no embedder"):
            HybridVectorStore(words).max_marginal_relevance_search("x")


def test_from_documents_at_a_path(tmp_path):
    async def make():
        return await HybridVectorStore.afrom_texts(["1,0"], Axes(), path=tmp_path / "m.db", namespace="n")

    store = asyncio.run(make())
    store.memory.close()
    again = HybridVectorStore.from_documents([doc("0,1")], Axes(), path=tmp_path / "m.db", namespace="n")
    assert len(again.memory) == 2
    again.memory.close()


def test_what_is_refused(store):
    with pytest.raises(ConfigError, match="metadatas"):
        store.add_texts(["a"], [{}, {}])
    with pytest.raises(ConfigError, match="ids"):
        store.add_texts(["a"], ids=["1", "2"])
    with pytest.raises(ConfigError, match="fetch_all"):
        store.similarity_search("x", fetch_all=True)
    with pytest.raises(ConfigError, match="HybridMemory"):
        HybridVectorStore("memory.db")
