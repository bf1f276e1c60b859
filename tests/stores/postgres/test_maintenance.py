"""Vectors and words in the server: equals at the edge of the k best, and the HNSW index that is built by itself."""

from __future__ import annotations

import logging
import time

import numpy as np
import psycopg
import pytest

from hybridmem.core.protocols import ArmQuery, View
from hybridmem.core.types import Memory
from hybridmem.indexes.view import IndexSettings
from hybridmem.memory.memory import HybridMemory
from hybridmem.stores.postgres.store import PostgresStore
from hybridmem.testing.store_model import Clock
from tests.support import postgres_server

NOW = View()


@pytest.fixture
def url(pg_server):
    made = pg_server.database()
    yield made
    pg_server.drop(made)


def fill(store, count=300, dim=4):
    vectors = np.random.default_rng(5).standard_normal((count, dim)).astype(np.float32)
    store.put([Memory(f"text {n}", id=f"m{n}") for n in range(count)], vectors=list(vectors))
    return vectors


def index_of(conn, dim=4):
    """None: no index; otherwise whether it is ready."""
    query = f"SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('hybridmem.embeddings_hnsw_{dim}')"
    row = conn.execute(query).fetchone()
    return None if row is None else row[0]


class TestEquals:
    """More memories equal the k-th than are fetched at first: the newest of them all come first, then the ids."""

    @pytest.mark.parametrize("arm", ["bm25", "vector"])
    @pytest.mark.parametrize("k", [1, 5, 20])
    def test_the_newest_of_all_equals_win(self, pg_url, pg_schemas, arm, k):
        schema, clock = pg_schemas.take(), Clock()
        embed = lambda texts: [[1.0, float(len(text))] for text in texts]
        found = []
        for path, options in ((pg_url, {"schema": schema}), (":memory:", {})):
            with HybridMemory(path, embedder=embed, clock=clock, **options) as memory:
                for part in range(3):
                    clock.now = 1_700_000_000.0 + part
                    memory.add_many([{"text": "tea", "id": f"m{part}-{n:02}"} for n in range(30)])
                memory.add_many([{"text": "tea tea", "id": "best"}])
                found.append([result.id for result in memory.search_arm(arm, "tea", k=k)])
        pg_schemas.give(schema)
        assert found[0] == found[1]
        others = [id_ for id_ in found[0] if id_ != "best"]
        assert others == [f"m2-{n:02}" for n in range(len(others))]


class TestBuiltByItself:
    def search(self, store, vectors):
        return store.search_view(NOW, IndexSettings()).search("vector", ArmQuery("", vectors[7]), k=3)

    def test_a_search_of_many_vectors_starts_it(self, url):
        with PostgresStore(url, exact_below=200) as store, psycopg.connect(url, autocommit=True) as conn:
            vectors = fill(store, 199)
            self.search(store, vectors)
            store.put([Memory("one more", id="more")], vectors=[vectors[0]])
            assert index_of(conn) is None  # too few until now, and writing alone brings nothing about
            before = self.search(store, vectors)
            postgres_server.until(lambda: index_of(conn), what="the index")
            space = store.search_view(NOW, IndexSettings())
            after = space.search("vector", ArmQuery("", vectors[7]), k=3)
            assert space._is_large(4)
            assert after.ids[0] == before.ids[0] == "m7"
            assert after.scores == pytest.approx(before.scores, abs=1e-6)
            assert store.check() == []

    def test_it_can_be_switched_off(self, url):
        with PostgresStore(url, exact_below=200, auto_index=False) as store:
            vectors = fill(store)
            assert self.search(store, vectors).ids[0] == "m7"
            assert store._indexes._requested == set()

    def test_who_may_not_build_it_is_reported_once_and_searches_exactly(self, url, caplog):
        with PostgresStore(url) as store:
            vectors = fill(store)
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute("DROP ROLE IF EXISTS reader")
                conn.execute("CREATE ROLE reader LOGIN")
            store.grant("reader", namespace="")
        with (
            caplog.at_level(logging.WARNING, logger="hybridmem"),
            PostgresStore(url.replace("owner@", "reader@"), exact_below=200) as store,
        ):
            for _ in range(3):
                assert self.search(store, vectors).ids[0] == "m7"
            postgres_server.until(lambda: caplog.messages, what="the warning")
            time.sleep(0.05)
            assert len(caplog.messages) == 1
            assert "must be owner" in caplog.messages[0]


class TestBuilding:
    def test_one_builder_at_a_time(self, url):
        """While another client builds, an automatic build leaves it to it, and an explicit one waits for it."""
        with PostgresStore(url) as store, psycopg.connect(url, autocommit=True) as conn:
            fill(store)
            with store._db.alone() as other, store._indexes._builder_lock(other, wait=False) as mine:
                assert mine
                store._indexes.build(4, wait=False)
                assert index_of(conn) is None
            store._indexes.build(4)
            assert index_of(conn)

    def test_a_broken_one_is_built_anew_with_progress(self, url, monkeypatch):
        monkeypatch.setattr("hybridmem.stores.postgres.maintenance._POLL", 0.001)
        with PostgresStore(url) as store, psycopg.connect(url, autocommit=True) as conn:
            fill(store, 3000, dim=16)
            store.build_vector_index(16)
            broken = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = "
            conn.execute(f"{broken}'hybridmem.embeddings_hnsw_16'::regclass")
            told = []
            store.build_vector_index(16, progress=lambda done, total: told.append((done, total)))
            assert index_of(conn, 16)
            assert told
            assert all(0 <= done <= total for done, total in told)


def test_no_table_has_a_word_of_an_erased_memory(pg_url, schema):
    def embed(texts):
        return [[float(len(text)), 1.0] for text in texts]

    with HybridMemory(pg_url, schema=schema, embedder=embed) as memory:
        memory.add("Ana is a xylophonist, she says", id="a", title="The xylophonist", thread="t", speaker="Xylophonist")
        memory.add("Is Ana a xylophonist?", id="q", thread="t")
        memory.add("B", id="b", thread="t")
        memory.link("a", "b", "xylophonist of")
        memory.store.save_snapshot("bm25", memory.store.last_seq(), b"xylophonist")
        memory.erase("a", "q")
        assert memory.search("B")
    with psycopg.connect(pg_url, autocommit=True) as conn:
        tables = conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
        assert len(tables) > 15
        for (table,) in tables:
            query = f'SELECT count(*) FROM "{schema}"."{table}" t WHERE t::text ILIKE \'%xylophon%\''
            assert conn.execute(query).fetchone() == (0,), table
