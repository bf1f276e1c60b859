"""A LlamaIndex agent with memory tools and a long-term memory block. Runs offline with a scripted model.

pip install 'hybridmem[llamaindex]' && python examples/llamaindex_agent.py
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM

from hybridmem import HybridMemory
from llamaindex_hybridmem import HybridMemoryBlock, memory_tools


def scripted(messages: Sequence[ChatMessage], **_: Any) -> ChatMessage:
    """Stands in for a real model: saves what it is told, searches for what it is asked, repeats what it finds."""
    last = messages[-1]
    if last.role.value == "tool":
        return ChatMessage(role="assistant", blocks=[TextBlock(text=str(last.content))])
    text = str(last.content)
    if text.endswith("?"):
        call = ToolCallBlock(tool_call_id="1", tool_name="search_memory", tool_kwargs={"query": text})
    else:
        call = ToolCallBlock(tool_call_id="1", tool_name="save_memory", tool_kwargs={"text": text})
    return ChatMessage(role="assistant", blocks=[call])


async def main(folder: str) -> None:
    with HybridMemory(Path(folder) / "agent.db") as memory:
        # Tools: the model decides when to save and to search; the namespace is fixed for this user.
        agent = FunctionAgent(
            tools=[*memory_tools(memory, namespace="ana", k=3)],
            llm=MockFunctionCallingLLM(response_generator=scripted, is_chat_model=True),
        )
        print("Agent:", await agent.run("Ana's cat is called Pixel."))
        answer = str(await agent.run("What is the cat called?"))
        print("Agent:", answer)
        assert "Pixel" in answer

        # The memory block: what leaves the chat history is kept and recalled without a tool call.
        block = HybridMemoryBlock(memory=memory.namespace("ana"), shared=True, token_budget=300)
        await block.aput([ChatMessage(role="user", content="I moved to Lisbon in May.")], session_id="monday")
        recalled = await block.aget(
            [ChatMessage(role="user", content="When did I move to Lisbon?")], session_id="tuesday"
        )
        print("Block:", recalled)
        assert "in May" in recalled


with tempfile.TemporaryDirectory() as place:
    asyncio.run(main(place))
