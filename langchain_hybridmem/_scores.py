"""Scores of LangChain vector stores as cosines: distances and similarities of every kind are converted.

For vectors of length 1:  cosine distance d → 1 − d;  squared l2 d² → 1 − d²/2;  l2 d → 1 − d²/2;  ip as Chroma
gives it (1 − dot) → 1 − d;  ip as pgvector gives it (−dot) → −d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from hybridmem.core.fanout import in_thread
from hybridmem.indexes.vector.chroma import similarity_in

__all__ = ["Scored", "asearch_store", "asimilarities", "search_store", "similarities"]

Scored = list[tuple[Document, float | None]]
"""Documents best first with their similarity, None where the store has no scores at all."""

Conversion = Callable[[float], float]


def similarities(vectorstore: VectorStore, query: str, /, *, k: int = 4, filter: Any = None, **kwargs: Any) -> Scored:
    """The k most similar documents with similarities in [-1, 1], higher is better.

    >>> from langchain_core.vectorstores import InMemoryVectorStore
    >>> from langchain_core.embeddings import DeterministicFakeEmbedding
    >>> store = InMemoryVectorStore.from_texts(["a", "b"], DeterministicFakeEmbedding(size=8))
    >>> [(d.page_content, round(s, 3)) for d, s in similarities(store, "a", k=1)]
    [('a', 1.0)]
    """
    asked = _keywords(k, filter, kwargs)
    try:
        found = vectorstore.similarity_search_with_score(query, **asked)
    except NotImplementedError:
        return [(document, None) for document in vectorstore.similarity_search(query, **asked)]
    return _converted(vectorstore, found)


async def asimilarities(
    vectorstore: VectorStore,
    query: str,
    /,
    *,
    k: int = 4,
    filter: Any = None,
    **kwargs: Any,
) -> Scored:
    """`similarities` without blocking the loop: the store's own async search where it is one, else a thread."""
    if _computes_inline(vectorstore):
        return await in_thread(lambda: similarities(vectorstore, query, k=k, filter=filter, **kwargs))
    asked = _keywords(k, filter, kwargs)
    try:
        raw = await vectorstore.asimilarity_search_with_score(query, **asked)
    except NotImplementedError:
        return [(document, None) for document in await vectorstore.asimilarity_search(query, **asked)]
    return _converted(vectorstore, raw)


def search_store(vectorstore: VectorStore, query: str, /, *, search_type: str, keywords: dict[str, Any]) -> Scored:
    """Search as `as_retriever(search_type=…)` does, with similarities beside the documents."""
    if search_type == "similarity":
        return similarities(vectorstore, query, **keywords)
    if search_type == "mmr":
        documents = vectorstore.max_marginal_relevance_search(query, **_mmr(keywords))
    else:
        documents = [hit for hit, _ in vectorstore.similarity_search_with_relevance_scores(query, **keywords)]
    return _with_scores(documents, similarities(vectorstore, query, **_candidates(keywords)))


async def asearch_store(
    vectorstore: VectorStore, query: str, /, *, search_type: str, keywords: dict[str, Any]
) -> Scored:
    """The same without blocking the event loop."""
    if search_type == "similarity":
        return await asimilarities(vectorstore, query, **keywords)
    return await in_thread(lambda: search_store(vectorstore, query, search_type=search_type, keywords=keywords))


def _mmr(keywords: dict[str, Any]) -> dict[str, Any]:
    """MMR chooses among the `fetch_k` nearest: at least as many as are wanted."""
    return {**keywords, "fetch_k": max(keywords.get("fetch_k", 20), keywords["k"])}


def _candidates(keywords: dict[str, Any]) -> dict[str, Any]:
    """The plain search whose hits include all documents that MMR or a threshold can choose."""
    chosen = ("k", "fetch_k", "lambda_mult", "score_threshold")
    plain = {name: value for name, value in keywords.items() if name not in chosen}
    return {**plain, "k": max(keywords.get("fetch_k", 20), keywords["k"])}


def _with_scores(documents: Sequence[Document], scored: Scored) -> Scored:
    scores = {(document.id, document.page_content): score for document, score in scored}
    return [(document, scores.get((document.id, document.page_content))) for document in documents]


def _keywords(k: int, filter: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """A filter is only passed on when there is one: not every store has the keyword."""
    return {"k": k, **kwargs} if filter is None else {"k": k, "filter": filter, **kwargs}


def _computes_inline(vectorstore: VectorStore) -> bool:
    """LangChain's in-memory store has async methods that compute on the loop."""
    return "InMemoryVectorStore" in _class_names(vectorstore)


def _converted(vectorstore: VectorStore, found: Sequence[tuple[Document, float]]) -> Scored:
    convert = _conversion(vectorstore) or _by_order([score for _, score in found])
    return [(document, min(1.0, max(-1.0, convert(float(score))))) for document, score in found]


def _conversion(vectorstore: VectorStore) -> Conversion | None:
    """The first rule that knows this store."""
    rules = (_user_rule, _known_similarity, _chroma_space, _faiss_metric, _pgvector_strategy, _base_rule)
    return next((rule for rule in (find(vectorstore) for find in rules) if rule is not None), None)


def _same(score: float) -> float:
    return score


def _one_minus(distance: float) -> float:
    return 1.0 - distance


def _squared(distance: float) -> float:
    return 1.0 - distance / 2.0


def _euclidean(distance: float) -> float:
    return 1.0 - distance * distance / 2.0


def _negative(distance: float) -> float:
    return -distance


def _class_names(vectorstore: VectorStore) -> set[str]:
    return {cls.__name__ for cls in type(vectorstore).__mro__}


def _user_rule(vectorstore: VectorStore) -> Conversion | None:
    """`relevance_score_fn=` given to Chroma or FAISS: the user's choice has priority."""
    return getattr(vectorstore, "override_relevance_score_fn", None)


def _known_similarity(vectorstore: VectorStore) -> Conversion | None:
    """Stores whose score is the cosine itself."""
    names = _class_names(vectorstore)
    if names & {"InMemoryVectorStore", "PineconeVectorStore"}:
        return _same
    if names & {"QdrantVectorStore", "Qdrant"}:
        kind = str(getattr(vectorstore, "distance", None) or getattr(vectorstore, "distance_strategy", "")).lower()
        return _same if "cos" in kind or "dot" in kind else None
    return None


def _chroma_space(vectorstore: VectorStore) -> Conversion | None:
    """Chroma by its collection's space: cosine and ip are 1 − similarity, l2 is squared."""
    collection = getattr(vectorstore, "_collection", None)
    return similarity_in(collection) if hasattr(collection, "configuration_json") else None


def _faiss_metric(vectorstore: VectorStore) -> Conversion | None:
    """FAISS by its index: metric 0 is the inner product itself, metric 1 the squared l2."""
    metric = getattr(getattr(vectorstore, "index", None), "metric_type", None)
    return {0: _same, 1: _squared}.get(metric) if isinstance(metric, int) else None


def _pgvector_strategy(vectorstore: VectorStore) -> Conversion | None:
    """langchain-postgres' PGVector: cosine, real (not squared) l2, or the negative inner product."""
    strategy = getattr(vectorstore, "_distance_strategy", None)
    value = str(getattr(strategy, "value", strategy))
    return {"cosine": _one_minus, "l2": _euclidean, "inner": _negative}.get(value)


def _base_rule(vectorstore: VectorStore) -> Conversion | None:
    """Any other store by the relevance function it chooses: LangChain's own ones name the distance."""
    try:
        chosen = vectorstore._select_relevance_score_fn()  # noqa: SLF001
    except (NotImplementedError, ValueError):
        return None
    if chosen is VectorStore._cosine_relevance_score_fn:  # noqa: SLF001
        return _one_minus
    if chosen is VectorStore._euclidean_relevance_score_fn:  # noqa: SLF001
        return _euclidean
    return chosen


def _by_order(scores: Sequence[float]) -> Conversion:
    """For an unknown store: results come best first, so scores that rise are distances."""
    return _one_minus if len(scores) > 1 and scores[0] < scores[-1] else _same
