"""QueryFusionRetriever: LlamaIndex's class of that name, contract and scores kept, defects left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.llms import LLM
from llama_index.core.llms.utils import LLMType, resolve_llm
from llama_index.core.prompts import PromptTemplate
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES, QUERY_GEN_PROMPT
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle
from llama_index.core.settings import Settings

from hybridmem.core.fanout import Job, Outcome, arun, run
from hybridmem.errors import ConfigError
from hybridmem.fusion.recipe import normalise_weights
from llamaindex_hybridmem._answers import nodes_of, settled
from llamaindex_hybridmem._arms import Request, arms_of
from llamaindex_hybridmem._query_modes import (
    Listed,
    Scored,
    dist_based_score,
    identities,
    reciprocal_rerank,
    relative_score,
    simple,
)
from llamaindex_hybridmem._results import scored_nodes
from llamaindex_hybridmem._settings import check_k
from llamaindex_hybridmem._tool import CleanRetrieverTool, retriever_tool

__all__ = ["FUSION_MODES", "QueryFusionRetriever"]

dispatcher = get_dispatcher(__name__)
_FUSE: Mapping[FUSION_MODES, Callable[[Sequence[Listed], int], Scored]] = {
    FUSION_MODES.RECIPROCAL_RANK: reciprocal_rerank,
    FUSION_MODES.RELATIVE_SCORE: relative_score,
    FUSION_MODES.DIST_BASED_SCORE: dist_based_score,
    FUSION_MODES.SIMPLE: simple,
}


class QueryFusionRetriever(BaseRetriever):
    """Retrievers fused as LlamaIndex's `QueryFusionRetriever` fuses them: change the import, keep the code.

    The same ids and scores at equal weights in all four modes. Beyond it: weights count in every mode, no LLM is
    needed until `num_queries` is above 1, retrievers run at the same time in sync and async code, their errors come
    through as they are, and nothing that goes in is changed.
    """

    def __init__(
        self,
        retrievers: list[BaseRetriever],
        llm: LLMType | None = None,
        query_gen_prompt: str | None = None,
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
        self._arms = arms_of(retrievers)
        self._retrievers = retrievers
        self._retriever_weights, self._factors = _weights(retriever_weights, len(self._arms))
        self.num_queries = num_queries
        self.query_gen_prompt: str = query_gen_prompt or QUERY_GEN_PROMPT
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

    def as_tool(self, *, name: str | None = None, description: str | None = None) -> CleanRetrieverTool:
        """A tool for an agent, which passes the agent's question on as it is."""
        return retriever_tool(self, name=name, description=description)

    def _get_prompts(self) -> PromptDictType:
        return {"query_gen_prompt": PromptTemplate(self.query_gen_prompt)}

    def _update_prompts(self, prompts_dict: PromptDictType) -> None:
        if "query_gen_prompt" in prompts_dict:
            self.query_gen_prompt = prompts_dict["query_gen_prompt"].get_template()

    # --- queries

    def _get_queries(self, original_query: str) -> list[QueryBundle]:
        return self._read_queries(self._llm.complete(self._query_prompt(original_query)).text)

    async def _aget_queries(self, original_query: str) -> list[QueryBundle]:
        response = await self._llm.acomplete(self._query_prompt(original_query))
        return self._read_queries(response.text)

    def _query_prompt(self, query: str) -> str:
        return self.query_gen_prompt.format(num_queries=self.num_queries - 1, query=query)

    def _read_queries(self, text: str) -> list[QueryBundle]:
        """One query a line, perhaps in a code block; models like to give more than they were asked for."""
        lines = [line.strip() for line in text.strip("`").split("\n")]
        queries = [line for line in lines if line]
        if self._verbose:
            print("Generated queries:\n" + "\n".join(queries))  # noqa: T201  as the original does
        return [QueryBundle(query) for query in queries[: self.num_queries - 1]]

    # --- retrieval

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        more = self._get_queries(query_bundle.query_str) if self.num_queries > 1 else []
        return self._fuse(run(self._jobs([query_bundle, *more], on_loop=False)))

    @dispatcher.span
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        more = await self._aget_queries(query_bundle.query_str) if self.num_queries > 1 else []
        return self._fuse(await arun(self._jobs([query_bundle, *more], on_loop=True)))

    def _jobs(self, bundles: Sequence[QueryBundle], *, on_loop: bool) -> list[Job]:
        """Each retriever with each query; the same query twice would only count itself twice."""
        distinct = {bundle.query_str: bundle for bundle in reversed(bundles)}
        asked = [distinct[query] for query in dict.fromkeys(bundle.query_str for bundle in bundles)]
        return [
            arm.job(Request(arm.retriever, {}), bundle, on_loop=on_loop, or_async=self.use_async)
            for bundle in asked
            for arm in self._arms
        ]

    def _fuse(self, outcomes: Sequence[Outcome]) -> list[NodeWithScore]:
        settled(outcomes, on_error="raise", wrap=False)
        lists = [nodes_of(outcome.value, outcome.name) for outcome in outcomes]
        shares = list(zip(self._retriever_weights, self._factors, strict=True))
        columns = identities(lists)
        listed = [Listed(nodes, columns[i], *shares[i % len(shares)]) for i, nodes in enumerate(lists)]
        return scored_nodes(_FUSE[self.mode](listed, self.num_queries)[: self.similarity_top_k])


def _weights(given: Sequence[float] | None, count: int) -> tuple[list[float], list[float]]:
    """Each retriever's share of the whole, and n times that: exactly 1 when all weigh the same."""
    weights = [1.0] * count if given is None else list(given)
    normalise_weights([str(i) for i in range(count)], weights)  # refuses what cannot be
    total = sum(weights)
    same = len(set(weights)) == 1
    return [w / total for w in weights], [1.0 if same else count * w / total for w in weights]
