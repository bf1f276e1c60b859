"""LlamaIndex's GraphRetriever: over nodes, a memory, a docstore or an index; settings at call time; clean prompts."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.node_parser import MarkdownNodeParser
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import Document, MetadataMode, NodeRelationship, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from hybridmem.errors import ConfigError
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.memory.memory import HybridMemory
from llamaindex_hybridmem.graph import GraphRetriever
from tests.support.llama_fakes import AsyncOnly, Fixed, Letters, Reciting, node, scored

TURNS = ["Ana went away.", "To the sea.", "With Bo, I think.", "No, alone.", "For a week."]


def chat():
    return [node(f"t{n}", text=text, metadata={"thread": "chat", "n": n}) for n, text in enumerate(TURNS)]


def a_memory():
    memory = HybridMemory(embedder=None)
    memory.add_many({"id": f"t{n}", "text": text, "thread": "chat", "type": "turn"} for n, text in enumerate(TURNS))
    return memory


def related(**kinds):
    info = {}
    for kind, to in kinds.items():
        many = [RelatedNodeInfo(node_id=key) for key in to] if isinstance(to, list) else RelatedNodeInfo(node_id=to)
        info[NodeRelationship[kind]] = many
    return info


def chain():
    """a → b → c → d by NEXT and PREVIOUS alone; nothing is in the metadata."""
    after = {"a": "b", "b": "c", "c": "d"}
    return [
        node(
            key,
            relationships=related(
                **({"NEXT": after[key]} if key in after else {}),
                **({"PREVIOUS": chr(ord(key) - 1)} if key != "a" else {}),
            ),
        )
        for key in "abcd"
    ]


def ids(found):
    return [one.node.id_ for one in found]


def values(found):
    return {one.node.id_: one.score for one in found}


@pytest.fixture(params=["sync", "async"])
def ask(request):
    """The same question in sync and async code."""
    if request.param == "sync":
        return lambda retriever, query, **said: retriever.retrieve(query, **said)
    return lambda retriever, query, **said: asyncio.run(retriever.aretrieve(query, **said))


def made(kind, **settings):
    if kind == "memory":
        return GraphRetriever.from_memory(a_memory(), **settings)
    return GraphRetriever.from_nodes(chat(), **settings)


@pytest.mark.parametrize("kind", ["memory", "nodes"])
class TestOverAThread:
    def test_hits_and_what_they_remind_of(self, kind, ask):
        found = ask(made(kind), "Ana")
        assert [(one.node.id_, one.score) for one in found] == [("t0", 1.0), ("t1", 0.5), ("t2", 0.25)]

    def test_settings_at_call_time(self, kind, ask):
        retriever = made(kind, similarity_top_k=9)
        assert ids(ask(retriever, QueryBundle("Ana"), similarity_top_k=2)) == ["t0", "t1"]
        assert ids(ask(retriever, "Ana", hops=1)) == ["t0", "t1"]
        assert ids(ask(retriever, "Ana", hops=0)) == ["t0"]
        assert values(ask(retriever, "Ana", decay=0.8)) == pytest.approx({"t0": 1.0, "t1": 0.8, "t2": 0.64})
        assert ids(ask(retriever, "Ana")) == ["t0", "t1", "t2"]

    def test_paths_live_on_the_results_alone(self, kind, ask):
        retriever = made(kind)
        last = ask(retriever, "Ana")[-1]
        assert last.explanation.activations["t2"].path == ("t0", "thread", "t1", "thread", "t2")
        assert last.receipt.arms[0].note.endswith("→ thread → t1 → thread → t2 (0.25)")
        shown = last.node.get_content(MetadataMode.ALL)
        assert "seed" not in shown
        assert "0.25" not in shown

    def test_nothing_matches_nothing_comes(self, kind, ask):
        assert ask(made(kind), "zebra") == []


class TestOverNodes:
    def test_relationships_are_edges(self, ask):
        nodes = [
            node("a", text="the moon", relationships=related(NEXT="b", PARENT="p", SOURCE="doc")),
            node("b"),
            node("p", relationships=related(CHILD=["a", "q"])),
            node("q"),
            node("doc"),
            node("z", relationships=related(PREVIOUS="a")),
        ]
        found = ask(GraphRetriever(nodes, similarity_top_k=9), "moon")
        assert values(found) == {"a": 1.0, "b": 0.5, "p": 0.5, "doc": 0.5, "z": 0.5, "q": 0.25}
        labels = {key: won.path[1::2] for key, won in found[0].explanation.activations.items()}
        assert labels["b"] == labels["z"] == ("next",)
        assert labels["p"] == ("parent",)
        assert labels["q"] == ("parent", "parent")
        assert labels["doc"] == ("source",)

    def test_chunks_of_one_source_remind_of_each_other_less_when_they_are_many(self, ask):
        few = [node(key, text=f"chunk {key}", relationships=related(SOURCE="doc")) for key in ("one", "two")]
        assert values(ask(GraphRetriever(few, hops=1), "one")) == {"one": 1.0, "two": 0.5}
        words = ("one", "two", "three", "four", "five")
        many = [node(key, text=f"chunk {key}", relationships=related(SOURCE="doc")) for key in words]
        found = ask(GraphRetriever(many, hops=1, similarity_top_k=9), "one")
        assert values(found) == {"one": 1.0, **dict.fromkeys(words[1:], 1 / (5 - 1) ** 0.5 * 0.5)}

    def test_a_parsers_own_relationships(self, ask):
        text = "\n".join(f"# Part {n}\nabout {word}" for n, word in enumerate(["cats", "dogs", "owls", "bees"]))
        nodes = MarkdownNodeParser().get_nodes_from_documents([Document(text=text, id_="book")])
        retriever = GraphRetriever(nodes, similarity_top_k=9, graph=GraphSettings(shared=0))
        assert values(ask(retriever, "cats")) == {nodes[0].id_: 1.0, nodes[1].id_: 0.5, nodes[2].id_: 0.25}

    def test_filters_close_the_way_through(self, ask):
        retriever = GraphRetriever(chat(), similarity_top_k=9)
        native = MetadataFilters(filters=[MetadataFilter(key="n", value=1, operator=FilterOperator.NE)])
        assert ids(ask(retriever, "Ana", filters=native)) == ["t0"]
        assert ids(ask(retriever, "Ana", filters={"n": {"$lt": 2}})) == ["t0", "t1"]
        assert ask(GraphRetriever(chat(), filters={"n": {"$gt": 1}}), "Ana") == []

    def test_links_and_entities_in_metadata(self, ask):
        nodes = [
            node("a", text="the moon", metadata={"see": ["b"], "also": "c", "entities": ["Apollo"]}),
            *(node(key) for key in "bc"),
            node("d", metadata={"entities": "apollo"}),
        ]
        assert ids(ask(GraphRetriever(nodes, links_key=["see", "also"]), "moon")) == ["a", "b", "c", "d"]

    @pytest.mark.parametrize("kind", [Fixed, AsyncOnly])
    def test_seeds_from_any_retriever(self, ask, kind):
        nodes = chat()
        retriever = GraphRetriever.from_nodes(nodes, seed=kind(scored([nodes[4], nodes[0]], [0.8, 0.4])), hops=1)
        assert values(ask(retriever, "whatever")) == {"t4": 1.0, "t0": 0.5, "t3": 0.5, "t1": 0.25}

    def test_seeds_without_scores_count_by_rank(self, ask):
        nodes = chat()
        retriever = GraphRetriever(nodes, seed=Fixed(scored([nodes[4], nodes[0]], [None, None])), hops=0)
        assert values(ask(retriever, "whatever")) == {"t4": 2 / 2, "t0": 1 / 2}

    def test_a_seed_that_knows_no_filters_is_filtered(self, ask):
        nodes = chat()
        retriever = GraphRetriever(nodes, seed=Fixed(scored([nodes[4], nodes[0]])), filters={"n": {"$lt": 2}})
        assert values(ask(retriever, "whatever")) == {"t0": 1.0, "t1": 0.5}

    def test_how_many_seeds(self, ask):
        nodes = chat()
        assert values(ask(GraphRetriever(nodes, seed=Fixed(scored(nodes)), seeds=1), "q")) == {
            "t0": 1.0,
            "t1": 0.5,
            "t2": 0.25,
        }
        assert len(ask(GraphRetriever(nodes, seeds=1, hops=0), "Ana with Bo: alone for a week")) == 1

    def test_nodes_come_and_go(self, ask):
        retriever = GraphRetriever([], similarity_top_k=9)
        assert ask(retriever, "Ana") == []
        assert retriever.add_nodes(chat()) == ["t0", "t1", "t2", "t3", "t4"]
        assert retriever.delete_nodes(["t1", "never"]) == 1
        assert ids(ask(retriever, "Ana")) == ["t0", "t2", "t3"]

    def test_relationships_of_a_replaced_node_are_forgotten(self, ask):
        retriever = GraphRetriever(chain())
        assert ids(ask(retriever, "a", hops=1)) == ["a", "b"]
        retriever.add_nodes([node("a"), node("b", relationships=related(NEXT="c"))])
        assert ids(ask(retriever, "a", hops=1)) == ["a"]

    def test_inputs_stay_as_they_were(self, ask):
        nodes = chat()
        before = [(one.hash, dict(one.metadata)) for one in nodes]
        ask(GraphRetriever(nodes), "Ana")
        assert [(one.hash, dict(one.metadata)) for one in nodes] == before


class TestOverAMemory:
    def test_filter_namespace_and_as_of(self, ask):
        memory = a_memory()
        memory.namespace("bo").add("Ana is elsewhere", id="x")
        retriever = GraphRetriever.from_memory(memory)
        assert ids(ask(retriever, "Ana", namespace="bo")) == ["x"]
        assert ask(retriever, "Ana", filters={"type": "other"}) == []
        assert ask(retriever, "Ana", as_of="2001-01-01") == []
        assert ids(ask(GraphRetriever(memory=memory, namespace="bo"), "Ana")) == ["x"]

    def test_the_line_names_the_seed(self, ask):
        assert ask(made("memory"), "Ana")[1].receipt.arms[0].note == "seed t0 (bm25 #1) → thread → t1 (0.5)"

    def test_a_memory_without_a_graph_gives_its_words(self, ask):
        memory = HybridMemory(embedder=None, graph=False)
        memory.add_many(TURNS)
        assert len(ask(GraphRetriever.from_memory(memory), "Ana")) == 1


class TestOverAStore:
    def a_docstore(self):
        store = SimpleDocumentStore()
        store.add_documents([*chain(), node("far", metadata={"links": ["d", "gone"]})])
        return store

    @pytest.mark.parametrize("hops", [0, 1, 2, 3])
    def test_relationships_are_followed_hop_by_hop(self, ask, hops):
        store = self.a_docstore()
        seed = Fixed(scored([store.get_node("a")]))
        retriever = GraphRetriever.from_store(store, seed=seed, similarity_top_k=9)
        assert values(ask(retriever, "a", hops=hops)) == {key: 0.5**n for n, key in enumerate("abcd"[: hops + 1])}

    def test_links_in_metadata_and_missing_nodes(self, ask):
        store = self.a_docstore()
        seed = Fixed(scored([store.get_node("far")]))
        assert ids(ask(GraphRetriever(store=store, seed=seed, hops=1), "far")) == ["far", "d"]
        fetch = lambda keys: store.get_nodes(keys, raise_error=False)
        assert ids(ask(GraphRetriever(store=fetch, seed=seed, hops=1), "far")) == ["far", "d"]

    def test_filters_close_the_way_through(self, ask):
        store = self.a_docstore()
        retriever = GraphRetriever(store=store, seed=Fixed(scored([store.get_node("a")])), filters={"id": {"$ne": "b"}})
        assert ids(ask(retriever, "a")) == ["a"]

    def test_a_vector_store_index(self, ask):
        nodes = [node("a", text="zzz", metadata={"links": ["b"]}), node("b", text="mmm"), node("c", text="qqq")]
        for one in nodes:
            one.excluded_embed_metadata_keys = ["links"]
        index = VectorStoreIndex(nodes, embed_model=Letters())
        retriever = GraphRetriever.from_defaults(index=index, seed=index.as_retriever(similarity_top_k=1), hops=1)
        found = values(ask(retriever, "zzz"))
        assert found["a"] == 1.0
        assert found["b"] == 0.5

    def test_a_vector_store_without_a_docstore(self, ask):
        class Shelf:
            def __init__(self, nodes):
                self.nodes = {one.id_: one for one in nodes}

            def get_nodes(self, node_ids=None, filters=None):
                return [self.nodes[key] for key in node_ids if key in self.nodes]

        nodes = chain()
        retriever = GraphRetriever.from_defaults(vector_store=Shelf(nodes), seed=Fixed(scored(nodes[:1])))
        assert ids(ask(retriever, "a")) == ["a", "b", "c"]

    def test_a_docstore_alone_is_read_whole(self, ask):
        store = SimpleDocumentStore()
        store.add_documents(chat())
        assert ids(ask(GraphRetriever.from_defaults(docstore=store), "Ana")) == ["t0", "t1", "t2"]


class TestInside:
    def test_a_query_engine_sees_clean_texts(self, ask):
        llm = Reciting()
        engine = RetrieverQueryEngine.from_args(GraphRetriever(chat()), llm=llm)
        answer = engine.query("Ana")
        assert str(answer) == "an answer"
        assert "To the sea." in llm.prompts[0]
        assert "→" not in llm.prompts[0]
        assert str(asyncio.run(engine.aquery("Ana"))) == "an answer"

    def test_a_tool_for_an_agent(self, ask):
        tool = GraphRetriever(chat()).as_tool(name="recall")
        assert "To the sea." in tool.call("Ana").content

    def test_an_arm_of_a_fusion(self, ask):
        from llamaindex_hybridmem.fusion import FusionRetriever

        fused = FusionRetriever({"graph": GraphRetriever(chat()), "other": Fixed(scored(["t9"]))}, similarity_top_k=3)
        assert "t0" in ids(ask(fused, "Ana"))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "exactly one of nodes, memory and store"),
        ({"nodes": [], "store": print, "seed": Fixed([])}, "nodes and store"),
        ({"store": print}, "needs a seed"),
        ({"store": 5, "seed": Fixed([])}, "store is a int"),
        ({"memory": object(), "seed": Fixed([])}, "does not go with a memory"),
        ({"memory": object(), "seeds": 3}, "does not go with a memory"),
        ({"nodes": [], "seeds": 0}, "seeds = 0"),
        ({"nodes": [], "similarity_top_k": 0}, "similarity_top_k = 0"),
        ({"nodes": [], "hops": -1}, "hops = -1"),
        ({"nodes": [], "decay": 2}, "decay = 2"),
        ({"nodes": [], "depth": 2}, "'depth'"),
        ({"nodes": [], "graph": "all"}, "graph = 'all'"),
        ({"nodes": [], "filters": {"a": {"$near": 1}}}, "near"),
        ({"nodes": [], "as_of": "2020-01-01"}, "as_of"),
        ({"nodes": [], "seed": 5}, "is a int"),
    ],
)
def test_bad_settings_are_reported(settings, told):
    with pytest.raises(ConfigError, match=told):
        GraphRetriever(**settings)


@pytest.mark.parametrize("said", [{"similarity_top_k": 0}, {"hops": -1}, {"decay": 1.5}, {"namespace": "x"}])
def test_bad_words_in_a_call_are_reported(said, ask):
    with pytest.raises(ConfigError, match=next(iter(said))):
        ask(GraphRetriever(chat()), "Ana", **said)


def test_bad_sources_are_reported():
    with pytest.raises(ConfigError, match="exactly one of nodes, index, docstore, vector_store"):
        GraphRetriever.from_defaults()
    with pytest.raises(ConfigError, match="no nodes of its own"):
        GraphRetriever.from_memory(a_memory()).add_nodes([TextNode(text="x")])
    assert ids(GraphRetriever(chat(), graph=GraphSettings(thread=0)).retrieve("Ana")) == ["t0"]
