"""The inspector: a local page that shows every arm, the fused results and the recipe as sliders."""

from __future__ import annotations

import json
import math
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from hybridmem.errors import ConfigError, HybridMemError
from hybridmem.server.actions import Actions
from hybridmem.server.sources import source_of

__all__ = ["Inspector"]

LOOPBACK = "127.0.0.1"
MAX_BODY = 4_000_000
MAX_WAITING = 32
"""How many connections may be open without having sent a whole request; the oldest is closed for a new one."""
_FILES = {
    "": ("inspector.html", "text/html; charset=utf-8"),
    "inspector.css": ("inspector.css", "text/css; charset=utf-8"),
    "inspector.js": ("inspector.js", "text/javascript; charset=utf-8"),
    "inspector_draw.js": ("inspector_draw.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Inspector:
    """Serves the page on the loopback address, behind a random token in its URL; a context manager.

    `target` is a HybridMemory, or a FusionRetriever of LangChain or LlamaIndex. The page shows the memory's own
    namespace, and those of `namespaces`.

    >>> from hybridmem import HybridMemory
    >>> with HybridMemory(embedder=None) as memory, Inspector(memory) as inspector:
    ...     inspector.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, target: Any, /, *, port: int = 0, namespaces: Iterable[str] | None = None) -> None:
        actions = Actions(source_of(target, namespaces))
        self.token = secrets.token_urlsafe(24)
        try:
            self._server = _Server((LOOPBACK, port), _handler(self, actions))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {LOOPBACK}, port {port}: {error}") from error
        self.port = int(self._server.server_address[1])
        serve = partial(self._server.serve_forever, poll_interval=0.1)
        self._thread = threading.Thread(target=serve, name="hybridmem-inspector", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the page; whoever knows it may read the memory."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    def wait(self) -> None:
        """Serve until interrupted."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    """A threading server with a bound on the connections that have not sent a whole request."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._waiting: OrderedDict[int, socket.socket] = OrderedDict()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._waiting[id(request)] = request
            oldest = self._waiting.popitem(last=False)[1] if len(self._waiting) > MAX_WAITING else None
        if oldest is not None:
            _shut(oldest)
        super().process_request(request, client_address)

    def received(self, request: Any) -> None:
        """A connection has sent its request, or is closed: it no longer counts."""
        with self._lock:
            self._waiting.pop(id(request), None)

    def shutdown_request(self, request: Any) -> None:
        self.received(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is not worth a traceback on the user's terminal."""


def _shut(connection: socket.socket) -> None:
    """End a connection; its thread reads the end of the stream and finishes."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is out of range")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _parsed(body: bytes) -> Mapping[str, Any]:
    """The JSON object of a request; ConfigError for anything else."""
    try:
        data = json.loads(body or b"{}", parse_float=_number, parse_constant=_constant)
    except RecursionError as error:
        raise ConfigError("the request is nested too deeply") from error
    except ValueError as error:
        raise ConfigError(f"the request is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"the request is a {type(data).__name__}: an object is needed")
    return data


def _answer(action: Callable[[Mapping[str, Any]], dict[str, Any]], body: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
    """The answer of an action, or the error: 400 for what the request says, 500 for what an arm or a stage raises."""
    try:
        return HTTPStatus.OK, action(_parsed(body))
    except (HybridMemError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        return HTTPStatus.BAD_REQUEST, {"error": str(error) or type(error).__name__}
    except Exception as error:  # noqa: BLE001  an arm or a stage of somebody else may raise anything
        return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"{type(error).__name__}: {error}"}


def _handler(inspector: Inspector, page: Actions) -> type[BaseHTTPRequestHandler]:
    """A request handler that answers only requests with the inspector's own host name and token."""
    actions: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
        "start": page.start,
        "search": page.search,
        "why": page.why,
        "cases": page.cases,
        "measure": page.measure,
        "save": page.save,
    }

    class Handler(BaseHTTPRequestHandler):
        timeout = 30
        server: _Server

        def do_GET(self) -> None:
            home = f"/{inspector.token}/"
            name = self.path.removeprefix(home)
            if not self.path.startswith(home) or name not in _FILES or not self._allowed():
                self._send(HTTPStatus.NOT_FOUND, b"not found", "text/plain")
                return
            file, kind = _FILES[name]
            self._send(HTTPStatus.OK, files("hybridmem.server").joinpath(file).read_bytes(), kind)

        def do_POST(self) -> None:
            token, _, name = self.path.partition("/api/")
            action = actions.get(name) if token == f"/{inspector.token}" else None
            size = self.headers.get("Content-Length") or "0"
            if not self._allowed() or action is None or not size.isdecimal() or int(size) > MAX_BODY:
                self._send(HTTPStatus.NOT_FOUND, b"not found", "text/plain")
                return
            body = self.rfile.read(int(size))
            self.server.received(self.request)
            status, answer = _answer(action, body)
            self._send(status, json.dumps(answer, default=str).encode("utf-8", "replace"), "application/json")

        def _allowed(self) -> bool:
            """A site that resolves its own name to this address sends another Host header."""
            return self.headers.get("Host") in {f"{LOOPBACK}:{inspector.port}", f"localhost:{inspector.port}"}

        def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
            self.send_response(status)
            for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: the URL is a secret."""

    return Handler
