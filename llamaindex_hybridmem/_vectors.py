"""What VectorRetriever does with LlamaIndex's pieces: asking an index, embedding a bundle, keeping nodes as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from hybridmem.embedding.embedder import Embedder
from hybridmem.errors import ConfigError
from hybridmem.retrievers.vector import FoundText, Row
from llamaindex_hybridmem._arms import Check, check_of
from llamaindex_hybridmem._conversion import node_source, node_text
from llamaindex_hybridmem._filters import to_metadata_filters
from llamaindex_hybridmem._scores import similarity_of

__all__ = ["Wide", "embedded", "index_of", "texts_of", "to_nodes", "to_row", "with_embeddings"]


_WIDER = 4


class Wide:
    """Asks an index wider and wider, while a filter that its store does not know leaves too few."""

    def __init__(
        self,
        index: VectorStoreIndex,
        more: Mapping[str, Any],
        /,
        *,
        k: int,
        filter: Mapping[str, Any] | None = None,
        filters: MetadataFilters | None = None,
    ) -> None:
        self._index, self._more = index, dict(more)
        self._wanted, self._k, self.more = k, k, True
        self._filters = filters
        self._check: Check | None = None
        self._convert = similarity_of(index.vector_store)
        self.nodes: list[NodeWithScore] = []
        if filter is not None and filters is None:
            self._filters = to_metadata_filters(filter)
            self._check = check_of(filter)  # what the store left in: not every one counts as we do

    @property
    def inner(self) -> VectorIndexRetriever:
        """LlamaIndex's own retriever, for as many as are wanted now."""
        return VectorIndexRetriever(
            self._index, similarity_top_k=self._k, filters=self._filters, vector_store_kwargs=self._more
        )

    def take(self, found: Sequence[NodeWithScore], /) -> None:
        """Keep what passes, with cosines; `more` tells whether to ask again."""
        check = self._check
        kept = [one for one in found if check is None or check(one.node)][: self._wanted]
        self.more = check is not None and len(kept) < self._wanted and len(found) >= self._k
        self._k *= _WIDER
        self.nodes = [
            NodeWithScore(node=one.node, score=None if one.score is None else self._convert(one.score)) for one in kept
        ]


def texts_of(bundle: QueryBundle, /) -> list[str]:
    """The texts to embed: none when the bundle brings its embedding."""
    return bundle.embedding_strs if bundle.embedding is None else []


def embedded(bundle: QueryBundle, vectors: Sequence[Any], /) -> QueryBundle:
    """A bundle of our own with the mean of the vectors: the caller's stays as it is."""
    vector = bundle.embedding if not vectors else np.mean(vectors, axis=0).tolist()
    return QueryBundle(query_str=bundle.query_str, image_path=bundle.image_path, embedding=vector)


def to_nodes(found: Sequence[FoundText], /) -> list[NodeWithScore]:
    """Rows found, as the nodes they were."""
    return [NodeWithScore(node=metadata_dict_to_node(one.metadata, text=one.text), score=one.score) for one in found]


def to_row(node: BaseNode, /) -> Row:
    """A node as LlamaIndex's vector stores keep it, so that they can read it too."""
    metadata = node_to_metadata_dict(node, remove_text=True)
    source = node_source(node)
    if source is not None:
        metadata.setdefault("source_id", source)
    words = node.get_content(metadata_mode=MetadataMode.EMBED)
    return Row(node.id_, node_text(node), metadata, words, node.embedding)


def index_of(vector_store: BasePydanticVectorStore, /) -> VectorStoreIndex:
    """An index over a store. Its embed model is never asked: embeddings are made before."""
    try:
        return VectorStoreIndex.from_vector_store(vector_store, embed_model=MockEmbedding(embed_dim=1))
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f"{type(vector_store).__name__} does not keep texts: give index= instead ({error})"
        ) from error


def with_embeddings(nodes: Sequence[BaseNode], embedder: Embedder, /) -> list[BaseNode]:
    """Copies of the nodes with embeddings, where they have none."""
    bare = [node for node in nodes if node.embedding is None]
    made = iter(embedder.documents([node.get_content(metadata_mode=MetadataMode.EMBED) for node in bare]))
    return [
        node if node.embedding is not None else node.model_copy(update={"embedding": next(made).tolist()})
        for node in nodes
    ]
