"""Whose vectors a store holds, and giving it those of another embedder."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from hybridmem.core.protocols import Progress, Store, View
from hybridmem.embedding.embedder import Embedder, check_same
from hybridmem.errors import EmbeddingError

__all__ = ["claim", "embed_again", "keep_embedded", "record", "recorded"]

log = logging.getLogger("hybridmem")
BATCH = 1_000


def recorded(store: Store, /) -> dict[str, Any] | None:
    """The embedder whose vectors are stored: its name and dimension, and whether re-embedding was cut short."""
    text = store.get_meta("embedder")
    return None if text is None else dict(json.loads(text))


def record(store: Store, embedder: Embedder, /, *, unfinished: bool = False) -> None:
    """Write down whose vectors these are."""
    now = {"name": embedder.name, "dim": embedder.dim, **({"unfinished": True} if unfinished else {})}
    if recorded(store) != now:
        store.set_meta("embedder", json.dumps(now))


def claim(store: Store, embedder: Embedder, /) -> None:
    """Before vectors are written: record whose they are, or refuse those of another embedder than the recorded one.

    A plain function has no name and no known dimension when a memory is opened; here the dimension is known.
    """
    known = recorded(store)
    if known is None:
        record(store, embedder)
    else:
        check_same(known["name"], known["dim"], embedder)


def embed_again(store: Store, embedder: Embedder, names: Sequence[str], progress: Progress | None, /) -> None:
    """New vectors for every memory of these namespaces, superseded ones too."""
    total = sum(store.count(view=View(name, superseded=True)) for name in names)
    done = 0
    for name in names:
        everything = store.list(view=View(name, superseded=True))
        while batch := list(islice(everything, BATCH)):
            vectors = embedder.documents([memory.embedded for memory in batch])
            rows = {memory.id: vector for memory, vector in zip(batch, vectors, strict=True)}
            store.set_vectors(rows, namespace=name)
            done += len(batch)
            if progress is not None:
                progress(done, total)


def keep_embedded(store: Store, embedder: Callable[[], Embedder | None], /) -> None:
    """Let a store whose memories come in by other ways (notes edited by hand) have them embedded when it notices."""
    watch: Any = getattr(store, "watch", None)
    if watch is None:
        return

    def noticed() -> None:
        model = embedder()
        if model is None:
            return
        try:
            for name in store.namespaces():
                _embed_missing(store, model, name)
        except EmbeddingError as error:  # words still find it, and the next time it is tried again
            log.warning("notes that changed have no vector yet: %s", error)

    watch(noticed)


def _embed_missing(store: Any, embedder: Embedder, namespace: str) -> None:
    """Vectors for those memories of a namespace that have none."""
    after = ""
    while batch := store.unembedded(namespace=namespace, after=after, limit=BATCH):
        vectors = embedder.documents([memory.embedded for memory in batch])
        claim(store, embedder)
        rows = {memory.id: vector for memory, vector in zip(batch, vectors, strict=True)}
        store.set_vectors(rows, namespace=namespace)
        after = batch[-1].id
