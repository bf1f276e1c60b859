"""Small LlamaIndex parts for tests: retrievers over fixed lists, embeddings by hand, language models that recite."""

import asyncio
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from llamaindex_hybridmem import FusionRetriever


def node(key, **more):
    return TextNode(id_=key, text=more.pop("text", f"text of {key}"), **more)


def scored(keys, scores=None, **more):
    """Fresh results over fresh nodes; keys are ids or nodes."""
    made = [key if isinstance(key, TextNode) else node(key, **more) for key in keys]
    scores = [1 - place / 100 for place in range(len(made))] if scores is None else scores
    return [NodeWithScore(node=n, score=s) for n, s in zip(made, scores, strict=True)]


def ids(nodes):
    return [n.node_id for n in nodes]


def told(nodes):
    return [(n.node_id, n.score) for n in nodes]


class Fixed(BaseRetriever):
    """Gives the same list to every query, or a list for each, and remembers what it was asked."""

    def __init__(self, found, before=None, **kwargs):
        self.found = found
        self.before = before
        self.asked: list[QueryBundle] = []
        super().__init__(**kwargs)

    def _retrieve(self, query_bundle):
        self.asked.append(query_bundle)
        if self.before is not None:
            self.before(query_bundle)
        found = self.found.get(query_bundle.query_str, []) if isinstance(self.found, dict) else self.found
        return found if found is None else [NodeWithScore(node=f.node, score=f.score) for f in found]


def years(keys="ABCDEF"):
    return [node(key, text=f"{key} abc", metadata={"year": 2020 + place}) for place, key in enumerate(keys)]


def example(**more):
    """The two lists of the worked example, fused."""
    return FusionRetriever([Fixed(scored("ADBEC")), Fixed(scored("BAFCD"))], **more)


class AsyncOnly(BaseRetriever):
    """Has only an async side, and says on which loop it ran."""

    def __init__(self, found, before=None):
        self.found = found
        self.before = before
        self.loops: list[Any] = []
        super().__init__()

    def _retrieve(self, query_bundle):
        raise NotImplementedError("async only")

    async def _aretrieve(self, query_bundle):
        self.loops.append(asyncio.get_running_loop())
        if self.before is not None:
            await self.before(query_bundle)
        return list(self.found)


class Reciting(CustomLLM):
    """Answers every prompt with one text, and keeps the prompts."""

    text: str = "an answer"
    prompts: list[str] = Field(default_factory=list)

    @property
    def metadata(self):
        return LLMMetadata()

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **kwargs):
        self.prompts.append(prompt)
        return CompletionResponse(text=self.text)

    @llm_completion_callback()
    def stream_complete(self, prompt, formatted=False, **kwargs):
        self.prompts.append(prompt)

        def words():
            said = ""
            for word in self.text.split(" "):
                said = f"{said} {word}".strip()
                yield CompletionResponse(text=said, delta=f"{word} ")

        return words()


class Calling(FunctionCallingLLM):
    """An agent's model: calls the one tool it has with `argument`, then repeats what the tool said."""

    argument: str = "cats"
    tool: str = "search"

    @property
    def metadata(self):
        return LLMMetadata(is_function_calling_model=True, is_chat_model=True)

    def _answer(self, messages: Sequence[ChatMessage]) -> ChatResponse:
        last = messages[-1]
        if last.role == MessageRole.TOOL:
            return ChatResponse(message=ChatMessage(role="assistant", content=f"The tool said: {last.content}"))
        message = ChatMessage(role="assistant", content="", additional_kwargs={"calls": [self.argument]})
        return ChatResponse(message=message, delta="")

    def chat(self, messages, **kwargs):
        return self._answer(messages)

    async def achat(self, messages, **kwargs):
        return self._answer(messages)

    def stream_chat(self, messages, **kwargs):
        yield self._answer(messages)

    async def astream_chat(self, messages, **kwargs):
        async def once():
            yield self._answer(messages)

        return once()

    def complete(self, prompt, formatted=False, **kwargs):
        return CompletionResponse(text="done")

    async def acomplete(self, prompt, formatted=False, **kwargs):
        return CompletionResponse(text="done")

    def stream_complete(self, prompt, formatted=False, **kwargs):
        yield CompletionResponse(text="done", delta="done")

    async def astream_complete(self, prompt, formatted=False, **kwargs):
        async def once():
            yield CompletionResponse(text="done", delta="done")

        return once()

    def _prepare_chat_with_tools(self, tools, user_msg=None, chat_history=None, **kwargs):
        messages = list(chat_history or [])
        if user_msg is not None:
            messages.append(ChatMessage(role="user", content=user_msg) if isinstance(user_msg, str) else user_msg)
        return {"messages": messages}

    def get_tool_calls_from_response(self, response, error_on_no_tool_call=True, **kwargs):
        calls = response.message.additional_kwargs.get("calls", [])
        return [ToolSelection(tool_id="t1", tool_name=self.tool, tool_kwargs={"input": call}) for call in calls]


class Letters(BaseEmbedding):
    """A text as its letter counts: enough for neighbours to be near, and the same on every machine."""

    def _get_text_embedding(self, text):
        counts = [float(text.casefold().count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"]
        norm = sum(count * count for count in counts) ** 0.5
        return [count / norm for count in counts] if norm else [1.0] + [0.0] * 25

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query):
        return self._get_text_embedding(query)
