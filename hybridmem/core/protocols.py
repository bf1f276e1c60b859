"""Protocols of stores and indexes, and the values they exchange: views, changes, versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hybridmem.core.types import Edge, Entry, Hits, Memory

__all__ = ["Change", "Index", "Progress", "Store", "Version", "View", "WriteConflict"]

_list = list  # `Store.list` hides the builtin inside the class

Progress = Callable[[int, int | None], None]
"""Called with (done, total); total is None when unknown."""


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
        vectors: Sequence[Any] | None = None,
        progress: Progress | None = None,
        base: Sequence[Memory] | None = None,
    ) -> _list[str]:
        """Add or update (same id) memories and return their ids; empty ids are assigned.

        `supersedes` hides the named memory.
        An update keeps confidence, strength and access counts that have their default value (1.0, 0, None). With
        `base`, the memories as they were read, every field is written as given, and WriteConflict is raised when one
        has changed since.
        """
        ...

    def delete(self, ids: Sequence[str], /, *, namespace: str = "") -> int: ...
    def erase(self, ids: Sequence[str], /, *, namespace: str = "") -> int: ...
    def link(self, edges: Sequence[Edge], /, *, namespace: str = "") -> None: ...
    def unlink(self, edges: Sequence[Edge], /, *, namespace: str = "") -> int: ...
    def touch(self, ids: Sequence[str], /, *, namespace: str = "") -> None: ...
    def reinforce(self, id: str, /, *, namespace: str = "", by: float = 0.1) -> float: ...
    def decay(self, *, namespace: str = "", now: datetime | None = None) -> int: ...
    def set_vectors(self, vectors: Mapping[str, Any], /, *, namespace: str = "") -> None: ...

    # --- reading
    def get(self, ids: Sequence[str], /, *, view: View) -> _list[Memory | None]: ...
    def list(
        self, *, view: View, filter: Any = None, limit: int | None = None, after: str | None = None
    ) -> Iterator[Memory]: ...
    def ids(self, *, view: View, filter: Any = None) -> Set[str]: ...
    def count(self, *, view: View) -> int: ...
    def history(self, id: str, /, *, namespace: str = "") -> _list[Version]: ...
    def edges(self, *, view: View) -> _list[Edge]: ...
    def entries(self, *, view: View) -> _list[Entry]: ...
    def vectors(self, ids: Sequence[str], /, *, view: View) -> _list[Any]: ...
    def namespaces(self) -> _list[str]: ...
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
    def set_meta(self, key: str, value: str, /) -> None: ...
    def load_snapshot(self, index: str, /, *, namespace: str = "") -> tuple[int, bytes] | None: ...
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
    `edge` is set for edge changes only; `id` is then empty and `gone` says that the edge was removed.
    `text_changed` is False when only strength or access counts changed: a text index may skip it.
    `born` is the seq of the memory's first version (0: unknown), which orders the memories of a thread.
    """

    seq: int
    id: str
    memory: Memory | None = None
    vector: Any = None
    edge: Edge | None = None
    gone: bool = False
    text_changed: bool = True
    born: int = 0


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
