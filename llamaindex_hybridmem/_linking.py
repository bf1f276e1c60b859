"""Nodes on their way into a graph: relationships, links in the metadata, threads and entities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from llama_index.core.schema import BaseNode, NodeRelationship, RelatedNodeInfo

from hybridmem.core.types import Edge
from hybridmem.indexes.graph.index import ids_in
from hybridmem.retrievers.graph import Linked
from llamaindex_hybridmem._conversion import node_source, to_memory

__all__ = ["linked"]

_RELATIONS = {
    NodeRelationship.NEXT: ("next", False),
    NodeRelationship.PREVIOUS: ("next", True),
    NodeRelationship.PARENT: ("parent", False),
    NodeRelationship.CHILD: ("parent", True),
    NodeRelationship.SOURCE: ("source", False),
}
"""What each relationship is called, and whether it is told from its far end."""


def linked(node: BaseNode, /, *, thread_key: str = "thread", links_keys: Sequence[str] = ("links",)) -> Linked:
    """A node with what the graph needs to know of it. Nodes cut from one document share it like an entity."""
    memory, said = to_memory(node), node.metadata
    links = [one for name in links_keys for one in ids_in(said.get(name))]
    thread, source = said.get(thread_key), node_source(node)
    memory = replace(
        memory,
        thread=None if thread is None else str(thread),
        entities=memory.entities if source is None else (*memory.entities, f"source {source}"),
        metadata={"links": links} if links else {},
    )
    return Linked(memory, node, tuple(_edges(node)))


def _edges(node: BaseNode) -> Iterator[Edge]:
    for kind, related in node.relationships.items():
        name, far = _RELATIONS[kind]
        for other in [related] if isinstance(related, RelatedNodeInfo) else related:
            ends = (other.node_id, node.id_) if far else (node.id_, other.node_id)
            yield Edge(*ends, name)
