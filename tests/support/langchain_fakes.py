"""LangChain fakes for tests: retrievers over fixed lists, embeddings of coordinates, short helper functions."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.retrievers import BaseRetriever
from pydantic import Field

NOW = 1_700_000_000.0
DAY = 86_400.0


class Scored(BaseRetriever):
    """A fake of our own retrievers: k, filter and scores at call time."""

    docs: list[Document]
    scores: list[float]
    asked: list[dict[str, Any]]
    k: int = 100

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Mapping[str, Any] | None = None,
        with_scores: bool | None = None,
    ) -> list[Document]:
        self.asked.append({"k": k, "filter": filter, "with_scores": with_scores})
        rows = list(zip(self.docs, self.scores, strict=True))[: k or self.k]
        if not with_scores:
            return [document for document, _ in rows]
        return [d.model_copy(update={"metadata": {**d.metadata, "score": score}}) for d, score in rows]


Scored.__module__ = "langchain_hybridmem.scored"  # only classes of ours are asked for scores by keyword


class Plain(BaseRetriever):
    docs: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return self.docs


class Axes(Embeddings):
    """A text is a vector: "3,4" is (3, 4) scaled to length 1."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        x, y = map(float, text.split(","))
        length = (x * x + y * y) ** 0.5
        return [x / length, y / length]


def doc(text: str, id: str | None = None, **metadata: Any) -> Document:
    return Document(page_content=text, id=id, metadata=metadata)


def docs(letters: Iterable[str], **metadata: Any) -> list[Document]:
    return [doc(letter, **metadata) for letter in letters]


def plain(letters: Iterable[str], **metadata: Any) -> Plain:
    return Plain(docs=docs(letters, **metadata))


def texts(documents: Iterable[Document]) -> list[str]:
    return [document.page_content for document in documents]


def scores(documents: Iterable[Document]) -> list[float]:
    return [document.metadata["score"] for document in documents]


def ask(retriever: BaseRetriever, query: str = "?", **said: Any) -> list[Document]:
    """The documents of `invoke`, checked against those of `ainvoke`."""
    found = retriever.invoke(query, **said)
    assert asyncio.run(retriever.ainvoke(query, **said)) == found
    return found


class Scripted(BaseChatModel):
    """A chat model that gives prepared answers and keeps every list of messages it was called with."""

    answers: list[AIMessage] = Field(default_factory=list)
    seen: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, *, tool_choice: str | None = None, **kwargs: Any) -> Any:
        return self

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        self.seen.append(list(messages))
        if not self.answers:
            return AIMessage(f"answer {len(self.seen)}")
        return self.answers[min(len(self.seen), len(self.answers)) - 1].model_copy(update={"id": None})

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages))])

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for word in str(self._answer(messages).content).split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
