"""HybridMemory: opening and closing a memory, its namespaces, and the async twins of its methods."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from hybridmem.core import validation
from hybridmem.core.protocols import Progress, Store
from hybridmem.core.times import Time
from hybridmem.core.types import Memory
from hybridmem.embedding.embedder import as_embedder
from hybridmem.filters.parse import Filter
from hybridmem.fusion.recipes import load_recipe
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.indexes.view import IndexSettings
from hybridmem.memory.base import MemoryBase
from hybridmem.memory.factory import StoreOptions, open_engine, pick_embedder
from hybridmem.memory.health import reach_warnings
from hybridmem.memory.question import RecipeLike
from hybridmem.memory.reading import TimeMode
from hybridmem.memory.results import Result
from hybridmem.memory.writing import MemoryWriting
from hybridmem.stores.spanning import SpanningStore
from hybridmem.text.analyzer import Analyzer

if TYPE_CHECKING:  # typing.Unpack came with Python 3.11
    from typing_extensions import Unpack

__all__ = ["HybridMemory"]

Self = TypeVar("Self", bound="HybridMemory")
M = TypeVar("M", bound=MemoryBase)
_list = list  # `HybridMemory.list` hides the builtin inside the class
P = ParamSpec("P")
R = TypeVar("R")


def _async_twin(method: Callable[Concatenate[M, P], R], /) -> Callable[Concatenate[M, P], Coroutine[Any, Any, R]]:
    """The method as a coroutine that runs it in a thread, with the same parameters."""
    name = method.__name__

    @wraps(method)
    async def twin(self: M, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = await self.engine.in_thread(lambda: getattr(self, name)(*args, **kwargs))
        return result

    twin.__name__, twin.__doc__ = f"a{name}", f"Async twin of `{name}`; it does not block the event loop."
    return twin


class HybridMemory(MemoryWriting):
    """A memory that stores texts over time and finds them by BM25, vectors and graph.

    >>> memory = HybridMemory(embedder=None)
    >>> ids = memory.add_many(["Ana moved to Lisbon in May", "Ana's cat is called Pixel"])
    >>> memory.search("Where does Ana live? Lisbon?")[0].text
    'Ana moved to Lisbon in May'
    >>> memory.close()

    Args:
        path: a file (created if missing), ":memory:", a folder of Markdown notes ("notes/"), a "postgresql://…"
            address, or a store.
        embedder: a LangChain, LlamaIndex or Chroma embedding object, a function from texts to vectors, "local",
            None for BM25 and graph only, or "auto": local where it is installed.
        namespace: the user or agent whose memories these are; namespaces never see each other.
        recipe: how results are ranked: a name, a file, a dict or a Fusion.
        k: default number of results.
        analyzer: the tokeniser of texts and queries.
        k1: BM25's term saturation, default 1.2 or the recipe's.
        b: BM25's length normalisation, default 0.75 or the recipe's.
        graph: settings of the graph; True for the default ones, False for none.
        vectors: "chroma" keeps the vectors in Chroma beside the file; see docs/stores.md.
        clock: a function that returns epoch seconds.
        options: further options of the store, such as `busy_timeout`.

    """

    def __init__(
        self,
        path: str | Path | Store = ":memory:",
        *,
        embedder: Any = "auto",
        namespace: str = "",
        recipe: RecipeLike = "default",
        k: int = 8,
        analyzer: Analyzer | None = None,
        k1: float | None = None,
        b: float | None = None,
        graph: GraphSettings | bool = True,
        vectors: Any = None,
        clock: Callable[[], float] = time.time,
        **options: Unpack[StoreOptions],
    ) -> None:
        self._recipe = load_recipe(recipe)
        self._namespace, self._k = validation.namespace(namespace), validation.k(k)
        chosen = GraphSettings() if graph is True else None if graph is False else graph
        validation.function("clock", clock, "a function that gives epoch seconds")
        model = pick_embedder(embedder)
        k1, b = _first(k1, self._recipe.k1, 1.2), self._recipe.b if b is None else b
        settings = IndexSettings(Analyzer() if analyzer is None else analyzer, k1, b, chosen, model is not None)
        self._engine = open_engine(path, embedder=model, settings=settings, vectors=vectors, clock=clock, **options)
        self._owner = True
        for line in reach_warnings(self.recipe, self.arms, k=self._k):
            warnings.warn(line, UserWarning, stacklevel=2)

    def namespace(self: Self, name: str, /) -> Self:
        """Return the same memory for another user or agent; nothing is visible across namespaces."""
        other = object.__new__(type(self))
        other.__dict__.update({key: value for key, value in self.__dict__.items() if key != "tools"})
        other._namespace, other._owner = validation.namespace(name), False
        return other

    def spanning(self: Self, prefix: str = "", /) -> Self:
        """Return a read-only memory over the namespace `prefix` and all below it ("users" and "users/ana"); "": all.

        Statistics and ranking are those of all these memories together. Ids of results are `join_id(namespace, id)`
        of hybridmem.stores.spanning. Its indexes are built in this process at the first search and then follow.
        """
        own, below = validation.namespace(prefix), f"{prefix}/"
        store = SpanningStore(self.store, lambda name: not own or name == own or name.startswith(below))
        other = self.namespace("")
        other.__dict__["_engine"] = self._engine.over(store)
        return other

    def reindex(self, *, embedder: Any = None, progress: Progress | None = None) -> None:
        """Rebuild all vectors (with another embedder, if one is given) and every index from the stored texts."""
        if progress is not None:
            validation.function("progress", progress, "a function of (done, total), or None")
        self._engine.reindex(progress, None if embedder is None else as_embedder(embedder))

    def close(self) -> None:
        """Save snapshots of the indexes and close the store. A memory made by `namespace` closes nothing."""
        if self._owner:
            self._engine.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __len__(self) -> int:
        return self.store.count(view=self._current())

    def __bool__(self) -> bool:
        """True, also when it is empty, so that `if memory:` tests for None."""
        return True

    def __repr__(self) -> str:
        return f"HybridMemory(namespace={self._namespace!r}, arms={self.arms})"

    # --- async

    aadd = _async_twin(MemoryWriting.add)
    aadd_many = _async_twin(MemoryWriting.add_many)
    aupdate = _async_twin(MemoryWriting.update)
    aforget = _async_twin(MemoryWriting.forget)
    aerase = _async_twin(MemoryWriting.erase)
    alink = _async_twin(MemoryWriting.link)
    aunlink = _async_twin(MemoryWriting.unlink)
    areinforce = _async_twin(MemoryWriting.reinforce)
    adecay = _async_twin(MemoryWriting.decay)
    aget = _async_twin(MemoryWriting.get)
    ahistory = _async_twin(MemoryWriting.history)
    asearch_many = _async_twin(MemoryWriting.search_many)
    aexplain = _async_twin(MemoryWriting.explain)
    asearch_arm = _async_twin(MemoryWriting.search_arm)
    anearest = _async_twin(MemoryWriting.nearest)
    ahealth = _async_twin(MemoryWriting.health)
    anamespaces = _async_twin(MemoryWriting.namespaces)
    astats = _async_twin(MemoryWriting.stats)
    aclear = _async_twin(MemoryWriting.clear)
    asweep = _async_twin(MemoryWriting.sweep)
    acheck = _async_twin(MemoryWriting.check)
    abackup = _async_twin(MemoryWriting.backup)
    areindex = _async_twin(reindex)
    aclose = _async_twin(close)

    async def alist(
        self, *, filter: Filter | None = None, as_of: Time | None = None, superseded: bool = True
    ) -> _list[Memory]:
        """Return the memories that match a filter, ordered by id; `list` on the event loop."""
        found: _list[Memory] = await self._engine.in_thread(
            lambda: _list(self.list(filter=filter, as_of=as_of, superseded=superseded))
        )
        return found

    async def asearch(
        self,
        query: str,
        /,
        *,
        k: int | None = None,
        filter: Filter | None = None,
        as_of: Time | None = None,
        namespace: str | None = None,
        recipe: RecipeLike | None = None,
        superseded: bool = False,
        tokens: int | None = None,
        touch: bool = False,
        min_confidence: float | None = None,
        time: TimeMode = "graded",
        context: int = 0,
    ) -> _list[Result]:
        """Async twin of `search`; an async embedder is awaited natively."""
        validation.flag("touch", touch)
        question = await self._engine.embedded(
            self.question(
                query,
                k=k,
                filter=filter,
                as_of=as_of,
                namespace=namespace,
                recipe=recipe,
                superseded=superseded,
                tokens=tokens,
                min_confidence=min_confidence,
                time=time,
                context=context,
            )
        )
        results: _list[Result] = await self._engine.in_thread(lambda: self._results(question, touch=touch))
        return results


def _first(*values: float | None) -> float:
    """The first value that is not None."""
    return next(value for value in values if value is not None)
