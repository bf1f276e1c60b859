"""LangChain's GraphRetriever: over a memory, over documents, over a store; k, filter, hops and decay at call time."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.stores import InMemoryByteStore, InMemoryStore
from langchain_core.tracers.base import BaseTracer
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests

from hybridmem.errors import ConfigError
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.memory.memory import HybridMemory
from langchain_hybridmem.graph import GraphRetriever

TURNS = ["Ana went away.", "To the sea.", "With Bo, I think.", "No, alone.", "For a week."]


def chat():
    return [Document(text, id=f"t{n}", metadata={"thread": "chat", "n": n}) for n, text in enumerate(TURNS)]


def ids(documents):
    return [document.id for document in documents]


def a_memory():
    memory = HybridMemory(embedder=None)
    memory.add_many({"id": f"t{n}", "text": text, "thread": "chat", "type": "turn"} for n, text in enumerate(TURNS))
    return memory


def a_store():
    """Four linked documents, of which only `a` is near the question."""
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
    links = {"a": ["b", "gone"], "b": ["c"], "c": ["d"], "d": []}
    store.add_documents([Document(f"text {key}", id=key, metadata={"links": to}) for key, to in links.items()])
    return store


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self):
        return GraphRetriever

    @property
    def retriever_constructor_params(self):
        return {"documents": chat()}

    @property
    def retriever_query_example(self):
        return "Ana went alone for a week"


class TestStandardOverAMemory(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self):
        return GraphRetriever

    @property
    def retriever_constructor_params(self):
        return {"memory": a_memory()}

    @property
    def retriever_query_example(self):
        return "Ana went alone for a week"


class TestStandardOverAStore(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self):
        return GraphRetriever

    @property
    def retriever_constructor_params(self):
        store = a_store()
        return {"store": store, "seed": store.as_retriever()}

    @property
    def retriever_query_example(self):
        return "text a"


def made(kind):
    if kind == "memory":
        return GraphRetriever.from_memory(a_memory(), k=3)
    return GraphRetriever.from_documents(chat(), k=3)


@pytest.fixture(params=["sync", "async"])
def ask(request):
    """The same question in sync and async code."""
    if request.param == "sync":
        return lambda retriever, query, **said: retriever.invoke(query, **said)
    return lambda retriever, query, **said: asyncio.run(retriever.ainvoke(query, **said))


@pytest.mark.parametrize("kind", ["memory", "documents"])
class TestOverAThread:
    def test_hits_and_what_they_remind_of(self, kind, ask):
        assert ids(ask(made(kind), "Ana")) == ["t0", "t1", "t2"]

    def test_settings_at_call_time(self, kind, ask):
        retriever = made(kind)
        assert ids(ask(retriever, "Ana", k=2)) == ["t0", "t1"]
        assert ids(ask(retriever, "Ana", k=9, hops=1)) == ["t0", "t1"]
        assert ids(ask(retriever, "Ana", k=9, hops=0)) == ["t0"]
        found = ask(retriever, "Ana", decay=0.8, with_scores=True)
        assert [document.metadata["score"] for document in found] == pytest.approx([1.0, 0.8, 0.8 * 0.8])

    def test_scores_and_paths_on_copies(self, kind, ask):
        retriever = made(kind)
        plain = ask(retriever, "Ana")
        last = ask(retriever, "Ana", with_scores=True)[-1]
        assert last.metadata["hybridmem"]["activation"] == last.metadata["score"] == 0.25
        assert last.metadata["hybridmem"]["hops"] == 2
        assert last.metadata["hybridmem"]["path"] == ["t0", "thread", "t1", "thread", "t2"]
        assert last.metadata["hybridmem"]["line"].endswith("→ thread → t1 → thread → t2 (0.25)")
        assert not any("score" in document.metadata for document in [*plain, *ask(retriever, "Ana")])

    def test_nothing_matches_nothing_comes(self, kind, ask):
        assert ask(made(kind), "zebra") == []

    def test_many_at_once(self, kind, ask):
        assert [ids(found) for found in made(kind).batch(["Ana", "alone"])] == [["t0", "t1", "t2"], ["t3", "t2", "t4"]]


class TestOverDocuments:
    def test_a_filter_closes_the_way_through(self, ask):
        retriever = GraphRetriever(documents=chat(), k=9)
        assert ids(ask(retriever, "Ana", filter={"n": {"$ne": 1}})) == ["t0"]
        assert ids(ask(retriever, "Ana", filter=lambda document: document.metadata["n"] < 2)) == ["t0", "t1"]
        assert ids(GraphRetriever(documents=chat(), filter={"n": {"$gt": 1}}).invoke("Ana")) == []

    def test_links_entities_and_other_keys(self, ask):
        documents = [
            Document("the moon", id="a", metadata={"see": ["b"], "also": "c", "entities": ["Apollo"]}),
            Document("b", id="b"),
            Document("c", id="c"),
            Document("d", id="d", metadata={"entities": ["apollo"]}),
            Document("e", id="e", metadata={"source": "f.txt"}),
        ]
        retriever = GraphRetriever(documents=documents, links_key=["see", "also"], k=9)
        found = ask(retriever, "moon", with_scores=True)
        assert ids(found) == ["a", "b", "c", "d"]
        assert [document.metadata["hybridmem"]["path"][1:2] for document in found[1:]] == [
            ["links"],
            ["links"],
            ["entity Apollo"],
        ]

    def test_chunks_of_a_file_as_a_thread_and_texts_as_identity(self, ask):
        chunks = [Document(f"chunk {word}", metadata={"source": "book.pdf"}) for word in ("one", "two", "three")]
        retriever = GraphRetriever.from_documents(chunks, thread_key="source", k=2, hops=1)
        assert [found.page_content for found in ask(retriever, "one")] == ["chunk one", "chunk two"]

    def test_an_id_key(self, ask):
        documents = [Document("the moon", metadata={"pk": 7, "links": [8]}), Document("b", metadata={"pk": 8})]
        assert len(ask(GraphRetriever(documents=documents, id_key="pk"), "moon")) == 2

    def test_seeds_from_any_retriever_with_or_without_scores(self, ask):
        documents = chat()
        seed = RunnableLambda(lambda query: [documents[4], documents[0]])
        retriever = GraphRetriever.from_documents(documents, seed=seed, k=9, hops=1)
        found = ask(retriever, "whatever", with_scores=True)
        assert [(one.id, one.metadata["score"]) for one in found] == [
            ("t4", 2 / 2),  # the first of two
            ("t0", 1 / 2),  # the second
            ("t3", 2 / 2 * 0.5),
            ("t1", 1 / 2 * 0.5),
        ]

    def test_how_many_seeds(self, ask):
        retriever = GraphRetriever(documents=chat(), k=3, seeds=1)
        assert [one.id for one in ask(retriever, "Ana with Bo: alone for a week")][1:] != []
        found = ask(retriever, "Ana with Bo: alone for a week", with_scores=True)
        assert [one.metadata["hybridmem"]["hops"] for one in found] == [0, 1, 1]
        documents = chat()
        seed = RunnableLambda(lambda query: documents)
        found = ask(GraphRetriever(documents=documents, seed=seed, seeds=1), "", with_scores=True)
        assert [(one.id, one.metadata["score"]) for one in found] == [("t0", 1.0), ("t1", 0.5), ("t2", 0.25)]

    def test_documents_come_and_go(self, ask):
        retriever = GraphRetriever(documents=[], k=9)
        assert ask(retriever, "Ana") == []
        assert retriever.add_documents(chat()) == ["t0", "t1", "t2", "t3", "t4"]
        assert ids(ask(retriever, "Ana")) == ["t0", "t1", "t2"]
        assert retriever.delete(["t1", "never"])
        assert not retriever.delete(["t1"])
        assert ids(ask(retriever, "Ana")) == ["t0", "t2", "t3"]
        retriever.add_documents([Document("Ana again", id="t4", metadata={"thread": "chat"})])
        assert ids(ask(retriever, "again")) == ["t4", "t3", "t2"]

    def test_weights_by_settings(self, ask):
        settings = GraphSettings(thread=0.8)
        found = ask(GraphRetriever(documents=chat(), graph=settings, hops=1), "Ana", with_scores=True)
        assert [one.metadata["score"] for one in found] == [1.0, 0.8 * 0.5]
        assert ids(ask(GraphRetriever(documents=chat(), graph=GraphSettings(thread=0)), "Ana")) == ["t0"]

    def test_inputs_stay_as_they_were(self, ask):
        documents = chat()
        before = [document.model_copy(deep=True) for document in documents]
        ask(GraphRetriever(documents=documents), "Ana", with_scores=True)
        assert documents == before


class TestOverAMemory:
    def test_filter_namespace_and_as_of(self, ask):
        memory = a_memory()
        memory.namespace("bo").add("Ana is elsewhere", id="x")
        retriever = GraphRetriever.from_memory(memory)
        assert ids(ask(retriever, "Ana", namespace="bo")) == ["x"]
        assert ids(ask(retriever, "Ana", filter={"type": "other"})) == []
        assert ids(ask(retriever, "Ana", as_of="2001-01-01")) == []
        assert ids(GraphRetriever(memory=memory, namespace="bo").invoke("Ana")) == ["x"]

    def test_the_line_names_the_seed(self, ask):
        memory = a_memory()
        result = memory.search_arm("graph", "Ana", k=2)[1]
        assert result.receipt.arms[0].note == "seed t0 (bm25 #1) → thread → t1 (0.5)"
        assert result.explanation.activations["t1"].hops == 1
        assert str(result.explanation).startswith("'Ana': 2 results (graph: 2 hits from 1 seeds of bm25)")

    def test_a_memory_without_a_graph_gives_its_words(self, ask):
        memory = HybridMemory(embedder=None, graph=False)
        memory.add_many(TURNS)
        assert len(ask(GraphRetriever.from_memory(memory), "Ana", with_scores=True)) == 1

    def test_fields_come_as_metadata(self, ask):
        assert ask(made("memory"), "Ana")[0].metadata["thread"] == "chat"


class TestOverAStore:
    @pytest.mark.parametrize("hops", [0, 1, 2, 3])
    def test_links_are_followed_hop_by_hop(self, ask, hops):
        store = a_store()
        retriever = GraphRetriever.from_store(store, seed=store.as_retriever(search_kwargs={"k": 1}), k=9)
        retriever.seed.search_type = "mmr"  # which keeps its own k
        found = ask(retriever, "text a", hops=hops, with_scores=True)
        assert ids(found) == ["a", "b", "c", "d"][: hops + 1]
        assert [one.metadata["score"] for one in found] == [0.5**n for n in range(hops + 1)]
        assert found[-1].metadata["hybridmem"]["hops"] == hops

    def test_its_own_search_is_the_default_seed_and_scores_count(self, ask):
        found = ask(GraphRetriever.from_store(a_store(), k=1), "text b", with_scores=True)
        assert [(one.id, one.metadata["score"]) for one in found] == [("b", 1.0)]

    def test_a_filter_closes_the_way_through(self, ask):
        store = a_store()
        seed = RunnableLambda(lambda query: store.get_by_ids(["a"]))
        retriever = GraphRetriever(store=store, seed=seed, filter=lambda one: one.id != "b")
        assert ids(ask(retriever, "a")) == ["a"]
        assert ids(ask(retriever, "a", filter=lambda one: one.id != "c")) == ["a", "b"]

    def test_what_cannot_reach_the_k_best_is_not_fetched(self, ask):
        fetched = []
        shelf = {key: Document(key, id=key, metadata={"links": [f"{key}{n}" for n in "12"]}) for key in ("a", "b", "c")}

        def fetch(keys):
            fetched.extend(keys)
            return [Document(key, id=key, metadata={"links": [f"{key}1"]}) for key in keys]

        seed = RunnableLambda(lambda query: list(shelf.values()))  # worth 3/3, 2/3 and 1/3
        found = ask(GraphRetriever(store=fetch, seed=seed, k=3), "q", with_scores=True)
        assert [(one.id, one.metadata["score"]) for one in found] == [("a", 1.0), ("b", 2 / 3), ("a1", 0.5)]
        assert fetched[:4] == ["a1", "a2", "b1", "b2"]  # 1/2 and 1/3 are no less than the third best, 1/6 is
        assert "c1" not in fetched

    def test_key_value_stores_and_functions(self, ask):
        store = a_store()
        seed = RunnableLambda(lambda query: store.get_by_ids(["a"]))
        shelf = InMemoryStore()
        shelf.mset([(one.id, one) for one in store.get_by_ids(["a", "b", "c", "d"])])
        for place in (shelf, store.get_by_ids):
            assert ids(ask(GraphRetriever(store=place, seed=seed), "a")) == ["a", "b", "c"]

    def test_seeds_of_our_own_lose_the_score_we_asked_for(self, ask):
        store = a_store()
        seed = GraphRetriever(documents=store.get_by_ids(["a", "b"]), k=1)
        found = ask(GraphRetriever(store=store, seed=seed, k=9), "text a")
        assert sorted(ids(found)) == ["a", "b", "c", "d"][: len(found)]
        assert not any("score" in one.metadata for one in found)

    def test_a_hub_does_not_empty_the_store(self, ask):
        fetched = []

        def fetch(keys):
            fetched.extend(keys)
            return [Document(key, id=key) for key in keys]

        seed = RunnableLambda(
            lambda query: [Document("hub", id="hub", metadata={"links": [str(n) for n in range(5000)]})]
        )
        assert len(ask(GraphRetriever(store=fetch, seed=seed, k=9), "hub")) == 9
        assert len(fetched) == 999


class Notes(BaseTracer):
    def __init__(self):
        super().__init__()
        self.runs = []

    def _persist_run(self, run):
        self.runs.append(run)


def test_the_seed_is_a_child_run_and_the_name_is_reported(ask):
    notes = Notes()
    store = a_store()
    retriever = GraphRetriever.from_store(store)
    if ask.__code__.co_names[0] == "asyncio":
        asyncio.run(retriever.ainvoke("text a", {"callbacks": [notes]}))
    else:
        retriever.invoke("text a", {"callbacks": [notes]})
    [run] = notes.runs
    assert run.name == "GraphRetriever"
    assert [child.run_type for child in run.child_runs] == ["retriever"]
    assert "seed" in run.child_runs[0].tags
    assert run.extra["metadata"]["ls_retriever_name"] == "graph"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "exactly one of memory, documents and store"),
        ({"documents": [], "store": print, "seed": RunnableLambda(print)}, "documents and store"),
        ({"store": print}, "needs a seed"),
        ({"store": InMemoryByteStore, "seed": None}, "needs a seed"),
        ({"store": 5, "seed": RunnableLambda(print)}, "store is a int"),
        ({"memory": object(), "seed": RunnableLambda(print)}, "does not go with a memory"),
        ({"memory": object(), "seeds": 3}, "does not go with a memory"),
        ({"documents": [], "seeds": 0}, "seeds = 0"),
        ({"documents": [], "k": 0}, "k = 0"),
        ({"documents": [], "hops": -1}, "hops = -1"),
        ({"documents": [], "decay": 2}, "decay = 2"),
        ({"documents": [], "depth": 2}, "no setting 'depth'"),
        ({"documents": [], "graph": "all"}, "graph = 'all'"),
        ({"documents": [], "filter": {"a": {"$near": 1}}}, "near"),
        ({"documents": "text"}, "documents = 'text'"),
        ({"documents": [], "seed": 5}, "is a int"),
    ],
)
def test_bad_settings_are_reported(settings, told):
    with pytest.raises(ConfigError, match=told):
        GraphRetriever(**settings)


@pytest.mark.parametrize("said", [{"k": 0}, {"hops": -1}, {"decay": "x"}, {"depth": 3}, {"as_of": "2020-01-01"}])
def test_bad_words_in_a_call_are_reported(said, ask):
    with pytest.raises(ConfigError, match=next(iter(said))):
        ask(GraphRetriever(documents=chat()), "Ana", **said)


def test_only_documents_of_its_own_can_be_changed():
    retriever = GraphRetriever.from_memory(a_memory())
    with pytest.raises(ConfigError, match="no documents of its own"):
        retriever.add_documents(chat())


def test_what_is_configured_at_the_call_leaves_the_documents_there():
    turns = [Document(text, id=f"t{n}", metadata={"thread": "chat"}) for n, text in enumerate(("Ana?", "Sea.", "Bo!"))]
    retriever = GraphRetriever(documents=turns)
    flexible = retriever.configurable_fields(k=ConfigurableField(id="k"), thread_key=ConfigurableField(id="thread"))
    assert [d.id for d in flexible.invoke("Ana", {"configurable": {"k": 2}})] == ["t0", "t1"]
    assert [d.id for d in flexible.invoke("Ana")] == ["t0", "t1", "t2"]
    assert [d.id for d in flexible.invoke("Ana", {"configurable": {"thread": "none"}})] == ["t0"]
    retriever.delete(["t1", "t2"])
    assert [d.id for d in flexible.invoke("Ana")] == ["t0"]
