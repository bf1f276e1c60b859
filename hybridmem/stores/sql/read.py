"""Queries over the log: memories, entries, edges and changes of a view, made of rows; settings and snapshots."""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from types import NoneType
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from hybridmem.core import validation
from hybridmem.core.protocols import Change, Version, View
from hybridmem.core.times import from_epoch
from hybridmem.core.types import Edge, Entry, Memory
from hybridmem.core.validation import clean, text_digest
from hybridmem.errors import CorruptStoreError
from hybridmem.filters.parse import FIELDS

__all__ = [
    "BODY",
    "DELETE",
    "ERASE",
    "OPS",
    "PUT",
    "STATUS",
    "VECTOR",
    "VITALS",
    "SQLConnection",
    "Scope",
    "changed_namespaces",
    "changes",
    "columns",
    "count",
    "decode_vector",
    "edge_from",
    "edges",
    "entries",
    "get",
    "get_meta",
    "history",
    "ids",
    "last_erase",
    "last_seq",
    "load_snapshot",
    "memory_from",
    "namespaces",
    "page",
    "placeholders",
    "scope",
    "unembedded",
    "vector_batches",
    "vector_rows",
    "vector_seqs",
    "vectors",
    "view_version",
]

PUT, VITALS, STATUS, DELETE, VECTOR, ERASE = range(6)
OPS = ("put", "vitals", "status", "delete", "vector", "erase")

BODY = (
    "title",
    "tags",
    "predicate",
    "subject",
    "source_id",
    "thread",
    "type",
    "entities",
    "created_at",
    "updated_at",
    "confidence",
    "supersedes",
    "speaker",
    "event_at",
    "expires_at",
    "metadata",
    "text",
)
"""The columns of a memory's body, in the order of `body_row`; the other fields can change without a new body."""

_MAX_WORDS, _MAX_CUES = 2**31 - 1, 255
_LOOKUP = 500
"""Values bound in one look-up."""
_CACHED_TIMES = 256
_VECTOR_BATCH = 512
"""Vectors read at a time: few enough to stay in the processor's cache until they are copied into the matrix."""
_VITALS = "{h}.status, {h}.strength, {h}.access_count, {h}.last_accessed"
_BODY = ", ".join(f"b.{name}" for name in BODY)
_ENTRY = (
    "m.id, {e}.source_id, {e}.thread, {e}.created_at, {e}.updated_at, {h}.status, {h}.strength, {e}.confidence, "
    "{h}.access_count, {h}.last_accessed, {e}.words, {e}.{speaker}, {e}.cues, {e}.event_at, {e}.expires_at"
)

_entry = partial(tuple.__new__, Entry)  # Entry._make without its check of the length


class SQLConnection(Protocol):
    """A connection to SQLite or PostgreSQL, with `?` for bound values."""

    moments: dict[float, tuple[int, int]]
    """The last seq at times of past views: the newest seq that was read then, and the last one at that time."""

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> Any:
        """Run one statement; returns a cursor over its rows."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Any:
        """Run one statement for each row."""


def placeholders(count: int, /) -> str:
    """`?, ?, ?`: placeholders for a list of bound values."""
    return ", ".join("?" * count)


class Scope(NamedTuple):
    """A view as SQL: the tables to read (`m` memories, `h` their state, `b` bodies) and the condition of visibility."""

    h: str
    """The alias of the table with a memory's state: `m` for the present, `h` (versions) for a view as of a time."""
    tables: str
    visible: str
    where: str
    """The condition of the rows in view; the namespace is bound."""
    memory: str
    """The columns that `memory_from` reads."""
    limit: int | None
    """The last seq of a view as of a time; None for the present."""


def columns(view: View, /) -> dict[str, str]:
    """The SQL column of each field that a filter may name."""
    h = "m" if view.as_of is None else "h"
    places = dict.fromkeys(("id", "namespace"), "m") | dict.fromkeys(
        ("status", "strength", "access_count", "last_accessed"), h
    )
    return {name: f"{places.get(name, 'b')}.{name}" for name in (*FIELDS, "metadata")}


def scope(conn: SQLConnection, view: View, /) -> Scope:
    """The scope of a view: `memories` for the present, the newest version recorded by T for a view as of T."""
    if view.as_of is None:
        return _scope(view.superseded, None, None)
    return _scope(view.superseded, _seq_at(conn, view.as_of), view.as_of)


@lru_cache(maxsize=64)
def _scope(superseded: bool, limit: int | None, as_of: float | None) -> Scope:
    h = "m" if limit is None else "h"
    visible = f"{h}.live" if superseded else f"{h}.live AND {h}.status <> 'superseded'"
    tables = "memories m"
    if limit is not None:
        newest = f"(SELECT max(v.seq) FROM versions v WHERE v.mem = m.mem AND v.seq <= {limit:d})"
        tables = f"memories m JOIN versions h ON h.seq = {newest}"
        expired = f"SELECT 1 FROM bodies x WHERE x.seq = h.body AND x.expires_at <= {float(as_of or 0.0)!r}"
        visible = f"{visible} AND NOT EXISTS ({expired})"
    where = f"m.namespace = ? AND {visible}"
    return Scope(h, tables, visible, where, f"m.id, {_VITALS.format(h=h)}, {_BODY}", limit)


def last_seq(conn: SQLConnection, /) -> int:
    """The newest seq of the whole store."""
    return int(conn.execute("SELECT seq FROM state").fetchone()[0])


def _seq_at(conn: SQLConnection, moment: float) -> int:
    """The last seq recorded at or before a time.

    Clocks of writers may differ, so recorded times need not increase with the seq: an entry that is followed by one
    with an earlier time was written before that time, too. Only entries that are new since the last call are read.
    """
    newest, at = conn.execute("SELECT seq, at FROM state").fetchone()
    if at <= moment:
        return int(newest)
    known = conn.moments
    if len(known) >= _CACHED_TIMES:
        known.clear()
    read, found = known.get(moment, (0, 0))
    last = "SELECT max(seq) FROM {} WHERE at <= ? AND seq > ?"
    both = f"SELECT ({last.format('versions')}), ({last.format('edge_log')})"
    found = max(found, *(seq or 0 for seq in conn.execute(both, (moment, read) * 2).fetchone()))
    known[moment] = int(newest), found
    return found


# --- memories


def get(conn: SQLConnection, view: View, ids_: Sequence[str], /) -> dict[str, Memory]:
    """The memories in view among some ids (a few hundred at most)."""
    s = scope(conn, view)
    rows = conn.execute(
        f"SELECT {s.memory} FROM {s.tables} JOIN bodies b ON b.seq = {s.h}.body "
        f"WHERE {s.where} AND m.id IN ({placeholders(len(ids_))})",
        (view.namespace, *ids_),
    ).fetchall()
    namespace = view.namespace
    return {row[0]: memory_from(row, namespace) for row in rows}


def page(
    conn: SQLConnection, view: View, condition: tuple[str, Sequence[Any]], /, *, after: str, size: int
) -> list[Memory]:
    """The next memories by id that meet a condition."""
    s = scope(conn, view)
    rows = conn.execute(
        f"SELECT {s.memory} FROM {s.tables} JOIN bodies b ON b.seq = {s.h}.body "
        f"WHERE {s.where} AND m.id > ? AND {condition[0]} ORDER BY m.id LIMIT ?",
        (view.namespace, after, *condition[1], size),
    ).fetchall()
    return [memory_from(row, view.namespace) for row in rows]


def ids(conn: SQLConnection, view: View, condition: tuple[str, Sequence[Any]] | None, /) -> frozenset[str]:
    """The ids in view that meet a condition."""
    s = scope(conn, view)
    sql, parameters = f"SELECT m.id FROM {s.tables} WHERE {s.where}", []
    if condition is not None:
        sql = f"SELECT m.id FROM {s.tables} JOIN bodies b ON b.seq = {s.h}.body WHERE {s.where} AND {condition[0]}"
        parameters = list(condition[1])
    return frozenset([row[0] for row in conn.execute(sql, (view.namespace, *parameters))])


def next_expiry(conn: SQLConnection, namespace: str | None, /) -> float | None:
    """The earliest `expires_at` of the memories of a namespace, or of all, that are not deleted."""
    sql = "SELECT min(expires_at) FROM memories WHERE expires_at IS NOT NULL AND live"
    row = conn.execute(*((sql,) if namespace is None else (f"{sql} AND namespace = ?", (namespace,)))).fetchone()
    return None if row[0] is None else float(row[0])


def expired(conn: SQLConnection, namespace: str, now: float, /, *, since: int | None = None) -> list[str]:
    """The ids of memories that have expired: those that are not deleted, or (`since`) were so after this number."""
    condition, after = ("live", ()) if since is None else ("body IS NOT NULL AND (live OR seq > ?)", (since,))
    sql = f"SELECT id FROM memories WHERE namespace = ? AND expires_at <= ? AND {condition} ORDER BY id"
    return [row[0] for row in conn.execute(sql, (namespace, now, *after))]


def thread(conn: SQLConnection, name: str, view: View, /) -> list[str]:
    """The ids of a thread in view, in reading order: by creation time, then by age."""
    s = scope(conn, view)
    tables, e = (s.tables, "m") if s.limit is None else (f"{s.tables} JOIN bodies b ON b.seq = h.body", "b")
    rows = conn.execute(
        f"SELECT m.id FROM {tables} WHERE {s.where} AND {e}.thread = ? ORDER BY {e}.created_at, {s.h}.born",
        (view.namespace, name),
    )
    return [row[0] for row in rows]


def every_id(conn: SQLConnection, namespace: str, /) -> list[str]:
    """The ids of all memories that are not erased, deleted ones included."""
    sql = "SELECT id FROM memories WHERE namespace = ? AND body IS NOT NULL ORDER BY id"
    return [row[0] for row in conn.execute(sql, (namespace,))]


def duplicates(conn: SQLConnection, memories: Sequence[Memory], namespace: str, /) -> list[str | None]:
    """For each memory the id of the newest one in view with the same normalized text and thread, or None."""
    digests = [text_digest(clean(memory.text)) for memory in memories]
    found: dict[tuple[int, str | None], str] = {}
    wanted = list(dict.fromkeys(digests))
    for start in range(0, len(wanted), _LOOKUP):
        part = wanted[start : start + _LOOKUP]
        rows = conn.execute(
            f"SELECT digest, thread, id FROM memories WHERE namespace = ? AND digest IN ({placeholders(len(part))}) "
            "AND live AND status <> 'superseded' ORDER BY seq",
            (namespace, *part),
        )
        found |= {(row[0], row[1]): row[2] for row in rows}
    threads = [None if memory.thread is None else clean(memory.thread) for memory in memories]
    return [found.get(key) for key in zip(digests, threads, strict=True)]


def count(conn: SQLConnection, view: View, /) -> int:
    """How many memories are in view."""
    s = scope(conn, view)
    sql = f"SELECT count(*) FROM {s.tables} WHERE {s.where}"
    return int(conn.execute(sql, (view.namespace,)).fetchone()[0])


def entries(conn: SQLConnection, view: View, /) -> list[Entry]:
    """The ranking fields of every memory in view, oldest version first."""
    s = scope(conn, view)
    tables, e = (s.tables, "m") if s.limit is None else (f"{s.tables} JOIN bodies b ON b.seq = h.body", "b")
    columns = _ENTRY.format(h=s.h, e=e, speaker="speaker" if e == "m" else "spoken_by")
    rows = conn.execute(
        f"SELECT {columns} FROM {tables} WHERE {s.where} ORDER BY {s.h}.seq",
        (view.namespace,),
    )
    return list(map(_entry, rows))


def vector_batches(conn: SQLConnection, view: View, /) -> Iterator[list[tuple[str, float | None, bytes]]]:
    """Every vector in view in batches of a few hundred: id, updated_at and little-endian float32."""
    s = scope(conn, view)
    tables, e = (s.tables, "m") if s.limit is None else (f"{s.tables} JOIN bodies b ON b.seq = h.body", "b")
    rows = conn.execute(
        f"SELECT m.id, {e}.updated_at, x.data FROM {tables} JOIN vectors x ON x.seq = {s.h}.vector "
        f"WHERE {s.where} ORDER BY {s.h}.seq",
        (view.namespace,),
    )
    while batch := rows.fetchmany(_VECTOR_BATCH):
        yield batch


def vectors(conn: SQLConnection, view: View, ids_: Sequence[str], /) -> dict[str, Any]:
    """The vectors of the memories in view among some ids."""
    s = scope(conn, view)
    rows = conn.execute(
        f"SELECT m.id, x.data FROM {s.tables} JOIN vectors x ON x.seq = {s.h}.vector "
        f"WHERE {s.where} AND m.id IN ({placeholders(len(ids_))})",
        (view.namespace, *ids_),
    )
    return {id_: decode_vector(data) for id_, data in rows}


def vector_seqs(conn: SQLConnection, view: View, /) -> dict[str, int]:
    """The seq of the vector of each memory in view that has one."""
    s = scope(conn, view)
    rows = conn.execute(
        f"SELECT m.id, {s.h}.vector FROM {s.tables} WHERE {s.where} AND {s.h}.vector IS NOT NULL", (view.namespace,)
    )
    return dict(rows.fetchall())


def vector_rows(conn: SQLConnection, seqs: Sequence[int], /) -> dict[int, bytes]:
    """The vectors with these seqs as little-endian float32."""
    found: dict[int, bytes] = {}
    for start in range(0, len(seqs), _LOOKUP):
        part = seqs[start : start + _LOOKUP]
        found |= conn.execute(
            f"SELECT seq, data FROM vectors WHERE seq IN ({placeholders(len(part))})", part
        ).fetchall()
    return found


def history(conn: SQLConnection, namespace: str, id_: str, /, *, vitals: bool) -> list[Version]:
    """Every version of a memory, oldest first."""
    hidden = (VECTOR,) if vitals else (VECTOR, VITALS)
    rows = conn.execute(
        f"SELECT h.seq, h.at, h.op, m.id, {_VITALS.format(h='h')}, {_BODY} FROM memories m "
        "JOIN versions h ON h.mem = m.mem JOIN bodies b ON b.seq = h.body "
        f"WHERE m.namespace = ? AND m.id = ? AND h.op NOT IN ({placeholders(len(hidden))}) ORDER BY h.seq",
        (namespace, id_, *hidden),
    )
    return [Version(seq, at, memory_from(row, namespace), op in (DELETE, ERASE)) for seq, at, op, *row in rows]


def unembedded(conn: SQLConnection, namespace: str, after: str, size: int, /) -> list[str]:
    """The ids of memories without a vector, in order: at most `size`, after a given id."""
    query = "SELECT id FROM memories WHERE namespace = ? AND id > ? AND live AND vector IS NULL ORDER BY id LIMIT ?"
    return [row[0] for row in conn.execute(query, (namespace, after, size))]


def namespaces(conn: SQLConnection, /) -> list[str]:
    """The namespaces that hold at least one memory: one index look-up for each namespace instead of a full scan."""
    found, last = [], conn.execute("SELECT min(namespace) FROM memories").fetchone()[0]
    while last is not None:
        if conn.execute("SELECT 1 FROM memories WHERE namespace = ? AND live LIMIT 1", (last,)).fetchone():
            found.append(last)
        last = conn.execute("SELECT min(namespace) FROM memories WHERE namespace > ?", (last,)).fetchone()[0]
    return found


def changed_namespaces(conn: SQLConnection, since: int, /) -> list[str]:
    """The namespaces with a change after `since`."""
    rows = conn.execute(
        "SELECT m.namespace FROM versions v JOIN memories m ON m.mem = v.mem WHERE v.seq > ? "
        "UNION SELECT namespace FROM edge_log WHERE seq > ? ORDER BY 1",
        (since, since),
    )
    return [row[0] for row in rows]


# --- edges and changes


def edges(conn: SQLConnection, view: View, /) -> list[Edge]:
    """The links whose both ends are in view."""
    s = scope(conn, view)
    rows = _edge_rows(conn, s, view.namespace)
    if not rows:
        return []
    seen = ids(conn, view, None)
    return [edge_from(row[1:]) for row in rows if row[1] in seen and row[2] in seen]


def _edge_rows(conn: SQLConnection, s: Scope, namespace: str) -> list[tuple[Any, ...]]:
    if s.limit is None:
        sql = "SELECT seq, a, b, relation, weight FROM edges WHERE namespace = ? ORDER BY seq"
        return list(conn.execute(sql, (namespace,)))
    newest: dict[tuple[str, str, str], tuple[Any, ...]] = {}
    sql = "SELECT seq, a, b, relation, weight, gone FROM edge_log WHERE namespace = ? AND seq <= ? ORDER BY seq"
    for *row, gone in conn.execute(sql, (namespace, s.limit)):
        key = (row[1], row[2], row[3])
        newest.pop(key, None)
        if not gone:
            newest[key] = tuple(row)
    return list(newest.values())


def changes(conn: SQLConnection, since: int, view: View, /, *, vectors: bool) -> Iterator[Change]:
    """The view's changes after `since`, oldest first: each memory once, in its present state."""
    s = scope(conn, view)
    linked = _edge_changes(conn, s, since, view.namespace)
    stream = _memory_changes(conn, s, since, view.namespace, with_vectors=vectors)
    return heapq.merge(stream, linked, key=attrgetter("seq")) if linked else stream


def _memory_changes(
    conn: SQLConnection, s: Scope, since: int, namespace: str, *, with_vectors: bool
) -> Iterator[Change]:
    data, join = (
        (f"x.data, {s.h}.vector", f"LEFT JOIN vectors x ON x.seq = {s.h}.vector") if with_vectors else ("NULL, 0", "")
    )
    written = "m.written" if s.limit is None else f"{s.h}.seq"
    gone = f"AND {s.visible}" if not since else ""
    rows = conn.execute(
        f"SELECT {s.h}.seq, {written}, {s.visible}, {data}, {s.h}.born, b.words, b.cues, b.spoken_by, {s.memory} "
        f"FROM {s.tables} LEFT JOIN bodies b ON b.seq = {s.h}.body {join} "
        f"WHERE m.namespace = ? AND {s.h}.seq > ? {gone} ORDER BY {s.h}.seq",
        (namespace, since),
    )
    for row in rows:
        if row[2]:
            _check_derived(row)
            memory, vector = memory_from(row[9:], namespace), decode_vector(row[3])
            yield Change(row[0], row[9], memory, vector, None, False, row[1] > since, row[5], row[6:9], row[4] or 0)
        else:
            yield Change(row[0], row[9])


def _check_derived(row: Sequence[Any]) -> None:
    """Raise CorruptStoreError unless the seqs and the derived columns of a change have values that are written."""
    seq, written, _, _, _, born, words, cues, speaker, id_ = row[:10]
    numbers = type(seq) is type(written) is type(words) is type(cues) is int and type(born) in (int, NoneType)
    if not (numbers and 0 <= words <= _MAX_WORDS and 0 <= cues <= _MAX_CUES and type(speaker) in (str, NoneType)):
        raise CorruptStoreError(f"version {seq!r} of memory {validation.display(id_)} is damaged: restore a backup")


def edge_from(row: Sequence[Any], /) -> Edge:
    """A link from (a, b, relation, weight)."""
    a, b, relation, weight = row
    if not (type(a) is type(b) is type(relation) is str and type(weight) in (float, int)):
        raise CorruptStoreError(f"the link {validation.display(tuple(row))} is damaged: restore a backup")
    return Edge(a, b, relation, float(weight))


def _edge_changes(conn: SQLConnection, s: Scope, since: int, namespace: str) -> list[Change]:
    if not since:
        return [Change(row[0], "", edge=edge_from(row[1:])) for row in _edge_rows(conn, s, namespace)]
    upto = 2**62 if s.limit is None else s.limit
    rows = conn.execute(
        "SELECT seq, a, b, relation, weight, gone FROM edge_log "
        "WHERE seq > ? AND seq <= ? AND namespace = ? ORDER BY seq",
        (since, upto, namespace),
    )
    return [Change(seq, "", edge=edge_from(edge), gone=bool(gone)) for seq, *edge, gone in rows]


def fingerprint(conn: Any, seq: int, /) -> str | None:
    """A digest of the change with this number: its time, and the memory or the link; None when there is none."""
    row = conn.execute("SELECT at, mem, op FROM versions WHERE seq = ?", (seq,)).fetchone()
    row = row or conn.execute("SELECT at, a, b FROM edge_log WHERE seq = ?", (seq,)).fetchone()
    return None if row is None else hashlib.blake2b(repr(tuple(row)).encode(), digest_size=16).hexdigest()


def last_erase(conn: Any, namespace: str, /) -> int:
    """The seq of the newest erasure in a namespace; 0 for none."""
    own = "(SELECT m.namespace FROM memories m WHERE m.mem = v.mem) = ?"  # a join would begin with all memories
    query = f"SELECT max(v.seq) FROM versions v WHERE v.op = 5 AND {own}"
    return int(conn.execute(query, (namespace,)).fetchone()[0] or 0)


def view_version(conn: Any, view: View, /) -> tuple[int, int]:
    """A value that changes when the contents of a view of the past change: its last seq and the newest erasure."""
    limit = scope(conn, view).limit
    return last_seq(conn) if limit is None else limit, last_erase(conn, view.namespace)


# --- settings and snapshots of indexes


def get_meta(conn: Any, key: str, /) -> str | None:
    """A setting, or None."""
    row = conn.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def load_snapshot(conn: Any, name: str, namespace: str, /) -> tuple[int, bytes] | None:
    """The watermark and the bytes of a saved index; None when there is none or parts of it are missing."""
    rows = conn.execute(
        "SELECT watermark, parts, data FROM snapshots WHERE namespace = ? AND name = ? ORDER BY part", (namespace, name)
    ).fetchall()
    if not rows or len(rows) != rows[0][1] or any(type(row[2]) is not bytes for row in rows):
        return None
    return int(rows[0][0]), rows[0][2] if len(rows) == 1 else b"".join(row[2] for row in rows)


# --- memories and vectors from rows

_decode = json.JSONDecoder().raw_decode  # json.loads without its checks of the argument's type


@lru_cache(maxsize=2048)  # most memories share a few lists of tags
def _tuple(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


class _MutableMemory:
    """A Memory before it is frozen, with the same slots.

    A frozen dataclass sets each of its 23 fields through `object.__setattr__`, which takes longer than the rest of
    reading a row. Plain assignments and a change of class at the end take a sixth of that time.
    """

    __slots__ = Memory.__slots__


def _decoded(metadata: str) -> dict[str, Any]:
    value = _decode(metadata)[0]
    if not isinstance(value, dict):
        raise TypeError("its metadata is not a mapping")
    return value


def memory_from(row: Sequence[Any], namespace: str, /) -> Memory:
    """A Memory from (id, status, strength, access_count, last_accessed, *BODY)."""
    try:
        return _memory_from(row, namespace)
    except (ValueError, TypeError, OverflowError, LookupError, OSError, RecursionError) as error:
        raise CorruptStoreError(
            f"memory {validation.display(row[0])} of namespace {namespace!r} is damaged ({error!r}): restore a backup"
        ) from error


def _memory_from(row: Sequence[Any], namespace: str) -> Memory:
    m: Any = _MutableMemory()
    (m.id, m.status, m.strength, m.access_count, accessed, m.title, tags, m.predicate, m.subject, m.source_id, m.thread,
     m.type, entities, created, updated, m.confidence, m.supersedes, m.speaker, event, expires, metadata,
     m.text) = row  # fmt: skip
    m.namespace = namespace
    m.tags = _tuple(tags) if tags else ()
    m.entities = _tuple(entities) if entities else ()
    m.created_at = moment = None if created is None else from_epoch(created)
    m.updated_at = moment if updated == created else None if updated is None else from_epoch(updated)
    m.event_at = None if event is None else from_epoch(event)
    m.expires_at = None if expires is None else from_epoch(expires)
    m.last_accessed = None if accessed is None else from_epoch(accessed)
    m.metadata = _decoded(metadata) if metadata else {}
    if not (type(m.text) is type(m.id) is type(m.title) is type(m.speaker) is type(m.type) is type(m.subject) is str):
        raise TypeError("a text field has another type")
    if type(m.predicate) is not str or type(m.status) is not str or type(m.access_count) is not int:
        raise TypeError("a field has another type")
    for name in (m.source_id, m.thread, m.supersedes):
        if name is not None and type(name) is not str:
            raise TypeError("a field has another type")
    m.strength, m.confidence = float(m.strength), float(m.confidence)
    m.__class__ = Memory
    return cast("Memory", m)


def decode_vector(data: bytes | None, /) -> Any:
    """The float32 array of stored bytes (read-only, no copy); None stays None."""
    if data is None:
        return None
    try:
        return np.frombuffer(data, dtype="<f4")
    except (ValueError, TypeError) as error:
        raise CorruptStoreError(f"a stored vector is damaged ({error}): restore a backup, or call reindex()") from error
