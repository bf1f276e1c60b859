"""Opening: from what a user writes (a path, an address, a folder, a store) to an engine over the right store."""

from __future__ import annotations

import inspect
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hybridmem.core import validation
from hybridmem.core.protocols import Store, View
from hybridmem.embedding.embedder import Embedder, as_embedder
from hybridmem.errors import ConfigError, MissingExtraError
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.indexes.view import IndexSettings
from hybridmem.memory.engine import Engine

__all__ = ["open_engine", "open_store", "pick_embedder"]

log = logging.getLogger("hybridmem")
POSTGRES = ("postgresql://", "postgres://")
_PLACES = "give a file, ':memory:', a folder of notes, a postgresql:// address, or a store"


def open_store(path: str | Path | Store, /, *, clock: Callable[[], float], **options: Any) -> Store:
    """The store behind a path: a SQLite file, a folder of Markdown notes, a PostgreSQL address, or itself."""
    if not isinstance(path, (str, Path)):
        if not hasattr(path, "last_seq"):
            validation.refuse("path", path, _PLACES)
        if options:
            raise ConfigError(f"this is a store already: {', '.join(options)} cannot be set again")
        return path
    text = validation.file_path("path", str(path), _PLACES)  # SQLite takes no name for a file that is gone in the end
    if text.startswith(POSTGRES):
        from hybridmem.stores.postgres.store import PostgresStore

        return _made(PostgresStore, text, clock, options)
    if text != ":memory:" and (text.endswith("/") or Path(text).is_dir()):
        from hybridmem.stores.markdown.store import MarkdownStore

        return _made(MarkdownStore, text, clock, options)
    from hybridmem.stores.sqlite.store import SQLiteStore

    return _made(SQLiteStore, text, clock, options)


def _made(kind: Callable[..., Any], place: str, clock: Callable[[], float], options: Mapping[str, Any]) -> Store:
    """A store with its options; one that it does not have is refused with those it has."""
    known = [name for name, at in inspect.signature(kind).parameters.items() if at.kind is at.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            allowed = ", ".join(other for other in known if other != "clock")
            raise ConfigError(f"{place!r} has no option {name!r}: it takes {allowed}")
    store: Store = kind(place, clock=clock, **options)
    return store


def pick_embedder(given: Any) -> Embedder | None:
    """An embedder from what a user gives: an object, "local", None, or "auto" for local where it is installed."""
    if given is None:
        return None
    if given != "auto" if isinstance(given, str) else True:
        return as_embedder(given)
    try:
        return as_embedder("local")
    except MissingExtraError as error:
        log.info("no embedder, so words and graph answer alone: pass embedder=, or take the local one (%s)", error)
        return None


def open_engine(
    path: str | Path | Store,
    /,
    *,
    embedder: Embedder | None,
    settings: IndexSettings,
    vectors: Any,
    clock: Callable[[], float],
    **options: Any,
) -> Engine:
    """An engine over a store; a server that searches by itself brings its own spaces."""
    _check(settings)
    store = open_store(path, clock=clock, **options)
    try:
        if embedder is not None:
            settings = settings._replace(prefix=embedder.prefix)
        if vectors is not None and embedder is not None:
            settings = settings._replace(make_vectors=_vector_maker(vectors, path, store, embedder))
        adopt = getattr(store, "adopt", None)
        if adopt is not None:
            adopt(settings)
        own = getattr(store, "space", None)
        make = None if own is None else lambda _, view, chosen: own(view, chosen)
        return Engine(store, embedder=embedder, settings=settings, clock=clock, make_space=make)
    except BaseException:
        store.close()
        raise


def _check(settings: IndexSettings) -> None:
    """Refuse settings that no index could be built with before a file is made."""
    if not callable(settings.analyzer):
        validation.refuse("analyzer", settings.analyzer, "an Analyzer(…), or None for the usual one")
    if not isinstance(settings.graph, GraphSettings | None):
        validation.refuse("graph", settings.graph, "GraphSettings(…), True or False")
    BM25Index(settings.analyzer, k1=settings.k1, b=settings.b, accelerate=False)


def _vector_maker(vectors: Any, path: str | Path | Store, store: Store, embedder: Embedder) -> Callable[[View], Any]:
    """What makes the vector index of a view: Chroma in a folder beside the file, elsewhere, or on a server."""
    if callable(vectors):
        return vectors  # type: ignore[no-any-return]
    from hybridmem.indexes.vector.chroma import ChromaIndex, collection_name

    if isinstance(vectors, Mapping):
        where = dict(vectors)
        for name in where:
            validation.one_of("a key of vectors", name, ("path", "host", "port", "ssl"))
    elif isinstance(vectors, str) and vectors == "chroma" and isinstance(path, (str, Path)) and str(path) != ":memory:":
        where = {"path": f"{path}.chroma"}
    else:
        raise ConfigError(
            f"vectors = {vectors!r} is not allowed here: 'chroma' for a folder beside the file, "
            "{'path': …} or {'host': …, 'port': …} for Chroma elsewhere, or a function from a view to an index"
        )
    name = store.get_meta("store")
    if name is None:
        name = uuid.uuid4().hex
        store.set_meta("store", name)

    def make(view: View) -> ChromaIndex:
        """Whose vectors these are is read from the store each time: reindexing may have changed it."""
        told = json.loads(store.get_meta("embedder") or "{}")
        identity = f"{name}:{told.get('name', embedder.name)}:{told.get('dim', embedder.dim)}"
        return ChromaIndex(**where, name=collection_name(view.namespace), identity=identity)

    return make
