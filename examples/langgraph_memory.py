"""An agent with long-term memory in LangGraph: middleware that recalls and saves, and a store. Runs offline.

pip install 'hybridmem[agents,langgraph]' && python examples/langgraph_memory.py
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field

from hybridmem import HybridMemory
from langchain_hybridmem import HybridStore, MemoryMiddleware


class Scripted(BaseChatModel):
    """Stands in for a real model: `create_agent("openai:gpt-…", …)` takes its place in an application."""

    answers: list[AIMessage]
    prompts: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, *, tool_choice: str | None = None, **_: Any) -> Any:  # noqa: ARG002
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.prompts.append(messages)
        return ChatResult(generations=[ChatGeneration(message=self.answers.pop(0))])


@dataclass
class User:
    user_id: str


@tool
def note_preference(topic: str, preference: str, runtime: ToolRuntime[User, Any]) -> str:
    """Write down what the user prefers."""
    assert runtime.store is not None
    runtime.store.put(("preferences", runtime.context.user_id), topic, {"text": preference})
    return "noted"


ask_tool = {"name": "note_preference", "args": {"topic": "tea", "preference": "Ana drinks green tea"}, "id": "1"}
model = Scripted(
    answers=[
        AIMessage("Nice to meet Pixel!"),
        AIMessage("", tool_calls=[ask_tool]),
        AIMessage("I have written it down."),
        AIMessage("Your cat is called Pixel."),
    ]
)

with tempfile.TemporaryDirectory() as folder, HybridMemory(Path(folder) / "agent.db") as memory:
    store = HybridStore(memory.namespace("store"))
    agent = create_agent(
        model,
        [note_preference],
        middleware=[MemoryMiddleware(memory, session_key="user_id", token_budget=500)],
        store=store,
        checkpointer=InMemorySaver(),
        context_schema=User,
    )

    def say(text: str, *, user: str, thread: str) -> str:
        config: RunnableConfig = {"configurable": {"thread_id": thread}}
        state = agent.invoke({"messages": [HumanMessage(text)]}, config, context=User(user_id=user))
        return str(state["messages"][-1].content)

    print("Monday: ", say("My cat is called Pixel.", user="ana", thread="monday"))
    print("Monday: ", say("I like green tea.", user="ana", thread="monday"))

    # Another conversation: the middleware recalls without a tool call.
    question = "What is the name of my cat?"
    print("Tuesday:", say(question, user="ana", thread="tuesday"))
    recalled = str(model.prompts[-1][-2].content)
    print(recalled)
    assert "My cat is called Pixel." in recalled

    # The store, searched by words and meaning over all users.
    found = store.search(("preferences",), query="Who likes tea?")
    print("Store:  ", found[0].namespace, found[0].value)
    assert found[0].namespace == ("preferences", "ana")

    # Nothing of Ana's is visible to Ben.
    assert memory.namespace("ben").search(question) == []
