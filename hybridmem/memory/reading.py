"""Reading half of HybridMemory: get, list, history, search, explain, health."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hybridmem.core import validation
from hybridmem.core.fanout import Job, apply_policy, run
from hybridmem.core.protocols import Version
from hybridmem.core.times import Time
from hybridmem.core.types import Direction, Memory
from hybridmem.embedding.embedder import unit
from hybridmem.errors import NotFoundError
from hybridmem.filters.parse import All, Filter, parse
from hybridmem.fusion.explain import Explanation
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.recipes import load_recipe
from hybridmem.fusion.stages import Pack
from hybridmem.fusion.stages.top import count_tokens
from hybridmem.memory.base import MemoryBase
from hybridmem.memory.confidence import check_confidence
from hybridmem.memory.health import Health
from hybridmem.memory.question import Question, RecipeLike
from hybridmem.memory.results import MemoryStats, Result
from hybridmem.memory.surroundings import date_filter, with_context

__all__ = ["MemoryReading", "TimeMode"]

TimeMode = Literal["graded", "strict"]

_list = list  # `MemoryReading.list` hides the builtin inside the class
BATCH_THREADS = 8
"""Searches of `search_many` that run at the same time."""
INLINE_BELOW = 0.005
"""Seconds: searches of `search_many` that are usually faster run one after another in the caller's thread."""


class MemoryReading(MemoryBase):
    """The methods that read memories."""

    def get(self, id: str, /, *, as_of: Time | None = None) -> Memory:
        """Return one memory, now or as of a time; NotFoundError when there is none."""
        memory = self.store.get([id], view=self._current(as_of, superseded=True))[0]
        if memory is None:
            raise NotFoundError(f"no memory {id!r} in namespace {self._namespace!r}")
        return memory

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
            min_confidence=min_confidence,
            time=time,
            context=context,
        )
        validation.flag("touch", touch)
        return self._results(question, touch=touch)

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
                min_confidence=min_confidence,
                time=time,
                context=context,
            )
            for query in validation.listed("queries", queries, "texts")
        ]
        validation.flag("touch", touch)
        jobs = [
            Job("search", partial(self._results, question, touch=touch), latency=self._engine.latency)
            for question in questions
        ]
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
        self, vector: Any, /, *, k: int | None = None, filter: Filter | None = None, as_of: Time | None = None
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
        """Return a description of each problem of the store; empty when there is none."""
        return self.store.check()

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
        min_confidence: float | None = None,
        time: TimeMode = "graded",
        context: int = 0,
    ) -> Question:
        """Validate a query and its options; `engine.answer(question)` runs it. Parameters as in `search`."""
        validation.text("query", query, "a text")
        chosen: Fusion = self._recipe if recipe is None else load_recipe(recipe)
        if tokens is not None:
            chosen = replace(chosen, pack=Pack(tokens=tokens))
        view = self._view(as_of, superseded=superseded)
        if namespace is not None:
            view = view._replace(namespace=validation.namespace(namespace))
        validation.one_of("time", time, ("graded", "strict"))
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
            min_confidence=check_confidence(min_confidence),
            context=context,
        )

    def _results(self, question: Question, *, touch: bool) -> _list[Result]:
        results = self._engine.results(question)
        if touch and results and question.view.as_of is None:
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
