"""Documents with questions of threads, speakers and pools of candidates in the server are those of the local view."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridmem import HybridMemory
from hybridmem.core.protocols import ArmQuery, View
from hybridmem.core.types import Memory
from hybridmem.stores.postgres.store import PostgresStore
from hybridmem.testing.stores import Clock
from tests.support.store_histories import embed

NOW = View()
TEXTS = st.sampled_from(
    [
        "Where does Ana live? Tell me about Lisbon.",
        "Ana: Which cat do you like? And tea?",
        "Ben: She lives in Lisbon with her cat",
        "assistant: Do you like tea?",
        "user: I like tea. And you?",
        "a cat in Lisbon",
        "tea tea tea",
    ]
)
ID = st.sampled_from([f"m{n}" for n in range(7)])
STEP = st.one_of(
    st.tuples(
        st.just("add"),
        ID,
        TEXTS,
        st.fixed_dictionaries(
            {},
            optional={
                "thread": st.sampled_from(["t1", "t2"]),
                "speaker": st.sampled_from(["Ana", "assistant", " "]),
                "created_at": st.integers(1_600_000_000, 1_600_000_004),
            },
        ),
    ),
    st.tuples(st.just("forget"), ID),
    st.tuples(st.just("supersede"), ID, ID),
)
_numbers = itertools.count()


def play(memory, steps, clock):
    for step in steps:
        clock.now += 10
        name, id_, *rest = step
        if name == "add":
            memory.add(rest[0], id=id_, **rest[1])
        elif name == "forget":
            memory.forget(id_)
        elif id_ != rest[0] and memory.history(rest[0]):
            memory.add("Ben: newer. Why?", id=id_, supersedes=rest[0], thread="t1")


def complete(memory, text):
    view = memory._engine.search_view(NOW)
    query = ArmQuery(text, embed([text])[0])
    hits = {arm: view.search(arm, query, k=3) for arm in ("bm25", "vector")}
    return hits, view.complete(query, hits, seeds=2, hops=2), view.speakers()


def same(pg, local):
    for text in ("Where does Ana live?", "cat tea", "do you like", "nothing"):
        (hits, pool, speakers), (expected_hits, expected, expected_speakers) = complete(pg, text), complete(local, text)
        for arm in expected_hits:
            assert hits[arm].scores == pytest.approx(expected_hits[arm].scores, abs=1e-6)
        assert speakers == expected_speakers
        if [hits[arm].ids for arm in hits] != [expected_hits[arm].ids for arm in hits]:
            continue  # near ties of vectors are ordered by float32 in one and float64 in the other
        assert pool.baseline == pytest.approx(expected.baseline, abs=1e-6)
        assert sorted(pool.ids) == sorted(expected.ids)
        order = [pool.ids.index(id_) for id_ in expected.ids]
        for arm, scores in expected.scores.items():
            assert [pool.scores[arm][i] for i in order] == pytest.approx(scores, abs=1e-6)
        assert (pool.window is None) == (expected.window is None)
        if expected.window is not None:
            assert [pool.window[i] for i in order] == pytest.approx(expected.window, abs=1e-6, nan_ok=True)
            names = [pool.ids[i] if i >= 0 else None for i in pool.previous]
            assert [names[i] for i in order] == [expected.ids[i] if i >= 0 else None for i in expected.previous]


@settings(
    max_examples=40, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(steps=st.lists(STEP, min_size=1, max_size=14))
def test_the_server_has_the_documents_and_pools_of_the_local_view(pg_url, pg_schemas, steps):
    clock, schema = Clock(), pg_schemas.take()
    store = PostgresStore(pg_url, schema=schema, clock=clock, pool_size=2)
    with HybridMemory(store, embedder=embed, clock=clock) as pg:
        local_clock = Clock()
        with HybridMemory(embedder=embed, clock=local_clock) as local:
            play(pg, steps, clock)
            play(local, steps, local_clock)
            same(pg, local)
            assert store.check() == []
            before = documents(store)
            store.rebuild()
            assert documents(store) == before
            assert store.check() == []
    pg_schemas.give(schema)


def documents(store):
    """Every posting and count, for a comparison with a rebuild."""
    queries = (
        "SELECT p.namespace, p.term, m.id, p.tf, p.length FROM postings p JOIN memories m USING (mem) ORDER BY 1, 2, 3",
        "SELECT * FROM speakers ORDER BY 1, 2",
        "SELECT namespace, memories, length, vectors FROM spaces ORDER BY 1",
    )
    return [store._db.read(lambda conn, query=query: conn.raw.execute(query).fetchall()) for query in queries]


def test_a_long_thread_is_written_in_one_batch(pg_url, schema):
    texts = ["Ana: Where is the cat?" if n % 3 == 0 else f"Ben: it is in room {n}" for n in range(60)]
    memories = [Memory(text, id=f"{n:02}", thread="t", created_at=1_600_000_000 + n) for n, text in enumerate(texts)]
    with PostgresStore(pg_url, schema=schema, clock=Clock()) as store:
        store.put(memories)
        one_by_one = documents(store)
        for number in (5, 6, 7, 30):
            store.put([memories[number]])
        store.put(memories)
        assert documents(store) == one_by_one
        store.delete([f"{n:02}" for n in range(0, 60, 3)])
        after = documents(store)
        store.rebuild()
        assert documents(store) == after
        assert store.check() == []


def test_windows_of_a_term_that_nearly_all_have(pg_url, schema):
    texts = [f"Ana: tea {n} {'cat' * (n == 60)}" for n in range(150)]
    memories = [Memory(text, id=f"{n:03}", thread="t", created_at=1_600_000_000 + n) for n, text in enumerate(texts)]
    windows = []
    for place in ({"path": pg_url, "schema": schema}, {}):
        with HybridMemory(**place, embedder=embed, clock=Clock()) as memory:
            memory.add_many(memories)
            view, query = memory._engine.search_view(NOW), ArmQuery("cat tea", embed(["cat tea"])[0])
            pool = view.complete(query, {"bm25": view.search("bm25", query, k=1)}, seeds=1, hops=2)
            windows.append(dict(zip(pool.ids, pool.window, strict=True)))
    assert list(windows[0]) == ["060", "059", "061", "058", "062"]  # 9 turns are read, and 150 have "tea"
    assert windows[0] == pytest.approx(windows[1], abs=1e-6)
