"""A whole memory against the rivals' whole retrievers, over the same texts and vectors.

The embedding of the question is looked up by everybody alike, so that only retrieval is measured.
"""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import OUT, alternate, arguments, clustered, table, write, zipf_texts  # isort: skip  before numpy

import numpy as np

from hybridmem import HybridMemory, Memory
from hybridmem.core.protocols import ArmQuery, View
from hybridmem.embedding.embedder import as_embedder

K = 8
DEPTH = 50
QUESTIONS = 15
WARM = 5.0
ARMS = ("bm25", "vector", "graph")
NAMES = ("search", "EnsembleRetriever", "QueryFusionRetriever")
DEEP = f"QueryFusionRetriever, {DEPTH} deep"


class Row(NamedTuple):
    size: int
    ours: dict
    against: dict
    added: float
    whole: float
    opened: float
    mb: float
    used: float
    reading: float


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

    def fused(depth):
        """Both arms asked for `depth` hits: k, as in the manual, or as many as ours look at."""
        both = QueryFusionRetriever(
            [words, index.as_retriever(similarity_top_k=depth)],
            llm=MockLLM(), mode="reciprocal_rerank", similarity_top_k=K, num_queries=1, use_async=False,
        )  # fmt: skip

        def retrieve(question):
            words.similarity_top_k = depth
            return both.retrieve(question)

        return retrieve

    return {NAMES[2]: fused(K), DEEP: fused(DEPTH)}


def resident():
    """Megabytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def opening(path, file):
    """CPU seconds of this thread from nothing to the first answer, in a process of its own."""
    with np.load(file) as saved:
        question, vector = str(saved["question"]), saved["vector"]
    embedder = lookup({question: vector})
    HybridMemory(embedder=None).close()  # imports what a memory needs
    before = resident()
    start = time.thread_time()
    memory = HybridMemory(path, embedder=embedder)
    found = memory.search(question)
    taken = time.thread_time() - start
    used = resident() - before
    print(json.dumps({"seconds": taken, "mb": used, "found": len(found)}))
    memory.close()


def opened_cold(path, question, vector):
    """Open in a new process, three times: median of the CPU seconds, and of the megabytes that it took."""
    file = path.with_suffix(".npz")
    np.savez(file, question=question, vector=vector)
    run = [sys.executable, "-m", __spec__.name, "--open", str(path), str(file)]
    told = [json.loads(subprocess.run(run, capture_output=True, check=True, text=True).stdout) for _ in range(3)]
    assert all(answer["found"] == K for answer in told)
    return [statistics.median(answer[name] for answer in told) for name in ("seconds", "mb")]


def indexed(path, memories, vectors, question):
    """A new memory with everything added and indexed: CPU seconds of adding, and of all of it."""
    start = time.thread_time()
    memory = HybridMemory(path, embedder=lookup(vectors))
    memory.add_many(memories)
    added = time.thread_time() - start
    memory.search(question)
    memory.close()
    return added, time.thread_time() - start


def arms_of(memory, questions, vectors):
    """Each arm alone, as a user asks it, and all that a search asks of its indexes."""
    space = memory._engine.search_view(View())  # noqa: SLF001
    asks = {question: ArmQuery(question, vectors[question]) for question in questions}
    words = {q: space.search("bm25", ask, k=DEPTH) for q, ask in asks.items()}
    seeds = {q: dict(zip(hits.ids[:20], hits.scores[:20], strict=True)) for q, hits in words.items()}
    meaning = {q: space.search("vector", ask, k=DEPTH) for q, ask in asks.items()}
    no_word = {q: [key for key in meaning[q].ids if key not in words[q].ids] for q in questions}
    no_meaning = {q: [key for key in words[q].ids if key not in meaning[q].ids] for q in questions}

    def everything(question):
        """Embed (here: look up), find, score each other's finds, spread."""
        ask = asks[question]._replace(vector=memory.embedder.query(question))
        space.search("bm25", ask, k=DEPTH)
        space.search("vector", ask, k=DEPTH)
        space.score("bm25", ask, no_word[question])
        space.score("vector", ask, no_meaning[question])
        space.graph().spread(seeds[question], include_seeds=True)

    alone = {arm: lambda q, arm=arm: memory.search_arm(arm, q, k=K) for arm in ARMS}
    return {**alone, "indexes": everything}


def measure(size, seed):
    texts = list(dict.fromkeys(zipf_texts(size, seed=seed)))
    questions = zipf_texts(QUESTIONS, words=9, seed=seed + 1)
    vectors = dict(zip([*texts, *questions], clustered(len(texts) + len(questions), seed=seed), strict=True))
    folder = Path(tempfile.mkdtemp(prefix="hybridmem-bench-"))
    path = folder / "memory.db"
    memories = [Memory(text, id=str(i), thread=f"t{i // 20}", source_id=str(i)) for i, text in enumerate(texts)]
    added, whole = indexed(path, memories, vectors, questions[0])
    opened, used = opened_cold(path, questions[0], vectors[questions[0]])
    with HybridMemory(path, embedder=lookup(vectors)) as memory:
        rivals = {**arms_of(memory, questions, vectors), "search": lambda q: memory.search(q, k=K)}
        for question in questions:  # sketches are made, compiled loops are loaded
            memory.search(question, k=K)
        time.sleep(WARM)
        ours = alternate(rivals, questions, rounds=9)
        print(f"{size:,}: {ours}", flush=True)
        peers = {
            "search": rivals["search"],
            "EnsembleRetriever": langchain_rival(texts, vectors, folder / "lc"),
            **llama_rival(texts, vectors, folder / "li"),
        }
        against = alternate(peers, questions, rounds=5)
    mb = path.stat().st_size / 1e6
    shutil.rmtree(folder, ignore_errors=True)
    return Row(size, ours, against, added, whole, opened, mb, used, reading(len(texts)))


def reading(size):
    """Milliseconds for one look at every vector, one byte a number: no exact search can do with less."""
    from hybridmem.indexes.vector.matrix import kernel

    table = np.random.default_rng(0).integers(-127, 128, (size, 384), dtype=np.int8)
    look = kernel().cdist
    return alternate({"look": lambda row: look(row[None], table)}, list(table[:15]), rounds=5)["look"] * 1e3


ABOUT_ARMS = (
    f"`bm25`, `vector` and `graph` are arms alone (`search_arm`, k = {K}). `search` is the whole path: arms of depth "
    f"{DEPTH}, each scoring what only the other found, fusion with every stage, spreading, reading k = {K} memories. "
    "`indexes` is what the embedder (here a table) and the indexes do for it, without fusing and reading."
)
ABOUT_RIVALS = (
    "Rivals: EnsembleRetriever(BM25Retriever, Chroma) and QueryFusionRetriever(BM25Retriever, Chroma) over the same "
    f"texts and vectors of 384 dimensions, each of their arms asked for k = {K} hits, QueryFusionRetriever's also for "
    f"{DEPTH}, as many as ours give. They are a static bm25s index and Chroma's approximate HNSW; ours are live and "
    "exact, so that every vector is looked at."
)


def tables(rows):
    asked = (*ARMS, "search", "indexes")
    arms, peers, upkeep = [], [], []
    for row in rows:
        ours, against, size = row.ours, row.against, f"{row.size:,}"
        times = [f"{ours[name] * 1e3:.2f}" for name in asked]
        together = sum(ours[arm] for arm in ARMS)
        arms.append((size, *times, f"{ours['search'] / together:.2f}", f"{ours['search'] / ours['indexes']:.2f}"))
        named = (*NAMES, DEEP)
        times = [f"{against[name] * 1e3:.2f}" for name in named]
        peers.append((size, *times, *(f"{against[name] / against['search']:.1f}×" for name in named[1:])))
        ratio = f"{row.opened / row.whole:.3f}"
        times = (f"{row.size / row.added:,.0f}/s", f"{row.whole:.2f} s", f"{row.opened:.3f} s", ratio)
        upkeep.append((size, *times, f"{row.mb:.0f} MB", f"{row.used:.0f} MB"))
    asked_of = ("Ensemble", "QueryFusion", f"QueryFusion {DEPTH} deep")
    rivals = ("memories", "search ms", *(f"{name} ms" for name in asked_of), *(f"than {name}" for name in asked_of))
    return [
        "## A search and its arms",
        table(["memories", *(f"{name} ms" for name in asked), "search / its arms", "search / indexes"], arms),
        ABOUT_ARMS,
        "## Against the rivals",
        "![milliseconds a query](memory.png)",
        table(rivals, peers),
        ABOUT_RIVALS,
        twentieth(rows),
        "## Adding and opening",
        table(["memories", "added", "added and indexed", "opened cold", "open / index", "file", "memory"], upkeep),
        "Opened cold: a new process, from the path to the first answer, imports aside.",
    ]


def twentieth(rows):
    """Why a search cannot be 20 times as fast as QueryFusionRetriever in the largest memory."""
    few, many = rows[0], rows[-1]
    return (
        f"A twentieth of QueryFusionRetriever's time at {many.size:,} would be "
        f"{many.against[NAMES[2]] / 20 * 1e3:.2f} ms. Looking once at so many vectors, one byte a number, takes "
        f"{many.reading:.2f} ms of one core by itself, and a search among {few.size:,} memories "
        f"{few.ours['search'] * 1e3:.2f} ms."
    )


def plot(rows):
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(rows), figsize=(9, 2.3), sharey=True)
    names = ("HybridMemory.search", *NAMES[1:])
    for axes, row in zip(np.atleast_1d(panels), rows, strict=True):
        times = [row.against[name] * 1e3 for name in NAMES]
        bars = axes.barh(names, times, 0.7, color=("#0072b2", "#b6c0cc", "#b6c0cc"))
        axes.bar_label(bars, fmt="%.1f ms", fontsize=9, padding=3)
        axes.set_title(f"{row.size:,} memories", fontsize=10, fontweight="bold")
        axes.set(xlim=(0, 1.35 * max(times)), xticks=[])
        axes.spines[:].set_visible(False)
        axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()  # shared by all panels
    figure.tight_layout()
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / "memory.png", dpi=150)


def main():
    if sys.argv[1:2] == ["--open"]:
        opening(*sys.argv[2:])
        return
    args = arguments(__doc__, sizes=(100, 10_000, 100_000))
    rows = [measure(size, args.seed) for size in args.sizes]
    parts = tables(rows)
    print("\n\n".join(parts))
    if args.write:
        plot(rows)
        write("memory", "A memory, end to end", parts)


if __name__ == "__main__":
    main()
