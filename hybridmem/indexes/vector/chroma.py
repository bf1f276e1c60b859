"""Vector index on Chroma, in a folder of this machine or on a server.

The store is the source of truth. The watermark is kept in the collection's metadata and written after the vectors:
after a crash between the two, a few changes are applied again, which does no harm. A folder that was deleted, is
incomplete or belongs to another store is detected on opening and filled again from seq 0.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from hybridmem.core import validation
from hybridmem.core.forks import guard
from hybridmem.core.protocols import Change
from hybridmem.core.types import Hits
from hybridmem.embedding.embedder import Vector, unit
from hybridmem.errors import ConfigError, EmbeddingError, MissingExtraError, StoreError
from hybridmem.indexes.vector.matrix import VectorUpdate, batch_of, cosines

__all__ = ["HNSW", "ChromaIndex", "collection_name", "connect", "disconnect", "similarity_in", "translated"]


def similarity_in(collection: Any, /) -> Callable[[float], float]:
    """A function from a collection's distances to cosines of unit vectors: 1 − d, or 1 − d/2 for squared l2."""
    raw = collection.configuration_json or {}  # `.configuration` would load, and warn about, an embedding function
    space = (raw.get("hnsw") or raw.get("spann") or {}).get("space")
    space = space or (collection.metadata or {}).get("hnsw:space") or "l2"
    return (lambda distance: 1.0 - distance / 2.0) if space == "l2" else (lambda distance: 1.0 - distance)


def connect(*, path: str | Path | None = None, host: str | None = None, port: int = 8000, ssl: bool = False) -> Any:
    """A Chroma client of a folder (created when missing, moved aside when unreadable) or of a server. No telemetry."""
    try:
        import chromadb
        from chromadb.config import Settings
    except ImportError as error:
        raise MissingExtraError("chroma", needs="chromadb") from error
    settings = Settings(anonymized_telemetry=False)
    if (path is None) == (host is None):
        raise ConfigError(f"give either path= or host=, not path={path!r} and host={host!r}")
    if host is not None:
        try:
            return chromadb.HttpClient(host=host, port=port, ssl=ssl, settings=settings)
        except Exception as error:
            raise StoreError(f"no Chroma server answers at {host}:{port}: {error}") from error
    open_here = _systems()
    shared = str(path) in open_here
    try:
        return chromadb.PersistentClient(str(path), settings)
    except Exception as error:
        if shared:  # the folder is in use by this process and is not damaged
            raise StoreError(f"the Chroma folder {path} cannot be opened: {error}") from error
        aside = _move_aside(Path(str(path)), error)
    open_here.pop(str(path), None)
    _log.warning("the Chroma folder %s cannot be read; it was moved to %s and will be filled again", path, aside)
    return chromadb.PersistentClient(str(path), settings)


def disconnect(client: Any, /) -> None:
    """Close a client and its HTTP sessions, which chromadb leaves open."""
    parts = (client, getattr(client, "_admin_client", None))
    sessions = [getattr(getattr(part, "_server", None), "_session", None) for part in parts]
    if hasattr(client, "close"):  # chromadb 1.0 has none yet
        client.close()
    for session in sessions:
        if session is not None:
            session.close()


def _systems() -> dict[str, Any]:
    """Chroma's registry of open folders. It keeps a folder that failed to open, which must be removed."""
    from chromadb.api.shared_system_client import SharedSystemClient

    return getattr(SharedSystemClient, "_identifier_to_system", {})


def _move_aside(path: Path, error: Exception) -> Path:
    """Rename a damaged folder instead of deleting it: it may contain other collections."""
    free = (path.with_name(f"{path.name}.damaged-{number}") for number in range(1, 1000))
    aside = next(candidate for candidate in free if not candidate.exists())
    try:
        return path.rename(aside)
    except OSError:
        raise StoreError(f"the Chroma folder {path} cannot be opened: {error}") from error


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Convert exceptions of chromadb to ours, with the original as the cause."""
    try:
        yield
    except (StoreError, EmbeddingError, ConfigError):
        raise
    except Exception as error:
        kind = EmbeddingError if "dimension" in str(error) else StoreError
        raise kind(f"Chroma could not {what}: {error}") from error


_MARK, _COUNT, _WHO = "hybridmem:watermark", "hybridmem:count", "hybridmem:identity"
_CHANGE = "hybridmem:change"
"""The fingerprint of the change at the watermark."""
HNSW = {"space": "cosine", "ef_construction": 100, "max_neighbors": 16, "ef_search": 200}
_BATCH = 2000
_LOOKS, _PAUSE = 3, 0.05
_MAX_ID_FILTER = 10_000  # above this many allowed ids, the unfiltered top is searched first
_PROBE = 2000
_log = logging.getLogger(__name__)


def collection_name(namespace: str, /) -> str:
    """A legal collection name for any namespace.

    >>> collection_name(""), collection_name("Ana's notes")
    ('hybridmem', 'hybridmem-4d1c4a7f0d2f9d52')
    """
    return f"hybridmem-{blake2b(namespace.encode(), digest_size=8).hexdigest()}" if namespace else "hybridmem"


class ChromaIndex:
    """Approximate cosine search (HNSW) by Chroma.

    `ChromaIndex(path="chroma")` or `ChromaIndex(host="127.0.0.1", port=8000)`, or over a collection you have.
    `identity` names the store and embedder: a collection of another one is emptied.
    A batch is not atomic here: a reader may briefly see a part of it.
    """

    def __init__(
        self,
        collection: Any = None,
        *,
        path: str | Path | None = None,
        host: str | None = None,
        port: int = 8000,
        ssl: bool = False,
        name: str = "hybridmem",
        identity: str = "",
    ) -> None:
        self._lock = guard(RLock())
        self._identity, self._name = identity, name
        self._client = None if collection is not None else connect(path=path, host=host, port=port, ssl=ssl)
        self._process = os.getpid()
        self._raw_collection = collection if collection is not None else self._opened(self._client)
        self._cached_ids: set[str] | None = None
        self._fingerprint: Callable[[int], str | None] | None = None
        self.watermark = 0
        if not self._intact():
            self.reset()

    def _opened(self, client: Any) -> Any:
        with translated(f"open collection {self._name!r}"):
            first = {_MARK: 0, _COUNT: 0, _WHO: self._identity}
            return client.get_or_create_collection(
                self._name, embedding_function=None, metadata=first, configuration={"hnsw": HNSW}
            )

    @property
    def _collection(self) -> Any:
        if os.getpid() != self._process:  # its threads are in the parent process: a call here would never return
            raise StoreError("a Chroma client cannot be used after a fork: open the memory in the child process")
        return self._raw_collection

    # --- integrity
    def reopen(self) -> bool:
        """Open the collection again when another process has replaced it; True if it was replaced.

        The next `apply` must start from the new `watermark`.
        """
        with self._lock:
            if self._client is None:
                return False
            present = self._opened(self._client)
            if present.id == self._collection.id:
                return False
            self._raw_collection, self._cached_ids = present, None
            self.watermark = int((present.metadata or {}).get(_MARK, 0))
            return True

    def _intact(self) -> bool:
        """Whether the collection belongs to this store, is complete, and is searchable.

        Another process may be writing at this moment: a wrong count is looked at again.
        """
        for _ in range(_LOOKS - 1):
            if self._looks_intact():
                return True
            time.sleep(_PAUSE)
            self.reopen()
        return self._looks_intact()

    def _looks_intact(self) -> bool:
        note = dict(self._collection.metadata or {})
        self.watermark = int(note.get(_MARK, 0))
        try:
            count = int(self._collection.count())
        except Exception:  # noqa: BLE001 - a collection broken in any way can be filled again
            return False
        if count and _MARK not in note:
            raise ConfigError(
                f"collection {self._collection.name!r} has {count} vectors of another program: use an empty one"
            )
        try:
            if note.get(_WHO, self._identity) != self._identity or count != int(note.get(_COUNT, 0)):
                return False
            return count == 0 or self._answers(min(count, _PROBE))
        except Exception:  # noqa: BLE001 - a collection broken in any way can be filled again
            _log.warning("the Chroma collection %s cannot be read and will be filled again", self._name)
            return False

    def _answers(self, count: int) -> bool:
        """Whether a query returns all vectors: with a lost HNSW file it returns fewer."""
        some = self._collection.get(limit=1, include=["embeddings"])["embeddings"]
        found = self._collection.query(query_embeddings=[some[0]], n_results=count, include=[])
        return len(found["ids"][0]) == count

    def reset(self) -> None:
        """Empty the collection: the next `apply` must start from seq 0."""
        with self._lock, translated("empty the collection"):
            if self._client is None:
                for ids in _chunks(self._collection.get(include=[])["ids"]):
                    self._collection.delete(ids=ids)
            else:
                with contextlib.suppress(Exception):
                    self._client.delete_collection(self._name)
                self._raw_collection = self._opened(self._client)
            self.watermark, self._cached_ids = 0, set()
            self._save_watermark()

    def reset_if_foreign(self, fingerprint: Callable[[int], str | None], /) -> bool:
        """Empty the collection when it was filled from another history of its store; True when emptied.

        After an older copy of the store was restored, the change at the watermark is missing or another one, even when
        the store has since been written to beyond the watermark.
        """
        self._fingerprint = fingerprint
        if not self.watermark:
            return False
        present, saved = fingerprint(self.watermark), (self._collection.metadata or {}).get(_CHANGE)
        foreign = present is None or saved not in (None, "", present)
        if foreign:
            self.reset()
        return foreign

    def _save_watermark(self) -> None:
        kept = {key: value for key, value in (self._collection.metadata or {}).items() if not key.startswith("hnsw:")}
        change = self._fingerprint(self.watermark) if self._fingerprint is not None else None
        mark = {_MARK: self.watermark, _COUNT: self._collection.count(), _WHO: self._identity, _CHANGE: change or ""}
        self._collection.modify(metadata=kept | mark)

    # --- writing
    def apply(self, changes: Iterable[Change], /) -> None:
        """Apply changes in order. The watermark is written last: after a crash they are applied again."""
        with self._lock:
            batch, last = batch_of(changes, self.watermark)
            if not batch and last == self.watermark:
                return
            with translated("apply changes"):
                self._write(batch)
                self.watermark = last
                self._save_watermark()

    def _write(self, batch: dict[str, VectorUpdate]) -> None:
        new = [key for key, put in batch.items() if put.vector is not None]
        gone = [key for key, put in batch.items() if put.gone]
        timed = [key for key, put in batch.items() if put.vector is None and not put.gone]
        for ids in _chunks(gone):
            self._collection.delete(ids=ids)
        for ids in _chunks(timed):
            self._collection.update(ids=ids, metadatas=[_times(batch[key]) for key in ids])
        for ids in _chunks(new):
            rows = np.asarray([batch[key].vector for key in ids], dtype=np.float64)
            if not np.isfinite(rows).all():
                raise EmbeddingError("a vector has a value that is not finite")
            self._collection.upsert(ids=ids, embeddings=unit(rows), metadatas=[_times(batch[key]) for key in ids])
        if self._cached_ids is not None:
            self._cached_ids = (self._cached_ids - set(gone)) | set(new)

    # --- reading
    def __len__(self) -> int:
        with translated("count"):
            return int(self._collection.count())

    def search(self, query: Any, /, *, k: int, allowed: AbstractSet[str] | None = None) -> Hits:
        """The k most similar ids, among `allowed` when given; scores are cosines."""
        validation.k(k)
        question = unit(query)
        with translated("search"):
            if allowed is None:
                return _best(self._query(question, k), k)
            inside = [key for key in allowed if key in self._ids()]
            if not inside:
                return Hits([], [])
            return self._within(question, k, inside, allowed)

    def _within(self, question: Vector, k: int, inside: list[str], allowed: AbstractSet[str]) -> Hits:
        """Search among allowed ids: first in the unfiltered top when they are many, else with an id filter."""
        if len(inside) > _MAX_ID_FILTER:
            wide = 4 * k * max(1, len(self._ids()) // len(inside))
            found = [hit for hit in self._query(question, wide) if hit[2] in allowed]
            if len(found) >= k:
                return _best(found, k)
        try:
            found = self._query(question, k, ids=inside)
        except Exception:  # noqa: BLE001 - Chroma fails on an id that another process removed
            self._cached_ids = None
            inside = [key for key in inside if key in self._ids()]
            found = self._query(question, k, ids=inside) if inside else []
        if len(found) < min(k, len(inside)):  # filtered HNSW returned too few: score every id
            scores = self.score(question, inside)
            found = [(-score, 0.0, key) for key, score in zip(inside, scores, strict=True) if score is not None]
        return _best(found, k)

    def _query(self, question: Vector, k: int, ids: list[str] | None = None) -> list[tuple[float, float, str]]:
        """(−cosine, −updated, id) of the k nearest."""
        only: dict[str, Any] = {} if ids is None else {"ids": ids}
        found = self._collection.query(
            query_embeddings=[question], n_results=k, include=["distances", "metadatas"], **only
        )
        convert = similarity_in(self._collection)
        rows = zip(found["ids"][0], found["distances"][0], found["metadatas"][0], strict=True)
        return [(-convert(distance), -float((note or {}).get("updated", -1e18)), key) for key, distance, note in rows]

    def _ids(self) -> set[str]:
        with self._lock:
            if self._cached_ids is None:
                self._cached_ids = set(self._collection.get(include=[])["ids"])
            return self._cached_ids

    def score(self, vector: Any, ids: Sequence[str], /) -> list[float | None]:
        """The cosine of each id, None where it has no vector."""
        question, rows = unit(vector), self.vectors(ids)
        found = [row for row in rows if row is not None]
        values = iter(cosines(np.stack(found), question).tolist() if found else ())
        return [None if row is None else next(values) for row in rows]

    def vectors(self, ids: Sequence[str], /) -> list[Vector | None]:
        """The stored vector of each id, None where it has none."""
        known: dict[str, Vector] = {}
        with translated("read vectors"):
            for part in _chunks(list(dict.fromkeys(ids))):
                got = self._collection.get(ids=part, include=["embeddings"])
                known.update(zip(got["ids"], (np.asarray(row, np.float32) for row in got["embeddings"]), strict=True))
        return [known.get(key) for key in ids]

    def close(self) -> None:
        """Close the client, if this index opened it."""
        if self._client is not None:
            disconnect(self._client)


def _times(put: VectorUpdate) -> dict[str, float]:
    return {"updated": max(put.updated, -1e18)}  # JSON has no infinity


def _chunks(ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _BATCH):
        yield list(ids[start : start + _BATCH])


def _best(found: list[tuple[float, float, str]], k: int) -> Hits:
    best = sorted(found)[:k]
    return Hits([key for _, _, key in best], [min(1.0, max(-1.0, 0.0 - score)) for score, _, _ in best])
