"""What `indexes.candidates` reads of a view, read from the server by one statement: neighbours, words and vectors."""

# ruff: noqa: S608 - every name put into a statement is ours; values of users are bound

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridmem.core.types import Entry
from hybridmem.embedding.embedder import Vector
from hybridmem.filters.sql import SQL
from hybridmem.indexes.candidates import WINDOW
from hybridmem.stores.postgres.search.bm25 import ENTRY, Bm25, entry_of
from hybridmem.stores.postgres.search.engines import Run
from hybridmem.stores.postgres.search.graph import DIRECTIONS, along
from hybridmem.stores.postgres.search.vectors import cosines

__all__ = ["PoolLexical", "PoolRows", "PoolVectors"]

_VISIBLE = "m.live AND m.status <> 'superseded'"
_FIRST_FIELD = 9
Score = Callable[[str, Sequence[str]], list[Any]]


class _Turn(NamedTuple):
    """One memory of the pool, or a neighbour of one."""

    before: str | None
    after: str | None
    length: float
    tf: Mapping[int, float]
    """The frequencies of the query's terms, by their places in the query."""


class PoolRows:
    """The candidates of one query and their neighbours in threads; read once the best candidates are known."""

    def __init__(
        self,
        bm25: Bm25,
        run: Run,
        terms: Mapping[str, float],
        vector: Vector | None,
        *,
        hits: Sequence[str],
        known: Mapping[str, Mapping[str, float]],
        score: Score,
        cache: Callable[[Iterable[Entry]], None],
        exact_words: bool,
        threads: bool,
    ) -> None:
        """`known`: scores by arm; `score` reads others. `exact_words`: BM25 scores are computed from frequencies."""
        self._bm25, self._run, self._terms, self._vector = bm25, run, terms, vector
        self._hits, self._score, self._cache = hits, score, cache
        self._exact_words, self._threads = exact_words, threads
        self._known = {arm: dict(known.get(arm, {})) for arm in ("bm25", "vector")}
        self._turns: dict[str, _Turn] = {}
        self._base, self._slope = 0.0, 0.0
        self._weights: Sequence[float] = ()
        self.targets: list[str] = []
        """Further memories that belong to the pool, known before the neighbours are read."""

    def scores(self, arm: str, ids: Sequence[str], /) -> list[Any]:
        """The scores of memories by one arm, as read before or by the statement, else read now."""
        known = self._known[arm]
        missing = [id_ for id_ in ids if id_ not in known]
        if missing:
            known.update(zip(missing, self._score(arm, missing), strict=True))
        return [known[id_] for id_ in ids]

    def around(self, ids: Sequence[str], hops: int, /) -> list[list[str | None]]:
        """The memories before and after each id in its thread, ordered -1, 1, -2, 2 and so on."""
        if not self._threads and not self.targets:
            return [[None] * len(ids) for _ in range(2 * hops)]
        if any(id_ not in self._turns for id_ in ids):
            self._read(ids, hops)
        turns = self._turns
        lists: list[list[str | None]] = []
        back: list[str | None] = list(ids)
        ahead: list[str | None] = list(ids)
        for _ in range(hops):
            back = [None if id_ is None or id_ not in turns else turns[id_].before for id_ in back]
            ahead = [None if id_ is None or id_ not in turns else turns[id_].after for id_ in ahead]
            lists += [back, ahead]
        return lists

    def _read(self, seeds: Sequence[str], hops: int) -> None:
        """Read the neighbours of all hits, and further those of the seeds, whose neighbours become candidates."""
        near = dict.fromkeys(seeds, (hops + WINDOW, hops))
        reach = {id_: near.get(id_, (WINDOW, -1)) for id_ in self._hits}
        reach |= near | {id_: max(near.get(id_, (0, 0)), (WINDOW, 0)) for id_ in self.targets}
        rows = self._run(_statement(self._bm25, self._terms, self._vector, reach))
        if not rows:
            return
        self._base, self._slope, self._weights = rows[0][6:_FIRST_FIELD]
        for id_, before, after, length, places, tfs, *_ in rows:
            tf = dict(zip(places, tfs, strict=True)) if places else {}
            self._turns[id_] = _Turn(before, after, length, tf)
        new = [row for row in rows if row[_FIRST_FIELD] is not None]
        self._cache([entry_of(row[_FIRST_FIELD : _FIRST_FIELD + len(Entry._fields)]) for row in new])
        if self._exact_words:
            for row in new:
                self._known["bm25"].setdefault(row[0], self._words_score(self._turns[row[0]]))
        if self._vector is not None:
            vectors = [(row[-1], row[0]) for row in new if row[-1] is not None]
            values = cosines(vectors, self._vector)
            found = {id_: value for (_, id_), value in zip(vectors, values, strict=True)}
            for row in new:
                self._known["vector"].setdefault(row[0], found.get(row[0]))  # type: ignore[arg-type]

    def _words_score(self, turn: _Turn) -> float:
        norm, curve = self._base + self._slope * turn.length, self._bm25.k1 + 1
        return sum(self._weights[place - 1] * tf * curve / (tf + norm) for place, tf in turn.tf.items())

    def windows(
        self, ids: Sequence[str], around: Sequence[Sequence[str | None]], wing: float, /
    ) -> tuple[list[float], list[float]]:
        """The scores of memories alone and in windows, as `BM25Index.windows` computes them."""
        windows = [ids, *around]
        place = {id_: n for n, id_ in enumerate(self._turns)}
        lengths, tf = np.zeros(len(place) + 1), np.zeros((len(self._terms), len(place) + 1))
        for n, turn in enumerate(self._turns.values()):
            lengths[n] = turn.length
            for term, count in turn.tf.items():
                tf[term - 1, n] = count
        rows = np.array([[place.get(id_, -1) for id_ in part] for part in windows], np.intp)  # type: ignore[arg-type]
        shares = np.full(len(windows), wing)
        shares[0] = 1.0
        sizes = shares @ lengths[rows]
        mean = float(sizes.mean()) if len(sizes) else 0.0
        scores = np.zeros(rows.shape[1])
        if mean:
            norm = self._base + (self._bm25.k1 - self._base) * sizes / mean
            for weight, held in zip(self._weights, tf, strict=True):
                frequency = shares @ held[rows]
                scores += weight * frequency * (self._bm25.k1 + 1) / (frequency + norm)
        together: list[float] = scores.tolist()
        return self.scores("bm25", ids), together


class PoolLexical:
    """BM25 scores of memories and of windows of memories for one query."""

    def __init__(self, rows: PoolRows, /) -> None:
        self._rows = rows

    def score(self, _query: str, ids: Sequence[str], /) -> list[float]:
        """The scores of memories; 0.0 without a term of the query."""
        return self._rows.scores("bm25", ids)

    def windows(
        self, _query: str, ids: Sequence[str], around: Sequence[Sequence[str | None]], /, *, wing: float = 0.5
    ) -> tuple[list[float], list[float]]:
        """The scores of memories alone and in windows."""
        return self._rows.windows(ids, around, wing)


class PoolVectors:
    """Cosines of memories for one query."""

    def __init__(self, rows: PoolRows, /) -> None:
        self._rows = rows

    def score(self, _vector: Any, ids: Sequence[str], /) -> list[float | None]:
        """The cosines; None for a memory without a vector."""
        return self._rows.scores("vector", ids)


def _statement(
    bm25: Bm25, terms: Mapping[str, float], vector: Vector | None, reach: Mapping[str, tuple[int, int]], /
) -> SQL:
    """Rows (id, before, after, length, places, tfs, base, slope, weights, *entry, vector); weights in the first one.

    `reach` has, for each memory, how many turns around it are read and up to which of them entry and vector are read.
    """
    sides = [
        f"UNION ALL SELECT w.mem, {sign}n.place, n.mem, n.id, n.place <= w.near FROM given w CROSS JOIN LATERAL ("
        f"SELECT t.*, row_number() OVER () AS place FROM ({along(*way, 'm.mem, m.id', 'w.reach')}) t) n"
        for sign, way in zip(("-", ""), DIRECTIONS, strict=True)
    ]
    weights, frequencies = bm25.weights(terms), bm25.frequencies("turns")
    vectors = SQL("NULL::bytea AS packed")
    if vector is not None:
        query = (
            "SELECT vector_send(e.embedding) FROM embeddings e WHERE e.namespace = ? AND e.mem = t.mem AND e.dim = ?"
        )
        vectors = SQL(f"CASE WHEN t.near THEN ({query}) END", (bm25.namespace, len(vector)))
    return SQL(
        f"""{weights.text}, given AS MATERIALIZED (
  SELECT m.*, g.reach, g.near FROM unnest(?::text[], ?::int[], ?::int[]) AS g (id, reach, near) CROSS JOIN LATERAL (
    SELECT m.mem, m.id, m.namespace, m.thread, m.created_at, m.born FROM memories m
    WHERE m.namespace = ? AND m.id = g.id AND {_VISIBLE} OFFSET 0) m),
links AS (
  SELECT mem AS source, 0 AS place, mem, id, near >= 0 AS near FROM given {" ".join(sides)}),
turns AS MATERIALIZED (
  SELECT mem, id, max(before) AS before, max(after) AS after, bool_or(near) AS near FROM (
    SELECT mem, id, near, lag(id) OVER s AS before, lead(id) OVER s AS after FROM links
    WINDOW s AS (PARTITION BY source ORDER BY place)) l GROUP BY mem, id)
SELECT t.id, t.before, t.after, COALESCE(d.length, 0), f.places, f.tfs, s.base, s.slope,
  CASE WHEN row_number() OVER () = 1 THEN ARRAY(SELECT weight FROM w ORDER BY place) END, {ENTRY}, {vectors.text}
FROM turns t CROSS JOIN s LEFT JOIN LATERAL (
  SELECT d.length FROM documents d WHERE d.namespace = ? AND d.mem = t.mem OFFSET 0) d ON TRUE
LEFT JOIN ({frequencies.text}) f ON f.mem = t.mem
LEFT JOIN LATERAL (SELECT m.* FROM memories m WHERE m.mem = t.mem AND t.near OFFSET 0) m ON TRUE""",
        (
            *weights.params,
            list(reach),
            [far for far, _ in reach.values()],
            [near for _, near in reach.values()],
            bm25.namespace,
            *vectors.params,
            bm25.namespace,
            *frequencies.params,
        ),
    )
