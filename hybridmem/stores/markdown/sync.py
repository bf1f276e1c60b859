"""The files of a Markdown store: reading what changed into the index, and writing notes, each whole or not at all."""

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
from hybridmem.stores.markdown.seen_files import Ledger, Seen
from hybridmem.stores.sql.writer import cleaned
from hybridmem.stores.sqlite.store import SQLiteStore

__all__ = ["Folder", "Synced", "read_notes"]

_CHUNK = 500


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync found: how many notes came, changed and went, and which could not be read (path → why)."""

    added: int = 0
    updated: int = 0
    removed: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)


class Folder:
    """A folder of notes and the index that follows it. The caller holds the lock.

    `noticed` is called when notes were read that somebody wrote or edited by hand.
    """

    def __init__(self, folder: Path, index: SQLiteStore, /, *, noticed: Callable[[], None]) -> None:
        self.folder, self._index, self._ledger, self._noticed = folder, index, Ledger(index), noticed

    # --- reading

    def sync(self, *, force: bool = False) -> Synced:
        """Take over what changed; `force` reads every file again."""
        seen, found = self._ledger.all(), dict(_walk(self.folder))
        fresh = [path for path, stat in sorted(found.items()) if force or _differs(seen.get(path), stat)]
        return self._take(fresh, {path for path in seen if path not in found}, seen)

    def refresh(self, namespace: str, ids: Sequence[str], /) -> None:
        """Read the notes of some memories again if their files changed; one that is gone may only have moved."""
        known = self._seen(namespace, ids)
        stats = [(one, self._stat(one.path)) for one in known]
        if any(stat is None for _, stat in stats):
            self.sync()
            return
        stale = [one.path for one, stat in stats if stat is not None and _differs(one, stat)]
        if stale:
            self._take(stale, set(), self._ledger.all())

    def settle(self, namespace: str, ids: Sequence[str], /) -> None:
        """Before notes are written: take over what was edited by hand; what cannot be read is not written over."""
        self.refresh(namespace, ids)
        for one in self._seen(namespace, ids):
            stat = self._stat(one.path)
            if stat is not None and _differs(one, stat):
                raise StoreError(
                    f"{self.folder / one.path} was edited and cannot be read: repair it first (see check())"
                )

    def _seen(self, namespace: str, ids: Sequence[str]) -> list[Seen]:
        known = cleaned(ids)
        parts = [known[start : start + _CHUNK] for start in range(0, len(known), _CHUNK)]
        return [one for part in parts for one in self._ledger.of(namespace, part).values()]

    def _stat(self, path: str) -> os.stat_result | None:
        with suppress(FileNotFoundError):
            return (self.folder / path).stat()
        return None

    def _take(self, fresh: Sequence[str], gone: set[str], seen: Mapping[str, Seen]) -> Synced:
        """Read changed files into the index, take out what has no file any more, then set statuses and links."""
        owners = {(one.namespace, one.id): path for path, one in seen.items() if path not in gone}
        notes: list[tuple[Seen, Note]] = []
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
                self._ledger.put([entry])  # touched, but the same
            else:
                notes.append((entry, note))
        self._store(notes)
        self._ledger.remove([*gone])
        removed = self._sweep(owners)
        if notes or gone or removed:
            everything = list(self._ledger.all().values())
            self._set_statuses(everything)
            self._set_links(everything)
        if notes:
            self._noticed()
        added = sum(entry.path not in seen for entry, _ in notes)
        return Synced(added, len(notes) - added, removed, problems)

    def _read(self, path: str, old: Seen | None) -> tuple[Seen, Note]:
        full = self.folder / path
        data, stat = full.read_bytes(), full.stat()
        text = data.decode("utf-8", "replace")
        note = parse_note(text, default_id=path.removesuffix(".md"), modified=stat.st_mtime)
        entry, memory = _seen(path, note, data, stat), note.memory
        if old is None and memory.created_at is None:
            memory = replace(memory, created_at=memory.updated_at)
        if old is not None and old.vitals == entry.vitals:  # the note says nothing new about them: the index knows more
            memory = replace(memory, strength=1.0, access_count=0, last_accessed=None)
        return entry, note._replace(memory=memory)

    def _store(self, notes: Sequence[tuple[Seen, Note]]) -> None:
        spaces: dict[str, list[tuple[Seen, Note]]] = {}
        for entry, note in notes:
            spaces.setdefault(entry.namespace, []).append((entry, note))
        for namespace, pairs in spaces.items():
            for start in range(0, len(pairs), _CHUNK):
                part = pairs[start : start + _CHUNK]
                self._index.put([note.memory for _, note in part], namespace=namespace, strict=False)
                self._ledger.put([entry for entry, _ in part])

    def _sweep(self, owners: Mapping[tuple[str, str], str]) -> int:
        """Delete from the index what no file holds."""
        removed = 0
        for namespace in self._index.namespaces():
            ids = self._index.ids(view=View(namespace, superseded=True))
            orphans = sorted(id_ for id_ in ids if (namespace, id_) not in owners)
            removed += self._index.delete(orphans, namespace=namespace) if orphans else 0
        return removed

    def _set_statuses(self, everything: Sequence[Seen]) -> None:
        """A note that does not state its status is superseded as long as another note says so."""
        hidden = {(one.namespace, one.supersedes) for one in everything if one.supersedes is not None}
        for namespace in self._index.namespaces():
            shown = self._index.ids(view=View(namespace))
            open_ = [one.id for one in everything if one.namespace == namespace and one.status is None]
            wrong = [id_ for id_ in open_ if (id_ in shown) == ((namespace, id_) in hidden)]
            found = self._index.get(wrong, view=View(namespace, superseded=True))
            status: Status = "superseded"
            changed = [
                replace(memory, status="active" if memory.status == status else status)
                for memory in found
                if memory is not None
            ]
            self._index.put(changed, namespace=namespace, strict=False)

    def _set_links(self, everything: Sequence[Seen]) -> None:
        """The links of the index are those that notes name and whose both ends are there."""
        for namespace in self._index.namespaces():
            view = View(namespace, superseded=True)
            ids = self._index.ids(view=view)
            named = [edge for one in everything if one.namespace == namespace for edge in one.links]
            wanted = {edge for edge in named if edge.a in ids and edge.b in ids}
            standing = set(self._index.edges(view=view))
            if standing - wanted:
                self._index.unlink(sorted(standing - wanted), namespace=namespace)
            if wanted - standing:
                self._index.link(sorted(wanted - standing), namespace=namespace)

    # --- writing

    def write(self, namespace: str, ids: Iterable[str], /) -> None:
        """Write memories to their notes as the index now shows them."""
        wanted = list(dict.fromkeys(ids))
        for start in range(0, len(wanted), _CHUNK):
            part = wanted[start : start + _CHUNK]
            seen = self._ledger.of(namespace, part)
            memories = self._index.get(part, view=View(namespace, superseded=True))
            entries = [self._write(memory, seen.get(memory.id)) for memory in memories if memory is not None]
            self._ledger.put(entries)

    def _write(self, memory: Memory, old: Seen | None, links: tuple[Edge, ...] | None = None) -> Seen:
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
        return _seen(path, note, data, full.stat())

    def _new_path(self, memory: Memory) -> str:
        folder = f"{file_name(memory.namespace)}/" if memory.namespace else ""
        stem = folder + file_name(memory.id)
        path, number = f"{stem}.md", 1
        while (self.folder / path).exists():
            number += 1
            path = f"{stem}-{number}.md"
        return path

    def write_links(self, namespace: str, edges: Iterable[Edge], /) -> None:
        """Write the notes at both ends of some links with the links that now stand."""
        ends = list(dict.fromkeys(clean(end) for edge in edges for end in edge[:2]))
        view = View(namespace, superseded=True)
        standing = self._index.edges(view=view)
        seen = self._ledger.of(namespace, ends)
        entries = []
        for memory in self._index.get(ends, view=view):
            if memory is not None:
                links = tuple(sorted(edge for edge in standing if edge.a == memory.id))
                old = seen.get(memory.id)
                if old is None or links != old.links:
                    entries.append(self._write(memory, old, links))
        self._ledger.put(entries)

    def write_all(self) -> None:
        """Write every memory of the index to its note, and remove the notes of those that are gone."""
        for namespace in self._index.namespaces():
            view = View(namespace, superseded=True)
            self.write(namespace, sorted(self._index.ids(view=view)))
            self.write_links(namespace, self._index.edges(view=view))
        for path, one in self._ledger.all().items():
            if one.id not in self._index.ids(view=View(one.namespace, superseded=True)):
                (self.folder / path).unlink(missing_ok=True)
                self._ledger.remove([path])

    def remove(self, namespace: str, ids: Sequence[str], /) -> list[Edge]:
        """Remove the notes of memories; the links that other notes have to them (see `write_links`)."""
        known = cleaned(ids)
        links = [edge for edge in self._index.edges(view=View(namespace, superseded=True)) if edge.b in set(known)]
        self.settle(namespace, sorted({edge.a for edge in links} - set(known)))
        self.refresh(namespace, known)
        paths = [one.path for one in self._seen(namespace, known)]
        for path in paths:
            (self.folder / path).unlink(missing_ok=True)
        self._ledger.remove(paths)
        return links


def read_notes(folder: str | Path, /) -> Iterator[Memory]:
    """The memories of a folder of notes, each after what it supersedes: for importing them into another store."""
    root, found = Path(folder), dict[str, Memory]()
    for path, stat in sorted(_walk(Path(folder))):
        text = (root / path).read_bytes().decode("utf-8", "replace")
        try:
            memory = parse_note(text, default_id=path.removesuffix(".md"), modified=stat.st_mtime).memory
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        if memory.id in found:
            raise ConfigError(f"{path}: another note has the id {memory.id!r} already")
        found[memory.id] = memory
    while found:
        ready = [id_ for id_, memory in found.items() if memory.supersedes not in found] or list(found)  # or a circle
        yield from [found.pop(id_) for id_ in ready]


def _walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if name.endswith(".md") and not name.startswith("."):
                full = Path(parent, name)
                with suppress(FileNotFoundError):  # removed while we looked
                    yield full.relative_to(folder).as_posix(), full.stat()


def _differs(seen: Seen | None, stat: os.stat_result) -> bool:
    return seen is None or (seen.modified, seen.size) != (stat.st_mtime_ns, stat.st_size)


def _seen(path: str, note: Note, data: bytes, stat: os.stat_result) -> Seen:
    memory = note.memory
    vitals = json.dumps([memory.strength, memory.access_count, str(memory.last_accessed)])
    status = memory.status if note.says_status else None
    return Seen(
        path, memory.namespace, memory.id, stat.st_mtime_ns, stat.st_size, hashlib.sha256(data).hexdigest(),
        status, memory.supersedes, vitals, note.links,
    )  # fmt: skip
