"""The graph as an arm: its paths, a memory's edges and namespaces, and one run with every number written out."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest

from hybridmem import GraphSettings
from hybridmem.core.protocols import Change
from hybridmem.core.types import Activation, Edge, Hits, Memory, Ranking
from hybridmem.fusion.stages import Competition, Conflicts, Pack
from hybridmem.fusion.stages.base import Context
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.graph.activation import ExtendedGraph, mention_links
from hybridmem.indexes.graph.index import GraphIndex
from hybridmem.memory.memory import HybridMemory
from tests.support.items import RowReader


class TestAMemorysGraph:
    def test_edges_never_lead_out_of_a_namespace(self):
        with HybridMemory(embedder=None) as memory:
            ana, bo = memory.namespace("ana"), memory.namespace("bo")
            ana.add_many(
                [
                    {
                        "id": "a1",
                        "text": "lantern",
                        "thread": "t",
                        "entities": ["Lisbon"],
                        "metadata": {"links": ["b1"]},
                    },
                    {"id": "shared", "text": "of ana", "thread": "t"},
                ]
            )
            bo.add_many(
                [
                    {"id": "b1", "text": "of bo", "thread": "t", "entities": ["Lisbon"]},
                    {"id": "shared", "text": "of bo", "thread": "t", "metadata": {"links": ["a1"]}},
                ]
            )
            found = ana.search_arm("graph", "lantern", k=9)
            assert [(one.id, one.text) for one in found] == [("a1", "lantern"), ("shared", "of ana")]
            assert bo.search_arm("graph", "lantern", k=9) == []

    def test_what_is_superseded_neither_receives_nor_passes_unless_asked(self):
        with HybridMemory(embedder=None) as memory:
            memory.add_many(
                [{"id": key, "text": text} for key, text in zip("abc", ("lantern", "old", "far"), strict=True)]
            )
            memory.link("a", "b")
            memory.link("b", "c")
            assert [one.id for one in memory.search_arm("graph", "lantern")] == ["a", "b", "c"]
            memory.add("new", id="n", supersedes="b")
            assert [one.id for one in memory.search_arm("graph", "lantern")] == ["a"]
            assert [one.id for one in memory.search_arm("graph", "lantern", superseded=True)] == ["a", "b", "c"]

    def test_a_link_is_there_for_the_next_search_and_gone_after_unlink(self):
        with HybridMemory(embedder=None) as memory:
            memory.add_many([{"id": "a", "text": "lantern"}, {"id": "b", "text": "boat"}])
            assert [one.id for one in memory.search_arm("graph", "lantern")] == ["a"]
            memory.link("a", "b", "reminds", 0.8)
            assert [(one.id, one.score) for one in memory.search_arm("graph", "lantern")] == [
                ("a", 1.0),
                ("b", 0.8 * 0.5),
            ]
            assert memory.unlink("a", "b", "reminds")
            assert [one.id for one in memory.search_arm("graph", "lantern")] == ["a"]

    def test_an_update_keeps_its_place_in_the_thread_also_after_reopening(self, tmp_path):
        when = datetime(2024, 5, 1, tzinfo=timezone.utc)
        with HybridMemory(tmp_path / "m.db", embedder=None) as memory:
            memory.add_many({"id": key, "text": f"turn {key}", "thread": "t", "created_at": when} for key in "xyz")
            memory.update("x", text="lantern")
            live = [(one.id, one.score) for one in memory.search_arm("graph", "lantern")]
        with HybridMemory(tmp_path / "m.db", embedder=None) as memory:
            assert [(one.id, one.score) for one in memory.search_arm("graph", "lantern")] == live
        assert live == [("x", 1.0), ("y", 0.5), ("z", 0.25)]


NOW = datetime(2024, 6, 1, tzinfo=timezone.utc)
NOTES = {
    # text, days since the last access, strength, confidence, status
    "m1": ("harbour lantern", 0, 1.0, 1.0, "active"),
    "m2": ("harbour boat quay rope", 10, 0.5, 0.8, "active"),
    "m3": ("captain cabin", 20, 0.9, 0.9, "active"),
    "m4": ("captain mast", 0, 0.4, 0.5, "active"),
}


def row(key):
    text, days, strength, confidence, status = NOTES[key]
    fields = {"text": text, "last_accessed": NOW - timedelta(days=days), "strength": strength}
    return type("Row", (), {"key": key, "fields": {**fields, "confidence": confidence, "status": status}})()


def test_one_run_with_every_number_written_out():
    """BM25 seeds → spreading → competition → conflicts → packing."""
    # 1. BM25 over four texts of 2, 4, 2 and 2 words: N = 4, avgdl = 10/4 = 2.5, k1 = 1.2, b = 0.75
    words = BM25Index()
    words.add_many([(key, text) for key, (text, *_) in NOTES.items()])
    idf_harbour = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))  # ln 2, in two of four
    idf_lantern = math.log(1 + (4 - 1 + 0.5) / (1 + 0.5))  # ln(1 + 7/3), in one of four
    short = 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 2.5))  # 2.2 / 2.02
    long = 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 4 / 2.5))  # 2.2 / 2.74
    seeds = words.search("harbour lantern", k=4)
    assert seeds.ids == ["m1", "m2"]
    assert seeds.scores == pytest.approx([(idf_harbour + idf_lantern) * short, idf_harbour * long], rel=1e-9)

    # 2. Seeds divided by the best of them
    m2 = idf_harbour * long / ((idf_harbour + idf_lantern) * short)
    assert m2 == pytest.approx(0.5565415318 / 2.0661702806, rel=1e-6)  # 0.26936

    # 3. Spreading: m2 –0.8– m3 –1.0– m4; each hop: · weight · 0.5
    index = GraphIndex()
    index.apply([Change(n, key, Memory(note[0], id=key)) for n, (key, note) in enumerate(NOTES.items(), 1)])
    index.apply([Change(8, "", edge=Edge("m2", "m3", "mentions", 0.8)), Change(9, "", edge=Edge("m3", "m4"))])
    hits = index.search(dict(zip(*seeds, strict=True)), k=10)
    activation = {"m1": 1.0, "m2": m2, "m3": m2 * 0.8 * 0.5, "m4": m2 * 0.8 * 0.5 * 1.0 * 0.5}
    assert dict(zip(*hits, strict=True)) == pytest.approx(activation, rel=1e-9)

    # 4. Competition: 0.5·activation + 0.2·recency + 0.2·strength + 0.1·confidence; recency = exp(−0.05·days)
    context = Context("harbour lantern", NOW.timestamp(), RowReader(), k=3)
    ranking = Competition()(Ranking(hits.ids, [row(key) for key in hits.ids], hits.scores), context)
    expected = {
        "m1": 0.5 * 1.0 + 0.2 * 1.0 + 0.2 * 1.0 + 0.1 * 1.0,  # 1.0
        "m2": 0.5 * m2 + 0.2 * math.exp(-0.5) + 0.2 * 0.5 + 0.1 * 0.8,  # 0.43599
        "m3": 0.5 * m2 * 0.4 + 0.2 * math.exp(-1.0) + 0.2 * 0.9 + 0.1 * 0.9,  # 0.39745
        "m4": 0.5 * m2 * 0.2 + 0.2 * 1.0 + 0.2 * 0.4 + 0.1 * 0.5,  # 0.35694
    }
    assert dict(zip(ranking.keys, ranking.scores, strict=True)) == pytest.approx(expected, rel=1e-9)
    assert ranking.keys == ["m1", "m2", "m3", "m4"]
    assert [round(score, 5) for score in ranking.scores] == [1.0, 0.43599, 0.39745, 0.35694]

    # 5. Conflicts: m3 and m4 contradict each other; standing = strength · confidence · recency
    assert 0.9 * 0.9 * math.exp(-1.0) > 0.4 * 0.5 * 1.0  # 0.29798 > 0.2: m4 yields
    ranking = Conflicts(pairs=lambda keys: [("m3", "m4")])(ranking, context)
    assert ranking.keys == ["m1", "m2", "m3", "m4"]
    assert ranking.scores[3] == pytest.approx(expected["m4"] * 0.3, rel=1e-9)  # 0.10708

    # 6. Packing 8 tokens: m1 needs ⌈15/4⌉ = 4; m2 ⌈22/4⌉ = 6 > 4 left: passed over; m3 ⌈13/4⌉ = 4 fits; full
    packed = Pack(tokens=8)(ranking, context)
    assert packed.keys == ["m1", "m3"]


# --- mentions of names

LINKS = {"a": [("b", 1.0, "bee")], "b": [("c", 0.5, "sea")], "c": [("a", 1.0, "ay")]}


def mentions(ids):
    return [(id_, target, weight, name) for id_ in ids for target, weight, name in LINKS.get(id_, ())]


def graph(*edges):
    index = GraphIndex()
    index.apply([Change(n, id_, Memory("", id=id_)) for n, id_ in enumerate("abcd", 1)])
    index.apply([Change(9, "", edge=edge) for edge in edges])
    return index.snapshot()


def test_a_mention_is_an_edge_with_a_direction():
    over = ExtendedGraph(graph(), mention_links(mentions))
    assert over.spread({"a": 1.0}) == {"b": 1.0 * 1.0 * 0.5, "c": 0.5 * 0.5 * 0.5}
    assert over.spread({"b": 1.0}, hops=1) == {"c": 1.0 * 0.5 * 0.5}


def test_mentions_and_links_are_walked_together():
    over = ExtendedGraph(graph(Edge("b", "d")), mention_links(mentions))
    assert over.paths({"a": 1.0}, ["d"]) == {"d": Activation(0.25, 2, ("a", "mentions bee", "b", "related", "d"))}
    assert over.search({"a": 2.0}, k=3).ids == ["a", "b", "d"]  # the best seed counts 1


def test_links_that_cannot_lead_to_one_of_the_best_are_not_computed():
    asked = []

    def links(ids):
        asked.append(sorted(ids))
        return mentions(ids)

    seeds = {"a": 1.0, "d": 0.2}
    every = ExtendedGraph(graph(), mention_links(links))
    few = ExtendedGraph(graph(), mention_links(links), heaviest=1.0)
    assert every.search(seeds, k=2) == few.search(seeds, k=2) == Hits(["a", "b"], [1.0, 0.5])
    # after one hop a is 1 and b 0.5: what b mentions is worth at most 0.25, so that b stays the second best
    assert asked == [["a", "d"], ["b"], ["a", "d"], []]
    assert every.search(seeds, k=9) == few.search(seeds, k=9)


def test_only_allowed_memories_are_reached():
    assert ExtendedGraph(graph(), mention_links(mentions), allowed={"a", "b"}).spread({"a": 1.0}) == {"b": 0.5}


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
    assert "film → mentions 'tim burton' → director +" in str(results[1].receipt)
    explanation = films.explain(QUESTION, k=3)
    assert explanation.activations["director"].path == ("film", "mentions 'tim burton'", "director")
    page = explanation.to_html()
    assert "<svg" in page
    assert "mentions &#x27;tim burton&#x27;" in page


def test_what_mentions_a_better_hit_gains_a_quarter():
    with HybridMemory(embedder=None) as memory:
        memory.add_many(Memory(f"an unrelated note about gardening {n}", id=f"n{n}") for n in range(200))
        memory.add("An artist, born in Burbank, in California.", id="director", title="Tim Burton")
        memory.add("A film by Tim Burton, in California.", id="film")
        receipt = str({one.id: one for one in memory.search("artist born in California")}["film"].receipt)
        assert "director → is mentioned as 'tim burton' by → film +" in receipt


def test_the_graph_arm_walks_from_mention_to_mention(films):
    found = {result.id: result for result in films.search_arm("graph", QUESTION, k=5)}
    idf = math.log(1 + (203 - 2 + 0.5) / (2 + 0.5))  # "burton" and "burbank" stand in 2 of 203 memories
    weight = idf / math.log(1 + (203 - 1 + 0.5) / (1 + 0.5))
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


def test_a_title_that_every_text_mentions_changes_nothing():
    def ranked(**how):
        with HybridMemory(embedder=None, **how) as memory:
            memory.add("An introduction.", id="title", title="Common Handbook")
            memory.add_many(
                Memory(f"The Common Handbook says that lantern {n} is {'green ' * (n % 5)}", id=f"n{n}")
                for n in range(100)
            )
            results = memory.search("a green lantern", k=20)
            return {result.id: result.score for result in results}

    with_mentions, without = ranked(), ranked(graph=GraphSettings(mentions=0))
    assert list(with_mentions) == list(without)
    assert with_mentions == pytest.approx(without, abs=0.002)  # the IDF of a word in 100 of 101 texts is 0.015


def test_as_of_and_erase_hold_for_mentions():
    clock = [1000.0]
    with HybridMemory(embedder=None, clock=lambda: clock[0]) as memory:
        memory.add_many(Memory(f"an unrelated note about gardening {n}", id=f"n{n}") for n in range(200))
        memory.add("Ed Wood is a film that was directed by Tim Burton.", id="film", title="Ed Wood (film)")
        clock[0] = 2000.0
        memory.add("An artist, born in Burbank.", id="director", title="Tim Burton")
        assert [one.id for one in memory.search(QUESTION, k=2)] == ["film", "director"]
        for ask in (memory.search, partial(memory.search_arm, "graph")):
            assert "director" not in [one.id for one in ask(QUESTION, k=9, as_of=1500.0)]
            assert "director" in [one.id for one in ask(QUESTION, k=9)]
        memory.erase("director")
        assert "director" not in [one.id for one in memory.search(QUESTION, k=9)]
        assert "director" not in [one.id for one in memory.search_arm("graph", QUESTION, k=9)]
