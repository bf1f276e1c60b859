"""VectorIndex: equal to a naive search after any history, with or without a sketch, and never half of an update."""

import sys
import threading
import types
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmem.core.protocols import Change, View
from hybridmem.core.types import Edge, Memory
from hybridmem.embedding.embedder import as_embedder, unit
from hybridmem.errors import ConfigError, EmbeddingError
from hybridmem.indexes.vector import matrix
from hybridmem.indexes.vector.index import VectorIndex
from hybridmem.memory.memory import HybridMemory


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Sketches are made at the first search, not after some."""
    monkeypatch.setattr("hybridmem.indexes.vector.index._SCANS_BEFORE_SKETCH", 0)


START = datetime(2025, 1, 1, tzinfo=timezone.utc)


def put(seq, key, vector, day=0, **kwargs):
    moment = None if day is None else START + timedelta(days=day)
    return Change(seq, key, Memory("text", id=key, updated_at=moment), vector, **kwargs)


def gone(seq, key):
    return Change(seq, key, None)


def filled(rows, **kwargs):
    index = VectorIndex(**kwargs)
    index.apply(put(number + 1, f"m{number}", row) for number, row in enumerate(rows))
    return index


def clustered(n, dim=48, seed=0):
    """Vectors as texts have them: near a few directions, so that a turned prefix carries most of their length."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((6, dim))
    return unit(centres[random.integers(0, 6, n)] + 0.35 * random.standard_normal((n, dim)))


def scattered(n, dim=48, seed=0):
    return unit(np.random.default_rng(seed).standard_normal((n, dim)))


def naive(rows, question, k, allowed=None):
    """(id, score) by definition: rows is {id: (vector, updated)}."""
    question = unit(question).astype(float)
    scored = [
        (-float(np.clip((unit(vector).astype(float) * question).sum(), -1, 1)), -day, key)
        for key, (vector, day) in rows.items()
        if allowed is None or key in allowed
    ]
    return [(key, -score) for score, _, key in sorted(scored)[:k]]


# --- the laws


vectors = st.lists(st.integers(-2, 2), min_size=3, max_size=3)  # few values: plenty of exact ties
keys = st.sampled_from([f"m{number}" for number in range(8)])
steps = st.one_of(
    st.tuples(st.just("put"), keys, vectors, st.integers(0, 3)),
    st.tuples(st.just("lost"), keys, st.none(), st.integers(0, 3)),
    st.tuples(st.just("touch"), keys, st.none(), st.integers(0, 3)),
    st.tuples(st.just("gone"), keys, st.none(), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(steps, max_size=5), max_size=8),
    vectors,
    st.integers(1, 9),
    st.none() | st.frozensets(keys),
    st.booleans(),
)
def test_any_history_gives_what_a_naive_search_gives(batches, question, k, allowed, compact):
    index, rows, seq = VectorIndex(compact_from=0 if compact else None), {}, 0
    for batch in batches:
        changes = []
        for kind, key, vector, day in batch:
            seq += 1
            if kind == "put":
                rows[key] = (vector, day)
                changes.append(put(seq, key, np.array(vector, np.float32), day))
            elif kind == "touch":
                if key in rows:
                    rows[key] = (rows[key][0], day)
                changes.append(put(seq, key, None, day, text_changed=False))
            else:
                rows.pop(key, None)
                changes.append(gone(seq, key) if kind == "gone" else put(seq, key, None, day))
        index.apply(changes)
        assert index.watermark == seq
    assert len(index) == len(rows)
    found = index.search(question, k=k, allowed=allowed)
    expected = naive(rows, question, k, allowed)
    assert found.ids == [key for key, _ in expected]
    assert found.scores == pytest.approx([score for _, score in expected], abs=1e-12)
    assert all(-1.0 <= score <= 1.0 for score in found.scores)


CLUSTERED, SCATTERED = clustered(3000), scattered(3000)


@pytest.mark.parametrize("rows", [CLUSTERED, SCATTERED], ids=["clustered", "scattered"])
@pytest.mark.parametrize("simd", ["numkong", "simsimd", "none"])
@pytest.mark.parametrize("k", [1, 10, 100])
def test_a_sketch_gives_what_the_whole_matrix_gives(rows, simd, k, monkeypatch):
    with_kernel(monkeypatch, simd)
    plain, compact = filled(rows, compact_from=None), filled(rows, compact_from=0)
    half = frozenset(f"m{number}" for number in range(0, 3000, 2))
    asked = [*scattered(4, seed=1), *clustered(8, seed=2), *rows[:4]]
    for allowed in (None, half):
        whole = [plain.search(question, k=k, allowed=allowed) for question in asked]
        short = [compact.search(question, k=k, allowed=allowed) for question in asked]
        assert short == whole
    made = compact._current[1]
    assert (made is None) is (simd == "none" and rows is SCATTERED)
    assert made is None or (made.short is None, made.whole is None) == (simd != "none", simd == "none")


def plain_cdist(query, rows, metric):
    """What simsimd.cdist gives, slowly."""
    assert metric == "dot"
    return query.astype(float) @ rows.astype(float).T


def with_kernel(monkeypatch, simd):
    kernels = {
        "numkong": matrix.kernel(),
        "simsimd": matrix.Kernel(lambda query, rows: plain_cdist(query, rows, "dot")),
        "none": None,
    }
    monkeypatch.setattr(matrix, "kernel", lambda: kernels[simd])


@pytest.mark.parametrize("simd", ["numkong", "none"])
def test_a_sketch_follows_adds_updates_and_removals(simd, monkeypatch):
    with_kernel(monkeypatch, simd)
    rows = clustered(9000)
    compact, plain = filled(rows[:2000], compact_from=0), filled(rows[:2000], compact_from=None)
    compact.search(rows[0], k=1)
    assert (compact._current[1].short is None) is (simd == "numkong")
    for index in (compact, plain):
        index.apply(put(number, f"m{number}", rows[number], 5) for number in range(2000, 3500))
        for number in range(0, 3500, 7):
            index.remove(f"m{number}")
        index.apply(put(9000 + number, f"m{number}", rows[-number]) for number in range(1, 400))
        index.apply(put(20000 + number, f"n{number}", rows[number]) for number in range(9000))
    for question in clustered(20, seed=4):
        assert compact.search(question, k=10) == plain.search(question, k=10)


def test_a_sketch_is_made_only_when_it_will_pay(monkeypatch):
    monkeypatch.setattr("hybridmem.indexes.vector.index._SCANS_BEFORE_SKETCH", 2)
    rows = clustered(600)
    index = filled(rows, compact_from=0)
    for expected in (False, False, True):
        assert index.search(rows[0], k=1).ids == ["m0"]
        assert (index._current[1] is not None) is expected
    index.apply(put(700 + number, f"n{number}", row) for number, row in enumerate(rows))
    assert index._current[1] is None  # the rows have doubled: it is made anew, after a while
    hopeless = filled(scattered(600), compact_from=0)
    with_kernel(monkeypatch, "none")
    tries = []
    monkeypatch.setattr("hybridmem.indexes.vector.index.make", lambda *_, **__: tries.append(1))
    for _ in range(9):
        hopeless.search(rows[0], k=1)
    assert len(tries) == 1


@pytest.mark.parametrize(("simd", "made"), [("numkong", True), ("none", False)])
def test_bytes_are_read_first_from_8_mb_on_and_turned_rows_from_32(simd, made, monkeypatch):
    with_kernel(monkeypatch, simd)
    monkeypatch.setattr("hybridmem.indexes.vector.index.kernel", matrix.kernel)
    for count, expected in ((4095, False), (4096, made), (16384, True)):
        rows = clustered(count, dim=512)  # 512 numbers of 4 bytes: 2 kB a row
        index = filled(rows)
        assert index.search(rows[7], k=1).ids == ["m7"]
        assert (index._current[1] is not None) is expected
    with pytest.raises(ConfigError, match="compact_from = 'soon' is not allowed: at least 0, or None"):
        VectorIndex(compact_from="soon")


def test_rows_are_loaded_at_once():
    rows = scattered(50)
    ids, times = [f"m{number}" for number in range(50)], [float(number) for number in range(50)]
    expected = filled(rows).search(rows[7], k=3)
    for scale in (1, 3):
        index = VectorIndex()
        parts = (slice(0, 20), slice(20, 50))
        index.load(((ids[p], times[p], rows[p] * scale) for p in parts), size=30, watermark=77)
        assert (len(index), index.watermark) == (50, 77)
        assert index.search(rows[7], k=3).ids == expected.ids
    assert index.score(rows[7], ["m7"]) == pytest.approx([1.0])


def test_a_matryoshka_prefix_is_searched_first():
    """Vectors whose first 16 numbers carry most of their length, as a Matryoshka model makes them."""
    random = np.random.default_rng(0)
    weight = np.where(np.arange(64) < 16, 1.0, 0.25)
    rows = unit(random.standard_normal((3000, 64)) * weight)
    asked = unit(random.standard_normal((20, 64)) * weight)
    short, plain = filled(rows, prefix=16, compact_from=0), filled(rows, compact_from=None)
    recalls = [len({*short.search(q, k=10).ids} & {*plain.search(q, k=10).ids}) / 10 for q in asked]
    assert short._current[1].short.table.shape[1] == 16
    assert np.mean(recalls) >= 0.98
    assert short.search(asked[0], k=1).scores == plain.search(asked[0], k=1).scores


def test_ever_more_of_the_same_score_are_still_ranked():
    """More candidates than are rescored at once, all alike: the newest come first."""
    index = VectorIndex()
    index.apply(put(number + 1, f"m{number:05}", [1.0, 0.0], number % 5) for number in range(9000))
    assert index.search([1.0, 0.0], k=2).ids == ["m00004", "m00009"]


def test_a_memory_passes_its_embedders_prefix_on(tmp_path):
    embedder = as_embedder(lambda texts: [[float(len(text)), 1.0, 2.0] for text in texts], prefix=2)
    with HybridMemory(tmp_path / "memory.db", embedder=embedder) as memory:
        memory.add("some text")
        assert memory.search_arm("vector", "a question", k=1)[0].text == "some text"
        assert memory._engine.search_view(View(""))._vector._prefix == 2


def test_a_sketch_of_equal_vectors_keeps_the_order_of_ties():
    index = VectorIndex(compact_from=0)
    index.apply(put(number + 1, f"m{number:04}", [1.0, 2.0, 2.0], number % 3) for number in range(2000))
    found = index.search([1.0, 2.0, 2.0], k=4)
    assert found.ids == ["m0002", "m0005", "m0008", "m0011"]
    assert found.scores == pytest.approx([1.0] * 4)


def test_the_kernel_falls_back_in_order(monkeypatch):
    rows, query = np.arange(12, dtype=np.int8).reshape(4, 3), np.array([[1, -1, 2]], np.int8)
    expected = (rows.astype(int) @ query[0].astype(int)).tolist()
    simsimd = types.ModuleType("simsimd")
    simsimd.cdist = plain_cdist
    for modules, there in (({}, True), ({"numkong": None}, True), ({"numkong": None, "simsimd": None}, False)):
        with monkeypatch.context() as patch:
            for name, module in {"simsimd": simsimd, **modules}.items():
                patch.setitem(sys.modules, name, module)
            matrix.kernel.cache_clear()
            found = matrix.kernel()
        assert (found is not None) is there
        if found is not None:
            assert found.dots(query, rows).tolist() == expected
    matrix.kernel.cache_clear()


@pytest.mark.parametrize("answer", [lambda query, rows, metric: [[1.0, 2.0, 3.0]], None])
def test_a_library_that_counts_wrong_is_not_used(monkeypatch, answer):
    broken = types.ModuleType("simsimd")
    if answer is not None:
        broken.cdist = answer
    monkeypatch.setitem(sys.modules, "numkong", None)
    monkeypatch.setitem(sys.modules, "simsimd", broken)
    matrix.kernel.cache_clear()
    assert matrix.kernel() is None
    matrix.kernel.cache_clear()


# --- allowed, score, vectors


def test_allowed_ids_are_the_only_ones_and_k_is_filled():
    rows = scattered(2000)
    index = filled(rows)
    allowed = frozenset(f"m{number}" for number in range(0, 2000, 3)) | {"unknown"}
    for question in scattered(5, seed=3):
        expected = naive({f"m{n}": (row, 0) for n, row in enumerate(rows)}, question, 10, allowed)
        for group in (allowed, set(allowed), dict.fromkeys(allowed).keys()):
            assert index.search(question, k=10, allowed=group).ids == [key for key, _ in expected]
    assert index.search(rows[0], k=5, allowed=frozenset()).ids == []
    assert index.search(rows[0], k=5, allowed=frozenset({"unknown"})).ids == []
    everything = frozenset(f"m{number}" for number in range(2500))
    assert index.search(rows[0], k=5, allowed=everything) == index.search(rows[0], k=5)


def test_a_remembered_set_of_allowed_ids_follows_changes():
    index = filled([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    allowed = frozenset({"m0", "m1", "new"})
    assert index.search([1.0, 0.0], k=3, allowed=allowed).ids == ["m0", "m1"]
    index.add("new", [1.0, 0.1])
    index.remove("m0")
    assert index.search([1.0, 0.0], k=3, allowed=allowed).ids == ["new", "m1"]


def test_score_and_vectors_of_given_ids():
    index = filled([[3.0, 4.0], [0.0, 2.0]])
    assert index.score([1.0, 0.0], ["m1", "none", "m0"]) == pytest.approx([0.0, None, 3 / 5])
    assert index.score([1.0, 0.0], ["none"]) == [None]
    assert index.score([1.0, 0.0], []) == []
    one, none = index.vectors(["m0", "none"])
    assert one.tolist() == pytest.approx([3 / 5, 4 / 5])
    assert none is None
    assert {key: row.tolist() for key, row in index.items()}["m1"] == [0.0, 1.0]
    assert ("m0" in index, "none" in index) == (True, False)


def test_a_score_is_the_same_at_every_position_of_the_vector():
    rows = scattered(1000)
    index = filled([*rows, *rows])
    found = index.search(rows[3], k=6)
    assert found.scores[0::2] == found.scores[1::2]
    assert index.score(rows[3], found.ids) == found.scores


# --- small things


def test_an_empty_index_answers_nothing():
    index = VectorIndex()
    assert index.search([1.0, 2.0], k=3).ids == []
    assert (len(index), index.dim, index.watermark) == (0, None, 0)
    assert index.remove("m0") is False
    index.apply([])


def test_zero_vectors_have_cosine_zero():
    index = filled([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert index.search([2.0, 0.0], k=3) == (["m1", "m0", "m2"], [1.0, 0.0, -1.0])
    assert index.search([0.0, 0.0], k=1).scores == [0.0]


def test_edges_pass_by_but_count():
    index = VectorIndex()
    index.apply([Change(7, "", edge=Edge("a", "b"))])
    assert (index.watermark, len(index)) == (7, 0)


def test_many_removals_make_room():
    index = filled(scattered(3000))
    for number in range(2000):
        index.remove(f"m{number}")
    assert index._current[0].n < 2500
    assert len(index) == 1000
    assert index.search(scattered(3000)[2500], k=1).ids == ["m2500"]


@pytest.mark.parametrize(
    "kwargs", [{"dim": 0}, {"prefix": 0}, {"compact_from": -1}], ids=["dim", "prefix", "compact_from"]
)
def test_bad_settings_are_named(kwargs):
    with pytest.raises(ConfigError, match=next(iter(kwargs))):
        VectorIndex(**kwargs)


def test_k_must_be_positive():
    with pytest.raises(ConfigError, match="k = 0 is not allowed: a whole number from 1 up"):
        VectorIndex().search([1.0], k=0)


def test_wrong_vectors_are_refused_and_change_nothing():
    index = filled([[1.0, 0.0]])
    before = dict(index.items()), index.watermark
    with pytest.raises(EmbeddingError, match="'bad' has dimension 3, expected 2"):
        index.apply([put(2, "good", [1.0, 1.0]), put(3, "bad", [1.0, 0.0, 0.0])])
    with pytest.raises(EmbeddingError, match="'bad' has a value that is not finite"):
        index.add("bad", [float("nan"), 0.0])
    after = dict(index.items()), index.watermark
    assert [(key, row.tolist()) for key, row in after[0].items()] == [
        (key, row.tolist()) for key, row in before[0].items()
    ]
    assert after[1] == before[1]
    for query, says in (
        ([1.0], r"shape \(1,\)"),
        ([[1.0, 0.0]], r"shape \(1, 2\)"),
        ([float("inf"), 0.0], "not finite"),
    ):
        with pytest.raises(EmbeddingError, match=says):
            index.search(query, k=1)


# --- readers and writers


def test_readers_see_whole_batches_only():
    """Each batch moves every vector and its time to the next generation: a mixed answer would be half an update."""
    index, wide, stop, problems = VectorIndex(), 40, threading.Event(), []
    everyone = {f"m{number}" for number in range(wide)}

    def batch(generation):
        angle = generation / 100
        return [put(generation * wide + n, f"m{n}", [np.cos(angle), np.sin(angle)], generation) for n in range(wide)]

    def read(allowed):
        while not stop.is_set():
            found = index.search([1.0, 0.0], k=wide, allowed=allowed)
            if len(found.ids) != wide or len(set(found.scores)) != 1:
                problems.append(found)
                return

    index.apply(batch(1))
    readers = [threading.Thread(target=read, args=(group,)) for group in (None, everyone, frozenset(everyone))]
    for reader in readers:
        reader.start()
    for generation in range(2, 150):
        index.apply(batch(generation))
    stop.set()
    for reader in readers:
        reader.join(30)
    assert not problems
    assert len(index) == wide
