"""Engine: one query from its text to a ranking, over the search views of one store. All namespaces share it."""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from hybridmem.core import validation
from hybridmem.core.fanout import Job, Latency, Outcome, apply_policy, in_thread, run, run_one
from hybridmem.core.forks import guard
from hybridmem.core.protocols import (
    ArmQuery,
    Progress,
    SearchView,
    Store,
    SupportsBoundedThreads,
    SupportsLazyFilter,
    SupportsPastViews,
    View,
)
from hybridmem.core.times import has_passed
from hybridmem.core.types import ArmList, Candidates, Direction, Entry, Graph, Hits, Memory, Ranking
from hybridmem.embedding.embedder import Embedder, check_same
from hybridmem.errors import EmbeddingError, StoreError
from hybridmem.fusion.explain import Explanation, Trace
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages.base import Pool
from hybridmem.indexes.graph.activation import ExtendedGraph, check_walk, mention_links
from hybridmem.indexes.graph.explain import explain_arm
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.indexes.view import IndexSettings, LocalView
from hybridmem.memory.embeddings import (
    begin_generation,
    check_recorded,
    embed_again,
    keep_embedded,
    recorded,
)
from hybridmem.memory.health import Health, Observation, measure
from hybridmem.memory.question import BEST, Question, confidence, hidden
from hybridmem.memory.results import Result
from hybridmem.text.conversation import bare_question

__all__ = ["Answer", "Engine", "EntryReader", "Expiry", "answer_confidence", "arm_lists", "pool_of"]

T = TypeVar("T")
_Hits = dict[str, Hits]
log = logging.getLogger("hybridmem")
_NO_VECTORS = ArmList("vector", [], skipped="no embedder, so only BM25 and graph search")
AS_OF_VIEWS = 4
"""How many views of the past are cached; each holds the indexes of one time."""
VIEWS = 500
"""Namespaces whose indexes are kept in memory; those of the least recently searched are dropped."""


class Answer(NamedTuple):
    """A ranking with the inputs it was computed from, so that it can be explained later by the same pure function."""

    ranking: Ranking
    lists: Sequence[ArmList]
    question: Question
    view: SearchView
    reader: EntryReader
    graph: Graph | None
    now: float
    pool: Pool | None = None


_FIELDS = {name: itemgetter(place) for place, name in enumerate(Entry._fields)}  # faster than getattr


class EntryReader:
    """Reads the fields of entries for a fusion; fields that an entry lacks are read from the store."""

    def __init__(
        self, memories: Callable[[Sequence[str]], list[Memory | None]], vectors: Callable[[Sequence[str]], list[Any]], /
    ) -> None:
        self._read = memories
        self._vectors = vectors
        self._known: dict[str, Memory | None] = {}

    def memories(self, ids: Sequence[str], /) -> list[Memory | None]:
        """The memories of these ids, each read once; None for one that left the view."""
        known = self._known
        missing = [id_ for id_ in ids if id_ not in known]
        if missing:
            known.update(zip(missing, self._read(missing), strict=True))
        return list(map(known.__getitem__, ids))

    def keys(self, items: Sequence[Entry], /) -> list[str]:
        """The ids of the memories."""
        return [item[0] for item in items]

    def column(self, items: Sequence[Entry], name: str, /) -> list[Any]:
        """One field of each memory, or of its metadata."""
        field = _FIELDS.get(name)
        if field is not None:
            return list(map(field, items))
        ids = self.keys(items)
        if name == "vector":
            return self._vectors(ids)
        found = self.memories(ids)
        if name in Memory.__dataclass_fields__:
            return [None if memory is None else getattr(memory, name) for memory in found]
        path = name.removeprefix("metadata.")
        return [None if memory is None else memory.metadata.get(path) for memory in found]


class Engine:
    """Runs questions: the arms concurrently, then the fusion."""

    def __init__(
        self,
        store: Store,
        /,
        *,
        embedder: Embedder | None,
        settings: IndexSettings,
        clock: Callable[[], float],
        make_view: Callable[[Store, View, IndexSettings], SearchView] | None = None,
    ) -> None:
        self.store = store
        self.embedder = embedder
        self.settings = settings
        self.clock = clock
        self._make_view = make_view or LocalView
        self._views: dict[View, SearchView] = {}
        self._as_of_views: OrderedDict[tuple[View, Any], SearchView] = OrderedDict()
        self._filter_ids = store.lazy_ids if isinstance(store, SupportsLazyFilter) else store.ids
        self._in_thread = store.in_thread if isinstance(store, SupportsBoundedThreads) else in_thread
        self._latencies: dict[str, Latency] = {"bm25": Latency(), "vector": Latency()}
        self.expiry = Expiry(store, clock)
        self.latency = Latency()
        """Duration of a whole search."""
        self._lock = guard(threading.Lock())
        self._closed = False
        self._checked_seq: dict[str | None, int] = {}
        self.check_embedder()

    # --- the recorded embedder

    def check_embedder(self) -> None:
        """Raise EmbeddingError for another embedder than the recorded one; finish an interrupted re-embedding."""
        stored = recorded(self.store)
        if stored is not None and self.embedder is not None:
            check_same(stored["name"], stored["dim"], self.embedder)
            if stored.get("unfinished"):
                self.reindex(None)
        keep_embedded(self.store, lambda: self.embedder)

    def _check_generation(self, seq: int, namespace: str | None = None) -> None:
        """Raise EmbeddingError when another process has embedded the store with another embedder; `seq`: its newest."""
        if self.embedder is not None and seq != self._checked_seq.get(namespace):
            check_recorded(self.store.get_meta("embedder"), self.embedder)
            self._checked_seq[namespace] = seq

    def over(self, store: Any, /) -> Engine:
        """An engine with the same settings over another store, with indexes in this process."""
        settings = self.settings._replace(make_vectors=None)
        return Engine(store, embedder=self.embedder, settings=settings, clock=self.clock)

    # --- search views

    def search_view(self, view: View) -> SearchView:
        """The indexes of a view, up to date with the store; expired memories are removed first."""
        if view.as_of is not None:
            newest = self.store.last_seq()
            self._check_generation(newest)
            found = self._kept(self._as_of_views, (view, self._view_version(view)), view)
            found.refresh(newest)
            return found
        found = self._kept(self._views, view, view)
        if found.next_expiry() is None:
            newest = self.expiry.apply(view.namespace)
            self._check_generation(newest)
            found.refresh(newest)
        else:  # one statement of the server reads the expiry and the version of the namespace
            found.refresh()
            self._check_generation(found.version(), view.namespace)
            if self.expiry.apply_from(view.namespace, found.next_expiry()):
                found.refresh()
        return found

    def _kept(self, kept: dict[Any, SearchView], key: Any, view: View) -> SearchView:
        with self._lock:
            found = kept.pop(key, None) or self._make_view(self.store, view, self.settings)
            kept[key] = found
            while len(self._as_of_views) > AS_OF_VIEWS:
                self._as_of_views.popitem(last=False)
            unused = [self._views.pop(next(iter(self._views))) for _ in range(len(self._views) - VIEWS)]
        for view_ in unused:  # not closed: another thread may still search it
            view_.save()
        return found

    def _view_version(self, view: View) -> Any:
        """The version of a view of the past, which changes with writes up to its time and with erasures."""
        store = self.store
        return store.view_version(view=view) if isinstance(store, SupportsPastViews) else store.last_seq()

    def index(self, namespace: str, /, *, save: bool = False) -> None:
        """Bring the indexes of a namespace up to date and, with `save`, store snapshots of them."""
        view = self.search_view(View(namespace))
        if save:
            view.save()

    def drop_views(self) -> None:
        """Drop every index; the next search rebuilds it from the store."""
        with self._lock:
            self._views.clear()
            self._as_of_views.clear()

    def problems(self) -> list[str]:
        """The saved indexes of all namespaces that differ from ones that are built from the log."""
        views = [self._make_view(self.store, View(name), self.settings) for name in self.store.namespaces()]
        return [problem for view in views if isinstance(view, LocalView) for problem in view.problems()]

    def save(self) -> None:
        """Store snapshots of the indexes, so that the next open is fast."""
        for view in list(self._views.values()):
            view.save()

    # --- one query

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that search: BM25 always, vector if there is an embedder."""
        return ("bm25",) if self.embedder is None else ("bm25", "vector")

    def recipe_for(self, recipe: Fusion) -> Fusion:
        """The recipe without a weight for the vector arm if there is none."""
        if self.embedder is not None or not isinstance(recipe.weights, Mapping):
            return recipe
        kept = {arm: weight for arm, weight in recipe.weights.items() if arm != "vector"}
        return replace(recipe, weights=kept or None)

    def answer(self, question: Question) -> Answer:
        """Run the arms and the fusion; search deeper while dedup leaves fewer than k and the arms have more."""
        view, query = self.search_view(question.view), self.arm_query(question)
        depth = question.recipe.depth_for(question.k)
        while True:
            answer = self._once(view, query, question, depth)
            if len(answer.ranking.keys) >= question.k or question.recipe.dedup is None:
                return answer
            if not any(len(arm.items) >= depth for arm in answer.lists):
                return answer._replace(ranking=self.fuse(answer)) if question.recipe.dedup.fill else answer
            depth *= 4

    def now(self, question: Question) -> float:
        """The clock of a question: the time of its view, or now."""
        return self.clock() if question.view.as_of is None else question.view.as_of

    def arm_query(self, question: Question) -> ArmQuery:
        """The question as the arms receive it, with the ids that pass its filter."""
        allowed = None
        if question.filter is not None:
            allowed = self._filter_ids(view=question.view, filter=question.filter)
        return ArmQuery(question.text, question.vector, allowed)

    def _once(self, view: SearchView, query: ArmQuery, question: Question, depth: int) -> Answer:
        recipe = question.recipe
        query, hits, pool = self._hits(view, query, recipe, depth)
        lists = arm_lists(self.arms, hits, view, pool)
        spread = recipe.spread
        graph = None if spread is None else view.graph(query.allowed, threads=spread.threads)
        reader = self.reader(question.view)
        answer = Answer(Ranking([], [], []), lists, question, view, reader, graph, self.now(question), pool)
        return answer._replace(ranking=self.fuse(answer, fill=False))

    def _hits(
        self, view: SearchView, query: ArmQuery, recipe: Fusion, depth: int
    ) -> tuple[ArmQuery, _Hits, Pool | None]:
        """The hits of each arm and, if the recipe asks for it, the pool with every arm's scores of all candidates.

        A view with combined search answers both arms in one call, or declines with None.
        """
        everything = recipe.complete and query.text.strip() and all(recipe.weights_for(self.arms))
        if everything and self.embedder is not None and view.searches_both:
            if query.vector is None:
                text = _embedded_text(view, query.text, recipe)
                query = query._replace(vector=run_one(Job("vector", partial(self.embedder.query, text))))
            both = run_one(Job("bm25 and vector", partial(view.search_both, query, k=depth)))
            if both is not None:
                hits: _Hits = both[0]
                return query, hits, pool_of(view, query, hits)
        query, hits = self.arm_hits(view, query, recipe, depth)
        return query, hits, pool_of(view, query, hits) if recipe.complete else None

    def arm_hits(
        self, view: SearchView, query: ArmQuery, recipe: Fusion, depth: int
    ) -> tuple[ArmQuery, dict[str, Hits]]:
        """The hits of every arm with a weight, searched concurrently; the vector arm embeds the query."""
        weights = dict(zip(self.arms, recipe.weights_for(self.arms), strict=True))
        box = {"vector": query.vector}

        def vector() -> Hits:
            if not query.text.strip():
                return Hits([], [])  # nothing to embed
            if box["vector"] is None and self.embedder is not None:
                box["vector"] = self.embedder.query(_embedded_text(view, query.text, recipe))
            return view.search("vector", query._replace(vector=box["vector"]), k=depth)

        calls = {"bm25": lambda: view.search("bm25", query, k=depth), "vector": vector}
        jobs = [Job(arm, calls[arm], latency=self._latencies[arm]) for arm in self.arms if weights[arm] > 0]
        outcomes: list[Outcome] = run(jobs, inline_below=view.thread_threshold)
        apply_policy(outcomes)
        return query._replace(vector=box["vector"]), {outcome.name: outcome.value for outcome in outcomes}

    async def embedded(self, question: Question) -> Question:
        """The question with its embedding, computed without blocking the event loop."""
        weights = dict(zip(self.arms, question.recipe.weights_for(self.arms), strict=True))
        if self.embedder is None or not weights["vector"] or not question.text.strip():
            return question
        text = question.text
        if question.recipe.omit_speakers:
            text = await self.in_thread(
                lambda: _embedded_text(self.search_view(question.view), question.text, question.recipe)
            )
        try:
            return question._replace(vector=await self.embedder.aquery(text))
        except EmbeddingError as error:
            apply_policy([Outcome("vector", error=error)])
            raise

    def fuse(self, answer: Answer, trace: Trace | None = None, *, fill: bool = True) -> Ranking:
        """Run the recipe, a pure function of lists, clock, graph and options."""
        question = answer.question
        return question.recipe.run(
            answer.lists,
            reader=answer.reader,
            query=question.text,
            now=answer.now,
            k=question.k,
            graph=answer.graph,
            contradictions=answer.view.contradictions,
            trace=trace,
            pool=answer.pool,
            fill=fill,
        )

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run a blocking call in a thread; a store with few connections limits how many run at a time."""
        result: T = await self._in_thread(call)
        return result

    def results(self, question: Question) -> list[Result]:
        """The answer as results with their memories; receipts are computed when one is read."""
        answer = self.answer(question)
        if question.min_confidence is not None and answer_confidence(answer) < question.min_confidence:
            return []
        scores = question.recipe.shares(answer.ranking.scores)

        @cache
        def explained() -> Explanation:
            return self.explain(answer)

        return self.fetch(answer.ranking.keys, scores, question.view, explained, reader=answer.reader)

    def fetch(
        self,
        ids: Sequence[str],
        scores: Sequence[float],
        view: View,
        explain: Callable[[], Explanation] | None = None,
        *,
        reader: EntryReader | None = None,
    ) -> list[Result]:
        """Results for ids, in order; a memory that was removed or has expired meanwhile is left out."""
        memories = (reader or self.reader(view)).memories(ids)
        now = self.clock() if view.as_of is None else view.as_of
        rows = zip(ids, scores, memories, strict=True)
        return [
            Result(key, score, memory, explain)
            for key, score, memory in rows
            if memory is not None and not has_passed(memory.expires_at, now)
        ]

    def arm(
        self,
        arm: str,
        question: Question,
        *,
        hops: int,
        decay: float,
        direction: Direction | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> list[Result]:
        """Results of one arm with its raw scores. The graph starts from the 4·k best hits of BM25, scaled to 1."""
        validation.one_of("arm", arm, (*self.arms, "graph"))
        check_walk(direction, weights)
        view, query = self.search_view(question.view), self.arm_query(question)
        if arm == "vector" and not query.text.strip():
            return []
        if arm == "vector" and self.embedder is not None and query.vector is None:
            query = query._replace(vector=self.embedder.query(query.text))
        snapshot = view.graph(query.allowed, direction=direction, weights=weights) if arm == "graph" else None
        if snapshot is None:
            return self.fetch(*view.search("bm25" if arm == "graph" else arm, query, k=question.k), question.view)
        graph = snapshot
        if direction != "backward" and view.has_names():
            weight = (weights or {}).get("mentions", (self.settings.graph or GraphSettings()).mentions)
            links = mention_links(partial(view.mentions, weight=weight))
            graph = ExtendedGraph(snapshot, links, allowed=query.allowed, heaviest=weight)
        seeds = view.search("bm25", query, k=4 * question.k)
        hits = graph.search(dict(zip(*seeds, strict=True)), k=question.k, hops=hops, decay=decay)

        @cache
        def explained() -> Explanation:
            return explain_arm(graph, question.text, seeds, hits, hops=hops, decay=decay)

        return self.fetch(hits.ids, hits.scores, question.view, explained)

    def nearest(self, question: Question) -> list[Result]:
        """Results of the vector arm for a question that has its vector."""
        hits = self.search_view(question.view).search("vector", self.arm_query(question), k=question.k)
        return self.fetch(hits.ids, hits.scores, question.view)

    def reindex(self, progress: Progress | None, embedder: Embedder | None = None) -> None:
        """Embed everything again, with another embedder if one is given, and rebuild every index from the store."""
        model = self.embedder if embedder is None else embedder
        if model is not None:
            model.probe()  # an embedder that fails must not be recorded
            generation = begin_generation(self.store, model)
            self.embedder, self.settings = model, self.settings._replace(vectors=True)
            try:
                embed_again(self.store, model, generation, progress)
            except BaseException:
                if embedder is not None and self.embedder is embedder:  # the store now holds vectors of two models
                    self.embedder, self.settings = None, self.settings._replace(vectors=False)
                    self.drop_views()
                    log.warning("reindex() was interrupted: only BM25 and graph search until it is run again")
                raise
            self.embedder, self.settings = model, self.settings._replace(vectors=True)
        self.drop_views()
        for name in self.store.namespaces():
            self.store.drop_snapshots(namespace=name)
            self.search_view(View(name)).save()

    def health(self, questions: Iterable[Question], *, k: int, recipe: Fusion) -> Health:
        """Measure each arm over these questions."""
        observations = []
        for question in questions:
            answer = self.answer(question)
            reader = answer.reader
            lists = {arm.name: reader.keys(arm.items) for arm in answer.lists}
            observations.append(Observation(lists, answer.ranking.keys))
        return measure(observations, k=k, recipe=recipe)

    def close(self) -> None:
        """Save snapshots and close the store."""
        if not self._closed:
            self._closed = True
            try:
                self.save()
                for view in [*self._views.values(), *self._as_of_views.values()]:
                    view.close()
            finally:
                self.store.close()

    def reader(self, view: View) -> EntryReader:
        """The reader of entries of this view."""
        store = self.store
        return EntryReader(lambda ids: store.get(ids, view=view), lambda ids: store.vectors(ids, view=view))

    def explain(self, answer: Answer) -> Explanation:
        """Run the fusion again with tracing enabled."""
        trace = Trace()
        ranking = self.fuse(answer, trace)
        question = answer.question
        scores = question.recipe.shares(ranking.scores)
        keys = list(dict.fromkeys([*ranking.keys, *trace.path_keys()]))
        memories = answer.reader.memories(keys)
        texts = {key: memory.text for key, memory in zip(keys, memories, strict=True) if memory is not None}
        explanation = trace.explanation(
            ranking,
            query=question.text,
            lists=answer.lists if self.embedder is not None else [*answer.lists, _NO_VECTORS],
            shown=scores,
            texts=texts,
            hidden=lambda key: hidden(self.store, key, question, answer.now),
        )
        sure, least = answer_confidence(answer), question.min_confidence
        explanation = replace(explanation, confidence=sure)
        return explanation if least is None or sure >= least else explanation.refused(least)


def arm_lists(arms: Sequence[str], hits: Mapping[str, Hits], view: SearchView, pool: Pool | None) -> list[ArmList]:
    """The hits of each arm as a list of entries; a memory that left the view is dropped."""
    known = {} if pool is None else dict(zip(pool.candidates.ids, pool.items, strict=True))
    baseline: Mapping[str, float] = {} if pool is None else pool.candidates.baseline
    lists = []
    for arm in arms:
        if arm not in hits:
            lists.append(ArmList(arm, [], skipped="weight 0"))
            continue
        ids, scores = hits[arm]
        entries = view.entries(ids) if pool is None else list(map(known.get, ids))
        if None in entries:
            rows = [(e, s) for e, s in zip(entries, scores, strict=True) if e is not None]
            entries, scores = [entry for entry, _ in rows], [score for _, score in rows]
        lists.append(ArmList(arm, entries, scores, baseline=baseline.get(arm, 0.0)))
    return lists


def pool_of(view: SearchView, query: ArmQuery, hits: Mapping[str, Hits]) -> Pool:
    """All candidates of a query with their entries; a memory that left the view meanwhile is dropped."""
    searched = {arm: own for arm, own in hits.items() if arm != "vector" or query.vector is not None}
    candidates = view.complete(query, searched)
    entries = view.entries(candidates.ids)
    if None in entries:
        candidates, entries = _present(candidates, entries)
    return Pool(entries, candidates, view.speakers())


def _present(candidates: Candidates, entries: Sequence[Entry | None]) -> tuple[Candidates, list[Entry | None]]:
    """The candidates that have an entry."""
    places = [i for i, entry in enumerate(entries) if entry is not None]
    position = {place: i for i, place in enumerate(places)}
    window, previous = candidates.window, candidates.previous
    kept = Candidates(
        [candidates.ids[i] for i in places],
        {arm: [scores[i] for i in places] for arm, scores in candidates.scores.items()},
        candidates.baseline,
        None if window is None else [window[i] for i in places],
        None if previous is None else [position.get(previous[i], -1) for i in places],
        [
            link._replace(source=position.get(link.source, -1), target=position[link.target])
            for link in candidates.mentions
            if link.source in (-1, *position) and link.target in position
        ],
        [
            one._replace(members=[position[member] for member in one.members if member in position])
            for one in candidates.shared
        ],
    )
    return kept, [entries[i] for i in places]


def answer_confidence(answer: Answer) -> float:
    """The confidence of an answer of the engine."""
    by_name = {arm.name: arm for arm in answer.lists}
    question, best = answer.question, answer.ranking.keys[:BEST]
    coverage = answer.view.coverage(ArmQuery(question.text), best) if best else ()
    vector = by_name.get("vector")
    return confidence(coverage=coverage, cosines=(vector.scores or ()) if vector is not None else ())


def _embedded_text(view: SearchView, text: str, recipe: Fusion) -> str:
    """The text of a query that is embedded."""
    return bare_question(text, view.speakers()) if recipe.omit_speakers else text


class _ExpiryCheck(NamedTuple):
    """The result of the last look-up: the store's seq then, and the earliest expiry."""

    seq: int
    earliest: float


class Expiry:
    """Deletes expired memories before a read. History and views as of an earlier time still have them.

    The earliest expiry of a namespace is read once for each change of the store.
    """

    def __init__(self, store: Store, clock: Callable[[], float], /) -> None:
        self._store = store
        self._clock = clock
        self._checks: dict[str, _ExpiryCheck] = {}
        self._lock = guard(threading.Lock())

    def apply(self, namespace: str, /) -> int:
        """Delete what has expired in a namespace; returns the store's newest seq.

        A store that cannot be written to keeps it until it can.
        """
        seq = self._store.last_seq()
        check = self._checks.get(namespace)
        if check is None or check.seq != seq:
            earliest = self._store.next_expiry(namespace=namespace)
            check = _ExpiryCheck(seq, math.inf if earliest is None else earliest)
            with self._lock:
                self._checks[namespace] = check
        return self._store.last_seq() if self.apply_from(namespace, check.earliest) else seq

    def apply_from(self, namespace: str, earliest: float | None, /) -> bool:
        """The same, where the earliest expiry is known; returns whether a memory has expired."""
        if earliest is None or earliest > self._clock():
            return False
        try:
            self._store.expire(now=self._clock(), namespace=namespace)
        except StoreError as error:
            log.warning("expired memories could not be removed from the indexes of %r: %s", namespace, error)
        return True
