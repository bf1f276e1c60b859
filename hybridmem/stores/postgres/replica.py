"""Where a search is run: on the replica as long as it is there and shows enough, else on the primary."""

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
    """Runs the statements of a search. `patient`: only a replica that shows what this store wrote will do."""

    def __init__(self, primary: Database, replica: Database | None, /, *, patient: bool) -> None:
        self.primary, self.replica = primary, replica
        self.behind = False
        """Whether the primary answers: the replica is gone, or does not show what was written."""
        self._patient, self._written = patient, ""

    def run(self, statement: SQL, /) -> Rows:
        """The rows of one statement."""
        return self._on_one(lambda database: database.read(lambda conn: _sent(conn, statement).fetchall()))

    def run_both(self, first: SQL, second: SQL, /) -> tuple[Rows, Rows]:
        """The rows of two statements that the server works on at the same time.

        Both are sent before anything is waited for, by one thread: two threads that send and wait were put on one
        processor together with what they woke, and the other one stood idle.
        """

        def work(one: Conn, other: Conn) -> tuple[Rows, Rows]:
            if one is other:  # one after the other: in one pipeline the failure of either would break both
                return _sent(one, first).fetchall(), _sent(one, second).fetchall()
            with one.raw.pipeline(), other.raw.pipeline():
                sent = _sent(one, first), _sent(other, second)
                return sent[0].fetchall(), sent[1].fetchall()

        return self._on_one(lambda database: database.read_beside(work))

    def _on_one(self, ask: Callable[[Database], T]) -> T:
        if self.replica is not None and not self.behind:
            try:
                return ask(self.replica)
            except StoreError:
                self.behind = True  # gone: the primary answers until the next question finds it again
        return ask(self.primary)

    def look(self) -> None:
        """Before a question: find out whether the replica is there and (if that was asked) shows what was written."""
        if self.replica is None:
            return
        query = "SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= ?::pg_lsn"
        try:
            rows = self.replica.read(lambda conn: conn.execute(query, (self._written or "0/0",)).fetchall())
        except StoreError:
            self.behind = True
        else:
            self.behind = not rows[0][0]

    def wrote(self) -> None:
        """After a write: remember how far the primary's log has come, where a replica has to follow."""
        if self.replica is not None and self._patient:
            query = "SELECT pg_current_wal_insert_lsn()::text"
            self._written = self.primary.read(lambda conn: conn.execute(query).fetchone()[0])

    def close(self) -> None:
        """Close the connections to both."""
        self.primary.close()
        if self.replica is not None:
            self.replica.close()


def _sent(conn: Conn, statement: SQL) -> Any:
    """Vectors come as they are rather than as hexadecimal text."""
    return conn.raw.execute(translate(statement.text), statement.params, binary=True)
