"""Writing the log in PostgreSQL: rows gather here and go out together at the end, numbered in the order of commits.

One lock order for everybody, so that writers never wait for each other in a circle:

    all writers share the store's lock  →  the namespace's row  →  the counter, last and for a moment

Until the counter is reached, new numbers are provisional: BASE + 1, BASE + 2, …
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from hybridmem.core.types import Edge
from hybridmem.errors import CorruptStoreError
from hybridmem.stores.postgres.connection import Conn
from hybridmem.stores.postgres.derived import Derived, Deriver, Stats
from hybridmem.stores.postgres.write_buffer import Numbers, WriteBuffer
from hybridmem.stores.sqlite.log import COLUMNS, DELETE, ERASE, PUT, STATUS, VITALS, Head, Log
from hybridmem.text.cues import ASKS, cues_of

__all__ = ["PgLog"]

BASE = 1 << 62
_RECORD = "SELECT value FROM settings WHERE key = 'derived'"
_HOLD = 20_000
"""So many rows may gather before they are sent."""

_FETCH = (
    f"SELECT m.asks, {', '.join('m.' + name for name in COLUMNS)}, b.title, b.text, b.supersedes "  # noqa: S608
    "FROM memories m LEFT JOIN bodies b ON b.seq = m.body WHERE m.namespace = %s AND m.id = ANY(%s)"
)


class PgLog(Log):
    """One write transaction's pen: decides nothing, the same `writes` as for SQLite tell it what to record."""

    def __init__(self, conn: Conn, /, *, now: float, deriver: Deriver, namespace: str | None = None) -> None:
        """Lock one namespace; with None the transaction holds the whole store, and numbers are final at once."""
        self.conn: Any = conn
        self.raw = conn.raw
        self._deriver = deriver
        self._mems: list[int] = []
        self._missing = 0
        self._heads: dict[tuple[str, str], Head] = {}
        self._absent: set[tuple[str, str]] = set()
        """Looked for and not there: under our lock that stays so."""
        self._shown: dict[int, bool] = {}
        """Whether the live view showed a memory before this transaction."""
        self._buffer = WriteBuffer(conn.raw)
        self._derived = Derived()
        self._offset: int | None = None
        self._advanced = 0
        self._start = BASE
        self._touched: set[str] = set()
        self.at = now
        if namespace is None:
            self._lock_all(now)
        else:
            self._lock_namespace(namespace, now)
        self.seq = self._start

    # --- locks

    def _lock_namespace(self, namespace: str, now: float) -> None:
        query = f"SELECT at, ({_RECORD}) FROM spaces WHERE namespace = %s FOR UPDATE"  # noqa: S608 - ours
        row = self.raw.execute(query, (namespace,)).fetchone()
        if row is None:
            self.raw.execute("INSERT INTO spaces (namespace) VALUES (%s) ON CONFLICT DO NOTHING", (namespace,))
            row = self.raw.execute(query, (namespace,)).fetchone()
        if row is not None:
            self.at = max(now, row[0])
            self._deriver.check_record(row[1] and json.loads(row[1]))

    def _lock_all(self, now: float) -> None:
        row = self.raw.execute(f"SELECT seq, at, ({_RECORD}) FROM advance(0, 0)").fetchone()  # noqa: S608 - ours
        if row is None:
            raise CorruptStoreError("the store's counter is missing")
        self._start, last, record = row
        self._deriver.check_record(record and json.loads(record))
        self.at = max(now, last)
        self._offset = 0

    # --- finding memories

    def heads(self, namespace: str, ids: Iterable[str], /, *, text: bool = False) -> dict[str, Head]:  # noqa: ARG002
        """The heads of the ids that this namespace has ever known, deleted ones too, with their text."""
        wanted = list(dict.fromkeys(ids))
        missing = [
            id_ for id_ in wanted if (namespace, id_) not in self._heads and (namespace, id_) not in self._absent
        ]
        if missing:
            self._absent.update((namespace, id_) for id_ in missing)
            for row in self.raw.execute(_FETCH, (namespace, missing)):
                head = Head(*row[1:])
                self._heads[namespace, head.id] = head
                self._absent.discard((namespace, head.id))
                self._buffer.asks[head.mem] = row[0]
                self._shown[head.mem] = _is_shown(head)
        found = {id_: self._heads[namespace, id_] for id_ in wanted if (namespace, id_) in self._heads}
        self._missing = len(wanted) - len(found)
        return found

    def head(self, namespace: str, id_: str, /) -> Head:
        """The head of a memory, a fresh one if the namespace has never known it."""
        head = self._heads.get((namespace, id_))
        self._absent.discard((namespace, id_))
        if head is None:
            if not self._mems:
                count = max(1, self._missing)
                rows = self.raw.execute("SELECT nextval('mems') FROM generate_series(1, %s)", (count,)).fetchall()
                self._mems = sorted((row[0] for row in rows), reverse=True)
            head = self._heads[namespace, id_] = Head(self._mems.pop(), namespace, id_)
        return head

    def prefetched(self, rows: Iterable[Mapping[str, Any]], /) -> Iterator[Mapping[str, Any]]:
        """The same rows of an export, with the memories they speak of looked up a thousand at a time."""
        stream = iter(rows)
        while part := list(islice(stream, 1000)):
            wanted: dict[str, list[str]] = {}
            for row in part:
                if isinstance(row, Mapping) and row.get("kind") in ("memory", "edge"):
                    named = ("id",) if row["kind"] == "memory" else ("a", "b")
                    wanted.setdefault(str(row.get("namespace")), []).extend(str(row.get(name)) for name in named)
            for namespace, ids in wanted.items():
                self.heads(namespace, ids)
            yield from part

    # --- recording

    def record(
        self, head: Head, op: int, /, *, body: tuple[Any, ...] | None = None, vector: bytes | None = None
    ) -> int:
        """Append the next version of a memory: where `head` now stands, with a new body or vector if given."""
        self.seq = seq = self.seq + 1
        head.seq = seq
        head.born = head.born or seq
        namespace = head.namespace
        self._touched.add(namespace)
        self._heads[namespace, head.id] = head
        if op != VITALS:
            head.written = seq
        if op == ERASE:
            self._buffer.forget(head)
        if body is not None:
            head.body = seq
            head.title, head.text, head.supersedes = body[0], body[-1], body[11]
            self._buffer.asks[head.mem] = bool(cues_of(body[-1]) & ASKS)
            self._buffer.bodies.append((seq, namespace, head.words, *body))
        if vector is not None:
            head.vector = seq
            self._buffer.vectors.append((seq, namespace, vector))
        self._buffer.versions.append(
            (seq, namespace, head.mem, self.at, op, bool(head.live), head.body, head.vector, head.status, head.strength,
             head.access_count, head.last_accessed, head.decayed, head.born)
        )  # fmt: skip
        self._buffer.heads[head.mem] = head
        if op != VITALS:
            self._derived.note(
                head, shown=_is_shown(head), before=self._shown.get(head.mem, False), body=body, vector=vector,
                text=op in (PUT, STATUS, DELETE, ERASE),
            )  # fmt: skip
        return seq

    def link(self, namespace: str, edge: Edge, /, *, gone: bool = False) -> None:
        """Append a link or its removal."""
        self.seq = seq = self.seq + 1
        self._touched.add(namespace)
        self._buffer.links.append((seq, self.at, namespace, *edge, gone))
        self._buffer.edges[namespace, edge.a, edge.b, edge.relation] = None if gone else (edge.weight, seq)

    def weights(self, namespace: str, edges: Sequence[Edge], /) -> dict[tuple[str, str, str], float]:
        """The weights of those of these links that stand."""
        keys = [edge[:3] for edge in edges]
        rows = self.raw.execute(
            "SELECT e.a, e.b, e.relation, e.weight FROM edges e JOIN unnest(%s::text[], %s::text[], %s::text[]) "
            "AS q (a, b, relation) USING (a, b, relation) WHERE e.namespace = %s",
            (*([key[i] for key in keys] for i in range(3)), namespace),
        )
        found = {row[:3]: row[3] for row in rows}
        for key in keys:
            if (namespace, *key) in self._buffer.edges:
                pending = self._buffer.edges[namespace, key[0], key[1], key[2]]
                found.pop(key, None)
                if pending is not None:
                    found[key] = pending[0]
        return found

    def unlink_all(self, namespace: str, id_: str, /) -> None:
        """Remove every link of a memory, so that none ever dangles."""
        rows = self.raw.execute(
            "SELECT a, b, relation, weight FROM edges WHERE namespace = %s AND a = %s "
            "UNION SELECT a, b, relation, weight FROM edges WHERE namespace = %s AND b = %s",
            (namespace, id_, namespace, id_),
        ).fetchall()
        standing = {row[:3]: row[3] for row in rows}
        for key, pending in self._buffer.pending(namespace, id_):
            standing.pop(key, None)
            if pending is not None:
                standing[key] = pending
        for key, weight in standing.items():
            self.link(namespace, Edge(key[0], key[1], key[2], weight), gone=True)

    # --- sending

    def flush(self) -> None:
        """Send what has gathered, once it is much: the counter is taken as late as possible."""
        if len(self._buffer) >= _HOLD:
            self.send()

    def send(self) -> None:
        """Send what has gathered: first what needs no number, then the counter, then the log."""
        changes = self._deriver.write(self.raw, self._derived)
        self._derived = Derived()
        number = self._numbers()
        last = number(self.seq) or 0
        if self._start == BASE:  # an exact copy keeps the times it was given
            self._buffer.date(self.at)
        spaces = {
            namespace: (last if namespace in self._touched else 0, self.at, changes.get(namespace, Stats()))
            for namespace in self._touched | changes.keys()
        }
        self._buffer.send(number, spaces, known=set(self._shown))
        for kept in (self._heads, self._shown, self._touched):
            kept.clear()

    def _numbers(self) -> Numbers:
        """From provisional numbers to final ones: take them from the counter, whose row stays ours until the commit."""
        step = self.seq - self._start - self._advanced
        if self._offset is None or step:
            row = self.raw.execute("SELECT seq, at FROM advance(%s, %s)", (step, self.at)).fetchone()
            if row is None:
                raise CorruptStoreError(f"the store's counter did not move by {step}: its row is missing")
            newest, at = row
            self._advanced += step
            if self._offset is None:
                self._offset = newest - self._advanced
                self.at = at
        offset = self._offset - BASE if self._start == BASE else 0
        return lambda seq: seq + offset if seq is not None and seq > BASE else seq

    def finish(self) -> None:
        """Send the rest: the last act of the transaction."""
        if self.seq != self._start:
            self.send()


def _is_shown(head: Head) -> bool:
    return bool(head.live) and head.status != "superseded"
