"""The inspector: a local page where one types a query, sees every arm, and drags the recipe to watch the order move."""

from __future__ import annotations

import json
import secrets
import threading
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hybridmem.errors import ConfigError, HybridMemError
from hybridmem.fusion.recipe import MODES, Fusion
from hybridmem.fusion.stages import HalfLife, QualityGate, Spread

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["Inspector", "recipe_from", "settings_of"]

LOOPBACK = "127.0.0.1"
MAX_BODY = 1_000_000
ARM_ROWS = 20
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def settings_of(recipe: Fusion, arms: tuple[str, ...], *, k: int) -> dict[str, Any]:
    """The recipe as the sliders of the page."""
    boost = recipe.boost if isinstance(recipe.boost, HalfLife) else None
    floor = recipe.gate.floor if recipe.gate is not None else None
    floors = floor if isinstance(floor, dict) else dict.fromkeys(arms, floor)
    return {
        "k": k,
        "mode": recipe.mode,
        "c": recipe.c,
        "weights": dict(zip(arms, recipe.weights_for(arms), strict=True)),
        "floors": {arm: floors.get(arm) or 0.0 for arm in arms},
        "half_life": 30.0 if boost is None else boost.half_life,
        "strength": 0.0 if boost is None else boost.strength,
        "spread": 0.0 if recipe.spread is None else recipe.spread.strength,
    }


def recipe_from(recipe: Fusion, settings: dict[str, Any]) -> Fusion:
    """The recipe with what the page has moved; a floor of 0 is no floor."""
    floors = {arm: float(value) for arm, value in settings["floors"].items() if value}
    boost = recipe.boost
    if boost is None or isinstance(boost, HalfLife):
        base = boost or HalfLife()
        boost = replace(base, half_life=float(settings["half_life"]), strength=float(settings["strength"]))
    spread = replace(recipe.spread or Spread(), strength=float(settings["spread"]))
    gate = recipe.gate or QualityGate()
    return replace(
        recipe,
        mode=settings["mode"],
        c=float(settings["c"]),
        weights={arm: float(weight) for arm, weight in settings["weights"].items()},
        gate=replace(gate, floor=floors) if floors else None,
        boost=boost,
        spread=spread if spread.strength else None,
    )


class Inspector:
    """Serves the page on the loopback address, behind a random token; a context manager.

    >>> from hybridmem import HybridMemory
    >>> with HybridMemory(embedder=None) as memory, Inspector(memory) as inspector:
    ...     inspector.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, memory: HybridMemory, /, *, port: int = 0) -> None:
        self.memory = memory
        self.token = secrets.token_urlsafe(24)
        try:
            self._server = ThreadingHTTPServer((LOOPBACK, port), _handler(self))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {LOOPBACK}, port {port}: {error}") from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="hybridmem-inspector", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the page is: the token in it is the key."""
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

    # --- what the page asks

    def start(self) -> dict[str, Any]:
        """The arms, the modes and where the sliders stand at first."""
        memory = self.memory
        settings = settings_of(memory.recipe, memory.arms, k=8)
        return {"arms": list(memory.arms), "modes": list(MODES), "settings": settings, "count": len(memory)}

    def search(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Each arm's list, the fused list with receipts, and what was left out."""
        how = self._how(asked)
        told = self.memory.explain(str(asked["query"]), **how)
        texts = told.texts
        arms = {
            arm: [{"id": r.id, "score": r.score, "text": r.text} for r in self._arm(arm, asked)]
            for arm in self.memory.arms
        }
        results = [{**r.to_dict(), "text": texts.get(r.key, ""), "line": str(r)} for r in told.receipts]
        return {"arms": arms, "results": results, "dropped": {**told.gated, **told.dropped}}

    def why(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Why an id is not among the results."""
        return {"why": self.memory.explain(str(asked["query"]), **self._how(asked)).why_not(str(asked["id"]))}

    def _how(self, asked: dict[str, Any]) -> dict[str, Any]:
        settings = asked["settings"]
        return {"k": int(settings["k"]), "recipe": recipe_from(self.memory.recipe, settings)}

    def _arm(self, arm: str, asked: dict[str, Any]) -> Any:
        return self.memory.search_arm(arm, str(asked["query"]), k=ARM_ROWS)


def _handler(inspector: Inspector) -> type[BaseHTTPRequestHandler]:
    """A request handler for this inspector. Only its own host names and its token are answered."""
    actions = {"start": lambda _asked: inspector.start(), "search": inspector.search, "why": inspector.why}

    class Handler(BaseHTTPRequestHandler):
        timeout = 30

        def do_GET(self) -> None:
            if not self._allowed() or self.path != f"/{inspector.token}/":
                self._send(HTTPStatus.NOT_FOUND, b"not here", "text/plain")
                return
            page = files("hybridmem.server").joinpath("inspector.html").read_bytes()
            self._send(HTTPStatus.OK, page, "text/html; charset=utf-8")

        def do_POST(self) -> None:
            token, _, name = self.path.partition("/api/")
            action = actions.get(name) if token == f"/{inspector.token}" else None
            size = self.headers.get("Content-Length") or "0"
            if not self._allowed() or action is None or not size.isdecimal() or int(size) > MAX_BODY:
                self._send(HTTPStatus.NOT_FOUND, b"not here", "text/plain")
                return
            try:
                answer: Any = action(json.loads(self.rfile.read(int(size)) or b"{}"))
                status = HTTPStatus.OK
            except (HybridMemError, KeyError, TypeError, ValueError, AttributeError) as error:
                answer, status = {"error": str(error) or type(error).__name__}, HTTPStatus.BAD_REQUEST
            self._send(status, json.dumps(answer, default=str).encode(), "application/json")

        def _allowed(self) -> bool:
            """Another site that points its name at this address does not know the host and the port."""
            return self.headers.get("Host") in {f"{LOOPBACK}:{inspector.port}", f"localhost:{inspector.port}"}

        def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
            self.send_response(status)
            for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Stay quiet: the URL is a secret."""

    return Handler
