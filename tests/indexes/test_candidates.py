"""The pool of candidates, against the plain formulas computed from scratch after random histories."""

import hashlib
import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmem import HybridMemory, Memory
from hybridmem.core.protocols import ArmQuery, View
from hybridmem.core.types import Candidates, Hits
from hybridmem.indexes.view import IndexSettings, LocalView
from hybridmem.text.analyzer import Analyzer
from hybridmem.text.conversation import is_person, question_sentences, speaker_of

WORDS = ["cat", "dog", "lisbon", "porto", "sofa", "blue"]
TERMS = Analyzer()
K1 = 1.2


def toy(texts):
    return [[float(text.count(word)) + 0.01 * len(text) for word in WORDS] + [0.1] for text in texts]


class Plain:
    """The formulas, computed from all memories (in the order in which they were first added)."""

    def __init__(self, memories):
        self.memories = {memory.id: memory for memory in memories}
        self.before, self.after = {}, {}
        threads = {}
        for memory in memories:
            if memory.thread is not None:
                threads.setdefault(memory.thread, []).append(memory.id)
        for ids in threads.values():
            ids.sort(key=lambda id_: self.memories[id_].created_at)  # stable: then by insertion
            pairs = list(pairwise(ids))
            self.before |= {second: first for first, second in pairs}
            self.after |= dict(pairs)
        self.tf = {id_: self.frequencies(id_) for id_ in self.memories}
        self.length = {id_: len(TERMS(memory.text)) for id_, memory in self.memories.items()}
        self.mean = sum(self.length.values()) / max(len(self.length), 1)
        self.b = 0.75 * self.mean / (self.mean + 12)

    def person(self, id_):
        return is_person(speaker_of(self.memories[id_].text, self.memories[id_].speaker))

    def questions(self, id_):
        return Counter(TERMS(question_sentences(self.memories[id_].text))) if self.person(id_) else Counter()

    def frequencies(self, id_):
        tf = {term: float(count) for term, count in Counter(TERMS(self.memories[id_].text)).items()}
        if id_ in self.before or id_ in self.after:
            for term, count in self.questions(id_).items():
                tf[term] = tf.get(term, 0.0) - 0.5 * count
        if id_ in self.before and self.person(id_):
            for term, count in self.questions(self.before[id_]).items():
                tf[term] = tf.get(term, 0.0) + count
        return {term: count for term, count in tf.items() if count > 0}

    def terms(self, query):
        n = len(self.memories)
        for term, times in Counter(TERMS.query(query)).items():
            df = sum(term in tf for tf in self.tf.values())
            if df:
                yield term, times * math.log(1 + (n - df + 0.5) / (df + 0.5))

    def bm25(self, query, id_):
        norm = K1 * (1 - self.b + self.b * self.length[id_] / self.mean) if self.mean else K1
        tf = self.tf[id_]
        return sum(idf * tf.get(t, 0) * (K1 + 1) / (tf.get(t, 0) + norm) for t, idf in self.terms(query))

    def around(self, id_, hops):
        found, back, ahead = [], id_, id_
        for _ in range(hops):
            back, ahead = self.before.get(back), self.after.get(ahead)
            found += [back, ahead]
        return [other for other in found if other is not None]

    def window(self, query, pool):
        lengths = {id_: self.length[id_] + sum(0.5 * self.length[o] for o in self.around(id_, 2)) for id_ in pool}
        mean = sum(lengths.values()) / len(pool)
        scores = []
        for id_ in pool:
            norm = K1 * (1 - self.b + self.b * lengths[id_] / mean) if mean else K1
            score = 0.0
            for term, idf in self.terms(query):
                tf = self.tf[id_].get(term, 0) + sum(0.5 * self.tf[o].get(term, 0) for o in self.around(id_, 2))
                score += idf * tf * (K1 + 1) / (tf + norm)
            scores.append(score if self.around(id_, 1) else math.nan)
        return scores

    def cosines(self, query):
        q = np.array(toy([query])[0])
        rows = {id_: np.array(toy([memory.text])[0]) for id_, memory in self.memories.items()}
        return {id_: float(row @ q / np.linalg.norm(row) / np.linalg.norm(q)) for id_, row in rows.items()}


TEXTS = st.builds(
    lambda who, words, mark: who + " ".join(words) + mark,
    st.sampled_from(["", "", "Ana: ", "Ben: ", "user: ", "assistant: "]),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
    st.sampled_from([".", "?", "? blue.", ". sofa?"]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abcdefgh"), TEXTS, st.sampled_from([None, "t", "t", "u"])),
        st.tuples(st.just("forget"), st.sampled_from("abcdefgh"), st.just(""), st.none()),
        st.tuples(st.just("touch"), st.sampled_from("abcdefgh"), st.just(""), st.none()),
        st.tuples(st.just("search"), st.just(""), st.just(""), st.none()),
        st.tuples(st.just("reopen"), st.just(""), st.just(""), st.none()),
    ),
    max_size=16,
)


def checked(view, plain, query):
    """The pool of a view equals the formulas."""
    ask = ArmQuery(query, toy([query])[0])
    hits = {arm: view.search(arm, ask, k=3) for arm in ("bm25", "vector")}
    pool = view.complete(ask, hits, seeds=2, hops=2)
    if not plain.memories:
        assert pool._replace(mentions=(), shared=()) == Candidates(
            [], {"bm25": [], "vector": []}, {"bm25": 0.0, "vector": 0.0}
        )
        return
    best = sorted((-plain.bm25(query, id_), id_) for id_ in plain.memories if plain.bm25(query, id_) > 0)[:3]
    assert [-score for score, _ in best] == pytest.approx(hits["bm25"].scores, abs=1e-9)
    cosines = plain.cosines(query)
    sample = sorted(plain.memories, key=lambda id_: hashlib.md5(id_.encode()).hexdigest())[:128]
    mean, deviation = (of([cosines[id_] for id_ in sample]) for of in (np.mean, np.std))
    lo = mean - deviation if deviation > 1e-6 else 0.0
    assert pool.baseline == pytest.approx({"bm25": 0.0, "vector": lo}, abs=1e-6)
    assert pool.scores["bm25"] == pytest.approx([plain.bm25(query, id_) for id_ in pool.ids], abs=1e-9)
    assert pool.scores["vector"] == pytest.approx([cosines[id_] for id_ in pool.ids], abs=1e-6)
    listed = list(dict.fromkeys([*hits["bm25"].ids, *hits["vector"].ids]))
    assert pool.ids[: len(listed)] == listed
    added = set(pool.ids[len(listed) :])
    assert added <= {other for id_ in listed for other in plain.around(id_, 2)}
    if all(not plain.around(id_, 1) for id_ in pool.ids):
        assert (pool.window, pool.previous) == (None, None)
        return
    assert pool.window == pytest.approx(plain.window(query, pool.ids), abs=1e-9, nan_ok=True)
    place = {id_: at for at, id_ in enumerate(pool.ids)}
    assert pool.previous == [place.get(plain.before.get(id_), -1) for id_ in pool.ids]


@given(STEPS, st.sampled_from(["cat", "dog lisbon", "porto sofa blue", "blue"]))
@settings(max_examples=60, deadline=None)
def test_the_pool_equals_the_formulas_after_any_history(tmp_path_factory, steps, query):
    path = tmp_path_factory.mktemp("pool") / "m.db"
    now = iter(range(1000, 2000))
    clock = lambda: float(next(now))
    memory = HybridMemory(path, embedder=toy, clock=clock)
    born = {}
    for number, (verb, key, text, thread) in enumerate(steps):
        if verb == "add":
            memory.add(text, id=key, thread=thread)
            born.setdefault(key, number)
        elif verb == "forget":
            memory.forget(key)
            born.pop(key, None)
        elif verb == "touch" and key in born:
            memory.store.touch([key])
        elif verb == "search":
            memory.search("cat")
        elif verb == "reopen":
            memory.search("cat")
            memory.close()
            memory = HybridMemory(path, embedder=toy, clock=clock)
    with memory:
        listed = sorted(memory.list(), key=lambda m: born[m.id])
        view = memory._engine.search_view(View())
        checked(view, Plain(listed), query)
        fresh = LocalView(memory.store, View(as_of=1e9), IndexSettings())
        fresh.refresh()
        checked(fresh, Plain(listed), query)


def chat(*turns):
    return [Memory(text, id=f"m{n}", thread="t") for n, text in enumerate(turns)]


def test_a_question_counts_by_half_where_it_is_asked_and_fully_where_it_is_answered():
    with HybridMemory() as memory:
        memory.add_many([*chat("Ana: Do you like tea?", "Ben: Yes, green."), Memory("tea", id="plain")])
        view = memory._engine.search_view(View())
        hits = view.search("bm25", ArmQuery("tea"), k=3)
        n, df, lengths = 3, 3, [3, 3, 1]  # ana like tea; ben yes green; tea: "Do you" are stop words
        mean = sum(lengths) / 3
        b = 0.75 * mean / (mean + 12)
        idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
        expected = [
            idf * tf * 2.2 / (tf + 1.2 * (1 - b + b * length / mean))
            for tf, length in zip((0.5, 1.0, 1.0), lengths, strict=True)
        ]
        assert dict(zip(*hits, strict=True)) == pytest.approx(dict(zip(("m0", "m1", "plain"), expected, strict=True)))


def test_neighbours_outside_a_filter_do_not_enter_the_pool():
    with HybridMemory(embedder=toy) as memory:
        memory.add_many(chat("a cat", "a dog", "a sofa"))
        view = memory._engine.search_view(View())
        ask = ArmQuery("cat", toy(["cat"])[0], frozenset({"m0", "m2"}))
        pool = view.complete(ask, {"bm25": Hits(["m0"], view.search("bm25", ask, k=1).scores)})
        assert (pool.ids, pool.previous) == (["m0", "m2"], [-1, -1])
        assert pool.scores["bm25"][1] == 0.0


def test_memories_without_a_vector_are_left_out_of_the_baseline():
    with HybridMemory(embedder=toy) as memory:
        memory.add_many(Memory(f"cat {n} {WORDS[n % 6]}", id=f"m{n}") for n in range(200))
        memory.store.put([Memory("dog", id=f"w{n}") for n in range(200)])
        view = memory._engine.search_view(View())
        vector = toy(["cat"])[0]
        ids = sorted((f"m{n}" for n in range(200)), key=lambda id_: hashlib.md5(id_.encode()).hexdigest())[:128]
        scores = view.score("vector", ArmQuery("cat", vector), ids)
        pool = view.complete(ArmQuery("cat", vector), {"vector": Hits([], [])})
        assert pool.baseline["vector"] == pytest.approx(np.mean(scores) - np.std(scores))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("angle", [10 * n for n in range(9)])
def test_memories_with_equal_cosines_are_found(count, angle):
    vectors = {"query": [1.0, 0.0], "stored": [math.cos(math.radians(angle)), math.sin(math.radians(angle))]}
    with HybridMemory(embedder=lambda texts: [vectors[text.split()[0]] for text in texts]) as memory:
        memory.add_many(Memory(f"stored {n}", id=f"m{n}") for n in range(count))
        results = memory.search("query", k=3)
        assert sorted(result.id for result in results) == [f"m{n}" for n in range(count)]
        assert {round(result.score, 3) for result in results} == {0.505}  # half the weight, new: × 1.01
        view = memory._engine.search_view(View())
        pool = view.complete(ArmQuery("query", vectors["query"]), {"vector": Hits([], [])})
        assert pool.baseline["vector"] == 0.0


def test_documents_without_threads_have_no_windows():
    with HybridMemory(embedder=toy) as memory:
        memory.add_many(Memory(f"Where is the {word}?", id=word) for word in WORDS)
        view = memory._engine.search_view(View())
        ask = ArmQuery("cat", toy(["cat"])[0])
        pool = view.complete(ask, {arm: view.search(arm, ask, k=3) for arm in ("bm25", "vector")})
        assert (pool.window, pool.previous) == (None, None)
        assert view.speakers() == {}
