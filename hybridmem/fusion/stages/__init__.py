"""The stages of a recipe: small frozen dataclasses, each a pure function of (ranking, context).

| stage | reads of each item | changes |
|---|---|---|
| `QualityGate` | the arm's raw score | removes hits before the merge |
| `Evidence` | thread, speaker, cues, event_at, created_at | adds weight · evidence |
| `Spread` | the graph | adds strength · activation from neighbours |
| `SourceDedup` | source_id | keeps the best of each source |
| `HalfLife` | updated_at | score · (1 + strength · 0.5^(age / half_life)) |
| `Competition` | last_accessed, strength, confidence, status | the score: activation, recency, strength, confidence |
| `Conflicts` | contradicts | the weaker of two contradicting items gets score · 0.3 |
| `IdenticalTexts` | text, updated_at, created_at | makes results with the same text one result |
| `Rerank` | text | the order of the top |
| `Diversity` | vector or text | the order, by maximal marginal relevance |
| `Pack` | text | the length: k results or a token budget |

Any function `(ranking, context) -> ranking` is a stage too.
"""

from hybridmem.fusion.merge import reorder
from hybridmem.fusion.stages.base import stage_name
from hybridmem.fusion.stages.boost import Competition, Conflicts, HalfLife
from hybridmem.fusion.stages.evidence import Evidence, Spread
from hybridmem.fusion.stages.gate import QualityGate
from hybridmem.fusion.stages.rerank import Diversity, Rerank
from hybridmem.fusion.stages.selection import IdenticalTexts, Pack, SourceDedup

__all__ = [
    "Competition",
    "Conflicts",
    "Diversity",
    "Evidence",
    "HalfLife",
    "IdenticalTexts",
    "Pack",
    "QualityGate",
    "Rerank",
    "SourceDedup",
    "Spread",
    "reorder",
    "stage_name",
]
