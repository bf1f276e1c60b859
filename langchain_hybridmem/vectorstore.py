"""HybridVectorStore: LangChain's `VectorStore` interface over a HybridMemory, with hybrid search behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from hybridmem.core.fanout import in_thread
from hybridmem.core.protocols import View
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from hybridmem.memory.memory import HybridMemory
from hybridmem.memory.results import Result
from hybridmem.retrievers.options import check_memory, refuse_keywords
from langchain_hybridmem.embeddings import EmbedderEmbeddings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hybridmem.filters.parse import Filter
    from langchain_hybridmem._settings import AddingCall, HybridCall, NearestCall, NewMemorySettings

__all__ = ["HybridVectorStore"]

_ADDING = ("batch_size", "ttl", "on_duplicate")
"""`index()` says batch_size to every vector store; a memory writes a thousand at a time by itself."""
_SEARCHING = ("as_of", "recipe", "superseded", "tokens", "touch", "min_confidence")
_VECTOR_ONLY = ("as_of",)


class HybridVectorStore(VectorStore):
    """A memory as a LangChain vector store: `similarity_search` ranks by words, meaning and graph together.

    >>> from hybridmem import HybridMemory
    >>> store = HybridVectorStore(HybridMemory(embedder=None))
    >>> _ = store.add_texts(["Ana moved to Lisbon", "Bob plays chess"], ids=["1", "2"])
    >>> store.similarity_search("Where did Ana move?", k=1)[0].id
    '1'

    Scores are those of the fused ranking, between 0 and 1, higher is better. `filter` is the memory's filter language.
    Searches by vector use the vectors alone. Deleted documents leave every search and stay in the memory's history.
    """

    def __init__(self, memory: HybridMemory, /) -> None:
        check_memory(memory)
        self.memory = memory
        self._recipe = replace(memory.recipe, duplicates=None)  # equal texts under two ids are two documents

    @property
    def embeddings(self) -> Embeddings | None:
        """The memory's embedder as a LangChain object; None without one."""
        return None if self.memory.embedder is None else EmbedderEmbeddings(self.memory.embedder)

    # --- writing

    def add_texts(  # type: ignore[override]
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Unpack[AddingCall],
    ) -> list[str]:
        """Add texts, or replace those whose ids are there already; gives the ids.

        `ttl` and `on_duplicate` are those of `HybridMemory.add_many`.
        """
        refuse_keywords("add_texts", kwargs, _ADDING)
        return self.memory.add_many(
            _memories(texts, metadatas, ids), ttl=kwargs.get("ttl"), on_duplicate=kwargs.get("on_duplicate", "keep")
        )

    async def aadd_texts(  # type: ignore[override]
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Unpack[AddingCall],
    ) -> list[str]:
        """Add texts without blocking the event loop."""
        refuse_keywords("aadd_texts", kwargs, _ADDING)
        return await self.memory.aadd_many(
            _memories(texts, metadatas, ids), ttl=kwargs.get("ttl"), on_duplicate=kwargs.get("on_duplicate", "keep")
        )

    def delete(self, ids: list[str] | None = None, **kwargs: NoReturn) -> bool | None:
        """Delete documents; all of them when no ids are given. Ids that are not there are passed over."""
        refuse_keywords("delete", kwargs, ())
        if ids is None:
            self.memory.clear()
        elif ids:
            self.memory.forget(*ids)
        return True

    async def adelete(self, ids: list[str] | None = None, **kwargs: NoReturn) -> bool | None:
        """Delete documents without blocking the event loop."""
        done: bool | None = await in_thread(lambda: self.delete(ids, **kwargs))
        return done

    # --- reading

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents of some ids, in their order; ids that are not there are passed over."""
        listed = self.memory.list(filter={"id": {"$in": list(ids)}}, superseded=False)  # without expired ones
        found = {memory.id: _document(memory) for memory in listed}
        return [found[id_] for id_ in ids if id_ in found]

    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The same without blocking the event loop."""
        found: list[Document] = await in_thread(lambda: self.get_by_ids(ids))
        return found

    def similarity_search(  # type: ignore[override]
        self, query: str, k: int = 4, filter: Filter | None = None, **kwargs: Unpack[HybridCall]
    ) -> list[Document]:
        """The k best documents for a query, by the memory's fused ranking."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter, **kwargs)]

    async def asimilarity_search(  # type: ignore[override]
        self, query: str, k: int = 4, filter: Filter | None = None, **kwargs: Unpack[HybridCall]
    ) -> list[Document]:
        """The same without blocking the event loop."""
        return [document for document, _ in await self.asimilarity_search_with_score(query, k, filter, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Filter | None = None, **kwargs: Unpack[HybridCall]
    ) -> list[tuple[Document, float]]:
        """The k best documents with their fused scores: between 0 and 1, higher is better."""
        refuse_keywords("similarity_search_with_score", kwargs, _SEARCHING)
        results = self.memory.search(query, k=k, filter=filter, **self._how(kwargs))
        return _scored(self._filled(query, results, k, filter, kwargs))

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, filter: Filter | None = None, **kwargs: Unpack[HybridCall]
    ) -> list[tuple[Document, float]]:
        """The same without blocking the event loop."""
        refuse_keywords("asimilarity_search_with_score", kwargs, _SEARCHING)
        results = await self.memory.asearch(query, k=k, filter=filter, **self._how(kwargs))
        filled: list[Result] = await in_thread(lambda: self._filled(query, results, k, filter, kwargs))
        return _scored(filled)

    def _how(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"recipe": self._recipe, **given}

    def _filled(
        self, query: str, results: Sequence[Result], k: int, filter: Filter | None, how: Mapping[str, Any]
    ) -> list[Result]:
        """The results and, where the recipe's gate left fewer than k, the nearest other documents with score 0.

        A vector store gives k documents whenever it has them. `min_confidence` and `tokens` ask for fewer.
        """
        filled = list(results)
        wanted = how.get("min_confidence") is None and how.get("tokens") is None and bool(query.strip())
        if len(filled) < k and wanted and self.memory.embedder is not None:
            known = {result.id for result in results}
            vector = self.memory.embedder.query(query)
            nearest = self.memory.nearest(vector, k=k, filter=filter, as_of=how.get("as_of"))
            filled += [replace(one, score=0.0) for one in nearest if one.id not in known][: k - len(filled)]
        return filled

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        return self.similarity_search_with_score(query, k, **kwargs)

    async def _asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        return await self.asimilarity_search_with_score(query, k, **kwargs)

    def similarity_search_by_vector(  # type: ignore[override]
        self, embedding: list[float], k: int = 4, filter: Filter | None = None, **kwargs: Unpack[NearestCall]
    ) -> list[Document]:
        """The k documents whose vectors are nearest to a given one, by cosine similarity."""
        return [document for document, _ in self.similarity_search_with_score_by_vector(embedding, k, filter, **kwargs)]

    async def asimilarity_search_by_vector(  # type: ignore[override]
        self, embedding: list[float], k: int = 4, filter: Filter | None = None, **kwargs: Unpack[NearestCall]
    ) -> list[Document]:
        """The same without blocking the event loop."""
        found: list[Document] = await in_thread(
            lambda: self.similarity_search_by_vector(embedding, k, filter, **kwargs)
        )
        return found

    def similarity_search_with_score_by_vector(
        self, embedding: list[float], k: int = 4, filter: Filter | None = None, **kwargs: Unpack[NearestCall]
    ) -> list[tuple[Document, float]]:
        """The k nearest documents with their cosine similarities."""
        refuse_keywords("similarity_search_with_score_by_vector", kwargs, _VECTOR_ONLY)
        return _scored(self.memory.nearest(embedding, k=k, filter=filter, **kwargs))

    async def asimilarity_search_with_score_by_vector(
        self, embedding: list[float], k: int = 4, filter: Filter | None = None, **kwargs: Unpack[NearestCall]
    ) -> list[tuple[Document, float]]:
        """The same without blocking the event loop."""
        found: list[tuple[Document, float]] = await in_thread(
            lambda: self.similarity_search_with_score_by_vector(embedding, k, filter, **kwargs)
        )
        return found

    # --- diversity

    def max_marginal_relevance_search(  # type: ignore[override]
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,
        **kwargs: Unpack[HybridCall],
    ) -> list[Document]:
        """Find k documents among the best `fetch_k` of the fused ranking that differ from each other."""
        refuse_keywords("max_marginal_relevance_search", kwargs, _SEARCHING)
        if self.memory.embedder is None:
            raise ConfigError("max_marginal_relevance_search needs vectors: this memory has no embedder")
        results = self.memory.search(query, k=fetch_k, filter=filter, **self._how(kwargs))
        candidates = self._filled(query, results, k, filter, kwargs)
        return self._diverse(self.memory.embedder.query(query), candidates, k, lambda_mult)

    async def amax_marginal_relevance_search(  # type: ignore[override]
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,
        **kwargs: Unpack[HybridCall],
    ) -> list[Document]:
        """The same without blocking the event loop."""
        found: list[Document] = await in_thread(
            lambda: self.max_marginal_relevance_search(query, k, fetch_k, lambda_mult, filter, **kwargs)
        )
        return found

    def max_marginal_relevance_search_by_vector(  # type: ignore[override]
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,
        **kwargs: Unpack[NearestCall],
    ) -> list[Document]:
        """Find k documents that differ from each other among the `fetch_k` nearest to a vector."""
        refuse_keywords("max_marginal_relevance_search_by_vector", kwargs, _VECTOR_ONLY)
        results = self.memory.nearest(embedding, k=fetch_k, filter=filter, **kwargs)
        return self._diverse(embedding, results, k, lambda_mult)

    async def amax_marginal_relevance_search_by_vector(  # type: ignore[override]
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,
        **kwargs: Unpack[NearestCall],
    ) -> list[Document]:
        """The same without blocking the event loop."""
        found: list[Document] = await in_thread(
            lambda: self.max_marginal_relevance_search_by_vector(embedding, k, fetch_k, lambda_mult, filter, **kwargs)
        )
        return found

    def _diverse(self, embedding: Any, results: Sequence[Result], k: int, lambda_mult: float) -> list[Document]:
        """MMR over results; those without a vector come last."""
        vectors = self.memory.store.vectors([result.id for result in results], view=View(self.memory.name))
        rows = [place for place, vector in enumerate(vectors) if vector is not None]
        chosen = maximal_marginal_relevance(
            np.asarray(embedding, dtype=np.float32), [vectors[place] for place in rows], lambda_mult=lambda_mult, k=k
        )
        order = [rows[place] for place in chosen]
        order += [place for place, vector in enumerate(vectors) if vector is None]
        return [_document(results[place].memory) for place in order[:k]]

    # --- construction

    @classmethod
    def from_texts(  # type: ignore[override]
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        path: str | Path = ":memory:",
        namespace: str = "",
        **kwargs: Unpack[NewMemorySettings],
    ) -> HybridVectorStore:
        """A store over a new or existing memory at `path`, with these texts added; more goes to `HybridMemory`."""
        store = cls(HybridMemory(path, embedder=embedding, namespace=namespace, **kwargs))
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(  # type: ignore[override]
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        path: str | Path = ":memory:",
        namespace: str = "",
        **kwargs: Unpack[NewMemorySettings],
    ) -> HybridVectorStore:
        """The same without blocking the event loop."""
        made: HybridVectorStore = await in_thread(
            lambda: cls.from_texts(texts, embedding, metadatas, ids=ids, path=path, namespace=namespace, **kwargs)
        )
        return made


def _memories(
    texts: Iterable[str], metadatas: Sequence[dict[str, Any]] | None, ids: Sequence[str | None] | None
) -> list[Memory]:
    listed = list(texts)
    for name, given in (("metadatas", metadatas), ("ids", ids)):
        if given is not None and len(given) != len(listed):
            raise ConfigError(f"{name} has {len(given)} entries for {len(listed)} texts: one for each")
    return [
        Memory(text, id=(ids[place] or "") if ids else "", metadata=dict(metadatas[place]) if metadatas else {})
        for place, text in enumerate(listed)
    ]


def _document(memory: Memory) -> Document:
    return Document(id=memory.id, page_content=memory.text, metadata=dict(memory.metadata))


def _scored(results: Sequence[Result]) -> list[tuple[Document, float]]:
    return [(_document(result.memory), result.score) for result in results]
