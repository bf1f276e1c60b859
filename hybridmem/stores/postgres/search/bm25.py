"""BM25 in the server: statements over the postings, with live N, n and avgdl (`spaces`, `terms`).

    score(D, Q) = Σ over query terms of IDF(t) · f·(k1+1) / (f + k1·(1 − b + b·|D|/avgdl))
    IDF(t)      = ln(1 + (N − n + 0.5)/(n + 0.5))

Scores that differ by less than 1e-9 are equal: the newer memory comes first, then the smaller id.
"""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from hybridmem.core.types import Entry
from hybridmem.filters.sql import SQL
from hybridmem.indexes.bm25.index import B_LIMIT, HALF_LENGTH
from hybridmem.stores.postgres.search.filters import restriction

__all__ = ["ENTRY", "SPARE", "Bm25", "TermWeights", "by_score", "entry_of", "tied", "within"]

ENTRY = ", ".join(f"m.{name}" for name in Entry._fields)
"""The columns of an Entry in `memories m`."""
entry_of = partial(tuple.__new__, Entry)
"""`Entry._make` without its check of the length."""
_UPDATED = 1 + Entry._fields.index("updated_at")
SPARE = 32
"""Rows fetched beyond k: equal scores are ordered by time, which the sort by score in the statement ignores."""

# (SELECT …) hides the number of terms from the planner: every plan then costs the same, and one generic plan is kept.
# OFFSET 0 keeps the planner from replacing the look-up of a few terms by a scan of all postings.
_WEIGHTS = """
WITH s AS (
  SELECT n, k1 * (1 - b) AS base, CASE WHEN mean > 0 THEN k1 * b / mean ELSE 0 END AS slope
  FROM (
    SELECT n, mean, ?::float8 AS k1, COALESCE(?::float8, {limit}::float8 * mean / (mean + {half}::float8)) AS b
    FROM (
      SELECT memories AS n, CASE WHEN memories > 0 THEN length / memories ELSE 0 END AS mean
      FROM spaces WHERE namespace = ?) z) y),
w AS MATERIALIZED (
  SELECT q.term, q.place, c.n, s.base, s.slope,
    q.times * ln(1 + (s.n - c.n + 0.5::float8) / (c.n + 0.5::float8)) AS weight
  FROM s, unnest((SELECT ?::text[]), (SELECT ?::float8[])) WITH ORDINALITY AS q (term, times, place)
  CROSS JOIN LATERAL (
    SELECT COALESCE((SELECT t.n FROM terms t WHERE t.namespace = ? AND t.term = q.term), 0) AS n OFFSET 0) c
  ORDER BY weight DESC, q.term)""".replace("{limit}", str(B_LIMIT)).replace("{half}", str(HALF_LENGTH))
_ONE = "SELECT p.tf, p.length FROM postings p WHERE p.namespace = ? AND p.term = w.term AND p.mem = m.mem"
_GIVEN_WEIGHTS = (
    "WITH w AS (SELECT *, ?::float8 AS base, ?::float8 AS slope "
    "FROM unnest(?::text[], ?::float8[]) AS w (term, weight))"
)
_PART = "w.weight * (p.tf * ?::float8 / (p.tf + (w.base + w.slope * p.length)))"
_SUM = f"sum({_PART})"
# The outer OFFSET 0 makes the planner expect as many groups as postings, so that the hash table starts large enough.
_HITS = f"""{_WEIGHTS},
hits AS (
  SELECT z.mem, sum(z.part) AS score
  FROM (SELECT p.mem, {_PART} AS part FROM w CROSS JOIN LATERAL (
    SELECT p.mem, p.tf, p.length FROM postings p WHERE p.namespace = ? AND p.term = w.term OFFSET 0) p OFFSET 0) z
  GROUP BY z.mem)"""
# The same, without most memories that only have the commonest term of the query. Without that term, the last memory
# that matters has the score `r.score`. The commonest term adds at most its weight times k1 + 1. A memory with a lower
# score than the difference is dropped; if the difference is above 0, so is a memory that has only the commonest term.
# The postings of that term are then looked up for the remaining memories instead of being grouped. (1e-6 is more than
# the sum of rounding errors.)
_POSTINGS = "CROSS JOIN LATERAL (SELECT * FROM postings p WHERE p.namespace = ? AND p.term = w.term OFFSET 0) p"
_LEADING = f"""{_WEIGHTS},
common AS MATERIALIZED (SELECT *, weight * ?::float8 AS most FROM w ORDER BY n DESC LIMIT 1),
rest AS MATERIALIZED (
  SELECT z.mem, sum(z.part) AS score
  FROM (SELECT p.mem, {_PART} AS part FROM w {_POSTINGS} WHERE w.term <> (SELECT term FROM common) OFFSET 0) z
  GROUP BY z.mem),
bound AS MATERIALIZED (
  SELECT r.score - c.most - 1e-6 AS least
  FROM (SELECT score FROM rest ORDER BY score DESC OFFSET {{last}} LIMIT 1) r CROSS JOIN common c),
hits AS (
  SELECT r.mem, r.score + COALESCE(c.part, 0) AS score
  FROM (SELECT * FROM rest WHERE score >= (SELECT least FROM bound)) r
  LEFT JOIN (SELECT p.mem, {_PART} AS part FROM common w {_POSTINGS}) c ON c.mem = r.mem
  WHERE (SELECT least > 0 FROM bound)
  UNION ALL
  SELECT z.mem, sum(z.score)
  FROM (SELECT mem, score FROM rest UNION ALL SELECT p.mem, {_PART} FROM common w {_POSTINGS}) z
  WHERE (SELECT least > 0 FROM bound) IS NOT TRUE GROUP BY z.mem)"""
_RESULT = (
    f"h.score, {ENTRY}, (SELECT min(base) FROM w), (SELECT min(slope) FROM w), "
    "ARRAY(SELECT weight FROM w ORDER BY place)"
)
_ORDER = "ORDER BY round(h.score * 1e9) DESC, m.updated_at DESC NULLS LAST, m.id"


class TermWeights(NamedTuple):
    """The weights of a query's terms, kept from a search for scoring further memories."""

    base: float
    """k1·(1 − b)."""
    slope: float
    """k1·b/avgdl."""
    weights: Sequence[float]
    """The IDF of each term times its frequency in the query."""


@dataclass(frozen=True, slots=True)
class Bm25:
    """The statements for one namespace with given k1 and b."""

    namespace: str
    k1: float
    b: float | None
    """None: adapted to the mean length of the documents, as in `BM25Index`."""

    def _curve(self) -> tuple[float]:
        return (self.k1 + 1,)

    def _query(self, terms: Mapping[str, float]) -> tuple[object, ...]:
        return self.k1, self.b, self.namespace, list(terms), list(terms.values()), self.namespace

    def weights(self, terms: Mapping[str, float], /) -> SQL:
        """The beginning of a statement: `w` has the terms and their weights."""
        return SQL(_WEIGHTS, self._query(terms))

    def of(self, found: str, /) -> SQL:
        """Part of a statement: (mem, score) of the memories of the table `found` (mem); NULL without a term.

        Each term's postings are looked up for all of them at once.
        """
        these = f"AND p.mem = ANY((SELECT array_agg(mem) FROM {found})::bigint[])"
        return SQL(
            f"SELECT z.mem, sum(z.part) AS score FROM (SELECT mem, NULL::float8 AS part FROM {found} UNION ALL "
            f"SELECT p.mem, {_PART} FROM w {_POSTINGS.replace('OFFSET', these + ' OFFSET')}) z GROUP BY z.mem",
            (*self._curve(), self.namespace),
        )

    def hits(self, terms: Mapping[str, float], /) -> SQL:
        """The beginning of a statement: `hits` (mem, score) has every memory with one of the terms."""
        return SQL(_HITS, (*self._query(terms), *self._curve(), self.namespace))

    def leading(self, terms: Mapping[str, float], k: int, /) -> SQL:
        """The same, but `hits` is complete only for the best k + SPARE memories."""
        each = (*self._curve(), self.namespace)
        return SQL(_LEADING.format(last=f"{k + SPARE - 1:d}"), (*self._query(terms), self.k1 + 1, *each * 3))

    @staticmethod
    def best(allowed: Set[str] | None, k: int, /) -> SQL:
        """Part of a statement: the best k + SPARE of `hits` (mem, score)."""
        rest = restriction(allowed)
        join = "JOIN memories m ON m.mem = h.mem " if allowed is not None else ""
        return SQL(
            f"SELECT h.mem, h.score FROM hits h {join}WHERE TRUE{rest.text} ORDER BY h.score DESC LIMIT {k + SPARE:d}",
            rest.params,
        )

    def search(self, terms: Mapping[str, float], allowed: Set[str] | None, k: int, /, *, ties: bool = False) -> SQL:
        """The best k + SPARE: (score, *entry, slope, weights).

        When the last row still equals the k-th (see `tied`), `ties` returns all rows that do. It sorts all hits, where
        a bounded sort is enough otherwise.
        """
        hits, bound = self.hits(terms) if ties or allowed is not None else self.leading(terms, k)
        if allowed is None:
            few = f"FETCH FIRST {k:d} ROWS WITH TIES" if ties else f"LIMIT {k + SPARE:d}"
            by = "round(score * 1e9)" if ties else "score"
            return SQL(
                f"{hits}, top AS (SELECT * FROM hits ORDER BY {by} DESC {few}) SELECT {_RESULT} FROM top h "
                f"JOIN memories m ON m.mem = h.mem {_ORDER} LIMIT {k + SPARE:d}",
                bound,
            )
        rest = restriction(allowed)
        return SQL(
            f"{hits} SELECT {_RESULT} FROM hits h JOIN memories m ON m.mem = h.mem "
            f"WHERE TRUE{rest.text} {_ORDER} LIMIT {k:d}",
            (*bound, *rest.params),
        )

    def score(self, terms: Mapping[str, float], ids: Sequence[str], known: TermWeights | None = None, /) -> SQL:
        """The scores of given memories: (id, score), only of those that match."""
        weights: tuple[object, ...] = self._query(terms)
        if known is not None:
            weights = (known.base, known.slope, list(terms), list(known.weights))
        return SQL(
            f"{_WEIGHTS if known is None else _GIVEN_WEIGHTS} SELECT m.id, {_SUM} FROM memories m CROSS JOIN w "
            f"CROSS JOIN LATERAL ({_ONE} OFFSET 0) p WHERE m.namespace = ? AND m.id = ANY(?::text[]) GROUP BY m.id",
            (*weights, *self._curve(), self.namespace, self.namespace, list(ids)),
        )

    def term_weights(self, terms: Mapping[str, float], /) -> SQL:
        """One row (base, slope, weights): the TermWeights of a query."""
        return SQL(
            f"{_WEIGHTS} SELECT min(base), min(slope), array_agg(weight ORDER BY place) FROM w", self._query(terms)
        )

    def frequencies(self, terms: Mapping[str, float], ids: Sequence[str], /) -> SQL:
        """Rows (id, length, term, tf) of given memories; term and tf are NULL for a memory without a term."""
        return SQL(
            "SELECT m.id, d.length, p.term, p.tf FROM memories m JOIN documents d ON d.namespace = m.namespace "
            "AND d.mem = m.mem LEFT JOIN LATERAL (SELECT p.term, p.tf FROM postings p WHERE p.namespace = ? "
            "AND p.term = ANY(?::text[]) AND p.mem = m.mem OFFSET 0) p ON TRUE "
            "WHERE m.namespace = ? AND m.id = ANY(?::text[])",
            (self.namespace, list(terms), self.namespace, list(ids)),
        )

    def coverage(self, terms: Mapping[str, float], ids: Sequence[str], /) -> SQL:
        """The share of the query's IDF that each memory's terms cover: (id, share)."""
        once = dict.fromkeys(terms, 1.0)
        return SQL(
            f"{_WEIGHTS} SELECT m.id, sum(w.weight) / (SELECT sum(weight) FROM w) FROM memories m CROSS JOIN w "
            f"CROSS JOIN LATERAL ({_ONE} OFFSET 0) p WHERE m.namespace = ? AND m.id = ANY(?::text[]) GROUP BY m.id",
            (*self._query(once), self.namespace, self.namespace, list(ids)),
        )


def by_score(rows: Iterable[tuple[Any, ...]], /) -> list[tuple[Any, ...]]:
    """Rows (score, *entry) in the order of `search`."""
    return sorted(rows, key=lambda row: (-round(row[0] * 1e9), -(row[_UPDATED] or -math.inf), row[1]))


def within(k: int, table: str, /) -> str:
    """The condition that a row of a table (score) is among its k best or equals the last of them."""
    last = f"SELECT score FROM {table} ORDER BY score DESC OFFSET {k - 1:d} LIMIT 1"
    return f"{table}.score >= COALESCE(({last}), 0) - 2e-9"


def tied(rows: Sequence[tuple[Any, ...]], k: int, /) -> bool:
    """Whether more memories may equal the k-th than `search` returned: its last row still does."""
    return 0 < k < len(rows) == k + SPARE and round(rows[k - 1][0] * 1e9) <= round(rows[-1][0] * 1e9) + 1
