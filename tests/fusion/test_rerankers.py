"""Rerankers of LangChain and LlamaIndex as they are, with local models in place of remote ones."""

from __future__ import annotations

import pytest
from langchain_classic.retrievers.document_compressors import (
    CrossEncoderReranker,
    DocumentCompressorPipeline,
    EmbeddingsFilter,
)
from langchain_community.cross_encoders import BaseCrossEncoder
from langchain_community.document_transformers import LongContextReorder as LangChainReorder
from langchain_core.embeddings import Embeddings
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import (
    LLMRerank,
    LongContextReorder,
    SimilarityPostprocessor,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor

from hybridmem.errors import ConfigError
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.rerankers import scorer_of
from hybridmem.fusion.stages import Rerank
from langchain_hybridmem import FusionRetriever
from tests.support.langchain_fakes import plain, texts

TEXTS = ["a tea", "green tea here", "nothing", "green green tea"]


class Overlap(BaseCrossEncoder):
    def score(self, text_pairs):
        return [sum(text.count(word) for word in query.split()) for query, text in text_pairs]


class Counts(Embeddings):
    def embed_documents(self, texts):
        return [[text.count("green") + 0.01, text.count("tea") + 0.01] for text in texts]

    def embed_query(self, text):
        return self.embed_documents([text])[0]


def order(reranker, query="green tea"):
    scores = scorer_of(reranker)(query, TEXTS)
    return sorted(range(len(TEXTS)), key=lambda place: -scores[place])


def test_document_compressors_of_langchain():
    assert order(CrossEncoderReranker(model=Overlap(), top_n=4)) == [3, 1, 0, 2]
    assert order(CrossEncoderReranker(model=Overlap(), top_n=1)) == [3, 0, 1, 2]  # what is dropped follows as it was
    assert order(EmbeddingsFilter(embeddings=Counts(), k=1))[0] == 1
    pipeline = DocumentCompressorPipeline(
        transformers=[CrossEncoderReranker(model=Overlap(), top_n=4), LangChainReorder()]
    )
    assert sorted(order(pipeline)) == [0, 1, 2, 3]


class ByLength(BaseNodePostprocessor):
    def _postprocess_nodes(self, nodes, query_bundle=None):
        return sorted(nodes, key=lambda one: -len(one.node.get_content()))


class Choices(MockLLM):
    def complete(self, prompt, formatted=False, **kwargs):
        answer = super().complete(prompt, formatted, **kwargs)
        answer.text = "Doc: 4, Relevance: 9\nDoc: 2, Relevance: 7"
        return answer


def test_node_postprocessors_of_llama_index():
    assert order(ByLength()) == [3, 1, 2, 0]
    assert order(SimilarityPostprocessor(similarity_cutoff=0.6)) == [0, 1, 2, 3]
    assert sorted(order(LongContextReorder())) == [0, 1, 2, 3]
    assert order(LLMRerank(llm=Choices(), top_n=2)) == [3, 1, 0, 2]


def test_a_recipe_with_a_reranker_as_it_is():
    recipe = Fusion(rerank=Rerank(scorer=CrossEncoderReranker(model=Overlap(), top_n=4), top=4))
    made = FusionRetriever(retrievers=[plain(TEXTS)], recipe=recipe)
    assert texts(made.invoke("green tea")) == [TEXTS[3], TEXTS[1], TEXTS[0], TEXTS[2]]
    assert "rerank" in str(made.explain("green tea").receipts[0])


@pytest.mark.parametrize("bad", [3, "cross-encoder", CrossEncoderReranker])
def test_anything_else_is_refused(bad):
    with pytest.raises(ConfigError, match="a LangChain document compressor or a LlamaIndex node postprocessor"):
        Rerank(scorer=bad)
