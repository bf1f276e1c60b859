"""MarkdownStore: a folder of Markdown notes holds the memories; an SQLite store beside them is their index."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from hybridmem.core import validation
from hybridmem.core.forks import guard
from hybridmem.core.inputs import checked_batch, checked_edges
from hybridmem.core.protocols import Change, CheckEmbedder, Embed, Progress, Version, View
from hybridmem.core.types import Edge, Entry, Memory
from hybridmem.errors import StoreError
from hybridmem.stores.markdown.sync import NoteFolder, SyncReport, read_notes
from hybridmem.stores.sql import transfer, write
from hybridmem.stores.sqlite.store import SQLiteStore

__all__ = ["MarkdownStore", "SyncReport", "read_notes"]

log = logging.getLogger("hybridmem")
_list = list  # `MarkdownStore.list` hides the builtin inside the class
_HOME = ".hybridmem"
T = TypeVar("T")


class MarkdownStore:
    """The store protocol over notes `**/*.md` with YAML front matter.

    The index in `.hybridmem/index.db` can be deleted at any time. It is rebuilt from the files, except for what files
    do not hold: older versions, vectors, and effects of `touch`, `reinforce` and `decay` since a note was last written.
    All processes share the write lock of the index. A call writes its notes first (each atomically), then the index.
    """

    def __init__(
        self, folder: str | Path, /, *, clock: Callable[[], float] = time.time, busy_timeout: float = 5.0
    ) -> None:
        self.folder = Path(validation.file_path("folder", folder, "the name of a folder of notes")).absolute()
        self.path = str(self.folder / _HOME / "index.db")
        self._clock, self._busy_timeout = clock, busy_timeout
        self._lock = guard(threading.RLock())
        self._on_edit: Callable[[], None] | None = None
        self._start()

    def _start(self) -> None:
        try:
            self.folder.joinpath(_HOME).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot open {self.folder}: it must be a folder that can be written ({error})") from error
        self.index = SQLiteStore(  # the notes hold the memories: the index may lose its last writes in a power cut
            self.path, clock=self._clock, busy_timeout=self._busy_timeout, synchronous="normal"
        )
        try:
            self._notes = NoteFolder(self.folder, self.index, on_edit=self._call_on_edit)
            for path, why in self._notes.sync().problems.items():
                log.warning("%s was not read: %s", self.folder / path, why)
        except BaseException:
            self.index.close()
            raise

    # --- synchronisation with the files

    def watch(self, on_edit: Callable[[], None], /) -> None:
        """Call a function now, and whenever a sync reads notes that somebody wrote or edited by hand."""
        with self._lock:
            self._on_edit = on_edit
            self._call_on_edit()

    def _call_on_edit(self) -> None:
        if self._on_edit is not None:
            self._on_edit()

    def sync(self, *, force: bool = False) -> SyncReport:
        """Read the files that changed since the last sync; `force` reads every file again."""
        with self._lock:
            return self._notes.sync(force=force)

    def rebuild(self) -> SyncReport:
        """Build the index again from the files; history and vectors, which files do not hold, are lost."""
        with self._lock:
            with self._notes.transaction() as current:
                current.clear()
                report = current.sync(force=True)
            self.index.purge()
            return report

    # --- writing

    def put(
        self,
        memories: Sequence[Memory],
        /,
        *,
        namespace: str = "",
        vectors: Sequence[Any] | Embed | None = None,
        progress: Progress | None = None,
        base: Sequence[Memory] | None = None,
        unless_duplicate: bool = False,
        check_embedder: CheckEmbedder | None = None,
    ) -> _list[str]:
        """Write memories as notes; returns their ids."""
        batch = checked_batch(
            memories,
            namespace=namespace,
            vectors=vectors,
            base=base,
            unless_duplicate=unless_duplicate,
            check_embedder=check_embedder,
        )
        if progress is not None:
            validation.function("progress", progress, "a function of (done, total), or None")
        if not batch.memories:
            return []
        hidden = [memory.supersedes for memory in batch.memories if memory.supersedes]
        with self._lock, self._notes.transaction() as current:
            current.prepare_write(namespace, validation.ids([*hidden, *(memory.id for memory in batch.memories)]))
            ids = write.put_batch(current.log, batch, progress=progress)
            current.write(namespace, [*validation.ids(hidden), *ids])
            return ids

    def delete(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Remove notes; the index keeps their history."""
        return self._remove(write.delete, ids, namespace)

    def erase(self, ids: Sequence[str], /, *, namespace: str = "") -> int:
        """Remove notes and their history in the index."""
        erased = self._remove(write.erase, ids, namespace)
        self.index.purge()
        return erased

    def _remove(self, remove: Callable[..., int], ids: Sequence[str], namespace: str) -> int:
        checked = validation.ids(ids)
        validation.namespace(namespace)
        with self._lock, self._notes.transaction() as current:
            links = current.remove(namespace, checked)
            removed = remove(current.log, checked, namespace=namespace)
            current.write_links(namespace, links)
            return removed

    def erase_namespace(self, namespace: str, /) -> int:
        """Remove every note of a namespace and the whole history in the index; returns how many existed."""
        with self._lock:
            notes = sorted(self.index.ids(view=View(validation.namespace(namespace), superseded=True)))
            return self.erase(notes, namespace=namespace) + self.index.erase_namespace(namespace)

    def duplicates(self, memories: Sequence[Memory], /, *, namespace: str = "") -> _list[str | None]:
        """For each memory the id of a note with the same normalized text and thread, or None."""
        return self.index.duplicates(memories, namespace=namespace)

    def next_expiry(self, *, namespace: str | None = "") -> float | None:
        """The earliest `expires_at`; None: no note expires."""
        return self.index.next_expiry(namespace=namespace)

    def expire(self, *, now: float, namespace: str = "") -> int:
        """Delete expired memories from the index; their notes stay until they are deleted or erased."""
        return self.index.expire(now=now, namespace=namespace)

    def expired(self, *, now: float, namespace: str = "", since: int = 0) -> _list[str]:
        """The ids of expired notes: live, or deleted after the number `since` of the log."""
        return self.index.expired(now=now, namespace=namespace, since=since)

    def link(self, edges: Sequence[Edge], /, *, namespace: str = "") -> None:
        """Link memories; the note of the first one lists the link."""
        self._change_links(write.link, edges, namespace)

    def unlink(self, edges: Sequence[Edge], /, *, namespace: str = "") -> int:
        """Remove links in either direction; returns how many existed."""
        return self._change_links(write.unlink, edges, namespace)

    def _change_links(self, change: Callable[..., T], edges: Sequence[Edge], namespace: str) -> T:
        checked = checked_edges(edges)
        validation.namespace(namespace)
        with self._lock, self._notes.transaction() as current:
            current.prepare_write(namespace, [end for edge in checked for end in edge[:2]])
            result = change(current.log, checked, namespace=namespace)
            current.write_links(namespace, checked)
            return result

    def touch(self, ids: Sequence[str], /, *, namespace: str = "") -> None:
        """Count an access of each memory (in the index only)."""
        self.index.touch(ids, namespace=namespace)

    def reinforce(self, id: str, /, *, namespace: str = "", by: float = 0.1) -> float:
        """Increase the strength of a memory (in the index only)."""
        return self.index.reinforce(id, namespace=namespace, by=by)

    def decay(self, *, namespace: str = "", now: datetime | None = None) -> int:
        """Decay the strength of memories (in the index only)."""
        return self.index.decay(namespace=namespace, now=now)

    def set_vectors(
        self, vectors: Mapping[str, Any], /, *, namespace: str = "", check_embedder: CheckEmbedder | None = None
    ) -> None:
        """Replace vectors (in the index only)."""
        self.index.set_vectors(vectors, namespace=namespace, check_embedder=check_embedder)

    # --- reading

    def get(self, ids: Sequence[str], /, *, view: View) -> _list[Memory | None]:
        """The memories of some ids; a note edited since it was indexed is read again first."""
        validation.view(view)
        ids = validation.ids(ids)
        if view.as_of is None:
            with self._lock:
                self._notes.refresh(view.namespace, ids)
        return self.index.get(ids, view=view)

    def list(
        self, *, view: View, filter: Any = None, limit: int | None = None, after: str | None = None
    ) -> Iterator[Memory]:
        """The memories in view, by id."""
        return self.index.list(view=view, filter=filter, limit=limit, after=after)

    def ids(self, *, view: View, filter: Any = None) -> frozenset[str]:
        """The ids in view that match a filter."""
        return self.index.ids(view=view, filter=filter)

    def count(self, *, view: View) -> int:
        """How many memories are in view."""
        return self.index.count(view=view)

    def history(self, id: str, /, *, namespace: str = "", vitals: bool = False) -> _list[Version]:
        """Every version of a memory that the index has seen."""
        return self.index.history(id, namespace=namespace, vitals=vitals)

    def thread(self, name: str, /, *, view: View) -> _list[str]:
        """The ids of a thread in view, in reading order."""
        return self.index.thread(name, view=view)

    def edges(self, *, view: View) -> _list[Edge]:
        """The links whose both ends are in view."""
        return self.index.edges(view=view)

    def entries(self, *, view: View) -> _list[Entry]:
        """The ranking fields of every memory in view."""
        return self.index.entries(view=view)

    def vector_pieces(self, *, view: View) -> AbstractContextManager[tuple[int, Iterator[_list[Any]]]]:
        """The seq of this state and every vector in view, in batches."""
        return self.index.vector_pieces(view=view)

    def vector_seqs(self, *, view: View) -> dict[str, int]:
        """The number of the vector of each memory in view that has one."""
        return self.index.vector_seqs(view=view)

    def vector_rows(self, seqs: Sequence[int], /) -> dict[int, bytes]:
        """The bytes of the vectors of these numbers."""
        return self.index.vector_rows(seqs)

    def unembedded(self, *, namespace: str = "", after: str = "", limit: int = 500) -> _list[Memory]:
        """Memories without a vector."""
        return self.index.unembedded(namespace=namespace, after=after, limit=limit)

    def vectors(self, ids: Sequence[str], /, *, view: View) -> _list[Any]:
        """The stored vectors of some ids."""
        return self.index.vectors(ids, view=view)

    def namespaces(self) -> _list[str]:
        """The namespaces that hold at least one memory."""
        return self.index.namespaces()

    def changed_namespaces(self, since: int, /) -> _list[str]:
        """The namespaces with a change after `since`."""
        return self.index.changed_namespaces(since)

    def view_version(self, *, view: View) -> tuple[int, int]:
        """A value that changes when a view of the past does."""
        return self.index.view_version(view=view)

    def last_seq(self) -> int:
        """The newest seq of the index."""
        return self.index.last_seq()

    def changes(self, since: int, /, *, view: View, vectors: bool = False) -> Iterator[Change]:
        """The view's changes after `since`."""
        return self.index.changes(since, view=view, vectors=vectors)

    # --- settings, snapshots and maintenance

    def get_meta(self, key: str, /) -> str | None:
        """A setting."""
        return self.index.get_meta(key)

    def set_meta(self, key: str, value: str | Callable[[str | None], str], /) -> None:
        """Store a setting in the index; a function computes it from the stored one, in one transaction."""
        self.index.set_meta(key, value)

    def fingerprint(self, seq: int, /) -> str | None:
        """A digest of the change with this number; None when the log does not have it."""
        return self.index.fingerprint(seq)

    def drop_snapshots(self, *, namespace: str = "") -> None:
        """Delete the saved states of the search indexes of a namespace."""
        self.index.drop_snapshots(namespace=namespace)

    def load_snapshot(self, index: str, /, *, namespace: str = "") -> tuple[int, bytes] | None:
        """A search index's last saved state."""
        return self.index.load_snapshot(index, namespace=namespace)

    def save_snapshot(self, index: str, watermark: int, blob: bytes, /, *, namespace: str = "") -> None:
        """Save a search index's state."""
        self.index.save_snapshot(index, watermark, blob, namespace=namespace)

    def check(self) -> _list[str]:
        """The problems of the index, the notes that cannot be read, and where the index and the notes differ."""
        with self._lock:
            problems = self._notes.sync().problems
            unread = [f"{path}: {why}" for path, why in problems.items()]
            return _list(dict.fromkeys([*self.index.check(), *unread, *self._notes.differences()]))

    def backup(self, path: str | Path, /) -> None:
        """Copy everything into one SQLite file, which `SQLiteStore` can open."""
        self.index.backup(path)

    def export(self, *, namespace: str | None = None) -> Iterator[dict[str, Any]]:
        """The index's log as rows."""
        return self.index.export(namespace=namespace)

    def restore(
        self, rows: Iterable[Mapping[str, Any]], /, *, progress: Progress | None = None, exact: bool | None = None
    ) -> int:
        """Replay exported rows, then write all notes."""
        transfer.check_rows(rows, progress)
        with self._lock, self._notes.transaction() as current:
            current.sync()
            done = transfer.restore(current.log, rows, progress, exact=exact)
            current.write_all()
            return done

    def close(self) -> None:
        """Close the index."""
        self.index.close()

    def __enter__(self) -> MarkdownStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
