"""The engine: one query from its text to a ranking, over the spaces of one store. All views of a memory share it."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar

from hybridmem.core import validation
from hybridmem.core.fanout import Job, Latency, Outcome, apply_policy, in_thread, run, run_one
from hybridmem.core.forks import guard
from hybridmem.core.protocols import Progress, Store, View
from hybridmem.core.types import ArmList, Hits, Ranking
from hybridmem.embedding.embedder import Embedder, check_same
from hybridmem.errors import ConfigError, EmbeddingError
from hybridmem.fusion.explain import Explanation, Trace
from hybridmem.fusion.recipe import Fusion
from hybridmem.indexes.graph.explain import explain_arm
from hybridmem.indexes.view import Ask, IndexSettings, LocalSpace, Space
from hybridmem.memory.confidence import answer_confidence
from hybridmem.memory.embeddings import embed_again, keep_embedded, record, recorded
from hybridmem.memory.health import Health, Observation, measure
from hybridmem.memory.question import Answer, Question, complete, hidden, listed
from hybridmem.memory.results import EntryReader, Result

__all__ = ["Engine"]

T = TypeVar("T")
_Found = dict[str, Hits]
_Known = dict[str, dict[str, float]]
log = logging.getLogger("hybridmem")
OWN_THREAD_FROM = 0.01
"""Seconds from which an arm gets a thread of its own: below, the arms compute rather than wait, and threads cost."""
_NO_VECTORS = ArmList("vector", [], skipped="no embedder, so words and graph answer alone")
PAST_SPACES = 4
"""How many as-of spaces are kept: each holds the indexes of one moment."""


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
        self._paces: dict[str, Latency] = {"bm25": Latency(), "vector": Latency()}
        self._lock = guard(threading.Lock())
        self._closed = False
        self.check_embedder()

    # --- the embedder on record

    def check_embedder(self) -> None:
        """Refuse an embedder other than the one whose vectors are stored; finish a re-embedding that was cut short."""
        known = recorded(self.store)
        if known is not None and self.embedder is not None:
            check_same(known["name"], known["dim"], self.embedder)
            if known.get("unfinished"):
                self.reindex(None)
        keep_embedded(self.store, lambda: self.embedder)

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
        kept = {arm: weight for arm, weight in recipe.weights.items() if arm != "vector"}
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
        ask, found, known = self._found(space, ask, recipe, depth)
        lists = [
            listed(arm, found[arm], space, known.get(arm)) if arm in found else ArmList(arm, [], skipped="weight 0")
            for arm in self.arms
        ]
        graph = space.graph(ask.allowed) if recipe.spread is not None else None
        answer = Answer(Ranking([], [], []), lists, question, space, graph, self.clock())
        return answer._replace(ranking=self.fuse(answer))

    def _found(self, space: Space, ask: Ask, recipe: Fusion, depth: int) -> tuple[Ask, _Found, _Known]:
        """What the arms found, and what each thinks of the others' finds where the recipe asks for that.

        A space that can answer all of it at once is asked so; it may decline.
        """
        both = getattr(space, "both", None) if ask.text.strip() else None  # of nothing there is no vector
        if both is not None and recipe.complete and self.embedder is not None and all(recipe.weights_for(self.arms)):
            if ask.vector is None:
                ask = ask._replace(vector=run_one(Job("vector", partial(self.embedder.query, ask.text))))
            answer: tuple[_Found, _Known] | None = run_one(Job("bm25 and vector", partial(both, ask, k=depth)))
            if answer is not None:
                return ask, *answer
        ask, found = self._arms(space, ask, recipe, depth)
        return ask, found, complete(space, ask, found) if recipe.complete else {}

    def _arms(self, space: Space, ask: Ask, recipe: Fusion, depth: int) -> tuple[Ask, dict[str, Hits]]:
        """Every arm that has a weight, at the same time; embedding the question is part of the vector arm."""
        weights = dict(zip(self.arms, recipe.weights_for(self.arms), strict=True))
        box = {"vector": ask.vector}

        def vector() -> Hits:
            if not ask.text.strip():
                return Hits([], [])  # nothing to embed
            if box["vector"] is None and self.embedder is not None:
                box["vector"] = self.embedder.query(ask.text)
            return space.search("vector", ask._replace(vector=box["vector"]), k=depth)

        calls = {"bm25": lambda: space.search("bm25", ask, k=depth), "vector": vector}
        jobs = [Job(arm, calls[arm], latency=self._paces[arm]) for arm in self.arms if weights[arm] > 0]
        outcomes: list[Outcome] = run(jobs, inline_below=getattr(space, "own_thread_from", OWN_THREAD_FROM))
        apply_policy(outcomes)
        return ask._replace(vector=box["vector"]), {outcome.name: outcome.value for outcome in outcomes}

    async def embedded(self, question: Question) -> Question:
        """The question with its vector, without holding up the event loop; embedding it is part of the vector arm."""
        weights = dict(zip(self.arms, question.recipe.weights_for(self.arms), strict=True))
        if self.embedder is None or not weights["vector"] or not question.text.strip():
            return question
        try:
            return question._replace(vector=await self.embedder.aquery(question.text))
        except EmbeddingError as error:
            apply_policy([Outcome("vector", error=error)])
            raise

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
        if not isinstance(arm, str) or arm not in known:
            raise ConfigError(f"arm {validation.display(arm)} is not known: this memory has {', '.join(known)}")
        space, ask = self.space(question.view), self._ask(question)
        if arm == "vector" and not ask.text.strip():
            return []
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
            embedder.probe()  # one that does not work must not take over
            self.embedder = embedder
            self.settings = self.settings._replace(vectors=True)
        names = self.store.namespaces()
        if self.embedder is not None:
            self.embedder.probe()
            record(self.store, self.embedder, unfinished=True)
            try:
                embed_again(self.store, self.embedder, names, progress)
            except BaseException:
                if embedder is not None:  # vectors of two models now: nobody may compare them
                    self.embedder, self.settings = None, self.settings._replace(vectors=False)
                    self.forget_spaces()
                    log.warning("embedding was cut short: words and graph answer alone until it is done again")
                raise
            record(self.store, self.embedder)
        self.forget_spaces()
        for name in names:
            self.space(View(name)).save()

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
            try:
                self.save()
                for space in [*self._spaces.values(), *self._past.values()]:
                    let_go = getattr(space, "close", None)
                    if let_go is not None:
                        let_go()
            finally:
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
            lists=answer.lists if self.embedder is not None else [*answer.lists, _NO_VECTORS],
            shown=shown,
            texts=texts,
            hidden=lambda key: hidden(self.store, key, question),
        )
