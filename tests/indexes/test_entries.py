"""The entries: follows changes, and comes back from its bytes as it was."""

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.core.protocols import Change
from hybridmem.core.types import Edge, Entry, Memory
from hybridmem.errors import CorruptStoreError
from hybridmem.indexes.entries import Entries, Extra

NAMES = st.none() | st.text(max_size=4)
TIMES = st.none() | st.floats(0, 2e9).map(lambda seconds: datetime.fromtimestamp(seconds, tz=timezone.utc))
MEMORIES = st.builds(
    Memory,
    text=st.text(max_size=12),
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


@given(st.lists(st.tuples(KEYS, st.none() | MEMORIES), max_size=8))
def test_bytes_bring_back_the_same_roster(steps):
    entries = Entries()
    for seq, (key, memory) in enumerate(steps, 1):
        batch = [Change(seq, key, memory and Memory(**{**_fields(memory), "id": key}), born=seq)]
        entries.put(batch)
        entries.remove(batch)
    read = Entries.from_bytes(entries.to_bytes())
    assert (read.by_id, read.born, read.extras) == (entries.by_id, entries.born, entries.extras)
    assert list(read.by_id) == list(entries.by_id)
    assert (read.watermark, read.links_key, len(read)) == (len(steps), "links", len(entries.by_id))
    assert entries.by_id.keys() == {key for key, memory in dict(steps).items() if memory is not None}


def _fields(memory):
    return {name: getattr(memory, name) for name in Memory.__dataclass_fields__}


def test_a_roster_tells_what_ranking_and_graph_look_for():
    entries = Entries("see")
    when = datetime(2024, 5, 1, tzinfo=timezone.utc)
    entries.put([
        Change(7, "a", Memory("Where to?", id="a", thread="t", created_at=when, metadata={"see": "b"}), born=3),
        Change(8, "b", Memory("To Lisbon", id="b", entities=("Lisbon",))),
        Change(9, "c", Memory("Fine", id="c")),
        Change(10, "", edge=Edge("a", "b")),
    ])  # fmt: skip
    assert entries.by_id["a"] == Entry("a", None, "t", when.timestamp(), None, words=2)
    assert entries.extras == {"a": Extra(True, (), "b"), "b": Extra(False, ("Lisbon",), None)}
    assert entries.born == {"a": 3, "b": 8, "c": 9}
    entries.put([Change(11, "a", Memory("To Porto", id="a"))])
    assert (entries.born["a"], entries.extras.get("a")) == (3, None)


@pytest.mark.parametrize("hurt", [lambda d: d[:-1], lambda d: b"x" + d, lambda d: d[:40] + b"\0" + d[41:]])
def test_damaged_bytes_are_refused_whole(hurt):
    entries = Entries()
    entries.put([Change(1, "a", Memory("text", id="a"))])
    with pytest.raises(CorruptStoreError, match="entries"):
        Entries.from_bytes(hurt(entries.to_bytes()))
