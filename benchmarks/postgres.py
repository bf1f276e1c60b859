"""PostgreSQL, one server, one set of memories: hybridmem beside the hybrid searches of LangChain and LlamaIndex.

Natural questions with known answers (LoCoMo) among 100,000 memories: the real turns, and distractors made of halves of
real turns. Wall time, since the work is done in the server; rivals alternate question by question; medians.

    python benchmarks/postgres.py --data DIR [--size 100000] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from hybridmem.embed import as_embedder
from hybridmem.memory import HybridMemory
from hybridmem.stores.postgres import PostgresStore
from hybridmem.types import Memory
from tests import pgserver

OUT = Path(__file__).parents[1] / "docs" / "benchmarks"
DIM, K, SPACES = 384, 10, 100


def load(folder: Path, size: int, seed: int):
    """Memories (id, text, thread, vector) with distractors up to `size`, and questions (text, gold ids, vector)."""
    rng = random.Random(seed)
    rows, questions = [], []
    for place in sorted((folder / "locomo").iterdir()):
        vectors = np.load(place / "minilm.npz", allow_pickle=False)
        corpus = [json.loads(line) for line in (place / "corpus.jsonl").read_text().splitlines()]
        rows += [(c["id"], c["text"], c["source_id"], v) for c, v in zip(corpus, vectors["V"], strict=True)]
        gold: dict[str, set[str]] = {}
        for line in (place / "qrels.tsv").read_text().splitlines()[1:]:
            query, doc, _ = line.split("\t")
            gold.setdefault(query, set()).add(doc)
        asked = [json.loads(line) for line in (place / "queries.jsonl").read_text().splitlines()]
        for q, v in zip(asked, vectors["Q"], strict=True):
            if q["id"] in gold:
                questions.append((q["text"], gold[q["id"]], v))
    real = list(rows)
    noise = np.random.default_rng(seed)
    while len(rows) < size:
        a, b = rng.choice(real), rng.choice(real)
        one, two = a[1].split(), b[1].split()
        text = " ".join(one[: len(one) // 2 + 1] + two[len(two) // 2 :])
        vector = a[3] + b[3] + 0.03 * noise.standard_normal(DIM, dtype=np.float32)
        rows.append((f"d{len(rows)}", text, f"t{len(rows) // 20}", vector / np.linalg.norm(vector)))
    return rows[:size], questions


def fill_ours(url: str, schema: str, rows, space_of: Callable[[int], str]) -> PostgresStore:
    store = PostgresStore(url, schema=schema, statement_timeout=600)
    by_space: dict[str, list] = {}
    for place, row in enumerate(rows):
        by_space.setdefault(space_of(place), []).append(row)
    for name, part in by_space.items():
        for start in range(0, len(part), 5000):
            chunk = part[start : start + 5000]
            memories = [Memory(text, id=id_, thread=thread) for id_, text, thread, _ in chunk]
            store.put(memories, namespace=name, vectors=[row[3] for row in chunk])
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"VACUUM ANALYZE {schema}.postings, {schema}.memories, {schema}.embeddings, {schema}.documents")
    return store


def langchain(url: str, rows, lookup, space_of):
    from langchain_core.embeddings import Embeddings
    from langchain_postgres import PGEngine, PGVectorStore
    from langchain_postgres.v2.hybrid_search_config import HybridSearchConfig, reciprocal_rank_fusion

    class Known(Embeddings):
        def embed_documents(self, texts):
            return [lookup[text].tolist() for text in texts]

        def embed_query(self, text):
            return lookup[text].tolist()

    config = HybridSearchConfig(
        tsv_column="content_tsv", primary_top_k=K, secondary_top_k=K, fusion_function=reciprocal_rank_fusion
    )
    engine = PGEngine.from_connection_string(url.replace("postgresql://", "postgresql+asyncpg://"))
    engine.init_vectorstore_table("lc", DIM, hybrid_search_config=config)
    with psycopg.connect(url) as conn:
        conn.execute("ALTER TABLE lc ALTER content_tsv DROP NOT NULL")
        with conn.cursor().copy("COPY lc (langchain_id, content, embedding, langchain_metadata) FROM STDIN") as copy:
            for place, (id_, text, _, vector) in enumerate(rows):
                meta = json.dumps({"id": id_, "space": space_of(place)})
                copy.write_row((uuid.uuid4(), text, str(vector.tolist()), meta))
        conn.execute("UPDATE lc SET content_tsv = to_tsvector('pg_catalog.english', content)")
        conn.execute("CREATE INDEX lc_tsv ON lc USING gin (content_tsv)")
        conn.commit()
        conn.autocommit = True
        conn.execute("VACUUM ANALYZE lc")
    store = PGVectorStore.create_sync(engine, Known(), "lc", hybrid_search_config=config, k=K)

    def ask(text: str, space: str | None):
        # a fresh config for each question: the store keeps the first question's words for everyone otherwise
        own = HybridSearchConfig(
            tsv_column="content_tsv", fts_query=text, primary_top_k=K, secondary_top_k=K,
            fusion_function=reciprocal_rank_fusion,
        )  # fmt: skip
        filter_ = None if space is None else {"space": space}
        found = store.similarity_search(text, k=K, filter=filter_, hybrid_search_config=own)
        return [document.metadata["id"] for document in found]

    return ask


def llamaindex(url: str, rows, lookup, space_of):
    from llama_index.core.vector_stores.types import (
        MetadataFilter,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
    )  # fmt: skip
    from llama_index.vector_stores.postgres import PGVectorStore

    store = PGVectorStore.from_params(
        connection_string=url.replace("postgresql://", "postgresql+psycopg2://"),
        async_connection_string=url.replace("postgresql://", "postgresql+asyncpg://"),
        table_name="li", hybrid_search=True, embed_dim=DIM,
    )  # fmt: skip
    store._initialize()  # noqa: SLF001 - the table is made by its own code, the rows are copied in
    with psycopg.connect(url) as conn:
        with conn.cursor().copy("COPY data_li (text, metadata_, node_id, embedding) FROM STDIN") as copy:
            for place, (id_, text, _, vector) in enumerate(rows):
                meta = {"space": space_of(place), "_node_type": "TextNode"}
                meta["_node_content"] = json.dumps({"id_": id_, "text": text, "class_name": "TextNode"})
                copy.write_row((text, json.dumps(meta), id_, str(vector.tolist())))
        conn.commit()
        conn.autocommit = True
        conn.execute("VACUUM ANALYZE data_li")

    def ask(text: str, space: str | None):
        filters = None if space is None else MetadataFilters(filters=[MetadataFilter(key="space", value=space)])
        query = VectorStoreQuery(
            query_embedding=lookup[text].tolist(), query_str=text, mode=VectorStoreQueryMode.HYBRID,
            similarity_top_k=K // 2, sparse_top_k=K // 2, filters=filters,
        )  # fmt: skip
        return store.query(query).ids[:K]

    return ask


def measure(rivals, questions, space_for) -> dict[str, tuple[float, float]]:
    """Median milliseconds and recall@10 of each rival."""
    times = {name: [] for name in rivals}
    recall = {name: [] for name in rivals}
    names = list(rivals)
    for name in names:
        for text, gold, _ in questions[:3]:
            rivals[name](text, space_for(gold))
    for turn, (text, gold, _) in enumerate(questions):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            found = rivals[name](text, space_for(gold))
            times[name].append(time.perf_counter() - start)
            if name not in ("bm25 arm", "vector arm", "graph arm"):
                recall[name].append(len(gold & set(found[:K])) / len(gold))
            else:
                recall[name].append(len(gold & set(found[:K])) / len(gold))
    return {name: (1000 * statistics.median(times[name]), statistics.fmean(recall[name])) for name in names}


def ours(memory: HybridMemory) -> dict[str, Callable]:
    def whole(text, space):
        return [r.id for r in memory.search(text, k=K, namespace=space or "")]

    def arm(name):
        def ask(text, space):
            view = memory.namespace(space or "")
            return [r.id for r in view.search_arm(name, text, k=K)]

        return ask

    return {"hybridmem": whole, "bm25 arm": arm("bm25"), "vector arm": arm("vector"), "graph arm": arm("graph")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("HYBRIDMEM_DATA", "/work/shared/data")))
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows, questions = load(given.data, given.size, given.seed)
    lookup = {text: vector for text, _, vector in questions}
    place = {row[0]: n for n, row in enumerate(rows)}
    rng = random.Random(given.seed)
    questions = [q for q in questions if len({place[g] % SPACES for g in q[1]}) == 1]
    questions = rng.sample(questions, min(given.questions, len(questions)))

    def spaced(n: int) -> str:
        return f"n{n % SPACES}"

    embedder = as_embedder(lambda texts: [lookup[t] for t in texts], name="minilm", dim=DIM)
    settings = {"shared_buffers": "1GB", "work_mem": "64MB", "maintenance_work_mem": "512MB", "max_wal_size": "4GB"}
    tables = {}
    with pgserver.server(**pgserver.FAST, **settings) as server:
        url = server.database()
        start = time.perf_counter()
        one = fill_ours(url, "one", rows, lambda _: "")
        took = time.perf_counter() - start
        print(f"loaded {len(rows)} memories in one namespace in {took:.1f} s", flush=True)
        fill_ours(url, "many", rows, spaced).close()
        print("loaded 100 namespaces", flush=True)
        rivals = {
            "LangChain": langchain(url, rows, lookup, spaced),
            "LlamaIndex": llamaindex(url, rows, lookup, spaced),
        }
        print("loaded the rivals", flush=True)
        with HybridMemory(PostgresStore(url, schema="one"), embedder=embedder) as memory:
            tables["one namespace, no vector index"] = measure({**ours(memory), **rivals}, questions, lambda _: None)
        show(tables)
        with HybridMemory(PostgresStore(url, schema="many"), embedder=embedder) as memory:
            tables["100 namespaces, no vector index"] = measure(
                {**ours(memory), **rivals}, questions, lambda gold: spaced(place[next(iter(gold))])
            )
        show(tables)
        start = time.perf_counter()
        one.build_vector_index(DIM, memory="512MB")
        print(f"built our HNSW index in {time.perf_counter() - start:.1f} s", flush=True)
        with psycopg.connect(url, autocommit=True) as conn:
            for table in ("lc", "data_li"):
                conn.execute("SET maintenance_work_mem = '512MB'")
                conn.execute(f"CREATE INDEX ON {table} USING hnsw (embedding vector_cosine_ops)")
        with HybridMemory(PostgresStore(url, schema="one"), embedder=embedder) as memory:
            tables["one namespace, HNSW for all"] = measure({**ours(memory), **rivals}, questions, lambda _: None)
        one.close()
    show(tables)
    if given.write:
        write(tables, len(rows), len(questions), took)
    asyncio.set_event_loop_policy(None)


def show(tables) -> None:
    for title, table in tables.items():
        print(f"\n{title}")
        for name, (milliseconds, recall) in table.items():
            print(f"  {name:12} {milliseconds:8.1f} ms   recall@{K} {recall:.3f}")
    sys.stdout.flush()


def write(tables, size: int, asked: int, took: float) -> None:
    """The table and the plot."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    OUT.mkdir(parents=True, exist_ok=True)
    lines = [
        "# PostgreSQL: hybridmem, LangChain and LlamaIndex on one server",
        "",
        f"{size:,} memories, {asked} natural questions (LoCoMo) with known answers, k = {K}, {DIM} dimensions,",
        "PostgreSQL 18 with pgvector on 2 shared cores. Medians of wall time, rivals alternating. hybridmem's time is",
        f"the whole search: both arms, completion, spreading and fetching. Loading took hybridmem {took:.0f} s.",
        "",
    ]
    for title, table in tables.items():
        lines += [f"## {title}", "", "| | median | recall@10 | times hybridmem |", "|---|---|---|---|"]
        base = table["hybridmem"][0]
        lines += [f"| {n} | {ms:.1f} ms | {r:.3f} | {ms / base:.2f} × |" for n, (ms, r) in table.items()]
        lines.append("")
    (OUT / "postgres.md").write_text("\n".join(lines))
    figure, axes = plt.subplots(1, len(tables), figsize=(5 * len(tables), 4), sharey=True)
    for axis, (title, table) in zip(np.atleast_1d(axes), tables.items(), strict=True):
        for name, (milliseconds, recall) in table.items():
            axis.scatter(milliseconds, recall, label=name)
            axis.annotate(name, (milliseconds, recall), fontsize=8, xytext=(3, 3), textcoords="offset points")
        axis.set_xscale("log")
        axis.set_xlabel("median ms")
        axis.set_title(title, fontsize=9)
    np.atleast_1d(axes)[0].set_ylabel("recall@10")
    figure.tight_layout()
    figure.savefig(OUT / "postgres.png", dpi=120)


if __name__ == "__main__":
    main()
