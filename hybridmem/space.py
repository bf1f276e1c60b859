"""A space: the indexes over one view of a store. It follows the store, answers each arm, and knows the entries."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple, Protocol

import numpy as np

from hybridmem.errors import CorruptStoreError, EmbeddingError
from hybridmem.indexes.base import Change, Scanned
from hybridmem.indexes.bm25 import BM25Index
from hybridmem.indexes.graph import GraphIndex, GraphSettings
from hybridmem.indexes.vector import VectorIndex
from hybridmem.stores.base import Store, View
from hybridmem.text import Analyzer
from hybridmem.times import epoch
from hybridmem.types import Edge, Entry, Graph, Hits, Memory

__all__ = ["Ask", "IndexSettings", "LocalSpace", "Space"]

log = logging.getLogger("hybridmem")
SNAPSHOT_AFTER = 2_000
"""Changes after which the text index is written down again, so that the next open need not read them all."""
BATCH = 2_000


class IndexSettings(NamedTuple):
    """How a memory's indexes are built."""

    analyzer: Analyzer = Analyzer()
    k1: float = 1.2
    b: float = 0.75
    graph: GraphSettings | None = GraphSettings()
    vectors: bool = True
    make_vectors: Callable[[View], Any] | None = None
    """Another vector index (Chroma, say) for a view; None: exact search in memory."""
    accelerate: bool | str = "auto"
    prefix: int | None = None
    """How many leading numbers of a vector are a good embedding by themselves, where the embedder says so."""


class Ask(NamedTuple):
    """One question on its way to the arms: its text, its embedding where there is one, and what may answer it."""

    text: str
    vector: Any = None
    allowed: Set[str] | None = None


class Space(Protocol):
    """What a memory needs of the indexes over one view, wherever they live (in this process, or in a server)."""

    def refresh(self) -> None:
        """Catch up with the store: the next search sees every write acknowledged before this call."""
        ...

    def search(self, arm: str, ask: Ask, /, *, k: int) -> Hits:
        """One arm's k best: "bm25" or "vector"."""
        ...

    def score(self, arm: str, ask: Ask, ids: Sequence[str], /) -> list[float | None]:
        """One arm's raw scores of given memories; None where it has nothing to say."""
        ...

    def entries(self, ids: Sequence[str], /) -> list[Entry | None]:
        """What ranking needs to know of these memories."""
        ...

    def graph(self, allowed: Set[str] | None = None, /) -> Graph | None:
        """A still picture of the graph, in which only `allowed` memories take part; None when there is none."""
        ...

    def contradictions(self, ids: Sequence[str], /) -> list[tuple[str, str]]:
        """Pairs among these that are joined by a `contradicts` edge."""
        ...

    def count(self) -> int:
        """How many memories this view shows."""
        ...

    def save(self) -> None:
        """Write down what makes the next open fast."""
        ...


class LocalSpace:
    """The indexes of one view in this process: exact BM25, exact vectors and the graph, following the store's log."""

    def __init__(self, store: Store, view: View, settings: IndexSettings, /) -> None:
        self._store = store
        self._view = view
        self._settings = settings
        self._lock = threading.RLock()
        self._seen = -1
        self._entries: dict[str, Entry] = {}
        self._contradicts: dict[str, set[str]] = {}
        self._text = self._new_text()
        self._vector = self._new_vector()
        self._graph = GraphIndex(settings.graph) if settings.graph is not None else None
        self._saved = 0

    # --- following the store

    def refresh(self) -> None:
        """Catch up with the store."""
        newest = self._store.last_seq()
        if newest == self._seen:
            return
        if self._view.as_of is not None and self._seen >= 0:
            return  # the past does not change
        with self._lock:
            if newest == self._seen:
                return
            self._follow(self._open() if self._seen < 0 else self._seen)
            self._seen = newest

    def _open(self) -> int:
        """Read what is written down, so that only the changes after it (their seq is given) are left to follow.

        The text index comes from its snapshot, where that is whole; entries, vectors and graph from one scan that
        reads no text. Without either, everything is built from the log.
        """
        if self._view.as_of is not None or self._view.superseded:
            return 0
        if self._settings.make_vectors is not None and self._vector is not None:  # it remembers how far it has come
            heal = getattr(self._vector, "heal", None)
            if heal is not None:
                heal(self._store.last_seq())
            self._vector.apply(self._store.changes(self._vector.watermark, view=self._view, vectors=True))
        saved = self._store.load_snapshot("bm25", namespace=self._view.namespace)
        restored = None if saved is None else self._restore(saved[1])
        if restored is None:
            return 0
        scan = getattr(self._store, "scan", None)
        plain = self._settings.make_vectors is None and not (self._graph is not None and self._graph.reads_texts)
        if scan is None or not plain:
            restored.apply(self._store.changes(restored.watermark, view=self._view))
            self._text, self._saved = restored, restored.watermark
            return 0
        self._text, self._saved = restored, restored.watermark
        self._load(list(scan(view=self._view)))
        return restored.watermark

    def _load(self, rows: list[Scanned]) -> None:
        self._entries = {row.entry.id: row.entry for row in rows}
        edges = self._store.edges(view=self._view)
        for edge in edges:
            self._contradict(edge, gone=False)
        if self._graph is not None:
            self._graph.load(rows, edges)
        embedded = [row for row in rows if row.vector is not None]
        if self._vector is not None and embedded:
            size = len(embedded[0].vector or b"")
            if any(len(row.vector or b"") != size for row in embedded):
                raise EmbeddingError("the stored vectors have several dimensions: embed them again with reindex()")
            matrix = np.frombuffer(b"".join([row.vector or b"" for row in embedded]), "<f4").reshape(len(embedded), -1)
            times = [-math.inf if row.entry.updated_at is None else row.entry.updated_at for row in embedded]
            ids = [row.entry.id for row in embedded]
            self._vector.load(ids, matrix, times, watermark=max(row.seq for row in embedded))

    def _restore(self, blob: bytes) -> BM25Index | None:
        fresh = self._new_text()
        try:
            read = BM25Index.from_bytes(blob)
        except CorruptStoreError as error:
            log.warning("the saved text index is damaged and is built again: %s", error)
            return None
        same = (read.analyzer, read.k1, read.b) == (fresh.analyzer, fresh.k1, fresh.b)
        return read if same else None

    def _follow(self, since: int) -> None:
        batch: list[Change] = []
        for change in self._store.changes(since, view=self._view, vectors=self._settings.vectors):
            batch.append(change)
            if len(batch) >= BATCH:
                self._apply(batch)
                batch = []
        self._apply(batch)
        if self._text.watermark - self._saved >= SNAPSHOT_AFTER:
            self.save()

    def _apply(self, batch: Sequence[Change]) -> None:
        """Entries first: an index never answers with an id whose entry is not known."""
        for change in batch:
            if change.edge is not None:
                self._contradict(change.edge, gone=change.gone)
            elif change.memory is not None:
                self._entries[change.id] = _entry(change.memory)
        behind = self._text.watermark
        self._text.apply([change for change in batch if change.seq > behind and change.edge is None])
        if self._vector is not None:
            reached = self._vector.watermark
            self._vector.apply([change for change in batch if change.seq > reached])
        if self._graph is not None:
            self._graph.apply(batch)
        for change in batch:
            if change.memory is None and change.edge is None:
                self._entries.pop(change.id, None)

    def _contradict(self, edge: Edge, *, gone: bool) -> None:
        if edge.relation != "contradicts":
            return
        for a, b in ((edge.a, edge.b), (edge.b, edge.a)):
            others = self._contradicts.setdefault(a, set())
            if gone:
                others.discard(b)
            else:
                others.add(b)

    def save(self) -> None:
        """Write the text index down."""
        if self._view.as_of is not None or self._view.superseded or self._text.watermark == self._saved:
            return
        watermark = self._text.watermark
        self._store.save_snapshot("bm25", watermark, self._text.to_bytes(), namespace=self._view.namespace)
        self._saved = watermark

    def close(self) -> None:
        """Let go of what the vector index holds open."""
        let_go = getattr(self._vector, "close", None)
        if let_go is not None:
            let_go()

    def _new_text(self) -> BM25Index:
        s = self._settings
        return BM25Index(analyzer=s.analyzer, k1=s.k1, b=s.b)

    def _new_vector(self) -> Any:
        if not self._settings.vectors:
            return None
        make = self._settings.make_vectors
        past = self._view.as_of is not None or self._view.superseded
        return VectorIndex(prefix=self._settings.prefix) if make is None or past else make(self._view)

    # --- answering

    def search(self, arm: str, ask: Ask, /, *, k: int) -> Hits:
        """One arm's k best."""
        if arm == "bm25":
            return self._text.search(ask.text, k=k, allowed=ask.allowed)
        if self._vector is None or ask.vector is None:
            return Hits([], [])
        hits: Hits = self._vector.search(ask.vector, k=k, allowed=ask.allowed)
        return hits

    def score(self, arm: str, ask: Ask, ids: Sequence[str], /) -> list[float | None]:
        """One arm's raw scores of given memories."""
        if arm == "bm25":
            return list(self._text.score(ask.text, ids))
        if self._vector is None or ask.vector is None:
            return [None] * len(ids)
        return list(self._vector.score(ask.vector, ids))

    def coverage(self, ask: Ask, ids: Sequence[str], /) -> list[float]:
        """The share of the query's information (IDF) that each memory covers."""
        return self._text.coverage(ask.text, ids)

    def entries(self, ids: Sequence[str], /) -> list[Entry | None]:
        """What ranking needs to know of these memories."""
        return list(map(self._entries.get, ids))

    def graph(self, allowed: Set[str] | None = None, /) -> Graph | None:
        """A still picture of the graph."""
        return None if self._graph is None else self._graph.snapshot(self.entries, allowed=allowed)

    def contradictions(self, ids: Sequence[str], /) -> list[tuple[str, str]]:
        """Pairs among these that contradict each other."""
        if not self._contradicts:
            return []
        asked = set(ids)
        return [(a, b) for a in ids for b in sorted(self._contradicts.get(a, ())) if a < b and b in asked]

    def count(self) -> int:
        """How many memories this view shows."""
        return len(self._entries)


def _entry(memory: Memory) -> Entry:
    return Entry(
        memory.id,
        memory.source_id,
        memory.thread,
        epoch(memory.created_at),
        epoch(memory.updated_at),
        memory.status,
        memory.strength,
        memory.confidence,
        memory.access_count,
        epoch(memory.last_accessed),
        len(memory.text.split()),
    )
