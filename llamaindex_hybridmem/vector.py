"""VectorRetriever: by meaning, over any LlamaIndex vector store or index, over Chroma, or over a memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core import Settings as LlamaSettings
from llama_index.core import VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from hybridmem.core.fanout import in_thread
from hybridmem.embedding.embedder import Embedder, as_embedder
from hybridmem.errors import ConfigError
from hybridmem.retrievers.vector import Texts, open_texts
from llamaindex_hybridmem._arms import overrides
from llamaindex_hybridmem._calling import CalledRetriever, exactly_one, memory_nodes, memory_wish
from llamaindex_hybridmem._settings import Filters, Settings, refuse
from llamaindex_hybridmem._vectors import Wide, embedded, index_of, texts_of, to_nodes, to_row, with_embeddings

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["VectorRetriever"]

dispatcher = get_dispatcher(__name__)

_NOTHING = "nothing to search"


class VectorRetriever(CalledRetriever):
    """Meaning: the nodes whose embeddings are nearest to the query's, with cosines whatever the store counts in.

    >>> from llama_index.core.schema import TextNode
    >>> embed = lambda texts: [[text.count("a") + 0.1, text.count("b") + 0.1] for text in texts]
    >>> retriever = VectorRetriever.from_nodes([TextNode(text="aaa"), TextNode(text="bbb")], embed_model=embed)
    >>> retriever.retrieve("a", similarity_top_k=1)[0].text
    'aaa'

    `VectorRetriever(index)` or `VectorRetriever(vector_store=…, embed_model=…)` asks what you have; `from_nodes` keeps
    nodes in this process, in a Chroma folder (`persist_directory=`) or on a Chroma server (`host=`, `port=`);
    `from_memory` asks a HybridMemory. `similarity_top_k`, `filters` and `score_threshold` can also be given to
    `retrieve` and `aretrieve`.
    """

    def __init__(
        self,
        index: VectorStoreIndex | None = None,
        *,
        vector_store: BasePydanticVectorStore | None = None,
        memory: HybridMemory | None = None,
        texts: Texts | None = None,
        embed_model: Any = None,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        filters: Filters = None,
        score_threshold: float | None = None,
        vector_store_kwargs: Mapping[str, Any] | None = None,
        as_of: Any = None,
        namespace: str | None = None,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
        **unknown: Any,
    ) -> None:
        refuse(unknown, ("index", *(VectorRetriever.__init__.__kwdefaults__ or ())))
        exactly_one({"index": index, "vector_store": vector_store, "memory": memory, "texts": texts}, none=_NOTHING)
        self._memory, self._texts = memory, texts
        self._more = dict(vector_store_kwargs or {})
        self._index = index if vector_store is None else index_of(vector_store)
        if index is not None and embed_model is None:
            embed_model = index._embed_model  # noqa: SLF001
        self._embedder = _embedder(embed_model) if self._index is not None else None
        settings = Settings().changed(similarity_top_k=similarity_top_k, filters=filters)
        more = {"as_of": as_of, "namespace": namespace, "score_threshold": score_threshold}
        self._settings = self._checked(settings.changed(**more))
        super().__init__(callback_manager=callback_manager, objects=objects, object_map=object_map, verbose=verbose)

    # --- ways in

    @classmethod
    def from_defaults(
        cls,
        index: VectorStoreIndex | None = None,
        nodes: Sequence[BaseNode] | None = None,
        *,
        vector_store: BasePydanticVectorStore | None = None,
        **settings: Any,
    ) -> VectorRetriever:
        """Over an index, a vector store, or nodes at hand."""
        exactly_one({"index": index, "nodes": nodes, "vector_store": vector_store}, none=_NOTHING)
        return cls(index, vector_store=vector_store, **settings) if nodes is None else cls.from_nodes(nodes, **settings)

    @classmethod
    def from_nodes(
        cls,
        nodes: Sequence[BaseNode],
        /,
        *,
        embed_model: Any = None,
        persist_directory: str | Path | None = None,
        host: str | None = None,
        port: int | None = None,
        ssl: bool | None = None,
        collection_name: str | None = None,
        **settings: Any,
    ) -> VectorRetriever:
        """Over nodes, in this process, or in Chroma when a folder or a server is given.

        `embed_model` is any kind of embedding object, a function texts → vectors, or "local" for the offline model;
        by default LlamaIndex's `Settings.embed_model` where that is set, else the offline one. No nodes and a place
        that has some already is a way to open it.
        """
        where = {"persist_directory": persist_directory, "host": host, "port": port, "ssl": ssl}
        texts = open_texts(_embedder(embed_model), **where, collection_name=collection_name)
        try:
            retriever = cls(texts=texts, **settings)
            retriever.add_nodes(nodes)
        except BaseException:
            texts.close()
            raise
        return retriever

    @classmethod
    def from_memory(cls, memory: HybridMemory, /, **settings: Any) -> VectorRetriever:
        """Over a `HybridMemory`: its vector arm alone, with cosines."""
        return cls(memory=memory, **settings)

    # --- changing the nodes

    @property
    def similarity_top_k(self) -> int:
        """How many nodes a query gives at most."""
        return self._settings.k or DEFAULT_SIMILARITY_TOP_K

    @similarity_top_k.setter
    def similarity_top_k(self, k: int) -> None:
        self._settings = self._settings.changed(similarity_top_k=k)

    def add_nodes(self, nodes: Sequence[BaseNode], /) -> list[str]:
        """Add nodes, or replace those of the same id; the next query sees them. Gives their ids."""
        if self._index is not None and self._embedder is not None:
            self._index.insert_nodes(with_embeddings(nodes, self._embedder))
            return [node.id_ for node in nodes]
        return self._own().put([to_row(node) for node in nodes])

    def delete(self, node_ids: Sequence[str], /) -> int:
        """Take nodes out by their ids; how many there were."""
        if self._index is not None:
            self._index.delete_nodes(list(node_ids))
            return len(node_ids)
        return self._own().remove(node_ids)

    delete_nodes = delete

    def close(self) -> None:
        """Let go of the Chroma folder or connection that `from_nodes` opened."""
        if self._texts is not None:
            self._texts.close()

    def _own(self) -> Texts:
        if self._texts is None:
            raise ConfigError("this VectorRetriever has no nodes of its own: change them in its memory")
        return self._texts

    # --- asking

    def retrieve(
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        score_threshold: float | None = None,
        as_of: Any = None,
        namespace: str | None = None,
    ) -> list[NodeWithScore]:
        """The nodes nearest in meaning; what is given here wins over the constructor's.

        `score_threshold` is the lowest cosine that still is a result; `as_of` and `namespace` are for a memory.
        """
        more = {"score_threshold": score_threshold, "as_of": as_of, "namespace": namespace}
        with self._said(similarity_top_k, filters, more):
            return super().retrieve(str_or_query_bundle)

    async def aretrieve(
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        score_threshold: float | None = None,
        as_of: Any = None,
        namespace: str | None = None,
    ) -> list[NodeWithScore]:
        """The same, without blocking the event loop."""
        more = {"score_threshold": score_threshold, "as_of": as_of, "namespace": namespace}
        with self._said(similarity_top_k, filters, more):
            return await super().aretrieve(str_or_query_bundle)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        call, query = self._call(), query_bundle.query_str
        if self._memory is not None:
            return _enough(memory_nodes(self._memory.search_arm("vector", query, **memory_wish(call))), call)
        if self._index is None or self._embedder is None:
            return _enough(to_nodes(self._own().search(query, k=_k(call), filter=call.filter)), call)
        bundle = embedded(query_bundle, [self._embedder.query(text) for text in texts_of(query_bundle)])
        wide = Wide(self._index, self._more, k=_k(call), filter=call.filter, filters=call.filters)
        while wide.more:
            wide.take(wide.inner._retrieve(bundle))  # noqa: SLF001
        return _enough(wide.nodes, call)

    @dispatcher.span
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        call, memory, query = self._call(), self._memory, query_bundle.query_str
        if memory is not None:
            return _enough(memory_nodes(await memory.asearch_arm("vector", query, **memory_wish(call))), call)
        if self._index is None or self._embedder is None:
            return _enough(to_nodes(await self._own().asearch(query, k=_k(call), filter=call.filter)), call)
        bundle = embedded(query_bundle, [await self._embedder.aquery(text) for text in texts_of(query_bundle)])
        wide = Wide(self._index, self._more, k=_k(call), filter=call.filter, filters=call.filters)
        while wide.more:
            inner = wide.inner
            if overrides(self._index.vector_store, BasePydanticVectorStore, "aquery"):
                wide.take(await inner._aretrieve(bundle))  # noqa: SLF001
            else:
                wide.take(await in_thread(lambda inner=inner: inner._retrieve(bundle)))  # type: ignore[misc]  # noqa: SLF001
        return _enough(wide.nodes, call)


def _k(call: Settings) -> int:
    return call.k or DEFAULT_SIMILARITY_TOP_K


def _enough(nodes: list[NodeWithScore], call: Settings) -> list[NodeWithScore]:
    """Those that are similar enough."""
    least = call.more.get("score_threshold")
    return nodes if least is None else [one for one in nodes if one.score is not None and one.score >= least]


def _embedder(embed_model: Any) -> Embedder:
    chosen = embed_model if embed_model is not None else LlamaSettings._embed_model  # noqa: SLF001
    return as_embedder("local" if chosen is None else chosen)
