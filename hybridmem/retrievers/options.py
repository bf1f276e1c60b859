"""Keywords of both adapters' retrievers, and the methods that a user's subclass overrides."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from hybridmem.core.validation import display
from hybridmem.errors import ConfigError

__all__ = ["check_items", "check_memory", "hint_of", "overrides", "refuse_keywords", "refuse_settings", "taken"]

T = TypeVar("T")
_SAME = (
    ("k", "top_k", "similarity_top_k"),
    ("filter", "filters", "where"),
    ("weights", "retriever_weights"),
    ("embedding", "embed_model", "embedder"),
    ("vectorstore", "vector_store"),
    ("docs", "documents", "nodes"),
)
"""Names of the same setting in LangChain, LlamaIndex and elsewhere."""


def check_memory(memory: Any, /) -> None:
    """Validate a HybridMemory; a path to one is not one."""
    if not hasattr(memory, "search"):
        opened = f": HybridMemory({memory!r}) opens one" if isinstance(memory, str) else ""
        raise ConfigError(f"memory = {display(memory)} is not allowed: a HybridMemory, or a view of one{opened}")


def check_items(name: str, items: Iterable[T], kind: type, /) -> list[T]:
    """The documents or nodes as a list; anything else among them is an error that says where."""
    listed = list(items)
    for place, item in enumerate(listed):
        if not isinstance(item, kind):
            raise ConfigError(f"{name}[{place}] = {display(item)} is not allowed: a {kind.__name__} is needed")
    return listed


def hint_of(retriever: Any, /) -> str:
    """What to write instead of something that is not a retriever, for an error message."""
    for method, instead in (
        ("search_arm", "FusionRetriever.from_memory(memory)"),
        ("as_retriever", "its as_retriever()"),
    ):
        if hasattr(retriever, method):
            return f"; use {instead}"
    return ""


def refuse_settings(owner: str, given: Iterable[str], known: Iterable[str], /) -> None:
    """Refuse settings that a class does not have.

    >>> refuse_settings("BM25Retriever", ["top_k"], ["k", "filter"])
    Traceback (most recent call last):
    hybridmem.errors.ConfigError: BM25Retriever has no setting 'top_k' (did you mean 'k'?): the settings are k, filter
    """
    names = list(known)
    for name in given:
        if name not in names:
            raise ConfigError(f"{owner} has no setting {name!r}{_hint(name, names)}: the settings are {_list(names)}")


def refuse_keywords(method: str, given: Iterable[str], known: Iterable[str], /) -> None:
    """Refuse keywords that a call does not take."""
    names = list(known)
    for name in given:
        if name not in names:
            raise ConfigError(f"{method} does not know {name!r}{_hint(name, names)}: it takes {_list(names)}")


def _hint(name: str, known: list[str]) -> str:
    same = [other for group in _SAME if name in group for other in group if other in known]
    near = same or difflib.get_close_matches(name, known, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"


def taken(method: Callable[..., Any], given: Mapping[str, Any], /) -> dict[str, Any]:
    """Those of the keywords that a method takes."""
    parameters = inspect.signature(method).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}


def overrides(cls: type, method: str, package: str, /) -> bool:
    """Whether a user's subclass of a class of this package overrides a method."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == package:
            return False
        if method in vars(base):
            return True
    return False
