"""Nodes as the core sees them, and back: the only place that maps between LlamaIndex nodes and rankings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, NodeWithScore, TextNode

from hybridmem.types import ArmList

__all__ = ["NodeReader", "node_source", "node_text", "to_arm_list"]

_ALSO = {"updated_at": "last_modified_date", "created_at": "creation_date"}
"""The names that LlamaIndex's file readers use, looked up where a node lacks ours."""


def node_text(node: BaseNode, /) -> str:
    """The bare text of a node of any kind, without its metadata."""
    return node.text if isinstance(node, TextNode) else node.get_content(metadata_mode=MetadataMode.NONE)


def node_source(node: BaseNode, /) -> str | None:
    """The document a node is a chunk of, from its SOURCE relationship."""
    source = node.relationships.get(NodeRelationship.SOURCE)
    return None if source is None or isinstance(source, list) else source.node_id


class NodeReader:
    """Reads nodes for a fusion: identity is the node id, fields come from the metadata.

    `text` is the node's text, `vector` its embedding; `source_id` falls back to the document the node was cut from,
    `updated_at` and `created_at` to the dates that LlamaIndex's file readers write.
    """

    __slots__ = ()

    def keys(self, items: Sequence[BaseNode], /) -> list[str]:
        """The node ids."""
        return [node.id_ for node in items]

    def column(self, items: Sequence[BaseNode], name: str, /) -> list[Any]:
        """One field of each node, None where it has none."""
        if name == "text":
            return list(map(node_text, items))
        if name == "vector":
            return [node.embedding for node in items]
        values = [node.metadata.get(name) for node in items]
        if None not in values:
            return values
        if name == "source_id":
            return [node_source(node) if v is None else v for node, v in zip(items, values, strict=True)]
        also = _ALSO.get(name)
        if also is None:
            return values
        return [node.metadata.get(also) if v is None else v for node, v in zip(items, values, strict=True)]


def to_arm_list(name: str, nodes: Sequence[NodeWithScore], /) -> ArmList:
    """An arm's answer for the core; a list in which any score is missing counts as unscored."""
    scores = [found.score for found in nodes]
    return ArmList(name, [found.node for found in nodes], None if None in scores else scores)  # type: ignore[arg-type]
