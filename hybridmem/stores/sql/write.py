"""Write operations: how each call changes the heads of memories and what it records in the transaction's `Log`."""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from hybridmem.core import validation
from hybridmem.core.inputs import Batch
from hybridmem.core.protocols import CheckEmbedder, Progress, View, WriteConflict
from hybridmem.core.types import Edge, Memory
from hybridmem.core.validation import clean, in_namespace
from hybridmem.errors import ConfigError, NotFoundError
from hybridmem.stores.sql import read
from hybridmem.stores.sql.log import BodyTimes, Head, Log, body_row, derive, encode_vector
from hybridmem.stores.sql.read import DELETE, ERASE, PUT, STATUS, VECTOR, VITALS

__all__ = [
    "assign_ids",
    "decay",
    "delete",
    "erase",
    "link",
    "put",
    "put_batch",
    "reinforce",
    "save_snapshot",
    "set_meta",
    "set_vectors",
    "touch",
    "unlink",
    "wipe",
]

DAY = 86_400.0
MAX_COUNT = 2**63 - 1
_CHUNK = 1000
_SNAPSHOT_PART = 4 * 1024 * 1024  # SQLite limits a blob to a gigabyte, and copies it whole in memory


def assign_ids(memories: Sequence[Memory], /, *, now: float) -> list[str]:
    """The ids of memories. A new id has the time, the place in the batch and random digits, so that ids sort by age."""
    prefix, suffix = f"{max(0, int(now * 1000)):012x}", secrets.token_hex(7)
    return [memory.id or f"{prefix}{place:06x}{suffix}" for place, memory in enumerate(memories)]


# --- memories


def put_batch(log: Log, batch: Batch, /, *, progress: Progress | None = None) -> list[str]:
    """Add or update the memories of a `put`, or raise WriteConflict; returns their ids or those of duplicates."""
    _check_embedder(log, batch.check_embedder)
    ids = assign_ids(batch.memories, now=log.now)
    for old in batch.base:
        now = read.get(log.conn, View(batch.namespace, superseded=True), [old.id]).get(old.id)
        if now != old:
            raise WriteConflict(now)
    memories, vectors, written, result = batch.memories, batch.vectors, ids, ids
    if batch.unless_duplicate:
        stored = read.duplicates(log.conn, memories, batch.namespace)
        result = [own if other is None else other for own, other in zip(ids, stored, strict=True)]
        new = [place for place, other in enumerate(stored) if other is None]
        memories, written = [memories[place] for place in new], [ids[place] for place in new]
        vectors = None if vectors is None else [vectors[place] for place in new]
    put(
        log,
        memories,
        written,
        namespace=batch.namespace,
        vectors=vectors,
        progress=progress,
        whole=bool(batch.base),
    )
    return result


def put(
    log: Log,
    memories: Sequence[Memory],
    ids: Sequence[str],
    /,
    *,
    namespace: str,
    vectors: Sequence[Any] | None = None,
    progress: Progress | None = None,
    strict: bool = True,
    whole: bool = False,
) -> None:
    """Add or update memories in order, then hide what they supersede; `strict` requires that those memories exist."""
    superseded: dict[str, str] = {}
    for start in range(0, len(ids), _CHUNK):
        end = min(start + _CHUNK, len(ids))
        heads = log.heads(namespace, ids[start:end], text=True)
        for place in range(start, end):
            memory, id_ = memories[place], ids[place]
            head = heads.get(id_) or log.head(namespace, id_)
            heads[id_] = head
            vector = None if vectors is None else encode_vector(vectors[place], id_)
            old = memory.supersedes
            repeated = (whole or not strict) and head.live and head.supersedes == old
            if old and not repeated:
                superseded[clean(old)] = id_
            _put(log, head, memory, vector, whole=whole)
        log.flush()
        if progress is not None:
            progress(end, len(ids))
    if strict:
        _check_circles(log, namespace, superseded)
    _supersede(log, namespace, superseded, strict=strict)


def _check_circles(log: Log, namespace: str, superseded: Mapping[str, str]) -> None:
    """Refuse memories that supersede each other in a circle, which would hide all of them."""
    query = (
        "SELECT b.supersedes FROM memories m JOIN bodies b ON b.seq = m.body "
        "WHERE m.namespace = ? AND m.id = ? AND m.live"
    )
    given = {new: old for old, new in superseded.items()}
    for start in given:
        path = [start]
        while (last := path[-1]) is not None:
            row = None if last in given else log.conn.execute(query, (namespace, last)).fetchone()
            following = given[last] if last in given else None if row is None else row[0]
            if following == start:
                raise ConfigError(f"memories supersede each other in a circle: {' → '.join(map(repr, [*path, start]))}")
            if following is None or following in path:
                break
            path.append(following)


def _put(log: Log, head: Head, memory: Memory, vector: bytes | None, *, whole: bool) -> None:
    created = validation.optional_time("Memory.created_at", memory.created_at)
    updated = validation.optional_time("Memory.updated_at", memory.updated_at)
    accessed = validation.optional_time("Memory.last_accessed", memory.last_accessed)
    fresh = not head.live
    if updated is None:
        updated = created if fresh and created is not None else log.now
    if created is None:
        created = log.now if fresh else head.created_at
    confidence = float(memory.confidence)
    if not (fresh or whole) and confidence == 1.0:  # not given: the confidence set at creation stays
        confidence = head.confidence
    event = validation.optional_time("Memory.event_at", memory.event_at)
    expires = validation.optional_time("Memory.expires_at", memory.expires_at)
    row = body_row(memory, BodyTimes(created, updated, event, expires), confidence)
    if fresh:
        head.born = 0  # a deleted id that is used again starts anew
        head.decayed = log.now if created is None else created
    if fresh or whole or (memory.strength, memory.access_count, accessed) != (1.0, 0, None):
        head.strength, head.access_count, head.last_accessed = float(memory.strength), memory.access_count, accessed
    if fresh or (head.title, head.text) != (row[0], row[-1]):
        head.vector = None  # it belongs to the old text
    head.live, head.status = 1, memory.status
    head.title, head.text, head.supersedes = row[0], row[-1], row[11]
    head.source_id, head.thread, head.created_at, head.updated_at = row[4], row[5], created, updated
    head.confidence, head.event_at, head.expires_at = confidence, event, expires
    derive(head, row)
    log.record(head, PUT, body=row, vector=vector)


def _supersede(log: Log, namespace: str, superseded: Mapping[str, str], *, strict: bool) -> None:
    heads = log.heads(namespace, superseded)
    for old, new in superseded.items():
        head = heads.get(old)
        if head is None and strict:
            raise NotFoundError(f"memory {new!r} supersedes {old!r}, which was never in {in_namespace(namespace)}")
        if head is not None and head.live and head.status != "superseded":
            head.status = "superseded"
            log.record(head, STATUS)


def delete(log: Log, ids: Sequence[str], /, *, namespace: str) -> int:
    """Record the deletion of memories and of their links; returns how many existed."""
    gone = [head for head in log.heads(namespace, ids).values() if head.live]
    for head in gone:
        log.unlink_all(namespace, head.id)
        head.live, head.vector = 0, None
        log.record(head, DELETE)
    return len(gone)


def erase(log: Log, ids: Sequence[str], /, *, namespace: str) -> int:
    """Remove every version, body, vector and link of memories; an empty tombstone tells indexes that they are gone."""
    heads = [head for head in log.heads(namespace, ids).values() if head.body is not None]
    for head in heads:
        log.unlink_all(namespace, head.id)
        log.record(wipe(log, head), ERASE)
    if heads:  # snapshots of indexes contain words of the erased texts
        drop_snapshots(log.conn, namespace)
    return len(heads)


def wipe(log: Log, head: Head, /) -> Head:
    """Delete all rows of a memory from the log; returns an empty head in its place."""
    log.flush()
    run = log.conn.execute
    own = "(SELECT seq FROM versions WHERE mem = ?)"
    run(f"DELETE FROM bodies WHERE seq IN {own}", (head.mem,))
    run(f"DELETE FROM vectors WHERE seq IN {own}", (head.mem,))
    run("DELETE FROM versions WHERE mem = ?", (head.mem,))
    own_links = "namespace = ? AND (a = ? OR b = ?)"
    run(f"DELETE FROM edge_log WHERE {own_links} AND NOT gone", (head.namespace, head.id, head.id))
    run(f"UPDATE edge_log SET relation = '' WHERE {own_links}", (head.namespace, head.id, head.id))
    run(f"DELETE FROM edges WHERE {own_links}", (head.namespace, head.id, head.id))
    return Head(head.mem, head.namespace, head.id)


def _check_embedder(log: Log, check: CheckEmbedder | None) -> None:
    if check is not None:
        check(read.get_meta(log.conn, "embedder"))


def set_vectors(
    log: Log, vectors: Mapping[str, Any], /, *, namespace: str, check_embedder: CheckEmbedder | None = None
) -> None:
    """Set the vectors of memories; None removes one. Ids that do not exist are ignored."""
    _check_embedder(log, check_embedder)
    items = iter(vectors.items())
    while chunk := dict(islice(items, _CHUNK)):
        heads = log.heads(namespace, chunk)
        for id_, vector in chunk.items():
            data = encode_vector(vector, id_)
            head = heads.get(id_)
            if head is not None and head.live:
                head.vector = None
                log.record(head, VECTOR, vector=data)
        log.flush()


# --- vitals


def touch(log: Log, ids: Sequence[str], /, *, namespace: str) -> None:
    """Count an access of each memory; ids that do not exist are ignored."""
    for head in log.heads(namespace, ids).values():
        if head.live:
            head.access_count = min(head.access_count + 1, MAX_COUNT)
            head.last_accessed = log.now
            log.record(head, VITALS)


def reinforce(log: Log, id_: str, /, *, namespace: str, by: float) -> float:
    """Add to the strength: min(1, strength + by)."""
    head = log.heads(namespace, [id_]).get(id_)
    if head is None or not head.live:
        raise NotFoundError(f"no memory has the id {id_!r} in {in_namespace(namespace)}")
    strength = min(1.0, head.strength + by)
    if strength != head.strength:
        head.strength = strength
        log.record(head, VITALS)
    return strength


def decay(log: Log, /, *, namespace: str, now: float) -> int:
    """Multiply each strength by exp(−0.01 · d) for the d whole days since its creation or last decay.

    Returns how many changed. The time of the last decay advances by d whole days, so that a second call on the same
    day changes nothing, and daily calls give the same strength as one call a month.
    """
    changed, last = 0, ""
    query = "SELECT id FROM memories WHERE namespace = ? AND id > ? AND live AND decayed <= ? ORDER BY id LIMIT ?"
    while ids := [row[0] for row in log.conn.execute(query, (namespace, last, now - DAY, _CHUNK))]:
        for head in log.heads(namespace, ids).values():
            days = max(1, math.floor((now - head.decayed) / DAY))
            head.strength *= math.exp(-0.01 * days)
            head.decayed += days * DAY
            log.record(head, VITALS)
        changed, last = changed + len(ids), ids[-1]
        log.flush()
    return changed


# --- links


def link(log: Log, edges: Sequence[Edge], /, *, namespace: str) -> None:
    """Record links between existing memories; a link that exists with the same weight is not recorded again."""
    ends = [end for edge in edges for end in edge[:2]]
    heads = log.heads(namespace, ends)
    for end in ends:
        if end not in heads or not heads[end].live:
            raise NotFoundError(f"cannot link {end!r}: no memory has this id in {in_namespace(namespace)}")
    weights = log.weights(namespace, edges)
    for edge in edges:
        if weights.get(edge[:3]) != edge.weight:
            weights[edge[:3]] = edge.weight
            log.link(namespace, edge)


def unlink(log: Log, edges: Sequence[Edge], /, *, namespace: str) -> int:
    """Remove links in either direction, whatever their weight; returns how many existed."""
    both = [way for edge in edges for way in (edge, Edge(edge.b, edge.a, edge.relation, edge.weight))]
    weights = log.weights(namespace, both)
    removed = 0
    for way in both:
        weight = weights.pop(way[:3], None)
        if weight is not None:
            log.link(namespace, way._replace(weight=weight), gone=True)
            removed += 1
    return removed


# --- settings and snapshots of indexes


def set_meta(conn: Any, key: str, value: str, /) -> None:
    """Store a setting."""
    conn.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value))


def drop_snapshots(conn: Any, namespace: str, /) -> None:
    """Delete the saved states of the indexes of a namespace."""
    conn.execute("DELETE FROM snapshots WHERE namespace = ? AND name <> 'swept'", (namespace,))


def save_snapshot(conn: Any, name: str, namespace: str, watermark: int, blob: bytes, /) -> None:
    """Replace the saved state of an index; it is stored in parts."""
    conn.execute("DELETE FROM snapshots WHERE namespace = ? AND name = ?", (namespace, name))
    view, size = memoryview(blob), _SNAPSHOT_PART
    parts = max(1, -(-len(view) // size))
    conn.executemany(
        "INSERT INTO snapshots (namespace, name, part, parts, watermark, data) VALUES (?, ?, ?, ?, ?, ?)",
        ((namespace, name, i, parts, watermark, view[i * size : (i + 1) * size]) for i in range(parts)),
    )
