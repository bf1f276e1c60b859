"""Rerankers of every kind as functions `(query, texts) -> scores`, recognised by their methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hybridmem.errors import ConfigError

__all__ = ["Reranker", "Scorer", "scorer_of"]

Scorer = Callable[[str, list[str]], Sequence[float]]
Reranker = Scorer | Any
"""A function `(query, texts) -> scores`, a LangChain document compressor or a LlamaIndex node postprocessor."""
_ALLOWED = "a function (query, texts) -> scores, a LangChain document compressor or a LlamaIndex node postprocessor"


def scorer_of(reranker: Reranker, /) -> Scorer:
    """The scorer of a reranker.

    A compressor or postprocessor returns the texts in a new order and may drop some: the first gets the highest score,
    dropped texts come after the others in their old order.
    """
    if isinstance(reranker, type):
        raise ConfigError(f"rerank scorer = {reranker!r} is not allowed: {_ALLOWED}")
    if hasattr(reranker, "compress_documents"):
        return lambda query, texts: _by_order(_compressed(reranker, query, texts), len(texts))
    if hasattr(reranker, "postprocess_nodes"):
        return lambda query, texts: _by_order(_postprocessed(reranker, query, texts), len(texts))
    if not callable(reranker):
        raise ConfigError(f"rerank scorer = {reranker!r} is not allowed: {_ALLOWED}")
    scorer: Scorer = reranker
    return scorer


def _compressed(compressor: Any, query: str, texts: Sequence[str]) -> list[int]:
    from langchain_core.documents import Document

    documents = [
        Document(page_content=text, id=str(place), metadata={"place": place}) for place, text in enumerate(texts)
    ]
    return [int(document.metadata["place"]) for document in compressor.compress_documents(documents, query)]


def _postprocessed(postprocessor: Any, query: str, texts: Sequence[str]) -> list[int]:
    from llama_index.core.schema import NodeWithScore, TextNode

    size = len(texts)
    nodes = [
        NodeWithScore(node=TextNode(text=text, id_=str(place)), score=1.0 - place / size)
        for place, text in enumerate(texts)
    ]
    return [int(one.node.node_id) for one in postprocessor.postprocess_nodes(nodes, query_str=query)]


def _by_order(order: Sequence[int], size: int) -> list[float]:
    scores = [-float(place) - 1.0 for place in range(size)]
    for rank, place in enumerate(order):
        scores[place] = float(len(order) - rank)
    return scores
