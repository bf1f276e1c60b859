"""Writing the log in PostgreSQL: rows gather here and go out together at the end, numbered in the order of commits.

One lock order for everybody, so that writers never wait for each other in a circle:

    all writers share the store's lock  →  the namespace's row  →  the counter, last and for a moment

Until the counter is reached, new numbers are provisional: BASE + 1, BASE + 2, …
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from hybridmem.errors import CorruptStoreError
from hybridmem.stores.log import _COLUMNS as _COLUMNS_OF_HEAD
from hybridmem.stores.log import DELETE, ERASE, PUT, STATUS, VITALS, Head, Log
from hybridmem.stores.pg.database import Conn
from hybridmem.stores.pg.derive import Derived, Deriver, asks
from hybridmem.types import Edge

__all__ = ["PgLog"]

BASE = 1 << 62
_HOLD = 20_000
"""So many rows may gather before they are sent."""
_COPY_FROM = 64
"""From so many rows on COPY is cheaper than inserting."""

_HEAD: tuple[str, ...] = _COLUMNS_OF_HEAD
_FETCH = (
    f"SELECT m.asks, {', '.join('m.' + name for name in _HEAD)}, b.title, b.text, b.supersedes "  # noqa: S608
    "FROM memories m LEFT JOIN bodies b ON b.seq = m.body WHERE m.namespace = %s AND m.id = ANY(%s)"
)
_COLUMNS = {
    "versions": "seq, namespace, mem, at, op, live, body, vector, status, strength, access_count, last_accessed, "
    "decayed, born",
    "bodies": "seq, namespace, words, title, tags, predicate, subject, source_id, thread, type, entities, created_at, "
    "updated_at, confidence, supersedes, metadata, text",
    "vectors": "seq, namespace, data",
    "edge_log": "seq, at, namespace, a, b, relation, weight, gone",
    "memories": ", ".join((*_HEAD, "asks")),
}
_SET = ", ".join(f"{name} = excluded.{name}" for name in (*_HEAD[3:], "asks"))


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
        self._asks: dict[int, bool] = {}
        self._shown: dict[int, bool] = {}
        """Whether the live view showed a memory before this transaction."""
        self._dirty: dict[int, Head] = {}
        self._versions: list[tuple[Any, ...]] = []
        self._bodies: list[tuple[Any, ...]] = []
        self._vectors: list[tuple[Any, ...]] = []
        self._links: list[tuple[Any, ...]] = []
        self._edges: dict[tuple[str, str, str, str], tuple[float, int] | None] = {}
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
        query = "SELECT at FROM spaces WHERE namespace = %s FOR UPDATE"
        row = self.raw.execute(query, (namespace,)).fetchone()
        if row is None:
            self.raw.execute("INSERT INTO spaces (namespace) VALUES (%s) ON CONFLICT DO NOTHING", (namespace,))
            row = self.raw.execute(query, (namespace,)).fetchone()
        if row is not None:
            self.at = max(now, row[0])

    def _lock_all(self, now: float) -> None:
        row = self.raw.execute("SELECT seq, at FROM advance(0, 0)").fetchone()
        if row is None:
            raise CorruptStoreError("the store's counter is missing")
        self._start, last = row
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
                self._asks[head.mem] = row[0]
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
                if isinstance(row, Mapping) and row.get("kind") == "memory":
                    wanted.setdefault(str(row.get("namespace")), []).append(str(row.get("id")))
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
            self._forget(head)
        if body is not None:
            head.body = seq
            head.title, head.text, head.supersedes = body[0], body[-1], body[11]
            self._asks[head.mem] = asks(body[-1])
            self._bodies.append((seq, namespace, head.words, *body))
        if vector is not None:
            head.vector = seq
            self._vectors.append((seq, namespace, vector))
        self._versions.append(
            (seq, namespace, head.mem, self.at, op, bool(head.live), head.body, head.vector, head.status, head.strength,
             head.access_count, head.last_accessed, head.decayed, head.born)
        )  # fmt: skip
        self._dirty[head.mem] = head
        if op != VITALS:
            self._derived.note(
                head, shown=_is_shown(head), before=self._shown.get(head.mem, False), body=body, vector=vector,
                text=op in (PUT, STATUS, DELETE, ERASE),
            )  # fmt: skip
        return seq

    def _forget(self, head: Head) -> None:
        """Drop what has gathered of a memory that is being erased."""
        own = {row[0] for row in self._versions if row[2] == head.mem}
        if own:
            for rows in (self._versions, self._bodies, self._vectors):
                rows[:] = [row for row in rows if row[0] not in own]
        self._links = [
            row for row in self._links if row[-1] or row[2] != head.namespace or head.id not in (row[3], row[4])
        ]

    def link(self, namespace: str, edge: Edge, /, *, gone: bool = False) -> None:
        """Append a link or its removal."""
        self.seq = seq = self.seq + 1
        self._touched.add(namespace)
        self._links.append((seq, self.at, namespace, *edge, gone))
        self._edges[namespace, edge.a, edge.b, edge.relation] = None if gone else (edge.weight, seq)

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
            if (namespace, *key) in self._edges:
                pending = self._edges[namespace, key[0], key[1], key[2]]
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
        for (space, *key), pending in self._edges.items():
            if space == namespace and id_ in key[:2]:
                standing.pop(tuple(key), None)
                if pending is not None:
                    standing[tuple(key)] = pending[0]
        for key, weight in standing.items():
            self.link(namespace, Edge(key[0], key[1], key[2], weight), gone=True)

    # --- sending

    def flush(self) -> None:
        """Send what has gathered, once it is much: the counter is taken as late as possible."""
        if len(self._versions) + len(self._links) >= _HOLD:
            self.send()

    def send(self) -> None:
        """Send what has gathered: first what needs no number, then the counter, then the log."""
        changes = self._deriver.write(self.raw, self._derived)
        self._derived = Derived()
        number = self._numbers()
        last = number(self.seq) or 0
        with self._bulk(len(self._versions) + len(self._links)):
            self._insert("bodies", [(number(row[0]), *row[1:]) for row in self._bodies])
            self._insert("vectors", [(number(row[0]), *row[1:]) for row in self._vectors])
            self._insert("versions", [self._version(row, number) for row in self._versions])
            self._send_memories(number)
            self._send_edges(number)
            for namespace in sorted(self._touched | changes.keys()):
                self.raw.execute(
                    "INSERT INTO spaces AS s VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (namespace) DO UPDATE SET "
                    "seq = greatest(s.seq, excluded.seq), at = greatest(s.at, excluded.at), memories = s.memories + "
                    "excluded.memories, length = s.length + excluded.length, vectors = s.vectors + excluded.vectors",
                    (
                        namespace,
                        last if namespace in self._touched else 0,
                        self.at,
                        *changes.get(namespace, (0, 0.0, 0)),
                    ),
                )
        for rows in (self._bodies, self._vectors, self._versions, self._links):
            rows.clear()
        for kept in (self._dirty, self._edges, self._heads, self._shown, self._asks, self._touched):
            kept.clear()

    def _numbers(self) -> Any:
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

    def _version(self, row: tuple[Any, ...], number: Any) -> tuple[Any, ...]:
        at = self.at if self._start == BASE else row[3]
        return (number(row[0]), *row[1:3], at, *row[4:6], number(row[6]), number(row[7]), *row[8:13], number(row[13]))

    def _send_memories(self, number: Any) -> None:
        rows = []
        for head in self._dirty.values():
            for name in ("seq", "written", "body", "vector", "born"):
                setattr(head, name, number(getattr(head, name)))
            row = [getattr(head, name) for name in _HEAD]
            row[5] = bool(row[5])
            rows.append((*row, self._asks.get(head.mem, False)))
        known = [row for row in rows if row[0] in self._shown]
        self._insert("memories", [row for row in rows if row[0] not in self._shown])
        if known:
            marks = ", ".join(["%s"] * (len(_HEAD) + 1))
            with self.raw.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO memories ({_COLUMNS['memories']}) VALUES ({marks}) "  # noqa: S608
                    f"ON CONFLICT (mem) DO UPDATE SET {_SET}",
                    known,
                )

    def _send_edges(self, number: Any) -> None:
        at = self.at if self._start == BASE else None
        self._insert("edge_log", [(number(row[0]), at or row[1], *row[2:]) for row in self._links])
        gone = [key for key, standing in self._edges.items() if standing is None]
        if gone:
            self.raw.execute(
                "DELETE FROM edges e USING unnest(%s::text[], %s::text[], %s::text[], %s::text[]) "
                "AS q (namespace, a, b, relation) WHERE (e.namespace, e.a, e.b, e.relation) = "
                "(q.namespace, q.a, q.b, q.relation)",
                tuple([key[i] for key in gone] for i in range(4)),
            )
        kept = [(*key, standing[0], number(standing[1])) for key, standing in self._edges.items() if standing]
        if kept:
            self.raw.execute(
                "INSERT INTO edges SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::float8[], "
                "%s::bigint[]) ON CONFLICT (namespace, a, b, relation) DO UPDATE SET weight = excluded.weight, "
                "seq = excluded.seq",
                tuple([row[i] for row in kept] for i in range(6)),
            )

    def _insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        if not rows:
            return
        columns = _COLUMNS[table]
        with self.raw.cursor() as cursor:
            if len(rows) >= _COPY_FROM:
                with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
            else:
                marks = ", ".join(["%s"] * len(rows[0]))
                cursor.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)  # noqa: S608

    @contextmanager
    def _bulk(self, count: int) -> Iterator[None]:
        """Few rows travel in one round trip; COPY cannot be part of that."""
        if count >= _COPY_FROM:
            yield
        else:
            with self.raw.pipeline():
                yield

    def finish(self) -> None:
        """Send the rest: the last act of the transaction."""
        if self.seq != self._start:
            self.send()


def _is_shown(head: Head) -> bool:
    return bool(head.live) and head.status != "superseded"
