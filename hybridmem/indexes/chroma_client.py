"""Talking to Chroma: a client of a folder or a server, its distances as cosines, its errors in our words."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hybridmem.errors import ConfigError, EmbeddingError, MissingExtraError, StoreError

__all__ = ["connect", "disconnect", "similarity_in", "translated"]

_log = logging.getLogger(__name__)


def similarity_in(collection: Any, /) -> Callable[[float], float]:
    """How a collection's distances become cosines, for vectors of length 1: 1 − d, or 1 − d/2 where d is squared l2."""
    raw = collection.configuration_json or {}  # `.configuration` would load, and warn about, an embedding function
    space = (raw.get("hnsw") or raw.get("spann") or {}).get("space")
    space = space or (collection.metadata or {}).get("hnsw:space") or "l2"
    return (lambda distance: 1.0 - distance / 2.0) if space == "l2" else (lambda distance: 1.0 - distance)


def connect(*, path: str | Path | None = None, host: str | None = None, port: int = 8000, ssl: bool = False) -> Any:
    """A Chroma client: of a folder (made when missing, put aside when unreadable), or of a server. No telemetry."""
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
        if shared:  # the folder is in use by this very process: nothing is wrong with it
            raise StoreError(f"the Chroma folder {path} cannot be opened: {error}") from error
        aside = _put_aside(Path(str(path)), error)
    open_here.pop(str(path), None)
    _log.warning("the Chroma folder %s cannot be read; it was moved to %s and will be filled again", path, aside)
    return chromadb.PersistentClient(str(path), settings)


def disconnect(client: Any, /) -> None:
    """Close a client; Chroma itself leaves the sockets to a server open."""
    parts = (client, getattr(client, "_admin_client", None))
    sessions = [getattr(getattr(part, "_server", None), "_session", None) for part in parts]
    if hasattr(client, "close"):  # chromadb 1.0 has none yet
        client.close()
    for session in sessions:
        if session is not None:
            session.close()


def _systems() -> dict[str, Any]:
    """Chroma's own list of open folders. It keeps one that failed to open, and would fail on it for ever."""
    from chromadb.api.shared_system_client import SharedSystemClient

    return getattr(SharedSystemClient, "_identifier_to_system", {})


def _put_aside(path: Path, error: Exception) -> Path:
    """Move a damaged folder out of the way, rather than delete it: it may hold other collections."""
    free = (path.with_name(f"{path.name}.damaged-{number}") for number in range(1, 1000))
    aside = next(candidate for candidate in free if not candidate.exists())
    try:
        return path.rename(aside)
    except OSError:
        raise StoreError(f"the Chroma folder {path} cannot be opened: {error}") from error


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Chroma's failures as ours, with the original as the cause."""
    try:
        yield
    except (StoreError, EmbeddingError, ConfigError):
        raise
    except Exception as error:
        kind = EmbeddingError if "dimension" in str(error) else StoreError
        raise kind(f"Chroma could not {what}: {error}") from error
