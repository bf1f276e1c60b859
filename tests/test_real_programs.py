"""Patterns of public applications, run with the original classes and with ours: the results must be equal."""

from __future__ import annotations

import asyncio
import logging
import pickle
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers import EnsembleRetriever as OldEnsemble
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
from langchain_community.cross_encoders import BaseCrossEncoder
from langchain_community.retrievers import BM25Retriever as OldBM25
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_selector import BaseSelector, SelectorResult, SingleSelection
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import CompletionResponse, MockLLM
from llama_index.core.postprocessor import MetadataReplacementPostProcessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever as OldFusion
from llama_index.core.retrievers import RouterRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import RetrieverTool
from llama_index.retrievers.bm25 import BM25Retriever as OldNodes

from langchain_hybridmem import BM25Retriever, EnsembleRetriever
from llamaindex_hybridmem import BM25Retriever as NewNodes
from llamaindex_hybridmem import QueryFusionRetriever
from tests.support.llama_fakes import Fixed

TEXTS = [
    "Ana moved to Lisbon in May",
    "The Lisbon office opens at nine",
    "Bo drinks green tea at nine",
    "Green trams cross Lisbon",
    "Ana likes green tea",
    "The office has no tea",
]
QUERIES = ["green tea", "Lisbon office", "Ana"]


class Letters(Embeddings):
    def embed_documents(self, texts):
        return [[float(text.lower().count(letter)) + 0.01 for letter in "aeiolnst"] for text in texts]

    def embed_query(self, text):
        return self.embed_documents([text])[0]


class NodeLetters(BaseEmbedding):
    def _get_text_embedding(self, text):
        return Letters().embed_query(text)

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query):
        return self._get_text_embedding(query)


def documents():
    return [Document(text, metadata={"source": f"s{n}", "n": n}) for n, text in enumerate(TEXTS)]


def arms():
    store = InMemoryVectorStore(Letters())
    store.add_documents(documents())
    return [
        OldBM25.from_documents(documents(), k=4),
        store.as_retriever(search_kwargs={"k": 4}),
    ]


def both(make):
    """What a program finds with the original ensemble and with ours, sync and async."""
    found = []
    for cls in (OldEnsemble, EnsembleRetriever):
        program = make(cls)
        sync = [[(d.page_content, d.metadata) for d in program.invoke(query)] for query in QUERIES]
        later = [[(d.page_content, d.metadata) for d in asyncio.run(program.ainvoke(query))] for query in QUERIES]
        found += [sync, later]
    return found


def all_equal(found):
    assert found[0]
    assert all(one == found[0] for one in found)


def test_an_ensemble_that_writes_its_scores_into_the_documents():
    def make(base):
        class Scored(base):
            def weighted_reciprocal_rank(self, doc_lists):
                scores: dict[str, float] = {}
                for docs, weight in zip(doc_lists, self.weights, strict=True):
                    for rank, document in enumerate(docs, start=1):
                        scores[document.page_content] = scores.get(document.page_content, 0.0) + weight / (
                            rank + self.c
                        )
                fused = super().weighted_reciprocal_rank(doc_lists)
                return [Document(d.page_content, metadata={**d.metadata, "rrf": scores[d.page_content]}) for d in fused]

        return Scored(retrievers=arms(), weights=[0.4, 0.6])

    all_equal(both(make))


class LimitedOld(OldEnsemble):
    top: int = 3

    def rank_fusion(self, query, run_manager, *, config=None):
        return super().rank_fusion(query, run_manager, config=config)[: self.top]

    async def arank_fusion(self, query, run_manager, *, config=None):
        return (await super().arank_fusion(query, run_manager, config=config))[: self.top]


class LimitedNew(EnsembleRetriever):
    top: int = 3

    def rank_fusion(self, query, run_manager, *, config=None):
        return super().rank_fusion(query, run_manager, config=config)[: self.top]

    async def arank_fusion(self, query, run_manager, *, config=None):
        return (await super().arank_fusion(query, run_manager, config=config))[: self.top]


def test_a_limit_on_the_results_that_is_pickled_for_another_process():
    found = []
    for cls, bm25 in ((LimitedOld, OldBM25), (LimitedNew, BM25Retriever)):
        one = bm25.from_documents(documents(), k=4, **({} if bm25 is OldBM25 else {"engine": "rank-bm25"}))
        program = pickle.loads(pickle.dumps(cls(retrievers=[one, one], weights=[0.5, 0.5], top=2)))
        found.append([[d.page_content for d in program.invoke(query)] for query in QUERIES])
        found.append([[d.page_content for d in asyncio.run(program.ainvoke(query))] for query in QUERIES])
    all_equal(found)
    assert {len(one) for one in found[0]} == {2}


def test_two_stages_in_a_subclass():
    """First the ensemble, then a second search among the sources that it found."""

    def make(base):
        class TwoStages(base):
            def _get_relevant_documents(self, query, *, run_manager):
                first = self.rank_fusion(query, run_manager)
                sources = {document.metadata["source"] for document in first[:2]}
                return [document for document in first if document.metadata["source"] in sources]

            def invoke(self, input, config=None, **kwargs: Any):
                return BaseRetriever.invoke(self, input, config, **kwargs)

            async def _aget_relevant_documents(self, query, *, run_manager):
                first = await self.arank_fusion(query, run_manager)
                sources = {document.metadata["source"] for document in first[:2]}
                return [document for document in first if document.metadata["source"] in sources]

            async def ainvoke(self, input, config=None, **kwargs: Any):
                return await BaseRetriever.ainvoke(self, input, config, **kwargs)

        return TwoStages(retrievers=arms(), weights=[0.5, 0.5])

    found = both(make)
    all_equal(found)
    assert {len(one) for one in found[0]} == {2}


def test_a_subclass_that_logs_what_each_retriever_returned(caplog):
    caplog.set_level(logging.INFO)

    def make(base):
        class Logging(base):
            def weighted_reciprocal_rank(self, doc_lists):
                logging.getLogger("program").info("lists of %s", [len(docs) for docs in doc_lists])
                return super().weighted_reciprocal_rank(doc_lists)

        return Logging(retrievers=arms(), weights=[0.5, 0.5])

    all_equal(both(make))
    assert caplog.messages == ["lists of [4, 4]"] * (4 * len(QUERIES))


def test_weights_that_are_configured_for_each_call():
    def make(base):
        made = base(retrievers=arms(), weights=[0.5, 0.5]).configurable_fields(
            weights=ConfigurableField(id="weights", name="Weights")
        )
        return made.with_config(configurable={"weights": [0.9, 0.1]})

    found = both(make)
    all_equal(found)
    assert found[0] != both(lambda base: base(retrievers=arms(), weights=[0.1, 0.9]))[0]


class Overlap(BaseCrossEncoder):
    """A local cross-encoder: the share of the query's words in the text."""

    def score(self, text_pairs):
        return [len(set(q.lower().split()) & set(t.lower().split())) / len(q.split()) for q, t in text_pairs]


def test_a_hybrid_search_with_a_reranker_as_open_webui_builds_it():
    """BM25 and vectors in an ensemble, then contextual compression by a cross-encoder."""

    def make(base):
        ensemble = base(retrievers=arms(), weights=[0.3, 0.7])
        reranker = CrossEncoderReranker(model=Overlap(), top_n=3)
        return ContextualCompressionRetriever(base_compressor=reranker, base_retriever=ensemble)

    found = both(make)
    all_equal(found)
    assert {len(one) for one in found[0]} == {3}


def test_a_chain_around_the_ensemble():
    def make(base):
        ensemble = base(retrievers=arms(), weights=[0.5, 0.5])
        first = RunnableLambda(lambda docs: docs[:2])
        return RunnablePassthrough() | ensemble | first

    all_equal(both(make))


def test_bm25_with_the_engine_of_the_original_inside_programs():
    for k1 in (1.2, 2.0):
        old = OldBM25.from_texts(TEXTS, bm25_params={"k1": k1}, k=3)
        ours = BM25Retriever.from_texts(TEXTS, bm25_params={"k1": k1}, k=3, engine="rank-bm25")
        for query in QUERIES:
            assert [d.page_content for d in ours.invoke(query)] == [d.page_content for d in old.invoke(query)]
            terms = ours.preprocess_func(query)
            assert list(ours.vectorizer.get_scores(terms)) == list(old.vectorizer.get_scores(terms))


def nodes(order, scores):
    return [
        NodeWithScore(node=TextNode(text=TEXTS[n], id_=f"n{n}"), score=score)
        for n, score in zip(order, scores, strict=True)
    ]


class PositiveOld(OldBM25):
    """Scores in the metadata, and no document that shares no word with the query."""

    def _get_relevant_documents(self, query, *, run_manager=None):
        scores = self.vectorizer.get_scores(self.preprocess_func(query))
        order = sorted(range(len(self.docs)), key=lambda place: -scores[place])[: self.k]
        return [
            Document(
                self.docs[place].page_content, metadata={**self.docs[place].metadata, "bm25": float(scores[place])}
            )
            for place in order
            if scores[place] > 0
        ]


class PositiveNew(BM25Retriever):
    _get_relevant_documents = PositiveOld._get_relevant_documents


def test_a_bm25_of_positive_scores_in_an_ensemble_by_id_key():
    found = []
    for bm25, ensemble in ((PositiveOld, OldEnsemble), (PositiveNew, EnsembleRetriever)):
        more = {} if bm25 is PositiveOld else {"engine": "rank-bm25"}
        one = bm25.from_documents(documents(), k=4, **more)
        program = ensemble(retrievers=[one, arms()[1]], weights=[0.3, 0.7], id_key="n", c=10)
        found.append([[(d.page_content, d.metadata) for d in program.invoke(query)] for query in QUERIES])
        found.append([[(d.page_content, d.metadata) for d in asyncio.run(program.ainvoke(query))] for query in QUERIES])
    all_equal(found)
    assert any("bm25" in metadata for _, metadata in found[0][0])


def test_a_chain_with_retries_fallbacks_and_alternatives():
    class Down(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            raise ConnectionError(query)

    def make(base):
        arm = Down().with_retry(stop_after_attempt=2, wait_exponential_jitter=False).with_fallbacks([arms()[0]])
        hybrid = base(retrievers=[arm, arms()[1].with_config(tags=["vectors"])], weights=[0.4, 0.6])
        switch = hybrid.configurable_alternatives(ConfigurableField(id="kind"), default_key="hybrid", down=Down())
        return RunnablePassthrough() | switch.with_fallbacks([arms()[0]])

    all_equal(both(make))
    all_equal(both(lambda base: make(base).with_config(configurable={"kind": "down"})))


def events(program, query):
    """Name, tags and depth of each run."""

    async def collect():
        return [event async for event in program.astream_events(query, version="v2")]

    return sorted((one["event"], sorted(one["tags"]), len(one["parent_ids"])) for one in asyncio.run(collect()))


def test_the_events_of_a_chain_around_the_ensemble():
    old, new = (RunnablePassthrough() | base(retrievers=arms()) for base in (OldEnsemble, EnsembleRetriever))
    assert events(new, "tea") == events(old, "tea")
    assert sum(event == "on_retriever_end" for event, _, _ in events(new, "tea")) == 3


def preferred(result):
    return result.node.node_id != "n4", -(result.score or 0.0)


@pytest.mark.parametrize("mode", ["reciprocal_rerank", "relative_score", "dist_based_score", "simple"])
def test_a_query_fusion_that_prefers_one_source(mode):
    found = []
    for base in (OldFusion, QueryFusionRetriever):

        class Preferring(base):
            def _retrieve(self, query_bundle):
                results = super()._retrieve(query_bundle)
                return sorted(results, key=preferred)

            async def _aretrieve(self, query_bundle):
                results = await super()._aretrieve(query_bundle)
                return sorted(results, key=preferred)

        def children():
            return [Fixed(nodes([0, 4, 2], [0.9, 0.5, 0.2])), Fixed(nodes([2, 1, 4], [7.0, 5.0, 1.0]))]

        for use_async in (True, False):
            made = Preferring(
                children(), llm=MockLLM(), mode=mode, num_queries=1, similarity_top_k=4, use_async=use_async
            )
            found.append([(one.node_id, one.score) for one in made.retrieve("q")])
        made = Preferring(children(), llm=MockLLM(), mode=mode, num_queries=1, similarity_top_k=4)
        found.append([(one.node_id, one.score) for one in asyncio.run(made.aretrieve("q"))])
    all_equal(found)
    assert found[0][0][0] == "n4"


@pytest.mark.parametrize("mode", ["reciprocal_rerank", "relative_score"])
def test_sentence_windows_around_what_a_hybrid_search_finds(mode):
    """BM25 and vectors over sentences; a postprocessor replaces each by its window, at every query again."""
    parts = [
        TextNode(
            text=text,
            id_=f"w{n}",
            metadata={"window": " ".join(TEXTS[max(0, n - 1) : n + 2])},
            excluded_embed_metadata_keys=["window"],
        )
        for n, text in enumerate(TEXTS)
    ]
    found = []
    for bm25, base, more in ((OldNodes, OldFusion, {}), (NewNodes, QueryFusionRetriever, {"engine": "bm25s"})):
        vectors = VectorStoreIndex(parts, embed_model=NodeLetters()).as_retriever(similarity_top_k=3)
        arms = [bm25.from_defaults(nodes=parts, similarity_top_k=3, **more), vectors]
        hybrid = base(arms, llm=MockLLM(), mode=mode, num_queries=1, similarity_top_k=3, use_async=False)
        window = MetadataReplacementPostProcessor(target_metadata_key="window")
        engine = RetrieverQueryEngine.from_args(hybrid, llm=MockLLM(), node_postprocessors=[window])
        for _ in range(2):
            found.append([(one.node_id, one.text, one.score) for one in engine.query("green tea").source_nodes])
    all_equal(found)
    assert all(text in [part.metadata["window"] for part in parts] for _, text, _ in found[0])


def test_many_generated_queries_at_the_same_time_over_one_bm25():
    class Writer(MockLLM):
        def complete(self, *args: Any, **kwargs: Any) -> CompletionResponse:
            return CompletionResponse(text="Lisbon office\n\ngreen tea\nAna")

        async def acomplete(self, *args: Any, **kwargs: Any) -> CompletionResponse:
            return self.complete()

    parts = [TextNode(text=text, id_=f"n{n}") for n, text in enumerate(TEXTS)]
    found = []
    for bm25, base, more in ((OldNodes, OldFusion, {}), (NewNodes, QueryFusionRetriever, {"engine": "bm25s"})):
        arms = [bm25.from_defaults(nodes=parts, similarity_top_k=3, **more)]
        made = base(arms, llm=Writer(), mode="relative_score", num_queries=4, similarity_top_k=4)
        found.append([(one.node_id, one.score) for one in asyncio.run(made.aretrieve("tea"))])
    all_equal(found)


def test_a_router_over_a_fusion_and_a_bm25():
    class Both(BaseSelector):
        def _get_prompts(self):
            return {}

        def _update_prompts(self, prompts):
            pass

        def _select(self, choices, query):
            return SelectorResult(selections=[SingleSelection(index=n, reason="") for n in range(len(choices))])

        async def _aselect(self, choices, query):
            return self._select(choices, query)

    parts = [TextNode(text=text, id_=f"n{n}") for n, text in enumerate(TEXTS)]
    found = []
    for bm25, base, more in ((OldNodes, OldFusion, {}), (NewNodes, QueryFusionRetriever, {"engine": "bm25s"})):
        words = bm25.from_defaults(nodes=parts, similarity_top_k=3, **more)
        hybrid = base([words], llm=MockLLM(), mode="simple", num_queries=1, use_async=False)
        tools = [RetrieverTool.from_defaults(one, description="d") for one in (hybrid, words)]
        router = RouterRetriever(selector=Both(), retriever_tools=tools, llm=MockLLM())
        found.append(sorted((one.node_id, one.score) for one in router.retrieve("green tea")))
        found.append(sorted((one.node_id, one.score) for one in asyncio.run(router.aretrieve("green tea"))))
    all_equal(found)
