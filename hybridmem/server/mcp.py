"""An MCP server over a memory: tools, resources and a prompt for agents, over stdio or loopback HTTP."""

import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, NoReturn
from urllib.parse import unquote

from hybridmem.core.fanout import in_thread
from hybridmem.errors import ConfigError, HybridMemError, MissingExtraError
from hybridmem.memory import tools as texts
from hybridmem.memory.memory import HybridMemory
from hybridmem.memory.results import block
from hybridmem.memory.tools import MemoryTools, ToolAnswer, ToolInputError, below

try:
    import mcp.types as mcp_types
    import uvicorn
    from mcp.server.stdio import stdio_server  # noqa: F401 - a part of the extra that must be there
    from pydantic import BaseModel, Field
except ImportError as error:
    raise MissingExtraError("mcp", needs="the MCP SDK") from error

# FastMCP of mcp 1.x is called MCPServer in 2.x: the same decorators, other places for the HTTP settings
_V2 = find_spec("mcp.server.mcpserver") is not None
_module: Any = import_module("mcp.server.mcpserver" if _V2 else "mcp.server.fastmcp")
_Server: Any = _module.MCPServer if _V2 else _module.FastMCP
_Context: Any = _module.Context
_ToolError: Any = import_module(f"{_module.__name__}.exceptions").ToolError

__all__ = ["HttpServer", "build_server", "serve_stdio"]

_Scope = MutableMapping[str, Any]
_Asgi = Callable[[_Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]
ToolResult = mcp_types.CallToolResult


class Found(BaseModel):
    """The structured answer of a search or a list."""

    memories: list[dict[str, Any]] = Field(description="id, text, dates, tags and, for a search, score of each")
    next: str | None = Field(default=None, description="the id to give as after for the next page")


class Saved(BaseModel):
    """The structured answer of saving."""

    id: str
    replaced: str | None = None


class Forgotten(BaseModel):
    """The structured answer of forgetting."""

    id: str
    forgotten: bool


class WhyNot(BaseModel):
    """The structured answer to why a memory is not returned."""

    id: str
    returned: bool
    place: int | None
    reason: str


def build_server(memory: HybridMemory, /, *, k: int = 8, namespace_header: str | None = None) -> Any:
    """The MCP server over a view of a memory.

    `namespace_header` names an HTTP header whose value chooses the namespace of each request, below the view's own;
    a request without it is refused. A model never chooses a namespace.
    """
    how = {"stateless_http": True, "json_response": True, "log_level": "WARNING"} if not _V2 else {}
    server = _Server("hybridmem", instructions=texts.GUIDE, **how)

    def tools_of(context: Any) -> MemoryTools:
        return MemoryTools(memory=_view(memory, context, namespace_header), k=k)

    _add_tools(server, tools_of)
    _add_resources(server, tools_of)
    return server


def _view(memory: HybridMemory, context: Any, header: str | None) -> HybridMemory:
    if header is None:
        return memory
    request = context.request_context.request
    value = None if request is None else request.headers.get(header)
    if not value:
        raise _ToolError(f"the request has no header {header}: it says whose memory this is")
    return memory.namespace(below(memory.name, unquote(value)))


def _add_tools(server: Any, tools_of: Callable[[Any], MemoryTools]) -> None:
    """The five tools. Parameters are described for the model; the context is not part of a tool's schema."""

    async def memory_search(
        context: _Context,
        query: Annotated[str, Field(description="what to look for, in plain words")],
        k: Annotated[int | None, Field(description="how many memories at most", ge=1, le=texts.MOST)] = None,
        as_of: Annotated[str | None, Field(description="answer from what was known at this ISO-8601 date")] = None,
    ) -> Annotated[ToolResult, Found]:
        return await _answered(tools_of(context).asearch(query, k=k, as_of=as_of))

    async def memory_save(
        context: _Context,
        text: Annotated[str, Field(description="one fact, as a full sentence")],
        tags: Annotated[list[str] | None, Field(description="words to group memories by")] = None,
        replaces: Annotated[str | None, Field(description="the id of the memory that this one corrects")] = None,
        ttl: Annotated[float | None, Field(description="seconds until it expires; none: never", gt=0)] = None,
    ) -> Annotated[ToolResult, Saved]:
        return await _answered(tools_of(context).asave(text, tags=tags, replaces=replaces, ttl=ttl))

    async def memory_forget(
        context: _Context, id: Annotated[str, Field(description="the id of the memory")]
    ) -> Annotated[ToolResult, Forgotten]:
        return await _answered(tools_of(context).aforget(id))

    async def memory_list(
        context: _Context,
        limit: Annotated[int, Field(description="how many memories at most", ge=1, le=texts.MOST)] = 20,
        after: Annotated[str | None, Field(description="the last id of the page before")] = None,
    ) -> Annotated[ToolResult, Found]:
        tools = tools_of(context)
        return await _answered(in_thread(lambda: tools.list(limit=limit, after=after)))

    async def memory_why_not(
        context: _Context,
        query: Annotated[str, Field(description="the query of the search")],
        id: Annotated[str, Field(description="the id of the memory that was expected")],
    ) -> Annotated[ToolResult, WhyNot]:
        tools = tools_of(context)
        return await _answered(in_thread(lambda: tools.why_not(query, id)))

    reads = mcp_types.ToolAnnotations.model_validate({"readOnlyHint": True, "openWorldHint": False})
    writes = mcp_types.ToolAnnotations.model_validate({"destructiveHint": False, "openWorldHint": False})
    removes = mcp_types.ToolAnnotations.model_validate({"destructiveHint": True, "openWorldHint": False})
    for tool, description, hints in (
        (memory_search, texts.SEARCH, reads),
        (memory_save, texts.SAVE, writes),
        (memory_forget, texts.FORGET, removes),
        (memory_list, texts.LIST, reads),
        (memory_why_not, texts.WHY_NOT, reads),
    ):
        server.tool(description=description, annotations=hints)(tool)


def _add_resources(server: Any, tools_of: Callable[[Any], MemoryTools]) -> None:
    @server.resource(
        "memory://memories/{id}", name="memory", description="One memory by its id", mime_type="text/plain"
    )  # type: ignore[untyped-decorator]
    async def memory(id: str, context: _Context) -> str:
        tools = tools_of(context)
        try:
            found = await in_thread(lambda: tools.get(unquote(id)))
        except HybridMemError as error:
            _refused(error)
        return block([found])

    @server.prompt(name="memory", description="How to use the long-term memory")  # type: ignore[untyped-decorator]
    def guide() -> str:
        return texts.GUIDE


async def _answered(call: Awaitable[ToolAnswer]) -> ToolResult:
    """A tool's answer as text and as structured content; an error in the model's arguments is returned to the model."""
    try:
        answer = await call
    except HybridMemError as error:
        _refused(error)
    content = [{"type": "text", "text": answer.text}]
    return ToolResult.model_validate({"content": content, "structuredContent": answer.data})


def _refused(error: HybridMemError) -> NoReturn:
    """Errors of a model's arguments say what is allowed; other errors have their kind and no paths of data."""
    if isinstance(error, ToolInputError | ConfigError):
        raise _ToolError(str(error)) from error
    raise _ToolError(f"the memory could not do this: {type(error).__name__}") from error


# --- serving


async def serve_stdio(server: Any, /) -> None:
    """Serve one client over standard input and output, until it closes them."""
    await server.run_stdio_async()


class HttpServer:
    """Streamable HTTP on the loopback address. Every request needs the token as `Authorization: Bearer …`."""

    def __init__(self, server: Any, /, *, port: int = 0, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(32)
        app = server.streamable_http_app(stateless_http=True, json_response=True) if _V2 else None
        guarded = _guarded(app or server.streamable_http_app(), self.token)
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/mcp"
        config = uvicorn.Config(guarded, log_level="warning", lifespan="on", timeout_graceful_shutdown=_PATIENCE)
        self._server = uvicorn.Server(config)

    async def serve(self) -> None:
        """Serve until `stop` is called or the process is interrupted."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """End `serve`."""
        self._server.should_exit = True


_PATIENCE = 5
"""Seconds that a request may still take when the server shall stop."""


def _guarded(app: _Asgi, token: str) -> _Asgi:
    """The app behind a token; a request without the token is refused before its path is read.

    The server never speaks first, so that the stream which a GET asks for would stay empty and only delay `stop`.
    """
    expected = f"Bearer {token}".encode()

    async def guarded(scope: _Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(given, expected):
                await _refuse(send, 401, b"a bearer token is needed", (b"www-authenticate", b"Bearer"))
                return
            if scope["method"] != "POST":
                await _refuse(send, 405, b"every message is a POST", (b"allow", b"POST"))
                return
        await app(scope, receive, send)

    return guarded


async def _refuse(send: Any, status: int, reason: bytes, header: tuple[bytes, bytes]) -> None:
    headers = [header, (b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason})
