"""What the engines beside the postings share: documents as terms, and asking."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol, TypeVar

from hybridmem.filter_sql import SQL

__all__ = ["K1", "LONGEST", "B", "Doc", "Rows", "Run", "Searcher", "digest", "fitting", "letters"]

T = TypeVar("T")
K1, B = 1.2, 0.75
"""What BM25 has unless it is told otherwise."""
LONGEST = 2_000
"""PostgreSQL's words are shorter than 2,047 bytes: a longer one is known by its digest."""

MOST_BYTES = 700_000
"""A document's further words are left out: PostgreSQL reads less than 1 MB of them."""

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


def fitting(words: Iterable[tuple[T, str]], /) -> Iterator[tuple[T, str]]:
    """The words of a document, each with whatever belongs to it, as long as PostgreSQL can hold them."""
    known: set[str] = set()
    size = 0
    for item in words:
        size += 2 if item[1] in known else len(item[1].encode()) + 8
        if size > MOST_BYTES:
            return
        known.add(item[1])
        yield item


_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")


def letters(data: bytes, /) -> str:
    """Bytes as letters from a to p, two for each."""
    return data.hex().translate(_LETTERS)


def digest(text: str, /) -> str:
    """A short stand-in for a text, made of letters alone."""
    return letters(hashlib.blake2b(text.encode(), digest_size=16).digest())
