"""Both arms and the scores of the other arm's candidates: in one statement, or in two at the same time.

Vectors stay in the server. The cosine of e (of length 1) and q is (1 + |q|² − |e − q|²)/2 by pgvector's norm, which
has one digit more than its float32 inner product. Where the remaining error could matter, the
few vectors concerned are fetched and scored again.
"""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from operator import sub
from typing import Any

from hybridmem.core.types import Hits
from hybridmem.embedding.embedder import Vector
from hybridmem.filters.sql import SQL
from hybridmem.indexes.candidates import SAMPLE
from hybridmem.stores.postgres.search import bm25, vectors
from hybridmem.stores.postgres.search.bm25 import ENTRY, Bm25
from hybridmem.stores.postgres.search.vectors import COSINE, QUESTION, Nearest, packed

__all__ = ["FIRST_FIELD", "CombinedHits", "combined_hits", "in_one", "in_two", "is_uncertain", "merged", "uncertain"]

_TOLERANCE = 5e-7
"""An error below this share of the range of scores stays within 1e-6 after normalisation."""
CombinedHits = tuple[dict[str, Hits], dict[str, dict[str, float]]]
"""Each arm's best k, and each arm's scores of all candidates."""

FIRST_FIELD = _ID = 5
"""The column of an entry's first field, its id."""
_MEMORY = "CROSS JOIN LATERAL (SELECT * FROM memories m WHERE m.mem = f.mem OFFSET 0) m"
_VECTOR = """LEFT JOIN LATERAL (
  SELECT e.embedding FROM embeddings e WHERE e.namespace = ? AND e.mem = f.mem AND e.dim = ? OFFSET 0) e ON TRUE"""


def in_one(
    lexical: Bm25, nearest: Nearest, terms: Mapping[str, float], row: Vector, allowed: Set[str] | None, k: int, /
) -> SQL:
    """Rows (score, lexical, cosine, near, baseline, *entry) of all memories in either arm's best k.

    `lexical` and `near` say which arm returned it, or one that may equal its last; score and cosine are NULL where an
    arm has no score. `baseline`: see `Nearest.sample`.
    """
    hits, best, closest = lexical.hits(terms), lexical.best(allowed, k), nearest.closest(len(row), allowed, k)
    sample = nearest.sample(len(row), SAMPLE)
    return SQL(
        f"""{hits.text}, {QUESTION}, {best.text}, {closest.text},
f AS (
  SELECT mem, bool_or(words) AS words, bool_or(near) AS near FROM (
    SELECT mem, TRUE AS words, FALSE AS near FROM words UNION ALL SELECT mem, FALSE, TRUE FROM near) f GROUP BY mem)
SELECT h.score, f.words, {COSINE}, f.near, ({sample.text}), {ENTRY}
FROM f LEFT JOIN hits h ON h.mem = f.mem {_MEMORY} {_VECTOR}""",
        (*hits.params, packed(row), *best.params, *closest.params, *sample.params, nearest.namespace, len(row)),
    )


def in_two(
    lexical: Bm25,
    nearest: Nearest,
    terms: Mapping[str, float],
    row: Vector,
    allowed: Set[str] | None,
    k: int,
    /,
    *,
    indexed: bool,
) -> tuple[SQL, SQL]:
    """The same rows by two statements to run at the same time: the nearest vectors, and the best by BM25."""
    hits = lexical.hits(terms) if allowed is not None else lexical.leading(terms, k)
    best = lexical.best(allowed, k)
    words = SQL(
        f"""{hits.text}, {QUESTION}, {best.text}
SELECT f.score, TRUE, {COSINE}, FALSE, NULL::float8, {ENTRY} FROM words f {_MEMORY} {_VECTOR}""",
        (*hits.params, packed(row), *best.params, nearest.namespace, len(row)),
    )
    weights, scored, sample = lexical.weights(terms), lexical.of("near"), nearest.sample(len(row), SAMPLE)
    found = (nearest.indexed if indexed else nearest.closest)(len(row), allowed, k)
    near = SQL(
        f"""{weights.text}, {QUESTION}, {found.text}, f AS MATERIALIZED ({scored.text})
SELECT f.score, FALSE, {COSINE}, TRUE, ({sample.text}), {ENTRY} FROM f {_MEMORY} {_VECTOR}""",
        (*weights.params, packed(row), *found.params, *scored.params, *sample.params, nearest.namespace, len(row)),
    )
    return near, words


def merged(words: Sequence[tuple[Any, ...]], near: Sequence[tuple[Any, ...]], /) -> list[tuple[Any, ...]]:
    """One row for each candidate of the two statements."""
    rows = {row[_ID]: row for row in words}
    for row in near:
        rows[row[_ID]] = (*row[:1], row[_ID] in rows, *row[2:])
    return list(rows.values())


def combined_hits(
    rows: Sequence[tuple[Any, ...]], k: int, dim: int, rescore: Callable[[list[str]], Mapping[str, float]], /
) -> CombinedHits:
    """The hits of both arms in these rows."""
    cosine = {row[_ID]: row[2] for row in rows if row[2] is not None}
    uncertain_ids = uncertain(cosine, dim)
    if uncertain_ids:
        cosine.update(rescore(uncertain_ids))
    words = bm25.by_score([(row[0], *row[_ID:]) for row in rows if row[1]])
    near = vectors.by_score([(cosine[row[_ID]], *row[_ID:]) for row in rows if row[3]])
    best = {"bm25": words[:k], "vector": near[:k]}
    ranked = {arm: Hits([row[1] for row in hits], [row[0] for row in hits]) for arm, hits in best.items()}
    listed = {*ranked["bm25"].ids, *ranked["vector"].ids}
    scores = {row[_ID]: row[0] for row in rows if row[0] and row[_ID] in listed}
    return ranked, {"bm25": scores, "vector": {id_: c for id_, c in cosine.items() if c and id_ in listed}}


def uncertain(cosine: Mapping[str, float], dim: int, /) -> list[str]:
    """The ids whose cosine needs more precision: rounding could change their order, or turn 0 into another value."""
    # each difference is rounded to float32 independently, so that most of the errors cancel out
    error = _error(dim)
    ids = sorted(cosine, key=cosine.__getitem__)
    values = [cosine[id_] for id_ in ids]
    if values and values[-1] - values[0] < error / _TOLERANCE:
        return ids
    close = [place for place, gap in enumerate(map(sub, values[1:], values)) if 0 < gap < 2 * error]
    found = {place for place, value in enumerate(values) if abs(value) < error}
    return [ids[place] for place in sorted(found.union(close, [place + 1 for place in close]))]


def is_uncertain(baseline: float, cosines: Sequence[float], dim: int, /) -> bool:
    """Whether the baseline needs more precision: it nearly equals a cosine, or the best one is close to it."""
    near = any(abs(cosine - baseline) < _error(dim) for cosine in cosines)
    return near or max(cosines, default=math.inf) - baseline < _error(dim) / _TOLERANCE


def _error(dim: int) -> float:
    return 7e-7 / math.sqrt(dim)
