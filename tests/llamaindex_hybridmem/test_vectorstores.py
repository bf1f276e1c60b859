"""Filters between LlamaIndex's classes and ours."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery

from hybridmem.errors import ConfigError
from hybridmem.filters.predicate import compile_predicate
from llamaindex_hybridmem import to_filter
from llamaindex_hybridmem._vectorstores import both, to_metadata_filters
from tests.support.llama_fakes import node

OP = FilterOperator


def one(key, value, operator=OP.EQ):
    return MetadataFilter(key=key, value=value, operator=operator)


def many(*tests, condition=FilterCondition.AND):
    return MetadataFilters(filters=list(tests), condition=condition)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (None, None),
        ({"year": 2024}, {"year": 2024}),
        (one("year", 2024), {"year": {"$eq": 2024}}),
        (many(one("year", 2024, OP.NE)), {"year": {"$ne": 2024}}),
        (many(one("y", 1, OP.GT), one("y", 5, OP.LTE)), {"$and": [{"y": {"$gt": 1}}, {"y": {"$lte": 5}}]}),
        (many(one("y", [1, 2], OP.IN)), {"y": {"$in": [1, 2]}}),
        (many(one("y", ["a"], OP.NIN)), {"y": {"$nin": ["a"]}}),
        (many(one("tags", ["a", "b"], OP.ANY)), {"tags": {"$in": ["a", "b"]}}),
        (many(one("t", ["a", "b"], OP.ALL)), {"$and": [{"t": {"$contains": "a"}}, {"t": {"$contains": "b"}}]}),
        (many(one("t", "a", OP.ALL)), {"$and": [{"t": {"$contains": "a"}}]}),
        (many(one("t", "a", OP.CONTAINS)), {"t": {"$contains": "a"}}),
        (many(one("t", "a", OP.TEXT_MATCH)), {"t": {"$contains": "a"}}),
        (many(one("t", None, OP.IS_EMPTY)), {"t": None}),
        (many(one("a", 1), one("b", 2), condition=FilterCondition.OR), {"$or": [{"a": {"$eq": 1}}, {"b": {"$eq": 2}}]}),
        (many(one("a", 1), condition=FilterCondition.OR), {"a": {"$eq": 1}}),
        (many(one("a", 1), condition=FilterCondition.NOT), {"$not": {"$or": [{"a": {"$eq": 1}}]}}),
        (many(many(one("a", 1)), one("b", 2)), {"$and": [{"a": {"$eq": 1}}, {"b": {"$eq": 2}}]}),
        (many(condition=FilterCondition.OR), {"$and": []}),
        (many(one("a.b", 1)), {"a\\.b": {"$eq": 1}}),
        (many(one("$cost", 1)), {"metadata.$cost": {"$eq": 1}}),
        (many(one("metadata.x", 1)), {"metadata.metadata\\.x": {"$eq": 1}}),
    ],
)
def test_to_filter(filters, expected):
    assert to_filter(filters) == expected
    compile_predicate(to_filter(filters))


@pytest.mark.parametrize("key", ["year", "a.b", "$cost", "metadata", "metadata.x"])
def test_any_key_is_found_where_it_is(key):
    matches = compile_predicate(to_filter(many(one(key, 1))))
    assert matches({key: 1})
    assert not matches({key: 2})


def test_what_cannot_be_said():
    with pytest.raises(ConfigError, match="operator 'text_match_insensitive' on 't' is not known: ==, !="):
        to_filter(many(one("t", "a", OP.TEXT_MATCH_INSENSITIVE)))
    with pytest.raises(ConfigError, match="a filter is a mapping"):
        to_filter("year > 3")


VALUES = st.sampled_from([1, 2, 3, "a", "b"])  # 0.13 and 0.14 differ on missing ones
TESTS = st.one_of(
    st.builds(one, st.sampled_from("xy"), st.sampled_from([1, 2]), st.sampled_from([OP.EQ, OP.NE])),
    st.builds(one, st.sampled_from("xy"), st.sampled_from([["a"], ["a", "b"]]), st.sampled_from([OP.IN, OP.NIN])),
)


@settings(max_examples=40)
@given(
    tests=st.lists(TESTS, min_size=1, max_size=3),
    condition=st.sampled_from([FilterCondition.AND, FilterCondition.OR]),
    x=VALUES,
    y=VALUES,
)
def test_the_same_meaning_as_in_llama_indexs_own_store(tests, condition, x, y):
    filters = many(*tests, condition=condition)
    metadata = {"x": x, "y": y}
    store = SimpleVectorStore()
    store.add([node("n", metadata=metadata, embedding=[1.0])])
    found = store.query(VectorStoreQuery(query_embedding=[1.0], similarity_top_k=1, filters=filters)).ids
    assert compile_predicate(to_filter(filters))(metadata) == bool(found)


@pytest.mark.parametrize(
    "filters",
    [
        {"a": 1},
        {"a": {"$gte": 1, "$lt": 5}, "b": "x"},
        {"$and": [{"a": {"$in": ["x", "y"]}}, {"b": {"$nin": [1, 2]}}]},
        {"metadata.a": {"$ne": 2.5}},
        {"a\\.b": 3},
    ],
)
def test_there_and_back(filters):
    there = to_metadata_filters(filters)
    assert there.condition == FilterCondition.AND
    for metadata in ({"a": 1, "b": "x"}, {"a": 2.5}, {"a": "x", "b": 1}, {"a": 3, "b": "x"}, {"a.b": 3}, {}):
        assert compile_predicate(to_filter(there))(metadata) == compile_predicate(filters)(metadata)


@pytest.mark.parametrize(
    "filters",
    [{"$or": [{"a": 1}, {"a": 1, "b": 2}]}, {"$and": [{"$or": [{"a": 1}, {"b": 2}]}]},
     {"a.b": 1}, {"a": None}, {"a": True}, {"a": {"$exists": True}}, {"a": {"$in": [1, "a"]}},
     {"$and": [{"$not": {"a": 1}}]}],
)  # fmt: skip
def test_what_a_flat_list_cannot_say(filters):
    assert to_metadata_filters(filters) is None


def test_a_choice_of_comparisons_is_a_flat_list():
    there = to_metadata_filters({"$or": [{"a": 1}, {"b": {"$gt": 2}}]})
    assert there == many(one("a", 1), one("b", 2, OP.GT), condition=FilterCondition.OR)


def test_both_must_hold():
    a, b = many(one("a", 1)), many(one("b", 2))
    assert both(None, b) is b
    assert both(many(), b) is b
    assert [test.key for test in both(a, b).filters] == ["a", "b"]
    assert both(many(one("a", 1), condition=FilterCondition.OR), b) is None
    assert both(a, many(one("b", 1), condition=FilterCondition.NOT)) is None
