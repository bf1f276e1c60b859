"""EnsembleRetriever, before and after: one import changes, the order stays; then what the old class could not do."""

import time

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_hybridmem import BM25Retriever, EnsembleRetriever, FusionRetriever

now = time.time()
texts = {
    "POST /v2/exports fails with E0427": ("ticket-9", 2),
    "E0427 means that the export queue is full": ("wiki", 400),
    "The export queue is emptied every night": ("wiki", 30),
    "POST /v2/imports has been fine since Monday": ("ticket-7", 1),
    "The cat sleeps on the blue sofa": ("chat-3", 90),
}
docs = [
    Document(text, id=f"doc-{n}", metadata={"source": source, "updated_at": now - days * 86_400})
    for n, (text, (source, days)) in enumerate(texts.items(), start=1)
]
words = BM25Retriever.from_documents(docs, k=4)
vectors = InMemoryVectorStore.from_documents(docs, DeterministicFakeEmbedding(size=64))
meaning = vectors.as_retriever(search_kwargs={"k": 4})
question = "why does the export fail with E0427?"

# The same code, before and after. The original lives in langchain-classic, which may not be installed here.
after = EnsembleRetriever(retrievers=[words, meaning], weights=[0.6, 0.4])
order = [d.page_content for d in after.invoke(question)]
try:
    from langchain_classic.retrievers import EnsembleRetriever as Original
except ImportError:
    print("langchain-classic is not installed: nothing to compare with")
else:
    before = Original(retrievers=[words, meaning], weights=[0.6, 0.4])
    assert [d.page_content for d in before.invoke(question)] == order
    print("same order as the original:")
for text in order:
    print("  ", text)

# And now with k, a gate on raw scores, one chunk per source, a half-life, and the reasons.
fused = FusionRetriever(
    retrievers={"bm25": words, "vector": meaning},
    weights=[0.6, 0.4],
    k=3,
    gate={"bm25": 0.5},
    dedup="source",
    half_life=30,
)
print("\nwith k=3, gate, dedup and half-life:")
for document in fused.invoke(question):
    print(f"   {document.metadata['score']:.3f}", document.page_content)
told = fused.explain(question)
print()
print(told)
print("\nwhy not the cat?", told.why_not("doc-5"))
