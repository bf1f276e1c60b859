"""Killed at any moment, a store loses nothing it acknowledged; a full or read-only disk is said clearly."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from hybridmem.core.protocols import View
from hybridmem.core.types import Memory
from hybridmem.errors import CorruptStoreError, StoreError
from hybridmem.stores.sqlite.store import SQLiteStore

NOW = View()
KILLS = 200
LIMIT = 120.0

# A small clean process that forks one writer after another. Each writer says on a pipe what was acknowledged, after it
# was, and is killed by the test. Forking from here takes milliseconds; starting Python anew would take 200 seconds.
NURSERY = textwrap.dedent(
    """
    import os, random, sys
    import numpy as np
    from hybridmem.stores.sqlite.store import SQLiteStore
    from hybridmem.core.types import Edge, Memory

    def write(path, seed):
        say = lambda line: os.write(1, (line + "\\n").encode())
        rng, store, acked = random.Random(seed), SQLiteStore(path), 0
        say("ready")
        while True:
            acked += 1
            key = f"{seed}-{acked}"
            kind = rng.randrange(6)
            if kind == 0:  # a batch, all or nothing
                store.put([Memory(f"batch {key} {i}", id=f"batch-{key}-{i}") for i in range(rng.randrange(2, 80))])
                say(f"batch {key}")
            elif kind == 1:  # an update of one memory that every writer shares
                store.put([Memory(f"update {key}", id="shared")], vectors=[rng.random() * np.ones(64)])
                say(f"update {key}")
            elif kind == 2:  # an index writes its state
                store.save_snapshot("bm25", acked, rng.randbytes(rng.randrange(1, 300_000)))
                say(f"snapshot {acked}")
            elif kind == 3:
                old, new = f"old-{key}", f"new-{key}"
                store.put([Memory("old", id=old), Memory("new", id=new, supersedes=old)])
                store.link([Edge(new, old)])
                say(f"link {key}")
            elif kind == 4:
                store.delete([f"one-{seed}-{acked - 1}"])
                store.touch(["shared"])
                say(f"nothing {key}")
            else:
                store.put([Memory(f"one {key}", id=f"one-{key}", metadata={"n": acked})])
                say(f"one {key}")

    def main():
        for line in sys.stdin:
            seed, path = line.strip().split(" ", 1)
            pid = os.fork()
            if pid == 0:
                os.close(0)
                try:
                    write(path, int(seed))
                finally:
                    os._exit(1)
            os.write(1, f"pid {pid}\\n".encode())
            _, status = os.waitpid(pid, 0)
            os.write(1, f"end {os.waitstatus_to_exitcode(status)}\\n".encode())

    main()
    """
)


class Nursery:
    def __init__(self):
        command = [sys.executable, "-c", NURSERY]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.buffer = b""

    def line(self):
        """The next line, or a failure if none comes for a long while."""
        out = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            assert select.select([out], [], [], LIMIT)[0], "the writer stands still"
            data = os.read(out, 65536)
            assert data, "the nursery died"
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.decode()

    def kill_one(self, path, seed, delay, after):
        """Start a writer, kill it `delay` seconds after its `after`-th word; what it acknowledged."""
        self.process.stdin.write(f"{seed} {path}\n".encode())
        self.process.stdin.flush()
        acked, pid = [], None
        while pid is None or len(acked) < after:
            word = self.line()
            if word.startswith("pid "):
                pid = int(word[4:])
            else:
                acked.append(word)
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
        while not (word := self.line()).startswith("end "):
            acked.append(word)
        assert word == f"end {-signal.SIGKILL}", "the writer failed before it was killed"
        return acked

    def close(self):
        self.process.stdin.close()
        self.process.wait(LIMIT)
        self.process.stdout.close()


def survived(store, acked):
    """Every acknowledged write is there, whole."""
    ids = store.ids(view=View(superseded=True))
    update = None
    for word in acked:
        kind, _, key = word.partition(" ")
        if kind == "batch":
            assert f"batch-{key}-0" in ids
        elif kind == "link":
            assert {f"old-{key}", f"new-{key}"} <= ids
            assert f"old-{key}" not in store.ids(view=NOW)
        elif kind == "update":
            update = key
        elif kind == "one":
            assert store.history(f"one-{key}")
        elif kind == "snapshot":
            assert store.load_snapshot("bm25") is not None
    if update is not None:
        texts = [version.memory.text for version in store.history("shared")]
        assert f"update {update}" in texts


def whole_batches(store):
    """A batch is there with all of its memories or with none: its numbers have no gap and its first is there."""
    batches = {}
    for id_ in store.ids(view=NOW):
        if id_.startswith("batch-"):
            name, number = id_.rsplit("-", 1)
            batches.setdefault(name, set()).add(int(number))
    for name, numbers in batches.items():
        assert numbers == set(range(len(numbers))), name
        assert len(numbers) >= 2, name


def test_two_hundred_kills(tmp_path):
    path = tmp_path / "memory.db"
    with SQLiteStore(path) as store:
        store.put([Memory("start", id="shared")])
    nursery, rng = Nursery(), random.Random(7)
    try:
        for seed in range(KILLS):
            acked = nursery.kill_one(path, seed, delay=rng.random() * 0.01, after=rng.randrange(4))
            if seed % 10 == 9 or seed < 3:
                with SQLiteStore(path) as store:
                    survived(store, acked)
                    assert store.check() == []
            else:
                (last,) = acked[-1:] or [None]
                if last is not None and last != "ready":
                    with SQLiteStore(path) as store:
                        survived(store, [last])
    finally:
        nursery.close()
    with SQLiteStore(path) as store:
        assert store.check() == []
        whole_batches(store)
        seqs = [change.seq for change in store.changes(0, view=View(superseded=True))]
        assert seqs == sorted(set(seqs))
        assert max(seqs) <= store.last_seq()


def test_killed_while_creating_the_file(tmp_path):
    nursery = Nursery()
    try:
        for seed in range(20):
            path = tmp_path / f"{seed}.db"
            nursery.kill_one(path, seed, delay=0.0005 * seed, after=0)
            with SQLiteStore(path) as store:
                assert store.check() == []
                store.put([Memory("fine")])
    finally:
        nursery.close()


# --- the disk


FULL = textwrap.dedent(
    """
    import resource, signal, sys
    from hybridmem.errors import StoreError
    from hybridmem.core.protocols import View
    from hybridmem.stores.sqlite.store import SQLiteStore
    from hybridmem.core.types import Memory

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store, acked = SQLiteStore(sys.argv[1]), 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
    try:
        while True:
            store.put([Memory("x" * 5000, id=f"m{acked}")])
            acked += 1
    except StoreError as error:
        print(acked, "|", error)
    print(store.count(view=View()), store.check())
    """
)


def test_a_file_that_cannot_grow(tmp_path):
    path = tmp_path / "memory.db"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    first, second = done.stdout.splitlines()
    acked, message = first.split(" | ")
    assert int(acked) > 10
    assert str(path) in message
    assert second == f"{acked} []"
    with SQLiteStore(path) as store:
        assert store.count(view=NOW) == int(acked)
        store.put([Memory("there is room again")])


def test_a_full_disk_is_reported(tmp_path):
    with SQLiteStore(tmp_path / "memory.db") as store:
        store.put([Memory("kept", id="a")])
        conn = store.pool.take()
        conn.execute("PRAGMA max_page_count = 40")
        store.pool.give(conn)
        with pytest.raises(StoreError, match="no space left"):
            store.put([Memory("x" * 1_000_000)])
        assert store.ids(view=NOW) == {"a"}
        assert store.check() == []
        store.put([Memory("small", id="b")])
        assert store.ids(view=NOW) == {"a", "b"}


def test_a_read_only_file_is_reported(tmp_path):
    path = tmp_path / "memory.db"
    with SQLiteStore(path) as store:
        store.put([Memory("kept", id="a")])
        conn = store.pool.take()
        conn.execute("PRAGMA query_only = ON")
        store.pool.give(conn)
        with pytest.raises(StoreError, match="read-only"):
            store.put([Memory("more")])
        assert store.ids(view=NOW) == {"a"}


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(StoreError, match=r"cannot open .*folder"):
        SQLiteStore(tmp_path / "nowhere" / "memory.db")
    with pytest.raises(StoreError):
        SQLiteStore(tmp_path)


# --- damage


def test_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "memory.db"
    path.write_bytes(b"these are not the bytes you are looking for" * 100)
    before = path.read_bytes()
    with pytest.raises(CorruptStoreError, match="not an SQLite file"):
        SQLiteStore(path)
    assert path.read_bytes() == before


def test_damaged_pages_are_reported_not_hidden(tmp_path):
    path = tmp_path / "memory.db"
    with SQLiteStore(path) as store:
        store.put([Memory(f"text {i} " + "x" * 500, id=f"{i:04}") for i in range(500)])
    data = bytearray(path.read_bytes())
    for page in range(10, len(data) // 8192, 2):
        data[page * 8192 : page * 8192 + 200] = os.urandom(200)
    path.write_bytes(data)
    with SQLiteStore(path) as store:
        try:
            problems = store.check()
        except CorruptStoreError:
            problems = ["too damaged to check"]
        assert problems
        with pytest.raises(CorruptStoreError, match="damaged"):
            list(store.list(view=NOW))


def test_a_torn_write_ahead_log_loses_only_its_torn_end(tmp_path):
    path, copy = tmp_path / "memory.db", tmp_path / "copy.db"
    with SQLiteStore(path) as store:
        for i in range(10):
            store.put([Memory(f"{i}", id=f"m{i}")])
        shutil.copy(path, copy)
        wal = (tmp_path / "memory.db-wal").read_bytes()
    (tmp_path / "copy.db-wal").write_bytes(wal[: len(wal) - 3000])
    with SQLiteStore(copy) as store:
        assert store.check() == []
        assert store.count(view=NOW) == 9
