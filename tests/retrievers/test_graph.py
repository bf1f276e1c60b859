"""Items of any framework as a graph: what both adapters share."""

from __future__ import annotations

import asyncio
import math

import pytest

from hybridmem.core.fanout import Job, adrive, drive
from hybridmem.core.types import Edge, Memory
from hybridmem.errors import ConfigError
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.retrievers.graph import GraphCorpus, GraphItem, GraphQuery, search_corpus, search_store, seed_scores


def item_of(key, text="text", *, links=(), edges=(), thread=None):
    metadata = {"links": list(links)} if links else {}
    return GraphItem(Memory(text, id=key, thread=thread, metadata=metadata), key.upper(), tuple(edges))


def items(found):
    return [one.item for one in found]


class TestSeeds:
    def test_scores_count_where_they_can_tell(self):
        assert seed_scores(["a", "b"], [3.0, 1.0]) == {"a": 3.0, "b": 1.0}
        assert seed_scores(["a", "b", "a"], [3.0, 1.0, 0.5]) == {"a": 3.0, "b": 1.0}

    @pytest.mark.parametrize("scores", [None, [0.0, -1.0], [math.nan, 1.0], [math.inf, 1.0]])
    def test_else_ranks_do(self, scores):
        assert seed_scores(["a", "b"], scores) == {"a": 2 / 2, "b": 1 / 2}

    def test_none_at_all(self):
        assert seed_scores([], None) == seed_scores([], []) == {}


class TestCorpus:
    def test_words_find_seeds_and_edges_the_rest(self):
        corpus = GraphCorpus()
        assert corpus.add([item_of("a", "lantern", links=["b"]), item_of("b"), item_of("c")]) == ["a", "b", "c"]
        assert corpus.bm25_seeds("lantern", k=3).keys() == {"a"}
        found = corpus.search({"a": 2.0}, GraphQuery(k=5))
        assert [(one.item, one.activation.value, one.line) for one in found] == [
            ("A", 1.0, "seed a (1)"),
            ("B", 0.5, "seed a → links → b (0.5)"),
        ]
        assert len(corpus) == 3

    def test_a_replaced_item_forgets_its_edges(self):
        corpus = GraphCorpus(lexical=False)
        corpus.add([item_of("a", edges=[Edge("a", "b", "next")]), item_of("b")])
        assert items(corpus.search({"a": 1.0}, GraphQuery())) == ["A", "B"]
        corpus.add([item_of("a")])
        assert items(corpus.search({"a": 1.0}, GraphQuery())) == ["A"]
        assert corpus.bm25_seeds("text", k=1) == {}

    def test_removed_items_are_gone(self):
        corpus = GraphCorpus()
        corpus.add([item_of("a", edges=[Edge("a", "b")]), item_of("b", edges=[Edge("b", "c")]), item_of("c")])
        assert corpus.remove(["b", "b", "never"]) == 1
        assert items(corpus.search({"a": 1.0, "b": 1.0}, GraphQuery())) == ["A"]

    def test_checks_become_ids(self):
        corpus = GraphCorpus()
        corpus.add([item_of("a"), item_of("b")])
        assert corpus.allowed(None) is None
        assert corpus.allowed(lambda item: item == "B") == {"b"}

    def test_the_links_key_of_the_settings_was_read_by_the_adapter(self):
        corpus = GraphCorpus(GraphSettings(links_key="see"))
        corpus.add([item_of("a", links=["b"]), item_of("b")])
        assert items(corpus.search({"a": 1.0}, GraphQuery())) == ["A", "B"]


def both(steps):
    """The same steps, driven in sync and in async code, must end alike."""
    first = drive(steps())
    assert asyncio.run(adrive(steps())) == first
    return first


class TestSteps:
    def test_over_a_corpus_with_its_own_words_or_other_seeds(self):
        corpus = GraphCorpus()
        corpus.add([item_of("a", "lantern", thread="t"), item_of("b", thread="t"), item_of("c", thread="t")])
        assert items(both(lambda: search_corpus(corpus, "lantern", GraphQuery(k=2)))) == ["A", "B"]
        seeds = Job("x", lambda: {"c": 1.0})
        assert items(both(lambda: search_corpus(corpus, "lantern", GraphQuery(k=2), seeds=seeds))) == ["C", "B"]
        extent = GraphQuery(k=9, check=lambda item: item != "B")
        assert items(both(lambda: search_corpus(corpus, "lantern", extent))) == ["A"]

    def test_over_a_store_only_what_is_needed_is_fetched(self):
        store = {key: item_of(key, links=[to]) for key, to in zip("abcd", "bcda", strict=True)}
        asked = []

        def fetch(keys):
            asked.append(keys)
            return Job("x", lambda: [store[key] for key in keys if key in store])

        seeds = Job("x", lambda: ([store["a"]], {"a": 7.0}))
        assert items(drive(search_store(seeds, fetch, None, GraphQuery(k=9, hops=2)))) == ["A", "B", "C"]
        assert asked == [["b"], ["c"]]
        assert items(both(lambda: search_store(seeds, fetch, None, GraphQuery(k=9, hops=9)))) == ["A", "B", "D", "C"]
        assert items(both(lambda: search_store(seeds, fetch, None, GraphQuery(k=9, hops=0)))) == ["A"]

    def test_over_a_store_threads_take_no_part(self):
        found = [item_of("a", thread="t"), item_of("b", thread="t")]
        seeds = Job("x", lambda: (found, {"a": 1.0, "b": 0.1}))
        steps = search_store(seeds, lambda keys: Job("x", list), None, GraphQuery())
        assert [one.activation.value for one in drive(steps)] == [1.0, 0.1]

    def test_errors_come_through(self):
        def broken():
            raise RuntimeError("the seed broke")

        corpus = GraphCorpus()
        with pytest.raises(RuntimeError, match="the seed broke"):
            drive(search_corpus(corpus, "q", GraphQuery(), seeds=Job("x", broken)))
        with pytest.raises(RuntimeError, match="the seed broke"):
            asyncio.run(adrive(search_corpus(corpus, "q", GraphQuery(), seeds=Job("x", broken))))


@pytest.mark.parametrize("bad", [{"k": 0}, {"k": True}, {"k": 2.5}, {"hops": -1}, {"decay": 1.1}, {"decay": None}])
def test_bad_reaches_are_reported(bad):
    with pytest.raises(ConfigError, match=f"{next(iter(bad))} = "):
        GraphQuery(**bad)
