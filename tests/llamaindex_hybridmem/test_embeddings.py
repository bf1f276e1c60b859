import asyncio
import pickle

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode

from llamaindex_hybridmem import FusionRetriever, LocalEmbedding, aadd_nodes, add_nodes


def test_the_local_embedding_plugs_into_any_index():
    made = pickle.loads(pickle.dumps(LocalEmbedding()))
    nodes = [TextNode(text="A cat sat on the mat", id_="cat"), TextNode(text="Stock prices fell", id_="stock")]
    index = VectorStoreIndex(nodes, embed_model=made)
    assert index.as_retriever(similarity_top_k=1).retrieve("a kitten")[0].node_id == "cat"
    vector = made.get_query_embedding("a cat")
    assert sum(x * x for x in vector) == pytest.approx(1.0, abs=1e-5)
    assert asyncio.run(made.aget_query_embedding("a cat")) == vector
    assert asyncio.run(made.aget_text_embedding_batch(["a", "b"])) == made.get_text_embedding_batch(["a", "b"])
    assert made.class_name() == "LocalEmbedding"


def test_nodes_become_a_memory():
    nodes = [TextNode(text="Ana moved to Lisbon", id_="1", metadata={"thread": "t"}), TextNode(text="Bo", id_="2")]
    made = FusionRetriever.from_nodes(nodes, embedder=None, similarity_top_k=1)
    assert [one.node_id for one in made.retrieve("Lisbon")] == ["1"]
    assert made.memory.get("1").thread == "t"
    assert add_nodes(made.memory, [TextNode(text="Lisbon again and Lisbon", id_="3")]) == ["3"]
    assert asyncio.run(aadd_nodes(made.memory, [TextNode(text="Lisbon", id_="4")])) == ["4"]
    assert {one.node_id for one in made.retrieve("Lisbon", similarity_top_k=9)} == {"1", "3", "4"}
