"""State of a HybridMemory and the methods that change memories: add, update, forget, erase, link, reinforce, decay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from hybridmem.core import validation
from hybridmem.core.inputs import UNSET, Content, as_memories, as_memory, given, with_changes
from hybridmem.core.protocols import Progress, Store, View, WriteConflict
from hybridmem.core.times import Time, from_epoch
from hybridmem.core.types import Edge, Memory, Status
from hybridmem.core.validation import clean, in_namespace, text_digest
from hybridmem.embedding.embedder import Embedder
from hybridmem.errors import NotFoundError
from hybridmem.fusion.recipe import Fusion
from hybridmem.memory.embeddings import check_recorded, claim
from hybridmem.memory.engine import Engine

__all__ = ["LONGEST", "MemoryWriting", "OnDuplicate"]

OnDuplicate = Literal["keep", "skip", "merge"]
_list = list  # `HybridMemory.list` hides the builtin inside the class
REINFORCEMENT = 0.1
"""How much a merged duplicate strengthens the stored memory."""

LONGEST = 1_000 * 366 * 86_400.0
"""The longest lifetime in seconds: 1,000 years."""

BATCH = 1_000
"""Memories embedded and written in one transaction; what progress has reported is on disk."""
INDEXED = 8_000
"""While memories are added, so many are indexed at a time: with fewer, segments are merged more often."""


class MemoryWriting:
    """One namespace of a store, with the engine that searches it: its state, and the methods that change memories."""

    _engine: Engine
    _namespace: str
    _recipe: Fusion
    _k: int

    @property
    def name(self) -> str:
        """The namespace of this memory."""
        return self._namespace

    @property
    def engine(self) -> Engine:
        """The engine that runs queries; evaluation and tools that need more than `search` use it."""
        return self._engine

    @property
    def store(self) -> Store:
        """The store that holds the memories."""
        return self._engine.store

    @property
    def recipe(self) -> Fusion:
        """The recipe that ranks results, without weights for arms that do not exist."""
        return self._engine.recipe_for(self._recipe)

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that search; without an embedder there is no "vector"."""
        return self._engine.arms

    @property
    def embedder(self) -> Embedder | None:
        """The embedder; None: BM25 and graph only."""
        return self._engine.embedder

    def _current(self, as_of: Time | None = None, *, superseded: bool = False) -> View:
        """The view, after expired memories have been removed from it."""
        view = validation.view_of(self._namespace, as_of, superseded=superseded)
        if view.as_of is None:
            self._engine.expiry.apply(view.namespace)
        return view

    def get(self, id: str, /, *, as_of: Time | None = None) -> Memory:
        """Return one memory, now or as of a time; NotFoundError when there is none."""
        memory = self.store.get([id], view=self._current(as_of, superseded=True))[0]
        if memory is None:
            raise NotFoundError(f"no memory {id!r} in {in_namespace(self._namespace)}")
        return memory

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
        ttl: float | timedelta | None = None,
        on_duplicate: OnDuplicate = "keep",
    ) -> str:
        """Add one memory and return its id. `content` is a text, a Memory or a dict; fields override its fields.

        `ttl` is a lifetime in seconds or a timedelta; it sets `expires_at`. `on_duplicate` applies when the namespace
        has a memory with the same normalized text and thread: "keep" both, "skip" this one, or "merge" it into the
        stored one (tags, entities and metadata are united, the strength is reinforced). "skip" and "merge" return the
        id of the stored memory.
        """
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
        return self.add_many([as_memory(content, fields)], ttl=ttl, on_duplicate=on_duplicate)[0]

    def add_many(
        self,
        contents: Iterable[Content],
        /,
        *,
        ttl: float | timedelta | None = None,
        on_duplicate: OnDuplicate = "keep",
        progress: Progress | None = None,
    ) -> _list[str]:
        """Add many memories and return their ids; 1,000 per transaction.

        From 1,000 on they are indexed while they are added, and the indexes are saved, so that the next search has
        nothing to catch up with. `progress(done, total)` is called after each transaction.

        `ttl` and `on_duplicate` as in `add`.
        """
        validation.one_of("on_duplicate", on_duplicate, ("keep", "skip", "merge"))
        lifetime = None if ttl is None else _lifetime(ttl)
        if progress is not None:
            validation.function("progress", progress, "a function of (done, total), or None")
        total = len(contents) if isinstance(contents, Sequence) else None
        ids: _list[str] = []
        batch: _list[Memory] = []
        for memory in as_memories(contents):
            expires = None if lifetime is None else from_epoch(self._engine.clock() + lifetime)
            batch.append(memory if expires is None else replace(memory, expires_at=expires))
            if len(batch) >= BATCH:
                ids += self._add(batch, on_duplicate)
                batch = []
                if len(ids) % INDEXED < BATCH:
                    self._engine.index(self._namespace)
                if progress is not None:
                    progress(len(ids), total)
        ids += self._add(batch, on_duplicate)
        if len(ids) >= BATCH:
            self._engine.index(self._namespace, save=True)
        if progress is not None:
            progress(len(ids), total)
        return ids

    def _add(self, batch: Sequence[Memory], on_duplicate: OnDuplicate) -> _list[str]:
        if on_duplicate == "keep" or not batch:
            return self._put(batch)
        self._engine.expiry.apply(self._namespace)
        stored = self.store.duplicates(batch, namespace=self._namespace)
        keys = [(text_digest(clean(memory.text)), memory.thread) for memory in batch]
        first = {key: place for place, key in reversed(_list(enumerate(keys)))}
        new = [place for place, key in enumerate(keys) if stored[place] is None and first[key] == place]
        written = self._put([batch[place] for place in new], unless_duplicate=True)
        ids = dict(zip(new, written, strict=True))
        result = [ids[first[key]] if other is None else other for key, other in zip(keys, stored, strict=True)]
        if on_duplicate == "merge":
            for place, id_ in enumerate(result):
                if place not in ids:
                    self._merge(id_, batch[place])
        return result

    def _merge(self, id: str, memory: Memory) -> None:
        """Unite tags, entities and metadata of a memory with the stored one, and reinforce it."""
        old = self.store.get([id], view=View(self._namespace, superseded=True))[0]
        while old is not None:
            changes = {
                "tags": dict.fromkeys([*old.tags, *memory.tags]),
                "entities": dict.fromkeys([*old.entities, *memory.entities]),
                "metadata": {**old.metadata, **memory.metadata},
                "strength": min(1.0, old.strength + REINFORCEMENT),
            }
            old = self._replace(old, changes, embed=False)

    def _put(
        self,
        batch: Sequence[Memory],
        *,
        base: Sequence[Memory] | None = None,
        embed: bool = True,
        unless_duplicate: bool = False,
    ) -> _list[str]:
        if not batch:
            return []
        model = self.embedder if embed else None
        return self.store.put(
            batch,
            namespace=self._namespace,
            vectors=None if model is None else partial(self._embed, model),
            base=base,
            unless_duplicate=unless_duplicate,
            check_embedder=None if model is None else partial(check_recorded, embedder=model),
        )

    def _embed(self, embedder: Embedder, batch: Sequence[Memory]) -> Sequence[Any]:
        """The vectors of memories that the store has validated."""
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

    def _replace(self, old: Memory, changes: Mapping[str, Any], *, embed: bool = True) -> Memory | None:
        """Write a memory with changes; if it changed since it was read, write nothing and return the current one."""
        try:
            self._put([with_changes(old, changes)], base=[old], embed=embed)
        except WriteConflict as conflict:
            return conflict.current
        return None

    def forget(self, *ids: str) -> int:
        """Remove memories from every search and keep them in the history; return how many there were."""
        return self.store.delete(ids, namespace=self._namespace)

    def erase(self, *ids: str, namespace: str | None = None) -> int:
        """Remove memories with all their versions and vectors permanently; return how many there were.

        With `namespace` and no ids it removes everything that was ever stored in that namespace.
        """
        name = self._namespace if namespace is None else validation.namespace(namespace)
        if namespace is None or ids:
            return self.store.erase(ids, namespace=name)
        return self.store.erase_namespace(name)

    def clear(self, namespace: str | None = None) -> int:
        """Forget every memory of a namespace (default: this one) and return how many there were."""
        name = self._namespace if namespace is None else validation.namespace(namespace)
        return self.store.delete(sorted(self.store.ids(view=View(name, superseded=True))), namespace=name)

    def sweep(self, *, erase: bool = False) -> int:
        """Remove expired memories from the store, with `erase` also from the history; return how many were removed.

        Searches ignore expired memories without it. A sweep removes their notes from a Markdown folder, and with
        `erase` their texts from the file.
        """
        validation.flag("erase", erase)
        now, name = self._engine.clock(), self._namespace
        if erase:
            return self.store.erase(self.store.expired(now=now, namespace=name), namespace=name)
        swept = self.store.load_snapshot("swept", namespace=name)  # the number of the log at the last sweep
        ids = self.store.expired(now=now, namespace=name, since=0 if swept is None else swept[0])
        if ids:
            self.store.delete(ids, namespace=name)
            self.store.save_snapshot("swept", self.store.last_seq(), b"-", namespace=name)
        return len(ids)

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


def _lifetime(ttl: float | timedelta) -> float:
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    validation.number(
        "ttl", seconds, "seconds above 0, 1,000 years at most, or a timedelta", low=0, high=LONGEST, above=True
    )
    return float(seconds)
