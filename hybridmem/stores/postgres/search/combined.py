"""Both arms with the other's candidates scored: in one statement, in a large namespace in two at the same time.

Vectors stay in the server, so the cosine of e (of length 1) and q is (1 + |q|² − |e − q|²)/2 by pgvector's norm, which
is added up in float64: better by a digit than its inner product in float32. Where its error could still be seen, those
few are scored again by their vectors here.
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
from hybridmem.stores.postgres.search import bm25 as lexical
from hybridmem.stores.postgres.search import vectors as nearest
from hybridmem.stores.postgres.search.bm25 import ENTRY, Bm25
from hybridmem.stores.postgres.search.vectors import Nearest, packed

__all__ = ["answer", "apart", "both", "doubtful", "merged"]

_SEEN = 5e-7
"""A score that is wrong by less than this share of the list's span stays within 1e-6 when the list is normalised."""
Answer = tuple[dict[str, Hits], dict[str, dict[str, float]]]
"""Each arm's best k, and what it thinks of those that only the other one lists."""

_QUESTION = "q AS MATERIALIZED (SELECT v, vector_norm(v) ^ 2 AS n FROM (SELECT ?::vector AS v OFFSET 0) q)"
_COSINE = """CASE WHEN e.embedding <#> (SELECT v FROM q) = 0 THEN 0
  ELSE (1 + (SELECT n FROM q) - vector_norm(e.embedding - (SELECT v FROM q)) ^ 2) / 2 END"""
_MEMORY = "CROSS JOIN LATERAL (SELECT * FROM memories m WHERE m.mem = f.mem OFFSET 0) m"
_VECTOR = """LEFT JOIN LATERAL (
  SELECT e.embedding FROM embeddings e WHERE e.namespace = ? AND e.mem = f.mem AND e.dim = ? OFFSET 0) e ON TRUE"""


def both(
    bm25: Bm25, near: Nearest, terms: Mapping[str, float], row: Vector, allowed: Set[str] | None, k: int, /
) -> SQL:
    """Rows (score, words, cosine, near, *entry) of whatever is among either arm's best k, or equals the last of them.

    `words` and `near` tell which arm listed it; score and cosine are NULL where an arm has nothing to say.
    """
    hits, best, closest = bm25.hits(terms), bm25.best(allowed, k), near.closest(len(row), allowed, k)
    return SQL(
        f"""{hits.text}, {_QUESTION},
words AS MATERIALIZED ({best.text}),
near AS MATERIALIZED ({closest.text}),
f AS (
  SELECT mem, bool_or(words) AS words, bool_or(near) AS near FROM (
    SELECT mem, TRUE AS words, FALSE AS near FROM words WHERE {lexical.within(k, "words")}
    UNION ALL SELECT mem, FALSE, TRUE FROM near WHERE {nearest.within(k, "near")}) f GROUP BY mem)
SELECT h.score, f.words, {_COSINE}, f.near, {ENTRY} FROM f LEFT JOIN hits h ON h.mem = f.mem {_MEMORY} {_VECTOR}""",
        (*hits.params, packed(row), *best.params, *closest.params, near.namespace, len(row)),
    )


def apart(
    bm25: Bm25,
    near: Nearest,
    terms: Mapping[str, float],
    row: Vector,
    allowed: Set[str] | None,
    k: int,
    /,
    *,
    indexed: bool,
) -> tuple[SQL, SQL]:
    """The same rows by two statements to run at the same time: what is near (by HNSW), and what the words find."""
    hits = bm25.hits(terms) if allowed is not None else bm25.leading(terms, k)
    best = bm25.best(allowed, k)
    words = SQL(
        f"""{hits.text}, {_QUESTION}, f AS MATERIALIZED ({best.text})
SELECT f.score, TRUE, {_COSINE}, FALSE, {ENTRY} FROM f {_MEMORY} {_VECTOR} WHERE {lexical.within(k, "f")}""",
        (*hits.params, packed(row), *best.params, near.namespace, len(row)),
    )
    weights, scored = bm25.weights(terms), bm25.of("near")
    found = (near.walked if indexed else near.closest)(len(row), allowed, k)
    vectors = SQL(
        f"""{weights.text}, {_QUESTION}, near AS MATERIALIZED ({found.text}), f AS MATERIALIZED ({scored.text})
SELECT f.score, FALSE, {_COSINE}, TRUE, {ENTRY} FROM f {_MEMORY} {_VECTOR}""",
        (*weights.params, packed(row), *found.params, *scored.params, near.namespace, len(row)),
    )
    return vectors, words


def merged(words: Sequence[tuple[Any, ...]], near: Sequence[tuple[Any, ...]], /) -> list[tuple[Any, ...]]:
    """One row for each candidate of two statements."""
    rows = {row[4]: row for row in words}
    for row in near:
        rows[row[4]] = (*row[:1], row[4] in rows, *row[2:])
    return list(rows.values())


def answer(
    rows: Sequence[tuple[Any, ...]], k: int, dim: int, rescore: Callable[[list[str]], Mapping[str, float]], /
) -> Answer | None:
    """What the arms say by these rows, or None: more may equal an arm's k-th than the statement brought."""
    cosine = {row[4]: row[2] for row in rows if row[2] is not None}
    unsure = doubtful(cosine, dim)
    if unsure:
        cosine.update(rescore(unsure))
    words = lexical.by_score([(row[0], *row[4:]) for row in rows if row[1]])
    near = nearest.by_score([(cosine[row[4]], *row[4:]) for row in rows if row[3]])
    if lexical.tied(words, k) or nearest.tied(near, k) is not None:
        return None
    best = {"bm25": words[:k], "vector": near[:k]}
    found = {arm: Hits([row[1] for row in hits], [row[0] for row in hits]) for arm, hits in best.items()}
    listed = {*found["bm25"].ids, *found["vector"].ids}
    scores = {row[4]: row[0] for row in rows if row[0] and row[4] in listed}
    return found, {"bm25": scores, "vector": {id_: c for id_, c in cosine.items() if c and id_ in listed}}


def doubtful(cosine: Mapping[str, float], dim: int, /) -> list[str]:
    """The ids whose cosine has to be known better: by rounding they could have changed places, or be nothing at all."""
    # each of the numbers whose squares are added up is rounded to float32 by itself, so that most of it cancels out
    doubt = 7e-7 / math.sqrt(dim)
    ids = sorted(cosine, key=cosine.__getitem__)
    values = [cosine[id_] for id_ in ids]
    if values and values[-1] - values[0] < doubt / _SEEN:
        return ids
    close = [place for place, gap in enumerate(map(sub, values[1:], values)) if 0 < gap < 2 * doubt]
    found = {place for place, value in enumerate(values) if abs(value) < doubt}
    return [ids[place] for place in sorted(found.union(close, [place + 1 for place in close]))]
