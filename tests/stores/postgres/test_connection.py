"""What happens when a server crashes, restarts, is busy, or stands by."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import psycopg
import pytest

from hybridmem.core.protocols import ArmQuery, View
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError, SchemaVersionError, StoreBusyError, StoreError
from hybridmem.indexes.view import IndexSettings
from hybridmem.memory.memory import HybridMemory
from hybridmem.stores.postgres import schema as schemas
from hybridmem.stores.postgres.connection import adapt
from hybridmem.stores.postgres.derived import Deriver
from hybridmem.stores.postgres.store import PostgresStore
from hybridmem.text.conversation import FIRST_PERSON
from tests.support import postgres_server

NOW = View()


def two_words(texts):
    return [[float(len(text)), 1.0] for text in texts]


class TestCrashes:
    def test_kill_and_restart_during_load(self):
        """fsync on: every acknowledged write survives, searches recover by themselves, errors say what happened."""
        with postgres_server.server() as server:
            url = server.database()
            memory = HybridMemory(url, embedder=two_words, reconnect=60)
            acknowledged, refused, found = [], [], []
            crashed, stop = threading.Event(), threading.Event()

            def write():
                n = 0
                while not stop.is_set():
                    n += 1
                    try:
                        acknowledged.append(memory.add(f"fact number {n}", id=f"m{n}"))
                    except StoreError as error:
                        refused.append((f"m{n}", str(error)))

            def search():
                while not stop.is_set():
                    found.append((crashed.is_set(), len(memory.search("fact", k=3))))

            threads = [threading.Thread(target=work) for work in (write, search)]
            for thread in threads:
                thread.start()
            try:
                postgres_server.until(lambda: len(acknowledged) >= 10 and found, what="the load to begin")
                for _ in range(2):
                    before = len(acknowledged)
                    server.kill()
                    server.start()
                    crashed.set()
                    seen = len(found)
                    postgres_server.until(
                        lambda b=before, s=seen: len(acknowledged) > b + 3 and len(found) > s + 2,
                        what="writes and searches after the restart",
                    )
            finally:
                stop.set()
                for thread in threads:
                    thread.join(120)
            there = memory.store.ids(view=NOW)
            assert set(acknowledged) <= there
            assert there <= set(acknowledged) | {id_ for id_, _ in refused}
            assert [text for _, text in refused if "connection" not in text] == []
            assert found[-1] == (True, 3)
            assert memory.check() == []
            memory.close()

    def test_a_clean_restart_is_not_even_noticed(self, pg_server):
        with postgres_server.server(**postgres_server.FAST) as server:
            memory = HybridMemory(server.database(), embedder=None, reconnect=60)
            memory.add("before", id="a")
            server.stop()
            server.start()
            memory.add("after", id="b")  # the pool's connections were broken while they lay idle
            assert {result.id for result in memory.search("before after")} == {"a", "b"}
            server.stop()
            server.start()
            assert len(memory) == 2
            memory.close()

    def test_without_a_server_errors_are_clear_and_quick(self):
        with postgres_server.server(**postgres_server.FAST) as server:
            store = PostgresStore(server.database(), reconnect=0, busy_timeout=0.3)
            store.put([Memory("x", id="a")])
            server.stop()
            for call in (
                lambda: store.get(["a"], view=NOW),
                lambda: store.put([Memory("y")]),
                lambda: list(store.changes(0, view=NOW)),
            ):
                with pytest.raises(StoreError, match=r"127\.0\.0\.1"):
                    call()
            server.start()
            postgres_server.until(lambda: _answers(store), what="the store to recover")
            store.close()

    def test_a_pool_replaced_while_another_thread_waits(self, pg_url, schema):
        """After a restart one thread opens a new pool: who waits for the old one goes over, nothing is "closed"."""
        with PostgresStore(pg_url, schema=schema, pool_size=1, busy_timeout=30) as store:
            store.put([Memory("x", id="a")])
            database, answers = store._db, []
            old, held = database._take()
            late = threading.Thread(target=lambda: answers.append(store.count(view=NOW)))
            late.start()
            postgres_server.until(lambda: old.get_stats()["requests_waiting"] == 1, what="the other to wait")
            database._pool = database._open()
            old.close()
            late.join(30)
            database._give(old, held)
            assert answers == [1]


def _answers(store):
    try:
        return store.count(view=NOW) == 1
    except StoreError:
        return False


class TestStandby:
    def test_a_standby_serves_searches(self):
        with postgres_server.server(**postgres_server.FAST, wal_level="replica") as primary:
            url = primary.database()
            with HybridMemory(url, embedder=two_words) as memory:
                memory.add("Ana moved to Lisbon", id="a")
            with postgres_server.server(primary=primary, **postgres_server.FAST) as standby:
                replica = standby.url(url.rsplit("/", 1)[1])
                with HybridMemory(
                    url, embedder=two_words, replica=replica, read_your_writes=True, reconnect=5
                ) as memory:
                    for n in range(20):  # written to the primary; the search finds it wherever it looks
                        memory.add(f"Lisbon note {n}", id=f"n{n}")
                        assert f"n{n}" in {result.id for result in memory.search(f"Lisbon note {n}", k=30)}
                    router = memory.store._router
                    postgres_server.until(lambda: router.check() or not router.behind, what="the standby to follow")
                    asked, read = [], router.replica.read
                    router.replica.read = lambda work: asked.append(work) or read(work)
                    assert memory.search("Lisbon")[0].id
                    assert len(asked) >= 3  # both arms at least, after looking whether it follows
                    standby.stop()
                    assert len(memory.search("Lisbon", k=30)) == 21  # the primary steps in
                    standby.start()
                with PostgresStore(replica) as reader:  # opened alone, it reads
                    assert reader.count(view=NOW) == 21
                    with pytest.raises(StoreError, match="read-only"):
                        reader.put([Memory("x")])


class TestFirstVectors:
    def test_two_clients_write_their_first_vectors_at_once(self, pg_server):
        """The second has looked for the table, found none, and waits while the first makes it."""
        url = pg_server.database()
        with PostgresStore(url) as first, PostgresStore(url, pool_size=1, busy_timeout=30) as second:
            assert not second._has_vectors()
            late = threading.Thread(target=second.put, args=([Memory("x", id="a")],), kwargs={"vectors": [[1.0, 0.0]]})
            with first._db.write(alone=True) as conn:
                schemas.ensure_vectors(conn, "first")
                late.start()
                with psycopg.connect(url, autocommit=True) as other:
                    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                    postgres_server.until(lambda: other.execute(query).fetchone() == (1,), what="the second to wait")
            late.join(30)
            assert second.vectors(["a"], view=NOW)[0].tolist() == [1.0, 0.0]
            assert second.check() == []
        pg_server.drop(url)


class TestRefused:
    """A wrong login is told at once and in the server's words: waiting for it would not help."""

    @pytest.mark.parametrize("change", [("owner@", "nobody-here@"), ("/postgres", "/no-such-database")])
    def test_a_login_that_will_never_work(self, pg_server, change):
        with pytest.raises(StoreError, match=r"refuses the login .*does not exist"):
            PostgresStore(pg_server.url().replace(*change), reconnect=3600)

    def test_a_server_that_is_away_reports_why(self):
        with pytest.raises(StoreError, match=r"cannot be reached.*Connection refused"):
            PostgresStore("postgresql://user:secret@127.0.0.1:1/none", reconnect=0, busy_timeout=0.2)


class TestLimits:
    def test_a_busy_namespace(self, pg_url, schema):
        with PostgresStore(pg_url, schema=schema, busy_timeout=0.2) as store:
            store.put([Memory("x", id="a")], namespace="busy")
            with psycopg.connect(pg_url) as other:
                other.execute(f'SELECT 1 FROM "{schema}".spaces WHERE namespace = %s FOR UPDATE', ("busy",))
                with pytest.raises(StoreBusyError, match="busy_timeout"):
                    store.put([Memory("y")], namespace="busy")
                store.put([Memory("z")], namespace="idle")  # other namespaces do not wait
                other.rollback()
            store.put([Memory("y")], namespace="busy")

    def test_a_slow_statement_is_stopped(self, pg_url, schema):
        with (
            PostgresStore(pg_url, schema=schema, statement_timeout=0.2) as store,
            pytest.raises(StoreBusyError, match="statement_timeout"),
        ):
            store._db.read(lambda conn: conn.raw.execute("SELECT pg_sleep(30)"))

    def test_a_full_pool(self, pg_url, schema):
        with PostgresStore(pg_url, schema=schema, pool_size=1, busy_timeout=0.3, reconnect=0) as store:
            store.put([Memory(f"{n}", id=f"{n}") for n in range(1200)])
            stream = store.changes(0, view=NOW)
            next(stream)
            with pytest.raises(StoreBusyError, match="pool_size"):
                store.count(view=NOW)
            stream.close()
            assert store.count(view=NOW) == 1200

    def test_a_password_is_never_shown(self, pg_url):
        with pytest.raises(StoreError) as caught:
            PostgresStore("postgresql://me:hunter2@127.0.0.1:1/none", reconnect=0, busy_timeout=0.2)
        assert "hunter2" not in str(caught.value)


def _as_of_version_3(conn):
    conn.execute("ALTER TABLE bodies DROP speaker, DROP event_at, DROP expires_at, DROP spoken_by, DROP cues")
    conn.execute(
        "ALTER TABLE memories DROP speaker, DROP event_at, DROP expires_at, DROP cues, DROP digest, "
        "ADD asks boolean NOT NULL DEFAULT false"
    )


class TestSchema:
    def test_a_newer_schema_is_refused(self, pg_url, schema):
        PostgresStore(pg_url, schema=schema).close()
        with psycopg.connect(pg_url, autocommit=True) as conn:
            conn.execute(f"""UPDATE "{schema}".settings SET value = '99' WHERE key = 'version'""")
            with pytest.raises(SchemaVersionError, match="99"):
                PostgresStore(pg_url, schema=schema)
            conn.execute(f"""UPDATE "{schema}".settings SET value = '{schemas.VERSION}' WHERE key = 'version'""")

    def test_an_older_one_is_migrated(self, pg_url, schema, monkeypatch):
        with PostgresStore(pg_url, schema=schema) as store:
            store.put([Memory("kept", id="a")])
        steps, now = [], schemas.VERSION
        monkeypatch.setattr(schemas, "VERSION", now + 1)
        monkeypatch.setattr(schemas.prepare, "__kwdefaults__", {"version": now + 1, "migrations": {now: steps.append}})
        with PostgresStore(pg_url, schema=schema) as store:
            assert len(steps) == 1
            assert store.count(view=NOW) == 1
        PostgresStore(pg_url, schema=schema).close()
        assert len(steps) == 1
        with psycopg.connect(pg_url, autocommit=True) as conn:
            conn.execute(f"""UPDATE "{schema}".settings SET value = '{now}' WHERE key = 'version'""")

    def test_from_1_to_2_indexes_of_full_vectors_go(self, pg_server):
        url = pg_server.database()
        with PostgresStore(url) as store:
            store.put([Memory(f"{n}", id=f"{n}") for n in range(3)], vectors=[[1.0, n] for n in range(3)])
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("SET search_path = hybridmem, public")
            conn.execute(
                "CREATE INDEX embeddings_hnsw_2 ON embeddings USING hnsw ((embedding::vector(2)) vector_cosine_ops) "
                "WHERE dim = 2"
            )
            _as_of_version_3(conn)
            conn.execute("UPDATE settings SET value = '1' WHERE key = 'version'")
            with PostgresStore(url, exact_below=1) as store:
                assert conn.execute("SELECT to_regclass('embeddings_hnsw_2')").fetchone() == (None,)
                store.build_vector_index(2)
                found = store.search_view(NOW, IndexSettings()).search("vector", ArmQuery("", [1.0, 0.0]), k=2)
                assert found.ids == ["0", "1"]
            made = conn.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'embeddings_hnsw_2'").fetchone()
            assert "halfvec(2)" in made[0]
            now = conn.execute("SELECT value FROM settings WHERE key = 'version'").fetchone()
            assert now == (f"{schemas.VERSION}",)
        pg_server.drop(url)

    def test_from_2_to_3_terms_are_counted(self, pg_server):
        """Also under row-level security; and a client of before, which does not count, may not write any more."""
        url = pg_server.database()
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("CREATE ROLE counted LOGIN")
            conn.execute("SET search_path = hybridmem, public")
            with PostgresStore(url) as store:
                store.grant("counted", namespace="own")
                store.put([Memory("Ana: my cat and dog", id="a"), Memory("cat", id="b")])
                store.put([Memory("cat", id="c")], namespace="own")
            conn.execute("DROP TABLE terms")
            conn.execute("DELETE FROM settings WHERE key = 'derived'")
            _as_of_version_3(conn)
            conn.execute("UPDATE settings SET value = '2' WHERE key = 'version'")
            with PostgresStore(url) as store:
                entries = {entry.id: entry for entry in store.entries(view=NOW)}
                assert (entries["a"].speaker, entries["a"].cues) == ("ana", FIRST_PERSON)
                assert (entries["b"].speaker, entries["b"].cues) == (None, 0)
                counted = conn.execute(
                    "SELECT namespace, term, n FROM terms WHERE term IN ('cat', 'dog') ORDER BY 1, 2"
                )
                assert counted.fetchall() == [("", "cat", 2), ("", "dog", 1), ("own", "cat", 1)]
                assert store.check() == []
                old = Deriver().to_dict()
                assert old.pop("terms") == "counted"
                store._deriver = type("Older", (Deriver,), {"to_dict": lambda self: old})()
                with pytest.raises(ConfigError, match="open it again"):
                    store.put([Memory("cat", id="d")])
            with PostgresStore(url.replace("owner@", "counted@")) as store:
                store.put([Memory("cat", id="e")], namespace="own")
                assert (
                    len(store.search_view(View("own"), IndexSettings()).search("bm25", ArmQuery("cat"), k=5).ids) == 2
                )
                assert store.search_view(View(""), IndexSettings()).search("bm25", ArmQuery("cat"), k=5).ids == []
            assert conn.execute("SELECT n FROM terms WHERE (namespace, term) = ('own', 'cat')").fetchone() == (2,)
        pg_server.drop(url)

    def test_a_term_that_nobody_has_is_forgotten(self, pg_url, schema):
        with PostgresStore(pg_url, schema=schema) as store, psycopg.connect(pg_url, autocommit=True) as conn:
            store.put([Memory("secret cat", id="a"), Memory("cat", id="b")])
            store.put([Memory("dog cat", id="b")])
            query = f'SELECT term, n FROM "{schema}".terms ORDER BY 1'
            assert conn.execute(query).fetchall() == [("cat", 2), ("dog", 1), ("secret", 1)]
            store.erase(["a"])
            assert conn.execute(query).fetchall() == [("cat", 1), ("dog", 1)]
            store.delete(["b"])
            assert conn.execute(query).fetchall() == []
            assert store.check() == []

    def test_two_clients_open_an_empty_database_at_once(self, pg_server):
        url, errors = pg_server.database(), []
        barrier = threading.Barrier(4)

        def open_it(n):
            try:
                barrier.wait(30)
                with PostgresStore(url, busy_timeout=30) as store:
                    store.put([Memory(f"{n}", id=f"{n}")], vectors=[[1.0, 2.0]])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=open_it, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        with PostgresStore(url) as store:
            assert store.count(view=NOW) == 4
            assert store.check() == []
        pg_server.drop(url)

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            ("DELETE FROM postings WHERE term = 'cat'", "postings"),
            ("UPDATE terms SET n = 7 WHERE term = 'cat'", "is counted 7 times"),
            ("DELETE FROM terms WHERE term = 'cat'", "is counted 0 times"),
            ("DELETE FROM documents", "is missing in the text index"),
            ("UPDATE spaces SET memories = 7", "records 7 memories"),
            ("DELETE FROM embeddings", "vector"),
            ("UPDATE memories SET strength = 0.5", "version"),
            ("DELETE FROM bodies", "missing"),
        ],
    )
    def test_check_finds_damage(self, pg_url, schema, damage, words):
        with PostgresStore(pg_url, schema=schema) as store:
            store.put([Memory("a cat", id="a"), Memory("a dog", id="b")], vectors=[[1.0, 0.0], None])
            assert store.check() == []
            with psycopg.connect(pg_url, autocommit=True) as conn:
                conn.execute(f'SET search_path = "{schema}", public')
                conn.execute(damage)
            assert any(words in line for line in store.check())
            if "bodies" not in damage and "memories SET" not in damage:  # what is derived can be built again
                assert store.rebuild() == 2
                assert store.check() == []


def test_a_forked_child_opens_its_own_connections(pg_url, schema):
    with PostgresStore(pg_url, schema=schema) as store:
        store.put([Memory("x", id="a")])
        parents = store._db._pool
        store._db._pid = -1  # as a child sees it: the pool belongs to another process
        assert store.count(view=NOW) == 1
        assert store._db._pool is not parents
        parents.close()


class TestPartitions:
    def test_the_tables_of_searches_can_be_partitioned(self, pg_server):
        """The script of docs/scale.md, and then a life on partitions."""
        page = (Path(__file__).parents[3] / "docs" / "scale.md").read_text("utf-8")
        script = re.search(r"^```sql\n(SET search_path.*?)^```", page, re.MULTILINE | re.DOTALL).group(1)
        url = pg_server.database()
        with HybridMemory(url, embedder=two_words, namespace="ana", exact_below=10) as memory:
            memory.add_many([{"text": f"early note {n}", "id": f"e{n}", "entities": ("Ana",)} for n in range(20)])
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute(script)
                kinds = conn.execute(
                    "SELECT DISTINCT relkind FROM pg_class WHERE relname IN ('postings', 'embeddings')"
                )
                assert kinds.fetchall() == [("p",)]
            for name in ("ana", "bob"):
                memory.namespace(name).add_many([{"text": f"late note {n}", "id": f"l{n}"} for n in range(20)])
            memory.store.build_vector_index(2)
            assert {result.id for result in memory.search_arm("bm25", "early", k=30)} == {f"e{n}" for n in range(20)}
            assert len(memory.search_arm("vector", "a note", k=30)) == 30
            assert {f"e{n}" for n in range(20)} < {r.id for r in memory.search_arm("graph", "early 3", k=30)}
            assert len(memory.namespace("bob").search("note", k=30)) == 20
            assert memory.forget("e1", "l1") == 2
            assert memory.check() == []
            assert memory.store.rebuild() == 58
            assert memory.check() == []
        pg_server.drop(url)


def test_a_search_is_planned_once_for_each_connection(pg_url, schema):
    """Planning a search takes longer than running it, so its statements are prepared when they are repeated."""
    with HybridMemory(pg_url, embedder=two_words, schema=schema, pool_size=1) as memory:
        memory.add_many([f"fact number {n}" for n in range(20)])
        question = "SELECT statement FROM pg_prepared_statements"
        prepared = []
        for _ in range(3):
            memory.search("which fact", k=3)
            rows = memory.store._db.read(lambda conn: conn.raw.execute(question, prepare=False).fetchall())
            prepared.append(sum("unnest" in statement and "<#>" in statement for (statement,) in rows))
        assert prepared == [0, 1, 1]


def test_lists_of_texts_arrive_unchanged(pg_url):
    awkward = ["", " ", "NULL", "a,b", "{x}", '"', "\\", 'a"b\\c', "\n\t", "é", "a\0b", "\ud83d"]
    with psycopg.connect(pg_url) as conn:
        adapt(conn)
        for given, expected in (
            (awkward, [*awkward[:-2], "a\ufffdb", "\ufffd"]),
            ([], []),
            (["a", None], ["a", None]),
            ([["a"], ["b,c"]], [["a"], ["b,c"]]),
        ):
            assert conn.execute("SELECT %s::text[]", (given,)).fetchone() == (expected,)
