"""How many memories of a namespace have a term: BM25's n, kept beside the postings and changed in the same transaction.

Counting the postings of a common term takes as long as reading them, so a search would read them twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

__all__ = ["TABLE", "add", "count_all", "take_away"]

Raw = psycopg.Connection[Any]

TABLE = """
CREATE TABLE IF NOT EXISTS terms (
  namespace text COLLATE "C" NOT NULL, term text COLLATE "C" NOT NULL, n bigint NOT NULL,
  PRIMARY KEY (namespace, term)) WITH (fillfactor = 70);
"""
_TERMS = "SELECT d.mem, unnest(d.terms) AS term FROM documents d WHERE d.namespace = %s AND d.mem = ANY(%s)"


def add(raw: Raw, namespace: str, terms: Iterable[str], /) -> None:
    """Count the terms of new postings."""
    counts = Counter(terms)
    ordered = sorted(counts)
    raw.execute(
        "INSERT INTO terms SELECT %s, * FROM unnest(%s::text[], %s::bigint[]) "
        "ON CONFLICT (namespace, term) DO UPDATE SET n = terms.n + excluded.n",
        (namespace, ordered, [counts[term] for term in ordered]),
    )


def take_away(raw: Raw, namespace: str, mems: Sequence[int], /) -> None:
    """Take the postings of memories away, and count them no more. A term that nobody has is forgotten, too."""
    raw.execute(
        f"WITH gone AS (DELETE FROM postings p USING ({_TERMS}) q WHERE p.namespace = %s AND p.term = q.term "  # noqa: S608
        "AND p.mem = q.mem RETURNING p.term) UPDATE terms t SET n = t.n - g.n FROM (SELECT term, count(*) AS n "
        "FROM gone GROUP BY term) g WHERE t.namespace = %s AND t.term = g.term",
        (namespace, mems, namespace, namespace),
    )
    raw.execute(
        "DELETE FROM terms WHERE namespace = %s AND term = ANY(ARRAY(SELECT DISTINCT unnest(d.terms) FROM documents d "
        "WHERE d.namespace = %s AND d.mem = ANY(%s))) AND n <= 0",
        (namespace, namespace, mems),
    )


def count_all(raw: Raw, /) -> None:
    """Count everything from the postings."""
    raw.execute("DELETE FROM terms")
    raw.execute("INSERT INTO terms SELECT namespace, term, count(*) FROM postings GROUP BY 1, 2")
