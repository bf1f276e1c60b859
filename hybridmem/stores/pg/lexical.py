"""BM25 inside the server: one statement over the postings, with live N, n and avgdl (`spaces`, `terms`).

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

from hybridmem.filter_sql import SQL
from hybridmem.stores.pg.chosen import restriction
from hybridmem.types import Entry

__all__ = ["ENTRY", "SPARE", "Bm25", "Known", "by_score", "entry_of", "tied"]

ENTRY = ", ".join(f"m.{name}" for name in Entry._fields)
"""What ranking needs to know: every field of an Entry is a column of `memories`."""
entry_of = partial(tuple.__new__, Entry)
"""`Entry._make` without its check of the length: the rows are our own."""
_UPDATED = 1 + Entry._fields.index("updated_at")
SPARE = 32
"""So many more than k are fetched: among equals the newer one comes first, which a sort by score does not know."""

# (SELECT …) keeps the planner from counting the terms of a question: every plan then costs the same, and one is kept.
# OFFSET 0 keeps the planner from turning "look these few terms up" into a walk over all postings.
_WEIGHTS = """
WITH s AS (
  SELECT memories AS n, CASE WHEN length > 0 THEN ?::float8 * memories / length ELSE 0 END AS slope
  FROM spaces WHERE namespace = ?),
w AS MATERIALIZED (
  SELECT q.term, q.place, s.slope, q.times * ln(1 + (s.n - c.n + 0.5::float8) / (c.n + 0.5::float8)) AS weight
  FROM s, unnest((SELECT ?::text[]), (SELECT ?::float8[])) WITH ORDINALITY AS q (term, times, place)
  CROSS JOIN LATERAL (
    SELECT COALESCE((SELECT t.n FROM terms t WHERE t.namespace = ? AND t.term = q.term), 0) AS n OFFSET 0) c
  ORDER BY weight DESC, q.term)"""
_ONE = "SELECT p.tf, p.length FROM postings p WHERE p.namespace = ? AND p.term = w.term AND p.mem = m.mem"
_KNOWN = "WITH w AS (SELECT *, ?::float8 AS slope FROM unnest(?::text[], ?::float8[]) AS w (term, weight))"
_PART = "w.weight * (p.tf * ?::float8 / (p.tf + (?::float8 + w.slope * p.length)))"
_SUM = f"sum({_PART})"
# The outer OFFSET 0 lets the planner expect as many groups as postings: the table of sums then starts large enough.
_HITS = f"""{_WEIGHTS},
hits AS (
  SELECT z.mem, sum(z.part) AS score
  FROM (SELECT p.mem, {_PART} AS part FROM w CROSS JOIN LATERAL (
    SELECT p.mem, p.tf, p.length FROM postings p WHERE p.namespace = ? AND p.term = w.term OFFSET 0) p OFFSET 0) z
  GROUP BY z.mem)"""
_FOUND = f"h.score, {ENTRY}, (SELECT min(slope) FROM w), ARRAY(SELECT weight FROM w ORDER BY place)"
_ORDER = "ORDER BY round(h.score * 1e9) DESC, m.updated_at DESC NULLS LAST, m.id"


class Known(NamedTuple):
    """What a search has learned about its terms, so that scoring more memories need not count again."""

    slope: float
    """k1·b/avgdl."""
    weights: Sequence[float]
    """Each term's IDF times how often the query has it."""


@dataclass(frozen=True, slots=True)
class Bm25:
    """The statements for one namespace and one choice of k1 and b."""

    namespace: str
    k1: float
    b: float

    def _curve(self) -> tuple[float, float]:
        return self.k1 + 1, self.k1 * (1 - self.b)

    def _query(self, terms: Mapping[str, float]) -> tuple[object, ...]:
        return self.k1 * self.b, self.namespace, list(terms), list(terms.values()), self.namespace

    def weights(self, terms: Mapping[str, float], /) -> SQL:
        """The beginning of a statement: `w` holds the terms with their weights."""
        return SQL(_WEIGHTS, self._query(terms))

    def one(self, mem: str, /) -> SQL:
        """The score of one memory, by the column that holds its number; NULL where it has none of the terms `w`."""
        found = _ONE.replace("m.mem", mem)
        return SQL(f"SELECT {_SUM} FROM w CROSS JOIN LATERAL ({found} OFFSET 0) p", (*self._curve(), self.namespace))

    def hits(self, terms: Mapping[str, float], /) -> SQL:
        """The beginning of a statement: `hits` (mem, score) holds whatever has one of the terms."""
        return SQL(_HITS, (*self._query(terms), *self._curve(), self.namespace))

    @staticmethod
    def best(allowed: Set[str] | None, k: int, /) -> SQL:
        """The k best of `hits` (mem, score), and a few more: a part of a statement."""
        rest = restriction(allowed)
        join = "JOIN memories m ON m.mem = h.mem " if allowed is not None else ""
        return SQL(
            f"SELECT h.mem, h.score FROM hits h {join}WHERE TRUE{rest.text} ORDER BY h.score DESC LIMIT {k + SPARE:d}",
            rest.params,
        )

    def search(self, terms: Mapping[str, float], allowed: Set[str] | None, k: int, /, *, ties: bool = False) -> SQL:
        """The k best and a few more: (score, *entry, slope, weights).

        Where the last of these few still equals the k-th (see `tied`), `ties` asks for everything that does: it has
        to sort all hits, where a bounded sort is enough otherwise.
        """
        hits, bound = self.hits(terms)
        if allowed is None:
            few = f"FETCH FIRST {k:d} ROWS WITH TIES" if ties else f"LIMIT {k + SPARE:d}"
            by = "round(score * 1e9)" if ties else "score"
            return SQL(
                f"{hits}, top AS (SELECT * FROM hits ORDER BY {by} DESC {few}) SELECT {_FOUND} FROM top h "
                f"JOIN memories m ON m.mem = h.mem {_ORDER} LIMIT {k + SPARE:d}",
                bound,
            )
        rest = restriction(allowed)
        return SQL(
            f"{hits} SELECT {_FOUND} FROM hits h JOIN memories m ON m.mem = h.mem "
            f"WHERE TRUE{rest.text} {_ORDER} LIMIT {k:d}",
            (*bound, *rest.params),
        )

    def score(self, terms: Mapping[str, float], ids: Sequence[str], known: Known | None = None, /) -> SQL:
        """The scores of given memories: (id, score), only of those that match."""
        weights: tuple[object, ...] = self._query(terms)
        if known is not None:
            weights = (known.slope, list(terms), list(known.weights))
        return SQL(
            f"{_WEIGHTS if known is None else _KNOWN} SELECT m.id, {_SUM} FROM memories m CROSS JOIN w "
            f"CROSS JOIN LATERAL ({_ONE} OFFSET 0) p WHERE m.namespace = ? AND m.id = ANY(?::text[]) GROUP BY m.id",
            (*weights, *self._curve(), self.namespace, self.namespace, list(ids)),
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
    """Rows (score, *entry) in the order that `search` gives them."""
    return sorted(rows, key=lambda row: (-round(row[0] * 1e9), -(row[_UPDATED] or -math.inf), row[1]))


def tied(rows: Sequence[tuple[Any, ...]], k: int, /) -> bool:
    """Whether more may equal the k-th than `search` brought: its last row still does."""
    return 0 < k < len(rows) == k + SPARE and round(rows[k - 1][0] * 1e9) <= round(rows[-1][0] * 1e9) + 1
