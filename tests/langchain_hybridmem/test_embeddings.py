import asyncio
import pickle

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.unit_tests import EmbeddingsUnitTests

from hybridmem.memory.memory import HybridMemory
from langchain_hybridmem import FusionRetriever, LocalEmbeddings, VectorRetriever, aadd_documents, add_documents


class TestStandard(EmbeddingsUnitTests):
    @property
    def embeddings_class(self):
        return LocalEmbeddings


def test_local_embeddings_plug_into_any_vector_store():
    made = pickle.loads(pickle.dumps(LocalEmbeddings()))
    store = InMemoryVectorStore(made)
    store.add_texts(["A cat sat on the mat", "Stock prices fell sharply"])
    assert store.similarity_search("a kitten", k=1)[0].page_content == "A cat sat on the mat"
    vector = made.embed_query("a cat")
    assert sum(x * x for x in vector) == pytest.approx(1.0, abs=1e-5)
    assert asyncio.run(made.aembed_query("a cat")) == vector
    assert asyncio.run(made.aembed_documents(["a cat"])) == made.embed_documents(["a cat"])
    assert VectorRetriever(vectorstore=store, k=1).invoke("a kitten")[0].page_content == "A cat sat on the mat"


def test_documents_become_a_memory(tmp_path):
    documents = [
        Document("Ana moved to Lisbon", id="1", metadata={"thread": "t", "mood": "good"}),
        Document("Bo drinks tea", id="2"),
    ]
    made = FusionRetriever.from_documents(documents, path=tmp_path / "one.db", embedder=None, k=1)
    assert [document.id for document in made.invoke("Lisbon")] == ["1"]
    assert made.memory.get("1").thread == "t"
    made.memory.close()
    with HybridMemory(tmp_path / "one.db", embedder=None) as memory:
        assert add_documents(memory, [Document("Cy likes tea", id="3")]) == ["3"]
        assert asyncio.run(aadd_documents(memory, [Document("Di likes tea", id="4")])) == ["4"]
        assert {result.id for result in memory.search("tea")} == {"2", "3", "4"}
