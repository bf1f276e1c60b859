"""BM25 inside the server: one statement over the postings, with live N, n and avgdl.

    score(D, Q) = Σ over query terms of IDF(t) · f·(k1+1) / (f + k1·(1 − b + b·|D|/avgdl))
    IDF(t)      = ln(1 + (N − n + 0.5)/(n + 0.5))

Scores that differ by less than 1e-9 are equal: the newer memory comes first, then the smaller id.
"""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from hybridmem.filter_sql import SQL
from hybridmem.stores.pg.chosen import restriction
from hybridmem.types import Entry

__all__ = ["ENTRY", "Bm25"]

ENTRY = ", ".join(f"m.{name}" for name in Entry._fields)
"""What ranking needs to know: every field of an Entry is a column of `memories`."""

# OFFSET 0 keeps the planner from turning "look these few terms up" into a walk over all postings.
_WEIGHTS = """
WITH q AS (SELECT * FROM unnest(?::text[], ?::float8[]) AS q (term, times)),
s AS (SELECT memories AS n, CASE WHEN length > 0 THEN length / memories END AS avgdl FROM spaces WHERE namespace = ?),
w AS MATERIALIZED (
  SELECT q.term, c.n, q.times * ln(1 + (s.n - c.n + 0.5::float8) / (c.n + 0.5::float8)) AS weight
  FROM s, q CROSS JOIN LATERAL (
    SELECT count(*) AS n FROM postings p WHERE p.namespace = ? AND p.term = q.term OFFSET 0) c
  ORDER BY weight DESC, q.term)"""
_SUM = "sum(w.weight * (p.tf * ?::float8 / (p.tf + (?::float8 + COALESCE(?::float8 / s.avgdl, 0) * p.length))))"
_HITS = f"""{_WEIGHTS},
hits AS (
  SELECT p.mem, {_SUM} AS score
  FROM s, w CROSS JOIN LATERAL (
    SELECT p.mem, p.tf, p.length FROM postings p WHERE p.namespace = ? AND p.term = w.term OFFSET 0) p
  GROUP BY p.mem)"""


@dataclass(frozen=True, slots=True)
class Bm25:
    """The statements for one namespace and one choice of k1 and b."""

    namespace: str
    k1: float
    b: float

    def _curve(self) -> tuple[float, float, float]:
        return self.k1 + 1, self.k1 * (1 - self.b), self.k1 * self.b

    def _query(self, terms: Mapping[str, float]) -> tuple[object, ...]:
        return list(terms), list(terms.values()), self.namespace, self.namespace

    def search(self, terms: Mapping[str, float], allowed: Set[str] | None, k: int, /) -> SQL:
        """The k best, each with its entry."""
        bound = (*self._query(terms), *self._curve(), self.namespace)
        rest = restriction(allowed)
        order = "ORDER BY round(h.score * 1e9) DESC, m.updated_at DESC NULLS LAST, m.id LIMIT ?"
        if allowed is None:
            top = ", top AS (SELECT * FROM hits ORDER BY round(score * 1e9) DESC FETCH FIRST (?) ROWS WITH TIES) "
            return SQL(
                f"{_HITS}{top}SELECT h.score, {ENTRY} FROM top h JOIN memories m ON m.mem = h.mem {order}",
                (*bound, k, k),
            )
        return SQL(
            f"{_HITS} SELECT h.score, {ENTRY} FROM hits h JOIN memories m ON m.mem = h.mem "
            f"WHERE TRUE{rest.text} {order}",
            (*bound, *rest.params, k),
        )

    def score(self, terms: Mapping[str, float], ids: Sequence[str], /) -> SQL:
        """The scores of given memories: (id, score), only of those that match."""
        return SQL(
            f"{_WEIGHTS} SELECT m.id, {_SUM} FROM s, memories m CROSS JOIN w JOIN postings p "
            "ON p.namespace = m.namespace AND p.term = w.term AND p.mem = m.mem "
            "WHERE m.namespace = ? AND m.id = ANY(?::text[]) GROUP BY m.id",
            (*self._query(terms), *self._curve(), self.namespace, list(ids)),
        )

    def coverage(self, terms: Mapping[str, float], ids: Sequence[str], /) -> SQL:
        """The share of the query's IDF that each memory's terms cover: (id, share)."""
        once = dict.fromkeys(terms, 1.0)
        return SQL(
            f"{_WEIGHTS} SELECT m.id, sum(w.weight) / (SELECT sum(weight) FROM w) FROM memories m CROSS JOIN w "
            "JOIN postings p ON p.namespace = m.namespace AND p.term = w.term AND p.mem = m.mem "
            "WHERE m.namespace = ? AND m.id = ANY(?::text[]) GROUP BY m.id",
            (*self._query(once), self.namespace, list(ids)),
        )
