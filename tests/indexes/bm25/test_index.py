"""BM25Index: the exact formula at every moment, whatever was added, changed, removed, merged or reloaded."""

import json
import math
import random
import subprocess
import sys
import threading
from collections import Counter

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hybridmem.core.protocols import Change
from hybridmem.core.types import Hits, Memory
from hybridmem.errors import ConfigError, CorruptStoreError, MissingExtraError
from hybridmem.indexes.bm25 import scoring, state
from hybridmem.indexes.bm25.compiled import NumbaKernels
from hybridmem.indexes.bm25.documents import Document, as_document, stamp_of, weigh
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.bm25.postings import build, merge
from hybridmem.indexes.bm25.scoring import Kernels
from hybridmem.text.analyzer import Analyzer


def naive(documents, query, *, k1=1.2, b=0.75, analyzer=None, weights=None):
    """The formula as it is written down, for every document that holds a term: {id: score}."""
    analyzer = analyzer or Analyzer()
    weighed = {}
    for name, fields in documents.items():
        more = {} if weights is None else {"weights": weights}
        weighed[name] = weigh({"text": fields} if isinstance(fields, str) else fields, analyzer=analyzer, **more)
    count = len(weighed)
    average = sum(length for _, length in weighed.values()) / count if count else 0.0
    terms = Counter(analyzer.query(query) if isinstance(analyzer, Analyzer) else analyzer(query))
    scores = {}
    for name, (frequencies, length) in weighed.items():
        for term, times in terms.items():
            if term in frequencies:
                n = sum(term in found for found, _ in weighed.values())
                f = frequencies[term]
                long = length / average if average else 0.0
                part = math.log(1 + (count - n + 0.5) / (n + 0.5)) * f * (k1 + 1) / (f + k1 * (1 - b + b * long))
                scores[name] = scores.get(name, 0.0) + times * part
    return scores


def check(index, documents, query, *, k=10, allowed=None, **settings):
    wanted = naive(documents, query, **settings)
    if allowed is not None:
        wanted = {name: score for name, score in wanted.items() if name in allowed}
    hits = index.search(query, k=k, allowed=allowed)
    best = sorted(wanted.values(), reverse=True)[:k]
    assert hits.scores == pytest.approx(best, abs=1e-9, rel=1e-12)
    assert hits.scores == pytest.approx([wanted[name] for name in hits.ids], abs=1e-9, rel=1e-12)
    assert index.score(query, hits.ids) == hits.scores
    assert len(set(hits.ids)) == len(hits.ids)


# --- the formula, by hand


def test_the_formula_in_numbers():
    index = BM25Index(str.split)
    index.add_many([("a", "x x y"), ("b", "x z"), ("c", "z z z z")])
    average = (3 + 2 + 4) / 3
    idf_x = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    idf_y = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    a = idf_x * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / average)) + idf_y * 2.2 / (
        1 + 1.2 * (0.25 + 0.75 * 3 / average)
    )
    b = idf_x * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / average))
    hits = index.search("x y", k=5)
    assert hits.ids == ["a", "b"]
    assert hits.scores == pytest.approx([a, b], abs=1e-12)
    assert index.idf("x") == pytest.approx(idf_x)
    assert index.idf("unknown") == pytest.approx(math.log(1 + 3.5 / 0.5))
    assert index.average_length == 3.0
    assert index.score("x y", ["b", "nobody", "a", "c"]) == pytest.approx([b, 0.0, a, 0.0])


def test_one_document_with_a_term_that_all_have_still_scores():
    index = BM25Index()
    index.add("only", "Lisbon")
    assert index.search("lisbon", k=1).scores == pytest.approx([math.log(1 + 0.5 / 1.5) * 2.2 / (1 + 1.2)])


def test_a_term_said_twice_counts_twice():
    index = BM25Index()
    index.add_many([("a", "tea"), ("b", "coffee")])
    assert index.search("tea tea", k=1).scores[0] == pytest.approx(2 * index.search("tea", k=1).scores[0])


def test_field_weights_multiply_the_frequency():
    index = BM25Index()
    index.add("m", "lisbon", title="lisbon", tags=("lisbon", "trip"), predicate="lisbon")
    index.add("other", "porto")
    frequency = 1.0 + 2.0 + 1.0 + 0.5
    length = 1.0 + 2.0 + 2.0 + 0.5
    average = (length + 1) / 2
    idf = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    wanted = idf * frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * length / average))
    assert index.search("lisbon", k=1).scores == pytest.approx([wanted])
    bare = BM25Index(weights={"text": 1.0})
    bare.add("m", "porto", title="lisbon")
    assert bare.search("lisbon", k=1) == Hits([], [])


def test_stop_words_can_be_found_but_do_not_lengthen():
    index = BM25Index()
    index.add("a", "who is the one")
    index.add("b", "one")
    assert index.average_length == 1.0
    assert index.search("who is the", k=5).ids == ["a"]


def test_coverage_is_the_share_of_the_querys_information():
    index = BM25Index(str.split)
    index.add_many([("a", "x y"), ("b", "x"), ("c", "z")])
    x, y, unknown = (math.log(1 + (3 - n + 0.5) / (n + 0.5)) for n in (2, 1, 0))
    assert index.coverage("x y q", ["a", "b", "c", "nobody"]) == pytest.approx(
        [(x + y) / (x + y + unknown), x / (x + y + unknown), 0.0, 0.0]
    )
    assert index.coverage("", ["a"]) == [0.0]
    index.remove("a")
    assert index.coverage("x", ["a", "b"]) == [0.0, 1.0]


# --- oracles


def test_same_ranking_as_bm25s():
    rng = random.Random(5)
    words = [f"w{i}" for i in range(300)]
    corpus = [rng.choices(words, weights=[1 / (i + 1) for i in range(300)], k=rng.randint(3, 30)) for _ in range(500)]
    peer = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    peer.index(corpus, show_progress=False)
    index = BM25Index(str.split)
    index.add_many((str(i), " ".join(terms)) for i, terms in enumerate(corpus))
    for _ in range(40):
        query = rng.choices(words[:100], k=5)
        query = list(dict.fromkeys(query))
        found = peer.retrieve([query], k=10, show_progress=False)
        hits = index.search(query, k=10)
        assert hits.scores == pytest.approx([2.2 * float(s) for s in found.scores[0]], rel=1e-5)
        places = dict(zip(hits.ids, hits.scores, strict=True))
        for number, score in zip(found.documents[0], found.scores[0], strict=True):
            assert places.get(str(number), hits.scores[-1]) == pytest.approx(2.2 * float(score), rel=1e-5)


SOME = ["a", "b", "c", "d", "e", "f", "g", "the", "who", "lisbon", "walked", "E0427", "18.12.1"]
WORDS = st.lists(st.sampled_from(SOME), max_size=8).map(" ".join)
NAMES = st.sampled_from([f"m{i}" for i in range(12)])
FIELDS = st.fixed_dictionaries({"text": WORDS}, optional={"title": WORDS, "tags": WORDS, "predicate": WORDS})


class Interleaved(RuleBasedStateMachine):
    """Any interleaving of writes, merges and reloads scores like the naive formula over what is there."""

    @initialize(weights=st.sampled_from([None, {"text": 1.0, "title": 0.3}]))
    def start(self, weights):
        self.weights = weights
        self.index = BM25Index(weights=weights)
        self.documents = {}
        self.stamps = {}

    @rule(name=NAMES, fields=FIELDS, stamp=st.integers(0, 3))
    def add(self, name, fields, stamp):
        self.index.add(name, updated_at=stamp, **fields)
        self.documents[name], self.stamps[name] = fields, float(stamp)

    @rule(batch=st.dictionaries(NAMES, FIELDS, max_size=9))
    def add_many(self, batch):
        self.index.add_many(Document(name, fields, 0.0) for name, fields in batch.items())
        self.documents.update(batch)
        self.stamps.update(dict.fromkeys(batch, 0.0))

    @rule(name=NAMES)
    def remove(self, name):
        assert self.index.remove(name) == (self.documents.pop(name, None) is not None)

    @rule()
    def reload(self):
        self.index = BM25Index.from_bytes(self.index.to_bytes())

    @rule(query=WORDS, k=st.integers(1, 8), data=st.data())
    def search(self, query, k, data):
        allowed = data.draw(st.none() | st.frozensets(NAMES))
        check(self.index, self.documents, query, k=k, allowed=allowed, weights=self.index.weights)
        hits = self.index.search(query, k=k, allowed=allowed)
        keys = [(-score, -self.stamps[name], name) for name, score in zip(hits.ids, hits.scores, strict=True)]
        assert keys == sorted(keys)

    @invariant()
    def counted(self):
        if hasattr(self, "index"):
            assert len(self.index) == len(self.documents)
            assert sorted(self.index.ids) == sorted(self.documents)


@pytest.fixture
def small_limits(monkeypatch):
    """Merge and compact after a few rows already."""
    monkeypatch.setattr(state, "_TAIL", 4)
    monkeypatch.setattr(state, "_BULK", 3)


@pytest.mark.usefixtures("small_limits")
def test_any_interleaving_of_writes_scores_exactly():
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Interleaved, settings=settings(max_examples=40, stateful_step_count=25))


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("seed", range(6))
def test_long_lives_score_exactly(seed):
    """Many words, most of them in few texts: terms that vanish from a segment, and come back."""
    rng = random.Random(seed)

    def text():
        return " ".join(f"w{int(rng.expovariate(0.1))}" for _ in range(rng.randint(0, 12)))

    index, documents = BM25Index(b=rng.choice((0.75, 1.0))), {}
    for _ in range(250):
        dice = rng.random()
        name = f"d{rng.randrange(60)}"
        if dice < 0.45:
            documents[name] = text()
            index.add(name, documents[name])
        elif dice < 0.75:
            assert index.remove(name) == (documents.pop(name, None) is not None)
        elif dice < 0.8:
            batch = {f"d{rng.randrange(60)}": text() for _ in range(rng.randint(1, 9))}
            index.add_many(batch.items())
            documents.update(batch)
        else:
            allowed = frozenset(rng.sample(sorted(documents), len(documents) // 2)) if dice > 0.93 else None
            check(index, documents, text(), k=rng.choice((1, 3, 100)), allowed=allowed, b=index.b)


def zipf(count, *, words=2000, seed=0, length=14):
    rng = np.random.default_rng(seed)
    odds = 1 / np.arange(1, words + 1)
    lengths = rng.integers(3, length, count)
    flat = rng.choice(words, lengths.sum(), p=odds / odds.sum())
    return [" ".join(f"w{n}" for n in part) for part in np.split(flat, np.cumsum(lengths)[:-1])]


@pytest.fixture(scope="module")
def kernels():
    return [Kernels(), NumbaKernels()]


def use(index, kernel):
    index._kernels = kernel


@pytest.mark.parametrize("which", [0, 1])
def test_skipping_loses_nothing(kernels, which):
    texts = zipf(3000)
    documents = {str(i): text for i, text in enumerate(texts)}
    index = BM25Index(str.split)
    index.add_many(list(documents.items())[:2500])
    for name, text in list(documents.items())[2500:]:
        index.add(name, text)
    for name in list(documents)[::7]:
        index.remove(name)
        del documents[name]
    use(index, kernels[which])
    frequencies = {name: Counter(text.split()) for name, text in documents.items()}
    lengths = {name: found.total() for name, found in frequencies.items()}
    average = sum(lengths.values()) / len(lengths)
    rng = random.Random(1)
    for _ in range(25):
        query = rng.choices([f"w{int(rng.paretovariate(0.6)) % 2000}" for _ in range(50)], k=rng.randint(1, 7))
        held = {t: sum(t in found for found in frequencies.values()) for t in query}
        wanted = {}
        for name, found in frequencies.items():
            parts = [
                math.log(1 + (len(lengths) - held[t] + 0.5) / (held[t] + 0.5))
                * found[t] * 2.2 / (found[t] + 1.2 * (0.25 + 0.75 * lengths[name] / average))
                for t in query if t in found
            ]  # fmt: skip
            if parts:
                wanted[name] = sum(parts)
        for k in (1, 10, 400):
            hits = index.search(query, k=k)
            assert hits.scores == pytest.approx(sorted(wanted.values(), reverse=True)[:k], abs=1e-9)
            assert hits.scores == pytest.approx([wanted[name] for name in hits.ids], abs=1e-9)
        allowed = frozenset(list(documents)[:: rng.choice((2, 50))])
        hits = index.search(query, k=10, allowed=allowed)
        best = sorted((score for name, score in wanted.items() if name in allowed), reverse=True)[:10]
        assert hits.scores == pytest.approx(best, abs=1e-9)
        assert allowed.issuperset(hits.ids)


def test_compiled_loops_give_the_same_bits(kernels):
    texts = zipf(4000, seed=3)
    index = BM25Index(str.split)
    index.add_many((str(i), text) for i, text in enumerate(texts[:3800]))
    for i in range(3800, 4000):
        index.add(str(i), texts[i])
    index.remove("17")
    rng = random.Random(2)
    for _ in range(150):
        query = rng.choices(rng.choice(texts).split(), k=6)
        answers = []
        for kernel in kernels:
            use(index, kernel)
            answers.append((index.search(query, k=10), index.score(query, [str(i) for i in range(0, 4000, 37)])))
        assert answers[0] == answers[1]


def test_many_equal_scores_are_cut_by_time_and_id(kernels):
    index = BM25Index()
    index.add_many(Document(f"m{i:04}", {"text": "lisbon"}, float(i % 3)) for i in range(2000))
    index.add("best", "lisbon lisbon")
    for kernel in kernels:
        use(index, kernel)
        assert index.search("lisbon", k=4).ids == ["best", "m0002", "m0005", "m0008"]
        assert len(index.search("lisbon", k=5000).ids) == 2001


# --- merges, and what a writer leaves behind


def test_segments_stay_few_and_the_dead_are_thrown_out(monkeypatch):
    monkeypatch.setattr(state, "_TAIL", 8)
    index = BM25Index(str.split)
    for i in range(300):
        index.add(f"m{i}", f"a b{i % 7}")
    assert len(index._state.segments) <= 7
    assert index._state.size - index._state.tail.start < 8
    epoch = index._state.epoch
    for i in range(250):
        index.remove(f"m{i}")
    assert index._state.epoch > epoch
    assert index._state.size < 120
    documents = {f"m{i}": f"a b{i % 7}" for i in range(250, 300)}
    check(index, documents, "a b3", analyzer=str.split)
    assert index.ids == list(documents)


def test_a_merge_of_segments_is_the_segment_of_all():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 60).astype(float)
    terms, rows = rng.integers(0, 12, 400), np.sort(rng.integers(0, 60, 400))
    whole = build(terms, rows, None, lengths)
    cut = int(np.searchsorted(rows, 30))
    parts = [build(terms[:cut], rows[:cut], None, lengths), build(terms[cut:], rows[cut:], None, lengths)]
    merged = merge(parts)
    for name in ("terms", "starts", "rows", "most", "shortest"):
        assert np.array_equal(getattr(whole, name), getattr(merged, name)), name
    assert np.array_equal(whole.frequencies[whole.codes], merged.frequencies[merged.codes])
    alive = np.ones(60, bool)
    alive[::2] = False
    assert set(merge(parts, alive=alive).rows) == set(rows[rows % 2 == 1])


def test_odd_weights_and_many_values_are_exact():
    rng = np.random.default_rng(1)
    rows = np.arange(500, dtype=np.int64)
    weights = rng.random(500)
    segment = build(np.zeros(500, np.int64), rows, weights, rng.random(500))
    assert np.array_equal(segment.frequencies[segment.codes], weights)
    empty = build(np.zeros(0, np.int64), np.zeros(0, np.int64), None, np.zeros(0))
    assert len(empty) == 0
    assert empty.find([3]) == [(0, 0, 0.0, 0.0)]


def test_a_failed_write_leaves_nothing_behind():
    def fussy(text):
        if text == "bad":
            raise ValueError(text)
        return text.split()

    index = BM25Index(fussy)
    index.add("a", "x y")
    with pytest.raises(ValueError):
        index.add_many([("b", "x"), ("c", "bad")])
    with pytest.raises(ValueError):
        index.add_many([(f"b{i}", "x") for i in range(100)] + [("c", "bad")])
    assert index.ids == ["a"]
    index.add("d", "y z")
    check(index, {"a": "x y", "d": "y z"}, "x y z", analyzer=str.split)


def test_an_interrupted_write_leaves_nothing_behind(monkeypatch):
    index = BM25Index(str.split)
    index.add("a", "x y")
    tail = type(index._state.tail)
    real = tail.add

    def interrupted(self, row, frequencies):
        real(self, row, frequencies)
        raise KeyboardInterrupt

    monkeypatch.setattr(tail, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index.add("b", "x x x")
    monkeypatch.undo()
    index.add("c", "z")
    check(index, {"a": "x y", "c": "z"}, "x y z", analyzer=str.split)


def test_the_average_does_not_depend_on_the_order_of_writes():
    weights = {"text": 0.1, "title": 0.7}
    texts = [("a", "x y z"), ("b", "x"), ("c", "x x x x x"), ("d", "y y")]
    one, two = BM25Index(str.split, weights=weights), BM25Index(str.split, weights=weights)
    for name, text in texts:
        one.add(name, text, title=text)
    for name, text in [*reversed(texts), ("e", "z z z")]:
        two.add(name, text, title=text)
    two.remove("e")
    assert one.search("x y", k=9) == two.search("x y", k=9)


# --- following a store


def test_a_batch_is_taken_as_a_whole():
    index = BM25Index()
    index.apply([Change(1, "a", Memory("tea")), Change(2, "b", Memory("coffee"))])
    index.apply([Change(3, "a", None), Change(4, "a", Memory("milk"), text_changed=False), Change(5, "b", None)])
    assert index.ids == ["a"]
    assert index.search("milk", k=2).ids == ["a"]
    assert index.watermark == 5
    index.watermark = 9
    assert index.watermark == 9
    index.apply([])
    assert index.watermark == 9
    index.clear()
    assert (len(index), index.watermark, index.search("milk", k=1)) == (0, 0, Hits([], []))


def test_documents_come_in_several_shapes():
    stamp = stamp_of(Memory("x").updated_at)
    assert stamp == -math.inf
    memory = Memory("text", id="m", title="title", tags=("a", "b"), subject="never", entities=("never",))
    assert as_document(memory) == Document("m", {"text": "text", "title": "title", "tags": "a b"}, stamp)
    assert as_document(("m", "text")) == Document("m", {"text": "text"})
    index = BM25Index()
    index.add_many([memory, ("n", "other"), Document("o", {"text": "third"})])
    assert index.search("never", k=3).ids == []
    assert index.remove_many(["m", "n", "n", "zz"]) == 2


# --- keeping


def test_save_and_load(tmp_path):
    index = BM25Index(k1=1.5, b=0.4, weights={"text": 1.0, "title": 3.0})
    index.add_many((f"m{i}\ud800", text) for i, text in enumerate(zipf(300)))
    index.add("new", "Lisbon w1", title="w2", updated_at=5)
    index.remove("m7\ud800")
    index.watermark = 42
    path = tmp_path / "words.bm25"
    index.save(path)
    again = BM25Index.load(path)
    assert (again.k1, again.b, again.weights, again.watermark) == (1.5, 0.4, {"text": 1.0, "title": 3.0}, 42)
    assert again.analyzer == index.analyzer
    for query in ("w1 w2 lisbon", "w7", "w0 w9 w11"):
        assert again.search(query, k=20) == index.search(query, k=20)
    again.add("newer", "Lisbon")
    assert set(again.search("lisbon", k=5).ids) == {"new", "newer"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["words.bm25"]


def test_damage_is_reported_and_never_half_loaded(tmp_path):
    index = BM25Index()
    index.add_many((f"m{i}", text) for i, text in enumerate(zipf(40)))
    good = index.to_bytes()
    rng = random.Random(0)
    for place in [0, 5, 17, 20, 30, 100, len(good) // 2, len(good) - 1] + [
        rng.randrange(len(good)) for _ in range(150)
    ]:
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        with pytest.raises(CorruptStoreError):
            BM25Index.from_bytes(bytes(bad))
    for size in [0, 3, 17, 25, 60, len(good) - 1]:
        with pytest.raises(CorruptStoreError):
            BM25Index.from_bytes(good[:size])
    path = tmp_path / "words.bm25"
    path.write_bytes(good[:-7])
    with pytest.raises(CorruptStoreError, match="checksum"):
        BM25Index.load(path)


def test_the_stored_analyzer_must_fit():
    index = BM25Index()
    index.add("a", "walked")
    blob = index.to_bytes()
    with pytest.raises(ConfigError, match="rebuild"):
        BM25Index.from_bytes(blob, analyzer=Analyzer(stem=False))
    assert BM25Index.from_bytes(blob, analyzer=Analyzer()).search("walks", k=1).ids == ["a"]
    own = BM25Index(str.split)
    own.add("a", "walked")
    with pytest.raises(ConfigError, match=r"str\.split"):
        BM25Index.from_bytes(own.to_bytes())
    assert BM25Index.from_bytes(own.to_bytes(), analyzer=str.split).search("walked", k=1).ids == ["a"]
    old = blob.replace(b'"version": 2', b'"version": 7')
    with pytest.raises(CorruptStoreError):
        BM25Index.from_bytes(old)


def test_an_index_of_another_analyzer_version_is_to_be_rebuilt(monkeypatch):
    blob = BM25Index().to_bytes()
    monkeypatch.setattr("hybridmem.text.analyzer._VERSION", 3)
    with pytest.raises(CorruptStoreError, match="incompatible version; rebuild it"):
        BM25Index.from_bytes(blob)


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    index = BM25Index()
    path = tmp_path / "words.bm25"
    index.save(path)
    before = path.read_bytes()
    index.add("a", "x")

    def full(_handle):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        index.save(path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


# --- other constants, settings, acceleration


def test_other_constants_over_the_same_documents():
    documents = {str(i): text for i, text in enumerate(zipf(200))}
    index = BM25Index()
    index.add_many(documents.items())
    other = index.with_curve(k1=2.0, b=0.3)
    check(other, documents, "w1 w3 w20", k1=2.0, b=0.3)
    other.add("new", "w1 fresh")
    index.add("x", "w1 stale")
    assert other.search("fresh", k=1).ids == ["new"]
    assert other.search("stale", k=1).ids == []
    assert index.search("fresh", k=1).ids == []
    check(index, {**documents, "x": "w1 stale"}, "w1 stale")
    check(other, {**documents, "new": "w1 fresh"}, "w1 fresh", k1=2.0, b=0.3)


@pytest.mark.parametrize("k1", [0.0, 1.2, 2.0])
@pytest.mark.parametrize("b", [0.0, 0.5, 1.0])
def test_k1_and_b(k1, b):
    documents = {str(i): text for i, text in enumerate(zipf(80))}
    index = BM25Index(k1=k1, b=b)
    index.add_many(documents.items())
    check(index, documents, "w1 w2 w30", k1=k1, b=b)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"k1": -1}, "k1 = -1"),
        ({"k1": math.nan}, "k1 = nan"),
        ({"b": 1.5}, "b = 1.5"),
        ({"weights": {"subject": 1.0}}, "subject.*text, title, tags, predicate"),
        ({"weights": {"text": -1.0}}, "weights.*-1.0"),
        ({"weights": {"text": "2"}}, "weights"),
        ({"accelerate": "gpu"}, "gpu.*True or False"),
    ],
)
def test_bad_settings_name_the_value(settings, said):
    with pytest.raises(ConfigError, match=said):
        BM25Index(**settings)


def test_numba_is_used_when_asked(monkeypatch):
    assert isinstance(BM25Index(accelerate=True)._kernels, NumbaKernels)
    assert isinstance(BM25Index.from_bytes(BM25Index().to_bytes(), accelerate=True)._kernels, NumbaKernels)
    assert type(BM25Index()._kernels) is Kernels

    def missing():
        raise ImportError("numba")

    monkeypatch.setattr(scoring, "_compiled", missing)
    with pytest.raises(MissingExtraError, match=r"hybridmem\[fast\]"):
        BM25Index(accelerate=True)


def test_importing_hybridmem_imports_no_numba():
    names = "numba", "Stemmer", "rank_bm25"
    code = f"import sys, hybridmem.indexes.bm25.index; print([m for m in {names} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- many threads, many processes


def test_readers_never_see_half_an_update():
    """Each batch puts the same number into every text: a torn result would show two numbers."""
    index = BM25Index(str.split)
    names = [f"m{i}" for i in range(40)]
    allowed = frozenset(names)
    index.add_many((name, "common n0") for name in names)
    stop = threading.Event()
    seen = []
    torn = []

    def read(selected):
        while not stop.is_set():
            state_scores = index.search("common", k=100, allowed=selected)
            if len(state_scores.ids) != 40 or len(set(state_scores.scores)) != 1:
                torn.append(state_scores)
            seen.append(1)

    readers = [threading.Thread(target=read, args=(selected,)) for selected in (None, allowed)]
    for thread in readers:
        thread.start()
    try:
        for round_ in range(1, 120):
            size = 40 if round_ % 2 else 7
            extra = " x" * (round_ % 5)
            batch = [(name, f"common n{round_}{extra}") for name in names]
            index.add_many(batch)
            if size == 7:
                index.add("m0", f"common n{round_}{extra}")
    finally:
        stop.set()
        for thread in readers:
            thread.join()
    assert not torn
    assert seen
    check(index, dict(batch), "common n119", k=50, analyzer=str.split)


def test_adds_by_one_thread_are_seen_by_others_while_they_query():
    index = BM25Index(str.split)
    index.add_many((f"old{i}", text) for i, text in enumerate(zipf(2000)))
    done = threading.Event()
    missing = []
    added = []

    def ask():
        while not done.is_set():
            known = len(added)
            hits = index.search("needle", k=5000)
            if len(hits.ids) < known:
                missing.append((known, len(hits.ids)))

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for thread in readers:
        thread.start()
    try:
        for i in range(700):  # beyond the tail's limit: merges happen under the readers' feet
            index.add(f"new{i}", f"needle w{i % 50}")
            added.append(i)
    finally:
        done.set()
        for thread in readers:
            thread.join()
    assert not missing
    assert len(index.search("needle", k=5000).ids) == 700


def test_the_same_answer_in_every_process():
    code = """
import json
from hybridmem.indexes.bm25.index import BM25Index
index = BM25Index()
index.add_many((f"m{i}", " ".join(f"w{(i * j) % 17}" for j in range(1, 9))) for i in range(400))
for i in range(0, 400, 3):
    index.remove(f"m{i}")
print(json.dumps([index.search("w1 w5 w12 the", k=25), index.search("w3", k=9, allowed={f"m{i}" for i in range(200)})]))
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1", "4711")
    ]
    assert len(set(runs)) == 1
    assert len(json.loads(runs[0])[0][0]) == 25


@given(query=st.text(st.characters(codec=None), max_size=80), k=st.integers(1, 50))
@settings(max_examples=150)
def test_any_text_is_a_legal_query(query, k):
    hits = HOSTILE_INDEX.search(query, k=k)
    assert len(hits.ids) == len(hits.scores) <= k
    assert all(score > 0 for score in hits.scores)
    assert HOSTILE_INDEX.score(query, hits.ids) == hits.scores
    assert all(0 < share <= 1 + 1e-12 for share in HOSTILE_INDEX.coverage(query, hits.ids))


HOSTILE_INDEX = BM25Index()
HOSTILE_INDEX.add_many((chr(i), f"{chr(i)} {chr(i + 1)} text {i}") for i in range(1, 0x3000, 61))


def test_a_digest_depends_on_the_documents_and_not_on_their_order():
    texts = {f"m{n}": f"word{n % 7} cat cat{n}" for n in range(50)}
    one, two = BM25Index(), BM25Index()
    for id_, text in texts.items():
        one.add(id_, text)
    two.add("gone", "dog")
    two.add("m3", "something else")
    for id_, text in reversed(texts.items()):
        two.add(id_, text)
    two.remove("gone")
    assert one.digest() == two.digest() == BM25Index.from_bytes(two.to_bytes()).digest()
    two.add("m3", "word3 cat cat cat3")
    assert one.digest() != two.digest()
