"""QueryFusionRetriever: a drop-in for LlamaIndex's class of that name; changing the import line is enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.llms import LLM
from llama_index.core.llms.utils import LLMType, resolve_llm
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES, QUERY_GEN_PROMPT
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle, QueryType, TextNode
from llama_index.core.settings import Settings

from hybridmem.core.fanout import Job, Outcome, apply_policy, arun, in_thread, run
from hybridmem.errors import ConfigError
from hybridmem.fusion.merge import normalise_weights, rank_shares
from llamaindex_hybridmem._arms import Arm, arms_of, copied, nodes_of, run_coroutine
from llamaindex_hybridmem._calls import checked_query, is_overridden
from llamaindex_hybridmem._conversion import node_text, rescored
from llamaindex_hybridmem._settings import check_k
from llamaindex_hybridmem.tools import CleanRetrieverTool, retriever_tool

__all__ = [
    "FUSION_MODES",
    "QueryFusionRetriever",
    "RankedList",
    "dist_based_score",
    "identities",
    "reciprocal_rerank",
    "relative_score",
    "simple",
]


C = 60.0
Scored = list[tuple[NodeWithScore, float | None]]
"""Results as they came in, with the scores that they get."""


class RankedList(NamedTuple):
    """One retriever's answer to one query; `weight` is its share of all retrievers', `factor` n times that."""

    nodes: Sequence[NodeWithScore]
    keys: Sequence[str]
    weight: float
    factor: float


def identities(lists: Sequence[Sequence[NodeWithScore]], /) -> list[list[str]]:
    """A key for each node: the same id, or the same text and metadata, is the same result.

    Ids alone decide unless two of them share a text, as when two indexes were built from the same files.
    """
    columns = [[hit.node.id_ for hit in nodes] for nodes in lists]
    texts: list[str] = []
    for nodes in lists:
        texts += [node.text if type(node := hit.node) is TextNode else node_text(node) for hit in nodes]
    holders = set(zip(texts, chain.from_iterable(columns), strict=True))
    return columns if len(holders) == len(set(texts)) else _joined(lists, columns)


def _joined(lists: Sequence[Sequence[NodeWithScore]], columns: Sequence[Sequence[str]]) -> list[list[str]]:
    """Join ids through equal content, however many steps that takes."""
    parent: dict[str, str] = {}
    content: dict[object, str] = {}

    def root(key: str) -> str:
        while (above := parent.setdefault(key, key)) != key:
            parent[key] = key = parent[above]
        return key

    for nodes, keys in zip(lists, columns, strict=True):
        for hit, key in zip(nodes, keys, strict=True):
            first = content.setdefault(_content(hit.node), key)
            parent[root(key)] = root(first)
    return [[root(key) for key in keys] for keys in columns]


def _content(node: BaseNode) -> object:
    """What LlamaIndex hashes, without the hashing."""
    if isinstance(node, TextNode) and type(node).hash is TextNode.hash:
        return node.text, str(node.metadata)
    return node.hash


def reciprocal_rerank(lists: Sequence[RankedList], _queries: int, /) -> Scored:
    """Σ factor / (60 + rank), ranks from 0 by falling score.

    A node that its retriever scored 0 although it scored others above 0 is padding, not a hit, and adds nothing.
    """
    totals: dict[str, float] = {}
    latest: dict[str, NodeWithScore] = {}
    for nodes, keys, _, factor in lists:
        scores = [hit.score or 0.0 for hit in nodes]
        padded = 0.0 in scores and max(scores) > 0
        order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        for i, share in zip(order, rank_shares(len(order), factor, C - 1)):  # noqa: B905
            key = keys[i]
            latest[key] = nodes[i]
            if padded and nodes[i].score == 0:
                share = 0.0  # noqa: PLW2901
            totals[key] = totals[key] + share if key in totals else share
    return [(latest[key], totals[key]) for key in sorted(totals, key=totals.__getitem__, reverse=True)]


def relative_score(lists: Sequence[RankedList], queries: int, /) -> Scored:
    """Σ weight · (s − min) / (max − min) / number of queries."""
    return _scaled(lists, queries, lambda scores: (min(scores), max(scores)))


def dist_based_score(lists: Sequence[RankedList], queries: int, /) -> Scored:
    """The same between mean − 3σ and mean + 3σ."""
    return _scaled(lists, queries, _three_sigma)


def _three_sigma(scores: Sequence[float]) -> tuple[float, float]:
    mean = sum(scores) / len(scores)
    sigma = (sum((score - mean) ** 2 for score in scores) / len(scores)) ** 0.5
    return mean - 3 * sigma, mean + 3 * sigma


def _scaled(
    lists: Sequence[RankedList], queries: int, bounds: Callable[[Sequence[float]], tuple[float, float]]
) -> Scored:
    totals: dict[str, float] = {}
    first: dict[str, NodeWithScore] = {}
    for nodes, keys, weight, _ in lists:
        if not nodes:
            continue
        scores = [hit.score or 0.0 for hit in nodes]
        low, high = bounds(scores)
        even = 1.0 if high > 0 else 0.0
        for hit, key, score in zip(nodes, keys, scores, strict=True):
            scaled = even if high == low else (score - low) / (high - low)
            share = scaled * weight / queries
            totals[key] = totals[key] + share if key in totals else share
            first.setdefault(key, hit)
    return [(first[key], totals[key]) for key in sorted(totals, key=totals.__getitem__, reverse=True)]


def simple(lists: Sequence[RankedList], _queries: int, /) -> Scored:
    """The best of factor · s; a node without a score stays without one."""
    best: dict[str, float | None] = {}
    first: dict[str, NodeWithScore] = {}
    for nodes, keys, _, factor in lists:
        for hit, key in zip(nodes, keys, strict=True):
            score = None if hit.score is None else hit.score * factor
            if key in first:
                score = max(score or 0.0, best[key] or 0.0)
            best[key] = score
            first.setdefault(key, hit)
    return [(first[key], best[key]) for key in sorted(best, key=lambda key: best[key] or 0.0, reverse=True)]


dispatcher = get_dispatcher(__name__)
Results = dict[tuple[str, int], list[NodeWithScore]]
"""The results of each query and retriever."""
Mode = Callable[[Sequence[RankedList], int], Scored]


class QueryFusionRetriever(BaseRetriever):
    """Retrievers fused as LlamaIndex's `QueryFusionRetriever` fuses them: change the import, keep the code.

    The same ids and scores at equal weights in all four modes. Beyond it: weights count in every mode, no LLM is
    needed until `num_queries` is above 1, retrievers run at the same time in sync code too (with `use_async=False` one
    after another in the caller's thread), their errors are raised as they are, and inputs are never changed.
    The steps that subclasses override are those of the original: `_get_queries`, `_run_sync_queries`,
    `_run_async_queries`, `_run_nested_async_queries`, `_reciprocal_rerank_fusion`, `_relative_score_fusion` and
    `_simple_fusion`.
    """

    def __init__(
        self,
        retrievers: list[BaseRetriever],
        llm: LLMType | None = None,
        query_gen_prompt: str | BasePromptTemplate | None = None,
        mode: FUSION_MODES | str = FUSION_MODES.SIMPLE,
        similarity_top_k: int | None = DEFAULT_SIMILARITY_TOP_K,
        num_queries: int = 4,
        use_async: bool = True,
        verbose: bool = False,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        retriever_weights: list[float] | None = None,
    ) -> None:
        arms = arms_of(retrievers)
        self._retrievers = retrievers
        self._checked_arms: tuple[list[Any], dict[str, Arm]] = (list(retrievers), arms)
        self._retriever_weights = _weights(retriever_weights, len(self._retrievers))
        self.num_queries = num_queries
        self.query_gen_prompt: str | BasePromptTemplate = query_gen_prompt or QUERY_GEN_PROMPT
        self.similarity_top_k = similarity_top_k
        self.mode = mode
        self.use_async = use_async
        self._given_llm = resolve_llm(llm, callback_manager=callback_manager) if llm else None
        super().__init__(callback_manager=callback_manager, object_map=object_map, objects=objects, verbose=verbose)

    # --- settings that may be changed later

    @property
    def mode(self) -> FUSION_MODES:
        """How lists are fused; set it by name or by enum."""
        return self._mode

    @mode.setter
    def mode(self, value: FUSION_MODES | str) -> None:
        try:
            self._mode = FUSION_MODES(value)
        except ValueError:
            known = ", ".join(repr(mode.value) for mode in FUSION_MODES)
            raise ConfigError(f"mode = {value!r} is not allowed: {known}") from None

    @property
    def similarity_top_k(self) -> int | None:
        """How many results come back; None: all."""
        return self._similarity_top_k

    @similarity_top_k.setter
    def similarity_top_k(self, value: int | None) -> None:
        self._similarity_top_k = None if value is None else check_k(value)

    @property
    def num_queries(self) -> int:
        """How many queries are asked: the given one, and those that the LLM makes of it."""
        return self._num_queries

    @num_queries.setter
    def num_queries(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"num_queries = {value!r} is not allowed: a whole number from 1 up")
        self._num_queries = value

    @property
    def _llm(self) -> LLM:
        return self._given_llm if self._given_llm is not None else Settings.llm

    @_llm.setter
    def _llm(self, llm: LLM) -> None:
        self._given_llm = llm

    def as_tool(self, *, name: str | None = None, description: str | None = None) -> CleanRetrieverTool:
        """A tool for an agent, which passes the agent's question on as it is."""
        return retriever_tool(self, name=name, description=description)

    def _get_prompts(self) -> PromptDictType:
        prompt = self.query_gen_prompt
        return {"query_gen_prompt": prompt if isinstance(prompt, BasePromptTemplate) else PromptTemplate(prompt)}

    def _update_prompts(self, prompts_dict: PromptDictType) -> None:
        prompt = prompts_dict.get("query_gen_prompt")
        if prompt is not None:
            self.query_gen_prompt = prompt.template if isinstance(prompt, PromptTemplate) else prompt

    # --- queries

    def _get_queries(self, original_query: str) -> list[QueryBundle]:
        return self._read_queries(self._llm.complete(self._query_prompt(original_query)).text)

    async def _aget_queries(self, original_query: str) -> list[QueryBundle]:
        response = await self._llm.acomplete(self._query_prompt(original_query))
        return self._read_queries(response.text)

    def _query_prompt(self, query: str) -> str:
        return self.query_gen_prompt.format(num_queries=self.num_queries - 1, query=query)

    def _read_queries(self, text: str) -> list[QueryBundle]:
        """One query a line, perhaps in a code block; models often return more than they were asked for."""
        lines = [line.strip() for line in text.strip("`").split("\n")]
        queries = [line for line in lines if line]
        if self._verbose:
            print("Generated queries:\n" + "\n".join(queries))  # noqa: T201  as the original does
        return [QueryBundle(query) for query in queries[: self.num_queries - 1]]

    # --- retrieval

    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """The fused nodes for a query, best first."""
        return super().retrieve(checked_query(str_or_query_bundle))

    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """The same, without blocking the event loop."""
        return await super().aretrieve(checked_query(str_or_query_bundle))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        queries = [query_bundle]
        if self.num_queries > 1:
            queries += self._get_queries(query_bundle.query_str)
        run_queries = self._run_nested_async_queries if self.use_async else self._run_sync_queries
        return self._fused(run_queries(queries))

    @dispatcher.span
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Search on the event loop; a subclass that overrides `_retrieve` alone gets that, in a thread."""
        if is_overridden(self, "_retrieve") and not is_overridden(self, "_aretrieve"):
            return await in_thread(lambda: self._retrieve(query_bundle))
        queries = [query_bundle]
        if self.num_queries > 1:
            queries += await self._aget_queries(query_bundle.query_str)
        return self._fused(await self._run_async_queries(queries))

    def _run_sync_queries(self, queries: list[QueryBundle]) -> Results:
        """Ask every retriever every query, one after another in this thread."""
        results: Results = {}
        for query in queries:
            for i, arm in enumerate(self._arms()):
                if (query.query_str, i) not in results:
                    results[query.query_str, i] = nodes_of(arm.retriever.retrieve(copied(query)), arm.name)
        return results

    def _run_nested_async_queries(self, queries: list[QueryBundle]) -> Results:
        """Ask all retrievers at the same time from sync code, by their async side where they have a real one."""
        if any(arm.natively_async for arm in self._arms()):
            return run_coroutine(lambda: self._run_async_queries(queries))
        keys, jobs = self._jobs(queries)
        return self._results(keys, run(jobs, on_error="raise"))

    async def _run_async_queries(self, queries: list[QueryBundle]) -> Results:
        """Ask all retrievers at the same time on the event loop."""
        keys, jobs = self._jobs(queries)
        return self._results(keys, await arun(jobs, on_error="raise"))

    def _arms(self) -> list[Arm]:
        """The retrievers as they are now: a list that was changed in place is checked again."""
        known, arms = self._checked_arms
        if len(known) != len(self._retrievers) or any(a is not b for a, b in zip(known, self._retrievers, strict=True)):
            arms = arms_of(self._retrievers)
            self._checked_arms = list(self._retrievers), arms
        return list(arms.values())

    def _jobs(self, queries: Sequence[QueryBundle]) -> tuple[list[tuple[str, int]], list[Job]]:
        """Each retriever with each query; a query that the LLM repeats is asked once."""
        arms = self._arms()
        distinct = {query.query_str: query for query in reversed(queries)}
        keys = [(text, i) for text in dict.fromkeys(query.query_str for query in queries) for i in range(len(arms))]
        return keys, [arms[i].job(distinct[text], name=arms[i].name) for text, i in keys]

    def _results(self, keys: Sequence[tuple[str, int]], outcomes: Sequence[Outcome]) -> Results:
        apply_policy(outcomes, on_error="raise", wrap=False)
        return {key: nodes_of(outcome.value, outcome.name) for key, outcome in zip(keys, outcomes, strict=True)}

    # --- fusion

    def _fused(self, results: Results) -> list[NodeWithScore]:
        if self.mode == FUSION_MODES.RECIPROCAL_RANK:
            fused = self._reciprocal_rerank_fusion(results)
        elif self.mode == FUSION_MODES.RELATIVE_SCORE:
            fused = self._relative_score_fusion(results)
        elif self.mode == FUSION_MODES.DIST_BASED_SCORE:
            fused = self._relative_score_fusion(results, dist_based=True)
        else:
            fused = self._simple_fusion(results)
        return fused[: self.similarity_top_k]

    def _reciprocal_rerank_fusion(self, results: Results) -> list[NodeWithScore]:
        return self._fuse(results, reciprocal_rerank)

    def _relative_score_fusion(self, results: Results, dist_based: bool | None = False) -> list[NodeWithScore]:
        return self._fuse(results, dist_based_score if dist_based else relative_score)

    def _simple_fusion(self, results: Results) -> list[NodeWithScore]:
        return self._fuse(results, simple)

    def _fuse(self, results: Results, mode: Mode) -> list[NodeWithScore]:
        weights = self._retriever_weights
        factors = _factors(weights)
        columns = identities(list(results.values()))
        lists = [
            RankedList(nodes, keys, weights[i], factors[i])
            for ((_, i), nodes), keys in zip(results.items(), columns, strict=True)
        ]
        return rescored(mode(lists, self.num_queries))


def _weights(given: Sequence[float] | None, count: int) -> list[float]:
    """Each retriever's share of the sum of all weights."""
    weights = [1.0] * count if given is None else list(given)
    normalise_weights([str(i) for i in range(count)], weights)  # raises for invalid weights
    return [weight / sum(weights) for weight in weights]


def _factors(weights: Sequence[float]) -> list[float]:
    """The weights times their number: exactly 1 when all weigh the same."""
    same = len(set(weights)) == 1
    return [1.0 if same else len(weights) * weight / sum(weights) for weight in weights]
