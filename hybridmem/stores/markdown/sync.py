"""Synchronisation of a folder of notes with its index, inside write transactions of the index.

The write lock of the index database serialises all processes. A write goes first to the files and then, with the
commit, to the index. A call that fails writes the old notes back; those of a process that is killed in between are
written back by the next transaction (see NoteWriter).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hybridmem.core.protocols import View
from hybridmem.core.types import Edge, Memory, Status
from hybridmem.errors import ConfigError, StoreError
from hybridmem.stores.markdown.files import (
    NoteWriter,
    SeenFile,
    all_files,
    create_table,
    delete_files,
    files_of,
    put_files,
    read_file,
    scan,
    unfinished,
)
from hybridmem.stores.markdown.note import Note, file_name, format_note, parse_note
from hybridmem.stores.sql import read, write
from hybridmem.stores.sql.log import Log, dump
from hybridmem.stores.sqlite.store import SQLiteStore

__all__ = ["NoteFolder", "NoteTransaction", "SyncReport", "read_notes"]

_CHUNK = 500
_COMPARED = (
    "text", "title", "tags", "predicate", "subject", "source_id", "thread", "type", "entities", "supersedes", "speaker",
    "event_at", "expires_at", "confidence",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SyncReport:
    """The result of a sync: how many notes were added, updated and removed; which could not be read (path → why)."""

    added: int = 0
    updated: int = 0
    removed: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)


class NoteFolder:
    """A folder of notes and its index. `on_edit` is called after a sync that read notes edited by hand."""

    def __init__(self, folder: Path, index: SQLiteStore, /, *, on_edit: Callable[[], None]) -> None:
        self.folder, self._index, self._on_edit = folder, index, on_edit
        self._home = Path(index.path).parent
        with index.snapshot() as conn:
            exists = conn.execute("SELECT 1 FROM sqlite_master WHERE name = 'notes_published'").fetchone()
        if not exists:
            with index.transaction() as log:
                create_table(log.conn)

    @contextmanager
    def transaction(self) -> Iterator[NoteTransaction]:
        """One write transaction of the index and its notes: the notes are published just before the commit."""
        notes = NoteWriter(self.folder, self._home)
        try:
            with self._index.transaction(undo=notes.restore) as log:
                notes.recover(log.conn)
                current = NoteTransaction(self.folder, log, notes)
                yield current
                log.finish()
                notes.publish(log.conn)
            notes.finish()
        finally:
            notes.discard()
        if current.edited:
            self._on_edit()

    def sync(self, *, force: bool = False) -> SyncReport:
        """Read changed files into the index; `force` reads every file again."""
        if not force:
            with self._index.snapshot() as conn:
                seen = all_files(conn)
                stored = conn.execute("SELECT count(*) FROM memories WHERE live").fetchone()[0]
            found = scan(self.folder)
            unchanged = (
                stored == len(seen) and seen.keys() == found.notes.keys() and not found.leftovers and not found.problems
            )
            if (
                unchanged
                and not unfinished(self._home)
                and not any(_differs(seen[path], state) for path, state in found.notes.items())
            ):
                return SyncReport()
        with self.transaction() as current:
            return current.sync(force=force)

    def refresh(self, namespace: str, ids: Sequence[str], /) -> None:
        """Read the notes of some memories again if their files changed."""
        with self._index.snapshot() as conn:
            seen = files_of(conn, namespace, ids)
        if any(self._changed(file) for file in seen.values()):
            with self.transaction() as current:
                current.refresh(namespace, ids)

    def _changed(self, file: SeenFile) -> bool:
        return _differs(file, _state(self.folder / file.path))

    def differences(self) -> list[str]:
        """Where the index and the files differ, one sentence each."""
        with self._index.snapshot() as conn:
            seen = all_files(conn)
            indexed = {
                (namespace, memory.id): memory
                for namespace in read.namespaces(conn)
                for memory in _memories(conn, namespace, read.ids(conn, View(namespace, superseded=True), None))
            }
        problems = [f"{path}: {why}" for path, why in _circle_problems(list(seen.values())).items()]
        for path, file in seen.items():
            memory = indexed.pop((file.namespace, file.id), None)
            with suppress(ConfigError, OSError):  # reported by the sync
                data, state = read_file(self.folder / path)
                note = _parse(data, path, state)
                if memory is None and note.memory.expires_at is None:  # an expired note stays until a sweep
                    problems.append(f"{path}: its memory {file.id!r} is missing in the index")
                if memory is None:
                    continue
                problems += [f"{path}: its {name} differs from the index" for name in _different(note, memory)]
        problems += [f"memory {id_!r} of namespace {namespace!r} has no note" for namespace, id_ in indexed]
        return problems


class NoteTransaction:
    """The state of one write transaction: `log` records in the index, `notes` stages files."""

    def __init__(self, folder: Path, log: Log, notes: NoteWriter, /) -> None:
        self.folder, self.log, self._notes = folder, log, notes
        self._conn = log.conn
        self.edited = False
        """Whether notes were read that somebody wrote or edited by hand."""

    # --- reading files

    def sync(self, *, force: bool = False) -> SyncReport:
        """Read changed files into the index; `force` reads every file again."""
        seen, found = all_files(self._conn), scan(self.folder)
        for leftover in found.leftovers:  # of a killed process: this transaction holds the lock and has staged nothing
            leftover.unlink(missing_ok=True)
        fresh = [path for path, state in sorted(found.notes.items()) if force or _differs(seen.get(path), state)]
        report = self._update(fresh, {path for path in seen if path not in found.notes}, seen)
        return replace(report, problems={**found.problems, **report.problems})

    def refresh(self, namespace: str, ids: Sequence[str], /) -> None:
        """Read the notes of some memories again if their files changed; a missing file may have moved."""
        states = [(file, _state(self.folder / file.path)) for file in self._files(namespace, ids)]
        if any(state is None for _, state in states):
            self.sync()
            return
        stale = [file.path for file, state in states if _differs(file, state)]
        if stale:
            self._update(stale, set(), all_files(self._conn))

    def prepare_write(self, namespace: str, ids: Sequence[str], /) -> None:
        """Read manual edits before notes are written; refuse to overwrite a file that cannot be read."""
        self.refresh(namespace, ids)
        for file in self._files(namespace, ids):
            state = _state(self.folder / file.path)
            if state is not None and _differs(file, state):
                raise StoreError(
                    f"{self.folder / file.path} was edited and cannot be read: repair it first (see check())"
                )

    def _files(self, namespace: str, ids: Sequence[str]) -> list[SeenFile]:
        return list(files_of(self._conn, namespace, ids).values())

    def _update(self, fresh: Sequence[str], gone: set[str], seen: Mapping[str, SeenFile]) -> SyncReport:
        """Read changed files into the index, remove what has no file any more, then set statuses and links."""
        owners = {(file.namespace, file.id): path for path, file in seen.items() if path not in gone}
        changed: list[tuple[SeenFile, Note]] = []
        problems: dict[str, str] = {}
        for path in fresh:
            old = seen.get(path)
            try:
                file, note = self._read(path, old)
                if old is not None and old[1:3] != file[1:3]:
                    owners.pop((old.namespace, old.id), None)
                owner = owners.setdefault((file.namespace, file.id), path)
                if owner != path:
                    problems[path] = f"the id {file.id!r} belongs to {owner} already"
                    continue
            except (ConfigError, OSError) as error:
                problems[path] = str(error)
                continue
            if old is not None and old.digest == file.digest:
                put_files(self._conn, [file])  # a new time, but the same contents
            else:
                changed.append((file, note))
        self._store(changed)
        delete_files(self._conn, [*gone])
        removed = self._sweep(owners)
        if changed or gone or removed:
            everything = list(all_files(self._conn).values())
            self._set_statuses(everything)
            self._set_links(everything)
        for path, why in _circle_problems(list(all_files(self._conn).values())).items():
            problems.setdefault(path, why)
        self.edited = self.edited or bool(changed)
        added = sum(file.path not in seen for file, _ in changed)
        return SyncReport(added, len(changed) - added, removed, problems)

    def _read(self, path: str, old: SeenFile | None) -> tuple[SeenFile, Note]:
        data, state = read_file(self.folder / path)
        note = _parse(data, path, state)
        file, memory = _seen_file(path, note, data, state), note.memory
        if old is None and memory.created_at is None:
            memory = replace(memory, created_at=memory.updated_at)
        if old is not None and old.vitals == file.vitals:  # unchanged in the note: the index has newer values
            memory = replace(memory, strength=1.0, access_count=0, last_accessed=None)
        return file, note._replace(memory=memory)

    def _store(self, changed: Sequence[tuple[SeenFile, Note]]) -> None:
        namespaces: dict[str, list[tuple[SeenFile, Note]]] = {}
        for file, note in changed:
            namespaces.setdefault(file.namespace, []).append((file, note))
        for namespace, pairs in namespaces.items():
            memories = [note.memory for _, note in pairs]
            write.put(self.log, memories, [memory.id for memory in memories], namespace=namespace, strict=False)
            put_files(self._conn, [file for file, _ in pairs])
        self.log.flush()

    def _sweep(self, owners: Mapping[tuple[str, str], str]) -> int:
        """Delete memories without a file from the index."""
        removed = 0
        for namespace in read.namespaces(self._conn):
            orphans = sorted(id_ for id_ in self._ids(namespace) if (namespace, id_) not in owners)
            removed += write.delete(self.log, orphans, namespace=namespace) if orphans else 0
        self.log.flush()
        return removed

    def _ids(self, namespace: str, *, superseded: bool = True) -> frozenset[str]:
        return read.ids(self._conn, View(namespace, superseded=superseded), None)

    def _set_statuses(self, everything: Sequence[SeenFile]) -> None:
        """A note that states no status is superseded as long as another note supersedes it."""
        ignored = _circles(everything)
        hidden = {
            (file.namespace, file.supersedes)
            for file in everything
            if file.supersedes is not None and file.path not in ignored
        }
        for namespace in read.namespaces(self._conn):
            visible = self._ids(namespace, superseded=False)
            unstated = [file.id for file in everything if file.namespace == namespace and file.status is None]
            wrong = [id_ for id_ in unstated if (id_ in visible) == ((namespace, id_) in hidden)]
            status: Status = "superseded"
            changed = [
                replace(memory, status="active" if memory.status == status else status)
                for memory in _memories(self._conn, namespace, wrong)
            ]
            if changed:
                write.put(self.log, changed, [memory.id for memory in changed], namespace=namespace, strict=False)
        self.log.flush()

    def _set_links(self, everything: Sequence[SeenFile]) -> None:
        """Set the links of the index to those that notes state and whose ends both exist."""
        for namespace in read.namespaces(self._conn):
            ids = self._ids(namespace)
            stated = [edge for file in everything if file.namespace == namespace for edge in file.links]
            wanted = {edge for edge in stated if edge.a in ids and edge.b in ids}
            existing = set(self._edges(namespace))
            if existing - wanted:
                write.unlink(self.log, sorted(existing - wanted), namespace=namespace)
            if wanted - existing:
                write.link(self.log, sorted(wanted - existing), namespace=namespace)
        self.log.flush()

    def _edges(self, namespace: str) -> list[Edge]:
        return read.edges(self._conn, View(namespace, superseded=True))

    # --- staging files

    def write(self, namespace: str, ids: Iterable[str], /) -> None:
        """Stage the notes of memories with their recorded state."""
        self.log.flush()
        wanted = list(dict.fromkeys(ids))
        seen = files_of(self._conn, namespace, wanted)
        memories = _memories(self._conn, namespace, wanted)
        put_files(self._conn, [self._write(memory, seen.get(memory.id)) for memory in memories])

    def _write(self, memory: Memory, old: SeenFile | None, links: tuple[Edge, ...] | None = None) -> SeenFile:
        path = old.path if old is not None else self._new_path(memory)
        note = Note(memory, (old.links if old is not None else ()) if links is None else links)
        data = format_note(note).encode()
        return _seen_file(path, note, data, self._notes.stage(path, data))

    def _new_path(self, memory: Memory) -> str:
        folder = f"{file_name(memory.namespace)}/" if memory.namespace else ""
        stem = folder + file_name(memory.id)
        path, number = f"{stem}.md", 1
        while (
            os.path.lexists(self.folder / path)
            or self._conn.execute("SELECT 1 FROM notes WHERE path = ?", (path,)).fetchone()
        ):
            number += 1
            path = f"{stem}-{number}.md"
        return path

    def write_links(self, namespace: str, edges: Iterable[Edge], /) -> None:
        """Stage the notes at both ends of some links with their recorded links."""
        self.log.flush()
        ends = list(dict.fromkeys(end for edge in edges for end in edge[:2]))
        existing = self._edges(namespace)
        seen = files_of(self._conn, namespace, ends)
        files = []
        for memory in _memories(self._conn, namespace, ends):
            links = tuple(sorted(edge for edge in existing if edge.a == memory.id))
            old = seen.get(memory.id)
            if old is None or links != old.links:
                files.append(self._write(memory, old, links))
        put_files(self._conn, files)

    def write_all(self) -> None:
        """Stage every memory of the index, and remove the notes of deleted memories."""
        self.log.flush()
        for namespace in read.namespaces(self._conn):
            self.write(namespace, sorted(self._ids(namespace)))
            self.write_links(namespace, self._edges(namespace))
        for path, file in all_files(self._conn).items():
            if file.id not in self._ids(file.namespace):
                self._notes.remove(path)
                delete_files(self._conn, [path])

    def remove(self, namespace: str, ids: Sequence[str], /) -> list[Edge]:
        """Stage the removal of the notes of memories; returns the links of other notes to them, for `write_links`."""
        removed = set(ids)
        links = [edge for edge in self._edges(namespace) if edge.b in removed]
        self.prepare_write(namespace, sorted({edge.a for edge in links} - removed))
        self.refresh(namespace, ids)
        paths = [file.path for file in self._files(namespace, ids)]
        for path in paths:
            self._notes.remove(path)
        delete_files(self._conn, paths)
        return links

    def clear(self) -> None:
        """Erase everything from the index, so that a forced sync builds it again; other processes follow the log."""
        delete_files(self._conn, list(all_files(self._conn)))
        for namespace in read.namespaces(self._conn):
            write.erase(self.log, sorted(self._ids(namespace)), namespace=namespace)
        self.log.flush()


def _circles(files: Sequence[SeenFile]) -> dict[str, str]:
    """For each circle of notes that supersede each other, the note whose `supersedes` names the newest one."""
    by_id = {(file.namespace, file.id): file for file in files if file.supersedes is not None}
    found: dict[str, str] = {}
    for start in files:
        path: list[SeenFile] = []
        file: SeenFile | None = by_id.get((start.namespace, start.id))
        while file is not None and file not in path:
            path.append(file)
            file = by_id.get((file.namespace, file.supersedes or ""))
        if file is not None and file is start and path:
            newest = max(path, key=lambda one: (one.modified, one.path))
            closing = next(one for one in path if one.supersedes == newest.id)
            found[closing.path] = " → ".join(repr(one.id) for one in (*path, path[0]))
    return found


def _circle_problems(files: Sequence[SeenFile]) -> dict[str, str]:
    reason = "its `supersedes` is ignored, since it closes a circle: "
    return {path: reason + circle for path, circle in _circles(files).items()}


def read_notes(folder: str | Path, /) -> Iterator[Memory]:
    """The memories of a folder of notes, each after the one it supersedes, for an import into another store."""
    root, notes = Path(folder), dict[str, Memory]()
    for path in sorted(scan(root).notes):
        try:
            memory = _parse(*_data(root, path)).memory
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        if memory.id in notes:
            raise ConfigError(f"{path}: another note has the id {memory.id!r} already")
        notes[memory.id] = memory
    while notes:
        ready = [id_ for id_, memory in notes.items() if memory.supersedes not in notes] or list(notes)  # or a circle
        yield from [notes.pop(id_) for id_ in ready]


def _data(root: Path, path: str) -> tuple[bytes, str, os.stat_result]:
    data, state = read_file(root / path)
    return data, path, state


def _parse(data: bytes, path: str, state: os.stat_result) -> Note:
    text = data.decode("utf-8", "replace")
    return parse_note(text, default_id=path.removesuffix(".md"), modified=state.st_mtime)


def _memories(conn: Any, namespace: str, ids: Iterable[str]) -> list[Memory]:
    """The existing memories among some ids, in their order."""
    wanted, found = list(ids), dict[str, Memory]()
    for start in range(0, len(wanted), _CHUNK):
        found |= read.get(conn, View(namespace, superseded=True), wanted[start : start + _CHUNK])
    return [found[id_] for id_ in wanted if id_ in found]


def _state(path: Path) -> os.stat_result | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.lstat()
    return None


def _differs(file: SeenFile | None, state: os.stat_result | None) -> bool:
    return file is None or state is None or (file.modified, file.size) != (state.st_mtime_ns, state.st_size)


def _different(note: Note, memory: Memory) -> list[str]:
    """The fields of a note that differ from the index; vitals and times of writing are not compared."""
    names = [name for name in _COMPARED if (getattr(note.memory, name) or None) != (getattr(memory, name) or None)]
    if json.loads(dump(note.memory.metadata)) != json.loads(dump(memory.metadata)):  # the order of keys may differ
        names.append("metadata")
    if note.states_status and note.memory.status != memory.status:
        names.append("status")
    return names


def _seen_file(path: str, note: Note, data: bytes, state: os.stat_result) -> SeenFile:
    memory = note.memory
    vitals = json.dumps([memory.strength, memory.access_count, str(memory.last_accessed)])
    status = memory.status if note.states_status else None
    return SeenFile(
        path, memory.namespace, memory.id, state.st_mtime_ns, state.st_size, hashlib.sha256(data).hexdigest(),
        status, memory.supersedes, vitals, note.links,
    )  # fmt: skip
