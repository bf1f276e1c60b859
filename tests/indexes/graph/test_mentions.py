"""Spreading over mentions of names, together with the edges of the graph."""

import math

import pytest

from hybridmem import GraphSettings, HybridMemory, Memory
from hybridmem.core.protocols import Change
from hybridmem.core.types import Activation, Edge
from hybridmem.indexes.graph.index import GraphIndex
from hybridmem.indexes.graph.mentions import MentionGraph

LINKS = {"a": [("b", 1.0, "bee")], "b": [("c", 0.5, "sea")], "c": [("a", 1.0, "ay")]}


def mentions(ids):
    return [(id_, target, weight, name) for id_ in ids for target, weight, name in LINKS.get(id_, ())]


def graph(*edges):
    index = GraphIndex()
    index.apply([Change(n, id_, Memory("", id=id_)) for n, id_ in enumerate("abcd", 1)])
    index.apply([Change(9, "", edge=edge) for edge in edges])
    return index.snapshot()


def test_a_mention_is_an_edge_with_a_direction():
    over = MentionGraph(graph(), mentions)
    assert over.spread({"a": 1.0}) == {"b": 1.0 * 1.0 * 0.5, "c": 0.5 * 0.5 * 0.5}
    assert over.spread({"b": 1.0}, hops=1) == {"c": 1.0 * 0.5 * 0.5}


def test_mentions_and_links_are_walked_together():
    over = MentionGraph(graph(Edge("b", "d")), mentions)
    assert over.paths({"a": 1.0}, ["d"]) == {"d": Activation(0.25, 2, ("a", "mentions bee", "b", "related", "d"))}
    assert over.search({"a": 2.0}, k=3).ids == ["a", "b", "d"]  # the best seed counts 1


def test_only_allowed_memories_are_reached():
    assert MentionGraph(graph(), mentions, {"a", "b"}).spread({"a": 1.0}) == {"b": 0.5}


@pytest.fixture
def films():
    with HybridMemory(embedder=None) as memory:
        memory.add_many(
            [
                Memory("Ed Wood is a film that was directed by Tim Burton.", id="film", title="Ed Wood (film)"),
                Memory("An American artist, born in Burbank.", id="director", title="Tim Burton"),
                Memory("A city in California.", id="city", title="Burbank"),
                *(Memory(f"an unrelated note about gardening {n}", id=f"n{n}") for n in range(200)),
            ]
        )
        yield memory


QUESTION = "the birthplace of the person who directed the film Ed Wood"


def test_a_memory_that_a_hit_mentions_is_found(films):
    results = films.search(QUESTION, k=3)
    assert [result.id for result in results][:2] == ["film", "director"]
    assert "film → mentions 'tim burton' +" in str(results[1].receipt)


def test_the_graph_arm_walks_from_mention_to_mention(films):
    found = {result.id: result for result in films.search_arm("graph", QUESTION, k=5)}
    weight = math.log(1 + (203 - 2 + 0.5) / (2 + 0.5)) / 5  # "burton" and "burbank" stand in 2 of 203 memories
    assert found["director"].score == pytest.approx(weight * 0.5)
    assert found["city"].score == pytest.approx((weight * 0.5) ** 2)
    assert "film (bm25 #1) → mentions tim burton → director → mentions burbank → city" in str(found["city"].receipt)


def test_mentions_can_be_switched_off():
    with HybridMemory(embedder=None, graph=GraphSettings(mentions=0)) as memory:
        memory.add("Ed Wood was directed by Tim Burton", id="film")
        memory.add("an artist", id="director", title="Tim Burton")
        assert [result.id for result in memory.search("Ed Wood")] == ["film"]


def test_namespaces_supersession_filters_and_time_hold_for_mentions(films):
    assert "director" in [result.id for result in films.search(QUESTION, k=3)]
    filtered = films.search(QUESTION, k=3, filter={"id": {"$ne": "director"}})
    assert "director" not in [result.id for result in filtered]
    other = films.namespace("other")
    other.add("Ed Wood by Tim Burton", id="x")
    assert [result.id for result in other.search("Ed Wood")] == ["x"]
    films.add("The director of Batman.", id="director2", title="Tim Burton", supersedes="director")
    found = [result.id for result in films.search(QUESTION, k=3)]
    assert "director" not in found
    assert "director2" in found


def test_names_survive_a_restart(tmp_path):
    path = tmp_path / "notes.db"
    with HybridMemory(path, embedder=None) as memory:
        memory.add_many([Memory(f"note {n}", id=f"n{n}", title=f"Topic {n}x") for n in range(50)])
        memory.add("see Topic 7x and [[Topic 9x|the nine]]", id="index")
    with HybridMemory(path, embedder=None) as memory:
        found = [result.id for result in memory.search("see", k=5)]
        assert found[0] == "index"
        assert {"n7", "n9"} <= set(found)
        memory.add("recall the nine", id="later")
        assert "n9" in [result.id for result in memory.search("recall", k=5)]
