"""GraphRetriever over the same documents: the same ids in both frameworks, at hand and in real stores."""

import uuid
from functools import cache

import chromadb
import numpy as np
import pytest
from langchain_chroma import Chroma
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore

from hybridmem import HybridMemory
from hybridmem.errors import ConfigError
from langchain_hybridmem import BM25Retriever, FusionRetriever
from langchain_hybridmem import GraphRetriever as LangChainGraph
from llamaindex_hybridmem import BM25Retriever as LlamaBM25
from llamaindex_hybridmem import FusionRetriever as LlamaFusion
from llamaindex_hybridmem import GraphRetriever as LlamaGraph

TEXTS = {
    "film": ("Ed Wood is a film that was directed by Tim Burton.", {"title": "Ed Wood (film)"}),
    "director": ("An artist, born in Burbank.", {"name": "Tim Burton"}),
    "city": ("In California.", {"file_name": "Burbank.md", "aliases": ["Media capital"]}),
    "diary": ("See the media capital and [[Tim Burton]].", {}),
    **{f"n{n}": (f"note {n} about gardening", {}) for n in range(40)},
}
QUESTION = "who directed the film Ed Wood"


def documents_of(texts):
    return [Document(text, id=id_, metadata=dict(more)) for id_, (text, more) in texts.items()]


def nodes_of(texts):
    return [TextNode(text=text, id_=id_, metadata=dict(more)) for id_, (text, more) in texts.items()]


def both(question, texts=TEXTS, call=None, **settings):
    k, call = settings.pop("k", 4), call or {}
    one = LangChainGraph(documents=documents_of(texts), k=k, **settings).invoke(question, **call)
    two = LlamaGraph(nodes_of(texts), similarity_top_k=k, **settings).retrieve(question, **call)
    assert [document.id for document in one] == [found.node.id_ for found in two]
    return [document.id for document in one]


def test_titles_of_three_keys_are_followed_hop_by_hop():
    assert both(QUESTION, k=3) == ["film", "director", "city"]
    assert set(both("diary see", k=3)) == {"diary", "director", "city"}


def test_hops_and_title_key_limit_what_is_reached():
    assert both(QUESTION, hops=1) == ["film", "director"]
    assert both(QUESTION, title_key="heading") == ["film"]


LINKED = {
    "a": ("a lantern", {"mentions": ["Bee", "Cee"], "next": "d", "thread": "t", "links": ["e"]}),
    "b": ("the second", {"title": "Bee", "mentions": "Cee"}),
    "c": ("the third", {"title": "Cee", "thread": "t"}),
    "d": ("the fourth", {"links": ["a"]}),
    "e": ("the fifth", {}),
}
PLAIN = {"links_key": "none", "thread_key": "none", "title_key": "none"}


def test_edges_between_two_fields_at_call_time_and_before():
    definitions = [("mentions", "title")]
    assert both("lantern", LINKED, edges=definitions, hops=1, **PLAIN) == ["a", "b", "c"]
    assert both("lantern", LINKED, call={"edges": [("next", "$id")]}, **PLAIN) == ["a", "d"]
    assert both("lantern", LINKED, call={"edges": [("next", "id")]}, edges=definitions, **PLAIN) == ["a", "d"]


def test_edges_between_fields_are_walked_in_the_direction_of_the_call():
    definitions = [("mentions", "title")]
    assert both("third", LINKED, edges=definitions, hops=1, **PLAIN) == ["c"]
    for direction, ids in (("backward", ["c", "a", "b"]), ("both", ["c", "a", "b"]), ("forward", ["c"])):
        assert both("third", LINKED, call={"direction": direction}, edges=definitions, hops=1, **PLAIN) == ids


def test_links_and_threads_are_walked_in_the_direction_of_the_call():
    assert set(both("lantern", LINKED, hops=1, title_key="none", k=9)) == {"a", "c", "d", "e"}
    assert both("lantern", LINKED, call={"direction": "forward"}, hops=1, title_key="none", k=9) == ["a", "c", "e"]
    assert both("lantern", LINKED, call={"direction": "backward"}, hops=1, title_key="none", k=9) == ["a", "d"]


def test_weights_replace_those_of_the_settings_for_one_call():
    texts = {key: (text, {**more, "title": ""}) for key, (text, more) in LINKED.items()}
    retriever = LangChainGraph.from_documents(documents_of(texts), k=9, hops=1)
    for weights in ({}, {"thread": 0.2, "metadata": 3.0}, {"thread": 0}):
        found = retriever.invoke("lantern", weights=weights, with_scores=True)
        scores = {document.id: document.metadata["score"] for document in found}
        thread, metadata = weights.get("thread", 1.0), weights.get("metadata", 1.0)
        expected = {"a": 1.0, "c": thread * 0.5, "d": metadata * 0.5, "e": metadata * 0.5}
        assert scores == pytest.approx({key: value for key, value in expected.items() if value})


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ({"direction": "up"}, "direction"),
        ({"weights": "a"}, "weights = 'a'"),
        ({"weights": {"x": 1}}, "weights"),
        ({"weights": {"thread": -1}}, "thread"),
    ],
)
def test_a_wrong_walk_is_refused(call, told):
    with HybridMemory(embedder=None) as memory:
        memory.add("a lantern", metadata={"links": ["x"]})
        for ask in (
            lambda: LangChainGraph.from_documents(documents_of(LINKED)).invoke("x", **call),
            lambda: LlamaGraph(nodes_of(LINKED)).retrieve("x", **call),
            lambda: LangChainGraph.from_documents(documents_of(LINKED), **call),
            lambda: memory.search_arm("graph", "lantern", **call),
            lambda: memory.search_arm("bm25", "lantern", **call),
        ):
            with pytest.raises(ConfigError, match=told):
                ask()


def test_a_memory_is_walked_by_the_same_settings():
    with HybridMemory(embedder=None) as memory:
        memory.add_many(
            {"id": key, "text": text, "thread": more.get("thread"), "title": more.get("title", ""), "metadata": more}
            for key, (text, more) in LINKED.items()
        )
        one, two = LangChainGraph.from_memory(memory, k=9), LlamaGraph.from_memory(memory, similarity_top_k=9)
        for call in ({}, {"direction": "forward"}, {"direction": "backward", "hops": 1}, {"weights": {"metadata": 0}}):
            ids = [document.id for document in one.invoke("lantern", **call)]
            assert ids == [found.node.id_ for found in two.retrieve("lantern", **call)]
            assert ids == [result.id for result in memory.search_arm("graph", "lantern", k=9, **call)]
        assert ids == ["a", "c"]
        for ask in (lambda: one.invoke("x", edges=[("a", "b")]), lambda: two.retrieve("x", edges=[("a", "b")])):
            with pytest.raises(ConfigError, match="edges does not go with a memory"):
                ask()


def test_mentions_weigh_what_the_call_says():
    with HybridMemory(embedder=None) as memory:
        memory.add_many({"id": f"n{n}", "text": f"note {n}"} for n in range(200))
        memory.add("a lantern of Tim Burton", id="film")
        memory.add("an artist", id="artist", title="Tim Burton")
        plain = {one.id: one.score for one in memory.search_arm("graph", "lantern")}
        half = {one.id: one.score for one in memory.search_arm("graph", "lantern", weights={"mentions": 0.5})}
        assert half["artist"] == pytest.approx(plain["artist"] / 2)
        assert [one.id for one in memory.search_arm("graph", "lantern", weights={"mentions": 0})] == ["film"]
        assert [one.id for one in memory.search_arm("graph", "lantern", direction="backward")] == ["film"]


class Letters(Embeddings):
    """The number of each letter in a text."""

    def embed_query(self, text):
        counts = np.array([text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"], float)
        return (counts / np.linalg.norm(counts)).tolist()

    def embed_documents(self, texts):
        return list(map(self.embed_query, texts))


@cache
def langchain_stores():
    single = {key: (text, {"see": more.get("next", "none"), **more}) for key, (text, more) in LINKED.items()}
    chroma = Chroma(embedding_function=Letters(), collection_name=f"g{uuid.uuid4().hex}")
    flat = {key: (text, {k: v for k, v in more.items() if isinstance(v, str)}) for key, (text, more) in single.items()}
    chroma.add_documents(documents_of({**flat, "a": (flat["a"][0], {**flat["a"][1], "mentions": "Bee"})}))
    memory = InMemoryVectorStore(Letters())
    memory.add_documents(documents_of(single))
    return {"Chroma": chroma, "InMemoryVectorStore": memory}


@pytest.mark.parametrize("name", ["Chroma", "InMemoryVectorStore"])
def test_a_langchain_store_is_asked_by_field_and_by_id(name):
    store = langchain_stores()[name]
    seed = store.as_retriever(search_kwargs={"k": 1})

    def ids(**call):
        retriever = LangChainGraph.from_store(store, seed=seed, k=9, seeds=1, links_key="none")
        return [document.id for document in retriever.invoke("a lantern", **call)]

    assert ids() == ["a"]
    assert ids(edges=[("next", "$id")]) == ["a", "d"]
    assert ids(edges=[("mentions", "title")], hops=1)[:2] == ["a", "b"]
    assert ids(edges=[("mentions", "title")], hops=2) == ["a", "b", "c"]
    assert ids(edges=[("thread", "thread")]) == ["a", "c"]
    assert ids(edges=[("$id", "next")], direction="backward") == ["a", "d"]


def test_a_store_without_a_search_finds_no_fields():
    by_id = {document.id: document for document in documents_of(LINKED)}
    retriever = LangChainGraph.from_store(
        lambda ids: [by_id[id_] for id_ in ids], seed=BM25Retriever.from_documents(list(by_id.values()))
    )
    assert [document.id for document in retriever.invoke("lantern", edges=[("next", "$id")])] == ["a", "d", "e"]
    with pytest.raises(ConfigError, match="store is a function"):
        retriever.invoke("lantern", edges=[("mentions", "title")])
    nodes = {node.id_: node for node in nodes_of(LINKED)}
    other = LlamaGraph.from_store(
        lambda ids: [nodes[id_] for id_ in ids], seed=LlamaBM25.from_defaults(nodes=list(nodes.values()))
    )
    with pytest.raises(ConfigError, match="store is a function"):
        other.retrieve("lantern", edges=[("mentions", "title")])


@pytest.mark.parametrize("kind", ["SimpleVectorStore", "ChromaVectorStore", "docstore"])
def test_a_llamaindex_store_is_asked_by_field_and_by_id(kind):
    flat = {
        key: (text, {k: (v[0] if isinstance(v, list) else v) for k, v in more.items()})
        for key, (text, more) in LINKED.items()
    }
    nodes = nodes_of(flat)
    seed = LlamaBM25.from_defaults(nodes=nodes, similarity_top_k=1)
    if kind == "ChromaVectorStore":
        collection = chromadb.EphemeralClient().create_collection(f"g{uuid.uuid4().hex}")
        context = StorageContext.from_defaults(vector_store=ChromaVectorStore(chroma_collection=collection))
        index = VectorStoreIndex(nodes, storage_context=context, embed_model=MockEmbedding(4))
    else:
        index = VectorStoreIndex(nodes, embed_model=MockEmbedding(4))
    how = {"docstore": index.docstore} if kind == "docstore" else {"index": index}
    retriever = LlamaGraph.from_defaults(**how, seed=seed, seeds=1, similarity_top_k=9, links_key="none")

    def ids(**call):
        return [found.node.id_ for found in retriever.retrieve("lantern", **call)]

    assert ids() == ["a"]
    assert ids(edges=[("next", "$id")]) == ["a", "d"]
    assert ids(edges=[("mentions", "title")], hops=2) == ["a", "b", "c"]
    assert ids(edges=[("thread", "thread")]) == ["a", "c"]


def test_seeds_come_from_a_fusion():
    bm25 = BM25Retriever.from_documents(documents_of(TEXTS), k=4)
    one = LangChainGraph.from_documents(documents_of(TEXTS), seed=FusionRetriever(retrievers=[bm25, bm25]), k=3)
    other = LlamaBM25.from_defaults(nodes=nodes_of(TEXTS), similarity_top_k=4)
    two = LlamaGraph(nodes_of(TEXTS), seed=LlamaFusion([other, other]), similarity_top_k=3)
    assert [document.id for document in one.invoke(QUESTION)] == ["film", "director", "city"]
    assert [found.node.id_ for found in two.retrieve(QUESTION)] == ["film", "director", "city"]


def test_markdown_links_are_edges_in_both():
    texts = {
        "index": ("Start: see [the plan](notes/The%20plan.md#goals).", {}),
        "plan": ("Goals and dates.", {"file_name": "The plan.md"}),
    }
    assert both("start", texts) == ["index", "plan"]


def test_relationships_of_nodes_are_edges_of_either_direction():
    kinds = (
        (NodeRelationship.NEXT, "forward"),
        (NodeRelationship.PREVIOUS, "backward"),
        (NodeRelationship.PARENT, "forward"),
        (NodeRelationship.CHILD, "backward"),
        (NodeRelationship.SOURCE, "forward"),
    )
    for kind, direction in kinds:
        first, second = TextNode(id_="a", text="the moon"), TextNode(id_="b", text="the sea")
        info = RelatedNodeInfo(node_id="b")
        first.relationships[kind] = [info] if kind == NodeRelationship.CHILD else info
        retriever = LlamaGraph([first, second], direction=direction)
        assert [found.node.id_ for found in retriever.retrieve("moon")] == ["a", "b"]
        other = "backward" if direction == "forward" else "forward"
        assert [found.node.id_ for found in retriever.retrieve("moon", direction=other)] == ["a"]


def test_the_scale_of_the_seeds_decides_where_neighbours_rank():
    texts = {
        "both": ("a lantern, a lantern, the sea and the sea and a lantern", {"links": ["linked"]}),
        "one": ("a lantern and the sea", {}),
        "two": ("the sea with a lantern and much more of this and that", {}),
        "linked": ("nothing", {}),
    }

    def scores(**how):
        bm25 = BM25Retriever.from_documents(documents_of(texts), k=3)
        retriever = LangChainGraph.from_documents(documents_of(texts), seed=bm25, k=9, with_scores=True, **how)
        return {document.id: document.metadata["score"] for document in retriever.invoke("lantern sea")}

    assert list(scores()) == ["both", "one", "two", "linked"]
    found = scores(seed_scale="range")
    assert list(found)[:1] == ["both"]
    assert found["linked"] == 0.5
    assert found["two"] == pytest.approx(1 / 4)
    for ask in (
        lambda: scores(seed_scale="rank"),
        lambda: LlamaGraph(nodes_of(texts), seed_scale="rank").retrieve("x"),
    ):
        with pytest.raises(ConfigError, match="seed_scale"):
            ask()
