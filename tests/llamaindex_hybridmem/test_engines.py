"""Our retrievers where LlamaIndex users put them: query engines, chat engines, tools and agents."""

import asyncio

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.tools import QueryEngineTool, RetrieverTool

from hybridmem.errors import ConfigError
from llamaindex_hybridmem import FusionRetriever, QueryFusionRetriever
from llamaindex_hybridmem.tools import retriever_tool
from tests.support.llama_fakes import Calling, Fixed, Letters, Reciting, node, scored

NODES = [
    node("cat", text="Ana's cat is called Pixel.", metadata={"updated_at": "2024-05-01"}),
    node("city", text="Ana lives in Lisbon."),
    node("job", text="Ana works at night."),
]


def fusion(**more):
    index = VectorStoreIndex(NODES, embed_model=Letters())
    arms = {"words": Fixed(scored(NODES[:2])), "meaning": index.as_retriever(similarity_top_k=2)}
    return FusionRetriever(arms, half_life=30, dedup=True, **more)


def drop_in():
    index = VectorStoreIndex(NODES, embed_model=Letters())
    return QueryFusionRetriever(
        [Fixed(scored(NODES[:2])), index.as_retriever(similarity_top_k=2)], mode="reciprocal_rerank", num_queries=1
    )


@pytest.fixture(params=[fusion, drop_in], ids=["fusion", "drop-in"])
def retriever(request):
    return request.param()


def clean(llm):
    """The prompts hold the nodes' texts and nothing of receipts."""
    everything = "\n".join(llm.prompts)
    assert "Ana's cat is called Pixel." in everything
    for trace in ("recency", "best of source", "receipt", "hybridmem", "_why", "#1"):
        assert trace not in everything
    return True


def test_query_engine(retriever):
    llm = Reciting(text="It is Pixel.")
    response = RetrieverQueryEngine.from_args(retriever, llm=llm).query("What is Ana's cat called?")
    assert str(response) == "It is Pixel."
    assert response.source_nodes[0].node_id == "cat"
    assert clean(llm)


async def test_query_engine_async(retriever):
    llm = Reciting(text="It is Pixel.")
    response = await RetrieverQueryEngine.from_args(retriever, llm=llm).aquery("What is Ana's cat called?")
    assert str(response) == "It is Pixel."
    assert clean(llm)


def test_query_engine_streaming(retriever):
    llm = Reciting(text="It is Pixel.")
    response = RetrieverQueryEngine.from_args(retriever, llm=llm, streaming=True).query("What is Ana's cat called?")
    assert "".join(response.response_gen).split() == ["It", "is", "Pixel."]
    assert {n.node_id for n in response.source_nodes} >= {"cat"}


async def test_query_engine_streaming_async(retriever):
    engine = RetrieverQueryEngine.from_args(
        retriever, llm=Reciting(text="It is Pixel."), streaming=True, use_async=True
    )
    response = await engine.aquery("What is Ana's cat called?")
    assert [word.strip() async for word in response.async_response_gen()] == ["It", "is", "Pixel."]


def test_query_engine_with_a_postprocessor_keeps_the_receipts():
    engine = RetrieverQueryEngine.from_args(
        fusion(), llm=Reciting(), node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.3)]
    )
    source = engine.query("cat").source_nodes[0]
    assert 0.3 <= source.score <= 1
    assert {share.arm for share in source.receipt.arms} == {"words", "meaning"}


def test_context_chat_engine(retriever):
    llm = Reciting(text="Pixel.")
    memory = ChatMemoryBuffer.from_defaults(token_limit=2000, tokenizer_fn=str.split)
    engine = ContextChatEngine.from_defaults(retriever=retriever, llm=llm, memory=memory)
    assert str(engine.chat("What is Ana's cat called?")) == "Pixel."
    assert asyncio.run(engine.achat("And where?")).source_nodes
    assert "".join(engine.stream_chat("Again?").response_gen).strip() == "Pixel."
    assert clean(llm)


def test_condense_plus_context_chat_engine(retriever):
    llm = Reciting(text="Pixel.")
    memory = ChatMemoryBuffer.from_defaults(token_limit=2000, tokenizer_fn=str.split)
    engine = CondensePlusContextChatEngine.from_defaults(retriever=retriever, llm=llm, memory=memory)
    assert str(engine.chat("What is Ana's cat called?")) == "Pixel."
    assert str(asyncio.run(engine.achat("And where?"))) == "Pixel."
    assert clean(llm)


def test_llama_indexs_own_retriever_tool(retriever):
    tool = RetrieverTool.from_defaults(retriever=retriever, name="notes", description="Ana's notes")
    assert "Pixel" in tool.call("cat").content
    assert "Pixel" in asyncio.run(tool.acall(input="cat")).content


def test_query_engine_tool(retriever):
    engine = RetrieverQueryEngine.from_args(retriever, llm=Reciting(text="It is Pixel."))
    tool = QueryEngineTool.from_defaults(engine, name="notes", description="Ana's notes")
    assert tool.call(input="cat").content == "It is Pixel."
    assert asyncio.run(tool.acall(input="cat")).content == "It is Pixel."


# --- our own tool


def test_defect_llama_indexs_tool_does_not_send_what_the_agent_asked():
    arm = Fixed(scored(NODES[:1]))
    RetrieverTool.from_defaults(retriever=FusionRetriever([arm])).call(input="Ana's cat")
    FusionRetriever([arm]).as_tool().call(input="Ana's cat")
    assert [bundle.query_str for bundle in arm.asked] == ["\ninput is Ana's cat\n", "Ana's cat"]


def asked(retriever):
    arm = Fixed(scored(NODES[:1]))
    retriever = FusionRetriever([arm]) if retriever is fusion else QueryFusionRetriever([arm], num_queries=1)
    return arm, retriever.as_tool(name="notes", description="Ana's notes")


@pytest.mark.parametrize("kind", [fusion, drop_in])
def test_our_tool_passes_a_clean_query(kind):
    arm, tool = asked(kind)
    tool.call("by place")
    tool.call(input="by name")
    tool.call(query="by another name")
    asyncio.run(tool.acall(input="async"))
    assert [bundle.query_str for bundle in arm.asked] == ["by place", "by name", "by another name", "async"]
    assert (tool.metadata.name, tool.metadata.description) == ("notes", "Ana's notes")
    output = tool.call(input="cat")
    assert output.content == "updated_at: 2024-05-01\n\nAna's cat is called Pixel."
    assert output.raw_input == {"input": "cat"}
    assert output.raw_output[0].node_id == "cat"


def test_our_tool_takes_one_text():
    _, tool = asked(fusion)
    assert tool.call(input="cat", limit=3).raw_input == {"input": "cat"}
    for bad in [{}, {"limit": 3}, {"query": "a", "other": "b"}]:
        with pytest.raises(ConfigError, match="it takes one text, `input`"):
            tool.call(**bad)


def test_our_tool_has_postprocessors():
    tool = retriever_tool(fusion(), postprocessors=[SimilarityPostprocessor(similarity_cutoff=2.0)])
    assert tool.metadata.name == "search"
    assert tool.call("cat").content == ""
    assert asyncio.run(tool.acall("cat")).content == ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pydantic, inside LlamaIndex's workflows
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("kind", [fusion, drop_in])
async def test_an_agent_asks_a_clean_question(kind, streaming):
    arm, tool = asked(kind)
    agent = FunctionAgent(tools=[tool], llm=Calling(argument="Ana's cat", tool="notes"), streaming=streaming)
    said = await asyncio.wait_for(agent.run("What is Ana's cat called?"), 60)
    assert "Ana's cat is called Pixel." in str(said)
    assert [bundle.query_str for bundle in arm.asked] == ["Ana's cat"]
