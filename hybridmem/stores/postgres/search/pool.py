"""The pool of one query: both arms with their scores of each other's hits, then neighbours, words and vectors.

The arms are read by one statement, or in a large namespace by two at the same time. What `indexes.candidates` needs of
the pool is read by one more.

Vectors stay in the server. The cosine of e (of length 1) and q is (1 + |q|² − |e − q|²)/2 by pgvector's norm, which
has one digit more than its float32 inner product. Where the remaining error could matter, the few vectors concerned are
fetched and scored again.
"""

# ruff: noqa: S608 - every name put into a statement is ours; values of users are bound

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridmem.core.types import Entry, Hits
from hybridmem.embedding.embedder import Vector
from hybridmem.filters.sql import SQL
from hybridmem.indexes.candidates import SAMPLE, WINDOW
from hybridmem.stores.postgres.search import bm25, vectors
from hybridmem.stores.postgres.search.bm25 import ENTRY, Bm25, entry_of
from hybridmem.stores.postgres.search.engines import RunStatement
from hybridmem.stores.postgres.search.graph import DIRECTIONS, along
from hybridmem.stores.postgres.search.vectors import COSINE, QUESTION, Nearest, packed

__all__ = [
    "FIRST_FIELD",
    "CombinedHits",
    "PoolLexical",
    "PoolRows",
    "PoolVectors",
    "combined_hits",
    "in_one",
    "in_two",
    "is_uncertain",
    "merged",
    "uncertain",
]

_TOLERANCE = 5e-7
"""An error below this share of the range of scores stays within 1e-6 after normalisation."""
Floats = NDArray[np.float64]
CombinedHits = tuple[dict[str, Hits], dict[str, dict[str, float]]]
"""Each arm's best k, and each arm's scores of all candidates."""

FIRST_FIELD = _ID = 5
"""The column of an entry's first field, its id, in rows of both arms."""
_MEMORY = "CROSS JOIN LATERAL (SELECT * FROM memories m WHERE m.mem = f.mem OFFSET 0) m"
_VECTOR = """LEFT JOIN LATERAL (
  SELECT e.embedding FROM embeddings e WHERE e.namespace = ? AND e.mem = f.mem AND e.dim = ? OFFSET 0) e ON TRUE"""


def in_one(
    lexical: Bm25, nearest: Nearest, terms: Mapping[str, float], row: Vector, allowed: Set[str] | None, k: int, /
) -> SQL:
    """Rows (score, lexical, cosine, near, baseline, *entry) of all memories in either arm's best k.

    `lexical` and `near` say which arm returned it, or one that may equal its last; score and cosine are NULL where an
    arm has no score. `baseline`: see `Nearest.sample`.
    """
    hits, best, closest = lexical.hits(terms), lexical.best(allowed, k), nearest.closest(len(row), allowed, k)
    sample = nearest.sample(len(row), SAMPLE)
    return SQL(
        f"""{hits.text}, {QUESTION}, {best.text}, {closest.text},
f AS (
  SELECT mem, bool_or(words) AS words, bool_or(near) AS near FROM (
    SELECT mem, TRUE AS words, FALSE AS near FROM words UNION ALL SELECT mem, FALSE, TRUE FROM near) f GROUP BY mem)
SELECT h.score, f.words, {COSINE}, f.near, ({sample.text}), {ENTRY}
FROM f LEFT JOIN hits h ON h.mem = f.mem {_MEMORY} {_VECTOR}""",
        (*hits.params, packed(row), *best.params, *closest.params, *sample.params, nearest.namespace, len(row)),
    )


def in_two(
    lexical: Bm25,
    nearest: Nearest,
    terms: Mapping[str, float],
    row: Vector,
    allowed: Set[str] | None,
    k: int,
    /,
    *,
    indexed: bool,
) -> tuple[SQL, SQL]:
    """The same rows by two statements to run at the same time: the nearest vectors, and the best by BM25."""
    hits = lexical.hits(terms) if allowed is not None else lexical.leading(terms, k)
    best = lexical.best(allowed, k)
    words = SQL(
        f"""{hits.text}, {QUESTION}, {best.text}
SELECT f.score, TRUE, {COSINE}, FALSE, NULL::float8, {ENTRY} FROM words f {_MEMORY} {_VECTOR}""",
        (*hits.params, packed(row), *best.params, nearest.namespace, len(row)),
    )
    weights, scored, sample = lexical.weights(terms), lexical.of("near"), nearest.sample(len(row), SAMPLE)
    found = (nearest.indexed if indexed else nearest.closest)(len(row), allowed, k)
    near = SQL(
        f"""{weights.text}, {QUESTION}, {found.text}, f AS MATERIALIZED ({scored.text})
SELECT f.score, FALSE, {COSINE}, TRUE, ({sample.text}), {ENTRY} FROM f {_MEMORY} {_VECTOR}""",
        (*weights.params, packed(row), *found.params, *scored.params, *sample.params, nearest.namespace, len(row)),
    )
    return near, words


def merged(words: Sequence[tuple[Any, ...]], near: Sequence[tuple[Any, ...]], /) -> list[tuple[Any, ...]]:
    """One row for each candidate of the two statements."""
    rows = {row[_ID]: row for row in words}
    for row in near:
        rows[row[_ID]] = (*row[:1], row[_ID] in rows, *row[2:])
    return list(rows.values())


def combined_hits(
    rows: Sequence[tuple[Any, ...]], k: int, dim: int, rescore: Callable[[list[str]], Mapping[str, float]], /
) -> CombinedHits:
    """The hits of both arms in these rows."""
    cosine = {row[_ID]: row[2] for row in rows if row[2] is not None}
    uncertain_ids = uncertain(cosine, dim)
    if uncertain_ids:
        cosine.update(rescore(uncertain_ids))
    words = bm25.by_score([(row[0], *row[_ID:]) for row in rows if row[1]])
    near = vectors.by_score([(cosine[row[_ID]], *row[_ID:]) for row in rows if row[3]])
    best = {"bm25": words[:k], "vector": near[:k]}
    ranked = {arm: Hits([row[1] for row in hits], [row[0] for row in hits]) for arm, hits in best.items()}
    listed = {*ranked["bm25"].ids, *ranked["vector"].ids}
    scores = {row[_ID]: row[0] for row in rows if row[0] and row[_ID] in listed}
    return ranked, {"bm25": scores, "vector": {id_: c for id_, c in cosine.items() if c and id_ in listed}}


def uncertain(cosine: Mapping[str, float], dim: int, /) -> list[str]:
    """The ids whose cosine needs more precision: rounding could change their order, or turn 0 into another value."""
    # each difference is rounded to float32 independently, so that most of the errors cancel out
    error = _error(dim)
    ids, values = list(cosine), np.fromiter(cosine.values(), np.float64, len(cosine))
    order = values.argsort(kind="stable")
    values = values[order]
    if len(values) and values[-1] - values[0] < error / _TOLERANCE:
        return [ids[place] for place in order.tolist()]
    gaps = np.diff(values)
    close = (gaps > 0) & (gaps < 2 * error)
    doubtful = np.abs(values) < error
    doubtful[:-1] |= close
    doubtful[1:] |= close
    return [ids[place] for place in order[doubtful].tolist()]


def is_uncertain(baseline: float, cosines: Sequence[float], dim: int, /) -> bool:
    """Whether the baseline needs more precision: it nearly equals a cosine, or the best one is close to it."""
    error = _error(dim)
    near = any(abs(cosine - baseline) < error for cosine in cosines)
    return near or max(cosines, default=math.inf) - baseline < error / _TOLERANCE


def _error(dim: int) -> float:
    return 7e-7 / math.sqrt(dim)


_VISIBLE = "m.live AND m.status <> 'superseded'"
Score = Callable[[str, Sequence[str]], list[Any]]


class _PoolTurns(NamedTuple):
    """The memories of a pool and their neighbours: lists with one value for each, and the postings of the terms."""

    ids: Sequence[str]
    mems: Sequence[int]
    before: Sequence[int | None]
    after: Sequence[int | None]
    """Neighbours in the thread. A link between two turns is in the row of one of them or of both."""
    lengths: Sequence[float | None]
    """Of memories without a posting."""
    base: float
    slope: float
    weights: Sequence[float]
    """Of the terms of the query."""
    places: Sequence[int]
    """The places of the terms in the query, from 1."""
    found: Sequence[int]
    """The memories of the postings."""
    tfs: Sequence[float]
    found_lengths: Sequence[float]


_POOL_ENTRY = len(_PoolTurns._fields)


class PoolRows:
    """The candidates of one query and their neighbours in threads; read once the best candidates are known."""

    def __init__(
        self,
        bm25: Bm25,
        run: RunStatement,
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
        self._place: dict[str | None, int] = {}
        """The column of each memory in `_lengths` and `_frequencies`; their last column, place -1, is of no memory."""
        self._before: dict[str | None, str] = {}
        self._after: dict[str | None, str] = {}
        self._base, self._slope = 0.0, 0.0
        self._weights: Floats = np.zeros(0)
        self._lengths: Floats = np.zeros(1)
        self._frequencies: Floats = np.zeros((0, 1))
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
        if not self._place.keys() >= set(ids):
            self._read(ids, hops)
        lists: list[list[str | None]] = []
        back: list[str | None] = list(ids)
        ahead: list[str | None] = list(ids)
        for _ in range(hops):
            back, ahead = list(map(self._before.get, back)), list(map(self._after.get, ahead))
            lists += [back, ahead]
        return lists

    def _read(self, seeds: Sequence[str], hops: int) -> None:
        """Read the neighbours of all hits, and further those of the seeds, whose neighbours become candidates."""
        rows = self._run(_statement(self._bm25, self._terms, self._vector, seeds, self.targets, self._hits, hops))
        turns = next(_PoolTurns._make(row[:_POOL_ENTRY]) for row in rows if row[_POOL_ENTRY] is None)
        if turns.ids is None:
            return
        self._keep_links(turns)
        self._keep_words(turns)
        new = [row[_POOL_ENTRY:] for row in rows if row[_POOL_ENTRY] is not None]
        self._cache([entry_of(row[:-1]) for row in new])
        if self._exact_words:
            scores = self._words_scores()
            for row in new:
                self._known["bm25"].setdefault(row[0], scores[self._place[row[0]]])
        if self._vector is not None:
            known = self._known["vector"]
            read = {row[0]: row[-1] for row in new if row[0] not in known}
            known.update(read)
            cosine = {id_: value for id_, value in known.items() if value is not None}
            doubtful = [id_ for id_ in uncertain(cosine, len(self._vector)) if id_ in read]
            if doubtful:
                known.update(zip(doubtful, self._score("vector", doubtful), strict=True))

    def _keep_links(self, turns: _PoolTurns) -> None:
        ids = dict(zip(turns.mems, turns.ids, strict=True))
        for id_, before, after in zip(turns.ids, turns.before, turns.after, strict=True):
            if before is not None:
                self._before[id_], self._after[ids[before]] = ids[before], id_
            if after is not None:
                self._after[id_], self._before[ids[after]] = ids[after], id_

    def _keep_words(self, turns: _PoolTurns) -> None:
        self._place = {id_: place for place, id_ in enumerate(turns.ids)}
        self._base, self._slope, self._weights = turns.base, turns.slope, np.array(turns.weights)
        self._lengths = np.array([*(length or 0.0 for length in turns.lengths), 0.0])
        self._frequencies = np.zeros((len(turns.weights), len(turns.ids) + 1))
        if turns.found:
            place = {mem: n for n, mem in enumerate(turns.mems)}
            found = np.array([place[mem] for mem in turns.found], np.intp)
            self._lengths[found] = turns.found_lengths
            self._frequencies[np.array(turns.places, np.intp) - 1, found] = turns.tfs

    def _words_scores(self) -> list[float]:
        tf = self._frequencies
        norm = self._base + self._slope * self._lengths
        parts = np.divide(tf * (self._bm25.k1 + 1), tf + norm, out=np.zeros_like(tf), where=tf > 0)
        scores: list[float] = (self._weights @ parts).tolist()
        return scores

    def windows(
        self, ids: Sequence[str], around: Sequence[Sequence[str | None]], wing: float, /
    ) -> tuple[list[float], list[float]]:
        """The scores of memories alone and in windows, as `BM25Index.windows` computes them."""
        windows, get = [ids, *around], self._place.get
        rows = np.array([list(map(get, part, repeat(-1))) for part in windows], np.intp)
        shares = np.full(len(windows), wing)
        shares[0] = 1.0
        sizes = shares @ self._lengths[rows]
        mean = float(sizes.mean()) if len(sizes) else 0.0
        scores = np.zeros(rows.shape[1])
        if mean:
            norm = self._base + (self._bm25.k1 - self._base) * sizes / mean
            for weight, held in zip(self._weights, self._frequencies, strict=True):
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
    bm25: Bm25,
    terms: Mapping[str, float],
    vector: Vector | None,
    seeds: Sequence[str],
    targets: Sequence[str],
    hits: Sequence[str],
    hops: int,
    /,
) -> SQL:
    """Rows (*turns, *entry, cosine) for these memories and those around them: one row has only `_PoolTurns`.

    Around seeds, hops + `WINDOW` turns are read, and `WINDOW` around the others. The `hops` turns around seeds, and the
    targets, have a row with their entry and cosine.
    """
    ids = list(dict.fromkeys([*seeds, *targets, *hits]))
    last_seed, last_target = len(dict.fromkeys(seeds)), len(dict.fromkeys([*seeds, *targets]))
    sides = [
        f"UNION ALL SELECT n.mem, n.id, {links}, n.place <= w.near FROM given w CROSS JOIN LATERAL ("
        "SELECT t.*, row_number() OVER () AS place, lag(t.mem, 1, w.mem) OVER () AS other FROM "
        f"({along(*way, 'm.mem, m.id', 'w.reach')}) t) n"
        for links, way in zip(("NULL, n.other", "n.other, NULL"), DIRECTIONS, strict=True)
    ]
    weights, frequencies = bm25.weights(terms), bm25.frequencies("turns")
    question, cosine = SQL(""), SQL("NULL::float8")
    if vector is not None:
        question = SQL(f", {QUESTION}", (packed(vector),))
        cosine = SQL(
            f"(SELECT {COSINE} FROM embeddings e WHERE e.namespace = ? AND e.mem = t.mem AND e.dim = ?)",
            (bm25.namespace, len(vector)),
        )
    return SQL(
        f"""{weights.text}{question.text}, given AS MATERIALIZED (
  SELECT m.*, CASE WHEN g.place <= ? THEN {hops + WINDOW:d} ELSE {WINDOW} END AS reach,
    CASE WHEN g.place <= ? THEN {hops:d} ELSE 0 END AS near, g.place > ? AND g.place <= ? AS own
  FROM unnest((SELECT ?::text[])) WITH ORDINALITY AS g (id, place) CROSS JOIN LATERAL (
    SELECT m.mem, m.id, m.namespace, m.thread, m.created_at, m.born FROM memories m
    WHERE m.namespace = ? AND m.id = g.id AND {_VISIBLE} OFFSET 0) m),
links (mem, id, before, after, near) AS (
  SELECT mem, id, NULL::bigint, NULL::bigint, own FROM given {" ".join(sides)}),
turns AS MATERIALIZED (
  SELECT mem, id, max(before) AS before, max(after) AS after, bool_or(near) AS near FROM links GROUP BY mem, id),
f AS MATERIALIZED ({frequencies.text}),
read AS MATERIALIZED (
  SELECT t.*, s.base, s.slope, ARRAY(SELECT weight FROM w ORDER BY place), p.* FROM s, (
    SELECT array_agg(t.id) AS ids, array_agg(t.mem), array_agg(t.before), array_agg(t.after), array_agg(
      CASE WHEN t.mem NOT IN (SELECT mem FROM f) THEN (
        SELECT d.length FROM documents d WHERE d.namespace = ? AND d.mem = t.mem) END) FROM turns t) t, (
    SELECT array_agg(place), array_agg(mem), array_agg(tf), array_agg(length) FROM f) p)
SELECT r.*, {ENTRY}, {cosine.text}
FROM (SELECT mem FROM turns WHERE near UNION ALL SELECT NULL) t LEFT JOIN read r ON t.mem IS NULL
LEFT JOIN LATERAL (SELECT m.* FROM memories m WHERE m.mem = t.mem OFFSET 0) m ON TRUE""",
        (
            *weights.params,
            *question.params,
            last_seed,
            last_seed,
            last_seed,
            last_target,
            ids,
            bm25.namespace,
            *frequencies.params,
            bm25.namespace,
            *cosine.params,
        ),
    )
