"""Links between memories, and the side tables: settings and saved states of indexes."""

from __future__ import annotations

from collections.abc import Sequence

from hybridmem.errors import NotFoundError
from hybridmem.stores import codec
from hybridmem.stores.pg.database import Conn
from hybridmem.stores.pg.log import PgLog
from hybridmem.types import Edge

__all__ = ["link", "save_snapshot", "set_meta", "unlink"]

_PART = 4 * 1024 * 1024


def link(log: PgLog, edges: Sequence[Edge], /, *, namespace: str) -> None:
    """Record links between memories that are there; one that stands already is not recorded again."""
    checked = [codec.check_edge(edge) for edge in edges]
    heads = log.heads(namespace, [end for edge in checked for end in edge[:2]])
    for edge in checked:
        for end in edge[:2]:
            if end not in heads or not heads[end].live:
                raise NotFoundError(f"cannot link {end!r}: no memory has this id in namespace {namespace!r}")
    standing = log.weights(namespace, checked)
    for edge in checked:
        if standing.get(edge[:3]) != edge.weight:
            standing[edge[:3]] = edge.weight
            log.link(namespace, edge)


def unlink(log: PgLog, edges: Sequence[Edge], /, *, namespace: str) -> int:
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


def set_meta(conn: Conn, key: str, value: str, /) -> None:
    """Store a setting."""
    conn.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value))


def save_snapshot(conn: Conn, name: str, namespace: str, watermark: int, blob: bytes, /) -> None:
    """Replace a saved state, in parts."""
    conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (f"{namespace}/{name}",))
    conn.execute("DELETE FROM snapshots WHERE namespace = ? AND name = ?", (namespace, name))
    parts = max(1, -(-len(blob) // _PART))
    for i in range(parts):
        conn.execute(
            "INSERT INTO snapshots (namespace, name, part, parts, watermark, data) VALUES (?, ?, ?, ?, ?, ?)",
            (namespace, name, i, parts, watermark, blob[i * _PART : (i + 1) * _PART]),
        )
