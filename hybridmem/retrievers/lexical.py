"""Things with words on them, kept together with a lexical index: what both BM25Retrievers stand on.

A thing is whatever a framework ranks (a document, a node); the shelf finds it by its words, with any of the engines.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from hybridmem.core.fanout import in_thread
from hybridmem.core.forks import guard
from hybridmem.errors import ConfigError
from hybridmem.indexes.bm25.documents import Document, check_k
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.retrievers.lexical_file import Keeper, Row
from hybridmem.text.analyzer import Analyzer

__all__ = ["ENGINES", "Engine", "Found", "Shelf", "Words", "pattern_terms"]

T = TypeVar("T")
Engine = Literal["hybridmem", "fts5", "rank-bm25"]
ENGINES: tuple[Engine, ...] = ("hybridmem", "fts5", "rank-bm25")
_RANK_ONLY = ("epsilon", "delta")
_INLINE = 20_000
"""Up to so many things a search is over before a thread would have started."""


class Found(NamedTuple):
    """One hit: the thing and its score."""

    item: Any
    score: float


@dataclass(frozen=True, slots=True)
class Words:
    """How words are found and scored: the engine and its settings, checked.

    Without an engine named, ours is taken, unless a setting that only rank-bm25 has (`variant` l or plus, `epsilon`,
    `delta`) asks for that one.
    """

    engine: Engine | None = None
    k1: float | None = None
    b: float | None = None
    language: str | None = None
    terms: Callable[[str], list[str]] | None = None
    variant: str = "okapi"
    params: Mapping[str, Any] | None = None
    pad: bool = False
    """rank-bm25 ranks what matches nothing too, as its `get_top_n` does."""

    def __post_init__(self) -> None:
        if self.engine is not None and self.engine not in ENGINES:
            raise ConfigError(f"engine={self.engine!r} is not known; allowed: {', '.join(ENGINES)}")
        if self.engine in (None, "rank-bm25"):
            return
        params = self.params or {}
        foreign = [f"bm25_params[{name!r}]" for name in params if name not in ("k1", "b")]
        if self.variant != "okapi":
            foreign.append(f"bm25_variant={self.variant!r}")
        if self.engine == "fts5":
            given = {"k1": self.k1, "b": self.b, "preprocess_func": self.terms, **params}
            foreign += [name for name, value in given.items() if value is not None and name not in _RANK_ONLY]
        if foreign:
            raise ConfigError(f"{foreign[0]} does not go with engine={self.engine!r}; engine='rank-bm25' knows it")

    @property
    def chosen(self) -> Engine:
        """The engine that these settings mean."""
        if self.engine is not None:
            return self.engine
        old = self.variant != "okapi" or any(name in (self.params or {}) for name in _RANK_ONLY)
        return "rank-bm25" if old else "hybridmem"

    @property
    def analyzer(self) -> Any:
        """What turns text into terms: the given function, else ours; rank-bm25 by itself only splits at blanks."""
        if self.terms is not None:
            return self.terms
        if self.language is None and self.chosen == "rank-bm25":
            return str.split
        return Analyzer(language=self.language or "english")

    def curve(self) -> dict[str, Any]:
        """The constants that were given."""
        given = {"k1": self.k1, "b": self.b}
        return {**(self.params or {}), **{name: value for name, value in given.items() if value is not None}}

    def make(self) -> Any:
        """A new, empty index."""
        if self.chosen == "hybridmem":
            return BM25Index(self.analyzer, **self.curve())
        if self.chosen == "fts5":
            from hybridmem.indexes.engines.fts5 import FTS5Index

            return FTS5Index(analyzer=self.analyzer)
        from hybridmem.indexes.engines.rank_bm25 import RankBM25Index

        variant: Any = self.variant
        return RankBM25Index(self.analyzer, variant=variant, params=self.curve(), pad=self.pad)


def pattern_terms(
    pattern: str, /, *, stem: Callable[[str], str] | None, stops: Iterable[str]
) -> Callable[[str], list[str]]:
    """Terms by a pattern over lower-case text, without stop words, stemmed when a stemmer is given.

    >>> pattern_terms(r"[a-z]+", stem=None, stops={"the"})("The cat")
    ['cat']
    """
    find, dropped = re.compile(pattern).findall, frozenset(stops)

    def terms(text: str) -> list[str]:
        kept = [word for word in find(text.lower()) if word not in dropped]
        return kept if stem is None else list(map(stem, kept))

    return terms


class Shelf(Generic[T]):
    """Things by their keys, found by their words; in a file too, when a keeper is given."""

    def __init__(self, words: Words, keeper: Keeper[T] | None = None) -> None:
        self.words = words
        self.index = words.make()
        self._things: dict[str, tuple[T, Mapping[str, str]]] = {}
        self._keeper = keeper
        self._last = 0
        self._lock = guard(threading.RLock())
        if keeper is not None and keeper.exists:
            self._load(keeper)

    def __len__(self) -> int:
        return len(self._things)

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies and pickles: the things are carried over and their index is made again."""
        if self._keeper is not None:
            raise ConfigError(f"what is kept in {str(self._keeper.path)!r} is not copied: open the file again")
        rows = [Row(key, fields, item) for key, (item, fields) in list(self._things.items())]
        return _again, (self.words, rows, self._last)

    @property
    def items(self) -> list[T]:
        """All things, in the order in which they came."""
        return [item for item, _ in list(self._things.values())]

    def put(self, rows: Iterable[tuple[str | None, Mapping[str, str], T]], /) -> list[str]:
        """Put things under keys (a number of our own where the key is None) with their fields; their keys."""
        with self._lock:
            named = [Row(self._key(key), fields, item) for key, fields, item in rows]
            if self._keeper is not None and named:
                self._keeper.put(named)
            self._take(named)
            self._keep()
        return [row.key for row in named]

    def begin(self, rows: Iterable[tuple[str | None, Mapping[str, str], T]], /) -> None:
        """Put what is not there yet: a program may name its first things at every start."""
        if self._keeper is not None and self._things:
            keeper = self._keeper
            known = {(key, keeper.print_of(fields, item)) for key, (item, fields) in self._things.items()}
            nameless = {mark for key, mark in known if key.startswith("#")}
            marked = [(row, keeper.print_of(row[1], row[2])) for row in rows]
            rows = [
                row for row, mark in marked if (mark not in nameless if row[0] is None else (row[0], mark) not in known)
            ]
        self.put(rows)

    def _take(self, rows: Sequence[Row]) -> None:
        self._things.update({row.key: (row.item, row.fields) for row in rows})
        self.index.add_many(Document(row.key, row.fields) for row in rows)

    def remove(self, keys: Iterable[str], /) -> int:
        """Take things off the shelf; how many were there."""
        with self._lock:
            gone = [key for key in dict.fromkeys(keys) if key in self._things]
            if gone:
                if self._keeper is not None:
                    self._keeper.remove(gone)
                self._drop(gone)
                self._keep()
            return len(gone)

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.index.remove(key)  # out of the index first: what it finds is on the shelf
            self._things.pop(key, None)

    def _key(self, key: str | None) -> str:
        if key is not None:
            return key
        self._last += 1
        while f"#{self._last:08}" in self._things:  # after reading a file
            self._last += 1
        return f"#{self._last:08}"

    # --- asking

    def search(self, query: str, /, *, k: int, check: Callable[[T], bool] | None = None) -> list[Found]:
        """The k best things whose check holds, with their scores."""
        check_k(k)
        if check is None:
            return self._found(*self.index.search(query, k=k))
        deep = 4 * k + 16
        hits = self.index.search(query, k=deep)
        found = [one for one in self._found(*hits) if check(one.item)]
        if len(found) < k and len(hits.ids) == deep:  # the filter is narrow: ask only for what passes it
            passing = frozenset(key for key, (item, _) in list(self._things.items()) if check(item))
            found = self._found(*self.index.search(query, k=k, allowed=passing))
        return found[:k]

    async def asearch(self, query: str, /, *, k: int, check: Callable[[T], bool] | None = None) -> list[Found]:
        """The same without blocking the event loop."""
        if check is None and self.words.chosen == "hybridmem" and len(self) <= _INLINE:
            return self.search(query, k=k)
        found: list[Found] = await in_thread(lambda: self.search(query, k=k, check=check))
        return found

    def _found(self, ids: Sequence[str], scores: Sequence[float]) -> list[Found]:
        things = self._things
        return [Found(things[key][0], score) for key, score in zip(ids, scores, strict=True) if key in things]

    # --- keeping

    def _load(self, keeper: Keeper[T]) -> None:
        kept = keeper.load(self.index)
        self._things = {row.key: (row.item, row.fields) for row in kept.rows}
        if kept.words is None:
            self.index.add_many(Document(row.key, row.fields) for row in kept.rows)
        else:
            self.index = kept.words
        for step in kept.journal:
            self._drop(step.gone)
            self._take(step.rows)
        self._keep()

    def _keep(self) -> None:
        if self._keeper is not None and self._keeper.is_full(len(self._things)):
            self.save(self._keeper)

    def save(self, keeper: Keeper[T], /) -> None:
        """Write everything down anew."""
        rows = [Row(key, fields, item) for key, (item, fields) in list(self._things.items())]
        keeper.save(rows, self.index)

    @classmethod
    def at(
        cls, path: str | Path | None, words: Words, *, write: Callable[[T], Any], read: Callable[[Any], T]
    ) -> Shelf[T]:
        """A shelf that is kept in this file from now on, and read from it when it exists; without a path, none."""
        return cls(words, None if path is None else Keeper(path, write=write, read=read))


def _again(words: Words, rows: Sequence[Row], last: int) -> Shelf[Any]:
    shelf: Shelf[Any] = Shelf(words)
    shelf._take(rows)  # noqa: SLF001
    shelf._last = last  # noqa: SLF001
    return shelf
