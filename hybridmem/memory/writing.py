"""Writing half of HybridMemory: add, update, forget, erase, link, reinforce, decay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hybridmem.core import validation
from hybridmem.core.inputs import UNSET, Content, as_memories, as_memory, given, with_changes
from hybridmem.core.protocols import Progress, WriteConflict
from hybridmem.core.times import Time, from_epoch
from hybridmem.core.types import Edge, Memory, Status
from hybridmem.memory.embeddings import claim
from hybridmem.memory.reading import MemoryReading

__all__ = ["MemoryWriting"]

BATCH = 1_000
"""Memories embedded and written in one transaction; what progress has reported is on disk."""


class MemoryWriting(MemoryReading):
    """The methods that change memories."""

    def add(
        self,
        content: Content,
        /,
        *,
        id: str = UNSET,
        title: str = UNSET,
        tags: Iterable[str] = UNSET,
        predicate: str = UNSET,
        subject: str = UNSET,
        source_id: str | None = UNSET,
        thread: str | None = UNSET,
        type: str = UNSET,
        entities: Iterable[str] = UNSET,
        created_at: Time | None = UNSET,
        updated_at: Time | None = UNSET,
        status: Status = UNSET,
        strength: float = UNSET,
        confidence: float = UNSET,
        access_count: int = UNSET,
        last_accessed: Time | None = UNSET,
        supersedes: str | None = UNSET,
        speaker: str = UNSET,
        event_at: Time | None = UNSET,
        expires_at: Time | None = UNSET,
        metadata: Mapping[str, Any] = UNSET,
    ) -> str:
        """Add one memory and return its id. `content` is a text, a Memory or a dict; fields override its fields."""
        fields = given(
            id=id,
            title=title,
            tags=tags,
            predicate=predicate,
            subject=subject,
            source_id=source_id,
            thread=thread,
            type=type,
            entities=entities,
            created_at=created_at,
            updated_at=updated_at,
            status=status,
            strength=strength,
            confidence=confidence,
            access_count=access_count,
            last_accessed=last_accessed,
            supersedes=supersedes,
            speaker=speaker,
            event_at=event_at,
            expires_at=expires_at,
            metadata=metadata,
        )
        return self.add_many([as_memory(content, fields)])[0]

    def add_many(self, contents: Iterable[Content], /, *, progress: Progress | None = None) -> list[str]:
        """Add many memories and return their ids; 1,000 per transaction.

        From 1,000 on they are indexed while they are added, and the indexes are saved, so that the next search has
        nothing to catch up with. `progress(done, total)` is called after each transaction.
        """
        if progress is not None:
            validation.function("progress", progress, "a function of (done, total), or None")
        total = len(contents) if isinstance(contents, Sequence) else None
        ids: list[str] = []
        batch: list[Memory] = []
        for memory in as_memories(contents):
            batch.append(memory)
            if len(batch) >= BATCH:
                ids += self._put(batch)
                batch = []
                self._engine.index(self._namespace)
                if progress is not None:
                    progress(len(ids), total)
        ids += self._put(batch)
        if len(ids) >= BATCH:
            self._engine.index(self._namespace, save=True)
        if progress is not None:
            progress(len(ids), total)
        return ids

    def _put(self, batch: Sequence[Memory], *, base: Sequence[Memory] | None = None) -> list[str]:
        if not batch:
            return []
        vectors = None if self.embedder is None else self._embed
        return self.store.put(batch, namespace=self._namespace, vectors=vectors, base=base)

    def _embed(self, batch: Sequence[Memory]) -> Sequence[Any]:
        """The vectors of memories that the store has validated."""
        embedder = self._engine.embedder
        if embedder is None:
            return [None] * len(batch)
        vectors = list(embedder.documents([memory.embedded for memory in batch]))
        claim(self.store, embedder)
        return vectors

    def update(
        self,
        id: str,
        /,
        *,
        text: str = UNSET,
        title: str = UNSET,
        tags: Iterable[str] = UNSET,
        predicate: str = UNSET,
        subject: str = UNSET,
        source_id: str | None = UNSET,
        thread: str | None = UNSET,
        type: str = UNSET,
        entities: Iterable[str] = UNSET,
        created_at: Time | None = UNSET,
        updated_at: Time | None = UNSET,
        status: Status = UNSET,
        strength: float = UNSET,
        confidence: float = UNSET,
        access_count: int = UNSET,
        last_accessed: Time | None = UNSET,
        supersedes: str | None = UNSET,
        speaker: str = UNSET,
        event_at: Time | None = UNSET,
        expires_at: Time | None = UNSET,
        metadata: Mapping[str, Any] = UNSET,
    ) -> Memory:
        """Change fields of a memory and return it; the old version stays in its history."""
        changes = given(
            text=text,
            title=title,
            tags=tags,
            predicate=predicate,
            subject=subject,
            source_id=source_id,
            thread=thread,
            type=type,
            entities=entities,
            created_at=created_at,
            updated_at=updated_at,
            status=status,
            strength=strength,
            confidence=confidence,
            access_count=access_count,
            last_accessed=last_accessed,
            supersedes=supersedes,
            speaker=speaker,
            event_at=event_at,
            expires_at=expires_at,
            metadata=metadata,
        )
        old: Memory | None = self.get(id)
        while old is not None:
            old = self._replace(old, changes)
        return self.get(id)

    def _replace(self, old: Memory, changes: Mapping[str, Any]) -> Memory | None:
        """Write a memory with changes; if it changed since it was read, write nothing and return the current one."""
        try:
            self._put([with_changes(old, changes)], base=[old])
        except WriteConflict as conflict:
            return conflict.current
        return None

    def forget(self, *ids: str) -> int:
        """Remove memories from every search and keep them in the history; return how many there were."""
        return self.store.delete(ids, namespace=self._namespace)

    def erase(self, *ids: str) -> int:
        """Remove memories with all their versions and vectors permanently; return how many there were."""
        return self.store.erase(ids, namespace=self._namespace)

    def link(self, a: str, b: str, /, relation: str = "related", weight: float = 1.0) -> None:
        """Link two memories, so that finding one activates the other; `contradicts` weakens the weaker of the two."""
        self.store.link([Edge(a, b, relation, weight)], namespace=self._namespace)

    def unlink(self, a: str, b: str, /, relation: str = "related") -> bool:
        """Remove a link; False when there was none."""
        return self.store.unlink([Edge(a, b, relation)], namespace=self._namespace) > 0

    def reinforce(self, id: str, /, by: float = 0.1) -> float:
        """Increase the strength of a memory, up to 1.0, and return it."""
        return self.store.reinforce(id, namespace=self._namespace, by=by)

    def decay(self, now: Time | None = None) -> int:
        """Multiply strengths by exp(−0.01 · days), once for each elapsed day; return how many memories changed."""
        when = None if now is None else from_epoch(validation.time("now", now))
        return self.store.decay(namespace=self._namespace, now=when)
