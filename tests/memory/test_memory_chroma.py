"""A memory whose vectors live in Chroma: the same answers, isolated, healed from the store."""

import shutil
import subprocess
import sys
import zlib

import numpy as np
import pytest

from hybridmem import HybridMemory, Memory
from hybridmem.core.protocols import View
from hybridmem.errors import ConfigError

DIM = 16


def toy(texts):
    rows = [np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIM) for text in texts]
    return np.array(rows, np.float32)


TEXTS = [f"memory {i} about {'cats' if i % 3 else 'dogs'}" for i in range(150)]


def fill(memory):
    memory.namespace("ana").add_many([Memory(text, id=f"m{i}") for i, text in enumerate(TEXTS)])
    memory.namespace("ben").add_many([Memory(text, id=f"m{i}") for i, text in enumerate(TEXTS[:5])])


def arm(memory, query, **how):
    return [(r.id, round(r.score, 4)) for r in memory.search_arm("vector", query, k=10, **how)]


def test_chroma_answers_like_the_exact_index_and_heals(tmp_path):
    with HybridMemory(tmp_path / "exact.db", embedder=toy) as exact:
        fill(exact)
        wanted = {query: arm(exact.namespace("ana"), query) for query in TEXTS[:12]}
        few = arm(exact.namespace("ana"), TEXTS[0], filter={"id": {"$in": ["m7", "m8", "m9"]}})
    path = tmp_path / "m.db"
    with HybridMemory(path, embedder=toy, vectors="chroma") as memory:
        fill(memory)
        ana, ben = memory.namespace("ana"), memory.namespace("ben")
        found = {query: arm(ana, query) for query in wanted}
        hits = sum(len(set(found[q]) & set(wanted[q])) for q in wanted)
        assert hits >= 0.98 * 10 * len(wanted)
        assert sorted(arm(ana, TEXTS[0], filter={"id": {"$in": ["m7", "m8", "m9"]}})) == sorted(few)
        # Nothing of one namespace is seen from another.
        assert {key for key, _ in arm(ben, TEXTS[100])} <= {f"m{i}" for i in range(5)}
        assert memory.search("cats") == []
        ana.forget("m0")
        assert "m0" not in {key for key, _ in arm(ana, TEXTS[0])}
        assert ana.search(TEXTS[3], k=3)[0].id == "m3"
        past = ana.search_arm("vector", TEXTS[0], k=3, superseded=True)
        assert past
    assert (tmp_path / "m.db.chroma").is_dir()
    with HybridMemory(path, embedder=toy, vectors="chroma") as memory:  # goes on where it stopped
        memory.namespace("ana").add("something new", id="new")
        assert arm(memory.namespace("ana"), "something new")[0][0] == "new"
    shutil.rmtree(tmp_path / "m.db.chroma")
    with HybridMemory(path, embedder=toy, vectors={"path": tmp_path / "elsewhere"}) as memory:
        assert arm(memory.namespace("ana"), "something new")[0][0] == "new"
        assert arm(memory.namespace("ana"), TEXTS[5])[0][0] == "m5"


@pytest.mark.parametrize("vectors", ["faiss", 7, "chroma"])
def test_other_places_are_refused(vectors):
    with pytest.raises(ConfigError, match="vectors = "):
        HybridMemory(":memory:", embedder=toy, vectors=vectors)


def test_an_older_store_restored_and_written_on_is_noticed(tmp_path):
    """The restored store soon has as many changes as the collection has seen, but others."""
    path = tmp_path / "m.db"
    with HybridMemory(path, embedder=toy, vectors="chroma") as memory:
        memory.add_many([Memory(f"old {n}", id=f"o{n}") for n in range(5)])
        memory.backup(tmp_path / "copy.db")
        memory.add_many([Memory(f"lost {n}", id=f"l{n}") for n in range(5)])
        assert arm(memory, "lost 3")[0][0] == "l3"
    shutil.copy(tmp_path / "copy.db", path)
    with HybridMemory(path, embedder=toy) as memory:
        memory.add_many([Memory(f"new {n}", id=f"n{n}") for n in range(8)])
    with HybridMemory(path, embedder=toy, vectors="chroma") as memory:
        assert arm(memory, "new 2")[0] == ("n2", 1.0)
        found = {id_ for id_, _ in arm(memory, "lost 3")}
        assert not any(id_.startswith("l") for id_ in found)
        assert len(memory.search_arm("vector", "new", k=20)) == 13
    with HybridMemory(path, embedder=toy, vectors="chroma") as memory:
        memory.add("one more", id="more")
        assert len(memory.search_arm("vector", "new", k=20)) == 14


def test_a_collection_that_another_process_replaced_is_opened_again(tmp_path):
    path = tmp_path / "m.db"
    with HybridMemory(path, embedder=toy, vectors="chroma") as memory:
        memory.add_many([Memory(f"text {n}", id=f"m{n}") for n in range(5)])
        assert arm(memory, "text 3")[0] == ("m3", 1.0)
        for change in (lambda: None, lambda: memory.add("one more", id="more"), lambda: memory.forget("m1")):
            with HybridMemory(path, embedder=toy, vectors="chroma") as other:
                arm(other, "text 3")
                other._engine.search_view(View())._vector.reset()  # as after a writer that was killed
            change()
            assert arm(memory, "text 3")[0] == ("m3", 1.0)
            assert {id_ for id_, _ in arm(memory, "text")} == {one.id for one in memory.list()}


def test_a_deleted_chroma_folder_is_filled_without_what_was_erased(tmp_path):
    path = tmp_path / "m.db"
    with HybridMemory(path, embedder=toy, vectors="chroma") as memory:
        memory.add("stays", id="stays")
        memory.add("goes", id="id-of-ana")
        assert arm(memory, "goes")[0] == ("id-of-ana", 1.0)
        memory.erase("id-of-ana")
        assert arm(memory, "goes")[0][0] == "stays"
    shutil.rmtree(tmp_path / "m.db.chroma")
    refill = (
        "import sys\nfrom hybridmem import HybridMemory\nfrom tests.memory.test_memory_chroma import arm, toy\n"
        "with HybridMemory(sys.argv[1], embedder=toy, vectors='chroma') as memory:\n    print(arm(memory, 'stays'))\n"
    )  # Chroma writes memory of its process that it has not set, so this process could write the old vector again
    done = subprocess.run([sys.executable, "-c", refill, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[('stays', 1.0)]\n"
    files = [file.read_bytes() for file in (tmp_path / "m.db.chroma").rglob("*") if file.is_file()]
    assert any(b"stays" in data for data in files)
    vector = toy(["goes"])[0]
    for needle in (b"id-of-ana", vector.tobytes(), (vector / np.linalg.norm(vector)).astype("<f4").tobytes()):
        assert not any(needle in data for data in files)
