"""The writing half of SQLiteStore: each call is one transaction, numbered by the store's own clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from hybridmem import filters
from hybridmem.errors import ConfigError
from hybridmem.stores import codec, writes
from hybridmem.stores.base import Progress, View
from hybridmem.stores.log import Log
from hybridmem.stores.pool import Pool, Synchronous, guarded
from hybridmem.types import Edge, Memory

__all__ = ["SQLiteWriter", "cleaned"]


class SQLiteWriter:
    """One file and the calls that change it."""

    def __init__(
        self,
        path: str | Path,
        /,
        *,
        clock: Callable[[], float] = time.time,
        busy_timeout: float = 5.0,
        synchronous: Synchronous = "full",
    ) -> None:
        self.path = os.fspath(path)
        self._clock = clock
        self._pool = Pool(self.path, busy_timeout=busy_timeout, synchronous=synchronous)
        self._ids: dict[tuple[View, filters.Condition, int], frozenset[str]] = {}

    # --- writing

    @guarded
    def put(
        self,
        memories: Sequence[Memory],
        /,
        *,
        namespace: str = "",
        vectors: Sequence[Any] | None = None,
        progress: Progress | None = None,
        strict: bool = True,
    ) -> list[str]:
        """Add or update (same id) memories, all or none of them; give their ids.

        What a memory supersedes must be known, unless `strict` is off (an import that holds only a part).
        """
        _check_namespace(namespace)
        if vectors is not None and len(vectors) != len(memories):
            raise ConfigError(f"put got {len(memories)} memories but {len(vectors)} vectors: one each, or None")
        for memory in memories:  # before taking the write lock
            codec.check_memory(memory, namespace=namespace)
        if not len(memories):
            return []
        with self._writing() as log:
            ids = writes.assign_ids(memories, now=log.at)
            writes.put(log, memories, ids, namespace=namespace, vectors=vectors, progress=progress, strict=strict)
        return ids

    @guarded
    def delete(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Delete memories and their links (history keeps them); how many there were."""
        with self._writing() as log:
            return writes.delete(log, cleaned(ids), namespace=namespace)

    @guarded
    def erase(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Remove memories from the file for good, history included; how many there were."""
        with self._writing() as log:
            erased = writes.erase(log, cleaned(ids), namespace=namespace)
        self._pool.checkpoint()  # the write-ahead log must not keep a copy
        return erased

    @guarded
    def link(self, edges: Sequence[Edge], /, *, namespace: str = "") -> None:
        """Link memories of one namespace; both ends must be there."""
        with self._writing() as log:
            writes.link(log, edges, namespace=namespace)

    @guarded
    def unlink(self, edges: Sequence[Edge], /, *, namespace: str = "") -> int:
        """Remove links, whichever way round; how many there were."""
        with self._writing() as log:
            return writes.unlink(log, edges, namespace=namespace)

    @guarded
    def touch(self, ids: Sequence[str], /, *, namespace: str = "") -> None:
        """Count an access of each memory, now."""
        with self._writing() as log:
            writes.touch(log, cleaned(ids), namespace=namespace)

    @guarded
    def reinforce(self, id: str, /, *, namespace: str = "", by: float = 0.1) -> float:
        """Strengthen a memory, up to 1.0; its new strength."""
        with self._writing() as log:
            return writes.reinforce(log, id, namespace=namespace, by=by)

    @guarded
    def decay(self, *, namespace: str = "", now: datetime | None = None) -> int:
        """Weaken every memory by exp(−0.01) for each whole day since it was last weakened; how many changed."""
        with self._writing() as log:
            moment = codec.seconds(now, "now")
            return writes.decay(log, namespace=namespace, now=log.at if moment is None else moment)

    @guarded
    def set_vectors(self, vectors: Mapping[str, Any], /, *, namespace: str = "") -> None:
        """Replace the vectors of memories, as re-embedding does."""
        with self._writing() as log:
            writes.set_vectors(log, vectors, namespace=namespace)

    @contextmanager
    def _writing(self) -> Iterator[Log]:
        with self._pool.write() as conn:
            log = Log(conn, now=self._clock())
            yield log
            log.finish()


def cleaned(ids: Sequence[str], /) -> Sequence[str]:
    """Ids as they can be stored; a lone str is a mistake, not a sequence of letters."""
    if isinstance(ids, str):
        raise ConfigError(f"ids must be a sequence of str, not the single str {ids!r}")
    return [codec.clean(id_) for id_ in ids]


def _check_namespace(namespace: str) -> None:
    if not isinstance(namespace, str) or codec.clean(namespace) != namespace:
        raise ConfigError(f"a namespace must be encodable text, not {namespace!r}")
