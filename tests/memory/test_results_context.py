"""Turns around a result, and searches that keep only the days that a question names."""

from datetime import datetime, timedelta, timezone

import pytest

from hybridmem import HybridMemory
from hybridmem.errors import ConfigError
from hybridmem.memory.question import date_filter

NOW = datetime(2024, 6, 12, 15, tzinfo=timezone.utc)  # a Wednesday
DAY = timedelta(days=1)


@pytest.fixture(params=["sqlite", "markdown"])
def memory(request, tmp_path):
    path = tmp_path / "m.db" if request.param == "sqlite" else f"{tmp_path}/notes/"
    with HybridMemory(path, embedder=None, recipe="rrf", clock=NOW.timestamp) as opened:
        yield opened


@pytest.fixture
def chat(memory):
    words = ["hello", "giraffe", "yes", "no", "maybe", "giraffe zoo", "bye"]
    for n, word in enumerate(words):
        memory.add(word, id=f"t{n}", thread="chat", created_at=NOW + n * timedelta(minutes=1))
    memory.add("giraffe alone", id="x")
    return memory


def around(results):
    return {result.id: [turn.id for turn in result.context] for result in results}


def test_each_result_has_its_neighbours_in_reading_order(chat):
    found = around(chat.search("giraffe", context=2, k=9))
    assert set(found) == {"t1", "t5", "x"}
    assert found["x"] == []
    assert sorted(found["t1"] + found["t5"]) == ["t0", "t2", "t3", "t4", "t6"]  # each turn once
    assert found["t1"] == sorted(found["t1"])
    assert found["t5"] == sorted(found["t5"])
    assert all(result.context == () for result in chat.search("giraffe"))


def test_a_result_is_not_repeated_as_context(memory):
    for n in range(3):
        memory.add(f"giraffe {n}", id=f"t{n}", thread="t", created_at=NOW + n * DAY)
    assert around(memory.search("giraffe", context=5)) == {"t0": [], "t1": [], "t2": []}


def test_the_token_budget_holds_for_results_and_context(chat):
    texts = {m.id: m.text for m in chat.list()}
    for tokens in range(1, 14):
        found = chat.search("giraffe", context=3, tokens=tokens)
        used = [result.id for result in found] + [turn.id for result in found for turn in result.context]
        assert len(used) == len(set(used))
        assert sum(-(-len(texts[id_]) // 4) for id_ in used) <= tokens


def test_context_as_of_a_time_and_of_another_namespace(memory):
    ana = memory.namespace("ana")
    ana.add("giraffe", id="a", thread="t", created_at=NOW)
    ana.add("and a lion", id="b", thread="t", created_at=NOW + DAY)
    assert around(memory.search("giraffe", namespace="ana", context=1)) == {"a": ["b"]}
    ana.forget("b")
    assert around(ana.search("giraffe", context=1)) == {"a": []}
    assert around(memory.spanning("").search("giraffe", context=1))


async def test_in_async_code_and_as_plain_data(chat):
    found = await chat.asearch("giraffe zoo", context=1, k=1)
    assert [turn["id"] for turn in found[0].to_dict()["context"]] == ["t4", "t6"]
    both = await chat.asearch_many(["giraffe zoo", "hello"], context=1, k=1)
    assert [around(one) for one in both] == [{"t5": ["t4", "t6"]}, {"t0": ["t1"]}]


@pytest.mark.parametrize("context", [-1, 1.5, "2", True], ids=repr)
def test_context_is_a_number_of_turns(memory, context):
    with pytest.raises(ConfigError, match=r"context = .* is not allowed"):
        memory.search("x", context=context)


# --- dates


def test_strict_keeps_only_the_days_that_the_question_names(memory):
    for days in (0, 1, 2, 9, 400):
        memory.add(f"we decided something {days}", id=str(days), created_at=NOW - days * DAY)
    memory.add("we decided on paper", id="e", created_at=NOW - 400 * DAY, event_at=NOW - DAY)

    def kept(query, **how):
        return sorted(result.id for result in memory.search(query, k=20, **how))

    assert kept("what was decided yesterday?") == ["0", "1", "2", "400", "9", "e"]
    assert kept("what was decided yesterday?", time="strict") == ["1", "e"]
    assert kept("what was decided today?", time="strict") == ["0"]
    assert kept("what was decided?", time="strict") == ["0", "1", "2", "400", "9", "e"]
    assert kept("decided before 2024", time="strict") == ["400"]
    assert kept("decided yesterday", time="strict", filter={"id": {"$ne": "e"}}) == ["1"]
    assert kept("decided in June", time="strict") == ["0", "1", "2", "9", "e"]
    assert "does not pass the filter" in memory.explain("decided yesterday", time="strict").why_not("9")
    with pytest.raises(ConfigError, match="time = 'exact' is not allowed: 'graded', 'strict'"):
        memory.search("x", time="exact")


def test_the_filter_of_a_day():
    (event, created) = date_filter("on 7 May 2023", NOW.timestamp())["$or"]
    day = datetime(2023, 5, 7, tzinfo=timezone.utc)
    assert event == {"event_at": {"$gte": day, "$lt": day + DAY}}
    assert created == {"event_at": None, "created_at": {"$gte": day, "$lt": day + DAY}}
