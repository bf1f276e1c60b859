"""VectorRetriever for LangChain: any vector store, Chroma directly, a memory; scores are always cosines."""

import asyncio
import math
import threading
from enum import Enum

import chromadb
import numpy as np
import pytest
from langchain_chroma import Chroma
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests

from hybridmem.embedding.embedder import as_embedder, unit
from hybridmem.errors import ConfigError, EmbeddingError
from hybridmem.filters.predicate import compile_predicate
from hybridmem.memory.memory import HybridMemory
from langchain_hybridmem import BM25Retriever, FusionRetriever, VectorRetriever
from langchain_hybridmem._vectorstores import asimilarities, similarities

TEXTS = ["aaaa", "aaab", "aabb", "abbb", "bbbb"]
PLACES = [{"n": number, "odd": bool(number % 2)} for number in range(5)]


def letters(texts):
    return unit([[text.count("a"), text.count("b"), 0.0] for text in texts]).tolist()


def cosine(one, other):
    return float(np.dot(letters([one])[0], letters([other])[0]))


class Letters(Embeddings):
    def embed_documents(self, texts):
        return letters(texts)

    def embed_query(self, text):
        return letters([text])[0]


def found(documents):
    return [document.page_content for document in documents]


def scores(documents):
    return [document.metadata["score"] for document in documents]


@pytest.fixture(params=["memory store", "chroma cosine", "chroma l2", "chroma ip", "chroma default"])
def store(request, tmp_path):
    kind = request.param
    if kind == "memory store":
        return InMemoryVectorStore.from_texts(TEXTS, Letters(), PLACES)
    space = kind.split()[1]
    more = {} if space == "default" else {"collection_configuration": {"hnsw": {"space": space}}}
    return Chroma.from_texts(TEXTS, Letters(), PLACES, persist_directory=str(tmp_path), collection_name="abc", **more)


# --- any vector store


def test_scores_are_cosines_whatever_the_store_counts_in(store):
    retriever = VectorRetriever(vectorstore=store, k=3, with_scores=True)
    documents = retriever.invoke("aaaa")
    assert found(documents) == ["aaaa", "aaab", "aabb"]
    assert scores(documents) == pytest.approx([1.0, 3 / 10**0.5, 1 / 2**0.5], abs=1e-5)


async def test_async_gives_the_same(store):
    retriever = VectorRetriever(vectorstore=store, with_scores=True)
    assert scores(await retriever.ainvoke("abb", k=2)) == pytest.approx(scores(retriever.invoke("abb", k=2)))


def test_k_filter_threshold_and_scores_at_call_time(store):
    retriever = VectorRetriever(vectorstore=store)
    assert found(retriever.invoke("aaaa", k=2)) == ["aaaa", "aaab"]
    assert found(retriever.invoke("aaaa", filter={"odd": True})) == ["aaab", "abbb"]
    assert found(retriever.invoke("aaaa", k=2, filter={"n": {"$gte": 2}})) == ["aabb", "abbb"]
    assert found(retriever.invoke("aaaa", k=1, filter=lambda document: document.metadata["n"] == 4)) == ["bbbb"]
    assert found(retriever.invoke("aaaa", k=5, score_threshold=0.7)) == ["aaaa", "aaab", "aabb"]
    assert "score" not in retriever.invoke("aaaa")[0].metadata
    assert scores(retriever.invoke("aaaa", k=1, with_scores=True)) == pytest.approx([1.0])


def test_settings_of_the_constructor_hold_until_said_again(store):
    retriever = VectorRetriever(vectorstore=store, k=1, filter={"odd": True}, score_threshold=0.5)
    assert found(retriever.invoke("aaaa")) == ["aaab"]
    assert found(retriever.invoke("aaaa", k=2)) == ["aaab"]
    assert found(retriever.invoke("aaaa", k=2, score_threshold=0.1)) == ["aaab", "abbb"]


def test_documents_are_added_and_deleted_through_it(store):
    retriever = VectorRetriever(vectorstore=store, k=1)
    ids = retriever.add_documents([Document("aab", metadata={"n": 9, "odd": True})])
    assert found(retriever.invoke("aab")) == ["aab"]
    assert retriever.delete(ids)
    assert found(retriever.invoke("aab")) != ["aab"]
    asyncio.run(retriever.aadd_documents([Document("abab")]))
    assert "abab" in found(retriever.invoke("abab", k=2))


def test_results_are_copies(store):
    retriever = VectorRetriever(vectorstore=store, k=1, with_scores=True)
    retriever.invoke("aaaa")[0].metadata["n"] = "spoilt"
    assert retriever.invoke("aaaa")[0].metadata["n"] == 0


class Fake(VectorStore):
    """A store that answers with given raw scores."""

    def __init__(self, raw, function=None):
        self.raw, self.function = raw, function

    def similarity_search_with_score(self, query, k=4, **kwargs):
        assert not kwargs
        return [(Document(f"d{number}"), score) for number, score in enumerate(self.raw[:k])]

    def similarity_search(self, query, k=4, **kwargs):
        return [Document(f"d{number}") for number, _ in enumerate(self.raw[:k])]

    def _select_relevance_score_fn(self):
        if self.function is None:
            raise NotImplementedError
        return self.function

    @classmethod
    def from_texts(cls, *args, **kwargs):
        raise NotImplementedError


class Index:
    def __init__(self, metric):
        self.metric_type = metric


def fake(raw, function=None, **attributes):
    store = Fake(raw, function)
    for name, value in attributes.items():
        setattr(store, name, value)
    return store


class Strategy(Enum):
    COSINE = "cosine"
    L2 = "l2"
    INNER = "inner"


class PineconeVectorStore(Fake):
    pass


class QdrantVectorStore(Fake):
    distance = "Cosine"


class DotQdrant(QdrantVectorStore):
    distance = "Euclid"


@pytest.mark.parametrize(
    ("vectorstore", "expected"),
    [
        (fake([0.0, 0.5], VectorStore._cosine_relevance_score_fn), [1.0, 1 - 0.5]),
        (fake([0.0, 1.0], VectorStore._euclidean_relevance_score_fn), [1.0, 1 - 1.0**2 / 2]),
        (fake([0.4, 0.2], lambda score: (1 + score) / 2), [(1 + 0.4) / 2, (1 + 0.2) / 2]),
        (fake([0.0, 1.0], override_relevance_score_fn=lambda d: 1 - d / 4), [1.0, 1 - 1 / 4]),
        (fake([0.9, 0.1], index=Index(0)), [0.9, 0.1]),
        (fake([0.2, 1.0], index=Index(1)), [1 - 0.2 / 2, 1 - 1.0 / 2]),
        (fake([0.1, 0.2], _distance_strategy=Strategy("cosine")), [1 - 0.1, 1 - 0.2]),
        (fake([0.1, 1.0], _distance_strategy=Strategy("l2")), [1 - 0.1**2 / 2, 1 - 1 / 2]),
        (fake([-0.9, -0.1], _distance_strategy=Strategy("inner")), [0.9, 0.1]),
        (fake([0.8, 0.3]), [0.8, 0.3]),
        (fake([0.2, 0.7]), [1 - 0.2, 1 - 0.7]),
        (fake([7.0, -9.0]), [1.0, -1.0]),
        (PineconeVectorStore([0.8, 0.3]), [0.8, 0.3]),
        (QdrantVectorStore([0.8, 0.3]), [0.8, 0.3]),
        (DotQdrant([0.3, 0.8]), [1 - 0.3, 1 - 0.8]),
        (fake([]), []),
    ],
)
async def test_every_kind_of_score_becomes_a_similarity(vectorstore, expected):
    assert [score for _, score in similarities(vectorstore, "q")] == pytest.approx(expected)
    assert [score for _, score in await asimilarities(vectorstore, "q")] == pytest.approx(expected)


class NoScores(Fake):
    def similarity_search_with_score(self, query, k=4, **kwargs):
        raise NotImplementedError


async def test_a_store_without_scores_still_answers():
    retriever = VectorRetriever(vectorstore=NoScores([1, 2]), with_scores=True)
    assert found(retriever.invoke("q")) == found(await retriever.ainvoke("q")) == ["d0", "d1"]
    assert "score" not in retriever.invoke("q")[0].metadata
    with pytest.raises(ConfigError, match="gives no scores"):
        retriever.invoke("q", score_threshold=0.5)


WANTED = [
    {"id": "d2"},
    {"$not": {"id": {"$in": ["d1", "d2", "d3"]}}},
    {"$or": [{"id": "d1"}, {"n": 3}]},
    {"text": {"$contains": "bb"}},
    {"created_at": {"$gte": "2023-01-01"}},
    {"created_at": "2023-05-01", "n": {"$gt": 0.5}},
    {"seen": {"$lt": "2023-01-01"}},
]


@pytest.mark.parametrize("wanted", WANTED)
def test_a_filter_means_the_same_on_every_arm(wanted):
    dates = {n: {"n": n, "created_at": f"202{n}-05-01", "seen": f"202{n}-05-01T12:00:00Z"} for n in range(5)}
    documents = [Document(text, id=f"d{n}", metadata=dates[n]) for n, text in enumerate(TEXTS)]
    matches = compile_predicate(wanted)
    expected = {d.id for d in documents if matches({"id": d.id, "text": d.page_content, **d.metadata})}
    assert 0 < len(expected) < len(documents)
    chroma = Chroma("same_on_every_arm", Letters(), client=chromadb.EphemeralClient())
    memory = InMemoryVectorStore(Letters())
    for store in (chroma, memory):
        store.add_documents(documents)
    retrievers = [
        VectorRetriever(vectorstore=chroma),
        VectorRetriever(vectorstore=memory),
        VectorRetriever.from_documents(documents, Letters()),
        BM25Retriever.from_documents(documents, preprocess_func=lambda text: ["word"]),
        FusionRetriever(retrievers=[chroma.as_retriever()]),
        FusionRetriever(retrievers=[RunnableLambda(lambda query: documents)]),
    ]
    for retriever in retrievers:
        assert {document.id for document in retriever.invoke("ab", k=5, filter=wanted)} == expected
    chroma.delete_collection()


def test_a_filter_the_store_does_not_know_still_fills_k():
    many = Fake([1 - number / 1000 for number in range(500)])
    retriever = VectorRetriever(vectorstore=many, k=3, filter=lambda document: document.page_content.endswith("99"))
    assert found(retriever.invoke("q")) == ["d99", "d199", "d299"]


async def test_a_slow_store_does_not_block_the_loop():
    release = threading.Event()

    class Slow(Letters):
        def embed_query(self, text):
            assert release.wait(30)
            return super().embed_query(text)

    retriever = VectorRetriever(vectorstore=InMemoryVectorStore.from_texts(TEXTS, Slow()), k=1)
    asked = asyncio.create_task(retriever.ainvoke("aaaa"))
    await asyncio.sleep(0)
    release.set()  # only reached while the store waits because the loop goes on
    assert found(await asked) == ["aaaa"]


# --- texts of its own: in this process or in Chroma


@pytest.fixture(params=["here", "chroma"])
def place(request, tmp_path):
    return {} if request.param == "here" else {"persist_directory": tmp_path / "chroma"}


@pytest.fixture
def own(place):
    retriever = VectorRetriever.from_texts(TEXTS, Letters(), PLACES, k=2, with_scores=True, **place)
    yield retriever
    retriever.close()


def test_own_texts_are_found_with_cosines(own):
    documents = own.invoke("aaab")
    assert found(documents) == ["aaab", "aaaa"]
    assert scores(documents) == pytest.approx([1.0, cosine("aaab", "aaaa")], abs=1e-5)
    assert documents[0].metadata["n"] == 1


async def test_own_texts_async(own):
    assert found(await own.ainvoke("bbbb", k=3)) == found(own.invoke("bbbb", k=3)) == ["bbbb", "abbb", "aabb"]


@pytest.mark.parametrize(
    "wanted",
    [
        {"odd": False},
        {"n": {"$in": [0, 2, 4]}},
        {"$not": {"odd": True}},
        {"n": {"$ne": 1}, "odd": {"$ne": True}},
        lambda document: document.metadata["n"] % 2 == 0,
    ],
)
def test_own_texts_filtered(own, wanted):
    assert found(own.invoke("aaab", k=5, filter=wanted)) == ["aaaa", "aabb", "bbbb"]


def test_own_texts_with_rich_metadata(place):
    documents = [
        Document("aaaa", metadata={"labels": ["x", "y"], "when": "2024-05-01", "nothing": None, "deep": {"a": 1}}),
        Document("aaab", metadata={"labels": ["z"], "created_at": "2025-01-01", "big": 2**70, "nan": math.inf}),
        Document("bbbb"),
    ]
    retriever = VectorRetriever.from_documents(documents, Letters(), k=3, **place)
    assert [document.metadata for document in retriever.invoke("aaaa")] == [one.metadata for one in documents]
    assert found(retriever.invoke("aaaa", filter={"labels": "y"})) == ["aaaa"]
    assert found(retriever.invoke("aaaa", filter={"created_at": {"$gte": "2024-12-31"}})) == ["aaab"]
    assert found(retriever.invoke("aaaa", filter={"deep.a": 1})) == ["aaaa"]
    assert found(retriever.invoke("aaaa", filter={"text": {"$contains": "bb"}})) == ["bbbb"]
    retriever.close()


def test_own_texts_change(own):
    assert own.add_documents([Document("bbba", id="new")]) == ["new"]
    assert {*found(own.invoke("bbbb", k=3))} == {"bbbb", "abbb", "bbba"}
    own.add_documents([Document("aaaa", id="new", metadata={"v": 2})])
    assert [document.id for document in own.invoke("aaaa", k=5) if document.metadata.get("v") == 2] == ["new"]
    assert own.delete(["new", "unknown"]) is True
    assert own.delete(["new"]) is False
    assert own.delete([]) is False


def test_the_same_texts_again_change_nothing(own):
    own.add_documents([Document(text, metadata=place) for text, place in zip(TEXTS, PLACES, strict=True)])
    assert found(own.invoke("aaab", k=9)) == ["aaab", "aaaa", "aabb", "abbb", "bbbb"]


def test_a_chroma_folder_is_opened_again(tmp_path):
    where = {"persist_directory": tmp_path / "chroma", "collection_name": "notes"}
    first = VectorRetriever.from_texts(TEXTS, Letters(), **where)
    first.close()
    again = VectorRetriever.from_texts([], Letters(), k=1, **where)
    assert found(again.invoke("aabb")) == ["aabb"]
    again.close()
    with pytest.raises(EmbeddingError, match=r"'langchain:Letters'.*'callable'"):
        VectorRetriever.from_texts([], letters, **where)


def test_a_folder_of_langchain_chroma_is_opened(tmp_path):
    Chroma.from_texts(TEXTS, Letters(), PLACES, persist_directory=str(tmp_path / "lc"), collection_name="langchain")
    retriever = VectorRetriever(vectorstore=Chroma("langchain", Letters(), str(tmp_path / "lc")), with_scores=True)
    assert scores(retriever.invoke("aaaa", k=1)) == pytest.approx([1.0], abs=1e-5)


def test_chromas_own_where_is_passed_on(tmp_path):
    retriever = VectorRetriever.from_texts(TEXTS, Letters(), PLACES, persist_directory=tmp_path / "chroma")
    own = {"$and": [{"n": {"$not_contains": 1}}]}
    with pytest.raises(Exception, match="Chroma could not search"):
        retriever.invoke("aaaa", filter=own)
    retriever.close()


def test_any_embedder_will_do():
    for embedding in (letters, Letters(), as_embedder(letters)):
        assert found(VectorRetriever.from_texts(TEXTS, embedding, k=1).invoke("abbb")) == ["abbb"]


def test_the_local_model_finds_meaning():
    texts = ["The cat sleeps on the sofa", "Interest rates rose in 2021", "A dog barks in the yard"]
    retriever = VectorRetriever.from_texts(texts, k=1)
    assert found(retriever.invoke("a kitten naps on the couch")) == [texts[0]]


# --- a memory


def test_over_a_memory(tmp_path):
    with HybridMemory(tmp_path / "memory.db", embedder=letters) as memory:
        memory.add_many(TEXTS)
        retriever = VectorRetriever.from_memory(memory, k=2, with_scores=True)
        documents = retriever.invoke("aaab")
        assert found(documents) == ["aaab", "aaaa"]
        assert scores(documents) == pytest.approx([1.0, cosine("aaab", "aaaa")], abs=1e-6)
        assert found(asyncio.run(retriever.ainvoke("aaab"))) == ["aaab", "aaaa"]
        assert found(retriever.invoke("aaab", k=5, score_threshold=0.9)) == ["aaab", "aaaa"]
        memory.namespace("ana").add("bbbb")
        assert found(retriever.invoke("bbbb", namespace="ana")) == ["bbbb"]
        with pytest.raises(ConfigError, match="in its memory"):
            retriever.add_documents([])


# --- inside a fusion, and wrong settings


def test_it_is_an_arm_with_scores_in_a_fusion():
    arm = VectorRetriever.from_texts(TEXTS, letters, k=3)
    fusion = FusionRetriever(retrievers={"vector": arm}, weights={"vector": 1.0}, k=2)
    assert found(fusion.invoke("aaaa")) == ["aaaa", "aaab"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "nothing to search"),
        ({"vectorstore": Fake([]), "memory": object()}, "vectorstore and memory"),
        ({"vectorstore": Fake([]), "top": 3}, "no setting 'top'"),
        ({"vectorstore": Fake([]), "k": 0}, "k = 0"),
        ({"vectorstore": "chroma"}, "vectorstore = 'chroma'"),
        ({"vectorstore": Fake([]), "with_scores": "maybe"}, "with_scores"),
    ],
)
def test_wrong_settings_are_reported(settings, says):
    with pytest.raises(ConfigError, match=says):
        VectorRetriever(**settings)


def test_wrong_calls_are_reported(tmp_path):
    retriever = VectorRetriever(vectorstore=Fake([0.5]))
    for said, says in (({"k": 0}, "k = 0"), ({"top": 1}, "'top'"), ({"as_of": "2024"}, "only a memory")):
        with pytest.raises(ConfigError, match=says):
            retriever.invoke("q", **said)
    with pytest.raises(ConfigError, match="2 texts, 1 metadatas"):
        VectorRetriever.from_texts(["a", "b"], letters, [{}])
    with pytest.raises(ConfigError, match="collection_name is for Chroma"):
        VectorRetriever.from_texts(["a"], letters, collection_name="x")
    with pytest.raises(ConfigError, match="no setting 'top'"):
        VectorRetriever.from_texts(["a"], letters, top=1, persist_directory=tmp_path / "chroma")


def test_traces_name_the_store():
    assert VectorRetriever(vectorstore=Fake([]))._get_ls_params()["ls_vector_store_provider"] == "Fake"
    assert VectorRetriever.from_texts([], letters)._get_ls_params()["ls_vector_store_provider"] == "MemoryTextCorpus"


class Standard(RetrieversIntegrationTests):
    @property
    def retriever_query_example(self):
        return "aaab"


class TestOverAVectorStore(Standard):
    @property
    def retriever_constructor(self):
        return VectorRetriever

    @property
    def retriever_constructor_params(self):
        return {"vectorstore": InMemoryVectorStore.from_texts(TEXTS, Letters())}


class TestOverItsOwnTexts(Standard):
    @property
    def retriever_constructor(self):
        return VectorRetriever.from_texts

    @property
    def retriever_constructor_params(self):
        return {"texts": TEXTS, "embedding": letters}


class TestOverAMemory(Standard):
    @pytest.fixture(autouse=True)
    def _memory(self, tmp_path):
        with HybridMemory(tmp_path / "memory.db", embedder=letters) as memory:
            memory.add_many(TEXTS)
            self.memory = memory
            yield

    @property
    def retriever_constructor(self):
        return VectorRetriever

    @property
    def retriever_constructor_params(self):
        return {"memory": self.memory}
