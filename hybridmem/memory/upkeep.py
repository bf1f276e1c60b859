"""What keeps a memory searchable: the recorded embedder, embedding again, and the removal of expired memories."""

from __future__ import annotations

import json
import logging
import math
import threading
import uuid
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from hybridmem.core.forks import guard
from hybridmem.core.protocols import Progress, Store, SupportsExternalEdits, View
from hybridmem.core.times import epoch
from hybridmem.core.types import Memory
from hybridmem.embedding.embedder import Embedder, check_same
from hybridmem.errors import EmbeddingError, StoreError

__all__ = ["Expiry", "check_recorded", "claim", "embed_again", "has_expired", "keep_embedded", "record", "recorded"]

log = logging.getLogger("hybridmem")
BATCH = 1_000


def recorded(store: Store, /) -> dict[str, Any] | None:
    """The recorded embedder: its name and dimension, and whether re-embedding was interrupted; None: none yet."""
    text = store.get_meta("embedder")
    return None if text is None else dict(json.loads(text))


def record(store: Store, embedder: Embedder, /, *, unfinished: bool = False, expect: str | None = None) -> str:
    """Record the embedder of the stored vectors, and return the record.

    The record of an `unfinished` re-embedding is unique. With `expect`, another record is left as it is: a later
    re-embedding has begun, and EmbeddingError is raised.
    """
    now: dict[str, Any] = {"name": embedder.name, "dim": embedder.dim}
    text = json.dumps({**now, "unfinished": uuid.uuid4().hex} if unfinished else now)
    if (unfinished or recorded(store) != now) and not store.set_meta("embedder", text, expect=expect):
        raise EmbeddingError("another reindex() of this store has begun since: its embedder is recorded")
    return text


def check_recorded(store: Store, embedder: Embedder | None, /) -> None:
    """Raise EmbeddingError when another process has re-embedded the store with another embedder."""
    stored = recorded(store)
    if stored is not None and embedder is not None:
        check_same(stored["name"], stored["dim"], embedder)


def claim(store: Store, embedder: Embedder, /) -> None:
    """Before vectors are written: record the embedder, or raise EmbeddingError if another one is recorded.

    The dimension of a plain function is unknown when a memory is opened; here it is known.
    """
    stored = recorded(store)
    if stored is None:
        record(store, embedder)
    else:
        check_same(stored["name"], stored["dim"], embedder)


def embed_again(
    store: Store, embedder: Embedder, names: Sequence[str], progress: Progress | None, /, *, expect: str
) -> None:
    """Replace the vectors of all memories of these namespaces, superseded ones included.

    `expect` is the record of this re-embedding: it stops when a later one has begun.
    """
    total = sum(store.count(view=View(name, superseded=True)) for name in names)
    done = 0
    for name in names:
        everything = store.list(view=View(name, superseded=True))
        while batch := list(islice(everything, BATCH)):
            vectors = embedder.documents([memory.embedded for memory in batch])
            rows = {memory.id: vector for memory, vector in zip(batch, vectors, strict=True)}
            store.set_vectors(rows, namespace=name, expect=expect)
            done += len(batch)
            if progress is not None:
                progress(done, total)


def keep_embedded(store: Store, embedder: Callable[[], Embedder | None], /) -> None:
    """Embed memories that other programs changed (notes edited by hand) whenever the store reads such changes."""
    if not isinstance(store, SupportsExternalEdits):
        return

    def embed() -> None:
        model = embedder()
        if model is None:
            return
        try:
            for name in store.namespaces():
                _embed_missing(store, store, model, name)
        except EmbeddingError as error:  # BM25 still finds them, and the next change tries again
            log.warning("changed notes have no vector yet: %s", error)

    store.watch(embed)


def _embed_missing(store: Store, edited: SupportsExternalEdits, embedder: Embedder, namespace: str) -> None:
    """Embed the memories of a namespace that have no vector."""
    after = ""
    while batch := edited.unembedded(namespace=namespace, after=after, limit=BATCH):
        vectors = embedder.documents([memory.embedded for memory in batch])
        claim(store, embedder)
        rows = {memory.id: vector for memory, vector in zip(batch, vectors, strict=True)}
        store.set_vectors(rows, namespace=namespace)
        after = batch[-1].id


log = logging.getLogger("hybridmem")


def has_expired(memory: Memory, at: float, /) -> bool:
    """Whether a memory has expired at a time.

    >>> has_expired(Memory("x", expires_at="1970-01-02"), 86_400.0), has_expired(Memory("x"), 86_400.0)
    (True, False)
    """
    expires = epoch(memory.expires_at)
    return expires is not None and expires <= at


class _Check(NamedTuple):
    """The result of the last look-up: the store's seq then, and the earliest expiry."""

    seq: int
    earliest: float


class Expiry:
    """Deletes expired memories before a read. History and views as of an earlier time still have them.

    The earliest expiry of a namespace is read once for each change of the store.
    """

    def __init__(self, store: Store, clock: Callable[[], float], /) -> None:
        self._store = store
        self._clock = clock
        self._checks: dict[str, _Check] = {}
        self._lock = guard(threading.Lock())

    def apply(self, namespace: str, earliest: float | None = None, /) -> bool:
        """Delete what has expired in a namespace; returns whether anything had.

        `earliest` is the earliest expiry, if it is known. A store that cannot be written to keeps what has expired.
        """
        now = self._clock()
        if (self._earliest(namespace) if earliest is None else earliest) > now:
            return False
        try:
            return self._store.expire(now=now, namespace=namespace) > 0
        except StoreError as error:
            log.warning("expired memories could not be removed from the indexes of %r: %s", namespace, error)
            return False

    def _earliest(self, namespace: str) -> float:
        seq = self._store.last_seq()
        check = self._checks.get(namespace)
        if check is None or check.seq != seq:
            earliest = self._store.next_expiry(namespace=namespace)
            check = _Check(seq, math.inf if earliest is None else earliest)
            with self._lock:
                self._checks[namespace] = check
        return check.earliest
