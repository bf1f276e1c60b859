"""The agent's tools for LlamaIndex: the same names and texts as for LangChain."""

import asyncio

import pytest
from llama_index.core.agent.workflow import FunctionAgent

import langchain_hybridmem
from hybridmem.memory.memory import HybridMemory
from llamaindex_hybridmem import memory_tools
from tests.support.llama_fakes import Calling


@pytest.fixture
def memory():
    with HybridMemory(embedder=None) as opened:
        yield opened


def test_search_save_forget(memory):
    search, save, forget = memory_tools(memory, namespace="ana", thread="t")
    kept = save(text="Ana's cat is called Pixel.", tags=["pet"]).content.removeprefix("Saved as ").removesuffix(".")
    stored = memory.namespace("ana").get(kept)
    assert (stored.tags, stored.thread) == (("pet",), "t")
    assert f"[{kept}, " in search(query="cat").content
    save(text="Ana's cat is called Tom.", replaces=kept)
    assert "Pixel" not in search(query="cat").content
    assert memory.search("cat") == []
    other = save("Ana likes tea.").content.removeprefix("Saved as ").removesuffix(".")
    assert forget(id=other).content == f"Forgotten: {other}."
    assert search(query="tea").content == "Nothing relevant is remembered."


async def test_the_async_calls_do_the_same(memory):
    search, save, forget = memory_tools(memory)
    kept = (await save.acall(text="Ana likes tea.")).content.removeprefix("Saved as ").removesuffix(".")
    assert "Ana likes tea." in (await search.acall(query="tea")).content
    assert (await forget.acall(id=kept)).content == f"Forgotten: {kept}."
    assert (await forget.acall(id=kept)).content.startswith("there is no memory")


def test_the_model_is_told_what_it_did_wrong(memory):
    search, save, forget = memory_tools(memory)
    assert search(query="x", as_of="long ago").content.startswith("as_of = 'long ago' is not a date")
    assert save(text=" ").content == "there is nothing to save: text is empty"
    assert save(text="x", replaces="m9").content.startswith("there is no memory 'm9' to replace")
    assert forget(id="m9").content.startswith("there is no memory 'm9'")


def test_both_frameworks_have_the_same_names_texts_and_parameters(memory):
    ours = {tool.metadata.name: tool for tool in memory_tools(memory)}
    theirs = {tool.name: tool for tool in langchain_hybridmem.memory_tools(memory)}
    assert list(ours) == list(theirs) == ["search_memory", "save_memory", "forget_memory"]
    for name, tool in ours.items():
        assert tool.metadata.description == theirs[name].description
        assert set(tool.metadata.get_parameters_dict()["properties"]) == set(theirs[name].args)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pydantic, inside LlamaIndex's workflows
async def test_in_an_agent(memory):
    memory.add("My cat is called Pixel")
    model = Calling(tool="search_memory", parameter="query", argument="cat")
    agent = FunctionAgent(tools=[*memory_tools(memory)], llm=model)
    said = await asyncio.wait_for(agent.run("What is my cat called?"), 60)
    assert "My cat is called Pixel" in str(said)
