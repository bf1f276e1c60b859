"""Protocols of stores and indexes, and the values they exchange: views, changes, versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from hybridmem.core.types import Candidates, Direction, Edge, Entry, Graph, Hits, Memory

__all__ = [
    "ArmQuery",
    "Change",
    "CheckEmbedder",
    "Embed",
    "ExternalIndex",
    "Index",
    "Progress",
    "SearchView",
    "Store",
    "SupportsBM25Constants",
    "SupportsBoundedThreads",
    "SupportsExternalEdits",
    "SupportsLazyFilter",
    "SupportsPastViews",
    "SupportsServerSearch",
    "SupportsVectorLoading",
    "SupportsVectorRows",
    "Version",
    "View",
    "WriteConflict",
]

_list = list  # `Store.list` hides the builtin inside the class

Progress = Callable[[int, int | None], None]
"""Called with (done, total); total is None when unknown."""


Embed = Callable[[Sequence[Memory]], Sequence[Any]]
"""Makes the vectors of validated memories, one for each."""


CheckEmbedder = Callable[[str | None], None]
"""Called with the setting "embedder" in the transaction that writes vectors; its exception refuses the write."""


class View(NamedTuple):
    """Which memories are visible: one namespace, now or as of a time, with or without superseded memories."""

    namespace: str = ""
    as_of: float | None = None
    superseded: bool = False


class Version(NamedTuple):
    """One entry of a memory's history: its content, its time (epoch seconds), and whether it was a deletion."""

    seq: int
    at: float
    memory: Memory
    deleted: bool = False


class WriteConflict(Exception):  # noqa: N818 - a signal to retry, not an error that users see
    """Raised by `Store.put(base=…)` when a memory changed since it was read; nothing was written.

    `current` is the memory as it is now, None when it was deleted.
    """

    def __init__(self, current: Memory | None, /) -> None:
        super().__init__("the memory has changed since it was read")
        self.current = current


@runtime_checkable
class Store(Protocol):
    """The append-only log of memories. Every write gets the next `seq`; updates and deletions are new versions.

    Writes are atomic per call and durable when the call returns. All methods are safe to call from any thread.
    """

    # --- writing
    def put(
        self,
        memories: Sequence[Memory],
        /,
        *,
        namespace: str = "",
        vectors: Sequence[Any] | Embed | None = None,
        progress: Progress | None = None,
        base: Sequence[Memory] | None = None,
        unless_duplicate: bool = False,
        check_embedder: CheckEmbedder | None = None,
    ) -> _list[str]:
        """Add or update (same id) memories and return their ids; empty ids are assigned.

        With `unless_duplicate` a memory whose normalized text and thread are already stored is not written, and the
        id of the stored one is returned.

        `supersedes` hides the named memory. `vectors` has one vector (or None) for each memory, or is a function that
        makes them after the memories are validated and before a lock is taken.
        An update keeps confidence, strength and access counts that have their default value (1.0, 0, None). With
        `base`, the memories as they were read, every field is written as given, and WriteConflict is raised when one
        has changed since.
        """
        ...

    def delete(self, ids: Sequence[str], /, *, namespace: str = "") -> int: ...
    def erase(self, ids: Sequence[str], /, *, namespace: str = "") -> int: ...
    def erase_namespace(self, namespace: str, /) -> int: ...
    def duplicates(self, memories: Sequence[Memory], /, *, namespace: str = "") -> _list[str | None]:
        """For each memory the id of a stored one with the same normalized text and thread, or None."""
        ...

    def next_expiry(self, *, namespace: str | None = "") -> float | None:
        """The earliest `expires_at` of the live memories of a namespace, or (None) of all; None: none expires."""
        ...

    def expire(self, *, now: float, namespace: str = "") -> int:
        """Delete the memories whose `expires_at` has passed; return how many."""
        ...

    def expired(self, *, now: float, namespace: str = "", since: int = 0) -> _list[str]:
        """The ids of expired memories that are not erased: live, or deleted after the number `since` of the log."""
        ...

    def link(self, edges: Sequence[Edge], /, *, namespace: str = "") -> None: ...
    def unlink(self, edges: Sequence[Edge], /, *, namespace: str = "") -> int: ...
    def touch(self, ids: Sequence[str], /, *, namespace: str = "") -> None: ...
    def reinforce(self, id: str, /, *, namespace: str = "", by: float = 0.1) -> float: ...
    def decay(self, *, namespace: str = "", now: datetime | None = None) -> int: ...
    def set_vectors(
        self, vectors: Mapping[str, Any], /, *, namespace: str = "", check_embedder: CheckEmbedder | None = None
    ) -> None: ...

    # --- reading
    def get(self, ids: Sequence[str], /, *, view: View) -> _list[Memory | None]: ...
    def list(
        self, *, view: View, filter: Any = None, limit: int | None = None, after: str | None = None
    ) -> Iterator[Memory]: ...
    def ids(self, *, view: View, filter: Any = None) -> Set[str]: ...
    def count(self, *, view: View) -> int: ...
    def history(self, id: str, /, *, namespace: str = "") -> _list[Version]: ...
    def thread(self, name: str, /, *, view: View) -> _list[str]:
        """The ids of a thread in view, in reading order: by creation time, then by age."""
        ...

    def edges(self, *, view: View) -> _list[Edge]: ...
    def entries(self, *, view: View) -> _list[Entry]: ...
    def vectors(self, ids: Sequence[str], /, *, view: View) -> _list[Any]: ...
    def namespaces(self) -> _list[str]: ...
    def changed_namespaces(self, since: int, /) -> _list[str]:
        """The namespaces with a change after `since`, sorted; one whose memories are all gone is among them."""
        ...

    def last_seq(self) -> int:
        """The newest seq of the whole store. Cheap, because every search calls it."""
        ...

    def changes(self, since: int, /, *, view: View, vectors: bool = False) -> Iterator[Change]:
        """The view's changes after `since`, oldest first. From 0: the current state, one change per memory.

        `Change.memory` is None for a memory that left the view (deleted, or superseded and now hidden).
        Vectors are read only with `vectors=True`.
        """
        ...

    # --- side tables
    def get_meta(self, key: str, /) -> str | None: ...
    def set_meta(self, key: str, value: str | Callable[[str | None], str], /) -> None:
        """Store a setting. A function computes it from the stored one, while no other writer is in a transaction."""
        ...

    def load_snapshot(self, index: str, /, *, namespace: str = "") -> tuple[int, bytes] | None: ...
    def drop_snapshots(self, *, namespace: str = "") -> None: ...
    def save_snapshot(self, index: str, watermark: int, blob: bytes, /, *, namespace: str = "") -> None: ...

    # --- upkeep
    def check(self) -> _list[str]: ...
    def backup(self, path: str | Path, /) -> None: ...
    def export(self, *, namespace: str | None = None) -> Iterator[dict[str, Any]]: ...
    def restore(
        self, rows: Iterable[Mapping[str, Any]], /, *, progress: Progress | None = None, exact: bool | None = None
    ) -> int: ...
    def close(self) -> None: ...


class Change(NamedTuple):
    """One change of a view: a memory that is visible, a memory that left the view, or an edge.

    `memory` is None when the memory left the view. `vector` is its stored embedding (float32 array), if it has one.
    `edge` is set for edge changes only; `id` is then empty and `gone` says that the edge was removed. A removed edge
    without a relation stands for all edges between its ends: one of them was erased.
    `text_changed` is False when only strength or access counts changed: a text index may skip it.
    `born` is the seq of the memory's first version (0: unknown), which orders the memories of a thread.
    `derived` is what the store has derived from the text, if it has: words, cues and speaker as in `Entry`.
    `vector_seq` is the number under which the store keeps the vector (see `SupportsVectorRows`).
    """

    seq: int
    id: str
    memory: Memory | None = None
    vector: Any = None
    edge: Edge | None = None
    gone: bool = False
    text_changed: bool = True
    born: int = 0
    derived: tuple[int, int, str | None] | None = None
    vector_seq: int = 0


class Index(Protocol):
    """An index over one view of a store (one namespace, now or as of a time)."""

    watermark: int
    """The seq of the last applied change; 0 for an empty index."""

    def apply(self, changes: Iterable[Change], /) -> None:
        """Apply changes in order. Concurrent readers see all of a batch or nothing of it."""
        ...

    def search(self, query: Any, /, *, k: int, allowed: Set[str] | None = None) -> Hits:
        """The k best ids for the query (a text, or a vector for vector indexes), among `allowed` if given."""
        ...

    def __len__(self) -> int: ...


# --- search over one view


class ArmQuery(NamedTuple):
    """One query as the arms receive it: its text, its embedding if there is one, and the ids that may answer it."""

    text: str
    vector: Any = None
    allowed: Set[str] | None = None


class SearchView(Protocol):
    """The indexes over one view of a store, in this process or in a server."""

    thread_threshold: float
    """Seconds: an arm that usually takes longer runs in its own thread."""
    searches_both: bool
    """Whether `search_both` may answer both arms in one round trip."""

    def refresh(self, newest: int | None = None, /) -> None:
        """Catch up with the store: the next search sees every write acknowledged before this call.

        `newest` is the store's newest seq where the caller has just read it.
        """
        ...

    def next_expiry(self) -> float | None:
        """The earliest expiry of a memory at the last `refresh`; None: the store has to be asked."""
        ...

    def version(self) -> int:
        """A number that grows with every change that `refresh` has seen."""
        ...

    def search(self, arm: str, query: ArmQuery, /, *, k: int) -> Hits:
        """The k best hits of one arm, "bm25" or "vector"."""
        ...

    def search_both(self, query: ArmQuery, /, *, k: int) -> tuple[dict[str, Hits], dict[str, dict[str, float]]] | None:
        """Each arm's k best hits and its scores of the other arm's hits; None: ask each arm by itself."""
        ...

    def score(self, arm: str, query: ArmQuery, ids: Sequence[str], /) -> list[float | None]:
        """Raw scores of given memories by one arm; None where it cannot score one."""
        ...

    def coverage(self, query: ArmQuery, ids: Sequence[str], /) -> list[float]:
        """The share of the query's information (sum of IDF) that each memory contains."""
        ...

    def entries(self, ids: Sequence[str], /) -> list[Entry | None]:
        """The entries of these memories; None for an id that is not in the view."""
        ...

    def graph(
        self,
        allowed: Set[str] | None = None,
        /,
        *,
        threads: bool = True,
        direction: Direction | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> Graph | None:
        """A snapshot of the graph over the `allowed` memories, with or without the edges of threads; None: no graph.

        `direction` and `weights` change which way and how strongly the kinds of edges are walked.
        """
        ...

    def has_names(self) -> bool:
        """Whether any memory has a name (a title, an alias) that a text could mention."""
        ...

    def mentions(self, ids: Sequence[str], /, *, weight: float | None = None) -> Sequence[tuple[str, str, float, str]]:
        """The memories that the texts of these mention by name: (id, mentioned id, weight, name).

        `weight` replaces `GraphSettings.mentions`.
        """
        ...

    def speakers(self) -> Mapping[str, int]:
        """The speakers of the view, in lower case, with the number of their memories."""
        ...

    def complete(self, query: ArmQuery, hits: Mapping[str, Hits], /, *, seeds: int = 20, hops: int = 2) -> Candidates:
        """The pool: all hits, plus `hops` turns on either side of the best `seeds`, scored by every arm."""
        ...

    def contradictions(self, ids: Sequence[str], /) -> list[tuple[str, str]]:
        """Pairs among these memories that are joined by a `contradicts` edge."""
        ...

    def count(self) -> int:
        """The number of memories in the view."""
        ...

    def save(self) -> None:
        """Store snapshots of the indexes, so that the next open is fast."""
        ...

    def close(self) -> None:
        """Release what the indexes hold open."""
        ...


# --- optional capabilities, checked with isinstance in memory/engine.py, memory/factory.py and indexes/view.py

_S_contra = TypeVar("_S_contra", contravariant=True)


@runtime_checkable
class SupportsBM25Constants(Protocol):
    """A SearchView whose BM25 arm can be read with other constants without a rebuild."""

    def bm25_constants(self) -> tuple[float, float]:
        """The k1 and b in use."""
        ...

    def with_bm25_constants(self, *, k1: float, b: float) -> SearchView:
        """The same view, read with other constants."""
        ...


@runtime_checkable
class SupportsLazyFilter(Protocol):
    """A Store that evaluates a filter inside its searches and reads the matching ids only when they are needed."""

    def lazy_ids(self, *, view: View, filter: Any = None) -> Set[str]: ...


@runtime_checkable
class SupportsBoundedThreads(Protocol):
    """A Store with few connections: it limits how many blocking calls run at a time, and cancels abandoned ones."""

    async def in_thread(self, call: Callable[[], Any], /) -> Any: ...


@runtime_checkable
class SupportsServerSearch(Protocol[_S_contra]):
    """A Store that searches by itself; the type parameter is the type of index settings."""

    def adopt(self, settings: _S_contra, /) -> None:
        """Take over the index settings of a memory; settings that contradict the stored ones raise ConfigError."""
        ...

    def search_view(self, view: View, settings: _S_contra, /) -> SearchView: ...


@runtime_checkable
class SupportsExternalEdits(Protocol):
    """A Store whose memories are also changed by other programs, such as notes edited by hand."""

    def watch(self, callback: Callable[[], None], /) -> None:
        """Call `callback` now and whenever external changes were read."""
        ...

    def unembedded(self, *, namespace: str = "", after: str = "", limit: int = 500) -> _list[Memory]: ...


@runtime_checkable
class SupportsPastViews(Protocol):
    """A Store that knows when a view as of a time has changed, so that its indexes can be kept until then."""

    def view_version(self, *, view: View) -> Any:
        """A hashable value that changes when the view does: by writes up to its time, and by erasures."""
        ...


@runtime_checkable
class SupportsVectorLoading(Protocol):
    """A Store that reads all vectors of a view in large pieces."""

    def vector_pieces(self, *, view: View) -> AbstractContextManager[tuple[int, Iterator[_list[Any]]]]: ...


@runtime_checkable
class SupportsVectorRows(Protocol):
    """A Store that keeps each vector under a number and never changes it: numbers are read faster than ids."""

    def vector_seqs(self, *, view: View) -> dict[str, int]:
        """The number of the vector of each memory in view that has one."""
        ...

    def vector_rows(self, seqs: Sequence[int], /) -> dict[int, bytes]:
        """The little-endian float32 bytes of the vectors of these numbers; erased ones are left out."""
        ...


@runtime_checkable
class SupportsFingerprints(Protocol):
    """A Store that can tell two histories apart, for indexes that are stored elsewhere."""

    def fingerprint(self, seq: int, /) -> str | None:
        """A digest of the change with this number: when and to what; None when the log does not have it."""
        ...


@runtime_checkable
class ExternalIndex(Protocol):
    """An index with storage of its own, such as a Chroma folder."""

    def reset_if_foreign(self, fingerprint: Callable[[int], str | None], /) -> bool:
        """Empty the index when it was filled from another history (an older store was restored); True if emptied.

        `fingerprint` gives that of the change with a number in the store's log, None when there is none.
        """
        ...

    def reopen(self) -> bool:
        """Open its storage again when another process has replaced it; True if it was replaced."""
        ...

    def close(self) -> None:
        """Close its files and connections."""
        ...
