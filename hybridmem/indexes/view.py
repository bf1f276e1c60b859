"""A space: the indexes over one view of a store. It follows the store, answers each arm, and knows the entries."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple, Protocol

import numpy as np

from hybridmem.core.forks import guard
from hybridmem.core.protocols import Change, Store, View
from hybridmem.core.types import Edge, Entry, Graph, Hits
from hybridmem.errors import CorruptStoreError, EmbeddingError, StoreError
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.entries import Roster
from hybridmem.indexes.graph.index import GraphIndex, GraphSettings
from hybridmem.indexes.vector.index import VectorIndex
from hybridmem.text.analyzer import Analyzer

__all__ = ["Ask", "IndexSettings", "LocalSpace", "Space"]

log = logging.getLogger("hybridmem")
SNAPSHOT_AFTER = 2_000
"""Changes after which the indexes are written down again, so that the next open need not follow them all."""
CATCH_UP = 200
"""One change in so many is followed in less time than writing everything down again takes."""
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
        self._lock = guard(threading.RLock())
        self._seen = -1
        self._roster = Roster() if settings.graph is None else Roster(settings.graph.links_key)
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

        Text index and roster come from their snapshots, where those are whole; the graph from the roster, and the
        vectors in one go from the store. Without snapshots everything is built from the log.
        """
        if self._view.as_of is not None or self._view.superseded:
            return 0
        own_vectors = self._settings.make_vectors is not None
        if own_vectors and self._vector is not None:  # it remembers how far it has come
            heal = getattr(self._vector, "heal", None)
            if heal is not None:
                heal(self._store.last_seq())
            self._vector.apply(self._store.changes(self._vector.watermark, view=self._view, vectors=True))
        text, roster = self._saved_text(), self._saved_roster()
        if text is None:
            return 0
        self._text = text
        pieces = None if self._vector is None or own_vectors else getattr(self._store, "vector_pieces", None)
        whole = pieces is not None or self._vector is None or own_vectors
        if roster is None or not whole or (self._graph is not None and self._graph.reads_texts):
            text.apply(self._store.changes(text.watermark, view=self._view))  # from 0 on nobody tells what is gone
            return 0
        self._roster, self._saved = roster, min(text.watermark, roster.watermark)
        self._load(roster, pieces)
        return self._saved

    def _load(self, roster: Roster, pieces: Callable[..., Any] | None) -> None:
        edges = self._store.edges(view=self._view)
        for edge in edges:
            self._contradict(edge, gone=False)
        if self._graph is not None:
            self._graph.load(roster, edges)
        if self._vector is not None and pieces is not None:
            with pieces(view=self._view) as (newest, rows):
                self._vector.load(map(_columns, rows), size=len(roster), watermark=newest)
            empty = sum(entry.words == 0 for entry in roster.entries.values())
            self._tell_bare(len(roster) - len(self._vector) - empty)

    def _tell_bare(self, count: int) -> None:
        """Say so when meaning cannot find some memories: written without an embedder, or edited by hand since."""
        if count > 0 and self._vector is not None and self._view.as_of is None:
            where = f"namespace {self._view.namespace!r}"
            log.warning(
                "memories without a vector in %s: %d; only words and graph find them until reindex()", where, count
            )

    def _saved_text(self) -> BM25Index | None:
        read: BM25Index | None = self._restored("bm25", BM25Index.from_bytes)
        fresh = self._text
        same = read is not None and (read.analyzer, read.k1, read.b) == (fresh.analyzer, fresh.k1, fresh.b)
        return read if same else None

    def _saved_roster(self) -> Roster | None:
        read: Roster | None = self._restored("roster", Roster.from_bytes)
        return read if read is not None and read.links_key == self._roster.links_key else None

    def _restored(self, name: str, read: Callable[[bytes], Any]) -> Any:
        saved = self._store.load_snapshot(name, namespace=self._view.namespace)
        try:
            return None if saved is None else read(saved[1])
        except CorruptStoreError as error:
            log.warning("the saved %s is damaged and is built again: %s", name, error)
            return None

    def _follow(self, since: int) -> None:
        batch: list[Change] = []
        bare = 0
        for change in self._store.changes(since, view=self._view, vectors=self._settings.vectors):
            batch.append(change)
            bare += change.memory is not None and change.vector is None and bool(change.memory.embedded)
            if len(batch) >= BATCH:
                self._apply(batch)
                batch = []
        self._apply(batch)
        self._tell_bare(bare)
        if self._behind() >= max(SNAPSHOT_AFTER, len(self._roster) // 20):
            self.save()

    def _apply(self, batch: Sequence[Change]) -> None:
        """Entries first: an index never answers with an id whose entry is not known."""
        for change in batch:
            if change.edge is not None:
                self._contradict(change.edge, gone=change.gone)
        self._roster.put(batch)
        behind = self._text.watermark
        self._text.apply([change for change in batch if change.seq > behind and change.edge is None])
        if self._vector is not None:
            reached = self._vector.watermark
            self._vector.apply([change for change in batch if change.seq > reached])
        if self._graph is not None:
            self._graph.apply(batch)
        self._roster.drop(batch)

    def _contradict(self, edge: Edge, *, gone: bool) -> None:
        if edge.relation != "contradicts":
            return
        for a, b in ((edge.a, edge.b), (edge.b, edge.a)):
            others = self._contradicts.setdefault(a, set())
            if gone:
                others.discard(b)
            else:
                others.add(b)

    def _behind(self) -> int:
        """How many changes the next open would have to follow."""
        return self._roster.watermark - self._saved

    def save(self) -> None:
        """Write text index and roster down, unless following what is new takes hardly longer than reading them."""
        behind = self._behind()
        if self._view.as_of is not None or self._view.superseded or not behind or behind * CATCH_UP < len(self._roster):
            return
        try:
            for name, index in (("bm25", self._text), ("roster", self._roster)):
                data = index.to_bytes()
                self._store.save_snapshot(name, index.watermark, data, namespace=self._view.namespace)
        except (
            StoreError
        ) as error:  # a full disk or a read-only file: what is derived must not stop a search or a close
            log.warning("the indexes were not written down, so the next open takes longer: %s", error)
        self._saved = self._roster.watermark

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
        return list(map(self._roster.entries.get, ids))

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
        return len(self._roster)


def _columns(piece: Sequence[tuple[str, float | None, bytes]]) -> tuple[list[str], list[float], Any]:
    """Stored vectors as ids, times and rows."""
    ids, times, vectors = zip(*piece, strict=True)
    if len(set(map(len, vectors))) > 1:
        raise EmbeddingError("the stored vectors have several dimensions: embed them again with reindex()")
    rows = np.frombuffer(b"".join(vectors), "<f4").reshape(len(ids), -1)
    return list(ids), [-math.inf if when is None else when for when in times], rows
