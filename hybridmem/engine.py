"""The engine: one query from its text to a ranking, over the spaces of one store. All views of a memory share it."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from hybridmem.abstain import answer_confidence
from hybridmem.embed import Embedder, check_same
from hybridmem.errors import ConfigError
from hybridmem.explain import Explanation, Trace
from hybridmem.fanout import Job, Outcome, Pace, in_thread, run, settle
from hybridmem.fusion import Fusion
from hybridmem.graph_arm import explain_arm
from hybridmem.health import Health, Observation, measure
from hybridmem.results import EntryReader, Result
from hybridmem.space import Ask, IndexSettings, LocalSpace, Space
from hybridmem.stores.base import Progress, Store, View
from hybridmem.types import ArmList, Graph, Hits, Ranking

__all__ = ["Answer", "Engine", "Question", "listed"]

T = TypeVar("T")
REEMBED = 1_000
OWN_THREAD_FROM = 0.01
"""Seconds from which an arm gets a thread of its own: below, the arms compute rather than wait, and threads cost."""
PAST_SPACES = 4
"""How many as-of spaces are kept: each holds the indexes of one moment."""


class Question(NamedTuple):
    """Everything that decides an answer, beside the store."""

    text: str
    view: View
    k: int
    recipe: Fusion
    filter: Any = None
    vector: Any = None
    min_confidence: float | None = None


class Answer(NamedTuple):
    """A ranking with all that made it, so that it can be explained later by the same pure function."""

    ranking: Ranking
    lists: Sequence[ArmList]
    question: Question
    space: Space
    graph: Graph | None
    now: float
    degraded: bool = False


class Engine:
    """Runs questions: arms at once, then the pure fusion."""

    def __init__(
        self,
        store: Store,
        /,
        *,
        embedder: Embedder | None,
        settings: IndexSettings,
        clock: Callable[[], float],
        make_space: Callable[[Store, View, IndexSettings], Space] | None = None,
    ) -> None:
        self.store = store
        self.embedder = embedder
        self.settings = settings
        self.clock = clock
        self._make_space = make_space or LocalSpace
        self._spaces: dict[View, Space] = {}
        self._past: OrderedDict[View, Space] = OrderedDict()
        self._paces: dict[str, Pace] = {"bm25": Pace(), "vector": Pace()}
        self._lock = threading.Lock()
        self._closed = False
        self.check_embedder()

    # --- the embedder on record

    def check_embedder(self) -> None:
        """Refuse an embedder other than the one whose vectors are stored; finish a re-embedding that was cut short."""
        recorded = self.recorded()
        if recorded is None or self.embedder is None:
            return
        check_same(recorded["name"], recorded["dim"], self.embedder)
        if recorded.get("unfinished"):
            self.reindex(None)

    def recorded(self) -> dict[str, Any] | None:
        """The embedder whose vectors are stored: its name and dimension."""
        text = self.store.get_meta("embedder")
        return None if text is None else dict(json.loads(text))

    def record(self, embedder: Embedder, *, unfinished: bool = False) -> None:
        """Write down whose vectors these are."""
        now = {"name": embedder.name, "dim": embedder.dim, **({"unfinished": True} if unfinished else {})}
        if self.recorded() != now:
            self.store.set_meta("embedder", json.dumps(now))

    # --- spaces

    def space(self, view: View) -> Space:
        """The indexes of a view, caught up with the store."""
        with self._lock:
            kept: dict[View, Space] | OrderedDict[View, Space] = self._spaces if view.as_of is None else self._past
            space = kept.get(view)
            if space is None:
                space = kept[view] = self._make_space(self.store, view, self.settings)
                while len(self._past) > PAST_SPACES:
                    self._past.popitem(last=False)
            elif view.as_of is not None:
                self._past.move_to_end(view)
        space.refresh()
        return space

    def forget_spaces(self) -> None:
        """Drop every index: the next search builds it again from the store."""
        with self._lock:
            self._spaces.clear()
            self._past.clear()

    def save(self) -> None:
        """Write down what makes the next open fast."""
        for space in list(self._spaces.values()):
            space.save()

    # --- the one path of a query

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that search: BM25 always, vectors when there is an embedder."""
        return ("bm25",) if self.embedder is None else ("bm25", "vector")

    def recipe_for(self, recipe: Fusion) -> Fusion:
        """The recipe for the arms that exist: a weight for an absent vector arm is left out."""
        if self.embedder is not None or not isinstance(recipe.weights, Mapping):
            return recipe
        kept = {arm: weight for arm, weight in recipe.weights.items() if arm in self.arms}
        return replace(recipe, weights=kept or None)

    def answer(self, question: Question) -> Answer:
        """Ask the arms, fuse, and ask deeper while dedup leaves fewer than k although the arms have more."""
        space = self.space(question.view)
        ask = self._ask(question)
        depth = question.recipe.depth_for(question.k)
        while True:
            answer = self._once(space, ask, question, depth)
            full = len(answer.ranking.keys) >= question.k
            if full or question.recipe.dedup is None or not any(len(arm.items) >= depth for arm in answer.lists):
                return answer
            depth *= 4

    def _ask(self, question: Question) -> Ask:
        allowed = None
        if question.filter is not None:
            choose = getattr(self.store, "choose", self.store.ids)  # a server may keep the filter to itself
            allowed = choose(view=question.view, filter=question.filter)
        return Ask(question.text, question.vector, allowed)

    def _once(self, space: Space, ask: Ask, question: Question, depth: int) -> Answer:
        recipe = question.recipe
        ask, found = self._arms(space, ask, recipe, depth)
        known = complete(space, ask, found) if recipe.complete else {}
        lists = [
            listed(arm, found[arm], space, known.get(arm)) if arm in found else ArmList(arm, [], skipped="weight 0")
            for arm in self.arms
        ]
        graph = space.graph(ask.allowed) if recipe.spread is not None else None
        answer = Answer(Ranking([], [], []), lists, question, space, graph, self.clock())
        return answer._replace(ranking=self.fuse(answer))

    def _arms(self, space: Space, ask: Ask, recipe: Fusion, depth: int) -> tuple[Ask, dict[str, Hits]]:
        """Every arm that has a weight, at the same time; embedding the question is part of the vector arm."""
        weights = dict(zip(self.arms, recipe.weights_for(self.arms), strict=True))
        box = {"vector": ask.vector}

        def vector() -> Hits:
            if box["vector"] is None and self.embedder is not None:
                box["vector"] = self.embedder.query(ask.text)
            return space.search("vector", ask._replace(vector=box["vector"]), k=depth)

        calls = {"bm25": lambda: space.search("bm25", ask, k=depth), "vector": vector}
        jobs = [Job(arm, calls[arm], pace=self._paces[arm]) for arm in self.arms if weights[arm] > 0]
        outcomes: list[Outcome] = run(jobs, inline_below=getattr(space, "own_thread_from", OWN_THREAD_FROM))
        settle(outcomes)
        return ask._replace(vector=box["vector"]), {outcome.name: outcome.value for outcome in outcomes}

    def fuse(self, answer: Answer, trace: Trace | None = None) -> Ranking:
        """The pure part: the same lists, clock, graph and recipe give the same ranking."""
        question = answer.question
        return question.recipe.run(
            answer.lists,
            reader=self.reader(question.view),
            query=question.text,
            now=answer.now,
            k=question.k,
            graph=answer.graph,
            contradictions=answer.space.contradictions,
            trace=trace,
        )

    async def aside(self, call: Callable[[], T]) -> T:
        """Run a blocking call without holding up the event loop: in a thread, when the store has a turn for it."""
        run = getattr(self.store, "aside", in_thread)  # a server with few connections lets the others wait
        done: T = await run(call)
        return done

    def results(self, question: Question) -> list[Result]:
        """The answer as results with their memories; receipts are made when somebody reads one."""
        answer = self.answer(question)
        if question.min_confidence is not None and answer_confidence(answer) < question.min_confidence:
            return []
        shown = question.recipe.shares(answer.ranking.scores)

        @cache
        def explained() -> Explanation:
            return self.explain(answer)

        return self.fetch(answer.ranking.keys, shown, question.view, explained)

    def fetch(
        self,
        ids: Sequence[str],
        scores: Sequence[float],
        view: View,
        explain: Callable[[], Explanation] | None = None,
    ) -> list[Result]:
        """Results for ids, in order; a memory that left the store meanwhile is left out."""
        memories = self.store.get(ids, view=view)
        rows = zip(ids, scores, memories, strict=True)
        return [Result(key, score, memory, explain) for key, score, memory in rows if memory is not None]

    def arm(self, arm: str, question: Question, *, hops: int, decay: float) -> list[Result]:
        """One arm alone, with its raw scores. The graph starts from the 4·k best hits of BM25, scaled to 1."""
        known = (*self.arms, "graph")
        if arm not in known:
            raise ConfigError(f"arm {arm!r} is not known: this memory has {', '.join(known)}")
        space, ask = self.space(question.view), self._ask(question)
        if arm == "vector" and self.embedder is not None and ask.vector is None:
            ask = ask._replace(vector=self.embedder.query(ask.text))
        graph = space.graph(ask.allowed) if arm == "graph" else None
        if graph is None:
            return self.fetch(*space.search("bm25" if arm == "graph" else arm, ask, k=question.k), question.view)
        seeds = space.search("bm25", ask, k=4 * question.k)
        hits = graph.search(dict(zip(*seeds, strict=True)), k=question.k, hops=hops, decay=decay)

        @cache
        def explained() -> Explanation:
            return explain_arm(graph, question.text, seeds, hits, hops=hops, decay=decay)

        return self.fetch(hits.ids, hits.scores, question.view, explained)

    def reindex(self, progress: Progress | None, embedder: Embedder | None = None) -> None:
        """Embed everything again, with another embedder if one is given, and build every index from the store."""
        if embedder is not None:
            self.embedder = embedder
            self.settings = self.settings._replace(vectors=True)
        names = self.store.namespaces()
        if self.embedder is not None:
            self.embedder.probe()
            self.record(self.embedder, unfinished=True)
            self._embed_again(self.embedder, names, progress)
            self.record(self.embedder)
        self.forget_spaces()
        for name in names:
            self.space(View(name)).save()

    def _embed_again(self, embedder: Embedder, names: Sequence[str], progress: Progress | None) -> None:
        total = sum(self.store.count(view=View(name, superseded=True)) for name in names)
        done = 0
        for name in names:
            everything = self.store.list(view=View(name, superseded=True))
            while batch := list(islice(everything, REEMBED)):
                vectors = embedder.documents([memory.embedded for memory in batch])
                rows = {memory.id: vector for memory, vector in zip(batch, vectors, strict=True)}
                self.store.set_vectors(rows, namespace=name)
                done += len(batch)
                if progress is not None:
                    progress(done, total)

    def health(self, questions: Iterable[Question], *, k: int, recipe: Fusion) -> Health:
        """How each arm does over these questions."""
        seen = []
        for question in questions:
            answer = self.answer(question)
            reader = self.reader(question.view)
            lists = {arm.name: reader.keys(arm.items) for arm in answer.lists}
            seen.append(Observation(lists, answer.ranking.keys))
        return measure(seen, k=k, recipe=recipe)

    def close(self) -> None:
        """Save, then close the store."""
        if not self._closed:
            self._closed = True
            self.save()
            for space in [*self._spaces.values(), *self._past.values()]:
                let_go = getattr(space, "close", None)
                if let_go is not None:
                    let_go()
            self.store.close()

    def reader(self, view: View) -> EntryReader:
        """Reads entries of this view."""
        store = self.store
        return EntryReader(lambda ids: store.get(ids, view=view), lambda ids: store.vectors(ids, view=view))

    def explain(self, answer: Answer) -> Explanation:
        """The same fusion again, with its notebook open."""
        trace = Trace()
        ranking = self.fuse(answer, trace)
        question = answer.question
        shown = question.recipe.shares(ranking.scores)
        known = list(dict.fromkeys([*ranking.keys, *trace.mentioned()]))
        memories = self.store.get(known, view=question.view)
        texts = {key: memory.text for key, memory in zip(known, memories, strict=True) if memory is not None}
        return trace.explanation(
            ranking,
            query=question.text,
            lists=answer.lists,
            shown=shown,
            texts=texts,
            hidden=lambda key: self._hidden(key, question),
        )

    def _hidden(self, key: str, question: Question) -> str | None:
        """Why a memory is not even searched: nothing is said of other namespaces."""
        view = question.view
        versions = self.store.history(key, namespace=view.namespace)
        if view.as_of is not None:
            versions = [version for version in versions if version.at <= view.as_of]
        if not versions:
            return "there is no such memory" + ("" if view.as_of is None else " at that time")
        if versions[-1].deleted:
            return "it was forgotten"
        if versions[-1].memory.status == "superseded" and not view.superseded:
            return "it was superseded"
        if question.filter is not None and key not in self.store.ids(view=view, filter=question.filter):
            return f"it does not pass the filter {question.filter!r}"
        return None


def listed(name: str, hits: Hits, space: Space, known: Mapping[str, float] | None) -> ArmList:
    """An arm's hits as entries; one that left the view between two reads is dropped."""
    entries = space.entries(hits.ids)
    if None in entries:
        rows = [(e, s) for e, s in zip(entries, hits.scores, strict=True) if e is not None]
        return ArmList(name, [entry for entry, _ in rows], [score for _, score in rows], known=known)
    return ArmList(name, entries, hits.scores, known=known)


def complete(space: Space, ask: Ask, found: Mapping[str, Hits]) -> dict[str, dict[str, float]]:
    """What each arm thinks of the candidates that only the others found; a score of 0 is no opinion."""
    known = {arm: dict(zip(*hits, strict=True)) for arm, hits in found.items()}
    everything = dict.fromkeys(chain.from_iterable([hits.ids for hits in found.values()]))
    for arm, opinions in known.items():
        missing = [key for key in everything if key not in opinions]
        if missing:
            scores = space.score(arm, ask, missing)
            opinions.update([pair for pair in zip(missing, scores, strict=True) if pair[1]])  # type: ignore[misc]
    return known
