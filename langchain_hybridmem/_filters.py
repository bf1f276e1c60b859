"""Filters on their way to an arm: in its own language where it has one, checked on its results where it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from hybridmem.errors import ConfigError
from hybridmem.filters.parse import Condition, Not, Test
from hybridmem.filters.predicate import compile_predicate, parse, to_chroma

__all__ = ["check_of", "joined", "store_filter"]

Check = Callable[[Document], bool]
_NO_METADATA = ("id", "text")
"""What a document has beside its metadata: stores' filters do not look there."""


def check_of(filter: Any, /) -> Check:
    """A filter as a yes or no about a document: a function of the document, or hybridmem's filter language.

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
    """A filter that holds where both do, because an arm's own stays in force; None where they cannot be joined."""
    if own is None:
        return filter
    try:
        parse(both := {"$and": [own, filter]})
    except ConfigError:  # a function, or a store's own language
        return None
    return both


def store_filter(vectorstore: VectorStore, filter: Any, /) -> tuple[Any, Check | None]:
    """What to give the store as its `filter`, and what is left to check on its results.

    A filter in our language is translated for the stores whose language is another. One that we cannot read is taken
    for the store's own and passed on as it is.
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
    return (filter if isinstance(filter, Mapping) else None), check


def _beside_metadata(condition: Condition) -> bool:
    return any(test.field.name in _NO_METADATA and not test.field.path for test in _tests(condition))


def _tests(condition: Condition) -> Iterator[Test]:
    if isinstance(condition, Test):
        yield condition
    else:
        for part in (condition.part,) if isinstance(condition, Not) else condition.parts:
            yield from _tests(part)


def _chroma(condition: Condition) -> dict[str, Any] | None:
    """A filter in Chroma's language, None where it is beyond that, or of times: who knows how they are kept there."""
    if any(test.field.type == "time" for test in _tests(condition)):
        return None
    try:
        return to_chroma(condition) or None
    except ConfigError:
        return None
