"""The file of a store: moved working directories, replaced or removed files, and backups."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import threading

import pytest

from hybridmem import HybridMemory
from hybridmem.core.types import Memory
from hybridmem.errors import StoreBusyError, StoreError
from hybridmem.stores.sqlite.store import SQLiteStore
from hybridmem.testing.stores import NOW, texts


def test_a_relative_path_stays_the_same_after_chdir(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with HybridMemory("memory.db", embedder=None) as memory:
        memory.add("here", id="a")
        monkeypatch.chdir(tmp_path / "other")
        taken = [memory.store.pool.take() for _ in range(3)]  # the next connection is opened anew
        memory.store.touch(["a"])
        for conn in taken:
            memory.store.pool.give(conn)
        memory.add("still here", id="b")
    assert list((tmp_path / "other").iterdir()) == []
    with SQLiteStore(tmp_path / "memory.db") as store:
        assert store.ids(view=NOW) == {"a", "b"}


def test_a_relative_path_stays_the_same_in_a_fork(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with SQLiteStore("memory.db") as store:
        store.put([Memory("parent", id="a")])

        def child():
            os.chdir(tmp_path / "other")
            store.put([Memory("child", id="b")])

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(30)
        assert process.exitcode == 0
        assert store.ids(view=NOW) == {"a", "b"}
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_gone_is_not_written_to(tmp_path, how):
    path, other = tmp_path / "memory.db", tmp_path / "other.db"
    with SQLiteStore(other) as store:
        store.put([Memory("restored", id="r")])
    with SQLiteStore(path) as store:
        store.put([Memory("old", id="a")])
        if how == "removed":
            path.unlink()
        else:
            other.replace(path)
        for call in (lambda: store.put([Memory("lost", id="b")]), lambda: store.get(["a"], view=NOW), store.last_seq):
            with pytest.raises(StoreError, match="removed or replaced by another file while it was open"):
                call()
    with SQLiteStore(path) as store:
        assert store.ids(view=NOW) == ({"r"} if how == "replaced" else frozenset())


def test_a_file_replaced_during_a_write_is_not_acknowledged(tmp_path):
    path, other = tmp_path / "memory.db", tmp_path / "other.db"
    SQLiteStore(other).close()
    with SQLiteStore(path) as store:

        def replace(_done, _total):
            other.replace(path)

        with pytest.raises(StoreError, match="nothing was written"):
            store.put([Memory("x", id="a")], progress=replace)
    with SQLiteStore(path) as store:
        assert store.count(view=NOW) == 0


def test_closing_a_replaced_store_does_not_harm_the_new_file(tmp_path):
    path, backup = tmp_path / "memory.db", tmp_path / "backup.db"
    old = SQLiteStore(path)
    old.put([Memory("old", id="a")])
    old.backup(backup)
    old.put([Memory("newer", id="b")])
    for ending in ("-wal", "-shm"):
        path.with_name(f"memory.db{ending}").unlink()
    backup.replace(path)
    script = """
import sys
from hybridmem.core.types import Memory
from hybridmem.stores.sqlite.store import SQLiteStore
store = SQLiteStore(sys.argv[1])
store.put([Memory("restored", id="c")])
print("written", flush=True)
sys.stdin.readline()
assert store.check() == []
store.put([Memory("more", id="d")])
import os
os._exit(0)
"""
    new = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert new.stdout.readline() == "written\n"
    old.close()
    assert new.communicate("\n", timeout=60)[0] == ""
    assert new.returncode == 0
    with SQLiteStore(path) as store:
        assert texts(store.get(["a", "b", "c", "d"], view=NOW)) == ["old", None, "restored", "more"]
        assert store.check() == []


def test_a_backup_onto_an_open_store_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("hybridmem.stores.sqlite.store._TARGET_TIMEOUT", 0.05)
    with SQLiteStore(tmp_path / "one.db") as one, SQLiteStore(tmp_path / "two.db") as two:
        one.put([Memory("one", id="a")])
        two.put([Memory("two", id="b")])
        with pytest.raises(StoreBusyError, match=r"two\.db: it is open as a store"):
            one.backup(tmp_path / "two.db")
        two.put([Memory("more", id="c")])
        assert two.ids(view=NOW) == {"b", "c"}
    with SQLiteStore(tmp_path / "one.db") as one:
        one.backup(tmp_path / "two.db")
    with SQLiteStore(tmp_path / "two.db") as two:
        assert two.ids(view=NOW) == {"a"}
        assert two.check() == []


def test_concurrent_backups_to_one_target_all_succeed(tmp_path):
    target = tmp_path / "backup.db"
    errors = []
    with SQLiteStore(tmp_path / "memory.db") as store:
        store.put([Memory(f"text {n}" * 50, id=f"{n}") for n in range(300)])

        def work():
            for _ in range(8):
                try:
                    store.backup(target)
                except Exception as error:
                    errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.db", "memory.db"]
    with SQLiteStore(target) as copy:
        assert copy.count(view=NOW) == 300
        assert copy.check() == []


def test_leftovers_of_killed_backups_are_removed(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    (tmp_path / f"backup.db.part-{process.pid}-0123").write_bytes(b"half")
    (tmp_path / f"backup.db.part-{os.getpid()}-0123").write_bytes(b"running")
    with SQLiteStore(tmp_path / "memory.db") as store:
        store.backup(tmp_path / "backup.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "backup.db",
        f"backup.db.part-{os.getpid()}-0123",
        "memory.db",
    ]


def test_an_old_write_ahead_log_is_not_applied_to_a_backup(tmp_path):
    with SQLiteStore(tmp_path / "old.db") as old:
        old.put([Memory("old", id="old")])
        for ending in ("", "-wal"):
            shutil.copy(f"{tmp_path / 'old.db'}{ending}", f"{tmp_path / 'backup.db'}{ending}")
    with SQLiteStore(tmp_path / "memory.db") as store:
        store.put([Memory("new", id="new")])
        store.backup(tmp_path / "backup.db")
    with SQLiteStore(tmp_path / "backup.db") as copy:
        assert copy.ids(view=NOW) == {"new"}


@pytest.mark.parametrize("endings", [["-wal"], ["-wal", "-shm"]])
def test_nothing_is_written_to_a_write_ahead_log_that_was_removed(tmp_path, endings):
    path = tmp_path / "memory.db"
    store = SQLiteStore(path)
    store.put([Memory("first", id="a")])
    for ending in endings:
        path.with_name(f"memory.db{ending}").unlink()
    for call in (lambda: store.put([Memory("lost", id="b")]), lambda: store.erase(["a"])):
        with pytest.raises(StoreError, match="-wal was removed while the store was open: nothing was written"):
            call()
    assert store.ids(view=NOW) == {"a"}
    store.close()
    with SQLiteStore(path) as again:
        assert again.ids(view=NOW) == {"a"}
        assert again.check() == []
        again.put([Memory("second", id="b")])
