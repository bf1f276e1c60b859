"""Conversion between LlamaIndex nodes, rankings and memories, and results with receipts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import BaseModel
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
from hybridmem.core.inputs import METADATA_FIELDS, from_metadata, to_metadata
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Explanation, Receipt
from hybridmem.fusion.stages.rerank import Scorer, scores_of_order
from hybridmem.retrievers.options import check_items

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory
    from hybridmem.memory.writing import OnDuplicate

__all__ = [
    "FusedNode",
    "NodeReader",
    "Why",
    "aadd_nodes",
    "add_nodes",
    "as_scorer",
    "fused_nodes",
    "node_source",
    "node_text",
    "notes_of",
    "own_copy",
    "rescored",
    "scored_nodes",
    "to_memory",
    "to_node",
]


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
    metadata = to_metadata(memory)
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
        excluded_embed_metadata_keys=[
            name for name in metadata if name in METADATA_FIELDS and name not in memory.metadata
        ],
        **named,
    )


def to_memory(node: BaseNode, /) -> Memory:
    """A node as a memory: metadata named like a memory's field becomes that field, the rest stays metadata."""
    memory = from_metadata(node_text(node), node.id_, node.metadata)
    return memory if memory.source_id is not None else replace(memory, source_id=node_source(node))


def add_nodes(
    memory: HybridMemory,
    nodes: Iterable[BaseNode],
    /,
    *,
    ttl: float | timedelta | None = None,
    on_duplicate: OnDuplicate = "keep",
) -> list[str]:
    """Add nodes to a memory, or replace those of the same id; returns their ids.

    Metadata named like a memory's field (`thread`, `tags`, `created_at`, …) becomes that field. `ttl` and
    `on_duplicate` are those of `HybridMemory.add_many`.
    """
    listed = check_items("nodes", nodes, BaseNode)
    return memory.add_many([to_memory(node) for node in listed], ttl=ttl, on_duplicate=on_duplicate)


async def aadd_nodes(
    memory: HybridMemory,
    nodes: Iterable[BaseNode],
    /,
    *,
    ttl: float | timedelta | None = None,
    on_duplicate: OnDuplicate = "keep",
) -> list[str]:
    """The same without blocking the event loop."""
    return await in_thread(lambda: add_nodes(memory, nodes, ttl=ttl, on_duplicate=on_duplicate))


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


_WHY = "_why"
_NAMES = {"node", "score"}
_PYDANTIC = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
"""Attributes in which pydantic records which fields were set."""
_new = object.__new__
_set_fields, _set_names, _set_extra, _set_private = (
    BaseModel.__dict__[name].__set__ for name in ("__dict__", *_PYDANTIC)
)
"""The setters behind `object.__setattr__` for these names, which cost less."""


class Why:
    """The explanation of one query, shared by its results and made once, when it is first read.

    Copies share it. Pickling makes and stores the explanation, because what makes it holds the arms' lists.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Explanation]) -> None:
        self._make = make
        self._made: Explanation | None = None

    def explanation(self) -> Explanation:
        """The explanation of the whole query."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def __deepcopy__(self, memo: Any) -> Why:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _finished, (self.explanation(),)


def _finished(explanation: Explanation) -> Why:
    return Why(lambda: explanation)


class FusedNode(NodeWithScore):
    """A fused result: the node as its retriever gave it, and a score in (0, 1].

    The receipt lives on this object alone: the node, its metadata, its hash and every prompt stay as they were.
    """

    @property
    def explanation(self) -> Explanation | None:
        """The explanation of the query that found this."""
        why: Why | None = self.__dict__.get(_WHY)
        return None if why is None else why.explanation()

    @property
    def receipt(self) -> Receipt | None:
        """Why this result is where it is: rank, raw score and share in each arm, and what each stage did."""
        explained = self.explanation
        if explained is None:
            return None
        return next((receipt for receipt in explained.receipts if receipt.key == self.node.id_), None)

    if not TYPE_CHECKING:  # or else every name would be an attribute

        def __getattr__(self, name: str) -> Any:
            """Create pydantic's bookkeeping when it is first read: most results are never copied or dumped."""
            if name not in _PYDANTIC:
                return super().__getattr__(name)
            created = set(_NAMES) if name == "__pydantic_fields_set__" else None
            object.__setattr__(self, name, created)
            return created

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault(_WHY, state["__dict__"].get(_WHY))


def fused_nodes(rows: Iterable[tuple[BaseNode, float]], why: Why, /) -> list[FusedNode]:
    """Results over these nodes with a shared explanation; the input is never changed.

    The explanation is beside the fields, as a cached property would be: not dumped and not compared.
    """
    made: list[FusedNode] = []
    for node, score in rows:
        one = _new(FusedNode)
        _set_fields(one, {"node": node, "score": score, _WHY: why})
        made.append(one)
    return made


def own_copy(node: BaseNode, /) -> BaseNode:
    """A copy that a caller may change: postprocessors replace texts and metadata of the nodes that they get."""
    return node.model_copy(
        update={
            "metadata": dict(node.metadata),
            "relationships": dict(node.relationships),
            "excluded_embed_metadata_keys": list(node.excluded_embed_metadata_keys),
            "excluded_llm_metadata_keys": list(node.excluded_llm_metadata_keys),
        }
    )


def scored_nodes(rows: Iterable[tuple[BaseNode, float | None]], /) -> list[NodeWithScore]:
    """Plain results over these nodes, as LlamaIndex's own retrievers give them.

    What pydantic's `model_construct` does, in a quarter of its time: the nodes were checked when their retriever made
    them, and to check each again costs as much as ranking it.
    """
    made: list[NodeWithScore] = []
    for node, score in rows:
        one = _new(NodeWithScore)
        _set_fields(one, {"node": node, "score": score})
        _set_names(one, _NAMES)
        _set_extra(one, None)
        _set_private(one, None)
        made.append(one)
    return made


def notes_of(results: Sequence[NodeWithScore], /) -> Callable[[], list[str]] | None:
    """What the receipts of an arm's results say, such as a path in the graph; None where they have no receipts."""
    if not results or not isinstance(results[0], FusedNode):
        return None
    return lambda: [_note(one) for one in results]


def _note(result: NodeWithScore) -> str:
    receipt = result.receipt if isinstance(result, FusedNode) else None
    return "" if receipt is None else "; ".join(arm.note for arm in receipt.arms if arm.note)


def rescored(rows: Iterable[tuple[NodeWithScore, float | None]], /) -> list[NodeWithScore]:
    """Copies of results with other scores; each keeps its class, and with it its receipt."""
    pairs = list(rows)
    if all(type(result) is NodeWithScore for result, _ in pairs):
        return scored_nodes([(result.node, score) for result, score in pairs])
    return [result.model_copy(update={"score": score}) for result, score in pairs]
