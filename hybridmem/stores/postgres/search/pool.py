"""What `indexes.candidates` reads of a view, read from the server: scores, neighbours in threads, and a sample."""

# ruff: noqa: S608 - every name put into a statement is ours; values of users are bound

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridmem.filters.sql import SQL
from hybridmem.stores.postgres.search.bm25 import Bm25, TermWeights
from hybridmem.stores.postgres.search.engines import Run
from hybridmem.stores.postgres.search.graph import along

__all__ = ["PoolEntries", "PoolLexical", "PoolVectors", "speakers_of"]

_VISIBLE = "m.live AND m.status <> 'superseded'"
Scores = Callable[[Sequence[str]], list[Any]]


class PoolLexical:
    """BM25 scores of memories and of windows of memories for one query."""

    def __init__(self, bm25: Bm25, run: Run, terms: Mapping[str, float], weights: TermWeights, scores: Scores) -> None:
        self._bm25, self._run, self._terms, self._weights, self._scores = bm25, run, terms, weights, scores

    def score(self, _query: str, ids: Sequence[str], /) -> list[float]:
        """The scores of memories; 0.0 without a term of the query."""
        return self._scores(ids) if ids else []

    def windows(self, _query: str, windows: Sequence[Sequence[str | None]], /, *, wing: float = 0.5) -> list[float]:
        """The scores of windows, as `BM25Index.windows` computes them."""
        ids = list(dict.fromkeys(id_ for part in windows for id_ in part if id_ is not None))
        place = {id_: n for n, id_ in enumerate(ids)}
        term_place = {term: n for n, term in enumerate(self._terms)}
        lengths, tf = np.zeros(len(ids) + 1), np.zeros((len(term_place), len(ids) + 1))
        for id_, length, term, frequency in self._run(self._bm25.frequencies(self._terms, ids)):
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
        result: list[float] = scores.tolist()
        return result


class PoolVectors:
    """Cosines of memories for one query."""

    def __init__(self, count: int, scores: Scores) -> None:
        self._count, self._scores = count, scores

    def __len__(self) -> int:
        return self._count

    def score(self, _vector: Any, ids: Sequence[str], /) -> list[float | None]:
        """The cosines; None for a memory without a vector."""
        return self._scores(ids) if ids else []


class PoolEntries:
    """Neighbours in threads, and the sample of memories with a vector."""

    def __init__(self, namespace: str, run: Run) -> None:
        self._namespace, self._run = namespace, run

    def __len__(self) -> int:
        rows = self._run(SQL("SELECT memories FROM spaces WHERE namespace = ?", (self._namespace,)))
        return int(rows[0][0]) if rows else 0

    def sample(self, size: int, /) -> list[str]:
        """The ids with the smallest md5 among the memories with a vector."""
        rows = self._run(
            SQL(
                f"SELECT m.id FROM memories m WHERE m.namespace = ? AND {_VISIBLE} AND m.vector IS NOT NULL "
                "ORDER BY md5(m.id) LIMIT ?",
                (self._namespace, size),
            )
        )
        return [row[0] for row in rows]

    def around(self, ids: Sequence[str], hops: int, /) -> list[list[str | None]]:
        """The memories before and after each id in its thread, ordered -1, 1, -2, 2 and so on."""
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
                (self._namespace, wanted, hops, hops),
            )
        )
        found = {(id_, 2 * (int(place) - 1) + side): other for id_, side, place, other in rows}
        return [[found.get((id_, number)) for id_ in wanted] for number in range(2 * hops)]


def speakers_of(namespace: str, share: float, least: int, /) -> SQL:
    """Rows (speaker, memories): given speakers, and "Name:" prefixes of enough memories."""
    return SQL(
        "SELECT s.speaker, s.named + s.prefixed FROM speakers s WHERE s.namespace = ? AND (s.named > 0 OR s.prefixed "
        ">= greatest(?, ?::float8 * (SELECT memories FROM spaces WHERE namespace = ?)))",
        (namespace, least, share, namespace),
    )
