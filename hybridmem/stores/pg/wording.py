"""What the engines beside the postings share: documents as terms, and asking."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

from hybridmem.filter_sql import SQL

__all__ = ["K1", "LONGEST", "B", "Doc", "Rows", "Run", "Searcher", "digest", "letters"]

K1, B = 1.2, 0.75
"""What BM25 has unless it is told otherwise."""
LONGEST = 2_000
"""PostgreSQL's words are shorter than 2,047 bytes: a longer one is known by its digest."""

Rows = Sequence[tuple[Any, ...]]
Run = Callable[[SQL], Rows]


class Doc(NamedTuple):
    """The terms of one memory, field by field."""

    mem: int
    fields: Mapping[str, Sequence[str]]


class Searcher(Protocol):
    """Asks one engine about one namespace."""

    def search(self, run: Run, terms: Mapping[str, float], allowed: Set[str] | None, k: int, /) -> Rows:
        """The k best: (score, entry…)."""
        ...

    def score(self, run: Run, terms: Mapping[str, float], ids: Sequence[str], /) -> Rows:
        """The scores of given memories: (id, score), only of those that match."""
        ...


_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")


def letters(data: bytes, /) -> str:
    """Bytes as letters from a to p, two for each."""
    return data.hex().translate(_LETTERS)


def digest(text: str, /) -> str:
    """A short stand-in for a text, made of letters alone."""
    return letters(hashlib.blake2b(text.encode(), digest_size=16).digest())
