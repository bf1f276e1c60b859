"""The stages of a fusion: small frozen values, each a pure function of (ranking, context).

| stage | reads of each item | changes |
|---|---|---|
| `QualityGate` | the arm's raw score | what enters the merge |
| `Spread` | the graph | adds λ · what neighbours bring |
| `SourceDedup` | source_id | keeps the best of each source |
| `HalfLife` | updated_at | score · (1 + strength · 0.5^(age / half_life)) |
| `Competition` | last_accessed, strength, confidence, status | the score: activation, recency, strength, confidence |
| `Substance` | words, text | score · less, where little is said |
| `NamedDate` | created_at | adds to what is from the day the question names |
| `Conflicts` | contradicts | the weaker of two that contradict · 0.3 |
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
