"""HybridMemory: the one door. Add, update, forget, link, search, explain, over one file."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from hybridmem.core import validation
from hybridmem.core.inputs import Content, as_memories, as_memory, with_changes
from hybridmem.core.protocols import Progress, Store, Version, View, WriteConflict
from hybridmem.core.types import Edge, Memory
from hybridmem.embedding.embedder import Embedder, as_embedder, unit
from hybridmem.errors import ConfigError, NotFoundError
from hybridmem.fusion.explain import Explanation
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.recipes import load_recipe
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.indexes.view import IndexSettings
from hybridmem.memory.embeddings import claim
from hybridmem.memory.factory import open_engine, pick_embedder
from hybridmem.memory.health import Health, reach_warnings
from hybridmem.memory.question import FUSED, Question, ask
from hybridmem.memory.results import Result
from hybridmem.stores.spanning import SpanningStore
from hybridmem.text.analyzer import Analyzer

__all__ = ["HybridMemory"]

Self = TypeVar("Self", bound="HybridMemory")
BATCH = 1_000
"""Memories embedded and written in one transaction: what progress has reported is on disk."""


class HybridMemory:
    """A memory that keeps facts over time and finds them by words, meaning and association.

    >>> memory = HybridMemory(embedder=None)
    >>> kept = memory.add_many(["Ana moved to Lisbon in May", "Ana's cat is called Pixel"])
    >>> memory.search("Where does Ana live? Lisbon?")[0].text
    'Ana moved to Lisbon in May'
    >>> memory.close()

    `path` is a file (made when it is not there), ":memory:", a folder of Markdown notes ("notes/"), a
    "postgresql://…" address, or any store. `vectors="chroma"` keeps the vectors in Chroma, beside the file.
    `embedder` is any LangChain, LlamaIndex or Chroma embedding object, a function from texts to vectors, "local",
    None for words and graph alone, or "auto": local where it is installed.
    """

    def __init__(
        self,
        path: str | Path | Store = ":memory:",
        *,
        embedder: Any = "auto",
        namespace: str = "",
        recipe: str | Path | Mapping[str, Any] | Fusion = "default",
        k: int = 8,
        analyzer: Analyzer | None = None,
        k1: float | None = None,
        b: float | None = None,
        graph: GraphSettings | bool = True,
        vectors: Any = None,
        clock: Callable[[], float] = time.time,
        **options: Any,
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

    # --- views and life

    def namespace(self: Self, name: str, /) -> Self:
        """The same memory as another user or agent sees it: nothing is visible across namespaces."""
        other = object.__new__(type(self))
        other.__dict__.update({key: value for key, value in self.__dict__.items() if key != "tools"})
        other._namespace, other._owner = validation.namespace(name), False
        return other

    def spanning(self: Self, prefix: str = "", /) -> Self:
        """A read-only memory over the namespace `prefix` and all below it ("users" and "users/ana"); "": over all.

        Statistics and ranking are those of all these memories together. Ids of results are `join_id(namespace, id)`
        of hybridmem.stores.spanning. Its indexes are built in this process at the first search and then follow.
        """
        own, below = validation.namespace(prefix), f"{prefix}/"
        store = SpanningStore(self.store, lambda name: not own or name == own or name.startswith(below))
        other = self.namespace("")
        other.__dict__["_engine"] = self._engine.over(store)
        return other

    @property
    def name(self) -> str:
        """The namespace of this view."""
        return self._namespace

    @property
    def store(self) -> Store:
        """The truth behind this memory."""
        return self._engine.store

    @property
    def recipe(self) -> Fusion:
        """How answers are ranked."""
        return self._engine.recipe_for(self._recipe)

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that search: without an embedder there is no "vector"."""
        return self._engine.arms

    @property
    def embedder(self) -> Embedder | None:
        """What turns texts into vectors; None: words and graph alone."""
        return self._engine.embedder

    def close(self) -> None:
        """Write down what makes the next open fast, and close the store. A namespace's view closes nothing."""
        if self._owner:
            self._engine.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.store.count(view=self._view())

    def __bool__(self) -> bool:
        """True, empty or not: `if memory:` asks whether there is one."""
        return True

    def __repr__(self) -> str:
        return f"HybridMemory(namespace={self._namespace!r}, arms={self.arms})"

    # --- writing

    def add(self, content: Content, /, **fields: Any) -> str:
        """Remember one thing and give its id: a text with fields, a Memory, or a dict."""
        return self.add_many([as_memory(content, fields)])[0]

    def add_many(self, contents: Iterable[Content], /, *, progress: Progress | None = None) -> list[str]:
        """Remember many, a thousand to a transaction; `progress(done, total)` counts what is safe on disk."""
        _check_progress(progress)
        total = len(contents) if isinstance(contents, Sequence) else None
        ids: list[str] = []
        batch: list[Memory] = []
        for memory in as_memories(contents):
            batch.append(memory)
            if len(batch) >= BATCH:
                ids += self._put(batch)
                batch = []
                _tell(progress, len(ids), total)
        ids += self._put(batch)
        _tell(progress, len(ids), total)
        return ids

    def _put(self, batch: Sequence[Memory], *, base: Sequence[Memory] | None = None) -> list[str]:
        if not batch:
            return []
        vectors = None if self.embedder is None else self._embed
        return self.store.put(batch, namespace=self._namespace, vectors=vectors, base=base)

    def _embed(self, batch: Sequence[Memory]) -> Sequence[Any]:
        """The vectors of memories that the store has validated."""
        embedder = self._engine.embedder
        if embedder is None:
            return [None] * len(batch)
        vectors = list(embedder.documents([memory.embedded for memory in batch]))
        claim(self.store, embedder)
        return vectors

    def update(self, id: str, /, **changes: Any) -> Memory:
        """Change fields of a memory; the old version stays in its history."""
        old: Memory | None = self.get(id)
        while old is not None:
            old = self._replace(old, changes)
        return self.get(id)

    def _replace(self, old: Memory, changes: Mapping[str, Any]) -> Memory | None:
        """Write a memory with changes; when somebody was faster, nothing is written and what now stands is given."""
        try:
            self._put([with_changes(old, changes)], base=[old])
        except WriteConflict as conflict:
            return conflict.current
        return None

    def forget(self, *ids: str) -> int:
        """Forget memories: out of every search at once, kept in the history. `erase` removes for good."""
        return self.store.delete(ids, namespace=self._namespace)

    def erase(self, *ids: str) -> int:
        """Remove memories with all their versions and vectors, for good."""
        return self.store.erase(ids, namespace=self._namespace)

    def link(self, a: str, b: str, /, relation: str = "related", weight: float = 1.0) -> None:
        """Let two memories remind of each other; the relation `contradicts` makes the weaker one yield."""
        self.store.link([Edge(a, b, relation, weight)], namespace=self._namespace)

    def unlink(self, a: str, b: str, /, relation: str = "related") -> bool:
        """Undo a link; False when there was none."""
        return self.store.unlink([Edge(a, b, relation)], namespace=self._namespace) > 0

    def reinforce(self, id: str, /, by: float = 0.1) -> float:
        """Strengthen a memory by 0.1, up to 1.0; gives its new strength."""
        return self.store.reinforce(id, namespace=self._namespace, by=by)

    def decay(self, now: datetime | None = None) -> int:
        """Weaken by exp(−0.01 · days), once for each elapsed day however often it is called."""
        return self.store.decay(namespace=self._namespace, now=now)

    # --- reading

    def get(self, id: str, /, *, as_of: Any = None) -> Memory:
        """One memory as it is, or as it was; NotFoundError when it is not there."""
        found = self.store.get([id], view=self._view(as_of, superseded=True))[0]
        if found is None:
            raise NotFoundError(f"no memory {id!r} in namespace {self._namespace!r}")
        return found

    def list(self, *, filter: Any = None, as_of: Any = None, superseded: bool = True) -> Iterator[Memory]:
        """All memories that pass a filter, superseded ones too, by id."""
        return self.store.list(view=self._view(as_of, superseded=superseded), filter=filter)

    def history(self, id: str, /) -> Sequence[Version]:
        """Every version of a memory, oldest first."""
        return self.store.history(id, namespace=self._namespace)

    def search(self, query: str, /, **how: Any) -> Sequence[Result]:
        """The best memories for a question, best first.

        k (8): how many · filter: {"tags": {"$contains": "home"}} · as_of: answer from what was stored at that time ·
        namespace · recipe · superseded: also search what was superseded · tokens: a budget instead of k alone ·
        touch: count the access of what is returned · min_confidence: answer nothing rather than noise.
        """
        return self._results(self._question(query, **how), touch=how.get("touch"))

    async def asearch(self, query: str, /, **how: Any) -> Sequence[Result]:
        """The same without blocking the event loop."""
        question = await self._engine.embedded(self._question(query, **how))
        touch = how.get("touch")
        return await self._engine.aside(lambda: self._results(question, touch=touch))

    def explain(self, query: str, /, **how: Any) -> Explanation:
        """Why each result is there, and `.why_not(id)` for one that is not."""
        return self._engine.explain(self._engine.answer(self._question(query, **how)))

    def search_arm(self, arm: str, query: str, /, **how: Any) -> Sequence[Result]:
        """One arm alone ("bm25", "vector" or "graph"), with its raw scores; hits of the graph tell their paths."""
        hops, decay = how.pop("hops", 2), how.pop("decay", 0.5)
        unused = [name for name in how if name in FUSED]
        if unused:
            raise ConfigError(f"search_arm does not know {unused[0]!r}: one arm alone is neither fused nor counted")
        question = self._question(query, **how)
        return self._engine.arm(arm, question, hops=hops, decay=decay)

    async def asearch_arm(self, arm: str, query: str, /, **how: Any) -> Sequence[Result]:
        """The same without blocking the event loop."""
        return await self._engine.aside(lambda: self.search_arm(arm, query, **how))

    def nearest(
        self, vector: Any, /, *, k: int | None = None, filter: Any = None, as_of: Any = None
    ) -> Sequence[Result]:
        """The memories whose vectors are nearest to a given one, with their cosine similarities."""
        question = self._question("", k=k, filter=filter, as_of=as_of)
        return self._engine.nearest(question._replace(vector=unit(vector)))

    # --- upkeep

    def reindex(self, *, embedder: Any = None, progress: Progress | None = None) -> None:
        """Build everything that is derived again: vectors (by another embedder, if one is given) and every index."""
        _check_progress(progress)
        self._engine.reindex(progress, None if embedder is None else as_embedder(embedder))

    def health(self, queries: Iterable[str], /, **how: Any) -> Health:
        """Which arm earns its place over these questions: empty rate, share of the results, solo finds, overlap."""
        asked = validation.listed("queries", queries, "questions")
        questions = [self._question(query, **how) for query in asked]
        return self._engine.health(questions, k=validation.k(how.get("k") or self._k), recipe=self.recipe)

    def check(self) -> Sequence[str]:
        """What is wrong with the store, in words; empty when all is well."""
        return self.store.check()

    def backup(self, path: str | Path, /) -> None:
        """Copy the whole store while it is in use."""
        self.store.backup(path)

    # --- inside

    def _view(self, as_of: Any = None, *, superseded: bool = False) -> View:
        if superseded is not True and superseded is not False:
            validation.flag("superseded", superseded)
        return View(self._namespace, validation.as_of(as_of), superseded)

    def _question(self, query: str, **how: Any) -> Question:
        recipe = self._recipe if how.get("recipe") is None else load_recipe(how["recipe"])
        return ask(query, how, view=self._view(), k=self._k, recipe=recipe, recipe_for=self._engine.recipe_for)

    def _results(self, question: Question, *, touch: bool | None) -> Sequence[Result]:
        results = self._engine.results(question)
        if touch and results and question.view.as_of is None:
            self.store.touch([result.id for result in results], namespace=question.view.namespace)
        return results


def _first(*values: float | None) -> float:
    """The first that is given."""
    return next(value for value in values if value is not None)


def _check_progress(progress: Any) -> None:
    if progress is not None:
        validation.function("progress", progress, "a function of (done, total), or None")


def _tell(progress: Progress | None, done: int, total: int | None) -> None:
    if progress is not None:
        progress(done, total)
