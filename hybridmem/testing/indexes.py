"""Conformance suites of indexes: subclass one and give it a factory.

    from hybridmem.testing.indexes import TextIndexConformance

    class TestMyIndex(TextIndexConformance):
        def make_index(self):
            return MyIndex()

`TextIndexConformance` is for indexes that are searched with a text, `VectorIndexConformance` for those that are
searched with a vector. They test the protocol `hybridmem.core.protocols.Index`.
"""

from __future__ import annotations

import threading
from datetime import datetime, timezone

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridmem.core.protocols import Change
from hybridmem.core.types import Edge, Memory
from hybridmem.errors import ConfigError

__all__ = ["IndexConformance", "TextIndexConformance", "VectorIndexConformance"]

_WORDS = ("tea", "lisbon", "river", "invoice", "paint", "piano")
_LAWS = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
_STEPS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.none() | st.sampled_from(_WORDS), st.booleans()), min_size=1, max_size=12
)


class IndexConformance:
    """What every index must do; use one of the two subclasses."""

    atomic = True
    """Whether concurrent readers see a whole batch or nothing of it."""
    exact = True
    """Whether the k best are always found; False for approximate indexes."""

    def make_index(self):
        """A new, empty index. Override this."""
        raise NotImplementedError

    def query(self, word):
        """What the index is searched with to find memories about this word."""
        raise NotImplementedError

    def vector(self, text):
        """The stored vector of a text; None for an index of texts."""
        raise NotImplementedError

    @pytest.fixture
    def index(self):
        """An index that is closed after the test."""
        made = self.make_index()
        yield made
        self.close(made)

    def close(self, index):
        """Close an index that has a `close` method."""
        close = getattr(index, "close", None)
        if close is not None:
            close()

    def put(self, seq, id_, text, **fields):
        """The change that adds or updates a memory."""
        changed = fields.pop("text_changed", True)
        memory = Memory(text, id=id_, **fields)
        return Change(seq, id_, memory, self.vector(text) if changed else None, text_changed=changed)

    def found(self, index, word, k=10, **how):
        """The ids found for a word, best first."""
        hits = index.search(self.query(word), k=k, **how)
        assert len(hits.ids) == len(hits.scores) <= k
        assert hits.scores == sorted(hits.scores, reverse=True)
        assert len(set(hits.ids)) == len(hits.ids)
        return hits.ids

    # --- reading

    def test_an_empty_index_finds_nothing(self, index):
        assert (len(index), index.watermark) == (0, 0)
        assert self.found(index, "tea") == []

    def test_the_best_match_is_first(self, index):
        index.apply(self.put(seq, word, f"about {word}") for seq, word in enumerate(_WORDS, 1))
        assert (len(index), index.watermark) == (len(_WORDS), len(_WORDS))
        for word in _WORDS:
            assert self.found(index, word)[0] == word
            assert self.found(index, word, k=1) == [word]

    def test_allowed_ids_are_a_filter_before_the_ranking(self, index):
        index.apply(self.put(seq, f"m{seq}", f"tea {_WORDS[seq % 6]}") for seq in range(1, 31))
        allowed = frozenset({"m7", "m9", "m30", "unknown"})
        for _ in range(2):  # a frozenset may be cached
            assert set(self.found(index, "tea", k=2, allowed=allowed)) < allowed
            assert set(self.found(index, "tea", allowed=allowed)) == {"m7", "m9", "m30"}
        assert self.found(index, "tea", allowed=frozenset()) == []
        assert self.found(index, "tea", allowed={"unknown"}) == []

    def test_equal_scores_are_ordered_by_update_time_and_id(self, index):
        days = {"b": 1, "a": 1, "c": 3, "d": 2}
        times = {id_: datetime(2024, 1, day, tzinfo=timezone.utc) for id_, day in days.items()}
        index.apply(self.put(seq, id_, "tea", updated_at=time) for seq, (id_, time) in enumerate(times.items(), 1))
        assert self.found(index, "tea") == ["c", "d", "a", "b"]

    @pytest.mark.parametrize("k", [0, -1, 1.5, "3", True, None])
    def test_k_must_be_an_integer_from_1(self, index, k):
        index.apply([self.put(1, "a", "tea")])
        with pytest.raises(ConfigError, match="k"):
            index.search(self.query("tea"), k=k)

    # --- changes

    def test_an_update_replaces_the_memory(self, index):
        index.apply([self.put(1, "a", "about tea"), self.put(2, "b", "about paint tea")])
        index.apply([self.put(3, "a", "about piano")])
        assert (len(index), index.watermark) == (2, 3)
        assert self.found(index, "piano", k=1) == ["a"]
        assert self.found(index, "tea", k=1) == ["b"]

    def test_a_deletion_removes_the_memory(self, index):
        index.apply([self.put(1, "a", "tea"), self.put(2, "b", "tea")])
        index.apply([Change(3, "a")])
        assert (len(index), index.watermark, self.found(index, "tea")) == (1, 3, ["b"])
        index.apply([Change(4, "a"), Change(5, "never there")])
        assert (len(index), index.watermark) == (1, 5)

    def test_the_last_change_of_a_batch_wins(self, index):
        index.apply([self.put(1, "a", "tea"), Change(2, "a"), self.put(3, "a", "piano"), self.put(4, "b", "tea")])
        index.apply([self.put(5, "b", "paint"), Change(6, "b")])
        assert (len(index), self.found(index, "piano"), self.found(index, "tea", allowed={"b"})) == (1, ["a"], [])

    def test_edges_only_advance_the_watermark(self, index):
        index.apply([self.put(1, "a", "tea"), Change(2, "", edge=Edge("a", "b"))])
        assert (len(index), index.watermark, self.found(index, "tea")) == (1, 2, ["a"])

    def test_a_change_of_strength_alone_keeps_the_text(self, index):
        index.apply([self.put(1, "a", "tea")])
        index.apply([self.put(2, "a", "tea", strength=0.5, text_changed=False)])
        assert (len(index), index.watermark, self.found(index, "tea")) == (1, 2, ["a"])

    def test_changes_may_be_applied_again(self, index):
        changes = [self.put(1, "a", "tea"), self.put(2, "b", "paint"), Change(3, "b")]
        index.apply(changes)
        index.apply(changes[1:])
        assert (len(index), index.watermark, self.found(index, "tea")) == (1, 3, ["a"])

    @given(steps=_STEPS, batch=st.integers(1, 4))
    @_LAWS
    def test_after_any_history_it_equals_a_new_index(self, steps, batch):
        history = []
        now = {}
        for seq, (id_, word, long) in enumerate(steps, 1):
            text = None if word is None else f"about {word}{' and more of it' if long else ''}"
            now.pop(id_, None)
            history.append(Change(seq, id_) if text is None else self.put(seq, id_, text))
            if text is not None:
                now[id_] = history[-1]
        index, fresh = self.make_index(), self.make_index()
        try:
            for start in range(0, len(history), batch):
                index.apply(history[start : start + batch])
            fresh.apply(now.values())
            assert (len(index), index.watermark) == (len(now), len(history))
            for word in _WORDS:
                ours, theirs = (one.search(self.query(word), k=4) for one in (index, fresh))
                assert ours.scores == pytest.approx(theirs.scores, rel=1e-6, abs=1e-6)
                if self.exact:
                    assert dict(zip(*ours, strict=True)).keys() == dict(zip(*theirs, strict=True)).keys()
        finally:
            self.close(index)
            self.close(fresh)

    def test_readers_see_a_whole_batch_or_nothing_of_it(self, index):
        index.apply(self.put(seq, f"m{seq}", "tea") for seq in range(1, 21))
        stop, sizes, errors = threading.Event(), set(), []

        def read():
            try:
                while not stop.is_set():
                    sizes.add(len(index.search(self.query("tea"), k=100).ids))
            except Exception as error:
                errors.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        seq = 20
        for _ in range(5):
            index.apply(Change(seq + n, f"m{n}") for n in range(1, 11))
            index.apply(self.put(seq + 10 + n, f"m{n}", "tea") for n in range(1, 11))
            seq += 20
        stop.set()
        reader.join()
        assert errors == []
        if self.atomic:
            assert sizes <= {10, 20}


class TextIndexConformance(IndexConformance):
    """For indexes that are searched with a text."""

    def query(self, word):
        """The word itself."""
        return word

    def vector(self, text):
        """Texts need no vector."""

    def test_only_matches_are_found(self, index):
        index.apply([self.put(1, "a", "green tea"), self.put(2, "b", "blue paint"), self.put(3, "c", "a piano")])
        assert self.found(index, "tea") == ["a"]
        assert self.found(index, "zebra") == []

    @pytest.mark.parametrize("text", ["", " ", '"', "*", "NEAR(", "a" * 10_000, "\x00", "\ud800", "18.12.1", "東京"])
    def test_any_text_is_a_query(self, index, text):
        index.apply([self.put(1, "a", "green tea"), self.put(2, "b", "blue paint")])
        index.search(text, k=3)


class VectorIndexConformance(IndexConformance):
    """For indexes that are searched with a vector; scores are cosines."""

    def query(self, word):
        """The vector of the word."""
        return self.vector(word)

    def vector(self, text):
        """Counts of words, with a constant so that no vector is 0."""
        counts = [float(text.split().count(word)) for word in _WORDS]
        return np.array([*counts, 0.1, 0.05 * text.count("more")], np.float32)

    def test_scores_are_cosines(self, index):
        index.apply([self.put(1, "a", "tea"), self.put(2, "b", "tea paint")])
        hits = index.search(self.vector("tea"), k=2)
        tea, both = self.vector("tea").astype(float), self.vector("tea paint").astype(float)
        expected = float(tea @ both / np.linalg.norm(tea) / np.linalg.norm(both))
        assert hits.ids == ["a", "b"]
        assert hits.scores == pytest.approx([1.0, expected], abs=1e-5)

    def test_a_memory_without_a_vector_is_not_found(self, index):
        index.apply([self.put(1, "a", "tea"), Change(2, "b", Memory("tea", id="b"))])
        assert (len(index), self.found(index, "tea")) == (1, ["a"])
        index.apply([Change(3, "a", Memory("tea again", id="a"))])  # a new text that is not embedded yet
        assert (len(index), index.watermark) == (0, 3)
