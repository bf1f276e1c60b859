"""Whose vectors a store holds, and giving it those of another embedder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any

from hybridmem.embed import Embedder, check_same
from hybridmem.stores.base import Progress, Store, View

__all__ = ["claim", "embed_again", "record", "recorded"]

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
