"""GraphRetriever: the best hits and nodes related to them, by spreading activation over relationships and links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import (
    BaseNode,
    IndexNode,
    NodeRelationship,
    QueryBundle,
    QueryType,
    RelatedNodeInfo,
)
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters
from typing_extensions import Unpack

from hybridmem.core.fanout import Job, Steps, adrive, drive, in_thread
from hybridmem.core.types import Direction, Edge
from hybridmem.errors import ConfigError
from hybridmem.indexes.graph.explain import explain_paths
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.retrievers.arms import ArmHits, TimeOption
from hybridmem.retrievers.graph import (
    TITLE_KEYS,
    GraphCorpus,
    GraphHit,
    GraphItem,
    GraphQuery,
    MetadataKeys,
    SeedScale,
    check_sources,
    search_corpus,
    search_memory,
    search_store,
    seed_job,
    seed_scores,
)
from hybridmem.retrievers.metadata_edges import values_in
from hybridmem.retrievers.options import refuse_settings
from llamaindex_hybridmem._arms import Arm, ArmOptions, arms_of, check_of
from llamaindex_hybridmem._calls import SearchRetriever, exactly_one
from llamaindex_hybridmem._conversion import FusedNode, Why, fused_nodes, node_source, own_copy, to_memory, to_node
from llamaindex_hybridmem._settings import Filters, Settings

if TYPE_CHECKING:
    from llama_index.core import VectorStoreIndex
    from llama_index.core.storage.docstore.types import BaseDocumentStore
    from llama_index.core.vector_stores.types import BasePydanticVectorStore

    from hybridmem.memory.memory import HybridMemory
    from llamaindex_hybridmem._settings import GraphSearchSettings, MemoryGraphSettings

    NodeSource = BaseDocumentStore | BasePydanticVectorStore | Callable[[list[str]], Sequence[BaseNode]]

__all__ = ["GraphRetriever"]


_RELATIONS = {
    NodeRelationship.NEXT: ("next", False),
    NodeRelationship.PREVIOUS: ("next", True),
    NodeRelationship.PARENT: ("parent", False),
    NodeRelationship.CHILD: ("parent", True),
    NodeRelationship.SOURCE: ("source", False),
}
"""The label of each relationship, and whether it points from the other node to this one."""


def graph_item(node: BaseNode, read: MetadataKeys = MetadataKeys(), /) -> GraphItem:  # noqa: B008
    """A node with the fields that the graph reads. Nodes of one document share it like an entity."""
    source = node_source(node)
    shared = () if source is None else (f"source {source}",)
    return read.item(to_memory(node), node, node.metadata, edges=_edges(node), entities=shared)


def _edges(node: BaseNode) -> Iterator[Edge]:
    for kind, related in node.relationships.items():
        name, far = _RELATIONS[kind]
        for other in [related] if isinstance(related, RelatedNodeInfo) else related:
            ends = (other.node_id, node.id_) if far else (node.id_, other.node_id)
            yield Edge(*ends, name)


class GraphRetriever(SearchRetriever):
    """The best hits of a seed retriever, and the nodes that are related to them.

    Over nodes in memory (`nodes`), a `HybridMemory` (`memory`), or a docstore or vector store whose nodes point at each
    other (`store`, with a `seed` retriever).

    >>> from llama_index.core.schema import TextNode
    >>> turns = ["Ana went away.", "To the sea.", "With Bo."]
    >>> nodes = [TextNode(id_=f"t{n}", text=text, metadata={"thread": "chat"}) for n, text in enumerate(turns)]
    >>> [found.text for found in GraphRetriever(nodes, similarity_top_k=2).retrieve("Ana")]
    ['Ana went away.', 'To the sea.']

    Edges: the relationships PREVIOUS, NEXT, PARENT, CHILD and SOURCE; ids listed in the metadata under `links_key`;
    neighbours of one thread (metadata `thread_key`); shared entities (metadata `entities`) and shared sources; and
    titles (metadata `title_key`) that a text mentions or links to as [[title]].
    neighbour = activation · edge weight · decay at each hop, from seeds scaled to 1; the strongest path wins.
    Each result has a `.receipt` with its path; nodes, their metadata and prompts are not changed.
    `similarity_top_k`, `filters`, `hops` and `decay` can also be given to `retrieve` and `aretrieve`. `seeds` is how
    many hits to start from (None: 4·k): with fewer seeds, more of the results are related nodes. `seed_scale="range"`
    spreads their scores from 1 to 1 / (n + 1), which suits cosines.
    """

    def __init__(
        self,
        nodes: Sequence[BaseNode] | None = None,
        *,
        memory: HybridMemory | None = None,
        store: NodeSource | None = None,
        seed: BaseRetriever | None = None,
        seeds: int | None = None,
        seed_scale: SeedScale = "max",
        similarity_top_k: int = 4,
        filters: Filters = None,
        hops: int = 2,
        decay: float = 0.5,
        direction: Direction | None = None,
        weights: Mapping[str, float] | None = None,
        edges: Sequence[tuple[str, str]] | None = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        thread_key: str = "thread",
        links_key: str | Sequence[str] = "links",
        title_key: str | Sequence[str] = TITLE_KEYS,
        graph: GraphSettings | None = None,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
        **unknown: NoReturn,
    ) -> None:
        refuse_settings(type(self).__name__, unknown, ("nodes", *(GraphRetriever.__init__.__kwdefaults__ or ())))
        given = {"seed": seed, "seeds": seeds, "graph": graph, "edges": edges}
        check_sources({"nodes": nodes, "memory": memory, "store": store}, given, ("get_nodes",))
        self._seeds, self._seed_scale = seeds, seed_scale
        self._memory, self._graph = memory, graph
        self._store: Any = store  # its methods say which kind it is
        self._read = MetadataKeys(thread_key, links_key, title_key)
        self._arm: Arm | None = None if seed is None else next(iter(arms_of([seed]).values()))
        self._nodes: GraphCorpus[BaseNode] | None = None
        if nodes is not None:
            self._nodes = GraphCorpus(graph, lexical=seed is None)
            self.add_nodes(nodes)
        own: Any = {"similarity_top_k": similarity_top_k, "filters": filters, "as_of": as_of, "namespace": namespace}
        more: Any = {"hops": hops, "decay": decay, "direction": direction, "weights": weights, "edges": edges}
        self._settings = self._checked(Settings().changed(**own, **more))
        super().__init__(callback_manager=callback_manager, objects=objects, object_map=object_map, verbose=verbose)

    # --- constructors

    @classmethod
    def from_nodes(
        cls,
        nodes: Sequence[BaseNode],
        /,
        *,
        seed: BaseRetriever | None = None,
        **settings: Unpack[GraphSearchSettings],
    ) -> GraphRetriever:
        """Over nodes in memory; `seed` provides the seeds (None: our BM25)."""
        return cls(nodes, seed=seed, **settings)

    @classmethod
    def from_memory(cls, memory: HybridMemory, /, **settings: Unpack[MemoryGraphSettings]) -> GraphRetriever:
        """Over a `HybridMemory`: seeds by its BM25, edges as it stores them."""
        return cls(memory=memory, **settings)

    @classmethod
    def from_store(
        cls, store: NodeSource, /, *, seed: BaseRetriever, **settings: Unpack[GraphSearchSettings]
    ) -> GraphRetriever:
        """Over a docstore or vector store (or a function from ids to nodes) from which neighbours are fetched."""
        return cls(store=store, seed=seed, **settings)

    @classmethod
    def from_defaults(
        cls,
        nodes: Sequence[BaseNode] | None = None,
        *,
        index: VectorStoreIndex | None = None,
        docstore: BaseDocumentStore | None = None,
        vector_store: BasePydanticVectorStore | None = None,
        seed: BaseRetriever | None = None,
        **settings: Unpack[GraphSearchSettings],
    ) -> GraphRetriever:
        """From nodes; an index, whose own search provides the seeds; a docstore; or a vector store.

        Without a seed retriever and an index, all nodes of the docstore are used, and BM25 provides the seeds.
        """
        given = {"nodes": nodes, "index": index, "docstore": docstore, "vector_store": vector_store}
        exactly_one(given)
        if index is not None:
            stored = index.docstore if index.docstore.docs else index.vector_store
            return cls(store=stored, seed=seed or index.as_retriever(), **settings)
        if docstore is not None and seed is None:
            return cls(list(docstore.docs.values()), **settings)
        store = docstore if docstore is not None else vector_store
        return cls(nodes, store=store, seed=seed, **settings)

    @property
    def similarity_top_k(self) -> int:
        """How many nodes a query returns at most."""
        return self._settings.k or 4

    @similarity_top_k.setter
    def similarity_top_k(self, k: int) -> None:
        self._settings = self._settings.changed(similarity_top_k=k)

    # --- nodes

    def add_nodes(self, nodes: Sequence[BaseNode], /) -> list[str]:
        """Add nodes, or replace those of the same id; returns their ids."""
        return self._corpus().add(self._items(nodes))

    async def aadd_nodes(self, nodes: Sequence[BaseNode], /) -> list[str]:
        """The same without blocking the event loop."""
        return await in_thread(lambda: self.add_nodes(nodes))

    def delete(self, node_ids: Sequence[str], /) -> int:
        """Remove nodes by their ids; returns how many there were."""
        return self._corpus().remove(node_ids)

    async def adelete(self, node_ids: Sequence[str], /) -> int:
        """The same without blocking the event loop."""
        return await in_thread(lambda: self.delete(node_ids))

    delete_nodes, adelete_nodes = delete, adelete

    def _corpus(self) -> GraphCorpus[BaseNode]:
        if self._nodes is None:
            raise ConfigError("this GraphRetriever has no nodes of its own: change them in its memory or store")
        return self._nodes

    # --- search

    def retrieve(  # type: ignore[override]
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        hops: int | None = None,
        decay: float | None = None,
        direction: Direction | None = None,
        weights: Mapping[str, float] | None = None,
        edges: Sequence[tuple[str, str]] | None = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        **unknown: NoReturn,
    ) -> list[FusedNode]:
        """The best hits and related nodes; what is given here has priority over the constructor's.

        `as_of` and `namespace` are for a memory.
        """
        return self._answer(
            str_or_query_bundle,
            unknown,
            similarity_top_k=similarity_top_k,
            filters=filters,
            as_of=as_of,
            namespace=namespace,
            hops=hops,
            decay=decay,
            direction=direction,
            weights=weights,
            edges=edges,
        )

    async def aretrieve(  # type: ignore[override]
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        hops: int | None = None,
        decay: float | None = None,
        direction: Direction | None = None,
        weights: Mapping[str, float] | None = None,
        edges: Sequence[tuple[str, str]] | None = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        **unknown: NoReturn,
    ) -> list[FusedNode]:
        """The same, without blocking the event loop."""
        return await self._aanswer(
            str_or_query_bundle,
            unknown,
            similarity_top_k=similarity_top_k,
            filters=filters,
            as_of=as_of,
            namespace=namespace,
            hops=hops,
            decay=decay,
            direction=direction,
            weights=weights,
            edges=edges,
        )

    def _retrieve(self, query_bundle: QueryBundle) -> list[Any]:
        return _results(query_bundle, drive(self._steps(query_bundle, self._call())))

    async def _asearch(self, query_bundle: QueryBundle) -> list[Any]:
        return _results(query_bundle, await adrive(self._steps(query_bundle, self._call())))

    def _checked(self, settings: Settings) -> Settings:
        self._extent(settings)
        return super()._checked(settings)

    def _extent(self, call: Settings) -> GraphQuery:
        check = None if call.filter is None else check_of(call.filter)
        more: Any = {name: call.more.get(name) for name in ("edges", "direction", "weights")}
        more["seed_scale"] = self._seed_scale
        return GraphQuery(call.k or 4, call.more["hops"], call.more["decay"], check, self._seeds, **more)

    def _steps(self, bundle: QueryBundle, call: Settings) -> Steps[list[GraphHit]]:
        extent = self._extent(call)
        if self._memory is not None:
            if extent.definitions:
                raise ConfigError("edges does not go with a memory: its links, threads and names are the edges")
            settings = {"k": call.k, "filter": call.filter, **call.more}
            settings.pop("edges", None)
            return search_memory(self._memory, bundle.query_str, settings, to_node)
        wanted = ArmOptions(extent.depth, call.filter, call.filters)

        def seeds(arm: Arm, read: Callable[[ArmHits], Any]) -> Job:
            return seed_job(arm.request(bundle, wanted), extent.depth, read)

        if self._nodes is not None:
            job = None if self._arm is None else seeds(self._arm, _scores_of)
            return search_corpus(self._nodes, bundle.query_str, extent, seeds=job)
        if self._arm is None:  # checked in the constructor
            raise ConfigError("a store needs a seed retriever")
        return search_store(seeds(self._arm, self._first_items), self._fetch, self._graph, extent, find=self._find)

    def _find(self, name: str, values: list[Any]) -> Job:
        """A job that returns the nodes with one of these values in a metadata field."""
        store, wanted = self._store, set(values)
        if hasattr(store, "docs"):

            def scan() -> list[GraphItem]:
                nodes = store.docs.values()
                return self._items([one for one in nodes if wanted & set(values_in(one.metadata, one.node_id, name))])

            return Job("find", scan)
        if not hasattr(store, "get_nodes"):
            kind = type(store).__name__
            raise ConfigError(f"store is a {kind}: edges to the field {name!r} need a docstore or a vector store")
        test = MetadataFilter(key=name, value=values, operator=FilterOperator.IN)
        filters = MetadataFilters(filters=[test])
        return Job("find", lambda: self._items(store.get_nodes(None, filters)))

    def _items(self, nodes: Sequence[BaseNode]) -> list[GraphItem]:
        return [graph_item(node, self._read) for node in nodes]

    def _first_items(self, hits: ArmHits) -> tuple[list[GraphItem], dict[str, float]]:
        return self._items(hits.items), _scores_of(hits)

    def _fetch(self, ids: list[str]) -> Job:
        store = self._store
        if not hasattr(store, "get_nodes"):
            return Job("fetch", lambda: self._items(store(ids)))
        lenient = {"raise_error": False} if hasattr(store, "get_node") else {}  # a docstore may lack some of them

        async def later() -> list[GraphItem]:
            return self._items(await store.aget_nodes(ids, **lenient))

        # vector stores' async methods often block, so these are called in a thread
        return Job("fetch", lambda: self._items(store.get_nodes(ids, **lenient)), later if lenient else None)


def _results(bundle: QueryBundle, hits: Sequence[GraphHit]) -> list[FusedNode]:
    paths = {hit.item.id_: hit.activation for hit in hits}
    lines = {hit.item.id_: hit.line for hit in hits}
    why = Why(partial(explain_paths, bundle.query_str, paths, lines))
    return fused_nodes([(own_copy(hit.item), hit.activation.value) for hit in hits], why)


def _scores_of(hits: ArmHits) -> dict[str, float]:
    return seed_scores([node.id_ for node in hits.items], hits.scores)
