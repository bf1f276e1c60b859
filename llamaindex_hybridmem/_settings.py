"""Settings of our retrievers, in the constructor and for one call: validated in one place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from hybridmem.core import validation
from hybridmem.errors import ConfigError
from llamaindex_hybridmem._filters import to_filter

if TYPE_CHECKING:
    from hybridmem.retrievers.options import TimeOption

__all__ = ["Filters", "Settings", "check_k", "refuse", "refuse_call"]

Filters = MetadataFilters | MetadataFilter | Mapping[str, Any] | None
_LANGCHAIN_NAMES = {"k": "similarity_top_k", "filter": "filters", "top_k": "similarity_top_k"}


class Settings(NamedTuple):
    """The number of results and the filter, and further settings such as `as_of`."""

    k: int | None = None
    filter: Mapping[str, Any] | None = None
    filters: MetadataFilters | None = None
    """The filter as it was given, when it was given in LlamaIndex's own classes."""
    more: Mapping[str, Any] = {}
    """`as_of`, `namespace`, `min_confidence`, `score_threshold`, and those of the graph."""

    def changed(
        self,
        *,
        similarity_top_k: int | None = None,
        filters: Filters = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        min_confidence: float | None = None,
        score_threshold: float | None = None,
        **graph: Any,
    ) -> Settings:
        """The same with these settings; None leaves one as it is."""
        changed = self
        if similarity_top_k is not None:
            changed = changed._replace(k=check_k(similarity_top_k))
        if filters is not None:
            native = filters if isinstance(filters, MetadataFilters) else None
            changed = changed._replace(filter=to_filter(filters), filters=native)
        more = {"as_of": as_of, "namespace": namespace, "min_confidence": min_confidence}
        more.update(score_threshold=score_threshold, **graph)
        given = {name: value for name, value in more.items() if value is not None}
        return changed._replace(more={**self.more, **given}) if given else changed


def check_k(k: Any, /, *, name: str = "similarity_top_k") -> int:
    """A number of results as an int."""
    return validation.k(k, name=name)


def refuse(unknown: Iterable[str], known: Iterable[str], /) -> None:
    """Refuse keywords that do not exist."""
    for name in unknown:
        raise ConfigError(f"unknown setting {name!r}{_hint(name)}: the settings are {', '.join(known)}")


def refuse_call(unknown: Iterable[str], known: Iterable[str], /) -> None:
    """Refuse keywords of `retrieve` that do not exist."""
    for name in unknown:
        raise ConfigError(f"retrieve does not know {name!r}{_hint(name)}: it takes {', '.join(known)}")


def _hint(name: str) -> str:
    return f" (did you mean {_LANGCHAIN_NAMES[name]!r}?)" if name in _LANGCHAIN_NAMES else ""
