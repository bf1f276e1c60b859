"""Items of any framework with a lexical index over their text fields: the core of both BM25Retrievers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from hybridmem.core import validation
from hybridmem.core.fanout import in_thread
from hybridmem.core.forks import guard
from hybridmem.errors import ConfigError
from hybridmem.indexes.bm25.documents import WEIGHTS, Document
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.retrievers.lexical_file import LexicalFile, LexicalItem
from hybridmem.text.analyzer import Analyzer

__all__ = [
    "ENGINES",
    "EngineName",
    "LexicalCorpus",
    "LexicalHit",
    "LexicalSettings",
    "check_fields",
    "fields_of",
    "pattern_terms",
]

T = TypeVar("T")
EngineName = Literal["hybridmem", "fts5", "rank-bm25"]
ENGINES: tuple[EngineName, ...] = ("hybridmem", "fts5", "rank-bm25")
_RANK_ONLY = ("epsilon", "delta")
_INLINE = 20_000
"""Up to so many items a search is faster than a handover to a thread."""


class LexicalHit(NamedTuple):
    """An item and its score."""

    item: Any
    score: float


@dataclass(frozen=True, slots=True)
class LexicalSettings:
    """The lexical engine and its settings, validated.

    Without an engine ours is used, unless a setting that only rank-bm25 has (`variant`, `epsilon`, `delta`)
    asks for that one.
    """

    engine: EngineName | None = None
    k1: float | None = None
    b: float | None = None
    language: str | None = None
    terms: Callable[[str], list[str]] | None = None
    variant: str | None = None
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
        if self.variant not in (None, "okapi"):
            foreign.append(f"bm25_variant={self.variant!r}")
        if self.engine == "fts5":
            given = {"k1": self.k1, "b": self.b, "preprocess_func": self.terms, **params}
            foreign += [name for name, value in given.items() if value is not None and name not in _RANK_ONLY]
        if foreign:
            raise ConfigError(f"{foreign[0]} does not go with engine={self.engine!r}; engine='rank-bm25' knows it")

    @property
    def chosen(self) -> EngineName:
        """The engine that these settings lead to."""
        if self.engine is not None:
            return self.engine
        old = self.variant is not None or any(name in (self.params or {}) for name in _RANK_ONLY)
        return "rank-bm25" if old else "hybridmem"

    @property
    def analyzer(self) -> Any:
        """The function from text to terms: the given one, else ours; rank-bm25 by itself splits at white space."""
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

        variant: Any = self.variant or "okapi"
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


def check_fields(fields: Mapping[str, str] | None, /) -> dict[str, str]:
    """Validate which metadata are searched as which field of a text."""
    for field in fields or ():
        if field not in WEIGHTS or field == "text":
            raise ConfigError(f"fields names {field!r}; allowed: title, tags, predicate")
    return dict(fields or {})


def fields_of(text: str, metadata: Mapping[str, Any], fields: Mapping[str, str], /) -> dict[str, str]:
    """The searched fields of a text: itself, and the metadata that `fields` names.

    >>> fields_of("Rain", {"topics": ["sky", "sea"]}, {"tags": "topics"})
    {'text': 'Rain', 'tags': 'sky sea'}
    """
    texts = {"text": text}
    for field, name in fields.items():
        value = metadata.get(name)
        if value is not None:
            texts[field] = " ".join(map(str, value)) if isinstance(value, list | tuple | set) else str(value)
    return texts


class LexicalCorpus(Generic[T]):
    """Items by key with a lexical index, and in a file too, when one is given."""

    def __init__(self, settings: LexicalSettings, file: LexicalFile[T] | None = None) -> None:
        self.settings = settings
        self.index = settings.make()
        self._items: dict[str, tuple[T, Mapping[str, str]]] = {}
        self._file = file
        self._last = 0
        self._lock = guard(threading.RLock())
        if file is not None and file.exists:
            self._load(file)

    @classmethod
    def at(
        cls, path: str | Path | None, settings: LexicalSettings, *, write: Callable[[T], Any], read: Callable[[Any], T]
    ) -> LexicalCorpus[T]:
        """A corpus that is kept in this file, and read from it when it exists; without a path, in memory alone."""
        return cls(settings, None if path is None else LexicalFile(path, write=write, read=read))

    def __len__(self) -> int:
        return len(self._items)

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies and pickles: the items are carried over and indexed again; a file is opened again."""
        if self._file is not None:
            return _reopened, (self.settings, self._file.path, self._file.write, self._file.read)
        return _rebuilt, (self.settings, self._rows(), self._last)

    @property
    def items(self) -> list[T]:
        """All items, in the order in which they were added."""
        return [item for item, _ in list(self._items.values())]

    @property
    def keys(self) -> list[str]:
        """The keys of all items, in the same order."""
        return list(self._items)

    def put(self, rows: Iterable[tuple[str | None, Mapping[str, str], T]], /) -> list[str]:
        """Add items under their keys with their fields, or replace those of the same key; returns the keys.

        An item without a key (None or "") gets a number.
        """
        with self._lock:
            items = [LexicalItem(self._key(key), fields, item) for key, fields, item in rows]
            if self._file is not None and items:
                self._file.put(items)
            self._add(items)
            self._save_snapshot()
        return [item.key for item in items]

    def begin(self, rows: Iterable[tuple[str | None, Mapping[str, str], T]], /) -> None:
        """Add the items of a constructor: two with the same key stay two, those in the file already are skipped."""
        rows, first = list(rows), set()
        if self._file is not None and self._items:
            content = self._file.content
            known = {(key, content(fields, item)) for key, (item, fields) in self._items.items()}
            unnamed = {stored for key, stored in known if key.startswith("#")}
            marked = [(row, content(row[1], row[2])) for row in rows]
            rows = [
                row
                for row, stored in marked
                if (stored not in unnamed if not row[0] else (row[0], stored) not in known)
            ]
        unique: list[tuple[str | None, Mapping[str, str], T]] = []
        for key, fields, item in rows:
            unique.append((None if key in first else key, fields, item))
            first.add(key)
        self.put(unique)

    def _add(self, items: Sequence[LexicalItem]) -> None:
        for one in items:  # a replaced item comes last, as it does in the index
            self._items.pop(one.key, None)
        self._items.update({one.key: (one.item, one.fields) for one in items})
        self.index.add_many(Document(one.key, one.fields) for one in items)

    def remove(self, keys: Iterable[str], /) -> int:
        """Remove items; returns how many there were."""
        with self._lock:
            gone = [key for key in dict.fromkeys(keys) if key in self._items]
            if gone:
                if self._file is not None:
                    self._file.remove(gone)
                for key in gone:
                    self.index.remove(key)  # out of the index first: every id in it has an item
                    self._items.pop(key, None)
                self._save_snapshot()
            return len(gone)

    def _key(self, key: str | None) -> str:
        if key:
            return key
        self._last += 1
        while f"#{self._last:08}" in self._items:  # after reading a file
            self._last += 1
        return f"#{self._last:08}"

    # --- search

    def search(self, query: str, /, *, k: int, check: Callable[[T], bool] | None = None) -> list[LexicalHit]:
        """The k best items that pass the check, with their scores."""
        validation.k(k)
        if check is None:
            return self._hits(*self.index.search(query, k=k))
        deep = 4 * k + 16
        hits = self.index.search(query, k=deep)
        passing = [one for one in self._hits(*hits) if check(one.item)]
        if len(passing) < k and len(hits.ids) == deep:  # the filter is narrow: search only among what passes it
            allowed = frozenset(key for key, (item, _) in list(self._items.items()) if check(item))
            passing = self._hits(*self.index.search(query, k=k, allowed=allowed))
        return passing[:k]

    async def asearch(self, query: str, /, *, k: int, check: Callable[[T], bool] | None = None) -> list[LexicalHit]:
        """The same without blocking the event loop."""
        if check is None and self.settings.chosen == "hybridmem" and len(self) <= _INLINE:
            return self.search(query, k=k)
        return await in_thread(lambda: self.search(query, k=k, check=check))

    def _hits(self, ids: Sequence[str], scores: Sequence[float]) -> list[LexicalHit]:
        items = self._items
        return [LexicalHit(items[key][0], score) for key, score in zip(ids, scores, strict=True) if key in items]

    # --- files

    def _load(self, file: LexicalFile[T]) -> None:
        stored = file.load(self.index)
        if stored.snapshot is None:
            self._add(stored.items)
            return
        self._items = {one.key: (one.item, one.fields) for one in stored.items}
        self.index = stored.snapshot
        self.index.remove_many([key for key in stored.snapshot.ids if key not in self._items])
        self.index.add_many(Document(one.key, one.fields) for one in stored.changed)

    def _save_snapshot(self) -> None:
        if self._file is not None and self._file.wants_snapshot(len(self._items)):
            self._file.save_snapshot(self.index)

    def save(self, file: LexicalFile[T], settings: Mapping[str, Any], /) -> None:
        """Write all items, the index and some settings to a file."""
        file.save(self._rows(), self.index, settings)

    def _rows(self) -> list[LexicalItem]:
        return [LexicalItem(key, fields, item) for key, (item, fields) in list(self._items.items())]


def _rebuilt(settings: LexicalSettings, rows: Sequence[LexicalItem], last: int) -> LexicalCorpus[Any]:
    corpus: LexicalCorpus[Any] = LexicalCorpus(settings)
    corpus._add(rows)  # noqa: SLF001
    corpus._last = last  # noqa: SLF001
    return corpus


def _reopened(
    settings: LexicalSettings, path: Path, write: Callable[[T], Any], read: Callable[[Any], T]
) -> LexicalCorpus[T]:
    return LexicalCorpus.at(path, settings, write=write, read=read)
