"""VectorRetriever: vector search over any LlamaIndex vector store or index, over Chroma, or over a memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from llama_index.core import Settings as LlamaSettings
from llama_index.core import VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.schema import BaseNode, IndexNode, MetadataMode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryMode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
from typing_extensions import Unpack

from hybridmem.core.fanout import Job, Steps, in_thread, one_job
from hybridmem.embedding.embedder import Embedder, as_embedder
from hybridmem.errors import ConfigError
from hybridmem.retrievers.arms import TimeOption
from hybridmem.retrievers.options import check_memory, refuse_settings
from hybridmem.retrievers.vector import TextCorpus, TextHit, TextItem, open_corpus, search_deeper
from llamaindex_hybridmem._arms import check_of, overrides
from llamaindex_hybridmem._calls import SearchRetriever, exactly_one, memory_nodes
from llamaindex_hybridmem._conversion import node_source, node_text, scored_nodes
from llamaindex_hybridmem._settings import Filters, Settings
from llamaindex_hybridmem._vectorstores import similarity_of, store_filters

if TYPE_CHECKING:
    from hybridmem.embedding.sources import EmbeddingOption
    from hybridmem.memory.memory import HybridMemory
    from llamaindex_hybridmem._settings import StoreSettings, VectorSettings

__all__ = ["VectorRetriever"]

_NOTHING = "nothing to search"


class VectorRetriever(SearchRetriever):
    """The nodes whose embeddings are nearest to the query's, with cosines for every kind of store.

    >>> from llama_index.core.schema import TextNode
    >>> embed = lambda texts: [[text.count("a") + 0.1, text.count("b") + 0.1] for text in texts]
    >>> retriever = VectorRetriever.from_nodes([TextNode(text="aaa"), TextNode(text="bbb")], embed_model=embed)
    >>> retriever.retrieve("a", similarity_top_k=1)[0].text
    'aaa'

    `VectorRetriever(index)` or `VectorRetriever(vector_store=…, embed_model=…)` searches your index or store;
    `from_nodes` keeps nodes in this process, in a Chroma folder (`persist_directory=`) or on a Chroma server (`host=`,
    `port=`); `from_memory` searches a HybridMemory. `similarity_top_k`, `filters` and `score_threshold` can also be
    given to `retrieve` and `aretrieve`. `node_ids`, `doc_ids`, `vector_store_query_mode`, `alpha`, `sparse_top_k`,
    `hybrid_top_k` and `vector_store_kwargs` are those of `index.as_retriever()`.
    """

    def __init__(
        self,
        index: VectorStoreIndex | None = None,
        *,
        vector_store: BasePydanticVectorStore | None = None,
        memory: HybridMemory | None = None,
        texts: TextCorpus | None = None,
        embed_model: EmbeddingOption | None = None,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        filters: Filters = None,
        score_threshold: float | None = None,
        node_ids: list[str] | None = None,
        doc_ids: list[str] | None = None,
        vector_store_query_mode: VectorStoreQueryMode | str = VectorStoreQueryMode.DEFAULT,
        alpha: float | None = None,
        sparse_top_k: int | None = None,
        hybrid_top_k: int | None = None,
        vector_store_kwargs: Mapping[str, Any] | None = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
        **unknown: NoReturn,
    ) -> None:
        refuse_settings(type(self).__name__, unknown, ("index", *(VectorRetriever.__init__.__kwdefaults__ or ())))
        exactly_one({"index": index, "vector_store": vector_store, "memory": memory, "texts": texts}, none=_NOTHING)
        if index is not None and not hasattr(index, "as_retriever"):
            raise ConfigError(f"index = {index!r} is not allowed: a VectorStoreIndex; a store is vector_store=")
        self._memory, self._texts = memory, texts
        self._index = index if vector_store is None else _index_of(vector_store)
        self._node_ids = node_ids
        self._query_mode = VectorStoreQueryMode(vector_store_query_mode)
        self._store_settings: dict[str, Any] = {
            "doc_ids": doc_ids,
            "vector_store_query_mode": self._query_mode,
            "alpha": alpha,
            "sparse_top_k": sparse_top_k,
            "hybrid_top_k": hybrid_top_k,
            "vector_store_kwargs": dict(vector_store_kwargs or {}),
        }
        if index is not None:
            own = index.as_retriever()
            callback_manager = callback_manager or own.callback_manager
            object_map = {**own.object_map, **(object_map or {})}
            embed_model = index._embed_model if embed_model is None else embed_model  # noqa: SLF001
        self._embedder = _embedder(embed_model) if self._index is not None else None
        more: Any = {"as_of": as_of, "namespace": namespace, "score_threshold": score_threshold}
        settings = Settings().changed(similarity_top_k=similarity_top_k, filters=filters, **more)
        self._settings = self._checked(settings)
        if memory is not None:
            check_memory(memory)
        super().__init__(callback_manager=callback_manager, objects=objects, object_map=object_map, verbose=verbose)

    # --- constructors

    @classmethod
    def from_defaults(
        cls,
        index: VectorStoreIndex | None = None,
        nodes: Sequence[BaseNode] | None = None,
        *,
        vector_store: BasePydanticVectorStore | None = None,
        **settings: Unpack[StoreSettings],
    ) -> VectorRetriever:
        """Over an index, a vector store, or nodes."""
        exactly_one({"index": index, "nodes": nodes, "vector_store": vector_store}, none=_NOTHING)
        if nodes is None:
            return cls(index, vector_store=vector_store, **settings)
        return cls.from_nodes(nodes, **settings)  # type: ignore[misc]

    @classmethod
    async def afrom_defaults(
        cls,
        index: VectorStoreIndex | None = None,
        nodes: Sequence[BaseNode] | None = None,
        *,
        vector_store: BasePydanticVectorStore | None = None,
        **settings: Unpack[StoreSettings],
    ) -> VectorRetriever:
        """The same without blocking the event loop."""
        made: VectorRetriever = await in_thread(
            lambda: cls.from_defaults(index, nodes, vector_store=vector_store, **settings)
        )
        return made

    @classmethod
    def from_nodes(
        cls,
        nodes: Sequence[BaseNode],
        /,
        *,
        embed_model: EmbeddingOption | None = None,
        persist_directory: str | PathLike[str] | None = None,
        host: str | None = None,
        port: int | None = None,
        ssl: bool | None = None,
        collection_name: str | None = None,
        **settings: Unpack[VectorSettings],
    ) -> VectorRetriever:
        """Over nodes, in this process, or in Chroma when a folder or a server is given.

        `embed_model` is any kind of embedding object, a function texts → vectors, or "local" for the offline model;
        by default LlamaIndex's `Settings.embed_model` where that is set, else the offline one. No nodes and a
        collection that has some already is a way to open it.
        """
        where = {"persist_directory": persist_directory, "host": host, "port": port, "ssl": ssl}
        corpus = open_corpus(_embedder(embed_model), **where, collection_name=collection_name)
        try:
            retriever = cls(texts=corpus, **settings)
            retriever.add_nodes(nodes)
        except BaseException:
            corpus.close()
            raise
        return retriever

    @classmethod
    async def afrom_nodes(
        cls,
        nodes: Sequence[BaseNode],
        /,
        *,
        embed_model: EmbeddingOption | None = None,
        persist_directory: str | PathLike[str] | None = None,
        host: str | None = None,
        port: int | None = None,
        ssl: bool | None = None,
        collection_name: str | None = None,
        **settings: Unpack[VectorSettings],
    ) -> VectorRetriever:
        """The same without blocking the event loop."""
        where: Any = {"persist_directory": persist_directory, "host": host, "port": port, "ssl": ssl}
        more: Any = {"embed_model": embed_model, "collection_name": collection_name, **where, **settings}
        made: VectorRetriever = await in_thread(lambda: cls.from_nodes(nodes, **more))
        return made

    @classmethod
    def from_memory(cls, memory: HybridMemory, /, **settings: Unpack[VectorSettings]) -> VectorRetriever:
        """Over a `HybridMemory`: its vector arm alone, with cosines."""
        return cls(memory=memory, **settings)

    # --- nodes

    @property
    def similarity_top_k(self) -> int:
        """How many nodes a query returns at most."""
        return self._settings.k or DEFAULT_SIMILARITY_TOP_K

    @similarity_top_k.setter
    def similarity_top_k(self, k: int) -> None:
        self._settings = self._settings.changed(similarity_top_k=k)

    def add_nodes(self, nodes: Sequence[BaseNode], /) -> list[str]:
        """Add nodes, or replace those of the same id; returns their ids."""
        if self._index is not None and self._embedder is not None:
            self._index.insert_nodes(_with_embeddings(nodes, self._embedder))
            return [node.id_ for node in nodes]
        return self._corpus().put([_item(node) for node in nodes])

    async def aadd_nodes(self, nodes: Sequence[BaseNode], /) -> list[str]:
        """The same without blocking the event loop."""
        return await in_thread(lambda: self.add_nodes(nodes))

    def delete(self, node_ids: Sequence[str], /) -> int:
        """Remove nodes by their ids; returns how many there were."""
        if self._index is not None:
            self._index.delete_nodes(list(node_ids))
            return len(node_ids)
        return self._corpus().remove(node_ids)

    async def adelete(self, node_ids: Sequence[str], /) -> int:
        """The same without blocking the event loop."""
        return await in_thread(lambda: self.delete(node_ids))

    delete_nodes, adelete_nodes = delete, adelete

    def close(self) -> None:
        """Close the Chroma folder or connection that `from_nodes` opened."""
        if self._texts is not None:
            self._texts.close()

    async def aclose(self) -> None:
        """The same without blocking the event loop."""
        await in_thread(self.close)

    def _corpus(self) -> TextCorpus:
        if self._texts is None:
            raise ConfigError("this VectorRetriever has no nodes of its own: change them in its memory")
        return self._texts

    # --- search

    def retrieve(
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        score_threshold: float | None = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        **unknown: NoReturn,
    ) -> list[NodeWithScore]:
        """The nearest nodes; what is given here has priority over the constructor's.

        `score_threshold` is the lowest cosine of a result; `as_of` and `namespace` are for a memory.
        """
        return self._answer(
            str_or_query_bundle,
            unknown,
            similarity_top_k=similarity_top_k,
            filters=filters,
            score_threshold=score_threshold,
            as_of=as_of,
            namespace=namespace,
        )

    async def aretrieve(
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        score_threshold: float | None = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        **unknown: NoReturn,
    ) -> list[NodeWithScore]:
        """The same, without blocking the event loop."""
        return await self._aanswer(
            str_or_query_bundle,
            unknown,
            similarity_top_k=similarity_top_k,
            filters=filters,
            score_threshold=score_threshold,
            as_of=as_of,
            namespace=namespace,
        )

    def _found(self, bundle: QueryBundle, call: Settings) -> Steps[list[NodeWithScore]]:
        least = call.more.get("score_threshold")
        if self._memory is not None:
            nodes = yield from memory_nodes(self._memory, "vector", bundle, call)
        elif self._index is not None and self._embedder is not None:
            nodes = yield from self._search_index(self._index, self._embedder, bundle, call)
        else:
            how: dict[str, Any] = {"k": _k(call), "filter": call.filter}
            corpus, query = self._corpus(), bundle.query_str
            search, asearch = partial(corpus.search, query, **how), partial(corpus.asearch, query, **how)
            nodes = _nodes((yield from one_job(Job("vector", search, asearch))))
        return nodes if least is None else [one for one in nodes if one.score is not None and one.score >= least]

    def _search_index(
        self, index: VectorStoreIndex, embedder: Embedder, query: QueryBundle, call: Settings
    ) -> Steps[list[NodeWithScore]]:
        """Search by LlamaIndex's retriever; where a filter has to be applied here, deeper until k nodes pass."""
        bundle = yield from _embedded(query, embedder)
        store = index.vector_store
        handed, check = None, None
        if call.filter is not None:
            handed, check = store_filters(store, call.filter, call.filters), check_of(call.filter)
        node_ids = list(index.index_struct.nodes_dict.values()) if self._node_ids is None else self._node_ids
        natively_async = overrides(store, BasePydanticVectorStore, "aquery")

        def request(depth: int) -> Job:
            inner = VectorIndexRetriever(
                index, similarity_top_k=depth, filters=handed, node_ids=node_ids, **self._store_settings
            )
            now, later = partial(inner._retrieve, bundle), partial(inner._aretrieve, bundle)  # noqa: SLF001
            return Job("vector", now, later if natively_async else None)

        passes = None if check is None else lambda hit: check(hit.node)
        hits: list[NodeWithScore] = yield from search_deeper(request, _k(call), passes)
        if self._query_mode != VectorStoreQueryMode.DEFAULT:
            return hits
        convert = similarity_of(store)
        return scored_nodes([(hit.node, None if hit.score is None else convert(hit.score)) for hit in hits])


def _k(call: Settings) -> int:
    return call.k or DEFAULT_SIMILARITY_TOP_K


def _embedder(embed_model: EmbeddingOption | None) -> Embedder:
    chosen = embed_model if embed_model is not None else LlamaSettings._embed_model  # noqa: SLF001
    return as_embedder("local" if chosen is None else chosen)


def _embedded(bundle: QueryBundle, embedder: Embedder) -> Steps[QueryBundle]:
    """A bundle of our own with the mean of its texts' vectors, unless it has one; the caller's is not changed."""
    vector = bundle.embedding
    if vector is None:
        texts = bundle.embedding_strs

        async def vectors() -> list[Any]:
            return [await embedder.aquery(text) for text in texts]

        made = yield from one_job(Job("embed", lambda: [embedder.query(text) for text in texts], vectors))
        vector = np.mean(made, axis=0).tolist()
    return QueryBundle(query_str=bundle.query_str, image_path=bundle.image_path, embedding=vector)


def _nodes(hits: Sequence[TextHit], /) -> list[NodeWithScore]:
    return [NodeWithScore(node=metadata_dict_to_node(hit.metadata, text=hit.text), score=hit.score) for hit in hits]


def _item(node: BaseNode, /) -> TextItem:
    """A node as LlamaIndex's vector stores store it, so that they can read it too."""
    metadata = node_to_metadata_dict(node, remove_text=True)
    source = node_source(node)
    if source is not None:
        metadata.setdefault("source_id", source)
    text = node.get_content(metadata_mode=MetadataMode.EMBED)
    return TextItem(node.id_, node_text(node), metadata, text, node.embedding)


def _index_of(vector_store: BasePydanticVectorStore, /) -> VectorStoreIndex:
    """An index over a store. Its embed model is never called: embeddings are made before."""
    try:
        return VectorStoreIndex.from_vector_store(vector_store, embed_model=MockEmbedding(embed_dim=1))
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f"{type(vector_store).__name__} does not store texts: give index= instead ({error})"
        ) from error


def _with_embeddings(nodes: Sequence[BaseNode], embedder: Embedder, /) -> list[BaseNode]:
    """Copies of the nodes with embeddings, where they have none."""
    bare = [node for node in nodes if node.embedding is None]
    made = iter(embedder.documents([node.get_content(metadata_mode=MetadataMode.EMBED) for node in bare]))
    return [
        node if node.embedding is not None else node.model_copy(update={"embedding": next(made).tolist()})
        for node in nodes
    ]
