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
from typing import Any

from hybridmem.core.types import Entry
from hybridmem.filters.sql import SQL
from hybridmem.indexes.bm25.index import B_LIMIT, HALF_LENGTH
from hybridmem.stores.postgres.search.filters import restriction

__all__ = ["ENTRY", "SPARE", "Bm25", "by_score", "entry_of"]

ENTRY = ", ".join(f"m.{name}" for name in Entry._fields)
"""The columns of an Entry in `memories m`."""
entry_of = partial(tuple.__new__, Entry)
"""`Entry._make` without its check of the length."""
_UPDATED = 1 + Entry._fields.index("updated_at")
SPARE = 32
"""Rows fetched beyond k: equal scores are ordered by time, which the sort by score in the statement ignores."""

_READ_ALL = 8
"""With at most this many postings of a term for each memory that is looked up, all of them are read."""

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
_ORDER = "ORDER BY round(h.score * 1e9) DESC, m.updated_at DESC NULLS LAST, m.id"


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
        """Tables of a statement: `words` (mem, score) has the k best of `hits`, with some that may equal the last.

        The best k + SPARE by score alone are enough, unless all beyond the k-th equal it: then all of equal score are
        ordered by time, which is skipped otherwise.
        """
        rest = restriction(allowed)
        join = "JOIN memories m ON m.mem = h.mem " if allowed is not None else ""
        most = k + SPARE
        return SQL(
            f"top AS MATERIALIZED (SELECT h.mem, h.score FROM hits h {join}WHERE TRUE{rest.text} "
            f"ORDER BY h.score DESC LIMIT {most:d}), "
            f"last AS MATERIALIZED (SELECT score, (SELECT count(*) = {most:d} AND min(top.score) >= l.score - 2e-9 "
            f"FROM top) AS tied FROM (SELECT score FROM top ORDER BY score DESC OFFSET {max(0, k - 1):d} LIMIT 1) l), "
            "words AS MATERIALIZED (SELECT mem, score FROM top WHERE (SELECT tied FROM last) IS NOT TRUE "
            "AND score >= COALESCE((SELECT score FROM last), 0) - 2e-9 UNION ALL (SELECT h.mem, h.score "
            f"FROM hits h JOIN memories m ON m.mem = h.mem WHERE (SELECT tied FROM last) "
            f"AND h.score >= (SELECT score FROM last) - 2e-9{rest.text} {_ORDER} LIMIT {most:d}))",
            rest.params * 2,
        )

    def search(self, terms: Mapping[str, float], allowed: Set[str] | None, k: int, /) -> SQL:
        """The k best: (score, *entry)."""
        hits = self.hits(terms) if allowed is not None else self.leading(terms, k)
        best = self.best(allowed, k)
        return SQL(
            f"{hits.text}, {best.text} SELECT h.score, {ENTRY} FROM words h JOIN memories m ON m.mem = h.mem "
            f"{_ORDER} LIMIT {k:d}",
            (*hits.params, *best.params),
        )

    def score(self, terms: Mapping[str, float], ids: Sequence[str], /) -> SQL:
        """The scores of given memories: (id, score), only of those that match."""
        return SQL(
            f"{_WEIGHTS} SELECT m.id, {_SUM} FROM memories m CROSS JOIN w "
            f"CROSS JOIN LATERAL ({_ONE} OFFSET 0) p WHERE m.namespace = ? AND m.id = ANY(?::text[]) GROUP BY m.id",
            (*self._query(terms), *self._curve(), self.namespace, self.namespace, list(ids)),
        )

    def frequencies(self, found: str, /) -> SQL:
        """Part of a statement: (place, mem, tf, length), the postings of the terms of `w` in memories of a table (mem).

        All postings of a term are read and filtered unless there are many times more of them than memories: looking
        up a memory takes as long as reading several postings.
        """
        most = f"{_READ_ALL:d} * (SELECT count(*) FROM {found})"
        few = f"AND w.n <= {most} OFFSET"
        many = f"AND w.n > {most} AND p.mem = ANY((SELECT array_agg(mem ORDER BY mem) FROM {found})::bigint[]) OFFSET"
        postings = "SELECT w.place, p.mem, p.tf, p.length FROM w"
        return SQL(
            f"{postings} {_POSTINGS.replace('OFFSET', few)} WHERE p.mem IN (SELECT mem FROM {found}) "
            f"UNION ALL {postings} {_POSTINGS.replace('OFFSET', many)}",
            (self.namespace, self.namespace),
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
