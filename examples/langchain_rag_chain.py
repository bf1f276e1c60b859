"""A RAG chain in LCEL over a memory, with its sources cited. The model is a stand-in, so that it runs offline."""

from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from hybridmem import HybridMemory, Memory
from langchain_hybridmem import FusionRetriever

with HybridMemory() as memory:
    memory.add_many(
        [
            Memory("The export job fails with E0427 when the queue is full.", id="wiki-12"),
            Memory("The queue is emptied every night at two.", id="wiki-14"),
            Memory("The cat sleeps on the blue sofa.", id="chat-3"),
        ]
    )
    retriever = FusionRetriever.from_memory(memory, k=2)

    def cited(documents: list[Document]) -> str:
        return "\n".join(f"[{document.id}] {document.page_content}" for document in documents)

    prompt = ChatPromptTemplate.from_template("Answer from these notes, citing them:\n{notes}\n\nQuestion: {question}")
    model = FakeListChatModel(responses=["It fails when the queue is full [wiki-12]."])
    chain = {"notes": retriever | cited, "question": RunnablePassthrough()} | prompt | model | StrOutputParser()

    question = "Why does the export job fail?"
    found = retriever.invoke(question)
    print(question)
    print(chain.invoke(question))
    print("\nSources:")
    for document in found:
        print(f"  {document.id}  {document.metadata['score']:.3f}  {document.page_content}")
    assert found[0].id == "wiki-12"
