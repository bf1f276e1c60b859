"""Replace LangChain's EnsembleRetriever in two steps: change the import, then use the new options. Runs offline.

pip install 'hybridmem[langchain]' && python examples/migrate_from_ensemble.py
"""

import time
import zlib

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_hybridmem import BM25Retriever, FusionRetriever
from langchain_hybridmem import EnsembleRetriever as After


class Buckets(Embeddings):
    """A toy embedding: words counted into 64 buckets. Use yours."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        vector = [0.0] * 64
        for word in text.lower().split():
            vector[zlib.crc32(word.strip(".,?!").encode()) % 64] += 1.0
        return vector


day = 86_400
now = time.time()
documents = [
    Document(text, id=name, metadata={"source_id": source, "updated_at": now - age * day})
    for name, source, age, text in [
        ("tuesdays", "wiki/deploys", 700, "Deploys go out on Tuesdays."),
        ("approvals", "wiki/deploys", 700, "Deploys need two approvals."),
        ("daily", "mail/17", 5, "Since May, deploys go out every day."),
        ("ticket", "ticket/9", 40, "The export job fails with E0427."),
        ("lunch", "wiki/office", 900, "Lunch is at noon."),
    ]
]
store = InMemoryVectorStore.from_documents(documents, Buckets())
bm25 = BM25Retriever.from_documents(documents, k=4)
vector = store.as_retriever(search_kwargs={"k": 4})
question = "When do deploys go out?"

# Step 1: the same code with another import. The same documents come back in the same order.
ensemble = After(retrievers=[bm25, vector], weights=[0.5, 0.5])
after = ensemble.invoke(question)
try:
    from langchain_classic.retrievers import EnsembleRetriever as Before
except ImportError:  # the old package is no longer needed
    pass
else:
    assert after == Before(retrievers=[bm25, vector], weights=[0.5, 0.5]).invoke(question)
print("Drop-in, same order:")
for document in after:
    print("  ", document.page_content)

# New: k and filter at call time, and scores.
assert ensemble.invoke(question, k=2) == after[:2]
with_scores = After(retrievers=[bm25, vector], weights=[0.5, 0.5], with_scores=True)
scored = with_scores.invoke(question, filter={"source_id": "wiki/deploys"})
print("\nFiltered, with scores:")
for document in scored:
    print(f"   {document.metadata['score']:.4f}", document.page_content)

# Step 2: the native class: gates, one chunk per source, a boost for recent documents, a receipt for every result.
retriever = FusionRetriever(
    retrievers={"bm25": bm25, "vector": vector},
    weights={"bm25": 0.6, "vector": 0.4},
    gate={"vector": 0.2},
    dedup=True,
    half_life=30,
    k=3,
)
print("\nFused with gate, dedup and half-life:")
found = retriever.invoke(question)
for document in found:
    print(f"   {document.metadata['score']:.3f}", document.page_content)
assert found[0].page_content == "Since May, deploys go out every day."

explanation = retriever.explain(question)
print("\nWhy?", explanation.receipts[0], sep="\n   ")
print("Why not?")
for name in ("approvals", "lunch", "ticket"):
    print("  ", explanation.why_not(name))
assert explanation.why_not("approvals") == "approvals: dedup: collapsed into tuesdays of source wiki/deploys"
