"""FusionRetriever over a HybridMemory."""

import asyncio
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from langchain_core.runnables import ConfigurableField, RunnableLambda

from hybridmem.errors import ConfigError
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import QualityGate
from hybridmem.memory.memory import HybridMemory
from langchain_hybridmem import FusionRetriever
from tests.support.langchain_fakes import NOW, ask, plain, scores


@pytest.fixture
def memory():
    with HybridMemory(embedder=lambda texts: [[1.0, len(text) / 10] for text in texts], clock=lambda: NOW) as made:
        view = made.namespace("ana")
        view.add_many(
            [
                {"id": "m1", "text": "Ana moved to Lisbon", "tags": ["home"], "type": "fact"},
                {"id": "m2", "text": "Ana has a cat called Pixel", "type": "fact", "metadata": {"pet": "cat"}},
                {"id": "m3", "text": "Lisbon is by the sea", "created_at": datetime(2020, 1, 1, tzinfo=timezone.utc)},
            ]
        )
        made.namespace("bob").add("Bob moved to Lisbon too", id="b1")
        yield view


def test_a_memory_gives_the_same_ids_and_scores_as_its_own_search(memory):
    retriever = FusionRetriever.from_memory(memory)
    for said in ({}, {"k": 1}, {"filter": {"type": "fact"}}, {"namespace": "bob"}):
        expected = memory.search("Who moved to Lisbon?", **said)
        found = ask(retriever, "Who moved to Lisbon?", **said)
        assert [(d.id, d.page_content, d.metadata["score"]) for d in found] == [
            (result.id, result.text, result.score) for result in expected
        ]
        assert found
    set_up = FusionRetriever.from_memory(memory, k=1, namespace="bob", filter={"id": "b1"})
    assert [d.id for d in ask(set_up, "Lisbon")] == ["b1"]
    assert ask(set_up, "Lisbon", filter={"id": "m1"}) == []


def test_a_memorys_fields_are_metadata(memory):
    found = {d.id: d.metadata for d in ask(FusionRetriever(memory=memory, with_scores=False), "Lisbon Pixel")}
    assert (found["m1"]["tags"], found["m1"]["type"]) == (["home"], "fact")
    assert found["m2"]["pet"] == "cat"
    assert found["m3"]["created_at"] == "2020-01-01T00:00:00Z"
    assert "score" not in found["m1"]
    receipts = ask(FusionRetriever.from_memory(memory, receipts=True), "Lisbon")
    assert receipts[0].metadata["hybridmem"]["key"] == receipts[0].id


def test_a_memory_can_be_asked_as_of_a_time_and_by_another_recipe(memory):
    retriever = FusionRetriever.from_memory(memory)
    assert ask(retriever, "Lisbon", as_of="2001-01-01") == []
    assert ask(FusionRetriever.from_memory(memory, as_of="2001-01-01"), "Lisbon") == []
    plain_rrf = FusionRetriever.from_memory(memory, recipe="rrf", weights={"bm25": 1.0})
    expected = memory.search("Lisbon", recipe=Fusion(weights={"bm25": 1.0}))
    assert [(d.id, d.metadata["score"]) for d in ask(plain_rrf, "Lisbon")] == [(r.id, r.score) for r in expected]
    half = FusionRetriever.from_memory(memory, half_life=1)
    assert half.explain("Lisbon").receipts
    assert memory.explain("Lisbon").receipts == asyncio.run(retriever.aexplain("Lisbon")).receipts


def test_a_setting_that_is_changed_later_leaves_the_memorys_recipe_alone(memory):
    expected = [(result.id, result.score) for result in memory.search("Who moved to Lisbon?", k=2)]
    changed = FusionRetriever.from_memory(memory)
    assert (changed.mode, changed.c) == (memory.recipe.mode, memory.recipe.c) == ("convex", 60)
    changed.k = 2
    copied = FusionRetriever.from_memory(memory).model_copy(update={"k": 2})
    configured = FusionRetriever.from_memory(memory).configurable_fields(k=ConfigurableField(id="k"))
    for retriever in (changed, copied, configured.with_config(configurable={"k": 2})):
        assert [(d.id, d.metadata["score"]) for d in ask(retriever, "Who moved to Lisbon?")] == expected
    changed.mode = "rrf"
    plain_rrf = memory.search("Who moved to Lisbon?", k=2, recipe=replace(memory.recipe, mode="rrf"))
    assert scores(changed.invoke("Who moved to Lisbon?")) == [result.score for result in plain_rrf]
    changed.recipe = None
    assert changed.mode == "convex"


def test_a_memory_has_arms_of_its_own(memory):
    for bad in ({"retrievers": [plain("a")]}, {"id_key": "x"}, {"search_kwargs": {"a": {}}}, {"clock": lambda: 0}):
        with pytest.raises(ConfigError, match="does not go with a memory"):
            FusionRetriever.from_memory(memory, **bad)
    for bad, message in (
        ({"gate": {"words": 1.0}}, "gate floor names unknown arm 'words': the arms are 'bm25', 'vector'"),
        ({"timeout": {"bm25": 1.0}}, "timeout names unknown arm 'bm25': the arms are 'memory'"),
        ({"k": 0}, "k = 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            FusionRetriever.from_memory(memory, **bad)
    assert FusionRetriever.from_memory(memory, timeout={"memory": 30.0}).invoke("Lisbon")
    with pytest.raises(ConfigError):
        FusionRetriever.from_memory(memory).invoke("x", filter={"a": {"$like": "b"}})


def test_a_memorys_receipts_tell_of_the_fallback(memory):
    nothing_passes = Fusion(weights={"bm25": 1.0}, gate=QualityGate(floor=1e9))
    found = ask(FusionRetriever.from_memory(memory, recipe=nothing_passes, receipts=True), "Lisbon")
    assert found
    assert all(document.metadata["hybridmem"]["degraded"] for document in found)


def test_a_failing_memory_is_skipped_when_asked():
    class Broken:
        recipe = Fusion()

        def search(self, query, **how):
            raise LookupError("gone")

        explain = asearch = search

    with pytest.raises(LookupError, match="gone"):
        FusionRetriever(memory=Broken()).invoke("?")
    assert FusionRetriever(memory=Broken(), on_error="skip").invoke("?") == []
    told = FusionRetriever(memory=Broken(), on_error="skip").explain("?")
    assert told.why_not("m1") == "m1: found by no arm (memory: skipped: LookupError: gone)"


def test_the_turns_around_a_result_are_its_metadata(memory):
    memory.add_many(
        [
            {"id": f"t{n}", "text": text, "thread": "chat", "speaker": "Ana", "created_at": f"2024-05-0{n + 1}"}
            for n, text in enumerate(["Hello there", "The rocket lands at noon", "Good to hear", "Bye"])
        ]
    )
    retriever = FusionRetriever.from_memory(memory, k=1)
    (found,) = ask(retriever, "When does the rocket land?", context=1)
    assert found.id == "t1"
    assert [(turn["id"], turn["text"], turn["speaker"]) for turn in found.metadata["context"]] == [
        ("t0", "Hello there", "Ana"),
        ("t2", "Good to hear", "Ana"),
    ]
    assert found.metadata["context"][0]["created_at"] == "2024-05-01T00:00:00Z"
    set_up = FusionRetriever.from_memory(memory, k=1, context=2)
    assert [turn["id"] for turn in ask(set_up, "The rocket lands at noon")[0].metadata["context"]] == ["t0", "t2", "t3"]
    assert "context" not in ask(set_up, "The rocket lands at noon", context=0)[0].metadata
    assert set_up.explain("The rocket lands at noon").receipts[0].key == "t1"


def test_only_a_memory_knows_the_turns_around_a_result(memory):
    with pytest.raises(ConfigError, match="context = -1 is not allowed"):
        FusionRetriever.from_memory(memory, context=-1).invoke("rocket")
    plain_arm = FusionRetriever(retrievers=[RunnableLambda(lambda _: ["a text"])])
    assert len(plain_arm.invoke("text", context=0)) == 1
    with pytest.raises(ConfigError, match="context = 2: arm 'retriever_1' does not understand 'context'"):
        plain_arm.invoke("text", context=2)
