"""LocalEmbeddings: the offline embedder as LangChain `Embeddings`, for any vector store."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings

from hybridmem.embedding.embedder import Embedder
from hybridmem.embedding.local import LocalEmbedder

__all__ = ["EmbedderEmbeddings", "LocalEmbeddings"]


class EmbedderEmbeddings(Embeddings):
    """An embedder as LangChain asks for it."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One unit vector for each text."""
        vectors: list[list[float]] = [vector.tolist() for vector in self.embedder.documents(texts)]
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The unit vector of a query."""
        vector: list[float] = self.embedder.query(text).tolist()
        return vector

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """The same without blocking the event loop."""
        vectors: list[list[float]] = [vector.tolist() for vector in await self.embedder.adocuments(texts)]
        return vectors

    async def aembed_query(self, text: str) -> list[float]:
        """The same without blocking the event loop."""
        vector: list[float] = (await self.embedder.aquery(text)).tolist()
        return vector


class LocalEmbeddings(EmbedderEmbeddings):
    """Embeddings that need no network and no key: `pip install 'hybridmem[local]'`.

    >>> len(LocalEmbeddings().embed_query("a cat"))
    256
    """

    def __init__(self) -> None:
        super().__init__(LocalEmbedder())

    def __reduce__(self) -> tuple[type[LocalEmbeddings], tuple[()]]:
        return LocalEmbeddings, ()
