"""A whole memory against the rivals' whole retrievers, over the same texts and vectors.

The embedding of the question is looked up by everybody alike, so that only retrieval is measured.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
from pathlib import Path

from common import alternate, arguments, clustered, table, write, zipf_texts

from hybridmem import HybridMemory, Memory
from hybridmem.embed import as_embedder
from hybridmem.space import Ask

K = 8
QUESTIONS = 15


def lookup(vectors):
    return as_embedder(lambda texts: [vectors[text] for text in texts], name="lookup", cache_size=0)


def langchain_rival(texts, vectors, folder):
    from langchain_chroma import Chroma
    from langchain_classic.retrievers import EnsembleRetriever
    from langchain_community.retrievers import BM25Retriever
    from langchain_core.embeddings import Embeddings

    class Lookup(Embeddings):
        def embed_documents(self, many):
            return [vectors[text].tolist() for text in many]

        def embed_query(self, text):
            return vectors[text].tolist()

    store = Chroma(
        embedding_function=Lookup(), persist_directory=str(folder), collection_metadata={"hnsw:space": "cosine"}
    )
    for at in range(0, len(texts), 5000):
        store.add_texts(texts[at : at + 5000])
    words = BM25Retriever.from_texts(texts, k=K)
    both = EnsembleRetriever(retrievers=[words, store.as_retriever(search_kwargs={"k": K})], weights=[0.5, 0.5])
    return both.invoke


def llama_rival(texts, vectors, folder):
    import chromadb
    from llama_index.core import StorageContext, VectorStoreIndex
    from llama_index.core.embeddings import BaseEmbedding
    from llama_index.core.llms import MockLLM
    from llama_index.core.retrievers import QueryFusionRetriever
    from llama_index.core.schema import TextNode
    from llama_index.retrievers.bm25 import BM25Retriever
    from llama_index.vector_stores.chroma import ChromaVectorStore

    class Lookup(BaseEmbedding):
        def _get_text_embedding(self, text):
            return vectors[text].tolist()

        def _get_query_embedding(self, text):
            return vectors[text].tolist()

        async def _aget_query_embedding(self, text):
            return vectors[text].tolist()

    nodes = [TextNode(text=text, id_=str(i), embedding=vectors[text].tolist()) for i, text in enumerate(texts)]
    client = chromadb.PersistentClient(str(folder))
    store = ChromaVectorStore(chroma_collection=client.create_collection("nodes", metadata={"hnsw:space": "cosine"}))
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(nodes, storage_context=context, embed_model=Lookup())
    words = BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=K)
    both = QueryFusionRetriever(
        [words, index.as_retriever(similarity_top_k=K)],
        llm=MockLLM(), mode="reciprocal_rerank", similarity_top_k=K, num_queries=1, use_async=False,
    )  # fmt: skip
    return both.retrieve


def measure(size, seed, rows):
    texts = list(dict.fromkeys(zipf_texts(size, seed=seed)))
    questions = zipf_texts(QUESTIONS, words=9, seed=seed + 1)
    vectors = dict(zip([*texts, *questions], clustered(len(texts) + len(questions), seed=seed), strict=True))
    folder = Path(tempfile.mkdtemp(prefix="hybridmem-bench-"))
    path = folder / "memory.db"
    memories = [Memory(text, id=str(i), thread=f"t{i // 20}", source_id=str(i)) for i, text in enumerate(texts)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    start = time.process_time()
    memory = HybridMemory(path, embedder=lookup(vectors))
    memory.add_many(memories)
    added = time.process_time() - start
    memory.search(questions[0])
    memory.close()
    indexed = time.process_time() - start

    start = time.process_time()
    memory = HybridMemory(path, embedder=lookup(vectors))
    memory.search(questions[0])
    opened = time.process_time() - start
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

    space = memory._engine.space(memory._view())  # noqa: SLF001
    asks = {question: Ask(question, vectors[question]) for question in questions}
    found = {q: (space.search("bm25", a, k=100), space.search("vector", a, k=100)) for q, a in asks.items()}
    seeds = {q: dict(zip(words.ids[:20], words.scores[:20], strict=True)) for q, (words, _) in found.items()}

    def arms(question):
        """Everything that the indexes do for a search: find, score each other's finds, spread."""
        ask = asks[question]
        words, meaning = (space.search(arm, ask, k=100) for arm in ("bm25", "vector"))
        space.score("bm25", ask, meaning.ids)
        space.score("vector", ask, words.ids)
        space.graph().spread(seeds[question], include_seeds=True)

    rivals = {
        "bm25 arm": lambda q: space.search("bm25", asks[q], k=100),
        "vector arm": lambda q: space.search("vector", asks[q], k=100),
        "all arms": arms,
        "search": lambda q: memory.search(q, k=K),
    }
    ours = alternate(rivals, questions, rounds=7)
    peers = {
        "search": lambda q: memory.search(q, k=K),
        "EnsembleRetriever": langchain_rival(texts, vectors, folder / "lc"),
        "QueryFusionRetriever": llama_rival(texts, vectors, folder / "li"),
    }
    against = alternate(peers, questions, rounds=3)
    mb = path.stat().st_size / 1e6
    memory.close()
    shutil.rmtree(folder, ignore_errors=True)
    faster = [against[name] / against["search"] for name in ("EnsembleRetriever", "QueryFusionRetriever")]
    rows.append((
        f"{size:,}", *(f"{ours[name] * 1e3:.2f}" for name in rivals), f"{ours['search'] / ours['all arms']:.2f}",
        *(f"{ratio:.1f}×" for ratio in faster), f"{size / added:,.0f}/s", f"{opened / indexed:.3f}", f"{mb:.0f} MB",
        f"{used:.0f} MB",
    ))  # fmt: skip
    print(rows[-1], {name: f"{value * 1e3:.2f} ms" for name, value in against.items()})


def main():
    args = arguments(__doc__, sizes=(10_000, 100_000))
    rows = []
    for size in args.sizes:
        measure(size, args.seed, rows)
    header = [
        "memories", "bm25 ms", "vector ms", "all arms ms", "search ms", "search / arms", "faster than Ensemble",
        "faster than QueryFusion", "added", "open / index", "file", "memory",
    ]  # fmt: skip
    text = table(header, rows)
    print(text)
    if args.write:
        note = (
            "`search` is the whole path: arms, completion, fusion with every stage, spreading, reading k memories. "
            "`all arms` is what the indexes do for it. Rivals: EnsembleRetriever(BM25Retriever, Chroma) and "
            "QueryFusionRetriever(BM25Retriever, Chroma) over the same texts and vectors of 384 dimensions, each of "
            "their arms asked for k = 8 hits; `search` asks its arms for 100."
        )
        write("memory", "A memory, end to end", [text, note])


if __name__ == "__main__":
    main()
