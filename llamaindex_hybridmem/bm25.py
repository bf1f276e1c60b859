"""BM25Retriever: exact, live BM25 over nodes, an index, a docstore, a vector store or a memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.schema import BaseNode, IndexNode, MetadataMode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.storage.docstore.utils import doc_to_json, json_to_doc

from hybridmem.errors import ConfigError, CorruptStoreError
from hybridmem.indexes.bm25.documents import WEIGHTS
from hybridmem.retrievers.lexical import Engine, Found, Shelf, Words, pattern_terms
from hybridmem.retrievers.lexical_file import Keeper
from hybridmem.text.analyzer import Analyzer
from hybridmem.text.stopwords import STOPWORDS
from llamaindex_hybridmem._arms import check_of
from llamaindex_hybridmem._calling import CalledRetriever, exactly_one, memory_nodes, memory_wish
from llamaindex_hybridmem._results import scored_nodes
from llamaindex_hybridmem._settings import Filters, Settings, refuse

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["BM25Retriever"]

dispatcher = get_dispatcher(__name__)

_FILE = "bm25.shelf"


class BM25Retriever(CalledRetriever):
    """Words, exact and live: nodes can be added, deleted, filtered and kept in a file.

    >>> from llama_index.core.schema import TextNode
    >>> nodes = [TextNode(text="Ana moved to Lisbon"), TextNode(text="Bo drinks tea")]
    >>> [found.text for found in BM25Retriever.from_defaults(nodes=nodes).retrieve("Who moved?")]
    ['Ana moved to Lisbon']

    What is searched is the text that an embedder would see: the node's text and the metadata it is not told to leave
    out (`metadata_mode`). `similarity_top_k` and `filters` can also be given to `retrieve` and `aretrieve`. A node
    that shares no word with the query is not a result, so there may be fewer than `similarity_top_k`.
    """

    def __init__(
        self,
        nodes: Sequence[BaseNode] | None = None,
        *,
        memory: HybridMemory | None = None,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        filters: Filters = None,
        engine: Engine | None = None,
        k1: float | None = None,
        b: float | None = None,
        language: str | None = None,
        stemmer: Any = None,
        skip_stemming: bool = False,
        token_pattern: str | None = None,
        preprocess_func: Callable[[str], list[str]] | None = None,
        bm25_variant: str = "okapi",
        bm25_params: Mapping[str, Any] | None = None,
        fields: Mapping[str, str] | None = None,
        metadata_mode: MetadataMode = MetadataMode.EMBED,
        persist_path: str | Path | None = None,
        as_of: Any = None,
        namespace: str | None = None,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
        **unknown: Any,
    ) -> None:
        refuse(unknown, ("nodes", *(BM25Retriever.__init__.__kwdefaults__ or ())))
        terms = preprocess_func or _terms(language, stemmer, token_pattern, skip_stemming=skip_stemming)
        words = Words(engine, k1, b, language, terms, bm25_variant, bm25_params)
        self._memory = memory
        self._fields = _checked_fields(fields)
        self._mode = metadata_mode
        self._shelf: Shelf[BaseNode] | None = None
        if memory is None:
            self._shelf = Shelf.at(persist_path, words, write=doc_to_json, read=json_to_doc)
            self._shelf.begin(self._rows(nodes or ()))
        elif nodes is not None or persist_path is not None or words != Words() or self._fields:
            raise ConfigError("nodes, files and settings of words do not go with a memory, which has its own")
        settings = Settings().changed(similarity_top_k=similarity_top_k, filters=filters)
        self._settings = self._checked(settings.changed(as_of=as_of, namespace=namespace))
        super().__init__(callback_manager=callback_manager, objects=objects, object_map=object_map, verbose=verbose)

    # --- ways in

    @classmethod
    def from_defaults(
        cls,
        index: Any = None,
        nodes: Sequence[BaseNode] | None = None,
        docstore: Any = None,
        *,
        vector_store: Any = None,
        **settings: Any,
    ) -> BM25Retriever:
        """Over nodes, or all nodes of an index, a docstore or a vector store that keeps texts (such as Chroma)."""
        given = {"index": index, "nodes": nodes, "docstore": docstore, "vector_store": vector_store}
        exactly_one(given)
        if index is not None:
            nodes = list(index.docstore.docs.values()) or _stored(index.vector_store)
        elif docstore is not None:
            nodes = list(docstore.docs.values())
        elif vector_store is not None:
            nodes = _stored(vector_store)
        return cls(nodes, **settings)

    @classmethod
    def from_nodes(cls, nodes: Sequence[BaseNode], /, **settings: Any) -> BM25Retriever:
        """Over nodes at hand."""
        return cls(nodes, **settings)

    @classmethod
    def from_memory(cls, memory: HybridMemory, /, **settings: Any) -> BM25Retriever:
        """Over a `HybridMemory`: its BM25 arm alone, with raw scores."""
        return cls(memory=memory, **settings)

    @classmethod
    def from_persist_dir(cls, path: str | Path, /, **settings: Any) -> BM25Retriever:
        """What `persist` wrote; later changes are kept there too. Settings of words are to be given again."""
        file = Path(path) / _FILE
        if not file.exists():
            raise CorruptStoreError(f"{file} is not there: {path} is no folder of BM25Retriever.persist")
        return cls(persist_path=file, **settings)

    def persist(self, path: str | Path, /) -> None:
        """Write nodes and index into a folder, as they are now."""
        shelf, folder = self._own(), Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        shelf.save(Keeper(folder / _FILE, write=doc_to_json, read=json_to_doc))

    # --- changing the nodes

    @property
    def nodes(self) -> list[BaseNode]:
        """All nodes, in the order in which they came."""
        return self._own().items

    @property
    def similarity_top_k(self) -> int:
        """How many nodes a query gives at most."""
        return self._settings.k or DEFAULT_SIMILARITY_TOP_K

    @similarity_top_k.setter
    def similarity_top_k(self, k: int) -> None:
        self._settings = self._settings.changed(similarity_top_k=k)

    def add_nodes(self, nodes: Sequence[BaseNode], /) -> list[str]:
        """Add nodes, or replace those of the same id; the next query sees them. Gives their ids."""
        return self._own().put(self._rows(nodes))

    def delete(self, node_ids: Sequence[str], /) -> int:
        """Take nodes out by their ids; how many there were."""
        return self._own().remove(node_ids)

    delete_nodes = delete

    def _own(self) -> Shelf[BaseNode]:
        if self._shelf is None:
            raise ConfigError("this BM25Retriever has no nodes of its own: change them in its memory")
        return self._shelf

    def _rows(self, nodes: Sequence[BaseNode]) -> list[tuple[str | None, dict[str, str], BaseNode]]:
        return [(node.id_, self._words(node), node) for node in nodes]

    def _words(self, node: BaseNode) -> dict[str, str]:
        texts = {"text": node.get_content(metadata_mode=self._mode)}
        for field, name in self._fields.items():
            value = node.metadata.get(name)
            if value is not None:
                texts[field] = " ".join(map(str, value)) if isinstance(value, list | tuple | set) else str(value)
        return texts

    # --- asking

    def retrieve(
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        as_of: Any = None,
        namespace: str | None = None,
    ) -> list[NodeWithScore]:
        """The nodes that share the most telling words with the query; what is given here wins over the constructor's.

        `as_of` and `namespace` are for a memory.
        """
        with self._said(similarity_top_k, filters, {"as_of": as_of, "namespace": namespace}):
            return super().retrieve(str_or_query_bundle)

    async def aretrieve(
        self,
        str_or_query_bundle: QueryType,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        as_of: Any = None,
        namespace: str | None = None,
    ) -> list[NodeWithScore]:
        """The same, without blocking the event loop."""
        with self._said(similarity_top_k, filters, {"as_of": as_of, "namespace": namespace}):
            return await super().aretrieve(str_or_query_bundle)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        call = self._call()
        if self._memory is not None:
            return memory_nodes(self._memory.search_arm("bm25", query_bundle.query_str, **memory_wish(call)))
        return _found(self._own().search(query_bundle.query_str, k=self._k(call), check=_check(call)))

    @dispatcher.span
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        call, memory, query = self._call(), self._memory, query_bundle.query_str
        if memory is not None:
            return memory_nodes(await memory.asearch_arm("bm25", query, **memory_wish(call)))
        return _found(await self._own().asearch(query, k=self._k(call), check=_check(call)))

    @staticmethod
    def _k(call: Settings) -> int:
        return call.k or DEFAULT_SIMILARITY_TOP_K


def _check(call: Settings) -> Callable[[BaseNode], bool] | None:
    return None if call.filter is None else check_of(call.filter)


def _found(found: Sequence[Found]) -> list[NodeWithScore]:
    return scored_nodes((one.item, one.score) for one in found)


def _stored(vector_store: Any) -> list[BaseNode]:
    """All nodes of a vector store that keeps their texts."""
    kind = type(vector_store).__name__
    try:
        nodes: list[BaseNode] = list(vector_store.get_nodes(None))
    except (AttributeError, NotImplementedError, TypeError) as error:
        raise ConfigError(f"{kind} cannot list its nodes: give nodes= or docstore= instead") from error
    return nodes


def _terms(
    language: str | None, stemmer: Any, pattern: str | None, *, skip_stemming: bool
) -> Callable[[str], list[str]] | None:
    """The terms that LlamaIndex's own parameters ask for; None: our analyzer for the language."""
    if stemmer is None and pattern is None:
        return Analyzer(language=language or "english", stem=False) if skip_stemming else None
    name = Analyzer(language=language or "english", stem=False).language
    stem: Callable[[str], str] | None = None
    if not skip_stemming:
        stem = stemmer.stemWord if stemmer is not None else Analyzer(language=name).stemmed
    return pattern_terms(pattern or r"(?u)\b\w\w+\b", stem=stem, stops=STOPWORDS.get(name, ()))


def _checked_fields(fields: Mapping[str, str] | None) -> dict[str, str]:
    for field in fields or ():
        if field not in WEIGHTS or field == "text":
            raise ConfigError(f"fields names {field!r}; allowed: title, tags, predicate")
    return dict(fields or {})
