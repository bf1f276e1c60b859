"""MarkdownStore: a folder of Markdown notes holds the memories; an SQLite file beside them is their index."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hybridmem.core import validation
from hybridmem.core.forks import guard
from hybridmem.core.inputs import Batch
from hybridmem.core.protocols import Progress, View
from hybridmem.core.types import Edge, Memory
from hybridmem.errors import StoreError
from hybridmem.stores.markdown.sync import NoteFolder, SyncReport, read_notes
from hybridmem.stores.sql import transfer, write
from hybridmem.stores.sqlite.store import SQLiteStore

__all__ = ["MarkdownStore", "SyncReport", "read_notes"]

log = logging.getLogger("hybridmem")
_list = list  # `MarkdownStore.list` hides the builtin inside the class
_HOME = ".hybridmem"
T = TypeVar("T")


class MarkdownStore(SQLiteStore):
    """The store protocol over notes `**/*.md` with YAML front matter: an SQLite store that keeps files of its memories.

    The index in `.hybridmem/index.db` can be deleted at any time. It is rebuilt from the files, except for what files
    do not hold: older versions, vectors, and effects of `touch`, `reinforce` and `decay` since a note was last written.
    `touch`, `reinforce`, `decay`, `expire` and vectors change the index only; a backup is one SQLite file.
    All processes share the write lock of the index. A call writes its notes first (each atomically), then the index.
    """

    def __init__(
        self, folder: str | Path, /, *, clock: Callable[[], float] = time.time, busy_timeout: float = 5.0
    ) -> None:
        self.folder = Path(validation.file_path("folder", folder, "the name of a folder of notes")).absolute()
        try:
            self.folder.joinpath(_HOME).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot open {self.folder}: it must be a folder that can be written ({error})") from error
        super().__init__(  # the notes hold the memories: the index may lose its last writes in a power cut
            self.folder / _HOME / "index.db", clock=clock, busy_timeout=busy_timeout, synchronous="normal"
        )
        self._lock = guard(threading.RLock())
        self._on_edit: Callable[[], None] | None = None
        try:
            self._notes = NoteFolder(self.folder, self, on_edit=self._call_on_edit)
            for path, why in self._notes.sync().problems.items():
                log.warning("%s was not read: %s", self.folder / path, why)
        except BaseException:
            self.close()
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
            self.purge()
            return report

    # --- writing: the methods of SQLStore validate, these write notes and the index

    def _put(self, batch: Batch, progress: Progress | None, /) -> _list[str]:
        hidden = validation.ids([memory.supersedes for memory in batch.memories if memory.supersedes])
        ids = validation.ids([memory.id for memory in batch.memories])
        with self._lock, self._notes.transaction() as current:
            current.prepare_write(batch.namespace, [*hidden, *ids])
            written = write.put_batch(current.log, batch, progress=progress)
            current.write(batch.namespace, [*hidden, *written])
            return written

    def _remove(self, remove: Callable[..., int], ids: Sequence[str], namespace: str, /) -> int:
        with self._lock, self._notes.transaction() as current:
            links = current.remove(namespace, ids)
            removed = remove(current.log, ids, namespace=namespace)
            current.write_links(namespace, links)
            return removed

    def erase_namespace(self, namespace: str, /) -> int:
        """Remove every note of a namespace and the whole history in the index; returns how many existed."""
        with self._lock:
            notes = sorted(self.ids(view=View(validation.namespace(namespace), superseded=True)))
            return self.erase(notes, namespace=namespace) + super().erase_namespace(namespace)

    def _change_links(self, change: Callable[..., T], edges: Sequence[Edge], namespace: str, /) -> T:
        with self._lock, self._notes.transaction() as current:
            current.prepare_write(namespace, [end for edge in edges for end in edge[:2]])
            result = change(current.log, edges, namespace=namespace)
            current.write_links(namespace, edges)
            return result

    def _restore(self, rows: Iterable[Mapping[str, Any]], progress: Progress | None, /, *, exact: bool | None) -> int:
        with self._lock, self._notes.transaction() as current:
            current.sync()
            done = transfer.restore(current.log, rows, progress, exact=exact)
            current.write_all()
            return done

    # --- reading

    def get(self, ids: Sequence[str], /, *, view: View) -> _list[Memory | None]:
        """The memories of some ids; a note edited since it was indexed is read again first."""
        validation.view(view)
        ids = validation.ids(ids)
        if view.as_of is None:
            with self._lock:
                self._notes.refresh(view.namespace, ids)
        return super().get(ids, view=view)

    def check(self) -> _list[str]:
        """The problems of the index, the notes that cannot be read, and where the index and the notes differ."""
        with self._lock:
            problems = self._notes.sync().problems
            unread = [f"{path}: {why}" for path, why in problems.items()]
            return _list(dict.fromkeys([*super().check(), *unread, *self._notes.differences()]))
