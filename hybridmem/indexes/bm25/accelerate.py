"""When to use the compiled loops: when asked, or when the index is large and numba is there."""

from __future__ import annotations

import importlib.util
import logging
import threading
from functools import lru_cache
from typing import Literal

from hybridmem.core import validation
from hybridmem.core.forks import guard
from hybridmem.errors import MissingExtraError
from hybridmem.indexes.bm25.scoring import Kernels
from hybridmem.indexes.bm25.state import State

__all__ = ["Accelerator"]

_WORTH = 50_000
"""Rows from which compiled loops repay the second that importing numba takes."""

_PLAIN = Kernels()

log = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def _compiled() -> Kernels:
    from hybridmem.indexes.bm25.compiled import NumbaKernels

    kernels = NumbaKernels()
    kernels.warm()
    return kernels


class Accelerator:
    """Hands out the loops to use. On `auto`, numba is loaded in the background and used from then on."""

    def __init__(self, accelerate: Literal["auto"] | bool) -> None:
        if not isinstance(accelerate, bool) and (not isinstance(accelerate, str) or accelerate != "auto"):
            validation.refuse("accelerate", accelerate, "'auto', True, False")
        self._lock = guard(threading.Lock())
        self._ready: Kernels | None = _PLAIN if accelerate is False else None
        self._warming = False
        if accelerate is True:
            try:
                self._ready = _compiled()
            except ImportError as error:
                raise MissingExtraError("fast", needs="numba") from error

    def kernels(self, state: State, /) -> Kernels:
        """The loops for this query."""
        if self._ready is not None:
            return self._ready
        if state.size >= _WORTH and not self._warming:
            self._warm()
        return self._ready or _PLAIN

    def _warm(self) -> None:
        with self._lock:
            if self._warming:
                return
            self._warming = True
        if importlib.util.find_spec("numba") is None:
            self._ready = _PLAIN
            return
        threading.Thread(target=self._load, name="hybridmem-numba").start()

    def _load(self) -> None:
        try:
            self._ready = _compiled()
        except Exception:
            log.debug("numba cannot be used", exc_info=True)
            self._ready = _PLAIN
