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
from hybridmem.indexes.candidates import NO_SPREAD
from hybridmem.stores.postgres.connection import Packed
from hybridmem.stores.postgres.search.bm25 import ENTRY
from hybridmem.stores.postgres.search.filters import restriction

__all__ = [
    "COSINE",
    "QUESTION",
    "Nearest",
    "by_score",
    "cosines",
    "index_name",
    "index_sql",
    "packed",
    "query_vector",
    "ranked",
]

LIMIT = 4000
"""The most dimensions of a half-precision vector that pgvector can index."""
_SPARE = 16
"""Rows fetched beyond k: float32 may order the last ones differently."""
_CLOSE = 1e-6
"""Cosines that differ by less may be in a different order in the server's float32."""
QUESTION = "q AS MATERIALIZED (SELECT v, vector_norm(v) ^ 2 AS n FROM (SELECT ?::vector AS v OFFSET 0) q)"
"""A table of a statement: the query's vector and its squared length."""
COSINE = """CASE WHEN e.embedding <#> (SELECT v FROM q) = 0 THEN 0
  ELSE (1 + (SELECT n FROM q) - vector_norm(e.embedding - (SELECT v FROM q)) ^ 2) / 2 END"""
"""The cosine of a vector with the query's, by pgvector's norm, which is summed in float64."""
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

    def exact(self, row: Vector, allowed: Set[str] | None, k: int, /) -> SQL:
        """The k nearest by a scan of every vector, with some that may equal the last, each with its entry.

        Only numbers are sorted; the vectors of the selected rows are fetched afterwards.
        """
        closest = self.closest(len(row), allowed, k)
        return SQL(
            f"WITH {QUESTION}, {closest.text} SELECT vector_send(v.embedding), {ENTRY} FROM near t "
            "JOIN embeddings v ON v.namespace = ? AND v.mem = t.mem JOIN memories m ON m.mem = t.mem",
            (packed(row), *closest.params, self.namespace),
        )

    def closest(self, dim: int, allowed: Set[str] | None, k: int, /) -> SQL:
        """Tables of a statement: `near` (mem) has the k nearest to the vector `v` of a table `q`, as `Bm25.best`."""
        rest = restriction(allowed)
        join = "JOIN memories m ON m.mem = e.mem " if allowed is not None else ""
        scan = f"WHERE e.namespace = ? AND e.dim = ?{rest.text}"
        distance = "e.embedding <#> (SELECT v FROM q)"
        most = k + _SPARE
        return SQL(
            f"first AS MATERIALIZED (SELECT e.mem, {distance} AS d FROM embeddings e {join}{scan} "
            f"ORDER BY d LIMIT {most:d}), "
            f"edge AS MATERIALIZED (SELECT d, (SELECT count(*) = {most:d} AND max(first.d) <= l.d + {_CLOSE} "
            f"FROM first) AS tied FROM (SELECT d FROM first ORDER BY d OFFSET {max(0, k - 1):d} LIMIT 1) l), "
            f"near AS MATERIALIZED (SELECT mem FROM first WHERE (SELECT tied FROM edge) IS NOT TRUE "
            f"AND d <= COALESCE((SELECT d FROM edge), 'Infinity') + {2 * _CLOSE} UNION ALL (SELECT e.mem "
            f"FROM embeddings e JOIN memories m ON m.mem = e.mem {scan} AND (SELECT tied FROM edge) "
            f"AND {distance} <= (SELECT d FROM edge) + {_CLOSE} "
            f"ORDER BY round(({distance}) * 1e6), m.updated_at DESC NULLS LAST, m.id LIMIT {most:d}))",
            (self.namespace, dim, *rest.params) * 2,
        )

    def sample(self, dim: int, size: int, /) -> SQL:
        """Part of a statement: `candidates.baseline_of` the cosines of a fixed sample with the vector of `q`.

        The sample has the memories with the smallest md5 of their id among those with a vector.
        """
        vectors = self._sample(dim, size)
        return SQL(
            f"SELECT CASE WHEN deviation > {NO_SPREAD} THEN mean - deviation ELSE 0 END FROM "
            "(SELECT avg(cosine) AS mean, stddev_pop(cosine) AS deviation FROM "
            f"(SELECT {COSINE} AS cosine {vectors.text}) c) s",
            vectors.params,
        )

    def sample_vectors(self, dim: int, size: int, /) -> SQL:
        """The statement: rows (vector) of the sample."""
        vectors = self._sample(dim, size)
        return SQL(f"SELECT vector_send(e.embedding) {vectors.text} ORDER BY t.digest", vectors.params)

    def _sample(self, dim: int, size: int) -> SQL:
        return SQL(
            "FROM (SELECT m.mem, md5(m.id) AS digest FROM memories m WHERE m.namespace = ? AND m.live "
            # a bound LIMIT would make the planner expect a tenth of all memories, and plan every search anew
            f"AND m.status <> 'superseded' AND m.vector IS NOT NULL ORDER BY digest LIMIT {size:d}) t "
            "JOIN embeddings e ON e.namespace = ? AND e.mem = t.mem AND e.dim = ?",
            (self.namespace, self.namespace, dim),
        )

    def approximate(self, row: Vector, allowed: Set[str] | None, k: int, /) -> SQL:
        """The k nearest by the HNSW index, scanned until enough rows pass the filter; scored by full vectors."""
        found, bound = self.indexed(len(row), allowed, k)
        return SQL(
            f"WITH q AS (SELECT ?::vector AS v), {found} SELECT vector_send(v.embedding), {ENTRY} FROM near t "
            "JOIN embeddings v ON v.namespace = ? AND v.mem = t.mem JOIN memories m ON m.mem = t.mem",
            (packed(row), *bound, self.namespace),
        )

    def indexed(self, dim: int, allowed: Set[str] | None, k: int, /) -> SQL:
        """A table of a statement: `near` (mem) by the HNSW index, scanned until enough rows pass the filter."""
        rest = restriction(allowed)
        # OFFSET 0: each neighbour is tested against the filter. The planner cannot estimate a filter over expressions;
        # it expects very few rows and would compute the distance of all that pass.
        each = f"CROSS JOIN LATERAL (SELECT FROM memories m WHERE m.mem = e.mem{rest.text} OFFSET 0) m "
        join = each if allowed is not None else ""
        target = _indexed("(SELECT v FROM q)", dim, self.prefix)
        wide = 4 * k if self.prefix else k + _SPARE
        return SQL(
            f"near AS MATERIALIZED (SELECT e.mem FROM embeddings e {join}WHERE e.namespace = ? AND e.dim = {dim:d} "
            f"ORDER BY {_indexed('e.embedding', dim, self.prefix)} <=> {target} LIMIT {wide:d})",
            (*rest.params, self.namespace),
        )

    def score(self, row: Vector, ids: Sequence[str], /) -> SQL:
        """The vectors of given memories, only of those that have one."""
        return SQL(
            "SELECT vector_send(e.embedding), m.id FROM memories m JOIN embeddings e ON e.namespace = m.namespace "
            "AND e.mem = m.mem WHERE m.namespace = ? AND m.id = ANY(?::text[]) AND e.dim = ?",
            (self.namespace, list(ids), len(row)),
        )
