"""HybridMemory as its users use it, on a real SQLite file."""

import asyncio
import copy
import pickle
import threading
from dataclasses import replace
from datetime import datetime, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem import Fusion, GraphSettings, HybridMemory, Memory
from hybridmem.embedding.embedder import as_embedder
from hybridmem.errors import (
    ArmError,
    ConfigError,
    EmbeddingError,
    MissingExtraError,
    NotFoundError,
    StoreClosedError,
    StoreError,
)
from hybridmem.fusion.stages import HalfLife, SourceDedup

WORDS = ["cat", "dog", "lisbon", "porto", "sofa", "blue", "export", "error"]


def toy(texts):
    """A plain callable: one dimension for each known word, and one for the length."""
    return [[float(text.lower().count(word)) for word in WORDS] + [0.1 + len(text) / 1000] for text in texts]


@pytest.fixture
def memory(tmp_path):
    with HybridMemory(tmp_path / "memory.db", embedder=toy) as opened:
        yield opened


def ids(results):
    return [result.id for result in results]


def test_add_search_and_the_shape_of_a_result(memory):
    kept = memory.add("Ana moved to Lisbon", subject="ana", tags=["home"])
    other = memory.add_many(["The cat sleeps on the sofa", Memory("Ana works in Porto", id="w"), {"text": "a dog"}])
    first = memory.search("Where in Lisbon is Ana?")[0]
    assert first.id == kept
    assert first.text == first.memory.text == "Ana moved to Lisbon"
    assert first.memory.tags == ("home",)
    assert 0 < first.score <= 1
    assert first.receipt.key == kept
    assert first.receipt.score == first.score
    assert {share.arm for share in first.receipt.arms} == {"bm25", "vector"}
    assert other[1] == "w"
    assert len(memory) == 4
    assert memory.arms == ("bm25", "vector")
    assert "bm25" in repr(memory)


def test_asking_twice_gives_the_same_answer_and_changes_nothing(memory):
    memory.add_many(["the cat", "the dog", "a cat and a dog"])
    before = list(memory.list())
    once, twice = memory.search("cat dog"), memory.search("cat dog")
    assert ids(once) == ids(twice)
    assert [r.score for r in once] == pytest.approx([r.score for r in twice], rel=1e-6)
    assert list(memory.list()) == before


def test_touch_counts_the_access_only_when_asked(memory):
    key = memory.add("the cat")
    memory.search("cat")
    assert memory.get(key).access_count == 0
    memory.search("cat", touch=True)
    assert memory.get(key).access_count == 1
    assert memory.get(key).last_accessed is not None


def test_update_is_seen_at_once_and_the_history_keeps_the_old(memory):
    key = memory.add("the cat sleeps")
    memory.search("cat")
    changed = memory.update(key, text="the dog barks", tags=["pet"])
    assert changed.text == "the dog barks"
    assert ids(memory.search("dog")) == [key]
    assert memory.search("cat sleeps") == [] or memory.search("cat sleeps")[0].text == "the dog barks"
    assert [version.memory.text for version in memory.history(key)] == ["the cat sleeps", "the dog barks"]


def test_an_update_takes_every_field_as_given(tmp_path):
    now = [1_700_000_000.0]
    with HybridMemory(tmp_path / "memory.db", embedder=None, clock=lambda: now[0]) as memory:
        memory.add("the cat", id="a", confidence=0.5)
        now[0] += 10 * 86_400
        memory.decay()
        assert memory.get("a").strength == pytest.approx(np.exp(-0.01 * 10))
        assert memory.update("a", strength=1.0).strength == 1.0
        assert memory.update("a", confidence=1.0).confidence == 1.0
        memory.search("cat", touch=True)
        cleared = memory.update("a", access_count=0, last_accessed=None)
        assert (cleared.access_count, cleared.last_accessed) == (0, None)


def test_two_updates_at_once_both_count(tmp_path):
    meanwhile = []

    def embed(texts):
        while meanwhile:  # between reading and writing somebody else changes it
            meanwhile.pop()()
        return toy(texts)

    with (
        HybridMemory(tmp_path / "m.db", embedder=embed) as memory,
        HybridMemory(tmp_path / "m.db", embedder=toy) as other,
    ):
        memory.add("the cat", id="a")
        meanwhile.append(lambda: other.update("a", subject="ana"))
        meanwhile.append(lambda: other.store.touch(["a"]))
        new = memory.update("a", text="the dog")
        assert (new.text, new.subject, new.access_count) == ("the dog", "ana", 1)
        assert [v.memory.text for v in memory.history("a")] == ["the cat", "the cat", "the dog"]
        meanwhile.append(lambda: other.forget("a"))
        with pytest.raises(NotFoundError):
            memory.update("a", text="the sofa")
        assert memory.history("a")[-1].deleted


@pytest.mark.parametrize("change", [{"id": "b"}, {"namespace": "ana"}], ids=str)
def test_an_update_does_not_move_a_memory(memory, change):
    memory.add("the cat", id="a")
    with pytest.raises(TypeError):
        memory.update("a", **change)
    assert [m.id for m in memory.list()] == ["a"]


def test_a_result_can_be_pickled_and_copied(memory):
    memory.add("the cat", id="a")
    result = memory.search("cat")[0]
    assert pickle.loads(pickle.dumps(result)) == result
    assert copy.copy(result).receipt == copy.deepcopy(result).receipt == result.receipt


def test_forget_and_erase(memory):
    one, two = memory.add_many(["the cat", "the other cat"])
    assert memory.forget(one) == 1
    assert ids(memory.search("cat")) == [two]
    assert memory.history(one)[-1].deleted
    memory.erase(one)
    assert memory.history(one) == []
    with pytest.raises(NotFoundError, match="no memory"):
        memory.get(one)


def test_a_superseded_memory_is_hidden_and_kept(memory):
    memory.add("Ana lives in Porto", id="old")
    memory.add("Ana lives in Lisbon", id="new", supersedes="old")
    assert ids(memory.search("Where does Ana live?")) == ["new"]
    assert set(ids(memory.search("Where does Ana live?", superseded=True))) == {"old", "new"}
    assert {m.id: m.status for m in memory.list()} == {"old": "superseded", "new": "active"}
    assert [m.id for m in memory.list(superseded=False)] == ["new"]


def test_why_not_for_what_the_arms_could_not_see(memory):
    memory.add("Ana lives in Porto", id="old")
    memory.add("Ana lives in Lisbon", id="new", supersedes="old")
    memory.add("Ana had a cat", id="gone")
    memory.add("Ana has a dog", id="dog", type="pet")
    memory.forget("gone")
    told = memory.explain("Ana lives", filter={"type": ""})
    assert told.why_not("old") == "old: it was superseded"
    assert told.why_not("gone") == "gone: it was forgotten"
    assert told.why_not("dog") == "dog: it does not pass the filter {'type': ''}"
    assert told.why_not("nobody") == "nobody: there is no such memory"
    assert memory.explain("Ana", as_of=1).why_not("new") == "new: there is no such memory at that time"
    assert memory.explain("zzz", recipe=Fusion(weights={"bm25": 1.0})).why_not("new").startswith("new: found by no arm")


def test_health_tells_which_arm_earns_its_place(memory):
    memory.add_many(["the cat", "the dog"])
    health = memory.health(["cat", "dog", "bird"], k=2)
    assert health.queries == 3
    assert {arm.name for arm in health.arms} == {"bm25", "vector"}
    assert next(arm for arm in health.arms if arm.name == "bm25").empty == pytest.approx(1 / 3)


def test_an_arm_that_can_never_be_heard_is_told_at_construction():
    with pytest.warns(UserWarning, match="vector"):
        HybridMemory(embedder=toy, recipe=Fusion(weights={"bm25": 0.5, "vector": 0.2}), k=8).close()


def test_filters_apply_before_ranking_on_every_arm(memory):
    memory.add_many(
        [Memory(f"the cat number {i}", id=f"m{i:02}", type="even" if i % 2 == 0 else "odd") for i in range(40)]
    )
    found = memory.search("cat", k=15, filter={"type": "even"})
    assert len(found) == 15
    assert {result.memory.type for result in found} == {"even"}
    for arm in ("bm25", "vector", "graph"):
        assert {r.memory.type for r in memory.search_arm(arm, "cat", k=5, filter={"type": "odd"})} == {"odd"}
    with pytest.raises(ConfigError, match=r"\$near"):
        memory.search("cat", filter={"type": {"$near": 1}})


def test_namespaces_see_nothing_of_each_other(memory):
    ana, ben = memory.namespace("ana"), memory.namespace("ben")
    ana.add("the cat of ana", id="x")
    ben.add("the dog of ben", id="x")
    assert ids(ana.search("cat")) == ["x"]
    assert ben.search("cat", min_confidence=None)[0].text == "the dog of ben" if ben.search("cat") else True
    assert ana.get("x").text == "the cat of ana"
    assert memory.search("cat") == []
    assert memory.search("cat", namespace="ana")[0].text == "the cat of ana"
    assert (len(ana), len(ben), len(memory)) == (1, 1, 0)
    assert memory  # empty, and there
    assert ana.name == "ana"
    ana.close()
    assert ben.get("x").text == "the dog of ben"  # a view closes nothing


def test_as_of_answers_from_what_was_stored_then(tmp_path):
    clock = [1000.0]
    with HybridMemory(tmp_path / "m.db", embedder=None, clock=lambda: clock[0]) as memory:
        memory.add("Ana lives in Porto", id="old")
        clock[0] = 2000.0
        memory.add("Ana lives in Lisbon", id="new", supersedes="old")
        clock[0] = 3000.0
        memory.forget("new")
        assert ids(memory.search("Ana lives", as_of=1500)) == ["old"]
        assert ids(memory.search("Ana lives", as_of=datetime.fromtimestamp(2500, timezone.utc))) == ["new"]
        assert memory.search("Ana lives") == []
        assert memory.get("new", as_of=2500).text == "Ana lives in Lisbon"
        for moment in (1100, 1200, 1300, 1400, 1500, 1600):
            assert ids(memory.search("Ana lives", as_of=moment)) == ["old"]
        with pytest.raises(ConfigError, match="as_of = 'then'"):
            memory.search("x", as_of="then")


def test_neighbours_in_a_thread_remind_of_each_other(memory):
    memory.add_many(
        [
            Memory("user: Where does the cat sleep?", id="q", thread="t"),
            Memory("Over there, on it.", id="a", thread="t"),
        ]
    )
    memory.add("Over and over, nothing.", id="n")
    found = memory.search("Where does the cat sleep?")
    assert ids(found)[:2] == ["q", "a"]
    assert "after the question q +0.15" in str(found[1].receipt)
    assert ids(memory.search("cat sleep", recipe=Fusion(weights={"bm25": 1.0}))) == ["q"]


def test_links_and_contradictions(memory):
    memory.add("the cat is blue", id="one", strength=0.5)
    memory.add("the cat is a red cat", id="two")
    memory.add("something else entirely", id="three")
    memory.link("one", "three", "because", 1.0)
    assert "three" in ids(memory.search("cat"))
    without = {r.id: r.score for r in memory.search("blue cat")}
    assert memory.unlink("one", "three", "because")
    assert not memory.unlink("one", "three", "because")
    assert {r.id: r.score for r in memory.search("blue cat")}.get("three", 0.0) < without["three"]
    memory.link("one", "two", "contradicts")
    told = memory.explain("blue cat", recipe="competition")
    loser = next(receipt for receipt in told.receipts if receipt.key == "one")
    assert "contradicted by two" in str(loser)


def test_an_empty_source_or_thread_is_none(memory):
    memory.add_many([{"text": f"cat {n}", "id": f"c{n}", "source_id": "", "supersedes": ""} for n in range(3)])
    assert sorted(ids(memory.search("cat"))) == ["c0", "c1", "c2"]
    memory.add_many([{"text": "porto", "id": "p", "thread": ""}, {"text": "lisbon", "id": "l", "thread": ""}])
    assert ids(memory.search_arm("graph", "porto")) == ["p"]
    assert (memory.get("c0").source_id, memory.get("p").thread) == (None, None)


def test_chunks_of_one_source_are_collapsed_and_k_is_still_filled(memory):
    memory.add_many([Memory(f"cat chunk {i}", source_id="big", id=f"big{i}") for i in range(300)])
    memory.add_many(
        [Memory(f"cat paper {i} about something longer than that", source_id=f"s{i}", id=f"s{i}") for i in range(12)]
    )
    found = memory.search("cat chunk", k=10)
    assert len(found) == 10
    assert sum(result.memory.source_id == "big" for result in found) == 1
    told = memory.explain("cat chunk", k=10)
    assert "collapsed into" in told.why_not(next(f"big{i}" for i in range(300) if f"big{i}" not in ids(found)))


def test_a_far_future_is_the_future():
    with HybridMemory(embedder=None, clock=lambda: 1_700_000_000.0, recipe="competition") as memory:
        memory.add_many(
            [{"text": f"cat {year[0]}", "id": year, "created_at": f"{year}-12-31"} for year in ("9999", "2030")]
        )
        far, near = memory.search("cat")
        assert far.score == near.score


def test_strength_is_reinforced_and_decays_once_a_day(tmp_path):
    clock = [0.0]
    with HybridMemory(tmp_path / "m.db", embedder=None, clock=lambda: clock[0]) as memory:
        key = memory.add("the cat", strength=0.5)
        assert memory.reinforce(key) == pytest.approx(0.6)
        clock[0] = 86_400.0 * 3
        memory.decay()
        memory.decay()
        assert memory.get(key).strength == pytest.approx(0.6 * np.exp(-0.03))


async def test_async_gives_the_same_and_does_not_block(memory):
    memory.add_many(["the cat", "the dog"])
    found = await memory.asearch("cat")
    assert ids(found) == ids(memory.search("cat"))
    both = await asyncio.gather(memory.asearch("cat"), memory.asearch("dog"))
    assert [ids(one)[0] for one in both] == [ids(memory.search("cat"))[0], ids(memory.search("dog"))[0]]


def test_without_an_embedder_words_and_graph_work(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=None) as memory:
        memory.add("the cat")
        assert memory.arms == ("bm25",)
        assert len(memory.search("cat")) == 1
        assert memory.search("") == []
        with pytest.raises(ConfigError, match="arm = 'vector' is not allowed: 'bm25', 'graph'"):
            memory.search_arm("vector", "cat")


async def test_async_without_an_embedder():
    with HybridMemory(embedder=None) as memory:
        memory.add("the cat")
        assert len(await memory.asearch("cat")) == 1


async def test_what_needs_no_vector_is_not_embedded():
    asked = []

    def embed(texts):
        asked.extend(texts)
        return toy(texts)

    with HybridMemory(embedder=embed, recipe=Fusion(weights={"bm25": 1.0, "vector": 0.0})) as memory:
        memory.add("a cat", id="a")
        assert ids(memory.search("the cat")) == ids(await memory.asearch("my cat")) == ["a"]
    with HybridMemory(embedder=embed) as memory:
        memory.add("a cat", id="a")
        for blank in ("", "  \n"):
            assert memory.search(blank) == await memory.asearch(blank) == memory.search_arm("vector", blank) == []
    assert asked == ["a cat", "a cat"]


def test_a_function_that_gives_another_dimension_writes_nothing(tmp_path):
    with HybridMemory(tmp_path / "memory.db", embedder=lambda texts: [[1.0, 2.0] for _ in texts]) as memory:
        memory.add("a cat", id="a")
    both = r"'callable' \(2 dimensions\).*'callable' \(3 dimensions\)"
    other = HybridMemory(tmp_path / "memory.db", embedder=lambda texts: [[1.0, 2.0, 3.0] for _ in texts])
    with other, pytest.raises(EmbeddingError, match=both):
        other.add("a dog")
    with HybridMemory(tmp_path / "memory.db", embedder=lambda texts: [[1.0, 2.0] for _ in texts]) as memory:
        assert ids(memory.search("cat")) == ["a"]


async def test_a_question_that_cannot_be_embedded_fails_alike_everywhere():
    def embed(texts):
        if "boom" in texts:
            raise TypeError("no boom")
        return toy(texts)

    with HybridMemory(embedder=embed) as memory:
        memory.add("a cat")
        with pytest.raises(ArmError, match=r"arm 'vector' failed: EmbeddingError.*no boom") as sync:
            memory.search("boom")
        with pytest.raises(ArmError, match=r"arm 'vector' failed: EmbeddingError.*no boom") as other:
            await memory.asearch("boom")
    assert sync.value.arm == other.value.arm == "vector"
    assert isinstance(other.value.__cause__, EmbeddingError)


def test_an_embedding_cut_short_is_not_searched(tmp_path, monkeypatch):
    monkeypatch.setattr("hybridmem.memory.embeddings.BATCH", 2)
    left = [3]

    def other(texts):
        left[0] -= 1
        if left[0] < 0:
            raise TypeError("down")
        return [row[::-1] for row in toy(texts)]  # the same dimension, another meaning

    with HybridMemory(tmp_path / "memory.db", embedder=toy) as memory:
        memory.add_many([{"text": f"cat {n}", "id": f"c{n}"} for n in range(8)])
        with pytest.raises(EmbeddingError, match="down"):
            memory.reindex(embedder=as_embedder(other, name="other"))
        assert memory.arms == ("bm25",)
        assert len(memory.search("cat")) == 8
    left[0] = 99
    with HybridMemory(tmp_path / "memory.db", embedder=as_embedder(other, name="other")) as memory:
        assert [hit.score for hit in memory.search_arm("vector", "cat 1", k=1)] == pytest.approx([1.0])


def test_an_embedder_that_fails_does_not_take_over(tmp_path):
    def broken(_texts):
        raise ValueError("down")

    with HybridMemory(tmp_path / "memory.db", embedder=None) as memory:
        memory.add("a cat", id="a")
        with pytest.raises(EmbeddingError, match="down"):
            memory.reindex(embedder=broken)
        assert memory.arms == ("bm25",)
        assert ids(memory.search("cat")) == ["a"]


def test_another_embedder_is_refused_until_reindexed(tmp_path):
    from hybridmem.embedding.embedder import as_embedder

    path = tmp_path / "m.db"
    with HybridMemory(path, embedder=as_embedder(toy, name="toy")) as memory:
        memory.add("the cat")
    other = as_embedder(lambda texts: [[1.0, float(len(t))] for t in texts], name="other")
    with pytest.raises(EmbeddingError, match=r"toy.*other"):
        HybridMemory(path, embedder=other)
    with HybridMemory(path, embedder=None) as memory:
        assert len(memory.search("cat")) == 1
    seen = []
    with HybridMemory(path, embedder=None) as memory:
        memory.reindex(embedder=other, progress=lambda done, total: seen.append((done, total)))
        assert len(memory.search("cat")) == 1
        assert memory.search_arm("vector", "the cat")[0].score == pytest.approx(1.0, abs=1e-6)
    assert seen == [(1, 1)]
    with HybridMemory(path, embedder=other) as memory:
        assert len(memory.search("cat")) == 1


def test_what_was_written_is_there_after_reopening(tmp_path):
    path = tmp_path / "m.db"
    with HybridMemory(path, embedder=toy) as memory:
        memory.add_many([f"the cat number {i}" for i in range(2500)])
        memory.add("the blue dog", id="dog")
        before = [(r.id, r.score) for r in memory.search("blue cat number 7", k=20)]
    with HybridMemory(path, embedder=toy) as memory:
        after = memory.search("blue cat number 7", k=20)
        assert ids(after) == [key for key, _ in before]
        assert [r.score for r in after] == pytest.approx([score for _, score in before], rel=1e-4)
        assert memory.check() == []
        memory.backup(tmp_path / "copy.db")
    with pytest.raises(StoreClosedError):
        memory.search("cat")
    with HybridMemory(tmp_path / "copy.db", embedder=toy) as copy:
        assert ids(copy.search("blue dog"))[0] == "dog"


def test_a_damaged_snapshot_is_built_again(tmp_path, caplog):
    path = tmp_path / "m.db"
    with HybridMemory(path, embedder=None) as memory:
        memory.add_many([f"the cat number {i}" for i in range(50)])
        memory.search("cat")
    with HybridMemory(path, embedder=None) as memory:
        watermark, blob = memory.store.load_snapshot("bm25")
        memory.store.save_snapshot("bm25", watermark, blob[: len(blob) // 2])
        assert len(memory.search("cat number 7", k=3)) == 3
    assert "damaged" in caplog.text


@pytest.mark.parametrize("after", [1, 2_000], ids=["while searching", "when closing"])
def test_a_memory_that_cannot_be_written_is_read_and_closed(tmp_path, caplog, monkeypatch, after):
    monkeypatch.setattr("hybridmem.indexes.view.SNAPSHOT_AFTER", after)
    with HybridMemory(tmp_path / "memory.db", embedder=None) as memory:
        memory.add_many([{"text": f"cat {n}", "id": f"c{n}"} for n in range(30)])
        conn = memory.store.pool.take()
        conn.execute("PRAGMA query_only = ON")
        memory.store.pool.give(conn)
        assert len(memory.search("cat", k=5)) == 5
        with pytest.raises(StoreError, match="read-only"):
            memory.add("more")
    assert "the indexes could not be saved" in caplog.text
    with pytest.raises(StoreClosedError):
        memory.search("cat")


def test_two_memories_on_one_file_see_each_other(tmp_path):
    path = tmp_path / "m.db"
    with HybridMemory(path, embedder=toy) as one, HybridMemory(path, embedder=toy) as two:
        key = one.add("the cat")
        assert ids(two.search("cat")) == [key]
        two.update(key, text="the dog")
        assert one.search("dog")[0].text == "the dog"
        two.forget(key)
        assert one.search("dog") == []


def test_progress_counts_what_is_safe(memory):
    seen = []
    memory.add_many((f"text {i}" for i in range(2100)), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1000, None), (2000, None), (2100, None)]
    memory.add_many(["one"], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (1, 1)
    assert memory.add_many([]) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (7, "content of type int"),
        ({"txt": "x"}, "unknown field 'txt'"),
        ({"title": "x"}, "needs a 'text'; given: title"),
        ({}, "given: nothing"),
        ({"text": "x", "tags": None}, "Memory.tags must be a sequence of str, not None"),
        ({"text": "x", "entities": 5}, "Memory.entities must be a sequence of str, not 5"),
    ],
)
def test_what_cannot_be_remembered_is_refused(memory, content, message):
    with pytest.raises(ConfigError, match=message):
        memory.add(content)


@pytest.mark.parametrize("contents", ["a text", {"text": "a dict"}, Memory("a memory"), None, 5], ids=repr)
def test_add_many_takes_many(memory, contents):
    with pytest.raises(ConfigError, match="add takes one"):
        memory.add_many(contents)
    assert len(memory) == 0


@pytest.mark.parametrize(
    "how",
    [{"k": 0}, {"k": 1.5}, {"k": True}, {"recipe": "nonsense"}, {"tokens": 0}, {"namespace": 7}],
)
def test_bad_searches_are_refused(memory, how):
    with pytest.raises(ConfigError):
        memory.search("cat", **how)
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        memory.search("cat", size=3)


@pytest.mark.parametrize("how", [{"recipe": "rrf"}, {"tokens": 5}, {"touch": True}, {"min_confidence": 0.5}], ids=str)
def test_an_arm_alone_refuses_what_only_a_fusion_knows(memory, how):
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        memory.search_arm("bm25", "cat", **how)


@pytest.mark.parametrize("embedder", [None, toy])
def test_a_weight_for_an_unknown_arm_is_refused(embedder):
    with HybridMemory(embedder=embedder) as memory:
        memory.add("cat")
        with pytest.raises(ConfigError, match="unknown arm 'bm52'"):
            memory.search("cat", recipe=Fusion(weights={"bm25": 1.0, "bm52": 1.0}))


@pytest.mark.parametrize("query", [None, 5, b"cat", ["cat"]], ids=repr)
async def test_a_question_is_a_text(memory, query):
    memory.add("a cat")
    for ask in (memory.search, memory.explain, lambda query: memory.search_arm("bm25", query)):
        with pytest.raises(ConfigError, match=r"query = .* is not allowed: a text"):
            ask(query)
    with pytest.raises(ConfigError, match=r"query = .* is not allowed: a text"):
        await memory.asearch(query)
    with pytest.raises(ConfigError, match=r"queries = .* is not allowed: a list of texts"):
        memory.health("cat")


@pytest.mark.parametrize("name", [5, None, "a\ud83d", "a\x00b"], ids=repr)
def test_a_namespace_is_text_for_readers_too(memory, name):
    with pytest.raises(ConfigError, match=r"namespace = .* is not allowed: encodable text"):
        memory.namespace(name)
    with pytest.raises(ConfigError, match=r"namespace = .* is not allowed: encodable text"):
        HybridMemory(embedder=None, namespace=name)


@pytest.mark.parametrize("wrong", [5, None, ["a"]], ids=repr)
def test_an_id_is_a_text(memory, wrong):
    memory.add("a cat", id="a")
    for call in (memory.get, memory.forget, memory.erase, memory.history, memory.reinforce, memory.update):
        with pytest.raises(ConfigError, match=r"id = .* is not allowed: a str"):
            call(wrong)
    for call in (memory.get, memory.reinforce):
        with pytest.raises(NotFoundError):
            call("\ud83d")
    assert len(memory) == 1


@pytest.mark.parametrize("place", ["", None, 5, b"memory.db", "a\x00b"], ids=repr)
def test_only_places_can_be_opened(place):
    with pytest.raises(ConfigError, match=r"path = .* is not allowed: give a file"):
        HybridMemory(place, embedder=None)


@pytest.mark.parametrize("settings", [{"k1": -1}, {"b": 2}, {"graph": 5}, {"analyzer": "english"}, {"k": 0}], ids=str)
def test_wrong_settings_are_told_before_a_file_is_made(tmp_path, settings):
    with pytest.raises(ConfigError):
        HybridMemory(tmp_path / "memory.db", embedder=None, **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_token_budget_instead_of_k_alone(memory):
    memory.add_many([Memory("cat " * 30, id="long"), Memory("a cat", id="short")])
    assert ids(memory.search("cat", tokens=5)) == ["short"]


def test_a_recipe_of_ones_own(memory):
    memory.add_many([Memory("cat one", source_id="s", id="a"), Memory("cat two", source_id="s", id="b")])
    recipe = Fusion(mode="rrf", dedup=SourceDedup(key="metadata.page"), boost=HalfLife())
    assert len(memory.search("cat", recipe=recipe)) == 2
    assert len(memory.search("cat", recipe={"mode": "rrf", "dedup": {}})) == 1
    by_vector = {"diversity": {"balance": 0.5}}
    assert set(ids(memory.search("cat", recipe=by_vector))) == {"a", "b"}
    only_words = Fusion(weights={"bm25": 1.0, "vector": 0.0})
    assert {s.arm for s in memory.search("cat", recipe=only_words)[0].receipt.arms} == {"bm25"}


def test_the_graph_can_be_switched_off(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=None, graph=False) as memory:
        memory.add_many([Memory("The cat sleeps.", id="a"), Memory("There.", id="b")])
        memory.link("a", "b")
        assert ids(memory.search("cat")) == ["a"]
        assert ids(memory.search_arm("graph", "cat")) == ["a"]
    with HybridMemory(embedder=None, graph=GraphSettings(thread=0.0)) as memory:
        memory.add_many([Memory("user: Where is the cat?", thread="t"), Memory("There.", thread="t")])
        assert len(memory.search_arm("graph", "cat")) == 1
        assert len(memory.search("cat")) == 2  # threads are evidence, too


def test_many_threads_search_while_one_adds(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=toy) as memory:
        memory.add("the cat")
        stop, wrong = threading.Event(), []

        def ask():
            while not stop.is_set():
                try:
                    if not memory.search("cat"):
                        wrong.append("nothing found")
                except Exception as error:
                    wrong.append(error)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for i in range(60):
            memory.add(f"the cat number {i}")
        stop.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(memory) == 61


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abcd"), st.sampled_from(WORDS), st.sampled_from(["ana", "ben"])),
        st.tuples(st.just("forget"), st.sampled_from("abcd"), st.just(""), st.sampled_from(["ana", "ben"])),
        st.tuples(st.just("link"), st.sampled_from("abcd"), st.sampled_from("abcd"), st.sampled_from(["ana", "ben"])),
    ),
    max_size=12,
)


@given(OPERATIONS)
def test_nothing_in_one_namespace_changes_anything_in_another(operations):
    """What ana sees with ben beside her is what she sees alone: ids, scores, counts, on every arm."""

    def replay(only):
        memory = HybridMemory(embedder=toy, clock=lambda: 1000.0)
        for verb, key, word, who in operations:
            view = memory.namespace(who)
            if who not in only:
                continue
            if verb == "add":
                view.add(f"{word} thing", id=key, thread="t", entities=[word])
            elif verb == "forget":
                view.forget(key)
            elif {key, word} <= {m.id for m in view.list()}:
                view.link(key, word)
        return memory

    with replay({"ana", "ben"}) as shared, replay({"ana"}) as alone:
        for memory in (shared, alone):
            assert {m.namespace for m in memory.namespace("ana").list()} <= {"ana"}
        for word in WORDS:
            for ask in (
                lambda m, w=word: m.search(w),
                lambda m, w=word: m.search_arm("bm25", w),
                lambda m, w=word: m.search_arm("vector", w),
                lambda m, w=word: m.search_arm("graph", w),
            ):
                seen = [(r.id, r.score, r.text) for r in ask(shared.namespace("ana"))]
                assert seen == [(r.id, pytest.approx(r.score), r.text) for r in ask(alone.namespace("ana"))]
        assert len(shared.namespace("ana")) == len(alone.namespace("ana"))


def test_memories_without_vectors_are_reported(tmp_path, caplog):
    with HybridMemory(tmp_path / "memory.db", embedder=None) as plain:
        plain.add_many(["a cat", "a dog"])
        assert plain.search("cat")
    assert "without a vector" not in caplog.text
    for _ in range(2):  # the second time from what was written down
        caplog.clear()
        with HybridMemory(tmp_path / "memory.db", embedder=toy) as memory:
            assert ids(memory.search_arm("vector", "cat")) == []
            assert "memories without a vector in namespace '': 2" in caplog.text
    with HybridMemory(tmp_path / "memory.db", embedder=toy) as memory:
        memory.reindex()
        caplog.clear()
        assert len(memory.search_arm("vector", "cat")) == 2
        assert "without a vector" not in caplog.text
    with HybridMemory(tmp_path / "memory.db", embedder=None) as plain:
        plain.forget(next(iter(plain.list())).id)
    with HybridMemory(tmp_path / "memory.db", embedder=toy) as memory:
        assert len(memory.search_arm("vector", "cat")) == 1
        assert "without a vector" not in caplog.text  # the snapshot has the forgotten one, its vector is gone


def test_a_memory_without_an_embedder_is_reported(monkeypatch, caplog):
    def missing(_given):
        raise MissingExtraError("local", needs="wordllama")

    monkeypatch.setattr("hybridmem.memory.factory.as_embedder", missing)
    with caplog.at_level("INFO", "hybridmem"), HybridMemory() as memory:
        memory.add("Ana lives in Lisbon", id="a")
        assert memory.arms == ("bm25",)
        assert "pip install 'hybridmem[local]'" in caplog.text
        assert memory.explain("Lisbon").arms["vector"] == "skipped: no embedder, so only BM25 and graph search"
        assert memory.search("Lisbon")[0].receipt.arms[0].arm == "bm25"


def test_a_weight_for_an_arm_that_no_memory_has_is_refused():
    with HybridMemory(embedder=None) as memory:
        memory.add("Ana drinks tea")
        assert memory.search("tea", recipe=Fusion(weights={"bm25": 0.4, "vector": 0.6}))
        assert memory.search("tea", recipe=Fusion(weights={"vector": 1.0}))
        with pytest.raises(ConfigError, match="weights name unknown arm 'words': the arms are 'bm25'"):
            memory.search("tea", recipe=Fusion(weights={"bm25": 0.4, "words": 0.6}))


def test_notes_edited_by_hand_are_embedded_when_they_are_noticed(tmp_path, caplog):
    asked = []

    def counted(texts):
        asked.extend(texts)
        return toy(texts)

    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("a cat", encoding="utf-8")
    with HybridMemory(notes, embedder=counted) as memory:
        assert ids(memory.search_arm("vector", "cat")) == ["a"]  # written before it was opened
        memory.add("a dog", id="b")
        asked.clear()
        (notes / "c.md").write_text("a boat", encoding="utf-8")
        (notes / "a.md").write_text("now a whole car", encoding="utf-8")
        memory.store.sync()
        assert sorted(asked) == ["a\nnow a whole car", "c\na boat"]  # what stayed is not embedded again
        assert memory.search_arm("vector", "now a whole car", k=1)[0].id == "a"
        (notes / "c.md").write_text("a submarine", encoding="utf-8")
        assert memory.get("c").text == "a submarine"
        assert asked[2:] == ["now a whole car", "c\na submarine"]  # the question, and the note
        memory.store.rebuild()
        assert len(memory.search_arm("vector", "cat")) == 3
    (notes / "d.md").write_text("a plane", encoding="utf-8")

    def broken(texts):
        raise TypeError("no service")

    with HybridMemory(notes, embedder=broken) as memory:
        assert "changed notes have no vector yet" in caplog.text
        assert memory.get("d").text == "a plane"


def test_a_conversation_is_searched_without_the_words_arm():
    """Evidence from nearby turns compares with BM25, which is not asked at weight 0."""
    with HybridMemory(embedder=lambda texts: [[float("cat" in text), 0.5] for text in texts]) as memory:
        memory.add_many([Memory("a cat?", id="a", thread="t"), Memory("on the sofa", id="b", thread="t")])
        recipe = replace(memory.recipe, weights={"bm25": 0.0, "vector": 1.0})
        assert memory.search("cat", recipe=recipe)[0].id == "a"


def test_reindex_builds_a_snapshot_again_that_is_whole_but_wrong(tmp_path):
    path = tmp_path / "m.db"
    with HybridMemory(tmp_path / "other.db", embedder=None) as other:
        other.add_many([{"text": f"dog {n}", "id": f"m{n}"} for n in range(3)])
        assert len(other.search("dog")) == 3
    with HybridMemory(path, embedder=None) as memory:
        memory.add_many([{"text": f"cat {n}", "id": f"m{n}"} for n in range(3)])
        memory.namespace("ben").add("of another namespace")
        assert len(memory.search("cat")) == 3
    with HybridMemory(tmp_path / "other.db", embedder=None) as other, HybridMemory(path, embedder=None) as memory:
        for name in ("bm25", "names", "entries"):
            memory.store.save_snapshot(name, *other.store.load_snapshot(name))
        assert memory.search("cat") == []
        assert [line.split("'")[1] for line in memory.check()] == ["bm25", "entries"]
        memory.store.save_snapshot("bm25", *other.store.load_snapshot("bm25"))
        memory.reindex()
        assert len(memory.search("cat")) == 3
        assert memory.check() == []
    with HybridMemory(path, embedder=None) as memory:
        assert len(memory.search("cat")) == 3
