"""LangChain's vector stores: filters in their languages, and their scores as cosines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from hybridmem.core.fanout import in_thread
from hybridmem.errors import ConfigError
from hybridmem.filters.parse import All, Condition, Not, Test
from hybridmem.filters.predicate import compile_predicate, parse, to_chroma
from hybridmem.indexes.vector.chroma import similarity_in

__all__ = [
    "Scored",
    "asearch_store",
    "asimilarities",
    "check_of",
    "joined",
    "search_store",
    "similarities",
    "store_filter",
]


Check = Callable[[Document], bool]
_NO_METADATA = ("id", "text")
"""Fields of a document outside its metadata, which stores' filters cannot name."""


def check_of(filter: Any, /) -> Check:
    """A filter as a predicate of documents: a function of the document, or hybridmem's filter language.

    >>> check_of({"pages": {"$gt": 3}})(Document("…", metadata={"pages": 7}))
    True
    """
    if callable(filter):
        return filter  # type: ignore[no-any-return]
    matches = compile_predicate(filter)
    if not _beside_metadata(parse(filter)):
        return lambda document: matches(document.metadata)
    return lambda document: matches({"id": document.id, "text": document.page_content, **document.metadata})


def joined(own: Any, filter: Any, /) -> Any:
    """The conjunction of an arm's own filter, which stays in force, and another; None where they cannot be joined."""
    if own is None:
        return filter
    try:
        parse(both := {"$and": [own, filter]})
    except ConfigError:  # a function, or a store's own language
        return None
    return both


def store_filter(vectorstore: VectorStore, filter: Any, /) -> tuple[Any, Check | None]:
    """The filter to hand to a store, if any, and the predicate to apply to its results.

    A store gets a filter only in a language that we know: a function (InMemoryVectorStore), Chroma's `where`, and
    equalities of PGVector. FAISS filters only its 20 nearest documents and Qdrant takes objects of its own, so for
    these and all others the results are filtered here. What is not in our language is taken for the store's own and
    handed over as it is.
    """
    names = {cls.__name__ for cls in type(vectorstore).__mro__}
    if "InMemoryVectorStore" in names:
        return check_of(filter), None
    if callable(filter):
        return None, filter
    try:
        condition = parse(filter)
    except ConfigError:
        return filter, None
    check = check_of(filter)
    if _beside_metadata(condition):
        return None, check
    if "Chroma" in names:
        return _chroma(condition), check
    return _equalities(condition) if "PGVector" in names else None, check


def _equalities(condition: Condition) -> dict[str, Any] | None:
    """A conjunction of equalities with texts and numbers in PGVector's language, None for anything else."""
    parts = condition.parts if isinstance(condition, All) else (condition,)
    equal: dict[str, Any] = {}
    for test in parts:
        if not isinstance(test, Test) or test.op != "$eq" or test.field.type == "time" or test.field.path[1:]:
            return None
        name = test.field.path[0] if test.field.path else test.field.name
        value = test.operands[0].value
        if type(value) not in (str, int, float) or not name.isidentifier() or name in equal:
            return None
        equal[name] = {"$eq": value}
    return equal or None


def _beside_metadata(condition: Condition) -> bool:
    return any(test.field.name in _NO_METADATA and not test.field.path for test in _tests(condition))


def _tests(condition: Condition) -> Iterator[Test]:
    if isinstance(condition, Test):
        yield condition
    else:
        for part in (condition.part,) if isinstance(condition, Not) else condition.parts:
            yield from _tests(part)


def _chroma(condition: Condition) -> dict[str, Any] | None:
    """A filter in Chroma's language, None where Chroma has no such filter, and for times, whose form is unknown."""
    if any(test.field.type == "time" for test in _tests(condition)):
        return None
    try:
        return to_chroma(condition) or None
    except ConfigError:
        return None


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
