"""Conversion between LlamaIndex nodes, rankings and memories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)

from hybridmem.core.fanout import in_thread
from hybridmem.core.times import as_datetime, epoch, iso
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from hybridmem.fusion.stages.top import Scorer, scores_of_order

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["NodeReader", "aadd_nodes", "add_nodes", "as_scorer", "node_source", "node_text", "to_memory", "to_node"]

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
        if all(values):  # much faster than looking for None
            return values
        if name == "source_id":
            return [node_source(node) if v is None else v for node, v in zip(items, values, strict=True)]
        also = _ALSO.get(name)
        if also is None:
            return values
        return [node.metadata.get(also) if v is None else v for node, v in zip(items, values, strict=True)]


_FIELDS = {item.name: item.default for item in fields(Memory) if item.name not in ("text", "id", "metadata")}
_BOOKKEEPING = (
    "source_id", "thread", "namespace", "entities", "status", "strength", "confidence", "access_count", "last_accessed",
    "supersedes",
)  # fmt: skip
"""Fields that are in the metadata but of no use in a prompt."""


def to_node(memory: Memory, /) -> TextNode:
    """A memory as a node: its fields that say something are metadata, times as ISO-8601 text in UTC.

    >>> to_node(Memory("Ana moved to Lisbon", id="m1", tags=("home",))).metadata
    {'tags': ['home']}
    """
    metadata: dict[str, Any] = dict(memory.metadata)
    for name, default in _FIELDS.items():
        value = getattr(memory, name)
        if value != default:
            metadata[name] = _plain(value)
    related: dict[NodeRelationship, Any] = {}
    if memory.source_id is not None:
        related[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=memory.source_id)
    hidden = [name for name in _BOOKKEEPING if name in metadata and name not in memory.metadata]
    named = {"id_": memory.id} if memory.id else {}
    return TextNode(
        text=memory.text,
        metadata=metadata,
        relationships=related,
        excluded_llm_metadata_keys=hidden,
        excluded_embed_metadata_keys=[name for name in metadata if name in _FIELDS and name not in memory.metadata],
        **named,
    )


def to_memory(node: BaseNode, /) -> Memory:
    """A node as a memory: metadata named like a memory's field becomes that field, the rest stays metadata."""
    given = {name: value for name, value in node.metadata.items() if name in _FIELDS and value is not None}
    rest = {name: value for name, value in node.metadata.items() if name not in given}
    for name in ("tags", "entities"):
        if name in given:
            given[name] = (given[name],) if isinstance(given[name], str) else tuple(given[name])
    for name in ("created_at", "updated_at", "last_accessed"):
        if name in given:
            given[name] = as_datetime(given[name])
    given.setdefault("source_id", node_source(node))
    return Memory(node_text(node), id=node.id_, metadata=rest, **given)


def add_nodes(memory: HybridMemory, nodes: Iterable[BaseNode], /) -> list[str]:
    """Add nodes to a memory, or replace those of the same id; returns their ids.

    Metadata named like a memory's field (`thread`, `tags`, `created_at`, …) becomes that field.
    """
    return memory.add_many([to_memory(node) for node in nodes])


async def aadd_nodes(memory: HybridMemory, nodes: Iterable[BaseNode], /) -> list[str]:
    """The same without blocking the event loop."""
    return await in_thread(lambda: add_nodes(memory, nodes))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        seconds = epoch(value)
        return None if seconds is None else iso(seconds)
    return list(value) if isinstance(value, tuple) else value


def as_scorer(reranker: BaseNodePostprocessor | Scorer, /) -> Scorer:
    """A node postprocessor as a function `(query, texts) -> scores` for `Rerank`; a function is returned as it is.

    The first node that the postprocessor returns gets the highest score; those that it drops follow as they were.
    """
    if not isinstance(reranker, BaseNodePostprocessor):
        if not callable(reranker):
            raise ConfigError(f"rerank scorer = {reranker!r} is not allowed: a function or a node postprocessor")
        return reranker
    postprocessor = reranker

    def scores(query: str, texts: Sequence[str]) -> list[float]:
        size = len(texts)
        nodes = [
            NodeWithScore(node=TextNode(text=text, id_=str(place)), score=1.0 - place / size)
            for place, text in enumerate(texts)
        ]
        kept = postprocessor.postprocess_nodes(nodes, query_str=query)
        return scores_of_order([int(one.node.node_id) for one in kept], size)

    return scores
