"""The agent's tools: search and save, each kept to its own session."""

import asyncio

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tracers.base import BaseTracer

from hybridmem.errors import ConfigError
from hybridmem.memory.memory import HybridMemory
from hybridmem.memory.results import NOTE
from langchain_hybridmem import memory_tools

NOW = [1_700_000_000.0]


@pytest.fixture
def memory():
    NOW[0] = 1_700_000_000.0
    with HybridMemory(embedder=None, clock=lambda: NOW[0]) as made:
        yield made


def saved(message):
    assert message.startswith("Saved as ")
    return message.removeprefix("Saved as ").removesuffix(".")


def shown(*lines):
    return "\n".join(["<memories>", NOTE, *lines, "</memories>"])


def test_what_is_saved_is_found(memory):
    search, save, _ = memory_tools(memory)
    kept = saved(save.invoke({"text": "Ana's cat is called Pixel.", "tags": ["pet"]}))
    assert memory.get(kept).tags == ("pet",)
    assert search.invoke({"query": "the cat"}) == shown(f"[{kept}, 2023-11-14] Ana's cat is called Pixel.")
    assert search.invoke({"query": "quantum"}) == "Nothing relevant is remembered."


def test_the_same_without_blocking_the_loop(memory):
    search, save, _ = memory_tools(memory)

    async def talk():
        kept = saved(await save.ainvoke({"text": "Ana's cat is called Pixel."}))
        return kept, await search.ainvoke({"query": "the cat"})

    kept, found = asyncio.run(talk())
    assert found == shown(f"[{kept}, 2023-11-14] Ana's cat is called Pixel.")


def test_a_correction_replaces_and_the_past_can_be_asked(memory):
    search, save, _ = memory_tools(memory)
    old = saved(save.invoke({"text": "Ana lives in Porto."}))
    NOW[0] += 30 * 86_400
    save.invoke({"text": "Ana lives in Lisbon.", "replaces": old})
    assert "Lisbon" in search.invoke({"query": "Where does Ana live?"})
    assert "Porto" not in search.invoke({"query": "Where does Ana live?"})
    assert "Porto" in search.invoke({"query": "Where does Ana live?", "as_of": "2023-11-20"})


def test_the_model_is_told_what_it_did_wrong(memory):
    search, save, _ = memory_tools(memory)
    assert search.invoke({"query": "x", "as_of": "long ago"}).startswith("as_of = 'long ago' is not a date")
    assert save.invoke({"text": " "}) == "there is nothing to save: text is empty"
    assert save.invoke({"text": "x", "replaces": "m9"}).startswith("there is no memory 'm9' to replace")
    assert asyncio.run(search.ainvoke({"query": "x", "as_of": "long ago"})).startswith("as_of = 'long ago'")
    assert len(memory) == 0


def test_a_namespace_is_fixed_whatever_the_model_says(memory):
    _, save, _ = memory_tools(memory, namespace="ana")
    save.invoke({"text": "Ana's secret is plum."})
    search, steal, _ = memory_tools(memory, namespace="ben")
    for said in ({"namespace": "ana"}, {"config": {"configurable": {"user_id": "ana"}}}, {"filter": {}}):
        assert search.invoke({"query": "secret", **said}) == "Nothing relevant is remembered."
        steal.invoke({"text": "Ben was here.", **said})
    assert [found.text for found in memory.namespace("ana").list()] == ["Ana's secret is plum."]
    assert memory.search("secret") == []
    view, *_ = memory_tools(memory.namespace("ana"))
    assert "plum" in view.invoke({"query": "secret"})


def test_a_session_is_read_from_the_run_and_never_guessed(memory):
    search, save, _ = memory_tools(memory, session_key="user_id")
    ana, ben = {"configurable": {"user_id": "ana"}}, {"configurable": {"user_id": 7}}
    save.invoke({"text": "Ana's secret is plum."}, ana)
    asyncio.run(save.ainvoke({"text": "Ben's secret is rhubarb."}, ben))
    assert "plum" in search.invoke({"query": "secret"}, ana)
    assert "plum" not in search.invoke({"query": "secret"}, ben)
    assert "rhubarb" in asyncio.run(search.ainvoke({"query": "secret"}, ben))
    assert sorted(memory.store.namespaces()) == ["7", "ana"]
    for config in (None, {}, {"configurable": {"user_id": ""}}, {"configurable": {"thread_id": "t"}}):
        with pytest.raises(ConfigError, match="no session"):
            search.invoke({"query": "secret"}, config)
        with pytest.raises(ConfigError, match="no session"):
            save.invoke({"text": "lost"}, config)
    inside, *_ = memory_tools(memory.namespace("app"), session_key="user_id")
    assert inside.invoke({"query": "secret"}, ana) == "Nothing relevant is remembered."
    with pytest.raises(ConfigError, match="give one of them"):
        memory_tools(memory, namespace="a", session_key="b")


def test_a_session_that_looks_like_a_path_reaches_into_no_other_view(memory):
    def tools(view, session):
        search, save, _ = memory_tools(view, session_key="user_id")
        config = {"configurable": {"user_id": session}}
        return lambda: search.invoke({"query": "secret"}, config), lambda: save.invoke({"text": "A secret."}, config)

    root, app, deep = memory, memory.namespace("app"), memory.namespace("app/eu")
    asked = [tools(root, "app/eu/ana"), tools(app, "eu/ana"), tools(app, "eu%2Fana"), tools(deep, "ana")]
    for place, (_, save) in enumerate(asked):
        save()
        found = [search() != "Nothing relevant is remembered." for search, _ in asked]
        assert found == [other <= place for other in range(len(asked))]


def test_what_is_said_in_one_thread_stays_together(memory):
    _, save, _ = memory_tools(memory, namespace="ana")
    kept = saved(save.invoke({"text": "Hello."}, {"configurable": {"thread_id": 5}}))
    assert memory.namespace("ana").get(kept).thread == "5"


def test_settings_reach_the_retriever_and_names_the_model(memory):
    search, save, _ = memory_tools(
        memory, k=1, filter={"tags": {"$contains": "pet"}}, search_name="recall", save_name="keep"
    )
    assert (search.name, save.name) == ("recall", "keep")
    assert set(search.args) == {"query", "as_of"}
    assert set(save.args) == {"text", "tags", "replaces", "ttl"}
    save.invoke({"text": "The cat sleeps."})
    save.invoke({"text": "The cat eats.", "tags": ["pet"]})
    found = search.invoke({"query": "cat"})
    assert "The cat eats." in found
    assert "sleeps" not in found
    with pytest.raises(TypeError, match="top"):
        memory_tools(memory, top=3)


def test_a_tool_call_gives_the_documents_too(memory):
    search, save, _ = memory_tools(memory)
    save.invoke({"text": "Ana's cat is called Pixel."})
    call = {"type": "tool_call", "name": search.name, "id": "1", "args": {"query": "cat"}}
    message = search.invoke(call)
    assert message.tool_call_id == "1"
    assert [document.page_content for document in message.artifact] == ["Ana's cat is called Pixel."]


def test_the_search_is_a_child_run_of_the_tool(memory):
    class Runs(BaseTracer):
        def _persist_run(self, run):
            self.root = run

    search, *_ = memory_tools(memory, namespace="ana")
    tracer = Runs()
    search.invoke({"query": "cat"}, {"callbacks": [tracer]})
    assert tracer.root.name == "search_memory"
    assert [child.name for child in tracer.root.child_runs] == ["FusionRetriever"]


def test_an_agent_loop_saves_and_searches(memory):
    """The few lines that an agent is: a model that calls tools, and messages that come back."""
    tools = {tool.name: tool for tool in memory_tools(memory, session_key="user_id")}
    config = {"configurable": {"user_id": "ana"}}
    calls = [
        AIMessage("", tool_calls=[{"name": "save_memory", "args": {"text": "Ana likes tea."}, "id": "1"}]),
        AIMessage("", tool_calls=[{"name": "search_memory", "args": {"query": "What does Ana like?"}, "id": "2"}]),
        AIMessage("Ana likes tea."),
    ]
    model = GenericFakeChatModel(messages=iter(calls))
    messages = [HumanMessage("Remember that I like tea. What do I like?")]
    while True:
        answer = model.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            break
        messages += [tools[call["name"]].invoke({**call, "type": "tool_call"}, config) for call in answer.tool_calls]
    assert "Ana likes tea." in messages[-2].content
    assert len(memory.namespace("ana")) == 1


def test_forgetting(memory):
    search, save, forget = memory_tools(memory, session_key="user_id")
    ana, ben = {"configurable": {"user_id": "ana"}}, {"configurable": {"user_id": "ben"}}
    kept = saved(save.invoke({"text": "Ana likes tea."}, ana))
    assert forget.invoke({"id": kept}, ben).startswith(f"there is no memory {kept!r}")
    assert forget.invoke({"id": kept}, ana) == f"Forgotten: {kept}."
    assert search.invoke({"query": "tea"}, ana) == "Nothing relevant is remembered."
    assert asyncio.run(forget.ainvoke({"id": kept}, ana)).startswith("there is no memory")
    assert set(forget.args) == {"id"}


def test_the_session_may_come_from_the_context_of_an_agent(memory):
    from langchain.agents import create_agent

    from tests.support.langchain_fakes import Scripted

    call = {"name": "save_memory", "args": {"text": "Ana likes tea."}, "id": "1"}
    model = Scripted(answers=[AIMessage("", tool_calls=[call]), AIMessage("Saved.")])
    agent = create_agent(model, [*memory_tools(memory, session_key="user_id")], context_schema=dict)
    agent.invoke({"messages": [("user", "I like tea")]}, context={"user_id": "ana"})
    assert memory.store.namespaces() == ["ana"]
    model.seen.clear()
    asyncio.run(agent.ainvoke({"messages": [("user", "I like tea")]}, context={"user_id": "ben"}))
    assert memory.store.namespaces() == ["ana", "ben"]


def test_a_fact_is_saved_once_and_may_expire(memory):
    search, save, _ = memory_tools(memory)
    kept = saved(save.invoke({"text": "Ana likes tea."}))
    assert saved(save.invoke({"text": "ana  likes TEA."})) == kept
    assert saved(asyncio.run(save.ainvoke({"text": "Ana likes tea."}))) == kept
    save.invoke({"text": "The parcel comes today.", "ttl": 3600})
    assert "parcel" in search.invoke({"query": "parcel"})
    NOW[0] += 3601
    assert search.invoke({"query": "parcel"}) == "Nothing relevant is remembered."
    assert save.invoke({"text": "x", "ttl": 0}).startswith("ttl = 0")
    assert len(memory) == 1
