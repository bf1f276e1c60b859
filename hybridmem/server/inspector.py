"""The inspector: a local page that shows every arm, the fused results and the recipe as sliders.

`Actions` answers the requests of the page, `Inspector` serves it.
"""

from __future__ import annotations

import io
import json
import math
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from hybridmem.core import validation
from hybridmem.errors import ConfigError, HybridMemError
from hybridmem.evaluation.cases import Case, judged_cases, load_cases
from hybridmem.evaluation.metrics import judge, mrr, recall
from hybridmem.fusion.explain import Explanation
from hybridmem.fusion.explain_html import score_parts
from hybridmem.fusion.recipe import Fusion, recipe_from_dict, recipe_to_dict
from hybridmem.fusion.stages.evidence import PARTS
from hybridmem.memory.memory import HybridMemory
from hybridmem.retrievers.arms import SupportsExplainer
from hybridmem.server.controls import changed_recipe, control_groups, python_source
from hybridmem.server.sources import K, Query, Source, matching_words, source_of

__all__ = ["Actions", "Inspector"]

MAX_CASES = 2_000
ARM_ROWS = 100
"""How many hits of an arm the page lists."""
DEEPEST = 1_000
"""How many hits of each arm are searched for a memory that no arm lists."""
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


@dataclass(frozen=True, slots=True)
class Actions:
    """What the page can ask of a source. Nothing is kept between two requests."""

    source: Source

    def start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The arms, the controls of the recipe, and what the source reports about itself."""
        recipe = self._recipe(request)
        return {
            "arms": list(self.source.arms),
            "parts": [name.replace("_", " ") for name in PARTS],
            "groups": control_groups(recipe, self.source.arms),
            **self.source.start(request.get("namespace")),
        }

    def search(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Each arm's list, the fused list with the parts of each score, and why the rest is left out."""
        query = self._query(request)
        began = time.perf_counter()
        explained = self.source.explain(query)
        took = time.perf_counter() - began
        texts = self.source.texts(explained, query)
        return {
            "arms": _arms(explained, self.source.arms),
            "results": _results(explained),
            "remarks": list(explained.remarks),
            "texts": texts,
            "words": matching_words(query.text, texts.values()),
            "paths": {key: list(activation.path) for key, activation in explained.activations.items()},
            "groups": control_groups(query.recipe, self.source.arms),
            "milliseconds": round(1000 * took, 1),
        }

    def why(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Why a key is or is not among the results, with its fields, history and thread."""
        query, key = self._query(request), _text(request, "key")
        explained = self.source.explain(query)
        details = self.source.details(key, query, explained)
        ranks = _ranks(explained, key)
        beyond: dict[str, list[float | None] | None] = {}
        if details["text"] and not any(ranks.values()):
            deeper = query._replace(recipe=replace(query.recipe, depth=DEEPEST))
            beyond = _ranks(self.source.explain(deeper), key)
        return {
            "key": key,
            "why": explained.why_not(key),
            "ranks": ranks,
            "beyond": beyond,
            "result": next((one for one in _results(explained) if one["key"] == key), None),
            **self._wide(key, query, explained),
            "path": list(explained.activations[key].path) if key in explained.activations else [],
            **details,
        }

    def _wide(self, key: str, query: Query, explained: Explanation) -> dict[str, Any]:
        """The receipt of a key that a longer list would contain, beside the score of the last result."""
        wide = None
        if key in explained.dropped and explained.receipts:
            depth = query.recipe.depth_for(query.k)  # the same lists from the arms, so that the score is the same
            candidates = len(explained.receipts) + len(explained.dropped)
            for k in (depth, candidates):  # a recipe can rank more than the arms were asked for
                if wide is None and k >= query.k:
                    longer = self.source.explain(query._replace(k=k, recipe=replace(query.recipe, depth=depth)))
                    wide = next((one for one in _results(longer) if one["key"] == key), None)
        return {"wide": wide, "last": _finite(explained.receipts[-1].score) if explained.receipts else None}

    def cases(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The cases of a JSONL file that name a relevant id."""
        cases = judged_cases(load_cases(io.StringIO(_text(request, "text"))))
        if not cases:
            raise ConfigError('no case names a relevant id: a line is {"query": "…", "relevant": ["id"]}')
        if len(cases) > MAX_CASES:
            raise ConfigError(f"{len(cases)} cases are too many for the page: at most {MAX_CASES}")
        rows = [
            {
                "query": case.query,
                "relevant": dict(case.relevant),
                "category": case.category,
                "as_of": None if case.as_of is None else case.as_of.isoformat(),
            }
            for case in cases
        ]
        return {"cases": rows}

    def measure(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Recall and reciprocal rank at k for each of these cases, and which relevant ids are missing."""
        rows = validation.listed("cases", request.get("cases"), "cases")
        measured = []
        for row in rows:
            case = Case(_text(row, "query"), dict(row["relevant"]))
            query = self._query({**request, "query": case.query, "as_of": row.get("as_of") or request.get("as_of")})
            keys = self.source.ranking(query)
            judged = judge([keys], [case.relevant], depth=query.k)
            measured.append(
                {
                    "recall": float(recall(judged, query.k)[0]),
                    "rank": float(mrr(judged, query.k)[0]),
                    "missing": [key for key, grade in case.relevant.items() if grade > 0 and key not in keys],
                }
            )
        return {"measured": measured}

    def save(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The recipe as the text of a recipe file and as Python code."""
        recipe = self._recipe(request)
        return {"json": json.dumps(recipe_to_dict(recipe), indent=2) + "\n", "python": python_source(recipe)}

    def _query(self, request: Mapping[str, Any]) -> Query:
        return Query(
            text=_text(request, "query"),
            recipe=self._recipe(request),
            k=request.get("k", K),
            filter=request.get("filter") or None,
            as_of=request.get("as_of") or None,
            namespace=request.get("namespace"),
        )

    def _recipe(self, request: Mapping[str, Any]) -> Fusion:
        base = request.get("base")
        recipe = self.source.recipe if base is None else recipe_from_dict(base)
        changes = request.get("changes") or {}
        return changed_recipe(recipe, changes, self.source.arms) if changes else recipe


def _arms(explained: Explanation, names: Iterable[str]) -> list[dict[str, Any]]:
    """Every arm with its list, its summary, and why a hit of it is not a result."""
    reasons = {**explained.gated, **explained.dropped}
    rows = []
    for name in names:
        hits = explained.hits.get(name, ())
        listed = [
            {"key": hit.key, "score": _finite(hit.score), "reason": reasons.get(hit.key)} for hit in hits[:ARM_ROWS]
        ]
        rows.append({"name": name, "note": explained.arms.get(name, ""), "count": len(hits), "hits": listed})
    return rows


def _ranks(explained: Explanation, key: str) -> dict[str, list[float | None] | None]:
    """The rank and the raw score of a key in each arm's list; None where it is not listed."""
    return {
        name: next(([n, _finite(hit.score)] for n, hit in enumerate(hits, start=1) if hit.key == key), None)
        for name, hits in explained.hits.items()
    }


def _results(explained: Explanation) -> list[dict[str, Any]]:
    return [
        {
            "key": receipt.key,
            "rank": receipt.rank,
            "score": _finite(receipt.score),
            "parts": [[part.name, _finite(part.value), part.text] for part in score_parts(receipt)],
            "degraded": receipt.degraded,
        }
        for receipt in explained.receipts
    ]


def _finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _text(request: Mapping[str, Any], name: str) -> str:
    value = request.get(name)
    validation.text(name, value, "a text")
    return str(value)


# --- the server


class Inspector:
    """Serves the page on the loopback address, behind a random token in its URL; a context manager.

    `target` is a HybridMemory, or a FusionRetriever of LangChain or LlamaIndex. The page shows the memory's own
    namespace, and those of `namespaces`.

    >>> from hybridmem import HybridMemory
    >>> with HybridMemory(embedder=None) as memory, Inspector(memory) as inspector:
    ...     inspector.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(
        self, target: HybridMemory | SupportsExplainer, /, *, port: int = 0, namespaces: Iterable[str] | None = None
    ) -> None:
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
