"""Both arms in one statement: the same lists and opinions as each arm asked alone, in fewer trips to the server."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from dataclasses import replace

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridmem.core.protocols import ArmQuery, View
from hybridmem.embedding.embedder import unit
from hybridmem.errors import ArmError, EmbeddingError, SchemaVersionError, StoreBusyError
from hybridmem.filters.sql import SQL
from hybridmem.indexes.view import IndexSettings
from hybridmem.memory.memory import HybridMemory
from hybridmem.stores.postgres.search.pool import in_one, uncertain
from hybridmem.stores.postgres.store import PostgresStore
from hybridmem.testing.store_model import Clock
from tests.support import postgres_server
from tests.support.store_histories import STEP, TEXT, embed, play

NOW = View()


@pytest.fixture
def memory(pg_url, schema):
    with HybridMemory(pg_url, schema=schema, embedder=embed, clock=Clock(), pool_size=4) as memory:
        yield memory


def asked_of(space):
    """The statements that a space runs from now on."""
    asked, run, both = [], space._run, space._run_both
    space._run = lambda statement: asked.append(statement.text) or run(statement)
    space._run_both = lambda *two: asked.extend(statement.text for statement in two) or both(*two)
    return asked


def apart(space, ask, k):
    found = {arm: space.search(arm, ask, k=k) for arm in ("bm25", "vector")}
    ids = list(dict.fromkeys([*found["bm25"].ids, *found["vector"].ids]))
    scores = {arm: dict(zip(ids, space.score(arm, ask, ids), strict=True)) for arm in found}
    known = {arm: {id_: score for id_, score in own.items() if score} for arm, own in scores.items()}
    return found, {arm: known[arm] | dict(zip(*found[arm], strict=True)) for arm in found}


def agree(ours, theirs):
    """The same ids in the same order, the same opinions, scores as float64 has them but for the last digits."""
    for arm in ("bm25", "vector"):
        assert ours[0][arm].ids == theirs[0][arm].ids
        assert ours[0][arm].scores == pytest.approx(theirs[0][arm].scores, abs=3e-7)
        assert ours[1][arm] == pytest.approx({id_: score for id_, score in theirs[1][arm].items() if score}, abs=3e-7)


class TestLaw:
    @settings(
        max_examples=int(os.environ.get("HYBRIDMEM_EXAMPLES", "40")),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(steps=st.lists(STEP, min_size=3, max_size=14), query=TEXT, k=st.integers(1, 6), data=st.data())
    def test_at_once_as_apart(self, memory, steps, query, k, data):
        name = f"n{hashlib.md5(repr((steps, query, k)).encode()).hexdigest()[:12]}"
        play(memory.namespace(name), steps, memory._engine.clock)
        filter_ = data.draw(st.sampled_from([None, {"n": {"$gte": 1}}, {"tags": "home"}]))
        view = View(name)
        allowed = None if filter_ is None else memory.store.lazy_ids(view=view, filter=filter_)
        space, ask = memory._engine.search_view(view), ArmQuery(query, embed([query])[0], allowed)
        ours = space.search_both(ask, k=k)
        if ours is not None:
            agree(ours, apart(space, ask, k))

    def test_a_list_of_ids_restricts_both(self, memory):
        memory.add_many([{"text": f"cat tea{n}", "id": f"m{n}"} for n in range(9)])
        space = memory._engine.search_view(NOW)
        ask = ArmQuery("cat tea3", embed(["cat tea3"])[0], frozenset({"m3", "m5"}))
        agree(space.search_both(ask, k=4), apart(space, ask, 4))
        assert {*space.search_both(ask, k=4)[0]["vector"].ids} == {"m3", "m5"}


class TestTrips:
    def test_a_search_sends_three_statements(self, pg_url, schema, monkeypatch):
        def drawn(texts):
            return [np.random.default_rng(len(text)).standard_normal(256) for text in texts]

        with HybridMemory(pg_url, schema=schema, embedder=drawn) as memory:
            memory.add_many([{"text": f"cat {'x' * n}", "id": f"m{n}"} for n in range(40)])
            memory.search("cat xxx")
            reads, read = [], type(memory.store._db).read
            monkeypatch.setattr(type(memory.store._db), "read", lambda db, work: reads.append(work) or read(db, work))
            assert len(memory.search("cat xxx", k=5)) == 5
            assert len(reads) == 3  # the namespace, both arms, memories
            memory.add("Ana: Is the cat here?", thread="t")
            memory.search("cat xxx")  # the first one after a change compares the recorded embedder
            reads.clear()
            assert len(memory.search("cat xxx", k=5)) == 5
            assert len(reads) == 4  # and the neighbours in threads

    def test_texts_that_are_compared_are_read_with_the_results(self, pg_url, schema, monkeypatch):
        def drawn(texts):
            return [np.random.default_rng(len(text)).standard_normal(256) for text in texts]

        with HybridMemory(pg_url, schema=schema, embedder=drawn) as memory:
            memory.add_many([{"text": "cat " * n + "tea", "id": f"m{n}"} for n in range(1, 9)])
            memory.add("cat " * 8 + "coffee", id="as long as m8")
            memory.search("cat")
            reads, read = [], type(memory.store._db).read
            monkeypatch.setattr(type(memory.store._db), "read", lambda db, work: reads.append(work) or read(db, work))
            assert len(memory.search("cat", k=8)) == 8
            assert len(reads) == 3  # the namespace, both arms, memories

    def test_equal_texts_need_no_more_statements(self, memory):
        memory.add_many([{"text": "tea", "id": f"m{n}"} for n in range(90)])
        space = memory._engine.search_view(NOW)
        query = ArmQuery("tea", embed(["tea"])[0])
        space.search_both(query, k=1)  # reads the size of the namespace
        asked = asked_of(space)
        assert space.search_both(query, k=5)[0]["bm25"].ids == [f"m{n:d}" for n in (0, 1, 10, 11, 12)]
        assert len(asked) == 2  # the second one scores equal vectors in float64

    def test_each_arm_alone_where_one_statement_will_not_do(self, memory, pg_url, schema):
        memory.add_many([{"text": f"cat {n}", "id": f"m{n}"} for n in range(5)])
        space, vector = memory._engine.search_view(NOW), embed(["cat"])[0]
        assert space.search_both(ArmQuery("...", vector), k=3) is None  # no words
        assert space.search_both(ArmQuery("cat", None), k=3) is None
        assert space.search_both(ArmQuery("cat", vector), k=3) is not None
        many = memory.store.search_view(NOW, IndexSettings(vectors=False))
        assert many.search_both(ArmQuery("cat", vector), k=3) is None

    def test_many_vectors_without_an_index(self, pg_url, schema):
        with HybridMemory(pg_url, schema=schema, embedder=embed, exact_below=5, auto_index=False) as memory:
            memory.add_many([{"text": f"cat {'tea ' * n}", "id": f"m{n}"} for n in range(5)])
            space, ask = memory._engine.search_view(NOW), ArmQuery("cat tea", embed(["cat tea"])[0])
            asked = asked_of(space)
            agree(space.search_both(ask, k=3), apart(space, ask, 3))
            assert ["hits AS" in text for text in asked[:3]] == [False, False, True]  # its size, the near, the words
            assert len(memory.search("cat", k=3)) == 3

    def test_a_recipe_that_wants_no_opinions_asks_each_arm(self, memory):
        memory.add_many([{"text": f"cat {n}", "id": f"m{n}"} for n in range(5)])
        asked = asked_of(memory._engine.search_view(NOW))
        memory.search("cat", recipe="rrf", k=3)
        assert not any("bool_or(words)" in text for text in asked)
        memory.search("cat", k=3)
        assert any("bool_or(words)" in text for text in asked)

    def test_a_failure_names_the_arms(self, memory):
        memory.add("cat", id="a")
        memory.search("cat")
        with pytest.raises(ArmError, match="'bm25 and vector' failed: EmbeddingError") as caught:
            memory._engine._hits(
                memory._engine.search_view(NOW),
                ArmQuery("cat", [math.nan] * 8),
                memory._engine.recipe_for(memory.recipe),
                3,
            )
        assert isinstance(caught.value.__cause__, EmbeddingError)
        memory._engine.embedder = type("Broken", (), {"query": lambda self, text: 1 / 0, "name": "b", "dim": 8})()
        with pytest.raises(ArmError, match="arm 'vector' failed: ZeroDivisionError"):
            memory.search("dog")


class TestLarge:
    """By HNSW the arms are asked at the same time, each with its opinion of the other's finds."""

    @pytest.fixture(params=[None, 8])
    def large(self, pg_server, request):
        url = pg_server.database()

        def drawn(texts):
            return [np.random.default_rng([*text.encode()]).standard_normal(16) for text in texts]

        rows = []
        store = PostgresStore(url, exact_below=100, prefix=request.param, auto_index=False)
        with HybridMemory(store, embedder=drawn) as memory:
            for n in range(400):
                text = " ".join(["cat" if n % 3 else "dog", f"tea{n % 40}", *(f"w{n}x{i}" for i in range(n % 23))])
                rows.append({"text": text, "id": f"m{n:03}", "type": "rare" if n % 90 == 0 else ""})
            memory.add_many(rows)
            store.build_vector_index(16)
            yield memory, drawn
        pg_server.drop(url)

    @pytest.mark.parametrize("query", ["dog tea7", "cat tea3 tea5", "tea1 unheard"])
    def test_as_each_arm_alone(self, large, query):
        memory, drawn = large
        space = memory._engine.search_view(NOW)
        ask = ArmQuery(query, drawn([query])[0])
        asked = asked_of(space)
        ours = space.search_both(ask, k=20)
        assert len([text for text in asked if "AS MATERIALIZED" in text]) == 2
        agree(ours, apart(space, ask, 20))
        ask = ask._replace(allowed=memory.store.lazy_ids(view=NOW, filter={"text": {"$contains": "cat"}}))
        agree(space.search_both(ask, k=20), apart(space, ask, 20))
        assert len(memory.search(query, k=5)) == 5

    def test_without_a_second_connection(self, large):
        """Nobody waits for a second connection while holding the first: both statements go to the same one."""
        memory, drawn = large
        with HybridMemory(memory.store.path, embedder=drawn, pool_size=1, exact_below=100, auto_index=False) as alone:
            asked = [each.search("cat tea3", k=9) for each in (memory, alone)]
            assert alone.store._db.pool.get_stats()["pool_max"] == 1
            assert not alone.store._db._lent
        assert [found.id for found in asked[0]] == [found.id for found in asked[1]]
        assert [found.score for found in asked[0]] == pytest.approx([found.score for found in asked[1]], abs=1e-6)

    def test_too_few_pass_the_filter(self, large):
        memory, drawn = large
        space = memory._engine.search_view(NOW)
        ask = ArmQuery("tea7", drawn(["tea7"])[0], memory.store.lazy_ids(view=NOW, filter={"type": "rare"}))
        assert space.search_both(ask, k=20) is None
        assert len(memory.search("tea7", k=20, filter={"type": "rare"})) == 5  # 0, 90, 180, 270 and 360

    def test_either_statement_may_fail(self, large, pg_server):
        memory, _ = large
        memory.search("cat")
        with psycopg.connect(memory.store._db.url, autocommit=True) as conn:
            for table in ("postings", "embeddings"):
                conn.execute(f"ALTER TABLE hybridmem.{table} RENAME TO away")
                with pytest.raises(ArmError, match=f"'bm25 and vector' failed: SchemaVersionError.*{table}"):
                    memory.search("cat")
                conn.execute(f"ALTER TABLE hybridmem.away RENAME TO {table}")
        assert len(memory.search("cat", k=3)) == 3


class TestTwoStatements:
    """What can go wrong with two statements on two connections."""

    ONE = SQL("SELECT ?::int", (1,))
    SLOW = SQL("SELECT 2 FROM pg_sleep(20)")

    @pytest.mark.parametrize("pool_size", [1, 4])
    @pytest.mark.parametrize("two", [(ONE, SLOW), (SLOW, ONE)])
    def test_a_slow_one_is_stopped(self, pg_url, schema, two, pool_size):
        with PostgresStore(pg_url, schema=schema, pool_size=pool_size, statement_timeout=0.1) as store:
            for _ in range(12):  # they become prepared statements meanwhile
                with pytest.raises(StoreBusyError, match="statement_timeout"):
                    store._router.run_both(*two)
                assert store._router.run_both(self.ONE, self.ONE) == ([(1,)], [(1,)])
            assert not store._db._lent

    @pytest.mark.parametrize("before", range(8))  # psycopg prepares a statement when it runs for the sixth time
    def test_a_failed_preparation_is_repeated(self, pg_url, schema, before):
        counts = SQL("SELECT count(*) FROM memories", ())
        with PostgresStore(pg_url, schema=schema) as store, psycopg.connect(pg_url, autocommit=True) as conn:
            with store._db.pool.connection(), store._db.pool.connection():
                pass  # the pool has two connections
            for _ in range(before):
                assert store._router.run_both(counts, counts) == ([(0,)], [(0,)])
            conn.execute(f"ALTER TABLE {schema}.memories RENAME TO away")
            with pytest.raises(SchemaVersionError, match="memories"):
                store._router.run_both(counts, counts)
            conn.execute(f"ALTER TABLE {schema}.away RENAME TO memories")
            assert store._router.run_both(counts, counts) == ([(0,)], [(0,)])
            assert not store._db._lent

    def test_lost_connections_are_replaced(self, pg_url, schema):
        with PostgresStore(pg_url, schema=schema) as store, psycopg.connect(pg_url, autocommit=True) as conn:
            for _ in range(3):
                assert store._router.run_both(self.ONE, self.ONE) == ([(1,)], [(1,)])
                mine = [raw.info.backend_pid for raw in store._db.pool._pool]
                conn.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s) AS pid", (mine,))
            assert not store._db._lent

    async def test_a_cancelled_question_stops_both(self, pg_url, schema):
        with PostgresStore(pg_url, schema=schema) as store, psycopg.connect(pg_url, autocommit=True) as conn:
            await asyncio.sleep(0)
            store._router.run_both(self.ONE, self.ONE)

            def sleeping():
                query = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = %s"
                return conn.execute(query, (self.SLOW.text,)).fetchone()[0]

            for _ in range(2):  # with one connection at first, perhaps; meanwhile there are two
                asked = asyncio.create_task(store.in_thread(lambda: store._router.run_both(self.SLOW, self.SLOW)))
                await asyncio.to_thread(postgres_server.until, sleeping, what="the statements to run")
                asked.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asked
                await asyncio.to_thread(postgres_server.until, lambda: not sleeping(), what="both to stop")
            assert store._router.run_both(self.ONE, self.ONE) == ([(1,)], [(1,)])


class TestEquals:
    @pytest.mark.parametrize("text", ["tea", "tea cat"])
    def test_more_equals_than_were_brought(self, pg_url, schema, text):
        """90 equals: the newest of them come first."""
        found, clock = [], Clock()
        for path, options in ((pg_url, {"schema": schema}), (":memory:", {})):
            with HybridMemory(path, embedder=embed, clock=clock, **options) as memory:
                for part in range(3):
                    clock.now = 1_700_000_000.0 + part
                    memory.add_many([{"text": "tea", "id": f"m{part}-{n:02}"} for n in range(30)])
                memory.add_many([{"text": "tea tea", "id": "best"}])
                if path == pg_url:
                    space = memory._engine.search_view(NOW)
                    ask = ArmQuery(text, embed([text])[0])
                    agree(space.search_both(ask, k=5), apart(space, ask, 5))
                found.append([r.id for r in memory.search(text, k=5, recipe=replace(memory.recipe, depth=5))])
        assert found[0] == found[1]


class TestDoubt:
    def test_what_rounding_could_turn_around(self):
        doubt = 7e-7 / math.sqrt(100)
        clear = {"a": 0.9, "b": 0.5, "c": 0.5, "d": -0.3}
        assert uncertain(clear, 100) == []  # equals are equal: the same numbers were added up
        assert uncertain({**clear, "e": 0.9 - doubt}, 100) == ["e", "a"]
        assert uncertain({**clear, "e": 0.9 - 3 * doubt}, 100) == []
        assert uncertain({**clear, "e": doubt / 2}, 100) == ["e"]  # nothing at all, perhaps: no opinion
        narrow = {"a": 0.9, "b": 0.9 - doubt * 1e6}  # normalised, an error of doubt would be seen
        assert uncertain(narrow, 100) == ["b", "a"]
        assert uncertain({}, 100) == []

    @pytest.mark.parametrize("dim", [2, 8, 384])
    def test_the_error_is_within_it(self, pg_url, schema, dim):
        rng = np.random.default_rng(dim)
        vectors = unit(rng.standard_normal((300, dim)))
        texts = {f"tea {n}": vector for n, vector in enumerate(vectors)}
        with HybridMemory(pg_url, schema=schema, embedder=lambda given: [texts[t] for t in given]) as memory:
            memory.add_many([{"text": text, "id": text} for text in texts])
            space, row = memory._engine.search_view(NOW), vectors[7]
            rows = space._run(in_one(space._bm25, space._nearest, {"tea": 1.0}, row, None, 300))
        true = {text: float(vector.astype(np.float64) @ row.astype(np.float64)) for text, vector in texts.items()}
        assert max(abs(found[2] - true[found[5]]) for found in rows) < 7e-7 / math.sqrt(dim)

    def test_nothing_in_common_is_no_opinion(self, pg_url, schema):
        """Orthogonal vectors and a vector of zeros have cosine 0, as in the embedded store."""
        rows = {"cat": [1.0, 0.0, 0.0], "dog": [0.0, 1.0, 0.0], "dog cat": [1.0, 1.0, 0.0], "": [0.0, 0.0, 0.0]}
        answers = []
        for path, options in ((pg_url, {"schema": schema}), (":memory:", {})):
            with HybridMemory(path, embedder=lambda given: [rows[t] for t in given], **options) as memory:
                memory.add_many([{"text": text, "id": text or "empty"} for text in rows])
                space = memory._engine.search_view(NOW)
                ask = ArmQuery("cat", rows["cat"])
                answers.append(space.search_both(ask, k=9) if path == pg_url else apart(space, ask, 9))
        ours, theirs = answers
        agree(ours, theirs)
        assert dict(zip(*ours[0]["vector"], strict=True))["dog"] == dict(zip(*ours[0]["vector"], strict=True))["empty"]
        assert set(ours[1]["vector"]) == {"cat", "dog cat"}
