"""Vector search in the server: exact cosine for a small namespace, pgvector's HNSW index for a large one."""

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
    "query_vector",
    "ranked",
    "tied",
    "within",
]

LIMIT = 4000
"""The most dimensions of a half-precision vector that pgvector can index."""
_SPARE = 16
"""Rows fetched beyond k: float32 may order the last ones differently."""
_CLOSE = 1e-6
"""Cosines that differ by less may be in a different order in the server's float32."""
_UPDATED = 1 + Entry._fields.index("updated_at")


def query_vector(vector: Any, /) -> Vector:
    """A query's vector at length 1; EmbeddingError when it is not one finite vector."""
    row = np.asarray(vector, dtype=np.float64)
    if row.ndim != 1 or not len(row):
        raise EmbeddingError(f"the query vector has shape {row.shape}, expected one dimension")
    if not np.isfinite(row).all():
        raise EmbeddingError("the query vector has a value that is not finite")
    return unit(row)


def cosines(rows: Sequence[tuple[Any, ...]], query: Vector, /) -> list[float]:
    """The cosine of each row's vector (its first column, as pgvector sends it) with the question, in float64."""
    if not rows:
        return []
    packed = b"".join(row[0][4:] for row in rows)  # two bytes of dimension, two unused, then big-endian float32
    matrix = np.frombuffer(packed, ">f4").reshape(len(rows), -1).astype(np.float64)
    scores: list[float] = (matrix * query.astype(np.float64)).sum(axis=1).tolist()
    return scores


def ranked(rows: Sequence[tuple[Any, ...]], query: Vector, /) -> list[tuple[Any, ...]]:
    """Rows (vector, *entry) as (score, *entry): by cosine, then the newer, then the smaller id."""
    return by_score([(score, *row[1:]) for score, row in zip(cosines(rows, query), rows, strict=True)])


def by_score(rows: Iterable[tuple[Any, ...]], /) -> list[tuple[Any, ...]]:
    """Rows (score, *entry): by score, then the newer, then the smaller id."""
    return sorted(rows, key=lambda row: (-row[0], -(row[_UPDATED] or -math.inf), row[1]))


def tied(rows: Sequence[tuple[Any, ...]], k: int, /) -> float | None:
    """The cosine down to which further memories may equal the k-th row of `exact`; None when there can be none."""
    if not 0 < k < len(rows) == k + _SPARE or rows[k - 1][0] - rows[-1][0] > _CLOSE:
        return None
    return float(rows[k - 1][0]) - _CLOSE


def within(k: int, table: str, /) -> str:
    """The condition that a row of a table (d) is among its k nearest, or too close to the last to be excluded."""
    last = f"SELECT d FROM {table} ORDER BY d OFFSET {k - 1:d} LIMIT 1"
    return f"{table}.d <= COALESCE(({last}), 'Infinity') + {2 * _CLOSE}"


def packed(row: Vector, /) -> Packed:
    """A vector in pgvector's binary format."""
    return Packed(struct.pack(">hh", len(row), 0) + row.astype(">f4").tobytes())


def index_name(dim: int, prefix: int | None, /) -> str:
    """The name of the HNSW index for one dimension (and one Matryoshka prefix)."""
    return f"embeddings_hnsw_{dim}" + (f"_{prefix}" if prefix else "")


def index_sql(dim: int, prefix: int | None, /, *, m: int = 16, ef: int = 64) -> str:
    """The statement that builds the index without blocking readers and writers.

    The index holds half-precision copies (half the size and build time); its candidates are scored by full vectors.
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

    The server selects in float32; `ranked` scores the selected rows in float64, as the local index does.
    """

    namespace: str
    prefix: int | None = None

    def exact(self, row: Vector, allowed: Set[str] | None, k: int, /, *, within: float | None = None) -> SQL:
        """The nearest k + SPARE by a scan of every vector, each with its entry.

        Only numbers are sorted; the vectors of the selected rows are fetched afterwards. `within` selects all rows of
        at least this cosine, the newest of equals first; it is used after `tied` reports a tie.
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
        """Part of a statement: the nearest k + SPARE (mem, d) to the vector `v` of a table `q`."""
        rest = restriction(allowed)
        join = "JOIN memories m ON m.mem = e.mem " if allowed is not None else ""
        return SQL(
            f"SELECT e.mem, e.embedding <#> (SELECT v FROM q) AS d FROM embeddings e {join}WHERE e.namespace = ? "
            f"AND e.dim = ?{rest.text} ORDER BY d LIMIT {k + _SPARE:d}",
            (self.namespace, dim, *rest.params),
        )

    def approximate(self, row: Vector, allowed: Set[str] | None, k: int, /) -> SQL:
        """The k nearest by the HNSW index, scanned until enough rows pass the filter; scored by full vectors."""
        found, bound = self.indexed(len(row), allowed, k)
        return SQL(
            f"WITH q AS (SELECT ?::vector AS v) SELECT vector_send(v.embedding), {ENTRY} FROM ({found}) t "
            "JOIN embeddings v ON v.namespace = ? AND v.mem = t.mem JOIN memories m ON m.mem = t.mem",
            (packed(row), *bound, self.namespace),
        )

    def indexed(self, dim: int, allowed: Set[str] | None, k: int, /) -> SQL:
        """Part of a statement: the nearest rows (mem) by the HNSW index, scanned until enough rows pass the filter."""
        rest = restriction(allowed)
        # OFFSET 0: each neighbour is tested against the filter. The planner cannot estimate a filter over expressions;
        # it expects very few rows and would compute the distance of all that pass.
        each = f"CROSS JOIN LATERAL (SELECT FROM memories m WHERE m.mem = e.mem{rest.text} OFFSET 0) m "
        join = each if allowed is not None else ""
        target = _indexed("(SELECT v FROM q)", dim, self.prefix)
        wide = 4 * k if self.prefix else k + _SPARE
        return SQL(
            f"SELECT e.mem FROM embeddings e {join}WHERE e.namespace = ? AND e.dim = {dim:d} "
            f"ORDER BY {_indexed('e.embedding', dim, self.prefix)} <=> {target} LIMIT {wide:d}",
            (*rest.params, self.namespace),
        )

    def score(self, row: Vector, ids: Sequence[str], /) -> SQL:
        """The vectors of given memories, only of those that have one."""
        return SQL(
            "SELECT vector_send(e.embedding), m.id FROM memories m JOIN embeddings e ON e.namespace = m.namespace "
            "AND e.mem = m.mem WHERE m.namespace = ? AND m.id = ANY(?::text[]) AND e.dim = ?",
            (self.namespace, list(ids), len(row)),
        )
