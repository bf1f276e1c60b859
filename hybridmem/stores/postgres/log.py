"""The log of one write transaction in PostgreSQL: buffered rows, sent together and numbered in the order of commits.

All writers take locks in the same order, so that no deadlock is possible:

    the store's lock (shared)  →  the namespace's row  →  the counter, last and for a short time

Until the counter is taken, new numbers are provisional: BASE + 1, BASE + 2, …
"""

# ruff: noqa: S608 - every name put into a statement is ours; values of users are bound or copied

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from hybridmem.core.types import Edge
from hybridmem.errors import CorruptStoreError
from hybridmem.stores.postgres.connection import Conn, Raw
from hybridmem.stores.postgres.derived import DerivedChanges, Deriver, Stats
from hybridmem.stores.postgres.neighbours import TurnState
from hybridmem.stores.sql.log import BODY_COLUMNS, COLUMNS, Head, Log, body_derived
from hybridmem.stores.sql.read import DELETE, ERASE, PUT, STATUS, VITALS

__all__ = ["PgLog"]

BASE = 1 << 62
_RECORD = "SELECT value FROM settings WHERE key = 'derived'"
_BUFFER_LIMIT = 20_000
"""The number of buffered rows from which they are sent."""

_FETCH = (
    f"SELECT {', '.join('m.' + name for name in COLUMNS)}, b.title, b.text, b.supersedes, "
    "COALESCE(btrim(b.speaker) <> '', false) FROM memories m LEFT JOIN bodies b ON b.seq = m.body "
    "WHERE m.namespace = %s AND m.id = ANY(%s)"
)


Numbers = Callable[[int | None], Any]
"""Converts the provisional number of a row to its final one."""
_COPY_FROM = 64
"""The number of rows from which COPY is faster than INSERT."""

_TABLES = {
    "versions": "seq, namespace, mem, at, op, live, body, vector, status, strength, access_count, last_accessed, "
    "decayed, born",
    "bodies": ", ".join(("seq", "namespace", *BODY_COLUMNS[1:])),
    "vectors": "seq, namespace, data",
    "edge_log": "seq, at, namespace, a, b, relation, weight, gone",
    "memories": ", ".join(COLUMNS),
}
_SET = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[3:])


class PgLog(Log):
    """Buffers the rows of one write transaction; `sql.write` decides what is recorded, as for SQLite."""

    def __init__(self, conn: Conn, /, *, now: float, at: float, deriver: Deriver, namespace: str | None = None) -> None:
        """Lock one namespace; None: the transaction holds the whole store, and numbers are final at once."""
        self.conn: Any = conn
        self.raw = conn.raw
        self._deriver = deriver
        self._mems: list[int] = []
        self._missing = 0
        self._heads: dict[tuple[str, str], Head] = {}
        self._absent: set[tuple[str, str]] = set()
        """Ids that do not exist; the lock keeps this valid."""
        self._old: dict[int, TurnState | None] = {}
        """The state of each known memory before this transaction; None when it was not visible."""
        self._buffer = WriteBuffer(conn.raw)
        self._derived = DerivedChanges()
        self._offset: int | None = None
        self._advanced = 0
        self._start = BASE
        self._touched: set[str] = set()
        self.now, self.at, self.newest = now, at, 0.0
        if namespace is None:
            self._lock_all()
        else:
            self._lock_namespace(namespace)
        self.seq = self._start

    # --- locks

    def _lock_namespace(self, namespace: str) -> None:
        query = f"SELECT at, ({_RECORD}) FROM spaces WHERE namespace = %s FOR UPDATE"
        row = self.raw.execute(query, (namespace,)).fetchone()
        if row is None:
            self.raw.execute("INSERT INTO spaces (namespace) VALUES (%s) ON CONFLICT DO NOTHING", (namespace,))
            row = self.raw.execute(query, (namespace,)).fetchone()
        if row is not None:
            self.newest = row[0]
            self._deriver.check_record(row[1] and json.loads(row[1]))

    def _lock_all(self) -> None:
        row = self.raw.execute(f"SELECT seq, at, ({_RECORD}) FROM advance(0, 0)").fetchone()
        if row is None:
            raise CorruptStoreError("the store's counter is missing")
        self._start, self.newest, record = row
        self._deriver.check_record(record and json.loads(record))
        self._offset = 0

    # --- heads of memories

    def heads(self, namespace: str, ids: Iterable[str], /, *, text: bool = False) -> dict[str, Head]:  # noqa: ARG002
        """The heads of those ids that the namespace has ever contained, deleted ones too, with their text."""
        wanted = list(dict.fromkeys(ids))
        missing = [
            id_ for id_ in wanted if (namespace, id_) not in self._heads and (namespace, id_) not in self._absent
        ]
        if missing:
            self._absent.update((namespace, id_) for id_ in missing)
            for row in self.raw.execute(_FETCH, (namespace, missing)):
                head, named = Head(*row[:-1]), row[-1]
                self._heads[namespace, head.id] = head
                self._absent.discard((namespace, head.id))
                self._old[head.mem] = TurnState.of(head, named=named) if _is_visible(head) else None
        found = {id_: self._heads[namespace, id_] for id_ in wanted if (namespace, id_) in self._heads}
        self._missing = len(wanted) - len(found)
        return found

    def head(self, namespace: str, id_: str, /) -> Head:
        """The head of a memory; a new one if the namespace has never contained it."""
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
        """The rows of an export; the heads of their memories are read a thousand at a time."""
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
        """Append the next version of a memory: the state in `head`, with a new body or vector if given."""
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
            self._buffer.bodies.append((seq, namespace, *body_derived(head), *body))
        if vector is not None:
            head.vector = seq
            self._buffer.vectors.append((seq, namespace, vector))
        self._buffer.versions.append(
            (seq, namespace, head.mem, self.at, op, bool(head.live), head.body, head.vector, head.status, head.strength,
             head.access_count, head.last_accessed, head.decayed, head.born)
        )  # fmt: skip
        self._buffer.heads[head.mem] = head
        if op != VITALS:
            self._derived.record(
                head,
                visible=_is_visible(head),
                old=self._old.get(head.mem),
                body=body,
                vector=vector,
                text=op in (PUT, STATUS, DELETE, ERASE),
            )
        return seq

    def link(self, namespace: str, edge: Edge, /, *, gone: bool = False) -> None:
        """Append a link or its removal."""
        self.seq = seq = self.seq + 1
        self._touched.add(namespace)
        self._buffer.links.append((seq, self.at, namespace, *edge, gone))
        self._buffer.edges[namespace, edge.a, edge.b, edge.relation] = None if gone else (edge.weight, seq)

    def weights(self, namespace: str, edges: Sequence[Edge], /) -> dict[tuple[str, str, str], float]:
        """The weights of those links that exist."""
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
        """Remove every link of a memory, so that no link has a missing end."""
        rows = self.raw.execute(
            "SELECT a, b, relation, weight FROM edges WHERE namespace = %s AND a = %s "
            "UNION SELECT a, b, relation, weight FROM edges WHERE namespace = %s AND b = %s",
            (namespace, id_, namespace, id_),
        ).fetchall()
        weights = {row[:3]: row[3] for row in rows}
        for key, pending in self._buffer.pending(namespace, id_):
            weights.pop(key, None)
            if pending is not None:
                weights[key] = pending
        for key, weight in weights.items():
            self.link(namespace, Edge(key[0], key[1], key[2], weight), gone=True)

    # --- sending

    def flush(self) -> None:
        """Send a full buffer; a smaller one waits, since the counter is taken as late as possible."""
        if len(self._buffer) >= _BUFFER_LIMIT:
            self.send()

    def send(self) -> None:
        """Send the buffer: first the derived rows, which need no number, then the counter, then the log."""
        changes = self._deriver.write(self.raw, self._derived)
        self._derived = DerivedChanges()
        number = self._numbers()
        last, newest = number(self.seq) or 0, max(self.at, self.newest)
        spaces = {
            namespace: (last if namespace in self._touched else 0, newest, changes.get(namespace, Stats()))
            for namespace in self._touched | changes.keys()
        }
        self._buffer.send(number, spaces, known=set(self._old))
        for kept in (self._heads, self._old, self._touched):
            kept.clear()

    def _numbers(self) -> Numbers:
        """The function from provisional to final numbers; the counter's row stays locked until the commit."""
        step = self.seq - self._start - self._advanced
        if self._offset is None or step:
            row = self.raw.execute("SELECT seq FROM advance(%s, %s)", (step, self.at)).fetchone()
            if row is None:
                raise CorruptStoreError(f"the store's counter did not advance by {step}: its row is missing")
            self._advanced += step
            if self._offset is None:
                self._offset = row[0] - self._advanced
        offset = self._offset - BASE if self._start == BASE else 0
        return lambda seq: seq + offset if seq is not None and seq > BASE else seq

    def finish(self) -> None:
        """Send the rest of the buffer: the last statements of the transaction."""
        if self.seq != self._start:
            self.send()


def _is_visible(head: Head) -> bool:
    return bool(head.live) and head.status != "superseded"


class WriteBuffer:
    """Rows that a transaction has recorded and not sent yet."""

    def __init__(self, raw: Raw, /) -> None:
        self._raw = raw
        self.versions: list[tuple[Any, ...]] = []
        self.bodies: list[tuple[Any, ...]] = []
        self.vectors: list[tuple[Any, ...]] = []
        self.links: list[tuple[Any, ...]] = []
        self.edges: dict[tuple[str, str, str, str], tuple[float, int] | None] = {}
        """Changed links: weight and number, or None for a removed link."""
        self.heads: dict[int, Head] = {}

    def __len__(self) -> int:
        return len(self.versions) + len(self.links)

    def forget(self, head: Head, /) -> None:
        """Drop the buffered rows of a memory that is being erased."""
        own = {row[0] for row in self.versions if row[2] == head.mem}
        if own:
            for rows in (self.versions, self.bodies, self.vectors):
                rows[:] = [row for row in rows if row[0] not in own]
        own_links = [row[2] == head.namespace and head.id in (row[3], row[4]) for row in self.links]
        self.links = [
            (*row[:5], "", *row[6:]) if mine else row
            for row, mine in zip(self.links, own_links, strict=True)
            if row[-1] or not mine
        ]

    def pending(self, namespace: str, id_: str, /) -> Iterator[tuple[tuple[str, str, str], float | None]]:
        """The changed links of a memory: weight, or None for a removed link."""
        for (space, a, b, relation), state in self.edges.items():
            if space == namespace and id_ in (a, b):
                yield (a, b, relation), None if state is None else state[0]

    # --- sending

    def send(self, number: Numbers, spaces: Mapping[str, tuple[int, float, Stats]], /, *, known: set[int]) -> None:
        """Send all rows: `known` memories are updated, others inserted; `spaces` updates the rows of the namespaces."""
        with self._pipelined():
            self._insert("bodies", [(number(row[0]), *row[1:]) for row in self.bodies])
            self._insert("vectors", [(number(row[0]), *row[1:]) for row in self.vectors])
            self._insert(
                "versions",
                [
                    (number(row[0]), *row[1:6], number(row[6]), number(row[7]), *row[8:13], number(row[13]))
                    for row in self.versions
                ],
            )
            self._send_memories(number, known)
            self._send_edges(number)
            for namespace in sorted(spaces):
                seq, at, stats = spaces[namespace]
                self._raw.execute(
                    "INSERT INTO spaces AS s VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (namespace) DO UPDATE SET "
                    "seq = greatest(s.seq, excluded.seq), at = greatest(s.at, excluded.at), memories = s.memories + "
                    "excluded.memories, length = s.length + excluded.length, vectors = s.vectors + excluded.vectors",
                    (namespace, seq, at, *stats),
                )
        for rows in (self.bodies, self.vectors, self.versions, self.links):
            rows.clear()
        for kept in (self.heads, self.edges):
            kept.clear()

    def _send_memories(self, number: Numbers, known: set[int]) -> None:
        rows = []
        for head in self.heads.values():
            for name in ("seq", "written", "body", "vector", "born"):
                setattr(head, name, number(getattr(head, name)))
            row = [getattr(head, name) for name in COLUMNS]
            row[5] = bool(row[5])
            rows.append(tuple(row))
        self._insert("memories", [row for row in rows if row[0] not in known])
        changed = [row for row in rows if row[0] in known]
        if changed:
            marks = ", ".join(["%s"] * len(COLUMNS))
            with self._raw.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO memories ({_TABLES['memories']}) VALUES ({marks}) "
                    f"ON CONFLICT (mem) DO UPDATE SET {_SET}",
                    changed,
                )

    def _send_edges(self, number: Numbers) -> None:
        self._insert("edge_log", [(number(row[0]), *row[1:]) for row in self.links])
        gone = [key for key, state in self.edges.items() if state is None]
        if gone:
            self._raw.execute(
                "DELETE FROM edges e USING unnest(%s::text[], %s::text[], %s::text[], %s::text[]) "
                "AS q (namespace, a, b, relation) WHERE (e.namespace, e.a, e.b, e.relation) = "
                "(q.namespace, q.a, q.b, q.relation)",
                tuple([key[i] for key in gone] for i in range(4)),
            )
        kept = [(*key, state[0], number(state[1])) for key, state in self.edges.items() if state]
        if kept:
            self._raw.execute(
                "INSERT INTO edges SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::float8[], "
                "%s::bigint[]) ON CONFLICT (namespace, a, b, relation) DO UPDATE SET weight = excluded.weight, "
                "seq = excluded.seq",
                tuple([row[i] for row in kept] for i in range(6)),
            )

    def _insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        if not rows:
            return
        columns = _TABLES[table]
        with self._raw.cursor() as cursor:
            if len(rows) >= _COPY_FROM:
                with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
            else:
                marks = ", ".join(["%s"] * len(rows[0]))
                cursor.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)

    @contextmanager
    def _pipelined(self) -> Iterator[None]:
        """Sends few rows in one round trip; COPY cannot be part of a pipeline."""
        if len(self) >= _COPY_FROM:
            yield
        else:
            with self._raw.pipeline():
                yield
