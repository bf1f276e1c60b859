"""BM25, exact and live: every add, update and delete counts in the very next query.

    score(D, Q) = Σ over query terms of IDF(t) · f·(k1+1) / (f + k1·(1 − b + b·|D|/avgdl))
    IDF(t)      = ln(1 + (N − n + 0.5)/(n + 0.5))

N, n and avgdl are those of the moment. Postings live in immutable numpy segments, the newest rows in a small tail;
a reader works on one state and is never disturbed by a writer, who prepares the next one aside and swaps it in.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hybridmem.core import validation
from hybridmem.core.forks import guard
from hybridmem.core.protocols import Change
from hybridmem.core.types import Hits
from hybridmem.indexes.bm25 import documents as lexical
from hybridmem.indexes.bm25 import storage as packing
from hybridmem.indexes.bm25.accelerate import Accelerator
from hybridmem.indexes.bm25.documents import AnyAnalyzer, Document, Source, as_document
from hybridmem.indexes.bm25.scoring import Curve, Plan, coverage, holding, idf, order, plan
from hybridmem.indexes.bm25.state import Selection, Selections, State
from hybridmem.indexes.bm25.updates import appended, compacted, detached, tidied
from hybridmem.text.analyzer import Analyzer

__all__ = ["BM25Index"]


class BM25Index:
    """A lexical index that follows changes and can be searched at any moment, from any thread.

    k1 (1.2) says how fast repeating a term stops to help: 1.6–2.0 suits long logs. b (0.75) says how much long texts
    are held back: 0.5 for mixed lengths, 0 where lengths are capped, never 1.

    >>> index = BM25Index()
    >>> index.add("m1", "Ana moved to Lisbon")
    >>> index.search("who moved?", k=3).ids
    ['m1']
    """

    def __init__(
        self,
        analyzer: AnyAnalyzer | None = None,
        *,
        k1: float = 1.2,
        b: float = 0.75,
        weights: Any = None,
        accelerate: Literal["auto"] | bool = "auto",
    ) -> None:
        validation.bm25_constants(k1, b)
        if analyzer is not None:
            validation.function("analyzer", analyzer, "an Analyzer(…), a function from a text to terms, or None")
        self.analyzer: AnyAnalyzer = Analyzer() if analyzer is None else analyzer
        self.k1 = float(k1)
        self.b = float(b)
        self.weights = lexical.checked_weights(weights)
        self._accelerator = Accelerator(accelerate)
        self._writer = guard(threading.RLock())
        """Held by one writer at a time."""
        self._swap = guard(threading.Lock())
        """Held for a moment, while the state and the ids' rows change together."""
        self._last_curve = Curve(self.k1 + 1, self.k1 * (1 - self.b), 0.0)
        self._adopt(State.empty())

    def _adopt(self, state: State) -> None:
        self._state = state
        self._where: dict[str, int] | None = None
        self._borrowed = False
        self._selections = Selections()
        self._last_plan: tuple[str, State, Plan | None] = ("", state, None)

    # --- writing

    def add(
        self,
        id: str,
        text: str,
        *,
        title: str = "",
        tags: Sequence[str] | str = (),
        predicate: str = "",
        updated_at: datetime | float | None = None,
    ) -> None:
        """Add or replace one document; the next query sees it."""
        tags = tags if isinstance(tags, str) else " ".join(validation.texts("tags", tags))
        fields = {"text": text, "title": title, "tags": tags, "predicate": predicate}
        document = lexical.new_document(id, fields, updated_at)
        self._write({id: document}, ())

    def add_many(self, documents: Iterable[Source], /) -> None:
        """Add or replace memories, documents or (id, text) pairs; readers see all of them or none."""
        found = map(as_document, validation.listed("documents", documents, lexical.SOURCES))
        self._write({document.id: document for document in found}, ())

    def remove(self, id: str, /) -> bool:
        """Take a document out; False when there was none."""
        validation.text("id", id, "a str")
        return self._write({}, (id,)) > 0

    def remove_many(self, ids: Iterable[str], /) -> int:
        """Take documents out; how many there were."""
        return self._write({}, tuple(dict.fromkeys(validation.texts("ids", ids))))

    def apply(self, changes: Iterable[Change], /) -> None:
        """Follow the store's log. Readers see all of a batch or nothing of it."""
        puts: dict[str, Document] = {}
        gone: dict[str, None] = {}
        watermark = self.watermark
        for change in changes:
            watermark = max(watermark, change.seq)
            if change.edge is not None:
                continue
            if change.memory is None:
                puts.pop(change.id, None)
                gone[change.id] = None
            elif change.text_changed or change.id in gone or change.id not in self:
                puts[change.id] = as_document(change.memory)._replace(id=change.id)
        self._write(puts, gone, watermark=watermark)

    def clear(self) -> None:
        """Forget everything, the watermark too."""
        with self._writer, self._swap:
            self._adopt(State.empty(epoch=self._state.epoch + 1))

    def _write(self, puts: dict[str, Document], gone: Iterable[str], *, watermark: int | None = None) -> int:
        """The one way in: make the next state aside, then swap it in together with the ids' rows."""
        with self._writer:
            if self._borrowed:
                self._adopt(detached(self._state))
            state = self._state
            with self._swap:
                where = self._rows_by_id()
            lost = {name: where[name] for name in {**dict.fromkeys(gone), **puts} if name in where}
            try:
                new = appended(
                    state.without(lost.values()),
                    list(puts.values()),
                    analyzer=self.analyzer,
                    weights=self.weights,
                )
            except BaseException:  # readers never saw any of it; the next writer must not either
                self._state = replace(state, tail=state.tail.cut(state.size))
                raise
            if watermark is not None:
                new = replace(new, watermark=watermark)
            with self._swap:
                for name in lost:
                    del where[name]
                where.update(zip(puts, range(state.size, new.size), strict=True))
                self._state = new
            self._tidy()
            return len(lost)

    def _tidy(self) -> None:
        state = tidied(self._state)
        fresh = compacted(state)
        with self._swap:
            self._state = state if fresh is None else fresh
            if fresh is not None:
                self._where = None

    # --- reading

    @property
    def watermark(self) -> int:
        """The seq of the last change applied."""
        return self._state.watermark

    @watermark.setter
    def watermark(self, seq: int) -> None:
        with self._writer, self._swap:
            self._state = replace(self._state, watermark=seq)

    def __len__(self) -> int:
        return self._state.count

    def __contains__(self, id: object) -> bool:
        with self._swap:
            return id in self._rows_by_id()

    @property
    def ids(self) -> list[str]:
        """The ids of all documents, in the order in which they came."""
        state = self._state
        if state.deaths is None:
            return state.ids[: state.size]
        return [state.ids[row] for row in np.flatnonzero(state.deaths.alive[: state.size])]

    @property
    def average_length(self) -> float:
        """avgdl: the mean weighted length of the documents, stop words not counted."""
        return self._state.average

    def search(self, query: str | Sequence[str], /, *, k: int = 10, allowed: Set[str] | None = None) -> Hits:
        """The k best documents that share a term with the query, among `allowed` when given.

        Terms are joined with OR. Equal scores: the newer first, then the smaller id. A list is taken as ready terms.
        """
        lexical.check_k(k)
        state, selection = (self._state, None) if allowed is None else self._select(allowed)
        planned = self._planned(query, state)
        if planned is None:
            return Hits([], [])
        kernels = self._accelerator.kernels(state)
        alive = None if state.deaths is None else state.deaths.alive
        if selection is not None and selection.is_few(planned.ends[-1], len(planned.terms)):
            rows = selection.rows if alive is None else selection.rows[alive[selection.rows]]
            sums = kernels.look_up(planned, rows)
            rows, sums = rows[sums > 0], sums[sums > 0]
        else:
            fit = alive if selection is None else selection.fit(alive)
            rows, sums = kernels.best(planned, k=k, size=state.size, fit=fit)
        return order(rows, sums, state, k=k)

    def score(self, query: str | Sequence[str], ids: Sequence[str], /) -> list[float]:
        """The scores of the given ids, the same that `search` gives; 0 for no match or an unknown id."""
        state, found = self._rows_of(ids if type(ids) is list else validation.texts("ids", ids))
        planned = self._planned(query, state)
        if planned is None:
            return [0.0] * len(found)
        rows = np.array(found, np.int32)
        rising = rows.argsort()  # looked up in this order; an unknown id has row -1, which holds nothing
        sums = np.empty(len(rows))
        sums[rising] = self._accelerator.kernels(state).look_up(planned, rows[rising])
        scores: list[float] = sums.tolist()
        return scores

    def coverage(self, query: str | Sequence[str], ids: Sequence[str], /) -> list[float]:
        """The share of the query's information that each id's terms cover: Σ IDF of its terms / Σ IDF of all.

        A word that no document has counts as the rarest of all, so an off-topic question covers little.
        """
        state, rows = self._rows_of(ids)
        terms = lexical.query_terms(query, analyzer=self.analyzer)
        return coverage(state, list(terms), self._curve(state), rows)

    def idf(self, term: str, /) -> float:
        """ln(1 + (N − n + 0.5)/(n + 0.5)) of a term as the analyzer writes it."""
        state = self._state
        return idf(state.count, holding(state, term, self._curve(state))[0])

    def with_curve(self, *, k1: float, b: float) -> BM25Index:
        """The same documents read with other constants: it shares the postings, until one of the two is written to."""
        other = BM25Index(self.analyzer, k1=k1, b=b, weights=self.weights)
        other._accelerator = self._accelerator
        other._adopt(self._state)
        other._borrowed = True
        return other

    def _planned(self, query: str | Sequence[str], state: State) -> Plan | None:
        """The query's terms in this state; kept for the last question, whose hits are often scored right after it."""
        asked, seen, kept = self._last_plan
        if asked == query and seen is state:
            return kept
        planned = plan(state, lexical.query_terms(query, analyzer=self.analyzer), self._curve(state))
        if isinstance(query, str):
            self._last_plan = (query, state, planned)
        return planned

    def _curve(self, state: State) -> Curve:
        """The saturation at this average length; kept while that stays the same, with the tables it has made."""
        average = state.average
        slope = self.k1 * self.b / average if average else 0.0
        curve = self._last_curve
        if curve.slope != slope or len(curve.tables) > len(state.segments) + 8:  # tables of merged segments
            curve = self._last_curve = Curve(self.k1 + 1, self.k1 * (1 - self.b), slope)
        return curve

    def _rows_by_id(self) -> dict[str, int]:
        """Where each living id is. Built on first use: a loaded index that is only searched never needs it."""
        if self._where is None:
            state = self._state
            ids = state.ids[: state.size]
            if state.deaths is None:
                self._where = dict(zip(ids, range(len(ids)), strict=True))
            else:
                self._where = {ids[row]: row for row in np.flatnonzero(state.deaths.alive[: state.size]).tolist()}
        return self._where

    def _rows_of(self, ids: Sequence[str]) -> tuple[State, list[int]]:
        with self._swap:
            where = self._rows_by_id()
            return self._state, [where.get(name, -1) for name in ids]

    def _select(self, allowed: Set[str]) -> tuple[State, Selection]:
        known = self._selections.get(lexical.check_allowed(allowed))
        state = self._state  # after looking for the selection: never older than it
        if known is None or known.epoch != state.epoch:
            with self._swap:
                state = self._state
                known = Selection.of(allowed, self._rows_by_id(), state)
        else:
            known = known.extended(state)
        self._selections.keep(allowed, known)
        return state, known

    # --- keeping

    def to_bytes(self) -> bytes:
        """The whole index as checksummed bytes (no pickle), for a file or a database."""
        with self._writer:
            state = tidied(self._state, all=True)
            with self._swap:
                self._state = state
            return packing.pack(state, settings=self._settings())

    @classmethod
    def from_bytes(
        cls, data: bytes, /, *, analyzer: AnyAnalyzer | None = None, accelerate: Literal["auto"] | bool = "auto"
    ) -> BM25Index:
        """What `to_bytes` wrote. Damage is a CorruptStoreError; another analyzer than the stored one a ConfigError."""
        if not isinstance(data, bytes | bytearray | memoryview):
            validation.refuse("data", data, "the bytes that to_bytes gave")
        state, settings = packing.unpack(data)
        index = cls(
            packing.checked_analyzer(settings["analyzer"], analyzer),
            k1=settings["k1"],
            b=settings["b"],
            weights=settings["weights"],
            accelerate=accelerate,
        )
        index._adopt(state)
        return index

    def save(self, path: str | Path, /) -> None:
        """Write the index to a file, replacing an older one only when all is written."""
        packing.write_file(path, self.to_bytes())

    @classmethod
    def load(
        cls, path: str | Path, /, *, analyzer: AnyAnalyzer | None = None, accelerate: Literal["auto"] | bool = "auto"
    ) -> BM25Index:
        """Read an index that `save` wrote."""
        return cls.from_bytes(Path(path).read_bytes(), analyzer=analyzer, accelerate=accelerate)

    def _settings(self) -> dict[str, Any]:
        return {
            "analyzer": packing.analyzer_settings(self.analyzer),
            "k1": self.k1,
            "b": self.b,
            "weights": self.weights,
        }
