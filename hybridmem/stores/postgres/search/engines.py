"""Lexical engines in the server: exact BM25 over the postings, or PostgreSQL's tsvector ranking.

    bm25      the postings, exact and live
    tsvector  ts_rank_cd(…, 32) over a tsvector, for people who use it already; it is not BM25

    rank = r / (r + 1),  r = ts_rank_cd over the query's terms joined by OR
    title has weight A = 1, text and tags B = 1/2, predicate C = 1/4: the proportions 2 : 1 : 1/2 of exact BM25

Both read the terms of the same analyzer. The postings are kept in any case: document frequencies, confidence and a
later change back to exact BM25 need them. tsvector ignores term rarity and document length: its top 20 overlaps with
BM25's by 31 to 50 % in `python -m benchmarks.postgres_words`.
"""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import psycopg

from hybridmem.core.validation import clean
from hybridmem.errors import ConfigError
from hybridmem.filters.sql import SQL
from hybridmem.stores.postgres.connection import Conn, insert
from hybridmem.stores.postgres.search.bm25 import ENTRY
from hybridmem.stores.postgres.search.filters import restriction

__all__ = [
    "ENGINES",
    "DocumentTerms",
    "Lexical",
    "Rows",
    "RunStatement",
    "Searcher",
    "checked_engine",
    "document",
    "query",
]

T = TypeVar("T")
K1, B = 1.2, 0.75
"""BM25's defaults: tsvector accepts no others."""
LONGEST = 2_000
"""PostgreSQL's words are shorter than 2,047 bytes: a longer one is replaced by its digest."""
MOST_BYTES = 700_000
"""Further words of a document are left out: PostgreSQL accepts less than 1 MB."""
ENGINES = ("bm25", "tsvector")

Rows = Sequence[tuple[Any, ...]]
RunStatement = Callable[[SQL], Rows]


class DocumentTerms(NamedTuple):
    """The terms of one memory for each field."""

    mem: int
    fields: Mapping[str, Sequence[str]]


class Searcher(Protocol):
    """Searches one namespace with one engine."""

    def search(self, run: RunStatement, terms: Mapping[str, float], allowed: Set[str] | None, k: int, /) -> Rows:
        """The k best: (score, entry…)."""
        ...

    def score(self, run: RunStatement, terms: Mapping[str, float], ids: Sequence[str], /) -> Rows:
        """The scores of given memories: (id, score), only of those that match."""
        ...


def fitting(words: Iterable[tuple[T, str]], /) -> Iterator[tuple[T, str]]:
    """The words of a document with their data, up to the size that PostgreSQL accepts."""
    seen: set[str] = set()
    size = 0
    for item in words:
        size += 2 if item[1] in seen else len(item[1].encode()) + 8
        if size > MOST_BYTES:
            return
        seen.add(item[1])
        yield item


def digest(text: str, /) -> str:
    """A digest of a text: 32 letters from a to p."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest().translate(_LETTERS)


_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")


_WEIGHTS = (("title", "A"), ("text", "B"), ("tags", "B"), ("predicate", "C"))
_RANK = "ts_rank_cd('{0.125, 0.25, 0.5, 1}', w.words, ?::tsquery, 32)::float8"
_MOST_TERMS = 1_000
"""Further terms of a query are left out: the size of a tsquery is limited."""
_MOST_POSITIONS = 255
_LAST_POSITION = 16_383


@dataclass(frozen=True, slots=True)
class TsVector:
    """The table of tsvectors. The namespace is one more word of each, so that one GIN index covers both."""

    table = "lexemes"

    def create(self, conn: Conn, /) -> None:
        """Create the table and its index."""
        conn.raw.execute(
            f'CREATE TABLE IF NOT EXISTS {self.table} (namespace text COLLATE "C" NOT NULL, mem bigint NOT NULL, '
            "words tsvector NOT NULL, PRIMARY KEY (namespace, mem))"
        )
        conn.raw.execute(f"CREATE INDEX IF NOT EXISTS {self.table}_words ON {self.table} USING gin (words)")

    def add(self, raw: psycopg.Connection[Any], namespace: str, docs: Sequence[DocumentTerms], /) -> None:
        """Write the words of memories."""
        rows = [(namespace, doc.mem, document(namespace, doc.fields)) for doc in docs]
        insert(raw, self.table, ("text", "bigint", "tsvector"), rows)

    def searcher(self, namespace: str, /) -> _TsVectorSearcher:
        """The searcher of one namespace."""
        return _TsVectorSearcher(namespace)


@dataclass(frozen=True, slots=True)
class _TsVectorSearcher:
    namespace: str

    def search(self, run: RunStatement, terms: Mapping[str, float], allowed: Set[str] | None, k: int, /) -> Rows:
        """The k best: ties by the newer, then by id."""
        tsquery, rest = query(terms), restriction(allowed)
        return run(
            SQL(
                f"SELECT {_RANK} AS score, {ENTRY} FROM {TsVector.table} w JOIN memories m ON m.mem = w.mem "
                f"WHERE w.words @@ ?::tsquery AND w.namespace = ?{rest.text} "
                "ORDER BY score DESC, m.updated_at DESC NULLS LAST, m.id LIMIT ?",
                (tsquery, f"{_quoted(_space(self.namespace))} & ({tsquery})", self.namespace, *rest.params, k),
            )
        )

    def score(self, run: RunStatement, terms: Mapping[str, float], ids: Sequence[str], /) -> Rows:
        """The ranks of given memories."""
        tsquery = query(terms)
        return run(
            SQL(
                f"SELECT m.id, {_RANK} FROM memories m JOIN {TsVector.table} w USING (namespace, mem) "
                "WHERE m.namespace = ? AND m.id = ANY(?::text[]) AND w.words @@ ?::tsquery",
                (tsquery, self.namespace, list(ids), tsquery),
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


def checked_engine(name: str, /) -> str:
    """An engine's name, or an error that lists the allowed ones."""
    if name not in ENGINES:
        raise ConfigError(f"lexical = {name!r} is not allowed: {', '.join(map(repr, ENGINES))}")
    return name


@dataclass(frozen=True, slots=True)
class Lexical:
    """The lexical engine that a store has recorded."""

    engine: str = "bm25"

    @classmethod
    def of(cls, engine: str, k1: float, b: float, /) -> Lexical:
        """The engine for a memory with this k1 and b: BM25 takes them with each question, tsvector has none."""
        if checked_engine(engine) == "tsvector" and (k1, b) != (K1, B):
            raise ConfigError(f"lexical='tsvector' ranks without k1 and b: k1={k1:g} and b={b:g} would change nothing")
        return cls(engine)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; empty for BM25, the engine of a store without a record."""
        return {} if self.engine == "bm25" else {"lexical": {"engine": self.engine}}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], /) -> Lexical:
        """From the record of a store."""
        return cls(**record.get("lexical", {}))

    @property
    def engine_table(self) -> TsVector | None:
        """The engine's own table; None for BM25, which uses the postings."""
        return None if self.engine == "bm25" else TsVector()

    def create(self, conn: Conn, /, *, anew: bool = False) -> None:
        """Create the engine's table; `anew` drops it first."""
        if anew:
            conn.raw.execute(f"DROP TABLE IF EXISTS {TsVector.table}")
        if self.engine_table is not None:
            self.engine_table.create(conn)

    def replace(
        self, raw: psycopg.Connection[Any], namespace: str, gone: Sequence[int], docs: Sequence[DocumentTerms], /
    ) -> None:
        """Delete the words of some memories, and write those of others."""
        engine = self.engine_table
        if engine is None:
            return
        if gone:
            query = f"DELETE FROM {engine.table} WHERE namespace = %s AND mem = ANY(%s)"
            raw.execute(query, (namespace, sorted(gone)))
        if docs:
            engine.add(raw, namespace, docs)

    def searcher(self, namespace: str, /) -> Searcher | None:
        """The searcher of an engine with its own table; None for BM25."""
        return None if self.engine_table is None else self.engine_table.searcher(namespace)
