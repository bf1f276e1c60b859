"""HybridMemoryBlock: long-term memory for LlamaIndex's `Memory`, each session by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from llama_index.core.base.llms.types import ChatMessage, TextBlock
from llama_index.core.bridge.pydantic import Field
from llama_index.core.memory.memory import BaseMemoryBlock

from hybridmem.memory.results import block, message_memory, shortened, with_surroundings
from hybridmem.retrievers.options import check_memory, refuse_settings
from hybridmem.text.conversation import recall_query
from llamaindex_hybridmem._settings import check_k

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory
else:
    HybridMemory = Any

__all__ = ["HybridMemoryBlock"]

_SESSION = "session_id"
_ASKED = ("k", "filter", "as_of", "min_confidence")
"""What `Memory.aget(…)` may say to this block; other keywords are for other blocks."""


class HybridMemoryBlock(BaseMemoryBlock[str]):
    """Keeps what leaves the short-term memory in a `HybridMemory` and recalls what fits the conversation.

    >>> Memory.from_defaults(session_id="ana-1", memory_blocks=[HybridMemoryBlock(memory=memory)])  # doctest: +SKIP

    Every session has a namespace of its own, so that one block may serve many sessions and none sees another's.
    `shared=True` keeps all sessions together in the memory's own namespace instead: give each user a view,
    `HybridMemoryBlock(memory=memory.namespace("ana"), shared=True)`.

    The memory is searched with the last user message. Only if that has fewer than three content words ("And when was
    that?"), the messages before it are part of the query, `retrieval_context_window` in all.

    What is recalled is a delimited block with ids, dates and speakers; nothing in it can end the block. A text that a
    session has already is not stored again.
    """

    name: str = Field(default="RetrievedMemories", description="The name of the memory block.")
    memory: HybridMemory = Field(description="The memory, or a view of it, that keeps the messages.", exclude=True)
    similarity_top_k: int = Field(default=8, description="How many memories are recalled.")
    shared: bool = Field(default=False, description="Whether sessions see each other's messages.")
    retrieval_context_window: int = Field(default=2, description="How many user messages make the query at most.")
    token_budget: int | None = Field(default=1_000, description="How many tokens the block may have; None: no limit.")
    roles: tuple[str, ...] = Field(default=("user", "assistant"), description="Whose messages are kept.")
    search_kwargs: dict[str, Any] = Field(default_factory=dict, description="More for `search`: filter, context…")

    if not TYPE_CHECKING:  # type checkers read the fields above

        def __init__(self, **settings: Any) -> None:
            refuse_settings(type(self).__name__, settings, type(self).model_fields)
            check_memory(settings.get("memory"))
            for name in ("similarity_top_k", "retrieval_context_window"):
                check_k(settings.get(name, 1), name=name)
            super().__init__(**settings)

    def session(self, session_id: str | None, /) -> HybridMemory:
        """The memory as one session sees it: search it, add to it, forget from it."""
        view: HybridMemory = self.memory
        if self.shared or session_id is None:
            return view
        return view.namespace(f"session/{quote(view.name, safe='')}/{quote(session_id, safe='')}")

    async def aput(
        self, messages: list[ChatMessage], from_short_term_memory: bool = False, session_id: str | None = None
    ) -> None:
        """Keep messages of a session. They are not changed: LlamaIndex's own way writes the session into them."""
        if self.accept_short_term_memory or not from_short_term_memory:
            await self._keep(messages, session_id)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        for message in messages:
            await self._keep([message], message.additional_kwargs.get(_SESSION))

    async def _keep(self, messages: Sequence[ChatMessage], session_id: str | None) -> None:
        kept = [
            message_memory(text, role=message.role.value, thread=session_id)
            for message in messages
            if message.role.value in self.roles and (text := _text(message))
        ]
        if kept:
            await self.session(session_id).aadd_many(kept, on_duplicate="skip")

    async def _aget(
        self, messages: list[ChatMessage] | None = None, session_id: str | None = None, **block_kwargs: Any
    ) -> str:
        said = [text for message in messages or [] if message.role.value == "user" and (text := _text(message))]
        query = recall_query(said, window=self.retrieval_context_window)
        if not query:
            return ""
        how = {"k": self.similarity_top_k, **self.search_kwargs}
        how.update({name: block_kwargs[name] for name in _ASKED if name in block_kwargs})
        results = await self.session(session_id).asearch(query, **how)
        return block(with_surroundings(results), tokens=self.token_budget, first={result.id for result in results})

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Leave out the least relevant memories, which come last, until enough tokens are saved."""
        return shortened(content, tokens_to_truncate) or None


def _text(message: ChatMessage) -> str:
    return " ".join(part.text for part in message.blocks if isinstance(part, TextBlock)).strip()
