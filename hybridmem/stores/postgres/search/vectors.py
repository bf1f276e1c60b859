"""Vectors inside the server: exact cosine where a namespace is small, pgvector's HNSW where it is large."""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridmem.core.types import Entry
from hybridmem.embedding.embedder import Vector, unit
from hybridmem.errors import EmbeddingError
from hybridmem.filters.sql import SQL
from hybridmem.stores.postgres.connection import Packed
from hybridmem.stores.postgres.search.bm25 import ENTRY
from hybridmem.stores.postgres.search.filters import restriction

__all__ = [
    "Nearest",
    "by_score",
    "cosines",
    "index_name",
    "index_sql",
    "packed",
    "question",
    "ranked",
    "tied",
    "within",
]

LIMIT = 4000
"""pgvector indexes half-precision vectors of up to so many dimensions."""
_SPARE = 16
"""So many more are fetched: float32 may put the last ones in a slightly different order."""
_CLOSE = 1e-6
"""Cosines that differ by less may have been swapped by the server's float32."""
_UPDATED = 1 + Entry._fields.index("updated_at")


def question(vector: Any, /) -> Vector:
    """A query's vector at length 1, or an error that says what is wrong with it."""
    row = np.asarray(vector, dtype=np.float64)
    if row.ndim != 1 or not len(row):
        raise EmbeddingError(f"the query vector has shape {row.shape}, expected one dimension")
    if not np.isfinite(row).all():
        raise EmbeddingError("the query vector has a value that is not finite")
    return unit(row)


def cosines(rows: Sequence[tuple[Any, ...]], asked: Vector, /) -> list[float]:
    """The cosine of each row's vector (its first column, as pgvector sends it) with the question, in float64."""
    if not rows:
        return []
    packed = b"".join(row[0][4:] for row in rows)  # two bytes of dimension, two unused, then big-endian float32
    matrix = np.frombuffer(packed, ">f4").reshape(len(rows), -1).astype(np.float64)
    scores: list[float] = (matrix * asked.astype(np.float64)).sum(axis=1).tolist()
    return scores


def ranked(rows: Sequence[tuple[Any, ...]], asked: Vector, /) -> list[tuple[Any, ...]]:
    """Rows (vector, *entry) as (score, *entry): by cosine, then the newer, then the smaller id."""
    return by_score([(score, *row[1:]) for score, row in zip(cosines(rows, asked), rows, strict=True)])


def by_score(rows: Iterable[tuple[Any, ...]], /) -> list[tuple[Any, ...]]:
    """Rows (score, *entry): by score, then the newer, then the smaller id."""
    return sorted(rows, key=lambda row: (-row[0], -(row[_UPDATED] or -math.inf), row[1]))


def tied(rows: Sequence[tuple[Any, ...]], k: int, /) -> float | None:
    """The cosine down to which others may equal the k-th of what `exact` brought; None when none was left out."""
    if not 0 < k < len(rows) == k + _SPARE or rows[k - 1][0] - rows[-1][0] > _CLOSE:
        return None
    return float(rows[k - 1][0]) - _CLOSE


def within(k: int, table: str, /) -> str:
    """The condition that a row of a table (d) is among its k nearest, or so close to the last that it might be."""
    last = f"SELECT d FROM {table} ORDER BY d OFFSET {k - 1:d} LIMIT 1"
    return f"{table}.d <= COALESCE(({last}), 'Infinity') + {2 * _CLOSE}"


def packed(row: Vector, /) -> Packed:
    """A vector as pgvector sends and receives it."""
    return Packed(struct.pack(">hh", len(row), 0) + row.astype(">f4").tobytes())


def index_name(dim: int, prefix: int | None, /) -> str:
    """The name of the HNSW index for one dimension (and one Matryoshka prefix)."""
    return f"embeddings_hnsw_{dim}" + (f"_{prefix}" if prefix else "")


def index_sql(dim: int, prefix: int | None, /, *, m: int = 16, ef: int = 64) -> str:
    """The statement that builds it, while others go on reading and writing.

    The index holds half-precision copies (half the size, built in half the time): what it finds is scored by the
    full vectors anyway.
    """
    return (
        f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {index_name(dim, prefix)} ON embeddings USING hnsw "
        f"(({_indexed('embedding', dim, prefix)}) halfvec_cosine_ops) WITH (m = {m:d}, "
        f"ef_construction = {ef:d}) WHERE dim = {dim:d}"
    )


def _indexed(column: str, dim: int, prefix: int | None) -> str:
    if prefix:
        return f"subvector({column}, 1, {prefix:d})::halfvec({prefix:d})"
    return f"{column}::halfvec({dim:d})"


@dataclass(frozen=True, slots=True)
class Nearest:
    """The statements for one namespace. All stored vectors have length 1, so −(a <#> b) is their cosine.

    The server finds in float32; `ranked` scores what it found in float64, as the embedded index does.
    """

    namespace: str
    prefix: int | None = None

    def exact(self, row: Vector, allowed: Set[str] | None, k: int, /, *, within: float | None = None) -> SQL:
        """The k nearest and a few more, every vector looked at; each with its entry.

        Only numbers are sorted; the vectors of the few that won are fetched afterwards. `within`: all whose cosine is
        at least so high, the newest of equals first, which is asked where `tied` says that the few were too few.
        """
        rest, near = restriction(allowed), packed(row)
        join = "JOIN memories m ON m.mem = e.mem " if allowed is not None else ""
        bound: tuple[Any, ...] = (near, self.namespace, len(row), *rest.params)
        if within is None:
            few, order = f"ORDER BY d LIMIT {k + _SPARE:d}", ""
        else:
            few, bound = "AND e.embedding <#> ?::vector <= ?", (*bound, near, -within)
            order = f"ORDER BY round(t.d * 1e6), m.updated_at DESC NULLS LAST, m.id LIMIT {k + _SPARE:d}"
        return SQL(
            f"SELECT vector_send(v.embedding), {ENTRY} FROM (SELECT e.mem, e.embedding <#> ?::vector AS d FROM "
            f"embeddings e {join}WHERE e.namespace = ? AND e.dim = ?{rest.text} {few}) t "
            f"JOIN embeddings v ON v.namespace = ? AND v.mem = t.mem JOIN memories m ON m.mem = t.mem {order}",
            (*bound, self.namespace),
        )

    def closest(self, dim: int, allowed: Set[str] | None, k: int, /) -> SQL:
        """The k nearest to the vector `v` of a table `q` (mem, d), and a few more: a part of a statement."""
        rest = restriction(allowed)
        join = "JOIN memories m ON m.mem = e.mem " if allowed is not None else ""
        return SQL(
            f"SELECT e.mem, e.embedding <#> (SELECT v FROM q) AS d FROM embeddings e {join}WHERE e.namespace = ? "
            f"AND e.dim = ?{rest.text} ORDER BY d LIMIT {k + _SPARE:d}",
            (self.namespace, dim, *rest.params),
        )

    def approximate(self, row: Vector, allowed: Set[str] | None, k: int, /) -> SQL:
        """The k nearest that HNSW finds, walking on until enough pass the filter; rescored by the full vectors."""
        found, bound = self.walked(len(row), allowed, k)
        return SQL(
            f"WITH q AS (SELECT ?::vector AS v) SELECT vector_send(v.embedding), {ENTRY} FROM ({found}) t "
            "JOIN embeddings v ON v.namespace = ? AND v.mem = t.mem JOIN memories m ON m.mem = t.mem",
            (packed(row), *bound, self.namespace),
        )

    def walked(self, dim: int, allowed: Set[str] | None, k: int, /) -> SQL:
        """The same by HNSW: what it finds, walking on until enough have passed the filter."""
        rest = restriction(allowed)
        # OFFSET 0: each neighbour is asked whether it passes. The planner cannot know how many pass a filter over
        # expressions, guesses very few, and would measure the distance of all that pass.
        each = f"CROSS JOIN LATERAL (SELECT FROM memories m WHERE m.mem = e.mem{rest.text} OFFSET 0) m "
        join = each if allowed is not None else ""
        asked = _indexed("(SELECT v FROM q)", dim, self.prefix)
        wide = 4 * k if self.prefix else k + _SPARE
        return SQL(
            f"SELECT e.mem FROM embeddings e {join}WHERE e.namespace = ? AND e.dim = {dim:d} "
            f"ORDER BY {_indexed('e.embedding', dim, self.prefix)} <=> {asked} LIMIT {wide:d}",
            (*rest.params, self.namespace),
        )

    def score(self, row: Vector, ids: Sequence[str], /) -> SQL:
        """The vectors of given memories, only of those that have one."""
        return SQL(
            "SELECT vector_send(e.embedding), m.id FROM memories m JOIN embeddings e ON e.namespace = m.namespace "
            "AND e.mem = m.mem WHERE m.namespace = ? AND m.id = ANY(?::text[]) AND e.dim = ?",
            (self.namespace, list(ids), len(row)),
        )
