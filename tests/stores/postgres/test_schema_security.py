"""Row-level security: a hostile role with a database connection of its own sees and changes one namespace only."""

from __future__ import annotations

import time

import psycopg
import pytest

from hybridmem.core.protocols import View
from hybridmem.core.types import Edge, Memory
from hybridmem.errors import ConfigError, HybridMemError, StoreError
from hybridmem.memory.memory import HybridMemory
from hybridmem.stores.postgres.schema import TENANT_TABLES
from hybridmem.stores.postgres.store import PostgresStore

TABLES = (*TENANT_TABLES, "embeddings")


def embed(texts):
    return [[float(len(text)), 1.0] for text in texts]


@pytest.fixture(scope="module")
def url(pg_server):
    """A store of two users, one of whom (mallory) gets a database role and wishes ill."""
    url = pg_server.database()
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CREATE ROLE mallory LOGIN")
        conn.execute("CREATE ROLE boss LOGIN SUPERUSER")
    with HybridMemory(url, embedder=embed) as memory:
        for name in ("victim", "mallory"):
            view = memory.namespace(name)
            view.add(
                f"the secret of {name} is 42",
                id="s1",
                thread="t",
                speaker=name,
                title=f"Title of {name}",
                entities=("Secret",),
                metadata={"links": ["s2"]},
            )
            view.add(f"the other secret of {name}", id="s2", thread="t", entities=("Secret",))
            view.link("s1", "s2")
            memory.store.save_snapshot("x", 1, b"secret", namespace=name)
        memory.store.grant("mallory", namespace="mallory")
        memory.store.grant("mallory", namespace="mallory")
        with pytest.raises(ConfigError, match="nobody-here"):
            memory.store.grant("nobody-here", namespace="x")
        with pytest.raises(ConfigError, match="SUPERUSER"):
            memory.store.grant("boss", namespace="x")
    yield url
    pg_server.drop(url)
    with psycopg.connect(pg_server.url(), autocommit=True) as conn:
        conn.execute("DROP ROLE mallory")
        conn.execute("DROP ROLE boss")


@pytest.fixture
def hostile(url):
    with psycopg.connect(url.replace("owner@", "mallory@"), autocommit=True) as conn:
        conn.execute("SET search_path = hybridmem, public")
        yield conn


def test_the_embedder_is_on_record_before_a_role_writes(pg_server):
    """Settings are everybody's: a role cannot write them, and is told who can."""
    url = pg_server.database()
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CREATE ROLE newcomer LOGIN")
    with PostgresStore(url) as store:
        store.grant("newcomer", namespace="newcomer")
    own = {"embedder": embed, "namespace": "newcomer"}
    with HybridMemory(url.replace("owner@", "newcomer@"), **own) as memory:
        with pytest.raises(StoreError, match=r"as the owner.*reindex\(\)"):
            memory.add("too early")
        assert len(memory) == 0
    with HybridMemory(url, embedder=embed) as memory:
        memory.reindex()
    with HybridMemory(url.replace("owner@", "newcomer@"), **own) as memory:
        memory.add("in time", id="a")
        assert [result.id for result in memory.search_arm("vector", "in time")] == ["a"]
    pg_server.drop(url)
    with psycopg.connect(pg_server.url(), autocommit=True) as conn:
        conn.execute("DROP ROLE newcomer")


@pytest.mark.parametrize("table", TABLES)
def test_nothing_of_others_can_be_read(hostile, table):
    rows = hostile.execute(f"SELECT DISTINCT namespace FROM {table}").fetchall()
    assert rows == [("mallory",)]
    assert hostile.execute(f"SELECT count(*) FROM {table} WHERE namespace = 'victim'").fetchone() == (0,)
    copied = hostile.cursor()
    with copied.copy(f"COPY (SELECT * FROM {table}) TO STDOUT") as stream:
        assert b"victim" not in b"".join(bytes(part) for part in stream)


@pytest.mark.parametrize("table", TABLES)
def test_nothing_of_others_can_be_changed(hostile, url, table):
    with psycopg.connect(url) as owner:
        query = f"SELECT count(*) FROM hybridmem.{table} WHERE namespace = 'victim'"
        before = owner.execute(query).fetchone()
        assert before[0] > 0
        owner.rollback()
        assert hostile.execute(f"DELETE FROM {table} WHERE namespace = 'victim'").rowcount == 0
        assert hostile.execute(f"UPDATE {table} SET namespace = 'mallory' WHERE namespace = 'victim'").rowcount == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            hostile.execute(f"UPDATE {table} SET namespace = 'victim'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            hostile.execute(
                f'INSERT INTO {table} SELECT (jsonb_populate_record(t, \'{{"namespace": "victim"}}\')).* FROM {table} t'
            )
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            hostile.execute(f"TRUNCATE {table}")
        assert owner.execute(query).fetchone() == before


@pytest.mark.parametrize(
    "statement",
    [
        "SET ROLE owner",
        "ALTER TABLE memories DISABLE ROW LEVEL SECURITY",
        "CREATE POLICY all_mine ON memories USING (true)",
        "DROP POLICY own ON memories",
        "INSERT INTO tenants VALUES ('mallory', 'victim')",
        "UPDATE tenants SET namespace = 'victim'",
        "SELECT * FROM counter",
        "UPDATE counter SET seq = 0",
        "UPDATE meta SET value = 'x'",
        "CREATE TABLE hybridmem.trap ()",
        "CREATE INDEX ON postings (term)",
        "SET row_security = off; SELECT * FROM bodies",
        "ALTER ROLE mallory BYPASSRLS",
        "SELECT pg_read_file('postgresql.conf')",
    ],
)
def test_the_fence_cannot_be_taken_down(hostile, statement):
    with pytest.raises(psycopg.Error):
        hostile.execute(statement)


def test_functions_that_talk_see_nothing_either(hostile):
    """A cheap function in a WHERE clause runs on rows before others' conditions, but never before the policy."""
    heard = []
    hostile.add_notice_handler(lambda notice: heard.append(notice.message_primary))
    hostile.execute(
        "CREATE FUNCTION pg_temp.tell(words text) RETURNS boolean COST 0.0000001 LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE NOTICE '%', words; RETURN true; END $$"
    )
    hostile.execute("SELECT * FROM bodies WHERE pg_temp.tell(text)").fetchall()
    assert heard
    assert not [line for line in heard if "victim" in line]
    stats = hostile.execute("SELECT * FROM pg_stats WHERE schemaname = 'hybridmem' AND tablename = 'bodies'").fetchall()
    assert "victim" not in str(stats)


def test_a_version_cannot_be_slipped_under_another_namespaces_memory(hostile, url):
    with psycopg.connect(url) as owner:
        mem = owner.execute("SELECT mem FROM hybridmem.memories WHERE namespace = 'victim'").fetchone()[0]
    number = hostile.execute("SELECT seq FROM advance(1, 0)").fetchone()[0]
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        hostile.execute(
            "INSERT INTO versions SELECT %s, 'mallory', %s, at, op, live, body, vector, status, strength, "
            "access_count, last_accessed, decayed, born FROM versions LIMIT 1",
            (number, mem),
        )


def test_hybridmem_works_for_the_role_and_finds_nothing_else(url):
    with HybridMemory(url.replace("owner@", "mallory@"), embedder=embed, namespace="mallory") as memory:
        memory.add("mallory learns something", id="new")
        assert {result.id for result in memory.search("secret learns", k=9)} == {"s1", "s2", "new"}
        memory.store.touch(["s1"], namespace="mallory")
        memory.link("new", "s1")
        memory.update("new", text="mallory learns more")
        assert memory.forget("new") == 1
        wrong = memory.namespace("victim")  # code that is wrong about who it serves
        assert list(wrong.search("secret", k=9)) == []
        assert list(wrong.list()) == []
        assert list(wrong.search("secret", as_of=4_000_000_000)) == []
        assert wrong.history("s1") == []
        for arm in ("bm25", "vector", "graph"):
            assert list(wrong.search_arm(arm, "secret")) == []
        assert memory.store.namespaces() == ["mallory"]
        assert "victim" not in str(list(memory.store.export()))
        with pytest.raises(StoreError, match="may not"):
            wrong.add("planted")
        with pytest.raises(StoreError, match="may not"):
            wrong.forget("s1")
    with PostgresStore(url) as store:
        assert store.count(view=View("victim")) == 2
        assert store.edges(view=View("victim")) == [Edge("s1", "s2")]
        assert store.check() == []
        store.put([Memory("more", id="s3")], namespace="victim")
        store.revoke("mallory", namespace="mallory")
    with PostgresStore(url.replace("owner@", "mallory@")) as store:
        assert store.count(view=View("mallory")) == 0
    with PostgresStore(url) as store:
        store.grant("mallory", namespace="mallory")


def test_no_function_with_the_owners_rights_takes_unchecked_values(hostile, url):
    """A role calls every function of the schema with extreme values; nobody else's reads or times change."""
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("SET search_path = hybridmem, public")
        functions = owner.execute(
            "SELECT proname, pronargs FROM pg_proc WHERE pronamespace = 'hybridmem'::regnamespace AND prosecdef "
            "ORDER BY proname"
        ).fetchall()
        assert functions == [("advance", 2), ("given_out", 0)]
        before = owner.execute("SELECT seq, at FROM counter").fetchone()
        for step, now in ((0, 1e18), (0, float("inf")), (0, float("nan")), (-5, 0), (2**62, 0), (0, -1e300)):
            hostile.execute("SELECT * FROM advance(%s, %s)", (step, now))
        seq, at = owner.execute("SELECT seq, at FROM counter").fetchone()
        assert seq == before[0]
        assert at <= time.time() + 120
    with HybridMemory(url, embedder=embed) as memory:
        victim = memory.namespace("victim")
        id_ = victim.add("written afterwards")
        assert abs(victim.get(id_).updated_at.timestamp() - time.time()) < 120
        assert victim.history(id_)[0].at <= time.time() + 120
        assert victim.search("secret")


@pytest.mark.parametrize(
    ("table", "column"),
    [("versions", "seq"), ("bodies", "seq"), ("vectors", "seq"), ("edge_log", "seq"), ("memories", "mem")],
)
def test_numbers_that_others_will_get_cannot_be_taken(hostile, url, table, column):
    """The numbers of all namespaces come from one sequence: rows with the next ones would stop everybody's writes."""
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("SET search_path = hybridmem, public")
        last = {"seq": "SELECT seq FROM counter", "mem": "SELECT last_value FROM mems"}[column]
        number = owner.execute(last).fetchone()[0] + 1
    rest = ', "id": "squat"' if table == "memories" else ""
    record = f'{{"{column}": {number}, "namespace": "mallory"{rest}}}'
    for statement in (
        f"INSERT INTO {table} SELECT (jsonb_populate_record(t, '{record}')).* FROM {table} t LIMIT 1",
        f"UPDATE {table} SET {column} = {number} WHERE {column} = (SELECT max({column}) FROM {table})",
        f"UPDATE spaces SET seq = {2**62}",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            hostile.execute(statement)
    with HybridMemory(url, embedder=embed, namespace="victim") as memory:
        memory.add(f"not stopped by {table}", id=f"after-{table}")
        memory.link("s1", f"after-{table}")
        memory.forget(f"after-{table}")


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ana:hunter2@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=ana&password=hunter2",
        "postgresql://127.0.0.1:1/db?password=hunter2&pasword=hunter2",
        "host=127.0.0.1 port=1 password=hunter2",
        "host=127.0.0.1 port=1 password='hunter2 with spaces' nonsense",
        "postgresql://ana:hun@ter2:hunter2@127.0.0.1:1/db",
        "postgresql://ana:hunter2@127.0.0.1:port/db",
        "postgresql://ana:hunter2@[::1/db",
    ],
)
def test_a_password_is_in_no_message(address, caplog):
    with pytest.raises(HybridMemError) as caught:
        PostgresStore(address, reconnect=0.0, busy_timeout=0.1)
    error = caught.value
    while error is not None:
        assert "hunter2" not in f"{error!r} {error}"
        error = error.__cause__
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("replica", [5, b"postgresql://x", ["postgresql://x"]])
def test_a_replica_is_an_address(url, replica):
    with pytest.raises(ConfigError, match="replica = "):
        PostgresStore(url, replica=replica)
