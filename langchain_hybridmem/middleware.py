"""MemoryMiddleware: an agent that recalls before the model is called and saves after the turn, without a tool call."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig

from hybridmem.core import validation
from hybridmem.core.types import Memory
from hybridmem.core.validation import normalized
from hybridmem.errors import ConfigError, HybridMemError, MissingExtraError
from hybridmem.memory.results import block, message_memory, with_surroundings
from hybridmem.text.conversation import recall_query
from langchain_hybridmem.tools import thread_of, views

if find_spec("langchain") is None or find_spec("langchain.agents") is None:
    raise MissingExtraError("agents", needs="langchain")

from langchain.agents.middleware.types import AgentMiddleware, AgentState, ModelRequest, ModelResponse, PrivateStateAttr
from langgraph.config import get_config
from langgraph.runtime import Runtime
from typing_extensions import NotRequired

if TYPE_CHECKING:
    from hybridmem.filters.parse import Filter
    from hybridmem.memory.memory import HybridMemory
    from hybridmem.memory.question import RecipeLike
    from hybridmem.memory.results import Result

    _Base = AgentMiddleware[AgentState[Any], Any, Any]
    _Request = ModelRequest[Any]
    _Response = ModelResponse[Any]
else:
    _Base = AgentMiddleware  # the first versions of langchain 1 have other type parameters

__all__ = ["MemoryMiddleware"]

log = logging.getLogger("hybridmem")
Fact = str | Memory | Mapping[str, Any]
Facts = Iterable[Fact] | None
Extract = Callable[[Sequence[AnyMessage]], Facts | Awaitable[Facts]]
"""From the messages of a turn to facts worth keeping; a fact may say what it supersedes."""
_ROLES = {"human": "user", "ai": "assistant"}
SUMMARY = "Here is a summary of the conversation to date:"
"""How langchain's summary of a conversation begins: a message of type "human" that no user wrote."""


class _State(AgentState[Any]):
    asked: NotRequired[Annotated[list[HumanMessage], PrivateStateAttr]]
    """The user messages of this turn: a summary may take their place in the conversation before the turn ends."""


class MemoryMiddleware(_Base):
    """Long-term memory for `create_agent(…, middleware=[MemoryMiddleware(memory, session_key="user_id")])`.

    Before each model call the memory is searched with the last user message. What it finds is put in front of that
    message as a delimited block, in the request only: the stored conversation does not grow by it. After the turn the
    new messages are saved with speaker, thread and time; a text that the thread has already is not saved again.

    session_key: whose memory it is, read from the run's context or `config["configurable"]`, and refused when it is
    not there. namespace: one fixed owner instead. Neither: the view that was given.
    k, token_budget: how much is recalled at most; filter, min_confidence, recipe: as in `memory.search`.
    context: so many turns before and after each recalled message of a thread are recalled with it.
    save: "both" sides of the conversation, the "user" alone, or None.
    extract: a function from the turn's messages to facts (texts, dicts or memories, with `supersedes` where one
    corrects another), sync or async, which are saved too.
    on_error: "raise", or "skip" to go on without memory (logged) when the store, the embedder or `extract` fails.
    """

    state_schema = _State

    def __init__(
        self,
        memory: HybridMemory,
        /,
        *,
        session_key: str | None = None,
        namespace: str | None = None,
        k: int = 8,
        token_budget: int = 1_000,
        save: Literal["both", "user"] | None = "both",
        filter: Filter | None = None,
        min_confidence: float | None = None,
        recipe: RecipeLike | None = None,
        context: int = 0,
        extract: Extract | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        super().__init__()
        if save is not None:
            validation.one_of("save", save, ("both", "user"))
        validation.one_of("on_error", on_error, ("raise", "skip"))
        for name, value in (("k", k), ("token_budget", token_budget)):
            validation.integer(name, value, "from 1 up", low=1)
        if extract is not None:
            validation.function("extract", extract, "a function from messages to facts, or None")
        self.tools = []
        self._view = views(memory, namespace, session_key)
        self._k, self._budget = k, token_budget
        self._how: dict[str, Any] = {
            # twice as many: some may be messages of the conversation. With `context` they would be missing as turns
            "k": k if context else 2 * k,
            "filter": filter,
            "min_confidence": min_confidence,
            "recipe": recipe,
            "context": context,
        }
        self._speakers = {"both": ("human", "ai"), "user": ("human",), None: ()}[save]
        self._extract = extract
        self._skips = on_error == "skip"

    # --- recall

    def before_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:  # noqa: ARG002
        """Remember what the user asked in this turn."""
        return {"asked": _asked(state["messages"])}

    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
        """Remember what the user asked in this turn."""
        return self.before_agent(state, runtime)

    def wrap_model_call(self, request: _Request, handler: Callable[[_Request], _Response]) -> _Response:
        """Call the model with what the memory knows of the last user message."""
        query, results = _query(_conversation(request)), list[Any]()
        if query:
            try:
                view = self._view(_config(), request.runtime.context)
                results = list(view.search(query, **self._how))
            except HybridMemError as error:
                self._failed("the memory could not be searched", error)
        return handler(self._recalled(request, results))

    async def awrap_model_call(
        self, request: _Request, handler: Callable[[_Request], Awaitable[_Response]]
    ) -> _Response:
        """Call the model with what the memory knows, without blocking the event loop."""
        query, results = _query(_conversation(request)), list[Any]()
        if query:
            try:
                view = self._view(_config(), request.runtime.context)
                results = list(await view.asearch(query, **self._how))
            except HybridMemError as error:
                self._failed("the memory could not be searched", error)
        return await handler(self._recalled(request, results))

    def _recalled(self, request: _Request, results: Sequence[Result]) -> _Request:
        """The request with the block before the last user message; messages of the conversation itself are left out."""
        present = {normalized(_text(message)) for message in request.messages}
        fresh = [result for result in results if normalized(result.text) not in present][: self._k]
        recalled = [memory for memory in with_surroundings(fresh) if normalized(memory.text) not in present]
        text = block(recalled, tokens=self._budget, first={result.id for result in fresh})
        if not text:
            return request
        places = [at for at, message in enumerate(request.messages) if isinstance(message, HumanMessage)]
        place = places[-1] if places else 0
        messages = [*request.messages[:place], HumanMessage(text), *request.messages[place:]]
        return request.override(messages=messages)

    # --- saving

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Save what was said in this turn."""
        view, turn, config = self._turn(state, runtime)
        try:
            view.add_many(self._messages(turn, config), on_duplicate="skip")
        except HybridMemError as error:
            self._failed("the messages could not be saved", error)
        if self._extract is None:
            return
        try:
            facts = self._extract(turn)
            if not inspect.isawaitable(facts):
                view.add_many(facts or (), on_duplicate="skip")
        except Exception as error:  # noqa: BLE001 - it is raised again, unless it shall be skipped
            self._failed("the facts of extract could not be saved", error, always=())
        else:
            if inspect.isawaitable(facts):
                if inspect.iscoroutine(facts):
                    facts.close()
                raise ConfigError("extract is async: run the agent with ainvoke or astream")

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        """Save what was said in this turn, without blocking the event loop."""
        view, turn, config = self._turn(state, runtime)
        try:
            await view.aadd_many(self._messages(turn, config), on_duplicate="skip")
        except HybridMemError as error:
            self._failed("the messages could not be saved", error)
        if self._extract is None:
            return
        try:
            found = self._extract(turn)
            facts = await found if inspect.isawaitable(found) else found
            await view.aadd_many(facts or (), on_duplicate="skip")
        except Exception as error:  # noqa: BLE001 - it is raised again, unless it shall be skipped
            self._failed("the facts of extract could not be saved", error, always=())

    def _turn(
        self, state: AgentState[Any], runtime: Runtime[Any]
    ) -> tuple[HybridMemory, list[AnyMessage], RunnableConfig]:
        """The view of this run, the messages of this turn, and its config."""
        config, messages = _config(), state["messages"]
        asked: list[HumanMessage] = state.get("asked") or []  # type: ignore[assignment]
        known = {message.id for message in asked}
        first = next((at for at, message in enumerate(messages) if message.id in known), None)
        if first is not None:
            turn = [message for message in messages[first:] if not _is_summary(message)]
        else:  # a summary took the place of the question: what it left is of this turn
            turn = [*asked, *(message for message in messages if asked and not _is_summary(message))]
        return self._view(config, runtime.context), turn, config

    def _messages(self, turn: Sequence[AnyMessage], config: RunnableConfig) -> list[Memory]:
        """The messages to save; a call of a tool and its result are not part of the conversation."""
        thread = thread_of(config)
        return [
            message_memory(text, role=_ROLES[message.type], thread=thread, name=message.name)
            for message in turn
            if message.type in self._speakers and (text := _text(message).strip()) and not _calls_tools(message)
        ]

    def _failed(self, what: str, error: Exception, *, always: type[Exception] | tuple[()] = ConfigError) -> None:
        if not self._skips or isinstance(error, always):
            raise error
        log.warning("%s, and the agent goes on without: %s", what, error)


def _config() -> RunnableConfig:
    try:
        return get_config()
    except RuntimeError:  # async code on Python 3.10 has no config: the context says whose memory it is
        return {}


def _asked(messages: Sequence[BaseMessage]) -> list[HumanMessage]:
    """The user messages since the last answer, their texts only: the conversation keeps the rest of them."""
    last = max((at for at, message in enumerate(messages) if isinstance(message, HumanMessage)), default=-1)
    asked: list[HumanMessage] = []
    for message in reversed(messages[: last + 1]):
        if not isinstance(message, HumanMessage):
            break
        if not _is_summary(message):
            asked.append(HumanMessage(_text(message), id=message.id, name=message.name))
    return asked[::-1]


def _conversation(request: _Request) -> list[BaseMessage]:
    """The messages of a request; what the user asked in this turn is there, whatever a summary has replaced."""
    asked: list[BaseMessage] = request.state.get("asked") or []  # type: ignore[assignment]
    known = {message.id for message in asked}
    kept: list[BaseMessage] = [one for one in request.messages if one.id not in known and not _is_summary(one)]
    return [*kept, *asked]


def _is_summary(message: BaseMessage) -> bool:
    source = message.additional_kwargs.get("lc_source")
    return message.type == "human" and (source == "summarization" or _text(message).startswith(SUMMARY))


def _query(messages: Sequence[BaseMessage]) -> str:
    """What the user asks: the last user message, and the one before it where that says too little."""
    texts = (_text(message).strip() for message in messages if isinstance(message, HumanMessage))
    return recall_query([text for text in texts if text])


def _text(message: BaseMessage) -> str:
    return str(message.text)


def _calls_tools(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage) and bool(message.tool_calls)
