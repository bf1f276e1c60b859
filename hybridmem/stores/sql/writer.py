"""The writing half that stores share: each call is one transaction, whose meaning `writes` decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from hybridmem.core import validation
from hybridmem.core.protocols import Progress, View, WriteConflict
from hybridmem.core.types import Edge, Memory
from hybridmem.errors import ConfigError
from hybridmem.stores.sql import codec
from hybridmem.stores.sql import read as reads
from hybridmem.stores.sql import write as writes

__all__ = ["Writer", "cleaned"]

_EDGES = "Edge(a, b, relation, weight)"


class Writer:
    """The calls that change a store; where and how the log is written is `_writing`'s."""

    def _writing(self, namespace: str | None, /) -> AbstractContextManager[Any]:
        """A transaction with its `Log`, for one namespace or (None) for all of them."""
        raise NotImplementedError

    def _log(self, namespace: str) -> AbstractContextManager[Any]:
        return self._writing(codec.check_namespace(namespace))

    def _expect_vectors(self) -> None:
        """Called before vectors are written."""

    def put(
        self,
        memories: Sequence[Memory],
        /,
        *,
        namespace: str = "",
        vectors: Sequence[Any] | None = None,
        progress: Progress | None = None,
        strict: bool = True,
        base: Sequence[Memory] | None = None,
    ) -> list[str]:
        """Add or update (same id) memories, all or none of them; give their ids.

        What a memory supersedes must be known, unless `strict` is off (an import that holds only a part). An update
        keeps confidence and vitals that were not given (1.0, 0, None). With `base`, the memories as they stood when
        they were read, every field is taken as it is, and `WriteConflict` says that one has changed since.
        """
        codec.check_namespace(namespace)
        memories = validation.listed("memories", memories, "Memory objects")
        base = [] if base is None else validation.listed("base", base, "Memory objects, as they stood")
        if vectors is not None:
            vectors = validation.listed("vectors", vectors, "vectors, one for each memory")
            if len(vectors) != len(memories):
                raise ConfigError(f"put got {len(memories)} memories but {len(vectors)} vectors: one each, or None")
        for memory in (*memories, *base):  # before taking a lock
            codec.check_memory(memory, namespace=namespace)
        if progress is not None:
            validation.function("progress", progress, "a function of (done, total), or None")
        if not memories:
            return []
        if vectors is not None and any(vector is not None for vector in vectors):
            self._expect_vectors()
        with self._log(namespace) as log:
            ids = writes.assign_ids(memories, now=log.at)
            _check_base(log, base, namespace)
            how: dict[str, Any] = {"progress": progress, "strict": strict, "whole": bool(base)}
            writes.put(log, memories, ids, namespace=namespace, vectors=vectors, **how)
        return ids

    def delete(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Delete memories and their links (history keeps them); how many there were."""
        with self._log(namespace) as log:
            return writes.delete(log, cleaned(ids), namespace=namespace)

    def erase(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Remove memories for good, history included; how many there were."""
        with self._log(namespace) as log:
            return writes.erase(log, cleaned(ids), namespace=namespace)

    def link(self, edges: Sequence[Edge], /, *, namespace: str = "") -> None:
        """Link memories of one namespace; both ends must be there."""
        with self._log(namespace) as log:
            writes.link(log, validation.listed("edges", edges, _EDGES), namespace=namespace)

    def unlink(self, edges: Sequence[Edge], /, *, namespace: str = "") -> int:
        """Remove links, whichever way round; how many there were."""
        with self._log(namespace) as log:
            return writes.unlink(log, validation.listed("edges", edges, _EDGES), namespace=namespace)

    def touch(self, ids: Sequence[str], /, *, namespace: str = "") -> None:
        """Count an access of each memory, now."""
        with self._log(namespace) as log:
            writes.touch(log, cleaned(ids), namespace=namespace)

    def reinforce(self, id: str, /, *, namespace: str = "", by: float = 0.1) -> float:
        """Strengthen a memory, up to 1.0; its new strength."""
        with self._log(namespace) as log:
            return writes.reinforce(log, *cleaned([id]), namespace=namespace, by=by)

    def decay(self, *, namespace: str = "", now: datetime | None = None) -> int:
        """Weaken every memory by exp(−0.01) for each whole day since it was last weakened; how many changed."""
        with self._log(namespace) as log:
            moment = codec.seconds(now, "now")
            return writes.decay(log, namespace=namespace, now=log.at if moment is None else moment)

    def set_vectors(self, vectors: Mapping[str, Any], /, *, namespace: str = "") -> None:
        """Replace the vectors of memories, as re-embedding does."""
        if not isinstance(vectors, Mapping):
            validation.refuse("vectors", vectors, "a mapping from ids to vectors")
        for id_ in vectors:
            validation.text("id", id_, "a str")
        self._expect_vectors()
        with self._log(namespace) as log:
            writes.set_vectors(log, vectors, namespace=namespace)


def _check_base(log: Any, base: Sequence[Memory], namespace: str) -> None:
    for old in base:
        now = reads.get(log.conn, View(namespace, superseded=True), [old.id]).get(old.id)
        if now != old:
            raise WriteConflict(now)


def cleaned(ids: Sequence[str], /) -> Sequence[str]:
    """Ids as they can be stored; a lone str is a mistake, not a sequence of letters."""
    if type(ids) is not list:
        ids = validation.listed("ids", ids, "str")
    try:
        return [codec.clean(id_) for id_ in ids]
    except (TypeError, AttributeError):
        for id_ in ids:
            validation.text("id", id_, "a str")
        raise
