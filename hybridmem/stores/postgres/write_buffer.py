"""Rows of one transaction that wait to be sent, and the sending: one round trip when they are few, COPY when many."""

# ruff: noqa: S608 - every name put into a statement is ours; what users give is bound or copied

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from hybridmem.stores.postgres.derived import Stats
from hybridmem.stores.sqlite.log import COLUMNS as HEAD
from hybridmem.stores.sqlite.log import Head

__all__ = ["Numbers", "WriteBuffer"]

Raw = psycopg.Connection[Any]
Numbers = Callable[[int | None], Any]
"""From the provisional number of a row to its final one."""
_COPY_FROM = 64
"""From so many rows on COPY is cheaper than inserting."""

_COLUMNS = {
    "versions": "seq, namespace, mem, at, op, live, body, vector, status, strength, access_count, last_accessed, "
    "decayed, born",
    "bodies": "seq, namespace, words, title, tags, predicate, subject, source_id, thread, type, entities, created_at, "
    "updated_at, confidence, supersedes, metadata, text",
    "vectors": "seq, namespace, data",
    "edge_log": "seq, at, namespace, a, b, relation, weight, gone",
    "memories": ", ".join((*HEAD, "asks")),
}
_SET = ", ".join(f"{name} = excluded.{name}" for name in (*HEAD[3:], "asks"))


class WriteBuffer:
    """What a transaction has recorded and not sent yet."""

    def __init__(self, raw: Raw, /) -> None:
        self._raw = raw
        self.versions: list[tuple[Any, ...]] = []
        self.bodies: list[tuple[Any, ...]] = []
        self.vectors: list[tuple[Any, ...]] = []
        self.links: list[tuple[Any, ...]] = []
        self.edges: dict[tuple[str, str, str, str], tuple[float, int] | None] = {}
        """How each link touched stands: its weight and number, or None when it is gone."""
        self.heads: dict[int, Head] = {}
        self.asks: dict[int, bool] = {}

    def __len__(self) -> int:
        return len(self.versions) + len(self.links)

    def forget(self, head: Head, /) -> None:
        """Drop what has gathered of a memory that is being erased."""
        own = {row[0] for row in self.versions if row[2] == head.mem}
        if own:
            for rows in (self.versions, self.bodies, self.vectors):
                rows[:] = [row for row in rows if row[0] not in own]
        self.links = [
            row for row in self.links if row[-1] or row[2] != head.namespace or head.id not in (row[3], row[4])
        ]

    def pending(self, namespace: str, id_: str, /) -> Iterator[tuple[tuple[str, str, str], float | None]]:
        """The links of a memory that this transaction touched: each with its weight, or None when it is gone."""
        for (space, a, b, relation), standing in self.edges.items():
            if space == namespace and id_ in (a, b):
                yield (a, b, relation), None if standing is None else standing[0]

    # --- sending

    def send(self, number: Numbers, spaces: Mapping[str, tuple[int, float, Stats]], /, *, known: set[int]) -> None:
        """Send all: `known` memories are updated, the others are new; `spaces` moves each namespace's row along."""
        with self._together():
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
        for kept in (self.heads, self.edges, self.asks):
            kept.clear()

    def date(self, at: float, /) -> None:
        """Give everything that has gathered the time of its transaction."""
        self.versions = [(*row[:3], at, *row[4:]) for row in self.versions]
        self.links = [(row[0], at, *row[2:]) for row in self.links]

    def _send_memories(self, number: Numbers, known: set[int]) -> None:
        rows = []
        for head in self.heads.values():
            for name in ("seq", "written", "body", "vector", "born"):
                setattr(head, name, number(getattr(head, name)))
            row = [getattr(head, name) for name in HEAD]
            row[5] = bool(row[5])
            rows.append((*row, self.asks.get(head.mem, False)))
        self._insert("memories", [row for row in rows if row[0] not in known])
        changed = [row for row in rows if row[0] in known]
        if changed:
            marks = ", ".join(["%s"] * (len(HEAD) + 1))
            with self._raw.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO memories ({_COLUMNS['memories']}) VALUES ({marks}) "
                    f"ON CONFLICT (mem) DO UPDATE SET {_SET}",
                    changed,
                )

    def _send_edges(self, number: Numbers) -> None:
        self._insert("edge_log", [(number(row[0]), *row[1:]) for row in self.links])
        gone = [key for key, standing in self.edges.items() if standing is None]
        if gone:
            self._raw.execute(
                "DELETE FROM edges e USING unnest(%s::text[], %s::text[], %s::text[], %s::text[]) "
                "AS q (namespace, a, b, relation) WHERE (e.namespace, e.a, e.b, e.relation) = "
                "(q.namespace, q.a, q.b, q.relation)",
                tuple([key[i] for key in gone] for i in range(4)),
            )
        kept = [(*key, standing[0], number(standing[1])) for key, standing in self.edges.items() if standing]
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
        columns = _COLUMNS[table]
        with self._raw.cursor() as cursor:
            if len(rows) >= _COPY_FROM:
                with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
            else:
                marks = ", ".join(["%s"] * len(rows[0]))
                cursor.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Few rows travel in one round trip; COPY cannot be part of that."""
        if len(self) >= _COPY_FROM:
            yield
        else:
            with self._raw.pipeline():
                yield
