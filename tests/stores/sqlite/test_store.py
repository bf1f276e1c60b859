"""SQLiteStore keeps every promise of a store, on disk and in memory, and some of its own."""

from __future__ import annotations

import gc
import math
import sqlite3
import tracemalloc
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from hybridmem.core.protocols import View
from hybridmem.core.types import Edge, Memory
from hybridmem.errors import (
    ConfigError,
    CorruptStoreError,
    SchemaVersionError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
)
from hybridmem.filters.parse import parse
from hybridmem.stores.sql import read
from hybridmem.stores.sqlite import schema
from hybridmem.stores.sqlite.connection import translated
from hybridmem.stores.sqlite.store import SQLiteStore
from hybridmem.testing.stores import Clock, StoreConformance


class TestOnDisk(StoreConformance):
    @pytest.fixture
    def store_factory(self, tmp_path):
        opened = []

        def make(clock=None, name="main"):
            opened.append(SQLiteStore(tmp_path / f"{name}.db", clock=clock or Clock(), synchronous="normal"))
            return opened[-1]

        yield make
        for store in opened:
            store.close()


class TestInMemory(StoreConformance):
    @pytest.fixture
    def store_factory(self):
        opened = []

        def make(clock=None, name="main"):
            opened.append(SQLiteStore(":memory:", clock=clock or Clock()))
            return opened[-1]

        yield make
        for store in opened:
            store.close()

    test_a_writer_with_a_wrong_clock_moves_nobody_else = test_as_of_with_any_clocks = None  # there is one writer

    def test_all_is_there_after_reopening(self, store_factory):
        store_factory().put([Memory("gone with the process")])
        assert store_factory().count(view=View()) == 0


# --- the file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.db"


def raw(path, *statements):
    """Do to the file what hybridmem never would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        return [conn.execute(statement).fetchall() for statement in statements]


def test_every_connection_waits_five_seconds_and_writes_ahead(path):
    with SQLiteStore(path) as store:
        with store.pool.snapshot() as first, store.pool.snapshot() as second:
            for conn in (first, second):
                assert conn.execute("PRAGMA busy_timeout").fetchone() == (5000,)
                assert conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
                assert conn.execute("PRAGMA synchronous").fetchone() == (2,)
                assert conn.execute("PRAGMA secure_delete").fetchone() == (1,)
        store.put([Memory("x")])
        with store.pool.snapshot() as conn:
            assert conn.execute("PRAGMA busy_timeout").fetchone() == (5000,)
    assert raw(path, "PRAGMA user_version", "PRAGMA application_id") == [
        [(schema.VERSION,)],
        [(schema.APPLICATION_ID,)],
    ]
    assert [file.name for file in path.parent.iterdir()] == ["memory.db"]  # one file, once it is closed


@pytest.mark.parametrize("options", [{"synchronous": "off"}, {"busy_timeout": -1}, {"busy_timeout": math.inf}])
def test_bad_options(path, options):
    with pytest.raises(ConfigError):
        SQLiteStore(path, **options)
    assert not path.exists()


def test_a_newer_file_is_refused_untouched(path):
    with SQLiteStore(path) as store:
        store.put([Memory("x")])
    raw(path, "PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(SchemaVersionError, match="schema version 99, and this hybridmem reads up to 2"):
        SQLiteStore(path)
    assert path.read_bytes() == before


def test_someone_elses_file_is_refused_untouched(path):
    raw(path, "CREATE TABLE theirs (x)", "INSERT INTO theirs VALUES (1)")
    before = path.read_bytes()
    with pytest.raises(CorruptStoreError, match="not a hybridmem store"):
        SQLiteStore(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["memory.db"]


def test_an_empty_file_becomes_a_store(path):
    path.touch()
    with SQLiteStore(path) as store:
        store.put([Memory("x", id="a")])
    with SQLiteStore(path) as store:
        assert store.ids(view=View()) == {"a"}
        assert store.check() == []


def test_migrations_run_in_order_once(path):
    with SQLiteStore(path) as store:
        store.put([Memory("x", id="a")])
    steps = {
        2: lambda conn: conn.execute("CREATE TABLE step (n)"),
        3: lambda conn: conn.execute("INSERT INTO step VALUES (3)"),
    }
    for _ in range(2):
        with closing(sqlite3.connect(path, isolation_level=None)) as conn:
            conn.execute("BEGIN IMMEDIATE")
            schema.prepare(conn, str(path), version=4, migrations=steps)
            conn.execute("COMMIT")
    assert raw(path, "SELECT n FROM step", "PRAGMA user_version") == [[(3,)], [(4,)]]
    with pytest.raises(SchemaVersionError):
        SQLiteStore(path)


def test_from_1_to_2_speakers_and_cues_are_derived(path):
    with SQLiteStore(path, clock=Clock()) as store:
        store.put([Memory("Ana: I moved yesterday. And you?", id="a"), Memory("a cat", id="b")])
        store.put([Memory("Ben: no", id="a")])
        expected, version = store.entries(view=View()), [store.entries(view=View(as_of=Clock().now))]
        store.save_snapshot("bm25", 3, b"old")
    added = ("speaker", "event_at", "expires_at", "spoken_by", "cues")
    raw(path, *(f"ALTER TABLE bodies DROP COLUMN {name}" for name in added))
    raw(path, *(f"DROP INDEX memories_by_{name}" for name in ("expiry", "digest", "thread")))
    gone = ("speaker", "event_at", "expires_at", "cues", "digest")
    raw(path, *(f"ALTER TABLE memories DROP COLUMN {name}" for name in gone))
    raw(path, "PRAGMA user_version = 1")
    with SQLiteStore(path, clock=Clock()) as store:
        assert store.entries(view=View()) == expected
        assert [store.entries(view=View(as_of=Clock().now))] == version
        assert {entry.id: (entry.speaker, entry.cues) for entry in expected} == {"a": ("ben", 0), "b": (None, 0)}
        assert store.duplicates([Memory(" BEN:  no"), Memory("Ana")]) == ["a", None]
        assert store.load_snapshot("bm25") is None
        assert store.check() == []


def test_a_failing_migration_changes_nothing(path):
    SQLiteStore(path).close()

    def fail(conn):
        conn.execute("CREATE TABLE half (n)")
        raise RuntimeError

    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("BEGIN IMMEDIATE")
        with pytest.raises(RuntimeError):
            schema.prepare(conn, str(path), version=3, migrations={2: fail})
        conn.execute("ROLLBACK")
    with SQLiteStore(path) as store:
        assert store.check() == []


def test_a_forgotten_store_closes_itself(path):
    store = SQLiteStore(path)
    store.put([Memory("x")])
    stream = store.changes(0, view=View())
    next(stream)
    pool = weakref.ref(store.pool)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del stream, store
        gc.collect()
    assert pool() is None
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # the last connection took -wal and -shm along


def test_closing_while_a_stream_is_read(path):
    store = SQLiteStore(path)
    store.put([Memory(f"{i}") for i in range(2000)])
    stream = store.changes(0, view=View())
    next(stream)
    store.close()
    assert len(list(stream)) == 1999
    with pytest.raises(StoreClosedError):
        store.last_seq()


def test_vitals_copy_neither_text_nor_vector(path):
    with SQLiteStore(path) as store:
        store.put([Memory("x" * 100_000, id="a")], vectors=[np.ones(1000)])
        for _ in range(20):
            store.touch(["a"])
        store.decay(now=datetime.now(tz=timezone.utc) + timedelta(days=3))
        with store.pool.snapshot() as conn:
            assert conn.execute("SELECT count(*) FROM bodies").fetchone() == (1,)
            assert conn.execute("SELECT count(*) FROM vectors").fetchone() == (1,)
            assert conn.execute("SELECT count(*) FROM versions").fetchone() == (22,)
        assert len(store.history("a")) == 1
        assert len(store.history("a", vitals=True)) == 22


def test_streams_do_not_fill_the_memory(path):
    with SQLiteStore(path, synchronous="normal") as store:
        for start in range(0, 4000, 1000):
            store.put([Memory(f"{i} " + "x" * 2000) for i in range(start, start + 1000)])
        for stream in (store.changes(0, view=View()), store.list(view=View()), store.export()):
            tracemalloc.start()
            count = sum(1 for _ in stream)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert count >= 4000
            assert peak < 4_000_000, "the texts alone are 8 MB"


def test_the_cache_of_ids_stays_small(path):
    with SQLiteStore(path) as store:
        store.put([Memory("x", id="a")])
        for i in range(50):
            store.ids(view=View(), filter={"n": i})
        assert len(store._filter_ids) <= 8
        store.put([Memory("y", id="b")])
        assert store.ids(view=View()) == {"a", "b"}
        assert len(store._filter_ids) == 1


@pytest.mark.parametrize("filter", [None, {"type": "fact"}])
def test_a_namespace_is_read_in_the_order_of_its_rows(path, filter):
    """By any other index the table is read at random places, 7 to 20 times as slowly at 100,000 memories."""
    with SQLiteStore(path) as store, store.snapshot() as conn:
        ran: list[str] = []
        conn.set_trace_callback(ran.append)
        read.ids(conn, View("ana"), None if filter is None else store._sql(parse(filter), View("ana")))
        conn.set_trace_callback(None)
        (sql,) = [statement for statement in ran if "m.id" in statement]
        plan = [row[3] for row in conn.execute(f"EXPLAIN QUERY PLAN {sql}")]
        assert plan[0] == "SEARCH m USING INDEX memories_by_seq (namespace=?)"


def test_true_and_one_are_not_one_filter(path):
    with SQLiteStore(path) as store:
        store.put([Memory("x", id="a", metadata={"n": True}), Memory("y", id="b", metadata={"n": 1})])
        assert store.ids(view=View(), filter={"n": True}) == {"a"}
        assert store.ids(view=View(), filter={"n": 1}) == {"b"}


# --- erasing


def test_erased_words_are_in_no_byte_of_the_file(path):
    secret = "correct-horse-battery-staple"
    with SQLiteStore(path) as store:
        store.put([Memory(f"other {i}") for i in range(50)])
        store.put([Memory(secret * 300, id="a", metadata={"k": secret}), Memory("b", id="b")])
        store.put([Memory(f"changed {secret}", id="a")])
        store.save_snapshot("bm25", 1, secret.encode() * 1000)
        assert any(secret.encode() in file.read_bytes() for file in path.parent.iterdir())
        store.erase(["a"])
        assert not any(secret.encode() in file.read_bytes() for file in path.parent.iterdir())
        assert store.check() == []


def test_an_erasure_is_replayed(path):
    with SQLiteStore(path) as source, SQLiteStore(":memory:") as target:
        source.put([Memory("secret", id="a"), Memory("b", id="b")])
        target.restore(list(source.export()))
        source.erase(["a"])
        rows = list(source.export())
        target.restore(rows)
        assert target.ids(view=View()) == {"b"}
        assert target.history("a") == []
        assert "secret" not in str(list(target.export()))
        assert target.check() == []


# --- copies


def test_backup_while_in_use(path, tmp_path):
    copy = tmp_path / "copy.db"
    copy.write_bytes(b"an older backup")
    with SQLiteStore(path) as store:
        store.put([Memory("A", id="a")], vectors=[[1.0]])
        stream = store.changes(0, view=View())
        next(stream)
        store.backup(copy)
        store.put([Memory("B", id="b")])
        with pytest.raises(ConfigError, match="onto itself"):
            store.backup(path)
        with pytest.raises(StoreError, match=r"cannot open .*nowhere.copy\.db"):
            store.backup(tmp_path / "nowhere" / "copy.db")
        for nowhere in ("", tmp_path):
            with pytest.raises(ConfigError, match=r"name( a file| of a file)"):
                store.backup(nowhere)
    with SQLiteStore(copy) as store:
        assert store.ids(view=View()) == {"a"}
        assert store.check() == []
        store.put([Memory("C")])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copy.db", "memory.db"]


def test_a_memory_store_can_be_saved(path):
    with SQLiteStore(":memory:") as store:
        store.put([Memory("A", id="a")])
        store.backup(path)
    with SQLiteStore(path) as store:
        assert store.ids(view=View()) == {"a"}


@pytest.mark.parametrize("stream", [SQLiteStore.export, lambda store: store.list(view=View())], ids=["export", "list"])
@pytest.mark.parametrize("place", [":memory:", "file"])
def test_a_stream_holds_nobody_up_and_can_change_threads(tmp_path, place, stream):
    with SQLiteStore(place if place == ":memory:" else tmp_path / place) as store:
        store.put([Memory(f"{i}", id=f"{i:04}") for i in range(700)])
        rows = stream(store)
        next(rows)
        with ThreadPoolExecutor(1) as other:
            other.submit(store.put, [Memory("more", id="more")]).result(10)
            rest = other.submit(list, rows).result(10)
            assert len(rest) >= 699
            other.submit(store.put, [Memory("and more")]).result(10)
        assert store.count(view=View()) == 702


def test_restore_into_a_store_in_use_appends(path):
    clock = Clock()
    with SQLiteStore(path, clock=clock) as source, SQLiteStore(":memory:", clock=clock) as target:
        source.put([Memory("from afar", id="a")], vectors=[[1.0]])
        source.put([Memory("mine", id="b")])
        source.link([Edge("a", "b")])
        source.put([Memory("from afar", id="a", type="fact")])
        source.set_meta("colour", "theirs")
        target.set_meta("colour", "ours")
        clock.now += 10
        target.put([Memory("here before", id="a"), Memory("local", id="c")])
        before = clock.now
        clock.now += 10
        seen = []
        assert target.restore(source.export(), progress=lambda *a: seen.append(a)) == 4
        assert seen[-1] == (4, 4)
        assert target.ids(view=View()) == {"a", "b", "c"}
        assert [v.memory.text for v in target.history("a")] == ["here before", "from afar", "from afar"]
        assert target.vectors(["a"], view=View())[0].tolist() == [1.0]
        assert target.ids(view=View(as_of=before)) == {"a", "c"}
        assert target.get_meta("colour") == "ours"
        assert target.check() == []


def test_a_damaged_export_restores_nothing(path):
    with SQLiteStore(path) as source, SQLiteStore(":memory:") as target:
        source.put([Memory("A", id="a")], vectors=[[1.0]])
        rows = list(source.export())
        for key, value in (("vector", "!"), ("op", "sing"), ("strength", "much"), ("namespace", None)):
            with pytest.raises(ConfigError, match="row 1"):
                target.restore([rows[0], {**rows[1], key: value}])
        short = {key: value for key, value in rows[1].items() if key != "text"}
        with pytest.raises(ConfigError, match="text"):
            target.restore([short])
        assert target.last_seq() == 0


# --- check

DAMAGE = {
    "UPDATE memories SET seq = 1 WHERE id = 'b'": "is recorded at version 1, but its newest is 2",
    "UPDATE memories SET strength = 0.1 WHERE id = 'a'": "differs from its version",
    "UPDATE memories SET thread = 'x' WHERE id = 'a'": "differs from its body",
    "DELETE FROM memories WHERE id = 'c'": "belongs to no memory",
    "DELETE FROM bodies WHERE seq = 2": "points at body 2, which is missing",
    "DELETE FROM vectors": "points at vector 1, which is missing",
    "UPDATE vectors SET data = x'00'": "has 1 bytes",
    "UPDATE vectors SET data = x'00000000' WHERE seq = 1": "2 different dimensions, 1 to 2",
    "UPDATE bodies SET metadata = '{' WHERE seq = 1": "JSON that cannot be read",
    "UPDATE versions SET at = 5 WHERE seq = 2": "is before that of an earlier one",
    "UPDATE state SET seq = 0": "the counter is at 0, but the log continues to 4",
    "UPDATE edges SET weight = 9": "differs from the log",
    "DELETE FROM edges": "is missing in the table of links",
    "INSERT INTO edges VALUES ('', 'a', 'nobody', 'related', 1.0, 99)": "has a missing end",
    "DELETE FROM snapshots WHERE part = 1": "has 2 of its 3 parts",
}


@pytest.mark.parametrize(("damage", "words"), DAMAGE.items(), ids=DAMAGE.values())
def test_check_finds(path, damage, words, monkeypatch):
    monkeypatch.setattr("hybridmem.stores.sql.write._SNAPSHOT_PART", 10)
    with SQLiteStore(path) as store:
        store.put([Memory("A", id="a"), Memory("B", id="b"), Memory("C", id="c")], vectors=[[1, 2], [3, 4], None])
        store.link([Edge("a", "b")])
        store.save_snapshot("bm25", 3, bytes(25))
        assert store.check() == []
    raw(path, damage)
    with SQLiteStore(path) as store:
        assert any(words in problem for problem in store.check()), store.check()


def test_check_does_not_drown_anyone(path):
    with SQLiteStore(path) as store:
        store.put([Memory(f"{i}") for i in range(100)])
        raw(path, "UPDATE memories SET strength = 0.1")
        assert len(store.check()) == 6


def test_a_missing_part_is_no_snapshot(path):
    with SQLiteStore(path) as store:
        store.save_snapshot("bm25", 3, bytes(9 * 2**20))
        raw(path, "DELETE FROM snapshots WHERE part = 2")
        assert store.load_snapshot("bm25") is None


# --- the words of errors


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("database is locked", StoreBusyError, "held by another"),
        ("database disk image is malformed", CorruptStoreError, "damaged"),
        ("file is not a database", CorruptStoreError, "not an SQLite file"),
        ("database or disk is full", StoreError, "no space left"),
        ("attempt to write a readonly database", StoreError, "read-only"),
        ("unable to open database file", StoreError, "cannot open"),
        ("disk I/O error", StoreError, "the disk failed"),
        ("Cannot operate on a closed database.", StoreClosedError, "closed"),
        ("something new", StoreError, "something new"),
    ],
)
def test_errors_speak_plainly(said, kind, words):
    with pytest.raises(kind, match=words) as caught, translated("memory.db"):
        raise sqlite3.OperationalError(said)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)


def test_ids_are_a_list_not_a_word(path):
    with SQLiteStore(path) as store, pytest.raises(ConfigError, match=r"ids = .* is not allowed: a list of str"):
        store.get("abc", view=View())
