"""What every index can do: follow changes, search, be written down and read back."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, NamedTuple, Protocol

from hybridmem.types import Edge, Hits, Memory

__all__ = ["Change", "Index"]


class Change(NamedTuple):
    """One step of the log as an index sees it: a memory put (visible), gone (deleted or hidden), or an edge.

    `memory` is None when the memory left the view. `vector` is its stored embedding (float32 array), if it has one.
    `edge` is set for edge changes only; `id` is then empty and `gone` says that the edge was removed.
    `text_changed` is False when only vitals (strength, access) changed: a text index may skip it.
    `born` is the seq of the memory's first version (0 when not told): an update does not move it within its thread.
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
    """The seq of the last change it has applied; 0 for an empty index."""

    def apply(self, changes: Iterable[Change], /) -> None:
        """Take changes in order. Readers see all of a batch or nothing of it."""
        ...

    def search(self, query: Any, /, *, k: int, allowed: Set[str] | None = None) -> Hits:
        """The k best ids for the query (text, or a vector for vector indexes), among `allowed` when given."""
        ...

    def __len__(self) -> int: ...
