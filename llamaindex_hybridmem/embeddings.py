"""LocalEmbedding: the offline embedder as a LlamaIndex `BaseEmbedding`, for any index."""

from __future__ import annotations

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from hybridmem.embedding.embedder import Embedder
from hybridmem.embedding.local import LocalEmbedder

__all__ = ["LocalEmbedding"]


class LocalEmbedding(BaseEmbedding):
    """An embedding model that needs no network and no key: `pip install 'hybridmem[local]'`.

    >>> len(LocalEmbedding().get_query_embedding("a cat"))
    256
    """

    model_name: str = "hybridmem-local"
    _embedder: Embedder = PrivateAttr(default_factory=LocalEmbedder)

    @classmethod
    def class_name(cls) -> str:
        """The name in serialised settings."""
        return "LocalEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._embedder.query(query).tolist()
        return vector

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [vector.tolist() for vector in self._embedder.documents(texts)]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = (await self._embedder.aquery(query)).tolist()
        return vector

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [vector.tolist() for vector in await self._embedder.adocuments(texts)]
