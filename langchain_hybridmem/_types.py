"""Types of settings: unions for editors and type checkers, `Any` for pydantic, which must not copy or coerce them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document

__all__ = [
    "ClockOption",
    "DedupOption",
    "FilterOption",
    "GateOption",
    "GraphSettings",
    "HalfLifeOption",
    "HybridMemory",
    "IdKey",
    "RecipeOption",
    "TimeOption",
]

IdKey = str | Callable[[Document], Hashable] | None
"""What tells two documents apart: a metadata key, a function of the document, or None for `Document.id`, then text."""

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridmem.indexes.graph.index import GraphSettings
    from hybridmem.memory.memory import HybridMemory
    from hybridmem.retrievers.options import DedupOption, GateOption, HalfLifeOption, RecipeOption, TimeOption

    FilterOption = Mapping[str, Any] | Callable[[Document], bool]
    ClockOption = Callable[[], float]
else:
    ClockOption = DedupOption = FilterOption = GateOption = GraphSettings = HalfLifeOption = Any
    HybridMemory = RecipeOption = TimeOption = Any
