"""What each write means for the SQLite log: pure decisions over heads, recorded by the transaction's `Log`."""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from hybridmem.core import validation
from hybridmem.core.protocols import Progress
from hybridmem.core.types import Edge, Memory
from hybridmem.errors import NotFoundError
from hybridmem.stores.sql import codec
from hybridmem.stores.sqlite.log import DELETE, ERASE, PUT, STATUS, VECTOR, VITALS, Head, Log

__all__ = [
    "assign_ids",
    "decay",
    "delete",
    "erase",
    "link",
    "put",
    "reinforce",
    "set_vectors",
    "touch",
    "unlink",
    "wipe",
]

DAY = 86_400.0
_CHUNK = 1000


def assign_ids(memories: Sequence[Memory], /, *, now: float) -> list[str]:
    """The ids of memories, new ones where empty: time, place in the batch, randomness, so that they sort by age."""
    prefix, suffix = f"{max(0, int(now * 1000)):012x}", secrets.token_hex(7)
    return [memory.id or f"{prefix}{place:06x}{suffix}" for place, memory in enumerate(memories)]


# --- memories


def put(
    log: Log,
    memories: Sequence[Memory],
    ids: Sequence[str],
    /,
    *,
    namespace: str,
    vectors: Sequence[Any] | None,
    progress: Progress | None = None,
    strict: bool = True,
    whole: bool = False,
) -> None:
    """Add or update memories in order, then hide what they supersede; not `strict`: as far as it is known."""
    superseded: dict[str, str] = {}
    for start in range(0, len(ids), _CHUNK):
        end = min(start + _CHUNK, len(ids))
        heads = log.heads(namespace, ids[start:end], text=True)
        for place in range(start, end):
            memory, id_ = memories[place], ids[place]
            head = heads.get(id_) or log.head(namespace, id_)
            heads[id_] = head
            vector = None if vectors is None else codec.encode_vector(vectors[place], id_)
            old = memory.supersedes
            known = (whole or not strict) and head.live and head.supersedes == old  # said before, not said again
            if old and not known:
                superseded[codec.clean(old)] = id_
            _put(log, head, memory, vector, whole=whole)
        log.flush()
        if progress is not None:
            progress(end, len(ids))
    _supersede(log, namespace, superseded, strict=strict)


def _put(log: Log, head: Head, memory: Memory, vector: bytes | None, *, whole: bool) -> None:
    created = codec.seconds(memory.created_at, "Memory.created_at")
    updated = codec.seconds(memory.updated_at, "Memory.updated_at")
    accessed = codec.seconds(memory.last_accessed, "Memory.last_accessed")
    fresh = not head.live
    if updated is None:
        updated = created if fresh and created is not None else log.at
    if created is None:
        created = log.at if fresh else head.created_at
    confidence = float(memory.confidence)
    if not (fresh or whole) and confidence == 1.0:  # not given: it was set at creation and stays
        confidence = head.confidence
    row = codec.body_row(memory, created, updated, confidence)
    if fresh:
        head.born = 0  # a life of its own, after a deletion too
        head.decayed = log.at if created is None else created
    if fresh or whole or (memory.strength, memory.access_count, accessed) != (1.0, 0, None):
        head.strength, head.access_count, head.last_accessed = float(memory.strength), memory.access_count, accessed
    if fresh or (head.title, head.text) != (row[0], row[-1]):
        head.vector = None  # a vector of another text would lie
    head.live, head.status = 1, memory.status
    head.title, head.text, head.supersedes = row[0], row[-1], row[11]
    head.source_id, head.thread, head.created_at, head.updated_at = row[4], row[5], created, updated
    head.confidence, head.words = confidence, codec.words(row[-1])
    log.record(head, PUT, body=row, vector=vector)


def _supersede(log: Log, namespace: str, superseded: Mapping[str, str], *, strict: bool) -> None:
    heads = log.heads(namespace, superseded)
    for old, new in superseded.items():
        head = heads.get(old)
        if head is None and strict:
            raise NotFoundError(f"memory {new!r} supersedes {old!r}, which namespace {namespace!r} has never known")
        if head is not None and head.live and head.status != "superseded":
            head.status = "superseded"
            log.record(head, STATUS)


def delete(log: Log, ids: Sequence[str], /, *, namespace: str) -> int:
    """Record the deletion of the memories that are there; their links go with them."""
    gone = [head for head in log.heads(namespace, ids).values() if head.live]
    for head in gone:
        log.unlink_all(namespace, head.id)
        head.live, head.vector = 0, None
        log.record(head, DELETE)
    return len(gone)


def erase(log: Log, ids: Sequence[str], /, *, namespace: str) -> int:
    """Remove every version, body, vector and link of memories for good; only an empty tombstone stays."""
    heads = [head for head in log.heads(namespace, ids).values() if head.body is not None]
    for head in heads:
        log.unlink_all(namespace, head.id)
        log.record(wipe(log, head), ERASE)
    if heads:  # a snapshot of an index holds the words of what was just erased
        log.conn.execute("DELETE FROM snapshots WHERE namespace = ?", (namespace,))
    return len(heads)


def wipe(log: Log, head: Head, /) -> Head:
    """Remove what the log holds of a memory; a blank head takes its place."""
    log.flush()
    run = log.conn.execute
    own = "(SELECT seq FROM versions WHERE mem = ?)"
    run(f"DELETE FROM bodies WHERE seq IN {own}", (head.mem,))
    run(f"DELETE FROM vectors WHERE seq IN {own}", (head.mem,))
    run("DELETE FROM versions WHERE mem = ?", (head.mem,))
    run(
        "DELETE FROM edge_log WHERE namespace = ? AND (a = ? OR b = ?) AND NOT gone",
        (head.namespace, head.id, head.id),
    )
    return Head(head.mem, head.namespace, head.id)


def set_vectors(log: Log, vectors: Mapping[str, Any], /, *, namespace: str) -> None:
    """Give memories new vectors; None takes one away. Memories deleted in the meantime are passed over."""
    items = iter(vectors.items())
    while chunk := dict(islice(items, _CHUNK)):
        heads = log.heads(namespace, chunk)
        for id_, vector in chunk.items():
            data = codec.encode_vector(vector, id_)
            head = heads.get(id_)
            if head is not None and head.live:
                head.vector = None
                log.record(head, VECTOR, vector=data)
        log.flush()


# --- vitals


def touch(log: Log, ids: Sequence[str], /, *, namespace: str) -> None:
    """Count an access of each memory; ids that are gone are passed over."""
    for head in log.heads(namespace, ids).values():
        if head.live:
            head.access_count += 1
            head.last_accessed = log.at
            log.record(head, VITALS)


def reinforce(log: Log, id_: str, /, *, namespace: str, by: float) -> float:
    """Add to the strength: min(1, strength + by)."""
    validation.number("by", by, "a finite number from 0 up", low=0)
    head = log.heads(namespace, [id_]).get(id_)
    if head is None or not head.live:
        raise NotFoundError(f"no memory has the id {id_!r} in namespace {namespace!r}")
    strength = min(1.0, head.strength + by)
    if strength != head.strength:
        head.strength = strength
        log.record(head, VITALS)
    return strength


def decay(log: Log, /, *, namespace: str, now: float) -> int:
    """Give each memory strength · exp(−0.01 · d) for the d whole days since it was created or last decayed.

    Returns how many changed. The day it is counted from moves on by d whole days: calling twice in a day changes
    nothing the second time, and calling daily or once a month comes to the same.
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
    """Record links between memories that are there; one that stands already is not recorded again."""
    checked = [codec.check_edge(edge) for edge in edges]
    ends = [end for edge in checked for end in edge[:2]]
    heads = log.heads(namespace, ends)
    for end in ends:
        if end not in heads or not heads[end].live:
            raise NotFoundError(f"cannot link {end!r}: no memory has this id in namespace {namespace!r}")
    standing = log.weights(namespace, checked)
    for edge in checked:
        if standing.get(edge[:3]) != edge.weight:
            standing[edge[:3]] = edge.weight
            log.link(namespace, edge)


def unlink(log: Log, edges: Sequence[Edge], /, *, namespace: str) -> int:
    """Remove links, whichever way round they were made (the weight does not matter); how many there were."""
    checked = [codec.check_edge(edge) for edge in edges]
    both = [way for edge in checked for way in (edge, Edge(edge.b, edge.a, edge.relation, edge.weight))]
    standing = log.weights(namespace, both)
    removed = 0
    for way in both:
        weight = standing.pop(way[:3], None)
        if weight is not None:
            log.link(namespace, way._replace(weight=weight), gone=True)
            removed += 1
    return removed
