"""Whole memories in several processes: killed at random moments, and all at once on one file."""

import inspect
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

from hybridmem import HybridMemory

SOAK = float(os.environ.get("HYBRIDMEM_SOAK_SECONDS", "4"))
KILLS = int(os.environ.get("HYBRIDMEM_KILLS", "12"))

WORDS = ["cat", "dog", "sofa", "blue"]


def toy(texts):
    return [[float(text.count(word)) for word in WORDS] + [0.1] for text in texts]


TOY = f"WORDS = {WORDS}\n{inspect.getsource(toy)}"  # the children embed alike

WRITER = (
    TOY
    + """
import sys
from hybridmem import HybridMemory
from hybridmem.indexes import view as space
space.SNAPSHOT_AFTER = 5  # write the text index down again and again, so that kills hit that too
path, start = sys.argv[1], int(sys.argv[2])
with HybridMemory(path, embedder=toy) as memory:
    for n in range(start, start + 10_000):
        key = memory.add(f"the cat number {n} on the sofa", id=f"m{n}", thread="t")
        if n % 3 == 0:
            memory.update(key, text=f"the dog number {n}, blue")
        if n % 7 == 0:
            memory.forget(key)
        memory.search("cat")
        print(n, flush=True)
"""
)


def expected(n):
    if n % 7 == 0:
        return None
    return f"the dog number {n}, blue" if n % 3 == 0 else f"the cat number {n} on the sofa"


def test_killed_memories_lose_nothing_and_answer_like_fresh_ones(tmp_path):
    path = tmp_path / "m.db"
    rng = random.Random(5)
    start, acknowledged = 0, []
    for _ in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(start)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(rng.randint(1, 12)):
            line = child.stdout.readline()
            acknowledged.append(int(line))
        time.sleep(rng.random() * 0.02)
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read()
        acknowledged += [int(line) for line in rest.split("\n")[:-1]]
        child.stdout.close()
        child.wait(60)
        start = max(acknowledged) + 2
    with HybridMemory(path, embedder=toy) as memory:
        assert memory.check() == []
        stored = {m.id: m.text for m in memory.list()}
        for n in acknowledged:
            assert stored.get(f"m{n}") == expected(n)
        got = {word: [(r.id, round(r.score, 6)) for r in memory.search(word, k=50)] for word in WORDS}
    with HybridMemory(path, embedder=toy) as fresh:
        fresh.store.save_snapshot("bm25", 0, b"")  # nothing written down: every index is built from the log
        for word, rows in got.items():
            again = [(r.id, round(r.score, 6)) for r in fresh.search(word, k=50)]
            assert [key for key, _ in again] == [key for key, _ in rows]


SHARER = (
    TOY
    + """
import json, sys, threading, time
from hybridmem import HybridMemory
path, who, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
memory = HybridMemory(path, embedder=toy)
added, wrong = [], []
def work(part):
    stop = time.monotonic() + seconds
    n = 0
    try:
        while n < 3 or time.monotonic() < stop:
            key = memory.add(f"the cat {who} {part} number {n}", id=f"{who}-{part}-{n}")
            added.append(key)
            if key not in {r.id for r in memory.search(f"{who} {part} number {n}", k=30)}:
                wrong.append(f"{key} is not in its own next search")
            n += 1
    except Exception as error:
        wrong.append(f"{type(error).__name__}: {error}")
threads = [threading.Thread(target=work, args=(part,)) for part in "ab"]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
memory.close()
print(json.dumps({"added": added, "wrong": wrong}))
"""
)


def test_four_processes_of_two_threads_share_one_file(tmp_path):
    path = tmp_path / "m.db"
    HybridMemory(path, embedder=toy).close()
    children = [
        subprocess.Popen([sys.executable, "-c", SHARER, str(path), who, str(SOAK)], stdout=subprocess.PIPE, text=True)
        for who in ("ana", "ben", "eva", "max")
    ]
    told = []

    def read(child):
        told.append(json.loads(child.communicate(timeout=200)[0]))

    readers = [threading.Thread(target=read, args=(child,)) for child in children]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(told) == 4
    assert [line for one in told for line in one["wrong"]] == []
    everything = {key for one in told for key in one["added"]}
    with HybridMemory(path, embedder=toy) as memory:
        assert {m.id for m in memory.list()} == everything
        assert memory.check() == []
        assert len(memory.search("cat number 1", k=20)) == 20


def test_each_process_sees_the_others_writes_in_its_next_search(tmp_path):
    path = tmp_path / "m.db"
    code = TOY + (
        "import sys\nfrom hybridmem import HybridMemory\nm = HybridMemory(sys.argv[1], embedder=toy)\n"
        "for line in sys.stdin:\n    print([r.id for r in m.search(line.strip(), k=5)], flush=True)\n"
    )
    with HybridMemory(path, embedder=toy) as memory:
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for n in range(5):
            memory.add(f"word{n} and a cat", id=f"m{n}")
            other.stdin.write(f"word{n}\n")
            other.stdin.flush()
            assert f"'m{n}'" in other.stdout.readline()
        other.stdin.close()
        other.stdout.close()
        assert other.wait(60) == 0
