"""Export of the whole log as rows of JSON values, and restore of such rows; a restored store exports the same rows."""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

import base64
import binascii
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hybridmem.core import validation
from hybridmem.core.inputs import check_memory, checked_edge
from hybridmem.core.protocols import Progress
from hybridmem.core.times import from_epoch
from hybridmem.core.types import Edge, Memory
from hybridmem.errors import ConfigError
from hybridmem.stores.sql.log import BodyTimes, Log, body_row, derive, encode_vector
from hybridmem.stores.sql.read import BODY, DELETE, ERASE, OPS, PUT, VECTOR, SQLConnection, decode_vector
from hybridmem.stores.sql.write import wipe

__all__ = ["FORMAT", "check_rows", "export", "restore"]

FORMAT = 1
_VITALS = ("status", "strength", "access_count", "last_accessed", "decayed")
_JSON = ("tags", "entities", "metadata")
_CHUNK = 1000
_EMBEDDER = "embedder"
_LAST = 2**62


def export(conn: SQLConnection, namespace: str | None, /) -> Iterator[dict[str, Any]]:
    """A header, the settings (for one namespace only the embedder), then every version and link in order of seq."""
    yield {"kind": "hybridmem", "format": FORMAT}
    for key, value in conn.execute("SELECT key, value FROM meta ORDER BY key"):
        if namespace is None or key == _EMBEDDER:  # vectors are of no use without their embedder
            yield {"kind": "meta", "key": key, "value": value}
    yield from heapq.merge(_versions(conn, namespace), _links(conn, namespace), key=lambda row: row["seq"])


def _versions(conn: SQLConnection, namespace: str | None) -> Iterator[dict[str, Any]]:
    only, bound = ("", ()) if namespace is None else ("WHERE m.namespace = ?", (namespace,))
    body = ", ".join(f"b.{name}" for name in BODY)
    rows = conn.execute(
        f"SELECT v.seq, v.at, v.op, m.namespace, m.id, v.vector, x.data, v.status, v.strength, v.access_count, "
        f"v.last_accessed, v.decayed, {body} FROM versions v JOIN memories m ON m.mem = v.mem "
        "LEFT JOIN bodies b ON b.seq = v.seq LEFT JOIN vectors x ON x.seq = v.seq "
        f"{only} ORDER BY v.seq",
        bound,
    )
    for seq, at, op, space, id_, vector, data, *values in rows:
        row: dict[str, Any] = {"kind": "memory", "op": OPS[op], "seq": seq, "at": at, "namespace": space, "id": id_}
        row |= zip(_VITALS, values, strict=False)
        if op == PUT:
            fields = dict(zip(BODY, values[len(_VITALS) :], strict=True))
            row |= fields | {name: json.loads(fields[name]) for name in _JSON if fields[name] is not None}
        if data is not None:
            row["vector"] = base64.b64encode(data).decode("ascii")
        elif op == PUT and vector is not None:
            row["keeps_vector"] = True
        yield row


def _links(conn: SQLConnection, namespace: str | None) -> Iterator[dict[str, Any]]:
    only, bound = ("", ()) if namespace is None else ("WHERE namespace = ?", (namespace,))
    rows = conn.execute(f"SELECT * FROM edge_log {only} ORDER BY seq", bound)
    for seq, at, space, a, b, relation, weight, gone in rows:
        yield {
            "kind": "edge", "op": "unlink" if gone else "link", "seq": seq, "at": at, "namespace": space,
            "a": a, "b": b, "relation": relation, "weight": weight,
        }  # fmt: skip


# --- restore


def check_rows(rows: Any, progress: Any, /) -> None:
    """Refuse anything but rows of an export and a progress function."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        validation.refuse("rows", rows, "the rows of an export")
    if progress is not None:
        validation.function("progress", progress, "a function of (done, total), or None")


def restore(
    log: Log, rows: Iterable[Mapping[str, Any]], progress: Progress | None, /, *, exact: bool | None = None
) -> int:
    """Replay rows in their order; returns how many. An empty store keeps their seq and times, another assigns its own.

    With `exact` also a store that holds the beginning of the same log keeps them.
    """
    exact, now, done = log.seq == 0 if exact is None else exact, log.at, 0
    for row in rows:
        try:
            if row["kind"] in ("memory", "edge"):
                log.at = _number(log, row) if exact else now
                log.newest = max(log.newest, log.at)
            done += _replay(log, row)
        except (LookupError, TypeError, ValueError, OverflowError, binascii.Error) as error:
            raise ConfigError(
                f"row {done + 1} is not of a hybridmem export ({error!r}): {validation.display(row)}"
            ) from error
        if done % _CHUNK == 0:
            log.flush()
            if progress is not None:
                progress(done, None)
    if progress is not None:
        progress(done, done)
    return done


def _number(log: Log, row: Mapping[str, Any]) -> float:
    """Give the next entry the row's seq, which must increase; returns its time."""
    seq, at = int(row["seq"]), _time(row["at"])
    if not log.seq < seq < _LAST:
        raise ConfigError(f"seq {row['seq']!r} does not come after {log.seq}")
    if at is None:
        raise ConfigError("a row has no time")
    log.seq = seq - 1
    return at


def _replay(log: Log, row: Mapping[str, Any]) -> int:
    kind = row["kind"]
    if kind == "hybridmem":
        if row["format"] != FORMAT:
            raise ConfigError(f"this export has format {row['format']!r}, and this hybridmem reads {FORMAT}")
        return 0
    if kind == "meta":
        _setting(log, row["key"], row["value"])
        return 0
    if kind == "edge":
        _edge(log, row)
    elif kind == "memory":
        _version(log, row)
    else:
        validation.one_of("kind", kind, ("hybridmem", "meta", "memory", "edge"))
    return 1


def _setting(log: Log, key: str, value: str) -> None:
    """Store a setting that the store does not have; vectors of another embedder are refused."""
    if key == _EMBEDDER:
        ours = log.conn.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if ours is not None and _embedder(ours[0]) != _embedder(value):
            raise ConfigError(
                f"its vectors come from the embedder {_embedder(value)}, those here from {_embedder(ours[0])}: "
                "reindex one of the two stores with the other's embedder first"
            )
    log.conn.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, value))


def _embedder(text: str) -> str:
    try:
        recorded = json.loads(text)
        return f"{recorded['name']!r} ({recorded['dim']} dimensions)"
    except (ValueError, TypeError, KeyError):
        return repr(text)


def _edge(log: Log, row: Mapping[str, Any]) -> None:
    if row["op"] not in ("link", "unlink"):
        raise ConfigError(f"unknown op {row['op']!r} of a link; known: link, unlink")
    edge = checked_edge(Edge(row["a"], row["b"], row["relation"] or "erased", row["weight"]))
    if row["op"] == "unlink" and not row["relation"]:  # one of its ends was erased
        edge = edge._replace(relation="")
    log.flush()  # the heads of its ends are read from the tables
    if row["op"] == "link":
        heads = log.heads(row["namespace"], edge[:2])
        gone = [end for end in edge[:2] if end not in heads or not heads[end].live]
        if gone:
            raise ConfigError(f"it links {gone[0]!r}, which does not exist")
    log.link(row["namespace"], edge, gone=row["op"] == "unlink")


def _version(log: Log, row: Mapping[str, Any]) -> None:
    memory, op = _memory(row), _op(row["op"])
    validation.namespace(memory.namespace)
    check_memory(memory, namespace=memory.namespace)
    log.heads(memory.namespace, [memory.id])
    head = log.head(memory.namespace, memory.id)
    if not memory.id or (head.body is None and op not in (PUT, ERASE)):
        raise ConfigError(f"{row['op']} of {memory.id!r}, which no row before has put")
    if op == ERASE:
        head = wipe(log, head)
    elif op == PUT and not head.live:
        head.born = 0
    head.live = int(op not in (DELETE, ERASE))
    head.status, head.strength, head.access_count = memory.status, float(memory.strength), memory.access_count
    head.last_accessed, head.decayed = _time(row["last_accessed"]), _time(row["decayed"]) or 0.0
    if op in (PUT, VECTOR, DELETE, ERASE) and not row.get("keeps_vector"):
        head.vector = None
    body = None
    if op == PUT:
        times = BodyTimes(*(_time(row.get(name)) for name in BodyTimes._fields))
        body = body_row(memory, times, float(row["confidence"]))
        derive(head, body)
        for name in ("source_id", "thread", "confidence", *BodyTimes._fields):
            setattr(head, name, body[BODY.index(name)])
    log.record(head, op, body=body, vector=_vector(row))


def _op(name: Any) -> int:
    if name not in OPS:
        raise ConfigError(f"unknown op {name!r} of a memory; known: {', '.join(OPS)}")
    return OPS.index(name)


def _memory(row: Mapping[str, Any]) -> Memory:
    """The row as a Memory without its times, so that `check_memory` validates it."""
    vitals = {name: row[name] for name in ("id", "namespace", "status", "strength", "access_count")}
    if row["op"] != OPS[PUT]:
        return Memory("", **vitals)
    fields = {name: row[name] for name in BODY if name not in (*BodyTimes._fields, "speaker")}
    fields["speaker"] = row.get("speaker", "")
    for name, empty in (("tags", ()), ("entities", ()), ("metadata", {})):
        fields[name] = empty if fields[name] is None else fields[name]
    return Memory(**vitals, **fields)


def _time(value: Any) -> float | None:
    """Epoch seconds; an error when a datetime cannot hold them, since the memory would be unreadable."""
    if value is None:
        return None
    from_epoch(float(value))
    return float(value)


def _vector(row: Mapping[str, Any]) -> bytes | None:
    data = row.get("vector")
    return None if data is None else encode_vector(decode_vector(base64.b64decode(data, validate=True)), row["id"])
