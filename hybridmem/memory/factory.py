"""Opening a store from a path, an address or a folder, and an engine over it."""

from __future__ import annotations

import inspect
import json
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from hybridmem.core import validation
from hybridmem.core.protocols import SearchView, Store, SupportsServerSearch, View
from hybridmem.embedding.embedder import Embedder, as_embedder
from hybridmem.errors import ConfigError, MissingExtraError
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.indexes.view import IndexSettings
from hybridmem.memory.engine import Engine

if TYPE_CHECKING:  # typing.Unpack came with Python 3.11
    from typing_extensions import Unpack

    from hybridmem.embedding.sources import EmbeddingOption

    VectorsOption = Literal["chroma"] | Mapping[str, str | int | bool] | Callable[[View], Any]
    """Where vectors are kept: "chroma" beside the file, a folder or server of Chroma, or a function to an index."""

__all__ = ["StoreOptions", "check_place", "open_engine", "open_store", "pick_embedder"]

log = logging.getLogger("hybridmem")
POSTGRES = ("postgresql://", "postgres://")
_PLACES = "give a file, ':memory:', a folder of notes, a postgresql:// address, or a store"


class StoreOptions(TypedDict, total=False):
    """Options of a store, given to HybridMemory by keyword; each store refuses those it does not have."""

    busy_timeout: float
    """Seconds to wait for another writer (every store)."""
    synchronous: Literal["full", "normal"]
    """Durability of SQLite in a power cut."""
    schema: str
    """PostgreSQL: the schema of the tables; the options below are described in `PostgresStore`."""
    pool_size: int
    statement_timeout: float
    reconnect: float
    exact_below: int
    prefix: int | None
    ef_search: int
    auto_index: bool
    replica: str | None
    read_your_writes: bool
    lexical: str | None


def open_store(path: str | Path | Store, /, *, clock: Callable[[], float], **options: Unpack[StoreOptions]) -> Store:
    """The store of a path (SQLite file, folder of Markdown notes, PostgreSQL address), or the given store itself."""
    if not isinstance(path, (str, Path)):
        if not isinstance(path, Store):
            validation.refuse("path", path, _PLACES)
        if options:
            raise ConfigError(f"path is an open store: {', '.join(options)} cannot be set")
        return path
    text = check_place(str(path))
    if text.startswith(POSTGRES):
        from hybridmem.stores.postgres.store import PostgresStore

        return _made(PostgresStore, text, clock, options)
    if text != ":memory:" and (text.endswith("/") or Path(text).is_dir()):
        from hybridmem.stores.markdown.store import MarkdownStore

        return _made(MarkdownStore, text, clock, options)
    from hybridmem.stores.sqlite.store import SQLiteStore

    return _made(SQLiteStore, text, clock, options)


def check_place(text: str) -> str:
    """A path or address as given; addresses that no store has are refused, without showing a password in them."""
    text = validation.file_path("path", text, _PLACES)  # SQLite takes '' for a temporary file
    scheme, _, rest = text.partition("://")
    if rest and not text.startswith(POSTGRES):
        raise ConfigError(f"path is an address of the kind '{scheme[:40]}://', which no store has: {_PLACES}")
    if re.search(r"\bpassword\s*=", text) and not rest:
        raise ConfigError(f"path has 'password=', as in a list of connection options: {_PLACES}")
    return text


def _made(kind: Callable[..., Any], place: str, clock: Callable[[], float], options: Mapping[str, Any]) -> Store:
    """A new store with its options; an unknown option raises ConfigError."""
    known = [name for name, at in inspect.signature(kind).parameters.items() if at.kind is at.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            allowed = ", ".join(other for other in known if other != "clock")
            raise ConfigError(f"{place!r} has no option {name!r}: it takes {allowed}")
    store: Store = kind(place, clock=clock, **options)
    return store


def pick_embedder(given: EmbeddingOption | None) -> Embedder | None:
    """The embedder for an embedding object, "local", None, or "auto": local where it is installed."""
    if given is None:
        return None
    if given != "auto" if isinstance(given, str) else True:
        return as_embedder(given)
    try:
        return as_embedder("local")
    except MissingExtraError:
        _warn_no_embedder()
        return None


@cache
def _warn_no_embedder() -> None:
    """Warn once per process that there is no vector search; Python prints warnings of loggers on stderr."""
    log.warning(
        "hybridmem has no embedder: only BM25 and graph search. For search by meaning run "
        "pip install 'hybridmem[local]' (offline) or pass embedder=… (--embedder on the command line); None turns this "
        "message off."
    )


def open_engine(
    path: str | Path | Store,
    /,
    *,
    embedder: Embedder | None,
    settings: IndexSettings,
    vectors: VectorsOption | None,
    clock: Callable[[], float],
    **options: Unpack[StoreOptions],
) -> Engine:
    """An engine over a store; a store that searches by itself makes its own search views."""
    _check(settings)
    store = open_store(path, clock=clock, **options)
    try:
        if embedder is not None:
            settings = settings._replace(prefix=embedder.prefix)
        if vectors is not None and embedder is not None:
            settings = settings._replace(make_vectors=_vector_maker(vectors, path, store, embedder))
        make: Callable[[Store, View, IndexSettings], SearchView] | None = None
        if isinstance(store, SupportsServerSearch):
            server: SupportsServerSearch[IndexSettings] = store
            server.adopt(settings)
            make = lambda _, view, chosen: server.search_view(view, chosen)  # noqa: E731
        return Engine(store, embedder=embedder, settings=settings, clock=clock, make_view=make)
    except BaseException:
        store.close()
        raise


def _check(settings: IndexSettings) -> None:
    """Raise ConfigError for invalid settings before a file is created."""
    if not callable(settings.analyzer):
        validation.refuse("analyzer", settings.analyzer, "an Analyzer(…), or None for the usual one")
    if not isinstance(settings.graph, GraphSettings | None):
        validation.refuse("graph", settings.graph, "GraphSettings(…), True or False")
    BM25Index(settings.analyzer, k1=settings.k1, b=settings.b)


def _vector_maker(
    vectors: VectorsOption, path: str | Path | Store, store: Store, embedder: Embedder
) -> Callable[[View], Any]:
    """A function that makes the vector index of a view: Chroma beside the file, elsewhere, or on a server."""
    if callable(vectors):
        return vectors
    from hybridmem.indexes.vector.chroma import ChromaIndex, collection_name

    if isinstance(vectors, Mapping):
        where: dict[str, Any] = dict(vectors)
        for key in where:
            validation.one_of("a key of vectors", key, ("path", "host", "port", "ssl"))
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
        """The recorded embedder is read each time, because reindex() may have changed it."""
        recorded = json.loads(store.get_meta("embedder") or "{}")
        identity = f"{name}:{recorded.get('name', embedder.name)}:{recorded.get('dim', embedder.dim)}"
        return ChromaIndex(**where, name=collection_name(view.namespace), identity=identity)

    return make
