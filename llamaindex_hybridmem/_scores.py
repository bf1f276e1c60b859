"""Scores of LlamaIndex vector stores as cosines: most are already, some are distances or something made of them."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

from hybridmem.indexes.vector.chroma import similarity_in

__all__ = ["similarity_of", "to_cosine"]


def similarity_of(vector_store: Any, /) -> Callable[[float], float]:
    """What turns a store's score into a cosine, for vectors of length 1.

    Chroma's store gives exp(−distance): the distance is taken out again and read in the collection's space. FAISS gives
    the squared l2 or the inner product itself. The others give cosines.
    """
    names = {cls.__name__ for cls in type(vector_store).__mro__}
    if "ChromaVectorStore" in names:
        convert = similarity_in(vector_store._collection)  # noqa: SLF001
        return lambda score: _bounded(convert(-log(score))) if score > 0.0 else -1.0
    metric = getattr(getattr(vector_store, "_faiss_index", None), "metric_type", None)
    if metric == 1:
        return lambda score: _bounded(1.0 - score / 2.0)
    return _bounded


def to_cosine(vector_store: Any, /) -> Callable[[float], float] | None:
    """The same, None where the scores are cosines as they are."""
    convert = similarity_of(vector_store)
    return None if convert is _bounded else convert


def _bounded(score: float) -> float:
    return min(1.0, max(-1.0, score))
