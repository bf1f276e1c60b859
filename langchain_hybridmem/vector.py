"""VectorRetriever: vector search over any LangChain vector store, over Chroma, or over a memory; scores are cosines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from langchain_core.documents import Document
from langchain_core.retrievers import LangSmithRetrieverParams
from langchain_core.runnables import RunnableConfig
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field
from typing_extensions import Unpack

from hybridmem.core import validation
from hybridmem.core.fanout import Job, Steps, in_thread, one_job
from hybridmem.embedding.embedder import as_embedder
from hybridmem.embedding.sources import EmbeddingOption
from hybridmem.errors import ConfigError
from hybridmem.retrievers.arms import memory_hits
from hybridmem.retrievers.options import check_memory, refuse_settings
from hybridmem.retrievers.vector import TextCorpus, TextHit, TextItem, content_id, open_corpus, search_deeper
from langchain_hybridmem._conversion import ScoredDocuments, to_document
from langchain_hybridmem._runs import SearchRetriever
from langchain_hybridmem._settings import (
    FilterOption,
    HybridMemory,
    TimeOption,
    call_settings,
    clear_errors,
    documents_of_texts,
)
from langchain_hybridmem._vectorstores import asearch_store, check_of, search_store, store_filter

if TYPE_CHECKING:
    from langchain_hybridmem._settings import VectorCall, VectorCorpusSettings, VectorSettings

__all__ = ["VectorRetriever"]

Self = TypeVar("Self", bound="VectorRetriever")
Scored = list[tuple[Document, float | None]]
SearchType = Literal["similarity", "similarity_score_threshold", "mmr"]
_CHECKED = ("vectorstore", "memory", "texts", "k", "search_type", "search_kwargs")
_CALL = ("k", "filter", "score_threshold", "with_scores", "as_of", "namespace")


class VectorRetriever(SearchRetriever):
    """The documents whose embeddings are nearest to the query's, with cosines for every kind of store.

    >>> embed = lambda texts: [[text.count("a") + 0.1, text.count("b") + 0.1] for text in texts]
    >>> retriever = VectorRetriever.from_texts(["aaa", "bbb"], embedding=embed, k=1)
    >>> [document.page_content for document in retriever.invoke("a")]
    ['aaa']

    `VectorRetriever(vectorstore=store)` searches any LangChain vector store; `from_texts` and `from_documents` keep
    documents in this process, in a Chroma folder (`persist_directory=`) or on a Chroma server (`host=`, `port=`);
    `from_memory` searches a HybridMemory. `k`, `filter`, `score_threshold` and `with_scores` can be set here and again
    in `invoke(query, …)`.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    vectorstore: VectorStore | None = None
    """Any LangChain vector store; its distances are converted to cosines."""
    memory: HybridMemory | None = None
    """A HybridMemory to search instead."""
    texts: TextCorpus | None = Field(default=None, repr=False, exclude=True)
    """The corpus that `from_texts` and `from_documents` make."""
    k: int = 4
    filter: FilterOption | None = None
    """`{"lang": "en"}` or a function of the document; a filter in the store's own language is handed to it."""
    score_threshold: float | None = None
    """The lowest cosine of a result."""
    with_scores: bool = False
    """Put the cosine into `metadata["score"]`, on copies."""
    search_type: SearchType = "similarity"
    """How a vector store is searched, as in `as_retriever(search_type=…)`."""
    search_kwargs: dict[str, Any] = Field(default_factory=dict)
    """More keywords for the vector store, such as `fetch_k` and `lambda_mult` for MMR."""
    as_of: TimeOption = None
    namespace: str | None = None

    if TYPE_CHECKING:  # type checkers read the fields above, and the keywords of one call

        def invoke(  # type: ignore[override]
            self, input: str, config: RunnableConfig | None = None, **kwargs: Unpack[VectorCall]
        ) -> list[Document]:
            """The documents for a query, best first."""
            ...

        async def ainvoke(  # type: ignore[override]
            self, input: str, config: RunnableConfig | None = None, **kwargs: Unpack[VectorCall]
        ) -> list[Document]:
            """The same, without blocking the event loop."""
            ...

    else:

        def __init__(self, **settings: Any) -> None:  # a wrong setting is a ConfigError, not pydantic's own error
            _check_settings(type(self), settings)
            with clear_errors():
                super().__init__(**settings)

    def _change(self, settings: Mapping[str, Any]) -> None:
        """Set fields, which are checked as in the constructor."""
        _check_settings(type(self), {**{name: getattr(self, name) for name in _CHECKED}, **settings})
        super()._change(settings)

    # --- constructors

    @classmethod
    def from_texts(
        cls: type[Self],
        texts: Iterable[str],
        embedding: EmbeddingOption = "local",
        metadatas: Iterable[Mapping[str, Any]] | None = None,
        *,
        ids: Iterable[str | None] | None = None,
        **settings: Unpack[VectorCorpusSettings],
    ) -> Self:
        """Over texts, with metadata and ids when given; see `from_documents`."""
        return cls.from_documents(documents_of_texts(texts, metadatas, ids), embedding, **settings)

    @classmethod
    def from_documents(
        cls: type[Self],
        documents: Iterable[Document],
        embedding: EmbeddingOption = "local",
        *,
        persist_directory: str | PathLike[str] | None = None,
        host: str | None = None,
        port: int | None = None,
        ssl: bool | None = None,
        collection_name: str | None = None,
        **settings: Unpack[VectorSettings],
    ) -> Self:
        """Over documents, in this process, or in Chroma when a folder or a server is given.

        `embedding` is any kind of embedding object, a function texts → vectors, or "local" for the offline model.
        No documents and a collection that has some already is a way to open it. A document without an id gets one
        derived from its content, so that adding it again changes nothing.
        """
        where = {"persist_directory": persist_directory, "host": host, "port": port, "ssl": ssl}
        corpus = open_corpus(as_embedder(embedding), **where, collection_name=collection_name)
        try:
            retriever = cls(texts=corpus, **settings)
            corpus.put([_item(document) for document in documents])
        except BaseException:
            corpus.close()
            raise
        return retriever

    @classmethod
    async def afrom_texts(
        cls: type[Self],
        texts: Iterable[str],
        embedding: EmbeddingOption = "local",
        metadatas: Iterable[Mapping[str, Any]] | None = None,
        *,
        ids: Iterable[str | None] | None = None,
        **settings: Unpack[VectorCorpusSettings],
    ) -> Self:
        """`from_texts` without blocking the event loop."""
        return await cls.afrom_documents(documents_of_texts(texts, metadatas, ids), embedding, **settings)

    @classmethod
    async def afrom_documents(
        cls: type[Self],
        documents: Iterable[Document],
        embedding: EmbeddingOption = "local",
        **settings: Unpack[VectorCorpusSettings],
    ) -> Self:
        """`from_documents` without blocking the event loop."""
        made: Self = await in_thread(lambda: cls.from_documents(documents, embedding, **settings))
        return made

    @classmethod
    def from_memory(cls: type[Self], memory: HybridMemory, /, **settings: Unpack[VectorSettings]) -> Self:
        """Over a HybridMemory: its vector arm alone, with cosines."""
        return cls(memory=memory, **settings)

    # --- documents

    def add_documents(self, documents: Sequence[Document], /) -> list[str]:
        """Add documents, or replace those of the same id; returns the ids to delete them by."""
        if self.vectorstore is not None:
            return self.vectorstore.add_documents(list(documents))
        return self._corpus().put([_item(document) for document in documents])

    async def aadd_documents(self, documents: Sequence[Document], /) -> list[str]:
        """The same without blocking the event loop."""
        if self.vectorstore is not None:
            return await self.vectorstore.aadd_documents(list(documents))
        return await in_thread(lambda: self.add_documents(documents))

    def delete(self, ids: Sequence[str], /) -> bool:
        """Remove documents by their ids; False when none was there."""
        if self.vectorstore is not None:
            return self.vectorstore.delete(list(ids)) is not False
        return self._corpus().remove(ids) > 0

    async def adelete(self, ids: Sequence[str], /) -> bool:
        """The same without blocking the event loop."""
        if self.vectorstore is not None:
            return await self.vectorstore.adelete(list(ids)) is not False
        return await in_thread(lambda: self.delete(ids))

    def close(self) -> None:
        """Close the Chroma folder or connection that `from_texts` or `from_documents` opened."""
        if self.texts is not None:
            self.texts.close()

    async def aclose(self) -> None:
        """The same without blocking the event loop."""
        await in_thread(self.close)

    def _corpus(self) -> TextCorpus:
        if self.texts is None:
            raise ConfigError("this VectorRetriever has no documents of its own: change them in its memory")
        return self.texts

    # --- search

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        params = super()._get_ls_params(**kwargs)
        inner = self.vectorstore if self.vectorstore is not None else self.memory or self.texts
        params["ls_vector_store_provider"] = type(inner).__name__
        return params

    def _found(self, query: str, given: Mapping[str, Any]) -> Steps[list[Document]]:
        call = call_settings(self, _CALL, given)
        validation.k(call["k"])
        scored: Scored
        if self.vectorstore is not None:
            scored = yield from self._search_store(self.vectorstore, query, call["k"], call["filter"])
        elif self.memory is not None:
            wanted = {name: call[name] for name in ("k", "filter", "as_of", "namespace")}
            results = yield from memory_hits(self.memory, "vector", query, wanted)
            scored = [(to_document(result.memory), result.score) for result in results]
        else:
            how, corpus = {"k": call["k"], **_text_filter(call["filter"])}, self._corpus()
            job = Job("vector", partial(corpus.search, query, **how), partial(corpus.asearch, query, **how))
            hits = yield from one_job(job)
            scored = [(_document(hit), hit.score) for hit in hits]
        return ScoredDocuments.of(_above(scored, call["score_threshold"]), marked=call["with_scores"])

    def _search_store(self, store: VectorStore, query: str, k: int, filter: FilterOption | None) -> Steps[Scored]:
        """Search a vector store; where a filter has to be applied here, deeper until k documents pass."""
        keywords, check = dict(self.search_kwargs), None
        if filter is not None and keywords.get("filter") is not None:
            check = check_of(filter)  # the store's own filter stays in force: both must hold
        elif filter is not None:
            handed, check = store_filter(store, filter)
            if handed is not None:
                keywords["filter"] = handed

        def request(depth: int) -> Job:
            how: Any = {"search_type": self.search_type, "keywords": {**keywords, "k": depth}}
            return Job(
                "vector", partial(search_store, store, query, **how), partial(asearch_store, store, query, **how)
            )

        passes = None if check is None else _of_document(check)
        hits: Scored = yield from search_deeper(request, k, passes)
        return hits


def _above(scored: Scored, least: float | None) -> Scored:
    """The documents that are similar enough."""
    if least is None:
        return scored
    if any(score is None for _, score in scored):
        raise ConfigError(f"score_threshold = {least!r}: this vector store gives no scores")
    return [(document, score) for document, score in scored if score is not None and score >= least]


def _text_filter(filter: Any) -> dict[str, Any]:
    """The filter for a corpus: in our language, or a function of the document as a check."""
    return {"check": lambda hit: filter(_document(hit))} if callable(filter) else {"filter": filter}


def _of_document(check: Callable[[Document], bool]) -> Callable[[tuple[Document, float | None]], bool]:
    return lambda hit: check(hit[0])


def _document(hit: TextHit) -> Document:
    return Document(hit.text, metadata=hit.metadata, id=hit.id)


def _item(document: Document, /) -> TextItem:
    """A document as it is stored; one without an id gets one derived from its content."""
    key = document.id or content_id(document.page_content, document.metadata)
    return TextItem(key, document.page_content, document.metadata)


def _check_settings(cls: type[VectorRetriever], settings: Mapping[str, Any]) -> None:
    refuse_settings(cls.__name__, settings, cls.model_fields)
    given = [name for name in ("vectorstore", "memory", "texts") if settings.get(name) is not None]
    if len(given) != 1:
        raise ConfigError(
            f"got {' and '.join(given) or 'nothing to search'}: give vectorstore= or memory=, "
            "or use from_texts, from_documents or from_memory"
        )
    if given == ["memory"]:
        check_memory(settings["memory"])
    validation.k(settings.get("k", 4))
    kind = settings.get("search_type", "similarity")
    validation.one_of("search_type", kind, ("similarity", "similarity_score_threshold", "mmr"))
    if kind != "similarity" and given != ["vectorstore"]:
        raise ConfigError(f"search_type = {kind!r} is for a vectorstore")
    if kind == "similarity_score_threshold" and "score_threshold" not in settings.get("search_kwargs", {}):
        raise ConfigError("search_type = 'similarity_score_threshold' needs search_kwargs={'score_threshold': …}")
