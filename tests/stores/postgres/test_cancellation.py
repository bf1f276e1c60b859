"""Searching PostgreSQL from an event loop: few connections for many questions, and a cancelled one lets go."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest

from hybridmem.errors import StoreBusyError
from hybridmem.memory.memory import HybridMemory
from tests.support import postgres_server

MANY = 64
POOL = 4


def embed(texts):
    return [[float(len(text)), 1.0] for text in texts]


@pytest.fixture
def memory(pg_url, schema):
    with HybridMemory(pg_url, schema=schema, embedder=embed, pool_size=POOL, busy_timeout=30) as memory:
        memory.add_many([{"text": f"Lisbon note {n}", "id": f"n{n}"} for n in range(MANY)])
        yield memory


@pytest.fixture
def stuck(pg_url, schema):
    """Another client's lock on what every search reads: searches wait until it is released."""
    with psycopg.connect(pg_url) as conn:
        conn.execute(f'LOCK TABLE "{schema}".postings, "{schema}".embeddings IN ACCESS EXCLUSIVE MODE')
        yield conn
        conn.rollback()


def waiting(url):
    with psycopg.connect(url, autocommit=True) as conn:
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
            "AND application_name = 'hybridmem'"
        )
        return conn.execute(query).fetchone()[0]


def threads():
    return sum(thread.name.startswith("hybridmem-") for thread in threading.enumerate())


async def until(ready):
    await asyncio.to_thread(postgres_server.until, ready, what="the searches")


async def test_many_questions_share_few_connections(memory, stuck, pg_url):
    """64 at once over 4 connections: the loop goes on, there are few threads, and all are answered."""
    before = threads()
    asked = [asyncio.create_task(memory.asearch(f"note {n}", k=3)) for n in range(MANY)]
    await until(lambda: waiting(pg_url) == POOL)
    for _ in range(100):
        await asyncio.sleep(0)
    assert threads() - before <= 2 * POOL  # both arms of as many searches as there are connections
    assert not any(task.done() for task in asked)
    stuck.rollback()
    answers = await asyncio.gather(*asked)
    assert [f"n{n}" in {result.id for result in found} for n, found in enumerate(answers)] == [True] * MANY


async def test_a_cancelled_question_frees_its_connection(memory, stuck, pg_url):
    asked = [asyncio.create_task(memory.asearch("note", k=3)) for _ in range(MANY)]
    await until(lambda: waiting(pg_url) == POOL)
    for task in asked[:-1]:
        task.cancel()
    told = await asyncio.gather(*asked[:-1], return_exceptions=True)
    assert all(isinstance(error, asyncio.CancelledError) for error in told)
    await until(lambda: waiting(pg_url) == 1)  # the last one, whose turn has come; the lock still stands
    assert len(memory) == MANY  # reads what is not locked: there is a connection for it
    stuck.rollback()
    assert len(await asked[-1]) == 3
    assert memory.check() == []


async def test_a_time_limit_is_a_cancellation(memory, stuck, pg_url):
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(memory.asearch("note"), 0.2)
    await until(lambda: waiting(pg_url) == 0)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(memory.asearch_arm("bm25", "note"), 0.2)
    await until(lambda: waiting(pg_url) == 0)


async def test_turns_wait_longer_than_busy_timeout(pg_url, schema):
    """Two arms, one connection, a slow statement: the second waits for it rather than giving up."""
    with HybridMemory(pg_url, schema=schema, embedder=embed, pool_size=1, busy_timeout=0.2) as memory:
        memory.add("Lisbon note", id="a")
        pool = memory.store._db.pool
        taken = pool.getconn()
        memory.store._db._lent.add(id(taken))
        asked = asyncio.create_task(memory.asearch("Lisbon"))
        await asyncio.sleep(0.5)
        with pytest.raises(StoreBusyError, match="pool_size"):
            await asyncio.to_thread(len, memory)  # a plain read does give up
        assert not asked.done()
        memory.store._db._give(pool, taken)
        assert [result.id for result in await asked] == ["a"]


async def test_cancelled_between_two_statements(memory):
    from hybridmem.stores.postgres.cancellation import _Call, _current

    call = _Call()
    call.cancel()
    token = _current.set(call)
    with pytest.raises(StoreBusyError, match="cancelled"):
        len(memory)
    _current.reset(token)
    assert len(memory) == MANY


def test_one_event_loop_after_another(memory):
    for _ in range(2):
        assert len(asyncio.run(memory.asearch("note", k=2))) == 2
        assert len(asyncio.run(memory.asearch_arm("vector", "note", k=2))) == 2
