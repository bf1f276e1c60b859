"""LlamaIndex's vector stores: filters in their languages, and their scores as cosines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from hybridmem.errors import ConfigError
from hybridmem.filters.parse import RANGES
from hybridmem.filters.predicate import parse
from hybridmem.indexes.vector.chroma import similarity_in

__all__ = ["both", "similarity_of", "store_filters", "to_cosine", "to_filter", "to_metadata_filters"]


_OPERATORS = {
    FilterOperator.EQ: "$eq",
    FilterOperator.NE: "$ne",
    FilterOperator.GT: "$gt",
    FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt",
    FilterOperator.LTE: "$lte",
    FilterOperator.IN: "$in",
    FilterOperator.NIN: "$nin",
    FilterOperator.ANY: "$in",
    FilterOperator.CONTAINS: "$contains",
    FilterOperator.TEXT_MATCH: "$contains",
}
_BACK = {
    "$eq": FilterOperator.EQ,
    "$ne": FilterOperator.NE,
    "$gt": FilterOperator.GT,
    "$gte": FilterOperator.GTE,
    "$lt": FilterOperator.LT,
    "$lte": FilterOperator.LTE,
    "$in": FilterOperator.IN,
    "$nin": FilterOperator.NIN,
}


_NO_METADATA = ("id", "text", "source_id")
"""Fields of a node outside its metadata, which stores' filters cannot name."""
_TRANSLATED: Mapping[str, frozenset[str]] = {
    "ChromaVectorStore": frozenset(_BACK),
    # for "$ne" and "$nin" these leave out nodes that lack the field; LlamaIndex's own store does before 0.14
    "SimpleVectorStore": frozenset(_BACK) - {"$ne", "$nin"},
    "QdrantVectorStore": frozenset(_BACK) - {"$ne", "$nin"},
    "PGVectorStore": frozenset(_BACK) - {"$ne", "$nin"},
}
"""Stores, and the comparisons that they evaluate as we do."""
_WITHOUT_FILTERS = {"FaissVectorStore", "FaissMapVectorStore"}
"""Stores that raise an error for any filter."""


def to_filter(filters: MetadataFilters | MetadataFilter | Mapping[str, Any] | None, /) -> dict[str, Any] | None:
    """A filter in hybridmem's language, from LlamaIndex's classes or from itself; None stays None.

    >>> to_filter(MetadataFilters(filters=[MetadataFilter(key="year", value=2024, operator=FilterOperator.GTE)]))
    {'year': {'$gte': 2024}}
    """
    if filters is None:
        return None
    if isinstance(filters, MetadataFilters):
        return _many(filters)
    if isinstance(filters, MetadataFilter):
        return _one(filters)
    parse(filters)  # a bad one is refused here, not at the first query
    return dict(filters)


def _many(filters: MetadataFilters) -> dict[str, Any]:
    parts = [_many(part) if isinstance(part, MetadataFilters) else _one(part) for part in filters.filters]
    if filters.condition == FilterCondition.NOT:
        return {"$not": {"$or": parts}}  # none of them may hold
    if filters.condition == FilterCondition.OR and parts:
        return parts[0] if len(parts) == 1 else {"$or": parts}
    return parts[0] if len(parts) == 1 else {"$and": parts}


def _one(test: MetadataFilter) -> dict[str, Any]:
    name = _name(test.key)
    if test.operator == FilterOperator.IS_EMPTY:
        return {name: None}
    if test.operator == FilterOperator.ALL:
        wanted = test.value if isinstance(test.value, list) else [test.value]
        return {"$and": [{name: {"$contains": value}} for value in wanted]}
    if test.operator not in _OPERATORS:
        known = ", ".join(operator.value for operator in (*_OPERATORS, FilterOperator.ALL, FilterOperator.IS_EMPTY))
        raise ConfigError(f"filter operator {test.operator.value!r} on {test.key!r} is not known: {known}")
    return {name: {_OPERATORS[test.operator]: test.value}}


def _name(key: str) -> str:
    """A metadata key as a literal name: dots in it separate no path, and a leading $ marks no operator."""
    escaped = key.replace(".", "\\.")
    return f"metadata.{escaped}" if key.startswith("$") or key.partition(".")[0] == "metadata" else escaped


def to_metadata_filters(filter: Mapping[str, Any], /) -> MetadataFilters | None:
    """The same filter for a LlamaIndex vector store, or None when it is more than a list of plain comparisons.

    All of them must hold, or one of them where the filter is a single `$or`.
    """
    if list(filter) == ["$or"]:
        parts = [to_metadata_filters(part) for part in filter["$or"]]
        choices = [part.filters[0] for part in parts if part is not None and len(part.filters) == 1]
        return MetadataFilters(filters=choices, condition=FilterCondition.OR) if len(choices) == len(parts) else None
    tests: list[MetadataFilter | MetadataFilters] = []
    for key, condition in filter.items():
        if key == "$and":
            for part in condition:
                inner = to_metadata_filters(part)
                if inner is None or inner.condition != FilterCondition.AND:
                    return None
                tests += inner.filters
            continue
        wanted = condition if isinstance(condition, Mapping) else {"$eq": condition}
        if key.startswith("$") or key in _NO_METADATA or not all(_plain(op, value) for op, value in wanted.items()):
            return None
        name = key.removeprefix("metadata.")
        if "." in name.replace("\\.", ""):
            return None
        tests += [_test(name.replace("\\.", "."), op, value) for op, value in wanted.items()]
    return MetadataFilters(filters=tests)


def _test(key: str, op: str, value: Any) -> MetadataFilter:
    return MetadataFilter(key=key, value=list(value) if op in ("$in", "$nin") else value, operator=_BACK[op])


def _plain(op: str, value: Any) -> bool:
    if op in ("$in", "$nin"):
        kinds = {type(item) for item in value}
        return kinds in ({str}, {int})  # Qdrant takes no floats here
    if op in RANGES:  # a range of texts may be one of times, and some stores know none
        return type(value) in (int, float)
    return op in _BACK and type(value) in (str, int, float)


def both(one: MetadataFilters | None, two: MetadataFilters, /) -> MetadataFilters | None:
    """Two filters that must both hold, as one flat list (stores rarely know nested ones); None when that cannot be."""
    if one is None or not one.filters:
        return two
    flat = (FilterCondition.AND, None)
    if one.condition in flat and two.condition in flat:
        return MetadataFilters(filters=[*one.filters, *two.filters])
    return None


def store_filters(
    vector_store: Any, filter: Mapping[str, Any], given: MetadataFilters | None, /
) -> MetadataFilters | None:
    """The filters to hand to a vector store, if any; its results are checked with the filter afterwards.

    A store that we know gets comparisons that it evaluates as we do, whoever wrote the filter: LlamaIndex's operators
    mean something else in each store. Another store gets the `MetadataFilters` that the user gave.
    """
    names = {cls.__name__ for cls in type(vector_store).__mro__}
    if names & _WITHOUT_FILTERS:
        return None
    known = next((_TRANSLATED[name] for name in names if name in _TRANSLATED), None)
    if known is None:
        return given
    handed = to_metadata_filters(filter)
    return handed if handed is not None and all(_operator(test) in known for test in handed.filters) else None


def _operator(test: MetadataFilter | MetadataFilters) -> str:
    return _OPERATORS[test.operator] if isinstance(test, MetadataFilter) else ""


def similarity_of(vector_store: Any, /) -> Callable[[float], float]:
    """What turns a store's score into a cosine, for vectors of length 1.

    Chroma's store gives exp(−distance): the distance is taken out again and read in the collection's space. FAISS gives
    the squared l2 or the inner product itself. The others give cosines.
    """
    names = {cls.__name__ for cls in type(vector_store).__mro__}
    if "ChromaVectorStore" in names:
        convert = similarity_in(vector_store._collection)  # noqa: SLF001
        return lambda score: _bounded(convert(-log(score))) if score > 0.0 else -1.0
    metric = getattr(getattr(vector_store, "_faiss_index", None), "metric_type", None)
    if metric == 1:
        return lambda score: _bounded(1.0 - score / 2.0)
    return _bounded


def to_cosine(vector_store: Any, /) -> Callable[[float], float] | None:
    """The same, None where the scores are cosines as they are."""
    convert = similarity_of(vector_store)
    return None if convert is _bounded else convert


def _bounded(score: float) -> float:
    return min(1.0, max(-1.0, score))
