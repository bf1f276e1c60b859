"""`lexical="pg_textsearch"`: the BM25 index of the extension of that name (github.com/timescale/pg_textsearch).

    CREATE INDEX … USING bm25 (words) WITH (text_config='simple', k1=1.2, b=0.75) WHERE namespace = '…'
    ORDER BY words <@> to_bm25query('cat lisbon', 'the index')     -- negative scores: the lower, the better

One partial index for each namespace, since statistics belong to an index: nobody's IDF tells of somebody else's
memories. Words are our analyzer's terms (a title's twice), spelled so that the server's parser leaves each one whole.
"""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound or quoted

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from hybridmem.errors import StoreError
from hybridmem.filter_sql import SQL
from hybridmem.stores.codec import clean
from hybridmem.stores.pg.bulk import insert
from hybridmem.stores.pg.chosen import restriction
from hybridmem.stores.pg.database import Conn
from hybridmem.stores.pg.errors import one_line
from hybridmem.stores.pg.lexical import ENTRY
from hybridmem.stores.pg.wording import K1, LONGEST, B, Doc, Rows, Run, digest, fitting, letters

__all__ = ["EXTENSION", "TextSearch", "index_name", "spelled"]

EXTENSION = "pg_textsearch"
_HELP = (
    "install it on the server (github.com/timescale/pg_textsearch, for PostgreSQL 17 and 18), add it to "
    "shared_preload_libraries, restart, and run CREATE EXTENSION pg_textsearch; or open the store with lexical='bm25', "
    "which is exact and needs nothing"
)
_TIMES = (("title", 2), ("text", 1), ("tags", 1), ("predicate", 1))
_MOST_TERMS = 1_000
_MARK = "xq"
"""How a spelled term begins: no word of a language does."""


@dataclass(frozen=True, slots=True)
class TextSearch:
    """The table of texts and an index of the extension for each namespace."""

    k1: float = K1
    b: float = B
    table = "texts"

    def create(self, conn: Conn, name: str, /) -> None:
        """Make the table, or say what the server lacks."""
        require(conn, name)
        conn.raw.execute(
            f'CREATE TABLE IF NOT EXISTS {self.table} (namespace text COLLATE "C" NOT NULL, mem bigint NOT NULL, '
            "words text NOT NULL, PRIMARY KEY (namespace, mem))"
        )

    def prepare(self, raw: psycopg.Connection[Any], namespace: str, /) -> None:
        """Make the index of a namespace; whoever may be the first holds the store alone."""
        if not self.is_prepared(raw, namespace):
            raw.execute(self.index_sql(namespace))

    def is_prepared(self, raw: psycopg.Connection[Any], namespace: str, /) -> bool:
        """Whether a namespace has its index."""
        there = "SELECT to_regclass(%s) IS NOT NULL"
        return raw.execute(there, (index_name(namespace),)).fetchone() == (True,)

    def index_sql(self, namespace: str, /) -> sql.Composed:
        """The statement that makes the index of a namespace."""
        return sql.SQL(
            "CREATE INDEX IF NOT EXISTS {} ON {} USING bm25 (words) WITH (text_config='simple', k1={}, b={}) "
            "WHERE namespace = {}"
        ).format(
            sql.Identifier(index_name(namespace)),
            sql.Identifier(self.table),
            sql.Literal(self.k1),
            sql.Literal(self.b),
            sql.Literal(namespace),
        )

    def add(self, raw: psycopg.Connection[Any], namespace: str, docs: Sequence[Doc], /) -> None:
        """Write the words of memories."""
        self.prepare(raw, namespace)
        rows = [(namespace, doc.mem, _text(doc.fields)) for doc in docs]
        insert(raw, self.table, ("text", "bigint", "text"), rows)

    def searcher(self, namespace: str, /) -> _Asking:
        """What asks about one namespace."""
        return _Asking(namespace)


class _Asking:
    """Asks one namespace's index, once it is there."""

    def __init__(self, namespace: str, /) -> None:
        self._namespace, self._index, self._there = namespace, index_name(namespace), False

    def search(self, run: Run, terms: Mapping[str, float], allowed: Set[str] | None, k: int, /) -> Rows:
        """The k best, read in the order of the index; only then the memories themselves are looked up."""
        if not self._ready(run):
            return ()
        asked, rest = (_query(terms), self._index), restriction(allowed)
        within = f" AND EXISTS (SELECT 1 FROM memories m WHERE m.mem = w.mem{rest.text})" if allowed is not None else ""
        distance = "w.words <@> to_bm25query(?, ?)"
        return run(
            SQL(
                f"SELECT -h.distance, {ENTRY} FROM (SELECT w.mem, {distance} AS distance FROM {TextSearch.table} w "
                f"WHERE w.namespace = ?{within} ORDER BY {distance} LIMIT ?) h JOIN memories m ON m.mem = h.mem "
                "WHERE h.distance < 0 ORDER BY h.distance, m.updated_at DESC NULLS LAST, m.id",
                (*asked, self._namespace, *rest.params, *asked, k),
            )
        )

    def score(self, run: Run, terms: Mapping[str, float], ids: Sequence[str], /) -> Rows:
        """The scores of given memories."""
        if not self._ready(run):
            return ()
        return run(
            SQL(
                "SELECT s.id, -s.distance FROM (SELECT m.id, w.words <@> to_bm25query(?, ?) AS distance FROM memories "
                f"m JOIN {TextSearch.table} w USING (namespace, mem) WHERE m.namespace = ? AND m.id = ANY(?::text[]) "
                "OFFSET 0) s WHERE s.distance < 0",
                (_query(terms), self._index, self._namespace, list(ids)),
            )
        )

    def _ready(self, run: Run) -> bool:
        """Whether the namespace has an index: one that nobody has written to has none."""
        if not self._there:
            self._there = bool(run(SQL("SELECT to_regclass(?) IS NOT NULL", (self._index,)))[0][0])
        return self._there


def require(conn: Conn, name: str, /) -> None:
    """Make sure of the extension; where that cannot be, say what to install."""
    if conn.raw.execute("SELECT 1 FROM pg_extension WHERE extname = %s", (EXTENSION,)).fetchone():
        return
    if not conn.raw.execute("SELECT 1 FROM pg_available_extensions WHERE name = %s", (EXTENSION,)).fetchone():
        raise StoreError(f"{name}: this server does not have the extension {EXTENSION}: {_HELP}")
    try:
        with conn.raw.transaction():
            conn.raw.execute(f"CREATE EXTENSION {EXTENSION} WITH SCHEMA public")
    except psycopg.Error as error:
        raise StoreError(f"{name}: the extension {EXTENSION} cannot be created ({one_line(error)}): {_HELP}") from error


def index_name(namespace: str, /) -> str:
    """The name of a namespace's index: always one that needs no quotes."""
    return f"texts_{digest(namespace)}"


def spelled(term: str, /) -> str:
    """A term as one word of letters for the server's parser.

    >>> spelled("cat"), spelled("18.12.1")
    ('cat', 'xqdbdicodbdccodb')
    """
    if term.isascii() and term.isalpha() and term.islower() and len(term) <= LONGEST and not term.startswith(_MARK):
        return term
    raw = clean(term).encode()
    return _MARK + (letters(raw) if 2 * len(raw) < LONGEST else digest(clean(term)))


def _text(fields: Mapping[str, Sequence[str]]) -> str:
    words = ((None, spelled(term)) for name, times in _TIMES for term in [*fields.get(name, ())] * times)
    return " ".join(word for _, word in fitting(words))


def _query(terms: Iterable[str]) -> str:
    return " ".join(map(spelled, list(terms)[:_MOST_TERMS]))
