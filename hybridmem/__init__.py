"""Hybrid retrieval for agent memory: BM25, vectors and graph, fused and explained.

>>> from hybridmem import Fusion, HybridMemory, Memory
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridmem.core.types import ArmList, Edge, Memory, Ranking
    from hybridmem.fusion.explain import Explanation, Receipt
    from hybridmem.fusion.merge import weighted_rrf
    from hybridmem.fusion.recipe import Fusion, load_recipe, save_recipe
    from hybridmem.fusion.stages import (
        Competition,
        Conflicts,
        Diversity,
        Evidence,
        HalfLife,
        IdenticalTexts,
        Pack,
        QualityGate,
        Rerank,
        SourceDedup,
        Spread,
    )
    from hybridmem.fusion.stages.base import Context
    from hybridmem.indexes.graph.index import GraphSettings
    from hybridmem.memory.memory import HybridMemory
    from hybridmem.memory.results import Result
    from hybridmem.text.analyzer import Analyzer

__version__ = "0.2.0"

_HOME = {
    "Analyzer": "text.analyzer",
    "ArmList": "core.types",
    "Competition": "fusion.stages",
    "Conflicts": "fusion.stages",
    "Context": "fusion.stages.base",
    "Diversity": "fusion.stages",
    "Edge": "core.types",
    "Evidence": "fusion.stages",
    "Explanation": "fusion.explain",
    "Fusion": "fusion.recipe",
    "GraphSettings": "indexes.graph.index",
    "HalfLife": "fusion.stages",
    "HybridMemory": "memory.memory",
    "IdenticalTexts": "fusion.stages",
    "Memory": "core.types",
    "Pack": "fusion.stages",
    "QualityGate": "fusion.stages",
    "Ranking": "core.types",
    "Receipt": "fusion.explain",
    "Rerank": "fusion.stages",
    "Result": "memory.results",
    "SourceDedup": "fusion.stages",
    "Spread": "fusion.stages",
    "load_recipe": "fusion.recipe",
    "save_recipe": "fusion.recipe",
    "weighted_rrf": "fusion.merge",
}

__all__ = [
    "Analyzer",
    "ArmList",
    "Competition",
    "Conflicts",
    "Context",
    "Diversity",
    "Edge",
    "Evidence",
    "Explanation",
    "Fusion",
    "GraphSettings",
    "HalfLife",
    "HybridMemory",
    "IdenticalTexts",
    "Memory",
    "Pack",
    "QualityGate",
    "Ranking",
    "Receipt",
    "Rerank",
    "Result",
    "SourceDedup",
    "Spread",
    "__version__",
    "load_recipe",
    "save_recipe",
    "weighted_rrf",
]


def __getattr__(name: str) -> Any:
    """Import names when they are first used, so that `import hybridmem` is fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'hybridmem' has no attribute {name!r}")
    value = getattr(import_module(f"hybridmem.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
