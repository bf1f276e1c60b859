"""LlamaIndex fakes for tests: retrievers over fixed lists, letter-count embeddings, models with fixed answers."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
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
from llama_index.core.tools import BaseTool

from llamaindex_hybridmem import FusionRetriever


def node(key: str, **more: Any) -> TextNode:
    return TextNode(id_=key, text=more.pop("text", f"text of {key}"), **more)


def scored(
    keys: Iterable[str | TextNode], scores: Sequence[float | None] | None = None, **more: Any
) -> list[NodeWithScore]:
    """Fresh results over fresh nodes; keys are ids or nodes."""
    made = [key if isinstance(key, TextNode) else node(key, **more) for key in keys]
    values = [1 - place / 100 for place in range(len(made))] if scores is None else scores
    return [NodeWithScore(node=n, score=s) for n, s in zip(made, values, strict=True)]


def ids(nodes: Iterable[NodeWithScore]) -> list[str]:
    return [n.node_id for n in nodes]


def told(nodes: Iterable[NodeWithScore]) -> list[tuple[str, float | None]]:
    return [(n.node_id, n.score) for n in nodes]


class Fixed(BaseRetriever):
    """Returns the same list for every query, or one list per query, and records the queries."""

    def __init__(
        self,
        found: Sequence[NodeWithScore] | Mapping[str, Sequence[NodeWithScore]] | None,
        before: Callable[[QueryBundle], object] | None = None,
        **kwargs: Any,
    ) -> None:
        self.found = found
        self.before = before
        self.asked: list[QueryBundle] = []
        super().__init__(**kwargs)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.asked.append(query_bundle)
        if self.before is not None:
            self.before(query_bundle)
        found = self.found.get(query_bundle.query_str, []) if isinstance(self.found, Mapping) else self.found
        if found is None:
            return None  # type: ignore[return-value]  # retrievers in the wild return None
        return [NodeWithScore(node=f.node, score=f.score) for f in found]


def years(keys: str = "ABCDEF") -> list[TextNode]:
    return [node(key, text=f"{key} abc", metadata={"year": 2020 + place}) for place, key in enumerate(keys)]


def example(**more: Any) -> FusionRetriever:
    """The two lists of the worked example, fused."""
    return FusionRetriever([Fixed(scored("ADBEC")), Fixed(scored("BAFCD"))], **more)


class AsyncOnly(BaseRetriever):
    """A retriever with async methods only; records the event loop of each call."""

    def __init__(
        self, found: Iterable[NodeWithScore], before: Callable[[QueryBundle], Awaitable[object]] | None = None
    ) -> None:
        self.found = found
        self.before = before
        self.loops: list[Any] = []
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        raise NotImplementedError("async only")

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.loops.append(asyncio.get_running_loop())
        if self.before is not None:
            await self.before(query_bundle)
        return list(self.found)


class Reciting(CustomLLM):
    """Answers every prompt with one text, and records the prompts."""

    text: str = "an answer"
    prompts: list[str] = Field(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.prompts.append(prompt)
        return CompletionResponse(text=self.text)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        self.prompts.append(prompt)

        def words() -> Generator[CompletionResponse, None, None]:
            said = ""
            for word in self.text.split(" "):
                said = f"{said} {word}".strip()
                yield CompletionResponse(text=said, delta=f"{word} ")

        return words()


class Calling(FunctionCallingLLM):
    """An agent's model: calls the one tool it has with `argument`, then repeats what the tool said."""

    argument: str = "cats"
    tool: str = "search"
    parameter: str = "input"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True, is_chat_model=True)

    def _answer(self, messages: Sequence[ChatMessage]) -> ChatResponse:
        last = messages[-1]
        if last.role == MessageRole.TOOL:
            return ChatResponse(message=ChatMessage(role="assistant", content=f"The tool said: {last.content}"))
        message = ChatMessage(role="assistant", content="", additional_kwargs={"calls": [self.argument]})
        return ChatResponse(message=message, delta="")

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return self._answer(messages)

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return self._answer(messages)

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        yield self._answer(messages)

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        async def once() -> AsyncGenerator[ChatResponse, None]:
            yield self._answer(messages)

        return once()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text="done")

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text="done")

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        yield CompletionResponse(text="done", delta="done")

    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        async def once() -> AsyncGenerator[CompletionResponse, None]:
            yield CompletionResponse(text="done", delta="done")

        return once()

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        messages = list(chat_history or [])
        if user_msg is not None:
            messages.append(ChatMessage(role="user", content=user_msg) if isinstance(user_msg, str) else user_msg)
        return {"messages": messages}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        calls = response.message.additional_kwargs.get("calls", [])
        return [ToolSelection(tool_id="t1", tool_name=self.tool, tool_kwargs={self.parameter: call}) for call in calls]


class Letters(BaseEmbedding):
    """A text as its letter counts: similar texts get similar vectors, the same on every machine."""

    def _get_text_embedding(self, text: str) -> list[float]:
        counts = [float(text.casefold().count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"]
        norm = sum(count * count for count in counts) ** 0.5
        return [count / norm for count in counts] if norm else [1.0] + [0.0] * 25

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)
