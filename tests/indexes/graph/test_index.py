"""GraphIndex: the arithmetic of spreading, its laws against a naive reference, its bounds and its paths."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from datetime import datetime, timezone
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmem.core.protocols import Change
from hybridmem.core.types import Activation, Edge, Memory
from hybridmem.errors import ConfigError
from hybridmem.indexes.entries import Entries
from hybridmem.indexes.graph import activation as spreading
from hybridmem.indexes.graph import adjacency
from hybridmem.indexes.graph import index as graph
from hybridmem.indexes.graph.index import GraphIndex, GraphSettings

IDS = [f"m{i}" for i in range(9)]


def put(seq, key, **fields):
    return Change(seq, key, Memory(fields.pop("text", "a turn"), id=key, **fields))


def linked(*edges, nodes="abcdef", settings=None):
    """A graph of single-letter nodes and (a, b) or (a, b, weight) edges."""
    index = GraphIndex(settings)
    index.apply([put(n, key) for n, key in enumerate(nodes, 1)])
    index.apply([Change(100 + n, "", edge=Edge(e[0], e[1], weight=(*e, 1.0)[2])) for n, e in enumerate(edges)])
    return index


class Naive:
    """The rules as plain loops: which directed edges there are, and the best walk from each seed."""

    def __init__(self, settings):
        self.settings, self.memories, self.first, self.explicit = settings, {}, {}, {}

    def apply(self, changes):
        for change in changes:
            if change.edge is not None:
                key = change.edge[:3]
                self.explicit.pop(key, None)
                if not change.gone:
                    self.explicit[key] = change.edge.weight
            elif change.memory is None:
                self.memories.pop(change.id, None)
                self.first.pop(change.id, None)
            else:
                old = self.memories.get(change.id)
                if old is None or old.thread is None:
                    self.first[change.id] = change.seq
                self.memories[change.id] = change.memory

    def edges(self):
        chosen, live = self.settings, self.memories
        found = []
        for (a, b, _), weight in self.explicit.items():
            found += [(a, b, weight * chosen.explicit), (b, a, weight * chosen.explicit)]
        for key, memory in live.items():
            for other in list(memory.metadata.get("links", ()))[: chosen.max_fanout]:
                found += [(key, other, chosen.metadata), (other, key, chosen.metadata)]
        found += self.shared() + self.turns()
        return [(a, b, w) for a, b, w in found if a != b and a in live and b in live and w > 0]

    def shared(self):
        found = []
        names = {name for memory in self.memories.values() for name in memory.entities}
        for name in names if self.settings.entities else ():
            members = [key for key, memory in self.memories.items() if name in memory.entities]
            if 1 < len(members) <= self.settings.max_fanout:
                weight = self.settings.shared / math.sqrt(len(members) - 1)
                found += [(a, b, weight) for a in members for b in members]
        return found

    def turns(self):
        found = []
        for thread in {memory.thread for memory in self.memories.values()} - {None}:
            turns = sorted(
                (memory.created_at.timestamp() if memory.created_at else math.inf, self.first[key], key)
                for key, memory in self.memories.items()
                if memory.thread == thread
            )
            for (*_, a), (*_, b) in pairwise(turns):
                answers = self.settings.answers if self.memories[a].text.endswith("?") else 1.0
                found += [(a, b, self.settings.thread * answers), (b, a, self.settings.thread)]
        return found

    def spread(self, seeds, *, hops, decay, include_seeds, allowed=None):
        edges = [(a, b, w) for a, b, w in self.edges() if allowed is None or {a, b} <= allowed]
        best = {}
        for seed, value in seeds.items():
            if seed not in self.memories or value <= 0 or (allowed is not None and seed not in allowed):
                continue
            reached = {seed: value}
            for _ in range(hops):
                step = dict(reached)
                for a, b, w in edges:
                    if a in reached:
                        step[b] = max(step.get(b, 0.0), reached[a] * (w * decay))
                reached = step
            for key, got in reached.items():
                if key != seed and got > 0 and (include_seeds or key not in seeds):
                    best[key] = max(best.get(key, 0.0), got)
        return best


keys = st.sampled_from(IDS)
memories = st.builds(
    Memory,
    text=st.sampled_from(["a turn", "a question?"]),
    thread=st.sampled_from([None, "t1", "t2"]),
    created_at=st.sampled_from([None, *(datetime(2024, 1, day, tzinfo=timezone.utc) for day in (1, 2, 3))]),
    entities=st.lists(st.sampled_from(["Ana", "Lisbon", "E0427"]), unique=True, max_size=2).map(tuple),
    metadata=st.lists(keys, unique=True, max_size=3).map(lambda links: {"links": links} if links else {}),
)
edges = st.builds(Edge, keys, keys, st.sampled_from(["related", "links"]), st.sampled_from([0.0, 0.25, 0.3, 1.0, 3.0]))
steps = st.one_of(
    st.builds(lambda key, memory: Change(0, key, memory), keys, memories),
    st.builds(lambda key, memory: Change(0, key, memory), keys, memories),
    st.builds(lambda key: Change(0, key), keys),
    st.builds(lambda edge: Change(0, "", edge=edge), edges),
    st.builds(lambda edge: Change(0, "", edge=edge, gone=True), edges),
)
batches = st.lists(st.lists(steps, max_size=12), min_size=1, max_size=6)
choices = st.builds(
    GraphSettings,
    explicit=st.sampled_from([0.0, 1.0]),
    metadata=st.sampled_from([0.0, 0.7]),
    shared=st.sampled_from([0.0, 0.9]),
    thread=st.sampled_from([0.0, 1.0]),
    answers=st.sampled_from([1.0, 1.5]),
    entities=st.sampled_from(["own", None]),
    max_fanout=st.sampled_from([2, 256]),
)
seed_sets = st.dictionaries(st.sampled_from([*IDS, "nobody"]), st.sampled_from([0.0, 0.1, 0.5, 1.0]), max_size=5)


@pytest.fixture(params=["roomy", "tight"])
def limits(request, monkeypatch):
    """Once as shipped, and once with limits so small that merging, bulk loading and pruning happen all the time."""
    if request.param == "tight":
        monkeypatch.setattr(adjacency, "_TAIL", 3)
        monkeypatch.setattr(adjacency, "_FEW", 3)
        monkeypatch.setattr(graph, "_BULK", 2)
        monkeypatch.setattr(spreading, "_PRUNE", 1)


@pytest.mark.usefixtures("limits")
class TestAgainstTheReference:
    @given(batches, choices, seed_sets, st.integers(0, 4), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.booleans())
    @settings(max_examples=120, deadline=None)
    def test_every_picture_equals_plain_loops_and_never_changes(self, todo, chosen, seeds, hops, decay, include):
        index, naive, seq, seen = GraphIndex(chosen), Naive(chosen), 0, []
        ask = {"hops": hops, "decay": decay, "include_seeds": include}
        allowed = set(IDS[:5])
        for batch in todo:
            numbered = [change._replace(seq=seq + n) for n, change in enumerate(batch, 1)]
            seq += len(batch)
            index.apply(numbered)
            naive.apply(numbered)
            assert len(index) == len(naive.memories)
            assert index.watermark == seq
            whole, part = naive.spread(seeds, **ask), naive.spread(seeds, **ask, allowed=allowed)
            seen += [(index.snapshot(), whole), (index.snapshot(allowed=allowed), part)]
        for picture, expected in seen:
            assert picture.spread(seeds, **ask) == pytest.approx(expected, rel=1e-12)

    @given(batches, choices, seed_sets, st.integers(0, 3))
    @settings(max_examples=60, deadline=None)
    def test_paths_add_up_to_what_was_spread(self, todo, chosen, seeds, hops):
        index, naive = GraphIndex(chosen), Naive(chosen)
        changes = [change._replace(seq=n) for n, change in enumerate((c for batch in todo for c in batch), 1)]
        index.apply(changes)
        naive.apply(changes)
        picture = index.snapshot()
        found = picture.spread(seeds, hops=hops, include_seeds=True)
        told = picture.paths(seeds, [*IDS, "nobody"], hops=hops)
        assert {key: won.value for key, won in told.items()} == pytest.approx(found, rel=1e-12)
        weights = {}
        for a, b, weight in naive.edges():
            weights[a, b] = max(weight, weights.get((a, b), 0.0))
        for key, (value, count, path) in told.items():
            nodes = path[::2]
            assert (path[-1], len(path)) == (key, 2 * count + 1)
            assert nodes[0] in seeds
            product = seeds[nodes[0]]
            for pair in pairwise(nodes):
                product *= weights[pair] * 0.5
            assert value == pytest.approx(product, rel=1e-12)

    @given(st.lists(memories, max_size=8), st.lists(edges, max_size=8), st.lists(steps, max_size=8), choices, seed_sets)
    @settings(max_examples=60, deadline=None)
    def test_loading_at_once_is_the_same_as_following(self, start, links, later, chosen, seeds):
        """Entries fill an index as the changes would have, and both go on alike."""
        puts = [Change(n, f"m{n}", memory, born=n) for n, memory in enumerate(start, 1)]
        loaded, followed = GraphIndex(chosen), GraphIndex(chosen)
        entries = Entries(chosen.links_key)
        entries.apply(puts)
        loaded.load(entries, links)
        followed.apply([*puts, *(Change(20, "", edge=edge) for edge in links)])
        for _ in range(2):
            assert len(loaded) == len(followed)
            ours = loaded.snapshot().spread(seeds, include_seeds=True)
            assert ours == pytest.approx(followed.snapshot().spread(seeds, include_seeds=True), rel=1e-12)
            numbered = [change._replace(seq=100 + n) for n, change in enumerate(later)]
            loaded.apply(numbered)
            followed.apply(numbered)


class TestArithmetic:
    def test_two_hops_over_weight_one_give_a_quarter(self):
        picture = linked("ab", "bc", "cd").snapshot()
        assert picture.spread({"a": 1.0}) == {"b": 0.5, "c": 0.25}
        assert picture.spread({"a": 1.0}, hops=3) == {"b": 0.5, "c": 0.25, "d": 0.125}

    def test_weight_and_decay_multiply_at_each_hop(self):
        picture = linked(("a", "b", 0.8), ("b", "c", 0.5)).snapshot()
        assert picture.spread({"a": 0.5}, decay=0.4) == {"b": 0.5 * (0.8 * 0.4), "c": 0.5 * (0.8 * 0.4) * (0.5 * 0.4)}

    def test_edges_are_walked_both_ways(self):
        assert linked("ab").snapshot().spread({"b": 1.0}) == {"a": 0.5}

    def test_the_highest_value_wins_where_paths_meet(self):
        picture = linked("ab", "cb", "bd").snapshot()
        assert picture.spread({"a": 1.0, "c": 0.6}) == {"b": 0.5, "d": 0.25}  # not 0.5 + 0.3

    def test_a_seed_receives_from_other_seeds_only(self):
        picture = linked("ab", "bc").snapshot()
        assert picture.spread({"a": 1.0, "c": 0.4}, include_seeds=True) == {
            "a": 0.4 * 0.5 * 0.5,  # from c over b; its own echo over b would be 1.0 · 0.25
            "b": 1.0 * 0.5,
            "c": 1.0 * 0.5 * 0.5,
        }
        assert picture.spread({"a": 1.0}, include_seeds=True) == {"b": 0.5, "c": 0.25}

    def test_no_hops_and_no_decay_activate_nothing(self):
        picture = linked("ab").snapshot()
        assert picture.spread({"a": 1.0}, hops=0) == picture.spread({"a": 1.0}, decay=0.0) == {}

    def test_seeds_without_value_activate_nothing(self):
        picture = linked("ab").snapshot()
        assert picture.spread({"a": 0.0, "c": -1.0, "d": math.nan, "e": math.inf, "nobody": 1.0}) == {}
        assert picture.spread({}) == {}


class TestArm:
    def test_seeds_are_scaled_by_the_best_and_listed_with_what_they_remind_of(self):
        index = linked("ab", "bc")
        assert index.search({"a": 8.0, "d": 2.0}, k=10) == (["a", "b", "c", "d"], [1.0, 0.5, 0.25, 2.0 / 8.0])

    def test_a_seed_counts_with_the_larger_of_its_own_value_and_what_comes_in(self):
        assert linked("ab").search({"a": 10.0, "b": 1.0}, k=10) == (["a", "b"], [1.0, 0.5])

    def test_k_and_ties_by_id(self):
        index = linked("ca", "cb", "cf")
        assert index.search({"c": 1.0}, k=3) == (["c", "a", "b"], [1.0, 0.5, 0.5])

    def test_many_ties_at_the_edge_of_k_are_cut_by_id(self):
        nodes = [f"n{i:03}" for i in range(200)]
        index = linked(*(("n000", node) for node in reversed(nodes[1:])), nodes=nodes)
        assert index.search({"n000": 2.0}, k=4).ids == nodes[:4]

    def test_no_seed_no_hit(self):
        index = linked("ab")
        assert index.search({}, k=3) == ([], [])
        assert index.search({"nobody": 1.0, "a": 0.0}, k=3) == ([], [])

    def test_only_allowed_memories_receive_or_pass(self):
        index = linked("ab", "bc", "ad")
        assert index.search({"a": 1.0}, k=9, allowed={"a", "c", "d"}) == (["a", "d"], [1.0, 0.5])
        assert index.search({"a": 1.0}, k=9, allowed={"b"}) == ([], [])

    @pytest.mark.parametrize(
        "bad", [{"k": 0}, {"k": 1, "hops": -1}, {"k": 1, "decay": 1.5}, {"k": 1, "decay": math.nan}]
    )
    def test_bad_numbers_are_reported(self, bad):
        with pytest.raises(ConfigError, match=r"k =|hops =|decay ="):
            linked("ab").search({"a": 1.0}, **bad)


class TestEdges:
    def test_a_link_is_updated_and_removed_by_its_ends_and_relation(self):
        index = linked(("a", "b", 1.0))
        index.apply([Change(200, "", edge=Edge("a", "b", weight=0.5))])
        assert index.snapshot().spread({"a": 1.0}) == {"b": 0.25}
        index.apply([Change(201, "", edge=Edge("a", "b", "other"))])
        index.apply([Change(202, "", edge=Edge("a", "b"), gone=True)])
        assert index.snapshot().spread({"b": 1.0}) == {"a": 0.5}
        index.apply([Change(203, "", edge=Edge("a", "b", "other"), gone=True)])
        assert index.snapshot().spread({"b": 1.0}) == {}

    @pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
    def test_a_weight_that_cannot_count_is_no_edge(self, weight):
        assert linked(("a", "b", weight)).snapshot().spread({"a": 1.0}) == {}

    def test_cycles_and_self_loops(self):
        picture = linked("ab", "bc", "ca", "aa", ("b", "b", 9.0)).snapshot()
        assert picture.spread({"a": 1.0}, hops=10**12) == {"b": 0.5, "c": 0.5}

    def test_a_dangling_edge_is_inactive_until_its_node_exists(self):
        index = linked("az", "zb")
        assert index.snapshot().spread({"a": 1.0, "z": 1.0}) == {}
        index.apply([put(300, "z")])
        assert index.snapshot().spread({"a": 1.0}) == {"z": 0.5, "b": 0.25}
        index.apply([Change(301, "z")])
        assert index.snapshot().spread({"a": 1.0}) == {}

    def test_metadata_links_follow_the_memory(self):
        index = GraphIndex()
        index.apply(
            [put(1, "a", metadata={"links": ["b", "later"]}), put(2, "b"), put(3, "c", metadata={"links": "b"})]
        )
        assert index.snapshot().spread({"a": 1.0}) == {"b": 0.5, "c": 0.25}
        index.apply([put(4, "a", metadata={"links": [7]}), put(5, "7")])
        assert index.snapshot().spread({"a": 1.0}) == {"7": 0.5}
        index.apply([put(6, "a")])
        assert index.snapshot().spread({"a": 1.0}) == {}

    @pytest.mark.parametrize("value", [None, 5, {"b": 1}, b"b", "", []])
    def test_metadata_that_is_no_list_of_ids_links_nothing(self, value):
        index = GraphIndex()
        index.apply([put(1, "a", metadata={"links": value}), put(2, "b")])
        assert index.snapshot().spread({"a": 1.0}) == {}

    def test_another_metadata_key_and_its_cap(self):
        index = GraphIndex(GraphSettings(links_key="see", max_fanout=2))
        index.apply([put(1, "a", metadata={"see": ["b", "c", "d"], "links": ["e"]}), *(put(2, key) for key in "bcde")])
        assert index.snapshot().spread({"a": 1.0}) == {"b": 0.5, "c": 0.5}

    def test_shared_entities_are_damped_by_the_root_of_their_count(self):
        index = GraphIndex()
        index.apply([put(n, key, entities=("Lisbon",)) for n, key in enumerate("abcde", 1)])
        assert index.snapshot().spread({"a": 1.0}, hops=1) == dict.fromkeys("bcde", 1.0 / math.sqrt(5 - 1) * 0.5)
        index.apply([put(6, key, entities=()) for key in "cde"])
        assert index.snapshot().spread({"a": 1.0}) == {"b": 0.5}

    def test_entities_match_however_they_are_written_and_blank_ones_do_not_count(self):
        index = GraphIndex()
        index.apply([put(1, "a", entities=("Rio  de Janeiro", " ")), put(2, "b", entities=("rio de janeiro", ""))])
        assert index.snapshot().spread({"a": 1.0}) == {"b": 0.5}

    def test_entities_are_spotted_only_where_a_memory_lists_none(self):
        index = GraphIndex(GraphSettings(entities="spot"))
        index.apply(
            [
                put(1, "a", text="I met Ana in Lisbon"),
                put(2, "b", text="It rains in Lisbon"),
                put(3, "c", text="It rains in Lisbon", entities=("Porto",)),
            ]
        )
        assert index.snapshot().spread({"a": 1.0}) == {"b": 0.5}

    def test_any_callable_can_name_entities(self):
        index = GraphIndex(GraphSettings(entities=lambda text: [text[0]]))
        index.apply([put(1, "a", text="xylophone"), put(2, "b", text="xenon"), put(3, "c", text="argon")])
        assert index.snapshot().spread({"a": 1.0}) == {"b": 0.5}

    def test_a_thread_is_ordered_by_time_and_then_by_insertion(self):
        day = [datetime(2024, 1, n, tzinfo=timezone.utc) for n in (1, 2, 3)]
        index = GraphIndex()
        index.apply([put(1, "c", thread="t", created_at=day[2]), put(2, "a", thread="t", created_at=day[0])])
        index.apply([put(3, "b", thread="t", created_at=day[1]), put(4, "x", thread="other", created_at=day[1])])
        assert index.snapshot().spread({"a": 1.0}) == {"b": 0.5, "c": 0.25}
        index.apply([put(5, "b2", thread="t", created_at=day[1]), put(6, "late", thread="t")])
        assert index.snapshot().spread({"late": 1.0}, hops=4) == {"c": 0.5, "b2": 0.25, "b": 0.125, "a": 0.0625}

    def test_an_update_does_not_move_a_turn_and_a_removal_joins_its_neighbours(self):
        index = GraphIndex()
        index.apply([put(n, key, thread="t") for n, key in enumerate("abcd", 1)])
        index.apply([put(9, "b", thread="t", text="corrected")])
        assert index.snapshot().spread({"a": 1.0}, hops=3) == {"b": 0.5, "c": 0.25, "d": 0.125}
        index.apply([Change(10, "b")])
        assert index.snapshot().spread({"a": 1.0}) == {"c": 0.5, "d": 0.25}
        index.apply([put(11, "c"), Change(12, "c"), Change(13, "never")])
        assert index.snapshot().spread({"a": 1.0}) == {"d": 0.5}

    def test_a_rebuilt_index_keeps_the_order_of_birth(self):
        live, rebuilt = GraphIndex(), GraphIndex()
        live.apply([put(n, key, thread="t") for n, key in enumerate("abc", 1)])
        live.apply([put(4, "a", thread="t", text="corrected")._replace(born=1)])
        state = [put(2, "b", thread="t"), put(3, "c", thread="t"), put(4, "a", thread="t")._replace(born=1)]
        rebuilt.apply(state)
        assert live.snapshot().spread({"a": 1.0}) == rebuilt.snapshot().spread({"a": 1.0}) == {"b": 0.5, "c": 0.25}

    def test_a_question_passes_more_to_its_answer(self):
        index = GraphIndex(GraphSettings(answers=1.5))
        index.apply([put(1, "q", thread="t", text="Where? "), put(2, "a", thread="t"), put(3, "b", thread="t")])
        assert index.snapshot().spread({"q": 1.0}) == {"a": 1.0 * 1.5 * 0.5, "b": 1.0 * 1.5 * 0.5 * 0.5}
        assert index.snapshot().spread({"a": 1.0}) == {"q": 0.5, "b": 0.5}
        index.apply([put(4, "q", thread="t", text="There.")])
        assert index.snapshot().spread({"q": 1.0}) == {"a": 0.5, "b": 0.25}

    def test_vitals_alone_change_nothing(self):
        index = GraphIndex()
        index.apply([put(1, "a", thread="t"), put(2, "b", thread="t")])
        index.apply([put(3, "a")._replace(text_changed=False), put(4, "new", thread="t")._replace(text_changed=False)])
        assert index.snapshot().spread({"a": 1.0}) == {"b": 0.5, "new": 0.25}
        assert index.watermark == 4

    def test_an_index_that_reads_texts_is_reported(self):
        assert GraphIndex(GraphSettings(entities="spot")).reads_texts
        assert GraphIndex(GraphSettings(entities=str.split)).reads_texts
        assert not GraphIndex().reads_texts
        assert not GraphIndex(GraphSettings(entities="spot", shared=0)).reads_texts

    @pytest.mark.parametrize(
        "off", [{"explicit": 0}, {"metadata": 0}, {"shared": 0}, {"entities": None}, {"thread": 0}]
    )
    def test_each_source_can_be_switched_off(self, off):
        found = {}
        for name, chosen in (("on", GraphSettings()), ("off", GraphSettings(**off))):
            index = GraphIndex(chosen)
            index.apply(
                [
                    put(1, "a", thread="t", entities=("E",), metadata={"links": ["metadata"]}),
                    put(2, "thread", thread="t"),
                    put(3, "entity", entities=("E",)),
                    put(4, "metadata"),
                    put(5, "explicit"),
                    Change(6, "", edge=Edge("a", "explicit")),
                ]
            )
            found[name] = set(index.snapshot().spread({"a": 1.0}))
        assert found["on"] == {"thread", "entity", "metadata", "explicit"}
        assert len(found["on"] - found["off"]) == 1

    @pytest.mark.parametrize(
        "bad",
        [
            {"thread": -1},
            {"explicit": math.nan},
            {"shared": 2},
            {"entities": "all"},
            {"max_fanout": 0},
            {"answers": "x"},
        ],
    )
    def test_bad_settings_are_reported(self, bad):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            GraphSettings(**bad)


class TestBounds:
    def test_an_explicit_hub_of_100_000(self):
        count = 100_000
        index = GraphIndex(GraphSettings())
        index.apply(put(n, f"m{n}") for n in range(count + 1))
        index.apply(Change(count + n, "", edge=Edge("m0", f"m{n}")) for n in range(1, count + 1))
        picture = index.snapshot()
        found = picture.spread({"m99998": 0.5, "m99999": 1.0}, include_seeds=True)
        assert len(found) == 1024  # the most activated, the older of equals, and both seeds
        assert (found["m0"], found["m1"], found["m1021"], found["m99999"]) == (0.5, 0.25, 0.25, 0.125)
        assert len(picture.spread({"m99998": 0.5, "m99999": 1.0})) == 1024
        assert picture.search({"m1": 1.0}, k=3) == (["m1", "m0", "m10"], [1.0, 0.5, 0.25])
        assert picture.paths({"m1": 1.0}, ["m777"])["m777"].path == ("m1", "related", "m0", "related", "m777")
        index.apply([Change(9 * count, "", edge=Edge("m0", "new")), put(9 * count + 1, "new")])
        assert index.snapshot().spread({"new": 1.0}, hops=1) == {"m0": 0.5}
        assert picture.spread({"new": 1.0}, hops=1) == {}

    def test_all_of_a_hub_when_asked(self):
        index = linked(*(("a", f"n{i}") for i in range(5000)), nodes=["a", *(f"n{i}" for i in range(5000))])
        assert len(index.snapshot().spread({"a": 1.0})) == 1024
        wide = linked(
            *(("a", f"n{i}") for i in range(5000)),
            nodes=["a", *(f"n{i}" for i in range(5000))],
            settings=GraphSettings(max_reached=10**9),
        )
        assert len(wide.snapshot().spread({"a": 1.0})) == 5000

    def test_an_entity_of_too_many_memories_reminds_of_nothing(self):
        index = GraphIndex(GraphSettings(max_fanout=100))
        index.apply(put(n, f"m{n}", entities=("everywhere",)) for n in range(1, 101))
        assert len(index.snapshot().spread({"m1": 1.0})) == 99
        index.apply([put(101, "m101", entities=("everywhere",))])
        assert index.snapshot().spread({"m1": 1.0}) == {}

    def test_thousands_of_single_changes_merge_and_stay_right(self):
        index = GraphIndex()
        index.apply([put(n, f"m{n}") for n in range(50)])
        for n in range(3000):
            index.apply([Change(100 + n, "", edge=Edge(f"m{n % 50}", f"m{n * 7 % 50}", f"r{n % 90}", 0.5 + n % 2 / 2))])
        for n in range(0, 3000, 3):
            index.apply([Change(9000 + n, "", edge=Edge(f"m{n % 50}", f"m{n * 7 % 50}", f"r{n % 90}"), gone=True)])
        naive = Naive(GraphSettings())
        naive.apply([put(n, f"m{n}") for n in range(50)])
        for n in range(3000):
            naive.apply([Change(0, "", edge=Edge(f"m{n % 50}", f"m{n * 7 % 50}", f"r{n % 90}", 0.5 + n % 2 / 2))])
        for n in range(0, 3000, 3):
            naive.apply([Change(0, "", edge=Edge(f"m{n % 50}", f"m{n * 7 % 50}", f"r{n % 90}"), gone=True)])
        expected = naive.spread({"m1": 1.0, "m2": 0.7}, hops=2, decay=0.5, include_seeds=True)
        assert index.snapshot().spread({"m1": 1.0, "m2": 0.7}, include_seeds=True) == expected

    def test_readers_see_whole_batches_while_a_writer_goes_on(self):
        index, stop, torn = GraphIndex(), threading.Event(), []
        index.apply([put(0, "hub")])

        def read():
            while not stop.is_set():
                found = index.snapshot().spread({"hub": 1.0}, hops=1)
                if len(found) % 10:
                    torn.append(len(found))

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for batch in range(100):
            names = [f"n{batch}-{n}" for n in range(10)]
            changes = [put(batch + 1, name, thread=f"t{batch}") for name in names]
            index.apply([*changes, *(Change(batch + 1, "", edge=Edge("hub", name)) for name in names)])
        stop.set()
        for reader in readers:
            reader.join(30)
        assert torn == []
        assert len(index.snapshot().spread({"hub": 1.0}, hops=1)) == 1000

    def test_the_same_answer_under_any_hash_seed(self):
        script = (
            "from hybridmem.indexes.graph.index import *; from hybridmem.core.protocols import Change;"
            "from hybridmem.core.types import *\n"
            "g = GraphIndex(GraphSettings(entities='spot'))\n"
            "g.apply([Change(n, f'm{n}', Memory(f'I saw Ana{n % 7} in Lisbon', id=f'm{n}', thread=f't{n % 5}',"
            " metadata={'links': {f'm{n * 3 % 60}', f'm{n * 7 % 60}'}})) for n in range(60)])\n"
            "s = {'m1': 1.0, 'm2': 0.9, 'm30': 0.9}\n"
            "p = g.snapshot()\n"
            "print(g.search(s, k=20), p.spread(s, include_seeds=True), p.paths(s, p.spread(s)))"
        )
        told = {
            subprocess.run(
                [sys.executable, "-c", script],
                env={"PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
                text=True,
            ).stdout
            for seed in ("0", "1", "4242")
        }
        assert len(told) == 1


class TestReceipts:
    def test_a_path_names_its_edges(self):
        index = GraphIndex()
        index.apply(
            [
                put(1, "m12", entities=("Lisbon",)),
                put(2, "m40", entities=("lisbon",), thread="t"),
                put(3, "m41", thread="t", metadata={"links": ["m50"]}),
                put(4, "m50"),
                put(5, "m60"),
                Change(6, "", edge=Edge("m50", "m60", "contradicts")),
            ]
        )
        told = index.snapshot().paths({"m12": 1.0}, ["m60", "m12", "nobody"], hops=4)
        path = ("m12", "entity Lisbon", "m40", "thread", "m41", "links", "m50", "contradicts", "m60")
        assert told == {"m60": Activation(1 / 16, 4, path)}

    def test_the_heaviest_edge_between_two_names_the_hop(self):
        index = GraphIndex()
        index.apply([put(1, "a", thread="t", text="Q?"), put(2, "b", thread="t")])
        index.apply(
            [Change(3, "", edge=Edge("b", "a", "weak", 0.1)), Change(4, "", edge=Edge("a", "b", "strong", 2.0))]
        )
        assert index.snapshot().paths({"a": 1.0}, ["b"])["b"] == (1.0, 1, ("a", "strong", "b"))

    def test_items_come_from_the_callback(self):
        index = linked("ab")
        assert index.snapshot(lambda keys: [key.upper() for key in keys]).items(["a", "b"]) == ["A", "B"]
        assert index.snapshot().items(["a"]) == [None]


def test_numbers_beyond_the_first_arrays_grow_without_disturbing_pictures():
    index = GraphIndex()
    index.apply([put(n, f"m{n}", thread="t") for n in range(1000)])
    early = index.snapshot()
    for n in range(1000, 1100):
        index.apply([put(n, f"m{n}", thread="t")])
    assert early.spread({"m999": 1.0}) == {"m998": 0.5, "m997": 0.25}
    assert index.snapshot().spread({"m999": 1.0}, hops=1) == {"m998": 0.5, "m1000": 0.5}
    assert early.spread({"m1050": 1.0}) == {}
    assert np.array_equal(early.alive[:1000], np.ones(1000, bool))
