"""ChromaIndex on real Chroma: a folder, a server, and everything that can go wrong between it and its store."""

import shutil
import socket
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import chromadb
import numpy as np
import pytest

from hybridmem.core.protocols import Change
from hybridmem.core.types import Edge, Memory
from hybridmem.embedding.embedder import as_embedder, unit
from hybridmem.errors import ConfigError, EmbeddingError, MissingExtraError, StoreError
from hybridmem.indexes.vector.chroma import ChromaIndex, collection_name, connect
from hybridmem.indexes.vector.index import VectorIndex
from hybridmem.memory.memory import HybridMemory
from hybridmem.retrievers.vector import ChromaTextCorpus, TextItem

START = datetime(2025, 1, 1, tzinfo=timezone.utc)


def put(seq, key, vector, day=0, **kwargs):
    return Change(seq, key, Memory("text", id=key, updated_at=START + timedelta(days=day)), vector, **kwargs)


def rows_of(n, dim=24, seed=0):
    random = np.random.default_rng(seed)
    centres = random.standard_normal((8, dim))
    return unit(centres[random.integers(0, 8, n)] + 0.5 * random.standard_normal((n, dim)))


def log_of(rows):
    return [put(number + 1, f"m{number}", row) for number, row in enumerate(rows)]


class Log:
    """A stand-in for a store: the changes after a seq, and the state as it stands from 0."""

    def __init__(self, changes):
        self.changes = list(changes)

    def since(self, seq):
        if seq:
            return [change for change in self.changes if change.seq > seq]
        last = {change.id: change for change in self.changes}
        return [change for change in last.values() if change.memory is not None]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).with_name("chroma")
    command = [str(program), "run", "--host", "127.0.0.1", "--port", str(port)]
    folder = tmp_path_factory.mktemp("server")
    process = subprocess.Popen(
        [*command, "--path", str(folder)], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
            except OSError:
                assert process.poll() is None, "the Chroma server stopped"
                assert time.monotonic() < deadline, "the Chroma server does not answer"
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


@pytest.fixture
def opened(tmp_path, request):
    """Opens indexes on one folder, and closes whatever was opened."""
    indexes = []

    def open_(**kwargs):
        indexes.append(ChromaIndex(**{"path": tmp_path / "chroma", **kwargs}))
        return indexes[-1]

    yield open_
    for index in indexes:
        index.close()


def reopened(opened, index, **kwargs):
    index.close()
    return opened(**kwargs)


# --- the protocol


def test_it_answers_like_the_exact_index(opened):
    rows = rows_of(600)
    index, exact = opened(), VectorIndex()
    for engine in (index, exact):
        engine.apply(log_of(rows))
    recalls = []
    for question in rows_of(20, seed=1):
        found, expected = index.search(question, k=10), exact.search(question, k=10)
        recalls.append(len({*found.ids} & {*expected.ids}) / 10)
        assert found.scores == sorted(found.scores, reverse=True)
        assert found.scores == pytest.approx(index.score(question, found.ids), abs=1e-5)
    assert np.mean(recalls) >= 0.98
    assert (len(index), index.watermark) == (600, 600)
    assert index.score(rows[3], ["m3", "none"]) == pytest.approx([1.0, None], abs=1e-6)
    assert index.vectors(["none", "m3"])[0] is None
    assert index.vectors(["m3"])[0] == pytest.approx(rows[3], abs=1e-6)


def test_updates_removals_and_times(opened):
    index = opened()
    index.apply(
        [put(1, "a", [1.0, 0.0], 1), put(2, "b", [1.0, 0.0], 2), put(3, "c", [0.0, 1.0]), put(4, "d", [1.0, 1.0])]
    )
    assert index.search([2.0, 0.0], k=2).ids == ["b", "a"]
    index.apply([put(5, "a", None, 9, text_changed=False), put(6, "d", None), Change(7, "", edge=Edge("a", "b"))])
    assert index.search([2.0, 0.0], k=3).ids == ["a", "b", "c"]
    index.apply([put(8, "c", [1.0, 0.1]), Change(9, "b", None)])
    found = index.search([1.0, 0.0], k=9)
    assert found.ids == ["a", "c"]
    assert found.scores == pytest.approx([1.0, 1 / 1.01**0.5], abs=1e-6)
    index.apply([])
    assert index.watermark == 9


def test_an_empty_index_answers_nothing(opened):
    index = opened()
    assert index.search([1.0, 0.0], k=3).ids == []
    assert index.search([1.0, 0.0], k=3, allowed={"a"}).ids == []
    assert (len(index), index.vectors(["a"]), index.score([1.0], ["a"])) == (0, [None], [None])


def test_allowed_ids_fill_k_however_rare(opened, monkeypatch):
    rows = rows_of(400)
    index, exact = opened(), VectorIndex()
    for engine in (index, exact):
        engine.apply(log_of(rows))
    question = rows_of(1, seed=2)[0]
    rare = {f"m{number}" for number in range(0, 400, 25)} | {"unknown"}
    half = frozenset(f"m{number}" for number in range(0, 400, 2))
    for allowed in (rare, half):
        assert index.search(question, k=10, allowed=allowed).ids == exact.search(question, k=10, allowed=allowed).ids
    monkeypatch.setattr("hybridmem.indexes.vector.chroma._MAX_ID_FILTER", 5)
    for allowed in (rare, half):
        assert index.search(question, k=10, allowed=allowed).ids == exact.search(question, k=10, allowed=allowed).ids


def test_when_hnsw_finds_too_few_each_is_looked_at(opened, monkeypatch):
    rows = rows_of(50)
    index, exact = opened(), VectorIndex()
    for engine in (index, exact):
        engine.apply(log_of(rows))
    allowed = {f"m{number}" for number in range(20)}
    monkeypatch.setattr(index, "_query", lambda *_, **__: [])
    assert index.search(rows[0], k=5, allowed=allowed).ids == exact.search(rows[0], k=5, allowed=allowed).ids


def test_an_id_removed_by_another_process_is_no_failure(opened):
    index = opened()
    index.apply(log_of(rows_of(30)))
    assert index.search(rows_of(1)[0], k=3, allowed={"m1", "m2"}).ids
    index._collection.delete(ids=["m1"])
    assert index.search(rows_of(1)[0], k=3, allowed={"m1", "m2"}).ids == ["m2"]


def test_bad_input_is_reported(opened):
    index = opened()
    index.apply([put(1, "a", [1.0, 0.0])])
    with pytest.raises(ConfigError, match="k = 0 is not allowed"):
        index.search([1.0, 0.0], k=0)
    with pytest.raises(EmbeddingError, match="dimension"):
        index.search([1.0, 0.0, 0.0], k=1)
    with pytest.raises(EmbeddingError, match="not finite"):
        index.apply([put(2, "b", [float("nan"), 0.0])])
    with pytest.raises(EmbeddingError, match="dimension"):
        index.apply([put(2, "b", [1.0])])
    assert index.watermark == 1


# --- healing


def test_it_goes_on_where_it_stopped(opened):
    rows = rows_of(40)
    index = opened()
    index.apply(log_of(rows)[:30])
    index = reopened(opened, index)
    assert (index.watermark, len(index)) == (30, 30)
    index.apply(log_of(rows)[30:])
    assert index.search(rows[35], k=1).ids == ["m35"]


def test_a_crash_before_the_watermark_heals(opened, monkeypatch):
    """Vectors written, watermark not: the next opening starts over and ends where a fresh index does."""
    log = Log([*log_of(rows_of(40)), Change(50, "m3", None), put(51, "m4", [1.0] * 24)])
    index = opened()
    index.apply(log.changes[:20])
    monkeypatch.setattr(index, "_save_watermark", lambda: (_ for _ in ()).throw(RuntimeError("killed")))
    with pytest.raises(StoreError, match="killed"):
        index.apply(log.changes[20:])
    index = reopened(opened, index)
    index.apply(log.since(index.watermark))
    fresh = VectorIndex()
    fresh.apply(log.since(0))
    assert len(index) == len(fresh) == 39
    for question in rows_of(5, seed=3):
        assert index.search(question, k=5).ids == fresh.search(question, k=5).ids


def spoil_delete(folder):
    shutil.rmtree(folder)


def spoil_hnsw(folder):
    for part in folder.glob("*-*-*"):
        shutil.rmtree(part)


def spoil_truncate(folder):
    with (folder / "chroma.sqlite3").open("r+b") as file:
        file.truncate(5000)


def spoil_garbage(folder):
    (folder / "chroma.sqlite3").write_bytes(b"garbage" * 1000)


@pytest.mark.parametrize("spoil", [spoil_delete, spoil_hnsw, spoil_truncate, spoil_garbage])
def test_a_damaged_folder_heals_from_the_store(opened, tmp_path, spoil):
    log = Log(log_of(rows_of(1500)))  # more than Chroma keeps outside its HNSW files
    index = opened()
    index.apply(log.since(0))
    index.close()
    spoil(tmp_path / "chroma")
    index = opened()
    index.apply(log.since(index.watermark))
    assert (len(index), index.watermark) == (1500, 1500)
    assert index.search(rows_of(1500)[1], k=1).ids == ["m1"]


def test_a_folder_that_cannot_be_opened_nor_moved_is_reported(tmp_path, monkeypatch):
    folder = tmp_path / "chroma"
    folder.mkdir()
    spoil_garbage(folder)

    def refuse(self, target):
        raise OSError("busy")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StoreError, match="cannot be opened"):
        connect(path=folder)


def test_a_folder_in_use_with_other_settings_is_left_alone(tmp_path):
    client = chromadb.PersistentClient(str(tmp_path / "chroma"), chromadb.config.Settings(allow_reset=True))
    with pytest.raises(StoreError, match="different settings"):
        connect(path=tmp_path / "chroma")
    assert [entry.name for entry in tmp_path.iterdir()] == ["chroma"]
    client.close()


def test_a_collection_of_another_store_is_filled_again(opened):
    index = opened(identity="store A, model X")
    index.apply(log_of(rows_of(10)))
    index = reopened(opened, index, identity="store A, model X")
    assert index.watermark == 10
    index = reopened(opened, index, identity="store B, model X")
    assert (index.watermark, len(index)) == (0, 0)


def test_a_memory_reindexed_by_another_model_fills_chroma_again(tmp_path):
    lengths = as_embedder(lambda texts: [[float(len(text)), 1.0] for text in texts], name="lengths")
    vowels = as_embedder(
        lambda texts: [[text.count("a") + 0.1, text.count("o") + 0.1, 0.0] for text in texts], name="vowels"
    )
    with HybridMemory(tmp_path / "m.db", embedder=lengths, vectors={"path": tmp_path / "chroma"}) as memory:
        memory.add_many(["aaa", "ooo"])
        assert len(memory.search_arm("vector", "ooo", k=2)) == 2
        memory.reindex(embedder=vowels)
        assert [found.text for found in memory.search_arm("vector", "o", k=2)] == ["ooo", "aaa"]


def test_a_collection_ahead_of_its_store_is_filled_again(opened):
    index = opened()
    index.apply(log_of(rows_of(10)))
    assert index.reset_if_foreign(lambda seq: f"change {seq}") is False
    assert index.reset_if_foreign(lambda seq: f"change {seq}" if seq <= 7 else None) is True
    assert (index.watermark, len(index)) == (0, 0)


def test_vectors_taken_out_behind_its_back_heal(opened):
    log = Log(log_of(rows_of(30)))
    index = opened()
    index.apply(log.since(0))
    index._collection.delete(ids=["m1", "m2"])
    index = reopened(opened, index)
    index.apply(log.since(index.watermark))
    assert len(index) == 30


def test_a_collection_that_cannot_be_counted_heals(opened, monkeypatch):
    index = opened()
    index.apply(log_of(rows_of(5)))

    def fail():
        raise RuntimeError("broken")

    for broken in ("count", "get"):
        with monkeypatch.context() as patch:
            patch.setattr(index._collection, broken, lambda **_: fail())
            assert index._intact() is False
    assert index._intact() is True


# --- over a given collection, names, errors


@pytest.mark.parametrize("space", ["cosine", "l2", "ip"])
def test_over_a_collection_of_any_space_scores_are_cosines(tmp_path, space):
    client = connect(path=tmp_path)
    collection = client.create_collection("mine", embedding_function=None, configuration={"hnsw": {"space": space}})
    index = ChromaIndex(collection)
    index.apply([put(1, "a", [3.0, 4.0]), put(2, "b", [0.0, 5.0]), put(3, "c", [-3.0, 0.0])])
    found = index.search([2.0, 0.0], k=3)
    assert found.ids == ["a", "b", "c"]
    assert found.scores == pytest.approx([3 / 5, 0.0, -1.0], abs=1e-6)
    index.reset()
    assert (len(index), index.watermark) == (0, 0)
    index.close()
    client.close()


def test_somebody_elses_vectors_are_left_alone(tmp_path):
    client = connect(path=tmp_path)
    collection = client.create_collection("mine", embedding_function=None)
    collection.add(ids=["x"], embeddings=[[1.0, 0.0]])
    with pytest.raises(ConfigError, match="1 vectors of another program"):
        ChromaIndex(collection)
    assert collection.count() == 1
    client.close()


def test_collection_names_are_legal_and_distinct():
    names = [collection_name(namespace) for namespace in ("", "ana", "Ana", "a/b", "日本", "x" * 999)]
    assert len(set(names)) == len(names)
    assert all(3 <= len(name) <= 63 and name.replace("-", "").isalnum() for name in names)


def test_where_must_be_one_place():
    for place in ({}, {"path": "x", "host": "y"}):
        with pytest.raises(ConfigError, match="either path= or host="):
            ChromaIndex(**place)


def test_without_chromadb_the_pip_line_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "chromadb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hybridmem\[chroma\]'"):
        ChromaIndex(path="x")


# --- a server


def test_a_server_works_the_same(server):
    rows = rows_of(200)
    with_name = {"host": "127.0.0.1", "port": server, "name": "hybridmem-test"}
    index, exact = ChromaIndex(**with_name), VectorIndex()
    for engine in (index, exact):
        engine.apply(log_of(rows))
    for question in rows_of(5, seed=4):
        assert index.search(question, k=5).ids == exact.search(question, k=5).ids
    second = ChromaIndex(**with_name)
    assert (second.watermark, len(second)) == (200, 200)
    second.reset()
    assert len(second) == 0
    index.close()
    second.close()


def test_texts_on_a_server(server):
    def letters(texts):
        return [[text.count("a") + 0.1, text.count("b") + 0.1] for text in texts]

    texts = ChromaTextCorpus(as_embedder(letters), host="127.0.0.1", port=server, collection_name="texts")
    texts.put([TextItem("1", "aaa", {"page": 1}), TextItem("2", "aab", {"page": 2}), TextItem("3", "bbb", {})])
    assert [found.id for found in texts.search("aa", k=2)] == ["1", "2"]
    assert [found.id for found in texts.search("aa", k=2, filter={"page": {"$gt": 1}})] == ["2"]
    assert [found.id for found in texts.search("aa", k=2, filter={"page": {"$exists": False}})] == ["3"]
    assert (texts.remove(["1", "unknown"]), len(texts)) == (1, 2)
    texts.close()


def test_no_server_is_a_clear_error():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        with pytest.raises(StoreError, match=f"no Chroma server answers at 127.0.0.1:{port}"):
            ChromaIndex(host="127.0.0.1", port=port)


def test_failures_of_chroma_are_store_errors(opened, monkeypatch):
    index = opened()

    def fail(*args, **kwargs):
        raise chromadb.errors.InternalError("disk full")

    monkeypatch.setattr(index._collection, "count", fail)
    with pytest.raises(StoreError, match="Chroma could not count: disk full"):
        len(index)


FORKED = """
import os, signal, sys
from hybridmem.errors import StoreError
from hybridmem.core.protocols import Change
from hybridmem.indexes.vector.chroma import ChromaIndex
from hybridmem.core.types import Memory

index = ChromaIndex(path=sys.argv[1])
index.apply([Change(1, "a", Memory("cat", id="a"), [1.0, 0.0])])
child = os.fork()
if child == 0:
    signal.alarm(30)
    code = 1
    try:
        index.search([1.0, 0.0], k=1)
    except StoreError as error:
        code = int("open the memory in the child" not in str(error))
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert index.search([1.0, 0.0], k=1).ids == ["a"]
"""


def test_a_forked_child_is_told_to_open_its_own(tmp_path):
    subprocess.run([sys.executable, "-c", FORKED, str(tmp_path / "chroma")], timeout=120, check=True)
