"""Synchronisation of a folder of notes with its index: reading changed files, and writing notes atomically."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hybridmem.core.protocols import View
from hybridmem.core.types import Edge, Memory, Status
from hybridmem.core.validation import clean
from hybridmem.errors import ConfigError, StoreError
from hybridmem.stores.markdown.note import Note, file_name, format_note, parse_note
from hybridmem.stores.markdown.seen_files import SeenFile, SeenFiles
from hybridmem.stores.sql.validation import checked_ids
from hybridmem.stores.sqlite.store import SQLiteStore

__all__ = ["NoteFolder", "SyncReport", "read_notes"]

_CHUNK = 500


@dataclass(frozen=True, slots=True)
class SyncReport:
    """The result of a sync: how many notes were added, updated and removed; which could not be read (path → why)."""

    added: int = 0
    updated: int = 0
    removed: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)


class NoteFolder:
    """A folder of notes and its index. The caller holds the lock.

    `on_edit` is called when notes were read that somebody wrote or edited by hand.
    """

    def __init__(self, folder: Path, index: SQLiteStore, /, *, on_edit: Callable[[], None]) -> None:
        self.folder, self._index, self._files, self._on_edit = folder, index, SeenFiles(index), on_edit

    # --- reading

    def sync(self, *, force: bool = False) -> SyncReport:
        """Read changed files into the index; `force` reads every file again."""
        seen, present = self._files.all(), dict(_walk(self.folder))
        fresh = [path for path, stat in sorted(present.items()) if force or _differs(seen.get(path), stat)]
        return self._update(fresh, {path for path in seen if path not in present}, seen)

    def refresh(self, namespace: str, ids: Sequence[str], /) -> None:
        """Read the notes of some memories again if their files changed; a missing file may have moved."""
        stats = [(one, self._stat(one.path)) for one in self._seen_files(namespace, ids)]
        if any(stat is None for _, stat in stats):
            self.sync()
            return
        stale = [one.path for one, stat in stats if stat is not None and _differs(one, stat)]
        if stale:
            self._update(stale, set(), self._files.all())

    def prepare_write(self, namespace: str, ids: Sequence[str], /) -> None:
        """Read manual edits before notes are written; refuse to overwrite a file that cannot be read."""
        self.refresh(namespace, ids)
        for one in self._seen_files(namespace, ids):
            stat = self._stat(one.path)
            if stat is not None and _differs(one, stat):
                raise StoreError(
                    f"{self.folder / one.path} was edited and cannot be read: repair it first (see check())"
                )

    def _seen_files(self, namespace: str, ids: Sequence[str]) -> list[SeenFile]:
        wanted = checked_ids(ids)
        parts = [wanted[start : start + _CHUNK] for start in range(0, len(wanted), _CHUNK)]
        return [one for part in parts for one in self._files.of(namespace, part).values()]

    def _stat(self, path: str) -> os.stat_result | None:
        with suppress(FileNotFoundError):
            return (self.folder / path).stat()
        return None

    def _update(self, fresh: Sequence[str], gone: set[str], seen: Mapping[str, SeenFile]) -> SyncReport:
        """Read changed files into the index, remove what has no file any more, then set statuses and links."""
        owners = {(one.namespace, one.id): path for path, one in seen.items() if path not in gone}
        notes: list[tuple[SeenFile, Note]] = []
        problems: dict[str, str] = {}
        for path in fresh:
            old = seen.get(path)
            try:
                entry, note = self._read(path, old)
                if old is not None and old[1:3] != entry[1:3]:
                    owners.pop((old.namespace, old.id), None)
                owner = owners.setdefault((entry.namespace, entry.id), path)
                if owner != path:
                    problems[path] = f"the id {entry.id!r} belongs to {owner} already"
                    continue
            except (ConfigError, OSError) as error:
                problems[path] = str(error)
                continue
            if old is not None and old.digest == entry.digest:
                self._files.put([entry])  # a new time, but the same contents
            else:
                notes.append((entry, note))
        self._store(notes)
        self._files.remove([*gone])
        removed = self._sweep(owners)
        if notes or gone or removed:
            everything = list(self._files.all().values())
            self._set_statuses(everything)
            self._set_links(everything)
        if notes:
            self._on_edit()
        added = sum(entry.path not in seen for entry, _ in notes)
        return SyncReport(added, len(notes) - added, removed, problems)

    def _read(self, path: str, old: SeenFile | None) -> tuple[SeenFile, Note]:
        full = self.folder / path
        data, stat = full.read_bytes(), full.stat()
        text = data.decode("utf-8", "replace")
        note = parse_note(text, default_id=path.removesuffix(".md"), modified=stat.st_mtime)
        entry, memory = _seen_file(path, note, data, stat), note.memory
        if old is None and memory.created_at is None:
            memory = replace(memory, created_at=memory.updated_at)
        if old is not None and old.vitals == entry.vitals:  # unchanged in the note: the index has newer values
            memory = replace(memory, strength=1.0, access_count=0, last_accessed=None)
        return entry, note._replace(memory=memory)

    def _store(self, notes: Sequence[tuple[SeenFile, Note]]) -> None:
        spaces: dict[str, list[tuple[SeenFile, Note]]] = {}
        for entry, note in notes:
            spaces.setdefault(entry.namespace, []).append((entry, note))
        for namespace, pairs in spaces.items():
            for start in range(0, len(pairs), _CHUNK):
                part = pairs[start : start + _CHUNK]
                self._index.put([note.memory for _, note in part], namespace=namespace, strict=False)
                self._files.put([entry for entry, _ in part])

    def _sweep(self, owners: Mapping[tuple[str, str], str]) -> int:
        """Delete memories without a file from the index."""
        removed = 0
        for namespace in self._index.namespaces():
            ids = self._index.ids(view=View(namespace, superseded=True))
            orphans = sorted(id_ for id_ in ids if (namespace, id_) not in owners)
            removed += self._index.delete(orphans, namespace=namespace) if orphans else 0
        return removed

    def _set_statuses(self, everything: Sequence[SeenFile]) -> None:
        """A note that states no status is superseded as long as another note supersedes it."""
        hidden = {(one.namespace, one.supersedes) for one in everything if one.supersedes is not None}
        for namespace in self._index.namespaces():
            visible = self._index.ids(view=View(namespace))
            unstated = [one.id for one in everything if one.namespace == namespace and one.status is None]
            wrong = [id_ for id_ in unstated if (id_ in visible) == ((namespace, id_) in hidden)]
            found = self._index.get(wrong, view=View(namespace, superseded=True))
            status: Status = "superseded"
            changed = [
                replace(memory, status="active" if memory.status == status else status)
                for memory in found
                if memory is not None
            ]
            self._index.put(changed, namespace=namespace, strict=False)

    def _set_links(self, everything: Sequence[SeenFile]) -> None:
        """Set the links of the index to those that notes state and whose ends both exist."""
        for namespace in self._index.namespaces():
            view = View(namespace, superseded=True)
            ids = self._index.ids(view=view)
            named = [edge for one in everything if one.namespace == namespace for edge in one.links]
            wanted = {edge for edge in named if edge.a in ids and edge.b in ids}
            existing = set(self._index.edges(view=view))
            if existing - wanted:
                self._index.unlink(sorted(existing - wanted), namespace=namespace)
            if wanted - existing:
                self._index.link(sorted(wanted - existing), namespace=namespace)

    # --- writing

    def write(self, namespace: str, ids: Iterable[str], /) -> None:
        """Write the current state of memories to their notes."""
        wanted = list(dict.fromkeys(ids))
        for start in range(0, len(wanted), _CHUNK):
            part = wanted[start : start + _CHUNK]
            seen = self._files.of(namespace, part)
            memories = self._index.get(part, view=View(namespace, superseded=True))
            entries = [self._write(memory, seen.get(memory.id)) for memory in memories if memory is not None]
            self._files.put(entries)

    def _write(self, memory: Memory, old: SeenFile | None, links: tuple[Edge, ...] | None = None) -> SeenFile:
        path = old.path if old is not None else self._new_path(memory)
        note = Note(memory, (old.links if old is not None else ()) if links is None else links)
        full = self.folder / path
        full.parent.mkdir(parents=True, exist_ok=True)
        data = format_note(note).encode()
        part = full.with_name(f".{full.name}.part")
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(full)
        return _seen_file(path, note, data, full.stat())

    def _new_path(self, memory: Memory) -> str:
        folder = f"{file_name(memory.namespace)}/" if memory.namespace else ""
        stem = folder + file_name(memory.id)
        path, number = f"{stem}.md", 1
        while (self.folder / path).exists():
            number += 1
            path = f"{stem}-{number}.md"
        return path

    def write_links(self, namespace: str, edges: Iterable[Edge], /) -> None:
        """Write the notes at both ends of some links with their current links."""
        ends = list(dict.fromkeys(clean(end) for edge in edges for end in edge[:2]))
        view = View(namespace, superseded=True)
        existing = self._index.edges(view=view)
        seen = self._files.of(namespace, ends)
        entries = []
        for memory in self._index.get(ends, view=view):
            if memory is not None:
                links = tuple(sorted(edge for edge in existing if edge.a == memory.id))
                old = seen.get(memory.id)
                if old is None or links != old.links:
                    entries.append(self._write(memory, old, links))
        self._files.put(entries)

    def write_all(self) -> None:
        """Write every memory of the index to its note, and remove the notes of deleted memories."""
        for namespace in self._index.namespaces():
            view = View(namespace, superseded=True)
            self.write(namespace, sorted(self._index.ids(view=view)))
            self.write_links(namespace, self._index.edges(view=view))
        for path, one in self._files.all().items():
            if one.id not in self._index.ids(view=View(one.namespace, superseded=True)):
                (self.folder / path).unlink(missing_ok=True)
                self._files.remove([path])

    def remove(self, namespace: str, ids: Sequence[str], /) -> list[Edge]:
        """Remove the notes of memories; returns the links of other notes to them, for `write_links`."""
        removed = checked_ids(ids)
        links = [edge for edge in self._index.edges(view=View(namespace, superseded=True)) if edge.b in set(removed)]
        self.prepare_write(namespace, sorted({edge.a for edge in links} - set(removed)))
        self.refresh(namespace, removed)
        paths = [one.path for one in self._seen_files(namespace, removed)]
        for path in paths:
            (self.folder / path).unlink(missing_ok=True)
        self._files.remove(paths)
        return links


def read_notes(folder: str | Path, /) -> Iterator[Memory]:
    """The memories of a folder of notes, each after the one it supersedes, for an import into another store."""
    root, notes = Path(folder), dict[str, Memory]()
    for path, stat in sorted(_walk(Path(folder))):
        text = (root / path).read_bytes().decode("utf-8", "replace")
        try:
            memory = parse_note(text, default_id=path.removesuffix(".md"), modified=stat.st_mtime).memory
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        if memory.id in notes:
            raise ConfigError(f"{path}: another note has the id {memory.id!r} already")
        notes[memory.id] = memory
    while notes:
        ready = [id_ for id_, memory in notes.items() if memory.supersedes not in notes] or list(notes)  # or a circle
        yield from [notes.pop(id_) for id_ in ready]


def _walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if name.endswith(".md") and not name.startswith("."):
                full = Path(parent, name)
                with suppress(FileNotFoundError):  # removed during the walk
                    yield full.relative_to(folder).as_posix(), full.stat()


def _differs(seen: SeenFile | None, stat: os.stat_result) -> bool:
    return seen is None or (seen.modified, seen.size) != (stat.st_mtime_ns, stat.st_size)


def _seen_file(path: str, note: Note, data: bytes, stat: os.stat_result) -> SeenFile:
    memory = note.memory
    vitals = json.dumps([memory.strength, memory.access_count, str(memory.last_accessed)])
    status = memory.status if note.states_status else None
    return SeenFile(
        path, memory.namespace, memory.id, stat.st_mtime_ns, stat.st_size, hashlib.sha256(data).hexdigest(),
        status, memory.supersedes, vitals, note.links,
    )  # fmt: skip
