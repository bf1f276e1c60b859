"""Hybrid retrieval for agent memory: BM25, vectors and graph, fused by a recipe that explains itself.

>>> from hybridmem import Fusion, HybridMemory, Memory
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridmem.explain import Explanation, Receipt
    from hybridmem.fusion import Fusion, weighted_rrf
    from hybridmem.indexes.graph import GraphSettings
    from hybridmem.memory import HybridMemory
    from hybridmem.recipes import load_recipe, save_recipe
    from hybridmem.results import Result
    from hybridmem.stages import (
        Competition,
        Conflicts,
        Diversity,
        HalfLife,
        NamedDate,
        Pack,
        QualityGate,
        Rerank,
        SourceDedup,
        Spread,
        Substance,
    )
    from hybridmem.text import Analyzer
    from hybridmem.types import ArmList, Context, Edge, Memory, Ranking

__version__ = "0.1.0"

_HOME = {
    "Analyzer": "text",
    "ArmList": "types",
    "Competition": "stages",
    "Conflicts": "stages",
    "Context": "types",
    "Diversity": "stages",
    "Edge": "types",
    "Explanation": "explain",
    "Fusion": "fusion",
    "GraphSettings": "indexes.graph",
    "HalfLife": "stages",
    "HybridMemory": "memory",
    "Memory": "types",
    "NamedDate": "stages",
    "Pack": "stages",
    "QualityGate": "stages",
    "Ranking": "types",
    "Receipt": "explain",
    "Rerank": "stages",
    "Result": "results",
    "SourceDedup": "stages",
    "Spread": "stages",
    "Substance": "stages",
    "load_recipe": "recipes",
    "save_recipe": "recipes",
    "weighted_rrf": "fusion",
}

__all__ = [
    "Analyzer",
    "ArmList",
    "Competition",
    "Conflicts",
    "Context",
    "Diversity",
    "Edge",
    "Explanation",
    "Fusion",
    "GraphSettings",
    "HalfLife",
    "HybridMemory",
    "Memory",
    "NamedDate",
    "Pack",
    "QualityGate",
    "Ranking",
    "Receipt",
    "Rerank",
    "Result",
    "SourceDedup",
    "Spread",
    "Substance",
    "__version__",
    "load_recipe",
    "save_recipe",
    "weighted_rrf",
]


def __getattr__(name: str) -> Any:
    """Names are loaded when they are first used, so that `import hybridmem` costs next to nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'hybridmem' has no attribute {name!r}")
    value = getattr(import_module(f"hybridmem.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
