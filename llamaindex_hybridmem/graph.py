"""GraphRetriever: what the best hits remind of, by spreading activation over relationships, links and threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.schema import (
    BaseNode,
    IndexNode,
    NodeWithScore,
    QueryBundle,
    QueryType,
)

from hybridmem.core.fanout import in_thread
from hybridmem.errors import ConfigError
from hybridmem.indexes.graph.explain import explain_paths
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.retrievers.graph import (
    Call,
    Corpus,
    Found,
    Linked,
    Reach,
    Steps,
    adrive,
    drive,
    over_corpus,
    over_memory,
    over_store,
    ranks,
)
from llamaindex_hybridmem._answers import nodes_of
from llamaindex_hybridmem._arms import Arm, Request, Wish, arms_of, ask, check_of, copied
from llamaindex_hybridmem._calling import CalledRetriever, exactly_one
from llamaindex_hybridmem._conversion import to_node
from llamaindex_hybridmem._linking import linked
from llamaindex_hybridmem._results import Why, fused_nodes
from llamaindex_hybridmem._settings import Filters, Settings, refuse

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["GraphRetriever"]

dispatcher = get_dispatcher(__name__)


class GraphRetriever(CalledRetriever):
    """The best hits of a seed retriever, and what they remind of.

    Over nodes at hand (`nodes`), a `HybridMemory` (`memory`), or a docstore or vector store whose nodes point at each
    other (`store`, with a `seed` retriever).

    >>> from llama_index.core.schema import TextNode
    >>> turns = ["Ana went away.", "To the sea.", "With Bo."]
    >>> nodes = [TextNode(id_=f"t{n}", text=text, metadata={"thread": "chat"}) for n, text in enumerate(turns)]
    >>> [found.text for found in GraphRetriever(nodes, similarity_top_k=2).retrieve("Ana")]
    ['Ana went away.', 'To the sea.']

    Edges: the relationships PREVIOUS, NEXT, PARENT, CHILD and SOURCE; ids listed in the metadata under `links_key`;
    neighbours of one thread (metadata `thread_key`); shared entities (metadata `entities`) and shared sources.
    neighbour = activation · edge weight · decay at each hop, from seeds scaled to 1; the strongest path wins.
    Each result has a `.receipt` that tells its path; nodes, their metadata and prompts stay as they were.
    `similarity_top_k`, `filters`, `hops` and `decay` can also be given to `retrieve` and `aretrieve`. `seeds` is how
    many hits to start from (None: 4·k): with few, more of the answer is what they remind of.
    """

    def __init__(
        self,
        nodes: Sequence[BaseNode] | None = None,
        *,
        memory: HybridMemory | None = None,
        store: Any = None,
        seed: BaseRetriever | None = None,
        seeds: int | None = None,
        similarity_top_k: int = 4,
        filters: Filters = None,
        hops: int = 2,
        decay: float = 0.5,
        as_of: Any = None,
        namespace: str | None = None,
        thread_key: str = "thread",
        links_key: str | Sequence[str] = "links",
        graph: GraphSettings | None = None,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
        **unknown: Any,
    ) -> None:
        refuse(unknown, ("nodes", *(GraphRetriever.__init__.__kwdefaults__ or ())))
        _check(nodes, memory, store, seed, graph)
        if memory is not None and seeds is not None:
            raise ConfigError("seeds does not go with a memory: it starts from the 4·k best")
        self._seeds = seeds
        self._memory, self._store, self._graph = memory, store, graph
        names = (links_key,) if isinstance(links_key, str) else tuple(links_key)
        self._link = partial(linked, thread_key=thread_key, links_keys=names)
        self._arm: Arm | None = None if seed is None else arms_of([seed])[0]
        self._corpus: Corpus[BaseNode] | None = None
        if nodes is not None:
            self._corpus = Corpus(graph, words=seed is None)
            self.add_nodes(nodes)
        said = {"hops": hops, "decay": decay, "as_of": as_of, "namespace": namespace}
        self._settings = self._checked(Settings().changed(similarity_top_k=similarity_top_k, filters=filters, **said))
        super().__init__(callback_manager=callback_manager, objects=objects, object_map=object_map, verbose=verbose)

    # --- ways in

    @classmethod
    def from_nodes(
        cls, nodes: Sequence[BaseNode], /, *, seed: BaseRetriever | None = None, **settings: Any
    ) -> GraphRetriever:
        """Over nodes at hand; `seed` finds the first hits (None: our BM25)."""
        return cls(nodes, seed=seed, **settings)

    @classmethod
    def from_memory(cls, memory: HybridMemory, /, **settings: Any) -> GraphRetriever:
        """Over a `HybridMemory`: seeds by its BM25, edges as it keeps them."""
        return cls(memory=memory, **settings)

    @classmethod
    def from_store(cls, store: Any, /, *, seed: BaseRetriever, **settings: Any) -> GraphRetriever:
        """Over a docstore or vector store (or a function from ids to nodes) from which neighbours are fetched."""
        return cls(store=store, seed=seed, **settings)

    @classmethod
    def from_defaults(
        cls,
        nodes: Sequence[BaseNode] | None = None,
        *,
        index: Any = None,
        docstore: Any = None,
        vector_store: Any = None,
        seed: BaseRetriever | None = None,
        **settings: Any,
    ) -> GraphRetriever:
        """From whatever is at hand: nodes; an index, whose own search finds the seeds; a docstore; a vector store.

        Without a seed retriever and an index, all nodes of the docstore are taken, and BM25 finds the seeds.
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

    # --- changing the nodes

    def add_nodes(self, nodes: Sequence[BaseNode], /) -> list[str]:
        """Add nodes, or replace those of the same id; the next question sees them. Gives their ids."""
        return self._own().add([self._link(node) for node in nodes])

    def delete_nodes(self, node_ids: Sequence[str], /) -> int:
        """Take nodes out; how many there were."""
        return self._own().remove(node_ids)

    def _own(self) -> Corpus[BaseNode]:
        if self._corpus is None:
            raise ConfigError("this GraphRetriever has no nodes of its own: change them in its memory or store")
        return self._corpus

    # --- asking

    def retrieve(
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        hops: int | None = None,
        decay: float | None = None,
        as_of: Any = None,
        namespace: str | None = None,
    ) -> list[NodeWithScore]:
        """The best hits and what they remind of; what is given here wins over the constructor's.

        `as_of` and `namespace` are for a memory.
        """
        said = {"hops": hops, "decay": decay, "as_of": as_of, "namespace": namespace}
        with self._said(similarity_top_k, filters, said):
            return super().retrieve(str_or_query_bundle)

    async def aretrieve(
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        hops: int | None = None,
        decay: float | None = None,
        as_of: Any = None,
        namespace: str | None = None,
    ) -> list[NodeWithScore]:
        """The same, without blocking the event loop."""
        said = {"hops": hops, "decay": decay, "as_of": as_of, "namespace": namespace}
        with self._said(similarity_top_k, filters, said):
            return await super().aretrieve(str_or_query_bundle)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        call = self._call()
        return self._results(query_bundle, drive(self._steps(query_bundle, call)))

    @dispatcher.span
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        call = self._call()
        return self._results(query_bundle, await adrive(self._steps(query_bundle, call)))

    # --- the steps of a question

    def _checked(self, call: Settings) -> Settings:
        self._reach(call)
        return super()._checked(call)

    def _reach(self, call: Settings) -> Reach:
        check = None if call.filter is None else check_of(call.filter)
        return Reach(call.k or 4, call.more["hops"], call.more["decay"], check, self._seeds)

    def _steps(self, bundle: QueryBundle, call: Settings) -> Steps:
        reach = self._reach(call)
        if self._memory is not None:
            how = {"k": call.k, "filter": call.filter, **call.more}
            return over_memory(self._memory, bundle.query_str, how, to_node)
        if self._corpus is not None:
            seeds = None if self._arm is None else self._ask_seed(self._arm, bundle, call, _values)
            return over_corpus(self._corpus, bundle.query_str, reach, seeds=seeds)
        if self._arm is None:  # checked when it was made
            raise ConfigError("a store needs a seed retriever")
        return over_store(self._ask_seed(self._arm, bundle, call, self._start), self._fetch, self._graph, reach)

    def _ask_seed(
        self, arm: Arm, bundle: QueryBundle, call: Settings, read: Callable[[list[NodeWithScore]], Any]
    ) -> Call:
        depth = self._reach(call).depth
        request = arm.request(Wish(depth, call.filter, call.filters))
        work = partial(ask, request.retriever, copied(bundle), **request.keywords)

        async def later() -> Any:
            if arm.natively_async:
                found = await request.retriever.aretrieve(copied(bundle), **request.keywords)
                return read(_kept(found, arm, request)[:depth])
            return read(_kept(await in_thread(work), arm, request)[:depth])

        return Call(lambda: read(_kept(work(), arm, request)[:depth]), later)

    def _start(self, found: list[NodeWithScore]) -> tuple[list[Linked], dict[str, float]]:
        return [self._link(one.node) for one in found], _values(found)

    def _fetch(self, ids: list[str]) -> Call:
        store = self._store
        if not hasattr(store, "get_nodes"):
            return Call.of(lambda: list(map(self._link, store(ids))))
        softly = {"raise_error": False} if hasattr(store, "get_node") else {}  # a docstore may lack some of them

        async def later() -> list[Linked]:
            return list(map(self._link, await store.aget_nodes(ids, **softly)))

        now = Call.of(lambda: list(map(self._link, store.get_nodes(ids, **softly))))
        return now._replace(later=later) if softly else now  # vector stores' async often blocks: rather a thread

    def _results(self, bundle: QueryBundle, found: Sequence[Found]) -> list[NodeWithScore]:
        paths = {one.item.id_: one.activation for one in found}
        lines = {one.item.id_: one.line for one in found}
        why = Why(partial(explain_paths, bundle.query_str, paths, lines))
        return fused_nodes([(node, won.value) for node, won, _ in found], why)


def _values(found: Sequence[NodeWithScore]) -> dict[str, float]:
    scores = [one.score for one in found]
    return ranks([one.node.id_ for one in found], None if None in scores else [float(s or 0.0) for s in scores])


def _kept(value: Any, arm: Arm, request: Request) -> list[NodeWithScore]:
    found = nodes_of(value, arm.name)
    return found if request.check is None else [one for one in found if request.check(one.node)]


def _check(nodes: Any, memory: Any, store: Any, seed: Any, graph: Any) -> None:
    given = [name for name, value in (("nodes", nodes), ("memory", memory), ("store", store)) if value is not None]
    if len(given) != 1:
        raise ConfigError(f"got {' and '.join(given) or 'none'}: give exactly one of nodes, memory and store")
    if store is not None and seed is None:
        raise ConfigError("a store needs a seed retriever: GraphRetriever(store=…, seed=index.as_retriever())")
    if store is not None and not (hasattr(store, "get_nodes") or callable(store)):
        raise ConfigError(f"store is a {type(store).__name__}: it needs get_nodes, or must be a function of ids")
    if memory is not None and seed is not None:
        raise ConfigError("seed does not go with a memory: its own BM25 finds the first hits")
    if graph is not None and not isinstance(graph, GraphSettings):
        raise ConfigError(f"graph = {graph!r} is not allowed: GraphSettings or None")
