"""The log of one write transaction: memories as rows of versions, bodies, vectors and links, and their heads."""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hybridmem.core import validation
from hybridmem.core.times import epoch, iso
from hybridmem.core.types import Edge, Memory
from hybridmem.core.validation import clean, text_digest
from hybridmem.errors import ConfigError, CorruptStoreError, EmbeddingError
from hybridmem.stores.sql.read import BODY, VITALS, SQLConnection, edge_from, placeholders
from hybridmem.text.conversation import cues_of, speaker_of

__all__ = [
    "BODY_COLUMNS",
    "COLUMNS",
    "MAX_SKEW",
    "BodyTimes",
    "Head",
    "Log",
    "body_derived",
    "body_row",
    "derive",
    "dump",
    "encode_vector",
    "word_count",
]

MAX_SKEW = 60.0
"""Seconds by which another writer's clock may be ahead before it is reported."""
_CHUNK = 500  # ids per lookup: well below every SQLite's limit of bound values


@dataclass(slots=True)
class Head:
    """The current state of one memory: the columns of `memories`, then the texts that a write compares with."""

    mem: int
    namespace: str
    id: str
    seq: int = 0
    written: int = 0
    live: int = 0
    body: int | None = None
    vector: int | None = None
    status: str = "active"
    strength: float = 1.0
    access_count: int = 0
    last_accessed: float | None = None
    decayed: float = 0.0
    born: int = 0
    source_id: str | None = None
    thread: str | None = None
    created_at: float | None = None
    updated_at: float | None = None
    confidence: float = 1.0
    words: int = 0
    speaker: str | None = None
    cues: int = 0
    event_at: float | None = None
    expires_at: float | None = None
    digest: int | None = None
    title: str | None = None
    text: str | None = None
    supersedes: str | None = None


COLUMNS = (
    "mem", "namespace", "id", "seq", "written", "live", "body", "vector", "status", "strength", "access_count",
    "last_accessed", "decayed", "born", "source_id", "thread", "created_at", "updated_at", "confidence", "words",
    "speaker", "cues", "event_at", "expires_at", "digest",
)  # fmt: skip
_HEAD = ", ".join(f"m.{name}" for name in COLUMNS)
_UPSERT = (
    f"INSERT INTO memories ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) "
    f"ON CONFLICT (mem) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in COLUMNS[3:])}"
)


_SPEAKER = BODY.index("speaker")
BODY_COLUMNS = ("seq", "words", "cues", "spoken_by", *BODY)
"""The columns of `bodies`: words, cues and spoken_by (the speaker in lower case) are derived from the text."""
_INSERT_BODY = f"INSERT INTO bodies ({', '.join(BODY_COLUMNS)}) VALUES ({', '.join('?' * len(BODY_COLUMNS))})"


def body_derived(head: Head, /) -> tuple[int, int, str | None]:
    """The derived columns of a body."""
    return head.words, head.cues, head.speaker


def derive(head: Head, body: Sequence[Any], /) -> None:
    """Set the fields of a head that follow from its body: words, cues, speaker, digest."""
    text = body[-1]
    head.words, head.cues, head.speaker = word_count(text), cues_of(text), speaker_of(text, body[_SPEAKER])
    head.digest = text_digest(text)


class Log:
    """Buffers the rows of one write transaction in SQLite; `finish` writes them and advances the store's counter."""

    def __init__(self, conn: SQLConnection, /, *, now: float, at: float) -> None:
        """`now` is the writer's clock, for the dates of memories; `at` is the recorded time of the new entries."""
        self.conn = conn
        self.now, self.at = now, at
        row = conn.execute("SELECT seq, at FROM state").fetchone()
        if row is None or type(row[0]) is not int or type(row[1]) not in (float, int):
            raise CorruptStoreError(f"the store's counter is damaged ({row!r}): restore a backup")
        self._start, self.newest = row
        self.seq: int = self._start
        self._mem: int | None = None
        self._heads: dict[tuple[str, str], Head] = {}
        self._dirty: dict[int, Head] = {}
        self._versions: list[tuple[Any, ...]] = []
        self._bodies: list[tuple[Any, ...]] = []
        self._vectors: list[tuple[int, bytes]] = []

    # --- heads of memories

    def heads(self, namespace: str, ids: Iterable[str], /, *, text: bool = False) -> dict[str, Head]:
        """The heads of ids that the namespace has ever contained, deleted ones too; `text` reads their text."""
        wanted = list(dict.fromkeys(ids))
        missing = [id_ for id_ in wanted if (namespace, id_) not in self._heads]
        for start in range(0, len(missing), _CHUNK):
            self._fetch(namespace, missing[start : start + _CHUNK], text)
        found = ((id_, self._heads.get((namespace, id_))) for id_ in wanted)
        return {id_: head for id_, head in found if head is not None}

    def _fetch(self, namespace: str, ids: Sequence[str], text: bool) -> None:
        body = (
            ("b.title, b.text, b.supersedes", "LEFT JOIN bodies b ON b.seq = m.body")
            if text
            else ("NULL, NULL, NULL", "")
        )
        rows = self.conn.execute(
            f"SELECT {_HEAD}, {body[0]} FROM memories m {body[1]} "
            f"WHERE m.namespace = ? AND m.id IN ({placeholders(len(ids))})",
            (namespace, *ids),
        )
        for row in rows:
            self._heads[namespace, row[2]] = _checked_head(row)

    def head(self, namespace: str, id_: str, /) -> Head:
        """The head of a memory; a new one if the namespace has never contained it."""
        head = self._heads.get((namespace, id_))
        if head is None:
            if self._mem is None:
                self._mem = self.conn.execute("SELECT COALESCE(max(mem), 0) FROM memories").fetchone()[0]
            self._mem = mem = (self._mem or 0) + 1
            head = self._heads[namespace, id_] = Head(mem, namespace, id_)
        return head

    def prefetched(self, rows: Iterable[Mapping[str, Any]], /) -> Iterable[Mapping[str, Any]]:
        """The rows of an export; a log whose look-ups are expensive reads their heads in batches here."""
        return rows

    # --- recording

    def record(
        self, head: Head, op: int, /, *, body: tuple[Any, ...] | None = None, vector: bytes | None = None
    ) -> int:
        """Append the next version of a memory: the state in `head`, with a new body or vector if given."""
        self.seq = seq = self.seq + 1
        self._heads[head.namespace, head.id] = head
        head.seq = seq
        head.born = head.born or seq
        if op != VITALS:
            head.written = seq
        if body is not None:
            head.body = seq
            self._bodies.append((seq, *body_derived(head), *body))
        if vector is not None:
            head.vector = seq
            self._vectors.append((seq, vector))
        self._versions.append(
            (seq, head.mem, self.at, op, head.live, head.body, head.vector, head.status, head.strength,
             head.access_count, head.last_accessed, head.decayed, head.born)
        )  # fmt: skip
        self._dirty[head.mem] = head
        return seq

    def link(self, namespace: str, edge: Edge, /, *, gone: bool = False) -> None:
        """Append a link or its removal."""
        self.seq = seq = self.seq + 1
        self.conn.execute(
            "INSERT INTO edge_log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (seq, self.at, namespace, *edge, gone)
        )
        if gone:
            self.conn.execute(
                "DELETE FROM edges WHERE namespace = ? AND a = ? AND b = ? AND relation = ?", (namespace, *edge[:3])
            )
        else:
            self.conn.execute("INSERT OR REPLACE INTO edges VALUES (?, ?, ?, ?, ?, ?)", (namespace, *edge, seq))

    def weights(self, namespace: str, edges: Sequence[Edge], /) -> dict[tuple[str, str, str], float]:
        """The weights of those links that exist."""
        query = "SELECT weight FROM edges WHERE namespace = ? AND a = ? AND b = ? AND relation = ?"
        keys = {edge[:3] for edge in edges}
        rows = ((key, self.conn.execute(query, (namespace, *key)).fetchone()) for key in keys)
        return {key: edge_from((*key, row[0])).weight for key, row in rows if row is not None}

    def unlink_all(self, namespace: str, id_: str, /) -> None:
        """Remove every link of a memory, so that no link has a missing end."""
        rows = self.conn.execute(
            "SELECT a, b, relation, weight FROM edges WHERE namespace = ? AND a = ? "
            "UNION SELECT a, b, relation, weight FROM edges WHERE namespace = ? AND b = ?",
            (namespace, id_, namespace, id_),
        ).fetchall()
        for row in rows:
            self.link(namespace, Edge(*row), gone=True)

    def flush(self) -> None:
        """Write the buffered rows and drop the cached heads, so that a long load needs little memory."""
        many = self.conn.executemany
        many(_INSERT_BODY, self._bodies)
        many("INSERT INTO vectors VALUES (?, ?)", self._vectors)
        many(f"INSERT INTO versions VALUES ({placeholders(13)})", self._versions)
        many(_UPSERT, map(_head_row, self._dirty.values()))
        for rows in (self._bodies, self._vectors, self._versions):
            rows.clear()
        self._dirty.clear()
        self._heads.clear()

    def finish(self) -> None:
        """Flush, then advance the store's counter: the last statement of the transaction."""
        self.flush()
        if self.seq == self._start:
            return
        self.conn.execute("UPDATE state SET seq = ?, at = max(at, ?)", (self.seq, max(self.at, self.newest)))


_FLOATS = frozenset(map(COLUMNS.index, ("strength", "decayed", "confidence")))
_INTEGERS = frozenset(map(COLUMNS.index, ("mem", "seq", "written", "live", "access_count", "born", "words", "cues")))


@lru_cache(maxsize=64)
def _are_kinds(kinds: tuple[type, ...]) -> bool:
    """Whether the columns of a head have the types that are written; SQLite keeps a value of any type."""
    return all(kinds[i] is int for i in _INTEGERS) and all(kinds[i] in (float, int) for i in _FLOATS)


def _checked_head(row: Sequence[Any]) -> Head:
    if not _are_kinds(tuple(map(type, row))):
        raise CorruptStoreError(f"memory {validation.display(row[2])} is damaged: restore a backup")
    return Head(*row)


def _head_row(head: Head) -> tuple[Any, ...]:
    return (
        head.mem, head.namespace, head.id, head.seq, head.written, head.live, head.body, head.vector, head.status,
        head.strength, head.access_count, head.last_accessed, head.decayed, head.born, head.source_id, head.thread,
        head.created_at, head.updated_at, head.confidence, head.words, head.speaker, head.cues, head.event_at,
        head.expires_at, head.digest,
    )  # fmt: skip


# --- memories and vectors as values of columns

_DEPTH = 100
_MAX_INT = 10**300


class BodyTimes(NamedTuple):
    """The times of a memory's body in epoch seconds."""

    created_at: float | None
    updated_at: float | None
    event_at: float | None = None
    expires_at: float | None = None


def body_row(memory: Memory, times: BodyTimes, confidence: float, /) -> tuple[Any, ...]:
    """The columns of a memory's body in the order of BODY."""
    return (
        clean(memory.title),
        _strings(memory.tags, "tags"),
        clean(memory.predicate),
        clean(memory.subject),
        _optional_name(memory.source_id),
        _optional_name(memory.thread),
        clean(memory.type),
        _strings(memory.entities, "entities"),
        times.created_at,
        times.updated_at,
        confidence,
        _optional_name(memory.supersedes),
        clean(memory.speaker),
        times.event_at,
        times.expires_at,
        dump(memory.metadata) if memory.metadata else None,
        clean(memory.text),
    )


def _optional_name(text: str | None) -> str | None:
    """An empty name is stored as NULL, so that memories without a source or thread are not grouped together."""
    return clean(text) if text else None


def _strings(values: Sequence[str], field: str) -> str | None:
    if values is None:
        return None
    if type(values) is not tuple:
        values = validation.listed(f"Memory.{field}", values, "str")
    if not values:
        return None
    for value in values:
        if not isinstance(value, str):
            validation.refuse(f"one of Memory.{field}", value, "a str")
    return _json_list(tuple(values))


@lru_cache(maxsize=2048)  # most memories share a few lists of tags
def _json_list(values: tuple[str, ...]) -> str:
    return _encode(list(map(clean, values)))


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def dump(metadata: Mapping[str, Any], /) -> str:
    """Metadata as JSON: times become ISO-8601 text, tuples and sets become lists, numpy numbers become plain numbers.

    >>> dump({"when": date(2024, 5, 1), "n": (1, 2)})
    '{"when": "2024-05-01", "n": [1, 2]}'
    """
    if not isinstance(metadata, Mapping):
        validation.refuse("Memory.metadata", metadata, "a mapping")
    try:
        text = _encode(metadata)
    except (TypeError, ValueError, RecursionError):  # not plain JSON yet
        return _encode(_plain(metadata, "metadata", 0))
    plain = text.isascii() and "\\u0000" not in text and text.count("{") + text.count("[") <= _DEPTH
    return text if plain else _encode(_plain(metadata, "metadata", 0))


def _plain(value: Any, where: str, depth: int) -> Any:  # noqa: C901, PLR0911 - one line per kind of value
    if isinstance(value, int) and abs(value) > _MAX_INT:
        raise ConfigError(f"{where} is an integer of more than 300 digits: store it as text")
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return clean(str(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"{where} is {value!r}: JSON has no such number, use None")
        return float(value)
    if depth > _DEPTH:
        raise ConfigError(f"metadata is nested deeper than {_DEPTH} levels (or contains itself)")
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [_plain(item, where, depth + 1) for item in sorted(value, key=repr)]
    if isinstance(value, datetime):
        stamp = epoch(value)
        return value.isoformat() if stamp is None else iso(stamp)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist(), where, depth + 1)
    raise ConfigError(
        f"{where} is a {type(value).__name__}, which JSON cannot represent; use str, numbers, lists, mappings"
    )


def _key(key: Any, where: str) -> str:
    if isinstance(key, str):
        return clean(key)
    if not isinstance(key, int | float) or not abs(key) <= _MAX_INT:
        raise ConfigError(f"{where} has the key {validation.display(key)}: keys must be str")
    return _encode(key)


def encode_vector(vector: Any, id_: str, /) -> bytes | None:
    """A vector as little-endian float32 bytes; None stays None."""
    if vector is None:
        return None
    try:
        array = np.asarray(vector, dtype="<f4")
    except (TypeError, ValueError, OverflowError) as error:
        raise EmbeddingError(f"the vector of memory {id_!r} is not numeric: {error}") from error
    if array.ndim != 1 or array.size == 0:
        raise EmbeddingError(f"the vector of memory {id_!r} must have one dimension, not the shape {array.shape}")
    if not (math.isfinite(array @ array) or np.isfinite(array).all()):  # the sum of squares alone may overflow
        raise EmbeddingError(f"the vector of memory {id_!r} has values that are not finite")
    return array.tobytes()


def word_count(text: str, /) -> int:
    """The number of words of a text (`Entry.words`)."""
    return len(text.split())
