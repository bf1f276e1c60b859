"""HybridMemory: opening and closing, reading and searching, namespaces, and the async twins of its methods."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from hybridmem.core import validation
from hybridmem.core.fanout import Job, apply_policy, run
from hybridmem.core.protocols import Progress, Store, Version
from hybridmem.core.times import Time
from hybridmem.core.types import Direction, Memory
from hybridmem.embedding.embedder import as_embedder, unit
from hybridmem.filters.parse import All, Filter, parse
from hybridmem.fusion.explain import Explanation
from hybridmem.fusion.recipe import Fusion, load_recipe
from hybridmem.fusion.stages import Pack
from hybridmem.fusion.stages.selection import count_tokens
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.indexes.view import IndexSettings
from hybridmem.memory.factory import StoreOptions, open_engine, pick_embedder
from hybridmem.memory.health import Health, reach_warnings
from hybridmem.memory.question import Question, RecipeLike, date_filter
from hybridmem.memory.results import MemoryStats, Result, with_context
from hybridmem.memory.writing import MemoryWriting
from hybridmem.stores.spanning import SpanningStore
from hybridmem.text.analyzer import Analyzer

if TYPE_CHECKING:  # typing.Unpack came with Python 3.11
    from typing_extensions import Unpack

    from hybridmem.embedding.embedder import VectorLike
    from hybridmem.embedding.sources import EmbeddingOption
    from hybridmem.memory.factory import VectorsOption

__all__ = ["HybridMemory", "TimeMode"]

TimeMode = Literal["graded", "strict"]

BATCH_THREADS = 8
"""Searches of `search_many` that run at the same time."""
INLINE_BELOW = 0.005
"""Seconds: searches of `search_many` that are usually faster run one after another in the caller's thread."""


Self = TypeVar("Self", bound="HybridMemory")
M = TypeVar("M", bound=MemoryWriting)
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


def _async_search(
    question: Callable[Concatenate[HybridMemory, P], Question], /
) -> Callable[Concatenate[HybridMemory, P], Coroutine[Any, Any, _list[Result]]]:
    """`search` as a coroutine, with the parameters of `question`."""
    name = question.__name__

    @wraps(question)
    async def asearch(self: HybridMemory, /, *args: P.args, **kwargs: P.kwargs) -> _list[Result]:
        asked = await self.engine.embedded(getattr(self, name)(*args, **kwargs))
        results: _list[Result] = await self.engine.in_thread(lambda: self._results(asked))
        return results

    asearch.__name__, asearch.__doc__ = "asearch", "Async twin of `search`; an async embedder is awaited natively."
    return asearch


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
        vectors: "chroma" keeps the vectors in Chroma beside the file; see docs/vectors.md.
        clock: a function that returns epoch seconds.
        options: further options of the store, such as `busy_timeout`.

    """

    def __init__(
        self,
        path: str | Path | Store = ":memory:",
        *,
        embedder: EmbeddingOption | None = "auto",
        namespace: str = "",
        recipe: RecipeLike = "default",
        k: int = 8,
        analyzer: Analyzer | None = None,
        k1: float | None = None,
        b: float | None = None,
        graph: GraphSettings | bool = True,
        vectors: VectorsOption | None = None,
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

    def reindex(self, *, embedder: EmbeddingOption | None = None, progress: Progress | None = None) -> None:
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

    # --- reading

    def list(
        self, *, filter: Filter | None = None, as_of: Time | None = None, superseded: bool = True
    ) -> Iterator[Memory]:
        """Iterate over the memories that match a filter, ordered by id, superseded ones included."""
        return self.store.list(view=self._current(as_of, superseded=superseded), filter=filter)

    def history(self, id: str, /) -> Sequence[Version]:
        """Return every version of a memory, oldest first."""
        return self.store.history(id, namespace=self._namespace)

    def search(
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
        """Return the best memories for a query, best first.

        Args:
            query: any text.
            k: number of results; default: the memory's `k` (8).
            filter: only memories that match, such as {"tags": {"$contains": "home"}}.
            as_of: search the state of the store at that time.
            namespace: search another namespace of the same store.
            recipe: another recipe: a name, a file, a dict or a Fusion.
            superseded: also search memories that were superseded.
            tokens: a token budget; results are returned until k or the budget is reached.
            touch: count this search as an access of the returned memories.
            min_confidence: return nothing if the confidence is lower; `calibrate` fits a value.
            time: "graded": dates in the query are evidence; "strict": only memories of the days that it names.
            context: return so many turns before and after each result in its thread, as `Result.context`.

        """
        question = self.question(
            query,
            k=k,
            filter=filter,
            as_of=as_of,
            namespace=namespace,
            recipe=recipe,
            superseded=superseded,
            tokens=tokens,
            touch=touch,
            min_confidence=min_confidence,
            time=time,
            context=context,
        )
        return self._results(question)

    def search_many(
        self,
        queries: Iterable[str],
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
    ) -> _list[_list[Result]]:
        """Search for several queries and return their results in order; slow searches run concurrently.

        Parameters as in `search`.
        """
        questions = [
            self.question(
                query,
                k=k,
                filter=filter,
                as_of=as_of,
                namespace=namespace,
                recipe=recipe,
                superseded=superseded,
                tokens=tokens,
                touch=touch,
                min_confidence=min_confidence,
                time=time,
                context=context,
            )
            for query in validation.listed("queries", queries, "texts")
        ]
        jobs = [Job("search", partial(self._results, question), latency=self._engine.latency) for question in questions]
        outcomes = run(jobs, limit=BATCH_THREADS, inline_below=INLINE_BELOW)
        apply_policy(outcomes, wrap=False)
        return [outcome.value for outcome in outcomes]

    def explain(
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
        min_confidence: float | None = None,
        time: TimeMode = "graded",
    ) -> Explanation:
        """Return a receipt for each result of a search, and `.why_not(id)` for any other memory.

        Parameters as in `search`.
        """
        question = self.question(
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
        )
        return self._engine.explain(self._engine.answer(question))

    def search_arm(
        self,
        arm: str,
        query: str,
        /,
        *,
        k: int | None = None,
        filter: Filter | None = None,
        as_of: Time | None = None,
        namespace: str | None = None,
        superseded: bool = False,
        hops: int = 2,
        decay: float = 0.5,
        direction: Direction | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> _list[Result]:
        """Return the hits of one arm ("bm25", "vector" or "graph") with its raw scores.

        The other settings are those of the graph arm, whose results have their paths as receipts. `weights` replaces
        weights of `GraphSettings`, such as `{"thread": 0.5}`. `direction` is "forward", "backward" or "both"; None is
        both, and forward for mentions, which are never walked backward.
        """
        question = self.question(query, k=k, filter=filter, as_of=as_of, namespace=namespace, superseded=superseded)
        return self._engine.arm(arm, question, hops=hops, decay=decay, direction=direction, weights=weights)

    def nearest(
        self, vector: VectorLike, /, *, k: int | None = None, filter: Filter | None = None, as_of: Time | None = None
    ) -> _list[Result]:
        """Return the memories whose vectors are nearest to a given vector, with their cosine similarities."""
        question = self.question("", k=k, filter=filter, as_of=as_of)
        return self._engine.nearest(question._replace(vector=unit(vector)))

    def health(
        self,
        queries: Iterable[str],
        /,
        *,
        k: int | None = None,
        filter: Filter | None = None,
        as_of: Time | None = None,
        namespace: str | None = None,
        recipe: RecipeLike | None = None,
        superseded: bool = False,
    ) -> Health:
        """Measure each arm over these queries: empty rate, share of the results, results of its own, overlap."""
        questions = [
            self.question(
                query, k=k, filter=filter, as_of=as_of, namespace=namespace, recipe=recipe, superseded=superseded
            )
            for query in validation.listed("queries", queries, "texts")
        ]
        return self._engine.health(questions, k=validation.k(self._k if k is None else k), recipe=self.recipe)

    def namespaces(self) -> _list[str]:
        """Return the namespaces of the store that hold at least one memory, sorted."""
        return self.store.namespaces()

    def stats(self) -> MemoryStats:
        """Return counts of the memories of this namespace, and the embedder and arms that search them."""
        view = self._current()
        memories, kept = self.store.count(view=view), self.store.count(view=view._replace(superseded=True))
        entries, embedder = self.store.entries(view=view), self.embedder
        return MemoryStats(
            namespace=self._namespace,
            memories=memories,
            superseded=kept - memories,
            threads=len({entry.thread for entry in entries if entry.thread is not None}),
            sources=len({entry.source_id for entry in entries if entry.source_id is not None}),
            links=len(self.store.edges(view=view)),
            expiring=sum(entry.expires_at is not None for entry in entries),
            arms=self.arms,
            embedder=None if embedder is None else embedder.name,
        )

    def check(self) -> Sequence[str]:
        """Return a description of each problem of the store and of its saved indexes; empty when there is none.

        Saved indexes are compared with ones that are built for it, which takes as long as loading their memories.
        """
        return self.store.check() or self._engine.problems()

    def backup(self, path: str | Path, /) -> None:
        """Copy the whole store to a file while it is in use."""
        self.store.backup(path)

    def question(
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
    ) -> Question:
        """Validate a query and its options; `engine.answer(question)` runs it. Parameters as in `search`."""
        validation.text("query", query, "a text")
        validation.flag("touch", touch)
        chosen: Fusion = self._recipe if recipe is None else load_recipe(recipe)
        if tokens is not None:
            chosen = replace(chosen, pack=Pack(tokens=tokens))
        name = self._namespace if namespace is None else namespace
        view = validation.view_of(name, as_of, superseded=superseded)
        validation.one_of("time", time, ("graded", "strict"))
        if min_confidence is not None:
            allowed = "a number from 0 to 1; calibrate() fits one"
            validation.number("min_confidence", min_confidence, allowed, low=0, high=1)
        validation.integer("context", context, "a whole number from 0 up", low=0)
        condition: Filter | None = filter
        if time == "strict":
            dates = date_filter(query, self._engine.clock() if view.as_of is None else view.as_of)
            condition = filter if dates is None else All((parse(filter), parse(dates)))
        return Question(
            query,
            view,
            self._k if k is None else validation.k(k),
            self._engine.recipe_for(chosen),
            condition,
            min_confidence=min_confidence,
            context=context,
            touch=touch,
        )

    def _results(self, question: Question) -> _list[Result]:
        results = self._engine.results(question)
        if question.touch and results and question.view.as_of is None:
            self.store.touch([result.id for result in results], namespace=question.view.namespace)
        if question.context and results:
            pack = question.recipe.pack
            return with_context(
                results,
                self.store,
                question.view,
                turns=question.context,
                tokens=None if pack is None else pack.tokens,
                count=count_tokens if pack is None else pack.counter,
            )
        return results

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
    ahistory = _async_twin(history)
    asearch_many = _async_twin(search_many)
    aexplain = _async_twin(explain)
    asearch_arm = _async_twin(search_arm)
    anearest = _async_twin(nearest)
    ahealth = _async_twin(health)
    anamespaces = _async_twin(namespaces)
    astats = _async_twin(stats)
    aclear = _async_twin(MemoryWriting.clear)
    asweep = _async_twin(MemoryWriting.sweep)
    acheck = _async_twin(check)
    abackup = _async_twin(backup)
    areindex = _async_twin(reindex)
    aclose = _async_twin(close)
    asearch = _async_search(question)

    async def alist(
        self, *, filter: Filter | None = None, as_of: Time | None = None, superseded: bool = True
    ) -> _list[Memory]:
        """Return the memories that match a filter, ordered by id; `list` on the event loop."""
        found: _list[Memory] = await self._engine.in_thread(
            lambda: _list(self.list(filter=filter, as_of=as_of, superseded=superseded))
        )
        return found


def _first(*values: float | None) -> float:
    """The first value that is not None."""
    return next(value for value in values if value is not None)
