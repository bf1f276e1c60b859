"""`lexical="tsvector"`: PostgreSQL's own full-text search, ranked by ts_rank_cd(…, 32). It is not BM25.

    rank = r / (r + 1),  r = ts_rank_cd over the query's terms joined by OR
    title has weight A = 1, text and tags B = 1/2, predicate C = 1/4: the proportions 2 : 1 : 1/2 of exact BM25

No term is rarer than another here, and length does not count: it agrees with BM25 in 31 to 50 % of the top 20 where
benchmarks/postgres_words.py measures it; an earlier measurement, on other texts, found 14 %.
"""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import psycopg

from hybridmem.filter_sql import SQL
from hybridmem.stores.codec import clean
from hybridmem.stores.pg.bulk import insert
from hybridmem.stores.pg.chosen import restriction
from hybridmem.stores.pg.database import Conn
from hybridmem.stores.pg.lexical import ENTRY
from hybridmem.stores.pg.wording import LONGEST, Doc, Rows, Run, digest, fitting

__all__ = ["TsVector", "document", "query"]

_WEIGHTS = (("title", "A"), ("text", "B"), ("tags", "B"), ("predicate", "C"))
_RANK = "ts_rank_cd('{0.125, 0.25, 0.5, 1}', w.words, ?::tsquery, 32)::float8"
_MOST_TERMS = 1_000
"""A query's further terms are left out: a tsquery has a limit, and nobody asks so much."""
_MOST_POSITIONS = 255
_LAST_POSITION = 16_383


@dataclass(frozen=True, slots=True)
class TsVector:
    """The table of tsvectors. Each holds its namespace as one more word, so that one GIN index answers both."""

    table = "lexemes"

    def create(self, conn: Conn, name: str, /) -> None:  # noqa: ARG002 - the server has it
        """Make the table and its index."""
        conn.raw.execute(
            f'CREATE TABLE IF NOT EXISTS {self.table} (namespace text COLLATE "C" NOT NULL, mem bigint NOT NULL, '
            "words tsvector NOT NULL, PRIMARY KEY (namespace, mem))"
        )
        conn.raw.execute(f"CREATE INDEX IF NOT EXISTS {self.table}_words ON {self.table} USING gin (words)")

    def add(self, raw: psycopg.Connection[Any], namespace: str, docs: Sequence[Doc], /) -> None:
        """Write the words of memories."""
        rows = [(namespace, doc.mem, document(namespace, doc.fields)) for doc in docs]
        insert(raw, self.table, ("text", "bigint", "tsvector"), rows)

    def searcher(self, namespace: str, /) -> _Asking:
        """What asks about one namespace."""
        return _Asking(namespace)


@dataclass(frozen=True, slots=True)
class _Asking:
    namespace: str

    def search(self, run: Run, terms: Mapping[str, float], allowed: Set[str] | None, k: int, /) -> Rows:
        """The k best: ties by the newer, then by id."""
        asked, rest = query(terms), restriction(allowed)
        return run(
            SQL(
                f"SELECT {_RANK} AS score, {ENTRY} FROM {TsVector.table} w JOIN memories m ON m.mem = w.mem "
                f"WHERE w.words @@ ?::tsquery AND w.namespace = ?{rest.text} "
                "ORDER BY score DESC, m.updated_at DESC NULLS LAST, m.id LIMIT ?",
                (asked, f"{_quoted(_space(self.namespace))} & ({asked})", self.namespace, *rest.params, k),
            )
        )

    def score(self, run: Run, terms: Mapping[str, float], ids: Sequence[str], /) -> Rows:
        """The ranks of given memories."""
        asked = query(terms)
        return run(
            SQL(
                f"SELECT m.id, {_RANK} FROM memories m JOIN {TsVector.table} w USING (namespace, mem) "
                "WHERE m.namespace = ? AND m.id = ANY(?::text[]) AND w.words @@ ?::tsquery",
                (asked, self.namespace, list(ids), asked),
            )
        )


def document(namespace: str, fields: Mapping[str, Sequence[str]], /) -> str:
    """A memory's terms in tsvector's own notation, with their places and weights.

    >>> document("", {"title": ["cat"], "text": ["cat", "o'hara"]}).split(" ", 1)[1]
    "'cat':1A,2B 'o''hara':3B"
    """
    weighted = ((weight, _lexeme(term)) for name, weight in _WEIGHTS for term in fields.get(name, ()))
    places: dict[str, list[str]] = {}
    for at, (weight, lexeme) in enumerate(fitting(weighted), start=1):
        found = places.setdefault(lexeme, [])
        if len(found) < _MOST_POSITIONS:
            found.append(f"{min(at, _LAST_POSITION)}{weight}")
    words = (f"{_quoted(lexeme)}:{','.join(found)}" for lexeme, found in places.items())
    return " ".join([_quoted(_space(namespace)), *words])


def query(terms: Iterable[str], /) -> str:
    """Terms joined by OR, in tsquery's own notation: every term is quoted, whatever it holds.

    >>> query(["cat", "o'hara", "a|b"])
    "'cat' | 'o''hara' | 'a|b'"
    """
    return " | ".join(_quoted(_lexeme(term)) for term in list(terms)[:_MOST_TERMS])


def _lexeme(term: str) -> str:
    term = clean(term)
    return term if len(term.encode()) <= LONGEST else digest(term)


def _quoted(lexeme: str) -> str:
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


def _space(namespace: str) -> str:
    return "=" + digest(namespace)
