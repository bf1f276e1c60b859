"""Compact vectors: the same results as the whole matrix, and the same after they were saved and read."""

import numpy as np
import pytest

from hybridmem import HybridMemory, Memory
from hybridmem.core.protocols import Change, View
from hybridmem.errors import CorruptStoreError
from hybridmem.indexes.vector import compact
from hybridmem.indexes.vector.compact import CompactVectors
from hybridmem.indexes.vector.index import VectorIndex

DIM = 48


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(compact, "PIECE", 64)
    monkeypatch.setattr(compact, "CACHED", 40 * DIM * 4)
    monkeypatch.setattr("hybridmem.indexes.view.COMPACT_FROM", 1)
    monkeypatch.setattr("hybridmem.indexes.view.SNAPSHOT_AFTER", 10)


def drawn(count, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((8, DIM))
    rows = centres[rng.integers(0, 8, count)] + 0.3 * rng.standard_normal((count, DIM))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def history(count, seed=0):
    """Adds, updates, deletions and changes of the time alone."""
    rng, rows = np.random.default_rng(seed), drawn(count, seed)
    for seq in range(1, count + 1):
        id_ = f"m{rng.integers(0, count // 2)}"
        kind = rng.integers(0, 6)
        if kind == 0:
            yield Change(seq, id_)
        elif kind == 1:
            yield Change(seq, id_, Memory("x", id=id_), text_changed=False)
        else:
            yield Change(seq, id_, Memory("x", id=id_), rows[seq - 1], vector_seq=seq)


def reader(stored):
    """Reads vectors by their numbers, as a store does."""
    return lambda seqs: {seq: stored[seq].tobytes() for seq in seqs if seq in stored}


def both(changes, batch=50):
    """The same changes in a VectorIndex and as codes."""
    stored = {}
    plain, codes = VectorIndex(compact_from=None), CompactVectors(DIM, reader(stored))
    changes = list(changes)
    for start in range(0, len(changes), batch):
        part = changes[start : start + batch]
        for change in part:
            if change.vector is not None:
                stored[change.seq] = change.vector
        plain.apply(part)
        codes.apply(part)
    return plain, codes, stored


@pytest.mark.parametrize("k", [1, 10, 100])
def test_results_equal_those_of_the_matrix(k):
    plain, codes, _ = both(history(900))
    assert (len(codes), codes.watermark) == (len(plain), plain.watermark)
    some = frozenset(f"m{n}" for n in range(0, 450, 7))
    for question in drawn(20, seed=5):
        assert codes.search(question, k=k) == plain.search(question, k=k)
        assert codes.search(question, k=k, allowed=some) == plain.search(question, k=k, allowed=some)
        assert codes.score(question, ["m1", "m2", "nobody"]) == plain.score(question, ["m1", "m2", "nobody"])


def test_a_zero_vector_among_the_candidates_changes_no_other_score():
    rows = [*drawn(6, seed=3), np.zeros(DIM, np.float32), drawn(1, seed=4)[0] * np.float32(3)]
    plain, codes, _ = both(Change(seq, f"m{seq}", Memory("x"), row, vector_seq=seq) for seq, row in enumerate(rows, 1))
    question = drawn(1, seed=9)[0]
    assert codes.search(question, k=8) == plain.search(question, k=8)
    alone = dict(zip(*codes.search(question, k=8, allowed={"m1", "m2"}), strict=True))
    assert alone == {id_: codes.score(question, [id_])[0] for id_ in ("m1", "m2")}
    assert codes.score(question, ["m7", "m8"]) == plain.score(question, ["m7", "m8"])
    assert codes.score(question, ["m7"]) == [0.0]


def test_vectors_read_lately_are_not_read_again():
    _, codes, stored = both(Change(n, f"m{n}", Memory("x"), row, vector_seq=n) for n, row in enumerate(drawn(60), 1))
    asked = []
    codes._fetch = lambda seqs: asked.append(list(seqs)) or {seq: stored[seq].tobytes() for seq in seqs}
    for first, last, read in ((1, 30, 30), (11, 40, 10), (1, 40, 0), (41, 50, 10), (1, 10, 10), (21, 50, 0)):
        ids, before = [f"m{n}" for n in range(first, last + 1)], sum(map(len, asked))
        found = codes.vectors(ids)
        assert all((row == stored[n]).all() for n, row in enumerate(found, first))
        assert sum(map(len, asked)) - before == read  # 40 vectors are kept
    assert len(codes.vectors([f"m{n}" for n in range(1, 61)])) == 60


def test_codes_of_an_index_are_searched_like_it():
    plain, _, stored = both(history(500))
    newest = {}
    for change in history(500):
        if change.vector is not None:
            newest[change.id] = change.seq
    codes = CompactVectors.of(plain, newest, reader(stored))
    for question in drawn(10, seed=6):
        assert codes.search(question, k=10) == plain.search(question, k=10)


def saved(codes, pieces):
    pieces.update(codes.changed_pieces())
    return codes.to_bytes()


def test_saving_writes_only_what_changed_and_reads_the_same():
    plain, codes, stored = both(history(600))
    pieces = {}
    head = saved(codes, pieces)
    fetch = reader(stored)
    read = CompactVectors.from_bytes(head, pieces.get, fetch)
    assert (len(read), read.watermark) == (len(codes), 600)
    for question in drawn(10, seed=7):
        assert read.search(question, k=20) == plain.search(question, k=20)
    more = {f"n{n}": row for n, row in enumerate(drawn(3, seed=8))}
    stored |= dict(enumerate(more.values(), 601))
    for index in (plain, codes, read):
        index.apply(
            Change(seq, key, Memory("x", id=key), row, vector_seq=seq)
            for seq, (key, row) in enumerate(more.items(), 601)
        )
    assert read.search(more["n1"], k=5) == plain.search(more["n1"], k=5)
    changed = dict(read.changed_pieces())
    assert set(changed) == {read._current.n // 64}  # the last one alone
    assert list(read.changed_pieces()) == []


@pytest.mark.parametrize("hurt", [lambda p: p.pop(1), lambda p: p.update({1: p[1][:-1]}), lambda p: p.update({0: b""})])
def test_a_missing_or_damaged_piece_is_noticed(hurt):
    _, codes, _ = both(history(300))
    pieces = {}
    head = saved(codes, pieces)
    hurt(pieces)
    with pytest.raises(CorruptStoreError, match="vector snapshot"):
        CompactVectors.from_bytes(head, pieces.get, lambda _: [])


def test_pieces_of_two_writers_are_not_mixed():
    _, codes, stored = both(history(300))
    pieces = {}
    head = saved(codes, pieces)
    fetch = reader(stored)
    one, two = (CompactVectors.from_bytes(head, pieces.get, fetch) for _ in range(2))
    rows = drawn(4, seed=9)
    one.apply([Change(301, "x", Memory("x", id="x"), rows[0]), Change(302, "y", Memory("y", id="y"), rows[1])])
    two.apply([Change(301, "x", Memory("x", id="x"), rows[0])])
    first, _ = saved(one, pieces), saved(two, pieces)
    with pytest.raises(CorruptStoreError, match="lacks piece"):
        CompactVectors.from_bytes(first, pieces.get, fetch)
    assert len(CompactVectors.from_bytes(two.to_bytes(), pieces.get, fetch)) == len(two)


def test_many_deletions_make_room(monkeypatch):
    _, codes, _ = both(history(300))
    pieces = {}
    saved(codes, pieces)
    codes.apply(Change(400 + n, f"m{n}") for n in range(140))
    assert codes._current.n == len(codes) == len(codes._rows)
    assert set(dict(codes.changed_pieces())) == set(range(-(-len(codes) // 64)))


def embed(texts):
    return [np.random.default_rng(len(text) + sum(map(ord, text))).standard_normal(DIM) for text in texts]


def found(memory):
    return [[(r.id, r.score) for r in memory.search_arm("vector", f"text {n}", k=10)] for n in range(0, 200, 17)]


def test_a_view_keeps_codes_and_opens_from_them(tmp_path, caplog):
    with HybridMemory(tmp_path / "m.db", embedder=embed) as memory:
        memory.add_many(Memory(f"text {n}", id=f"m{n}") for n in range(200))
        first = found(memory)
        memory.forget("m17")
        memory.add("text 34 again", id="m34")
    with HybridMemory(tmp_path / "plain.db", embedder=embed) as plain:
        plain._engine.settings = plain._engine.settings._replace(make_vectors=lambda _: VectorIndex())
        plain.add_many(Memory(f"text {n}", id=f"m{n}") for n in range(200))
        assert found(plain) == first
        plain.forget("m17")
        plain.add("text 34 again", id="m34")
        expected = found(plain)
    with HybridMemory(tmp_path / "m.db", embedder=embed) as memory:
        assert found(memory) == expected
        assert isinstance(memory._engine.search_view(View())._vector, CompactVectors)
        memory.erase("m0")  # deletes the snapshots, which are then saved whole
        found(memory)
        memory.add_many(Memory(f"more {n}", id=f"p{n}") for n in range(20))
        expected = found(memory)
    with HybridMemory(tmp_path / "m.db", embedder=embed) as memory:
        assert found(memory) == expected
    assert "rebuilt" not in caplog.text


def test_an_opened_view_holds_each_id_once(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=embed) as memory:
        memory.add_many(Memory(f"text {n}", id=f"m{n}") for n in range(200))
        found(memory)
        memory._engine.save()
        memory.add("text 200", id="m200")
        expected = found(memory)
    with HybridMemory(tmp_path / "m.db", embedder=embed) as memory:
        assert found(memory) == expected
        view = memory._engine.search_view(View())
        lists = view._entries._ids, view.bm25._state.ids, view._vector._current.ids
        assert all(one is two is three for one, two, three in zip(*(ids[:200] for ids in lists), strict=True))
        assert view._vector._rows == view._entries._rows == view.bm25._row_of


def test_codes_that_cannot_be_read_are_saved_again(tmp_path, caplog):
    with HybridMemory(tmp_path / "m.db", embedder=embed) as memory:
        memory.add_many(Memory(f"text {n}", id=f"m{n}") for n in range(200))
        expected = found(memory)
    with HybridMemory(tmp_path / "m.db", embedder=embed) as memory:
        watermark, head = memory.store.load_snapshot("vectors")
        memory.store.save_snapshot("vectors", watermark, b"of an older version" + head)
        assert found(memory) == expected
    assert "the saved vectors index cannot be read and will be rebuilt" in caplog.text
    caplog.clear()
    with HybridMemory(tmp_path / "m.db", embedder=embed) as memory:
        assert found(memory) == expected
    assert not caplog.records


def test_nothing_of_an_erased_vector_is_saved_again(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=embed) as memory:
        memory.add_many(Memory(f"text {n}", id=f"m{n}") for n in range(200))
        memory.add("a secret", id="id-of-ana")
        found(memory)
        codes = memory._engine.search_view(View())._vector
        secret = codes._current.layer.table[codes._rows["id-of-ana"]].tobytes()
        memory._engine.save()
        saved = b"".join(data for _, data in every_piece(memory))
        assert secret in saved
        assert b"id-of-ana" in saved
        memory.erase("id-of-ana")
        memory.add_many(Memory(f"more {n}", id=f"p{n}") for n in range(20))
        expected = found(memory)
        memory._engine.save()
        saved = b"".join(data for _, data in every_piece(memory))
        assert secret not in saved
        assert b"id-of-ana" not in saved
    with HybridMemory(tmp_path / "m.db", embedder=embed) as memory:
        assert found(memory) == expected


def every_piece(memory):
    """The saved pieces of the vector codes."""
    pieces = [memory.store.load_snapshot(f"vectors/{number}") for number in range(20)]
    return [piece for piece in pieces if piece is not None]


def test_other_dimensions_after_reindex(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=embed) as memory:
        memory.add_many(Memory(f"text {n}", id=f"m{n}") for n in range(100))
        found(memory)
        memory.reindex(embedder=lambda texts: [row[:20] for row in embed(texts)])
        assert memory._engine.search_view(View())._vector.dim == 20
        expected = found(memory)
    with HybridMemory(tmp_path / "m.db", embedder=lambda texts: [row[:20] for row in embed(texts)]) as memory:
        assert found(memory) == expected
