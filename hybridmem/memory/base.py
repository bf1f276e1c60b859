"""State and properties that the writing and the reading half of HybridMemory share."""

from __future__ import annotations

from hybridmem.core import validation
from hybridmem.core.protocols import Store, View
from hybridmem.core.times import Time
from hybridmem.embedding.embedder import Embedder
from hybridmem.fusion.recipe import Fusion
from hybridmem.memory.engine import Engine

__all__ = ["MemoryBase"]


class MemoryBase:
    """One namespace of a store, with the engine that searches it."""

    _engine: Engine
    _namespace: str
    _recipe: Fusion
    _k: int

    @property
    def name(self) -> str:
        """The namespace of this memory."""
        return self._namespace

    @property
    def engine(self) -> Engine:
        """The engine that runs queries; evaluation and tools that need more than `search` use it."""
        return self._engine

    @property
    def store(self) -> Store:
        """The store that holds the memories."""
        return self._engine.store

    @property
    def recipe(self) -> Fusion:
        """The recipe that ranks results, without weights for arms that do not exist."""
        return self._engine.recipe_for(self._recipe)

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that search; without an embedder there is no "vector"."""
        return self._engine.arms

    @property
    def embedder(self) -> Embedder | None:
        """The embedder; None: BM25 and graph only."""
        return self._engine.embedder

    def _view(self, as_of: Time | None = None, *, superseded: bool = False) -> View:
        validation.flag("superseded", superseded)
        return View(self._namespace, validation.as_of(as_of), superseded)

    def _current(self, as_of: Time | None = None, *, superseded: bool = False) -> View:
        """The view, after expired memories have been removed from it."""
        view = self._view(as_of, superseded=superseded)
        if view.as_of is None:
            self._engine.expiry.apply(view.namespace)
        return view
