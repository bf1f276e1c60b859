"""Nodes as the core reads them, and memories as nodes."""

from datetime import datetime, timezone

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import (
    LLMRerank,
    LongContextReorder,
    SimilarityPostprocessor,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import Document, MetadataMode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from hybridmem import Fusion, HybridMemory, Rerank
from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from llamaindex_hybridmem import FusionRetriever, add_nodes
from llamaindex_hybridmem._arms import arm_list
from llamaindex_hybridmem._conversion import (
    NodeReader,
    as_scorer,
    node_source,
    node_text,
    to_memory,
    to_node,
)
from tests.support.llama_fakes import node

READER = NodeReader()
SOURCE = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="doc")}


def test_columns():
    nodes = [
        node("a", text="one", metadata={"source_id": "s", "updated_at": 5, "mood": "good"}, embedding=[1.0]),
        node("b", text="two", metadata={"last_modified_date": "2024-01-01"}, relationships=SOURCE),
        Document(id_="c", text="three", metadata={"creation_date": "2023-01-01"}),
    ]
    assert READER.keys(nodes) == ["a", "b", "c"]
    assert READER.column(nodes, "text") == ["one", "two", "three"]
    assert READER.column(nodes, "vector") == [[1.0], None, None]
    assert READER.column(nodes, "source_id") == ["s", "doc", None]
    assert READER.column(nodes[:1], "source_id") == ["s"]
    assert READER.column(nodes, "updated_at") == [5, "2024-01-01", None]
    assert READER.column(nodes, "created_at") == [None, None, "2023-01-01"]
    assert READER.column(nodes, "mood") == ["good", None, None]


def test_the_source_of_a_node():
    assert node_source(node("a")) is None
    assert node_source(node("a", relationships=SOURCE)) == "doc"
    assert node_text(TextNode(text="x", metadata={"a": 1})) == "x"


def test_a_list_with_a_missing_score_counts_as_unscored():
    found = [NodeWithScore(node=node("a"), score=1.0), NodeWithScore(node=node("b"))]
    assert arm_list("arm", found).scores is None
    assert arm_list("arm", found[:1]).scores == [1.0]
    assert arm_list("arm", []).items == []


WHEN = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)


def test_a_memory_as_a_node_and_back():
    memory = Memory(
        "Ana moved", id="m1", title="Home", tags=("a", "b"), source_id="doc", thread="t", created_at=WHEN,
        strength=0.5, entities=("Ana",), metadata={"mood": "good"},
    )  # fmt: skip
    made = to_node(memory)
    assert made.id_ == "m1"
    assert made.ref_doc_id == "doc"
    assert made.metadata == {
        "mood": "good", "title": "Home", "tags": ["a", "b"], "source_id": "doc", "thread": "t", "entities": ["Ana"],
        "created_at": "2024-05-01T12:00:00Z", "strength": 0.5,
    }  # fmt: skip
    shown = made.get_content(MetadataMode.LLM)
    assert "title: Home" in shown
    assert "created_at: 2024-05-01" in shown
    assert "strength" not in shown
    assert made.get_content(MetadataMode.EMBED) == "mood: good\n\nAna moved"
    assert to_memory(made) == memory


def test_small_memories_and_nodes():
    made = to_node(Memory("x"))
    assert made.id_
    assert made.metadata == {}
    back = to_memory(node("n", text="x", metadata={"tags": "home", "created_at": "soon"}, relationships=SOURCE))
    assert back == Memory("x", id="n", tags=("home",), source_id="doc")
    assert to_memory(node("n", metadata={"updated_at": WHEN})).updated_at == WHEN
    odd = to_node(Memory("x", created_at=WHEN.replace(tzinfo=None)))
    assert odd.metadata["created_at"] == "2024-05-01T12:00:00Z"


TEXTS_TO_RANK = ["a tea", "green tea here", "nothing", "green green tea"]


def order(reranker, query="green tea"):
    scores = as_scorer(reranker)(query, TEXTS_TO_RANK)
    return sorted(range(len(TEXTS_TO_RANK)), key=lambda place: -scores[place])


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


def test_a_recipe_with_a_postprocessor():
    recipe = Fusion(rerank=Rerank(scorer=ByLength(), top=4))
    with HybridMemory(embedder=None, recipe=recipe) as memory:
        memory.add_many(TEXTS_TO_RANK)
        ranked = FusionRetriever.from_memory(memory).retrieve("green tea")
    assert [one.node.get_content() for one in ranked] == [TEXTS_TO_RANK[place] for place in (3, 1, 0)]


def test_as_scorer_refuses_rerankers_of_others():
    with pytest.raises(ConfigError, match="a function or a node postprocessor"):
        as_scorer(object())
    assert as_scorer(len) is len


def test_times_in_metadata_are_times_of_the_memory():
    memory = Memory("Ana moves", id="m", event_at=WHEN, expires_at=WHEN, metadata={"score": 3})
    again = to_memory(to_node(memory))
    assert (again.event_at, again.expires_at, again.metadata) == (WHEN, WHEN, {"score": 3})


def test_expiry_and_duplicates():
    now = [1_700_000_000.0]
    with HybridMemory(embedder=None, clock=lambda: now[0]) as memory:
        add_nodes(memory, [TextNode(text="the code is 7", id_="code")], ttl=10)
        assert add_nodes(memory, [TextNode(text="The code is 7", id_="b")], on_duplicate="skip") == ["code"]
        now[0] += 10
        assert memory.search("code") == []
