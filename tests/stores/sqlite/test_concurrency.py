"""Many processes and threads on one file: nothing lost, nothing locked, each sees the others' writes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from hybridmem.core.protocols import View
from hybridmem.core.types import Memory
from hybridmem.errors import StoreBusyError
from hybridmem.stores.sqlite.store import SQLiteStore

NOW = View()
PROCESSES, THREADS, SECONDS = 4, 2, float(os.environ.get("HYBRIDMEM_SOAK_SECONDS", "5"))

WORKER = textwrap.dedent(
    """
    import os, sys, threading, time
    from hybridmem.core.protocols import View
    from hybridmem.stores.sqlite.store import SQLiteStore
    from hybridmem.core.types import Edge, Memory

    path, name, seconds, threads = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    store, view, failed = SQLiteStore(path, busy_timeout=60.0), View(), []  # however slow the disk

    def follow(seen, watermark):
        for change in store.changes(watermark, view=view):
            assert change.seq > watermark, "changes out of order"
            watermark = change.seq
            if change.memory is None:
                seen.pop(change.id, None)
            elif change.edge is None:
                seen[change.id] = change.memory.text
        return watermark

    def work(thread, until):
        seen, watermark, i = {}, 0, 0
        while time.monotonic() < until:
            i += 1
            id_ = f"{name}-{thread}-{i}"
            store.put([Memory(f"text of {id_}", id=id_)])
            os.write(1, f"put {id_}\\n".encode())
            store.touch(["shared"])
            os.write(1, b"touch\\n")
            watermark = follow(seen, watermark)
            assert seen[id_] == f"text of {id_}", "own write not seen"
            assert watermark <= store.last_seq()
            if i % 5 == 0:
                store.put([Memory("short-lived", id=f"{id_}-x")])
                store.link([Edge(id_, f"{id_}-x")])
                assert store.delete([f"{id_}-x"]) == 1
            if i % 7 == 0:
                store.save_snapshot(name, store.last_seq(), os.urandom(50_000))
                assert id_ in store.ids(view=view)
        watermark = follow(seen, watermark)

    def guarded(thread, until):
        try:
            work(thread, until)
        except BaseException as error:
            failed.append(error)
            os.write(1, f"failed {type(error).__name__}: {error}\\n".encode())

    sys.stdin.readline()
    until = time.monotonic() + seconds
    running = [threading.Thread(target=guarded, args=(t, until)) for t in range(threads)]
    [thread.start() for thread in running]
    [thread.join() for thread in running]
    store.close()
    sys.exit(len(failed))
    """
)


def test_soak(tmp_path):
    path = tmp_path / "memory.db"
    acked, touches, failures = [], 0, []
    with SQLiteStore(path) as store:
        store.put([Memory("shared", id="shared")])
        command = [sys.executable, "-c", WORKER, str(path)]
        workers = [
            subprocess.Popen(
                [*command, f"p{i}", str(SECONDS), str(THREADS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for i in range(PROCESSES)
        ]
        lock = threading.Lock()

        def listen(worker):
            nonlocal touches
            for line in worker.stdout:
                kind, _, rest = line.decode().strip().partition(" ")
                with lock:
                    if kind == "put":
                        acked.append(rest)
                        if store.get([rest], view=NOW)[0] is None:  # said to be written, so visible from here
                            failures.append(f"{rest} not visible")
                    elif kind == "touch":
                        touches += 1
                    else:
                        failures.append(rest)

        listeners = [threading.Thread(target=listen, args=(worker,)) for worker in workers]
        for thread, worker in zip(listeners, workers, strict=True):
            thread.start()
            worker.stdin.write(b"go\n")
            worker.stdin.close()
        codes = [worker.wait(SECONDS + 200) for worker in workers]
        for thread, worker in zip(listeners, workers, strict=True):
            thread.join(60)
            worker.stdout.close()
        assert failures == []
        assert codes == [0] * PROCESSES
        assert len(acked) == len(set(acked)) > PROCESSES * THREADS
        assert store.ids(view=NOW) == {"shared", *acked}
        assert store.get(["shared"], view=NOW)[0].access_count == touches == len(acked)
        assert store.check() == []


def test_a_writer_that_never_ends_is_reported(tmp_path):
    with SQLiteStore(tmp_path / "memory.db", busy_timeout=0.05) as store:
        store.put([Memory("A", id="a")])
        with store.pool.write(), SQLiteStore(tmp_path / "memory.db", busy_timeout=0.05) as other:
            with pytest.raises(StoreBusyError, match=r"held by another writer for longer than 0\.05 s"):
                other.put([Memory("B")])
            with pytest.raises(StoreBusyError):
                store.put([Memory("C")])
            assert other.ids(view=NOW) == {"a"}  # reading goes on
            assert store.ids(view=NOW) == {"a"}
        store.put([Memory("D", id="d")])
        assert store.ids(view=NOW) == {"a", "d"}


def test_many_open_at_once_and_one_creates(tmp_path):
    path, stores, barrier = tmp_path / "memory.db", [], threading.Barrier(6)

    def open_it():
        barrier.wait(30)
        stores.append(SQLiteStore(path))

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(stores) == 6
    for i, store in enumerate(stores):
        store.put([Memory(f"{i}")])
    assert {store.count(view=NOW) for store in stores} == {6}
    for store in stores:
        store.close()


def test_readers_are_not_blocked_by_a_long_write(tmp_path):
    with SQLiteStore(tmp_path / "memory.db") as store:
        store.put([Memory("A", id="a")])
        counts = []
        store.put([Memory(f"{i}") for i in range(2000)], progress=lambda *_: counts.append(store.count(view=NOW)))
        assert set(counts) == {1}
        assert store.count(view=NOW) == 2001


def test_short_lived_threads_leave_no_connections_behind(tmp_path):
    with SQLiteStore(tmp_path / "memory.db") as store:
        store.put([Memory("A", id="a")])
        for _ in range(50):
            thread = threading.Thread(target=lambda: store.get(["a"], view=NOW))
            thread.start()
            thread.join(30)
        assert len(store.pool._idle) <= 2


FORK = textwrap.dedent(
    """
    import os, sys
    from hybridmem.core.protocols import View
    from hybridmem.stores.sqlite.store import SQLiteStore
    from hybridmem.core.types import Memory

    now = View()
    with SQLiteStore(sys.argv[1]) as store, SQLiteStore(":memory:") as local:
        store.put([Memory("A", id="a")])
        local.put([Memory("L", id="l")])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.put([Memory("B", id="b")])
                code = int(store.ids(view=now) != {"a", "b"} or local.ids(view=now) != {"l"})
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.ids(view=now) == {"a", "b"}
        assert store.check() == []
    """
)


def test_a_forked_child_has_connections_of_its_own(tmp_path):
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path / "memory.db")], timeout=120, check=True)


FORK_AT_WORK = textwrap.dedent(
    """
    import os, signal, sys, threading
    from hybridmem import HybridMemory

    def lengths(texts):
        return [[float(len(text)), 1.0] for text in texts]

    def work(memory, number):
        count = 0
        while not done.is_set():
            written.append((memory, memory.add(f"cat {number} {count}")))
            assert memory.search("cat")
            count += 1

    def ask(number):
        signal.alarm(30)  # a lock that nobody holds any more would be waited for in vain
        code = 1
        try:
            for memory in (shared, local):
                id = memory.add(f"child {number}", id=f"child{number}")
                assert memory.get(id).text == f"child {number}"
                assert memory.search("cat") and memory.search_arm("vector", "cat")
            code = 0
        finally:
            os._exit(code)

    done, written = threading.Event(), []
    with HybridMemory(sys.argv[1], embedder=lengths) as shared, HybridMemory(embedder=lengths) as local:
        shared.add("cat"), local.add("cat")
        threads = [threading.Thread(target=work, args=(m, i)) for i, m in enumerate((shared, shared, local))]
        for thread in threads:
            thread.start()
        try:
            for number in range(12):
                done.wait(0.01)
                child = os.fork()
                if child == 0:
                    ask(number)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert all(memory.get(id) for memory, id in written)
        assert all(shared.get(f"child{number}") for number in range(12))
        assert shared.check() == []
        assert not any(found.id.startswith("child") for found in local.list())  # a child's memory is its own
    """
)


def test_a_process_forks_while_threads_write_and_search(tmp_path):
    subprocess.run([sys.executable, "-c", FORK_AT_WORK, str(tmp_path / "memory.db")], timeout=120, check=True)


FORK_IN_THE_MIDDLE = textwrap.dedent(
    """
    import os, signal, sys
    from hybridmem import HybridMemory
    from hybridmem.core import forks
    from hybridmem.errors import StoreError

    forks.PATIENCE = 0.2
    with HybridMemory(sys.argv[1], embedder=None) as memory:
        memory.add("cat", id="a")
        rows = memory.store.export()
        next(rows)  # from here on a connection is out
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            code = 1
            try:
                memory.search("cat")
            except StoreError as error:
                code = int("was in use by other threads" not in str(error))
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert memory.add("dog", id="b") == "b"
        assert "a" in [row["id"] for row in rows if row["kind"] == "memory"]
        assert [result.id for result in memory.search("dog")] == ["b"]
        child = os.fork()
        if child == 0:
            os._exit(int([result.id for result in memory.search("dog")] != ["b"]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert memory.check() == []
    """
)


def test_a_fork_in_the_middle_of_something_is_reported_in_the_child(tmp_path):
    subprocess.run([sys.executable, "-c", FORK_IN_THE_MIDDLE, str(tmp_path / "memory.db")], timeout=120, check=True)
