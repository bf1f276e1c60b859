"""Turns of threads whose BM25 documents depend on each other.

The words of a question count by half in the turn that asks and are added to the document of the next turn (see
`indexes.bm25.documents`). A change of one turn may therefore change the documents of its neighbours.
"""

# ruff: noqa: S608 - every name put into a statement is ours; values of users are bound

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hybridmem.indexes.bm25.documents import ANSWERED, ASKED
from hybridmem.stores.postgres.connection import Raw
from hybridmem.stores.sql.log import Head
from hybridmem.text.conversation import ASKS, is_person, question_sentences

__all__ = ["ThreadNeighbours", "TurnState"]

_WHOLE_THREAD = 20
"""With more changed turns than this in a thread, all its turns are read at once."""
_COLUMNS = "m.mem, m.id, m.thread, m.created_at, m.born, m.cues, m.speaker, m.body"
_VISIBLE = "m.live AND m.status <> 'superseded' AND m.thread IS NOT NULL"


class TurnState(NamedTuple):
    """The fields of a memory, before a transaction, that documents and counts depend on."""

    thread: str | None
    created_at: float | None
    born: int
    cues: int
    speaker: str | None
    named: bool
    """Whether the speaker was given, not derived from the text."""

    @classmethod
    def of(cls, head: Head, /, *, named: bool) -> TurnState:
        """The present state of a memory."""
        return cls(head.thread, head.created_at, head.born, head.cues, head.speaker, named)


class ChangedMemory(Protocol):
    """A memory that a transaction changes."""

    head: Head
    visible: bool
    old: TurnState | None


class _ThreadTurn(NamedTuple):
    """One place in a thread; without `mem`, the former place of a changed memory."""

    at: float
    born: int
    mem: int | None
    id: str
    asks: bool
    person: bool
    body: int | None
    changed: bool


class ThreadNeighbours:
    """The questions that belong to the documents of changed turns, and the unchanged turns that depend on them."""

    def __init__(self, raw: Raw, namespace: str, items: Sequence[ChangedMemory], /, *, rebuild: bool) -> None:
        self.dependent: list[Head] = []
        """Unchanged memories whose documents have to be written again."""
        self._asked: set[int] = set()
        self._previous: dict[int, _ThreadTurn] = {}
        self._texts: dict[int, str] = {}
        threads: dict[str, list[_ThreadTurn]] = defaultdict(list)
        for item in items:
            head, old = item.head, item.old
            if old is not None and old.thread is not None:
                threads[old.thread].append(_turn(None, "", old.created_at, old.born, old.cues, old.speaker, None))
            if item.visible and head.thread is not None:
                threads[head.thread].append(
                    _turn(head.mem, head.id, head.created_at, head.born, head.cues, head.speaker, head.body)
                )
        changed = {item.head.mem for item in items}
        for row in _unchanged(raw, namespace, threads, whole=rebuild):
            if row[0] not in changed:
                threads[row[2]].append(_turn(row[0], row[1], *row[3:], changed=False))
        for thread, turns in threads.items():
            self._link(namespace, thread, sorted(set(turns), key=lambda turn: (turn.at, turn.born)), rebuild)

    def _link(self, namespace: str, thread: str, turns: Sequence[_ThreadTurn], rebuild: bool) -> None:
        if not any(turn.asks for turn in turns):
            return
        present = [turn for turn in turns if turn.mem is not None]
        near_change = {
            turn.mem
            for place, turn in enumerate(turns)
            if turn.changed or any(other.changed for other in turns[max(0, place - 1) : place + 2])
        }
        for place, turn in enumerate(present):
            if turn.mem is None or turn.mem not in near_change:
                continue
            before = present[place - 1] if place else None
            if turn.asks and len(present) > 1:
                self._asked.add(turn.mem)
            if before is not None and before.asks and turn.person:
                self._previous[turn.mem] = before
            if not turn.changed and not rebuild and turn.person:
                self.dependent.append(Head(turn.mem, namespace, turn.id, live=1, body=turn.body, thread=thread))

    def load_texts(self, raw: Raw, texts: Mapping[int, str], /) -> None:
        """Read the texts that questions are taken from; `texts` has those of the written memories."""
        self._texts = dict(texts)
        missing = {turn.body: turn.mem for turn in self._previous.values() if turn.mem not in texts}
        if missing:
            for seq, text in raw.execute("SELECT seq, text FROM bodies WHERE seq = ANY(%s)", (list(missing),)):
                mem = missing[seq]
                if mem is not None:
                    self._texts[mem] = text

    def questions(self, mem: int, /) -> list[tuple[str, float]]:
        """The question sentences of a memory's document with their weights."""
        found = [(question_sentences(self._texts[mem]), ASKED)] if mem in self._asked else []
        previous = self._previous.get(mem)
        if previous is not None and previous.mem in self._texts:
            found.append((question_sentences(self._texts[previous.mem]), ANSWERED))
        return [(text, weight) for text, weight in found if text]


def _turn(
    mem: int | None,
    id_: str,
    created_at: float | None,
    born: int,
    cues: int,
    speaker: str | None,
    body: int | None,
    *,
    changed: bool = True,
) -> _ThreadTurn:
    at = math.inf if created_at is None else created_at
    person = is_person(speaker)
    return _ThreadTurn(at, born, mem, id_, bool(cues & ASKS) and person, person, body, changed)


def _unchanged(
    raw: Raw, namespace: str, threads: Mapping[str, Sequence[_ThreadTurn]], *, whole: bool
) -> Iterable[tuple[Any, ...]]:
    """The stored turns around the changed places of each thread, or all turns of a thread with many changes."""
    long = [thread for thread, turns in threads.items() if whole or len(turns) > _WHOLE_THREAD]
    rows: list[tuple[Any, ...]] = []
    if long:
        query = f"SELECT {_COLUMNS} FROM memories m WHERE m.namespace = %s AND m.thread = ANY(%s) AND {_VISIBLE}"
        rows += raw.execute(query, (namespace, long)).fetchall()
    places = [(thread, turn.at, turn.born) for thread, turns in threads.items() if thread not in long for turn in turns]
    if places:
        sides = [
            f"(SELECT {_COLUMNS} FROM memories m WHERE m.namespace = %s AND m.thread = p.thread AND {_VISIBLE} "
            f"AND (m.created_at, m.born) {way} (p.at, p.born) ORDER BY m.created_at {order}, m.born {order} "
            f"LIMIT {_WHOLE_THREAD + 2})"
            for way, order in (("<", "DESC"), (">=", "ASC"))
        ]
        query = (
            "SELECT DISTINCT n.* FROM unnest(%s::text[], %s::float8[], %s::bigint[]) AS p (thread, at, born) "
            f"CROSS JOIN LATERAL ({' UNION ALL '.join(sides)}) n"
        )
        columns = tuple([place[i] for place in places] for i in range(3))
        rows += raw.execute(query, (*columns, namespace, namespace)).fetchall()
    return rows
