"""Edges that two metadata fields define, with langchain-graph-retriever as the oracle."""

from __future__ import annotations

import math

import pytest
from graph_retriever import Content
from graph_retriever.edges import MetadataEdgeFunction
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.errors import ConfigError
from hybridmem.retrievers.metadata_edges import FieldIndex, edge_definitions, values_in

VALUES = st.one_of(st.sampled_from(["m0", "m1", "x", 1, 2.5, True]), st.lists(st.sampled_from(["m0", "m2", "x", 1])))
ITEMS = st.lists(st.dictionaries(st.sampled_from(["a", "b", "id"]), VALUES), min_size=1, max_size=5)
FIELD = st.sampled_from(["a", "b", "$id"])


def filled(items):
    fields = FieldIndex()
    for key, metadata in items.items():
        fields.put(key, metadata)
    return fields


@given(ITEMS, st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=3))
def test_the_links_are_those_of_the_peer(found, definitions):
    items = {f"m{n}": metadata for n, metadata in enumerate(found)}
    edges = {key: MetadataEdgeFunction(definitions)(Content(key, "", [], metadata)) for key, metadata in items.items()}
    expected = {(a, b) for a in items for b in items if a != b and edges[a].outgoing & edges[b].incoming}
    links = filled(items).links(edge_definitions(definitions), weight=1.0, most=256)(list(items))
    assert {(source, target) for source, target, _, _ in links} == expected


def test_a_value_of_many_items_links_weakly_and_beyond_a_limit_not_at_all():
    items = {f"m{n}": {"topic": "films"} for n in range(4)}
    links = filled(items).links([("topic", "topic")], weight=1.0, most=3)(["m0"])
    assert list(links) == [("m0", f"m{n}", 1 / math.sqrt(3), "topic films") for n in (1, 2, 3)]
    assert list(filled(items).links([("topic", "topic")], weight=1.0, most=2)(["m0"])) == []


def test_fields_are_paths_lists_and_ids():
    metadata = {"author": {"works": ["a", ("b", ["c"])]}, "flat.key": 7, "none": None, "other": {"x": 1}}
    assert values_in(metadata, "m", "author.works") == ["a", "b", "c"]
    assert values_in(metadata, "m", "flat.key") == [7]
    assert values_in(metadata, "m", "author.works.more") == values_in(metadata, "m", "none") == []
    assert values_in(metadata, "m", "other") == []
    assert values_in(metadata, "m", "$id") == values_in(metadata, "m", "id") == ["m"]
    assert values_in({"id": 5}, "m", "id") == [5]


def test_a_number_is_the_id_that_it_spells():
    links = filled({"a": {"next": [7, 8]}, "7": {}, "b": {"id": 8}}).links([("next", "id")], weight=0.5, most=9)(["a"])
    assert [(target, weight) for _, target, weight, _ in links] == [("7", 0.5), ("b", 0.5)]


def test_replaced_and_removed_items_are_found_by_their_present_values():
    fields = filled({"a": {"see": ["x", "y"]}, "b": {"tag": "x"}, "c": {"tag": "z"}})
    assert [one[1] for one in fields.links([("see", "tag")], weight=1.0, most=9)(["a"])] == ["b"]
    fields.put("c", {"tag": ["y"]})
    assert [one[1] for one in fields.links([("see", "tag")], weight=1.0, most=9)(["a"])] == ["b", "c"]
    fields.remove("b")
    fields.remove("b")
    assert [one[1] for one in fields.links([("see", "tag")], weight=1.0, most=9)(["a", "gone"])] == ["c"]


def test_the_peers_placeholder_means_the_id():
    class Id:
        pass

    assert edge_definitions([("see", Id()), ["a", "b"]]) == (("see", "$id"), ("a", "b"))


@pytest.mark.parametrize("bad", ["ab", 5, [("a",)], [("a", "")], [("a", 5)], ["ab"], [("a", "b", "c")]])
def test_anything_else_is_refused(bad):
    with pytest.raises(ConfigError, match="edge"):
        edge_definitions(bad)
