"""Small LangChain parts for tests: retrievers over fixed lists, embeddings by hand, short ways to ask."""

import asyncio

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever

NOW = 1_700_000_000.0
DAY = 86_400.0


class Scored(BaseRetriever):
    """Stands in for our own retrievers: k, filter and scores at call time."""

    docs: list
    scores: list
    asked: list
    k: int = 100

    def _get_relevant_documents(self, query, *, run_manager, k=None, filter=None, with_scores=None):
        self.asked.append({"k": k, "filter": filter, "with_scores": with_scores})
        rows = list(zip(self.docs, self.scores, strict=True))[: k or self.k]
        if not with_scores:
            return [document for document, _ in rows]
        return [d.model_copy(update={"metadata": {**d.metadata, "score": score}}) for d, score in rows]


Scored.__module__ = "langchain_hybridmem.scored"  # only classes of ours are asked for scores by keyword


class Plain(BaseRetriever):
    docs: list

    def _get_relevant_documents(self, query, *, run_manager):
        return self.docs


class Axes(Embeddings):
    """A text is a vector: "3,4" is (3, 4) brought to length 1."""

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        x, y = map(float, text.split(","))
        length = (x * x + y * y) ** 0.5
        return [x / length, y / length]


def doc(text, id=None, **metadata):
    return Document(page_content=text, id=id, metadata=metadata)


def docs(letters, **metadata):
    return [doc(letter, **metadata) for letter in letters]


def plain(letters, **metadata):
    return Plain(docs=docs(letters, **metadata))


def texts(documents):
    return [document.page_content for document in documents]


def scores(documents):
    return [document.metadata["score"] for document in documents]


def ask(retriever, query="?", **said):
    """The same through invoke and ainvoke."""
    found = retriever.invoke(query, **said)
    assert asyncio.run(retriever.ainvoke(query, **said)) == found
    return found
