"""The part of a retriever that the inspector shows: its arms, its recipe, and explanations under other recipes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from hybridmem.fusion.explain import Explanation
from hybridmem.fusion.recipe import Fusion

__all__ = ["Explain", "Explainer", "SupportsExplainer"]


class Explain(Protocol):
    """A function that answers a query under a recipe and explains the answer."""

    def __call__(
        self, query: str, /, *, recipe: Fusion, k: int | None = None, filter: Any = None, as_of: Any = None
    ) -> Explanation:
        """The explanation: receipts of the results, and each arm's list."""
        ...


@dataclass(frozen=True, slots=True)
class Explainer:
    """A retriever's arms and recipe, and a function that explains a query under any recipe."""

    arms: tuple[str, ...]
    recipe: Fusion
    explain: Explain
    memory: Any = None
    """The HybridMemory that answers, where the retriever is over one."""
    k: int | None = None
    """How many results the retriever returns; None: all."""


@runtime_checkable
class SupportsExplainer(Protocol):
    """A retriever that the inspector can show; both `FusionRetriever` classes are."""

    def explainer(self) -> Explainer:
        """The retriever's arms and recipe, and how to explain a query."""
        ...
