"""LangChain's own standard tests for retrievers, for each way of making one of ours: 5 of 5."""

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests

from hybridmem.memory.memory import HybridMemory
from langchain_hybridmem import EnsembleRetriever, FusionRetriever, GraphRetriever

TEXTS = ["a red fox", "a red hen", "a red sun", "a red sea", "a blue sea"]


def words(query):
    return [Document(text) for text in TEXTS if set(text.split()) & set(query.split())]


def a_store():
    return InMemoryVectorStore.from_texts(TEXTS, DeterministicFakeEmbedding(size=8))


class Standard(RetrieversIntegrationTests):
    @property
    def retriever_query_example(self):
        return "red"


class TestFusionRetriever(Standard):
    @property
    def retriever_constructor(self):
        return FusionRetriever

    @property
    def retriever_constructor_params(self):
        return {"retrievers": {"words": RunnableLambda(words), "vector": a_store().as_retriever()}}


class TestFusionRetrieverWithEverything(Standard):
    @property
    def retriever_constructor(self):
        return FusionRetriever

    @property
    def retriever_constructor_params(self):
        arms = [RunnableLambda(words), a_store().as_retriever()]
        more = {"gate": -1.0, "dedup": True, "half_life": 30, "receipts": True, "on_error": "skip", "timeout": 30}
        return {"retrievers": arms, "weights": [2, 1], **more}


class TestFusionRetrieverOverAMemory(Standard):
    @property
    def retriever_constructor(self):
        return FusionRetriever

    @property
    def retriever_constructor_params(self):
        memory = HybridMemory(embedder=None)
        memory.add_many(TEXTS)
        return {"memory": memory}


class TestEnsembleRetriever(Standard):
    @property
    def retriever_constructor(self):
        return EnsembleRetriever

    @property
    def retriever_constructor_params(self):
        return {"retrievers": [RunnableLambda(words), a_store().as_retriever()]}


class TestGraphRetriever(Standard):
    @property
    def retriever_constructor(self):
        return GraphRetriever

    @property
    def retriever_constructor_params(self):
        return {"documents": [Document(text) for text in TEXTS]}
