"""The vectors of a memory: the recorded embedder, embedding again, and embedding of what other programs changed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from itertools import islice
from types import NoneType
from typing import Any

from hybridmem.core import validation
from hybridmem.core.protocols import Progress, Store, SupportsExternalEdits, View
from hybridmem.embedding.embedder import Embedder, is_same
from hybridmem.errors import CorruptStoreError, EmbeddingError

__all__ = [
    "begin_generation",
    "check_recorded",
    "claim",
    "embed_again",
    "keep_embedded",
    "recorded",
]

log = logging.getLogger("hybridmem")
BATCH = 1_000


def recorded(store: Store, /) -> dict[str, Any] | None:
    """The recorded embedder: its name and dimension, and whether re-embedding was interrupted; None: none yet."""
    return _read(store.get_meta("embedder"))


def _read(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
        if type(found["name"]) is str and type(found["dim"]) in (int, NoneType):
            return dict(found)
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    raise CorruptStoreError(f"the record of the embedder is damaged: {validation.display(text)}; restore a backup")


def claim(store: Store, embedder: Embedder, /) -> None:
    """Before vectors are written: record the embedder, or raise EmbeddingError if another one is recorded.

    The dimension of a plain function is unknown when a memory is opened; here it is known.
    """
    text = store.get_meta("embedder")
    if text is None:
        store.set_meta("embedder", lambda old: old or _record(embedder))
        text = store.get_meta("embedder")
    check_recorded(text, embedder)


def check_recorded(text: str | None, /, embedder: Embedder, *, generation: int | None = None) -> None:
    """Raise EmbeddingError if the recorded embedder is another one, or its vectors are of another generation.

    Called in every transaction that writes vectors, and before every search of a store that has changed.
    """
    stored = _read(text)
    if stored is None:
        return
    same = is_same(stored["name"], stored["dim"], embedder)
    if same and generation in (None, stored.get("generation", 0)):
        return
    now = f"{stored['name']!r} ({stored['dim'] or 'unknown'} dimensions)"
    if same or generation is not None:
        raise EmbeddingError(f"another reindex() has begun with {now}: this one, with {embedder.name!r}, has ended")
    raise EmbeddingError(
        f"the stored vectors come from {now}, but this memory was opened with {embedder.name!r} "
        f"({embedder.dim or 'unknown'} dimensions): open it again with {stored['name']!r}, which another process may "
        "have given to reindex(), or re-embed everything by reindex(embedder=...)"
    )


def _record(embedder: Embedder, *, generation: int = 0, unfinished: bool = False) -> str:
    more = {"generation": generation} if generation else {}
    return json.dumps(
        {"name": embedder.name, "dim": embedder.dim, **more, **({"unfinished": True} if unfinished else {})}
    )


def begin_generation(store: Store, embedder: Embedder, /) -> int:
    """Record an embedder, unfinished, and return the generation of its vectors: a new one if another was recorded."""
    generation = 0

    def begin(text: str | None) -> str:
        nonlocal generation
        stored = _read(text)
        if stored is not None:
            generation = stored.get("generation", 0) + (not is_same(stored["name"], stored["dim"], embedder))
        return _record(embedder, generation=generation, unfinished=True)

    store.set_meta("embedder", begin)
    return generation


def embed_again(store: Store, embedder: Embedder, generation: int, progress: Progress | None, /) -> None:
    """Replace the vectors of all memories, superseded ones included.

    Only vectors of the recorded generation are written: of two calls at once with different embedders the one that
    began last succeeds, and the other one raises EmbeddingError.
    """

    def check(text: str | None) -> None:
        check_recorded(text, embedder, generation=generation)

    def finish(text: str | None) -> str:
        check(text)
        return _record(embedder, generation=generation)

    names = store.namespaces()
    total = sum(store.count(view=View(name, superseded=True)) for name in names)
    done = 0
    for name in names:
        everything = store.list(view=View(name, superseded=True))
        while batch := list(islice(everything, BATCH)):
            vectors = embedder.documents([memory.embedded for memory in batch])
            rows = {memory.id: vector for memory, vector in zip(batch, vectors, strict=True)}
            store.set_vectors(rows, namespace=name, check_embedder=check)
            done += len(batch)
            if progress is not None:
                progress(done, total)
    store.set_meta("embedder", finish)


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
        store.set_vectors(rows, namespace=namespace, check_embedder=partial(check_recorded, embedder=embedder))
        after = batch[-1].id
