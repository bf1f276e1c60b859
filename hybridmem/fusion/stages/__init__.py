"""The stages of a recipe: small frozen dataclasses, each a pure function of (ranking, context).

| stage | reads of each item | changes |
|---|---|---|
| `QualityGate` | the arm's raw score | removes hits before the merge |
| `Spread` | the graph, thread | adds strength · activation from neighbours, and a thread bonus |
| `SourceDedup` | source_id | keeps the best of each source |
| `HalfLife` | updated_at | score · (1 + strength · 0.5^(age / half_life)) |
| `Competition` | last_accessed, strength, confidence, status | the score: activation, recency, strength, confidence |
| `Substance` | words, text | lowers the score of short texts |
| `NamedDate` | created_at | raises items from the date that the query names |
| `Conflicts` | contradicts | the weaker of two contradicting items gets score · 0.3 |
| `Rerank` | text | the order of the top |
| `Diversity` | vector or text | the order, by maximal marginal relevance |
| `Pack` | text | the length: k results or a token budget |

Any function `(ranking, context) -> ranking` is a stage too.
"""

from hybridmem.fusion.stages.base import reorder, stage_name
from hybridmem.fusion.stages.boost import Competition, Conflicts, HalfLife
from hybridmem.fusion.stages.dedup import SourceDedup
from hybridmem.fusion.stages.gate import QualityGate
from hybridmem.fusion.stages.prior import NamedDate, Substance
from hybridmem.fusion.stages.spread import Spread
from hybridmem.fusion.stages.top import Diversity, Pack, Rerank

__all__ = [
    "Competition",
    "Conflicts",
    "Diversity",
    "HalfLife",
    "NamedDate",
    "Pack",
    "QualityGate",
    "Rerank",
    "SourceDedup",
    "Spread",
    "Substance",
    "reorder",
    "stage_name",
]
