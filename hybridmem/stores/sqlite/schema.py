"""Schema of the SQLite file: tables, recognition of a file, creation and migrations."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping

from hybridmem.core.validation import text_digest
from hybridmem.errors import CorruptStoreError, SchemaVersionError
from hybridmem.text.conversation import cues_of, speaker_of

__all__ = ["APPLICATION_ID", "MIGRATIONS", "VERSION", "is_ready", "prepare", "refuse"]

APPLICATION_ID = 0x4879_4D65  # "HyMe": tells our files from other people's SQLite files
VERSION = 2

# memories   the current state of each memory: derived from `versions` in the same transaction, verified by check()
# versions   the log, never updated. `body` and `vector` refer to rows written by this or an earlier version, so that
#            a change of vitals copies neither text nor vector
# edge_log   the log of links, numbered in the same sequence; `edges` has their current state
TABLES = """
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, at REAL NOT NULL);
INSERT INTO state VALUES (1, 0, 0.0);

CREATE TABLE memories (
  mem INTEGER PRIMARY KEY, namespace TEXT NOT NULL, id TEXT NOT NULL,
  seq INTEGER NOT NULL, written INTEGER NOT NULL, live INTEGER NOT NULL, body INTEGER, vector INTEGER,
  status TEXT NOT NULL, strength REAL NOT NULL, access_count INTEGER NOT NULL, last_accessed REAL,
  decayed REAL NOT NULL, born INTEGER NOT NULL,
  source_id TEXT, thread TEXT, created_at REAL, updated_at REAL, confidence REAL NOT NULL, words INTEGER NOT NULL,
  speaker TEXT, cues INTEGER NOT NULL DEFAULT 0, event_at REAL, expires_at REAL, digest INTEGER,
  UNIQUE (namespace, id));
CREATE INDEX memories_by_seq ON memories (namespace, seq);
CREATE INDEX memories_by_expiry ON memories (namespace, expires_at) WHERE expires_at IS NOT NULL;
-- not (namespace, digest): all of a namespace would be read by it, in the random order of digests
CREATE INDEX memories_by_digest ON memories (digest, namespace);
CREATE INDEX memories_by_thread ON memories (namespace, thread, created_at, born) WHERE thread IS NOT NULL;

CREATE TABLE versions (
  seq INTEGER PRIMARY KEY, mem INTEGER NOT NULL, at REAL NOT NULL, op INTEGER NOT NULL, live INTEGER NOT NULL,
  body INTEGER, vector INTEGER,
  status TEXT NOT NULL, strength REAL NOT NULL, access_count INTEGER NOT NULL, last_accessed REAL,
  decayed REAL NOT NULL, born INTEGER NOT NULL);
CREATE INDEX versions_by_memory ON versions (mem);
CREATE INDEX versions_erased ON versions (seq) WHERE op = 5;

CREATE TABLE bodies (
  seq INTEGER PRIMARY KEY, words INTEGER NOT NULL,
  title TEXT NOT NULL, tags TEXT, predicate TEXT NOT NULL, subject TEXT NOT NULL,
  source_id TEXT, thread TEXT, type TEXT NOT NULL, entities TEXT, created_at REAL, updated_at REAL,
  confidence REAL NOT NULL, supersedes TEXT, metadata TEXT, text TEXT NOT NULL,
  speaker TEXT NOT NULL DEFAULT '', event_at REAL, expires_at REAL, spoken_by TEXT, cues INTEGER NOT NULL DEFAULT 0);

CREATE TABLE vectors (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);

CREATE TABLE edge_log (
  seq INTEGER PRIMARY KEY, at REAL NOT NULL, namespace TEXT NOT NULL,
  a TEXT NOT NULL, b TEXT NOT NULL, relation TEXT NOT NULL, weight REAL NOT NULL, gone INTEGER NOT NULL);
CREATE TABLE edges (
  namespace TEXT NOT NULL, a TEXT NOT NULL, b TEXT NOT NULL, relation TEXT NOT NULL, weight REAL NOT NULL,
  seq INTEGER NOT NULL, PRIMARY KEY (namespace, a, b, relation)) WITHOUT ROWID;
CREATE INDEX edges_by_end ON edges (namespace, b);

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE snapshots (
  namespace TEXT NOT NULL, name TEXT NOT NULL, part INTEGER NOT NULL, parts INTEGER NOT NULL,
  watermark INTEGER NOT NULL, data BLOB NOT NULL, UNIQUE (namespace, name, part));
"""

Migration = Callable[[sqlite3.Connection], None]


def _add_speakers(conn: sqlite3.Connection) -> None:
    """1 → 2: speaker, event_at, expires_at, cues and digest. Snapshots of indexes lack them and are built again."""
    for column in (
        "bodies ADD COLUMN speaker TEXT NOT NULL DEFAULT ''", "bodies ADD COLUMN event_at REAL",
        "bodies ADD COLUMN expires_at REAL", "bodies ADD COLUMN spoken_by TEXT",
        "bodies ADD COLUMN cues INTEGER NOT NULL DEFAULT 0", "memories ADD COLUMN speaker TEXT",
        "memories ADD COLUMN cues INTEGER NOT NULL DEFAULT 0", "memories ADD COLUMN event_at REAL",
        "memories ADD COLUMN expires_at REAL", "memories ADD COLUMN digest INTEGER",
    ):  # fmt: skip
        conn.execute(f"ALTER TABLE {column}")
    conn.create_function("hybridmem_cues", 1, cues_of, deterministic=True)
    conn.create_function("hybridmem_speaker", 1, speaker_of, deterministic=True)
    conn.execute("UPDATE bodies SET cues = hybridmem_cues(text), spoken_by = hybridmem_speaker(text)")
    conn.execute(
        "UPDATE memories SET (speaker, cues) = (SELECT b.spoken_by, b.cues FROM bodies b WHERE b.seq = memories.body) "
        "WHERE body IS NOT NULL"
    )
    conn.create_function("hybridmem_digest", 1, text_digest, deterministic=True)
    conn.execute(
        "UPDATE memories SET digest = (SELECT hybridmem_digest(b.text) FROM bodies b WHERE b.seq = memories.body) "
        "WHERE body IS NOT NULL"
    )
    conn.execute("CREATE INDEX memories_by_expiry ON memories (namespace, expires_at) WHERE expires_at IS NOT NULL")
    conn.execute("CREATE INDEX memories_by_digest ON memories (digest, namespace)")
    conn.execute(
        "CREATE INDEX memories_by_thread ON memories (namespace, thread, created_at, born) WHERE thread IS NOT NULL"
    )
    conn.execute("CREATE INDEX IF NOT EXISTS versions_erased ON versions (seq) WHERE op = 5")
    conn.execute("DELETE FROM snapshots")


MIGRATIONS: Mapping[int, Migration] = {1: _add_speakers}
"""From each version to the next: `{1: add_a_column}` brings a file of version 1 to version 2."""


def is_ready(conn: sqlite3.Connection, /) -> bool:
    """Whether the file is a store of this version in write-ahead mode, so that it needs no preparation."""
    ours = _pragma(conn, "application_id") == APPLICATION_ID and _pragma(conn, "user_version") == VERSION
    return ours and conn.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def refuse(conn: sqlite3.Connection, path: str, /, *, version: int = VERSION) -> bool:
    """Raise if the file is not a store or has a newer version; returns whether it is still empty."""
    found = _pragma(conn, "user_version")
    foreign = _pragma(conn, "application_id") != APPLICATION_ID
    if foreign and (found or conn.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()):
        raise CorruptStoreError(f"{path} is an SQLite file, but not a hybridmem store")
    if found > version:
        raise SchemaVersionError(
            f"{path} has schema version {found}, and this hybridmem reads up to {version}: upgrade hybridmem to open it"
        )
    return foreign


def prepare(
    conn: sqlite3.Connection, path: str, /, *, version: int = VERSION, migrations: Mapping[int, Migration] = MIGRATIONS
) -> None:
    """Create the tables in an empty file, migrate an older one, refuse a newer or a foreign one.

    Runs inside the caller's write transaction, so that two processes never both create or migrate.
    """
    if refuse(conn, path, version=version):
        for statement in TABLES.split(";"):  # executescript would commit the caller's transaction
            conn.execute(statement)
        conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        conn.execute(f"PRAGMA user_version = {VERSION}")
    for step in range(_pragma(conn, "user_version"), version):
        migrations[step](conn)
        conn.execute(f"PRAGMA user_version = {step + 1}")


def _pragma(conn: sqlite3.Connection, name: str) -> int:
    return int(conn.execute(f"PRAGMA {name}").fetchone()[0])
