"""PgSpace: the live view of one namespace, searched inside the server. Nothing is held here, nothing falls behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridmem.core.types import Entry, Graph, Hits
from hybridmem.embedding.embedder import Vector
from hybridmem.errors import EmbeddingError
from hybridmem.filters.sql import SQL
from hybridmem.indexes.bm25.documents import check_k, query_terms
from hybridmem.stores.postgres.search import bm25 as lexical
from hybridmem.stores.postgres.search import combined as together
from hybridmem.stores.postgres.search import vectors as nearest
from hybridmem.stores.postgres.search.bm25 import ENTRY, Bm25, Known, entry_of
from hybridmem.stores.postgres.search.engines import Rows, Run, Searcher
from hybridmem.stores.postgres.search.graph import Joined, ServerGraph
from hybridmem.stores.postgres.search.vectors import Nearest, cosines, index_name, question, ranked

if TYPE_CHECKING:
    from hybridmem.core.protocols import ArmQuery
    from hybridmem.indexes.view import IndexSettings

__all__ = ["PgSpace"]

_END = 1 + len(Entry._fields)
_TRUST = 5.0
"""For so many seconds what is known of a namespace's size decides how its vectors are searched."""


class _Size(NamedTuple):
    """Whether there are many vectors of a dimension, and an HNSW index for them, as was seen at some time."""

    at: float
    dim: int
    many: bool
    indexed: bool


class PgSpace:
    """Answers each arm by one statement; implements `SearchView`."""

    thread_threshold = 0.002
    """Seconds from which an arm is asked in a thread of its own: it waits for the server rather than computes here."""

    def __init__(
        self,
        namespace: str,
        settings: IndexSettings,
        run: Run,
        /,
        *,
        run_both: Callable[[SQL, SQL], tuple[Rows, Rows]],
        has_vectors: Callable[[], bool],
        exact_below: int,
        prefix: int | None,
        want_index: Callable[[int], None],
        catch_up: Callable[[], None] | None = None,
        words: Searcher | None = None,
    ) -> None:
        self._namespace, self._settings = namespace, settings
        self._run, self._run_both = run, run_both
        self._bm25 = Bm25(namespace, settings.k1, settings.b)
        self._nearest = Nearest(namespace, prefix)
        self._has_vectors, self._exact_below = has_vectors, exact_below
        self._want_index, self._catch_up = want_index, catch_up
        self._beside = words
        """The engine that ranks words instead of the postings, if there is one."""
        self._entries: dict[str, Entry] = {}
        self._known: dict[tuple[tuple[str, float], ...], Known] = {}
        self._joined = Joined()
        self._known_size = _Size(0.0, 0, many=False, indexed=False)

    def refresh(self) -> None:
        """A new question: what was read for an earlier one may be out of date."""
        self._entries, self._known = {}, {}
        if self._catch_up is not None:
            self._catch_up()

    # --- the arms

    def search(self, arm: str, ask: ArmQuery, /, *, k: int) -> Hits:
        """One arm's k best."""
        check_k(k)
        rows = self._words(ask, k) if arm == "bm25" else self._vectors(ask, k)
        entries = self._entries
        for row in rows:
            entries[row[1]] = entry_of(row[1:_END])
        return Hits([row[1] for row in rows], [row[0] for row in rows])

    def search_both(self, ask: ArmQuery, /, *, k: int) -> together.Answer | None:
        """Both arms' k best and what each thinks of the other's: by one statement, or in a large namespace by two.

        None where that will not do: another engine for words, no words or no vectors to ask for, fewer than HNSW was
        asked for, or equals beyond what was brought. Then each arm is asked by itself.
        """
        check_k(k)
        terms = query_terms(ask.text, analyzer=self._settings.analyzer)
        if not terms or self._beside is not None or ask.vector is None or not self._searches_vectors():
            return None
        row = question(ask.vector)
        size = self._size(len(row))
        asked = (self._bm25, self._nearest, terms, row, ask.allowed, k)
        if size.many:
            near, words = self._run_both(*together.apart(*asked, indexed=size.indexed))
            rows: Sequence[tuple[Any, ...]] = together.merged(words, near)
        else:
            rows = near = self._run(together.both(*asked))
        if sum(found[3] for found in near) < (k if size.many and size.indexed else 1):
            return None  # or there are no vectors, or others than these: asked alone, the arm says so
        self._learn([entry_of(row[4:]) for row in rows])
        return together.answer(rows, k, len(row), lambda ids: self._cosines(row, ids))

    def _searches_vectors(self) -> bool:
        return self._settings.vectors and self._has_vectors()

    def _words(self, ask: ArmQuery, k: int) -> Sequence[tuple[Any, ...]]:
        terms = query_terms(ask.text, analyzer=self._settings.analyzer)
        if not terms:
            return ()
        if self._beside is not None:
            return self._beside.search(self._run, terms, ask.allowed, k)
        rows = self._run(self._bm25.search(terms, ask.allowed, k))
        if ask.allowed is None and lexical.tied(rows, k):
            rows = self._run(self._bm25.search(terms, None, k, ties=True))
        if rows:
            self._known[tuple(terms.items())] = Known(*rows[0][_END:])
        return rows[:k]

    def _vectors(self, ask: ArmQuery, k: int) -> Sequence[tuple[Any, ...]]:
        if ask.vector is None or not self._searches_vectors():
            return ()
        row = question(ask.vector)
        if self._is_large(len(row)):
            found = self._run(self._nearest.approximate(row, ask.allowed, k))
            if len(found) >= k:
                return ranked(found, row)[:k]
        found = ranked(self._run(self._nearest.exact(row, ask.allowed, k)), row)
        if not found:
            self._check_dimension(len(row))
        within = nearest.tied(found, k)
        if within is not None:
            found = ranked(self._run(self._nearest.exact(row, ask.allowed, k, within=within)), row)
        return found[:k]

    def _is_large(self, dim: int) -> bool:
        """Whether the namespace holds many vectors and there is an HNSW index for them."""
        size = self._size(dim)
        return size.many and size.indexed

    def _size(self, dim: int) -> _Size:
        if self._known_size.dim != dim or time.monotonic() - self._known_size.at > _TRUST:
            name = index_name(dim, self._nearest.prefix)
            rows = self._run(
                SQL(
                    "SELECT (SELECT vectors FROM spaces WHERE namespace = ?) >= ?, EXISTS (SELECT 1 FROM pg_index "
                    "WHERE indexrelid = to_regclass(?) AND indisvalid)",
                    (self._namespace, self._exact_below, name),
                )
            )
            many, indexed = map(bool, rows[0])
            if many and not indexed:
                self._want_index(dim)
            self._known_size = _Size(time.monotonic(), dim, many, indexed)
        return self._known_size

    def _check_dimension(self, dim: int) -> None:
        rows = self._run(SQL("SELECT dim FROM embeddings WHERE namespace = ? LIMIT 1", (self._namespace,)))
        if rows and rows[0][0] != dim:
            raise EmbeddingError(f"the query vector has shape ({dim},), expected ({rows[0][0]},)")

    def score(self, arm: str, ask: ArmQuery, ids: Sequence[str], /) -> list[float | None]:
        """One arm's raw scores of given memories."""
        if arm == "bm25":
            terms = query_terms(ask.text, analyzer=self._settings.analyzer)
            found: dict[str, float] = dict(self._word_scores(terms, ids)) if terms else {}
            return [found.get(id_, 0.0) for id_ in ids]
        if ask.vector is None or not self._searches_vectors():
            return [None] * len(ids)
        return list(map(self._cosines(question(ask.vector), ids).get, ids))

    def _cosines(self, row: Vector, ids: Sequence[str]) -> dict[str, float]:
        rows = self._run(self._nearest.score(row, ids))
        return dict(zip((found[1] for found in rows), cosines(rows, row), strict=True))

    def _word_scores(self, terms: Mapping[str, float], ids: Sequence[str]) -> Sequence[tuple[Any, ...]]:
        if self._beside is not None:
            return self._beside.score(self._run, terms, ids)
        return self._run(self._bm25.score(terms, ids, self._known.get(tuple(terms.items()))))

    def coverage(self, ask: ArmQuery, ids: Sequence[str], /) -> list[float]:
        """The share of the query's information (IDF) that each memory covers."""
        terms = query_terms(ask.text, analyzer=self._settings.analyzer)
        found: dict[str, float] = dict(self._run(self._bm25.coverage(terms, ids))) if terms else {}
        return [found.get(id_, 0.0) for id_ in ids]

    # --- what else a memory asks

    def entries(self, ids: Sequence[str], /) -> list[Entry | None]:
        """What ranking needs to know of these memories: as the arms of this question read it, the rest read now."""
        known = self._entries
        missing = [id_ for id_ in ids if id_ not in known]
        if missing:
            rows = self._run(
                SQL(
                    f"SELECT {ENTRY} FROM memories m WHERE m.namespace = ? AND m.id = ANY(?::text[]) "  # noqa: S608
                    "AND m.live AND m.status <> 'superseded'",
                    (self._namespace, missing),
                )
            )
            known.update([(row[0], entry_of(row)) for row in rows])
        return list(map(known.get, ids))

    def graph(self, allowed: Set[str] | None = None, /) -> Graph | None:
        """A picture of the graph, fetched around the seeds when it is asked."""
        settings = self._settings.graph
        if settings is None:
            return None
        return ServerGraph(
            self._namespace,
            settings,
            self._run,
            items=self.entries,
            learn=self._learn,
            joined=self._joined,
            allowed=allowed,
        )

    def _learn(self, entries: Iterable[Entry]) -> None:
        self._entries.update([(entry[0], entry) for entry in entries])

    def contradictions(self, ids: Sequence[str], /) -> list[tuple[str, str]]:
        """Pairs among these that contradict each other."""
        asked = list(ids)
        rows = self._run(
            SQL(
                "SELECT DISTINCT least(a, b), greatest(a, b) FROM edges WHERE namespace = ? AND a = ANY(?::text[]) "
                "AND b = ANY(?::text[]) AND relation = 'contradicts' AND a <> b",
                (self._namespace, asked, asked),
            )
        )
        place = {id_: n for n, id_ in enumerate(asked)}
        return sorted(((a, b) for a, b in rows), key=lambda pair: (place[pair[0]], pair[1]))

    def count(self) -> int:
        """How many memories this view shows."""
        rows = self._run(SQL("SELECT memories FROM spaces WHERE namespace = ?", (self._namespace,)))
        return int(rows[0][0]) if rows else 0

    def save(self) -> None:
        """Nothing to write down: the server keeps it all."""

    def close(self) -> None:
        """Do nothing: the store owns the connections."""
