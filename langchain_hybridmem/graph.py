"""GraphRetriever: what the best hits remind of, by spreading activation over links, shared entities and threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, RetrieverLike
from langchain_core.runnables import RunnableConfig
from pydantic import ConfigDict, Field, PrivateAttr

from hybridmem.errors import ConfigError
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.retrievers.graph import (
    Call,
    Corpus,
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
from langchain_hybridmem._arms import Arm, Brought, Request, Wish, arms_of
from langchain_hybridmem._conversion import DocumentReader, to_document
from langchain_hybridmem._filtering import check_of
from langchain_hybridmem._linking import bare, linked, pointing, shown
from langchain_hybridmem._settings import Kept, asked_of, clear_errors, refuse_unknown

__all__ = ["GraphRetriever"]

Self = TypeVar("Self", bound="GraphRetriever")
_CALL = ("k", "filter", "hops", "decay", "with_scores", "as_of", "namespace")


class GraphRetriever(BaseRetriever):
    """The best hits of a seed retriever, and what they remind of.

    Over a HybridMemory, over documents at hand, or over a vector store whose documents list ids in their metadata.

    >>> turns = ["Where did Ana go?", "To the sea.", "With Bo?"]
    >>> documents = [Document(text, id=f"t{n}", metadata={"thread": "chat"}) for n, text in enumerate(turns)]
    >>> [document.page_content for document in GraphRetriever(documents=documents, k=2).invoke("Ana")]
    ['Where did Ana go?', 'To the sea.']

    neighbour = activation · edge weight · decay at each hop, from seeds scaled to 1; the strongest path wins.
    `k`, `filter`, `hops`, `decay` and `with_scores` can be set here and said again in `invoke(query, …)`.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    memory: Any = None
    """A HybridMemory to ask."""
    documents: list[Document] | None = Field(default=None, repr=False, exclude=True)
    """Documents at hand; `add_documents` and `delete` change them later."""
    store: Any = None
    """Where neighbours are fetched from: a vector store (`get_by_ids`), a key-value store (`mget`), or a function."""
    seed: RetrieverLike | None = None
    """Who finds the first hits; None: BM25 over the documents."""
    seeds: int | None = None
    """How many of its hits to start from; None: 4·k. With few, more of the answer is what they remind of."""
    k: int = 4
    filter: Any = None
    """`{"lang": "en"}` or a function of the document. What does not pass neither appears nor passes activation."""
    hops: int = 2
    decay: float = 0.5
    with_scores: bool = False
    """Put the activation into `metadata["score"]` and the path into `metadata["hybridmem"]`."""
    thread_key: str = "thread"
    """Metadata that names a document's conversation, or the file it is a chunk of: neighbours there are joined."""
    links_key: str | list[str] = "links"
    """Metadata that lists ids of other documents."""
    id_key: Any = None
    """What makes two documents the same: a metadata key or a function. None: `Document.id`, else the text."""
    graph: Any = None
    """`GraphSettings`: which edges count, and how much."""
    as_of: Any = None
    namespace: str | None = None

    kept: Kept | None = Field(default=None, repr=False, exclude=True)
    """What `documents` became, for a retriever that is made from this one's fields."""

    _arm: Arm | None = PrivateAttr(default=None)

    if not TYPE_CHECKING:  # type checkers read the fields above instead

        def __init__(self, **settings: Any) -> None:
            """Check every setting with a ConfigError, before pydantic would wrap it into its own."""
            _check(type(self), settings)
            with clear_errors():
                super().__init__(**settings)
            if self.seed is not None:
                self._arm = arms_of([self.seed])[0]
            if self.documents is not None or self.kept is not None:
                self.kept = self._put_together()
                self.documents = None  # the corpus has them, and goes on without this list

    def _put_together(self) -> Kept:
        how = (self.graph, self.thread_key, self.links_key, self.id_key, self.seed is None)
        known = self.kept if self.documents is None else None
        if known is not None and known.how == how:
            return known
        corpus: Corpus[Document] = Corpus(self.graph, words=self.seed is None)
        corpus.add(self._linked((self.documents or []) if known is None else known.things.items))
        return Kept(corpus, how)

    # --- ways in

    @classmethod
    def from_memory(cls: type[Self], memory: Any, /, **settings: Any) -> Self:
        """Over a HybridMemory: seeds by its BM25, edges as it keeps them."""
        return cls(memory=memory, **settings)

    @classmethod
    def from_documents(
        cls: type[Self], documents: Sequence[Document], /, *, seed: RetrieverLike | None = None, **settings: Any
    ) -> Self:
        """Over documents at hand; `seed` finds the first hits (None: our BM25)."""
        return cls(documents=list(documents), seed=seed, **settings)

    @classmethod
    def from_store(cls: type[Self], store: Any, /, *, seed: RetrieverLike | None = None, **settings: Any) -> Self:
        """Over a vector store whose documents list ids under `links_key`; `seed` defaults to its own search."""
        if seed is None and hasattr(store, "as_retriever"):
            seed = store.as_retriever()
        return cls(store=store, seed=seed, **settings)

    # --- changing the documents

    def add_documents(self, documents: Sequence[Document], /) -> list[str]:
        """Add documents, or replace those of the same id; the next question sees them. Gives their ids."""
        return self._own().add(self._linked(documents))

    def delete(self, ids: Sequence[str], /) -> bool:
        """Take documents out by their ids; False when none was there."""
        return self._own().remove(ids) > 0

    def _own(self) -> Corpus[Document]:
        if self.kept is None:
            raise ConfigError("this GraphRetriever has no documents of its own: change them in its memory or store")
        corpus: Corpus[Document] = self.kept.things
        return corpus

    # --- asking

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Any = None,
        hops: int | None = None,
        decay: float | None = None,
        with_scores: bool | None = None,
        as_of: Any = None,
        namespace: str | None = None,
        **unknown: Any,
    ) -> list[Document]:
        said = {"k": k, "filter": filter, "hops": hops, "decay": decay, "as_of": as_of, "namespace": namespace}
        asked = self._asked({**unknown, **said, "with_scores": with_scores})
        steps = self._steps(query, asked, {"callbacks": run_manager.get_child("seed")})
        return shown(drive(steps), with_scores=asked["with_scores"])

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **said: Any
    ) -> list[Document]:
        asked = self._asked(said)
        steps = self._steps(query, asked, {"callbacks": run_manager.get_child("seed")})
        return shown(await adrive(steps), with_scores=asked["with_scores"])

    def _asked(self, said: dict[str, Any]) -> dict[str, Any]:
        return asked_of(self, _CALL, said)

    def _steps(self, query: str, asked: dict[str, Any], config: RunnableConfig) -> Steps:
        check = None if asked["filter"] is None or self.memory is not None else check_of(asked["filter"])
        reach = Reach(asked["k"], asked["hops"], asked["decay"], check, self.seeds)
        wish = Wish(reach.depth, asked["filter"], scores=True)
        if self.memory is not None:
            how = {name: asked[name] for name in _CALL if name != "with_scores"}
            return over_memory(self.memory, query, how, to_document)
        if self.kept is not None:
            seeds = None if self._arm is None else self._ask_seed(self._arm, query, wish, config, self._values)
            return over_corpus(self._own(), query, reach, seeds=seeds)
        if self._arm is None:  # checked when it was made
            raise ConfigError("a store needs a seed retriever")
        seeds = self._ask_seed(self._arm, query, wish, config, self._start)
        return over_store(seeds, self._fetch, self.graph, reach)

    def _ask_seed(
        self, arm: Arm, query: str, wish: Wish, config: RunnableConfig, read: Callable[[Brought], Any]
    ) -> Call:
        request: Request = arm.request(wish, config)

        def best(value: Any) -> Any:
            brought = request.read(value, arm.name)
            scores = None if brought.scores is None else brought.scores[: wish.k]
            return read(brought._replace(documents=brought.documents[: wish.k], scores=scores))

        async def later() -> Any:
            return best(await request.acall(query))

        return Call(lambda: best(request.call(query)), later)

    def _values(self, brought: Brought) -> dict[str, float]:
        keys = DocumentReader(self.id_key).keys(brought.documents)
        return ranks(keys, brought.scores)

    def _start(self, brought: Brought) -> tuple[list[Linked], dict[str, float]]:
        start = self._points(bare(brought))
        return start, ranks([one.memory.id for one in start], brought.scores)

    def _fetch(self, ids: list[str]) -> Call:
        store = self.store
        if hasattr(store, "get_by_ids"):
            now, later = store.get_by_ids, getattr(store, "aget_by_ids", None)
        elif hasattr(store, "mget"):
            now, later = store.mget, getattr(store, "amget", None)
        else:
            now, later = store, None
        plain = Call.of(lambda: self._points([found for found in now(ids) if found is not None]))
        if later is None:
            return plain

        async def wait() -> list[Linked]:
            return self._points([found for found in await later(ids) if found is not None])

        return plain._replace(later=wait)

    def _points(self, documents: Sequence[Document]) -> list[Linked]:
        return pointing(documents, id_key=self.id_key, links_key=self.links_key)

    def _linked(self, documents: Sequence[Document]) -> list[Linked]:
        return linked(documents, id_key=self.id_key, thread_key=self.thread_key, links_key=self.links_key)


def _check(cls: type[GraphRetriever], settings: dict[str, Any]) -> None:
    refuse_unknown(cls, settings)
    given = [name for name in ("memory", "documents", "store") if settings.get(name) is not None]
    if not given and settings.get("kept") is not None:
        given = ["documents"]
    if len(given) != 1:
        told = " and ".join(given) or "none"
        raise ConfigError(f"GraphRetriever got {told}: give exactly one of memory, documents and store")
    if given == ["store"]:
        _check_store(settings["store"], settings.get("seed"))
    for name in ("seed", "seeds"):
        if given == ["memory"] and settings.get(name) is not None:
            raise ConfigError(f"{name} does not go with a memory: it starts from the 4·k best hits of its own BM25")
    graph = settings.get("graph")
    if graph is not None and not isinstance(graph, GraphSettings):
        raise ConfigError(f"graph = {graph!r} is not allowed: GraphSettings or None")
    chosen = {name: settings[name] for name in ("k", "hops", "decay", "seeds") if name in settings}
    Reach(**chosen)
    if settings.get("filter") is not None and not callable(settings["filter"]):
        check_of(settings["filter"])


def _check_store(store: Any, seed: Any) -> None:
    if seed is None:
        raise ConfigError("a store needs a seed retriever: GraphRetriever(store=…, seed=store.as_retriever())")
    if not (hasattr(store, "get_by_ids") or hasattr(store, "mget") or callable(store)):
        kind = type(store).__name__
        raise ConfigError(f"store is a {kind}: it needs get_by_ids or mget, or must be a function of ids")
