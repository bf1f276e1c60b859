"""Entries: they apply changes, and are the same after they were saved and read."""

from datetime import datetime, timezone
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.core.protocols import Change
from hybridmem.core.types import Edge, Entry, Memory
from hybridmem.errors import CorruptStoreError
from hybridmem.indexes.entries import Entries, Extra, TurnDocument
from hybridmem.text.conversation import ASKS, FIRST_PERSON, TIME_WORD

NAMES = st.none() | st.text(max_size=4)
TIMES = st.none() | st.floats(0, 2e9).map(lambda seconds: datetime.fromtimestamp(seconds, tz=timezone.utc))
MEMORIES = st.builds(
    Memory,
    text=st.text(max_size=12) | st.sampled_from(["Ana: who?", "ana: I", "Ben: today"]),
    speaker=st.sampled_from(["", "Ana", "user"]),
    source_id=NAMES,
    thread=NAMES,
    entities=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    created_at=TIMES,
    updated_at=TIMES,
    last_accessed=TIMES,
    status=st.sampled_from(["active", "superseded", "contradicted"]),
    strength=st.floats(0, 1),
    confidence=st.floats(0, 1),
    access_count=st.integers(0, 2**63 - 1),
    metadata=st.dictionaries(st.sampled_from(["links", "page"]), st.lists(st.text(max_size=3), max_size=2)),
)
KEYS = st.sampled_from(["a", "b", "ß", "\ud800", ""])


STEPS = st.lists(st.tuples(KEYS, st.none() | MEMORIES), max_size=8)


@given(STEPS, STEPS)
def test_bytes_restore_the_same_entries_which_can_be_written_to(steps, later):
    entries = Entries()
    _write(entries, steps)
    read = Entries.from_bytes(entries.to_bytes())
    _compare(read, entries)
    assert set(entries.ids()) == {key for key, memory in dict(steps).items() if memory is not None}
    for index in (entries, read):
        _write(index, later)
    _compare(read, entries)
    assert (read.watermark, read.links_key) == (entries.watermark, "links")


def _write(entries, steps):
    for seq, (key, memory) in enumerate(steps, entries.watermark + 1):
        batch = [Change(seq, key, memory and Memory(**{**_fields(memory), "id": key}), born=seq)]
        _, gone = entries.apply(batch)
        entries.forget(gone)


def _compare(read, entries):
    ids = entries.ids()
    assert (read.ids(), read.get(ids), read.extras) == (ids, entries.get(ids), entries.extras)
    assert read.columns()["born"].tolist() == entries.columns()["born"].tolist()
    assert read.around(ids, 2) == entries.around(ids, 2)
    assert (read.speakers(), read.sample()) == (entries.speakers(), entries.sample())


def _fields(memory):
    return {name: getattr(memory, name) for name in Memory.__dataclass_fields__}


def test_entries_have_the_fields_that_ranking_and_graph_use():
    entries = Entries("see")
    when = datetime(2024, 5, 1, tzinfo=timezone.utc)
    turns, gone = entries.apply([
        Change(7, "a", Memory("Ana: Where to?", id="a", thread="t", created_at=when, metadata={"see": "b"}), born=3),
        Change(8, "b", Memory("I went yesterday", id="b", speaker="Ben  Li", entities=("Lisbon",), event_at=when)),
        Change(9, "c", Memory("Fine", id="c")),
        Change(10, "", edge=Edge("a", "b")),
    ])  # fmt: skip
    assert entries.get(["a", "b", "zz"]) == [
        Entry("a", None, "t", when.timestamp(), None, words=3, speaker="ana", cues=ASKS),
        Entry("b", words=3, speaker="ben li", cues=FIRST_PERSON | TIME_WORD, event_at=when.timestamp()),
        None,
    ]
    assert entries.extras == {"a": Extra((), "b"), "b": Extra(("Lisbon",), None)}
    assert entries.columns()["born"].tolist() == [3, 8, 9]
    assert (turns, gone) == ([TurnDocument("a"), TurnDocument("b"), TurnDocument("c")], [])
    entries.apply([Change(11, "a", Memory("To Porto", id="a"))])
    assert (entries.columns()["born"][0], entries.extras.get("a")) == (3, None)


def turn(seq, id_, text, **fields):
    return Change(seq, id_, Memory(text, id=id_, thread=fields.pop("thread", "t"), **fields))


def test_an_answer_is_written_again_when_the_question_before_it_changes():
    entries = Entries()
    assert entries.apply([turn(1, "a", "Where do you live?")])[0] == [TurnDocument("a")]  # alone: nobody answers
    assert entries.apply([turn(2, "b", "In Porto.")])[0] == [TurnDocument("a", None, True), TurnDocument("b", "a")]
    assert entries.apply([turn(3, "c", "Nice.")])[0] == [TurnDocument("c")]
    assert entries.apply([turn(4, "a", "Where do you work?")])[0] == [
        TurnDocument("a", None, True),
        TurnDocument("b", "a"),
    ]
    assert entries.apply([turn(5, "a", "You live there.")])[0] == [TurnDocument("a"), TurnDocument("b")]
    assert entries.apply([turn(6, "a", "Really?")])[0] == [TurnDocument("a", None, True), TurnDocument("b", "a")]
    touched, gone = entries.apply([Change(7, "a")])
    assert (touched, gone) == ([TurnDocument("b")], ["a"])
    entries.forget(gone)
    assert entries.around(["b", "c"], 1) == [[None, "b"], ["c", None]]
    touched, gone = entries.apply([Change(8, "c"), turn(9, "c", "Why?", thread="u")])
    assert (touched, gone, "c" in entries) == ([TurnDocument("c")], [], True)


def test_turns_of_roles_neither_pass_nor_receive_questions():
    entries = Entries()
    turns, _ = entries.apply([
        turn(1, "a", "user: Where do I live?"),
        turn(2, "b", "assistant: In Porto. Shall I note it?"),
        turn(3, "c", "Yes?", speaker="User"),
    ])  # fmt: skip
    assert turns == [TurnDocument("a"), TurnDocument("b"), TurnDocument("c")]


def test_a_prefix_is_a_speaker_when_it_begins_at_least_three_memories_and_one_percent():
    entries = Entries()
    entries.apply([Change(n, f"m{n}", Memory("Ana: hello" if n <= 3 else "x", id=f"m{n}")) for n in range(1, 301)])
    assert entries.speakers() == {"ana": 3}
    entries.apply([Change(301, "m301", Memory("x", id="m301"))])
    assert entries.speakers() == {}  # 3 of 301 are less than 1 %
    entries.apply([Change(302, "m302", Memory("x", id="m302", speaker="Ana"))])
    assert entries.speakers() == {"ana": 4}  # named by Memory.speaker: counts always
    entries.apply([Change(303, "m302", Memory("x", id="m302", speaker="Ben"))])
    assert entries.speakers() == {"ben": 1}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 600)), max_size=60), st.integers(0, 500))
def test_the_sample_has_the_smallest_digests(steps, start):
    entries = Entries()
    entries.apply([Change(1, str(n), Memory("x", id=str(n))) for n in range(start)])
    for seq, (adds, n) in enumerate(steps, 2):
        numbers = [str(n + i) for i in range(25)]
        _, gone = entries.apply([Change(seq, id_, Memory("x", id=id_) if adds else None) for id_ in numbers])
        entries.forget(gone)
    expected = sorted(entries.ids(), key=lambda id_: md5(id_.encode()).hexdigest())[:128]
    assert entries.sample() == expected


def test_rows_of_deleted_memories_are_released(monkeypatch):
    monkeypatch.setattr("hybridmem.indexes.entries._CACHED", 8)
    entries = Entries()
    for seq in range(1, 200):
        _, gone = entries.apply([turn(seq, str(seq), "Ana: hi?"), Change(seq, str(seq - 5))])
        entries.forget(gone)
    assert len(entries._ids) < 30
    assert entries.around(["197"], 2) == [["196"], ["198"], ["195"], ["199"]]
    assert entries.speakers() == {"ana": 5}


@pytest.mark.parametrize("hurt", [lambda d: d[:-1], lambda d: b"x" + d, lambda d: d[:40] + b"\0" + d[41:]])
def test_damaged_bytes_are_refused_whole(hurt):
    entries = Entries()
    entries.apply([Change(1, "a", Memory("text", id="a"))])
    with pytest.raises(CorruptStoreError, match="entries"):
        Entries.from_bytes(hurt(entries.to_bytes()))
