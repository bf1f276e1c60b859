"""Conformance suite of stores: subclass `StoreConformance` and give it a `store_factory`.

`store_factory(clock=None, name="main")` opens a store; the same name opens the same data again. The fixture closes what
it opened.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridmem.core.protocols import SupportsVectorLoading, SupportsVectorRows, View, WriteConflict
from hybridmem.core.times import from_epoch
from hybridmem.core.types import Edge, Entry, Memory
from hybridmem.errors import ConfigError, EmbeddingError, NotFoundError, StoreClosedError
from hybridmem.filters.predicate import compile_predicate
from hybridmem.testing.store_model import DAY, IDS, NAMESPACES, STEPS, Clock, Model, close, drawn, run, visible
from hybridmem.text.conversation import TIME_WORD

NOW = View()
ALL = View(superseded=True)
LAWS = settings(
    max_examples=int(os.environ.get("HYBRIDMEM_EXAMPLES", "15")),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[  # one law, many stores: that is the point of the suite
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
    ],
)
OPERATIONS = int(os.environ.get("HYBRIDMEM_OPERATIONS", "200"))
_numbers = itertools.count()


LOOSE_MEMORY: Any = Memory
LOOSE_EDGE: Any = Edge
"""For values of wrong types, which a type checker would refuse."""


def fresh(name):
    """A store's name that no example has used before."""
    return f"{name}-{next(_numbers)}"


FULL = Memory(
    "Ana moved to Lisbon 🇵🇹 in spring",
    id="m1",
    title="Move",
    tags=("home", "ana"),
    predicate="lives_in",
    subject="ana",
    source_id="doc-1",
    thread="chat-1",
    type="fact",
    entities=("Ana", "Lisbon"),
    created_at=datetime(2024, 5, 1, 12, 30, 15, 123456, tzinfo=timezone.utc),
    updated_at=datetime(2024, 5, 2, tzinfo=timezone.utc),
    status="contradicted",
    strength=0.75,
    confidence=0.5,
    access_count=3,
    last_accessed=datetime(2024, 6, 1, tzinfo=timezone.utc),
    speaker="Ana",
    event_at=datetime(2024, 4, 30, tzinfo=timezone.utc),
    expires_at=datetime(2034, 4, 30, tzinfo=timezone.utc),
    metadata={"page": 3, "nested": {"deep": [1, "two", None, True]}, "ключ": "значение", "f": 0.5},
)


def texts(memories):
    return [None if m is None else m.text for m in memories]


class Follower:
    """An index of the simplest kind: it only applies changes."""

    def __init__(self, view):
        self.view, self.watermark = view, 0
        self.memories, self.vectors, self.edges, self.born = {}, {}, {}, {}

    def catch_up(self, store):
        for change in store.changes(self.watermark, view=self.view, vectors=True):
            assert change.seq > self.watermark
            self.watermark = change.seq
            if change.edge is not None:
                key = change.edge[:3]
                if change.gone and not change.edge.relation:
                    self.edges = {kept: weight for kept, weight in self.edges.items() if kept[:2] != key[:2]}
                elif change.gone:
                    self.edges.pop(key, None)
                else:
                    self.edges[key] = change.edge.weight
            elif change.memory is None:
                for kept in (self.memories, self.vectors, self.born):
                    kept.pop(change.id, None)
            else:
                if not change.text_changed:
                    assert self.memories[change.id].text == change.memory.text
                self.memories[change.id] = change.memory
                self.vectors[change.id] = None if change.vector is None else tuple(change.vector.tolist())
                self.born[change.id] = change.born
        return self


class StoreConformance:
    MANY = 2500
    """More than any page or batch of the store holds."""

    @pytest.fixture
    def clock(self):
        return Clock()

    @pytest.fixture
    def store(self, store_factory, clock):
        return store_factory(clock)

    # --- writing and reading back

    def test_every_field_comes_back(self, store):
        assert store.put([FULL]) == ["m1"]
        assert store.get(["m1"], view=NOW) == [FULL]

    def test_a_bare_text_gets_an_id_and_the_clock(self, store, clock):
        (first, second) = store.put([Memory("one"), Memory("two")])
        assert first != second
        now = from_epoch(clock.now)
        assert store.get([first], view=NOW) == [Memory("one", id=first, created_at=now, updated_at=now)]

    def test_get_keeps_order_and_marks_what_is_missing(self, store):
        store.put([Memory("A", id="a"), Memory("B", id="b")])
        assert texts(store.get(["b", "x", "a", "b"], view=NOW)) == ["B", None, "A", "B"]
        assert store.get([], view=NOW) == []

    def test_many_at_once(self, store):
        seen = []
        ids = store.put([Memory(f"text {i}") for i in range(self.MANY)], progress=lambda *a: seen.append(a))
        assert len(set(ids)) == self.MANY
        assert seen[-1] == (self.MANY, self.MANY)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert store.count(view=NOW) == self.MANY
        assert texts(store.get(ids, view=NOW)) == [f"text {i}" for i in range(self.MANY)]
        assert [m.id for m in store.list(view=NOW)] == sorted(ids)
        assert ids == sorted(ids)

    def test_put_nothing(self, store):
        assert store.put([]) == []
        assert store.last_seq() == 0

    def test_update_keeps_creation_and_confidence(self, store, clock):
        start = from_epoch(clock.now)
        store.put([Memory("old", id="a", confidence=0.4)])
        clock.now += 10
        store.put([Memory("new", id="a")])
        (memory,) = store.get(["a"], view=NOW)
        assert memory == Memory(
            "new", id="a", confidence=0.4, created_at=start, updated_at=start + timedelta(seconds=10)
        )
        store.put([Memory("new", id="a", confidence=0.9, created_at=from_epoch(5.0), updated_at=from_epoch(6.0))])
        (memory,) = store.get(["a"], view=NOW)
        assert (memory.confidence, memory.created_at, memory.updated_at) == (0.9, from_epoch(5.0), from_epoch(6.0))

    def test_updated_at_of_a_new_memory_is_its_creation(self, store):
        then = datetime(2020, 1, 1, tzinfo=timezone.utc)
        store.put([Memory("x", id="a", created_at=then)])
        assert store.get(["a"], view=NOW)[0].updated_at == then

    def test_times_may_come_in_any_form(self, store):
        store.put([Memory("x", id="a", created_at="2024-05-01T14:00:00+02:00", last_accessed=1_714_564_800_000)])
        (memory,) = store.get(["a"], view=NOW)
        assert memory.created_at == memory.last_accessed == datetime(2024, 5, 1, 12, tzinfo=timezone.utc)

    def test_update_keeps_vitals_unless_given(self, store):
        store.put([Memory("x", id="a", strength=0.5, access_count=2)])
        store.put([Memory("y", id="a")])
        assert (store.get(["a"], view=NOW)[0].strength, store.get(["a"], view=NOW)[0].access_count) == (0.5, 2)
        store.put([Memory("y", id="a", strength=0.25)])
        assert (store.get(["a"], view=NOW)[0].strength, store.get(["a"], view=NOW)[0].access_count) == (0.25, 0)

    def test_a_write_on_a_base_that_has_changed_is_not_done(self, store):
        store.put([Memory("A", id="a", confidence=0.5)])
        (old,) = store.get(["a"], view=ALL)
        store.touch(["a"])
        (now,) = store.get(["a"], view=ALL)
        with pytest.raises(WriteConflict) as caught:
            store.put([replace(old, text="A2")], base=[old])
        assert caught.value.current == now
        assert texts(store.get(["a"], view=ALL)) == ["A"]
        store.put([replace(now, text="A2", confidence=1.0, access_count=0, last_accessed=None)], base=[now])
        (new,) = store.get(["a"], view=ALL)
        assert (new.text, new.confidence, new.access_count, new.last_accessed) == ("A2", 1.0, 0, None)
        store.delete(["a"])
        with pytest.raises(WriteConflict) as caught:
            store.put([new], base=[new])
        assert caught.value.current is None

    def test_the_same_id_twice_in_one_batch(self, store):
        store.put([Memory("first", id="a"), Memory("second", id="a")])
        assert texts(store.get(["a"], view=NOW)) == ["second"]
        assert [v.memory.text for v in store.history("a")] == ["first", "second"]
        assert store.count(view=NOW) == 1

    def test_re_adding_the_same_is_fine(self, store):
        store.put([FULL])
        store.put([FULL])
        assert store.get(["m1"], view=NOW) == [FULL]
        assert store.check() == []

    def test_any_text_can_be_kept(self, store):
        hostile = ["", "\n", "'; DROP TABLE memories; --", '"', "%s %d ?", "a\u202eb", "x" * 100_000, "日本語", "🧠"]
        ids = store.put([Memory(text, title=text, subject=text, metadata={"k": text}) for text in hostile])
        found = store.get(ids, view=NOW)
        assert texts(found) == hostile
        assert [m.metadata["k"] for m in found] == hostile

    def test_what_no_database_can_hold_becomes_a_replacement_character(self, store):
        (id_,) = store.put([Memory("cut \ud83d", title="n\x00l", metadata={"k\x00": "\udc00"}, tags=("\ud800",))])
        (memory,) = store.get([id_], view=NOW)
        assert (memory.text, memory.title) == ("cut \ufffd", "n\ufffdl")
        assert (memory.metadata, memory.tags) == ({"k\ufffd": "\ufffd"}, ("\ufffd",))
        assert store.ids(view=NOW, filter={"k\x00": "\udc00", "title": "n\x00l"}) == {id_}
        assert store.get(["\ud800"], view=NOW) == [None]
        assert store.history("\ud800") == []
        assert store.delete(["\ud800"]) == 0

    def test_metadata_becomes_plain_json(self, store):
        given = {"when": datetime(2024, 1, 1), "day": datetime(2024, 1, 1).date(), "t": (1, 2), "n": np.int64(3)}
        store.put([Memory("x", id="a", metadata={**given, "s": {"b", "a"}, 5: "five"})])
        assert store.get(["a"], view=NOW)[0].metadata == {
            "when": "2024-01-01T00:00:00Z",
            "day": "2024-01-01",
            "t": [1, 2],
            "n": 3,
            "s": ["a", "b"],
            "5": "five",
        }

    @pytest.mark.parametrize(
        "bad",
        [
            LOOSE_MEMORY(5),
            LOOSE_MEMORY("x", id=5),
            LOOSE_MEMORY("x", id="\ud800"),
            LOOSE_MEMORY("x", id="a\x00"),
            LOOSE_MEMORY("x", tags="home"),
            LOOSE_MEMORY("x", entities=(1,)),
            LOOSE_MEMORY("x", source_id=7),
            LOOSE_MEMORY("x", status="gone"),
            LOOSE_MEMORY("x", strength=1.5),
            LOOSE_MEMORY("x", strength=math.nan),
            LOOSE_MEMORY("x", strength=True),
            LOOSE_MEMORY("x", confidence=-0.1),
            LOOSE_MEMORY("x", access_count=-1),
            LOOSE_MEMORY("x", access_count=0.5),
            LOOSE_MEMORY("x", created_at="soon"),
            LOOSE_MEMORY("x", namespace="other"),
            LOOSE_MEMORY("x", id="a", supersedes="a"),
            LOOSE_MEMORY("x", metadata={"x": math.nan}),
            LOOSE_MEMORY("x", metadata={"x": object()}),
            LOOSE_MEMORY("x", metadata={("a", "b"): 1}),
            LOOSE_MEMORY("x", metadata=[1]),
            "just a text",
        ],
    )
    def test_what_cannot_be_kept_is_refused_whole(self, store, bad):
        with pytest.raises(ConfigError):
            store.put([Memory("good", id="good"), bad])
        assert store.count(view=ALL) == 0
        assert store.last_seq() == 0

    def test_metadata_that_contains_itself(self, store):
        loop = {}
        loop["loop"] = loop
        with pytest.raises(ConfigError, match="nested"):
            store.put([Memory("x", metadata=loop)])

    def test_a_failing_progress_callback_leaves_nothing(self, store):
        def fail(done, total):
            raise RuntimeError

        with pytest.raises(RuntimeError):
            store.put([Memory("x")], progress=fail)
        assert store.count(view=ALL) == 0
        assert store.put([Memory("y")])

    # --- deleting

    def test_delete(self, store):
        store.put([Memory("A", id="a"), Memory("B", id="b")])
        assert store.delete(["a", "x", "a"]) == 1
        assert store.delete(["a"]) == 0
        assert texts(store.get(["a", "b"], view=ALL)) == [None, "B"]
        assert [(v.memory.text, v.deleted) for v in store.history("a")] == [("A", False), ("A", True)]

    def test_a_deleted_id_can_be_used_again(self, store, clock):
        store.put([Memory("A", id="a", strength=0.5, confidence=0.5)], vectors=[[1.0]])
        store.delete(["a"])
        clock.now += 5
        store.put([Memory("A", id="a")])
        now = from_epoch(clock.now)
        assert store.get(["a"], view=NOW) == [Memory("A", id="a", created_at=now, updated_at=now)]
        assert store.vectors(["a"], view=NOW) == [None]

    # --- expiry, duplicates, threads, namespaces

    def test_expired_memories_are_found_and_deleted(self, store, clock):
        start = clock.now
        store.put([Memory("a", id="a", expires_at=start + 10), Memory("b", id="b", expires_at=start + 20), Memory("c")])
        store.put([Memory("x", id="x", expires_at=start + 5)], namespace="ana")
        assert (store.next_expiry(), store.next_expiry(namespace="ana")) == (start + 10, start + 5)
        assert store.next_expiry(namespace=None) == start + 5
        assert store.next_expiry(namespace="nobody") is None
        assert store.expired(now=start + 9.9) == []
        clock.now = start + 10
        assert store.expire(now=start + 10) == 1
        assert store.expire(now=start + 10) == 0
        assert store.get(["a", "b"], view=ALL)[0] is None
        assert store.expired(now=start + 10) == ["a"]  # until it is erased
        assert store.next_expiry() == start + 20
        assert texts(store.get(["a"], view=View(as_of=start + 9.9))) == ["a"]
        assert store.get(["b"], view=View(as_of=start + 20)) == [None]
        assert store.erase(["a"]) == 1
        assert store.expired(now=start + 10) == []

    def test_duplicates_by_text_and_thread(self, store):
        store.put([Memory("The  Cat", id="a"), Memory("the cat", id="b", thread="t"), Memory("gone", id="c")])
        store.delete(["c"])
        asked = [Memory(" the CAT\n"), Memory("THE cat", thread="t"), Memory("the cat", thread="u"), Memory("gone")]
        assert store.duplicates(asked) == ["a", "b", None, None]
        assert store.duplicates(asked, namespace="ana") == [None] * 4
        ids = store.put(asked, unless_duplicate=True)
        assert ids[:2] == ["a", "b"]
        assert store.count(view=ALL) == 4
        assert texts(store.get(["a"], view=ALL)) == ["The  Cat"]

    def test_a_thread_in_reading_order(self, store, clock):
        start = clock.now
        store.put([Memory("second", id="b", thread="t", created_at=start + 1), Memory("other", id="o", thread="u")])
        store.put([Memory("first", id="z", thread="t", created_at=start), Memory("also second", id="a", thread="t",
                                                                                 created_at=start + 1)])  # fmt: skip
        clock.now = start + 5
        store.put([Memory("second, corrected", id="b", thread="t")])
        assert store.thread("t", view=NOW) == ["z", "b", "a"]
        store.delete(["z"])
        assert store.thread("t", view=NOW) == ["b", "a"]
        assert store.thread("t", view=View(as_of=start + 4)) == ["z", "b", "a"]
        assert store.thread("nothing", view=NOW) == []

    def test_a_whole_namespace_is_erased(self, store):
        store.put([Memory("a", id="a"), Memory("b", id="b")], namespace="ana")
        store.put([Memory("c", id="c", supersedes="a")], namespace="ana")
        store.delete(["b"], namespace="ana")
        store.put([Memory("a", id="a")])
        assert store.erase_namespace("ana") == 3
        assert store.history("b", namespace="ana") == []
        assert store.count(view=View("ana", superseded=True)) == 0
        assert store.count(view=ALL) == 1
        assert store.erase_namespace("ana") == 0

    # --- superseding

    def test_supersedes_hides_the_old_one_at_once(self, store, clock):
        store.put([Memory("tea", id="old")])
        before = clock.now
        clock.now += 1
        store.put([Memory("coffee", id="new", supersedes="old")])
        assert store.ids(view=NOW) == {"new"}
        assert store.get(["old"], view=NOW) == [None]
        assert store.get(["old"], view=ALL)[0].status == "superseded"
        assert [v.memory.status for v in store.history("old")] == ["active", "superseded"]
        assert store.ids(view=View(as_of=before)) == {"old"}

    def test_it_stays_superseded_when_the_newer_one_goes(self, store):
        store.put([Memory("tea", id="old")])
        store.put([Memory("coffee", id="new", supersedes="old")])
        store.delete(["new"])
        assert store.ids(view=NOW) == frozenset()
        assert store.ids(view=ALL) == {"old"}

    def test_putting_it_again_brings_it_back_and_an_update_of_the_newer_does_not_hide_it(self, store):
        store.put([Memory("tea", id="old")])
        store.put([Memory("coffee", id="new", supersedes="old")])
        store.put([Memory("tea again", id="old")])
        (new,) = store.get(["new"], view=NOW)
        store.put([replace(new, text="coffee!")], base=[new])
        assert store.ids(view=NOW) == {"old", "new"}

    def test_saying_it_all_again_gives_the_same(self, store):
        for _ in range(2):
            store.put([Memory("tea", id="old")])
            store.put([Memory("coffee", id="new", supersedes="old")])
            assert store.ids(view=NOW) == {"new"}
        assert store.check() == []

    def test_supersedes_within_one_batch_in_any_order(self, store):
        store.put([Memory("coffee", id="new", supersedes="old"), Memory("tea", id="old")])
        assert store.ids(view=NOW) == {"new"}

    def test_superseding_the_unknown_is_an_error_and_the_deleted_is_not(self, store):
        with pytest.raises(NotFoundError, match="never"):
            store.put([Memory("coffee", id="new", supersedes="nobody")])
        assert store.count(view=NOW) == 0
        store.put([Memory("tea", id="old")])
        store.delete(["old"])
        store.put([Memory("coffee", id="new", supersedes="old")])
        assert store.ids(view=ALL) == {"new"}

    # --- vitals

    def test_touch(self, store, clock):
        store.put([Memory("A", id="a")])
        clock.now += 7
        store.touch(["a", "x", "a"])
        (memory,) = store.get(["a"], view=NOW)
        assert (memory.access_count, memory.last_accessed) == (1, from_epoch(clock.now))
        assert len(store.history("a")) == 1

    def test_reinforce_up_to_one(self, store):
        store.put([Memory("A", id="a", strength=0.85)])
        assert store.reinforce("a") == 0.85 + 0.1
        assert store.reinforce("a") == 1.0
        assert store.reinforce("a") == 1.0
        assert store.reinforce("a", by=0) == 1.0
        with pytest.raises(NotFoundError):
            store.reinforce("x")
        for bad in (-1, math.nan, True, "much"):
            with pytest.raises(ConfigError):
                store.reinforce("a", by=bad)

    def test_decay_once_per_elapsed_day(self, store, clock):
        store.put([Memory("A", id="a"), Memory("B", id="b", strength=0.5)])
        assert store.decay() == 0
        clock.now += 0.99 * DAY
        assert store.decay() == 0
        clock.now += 2 * DAY  # 2.99 days old: two whole days
        assert store.decay() == 2
        assert store.decay() == 0
        assert [m.strength for m in store.get(["a", "b"], view=NOW)] == [
            pytest.approx(math.exp(-0.02)),
            pytest.approx(0.5 * math.exp(-0.02)),
        ]
        clock.now += 0.01 * DAY + 1  # the third day is full
        assert store.decay() == 2
        assert store.get(["a"], view=NOW)[0].strength == pytest.approx(math.exp(-0.03))

    def test_decay_counts_from_creation_and_takes_a_time(self, store, clock):
        then = from_epoch(clock.now)
        store.put([Memory("A", id="a", created_at=then - timedelta(days=10))])
        assert store.decay(now=then - timedelta(days=20)) == 0
        assert store.decay(now=then) == 1
        assert store.get(["a"], view=NOW)[0].strength == pytest.approx(math.exp(-0.1))
        with pytest.raises(ConfigError):
            store.decay(now="soon")

    @LAWS
    @given(days=st.lists(st.floats(0, 5), max_size=8))
    def test_decaying_often_equals_decaying_once(self, store_factory, days):
        strengths = []
        for often in (True, False):
            clock = Clock()
            store = store_factory(clock, name=fresh("decay"))
            store.put([Memory("A", id="a")])
            for step in days:
                clock.now += step * DAY
                if often:
                    store.decay()
                    store.decay()
            store.decay()
            strengths.append(store.get(["a"], view=NOW)[0].strength)
            store.close()
        assert strengths[0] == pytest.approx(strengths[1])

    # --- vectors

    def test_vectors_come_back_as_float32(self, store):
        store.put([Memory("A", id="a"), Memory("B", id="b")], vectors=[np.array([1.5, -2.0]), None])
        one, two, three = store.vectors(["a", "b", "x"], view=NOW)
        assert one.dtype == np.float32
        assert one.tolist() == [1.5, -2.0]
        assert two is None
        assert three is None

    def test_an_update_keeps_the_vector_only_while_the_text_stays(self, store):
        store.put([Memory("A", id="a", title="t")], vectors=[[1.0]])
        store.put([Memory("A", id="a", title="t", type="fact")])
        assert store.vectors(["a"], view=NOW)[0].tolist() == [1.0]
        store.put([Memory("A", id="a", title="t")], vectors=[[2.0]])
        assert store.vectors(["a"], view=NOW)[0].tolist() == [2.0]
        store.put([Memory("B", id="a", title="t")])
        assert store.vectors(["a"], view=NOW) == [None]

    def test_set_vectors(self, store, clock):
        store.put([Memory("A", id="a"), Memory("B", id="b")], vectors=[[1.0], [1.0]])
        seq, before = store.last_seq(), clock.now
        clock.now += 1
        store.set_vectors({"a": [3.0, 4.0], "b": None, "gone": [1.0, 1.0]})
        assert [None if v is None else v.tolist() for v in store.vectors(["a", "b"], view=NOW)] == [[3.0, 4.0], None]
        changes = list(store.changes(seq, view=NOW, vectors=True))
        assert [(c.id, c.memory.text) for c in changes] == [("a", "A"), ("b", "B")]
        assert changes[0].vector.tolist() == [3.0, 4.0]
        assert store.vectors(["a"], view=View(as_of=before))[0].tolist() == [1.0]
        assert len(store.history("a")) == 1

    @pytest.mark.parametrize("bad", [[], [[1.0]], [math.nan], [math.inf], ["x"], 1.0])
    def test_bad_vectors(self, store, bad):
        with pytest.raises(EmbeddingError):
            store.put([Memory("A", id="a")], vectors=[bad])
        assert store.count(view=NOW) == 0

    def test_one_vector_for_each_memory(self, store):
        with pytest.raises(ConfigError, match="1 memories but 2 vectors"):
            store.put([Memory("A")], vectors=[None, None])

    # --- links

    def test_links(self, store):
        store.put([Memory(id_, id=id_) for id_ in "abc"])
        store.link([Edge("a", "b"), Edge("b", "c", "contradicts", 0.5)])
        seq = store.last_seq()
        store.link([Edge("a", "b")])
        assert store.last_seq() == seq
        store.link([Edge("a", "b", weight=0.25)])
        assert sorted(store.edges(view=NOW)) == [Edge("a", "b", "related", 0.25), Edge("b", "c", "contradicts", 0.5)]
        assert store.unlink([Edge("b", "a"), Edge("a", "c")]) == 1
        assert store.edges(view=NOW) == [Edge("b", "c", "contradicts", 0.5)]

    def test_links_go_with_their_memory(self, store, clock):
        store.put([Memory(id_, id=id_) for id_ in "ab"])
        store.link([Edge("a", "b"), Edge("a", "a")])
        before = clock.now
        clock.now += 1
        store.delete(["a"])
        store.put([Memory("a", id="a")])
        assert store.edges(view=NOW) == []
        assert sorted(store.edges(view=View(as_of=before))) == [Edge("a", "a"), Edge("a", "b")]
        assert store.check() == []

    def test_links_of_hidden_memories_are_hidden(self, store):
        store.put([Memory(id_, id=id_) for id_ in "ab"])
        store.link([Edge("a", "b")])
        store.put([Memory("c", id="c", supersedes="b")])
        assert store.edges(view=NOW) == []
        assert store.edges(view=ALL) == [Edge("a", "b")]

    @pytest.mark.parametrize(
        "bad",
        [("a",), LOOSE_EDGE("a", 1), Edge("a", ""), Edge("a", "b", weight=-1), Edge("a", "b", weight=math.nan), "ab"],
    )
    def test_bad_links(self, store, bad):
        store.put([Memory(id_, id=id_) for id_ in "ab"])
        with pytest.raises(ConfigError):
            store.link([Edge("a", "b"), bad])
        assert store.edges(view=NOW) == []

    def test_a_link_needs_both_ends(self, store):
        store.put([Memory("a", id="a")])
        with pytest.raises(NotFoundError, match="'x'"):
            store.link([Edge("a", "x")])

    # --- views

    def test_list_pages(self, store):
        store.put([Memory(f"{i}", id=f"{i:04}", type="odd" if i % 2 else "even") for i in range(self.MANY)])
        assert [m.id for m in store.list(view=NOW, limit=3)] == ["0000", "0001", "0002"]
        assert [m.id for m in store.list(view=NOW, limit=2, after="0002")] == ["0003", "0004"]
        assert list(store.list(view=NOW, limit=0)) == []
        assert len(list(store.list(view=NOW))) == self.MANY
        assert len(list(store.list(view=NOW, limit=101))) == 101
        assert [m.id for m in store.list(view=NOW, filter={"type": "odd"}, limit=2, after="0050")] == ["0051", "0053"]
        with pytest.raises(ConfigError):
            store.list(view=NOW, limit=-1)

    def test_entries(self, store):
        store.put([FULL, Memory("x", id="plain", created_at=from_epoch(5.0))])
        assert sorted(store.entries(view=NOW)) == [
            Entry(
                "m1", "doc-1", "chat-1", FULL.created_at.timestamp(), FULL.updated_at.timestamp(), "contradicted",
                0.75, 0.5, 3, FULL.last_accessed.timestamp(), 7, "ana", TIME_WORD, FULL.event_at.timestamp(),
                FULL.expires_at.timestamp(),
            ),
            Entry("plain", None, None, 5.0, 5.0, "active", 1.0, 1.0, 0, None, 1),
        ]  # fmt: skip

    def test_vectors_in_pieces_are_those_of_the_changes(self, store):
        if not isinstance(store, SupportsVectorLoading):
            return  # optional: indexes read the changes instead
        store.put([FULL, Memory("no vector", id="b"), Memory("gone", id="c")], vectors=[[1.0, 2.0], None, [3.0, 4.0]])
        store.put([Memory("new", id="d", supersedes="c")], vectors=[[5.0, 6.0]])
        store.touch(["m1"])
        for view in (NOW, ALL):
            changes = [c for c in store.changes(0, view=view, vectors=True) if c.vector is not None]
            with store.vector_pieces(view=view) as (newest, pieces):
                found = [row for piece in pieces for row in piece]
            assert newest == store.last_seq()
            assert found == [(c.id, c.memory.updated_at.timestamp(), c.vector.tobytes()) for c in changes]

    def test_vectors_are_read_by_their_numbers(self, store):
        if not isinstance(store, SupportsVectorRows):
            return  # optional: large views keep whole vectors in memory instead
        store.put([FULL, Memory("no vector", id="b"), Memory("gone", id="c")], vectors=[[1.0, 2.0], None, [3.0, 4.0]])
        store.erase(["c"])
        changes = {c.id: c for c in store.changes(0, view=NOW, vectors=True) if c.vector is not None}
        seqs = store.vector_seqs(view=NOW)
        assert seqs == {"m1": changes["m1"].vector_seq}
        assert store.vector_rows([*seqs.values(), 10**9]) == {seqs["m1"]: changes["m1"].vector.tobytes()}
        store.put([replace(FULL, text="changed")], vectors=[[5.0, 6.0]])
        assert store.vector_seqs(view=NOW)["m1"] > seqs["m1"]

    def test_ids_are_cached_until_something_changes(self, store):
        store.put([Memory("A", id="a", type="fact"), Memory("B", id="b")])
        first = store.ids(view=NOW, filter={"type": "fact"})
        assert first == {"a"}
        assert store.ids(view=NOW, filter={"type": "fact"}) is first
        assert store.ids(view=NOW) == {"a", "b"}
        store.put([Memory("C", id="c", type="fact")])
        assert store.ids(view=NOW, filter={"type": "fact"}) == {"a", "c"}

    def test_a_bad_filter(self, store):
        with pytest.raises(ConfigError, match=r"\$near"):
            store.ids(view=NOW, filter={"x": {"$near": 1}})
        with pytest.raises(ConfigError):
            store.list(view=NOW, filter=5)

    def test_filters_agree_with_the_predicate(self, store):
        store.put([FULL, Memory("other", id="b", metadata={"page": 7}), Memory("third", id="c", type="fact")])
        for filter_ in (
            {"type": "fact"},
            {"tags": {"$in": ["home"]}},
            {"created_at": {"$gte": "2024-01-01", "$lt": "2024-06-01"}},
            {"page": {"$gt": 3}},
            {"metadata.nested.deep": "two"},
            {"$not": {"page": 3}},
            {"$or": [{"subject": "ana"}, {"page": {"$exists": False}}]},
            {"text": {"$contains": "Lisbon"}},
            {"ключ": "значение"},
            {"'; DROP TABLE memories; --": 1},
            {"type": "' OR 1=1 --"},
        ):
            keep = compile_predicate(filter_)
            everything = list(store.list(view=NOW))
            assert [m.id for m in store.list(view=NOW, filter=filter_)] == [m.id for m in everything if keep(m)]
            assert store.ids(view=NOW, filter=filter_) == {m.id for m in everything if keep(m)}

    def test_a_filter_may_have_thousands_of_parts(self, store):
        store.put([Memory("A", id="a"), Memory("B", id="b", metadata={"n": 7})])
        for key, found in (("id", "a"), ("n", 7)):
            many = {"$or": [*({key: f"no {i}"} for i in range(3000)), {key: found}]}
            assert store.ids(view=NOW, filter=many) == {"a" if key == "id" else "b"}
            none = {"$and": [{key: {"$ne": f"no {i}"}} for i in range(3000)]}
            assert store.ids(view=NOW, filter=none) == {"a", "b"}

    def test_as_of_with_filters(self, store, clock):
        store.put([Memory("A", id="a", type="fact"), Memory("B", id="b", type="note", strength=0.5)])
        before = View(as_of=clock.now)
        clock.now += 1
        store.put([Memory("A", id="a", type="note")])
        store.reinforce("b")
        assert store.ids(view=before, filter={"type": "note"}) == {"b"}
        assert store.ids(view=NOW, filter={"type": "note"}) == {"a", "b"}
        assert store.ids(view=before, filter={"strength": {"$lte": 0.5}}) == {"b"}
        assert store.ids(view=NOW, filter={"strength": {"$lte": 0.5}}) == frozenset()

    def test_before_the_beginning(self, store, clock):
        store.put([Memory("A", id="a")])
        view = View(as_of=clock.now - 1)
        assert store.count(view=view) == 0
        assert list(store.changes(0, view=view)) == []
        assert store.entries(view=view) == []
        assert store.get(["a"], view=view) == [None]

    def test_a_clock_that_runs_backwards_does_not_reorder_the_past(self, store, clock):
        store.put([Memory("first", id="a")])
        first = clock.now
        clock.now -= 100
        store.put([Memory("second", id="a")])
        assert [v.at for v in store.history("a")] == [first, first]
        assert texts(store.get(["a"], view=View(as_of=first))) == ["second"]
        assert texts(store.get(["a"], view=View(as_of=first - 1))) == [None]

    def test_a_writer_with_a_wrong_clock_moves_nobody_else(self, store_factory, clock, caplog):
        """The state as of T is the one after the last entry recorded by T, in the order of the log."""
        wrong = Clock(4_000_000_000.0)  # in 2096
        start, store, other = clock.now, store_factory(clock), store_factory(wrong)
        store.put([Memory("first", id="a")])
        other.put([Memory("from 2096", id="b")])
        future = View(as_of=wrong.now)
        for step, text in ((10, "second"), (20, "third")):
            clock.now = start + step
            store.put([Memory(text, id="a")])
        store.link([Edge("a", "b")])
        assert [v.at for v in store.history("a")] == [start, start + 10, start + 20]
        assert [v.at for v in store.history("b")] == [wrong.now]
        for step, expected in ((0, "first"), (9, "first"), (10, "second"), (19.5, "second"), (20, "third")):
            view = View(as_of=start + step)
            assert texts(store.get(["a"], view=view)) == [expected]
            assert store.ids(view=view) == ({"a"} if step < 10 else {"a", "b"})  # "b" was written before "second"
        assert (store.edges(view=View(as_of=start + 19)), len(store.edges(view=View(as_of=start + 20)))) == ([], 1)
        assert texts(store.get(["a", "b"], view=future)) == ["third", "from 2096"]
        assert caplog.text.count("ahead of this clock") == 1
        assert "ahead of this clock" in store.check()[-1]
        (late,) = other.check()
        assert late == (
            f"the recorded time of version {other.history('a')[1].seq} is before that of an earlier one by "
            f"{wrong.now - (start + 10):.0f} seconds: a clock was wrong"
        )
        target = store_factory(clock, name=fresh("target"))
        target.restore(store.export())
        assert texts(target.get(["a"], view=View(as_of=start + 10))) == ["second"]

    @LAWS
    @given(st.lists(st.sampled_from([-3600, -50, 0, 1, 50, 3600]), max_size=8))
    def test_as_of_with_any_clocks(self, store_factory, steps):
        """Each step is another writer, whose clock differs by so many seconds; the present view has everything."""
        name, written, base = fresh("clocks"), [], Clock().now
        for number, ahead in enumerate(steps):
            with store_factory(Clock(base + ahead), name=name) as store:
                store.put([Memory(f"text {number}", id="a")])
            written.append((base + ahead, f"text {number}"))
        with store_factory(Clock(base), name=name) as store:
            assert [version.at for version in store.history("a")] == [at for at, _ in written]
            for moment in sorted({at + shift for at, _ in written for shift in (-0.5, 0)}):
                expected = [text for at, text in written if at <= moment]
                assert texts(store.get(["a"], view=View(as_of=moment))) == [expected[-1] if expected else None]

    # --- namespaces

    def test_namespaces_are_separate_worlds(self, store):
        store.put([Memory("for all", id="a")])
        store.put([Memory("for ana", id="a", namespace="ana"), Memory("more", id="b")], namespace="ana")
        ana = View("ana")
        assert texts(store.get(["a", "b"], view=NOW)) == ["for all", None]
        assert texts(store.get(["a", "b"], view=ana)) == ["for ana", "more"]
        assert store.get(["a"], view=ana)[0].namespace == "ana"
        assert store.namespaces() == ["", "ana"]
        with pytest.raises(NotFoundError):
            store.put([Memory("x", id="x", supersedes="b")])
        with pytest.raises(NotFoundError):
            store.link([Edge("a", "b")])
        store.delete(["a"])
        assert store.namespaces() == ["ana"]
        assert texts(store.get(["a"], view=ana)) == ["for ana"]
        assert [c.id for c in store.changes(0, view=ana)] == ["a", "b"]

    @pytest.mark.parametrize("name", ["", "a'b", '"', "ana\nbob", "日本", "x" * 300, "../up"])
    def test_any_text_is_a_namespace(self, store, name):
        store.put([Memory("x", id="a")], namespace=name)
        assert store.namespaces() == [name]
        assert store.count(view=View(name)) == 1
        assert store.count(view=View(name + "x")) == 0

    def test_bad_namespaces(self, store):
        for bad in (None, 5, "\ud800"):
            with pytest.raises(ConfigError):
                store.put([Memory("x")], namespace=bad)

    # --- the laws, against the model

    @LAWS
    @given(steps=STEPS)
    def test_as_of_equals_replaying_the_log(self, store_factory, steps):
        clock, model = Clock(), Model()
        store = store_factory(clock, name=fresh("replay"))
        followers = [Follower(View(n, superseded=s)) for n in NAMESPACES for s in (False, True)]
        for place, (op, wait) in enumerate(steps):
            clock.now += wait
            run(store, model, op)
            model.apply(op, clock.now)
            if place % 3 == 0:
                for follower in followers:
                    follower.catch_up(store)
        moments = sorted({at for at, _ in model.log})
        for moment in [None, *moments, *(m + 0.25 for m in moments)]:
            states = model.as_of(math.inf if moment is None else moment)
            for n, (memories, links) in states.items():
                for hidden in (False, True):
                    self._same(
                        store, View(n, as_of=moment, superseded=hidden), visible(memories, superseded=hidden), links
                    )
        for follower in followers:
            self._follows(store, model, follower)
        assert store.check() == []
        store.close()

    def test_a_long_random_history(self, store_factory):
        clock, model, dice = Clock(), Model(), random.Random(12)
        store = store_factory(clock, name=fresh("long"))
        followers = [Follower(View(n, superseded=s)) for n in NAMESPACES for s in (False, True)]
        for place in range(OPERATIONS):
            op, wait = drawn(dice)
            clock.now += wait
            run(store, model, op)
            model.apply(op, clock.now)
            if place % 50 == 0:
                dice.choice(followers).catch_up(store)
        moments = {at for at, _ in dice.sample(model.log, min(20, len(model.log)))}
        for moment in [None, *sorted(moments)]:
            states = model.as_of(math.inf if moment is None else moment)
            for n, (memories, links) in states.items():
                self._same(store, View(n, as_of=moment, superseded=True), memories, links)
                self._same(store, View(n, as_of=moment), visible(memories, superseded=False), links)
        for follower in followers:
            self._follows(store, model, follower)
        assert store.check() == []

    @staticmethod
    def _same(store, view, memories, links):
        listed = {m.id: m for m in store.list(view=view)}
        assert listed.keys() == memories.keys()
        assert all(close(listed[id_], memories[id_]) for id_ in memories)
        assert store.get(list(IDS), view=view) == [listed.get(id_) for id_ in IDS]
        assert store.ids(view=view) == memories.keys()
        assert store.count(view=view) == len(memories)
        assert {e.id: e.strength for e in store.entries(view=view)} == {id_: m.strength for id_, m in listed.items()}
        ends = {(a, b, r): w for (a, b, r), w in links.items() if a in memories and b in memories}
        assert {e[:3]: e.weight for e in store.edges(view=view)} == ends
        changes = list(store.changes(0, view=view))
        assert {c.id: c.memory for c in changes if c.edge is None} == listed
        assert {c.edge[:3]: c.edge.weight for c in changes if c.edge is not None} == links
        assert [c.seq for c in changes] == sorted(c.seq for c in changes)

    @staticmethod
    def _follows(store, model, follower):
        follower.catch_up(store)
        fresh = Follower(follower.view).catch_up(store)
        assert follower.memories == fresh.memories
        assert follower.vectors == fresh.vectors
        assert follower.edges == fresh.edges
        assert follower.born == fresh.born
        n = follower.view.namespace
        assert fresh.edges == model.edges[n]
        assert fresh.vectors == {id_: model.vectors[n, id_] for id_ in fresh.memories}
        assert list(store.changes(store.last_seq(), view=follower.view)) == []

    @LAWS
    @given(steps=STEPS)
    def test_nothing_of_one_namespace_shows_in_another(self, store_factory, steps):
        clock, model = Clock(), Model()
        alone = store_factory(clock, name=fresh("alone"))
        mixed = store_factory(clock, name=fresh("mixed"))
        for op, wait in steps:
            clock.now += wait
            run(mixed, model, op)
            if op[1] == "ana":
                run(alone, model, op)
            model.apply(op, clock.now)
        view = View("ana", superseded=True)
        assert list(mixed.list(view=view)) == list(alone.list(view=view))
        assert mixed.count(view=view) == alone.count(view=view)
        assert sorted(mixed.edges(view=view)) == sorted(alone.edges(view=view))
        assert [replace_seq(e) for e in mixed.export(namespace="ana")] == [
            replace_seq(e) for e in alone.export(namespace="ana")
        ]
        for id_ in IDS:
            histories = [s.history(id_, namespace="ana") for s in (mixed, alone)]
            assert [v._replace(seq=0) for v in histories[0]] == [v._replace(seq=0) for v in histories[1]]
        alone.close()
        mixed.close()

    # --- changes

    def test_vitals_do_not_count_as_a_change_of_text(self, store):
        store.put([Memory("A", id="a")])
        seq = store.last_seq()
        store.touch(["a"])
        (change,) = store.changes(seq, view=NOW)
        assert (change.id, change.text_changed, change.memory.access_count) == ("a", False, 1)
        store.put([Memory("B", id="a")])
        store.touch(["a"])
        (change,) = store.changes(seq, view=NOW)
        assert (change.text_changed, change.memory.text) == (True, "B")

    def test_born_is_the_first_version_of_this_life(self, store):
        store.put([Memory("A", id="a")])
        store.put([Memory("B", id="a")])
        assert [c.born for c in store.changes(0, view=NOW)] == [1]
        store.delete(["a"])
        store.put([Memory("C", id="a")])
        assert [c.born for c in store.changes(0, view=NOW)] == [4]

    def test_vectors_are_read_only_when_asked_for(self, store):
        store.put([Memory("A", id="a")], vectors=[[1.0]])
        assert [c.vector for c in store.changes(0, view=NOW)] == [None]
        assert [c.vector.tolist() for c in store.changes(0, view=NOW, vectors=True)] == [[1.0]]

    def test_a_long_stream_shows_one_moment(self, store):
        store.put([Memory(f"{i}", id=f"{i:05}") for i in range(self.MANY)])
        stream = store.changes(0, view=NOW)
        first = next(stream)
        store.put([Memory("changed", id=f"{i:05}") for i in range(self.MANY)])
        changes = [first, *stream]
        assert [c.memory.text for c in changes] == [str(i) for i in range(self.MANY)]
        assert [c.seq for c in changes] == list(range(1, self.MANY + 1))
        abandoned = store.changes(0, view=NOW)
        next(abandoned)
        del abandoned
        assert len(list(store.changes(self.MANY, view=NOW))) == self.MANY

    # --- side tables

    def test_meta(self, store_factory):
        store = store_factory()
        assert store.get_meta("embedder") is None
        store.set_meta("embedder", "MiniLM")
        store.set_meta("embedder", "wordllama 256")
        assert store.get_meta("embedder") == "wordllama 256"

    @pytest.mark.parametrize("size", [0, 1, 9 * 2**20 + 1])
    def test_snapshots(self, store, size):
        blob = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert store.load_snapshot("bm25") is None
        store.save_snapshot("bm25", 1, b"old" * 1_500_000)
        store.save_snapshot("bm25", 7, blob)
        store.save_snapshot("bm25", 9, b"ana's", namespace="ana")
        assert store.load_snapshot("bm25") == (7, blob)
        assert store.load_snapshot("bm25", namespace="ana") == (9, b"ana's")
        assert store.load_snapshot("vector") is None
        assert store.check() == []

    # --- upkeep

    def test_all_is_there_after_reopening(self, store_factory, clock):
        store = store_factory(clock)
        store.put([FULL, Memory("B", id="b")], vectors=[[1.0, 2.0], None])
        store.link([Edge("m1", "b")])
        seq = store.last_seq()
        store.close()
        store = store_factory(clock)
        assert store.get(["m1"], view=NOW) == [FULL]
        assert store.vectors(["m1"], view=NOW)[0].tolist() == [1.0, 2.0]
        assert store.edges(view=NOW) == [Edge("m1", "b")]
        assert store.last_seq() == seq

    def test_a_closed_store_is_reported(self, store):
        store.put([Memory("x", id="a")])
        store.close()
        store.close()
        for call in (
            lambda: store.get(["a"], view=NOW),
            lambda: store.put([Memory("y")]),
            store.last_seq,
            lambda: store.ids(view=NOW),
            lambda: list(store.changes(0, view=NOW)),
            lambda: list(store.list(view=NOW)),
            lambda: list(store.export()),
            lambda: store.get_meta("x"),
        ):
            with pytest.raises(StoreClosedError):
                call()

    @LAWS
    @given(steps=STEPS)
    def test_export_restore_export_is_the_same(self, store_factory, steps):
        clock, model = Clock(), Model()
        source = store_factory(clock, name=fresh("source"))
        for op, wait in steps:
            clock.now += wait
            run(source, model, op)
            model.apply(op, clock.now)
        source.set_meta("embedder", "x")
        rows = [json.loads(json.dumps(row)) for row in source.export()]
        target = store_factory(clock, name=fresh("target"))
        assert target.restore(rows) == len(rows) - 2
        assert list(target.export()) == rows
        assert target.check() == []
        assert target.last_seq() == source.last_seq()
        for n in NAMESPACES:
            view = View(n, superseded=True)
            assert list(target.list(view=view)) == list(source.list(view=view))
            assert [c[:-1] for c in target.changes(0, view=view)] == [c[:-1] for c in source.changes(0, view=view)]
        target.restore(rows)
        assert target.check() == []
        for n in NAMESPACES:
            view = View(n, superseded=True)
            assert list(target.list(view=view)) == list(source.list(view=view))
        source.close()
        target.close()

    def test_restore_refuses_what_is_not_an_export(self, store):
        for rows in ([{}], [{"kind": "poem"}], [{"kind": "memory"}], [{"kind": "hybridmem", "format": 99}], [5]):
            with pytest.raises(ConfigError):
                store.restore(rows)
        assert store.last_seq() == 0

    def test_an_erased_id_that_was_used_again_is_restored(self, store_factory):
        source, target = store_factory(name=fresh("source")), store_factory(name=fresh("target"))
        source.put([Memory("secret", id="a"), Memory("B", id="b")])
        source.link([Edge("a", "b")])
        source.erase(["a"])
        source.put([Memory("public", id="a")], vectors=[[1.0]])
        source.link([Edge("b", "a")])
        rows = list(source.export())
        target.restore(rows)
        assert list(target.export()) == rows
        assert texts(target.get(["a"], view=NOW)) == ["public"]
        assert target.check() == []

    @pytest.mark.parametrize(
        "damage",
        [
            *({name: value} for name in ("created_at", "updated_at", "last_accessed") for value in (1e20, -1e15)),
            *({"at": value} for value in (None, 1e300, math.nan)),
            *({"decayed": value} for value in (math.inf, math.nan)),
            *({"seq": value} for value in (-5, 0, 2**70)),
            *({"op": value} for value in ("sing", "vitals", "status", "vector", "delete")),
            *({"namespace": value} for value in ("a\x00b", "\ud83d", None)),
            *({"id": value} for value in ("", "\ud83d", None)),
        ],
        ids=str,
    )
    def test_a_damaged_row_is_refused_with_all_the_others(self, store_factory, damage):
        source, target = store_factory(name=fresh("source")), store_factory(name=fresh("target"))
        source.put([Memory("A", id="a"), Memory("B", id="b")])
        source.link([Edge("a", "b")])
        head, first, *rest = source.export()
        with pytest.raises(ConfigError, match="row 1 "):
            target.restore([head, {**first, **damage}, *rest])
        assert target.last_seq() == target.count(view=NOW) == 0

    def test_rows_out_of_order_are_refused(self, store_factory):
        clock = Clock()
        source = store_factory(clock, name=fresh("source"))
        source.put([Memory("A", id="a"), Memory("B", id="b")])
        source.link([Edge("a", "b")])
        head, a, b, link = source.export()
        for rows, why in (
            ([b, a, link], "seq 1 does not come after 2"),
            ([a, link], "links 'b', which does not exist"),
            ([a, b, {**link, "op": "sing"}], "known: link, unlink"),
        ):
            with store_factory(clock, name=fresh("target")) as target:
                with pytest.raises(ConfigError, match=why):
                    target.restore([head, *rows])
                assert target.last_seq() == 0

    def test_vectors_of_another_embedder_are_not_restored(self, store_factory):
        source, target = store_factory(name=fresh("source")), store_factory(name=fresh("target"))
        source.put([Memory("A", id="a")], vectors=[[1.0]])
        source.set_meta("embedder", json.dumps({"name": "small", "dim": 1}))
        source.set_meta("else", "mine")
        rows = list(source.export(namespace=""))
        assert [row["key"] for row in rows if row["kind"] == "meta"] == ["embedder"]  # it goes with the vectors
        target.put([Memory("B", id="b")], vectors=[[1.0, 2.0]])
        target.set_meta("embedder", json.dumps({"name": "large", "dim": 2}))
        with pytest.raises(ConfigError, match=r"'small' \(1 dimensions\), those here from 'large' \(2 dimensions\)"):
            target.restore(rows)
        assert target.ids(view=NOW) == {"b"}

    def test_erase_leaves_no_trace(self, store, clock):
        store.put([Memory("secret", id="a"), Memory("B", id="b")], vectors=[[1.0], [2.0]])
        store.put([Memory("more secret", id="a")])
        store.link([Edge("a", "b", "secretly knows")])
        follower = Follower(NOW).catch_up(store)
        store.save_snapshot("bm25", 3, b"secret")
        seq, before = store.last_seq(), clock.now
        clock.now += 1
        assert store.erase(["a", "x"]) == 1
        assert store.erase(["a"]) == 0
        assert store.history("a") == []
        assert store.get(["a"], view=View(as_of=before)) == [None]
        assert store.load_snapshot("bm25") is None
        assert "secret" not in json.dumps(list(store.export()))
        changes = list(store.changes(seq, view=NOW))
        assert ("a", None) in [(c.id, c.memory) for c in changes]
        assert any(c.edge is not None and c.gone for c in changes)
        assert follower.catch_up(store).edges == {}
        assert store.check() == []
        store.save_snapshot("bm25", seq, b"the secret of an older index")
        assert store.load_snapshot("bm25") is None
        store.put([Memory("public", id="a")])
        assert texts(store.get(["a"], view=NOW)) == ["public"]
        assert store.check() == []

    # --- threads

    def test_many_threads(self, store):
        errors, barrier = [], threading.Barrier(4)

        def work(name):
            try:
                barrier.wait(30)
                for i in range(25):
                    (id_,) = store.put([Memory(f"{name} {i}", id=f"{name}-{i}")])
                    assert texts(store.get([id_], view=NOW)) == [f"{name} {i}"]
                    store.touch([id_])
                    assert id_ in store.ids(view=NOW)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in "wxyz"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert store.count(view=NOW) == 100
        assert store.last_seq() == 200
        assert store.check() == []


def replace_seq(row):
    return {key: value for key, value in row.items() if key != "seq"}


__all__ = ["ALL", "FULL", "LAWS", "NOW", "Clock", "Follower", "StoreConformance", "replace", "texts"]
