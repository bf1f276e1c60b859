"""Routing of searches: to the replica while it can be reached and is current enough, otherwise to the primary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hybridmem.errors import StoreError
from hybridmem.filters.sql import SQL
from hybridmem.stores.postgres.connection import Conn, Database, translate

__all__ = ["Router"]

T = TypeVar("T")
Rows = Sequence[tuple[Any, ...]]


class Router:
    """Runs the statements of a search. `read_your_writes`: use the replica only once it has this store's writes."""

    def __init__(self, primary: Database, replica: Database | None, /, *, read_your_writes: bool) -> None:
        self.primary, self.replica = primary, replica
        self.behind = False
        """Whether the primary is used: the replica cannot be reached, or lacks writes of this store."""
        self._read_your_writes, self._written = read_your_writes, ""

    def run(self, statement: SQL, /) -> Rows:
        """The rows of one statement."""
        return self._route(lambda database: database.read(lambda conn: _send(conn, statement).fetchall()))

    def run_both(self, first: SQL, second: SQL, /) -> tuple[Rows, Rows]:
        """The rows of two statements that the server runs at the same time.

        One thread sends both before it waits. Two threads were slower: the operating system put them on one processor
        together with the server processes they woke.
        """

        def work(one: Conn, other: Conn) -> tuple[Rows, Rows]:
            if one is other:  # not in one pipeline, where the failure of either would break both
                return _send(one, first).fetchall(), _send(one, second).fetchall()
            with one.raw.pipeline(), other.raw.pipeline():
                sent = _send(one, first), _send(other, second)
                return sent[0].fetchall(), sent[1].fetchall()

        return self._route(lambda database: database.read_on_two(work))

    def _route(self, ask: Callable[[Database], T]) -> T:
        if self.replica is not None and not self.behind:
            try:
                return ask(self.replica)
            except StoreError:
                self.behind = True  # the primary is used until `check` finds the replica again
        return ask(self.primary)

    def check(self) -> None:
        """Before a query: find out whether the replica can be reached and has this store's writes."""
        if self.replica is None:
            return
        query = "SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= ?::pg_lsn"
        try:
            rows = self.replica.read(lambda conn: conn.execute(query, (self._written or "0/0",)).fetchall())
        except StoreError:
            self.behind = True
        else:
            self.behind = not rows[0][0]

    def record_write(self) -> None:
        """After a write: record the position of the primary's log that the replica has to reach."""
        if self.replica is not None and self._read_your_writes:
            query = "SELECT pg_current_wal_insert_lsn()::text"
            self._written = self.primary.read(lambda conn: conn.execute(query).fetchone()[0])

    def close(self) -> None:
        """Close the connections to both."""
        self.primary.close()
        if self.replica is not None:
            self.replica.close()


def _send(conn: Conn, statement: SQL) -> Any:
    """Run a statement with binary results: vectors arrive as bytes instead of hexadecimal text."""
    return conn.raw.execute(translate(statement.text), statement.params, binary=True)
