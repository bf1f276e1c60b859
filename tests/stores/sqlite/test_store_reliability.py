"""What a SQLite store promises when files are erased, damaged, read as of a time, or given values it cannot keep."""

from __future__ import annotations

import math
import os
import random
import shutil
import sqlite3
from contextlib import closing, suppress

import pytest

from hybridmem import HybridMemory
from hybridmem.core.protocols import View
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError, HybridMemError
from hybridmem.stores.sqlite.store import SQLiteStore
from hybridmem.testing.stores import NOW, Clock

SECRET = "xylophonist"


def embed(texts):
    return [[float(len(text)), 1.0, 0.5] for text in texts]


def occurrences(folder, *needles):
    """The files that contain one of the byte strings."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found += [(path.name, needle) for needle in needles if needle in data]
    return found


def needles(store, id_):
    vector = store.vectors([id_], view=NOW)[0].tobytes()
    return SECRET.encode(), b"whispers-to", vector


def test_nothing_of_an_erased_memory_is_left_in_the_file(tmp_path):
    path = tmp_path / "memory.db"
    with HybridMemory(path, embedder=embed) as memory, HybridMemory(path, embedder=embed) as other:
        memory.add_many([f"note {n} about tea" for n in range(50)])
        names = {"thread": SECRET, "source_id": SECRET, "speaker": SECRET, "tags": (SECRET,), "entities": (SECRET,)}
        memory.add(f"Ana is a {SECRET}, said {SECRET}", id="a", title=f"{SECRET} Ana", metadata={"a": SECRET}, **names)
        memory.add("B", id="b")
        memory.link("a", "b", "whispers-to")
        for one in (memory, other):
            assert one.search(SECRET)
            one._engine.save()
        words = needles(memory.store, "a")
        assert occurrences(tmp_path, words[0])
        assert memory.erase("a") == 1
        assert occurrences(tmp_path, *words) == []
        memory.add_many([f"later {n}" for n in range(20)])
        for one in (memory, other):
            one.search(SECRET)
            one._engine.save()
            assert one.store.load_snapshot("entries") is not None
    assert occurrences(tmp_path, *words) == []
    with HybridMemory(path, embedder=embed) as memory:
        assert memory.history("a") == []
        assert memory.check() == []


def test_an_older_index_cannot_save_erased_words_again(tmp_path):
    with SQLiteStore(tmp_path / "memory.db") as store:
        store.put([Memory(SECRET, id="a"), Memory("B", id="b")])
        store.erase(["a"])
        store.save_snapshot("bm25", 2, SECRET.encode())
        assert store.load_snapshot("bm25") is None
        store.save_snapshot("bm25", 3, b"newer")
        assert store.load_snapshot("bm25") == (3, b"newer")
    assert occurrences(tmp_path, SECRET.encode()) == []


def test_an_erased_id_leaves_views_of_the_past(tmp_path):
    clock = Clock()
    with HybridMemory(tmp_path / "memory.db", embedder=None, clock=clock) as memory:
        memory.add("a cat", id="a")
        memory.add("the cat sleeps", id="b")
        then = clock.now
        clock.now += 10
        memory.add("a dog", id="c")
        assert {found.id for found in memory.search("cat", as_of=then)} == {"a", "b"}
        memory.erase("a")
        assert {found.id for found in memory.search("cat", as_of=then)} == {"b"}


@pytest.mark.parametrize("ahead", [0.0, 1000.0])
def test_a_view_of_the_future_follows_later_writes(tmp_path, ahead):
    clock = Clock()
    with HybridMemory(tmp_path / "memory.db", embedder=None, clock=clock) as memory:
        memory.add("a cat", id="a")
        moment = clock.now + ahead
        assert [found.id for found in memory.search("cat", as_of=moment)] == ["a"]
        memory.add("another cat", id="b", thread="t")
        assert {found.id for found in memory.search("cat", as_of=moment)} == {"a", "b"}
        clock.now += 2000
        memory.add("a third cat", id="c")
        assert {found.id for found in memory.search("cat", as_of=moment)} == {"a", "b"}


def test_links_of_a_superseded_memory_are_active_again_after_reopening(tmp_path):
    path = tmp_path / "memory.db"
    with HybridMemory(path, embedder=None) as memory:
        memory.add_many([{"text": "tea from Assam", "id": "a"}, {"text": "a kettle", "id": "b"}])
        memory.link("a", "b", "contradicts")
        memory.add("coffee", id="c", supersedes="b")
        memory._engine.save()
    with HybridMemory(path, embedder=None) as memory:
        assert [found.id for found in memory.search_arm("graph", "Assam")] == ["a"]
        memory.add("a kettle", id="b")
        assert [found.id for found in memory.search_arm("graph", "Assam")] == ["a", "b"]
        assert memory._engine.search_view(NOW).contradictions(["a", "b"]) == [("a", "b")]


@pytest.mark.parametrize(
    ("puts", "circle"),
    [
        ([[("a", "b"), ("b", "a")]], "'a' → 'b' → 'a'|'b' → 'a' → 'b'"),
        ([[("a", None)], [("b", "a")], [("c", "b")], [("a", "c")]], "'a' → 'c' → 'b' → 'a'"),
    ],
)
def test_a_circle_of_supersedes_is_refused(puts, circle):
    with SQLiteStore(":memory:") as store:
        *before, last = [[Memory(id_, id=id_, supersedes=old) for id_, old in batch] for batch in puts]
        for batch in before:
            store.put(batch)
        visible = store.ids(view=NOW)
        with pytest.raises(ConfigError, match=f"supersede each other in a circle: ({circle})"):
            store.put(last)
        assert store.ids(view=NOW) == visible


@pytest.mark.parametrize(
    "metadata", [{math.nan: 1}, {"n": 10**5000}, {10**5000: 1}, {"n": [math.inf]}, {"deep": {math.inf: 1}}]
)
def test_metadata_that_json_cannot_hold(metadata):
    with SQLiteStore(":memory:") as store:
        with pytest.raises(ConfigError, match="metadata"):
            store.put([Memory("x", metadata=metadata)])
        assert store.last_seq() == 0


def test_a_counter_at_its_end_stays_there():
    with SQLiteStore(":memory:") as store:
        store.put([Memory("x", id="a", access_count=2**63 - 1)])
        store.touch(["a"])
        assert store.get(["a"], view=NOW)[0].access_count == 2**63 - 1


@pytest.mark.parametrize("value", [None, "soon", math.nan, math.inf, 1e300, True])
def test_a_clock_that_returns_no_time(value):
    with SQLiteStore(":memory:", clock=lambda: value) as store, pytest.raises(ConfigError, match=r"value of clock\(\)"):
        store.put([Memory("x")])


@pytest.mark.parametrize("path", [None, 5, "", "a\0b"])
def test_a_backup_needs_a_path(path):
    with SQLiteStore(":memory:") as store, pytest.raises(ConfigError):
        store.backup(path)


def test_a_name_too_long_for_the_system(tmp_path):
    with pytest.raises(HybridMemError):
        SQLiteStore(tmp_path / ("x" * 300))
    with pytest.raises(HybridMemError):
        HybridMemory(f"{tmp_path / ('x' * 300)}/", embedder=None)


def use(path):
    with HybridMemory(path, embedder=embed) as memory:
        list(memory.list())
        memory.search("tea cat", k=5)
        memory.search("tea", as_of=1_700_000_005.0)
        memory.history("m1")
        memory.get("m1")
        memory.add("more")
        memory.store.entries(view=View())
        list(memory.store.export())
        memory.check()
        memory.update("m2", text="changed")
        memory.reinforce("m2")
        memory.decay()
        memory.link("m7", "m8")
        memory.forget("m9")
        memory.erase("m10")
        memory.search_arm("graph", "tea")
        memory.reindex()


@pytest.fixture(scope="module")
def good_file(tmp_path_factory):
    """A file with rows in every table."""
    path, clock = tmp_path_factory.mktemp("good") / "good.db", Clock()
    with HybridMemory(path, embedder=embed, clock=clock) as memory:
        for n in range(60):
            clock.now += 1
            memory.add(f"tea and cat {n}", id=f"m{n}", thread="t", tags=("x",), metadata={"n": n}, entities=("Ana",))
        memory.link("m1", "m2")
        memory.search("tea")
        memory._engine.save()
    return path


def raw_errors(folder, number_of_files, damage):
    """What `use` raised beside errors of this package, for files that `damage` made."""
    raw = []
    for number in range(number_of_files):
        path = folder / f"{number}.db"
        what = damage(path)
        try:
            use(path)
        except HybridMemError:
            pass
        except Exception as error:
            raw.append((number, what, repr(error)))
        for leftover in folder.glob(f"{number}.db*"):
            leftover.unlink() if leftover.is_file() else shutil.rmtree(leftover)
    return raw


FILES = int(os.environ.get("HYBRIDMEM_DAMAGED", "30"))


def test_damaged_files_raise_errors_of_this_package(tmp_path, good_file):
    data, dice = good_file.read_bytes(), random.Random(11)

    def damage(path):
        damaged = bytearray(data)
        for _ in range(dice.choice((1, 20, 400))):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        path.write_bytes(damaged)

    assert raw_errors(tmp_path, FILES, damage) == []


VALUES = (None, "", b"\xff\xfe", -1, 2**63 - 1, -(2**63), 1e308, math.inf, "text", "{", "[1,2]", '{"name":1}', 1.5, "5")


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # a link of weight 1e308
def test_values_that_no_version_writes_raise_errors_of_this_package(tmp_path, good_file):
    """SQLite keeps a value of any type in any column: a damaged byte in the header of a row changes the type."""
    dice = random.Random(5)
    with closing(sqlite3.connect(good_file)) as conn:
        tables = [row[0] for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        columns = [(table, row[1]) for table in tables for row in conn.execute(f"PRAGMA table_info({table})")]

    def damage(path):
        shutil.copy(good_file, path)
        table, column = dice.choice(columns)
        value, step = dice.choice(VALUES), dice.choice((1, 3, 10))
        only = "1" if table in ("edges", "meta") else f"rowid % {step} = 0"
        with closing(sqlite3.connect(path, isolation_level=None)) as conn:
            conn.execute("PRAGMA ignore_check_constraints = ON")
            with suppress(sqlite3.Error):  # a column that must be unique
                conn.execute(f"UPDATE {table} SET {column} = ? WHERE {only}", (value,))
        return table, column, value

    assert raw_errors(tmp_path, FILES, damage) == []


def test_a_clock_far_ahead_is_reported_once(tmp_path, caplog):
    ahead, clock = Clock(4_000_000_000.0), Clock()
    with SQLiteStore(tmp_path / "memory.db", clock=ahead) as wrong:
        wrong.put([Memory("from 2096", id="a")])
    assert caplog.text == ""
    with SQLiteStore(tmp_path / "memory.db", clock=clock) as store:
        store.put([Memory("now", id="b")])
        store.put([Memory("now", id="c")])
        assert caplog.text.count("ahead of this clock") == 1
        assert store.get(["b"], view=NOW)[0].updated_at.timestamp() == clock.now
