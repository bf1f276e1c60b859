"""Which engine ranks words in the server: our exact BM25 over the postings, or one that the server brings along.

    bm25           the postings, exact and live; needs nothing
    tsvector       ts_rank_cd over a tsvector, for those who have it already; its ranking is not BM25
    pg_textsearch  the BM25 index of the extension of that name

All of them see the terms of the same analyzer. The postings are kept in any case: IDF, scores of confidence and the
way back to exact BM25 rest on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from hybridmem.errors import ConfigError
from hybridmem.stores.pg.database import Conn
from hybridmem.stores.pg.textsearch import TextSearch
from hybridmem.stores.pg.tsvector import TsVector
from hybridmem.stores.pg.wording import K1, B, Doc, Searcher

__all__ = ["ENGINES", "Lexical", "checked_engine"]

Raw = psycopg.Connection[Any]


class Words(Protocol):
    """An engine beside the postings: a table of its own, kept in the write's transaction."""

    table: str

    def create(self, conn: Conn, name: str, /) -> None:
        """Make its table, or say what the server lacks."""
        ...

    def add(self, raw: Raw, namespace: str, docs: Sequence[Doc], /) -> None:
        """Write the words of memories that have none there."""
        ...

    def searcher(self, namespace: str, /) -> Searcher:
        """What asks it about one namespace."""
        ...


ENGINES = ("bm25", "tsvector", "pg_textsearch")


def checked_engine(name: str, /) -> str:
    """An engine's name, or an error that tells the allowed ones."""
    if name not in ENGINES:
        raise ConfigError(f"lexical = {name!r} is not allowed: {', '.join(map(repr, ENGINES))}")
    return name


@dataclass(frozen=True, slots=True)
class Lexical:
    """The engine of a store, as it is on record; k1 and b only where they are part of what is stored."""

    engine: str = "bm25"
    k1: float = K1
    b: float = B

    @classmethod
    def of(cls, engine: str, k1: float, b: float, /) -> Lexical:
        """The engine for a memory with this k1 and b: exact BM25 takes them with each question, others do not."""
        if checked_engine(engine) == "tsvector" and (k1, b) != (K1, B):
            raise ConfigError(f"lexical='tsvector' ranks without k1 and b: k1={k1:g} and b={b:g} would change nothing")
        return cls(engine, k1, b) if engine == "pg_textsearch" else cls(engine)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; nothing for our own engine, which is what a store has without a record."""
        if self.engine == "bm25":
            return {}
        fixed = {"k1": self.k1, "b": self.b} if self.engine == "pg_textsearch" else {}
        return {"lexical": {"engine": self.engine, **fixed}}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], /) -> Lexical:
        """From the record of a store."""
        return cls(**record.get("lexical", {}))

    @property
    def words(self) -> Words | None:
        """The engine beside the postings, if there is one."""
        if self.engine == "bm25":
            return None
        return TsVector() if self.engine == "tsvector" else TextSearch(self.k1, self.b)

    # --- upkeep

    def create(self, conn: Conn, name: str, /, *, anew: bool = False) -> None:
        """Make the engine's table; `anew` throws away what every engine beside the postings has."""
        if anew:
            conn.raw.execute(f"DROP TABLE IF EXISTS {TsVector.table}, {TextSearch.table}")
        if self.words is not None:
            self.words.create(conn, name)

    def replace(self, raw: Raw, namespace: str, gone: Sequence[int], docs: Sequence[Doc], /) -> None:
        """Take the words of some memories away, and write those of others."""
        words = self.words
        if words is None:
            return
        if gone:
            query = f"DELETE FROM {words.table} WHERE namespace = %s AND mem = ANY(%s)"  # noqa: S608
            raw.execute(query, (namespace, sorted(gone)))
        if docs:
            words.add(raw, namespace, docs)

    def searcher(self, namespace: str, /) -> Searcher | None:
        """What asks the engine beside the postings, if there is one."""
        return None if self.words is None else self.words.searcher(namespace)
