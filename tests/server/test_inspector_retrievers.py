"""The inspector over the FusionRetrievers of both frameworks."""

import json

import pytest
from langchain_core.documents import Document
from llama_index.core.schema import TextNode

from hybridmem import Fusion, HybridMemory, Memory
from hybridmem.retrievers.arms import SupportsExplainer
from hybridmem.server.inspector import Inspector
from langchain_hybridmem import BM25Retriever as LangChainBM25
from langchain_hybridmem import FusionRetriever as LangChainFusion
from llamaindex_hybridmem import BM25Retriever as LlamaBM25
from llamaindex_hybridmem import FusionRetriever as LlamaFusion
from tests.server.test_inspector import post

TEXTS = {
    "a": "the cat sleeps on the sofa",
    "b": "the dog sleeps below the sofa",
    "c": "a sofa is no bed",
    "d": "cats and dogs",
}


def langchain(k):
    documents = [Document(page_content=text, id=key, metadata={"kind": "pet"}) for key, text in TEXTS.items()]
    arms = {
        "words": LangChainBM25.from_documents(documents, k=4),
        "short": LangChainBM25.from_documents(documents[2:], k=4),
    }
    return LangChainFusion(retrievers=arms, weights={"words": 0.75, "short": 0.25}, c=20, k=k, half_life=30)


def llamaindex(k):
    nodes = [TextNode(text=text, id_=key, metadata={"kind": "pet"}) for key, text in TEXTS.items()]
    arms = {
        "words": LlamaBM25.from_defaults(nodes=nodes, similarity_top_k=4),
        "short": LlamaBM25.from_defaults(nodes=nodes[2:], similarity_top_k=4),
    }
    return LlamaFusion(arms, retriever_weights={"words": 0.75, "short": 0.25}, c=20, similarity_top_k=k, half_life=30)


@pytest.mark.parametrize("make", [langchain, llamaindex])
def test_a_fusion_retriever_is_shown_with_its_arms_and_its_recipe(make):
    retriever = make(3)
    assert isinstance(retriever, SupportsExplainer)
    with Inspector(retriever) as inspector:
        _, start = post(inspector, "start", {})
        assert start["arms"] == ["words", "short"]
        assert start["k"] == 3
        values = {one["path"]: one["value"] for group in start["groups"] for one in group["controls"]}
        assert (values["weights/words"], values["c"], values["boost/half_life"]) == (0.75, 20, 30)
        _, answer = post(inspector, "search", {"query": "cat on a sofa", "k": 3})
        explained = retriever.explain("cat on a sofa")
        assert [row["key"] for row in answer["results"]] == [receipt.key for receipt in explained.receipts]
        assert [row["score"] for row in answer["results"]] == [receipt.score for receipt in explained.receipts]
        assert {arm["name"]: [hit["key"] for hit in arm["hits"]] for arm in answer["arms"]} == {
            arm: [hit.key for hit in hits] for arm, hits in explained.hits.items()
        }
        assert answer["texts"]["a"] == TEXTS["a"]
        # another recipe, another k: what the retriever was set up with does not get in the way
        changes = {"weights/words": 0, "boost": False, "c": 5}
        _, short = post(inspector, "search", {"query": "cat on a sofa", "k": 2, "changes": changes})
        assert {row["key"] for row in short["results"]} == {"c", "d"}
        assert short["results"][0]["parts"][0][1] == pytest.approx(1.0)  # first in the only arm that counts
        base = {"hybridmem": 1, "mode": "convex", "weights": {"words": 1, "short": 0}}
        _, loaded = post(inspector, "search", {"query": "cat on a sofa", "k": 4, "base": base})
        assert loaded["results"][0]["key"] == "a"
        _, why = post(inspector, "why", {"query": "cat on a sofa", "k": 1, "key": "b"})
        assert "only k=1 results" in why["why"]
        assert why["text"] == TEXTS["b"]
        assert why["fields"] == {"kind": "pet"}
        _, none = post(inspector, "search", {"query": "cat", "filter": {"kind": "car"}})
        assert none["results"] == []
        assert retriever.explain("cat on a sofa").receipts == explained.receipts  # the retriever itself is unchanged


@pytest.mark.parametrize("fusion", [LangChainFusion, LlamaFusion])
def test_a_retriever_over_a_memory_shows_the_memory(fusion):
    with HybridMemory(embedder=None) as memory:
        memory.add_many([Memory(text, id=key, thread="t") for key, text in TEXTS.items()])
        retriever = fusion.from_memory(memory, recipe=Fusion(c=7))
        with Inspector(retriever) as inspector:
            _, start = post(inspector, "start", {})
            assert start["count"] == 4
            values = {one["path"]: one["value"] for group in start["groups"] for one in group["controls"]}
            assert values["c"] == 7
            _, answer = post(inspector, "search", {"query": "sofa"})
            assert [row["key"] for row in answer["results"]] == [
                result.id for result in memory.search("sofa", recipe=Fusion(c=7))
            ]
            _, why = post(inspector, "why", {"query": "sofa", "key": "b"})
            assert [one["id"] for one in why["thread"]] == ["a", "b", "c", "d"]
            assert json.loads(post(inspector, "save", {})[1]["json"])["c"] == 7
