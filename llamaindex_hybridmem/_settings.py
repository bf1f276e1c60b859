"""What a caller may set, in the constructor and at every call: checked once, in one place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from llama_index.core.vector_stores.types import MetadataFilters

from hybridmem.errors import ConfigError
from llamaindex_hybridmem._filters import to_filter

__all__ = ["Filters", "Settings", "check_k", "refuse"]

Filters = MetadataFilters | Mapping[str, Any] | None


class Settings(NamedTuple):
    """How many results, under which filter; and what only a memory understands."""

    k: int | None = None
    filter: Mapping[str, Any] | None = None
    filters: MetadataFilters | None = None
    """The filter as it was given, when it was given in LlamaIndex's own classes."""
    more: Mapping[str, Any] = {}
    """`as_of`, `namespace`, `min_confidence`."""

    def changed(self, *, similarity_top_k: int | None = None, filters: Filters = None, **more: Any) -> Settings:
        """The same with what is given; None leaves a setting as it is."""
        changed = self
        if similarity_top_k is not None:
            changed = changed._replace(k=check_k(similarity_top_k))
        if filters is not None:
            native = filters if isinstance(filters, MetadataFilters) else None
            changed = changed._replace(filter=to_filter(filters), filters=native)
        given = {name: value for name, value in more.items() if value is not None}
        return changed._replace(more={**self.more, **given}) if given else changed


def check_k(k: Any, /, *, name: str = "similarity_top_k") -> int:
    """Refuse a number of results (or of anything else) that cannot be."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ConfigError(f"{name} = {k!r} is not allowed: a whole number from 1 up")
    return k


def refuse(unknown: Iterable[str], known: Iterable[str], /) -> None:
    """Refuse keywords that do not exist, and say which do."""
    for name in unknown:
        raise ConfigError(f"unknown setting {name!r}: the settings are {', '.join(known)}")
