"""Data of `indexes.candidates`, read from the server: scores, neighbours in threads, and a sample."""

# ruff: noqa: S608 - every name put into a statement is ours; values of users are bound

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hybridmem.filters.sql import SQL
from hybridmem.stores.postgres.search.bm25 import Bm25, TermWeights
from hybridmem.stores.postgres.search.engines import Run
from hybridmem.stores.postgres.search.graph import along

__all__ = ["PoolLexical", "PoolThreads", "PoolVectors", "sample_of", "speakers_of"]

_VISIBLE = "m.live AND m.status <> 'superseded'"
Scores = Callable[[Sequence[str]], list[Any]]


class PoolLexical:
    """BM25 scores of memories and of windows of memories for one query."""

    def __init__(self, bm25: Bm25, run: Run, terms: Mapping[str, float], weights: TermWeights, scores: Scores) -> None:
        self._bm25, self._run, self._terms, self._weights, self._scores = bm25, run, terms, weights, scores

    def score(self, _query: str, ids: Sequence[str], /) -> list[float]:
        """The scores of memories; 0.0 without a term of the query."""
        return self._scores(ids) if ids else []

    def windows(
        self, query: str, ids: Sequence[str], around: Sequence[Sequence[str | None]], /, *, wing: float = 0.5
    ) -> tuple[list[float], list[float]]:
        """The scores of memories alone and in windows, as `BM25Index.windows` computes them."""
        windows = [ids, *around]
        distinct = list(dict.fromkeys(id_ for part in windows for id_ in part if id_ is not None))
        place = {id_: n for n, id_ in enumerate(distinct)}
        term_place = {term: n for n, term in enumerate(self._terms)}
        lengths, tf = np.zeros(len(distinct) + 1), np.zeros((len(term_place), len(distinct) + 1))
        for id_, length, term, frequency in self._run(self._bm25.frequencies(self._terms, distinct)):
            lengths[place[id_]] = length
            if term is not None:
                tf[term_place[term], place[id_]] = frequency
        rows = np.array([[-1 if id_ is None else place[id_] for id_ in part] for part in windows], np.intp)
        shares = np.full(len(windows), wing)
        shares[0] = 1.0
        sizes = shares @ lengths[rows]
        mean = float(sizes.mean()) if len(sizes) else 0.0
        scores = np.zeros(rows.shape[1])
        if mean:
            norm = self._weights.base + (self._bm25.k1 - self._weights.base) * sizes / mean
            for weight, held in zip(self._weights.weights, tf, strict=True):
                frequency = shares @ held[rows]
                scores += weight * frequency * (self._bm25.k1 + 1) / (frequency + norm)
        together: list[float] = scores.tolist()
        return self.score(query, ids), together


class PoolVectors:
    """Cosines of memories for one query."""

    def __init__(self, scores: Scores) -> None:
        self._scores = scores

    def score(self, _vector: Any, ids: Sequence[str], /) -> list[float | None]:
        """The cosines; None for a memory without a vector."""
        return self._scores(ids) if ids else []


class PoolThreads:
    """Neighbours in threads."""

    def __init__(self, namespace: str, run: Run, hits: Sequence[str]) -> None:
        self._namespace, self._run, self._hits = namespace, run, hits
        self._before: dict[str, str] = {}
        self._after: dict[str, str] = {}
        self._read: set[str] = set()

    def around(self, ids: Sequence[str], hops: int, /) -> list[list[str | None]]:
        """The memories before and after each id in its thread, ordered -1, 1, -2, 2 and so on."""
        missing = [id_ for id_ in ids if id_ not in self._read]
        if missing:
            self._fetch(self._hits if not self._read else missing, 2 * hops)
        lists: list[list[str | None]] = []
        back: list[str | None] = list(ids)
        ahead: list[str | None] = list(ids)
        for _ in range(hops):
            back = [None if id_ is None else self._before.get(id_) for id_ in back]
            ahead = [None if id_ is None else self._after.get(id_) for id_ in ahead]
            lists += [back, ahead]
        return lists

    def _fetch(self, ids: Sequence[str], reach: int) -> None:
        """Read the neighbours of hits, far enough that those of their neighbours are known, too."""
        wanted = list(ids)
        sides = [
            f"SELECT w.id, {number}, n.place, n.id FROM w CROSS JOIN LATERAL (SELECT t.id, row_number() OVER () AS "
            f"place FROM ({along(way, order, 'm.id', '?')}) t) n"
            for number, (way, order) in enumerate((("<", "DESC"), (">", "ASC")))
        ]
        rows = self._run(
            SQL(
                "WITH w AS MATERIALIZED (SELECT m.* FROM memories m WHERE m.namespace = ? AND m.id = ANY(?::text[]) "
                f"AND {_VISIBLE} AND m.thread IS NOT NULL) {' UNION ALL '.join(sides)}",
                (self._namespace, wanted, reach, reach),
            )
        )
        self._read.update(wanted)
        chains: dict[tuple[str, int], dict[int, str]] = {}
        for id_, side, place, other in rows:
            chains.setdefault((id_, side), {})[int(place)] = other
        for (id_, side), chain in chains.items():
            links = self._after if side else self._before
            opposite = self._before if side else self._after
            known = [id_, *(chain[place] for place in sorted(chain))]
            for one, other in pairwise(known):
                links[one], opposite[other] = other, one
            self._read.update(known[: max(1, len(known) - reach // 2)] if len(known) > reach else known)


def sample_of(namespace: str, dim: int, size: int, /) -> SQL:
    """Rows (vector, id): the memories with the smallest md5 of their id among those with a vector."""
    return SQL(
        f"SELECT vector_send(e.embedding), t.id FROM (SELECT m.id, m.mem FROM memories m WHERE m.namespace = ? AND "
        f"{_VISIBLE} AND m.vector IS NOT NULL ORDER BY md5(m.id) LIMIT ?) t JOIN embeddings e ON e.namespace = ? "
        "AND e.mem = t.mem AND e.dim = ? ORDER BY md5(t.id)",
        (namespace, size, namespace, dim),
    )


def speakers_of(namespace: str, share: float, least: int, /) -> SQL:
    """Rows (speaker, memories): given speakers, and "Name:" prefixes of enough memories."""
    return SQL(
        "SELECT s.speaker, s.named + s.prefixed FROM speakers s WHERE s.namespace = ? AND (s.named > 0 OR s.prefixed "
        ">= greatest(?, ?::float8 * (SELECT memories FROM spaces WHERE namespace = ?)))",
        (namespace, least, share, namespace),
    )
