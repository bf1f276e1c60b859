"""Notes are the truth: whatever is put is in the files, whatever is in the files is found."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmem.core.protocols import View
from hybridmem.core.types import Edge, Memory
from hybridmem.errors import ConfigError, MissingExtraError, StoreError
from hybridmem.stores.copying import checksum, copy_store
from hybridmem.stores.markdown import note as notes
from hybridmem.stores.markdown.note import Note, file_name, format_note, parse_note
from hybridmem.stores.markdown.store import MarkdownStore, read_notes
from hybridmem.stores.sql import write
from hybridmem.stores.sqlite.store import SQLiteStore
from hybridmem.testing.stores import ALL, FULL, NOW, Clock, StoreConformance, texts


class TestConformance(StoreConformance):
    MANY = 120

    @pytest.fixture
    def store_factory(self, tmp_path, monkeypatch):
        for page in ("sql.store.PAGE", "markdown.sync._CHUNK"):  # 120 files are enough to make pages of
            monkeypatch.setattr(f"hybridmem.stores.{page}", 50)
        opened = []

        def make(clock=None, name="main"):
            opened.append(MarkdownStore(tmp_path / name, clock=clock or Clock()))
            return opened[-1]

        yield make
        for store in opened:
            store.close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "memory"


@pytest.fixture
def store(folder):
    with MarkdownStore(folder, clock=Clock()) as opened:
        yield opened


def edit(path, text, *, tick=[0]):  # noqa: B006 - a clock of its own
    """Save a file as an editor would, with a time of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    tick[0] += 1
    os.utime(path, ns=(1_700_000_000_000_000_000 + tick[0], 1_700_000_000_000_000_000 + tick[0]))


ANA = """---
id: ana-1
title: Move
tags: [home, ana]
created_at: 2024-05-01
confidence: 0.5
mood: cheerful
metadata:
  type: inner
---

Ana moved to Lisbon
"""


# --- notes made by people


def test_a_note_with_front_matter(folder):
    edit(folder / "people" / "ana.md", ANA)
    with MarkdownStore(folder) as store:
        (memory,) = store.list(view=NOW)
        assert memory == Memory(
            "Ana moved to Lisbon",
            id="ana-1",
            title="Move",
            tags=("home", "ana"),
            created_at=datetime(2024, 5, 1, tzinfo=timezone.utc),
            updated_at=memory.updated_at,
            confidence=0.5,
            metadata={"mood": "cheerful", "type": "inner"},
        )


def test_a_plain_note_is_named_by_its_path(folder):
    edit(folder / "people" / "bo.md", "# Bo\n\nlikes tea\n")
    with MarkdownStore(folder) as store:
        (memory,) = store.list(view=NOW)
        assert (memory.id, memory.text) == ("people/bo", "# Bo\n\nlikes tea")
        assert memory.created_at == memory.updated_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc)


def test_sync_follows_the_files(folder, store):
    assert store.sync().added == 0
    edit(folder / "a.md", "tea")
    edit(folder / "b.md", "bread")
    edit(folder / "notes.txt", "not a note")
    edit(folder / ".obsidian" / "x.md", "hidden")
    synced = store.sync()
    assert (synced.added, synced.updated, synced.removed, synced.problems) == (2, 0, 0, {})
    assert store.ids(view=NOW) == {"a", "b"}
    seq = store.last_seq()
    assert store.sync().added == 0
    assert store.last_seq() == seq
    edit(folder / "a.md", "coffee")
    edit(folder / "c.md", "---\nnamespace: ana\n---\nfor ana")
    (folder / "b.md").unlink()
    synced = store.sync()
    assert (synced.added, synced.updated, synced.removed) == (1, 1, 1)
    assert texts(store.get(["a", "b"], view=NOW)) == ["coffee", None]
    assert [v.memory.text for v in store.history("a")] == ["tea", "coffee"]
    assert store.namespaces() == ["", "ana"]
    assert store.check() == []


def test_a_file_saved_again_unchanged_is_no_change(folder, store):
    edit(folder / "a.md", "tea")
    store.sync()
    seq = store.last_seq()
    edit(folder / "a.md", "tea")
    assert store.sync().updated == 0
    assert store.sync(force=True).updated == 0
    assert store.last_seq() == seq


def test_get_reads_an_edited_note_again(folder, store):
    edit(folder / "a.md", "tea")
    edit(folder / "b.md", "bread")
    store.sync()
    edit(folder / "a.md", "coffee")
    (folder / "b.md").unlink()
    assert texts(store.get(["a", "b"], view=NOW)) == ["coffee", None]
    assert store.ids(view=NOW) == {"a"}


def test_supersedes_between_notes(folder, store):
    edit(folder / "a.md", "---\nsupersedes: b\n---\ncoffee")
    edit(folder / "b.md", "---\nsupersedes: c\n---\ntea")
    edit(folder / "c.md", "water")
    edit(folder / "d.md", "---\nsupersedes: nobody\n---\nmilk")
    assert store.sync().problems == {}
    assert store.ids(view=NOW) == {"a", "d"}
    assert store.ids(view=ALL) == {"a", "b", "c", "d"}
    (folder / "b.md").unlink()
    store.sync()
    assert store.ids(view=NOW) == {"a", "c", "d"}
    edit(folder / "c.md", "---\nstatus: contradicted\n---\nwater")
    store.sync()
    assert store.get(["c"], view=NOW)[0].status == "contradicted"


def test_links_between_notes(folder, store):
    edit(folder / "a.md", "---\nlinks: [b, {to: c, relation: contradicts, weight: 0.5}, nobody]\n---\nx")
    edit(folder / "b.md", "y")
    store.sync()
    assert store.edges(view=NOW) == [Edge("a", "b")]
    edit(folder / "c.md", "z")
    store.sync()
    assert sorted(store.edges(view=NOW)) == [Edge("a", "b"), Edge("a", "c", "contradicts", 0.5)]
    edit(folder / "a.md", "x")
    store.sync()
    assert store.edges(view=NOW) == []
    assert store.check() == []


@pytest.mark.parametrize(
    ("front", "words"),
    [
        ("id: [", "not readable YAML"),
        ("just words", "`key: value` lines"),
        ("a: &x [1]\nb: *x", "aliases"),
        ("!!python/object/apply:os.system ['true']", "not readable YAML"),
        ("created_at: soon", "`created_at` must be a time"),
        ("tags: {a: 1}", "`tags` must be a list"),
        ("metadata: [1]", "`metadata` must be a mapping"),
        ("links: b", "`links` must be a list"),
        ("links: [{from: b}]", "a link has"),
        ("links: [{to: b, weight: heavy}]", "weight"),
        ("status: gone", "status"),
        ("strength: 7", "strength"),
        ("x: .nan", "nan"),
        ("supersedes: bad", "supersede itself"),
    ],
)
def test_a_note_that_cannot_be_read_is_reported_and_its_last_version_kept(folder, store, front, words):
    edit(folder / "bad.md", "good so far")
    edit(folder / "other.md", "fine")
    store.sync()
    edit(folder / "bad.md", f"---\n{front}\n---\nbroken")
    edit(folder / "third.md", "new")
    synced = store.sync()
    assert words in synced.problems["bad.md"]
    assert store.ids(view=NOW) == {"bad", "other", "third"}
    assert texts(store.get(["bad"], view=NOW)) == ["good so far"]
    assert any(words in problem for problem in store.check())
    edit(folder / "bad.md", "good again")
    assert store.sync().problems == {}
    assert texts(store.get(["bad"], view=NOW)) == ["good again"]


def test_two_notes_with_one_id(folder, store):
    edit(folder / "a.md", "---\nid: same\n---\nfirst")
    edit(folder / "b.md", "---\nid: same\n---\nsecond")
    assert store.sync().problems == {"b.md": "the id 'same' belongs to a.md already"}
    assert texts(store.get(["same"], view=NOW)) == ["first"]
    edit(folder / "a.md", "---\nid: other\n---\nfirst")
    assert store.sync().problems == {}
    assert texts(store.get(["same", "other"], view=NOW)) == ["second", "first"]


def test_bytes_that_are_no_text(folder, store):
    (folder / "a.md").write_bytes(b"caf\xe9 \x00")
    assert store.sync().problems == {}
    assert texts(store.get(["a"], view=NOW)) == ["caf\ufffd \ufffd"]


def test_windows_line_ends_and_a_byte_order_mark(folder, store):
    folder.joinpath("a.md").write_bytes("\ufeff---\r\nid: w\r\ntitle: T\r\n---\r\n\r\none\r\ntwo\r\n".encode())
    store.sync()
    (memory,) = store.get(["w"], view=NOW)
    assert (memory.title, memory.text) == ("T", "one\ntwo")


# --- notes made by the store


def test_what_is_put_is_in_the_file(folder, store):
    store.put([FULL, Memory("other", id="people/bo")])
    store.put([Memory("secret", id="x")], namespace="a/n a")
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.md")) == [
        "a%2Fn a/x.md",
        "m1.md",
        "people%2Fbo.md",
    ]
    text = (folder / "m1.md").read_text(encoding="utf-8")
    assert text.endswith("---\n\nAna moved to Lisbon 🇵🇹 in spring\n")
    assert "ключ: значение" in text
    assert not [p for p in folder.rglob("*") if p.name.endswith(".part")]


def test_an_edit_by_hand_keeps_what_only_the_index_knows(folder, store):
    store.put([Memory("tea", id="a", strength=0.5)], vectors=[[1.0]])
    store.touch(["a"])
    store.reinforce("a")
    path = folder / "a.md"
    edit(path, path.read_text(encoding="utf-8").replace("tea", "coffee"))
    (memory,) = store.get(["a"], view=NOW)
    assert (memory.text, memory.strength, memory.access_count) == ("coffee", 0.6, 1)
    assert store.vectors(["a"], view=NOW) == [None]
    edit(path, path.read_text(encoding="utf-8").replace("strength: 0.5", "strength: 0.25"))
    assert store.get(["a"], view=NOW)[0].strength == 0.25


def test_an_update_keeps_the_place_of_a_note(folder, store):
    edit(folder / "deep" / "er" / "a.md", "---\nid: a\nlinks: [a]\n---\ntea")
    store.sync()
    store.put([Memory("coffee", id="a")])
    assert [p.name for p in folder.rglob("*.md")] == ["a.md"]
    text = (folder / "deep" / "er" / "a.md").read_text(encoding="utf-8")
    assert "coffee" in text
    assert "links:\n- a\n" in text
    store.delete(["a"])
    assert list(folder.rglob("*.md")) == []


def test_names_do_not_collide(folder, store):
    edit(folder / "a.md", "---\nid: z\n---\nmine")
    store.sync()
    store.put([Memory("yours", id="a")])
    assert sorted(p.name for p in folder.glob("*.md")) == ["a-2.md", "a.md"]
    assert texts(store.get(["z", "a"], view=NOW)) == ["mine", "yours"]


def everything(store):
    """What the files must be able to bring back."""
    state = {}
    for namespace in store.namespaces():
        view = View(namespace, superseded=True)
        state[namespace] = (list(store.list(view=view)), sorted(store.edges(view=view)))
    return state


def test_the_index_can_be_rebuilt_from_the_files(folder, store):
    store.put([FULL, Memory("B", id="b"), Memory("C", id="c")], vectors=[[1.0], None, None])
    store.put([Memory("D", id="d", supersedes="b")])
    store.put([Memory("for ana", id="a", tags=("x",))], namespace="ana")
    store.link([Edge("c", "m1", "contradicts", 0.5), Edge("m1", "m1"), Edge("c", "d")])
    store.unlink([Edge("d", "c")])
    store.delete(["c"])
    store.link([Edge("d", "m1")])
    before = everything(store)
    synced = store.rebuild()
    assert synced.problems == {}
    assert everything(store) == before
    assert store.check() == []
    assert store.ids(view=NOW) == {"m1", "d"}


def test_reading_notes_to_import_them(folder):
    edit(folder / "a.md", "---\nsupersedes: b\n---\ncoffee")
    edit(folder / "b.md", "---\nsupersedes: c\n---\ntea")
    edit(folder / "deep" / "c.md", "---\nid: c\n---\nwater")
    edit(folder / "x.md", "---\nsupersedes: y\n---\nx")
    edit(folder / "y.md", "---\nsupersedes: x\n---\ny")
    assert [memory.id for memory in read_notes(folder)] == ["c", "b", "a", "x", "y"]
    edit(folder / "z.md", "---\nid: c\n---\nagain")
    with pytest.raises(ConfigError, match=r"z\.md: another note has the id 'c'"):
        list(read_notes(folder))
    edit(folder / "z.md", "---\nid: [\n---\nagain")
    with pytest.raises(ConfigError, match=r"z\.md: its front matter"):
        list(read_notes(folder))


def test_a_crash_between_index_and_file_is_healed(folder, store):
    store.put([Memory("kept", id="a")])
    with store.transaction() as log:
        write.put(log, [Memory("never reached its file", id="b")], ["b"], namespace="")
    store.sync()
    assert store.ids(view=NOW) == {"a"}


def test_restore_writes_notes(folder, store, tmp_path):
    with SQLiteStore(":memory:") as source:
        source.put([Memory("A", id="a"), Memory("B", id="b"), Memory("C", id="c")])
        source.link([Edge("a", "b")])
        source.delete(["c"])
        store.put([Memory("old", id="c")])
        store.restore(source.export())
    assert sorted(p.name for p in folder.glob("*.md")) == ["a.md", "b.md"]
    before = everything(store)
    store.rebuild()
    assert everything(store) == before
    store.backup(tmp_path / "copy.db")
    with SQLiteStore(tmp_path / "copy.db") as copy:
        assert copy.ids(view=NOW) == {"a", "b"}


def test_a_folder_that_cannot_be_opened(tmp_path):
    folder = tmp_path / "memory"
    (folder / ".hybridmem").mkdir(parents=True)
    (folder / ".hybridmem" / "index.db").write_bytes(b"broken" * 1000)
    with pytest.raises(Exception, match="not an SQLite file"):
        MarkdownStore(folder)
    (folder / ".hybridmem" / "index.db").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybridmem.stores.markdown.sync.NoteFolder.sync", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # and the index is closed again: warnings are errors
            MarkdownStore(folder)


# --- the format

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    memory=st.builds(
        Memory,
        WORDS,
        id=WORDS.filter(bool),
        title=WORDS,
        tags=st.lists(WORDS, max_size=3).map(tuple),
        subject=WORDS,
        thread=st.none() | WORDS.filter(bool),
        namespace=WORDS,
        updated_at=st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(timezone.utc)),
        status=st.sampled_from(["active", "superseded", "contradicted"]),
        strength=st.floats(0, 1),
        metadata=st.dictionaries(
            WORDS | st.sampled_from(["id", "text", "tags", "links", "metadata"]), PLAIN, max_size=4
        ),
    ),
    links=st.lists(st.tuples(WORDS.filter(bool), st.sampled_from(["related", "x"]), st.floats(0, 5)), max_size=3),
)
def test_a_note_reads_back_as_it_was(memory, links):
    note = Note(memory, tuple(Edge(memory.id, *link) for link in links))
    assert parse_note(format_note(note), default_id="x", modified=0.0) == note


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.text(max_size=60) | st.text("-\n :a[]{}&*!|>'\"%@`#,?", max_size=60).map(lambda t: f"---\n{t}\n---\nx"))
def test_any_file_is_a_note_or_a_clear_error(text):
    try:
        note = parse_note(text, default_id="x", modified=0.0)
    except ConfigError:
        return
    assert isinstance(note.memory, Memory)


@given(st.text())
@settings(max_examples=60, derandomize=True, database=None)
def test_file_names_are_safe(text):
    name = file_name(text.encode("utf-8", "replace").decode())
    assert 0 < len(name) <= 120
    assert "/" not in name
    assert "\\" not in name
    assert not name.startswith(".")
    assert name.isascii()


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda store: store.put([Memory("new", id="n", supersedes="a")]), "status: superseded"),
        (lambda store: store.link([Edge("a", "c")]), "- c"),
        (lambda store: store.unlink([Edge("a", "b")]), "status: active"),
        (lambda store: store.delete(["b"]), "status: active"),
        (lambda store: store.erase(["b"]), "status: active"),
    ],
    ids=["supersede", "link", "unlink", "delete", "erase"],
)
def test_an_edit_that_was_not_synced_is_not_written_over(folder, store, change, shown):
    store.put([Memory("A", id="a"), Memory("B", id="b"), Memory("C", id="c")])
    store.link([Edge("a", "b")])
    edit(folder / "a.md", "---\nid: a\nlinks: [b]\n---\n\nedited by hand\n")
    change(store)
    text = (folder / "a.md").read_text(encoding="utf-8")
    assert "edited by hand" in text
    assert shown in text
    assert texts(store.get(["a"], view=ALL)) == ["edited by hand"]


def test_a_note_that_cannot_be_read_is_not_written_over(folder, store):
    store.put([Memory("A", id="a")])
    edit(folder / "a.md", "---\nid: [\n---\n\nedited by hand\n")
    for call in (
        lambda: store.put([Memory("B", id="a")]),
        lambda: store.put([Memory("B", id="b", supersedes="a")]),
        lambda: store.link([Edge("a", "a")]),
    ):
        with pytest.raises(StoreError, match=r"a\.md was edited and cannot be read"):
            call()
    assert "edited by hand" in (folder / "a.md").read_text(encoding="utf-8")
    assert store.ids(view=ALL) == {"a"}


def test_a_note_that_moved_is_found_and_keeps_its_history(folder, store):
    store.put([Memory("A", id="a")])
    store.reinforce("a")
    store.touch(["a"])
    (folder / "a.md").rename(folder / "moved.md")
    (found,) = store.get(["a"], view=NOW)
    assert (found.text, found.access_count) == ("A", 1)
    store.put([Memory("A2", id="a")])
    assert [path.name for path in folder.glob("*.md")] == ["moved.md"]


def test_an_empty_id_is_none(folder, store):
    edit(folder / "a.md", "---\nid: ''\n---\n\nA\n")
    assert store.sync().added == 1
    assert store.sync().added == 0
    assert store.ids(view=NOW) == {"a"}


def test_what_is_left_out_is_reported_when_opening(folder, caplog):
    edit(folder / "a.md", "---\nid: [\n---\n\nA\n")
    with MarkdownStore(folder):
        assert "a.md was not read: its front matter is not readable YAML" in caplog.text


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="must be a folder"):
        MarkdownStore(tmp_path / "file")


def test_without_pyyaml(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hybridmem\[markdown\]'"):
        notes.parse_note("---\nid: a\n---\nx", default_id="x", modified=0.0)


def test_a_whole_store_can_be_copied_into_notes_and_back(folder, tmp_path):
    with SQLiteStore(tmp_path / "memory.db") as source:
        source.put([FULL, Memory("B", id="b", supersedes="m1")], vectors=[[1.0], [2.0]])
        source.put([Memory("C", id="c")], namespace="ana")
        source.link([Edge("m1", "b")])
        source.delete(["m1"])
        with MarkdownStore(folder) as notes:
            copy_store(source, notes, batch=2)
            assert copy_store(source, notes).resumed == source.last_seq()
        assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.md")) == ["ana/c.md", "b.md"]
        with MarkdownStore(folder) as notes, SQLiteStore(tmp_path / "back.db") as back:
            assert copy_store(notes, back).checksum == checksum(source)[0]
