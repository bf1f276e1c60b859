"""Lexical index on rank-bm25 (extra `rank-bm25`): reproduces rankings of LangChain's BM25Retriever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from hybridmem.core import validation
from hybridmem.core.forks import guard
from hybridmem.core.protocols import Change
from hybridmem.core.types import Hits
from hybridmem.errors import MissingExtraError
from hybridmem.indexes.bm25.documents import (
    SOURCES,
    WEIGHTS,
    AnyAnalyzer,
    Document,
    Source,
    as_document,
    check_allowed,
    new_document,
    readers,
)
from hybridmem.text.analyzer import Analyzer

__all__ = ["LIMIT", "Drift", "Frozen", "RankBM25Index", "Variant", "drift"]

LIMIT = 0.85
"""A vocabulary overlap below this is flagged."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Drift:
    """Vocabulary drift of a frozen index: |indexed ∩ current| / |indexed ∪ current|."""

    jaccard: float
    added: int
    """The number of current terms that are not indexed."""
    gone: int
    """The number of indexed terms that are no longer current."""
    limit: float = LIMIT

    @property
    def flagged(self) -> bool:
        """Whether the index should be rebuilt."""
        return self.jaccard < self.limit


def drift(indexed: Set[str], current: Set[str], /, *, limit: float = LIMIT) -> Drift:
    """Compare two vocabularies; two empty ones have a Jaccard of 1.

    >>> drift({"ana", "lisbon"}, {"ana", "porto"}).jaccard
    0.3333333333333333
    """
    shared = len(indexed & current)
    union = len(indexed) + len(current) - shared
    return Drift(shared / union if union else 1.0, len(current) - shared, len(indexed) - shared, limit)


class Frozen(Generic[T]):
    """Holds a value that is built as a whole: the old one is used until the new one replaces it.

    >>> frozen = Frozen(lambda: sum(range(4)))
    >>> frozen.current
    6
    """

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self._building = guard(threading.Lock())
        self._current = build()

    @property
    def current(self) -> T:
        """The current value: one attribute read, so replacement is atomic for readers."""
        return self._current

    def rebuild(self) -> T:
        """Build a new value and replace the old one, which stays after a failure. Concurrent callers take turns."""
        with self._building:
            self._current = self._build()
            return self._current

    def rebuild_in_background(self) -> threading.Thread:
        """Rebuild in a thread, which is returned."""
        thread = threading.Thread(target=self.rebuild, name="hybridmem-rebuild")
        thread.start()
        return thread


Variant: TypeAlias = Literal["okapi", "l", "plus"]
_CLASSES = {"okapi": "BM25Okapi", "l": "BM25L", "plus": "BM25Plus"}


@dataclass(frozen=True, slots=True)
class _Built:
    """One build: the object of rank-bm25 (None without any term) and its documents."""

    engine: Any
    ids: tuple[str, ...]
    stamps: tuple[float, ...]
    rows: Mapping[str, int]
    holding: Mapping[str, frozenset[int]]
    version: int


class RankBM25Index:
    """rank-bm25's Okapi, L or Plus. Slow, and built as a whole: for comparison and migration, not for production.

    `refresh="always"` rebuilds before a search when something changed; `refresh="drift"` searches the old build until
    the vocabulary drift is flagged (see `drift()`), and then rebuilds in the background. Fields are joined without
    weights. `pad=True` also ranks documents without a match, in the order of rank-bm25's `get_top_n`.
    """

    def __init__(
        self,
        analyzer: AnyAnalyzer | None = None,
        *,
        variant: Variant = "okapi",
        params: Mapping[str, float] | None = None,
        refresh: Literal["always", "drift"] = "always",
        pad: bool = False,
    ) -> None:
        validation.one_of("variant", variant, _CLASSES)
        validation.one_of("refresh", refresh, ("always", "drift"))
        if params is not None and not isinstance(params, Mapping):
            validation.refuse("params", params, "a mapping such as {'k1': 1.5}, or None")
        self.analyzer: AnyAnalyzer = Analyzer() if analyzer is None else analyzer
        self.variant = variant
        self.params = dict(params or {})
        self.refresh = refresh
        self.pad = pad
        self.watermark = 0
        self._make = _load(variant)
        self._lock = guard(threading.RLock())
        self._documents: dict[str, tuple[list[str], float]] = {}
        self._version = 0
        self._frozen = Frozen(self._build)
        self._background: threading.Thread | None = None

    # --- writing

    def add(self, id: str, text: str, *, updated_at: datetime | float | None = None, **fields: str) -> None:
        """Add or replace one document."""
        self.add_many([new_document(id, {"text": text, **fields}, updated_at)])

    def add_many(self, documents: Iterable[Source], /) -> None:
        """Add or replace documents."""
        terms = {
            document.id: (self._terms(document), document.stamp)
            for document in map(as_document, validation.listed("documents", documents, SOURCES))
        }
        with self._lock:
            for name in terms:
                self._documents.pop(name, None)
            self._documents.update(terms)
            self._version += 1

    def remove(self, id: str, /) -> bool:
        """Remove a document; False when there was none."""
        validation.text("id", id, "a str")
        with self._lock:
            self._version += 1
            return self._documents.pop(id, None) is not None

    def apply(self, changes: Iterable[Change], /) -> None:
        """Apply changes in order."""
        batch = list(changes)
        with self._lock:
            for change in batch:
                if change.edge is not None:
                    continue
                if change.memory is None:
                    self.remove(change.id)
                elif change.text_changed or change.id not in self._documents:
                    self.add_many([as_document(change.memory)._replace(id=change.id)])
            self.watermark = max([self.watermark, *(change.seq for change in batch)])

    def _terms(self, document: Document) -> list[str]:
        all_terms, _ = readers(self.analyzer)
        return [term for name in WEIGHTS for term in all_terms(document.fields.get(name, ""))]

    # --- reading

    def __len__(self) -> int:
        return len(self._documents)

    def __contains__(self, id: object) -> bool:
        return id in self._documents

    def search(self, query: str | Sequence[str], /, *, k: int = 10, allowed: Set[str] | None = None) -> Hits:
        """The k best documents that share a term with the query (or any, with `pad`), among `allowed` when given."""
        validation.k(k)
        built = self._fresh()
        terms = self._query(query)
        if built.engine is None or not (terms or self.pad):
            return Hits([], [])
        scores = built.engine.get_scores(terms)
        if self.pad:
            rows = [int(row) for row in np.argsort(scores)[::-1]]
        else:
            holding: set[int] = set()
            holding.update(*(built.holding.get(term, frozenset()) for term in terms))
            rows = sorted(holding, key=lambda row: (-scores[row], -built.stamps[row], built.ids[row]))
        inside = None if allowed is None else check_allowed(allowed)
        best = [row for row in rows if inside is None or built.ids[row] in inside][:k]
        return Hits([built.ids[row] for row in best], [float(scores[row]) for row in best])

    def score(self, query: str | Sequence[str], ids: Sequence[str], /) -> list[float]:
        """The score of each id; 0 for an unknown one."""
        ids, built = validation.texts("ids", ids), self._fresh()
        if built.engine is None:
            return [0.0] * len(ids)
        scores = built.engine.get_scores(self._query(query))
        return [float(scores[built.rows[name]]) if name in built.rows else 0.0 for name in ids]

    def _query(self, query: str | Sequence[str]) -> list[str]:
        if not isinstance(query, str):
            return validation.texts("query", query)
        return self.analyzer.query(query) if isinstance(self.analyzer, Analyzer) else self.analyzer(query)

    # --- rebuilding

    def drift(self) -> Drift:
        """The drift between the current build and the current documents."""
        with self._lock:
            current = {term for terms, _ in self._documents.values() for term in terms}
        return drift(set(self._frozen.current.holding), current)

    def rebuild(self) -> None:
        """Build from the current documents."""
        self._frozen.rebuild()

    @property
    def vectorizer(self) -> Any:
        """rank-bm25's own object over the current documents; None without any term."""
        return self._fresh().engine

    def _fresh(self) -> _Built:
        built = self._frozen.current
        if built.version == self._version:
            return built
        if self.refresh == "always":
            return self._frozen.rebuild()
        if (self._background is None or not self._background.is_alive()) and self.drift().flagged:
            self._background = self._frozen.rebuild_in_background()
        return built

    def _build(self) -> _Built:
        with self._lock:
            documents = dict(self._documents)
            version = self._version
        corpus = [terms for terms, _ in documents.values()]
        holding: dict[str, set[int]] = {}
        for row, terms in enumerate(corpus):
            for term in terms:
                holding.setdefault(term, set()).add(row)
        return _Built(
            engine=self._make(corpus, **self.params) if holding else None,
            ids=tuple(documents),
            stamps=tuple(stamp for _, stamp in documents.values()),
            rows={name: row for row, name in enumerate(documents)},
            holding={term: frozenset(rows) for term, rows in holding.items()},
            version=version,
        )


def _load(variant: Variant) -> Any:
    try:
        import rank_bm25
    except ImportError as error:
        raise MissingExtraError("rank-bm25", needs="rank-bm25") from error
    return getattr(rank_bm25, _CLASSES[variant])
