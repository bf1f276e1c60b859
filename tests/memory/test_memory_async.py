"""Async twins, batches of queries, and results as plain data."""

import asyncio
import inspect
import json
import threading

import pytest

from hybridmem import HybridMemory, Memory
from hybridmem.errors import ConfigError, NotFoundError

WRITE = ("add", "add_many", "update", "forget", "erase", "link", "unlink", "reinforce", "decay", "reindex", "close")
READ = ("get", "list", "history", "search", "search_many", "explain", "search_arm", "nearest", "health")
IO = (*WRITE, *READ, "check", "backup")


def embed(texts):
    return [[len(text), text.count("a") + 1.0] for text in texts]


@pytest.fixture
def memory():
    with HybridMemory(embedder=embed, clock=lambda: 1.7e9) as opened:
        yield opened


@pytest.mark.parametrize("name", IO)
def test_every_method_that_does_io_has_an_async_twin_with_the_same_parameters(name):
    own, twin = getattr(HybridMemory, name), getattr(HybridMemory, f"a{name}")
    assert inspect.iscoroutinefunction(twin)
    assert twin.__doc__
    assert twin.__name__ == f"a{name}"
    assert list(inspect.signature(twin).parameters) == list(inspect.signature(own).parameters)


async def test_the_twins_do_what_the_methods_do(memory, tmp_path):
    first = await memory.aadd("Ana has a cat", id="a", tags=["home"])
    assert first == "a"
    assert len(await memory.aadd_many(["Bob has a dog"])) == 1
    assert (await memory.aupdate("a", text="Ana has two cats")).text == "Ana has two cats"
    assert (await memory.aget("a")).tags == ("home",)
    assert len(await memory.ahistory("a")) == 2
    await memory.alink("a", (await memory.alist())[1].id)
    assert await memory.areinforce("a") == 1.0
    assert [r.id for r in await memory.asearch("cats")] == [r.id for r in memory.search("cats")]
    assert (await memory.aexplain("cats")).receipts == memory.explain("cats").receipts
    assert [r.id for r in await memory.asearch_arm("bm25", "cats")] == ["a"]
    assert (await memory.ahealth(["cats"])).queries == 1
    assert await memory.acheck() == []
    await memory.abackup(tmp_path / "copy.db")
    assert await memory.aforget("a") == 1
    with pytest.raises(NotFoundError):
        await memory.aget("a")
    assert await memory.aerase("a") == 1


async def test_a_twin_leaves_the_event_loop_free():
    loop_thread, started, release = threading.get_ident(), threading.Event(), threading.Event()

    def slow(texts):
        assert threading.get_ident() != loop_thread
        started.set()
        assert release.wait(10)
        return [[1.0, 0.0]] * len(texts)

    async with HybridMemory(embedder=slow) as memory:
        adding = asyncio.create_task(memory.aadd("a cat", id="a"))
        for _ in range(5000):
            await asyncio.sleep(0.001)  # the loop still runs
            if started.is_set():
                break
        release.set()
        assert await adding == "a"


def test_many_queries_give_what_single_ones_give(memory):
    memory.add_many([f"memory {n} about {'cats' if n % 2 else 'dogs'}" for n in range(20)])
    queries = ["cats", "dogs", "memory 3", "", "unknown"] * 3
    expected = [[(r.id, r.score) for r in memory.search(query, k=3)] for query in queries]
    for _ in range(2):  # in threads first, inline once searches are known to be fast
        assert [[(r.id, r.score) for r in found] for found in memory.search_many(queries, k=3)] == expected
    assert memory.search_many([]) == []
    with pytest.raises(ConfigError, match="queries = 'cats' is not allowed: a list of texts"):
        memory.search_many("cats")


async def test_many_queries_on_the_event_loop(memory):
    memory.add_many(["a cat", "a dog"])
    found = await memory.asearch_many(["cat", "dog"], k=1)
    assert [[r.text for r in one] for one in found] == [["a cat"], ["a dog"]]


def test_results_and_memories_as_plain_data(memory):
    kept = Memory("a cat", id="a", tags=("x",), created_at="2024-05-01", speaker="", metadata={"page": 3})
    memory.add(kept)
    data = json.loads(json.dumps(memory.search("cat")[0].to_dict()))
    assert (data["id"], data["memory"]["text"], data["memory"]["tags"]) == ("a", "a cat", ["x"])
    assert data["memory"]["created_at"] == "2024-05-01T00:00:00Z"
    assert data["memory"]["metadata"] == {"page": 3}
    assert data["receipt"]["key"] == "a"
    with HybridMemory(embedder=None) as other:
        other.add(data["memory"])
        assert other.get("a").to_dict() == data["memory"]
