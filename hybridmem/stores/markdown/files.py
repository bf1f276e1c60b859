"""Files of a folder of notes: finding, reading and replacing them, and the table of their last known states.

Only regular files are read, never through symbolic links. A note is written to a temporary file, synchronised to disk
and renamed, so that a reader sees the old or the new note and a killed writer leaves no partial one.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import stat as modes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hybridmem.core.types import Edge
from hybridmem.errors import CorruptStoreError, StoreError
from hybridmem.stores.sql.read import SQLConnection, edge_from, placeholders

__all__ = [
    "FolderScan",
    "NoteWriter",
    "SeenFile",
    "all_files",
    "create_table",
    "delete_files",
    "files_of",
    "put_files",
    "read_file",
    "scan",
    "unfinished",
]

_LEFTOVER = re.compile(r"\.[0-9a-f]{16}\.part")
"""Temporary files of this module; other hidden files belong to other programs."""
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class FolderScan(NamedTuple):
    """The files of a folder: notes with their state, temporary files, and files that are not read (path → why)."""

    notes: Mapping[str, os.stat_result]
    leftovers: list[Path]
    problems: Mapping[str, str]


def scan(folder: Path, /) -> FolderScan:
    """Every `*.md` below a folder; hidden files and folders are left out."""
    notes: dict[str, os.stat_result] = {}
    leftovers: list[Path] = []
    problems: dict[str, str] = {}
    for parent, folders, files in os.walk(folder):
        for name in folders:
            if not name.startswith(".") and Path(parent, name).is_symlink():
                problems[_relative(folder, parent, name)] = "it is a symbolic link, which is not followed"
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if name.startswith("."):
                if _LEFTOVER.fullmatch(name):
                    leftovers.append(Path(parent, name))
            elif name.endswith(".md"):
                with suppress(FileNotFoundError):  # removed during the walk
                    state = Path(parent, name).lstat()
                    if modes.S_ISREG(state.st_mode):
                        notes[_relative(folder, parent, name)] = state
                    else:
                        problems[_relative(folder, parent, name)] = "it is not a regular file"
    return FolderScan(notes, leftovers, problems)


def _relative(folder: Path, parent: str, name: str) -> str:
    return Path(parent, name).relative_to(folder).as_posix()


def read_file(path: Path, /) -> tuple[bytes, os.stat_result]:
    """The contents of a regular file, and its state before they were read: a later change is then noticed."""
    descriptor = os.open(path, _OPEN)
    with open(descriptor, "rb") as file:  # noqa: PTH123
        state = os.fstat(file.fileno())
        if not modes.S_ISREG(state.st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read(), state


class NoteWriter:
    """Replaces and removes several notes of a folder together, inside a write transaction of its index.

    `stage` writes a temporary file; `publish` renames all of them and removes files. Until then nothing has changed.
    If one of them fails, or the commit after them, `restore` writes the old notes back. Before several notes change,
    the old ones are saved in the folder of the index: after a killed process the next transaction writes them back
    (`recover`), unless the killed one was committed. `discard` removes the temporary files.
    """

    def __init__(self, folder: Path, home: Path, /) -> None:
        self._folder, self._home = folder, home
        self._staged: dict[str, Path] = {}
        self._removed: list[str] = []
        self._old: dict[str, _Contents | None] = {}
        """The notes that were published, as they were before; None for a new one."""
        self._kept: dict[str, Path] = {}
        """Second names of the old notes, which are renamed back: a full disk has no space to write them again."""
        self._saved: Path | None = None

    def stage(self, path: str, data: bytes, /) -> os.stat_result:
        """Write the next contents of a note to a temporary file; returns the state that it will have."""
        full = self._checked(path)
        part = full.with_name(f".{secrets.token_hex(8)}.part")
        try:
            full.parent.mkdir(parents=True, exist_ok=True)
            self._checked(path)
            old = self._staged.pop(path, None)
            if old is not None:
                old.unlink(missing_ok=True)
            self._staged[path] = part
            with part.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                return os.fstat(file.fileno())
        except OSError as error:
            raise StoreError(f"cannot write the note {full}: {error}") from error

    def remove(self, path: str, /) -> None:
        """Remove a note when the others are published."""
        self._checked(path)
        self._removed.append(path)

    def _checked(self, path: str) -> Path:
        """The path of a note whose folders are not symbolic links, so that no file outside the folder is changed."""
        full = self._folder
        for name in Path(path).parts[:-1]:
            full /= name
            if full.is_symlink():
                raise StoreError(f"cannot write the note {self._folder / path}: {full} is a symbolic link")
        return self._folder / path

    def publish(self, conn: SQLConnection, /) -> None:
        """Rename the temporary files to their notes, remove the others, and synchronise the folders to disk."""
        try:
            self._old = {path: self._contents(path) for path in (*self._removed, *self._staged)}
            if len(self._old) > 1:
                self._save_old(conn)
            self._keep_old()
            for path in self._old.keys() - self._staged.keys():
                (self._folder / path).unlink(missing_ok=True)
            for path, part in list(self._staged.items()):
                part.replace(self._folder / path)
                del self._staged[path]
            for folder in {(self._folder / path).parent for path in self._old}:
                _sync_folder(folder)
        except OSError as error:
            raise StoreError(f"cannot write the notes of {self._folder}: {error}") from error

    def _keep_old(self) -> None:
        for path, old in self._old.items():
            if old is not None:
                note = self._folder / path
                kept = note.with_name(f".{secrets.token_hex(8)}.part")
                with suppress(OSError):  # a file system without hard links: `restore` writes the contents again
                    os.link(note, kept)
                    self._kept[path] = kept

    def _contents(self, path: str) -> _Contents | None:
        try:
            data, state = read_file(self._folder / path)
        except FileNotFoundError:
            return None
        return _Contents(data, state.st_mtime_ns)

    def discard(self) -> None:
        """Remove the temporary files."""
        for part in self._staged.values():
            with suppress(OSError):
                part.unlink(missing_ok=True)
        self._staged.clear()

    def restore(self) -> None:
        """Write the old notes back. Where that fails, too, the next sync reads what is there."""
        self.discard()
        for path, old in self._old.items():
            with suppress(OSError, StoreError):
                if self._contents(path) == old:
                    continue
                if old is None:
                    (self._folder / path).unlink(missing_ok=True)
                elif path in self._kept:
                    self._kept.pop(path).replace(self._folder / path)
                else:
                    self.stage(path, old.data)
                    os.utime(self._staged[path], ns=(old.modified, old.modified))  # the index knows this time
                    self._staged[path].replace(self._folder / path)
                    del self._staged[path]
        self.finish()

    # --- the old notes of a transaction that is not committed yet

    def _save_old(self, conn: SQLConnection) -> None:
        token = secrets.token_hex(8)
        conn.execute("DELETE FROM notes_published")
        conn.execute("INSERT INTO notes_published VALUES (?)", (token,))
        rows = {
            path: None if old is None else [base64.b64encode(old.data).decode(), old.modified]
            for path, old in self._old.items()
        }
        path = self._home / f"{_UNDO}{token}"
        part = path.with_suffix(".part")
        with part.open("x") as file:
            json.dump(rows, file)
            file.flush()
            os.fsync(file.fileno())
        self._saved = part.replace(path)
        _sync_folder(self._home)

    def finish(self) -> None:
        """Forget the old notes: the transaction is committed."""
        for kept in self._kept.values():
            with suppress(OSError):  # the next sync removes it
                kept.unlink(missing_ok=True)
        self._kept.clear()
        if self._saved is not None:
            with suppress(FileNotFoundError):  # another process was faster
                self._saved.unlink()
            _sync_folder(self._home)
            self._saved = None

    def recover(self, conn: SQLConnection, /) -> None:
        """Write back the old notes of a process that was killed before its commit."""
        for path in unfinished(self._home):
            row = conn.execute("SELECT token FROM notes_published").fetchone()
            committed = row is not None and path.name == f"{_UNDO}{row[0]}"
            with suppress(OSError, ValueError, TypeError):  # a damaged file: the sync reads the notes as they are
                if not committed and not path.suffix:
                    rows = json.loads(path.read_text())
                    self._old = {
                        name: None if row is None else _Contents(base64.b64decode(row[0]), row[1])
                        for name, row in rows.items()
                    }
                    self.restore()
            with suppress(FileNotFoundError):
                path.unlink()
            self._old = {}


class _Contents(NamedTuple):
    data: bytes
    modified: int


_UNDO = "undo-"


def unfinished(home: Path, /) -> list[Path]:
    """The files with old notes of transactions that may not be committed."""
    return [path for path in home.iterdir() if path.name.startswith(_UNDO)]


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- the table of the files as they were last read or written, in the database of the index

_CHUNK = 500
_TABLE = """
CREATE TABLE IF NOT EXISTS notes (
  path TEXT PRIMARY KEY, namespace TEXT NOT NULL, id TEXT NOT NULL, modified INTEGER NOT NULL, size INTEGER NOT NULL,
  digest TEXT NOT NULL, status TEXT, supersedes TEXT, vitals TEXT NOT NULL, links TEXT NOT NULL) WITHOUT ROWID
"""


class SeenFile(NamedTuple):
    """One file as it was last read or written."""

    path: str
    namespace: str
    id: str
    modified: int
    size: int
    digest: str
    status: str | None
    """The status that the file states; None when it states none."""
    supersedes: str | None
    vitals: str
    links: tuple[Edge, ...]


def create_table(conn: SQLConnection, /) -> None:
    """Create the tables where they do not exist."""
    conn.execute(_TABLE)
    conn.execute("CREATE INDEX IF NOT EXISTS notes_by_memory ON notes (namespace, id)")
    conn.execute("CREATE TABLE IF NOT EXISTS notes_published (token TEXT NOT NULL)")


def all_files(conn: SQLConnection, /) -> dict[str, SeenFile]:
    """Every file by its path."""
    return {row[0]: _seen(row) for row in conn.execute("SELECT * FROM notes ORDER BY path")}


def files_of(conn: SQLConnection, namespace: str, ids: Sequence[str], /) -> dict[str, SeenFile]:
    """The files of some memories, by id."""
    found: dict[str, SeenFile] = {}
    for start in range(0, len(ids), _CHUNK):
        part = ids[start : start + _CHUNK]
        query = f"SELECT * FROM notes WHERE namespace = ? AND id IN ({placeholders(len(part))})"  # noqa: S608
        found |= {row[2]: _seen(row) for row in conn.execute(query, (namespace, *part))}
    return found


def put_files(conn: SQLConnection, files: Sequence[SeenFile], /) -> None:
    """Insert or replace rows."""
    rows = [(*file[:-1], json.dumps(file.links)) for file in files]
    conn.executemany(f"INSERT OR REPLACE INTO notes VALUES ({placeholders(10)})", rows)  # noqa: S608


def delete_files(conn: SQLConnection, paths: Sequence[str], /) -> None:
    """Delete the rows of some files."""
    conn.executemany("DELETE FROM notes WHERE path = ?", [(path,) for path in paths])


def _seen(row: tuple[Any, ...]) -> SeenFile:
    path, namespace, id_, modified, size, digest, status, supersedes, vitals, links = row
    try:
        edges = tuple(map(edge_from, json.loads(links)))
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptStoreError(f"the index of the note {path!r} is damaged ({error!r}): delete the index") from error
    names = type(path) is type(namespace) is type(id_) is type(digest) is str
    if not (names and type(modified) is type(size) is int):
        raise CorruptStoreError(f"the index of the note {path!r} is damaged: delete the index")
    return SeenFile(path, namespace, id_, modified, size, digest, status, supersedes, vitals, edges)
