"""Filters for LangChain documents and vector stores: as predicates, and in a store's own language where we know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from hybridmem.errors import ConfigError
from hybridmem.filters.parse import All, Condition, Not, Test
from hybridmem.filters.predicate import compile_predicate, parse, to_chroma

__all__ = ["check_of", "joined", "store_filter"]

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
