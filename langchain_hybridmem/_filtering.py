"""Filters on their way to an arm: in its own language where it has one, checked on its results where it has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from hybridmem.errors import ConfigError
from hybridmem.filters import compile_predicate, parse, to_chroma

__all__ = ["check_of", "store_filter"]

Check = Callable[[Document], bool]


def check_of(filter: Any, /) -> Check:
    """A filter as a yes or no about a document: a function of the document, or hybridmem's filter language.

    >>> check_of({"pages": {"$gt": 3}})(Document("…", metadata={"pages": 7}))
    True
    """
    if callable(filter):
        return filter  # type: ignore[no-any-return]
    matches = compile_predicate(filter)
    return lambda document: matches(document.metadata)


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
        check = check_of(filter)
    except ConfigError:
        return filter, None
    if "Chroma" in names:
        return _chroma(filter), check
    return (filter if isinstance(filter, Mapping) else None), check


def _chroma(filter: Any) -> dict[str, Any] | None:
    try:
        return to_chroma(parse(filter)) or None
    except ConfigError:
        return None  # beyond Chroma's language: checked on the results alone
