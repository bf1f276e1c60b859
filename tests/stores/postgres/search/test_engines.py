"""The lexical engine tsvector beside exact BM25."""

from __future__ import annotations

import math
import os

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridmem.core.protocols import ArmQuery, View
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from hybridmem.indexes.view import IndexSettings
from hybridmem.memory.memory import HybridMemory
from hybridmem.stores.postgres.search import engines
from hybridmem.stores.postgres.search.engines import ENGINES
from hybridmem.stores.postgres.store import PostgresStore
from hybridmem.stores.sqlite.store import SQLiteStore
from hybridmem.testing.store_model import Clock
from hybridmem.testing.stores import fresh
from tests.support.store_histories import STEP, TEXT, embed, play

NOW = View()
LAW = settings(
    max_examples=int(os.environ.get("HYBRIDMEM_EXAMPLES", "15")),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
    ],
)
FILTERS = [None, {"n": {"$gte": 1}}, {"tags": "home"}, {"$not": {"thread": "t1"}}, {"text": {"$contains": "cat"}}]
QUERIES = [
    '"',
    "*",
    "' | ! & <-> :*",
    "a\0b",
    "\ud800",
    "'; DROP TABLE lexemes; --",
    "%s %(x)s ? \\",
    "x" * 200_000,
    " ".join(f"word{n}" for n in range(30_000)),
]


class OtherEngine:
    """What holds for every engine beside the exact one."""

    engine = ""

    @pytest.fixture
    def opened(self, url, schema):
        with HybridMemory(
            url, schema=schema, embedder=embed, pool_size=4, lexical=self.engine, clock=Clock()
        ) as memory:
            yield memory

    @LAW
    @given(steps=st.lists(STEP, min_size=3, max_size=14), query=TEXT, filter_=st.sampled_from(FILTERS))
    def test_the_same_memories_in_another_order(self, opened, steps, query, filter_):
        """Filters, namespaces and supersession choose as they do for exact BM25; the past is ranked by exact BM25."""
        clock = opened._engine.clock
        name = fresh("n")  # an example may be run twice: the past of the first run must not show
        with HybridMemory(SQLiteStore(":memory:", clock=clock), embedder=embed, clock=clock) as exact:
            start = clock.now
            views = []
            for memory in (opened, exact):
                clock.now = start
                views.append(memory.namespace(name))
                play(views[-1], steps, clock)
            ours, theirs = (view.search_arm("bm25", query, k=50, filter=filter_) for view in views)
            found, expected = ({result.id for result in results} for results in (ours, theirs))
            assert found <= expected
            # exact BM25 alone also finds an answer by the words of the question before it
            assert all(views[0].get(id_).thread is not None for id_ in expected - found)
            scores = [result.score for result in ours]
            assert scores == sorted(scores, reverse=True)
            assert all(score > 0 for score in scores)
            best = views[0].search_arm("bm25", query, k=2, filter=filter_)
            assert [result.score for result in best] == pytest.approx(scores[:2])
            space = opened._engine.search_view(View(name))
            given = space.score("bm25", ArmQuery(query), [*(result.id for result in ours), "nobody"])
            assert given == pytest.approx([*scores, 0.0])
            for when in ({"superseded": True}, {"as_of": start + 25}):
                ours, theirs = (view.search_arm("bm25", query, k=50, filter=filter_, **when) for view in views)
                assert [(r.id, r.score) for r in ours] == [(r.id, pytest.approx(r.score)) for r in theirs]
        assert opened.check() == []
        assert opened.namespace("elsewhere").search(query) == []

    def test_statistics_stop_at_the_namespace(self, opened):
        opened.add("Ana has a cat", id="a")
        before = opened.search_arm("bm25", "cat")
        opened.namespace("other").add_many([f"cat {n} of many" for n in range(20)])
        assert [(r.id, r.score) for r in opened.search_arm("bm25", "cat")] == [(r.id, r.score) for r in before]

    @pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
    def test_any_text_is_a_query(self, opened, query):
        opened.add("a plain memory", id="m0")
        assert opened.search_arm("bm25", query) == []
        assert [result.id for result in opened.search(f"plain {query[:5000]}")] == ["m0"]

    @pytest.mark.parametrize("text", QUERIES, ids=range(len(QUERIES)))
    def test_any_text_is_a_memory(self, opened, text):
        count = 25 if len(text) < 1000 else 2  # enough of them travel by COPY
        opened.add_many([{"text": f"plain {text}", "title": text[:5000], "id": f"m{n}"} for n in range(count)])
        assert len(opened.search_arm("bm25", "plain", k=30)) == count
        if len(text) == 200_000:  # a word longer than the server's own are
            assert len(opened.search_arm("bm25", text, k=30)) == count
        assert opened.check() == []

    def test_identifiers_are_found_whole(self, opened):
        opened.add("Fixed in 18.12.1, see POST /v2/exports", id="a")
        opened.add("Fixed in 18.16.0, see POST /v2/imports", id="b")
        assert opened.search_arm("bm25", "18.12.1")[0].id == "a"
        assert opened.search_arm("bm25", "/v2/imports")[0].id == "b"
        opened.add("Grüße von Müller aus 東京都", id="c")
        assert {query: opened.search_arm("bm25", query)[0].id for query in ("Muller", "東京")} == {
            "Muller": "c",
            "東京": "c",
        }

    def test_the_choice_is_on_record(self, url, schema):
        with HybridMemory(url, schema=schema, embedder=None, lexical=self.engine) as memory:
            memory.add("Ana has a cat", id="a")
        with HybridMemory(url, schema=schema, embedder=None) as memory:  # unsaid: as on record
            memory.add("Bob has a cat", id="b")
            assert {result.id for result in memory.search("cat")} == {"a", "b"}
            assert memory.check() == []
        for other in set(ENGINES) - {self.engine}:
            with pytest.raises(ConfigError, match=rf"{self.engine}.*rebuild"):
                HybridMemory(url, schema=schema, embedder=None, lexical=other)
        with PostgresStore(url, schema=schema) as store, PostgresStore(url, schema=schema) as late:
            assert store.rebuild(lexical="bm25") == 2
            with pytest.raises(ConfigError, match="open it again"):
                late.put([Memory("written as it used to be")])
            assert store.check() == []
        with HybridMemory(url, schema=schema, embedder=None, lexical="bm25") as memory:
            assert memory.search_arm("bm25", "cat")[0].score == pytest.approx(math.log(1 + 0.5 / 2.5) * 2.2 / 2.2)
        with PostgresStore(url, schema=schema) as store:
            assert store.rebuild(lexical=self.engine) == 2
            assert store.check() == []
        with HybridMemory(url, schema=schema, embedder=None, lexical=self.engine) as memory:
            assert {result.id for result in memory.search("cat")} == {"a", "b"}

    def test_check_notices_what_is_missing_and_what_is_left(self, url, schema, opened):
        opened.add_many([{"text": "cat", "id": "a"}, {"text": "cat", "id": "b"}])
        table = opened.store._deriver.lexical.engine_table.table
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(f'UPDATE "{schema}".{table} SET mem = mem + 1000 WHERE mem = (SELECT min(mem) FROM '
                         f'"{schema}".{table})')  # fmt: skip
        assert sum("lexical engine" in problem for problem in opened.check()) == 2
        opened.store.rebuild()
        assert opened.check() == []

    def test_copied_from_a_file(self, url, schema):
        from hybridmem.stores.copying import copy_store

        with SQLiteStore(":memory:") as source, PostgresStore(url, schema=schema, lexical=self.engine) as target:
            for name in ("", "ana", "o'\"hara"):
                source.put([Memory(f"cat of {name}", id="a")], namespace=name)
            copy_store(source, target)
            assert target.check() == []
            for name in ("", "ana", "o'\"hara"):
                space = target.search_view(View(name), IndexSettings())
                assert space.search("bm25", ArmQuery("cat"), k=3).ids == ["a"]


class TestTsVector(OtherEngine):
    engine = "tsvector"

    @pytest.fixture
    def url(self, pg_url):
        return pg_url

    def test_the_rank_is_that_of_cover_density(self, opened):
        """r/(r+1) with r = Σ of the weights of the places: A = 1, B = 1/2, C = 1/4."""
        opened.add("cat", id="text")
        opened.add("dog", id="title", title="cat")
        opened.add("dog", id="tags", tags=("cat",))
        opened.add("dog", id="predicate", predicate="cat")
        opened._engine.clock.now += 1
        opened.add("cat and cat", id="twice")
        found = {result.id: result.score for result in opened.search_arm("bm25", "cat", k=9)}
        assert found == pytest.approx(
            {"title": 1 / 2, "twice": 1 / 2, "text": 0.5 / 1.5, "tags": 0.5 / 1.5, "predicate": 0.25 / 1.25}
        )
        assert [result.id for result in opened.search_arm("bm25", "cat", k=2)] == ["twice", "title"]  # the newer first

    def test_questions_are_joined_by_or(self, opened):
        opened.add("Ana moved to Lisbon", id="a")
        assert [result.id for result in opened.search_arm("bm25", "Where did Ana live before Porto?")] == ["a"]

    def test_a_large_memory_is_cut_rather_than_refused(self):
        vector = engines.document("", {"text": [f"w{n:06d}" for n in range(200_000)] + ["w000000"] * 300})
        assert len(vector.encode()) < 2_000_000
        assert "'w000000':1B 'w000001':2B" in vector
        assert "'w199999'" not in vector
        assert engines.document("", {"text": ["a"] * 20_000}).count("B") == 255

    def test_k1_and_b_are_refused(self, url, schema):
        with pytest.raises(ConfigError, match="without k1 and b"):
            HybridMemory(url, schema=schema, embedder=None, lexical="tsvector", k1=1.6)

    def test_one_index_answers_words_and_namespace(self, opened, url, schema):
        for name in ("one", "two"):
            opened.namespace(name).add_many(["a giraffe", *(f"common word{n}" for n in range(300))])
        asked = []
        space = opened._engine.search_view(View("one"))
        run = space._run
        space._run = lambda statement: asked.append(statement) or run(statement)
        space.search("bm25", ArmQuery("giraffe"), k=3)
        with psycopg.connect(url) as conn:
            conn.execute(f'SET search_path = "{schema}", public')
            conn.execute("ALTER TABLE lexemes DROP CONSTRAINT lexemes_pkey")  # which so small a namespace would use
            conn.execute("SET enable_seqscan = off")
            text = asked[0].text.replace("?", "%s")
            plan = "\n".join(row[0] for row in conn.execute(f"EXPLAIN (ANALYZE) {text}", asked[0].params))
            conn.rollback()
        assert "lexemes_words" in plan
        assert "Rows Removed by Filter" not in plan

    def test_row_level_security_covers_it(self, pg_server):
        url = pg_server.database()
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("CREATE ROLE eve LOGIN")
        with HybridMemory(url, embedder=None, lexical="tsvector") as memory:
            for name in ("eve", "victim"):
                memory.namespace(name).add(f"the secret of {name}", id="s")
            memory.store.grant("eve", namespace="eve")
        with HybridMemory(url.replace("owner@", "eve@"), embedder=None, namespace="eve") as memory:
            assert [result.text for result in memory.search("secret")] == ["the secret of eve"]
            memory.add("another secret", id="t")
            assert len(memory.search("secret")) == 2
            assert memory.namespace("victim").search("secret") == []
        with psycopg.connect(url.replace("owner@", "eve@"), autocommit=True) as conn:
            assert conn.execute("SELECT DISTINCT namespace FROM hybridmem.lexemes").fetchall() == [("eve",)]
        pg_server.drop(url)
        with psycopg.connect(pg_server.url(), autocommit=True) as conn:
            conn.execute("DROP ROLE eve")


def test_an_unknown_engine(pg_url):
    for bad in ("lucene", ""):
        with pytest.raises(ConfigError, match="'bm25', 'tsvector'"):
            PostgresStore(pg_url, lexical=bad)
