"""Vector index of a store that keeps vectors: one byte per number in memory, exact vectors of the best rows read.

The codes of all rows give an estimate of each cosine with a bound of its error, so that only the rows that can be among
the k best are read from the store, by the numbers that it keeps vectors under, and scored exactly. Results equal those
of `VectorIndex`. The codes are saved in pieces of `PIECE` rows; a complete piece does not change, so that saving writes
only the last ones again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridmem.core import validation
from hybridmem.core.forks import guard
from hybridmem.core.protocols import Change
from hybridmem.core.types import Hits
from hybridmem.embedding.embedder import Vector
from hybridmem.errors import CorruptStoreError
from hybridmem.indexes import arrays
from hybridmem.indexes.vector.index import VectorIndex, as_question, stored_matrix, unit_matrix, unit_rows
from hybridmem.indexes.vector.matrix import (
    NEVER,
    NONE,
    Floats,
    Layer,
    RowNumbers,
    VectorUpdate,
    batch_of,
    best_hits,
    cosines,
    empty_layer,
    least_of_best,
    room_for,
)

__all__ = ["COMPACT_FROM", "CompactVectors"]

COMPACT_FROM = 4 << 20
"""A view whose float32 vectors take at least this many bytes keeps codes, and the vectors read lately."""
PIECE = 4096
CACHED = 16 << 20
"""Bytes of vectors that were read lately; 10,000 of 384 numbers fit."""
_MAGIC = b"hybridmem vector codes 6\n"

Fetch = Callable[[Sequence[int]], Mapping[int, bytes]]
"""Reads stored vectors by their numbers (see `SupportsVectorRows`)."""


class _CompactState(NamedTuple):
    """An immutable state. Buffers are longer than `n`: rows from `n` on belong to later states."""

    layer: Layer
    ids: list[str]
    updated: Floats
    seqs: npt.NDArray[np.int64]
    """The number of each row's vector in the store."""
    n: int = 0
    dead: RowNumbers = NONE


class _RecentVectors:
    """Vectors by their numbers in the store, the newest `CACHED` bytes of them."""

    def __init__(self, dim: int) -> None:
        self._lock = guard(RLock())
        self._rows = np.empty((max(1, CACHED // (4 * dim)), dim), np.float32)  # takes no memory until it is written to
        self._numbers = np.zeros(len(self._rows), np.int64)
        self._place_of: dict[int, int] = {}
        self._next = 0

    def get(self, numbers: Sequence[int]) -> tuple[npt.NDArray[np.intp], Vector]:
        """The positions of those that are not here, and a row for each number."""
        with self._lock:
            places = np.array([self._place_of.get(number, -1) for number in numbers], np.intp)
            return np.flatnonzero(places < 0), self._rows[places]

    def put(self, numbers: Sequence[int], rows: Vector) -> None:
        """Add vectors in place of the oldest ones."""
        with self._lock:
            size, count = len(self._rows), min(len(numbers), len(self._rows))
            places = (self._next + np.arange(count)) % size
            for number, place in zip(self._numbers[places].tolist(), places.tolist(), strict=True):
                if self._place_of.get(number) == place:
                    del self._place_of[number]
            self._rows[places], self._numbers[places] = rows[-count:], numbers[-count:]
            self._place_of.update(zip(numbers[-count:], places.tolist(), strict=True))
            self._next = (self._next + count) % size


class CompactVectors:
    """Exact cosine search over codes; `fetch` reads the vectors of the rows that need exact scores."""

    def __init__(self, dim: int, fetch: Fetch, /) -> None:
        self.dim = dim
        self.watermark = 0
        self._fetch = fetch
        self._lock = guard(RLock())
        self._row_of: dict[str, int] | None = {}
        self._current = _CompactState(empty_layer(dim), [], np.zeros(0), np.zeros(0, np.int64))
        self._last_allowed: tuple[frozenset[str], RowNumbers] | None = None
        self._recent = _RecentVectors(dim)
        self._tokens: list[str] = []
        """Of each saved piece the token it was written with: another process may have written other pieces since."""
        self._dirty: set[int] = set()

    @classmethod
    def of(cls, index: VectorIndex, seqs: Mapping[str, int], fetch: Fetch, /) -> CompactVectors:
        """The codes of an index in memory, with the number of each id's vector in the store."""
        snapshot = index.snapshot
        made = cls(snapshot.matrix.shape[1], fetch)
        alive = np.setdiff1d(np.arange(snapshot.n), snapshot.dead, assume_unique=True)
        for start in range(0, len(alive), PIECE):
            rows = alive[start : start + PIECE]
            ids = [snapshot.ids[row] for row in rows.tolist()]
            made._append(snapshot.matrix[rows], ids, snapshot.updated[rows], [seqs.get(id_, 0) for id_ in ids])
        made.watermark = index.watermark
        return made

    @property
    def _rows(self) -> dict[str, int]:
        """The row of each id; built on first use, because a search without a filter does not need it."""
        with self._lock:
            if self._row_of is None:
                ids = self._current.ids[: self._current.n]
                rows = dict(zip(ids, range(len(ids)), strict=True))
                for row in self._current.dead.tolist():
                    if rows.get(ids[row]) == row:  # else the id has a newer row
                        del rows[ids[row]]
                self._row_of = rows
            return self._row_of

    def share_ids(self, ids: list[str], rows: Mapping[str, int], /) -> None:
        """Use these texts and their positions instead of its own, if they are the ids of its first rows in order."""
        with self._lock:
            codes, count = self._current, len(ids)
            if not len(codes.dead) and codes.ids[:count] == ids:
                codes.ids[:count] = ids
                self._row_of = {**rows, **dict(zip(codes.ids[count : codes.n], range(count, codes.n), strict=True))}

    def __len__(self) -> int:
        return self._current.n - len(self._current.dead)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def vector_seqs(self) -> dict[str, int]:
        """The number of each id's vector in the store."""
        with self._lock:
            seqs = self._current.seqs
            return {id_: int(seqs[row]) for id_, row in self._rows.items()}

    # --- writing

    def apply(self, changes: Iterable[Change], /) -> None:
        """Apply changes in order. Readers see a whole batch or nothing of it."""
        batch, last = batch_of(changes, self.watermark)
        with self._lock:
            self._write(batch)
            self.watermark = last

    def _write(self, batch: Mapping[str, VectorUpdate]) -> None:
        new = {key: put for key, put in batch.items() if put.vector is not None}
        rows = unit_rows([put.vector for put in new.values()], list(new), self.dim)
        old = {key: self._rows[key] for key in batch if key in self._rows}
        dead = [row for key, row in old.items() if key in new or batch[key].gone]
        times = {row: batch[key].updated for key, row in old.items() if key not in new and not batch[key].gone}
        if times:
            updated = self._current.updated.copy()  # readers keep the old times
            updated[list(times)] = list(times.values())
            self._current = self._current._replace(updated=updated)
            self._dirty.update(row // PIECE for row in times)
        if dead:
            gone = np.union1d(self._current.dead, np.array(dead, np.intp))
            self._current = self._current._replace(dead=gone)
        for key in old:
            if batch[key].gone:
                del self._rows[key]
        self._append(rows, list(new), [put.updated for put in new.values()], [put.seq for put in new.values()])
        if len(self._current.dead) > max(PIECE, self._current.n // 3):
            self._compact()

    def _append(self, rows: Vector, ids: list[str], updated: Any, seqs: list[int]) -> None:
        codes = self._current
        if ids:
            end = codes.n + len(ids)
            layer = codes.layer.grow(codes.n, end).filled(rows, slice(codes.n, end))
            times = room_for(codes.updated, codes.n, end)
            times[codes.n : end] = updated
            numbers = room_for(codes.seqs, codes.n, end)
            numbers[codes.n : end] = seqs
            codes.ids.extend(ids)
            self._rows.update(zip(ids, range(codes.n, end), strict=True))
            self._dirty.update(range(codes.n // PIECE, (end - 1) // PIECE + 1))
            self._current = codes._replace(layer=layer, updated=times, seqs=numbers, n=end)
        self._last_allowed = None

    def _compact(self) -> None:
        """Remove the deleted rows; all pieces must be saved again."""
        codes = self._current
        alive = np.setdiff1d(np.arange(codes.n), codes.dead, assume_unique=True)
        layer = codes.layer
        scale = None if layer.scale is None else layer.scale[alive]
        small = layer._replace(table=layer.table[alive], scale=scale, error=layer.error[alive])
        ids = [codes.ids[row] for row in alive.tolist()]
        self._current = _CompactState(small, ids, codes.updated[alive], codes.seqs[alive], len(ids))
        self._row_of = dict(zip(ids, range(len(ids)), strict=True))
        self._tokens = []
        self.save_all()

    # --- reading

    def search(self, query: Any, /, *, k: int, allowed: AbstractSet[str] | None = None) -> Hits:
        """The k most similar ids, among `allowed` when given."""
        validation.k(k)
        codes, rows = (self._current, None) if allowed is None else self._allowed(allowed)
        if codes.n == len(codes.dead) or (rows is not None and not len(rows)):
            return Hits([], [])
        question = as_question(query, self.dim)
        places = self._candidates(codes, question, k, rows)
        found, vectors = self._read(codes.seqs[places].tolist())
        return best_hits(codes.ids, codes.updated, places[found], cosines(vectors, question), k)

    @staticmethod
    def _candidates(codes: _CompactState, question: Vector, k: int, rows: RowNumbers | None) -> RowNumbers:
        """Rows that include the k best."""
        if rows is not None and len(rows) <= k:
            return rows
        if rows is None:
            k = min(k, codes.n - len(codes.dead))
        few = rows is not None and 8 * len(rows) < codes.n
        estimate, error = codes.layer.estimate(question, codes.n, rows if few else None)
        if rows is None:
            estimate[codes.dead] = NEVER
        elif not few:
            estimate, error = estimate[rows], error[rows]
        best = np.flatnonzero(estimate + error >= least_of_best(estimate - error, k))
        kept = best if rows is None else rows[best]
        if len(kept) <= k:
            return kept
        estimate, error = codes.layer.refined(question, kept)  # without the error of the query's code
        return kept[estimate + error >= least_of_best(estimate - error, k)]

    def score(self, vector: Any, ids: Sequence[str], /) -> list[float | None]:
        """The cosine of each id, None where it has no vector."""
        found, rows = self._read(self._seqs_of(ids))
        scores: list[float | None] = [None] * len(ids)
        for place, value in zip(found, cosines(rows, as_question(vector, self.dim)).tolist(), strict=True):
            scores[place] = value
        return scores

    def vectors(self, ids: Sequence[str], /) -> list[Vector | None]:
        """The vector of each id, read from the store; None where it has none."""
        found, rows = self._read(self._seqs_of(ids))
        vectors: list[Vector | None] = [None] * len(ids)
        for place, row in zip(found, rows, strict=True):
            vectors[place] = row
        return vectors

    def _seqs_of(self, ids: Sequence[str]) -> list[int]:
        """The number of each id's vector, 0 where it has none."""
        with self._lock:
            rows, seqs = list(map(self._rows.get, ids)), self._current.seqs
        return [0 if row is None else int(seqs[row]) for row in rows]

    def _read(self, seqs: list[int]) -> tuple[list[int], Vector]:
        """The positions of the numbers whose vectors are stored, 0 and erased ones left out, and these vectors."""
        unread, rows = self._recent.get(seqs)
        places = [place for place in unread.tolist() if seqs[place]]
        stored = self._fetch([seqs[place] for place in places]) if places else {}
        read = [place for place in places if seqs[place] in stored]
        if read:
            keys = [seqs[place] for place in read]
            rows[read] = new = unit_matrix(stored_matrix([stored[key] for key in keys], keys, self.dim), keys)
            self._recent.put(keys, new)
        if len(read) == len(unread):
            return list(range(len(seqs))), rows
        found = sorted(set(range(len(seqs))).difference(unread.tolist()).union(read))
        return found, rows[found]

    def _allowed(self, allowed: AbstractSet[str]) -> tuple[_CompactState, RowNumbers]:
        with self._lock:
            if self._last_allowed is not None and self._last_allowed[0] is allowed:
                return self._current, self._last_allowed[1]
            if not isinstance(allowed, AbstractSet):
                allowed = set(validation.texts("allowed", allowed))
            if len(allowed) < len(self._rows):
                picked = [self._rows[key] for key in allowed if key in self._rows]
            else:
                picked = [row for key, row in self._rows.items() if key in allowed]
            rows = np.sort(np.array(picked, np.intp))
            if isinstance(allowed, frozenset):
                self._last_allowed = (allowed, rows)
            return self._current, rows

    # --- bytes

    def save_all(self) -> None:
        """Make the next `changed_pieces` return every piece."""
        self._dirty = set(range(-(-self._current.n // PIECE)))

    def changed_pieces(self) -> Iterator[tuple[int, bytes]]:
        """The pieces that must be saved, as (number, bytes)."""
        with self._lock:
            codes, dirty = self._current, sorted(self._dirty)
            alive = np.ones(codes.n, np.bool_)
            alive[codes.dead] = False
            for piece in dirty:
                start, end = piece * PIECE, min((piece + 1) * PIECE, codes.n)
                layer, kept = codes.layer, alive[start:end]
                table = layer.table[start:end] * kept[:, None].astype(layer.table.dtype)  # nothing of what was erased
                columns: dict[str, Any] = {"table": table.ravel(), "error": layer.error[start:end]}
                columns["scale"] = layer.scale[start:end] if layer.scale is not None else np.zeros(0, np.float32)
                columns["updated"], columns["seqs"] = codes.updated[start:end], codes.seqs[start:end]
                ids = [id_ if here else "" for id_, here in zip(codes.ids[start:end], kept.tolist(), strict=True)]
                columns |= arrays.pack_texts("ids", ids)
                token = uuid.uuid4().hex
                self._tokens[piece : piece + 1] = [token]
                yield piece, arrays.to_bytes(_MAGIC, {"token": token}, columns)
            self._dirty.clear()

    def to_bytes(self) -> bytes:
        """The head of the snapshot: it names the pieces that belong to it."""
        with self._lock:
            codes = self._current
            head = {
                "dim": self.dim,
                "rows": codes.n,
                "longest": codes.layer.longest,
                "watermark": self.watermark,
                "pieces": self._tokens,
            }
            return arrays.to_bytes(_MAGIC, head, {"dead": codes.dead})

    @classmethod
    def from_bytes(cls, data: bytes, read_piece: Callable[[int], bytes | None], fetch: Fetch, /) -> CompactVectors:
        """The index of a head and its pieces; damaged or missing ones raise CorruptStoreError."""
        head, columns = arrays.from_bytes(_MAGIC, data, what="vector snapshot")
        n, dim = head["rows"], head["dim"]
        made = cls(dim, fetch)
        layer = empty_layer(dim).grow(0, n)._replace(longest=head["longest"])
        updated, seqs, ids = room_for(np.zeros(0), 0, n), room_for(np.zeros(0, np.int64), 0, n), []
        for piece, token in enumerate(head["pieces"]):
            start, end = piece * PIECE, min((piece + 1) * PIECE, n)
            blob = read_piece(piece)
            note, part = ({}, {}) if blob is None else arrays.from_bytes(_MAGIC, blob, what="vector snapshot")
            if note.get("token") != token or len(part["error"]) != end - start or layer.scale is None:
                raise CorruptStoreError(f"vector snapshot lacks piece {piece}: rebuild it")
            layer.table[start:end] = part["table"].reshape(-1, dim)
            for column, name in ((layer.scale, "scale"), (layer.error, "error"), (updated, "updated"), (seqs, "seqs")):
                column[start:end] = part[name]
            ids += arrays.unpack_texts("ids", part)
        dead = columns["dead"].copy()
        made._current = _CompactState(layer, ids, updated, seqs, n, dead)
        made._row_of = None
        made.watermark, made._tokens = head["watermark"], head["pieces"]
        return made
