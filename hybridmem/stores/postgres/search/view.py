"""PostgresView: the live view of one namespace, searched in the server."""

# ruff: noqa: S608 - every name put into a statement is ours; values of users are bound

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hybridmem.core import validation
from hybridmem.core.types import Candidates, Direction, Entry, Graph, Hits
from hybridmem.embedding.embedder import Vector
from hybridmem.errors import EmbeddingError
from hybridmem.filters.sql import SQL
from hybridmem.indexes.bm25.documents import query_terms
from hybridmem.indexes.candidates import SAMPLE, NamesRead, baseline_of, candidates
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.stores.postgres.search.bm25 import ENTRY, Bm25, entry_of
from hybridmem.stores.postgres.search.engines import Rows, RunStatement, Searcher
from hybridmem.stores.postgres.search.graph import ServerGraph, link_tables, names_read
from hybridmem.stores.postgres.search.pool import (
    FIRST_FIELD,
    CombinedHits,
    PoolLexical,
    PoolRows,
    PoolVectors,
    combined_hits,
    in_one,
    in_two,
    is_uncertain,
    merged,
)
from hybridmem.stores.postgres.search.vectors import Nearest, cosines, index_name, query_vector, ranked
from hybridmem.text.conversation import LEAST, SHARE

if TYPE_CHECKING:
    from hybridmem.core.protocols import ArmQuery
    from hybridmem.indexes.view import IndexSettings

__all__ = ["PostgresView"]

_END = 1 + len(Entry._fields)
_SIZE_CACHED = 5.0
"""Seconds for which the size of a namespace is cached; it decides how vectors are searched."""


class _Space(NamedTuple):
    """What a search needs to know of its namespace beforehand, as of its number `seq`."""

    seq: int
    next_expiry: float
    threads: bool
    names: bool
    links: bool
    """Whether there are links other than those of threads."""
    speakers: Mapping[str, int]


class _Size(NamedTuple):
    """Whether a namespace had many vectors of a dimension, and an HNSW index for them, at a time."""

    at: float
    dim: int
    many: bool
    indexed: bool


class PostgresView:
    """Searches each arm with one statement; implements `SearchView`."""

    thread_threshold = 0.002
    """Expected seconds from which an arm runs in a thread of its own: it mostly waits for the server."""
    searches_both = True

    def __init__(
        self,
        namespace: str,
        settings: IndexSettings,
        run: RunStatement,
        /,
        *,
        run_both: Callable[[SQL, SQL], tuple[Rows, Rows]],
        has_vectors: Callable[[], bool],
        exact_below: int,
        prefix: int | None,
        want_index: Callable[[int], None],
        catch_up: Callable[[], None] | None = None,
        engine: Searcher | None = None,
    ) -> None:
        self._namespace, self._settings = namespace, settings
        self._run, self._run_both = run, run_both
        self._bm25 = Bm25(namespace, settings.k1, settings.b)
        self._nearest = Nearest(namespace, prefix)
        self._has_vectors, self._exact_below = has_vectors, exact_below
        self._want_index, self._catch_up = want_index, catch_up
        self._engine = engine
        """The lexical engine that is used instead of BM25 over the postings, if there is one."""
        self._entries: dict[str, Entry] = {}
        self._scores: dict[Any, tuple[float, Mapping[str, Mapping[str, float]]]] = {}
        """The baseline and the scores that a combined search has read, by query."""
        self._space = _Space(-1, math.inf, threads=False, names=False, links=False, speakers={})
        self._cached_size = _Size(0.0, 0, many=False, indexed=False)

    def refresh(self, _newest: int | None = None, /) -> None:
        """Drop what was read for an earlier query, and read the state of the namespace."""
        self._entries, self._scores = {}, {}
        if self._catch_up is not None:
            self._catch_up()
        *state, speakers = self._run(_state(self._namespace, self._settings, self._space.seq))[0]
        known = self._space.speakers if speakers is None and state[0] else json.loads(speakers or "{}")
        self._space = _Space._make([*state, known])

    def next_expiry(self) -> float | None:
        """The earliest expiry of a memory at the last `refresh`; infinity when none expires."""
        return self._space.next_expiry

    # --- arms

    def version(self) -> int:
        """The number of the newest change of the namespace that was seen."""
        return self._space.seq

    def search(self, arm: str, ask: ArmQuery, /, *, k: int) -> Hits:
        """One arm's k best."""
        validation.k(k)
        rows = self._lexical(ask, k) if arm == "bm25" else self._vectors(ask, k)
        entries = self._entries
        for row in rows:
            entries[row[1]] = entry_of(row[1:_END])
        return Hits([row[1] for row in rows], [row[0] for row in rows])

    def search_both(self, ask: ArmQuery, /, *, k: int) -> CombinedHits | None:
        """Both arms' k best and their scores of each other's hits: by one statement, in a large namespace by two.

        None when the arms have to be searched one by one: with another lexical engine, without terms or vectors, or
        when HNSW returned fewer than k.
        """
        validation.k(k)
        terms = query_terms(ask.text, analyzer=self._settings.analyzer)
        if not terms or self._engine is not None or ask.vector is None or not self._searches_vectors():
            return None
        row = query_vector(ask.vector)
        size = self._size(len(row))
        arguments = (self._bm25, self._nearest, terms, row, ask.allowed, k)
        if size.many:
            near, words = self._run_both(*in_two(*arguments, indexed=size.indexed))
            rows: Sequence[tuple[Any, ...]] = merged(words, near)
        else:
            rows = near = self._run(in_one(*arguments))
        if sum(found[3] for found in near) < (k if size.many and size.indexed else 1):
            return None  # or there are no vectors of this dimension: the vector arm alone reports that
        self._cache([entry_of(row[FIRST_FIELD:]) for row in rows])
        found = combined_hits(rows, k, len(row), lambda ids: self._cosines(row, ids))
        listed = {id_ for hits in found[0].values() for id_ in hits.ids}
        lexical = {id_: found[1]["bm25"].get(id_, 0.0) for id_ in listed}
        self._scores = {_key(ask): (near[0][4] or 0.0, {"bm25": lexical, "vector": found[1]["vector"]})}
        return found

    def _searches_vectors(self) -> bool:
        return self._settings.vectors and self._has_vectors()

    def _lexical(self, ask: ArmQuery, k: int) -> Sequence[tuple[Any, ...]]:
        terms = query_terms(ask.text, analyzer=self._settings.analyzer)
        if not terms:
            return ()
        if self._engine is not None:
            return self._engine.search(self._run, terms, ask.allowed, k)
        return self._run(self._bm25.search(terms, ask.allowed, k))

    def _vectors(self, ask: ArmQuery, k: int) -> Sequence[tuple[Any, ...]]:
        if ask.vector is None or not self._searches_vectors():
            return ()
        row = query_vector(ask.vector)
        if self._is_large(len(row)):
            found = self._run(self._nearest.approximate(row, ask.allowed, k))
            if len(found) >= k:
                return ranked(found, row)[:k]
        found = ranked(self._run(self._nearest.exact(row, ask.allowed, k)), row)
        if not found:
            self._check_dimension(len(row))
        return found[:k]

    def _is_large(self, dim: int) -> bool:
        """Whether the namespace has many vectors and an HNSW index for them."""
        size = self._size(dim)
        return size.many and size.indexed

    def _size(self, dim: int) -> _Size:
        if self._cached_size.dim != dim or time.monotonic() - self._cached_size.at > _SIZE_CACHED:
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
            self._cached_size = _Size(time.monotonic(), dim, many, indexed)
        return self._cached_size

    def _check_dimension(self, dim: int) -> None:
        rows = self._run(SQL("SELECT dim FROM embeddings WHERE namespace = ? LIMIT 1", (self._namespace,)))
        if rows and rows[0][0] != dim:
            raise EmbeddingError(f"the query vector has shape ({dim},), expected ({rows[0][0]},)")

    def score(self, arm: str, ask: ArmQuery, ids: Sequence[str], /) -> list[float | None]:
        """One arm's raw scores of given memories."""
        if arm == "bm25":
            terms = query_terms(ask.text, analyzer=self._settings.analyzer)
            found: dict[str, float] = dict(self._lexical_scores(terms, ids)) if terms else {}
            return [found.get(id_, 0.0) for id_ in ids]
        if ask.vector is None or not self._searches_vectors():
            return [None] * len(ids)
        return list(map(self._cosines(query_vector(ask.vector), ids).get, ids))

    def _cosines(self, row: Vector, ids: Sequence[str]) -> dict[str, float]:
        rows = self._run(self._nearest.score(row, ids))
        return dict(zip((found[1] for found in rows), cosines(rows, row), strict=True))

    def _lexical_scores(self, terms: Mapping[str, float], ids: Sequence[str]) -> Sequence[tuple[Any, ...]]:
        if self._engine is not None:
            return self._engine.score(self._run, terms, ids)
        return self._run(self._bm25.score(terms, ids))

    def coverage(self, ask: ArmQuery, ids: Sequence[str], /) -> list[float]:
        """The share of the query's information (IDF) that each memory covers."""
        terms = query_terms(ask.text, analyzer=self._settings.analyzer)
        found: dict[str, float] = dict(self._run(self._bm25.coverage(terms, ids))) if terms else {}
        return [found.get(id_, 0.0) for id_ in ids]

    # --- the pool of candidates

    def speakers(self) -> Mapping[str, int]:
        """The speakers of the view, in lower case, with the number of their memories."""
        return self._space.speakers

    def complete(self, query: ArmQuery, hits: Mapping[str, Hits], /, *, seeds: int = 20, hops: int = 2) -> Candidates:
        """The pool: all hits, plus `hops` turns on either side of the best `seeds`, scored by every arm."""
        baseline, known = self._scores.get(_key(query), (None, {}))
        with_vectors = query.vector is not None and self._searches_vectors()
        if with_vectors and "vector" in hits:
            row = query_vector(query.vector)
            if baseline is None or is_uncertain(baseline, hits["vector"].scores, len(row)):
                baseline = self._exact_baseline(row)
        rows = PoolRows(
            self._bm25,
            self._run,
            query_terms(query.text, analyzer=self._settings.analyzer),
            query_vector(query.vector) if with_vectors else None,
            hits=list(dict.fromkeys(id_ for own in hits.values() for id_ in own.ids)),
            known=known,
            score=lambda arm, ids: self.score(arm, query, ids),
            cache=self._cache,
            exact_words=self._engine is None,
            threads=self._space.threads,
        )

        def read_names(text: str, ids: Sequence[str]) -> NamesRead:
            found = self._read_names(text, ids, self._settings.graph)
            rows.targets += [target for _, target, _, _ in found.links]
            return found

        return candidates(
            PoolLexical(rows),
            PoolVectors(rows),
            rows,
            query,
            hits,
            baseline=lambda: baseline or 0.0,
            seeds=seeds,
            hops=hops,
            read_names=read_names if self.has_names() else None,
        )

    def _exact_baseline(self, row: Vector) -> float:
        scores = cosines(self._run(self._nearest.sample_vectors(len(row), SAMPLE)), row)
        return baseline_of(scores)

    # --- entries, graph and links

    def entries(self, ids: Sequence[str], /) -> list[Entry | None]:
        """The ranking fields of these memories: as the arms of this query read them, the rest read now."""
        known = self._entries
        missing = [id_ for id_ in ids if id_ not in known]
        if missing:
            rows = self._run(
                SQL(
                    f"SELECT {ENTRY} FROM memories m WHERE m.namespace = ? AND m.id = ANY(?::text[]) "
                    "AND m.live AND m.status <> 'superseded'",
                    (self._namespace, missing),
                )
            )
            known.update([(row[0], entry_of(row)) for row in rows])
        return list(map(known.get, ids))

    def graph(
        self,
        allowed: Set[str] | None = None,
        /,
        *,
        threads: bool = True,
        direction: Direction | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> Graph | None:
        """The graph, fetched around the seeds of each call."""
        settings = self._settings.graph
        if settings is None:
            return None
        if not threads:
            settings = replace(settings, thread=0.0)
        return ServerGraph(
            self._namespace,
            settings,
            self._run,
            items=self.entries,
            cache=self._cache,
            beyond_threads=self._space.links,
            allowed=allowed,
            direction=direction,
            weights=weights,
        )

    def _cache(self, entries: Iterable[Entry]) -> None:
        self._entries.update([(entry[0], entry) for entry in entries])

    def has_names(self) -> bool:
        """Whether any memory has a name that a text could mention."""
        graph = self._settings.graph
        return graph is not None and graph.mentions > 0 and self._space.names

    def mentions(self, ids: Sequence[str], /, *, weight: float | None = None) -> list[tuple[str, str, float, str]]:
        """The memories that the texts of these mention by name: (id, mentioned id, weight, name)."""
        graph = self._settings.graph
        if graph is not None and weight is not None:
            graph = replace(graph, mentions=weight)
        found = self._read_names("", ids, graph)
        weights = found.weigh({name for _, _, name, _ in found.links})
        return [(id_, other, weights[name] / count, name) for id_, other, name, count in found.links if id_ is not None]

    def _read_names(self, query: str, ids: Sequence[str], graph: GraphSettings | None) -> NamesRead:
        """The names in the query and in the texts of these memories."""
        if graph is None:
            return NamesRead((), {}, lambda _: {})
        return names_read(self._namespace, self._run, query, ids, graph, self._settings.analyzer)

    def contradictions(self, ids: Sequence[str], /) -> list[tuple[str, str]]:
        """Pairs among these that contradict each other."""
        wanted = list(ids)
        rows = self._run(
            SQL(
                "SELECT DISTINCT least(a, b), greatest(a, b) FROM edges WHERE namespace = ? AND a = ANY(?::text[]) "
                "AND b = ANY(?::text[]) AND relation = 'contradicts' AND a <> b",
                (self._namespace, wanted, wanted),
            )
        )
        place = {id_: n for n, id_ in enumerate(wanted)}
        return sorted(((a, b) for a, b in rows), key=lambda pair: (place[pair[0]], pair[1]))

    def count(self) -> int:
        """How many memories are in view."""
        rows = self._run(SQL("SELECT memories FROM spaces WHERE namespace = ?", (self._namespace,)))
        return int(rows[0][0]) if rows else 0

    def save(self) -> None:
        """Does nothing: the server stores the indexes."""

    def close(self) -> None:
        """Does nothing: the store owns the connections."""


def _state(namespace: str, settings: IndexSettings, known: int, /) -> SQL:
    """One row: the fields of `_Space`; the speakers only if the namespace has changed since its number `known`."""
    tables = [] if settings.graph is None else link_tables(settings.graph)
    links = " OR ".join([f"EXISTS (SELECT 1 FROM {table} WHERE namespace = n.name)" for table in tables]) or "FALSE"
    return SQL(
        "SELECT COALESCE(s.seq, 0), COALESCE((SELECT min(m.expires_at) FROM memories m WHERE m.namespace = n.name "
        "AND m.expires_at IS NOT NULL AND m.live), 'Infinity'), EXISTS (SELECT 1 FROM memories m "
        "WHERE m.namespace = n.name AND m.live AND m.status <> 'superseded' AND m.thread IS NOT NULL), "
        f"EXISTS (SELECT 1 FROM names WHERE namespace = n.name), {links}, CASE WHEN s.seq <> ? THEN COALESCE((SELECT "
        "json_object_agg(p.speaker, p.named + p.prefixed) FROM speakers p WHERE p.namespace = n.name AND (p.named > 0 "
        "OR p.prefixed >= greatest(?, ?::float8 * s.memories)))::text, '{}') END "
        "FROM (SELECT ?::text AS name) n LEFT JOIN spaces s ON s.namespace = n.name",
        (known, LEAST, SHARE, namespace),
    )


def _key(query: ArmQuery) -> tuple[str, bytes]:
    vector = query.vector
    return query.text, b"" if vector is None else np.asarray(vector, dtype=np.float64).tobytes()
