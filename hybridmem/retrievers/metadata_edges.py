"""Edges between items that are defined by two metadata fields, as langchain-graph-retriever defines them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any

from hybridmem.core import validation
from hybridmem.indexes.graph.activation import LinkSource

__all__ = ["ID", "EdgeDefinition", "FieldIndex", "edge_definitions", "is_id", "values_in"]

EdgeDefinition = tuple[str, str]
"""Two metadata fields: an item is linked to the items whose second field has a value of its first field."""
ID = "$id"
"""The name of an item's id in the definition of an edge."""


def edge_definitions(edges: Any, /) -> tuple[EdgeDefinition, ...]:
    """Validated edge definitions.

    A field is a metadata key, a path of keys ("author.name"), or "$id" for the id of an item. "id" is the id, too,
    where the metadata has no such key.

    >>> edge_definitions([("mentions", "$id")])
    (('mentions', '$id'),)
    """
    definitions = []
    for edge in () if edges is None else validation.listed("edges", edges, "pairs of metadata fields"):
        names = [ID if type(name).__name__ == "Id" else name for name in validation.listed("an edge", edge, "2 fields")]
        match names:
            case [str(source), str(target)] if source and target:
                definitions.append((source, target))
            case _:
                validation.refuse("an edge", edge, 'two metadata fields, such as ("mentions", "$id")')
    return tuple(definitions)


def is_id(name: str, /) -> bool:
    """Whether the values of a field are ids of items."""
    return name in (ID, "id")


def values_in(metadata: Mapping[str, Any], key: str, name: str, /) -> list[Hashable]:
    """The values of one field of an item: a single value, or those of a list, also of a nested one.

    >>> values_in({"author": {"works": ["a", ["b"]]}}, "m1", "author.works"), values_in({}, "m1", "$id")
    (['a', 'b'], ['m1'])
    """
    if name == ID or (name == "id" and "id" not in metadata):
        return [key]
    value: Any = metadata.get(name)
    if value is None:
        value = metadata
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    return list(dict.fromkeys(_plain_values(value)))


def _plain_values(value: Any) -> Iterator[Hashable]:
    if isinstance(value, str | bool | int | float | bytes):
        yield value
    elif isinstance(value, Iterable) and not isinstance(value, Mapping):
        for one in sorted(value, key=repr) if isinstance(value, Set) else value:
            yield from _plain_values(one)


class FieldIndex:
    """Items by the values of their metadata fields; a field is indexed when an edge first names it.

    >>> fields = FieldIndex()
    >>> fields.put("m1", {"mentions": ["Tim Burton"]})
    >>> fields.put("m2", {"title": "Tim Burton"})
    >>> list(fields.links([("mentions", "title")], weight=1.0, most=256)(["m1"]))
    [('m1', 'm2', 1.0, 'mentions Tim Burton')]
    """

    def __init__(self) -> None:
        self._metadata: dict[str, Mapping[str, Any]] = {}
        self._fields: dict[str, dict[Hashable, dict[str, None]]] = {}

    def put(self, key: str, metadata: Mapping[str, Any], /) -> None:
        """Add or replace an item."""
        self.remove(key)
        self._metadata[key] = metadata
        for name in self._fields:
            self._index(name, key, metadata)

    def remove(self, key: str, /) -> None:
        """Remove an item."""
        metadata = self._metadata.pop(key, None)
        if metadata is None:
            return
        for name, items_of in self._fields.items():
            for value in _matched(values_in(metadata, key, name), name):
                items_of[value].pop(key)
                if not items_of[value]:
                    del items_of[value]

    def links(self, definitions: Sequence[EdgeDefinition], /, *, weight: float, most: int) -> LinkSource:
        """The links by these definitions: weight / √n to each of the n other items that have a value.

        A value of more than `most` items links nothing, and at most so many values of one item are followed.
        """
        for name in {target for _, target in definitions} - self._fields.keys():
            for key, metadata in list(self._metadata.items()):
                self._index(name, key, metadata)

        def links(keys: Sequence[str]) -> Iterator[tuple[str, str, float, str]]:
            known = [(key, self._metadata[key]) for key in keys if key in self._metadata]
            for source, target in definitions:
                items_of = self._fields.get(target, {})
                for key, metadata in known:
                    for value in islice(_matched(values_in(metadata, key, source), target), most):
                        others = [other for other in list(items_of.get(value, ())) if other != key]
                        label = source if is_id(target) else f"{source} {value}"
                        for other in others if len(others) <= most else ():
                            yield key, other, weight / math.sqrt(len(others)), label

        return links

    def _index(self, name: str, key: str, metadata: Mapping[str, Any]) -> None:
        items_of = self._fields.setdefault(name, {})
        for value in _matched(values_in(metadata, key, name), name):
            items_of.setdefault(value, {})[key] = None


def _matched(values: Sequence[Hashable], name: str) -> Sequence[Hashable]:
    """Values as they are compared with those of a field: ids are texts."""
    return list(map(str, values)) if is_id(name) else values
