"""All indexes over one view of a store: BM25, vectors, graph and entries, kept up to date with the store's log."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from hybridmem.core.forks import guard
from hybridmem.core.protocols import (
    ArmQuery,
    Change,
    ExternalIndex,
    Store,
    SupportsFingerprints,
    SupportsVectorLoading,
    SupportsVectorRows,
    View,
)
from hybridmem.core.types import Candidates, Direction, Edge, Entry, Graph, Hits
from hybridmem.errors import CorruptStoreError, EmbeddingError, StoreError
from hybridmem.indexes.bm25.documents import Document, as_document
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.candidates import SAMPLE, NamesRead, baseline_of, candidates
from hybridmem.indexes.entries import Entries, TurnDocument
from hybridmem.indexes.graph.index import GraphIndex, GraphSettings
from hybridmem.indexes.graph.names import (
    Names,
    name_information,
    shared_names,
)
from hybridmem.indexes.vector.compact import COMPACT_FROM, CompactVectors
from hybridmem.indexes.vector.index import VectorIndex, as_question
from hybridmem.indexes.vector.matrix import kernel
from hybridmem.text.analyzer import Analyzer
from hybridmem.text.conversation import question_sentences

__all__ = ["IndexSettings", "LocalView"]

log = logging.getLogger("hybridmem")
SNAPSHOT_AFTER = 2_000
"""After this many changes the indexes are saved again, so that the next open does not have to replay them."""
REPLAY_RATIO = 200
"""Replaying fewer than 1 change per this many memories takes less time than saving the indexes again."""
SAVE_PAUSE = 50.0
"""While memories are added, the indexes are saved again after this many times the duration of the last save."""
BATCH = 8_000
_LOOKS = 3


class IndexSettings(NamedTuple):
    """How a memory's indexes are built."""

    analyzer: Analyzer = Analyzer()
    k1: float = 1.2
    b: float | None = None
    """None: adapted to the mean length of the texts (see `BM25Index`)."""
    graph: GraphSettings | None = GraphSettings()
    vectors: bool = True
    make_vectors: Callable[[View], Any] | None = None
    """Creates another vector index (for example Chroma) for a view; None: exact search in memory."""
    prefix: int | None = None
    """Matryoshka prefix: this many leading numbers of a vector are an embedding of their own; None: unknown."""


@dataclass(slots=True)
class _Derived:
    """What searches compute once for each state of a view."""

    applied: int
    """The seq of the state."""
    information: dict[str, float] = field(default_factory=dict)
    """The IDF of the rarest word of each name."""
    idf: dict[str, float] = field(default_factory=dict)
    """The IDF of each term of a name: names share words."""
    speakers: dict[str, int] | None = None
    sample: Any = None
    """The vectors of the sample that the baseline is computed from; None: there are none."""
    sampled: bool = False


class LocalView:
    """The indexes of one view in this process: exact BM25, exact vectors and the graph."""

    thread_threshold = 0.01
    """Seconds: an arm that usually takes longer runs in its own thread."""
    searches_both = False

    def __init__(self, store: Store, view: View, settings: IndexSettings, /) -> None:
        self._store = store
        self._view = view
        self._settings = settings
        self._lock = guard(threading.RLock())
        self._applied = -1
        self._entries = Entries() if settings.graph is None else Entries(settings.graph.links_key)
        self._contradicts: dict[str, set[str]] = {}
        self._linked = False
        self._names = Names() if settings.graph is not None and settings.graph.mentions else None
        self.bm25 = self._new_bm25()
        self._vector = self._new_vector()
        self._graph: GraphIndex | None = None
        self._saved = 0
        self._next_save = 0.0
        self._last_derived = _Derived(self._applied)

    # --- updating

    def refresh(self, newest: int | None = None, /) -> None:
        """Catch up with the store, whose newest seq is `newest` where the caller has just read it."""
        newest = self._store.last_seq() if newest is None else newest
        if newest == self._applied:
            return
        if self._view.as_of is not None and self._applied >= 0:
            return  # a view of the past never changes
        with self._lock:
            if newest == self._applied:
                return
            first = self._applied < 0
            loaded = self._open() if first else 0
            changed = self._catch_up(max(loaded, self._applied))
            if first and not loaded:
                self._advance(newest)
            self._warn_without_vector(self._count_without_vector() if loaded else changed)
            self._applied = max(self._applied, newest)  # another thread may have seen more

    def _advance(self, newest: int) -> None:
        """Count the deletions up to `newest` as applied, which a build from the log does not read."""
        for index in (self._entries, self.bm25, self._names):
            if index is not None:
                index.watermark = max(index.watermark, newest)
        if isinstance(self._vector, VectorIndex | CompactVectors):
            self._vector.watermark = max(self._vector.watermark, newest)

    def next_expiry(self) -> float | None:
        """None: the store has to be asked."""
        return None

    def version(self) -> int:
        """The number of the newest change of the store that was seen."""
        return self._applied

    def _open(self) -> int:
        """Load the saved snapshots; return the seq after which changes must still be applied.

        The text index and the entries come from their snapshots, the graph from the entries, and the vectors are
        read from the store in one pass. Without valid snapshots everything is built from the log.
        """
        if self._view.as_of is not None or self._view.superseded:
            return 0
        own_vectors = self._settings.make_vectors is not None
        if own_vectors and self._vector is not None:
            self._follow_store()
        read_vectors = self._vector is not None and not own_vectors
        bulk = self._store if isinstance(self._store, SupportsVectorLoading) and read_vectors else None
        with ThreadPoolExecutor(1) as pool:  # reading releases the GIL: a second core reads the vector codes
            pending = None if bulk is None or kernel() is None else pool.submit(self._saved_vectors)
            text, entries = self._saved_bm25(), self._saved_entries()
            names: Names | None = None if self._names is None else self._restored("names", Names.from_bytes)
            codes = None if pending is None else pending.result()
        if text is None or entries is None or text.watermark < entries.watermark:
            return 0
        if self._names is not None:
            if names is None or names.watermark < entries.watermark:
                return 0
            self._names = names
        self.bm25, self._entries, self._saved = text, entries, entries.watermark
        ids, rows = entries.ids(), entries.rows()
        text.share_ids(ids, rows)
        if codes is not None:
            codes.share_ids(ids, rows)
            self._vector, bulk = codes, None
        self._load(entries, bulk)
        return self._saved

    def _follow_store(self) -> None:
        """Bring a vector index with storage and a watermark of its own up to date."""
        if isinstance(self._vector, ExternalIndex) and isinstance(self._store, SupportsFingerprints):
            self._vector.reset_if_foreign(self._store.fingerprint)
        self._vector.apply(self._store.changes(self._vector.watermark, view=self._view, vectors=True))

    def _is_refilled(self) -> bool:
        """Whether another process had emptied the storage of the vector index; it is then filled again."""
        with self._lock:
            if not isinstance(self._vector, ExternalIndex) or not self._vector.reopen():
                return False
            self._follow_store()
            return True

    def _saved_vectors(self) -> CompactVectors | None:
        """The vector codes of the snapshot, with the changes since; None when there are none, or they do not fit."""
        store = self._store
        if not isinstance(store, SupportsVectorRows):
            return None
        fetch = store.vector_rows

        def read(head: bytes) -> CompactVectors:
            return CompactVectors.from_bytes(head, self._vector_piece, fetch)

        codes: CompactVectors | None = self._restored("vectors", read)
        try:
            if codes is not None:
                codes.apply(self._store.changes(codes.watermark, view=self._view, vectors=True))
        except EmbeddingError:  # embedded again with another dimension
            return None
        return codes

    def _vector_piece(self, piece: int) -> bytes | None:
        saved = self._store.load_snapshot(f"vectors/{piece}", namespace=self._view.namespace)
        return None if saved is None else saved[1]

    def _load(self, entries: Entries, bulk: SupportsVectorLoading | None) -> None:
        for edge in self._all_edges():
            self._set_contradiction(edge, removed=False)
        if self._vector is None or self._settings.make_vectors is not None:
            return
        if bulk is not None:
            with bulk.vector_pieces(view=self._view) as (newest, rows):
                self._vector.load(map(_columns, rows), size=len(entries), watermark=newest)
        elif not isinstance(self._vector, CompactVectors):
            self._vector.apply(self._store.changes(0, view=self._view, vectors=True))

    def _count_without_vector(self) -> int:
        """The memories without a vector, after the changes since the snapshots: a snapshot may have forgotten ones."""
        if self._vector is None or self._settings.make_vectors is not None:
            return 0
        return len(self._entries) - len(self._vector) - self._entries.count_empty()

    def _warn_without_vector(self, count: int) -> None:
        """Warn about memories that vector search cannot find: stored without an embedder, or edited by hand since."""
        if count > 0 and self._vector is not None and self._view.as_of is None:
            where = f"namespace {self._view.namespace!r}"
            log.warning(
                "memories without a vector in %s: %d; vector search cannot find them until reindex()", where, count
            )

    def _saved_bm25(self) -> BM25Index | None:
        read: BM25Index | None = self._restored("bm25", BM25Index.from_bytes)
        fresh = self.bm25
        same = read is not None and (read.analyzer, read.k1, read.b) == (fresh.analyzer, fresh.k1, fresh.b)
        return read if same else None

    def _saved_entries(self) -> Entries | None:
        read: Entries | None = self._restored("entries", Entries.from_bytes)
        return read if read is not None and read.links_key == self._entries.links_key else None

    def _restored(self, name: str, read: Callable[[bytes], Any]) -> Any:
        saved = self._store.load_snapshot(name, namespace=self._view.namespace)
        try:
            return None if saved is None else read(saved[1])
        except CorruptStoreError as error:
            log.warning("the saved %s index cannot be read and will be rebuilt: %s", name, error)
            return None

    def _catch_up(self, since: int) -> int:
        """Apply the changes since then; return how many of them have a text and no vector."""
        batch: list[Change] = []
        without = 0
        for change in self._store.changes(since, view=self._view, vectors=self._settings.vectors):
            batch.append(change)
            without += change.memory is not None and change.vector is None and bool(change.memory.embedded)
            if len(batch) >= BATCH:
                self._apply(batch)
                batch = []
        self._apply(batch)
        self._compact_vectors()
        if self._unsaved() >= max(SNAPSHOT_AFTER, len(self._entries) // 20) and monotonic() >= self._next_save:
            self.save()
        return without

    def _compact_vectors(self) -> None:
        """Keep codes instead of the vectors of a large view; exact vectors are then read from the store."""
        store, now = self._store, self._view.as_of is None and not self._view.superseded
        if not (isinstance(self._vector, VectorIndex) and isinstance(store, SupportsVectorRows) and now):
            return
        if len(self._vector) * (self._vector.dim or 0) * 4 >= COMPACT_FROM and kernel() is not None:
            self._vector = CompactVectors.of(self._vector, store.vector_seqs(view=self._view), store.vector_rows)
            self._saved = 0  # also after a snapshot that could not be read: the next open must find the codes

    def _apply(self, batch: Sequence[Change]) -> None:
        """Update the entries first: every id that an index returns must have an entry."""
        if not batch:
            return
        for change in batch:
            if change.edge is not None:
                self._set_contradiction(change.edge, removed=change.gone)
        turns, gone = self._entries.apply(batch, since=self.bm25.watermark)
        watermark = max(self.bm25.watermark, self._entries.watermark)
        self.bm25.write(self._documents(turns, batch), gone, watermark=watermark)
        if self._vector is not None:
            indexed = self._vector.watermark
            try:
                self._vector.apply([change for change in batch if change.seq > indexed])
            except StoreError:
                if not self._is_refilled():
                    raise
        if self._graph is not None:
            self._graph.apply(batch)
        if self._names is not None:
            self._names.apply(batch)
        self._entries.forget(gone)

    def _documents(self, turns: Sequence[TurnDocument], batch: Sequence[Change]) -> Iterator[Document]:
        """The BM25 documents of these turns; texts that are not in the batch are read from the store."""
        memories = {change.id: change.memory for change in batch if change.memory is not None}
        wanted = dict.fromkeys(id_ for turn in turns for id_ in (turn.id, turn.previous) if id_ not in memories)
        wanted.pop(None, None)
        ids = [id_ for id_ in wanted if id_ is not None]
        if ids:
            found = self._store.get(ids, view=self._view)
            memories |= {id_: memory for id_, memory in zip(ids, found, strict=True) if memory is not None}
        for turn in turns:
            memory = memories.get(turn.id)
            if memory is None:  # it was deleted since: that change comes later
                continue
            previous = memories.get(turn.previous) if turn.previous is not None else None
            document = as_document(memory)
            if turn.halved or previous is not None:
                document = document._replace(
                    asked=question_sentences(memory.text) if turn.halved else "",
                    previous="" if previous is None else question_sentences(previous.text),
                )
            yield document

    def _set_contradiction(self, edge: Edge, *, removed: bool) -> None:
        self._linked = True
        if edge.relation != "contradicts" and not (removed and not edge.relation):
            return
        for a, b in ((edge.a, edge.b), (edge.b, edge.a)):
            others = self._contradicts.setdefault(a, set())
            if removed:
                others.discard(b)
            else:
                others.add(b)

    def _unsaved(self) -> int:
        """The number of changes that the next open would have to replay."""
        return self._entries.watermark - self._saved

    def save(self) -> None:
        """Save the text index and the entries, unless replaying the unsaved changes is cheaper."""
        unsaved = self._unsaved()
        if (
            self._view.as_of is not None
            or self._view.superseded
            or not unsaved
            or unsaved * REPLAY_RATIO < len(self._entries)
        ):
            return
        start = monotonic()
        try:
            for name, index in (("bm25", self.bm25), ("names", self._names), ("entries", self._entries)):
                if index is None:
                    continue
                data = index.to_bytes()
                self._store.save_snapshot(name, index.watermark, data, namespace=self._view.namespace)
            if isinstance(self._vector, CompactVectors):
                self._save_vectors(self._vector)
        except StoreError as error:  # a full disk or a read-only file must not fail a search or a close
            log.warning("the indexes could not be saved, so the next open takes longer: %s", error)
        self._saved = self._entries.watermark
        self._next_save = monotonic() + SAVE_PAUSE * (monotonic() - start)

    def _save_vectors(self, codes: CompactVectors) -> None:
        """Save the pieces that changed, and then the head that refers to them."""
        namespace, watermark = self._view.namespace, codes.watermark
        if self._store.load_snapshot("vectors", namespace=namespace) is None:  # none yet, or erased
            codes.save_all()
        for piece, data in codes.changed_pieces():
            self._store.save_snapshot(f"vectors/{piece}", watermark, data, namespace=namespace)
        self._store.save_snapshot("vectors", watermark, codes.to_bytes(), namespace=namespace)

    def problems(self) -> list[str]:
        """The saved indexes that differ from ones that are built from the log, one sentence each."""
        store, settings = self._store, self._settings._replace(make_vectors=None)
        if store.load_snapshot("entries", namespace=self._view.namespace) is None:
            return []
        for _ in range(_LOOKS):  # again while somebody writes
            newest = store.last_seq()
            saved = LocalView(store, self._view, settings).contents(saved=True)
            built = LocalView(store, self._view, settings).contents(saved=False)
            if store.last_seq() == newest:
                where = f"of namespace {self._view.namespace!r} differs from the log: call reindex()"
                wrong = [name for name in built if name in saved and saved[name] != built[name]]
                return [f"the saved index {name!r} {where}" for name in wrong]
        return []

    def contents(self, *, saved: bool) -> dict[str, Any]:
        """What new indexes hold, read from the snapshots or built from the log alone."""
        self._next_save = math.inf
        self._catch_up(self._open() if saved else 0)
        ids = sorted(self._entries.ids())
        held = {"bm25": self.bm25.digest(), "entries": (ids, self._entries.get(ids), self._entries.extras)}
        if self._names is not None:
            held["names"] = self._names.given()
        if isinstance(self._vector, CompactVectors):
            held["vectors"] = self._vector.vector_seqs()
        return held

    def close(self) -> None:
        """Close the vector index where it holds files or connections."""
        if isinstance(self._vector, ExternalIndex):
            self._vector.close()

    def bm25_constants(self) -> tuple[float, float]:
        """The k1 and b in use; b depends on the mean length unless it was set."""
        return self.bm25.k1, self.bm25.effective_b

    def with_bm25_constants(self, *, k1: float, b: float) -> LocalView:
        """The same view with other constants, for reading only: it shares all indexes."""
        view = copy(self)
        view.bm25 = self.bm25.with_curve(k1=k1, b=b)
        return view

    def _new_bm25(self) -> BM25Index:
        s = self._settings
        return BM25Index(analyzer=s.analyzer, k1=s.k1, b=s.b)

    def _new_vector(self) -> Any:
        if not self._settings.vectors:
            return None
        make = self._settings.make_vectors
        past = self._view.as_of is not None or self._view.superseded
        return VectorIndex(prefix=self._settings.prefix) if make is None or past else make(self._view)

    # --- searching

    def search(self, arm: str, query: ArmQuery, /, *, k: int) -> Hits:
        """One arm's k best."""
        if arm == "bm25":
            return self.bm25.search(query.text, k=k, allowed=query.allowed)
        if self._vector is None or query.vector is None:
            return Hits([], [])
        hits: Hits
        try:
            hits = self._vector.search(query.vector, k=k, allowed=query.allowed)
        except StoreError:
            if not self._is_refilled():
                raise
            hits = self._vector.search(query.vector, k=k, allowed=query.allowed)
        return hits

    def search_both(self, _query: ArmQuery, /, *, k: int) -> None:
        """None: the arms are searched at the same time, one by one."""

    def score(self, arm: str, query: ArmQuery, ids: Sequence[str], /) -> list[float | None]:
        """One arm's raw scores of given memories."""
        if arm == "bm25":
            return list(self.bm25.score(query.text, ids))
        if self._vector is None or query.vector is None:
            return [None] * len(ids)
        return list(self._vector.score(query.vector, ids))

    def coverage(self, query: ArmQuery, ids: Sequence[str], /) -> list[float]:
        """The share of the query's information (IDF) that each memory covers."""
        return self.bm25.coverage(query.text, ids)

    def entries(self, ids: Sequence[str], /) -> list[Entry | None]:
        """The fields of these memories that ranking uses."""
        return self._entries.get(ids)

    def speakers(self) -> dict[str, int]:
        """The speakers of the view, in lower case, with the number of their memories."""
        derived = self._derived()
        if derived.speakers is None:
            derived.speakers = self._entries.speakers()
        return derived.speakers

    def _derived(self) -> _Derived:
        """What was computed from the present state of the view."""
        if self._last_derived.applied != self._applied:
            self._last_derived = _Derived(self._applied)
        return self._last_derived

    def complete(self, query: ArmQuery, hits: Mapping[str, Hits], /, *, seeds: int = 20, hops: int = 2) -> Candidates:
        """The pool: all hits, plus `hops` turns on either side of the best `seeds`, scored by every arm."""
        return candidates(
            self.bm25,
            self._vector,
            self._entries,
            query,
            hits,
            baseline=lambda: self._baseline(query.vector),
            seeds=seeds,
            hops=hops,
            read_names=self._read_names if self.has_names() else None,
        )

    def _baseline(self, vector: Any) -> float:
        """The baseline of cosines, over a sample that is the same in every process and store."""
        derived = self._derived()
        if not derived.sampled:
            index = self._vector
            found = [row for row in index.vectors(self._entries.sample(SAMPLE)) if row is not None]
            if len(found) < min(SAMPLE, len(index)):  # memories without a vector are left out of the sample
                every = index.vectors(self._entries.sample(len(self._entries)))
                found = [row for row in every if row is not None][:SAMPLE]
            derived.sample, derived.sampled = np.stack(found).astype(np.float64) if found else None, True
        rows = derived.sample
        return 0.0 if rows is None else baseline_of(rows @ as_question(vector, rows.shape[1]))

    def has_names(self) -> bool:
        """Whether any memory has a name that a text could mention."""
        return bool(self._names)

    def mentions(self, ids: Sequence[str], /, *, weight: float | None = None) -> list[tuple[str, str, float, str]]:
        """The memories that the texts of these mention by name: (id, mentioned id, weight, name)."""
        found = self._links(ids)
        weights = self._weigh({name for _, _, name, _ in found}, weight)
        return [(source, target, weights[name] / count, name) for source, target, name, count in found]

    def _links(self, ids: Sequence[str]) -> list[tuple[str, str, str, int]]:
        """The memories that the texts of these mention: (id, mentioned id, name, number of memories of that name)."""
        names, graph = self._names, self._settings.graph
        if not names or graph is None:
            return []
        unread = [id_ for id_ in ids if not names.has_read(id_)]
        memories = dict(zip(unread, self._store.get(unread, view=self._view), strict=True)) if unread else {}
        links: list[tuple[str, str, str, int]] = []
        for id_ in ids:
            memory = memories.get(id_)
            links += [
                (id_, *mention)
                for mention in names.mentions(id_, None if memory is None else memory.text)
                if mention.shared <= graph.max_fanout
            ]
        return links

    def _read_names(self, query: str, ids: Sequence[str]) -> NamesRead:
        """The names in the query and in the texts of these memories."""
        names, graph = self._names, self._settings.graph
        if names is None or graph is None:
            return NamesRead((), {}, self._weigh)
        asked = [(None, *mention) for mention in names.mentions("", query) if mention.shared <= graph.max_fanout]
        links = [*asked, *self._links(ids)]
        shared = shared_names(query, [(id_, names.spotted(id_)) for id_ in ids if names.has_name(id_)])
        return NamesRead(links, shared, self._weigh)

    def _weigh(self, names: Set[str], weight: float | None = None) -> dict[str, float]:
        """The weights of names of one memory."""
        graph = self._settings.graph
        factor = weight if weight is not None else 0.0 if graph is None else graph.mentions
        return {name: factor * self._information(name) for name in names}

    def _information(self, name: str) -> float:
        derived = self._derived()
        found = derived.information.get(name)
        if found is None:
            terms = chain.from_iterable(map(self._settings.analyzer, name.split()))  # read up to a rare one
            idf = partial(self._idf, derived.idf)
            found = derived.information[name] = name_information(terms, idf, len(self.bm25))
        return found

    def _idf(self, known: dict[str, float], term: str) -> float:
        found = known.get(term)
        if found is None:
            found = known[term] = self.bm25.idf(term)
        return found

    def graph(
        self,
        allowed: Set[str] | None = None,
        /,
        *,
        threads: bool = True,
        direction: Direction | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> Graph | None:
        """A snapshot of the graph, which is built on first use; None when it has no edges without those of threads."""
        settings = self._settings.graph
        if settings is None or not (threads or self._linked or self._entries.extras or _reads_texts(settings)):
            return None
        if self._graph is None:
            with self._lock:
                self._graph = self._graph or self._new_graph(settings)
        snapshot = self._graph.snapshot(self.entries, allowed=allowed).walked(direction, weights)
        return snapshot if threads else snapshot.without_threads()

    def _new_graph(self, settings: GraphSettings) -> GraphIndex:
        graph = GraphIndex(settings)
        if graph.reads_texts:
            graph.apply(self._store.changes(0, view=self._view))
        else:
            graph.load(self._entries, self._all_edges())
        return graph

    def _all_edges(self) -> Sequence[Edge]:
        """The edges of the view, also those of superseded memories, which may become active again."""
        return self._store.edges(view=self._view._replace(superseded=True))

    def contradictions(self, ids: Sequence[str], /) -> list[tuple[str, str]]:
        """Pairs among these that contradict each other."""
        if not self._contradicts:
            return []
        wanted = set(ids)
        return [(a, b) for a in ids for b in sorted(self._contradicts.get(a, ())) if a < b and b in wanted]

    def count(self) -> int:
        """The number of memories in this view."""
        return len(self._entries)


def _reads_texts(settings: GraphSettings) -> bool:
    """Whether entities are read from texts, so that any memory may have edges."""
    return settings.entities not in ("own", None)


def _columns(piece: Sequence[tuple[str, float | None, bytes]]) -> tuple[list[str], list[float], Any]:
    """Stored vectors as ids, times and a matrix."""
    ids, times, vectors = zip(*piece, strict=True)
    if len(set(map(len, vectors))) > 1:
        raise EmbeddingError("the stored vectors have several dimensions: embed them again with reindex()")
    rows = np.frombuffer(b"".join(vectors), "<f4").reshape(len(ids), -1)
    return list(ids), [-math.inf if when is None else when for when in times], rows
