"""Where a fusion's answers come from: arms of its own, or a `HybridMemory` that has them inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from llama_index.core.schema import NodeWithScore, QueryBundle

from hybridmem.core.fanout import Job, OnError, Outcome, arun, run
from hybridmem.core.types import ArmList, Ranking
from hybridmem.fusion.explain import Explanation, Trace
from hybridmem.fusion.recipe import Fusion
from llamaindex_hybridmem._answers import nodes_of, settled
from llamaindex_hybridmem._arms import Arm, Request, Wish
from llamaindex_hybridmem._conversion import Heard, NodeReader, node_text, to_arm_list, to_node
from llamaindex_hybridmem._results import Why, fused_nodes, scored_nodes
from llamaindex_hybridmem._settings import Settings

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory
    from hybridmem.memory.results import Result

__all__ = ["Answer", "ArmsSource", "Asked", "MemorySource", "Source", "Timeout"]

_READER = NodeReader()
_NONE: Mapping[str, str] = {}
Timeout = float | Mapping[str, float] | None
DEEPER = 4
ROUNDS = 6
"""How often the arms are asked, ×4 deeper each time, when dedup or a filter leaves fewer than k."""


class Asked(NamedTuple):
    """One question with everything that decides its answer, beside the arms."""

    bundle: QueryBundle
    settings: Settings


class Answer(NamedTuple):
    """The results, and why they are the results."""

    nodes: list[NodeWithScore]
    why: Why


class Source(Protocol):
    """Finds nodes for a question, in sync and async code."""

    def answer(self, asked: Asked, /) -> Answer:
        """Find and rank."""
        ...

    async def aanswer(self, asked: Asked, /) -> Answer:
        """The same, without blocking the event loop."""
        ...


class Found(NamedTuple):
    """The arms' lists with all that a fusion needs: the same pure function ranks them now and explains them later."""

    recipe: Fusion
    query: str
    heard: Sequence[Heard]
    now: float
    k: int | None
    skipped: Mapping[str, str]
    """Why an arm brought nothing, by its name."""
    idle: Sequence[ArmList]
    """Arms that were not asked, for the explanation."""

    def lists(self) -> list[ArmList]:
        """The arms' lists as the core takes them."""
        return [arm._replace(skipped=self.skipped.get(arm.name)) for arm in map(to_arm_list, self.heard)]

    def rank(self, trace: Trace | None = None) -> Ranking:
        """The ranking; into a notebook, when one is given."""
        return self.recipe.run(self.lists(), reader=_READER, query=self.query, now=self.now, k=self.k, trace=trace)

    def explanation(self) -> Explanation:
        """The same ranking again, with its notebook open."""
        trace = Trace()
        return self.told(trace, self.rank(trace))

    def told(self, trace: Trace, ranking: Ranking) -> Explanation:
        """The finished notebook of a ranking."""
        lists = [*self.lists(), *self.idle]
        texts = {node.id_: node_text(node) for arm in lists for node in arm.items}
        shown = self.recipe.shares(ranking.scores)
        return trace.explanation(ranking, query=self.query, lists=lists, shown=shown, texts=texts)

    def answer(self) -> Answer:
        """The ranking as results; their receipts are made when somebody reads one."""
        recipe = self.recipe
        if recipe.rerank is None and not recipe.extra:
            ranking, why = self.rank(), Why(self.explanation)
        else:  # foreign code, slow or moody: run it once, with the notebook open
            trace = Trace()
            ranking = self.rank(trace)
            why = Why(partial(self.told, trace, ranking))
        rows = zip(ranking.items, recipe.shares(ranking.scores), strict=True)
        return Answer(fused_nodes(rows, why), why)


def fuse(
    recipe: Fusion,
    query: str,
    lists: Sequence[tuple[str, list[NodeWithScore]]],
    now: float,
    k: int | None,
    /,
    skipped: Mapping[str, str] = _NONE,
    idle: Sequence[ArmList] = (),
) -> Answer:
    """What these arms found, fused by this recipe: from the hits to the results in one go, where the recipe allows it.

    The lists and the scores are kept as they are now, so that receipts tell of this ranking whatever happens to them.
    """
    heard = [(name, nodes[:], [found.score for found in nodes]) for name, nodes in lists]
    return Found(recipe, query, heard, now, k, skipped, idle).answer()


def _converted(nodes: list[NodeWithScore], convert: Callable[[float], float]) -> list[NodeWithScore]:
    """The same nodes with their scores in another measure; a score that is missing stays so."""
    return scored_nodes([(hit.node, None if hit.score is None else convert(hit.score)) for hit in nodes])


class Plan(NamedTuple):
    """How the arms are asked this time: each with its request, to a common depth (None: to its own)."""

    asked: Asked
    depth: int | None
    requests: Sequence[tuple[Arm, Request]]
    rounds: int = ROUNDS

    def jobs(self, timeout: Timeout, *, on_loop: bool) -> list[Job]:
        """The calls, ready for the fan-out."""
        bundle = self.asked.bundle
        return [
            arm.job(
                request,
                bundle,
                timeout=timeout.get(arm.name) if isinstance(timeout, Mapping) else timeout,
                on_loop=on_loop,
            )
            for arm, request in self.requests
        ]


@dataclass(frozen=True, slots=True)
class ArmsSource:
    """Asks arms at the same time and fuses what they bring; idle arms, of weight 0, are not asked."""

    arms: tuple[Arm, ...]
    idle: tuple[ArmList, ...]
    recipe: Fusion
    on_error: OnError
    timeout: Timeout
    clock: Callable[[], float]

    @classmethod
    def over(
        cls, arms: Sequence[Arm], recipe: Fusion, on_error: OnError, timeout: Timeout, clock: Callable[[], float]
    ) -> ArmsSource:
        """These arms by this recipe, which must have a weight for each."""
        names = [arm.name for arm in arms]
        shares = recipe.weights_for(names)
        asked = {name for name, share in zip(names, shares, strict=True) if share > 0}
        if recipe.weights is not None:  # the numbers as they were given: dividing twice would change the last digit
            given = recipe.weights if isinstance(recipe.weights, Mapping) else zip(names, recipe.weights, strict=True)
            recipe = replace(recipe, weights={name: weight for name, weight in dict(given).items() if name in asked})
        idle = tuple(ArmList(arm.name, [], skipped="weight 0") for arm in arms if arm.name not in asked)
        heard = tuple(arm for arm in arms if arm.name in asked)
        return cls(heard, idle, recipe, on_error, timeout, clock)

    def answer(self, asked: Asked, /) -> Answer:
        """Ask in threads; ask deeper while fewer than k are left although the arms have more."""
        plan: Plan | None = self._plan(asked)
        while plan is not None:
            answer, plan = self._read(plan, run(plan.jobs(self.timeout, on_loop=False)))
        return answer

    async def aanswer(self, asked: Asked, /) -> Answer:
        """The same on the event loop, which is never blocked."""
        plan: Plan | None = self._plan(asked)
        while plan is not None:
            answer, plan = self._read(plan, await arun(plan.jobs(self.timeout, on_loop=True)))
        return answer

    def _plan(self, asked: Asked, depth: int | None = None, rounds: int = ROUNDS) -> Plan:
        if depth is None and asked.settings.k is not None:
            depth = self.recipe.depth_for(asked.settings.k)
        settings = asked.settings
        wish = Wish(depth, settings.filter, settings.filters, settings.more)
        return Plan(asked, depth, [(arm, arm.request(wish)) for arm in self.arms], rounds)

    def _read(self, plan: Plan, outcomes: Sequence[Outcome]) -> tuple[Answer, Plan | None]:
        """The fused answer, and a deeper plan when it is worth asking again."""
        skipped = settled(outcomes, on_error=self.on_error, wrap=True)
        lists: list[tuple[str, list[NodeWithScore]]] = []
        more = False
        for (arm, request), outcome in zip(plan.requests, outcomes, strict=True):
            if arm.name in skipped:
                lists.append((arm.name, []))
                continue
            nodes = nodes_of(outcome.value, arm.name)
            thinned = self.recipe.dedup is not None or request.check is not None
            more = more or (thinned and arm.deepens and plan.depth is not None and len(nodes) >= plan.depth)
            if request.check is not None:
                nodes = [found for found in nodes if request.check(found.node)]
            if request.convert is not None:
                nodes = _converted(nodes, request.convert)
            lists.append((arm.name, nodes))
        k, query = plan.asked.settings.k, plan.asked.bundle.query_str
        answer = fuse(self.recipe, query, lists, self.clock(), k, skipped=skipped, idle=self.idle)
        if not more or plan.depth is None or k is None or len(answer.nodes) >= k or plan.rounds <= 1:
            return answer, None
        return answer, self._plan(plan.asked, DEEPER * plan.depth, plan.rounds - 1)


@dataclass(frozen=True, slots=True)
class MemorySource:
    """Asks a `HybridMemory`: the same ids and scores as its own `search`."""

    memory: HybridMemory
    recipe: Fusion | None = None

    def _how(self, asked: Asked) -> dict[str, Any]:
        settings = asked.settings
        given = {"k": settings.k, "filter": settings.filter, "recipe": self.recipe, **settings.more}
        return {name: value for name, value in given.items() if value is not None}

    def answer(self, asked: Asked, /) -> Answer:
        """Search, as the memory does."""
        how = self._how(asked)
        return self._read(self.memory.search(asked.bundle.query_str, **how), asked, how)

    async def aanswer(self, asked: Asked, /) -> Answer:
        """The same, without blocking the event loop."""
        how = self._how(asked)
        return self._read(await self.memory.asearch(asked.bundle.query_str, **how), asked, how)

    def _read(self, results: Sequence[Result], asked: Asked, how: Mapping[str, Any]) -> Answer:
        explain = results[0]._explain if results else None  # noqa: SLF001  one explanation for all of them
        why = Why(explain or partial(self.memory.explain, asked.bundle.query_str, **how))
        return Answer(fused_nodes([(to_node(result.memory), result.score) for result in results], why), why)
