"""HybridMemory over PostgreSQL answers as over the embedded store: same ids, same scores, every arm and the whole."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from pathlib import Path

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridmem.core.protocols import View
from hybridmem.core.types import Edge, Memory
from hybridmem.errors import ConfigError, EmbeddingError, StoreError
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.indexes.view import IndexSettings
from hybridmem.memory.memory import HybridMemory
from hybridmem.stores.copying import checksum, copy_store
from hybridmem.stores.postgres.store import PostgresStore
from hybridmem.stores.sqlite.store import SQLiteStore
from hybridmem.testing.store_model import Clock
from hybridmem.text.analyzer import Analyzer
from tests.support.store_histories import STEP, TEXT, embed, play

SOAK = float(os.environ.get("HYBRIDMEM_SOAK_SECONDS", "6"))
NOW = View()


@pytest.fixture
def pair(pg_url, schema):
    clock = Clock()
    both = (
        HybridMemory(pg_url, schema=schema, embedder=embed, clock=clock, pool_size=4),
        HybridMemory(":memory:", embedder=embed, clock=clock),
    )
    yield both, clock
    for memory in both:
        memory.close()


def grouped(results, digits=6):
    """Results as (score, ids of that score): the order among equals within rounding is not compared."""
    groups = []
    for result in results:
        if groups and abs(groups[-1][0] - result.score) <= 10**-digits:
            groups[-1][1].add(result.id)
        else:
            groups.append((result.score, {result.id}))
    return groups


def same(ours, theirs):
    ours, theirs = grouped(ours), grouped(theirs)
    assert [ids for _, ids in ours] == [ids for _, ids in theirs]
    assert [score for score, _ in ours] == pytest.approx([score for score, _ in theirs], abs=1e-6)


class TestSameAnswers:
    @settings(
        max_examples=int(os.environ.get("HYBRIDMEM_EXAMPLES", "40")),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(steps=st.lists(STEP, min_size=3, max_size=14), query=TEXT, k=st.integers(1, 6), data=st.data())
    def test_every_arm_and_the_whole(self, pair, steps, query, k, data):
        both, clock = pair
        name = f"n{hashlib.md5(repr((steps, query, k)).encode()).hexdigest()[:12]}"
        start = clock.now
        views = []
        for memory in both:
            clock.now = start
            views.append(memory.namespace(name))
            play(views[-1], steps, clock)
        filter_ = data.draw(
            st.sampled_from(
                [None, {"n": {"$gte": 1}}, {"tags": "home"}, {"$not": {"thread": "t1"}}, {"text": {"$contains": "cat"}}]
            )
        )
        how = {"k": k, "filter": filter_}
        for arm in ("bm25", "vector", "graph"):
            same(*(view.search_arm(arm, query, **how) for view in views))
        same(*(view.search(query, **how) for view in views))
        same(*(view.search(query, superseded=True, **how) for view in views))
        same(*(view.search(query, as_of=start + 25, **how) for view in views))
        assert views[0].check() == []

    def test_a_cosine_that_is_the_baseline_but_for_rounding(self, pair):
        """Of two cosines the lower one is mean − standard deviation; the last digits depend on how they are added."""
        both, _ = pair
        found = []
        for memory in both:
            memory.add_many([{"text": "Bob", "id": "m0"}, {"text": "Ana", "id": "m1", "thread": "t1"}])
            found.append(memory.search("Ana Ana", filter={"$not": {"thread": "t1"}}))
        same(*found)

    def test_a_blank_question_has_no_answer(self, pair):
        both, _ = pair
        for memory in both:
            memory.add("a cat", id="a")
            assert memory.search("  ") == memory.search_arm("vector", "") == []

    def test_scores_of_given_memories_and_coverage(self, pair):
        both, _ = pair
        for memory in both:
            memory.add_many(
                [{"text": text, "id": f"m{n}"} for n, text in enumerate(["Ana cat", "Bob cat tea", "tea", ""])]
            )
        ids = ["m2", "m0", "nobody", "m1"]
        spaces = [memory._engine.search_view(NOW) for memory in both]
        from hybridmem.core.protocols import ArmQuery

        ask = ArmQuery("Ana Bob cat unheard", embed(["cat"])[0])
        for arm in ("bm25", "vector"):
            ours, theirs = (space.score(arm, ask, ids) for space in spaces)
            assert [score is None for score in ours] == [score is None for score in theirs]
            assert [score or 0 for score in ours] == pytest.approx([score or 0 for score in theirs], abs=1e-9)
        ours, theirs = (space.coverage(ask, ids) for space in spaces)
        assert ours == pytest.approx(theirs, abs=1e-9)
        assert spaces[0].count() == spaces[1].count() == 4

    @pytest.mark.parametrize(
        "query",
        ["", "  ", '"', "*", "NEAR(", "a\0b", "\ud800", "'; DROP TABLE postings; --", "%s %(x)s ?", "x" * 200_000],
    )
    def test_any_text_is_a_query(self, pair, query):
        (memory, other), _ = pair
        for one in (memory, other):
            one.add("a plain memory", id="m0")
        same(memory.search(query, k=3), other.search(query, k=3))

    @pytest.mark.parametrize("count", [1, 3])
    @pytest.mark.parametrize("query", ["NEAR(", "where is her home?", "a plain"])
    def test_memories_with_equal_cosines_are_found(self, pair, query, count):
        (memory, other), _ = pair
        for one in (memory, other):
            one.add_many(Memory("a plain memory", id=f"m{n}") for n in range(count))
        assert [result.id for result in memory.search(query, k=3)] != []
        same(memory.search(query, k=3), other.search(query, k=3))

    def test_explanations_and_paths_are_the_same(self, pair):
        both, _ = pair
        told = []
        for memory in both:
            memory.add("Who has the cat?", id="q", thread="t")
            memory.add("That is Bob in Berlin", id="a", thread="t")
            told.append(str(memory.explain("cat")))
        assert told[0] == told[1]
        assert "thread" in told[0]

    async def test_async_search(self, pair):
        (memory, _), _clock = pair
        memory.add("Ana moved to Lisbon", id="m0")
        assert [result.id for result in await memory.asearch("Lisbon")] == ["m0"]

    def test_a_hub_with_many_neighbours_is_bounded(self, pair):
        both, _ = pair
        for memory in both:
            memory.add_many([{"text": "hub", "id": "hub"}, *({"text": f"leaf {n}", "id": f"l{n}"} for n in range(300))])
            memory.store.link([Edge("hub", f"l{n}", weight=1 / (1 + n)) for n in range(300)])
        same(*(memory.search_arm("graph", "hub", k=20) for memory in both))


class TestSettings:
    def test_the_analyzer_is_on_record(self, pg_url, schema):
        german = Analyzer(language="none")
        with HybridMemory(pg_url, schema=schema, embedder=None, analyzer=german) as memory:
            memory.add("walked")
            assert memory.search("walk") == []
        with pytest.raises(ConfigError, match="rebuild"):
            HybridMemory(pg_url, schema=schema, embedder=None)
        with PostgresStore(pg_url, schema=schema) as store:
            assert store.put([Memory("walking", id="w")]) == ["w"]  # with what is on record
            assert store.rebuild(IndexSettings()) == 2
            assert store.check() == []
        with HybridMemory(pg_url, schema=schema, embedder=None) as memory:
            assert len(memory.search("walk")) == 2

    def test_entities_by_a_function(self, pg_url, schema):
        def shout(text):
            return [word for word in text.split() if word.isupper()]

        graph = GraphSettings(entities=shout)
        with HybridMemory(pg_url, schema=schema, embedder=None, graph=graph) as memory:
            memory.add("cat of ANA", id="a")
            memory.add("dog of ANA", id="b")
            assert {result.id for result in memory.search_arm("graph", "cat")} == {"a", "b"}
        with PostgresStore(pg_url, schema=schema) as store, pytest.raises(ConfigError, match="shout"):
            store.put([Memory("BOB")])

    def test_own_vector_indexes_are_refused(self, pg_url, schema):
        with pytest.raises(ConfigError, match="pgvector"):
            HybridMemory(pg_url, schema=schema, embedder=embed, vectors=lambda view: None)

    def test_a_wrong_dimension(self, pg_url, schema):
        with HybridMemory(pg_url, schema=schema, embedder=embed) as memory:
            memory.add("cat")
            space = memory._engine.search_view(NOW)
            from hybridmem.core.protocols import ArmQuery

            with pytest.raises(EmbeddingError, match=r"\(3,\), expected \(8,\)"):
                space.search("vector", ArmQuery("cat", [1.0, 0.0, 0.0]), k=1)
            with pytest.raises(EmbeddingError, match="finite"):
                space.search("vector", ArmQuery("cat", [float("nan")] * 8), k=1)

    @pytest.mark.parametrize("prefix", [None, 4])
    def test_hnsw_walks_on_until_enough_pass(self, pg_url, pg_server, prefix):
        url = pg_server.database()
        rng = np.random.default_rng(3)
        vectors = rng.standard_normal((800, 8)).astype(np.float32)
        with PostgresStore(url, exact_below=100, prefix=prefix, ef_search=40) as store:
            for name in ("a", "b"):
                memories = [Memory(f"text {n}", id=f"m{n}", type="rare" if n % 50 == 0 else "") for n in range(800)]
                store.put(memories, namespace=name, vectors=list(vectors))
            store.build_vector_index(8)
            store.build_vector_index(8)
            space = store.search_view(View("a"), IndexSettings())
            from hybridmem.core.protocols import ArmQuery

            query = vectors[7]
            exact = np.argsort(-(vectors @ query) / np.linalg.norm(vectors, axis=1))[:10]
            hits = space.search("vector", ArmQuery("", query), k=10)
            assert space._is_large(8)
            assert hits.ids[0] == "m7"
            assert hits.scores[0] == pytest.approx(1.0)
            if prefix is None:
                assert len({f"m{n}" for n in exact} & set(hits.ids)) >= 8
            rare = store.lazy_ids(view=View("a"), filter={"type": "rare"})
            found = space.search("vector", ArmQuery("", query, rare), k=10)
            assert len(found.ids) == 10
            assert all(int(id_[1:]) % 50 == 0 for id_ in found.ids)
            assert len(space.search("vector", ArmQuery("", query, rare), k=50).ids) == 16
            if prefix is None:
                with pytest.raises(ConfigError, match="4000"):
                    store.build_vector_index(5000)
        pg_server.drop(url)

    def test_bad_settings(self, pg_url):
        for bad in ({"pool_size": 0}, {"statement_timeout": -1}, {"schema": ""}, {"busy_timeout": "soon"}):
            with pytest.raises(ConfigError):
                PostgresStore(pg_url, **bad)


class TestCopying:
    def fill(self, store, clock):
        for n in range(30):
            clock.now += 1
            memory = Memory(f'{n} \\ "x"', id=f"m{n % 20}", metadata={"n": 1e16, "k": [1, 2.5]}, tags=("a\\b",))
            store.put([memory], namespace="ana" if n % 3 else "", vectors=[[n, 1.0]] if n % 2 else None)
        store.link([Edge("m1", "m2", weight=0.5)], namespace="ana")
        store.delete(["m2"], namespace="ana")
        store.erase(["m4"], namespace="ana")
        store.set_meta("embedder", "x")

    def test_there_and_back(self, pg_url, schema, pg_schemas, tmp_path):
        clock, other = Clock(), pg_schemas.take()
        seen = []
        with SQLiteStore(tmp_path / "a.db", clock=clock) as first, PostgresStore(pg_url, schema=schema) as second:
            self.fill(first, clock)
            done = copy_store(first, second, progress=lambda *a: seen.append(a), batch=7)
            assert done.rows == checksum(first)[1]
            assert done.resumed == 0
            assert seen[-1] == (done.rows, done.rows)
            assert second.check() == []
            assert second.get_meta("embedder") == "x"
            with SQLiteStore(tmp_path / "b.db") as third, PostgresStore(pg_url, schema=other) as fourth:
                assert copy_store(second, third).checksum == done.checksum
                assert list(third.export()) == list(first.export())
                assert copy_store(second, fourth).checksum == done.checksum
            second.backup(tmp_path / "c.db")
        with SQLiteStore(tmp_path / "c.db") as backup:
            assert checksum(backup)[0] == done.checksum
        pg_schemas.give(other)

    def test_it_goes_on_after_a_break(self, pg_url, schema):
        clock = Clock()

        class PulledPlug(Exception):
            pass

        def pull(done, total):
            raise PulledPlug

        with SQLiteStore(":memory:", clock=clock) as source, PostgresStore(pg_url, schema=schema) as target:
            self.fill(source, clock)
            with pytest.raises(PulledPlug):
                copy_store(source, target, batch=10, progress=pull)
            half = checksum(target)[1]
            assert 0 < half < checksum(source)[1]
            source.put([Memory("written meanwhile", id="late")])
            done = copy_store(source, target, batch=10)
            assert done.resumed == half
            assert list(target.export()) == list(source.export())
            assert target.check() == []
            target.put([Memory("of its own")])
            source.put([Memory("another")])
            with pytest.raises(ConfigError, match="beginning"):
                copy_store(source, target)


class TestManyClients:
    def test_writing_and_searching_at_once(self, pg_url, schema):
        """Eight clients, two namespaces, every kind of write: no deadlock, no lost write, nothing half-visible."""
        stop, errors = time.monotonic() + SOAK, []
        kept = [[] for _ in range(8)]
        PostgresStore(pg_url, schema=schema).close()

        def work(number):
            try:
                name = f"space{number % 2}"
                with HybridMemory(
                    pg_url, schema=schema, embedder=embed, namespace=name, pool_size=2, busy_timeout=30
                ) as memory:
                    n = 0
                    while time.monotonic() < stop or n < 8:
                        n += 1
                        id_ = memory.add(f"client {number} says cat {n}", id=f"c{number}-{n}", thread=f"t{number}")
                        kept[number].append(id_)
                        assert any(r.id == id_ for r in memory.search(f"client {number} says cat {n}", k=200))
                        if n % 3 == 0:
                            memory.link(kept[number][-1], kept[number][-2])
                        if n % 4 == 0:
                            memory.add("shared by all", id="shared", tags=(f"by{number}",))
                            memory.store.touch([kept[number][0], "shared"], namespace=name)
                        if n % 5 == 0:
                            assert memory.forget(kept[number].pop(0)) == 1
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120 + SOAK)
        assert errors == []
        with PostgresStore(pg_url, schema=schema) as store:
            for half in (0, 1):
                wanted = {id_ for n in range(half, 8, 2) for id_ in kept[n]} | {"shared"}
                assert store.ids(view=View(f"space{half}")) | {"shared"} == wanted
            assert store.check() == []


@pytest.mark.parametrize("page", ["postgres.md", "scale.md"])
def test_the_documentation_is_true(pg_server, page):
    """The blocks that need a server (`py`) run on ours."""
    text = (Path(__file__).parents[3] / "docs" / page).read_text("utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    url = pg_server.database()
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CREATE ROLE ana LOGIN")
    code = re.sub(r"postgresql://app@[a-z.]+/agents", url, "\n".join(blocks))
    exec(compile(code, page, "exec"), {})
    pg_server.drop(url)
    with psycopg.connect(pg_server.url(), autocommit=True) as conn:
        conn.execute("DROP ROLE ana")


def test_without_the_extra(monkeypatch):
    import builtins
    import sys

    from hybridmem.errors import MissingExtraError

    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "psycopg_pool":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "hybridmem.stores.postgres.store")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"hybridmem\[postgres\]"):
        HybridMemory("postgresql://nobody@127.0.0.1:1/none")


def test_a_server_that_is_not_there():
    with pytest.raises(StoreError, match=r"127\.0\.0\.1"):
        PostgresStore("postgresql://user:secret@127.0.0.1:1/none", reconnect=0, busy_timeout=0.3)


class TestAStoreThatStaysClean:
    def test_expiry_and_duplicates_as_on_sqlite(self, pg_url, schema, tmp_path):
        clock, found = Clock(), []
        for path, options in ((pg_url, {"schema": schema}), (tmp_path / "m.db", {})):
            clock.now = 1_700_000_000.0
            with HybridMemory(path, embedder=embed, clock=clock, b=0.75, **options) as memory:
                memory.add_many([{"text": f"Ana has cat {n}", "id": f"c{n}"} for n in range(3)], ttl=10)
                memory.add("Ana has a dog", id="d", tags=["x"])
                assert memory.add("ana  HAS a dog", tags=["y"], on_duplicate="merge") == "d"
                assert memory.add_many(["new", "New"], on_duplicate="skip")[0] != "d"
                memory.link("c0", "d")
                before = [(r.id, r.score) for r in memory.search_arm("bm25", "Ana cat dog")]
                clock.now += 10
                after = [(r.id, round(r.score, 9)) for r in memory.search_arm("bm25", "Ana cat dog")]
                assert [id_ for id_, _ in after] == ["d"]
                past = sorted(r.id for r in memory.search("cat", as_of=clock.now - 1))
                assert "c0" not in {m.id for m in memory.list(as_of=clock.now)}
                found.append((before, after, past, memory.get("d").tags, len(memory), memory.stats().links))
                assert memory.check() == []
                assert memory.sweep(erase=True) == 3
                assert memory.history("c0") == []
                assert memory.clear() == 2
                assert memory.erase(namespace="") == 2
                assert memory.namespaces() == []
        (before, after, *rest), (other, later, *others) = found
        assert [id_ for id_, _ in before] == [id_ for id_, _ in other]
        assert [score for _, score in before] == pytest.approx([score for _, score in other], abs=1e-6)
        assert after == later
        assert rest == others
