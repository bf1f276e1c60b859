"""Items of any framework as a graph: what both adapters share."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest

from hybridmem.core.types import Edge, Memory
from hybridmem.errors import ConfigError
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.retrievers.graph import Call, Corpus, Linked, Reach, adrive, drive, over_corpus, over_store, ranks


def linked(key, text="text", *, links=(), edges=(), thread=None):
    metadata = {"links": list(links)} if links else {}
    return Linked(Memory(text, id=key, thread=thread, metadata=metadata), key.upper(), tuple(edges))


def items(found):
    return [one.item for one in found]


class TestSeeds:
    def test_scores_count_where_they_can_tell(self):
        assert ranks(["a", "b"], [3.0, 1.0]) == {"a": 3.0, "b": 1.0}
        assert ranks(["a", "b", "a"], [3.0, 1.0, 0.5]) == {"a": 3.0, "b": 1.0}

    @pytest.mark.parametrize("scores", [None, [0.0, -1.0], [math.nan, 1.0], [math.inf, 1.0]])
    def test_else_ranks_do(self, scores):
        assert ranks(["a", "b"], scores) == {"a": 2 / 2, "b": 1 / 2}

    def test_none_at_all(self):
        assert ranks([], None) == ranks([], []) == {}


class TestCorpus:
    def test_words_find_seeds_and_edges_the_rest(self):
        corpus = Corpus()
        assert corpus.add([linked("a", "lantern", links=["b"]), linked("b"), linked("c")]) == ["a", "b", "c"]
        assert corpus.words("lantern", k=3).keys() == {"a"}
        found = corpus.search({"a": 2.0}, Reach(k=5))
        assert [(one.item, one.activation.value, one.line) for one in found] == [
            ("A", 1.0, "seed a (1)"),
            ("B", 0.5, "seed a → links → b (0.5)"),
        ]
        assert (len(corpus), corpus.get("a"), corpus.get("nobody")) == (3, "A", None)

    def test_a_replaced_item_forgets_its_edges(self):
        corpus = Corpus(words=False)
        corpus.add([linked("a", edges=[Edge("a", "b", "next")]), linked("b")])
        assert items(corpus.search({"a": 1.0}, Reach())) == ["A", "B"]
        corpus.add([linked("a")])
        assert items(corpus.search({"a": 1.0}, Reach())) == ["A"]
        assert corpus.words("text", k=1) == {}

    def test_removed_items_are_gone(self):
        corpus = Corpus()
        corpus.add([linked("a", edges=[Edge("a", "b")]), linked("b", edges=[Edge("b", "c")]), linked("c")])
        assert corpus.remove(["b", "b", "never"]) == 1
        assert items(corpus.search({"a": 1.0, "b": 1.0}, Reach())) == ["A"]

    def test_checks_become_ids(self):
        corpus = Corpus()
        corpus.add([linked("a"), linked("b")])
        assert corpus.allowed(None) is None
        assert corpus.allowed(lambda item: item == "B") == {"b"}

    def test_the_links_key_of_the_settings_was_read_by_the_adapter(self):
        corpus = Corpus(GraphSettings(links_key="see"))
        corpus.add([linked("a", links=["b"]), linked("b")])
        assert items(corpus.search({"a": 1.0}, Reach())) == ["A", "B"]


def both(steps):
    """The same steps, driven in sync and in async code, must end alike."""
    first = drive(steps())
    assert asyncio.run(adrive(steps())) == first
    return first


class TestSteps:
    def test_over_a_corpus_with_its_own_words_or_other_seeds(self):
        corpus = Corpus()
        corpus.add([linked("a", "lantern", thread="t"), linked("b", thread="t"), linked("c", thread="t")])
        assert items(both(lambda: over_corpus(corpus, "lantern", Reach(k=2)))) == ["A", "B"]
        seeds = Call.of(lambda: {"c": 1.0})
        assert items(both(lambda: over_corpus(corpus, "lantern", Reach(k=2), seeds=seeds))) == ["C", "B"]
        reach = Reach(k=9, check=lambda item: item != "B")
        assert items(both(lambda: over_corpus(corpus, "lantern", reach))) == ["A"]

    def test_over_a_store_only_what_is_needed_is_fetched(self):
        shelf = {key: linked(key, links=[to]) for key, to in zip("abcd", "bcda", strict=True)}
        asked = []

        def fetch(keys):
            asked.append(keys)
            return Call.of(lambda: [shelf[key] for key in keys if key in shelf])

        seeds = Call.of(lambda: ([shelf["a"]], {"a": 7.0}))
        assert items(drive(over_store(seeds, fetch, None, Reach(k=9, hops=2)))) == ["A", "B", "C"]
        assert asked == [["b"], ["c"]]
        assert items(both(lambda: over_store(seeds, fetch, None, Reach(k=9, hops=9)))) == ["A", "B", "D", "C"]
        assert items(both(lambda: over_store(seeds, fetch, None, Reach(k=9, hops=0)))) == ["A"]

    def test_over_a_store_threads_take_no_part(self):
        found = [linked("a", thread="t"), linked("b", thread="t")]
        seeds = Call.of(lambda: (found, {"a": 1.0, "b": 0.1}))
        steps = over_store(seeds, lambda keys: Call.of(list), None, Reach())
        assert [one.activation.value for one in drive(steps)] == [1.0, 0.1]

    def test_async_work_leaves_the_loop_free(self):
        async def where():
            return await Call.of(threading.get_ident).later(), threading.get_ident()

        worker, loop = asyncio.run(where())
        assert worker != loop

    def test_errors_come_through(self):
        def broken():
            raise RuntimeError("the seed broke")

        corpus = Corpus()
        with pytest.raises(RuntimeError, match="the seed broke"):
            drive(over_corpus(corpus, "q", Reach(), seeds=Call.of(broken)))
        with pytest.raises(RuntimeError, match="the seed broke"):
            asyncio.run(adrive(over_corpus(corpus, "q", Reach(), seeds=Call.of(broken))))


@pytest.mark.parametrize("bad", [{"k": 0}, {"k": True}, {"k": 2.5}, {"hops": -1}, {"decay": 1.1}, {"decay": None}])
def test_bad_reaches_are_told(bad):
    with pytest.raises(ConfigError, match=f"{next(iter(bad))} = "):
        Reach(**bad)
