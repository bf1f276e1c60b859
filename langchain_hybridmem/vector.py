"""VectorRetriever: by meaning, over any LangChain vector store, over Chroma, or over a memory; scores are cosines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field

from hybridmem.core.fanout import in_thread
from hybridmem.embedding.embedder import as_embedder
from hybridmem.errors import ConfigError
from hybridmem.indexes.bm25.documents import check_k
from hybridmem.retrievers.vector import Texts, open_texts
from langchain_hybridmem._scores import asimilarities, similarities
from langchain_hybridmem._settings import asked_of, clear_errors, documents_of_texts, refuse_unknown
from langchain_hybridmem._vectors import Asked, Wide, shown_memories, shown_texts, to_row

__all__ = ["VectorRetriever"]

Self = TypeVar("Self", bound="VectorRetriever")
_CALL = ("k", "filter", "score_threshold", "with_scores", "as_of", "namespace")


class VectorRetriever(BaseRetriever):
    """Meaning: the documents whose embeddings are nearest to the query's, with cosines whatever the store counts in.

    >>> embed = lambda texts: [[text.count("a") + 0.1, text.count("b") + 0.1] for text in texts]
    >>> retriever = VectorRetriever.from_texts(["aaa", "bbb"], embedding=embed, k=1)
    >>> [document.page_content for document in retriever.invoke("a")]
    ['aaa']

    `VectorRetriever(vectorstore=store)` asks any LangChain vector store; `from_texts` and `from_documents` keep them
    in this process, in a Chroma folder (`persist_directory=`) or on a Chroma server (`host=`, `port=`);
    `from_memory` asks a HybridMemory. `k`, `filter`, `score_threshold` and `with_scores` can be set here and said
    again in `invoke(query, …)`.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    vectorstore: VectorStore | None = None
    """Any LangChain vector store; its distances become cosines."""
    memory: Any = None
    """A HybridMemory to ask instead."""
    texts: Texts | None = Field(default=None, repr=False, exclude=True)
    """What `from_texts` and `from_documents` made."""
    k: int = 4
    filter: Any = None
    """`{"lang": "en"}` or a function of the document; a vector store's own filter is passed on."""
    score_threshold: float | None = None
    """The lowest cosine that still is a result."""
    with_scores: bool = False
    """Put the cosine into `metadata["score"]`, on copies."""
    search_kwargs: dict[str, Any] = Field(default_factory=dict)
    """More keywords for the vector store."""
    as_of: Any = None
    namespace: str | None = None

    if not TYPE_CHECKING:  # type checkers read the fields above instead

        def __init__(self, **settings: Any) -> None:
            """Check every setting with a ConfigError, before pydantic would wrap it into its own."""
            _check_settings(type(self), settings)
            with clear_errors():
                super().__init__(**settings)

    # --- ways in

    @classmethod
    def from_texts(
        cls: type[Self],
        texts: Iterable[str],
        embedding: Any = "local",
        metadatas: Iterable[Mapping[str, Any]] | None = None,
        *,
        ids: Iterable[str | None] | None = None,
        **settings: Any,
    ) -> Self:
        """Over texts, with metadata and ids when given; see `from_documents`."""
        return cls.from_documents(documents_of_texts(texts, metadatas, ids), embedding, **settings)

    @classmethod
    def from_documents(
        cls: type[Self],
        documents: Iterable[Document],
        embedding: Any = "local",
        *,
        persist_directory: Any = None,
        host: str | None = None,
        port: int | None = None,
        ssl: bool | None = None,
        collection_name: str | None = None,
        **settings: Any,
    ) -> Self:
        """Over documents, in this process, or in Chroma when a folder or a server is given.

        `embedding` is any kind of embedding object, a function texts → vectors, or "local" for the offline model.
        No documents and a place that has some already is a way to open it. A document without an id gets one made of
        its content, so that adding it again changes nothing.
        """
        where = {"persist_directory": persist_directory, "host": host, "port": port, "ssl": ssl}
        kept = open_texts(as_embedder(embedding), **where, collection_name=collection_name)
        try:
            retriever = cls(texts=kept, **settings)
            kept.put([to_row(document) for document in documents])
        except BaseException:
            kept.close()
            raise
        return retriever

    @classmethod
    def from_memory(cls: type[Self], memory: Any, /, **settings: Any) -> Self:
        """Over a HybridMemory: its vector arm alone, with cosines."""
        return cls(memory=memory, **settings)

    # --- changing the documents

    def add_documents(self, documents: Sequence[Document], /) -> list[str]:
        """Add documents, or replace those of the same id; gives the ids to delete them by."""
        if self.vectorstore is not None:
            return self.vectorstore.add_documents(list(documents))
        return self._own().put([to_row(document) for document in documents])

    async def aadd_documents(self, documents: Sequence[Document], /) -> list[str]:
        """The same without blocking the event loop."""
        if self.vectorstore is not None:
            return await self.vectorstore.aadd_documents(list(documents))
        added: list[str] = await in_thread(lambda: self.add_documents(documents))
        return added

    def delete(self, ids: Sequence[str], /) -> bool:
        """Take documents out by their ids; False when none was there."""
        if self.vectorstore is not None:
            return self.vectorstore.delete(list(ids)) is not False
        return self._own().remove(ids) > 0

    def close(self) -> None:
        """Let go of the Chroma folder or connection that `from_texts` or `from_documents` opened."""
        if self.texts is not None:
            self.texts.close()

    def _own(self) -> Texts:
        if self.texts is None:
            raise ConfigError("this VectorRetriever has no documents of its own: change them in its memory")
        return self.texts

    # --- asking

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        params = super()._get_ls_params(**kwargs)
        inner = self.vectorstore if self.vectorstore is not None else self.memory or self.texts
        params["ls_vector_store_provider"] = type(inner).__name__
        return params

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002
        k: int | None = None,
        filter: Any = None,
        score_threshold: float | None = None,
        with_scores: bool | None = None,
        as_of: Any = None,
        namespace: str | None = None,
        **unknown: Any,
    ) -> list[Document]:
        said = {"k": k, "filter": filter, "score_threshold": score_threshold, "with_scores": with_scores}
        asked = self._asked({**unknown, **said, "as_of": as_of, "namespace": namespace})
        if self.memory is not None:
            return shown_memories(self.memory.search_arm("vector", query, **asked.to_memory()), asked)
        if self.vectorstore is None:
            plain, check = asked.for_texts()
            return shown_texts(self._own().search(query, k=asked.k, filter=plain, check=check), asked)
        wide = Wide(self.vectorstore, asked, self.search_kwargs)
        while wide.more:
            wide.take(similarities(self.vectorstore, query, **wide.keywords))
        return wide.documents

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,  # noqa: ARG002
        k: int | None = None,
        **said: Any,
    ) -> list[Document]:
        asked = self._asked({**said, "k": k})
        if self.memory is not None:
            memory = self.memory
            results = await memory.asearch_arm("vector", query, **asked.to_memory())
            return shown_memories(results, asked)
        if self.vectorstore is None:
            plain, check = asked.for_texts()
            return shown_texts(await self._own().asearch(query, k=asked.k, filter=plain, check=check), asked)
        wide = Wide(self.vectorstore, asked, self.search_kwargs)
        while wide.more:
            wide.take(await asimilarities(self.vectorstore, query, **wide.keywords))
        return wide.documents

    def _asked(self, said: dict[str, Any]) -> Asked:
        asked = Asked(**asked_of(self, _CALL, said))
        check_k(asked.k)
        return asked


def _check_settings(cls: type[VectorRetriever], settings: Mapping[str, Any]) -> None:
    refuse_unknown(cls, settings)
    given = [name for name in ("vectorstore", "memory", "texts") if settings.get(name) is not None]
    if len(given) != 1:
        raise ConfigError(
            f"got {' and '.join(given) or 'nothing to search'}: give vectorstore= or memory=, "
            "or use from_texts, from_documents or from_memory"
        )
    check_k(settings.get("k", 4))
