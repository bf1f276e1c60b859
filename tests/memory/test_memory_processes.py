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

import numpy as np
import pytest

from hybridmem import HybridMemory
from hybridmem.core.protocols import View
from hybridmem.embedding.embedder import as_embedder
from hybridmem.errors import EmbeddingError
from tests.support import postgres_server

SOAK = float(os.environ.get("HYBRIDMEM_SOAK_SECONDS", "4"))
KILLS = int(os.environ.get("HYBRIDMEM_KILLS", "12"))
SLOW_KILLS = int(os.environ.get("HYBRIDMEM_KILLS", "2"))

WORDS = ["cat", "dog", "sofa", "blue"]


def toy(texts):
    return [[float(text.count(word)) for word in WORDS] + [0.1] for text in texts]


TOY = f"WORDS = {WORDS}\n{inspect.getsource(toy)}"  # the children embed alike

WRITER = (
    TOY
    + """
import json, sys
from hybridmem import HybridMemory
from hybridmem.indexes import view as space
space.SNAPSHOT_AFTER = 5  # write the text index down again and again, so that kills hit that too
place, how, start = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
with HybridMemory(place, embedder=toy, **how) as memory:
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


def kill_writers(place, *, kills, **how):
    """Kill one process after the other while it writes to a memory; returns the numbers of the acknowledged writes."""
    rng = random.Random(5)
    acknowledged = []
    for _ in range(kills):
        start = max(acknowledged, default=-2) + 2
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(place), json.dumps(how), str(start)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        acknowledged += [int(child.stdout.readline()) for _ in range(rng.randint(1, 12))]
        time.sleep(rng.random() * 0.02)
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read()
        acknowledged += [int(line) for line in rest.split("\n")[:-1]]
        child.stdout.close()
        assert child.wait(60) == -signal.SIGKILL
    return acknowledged


def rounded(memory, word, ids):
    """The cosine of each of these memories with a word."""
    found = memory.search_arm("vector", word, k=len(ids), filter={"id": {"$in": ids}})
    return {result.id: round(result.score, 5) for result in found}


def test_killed_memories_lose_nothing_and_answer_like_fresh_ones(tmp_path):
    path = tmp_path / "m.db"
    acknowledged = kill_writers(path, kills=KILLS)
    with HybridMemory(path, embedder=toy) as memory:
        assert memory.check() == []
        stored = {m.id: m.text for m in memory.list()}
        assert [stored.get(f"m{n}") for n in acknowledged] == list(map(expected, acknowledged))
        got = {word: [r.id for r in memory.search(word, k=50)] for word in WORDS}
    with HybridMemory(path, embedder=toy) as fresh:
        fresh.store.save_snapshot("bm25", 0, b"")  # nothing written down: every index is built from the log
        assert {word: [r.id for r in fresh.search(word, k=50)] for word in WORDS} == got


def test_killed_memories_with_chroma_lose_no_vector(tmp_path):
    """Chroma is a second database, which a kill leaves behind the first: it is brought up to date, or filled again."""
    path = tmp_path / "m.db"
    acknowledged = kill_writers(path, kills=SLOW_KILLS, vectors="chroma")
    with HybridMemory(path, embedder=toy, vectors="chroma") as memory, HybridMemory(path, embedder=toy) as exact:
        assert memory.check() == []
        stored = {m.id: m.text for m in memory.list()}
        assert [stored.get(f"m{n}") for n in acknowledged] == list(map(expected, acknowledged))
        for word in WORDS:
            assert rounded(memory, word, list(stored)) == rounded(exact, word, list(stored))
        assert rounded(memory, "cat", list(stored)).keys() == stored.keys()


def test_killed_memories_on_postgres_lose_nothing(postgres):
    """The server rolls the open transaction of a killed process back, and the next process does not wait for it."""
    url = postgres.database()
    acknowledged = kill_writers(url, kills=SLOW_KILLS)
    with HybridMemory(url, embedder=toy) as memory, HybridMemory(":memory:", embedder=toy) as exact:
        assert memory.check() == []
        stored = {m.id: m.text for m in memory.list()}
        assert [stored.get(f"m{n}") for n in acknowledged] == list(map(expected, acknowledged))
        exact.add_many(list(memory.list()))
        for word in WORDS:
            assert rounded(memory, word, list(stored)) == rounded(exact, word, list(stored))


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
        told.append(json.loads(child.communicate(timeout=SOAK + 200)[0]))

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


# --- one embedder for all vectors

MODELS = """
def one(texts):
    return [[1.0, len(text) / 100] for text in texts]
def two(texts):
    return [[len(text) / 100, 1.0] for text in texts]
"""

REINDEX = (
    MODELS
    + """
import sys
from hybridmem import HybridMemory
from hybridmem.embedding.embedder import as_embedder
from hybridmem.errors import EmbeddingError
place, name = sys.argv[1:]
with HybridMemory(place, embedder=None) as memory:
    print("open", flush=True)
    sys.stdin.readline()
    try:
        memory.reindex(embedder=as_embedder({"one": one, "two": two}[name], name=name))
    except EmbeddingError as error:
        print(error)
"""
)


@pytest.fixture(params=["sqlite", "markdown", "postgres"])
def place(request, tmp_path):
    """A place where several memories can be opened."""
    if request.param != "postgres":
        return f"{tmp_path}/memory.db" if request.param == "sqlite" else f"{tmp_path}/notes/"
    return request.getfixturevalue("postgres").database()


@pytest.fixture(scope="session")
def postgres():
    with postgres_server.server(**postgres_server.FAST) as server:
        yield server


def models():
    names = {}
    exec(MODELS, names)
    return [as_embedder(names[name], name=name) for name in ("one", "two")]


def vectors_of(memory):
    """The texts of all memories, embedded by each model, and the stored vectors."""
    found = list(memory.list())
    stored = memory.store.vectors([m.id for m in found], view=View())
    return [m.text for m in found], np.array(stored)


@pytest.mark.parametrize("round_", range(2))
def test_two_reindexes_at_once_leave_the_vectors_of_the_recorded_embedder(place, round_):
    one, two = models()
    with HybridMemory(place, embedder=one) as memory:
        memory.add_many([f"cat {'x' * (n % 40)} {n}" for n in range(3000)])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", REINDEX, place, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    for child in children:
        assert child.stdout.readline() == "open\n"
    for child in children[:: 1 - 2 * round_]:
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    with HybridMemory(place, embedder=None) as memory:
        name = json.loads(memory.store.get_meta("embedder"))["name"]
        assert said[name == "one"] == "" or "another reindex() has begun" in said[name == "one"]
        assert said[name == "two"] == ""  # the one whose embedder is recorded has succeeded
        texts, stored = vectors_of(memory)
        assert np.allclose(stored, (one if name == "one" else two).documents(texts))


def test_an_open_memory_notices_that_another_embedder_took_over(place):
    one, two = models()
    with HybridMemory(place, embedder=one) as first, HybridMemory(place, embedder=None) as second:
        first.add_many(["the cat", "the dog"])
        assert first.search("cat")[0].text == "the cat"
        second.reindex(embedder=two)
        both = r"stored vectors come from 'two' \(2 dimensions\), but .* opened with 'one' .*open it again with 'two'"
        for call in (
            lambda: first.search("cat"),
            lambda: first.search("cat", as_of=time.time() + 1),
            lambda: first.search_arm("vector", "cat"),
            lambda: first.add("the bird"),
            lambda: first.update(next(first.list()).id, text="changed"),
        ):
            with pytest.raises(EmbeddingError, match=both):
                call()
        assert second.add("the horse")
        texts, stored = vectors_of(second)
        assert len(texts) == 3
        assert np.allclose(stored, two.documents(texts))
        assert second.check() == []
        second.reindex(embedder=one)  # the same embedder as before: the first memory goes on
        assert first.search("cat")[0].text == "the cat"


def test_vectors_that_were_made_before_a_reindex_are_not_written_after_it(place):
    one, two = models()
    with HybridMemory(place, embedder=one) as first, HybridMemory(place, embedder=None) as second:
        first.add("the cat")
        store, put = first.store, first.store.put

        def late(batch, *, vectors, **how):
            """The reindex runs after the vectors were made and claimed, before the transaction."""
            made = vectors(batch)
            second.reindex(embedder=two)
            return put(batch, vectors=made, **how)

        store.put = late
        with pytest.raises(EmbeddingError, match="open it again with 'two'"):
            first.add("the dog")
        texts, stored = vectors_of(second)
        assert texts == ["the cat"]
        assert np.allclose(stored, two.documents(texts))


def test_a_reindex_that_another_one_overtakes_writes_no_more_vectors(place, monkeypatch):
    one, two = models()
    monkeypatch.setattr("hybridmem.memory.embeddings.BATCH", 2)
    with HybridMemory(place, embedder=one) as first, HybridMemory(place, embedder=None) as second:
        first.add_many([f"cat {n}" for n in range(6)])

        def overtaken(texts, calls=[]):  # noqa: B006 - counts the batches
            calls.append(texts)
            if len(calls) == 3:  # after the probe and the first batch
                second.reindex(embedder=two)
            return one.documents(texts)

        with pytest.raises(EmbeddingError, match="another reindex"):
            first.reindex(embedder=as_embedder(overtaken, name="three"))
        texts, stored = vectors_of(second)
        assert np.allclose(stored, two.documents(texts))


FLAT = (
    TOY
    + """
import gc, json, os, random, sys, threading, time
from pathlib import Path
from hybridmem import HybridMemory

def state():
    gc.collect()
    status = Path("/proc/self/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) / 1024
    return resident, threading.active_count(), len(os.listdir("/proc/self/fd"))

def step(n):
    space = memory.namespace(f"n{n % 5}")
    space.add(f"the cat {n} on the sofa", id=f"m{n}", thread="t")
    found = [result.id for result in space.search("cat sofa", k=5)]
    if len(found) > 1:
        space.link(found[0], found[1])
        space.search_arm("graph", "cat")
    space.search("dog", as_of=time.time() - 1, filter={"thread": "t"})
    if n % 10 == 0:
        worker = threading.Thread(target=space.search, args=("blue",))
        worker.start()
        worker.join()
    if n % 20 == 0:
        with HybridMemory(sys.argv[1], embedder=toy) as other:
            other.namespace("n0").search("cat")
    if n >= 20:
        memory.namespace(f"n{(n - 20) % 5}").erase(f"m{n - 20}")

memory = HybridMemory(sys.argv[1], embedder=toy)
start, seconds, n = time.monotonic(), float(sys.argv[2]), 0
while n < 25 or time.monotonic() < start + seconds / 3:
    step(n)
    n += 1
before = state()
while n < 45 or time.monotonic() < start + seconds:
    step(n)
    n += 1
print(json.dumps([n, before, state()]))
memory.close()
"""
)


def test_memory_threads_and_open_files_stay_flat(place):
    command = [sys.executable, "-c", FLAT, place, str(SOAK - 4)]  # in the suite: so many steps and no more
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    steps, before, after = json.loads(done.stdout)
    assert steps >= 45
    assert after[0] - before[0] < 20, (steps, before, after)  # MB
    assert after[1] <= before[1], (steps, before, after)  # an idle thread may end in between
    assert after[2] - before[2] < 5, (steps, before, after)  # a thread has a connection of its own
