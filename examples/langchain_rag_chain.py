"""A LangChain retrieval chain (LCEL) that cites its sources. Runs offline: a fake model gives a fixed answer.

pip install 'hybridmem[langchain]' && python examples/langchain_rag_chain.py
"""

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableParallel, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_hybridmem import BM25Retriever, FusionRetriever

documents = [
    Document("The export job fails with E0427 when the token has expired.", metadata={"source": "runbook.md"}),
    Document("E0427 means: renew the token with `auth renew`.", metadata={"source": "errors.md"}),
    Document("Imports run every night at two.", metadata={"source": "schedule.md"}),
]
store = InMemoryVectorStore.from_documents(documents, DeterministicFakeEmbedding(size=32))  # use your embedding
retriever = FusionRetriever(
    retrievers={"bm25": BM25Retriever.from_documents(documents), "vector": store.as_retriever()},
    weights={"bm25": 0.8, "vector": 0.2},
    k=2,
)


def as_context(found: list[Document]) -> str:
    """Numbered passages, so that the model can cite them."""
    return "\n".join(f"[{n}] {document.page_content}" for n, document in enumerate(found, start=1))


prompt = ChatPromptTemplate.from_template(
    "Answer from these passages alone and cite them as [n].\n\n{context}\n\nQuestion: {question}"
)
model = GenericFakeChatModel(messages=iter([AIMessage("Renew the token with `auth renew` [2].")]))  # use yours

answer = RunnablePassthrough.assign(context=lambda said: as_context(said["documents"])) | prompt | model
chain = RunnableParallel(documents=retriever, question=RunnablePassthrough()).assign(answer=answer | StrOutputParser())

result = chain.invoke("How do I fix E0427?")
print(result["answer"])
for number, document in enumerate(result["documents"], start=1):
    print(f"  [{number}] {document.metadata['source']} ({document.metadata['score']:.2f})")
assert {document.metadata["source"] for document in result["documents"]} == {"errors.md", "runbook.md"}

# The same retriever takes k and filter at call time, also inside a chain.
narrow = retriever.bind(k=1, filter={"source": "runbook.md"})
assert [document.metadata["source"] for document in narrow.invoke("E0427")] == ["runbook.md"]
