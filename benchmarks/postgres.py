"""PostgreSQL, one server, one set of memories: hybridmem beside the hybrid searches of LangChain and LlamaIndex.

Natural questions with known answers (LoCoMo) among 100,000 memories: the real turns, and distractors made of halves of
real turns. In 100 namespaces each conversation has its own, filled up with distractors, as a real user's would be.
Wall time, since the work is done in the server; rivals alternate question by question; medians.

    python -m benchmarks.postgres [--data DIR] [--size 100000] [--questions 200] [--patience 300] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
import zlib
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psycopg

from benchmarks.postgres_page import Figures, Filtered, page, say, write
from benchmarks.postgres_rivals import DIM, K, add_hnsw, langchain, llamaindex
from hybridmem.core.protocols import ArmQuery, View
from hybridmem.core.types import Memory
from hybridmem.embedding.embedder import as_embedder
from hybridmem.indexes.view import IndexSettings
from hybridmem.memory.memory import HybridMemory
from hybridmem.stores.postgres.store import PostgresStore
from tests.support import postgres_server

SPACES = 100
QUIET = 1.5
SERVER = {"shared_buffers": "1GB", "work_mem": "64MB", "maintenance_work_mem": "512MB", "max_wal_size": "4GB"}


class Row(NamedTuple):
    id: str
    text: str
    thread: str
    created_at: datetime
    vector: np.ndarray
    space: str


class Asked(NamedTuple):
    text: str
    gold: set[str]
    vector: np.ndarray
    space: str


def load(folder: Path, size: int, seed: int) -> tuple[list[Row], list[Asked]]:
    """Memories with distractors up to `size`, in namespaces of equal size; questions with the ids of their answers."""
    rows: list[Row] = []
    questions: list[Asked] = []
    for number, place in enumerate(sorted((folder / "locomo").iterdir())):
        space, vectors = f"n{number}", np.load(place / "minilm.npz", allow_pickle=False)
        corpus = [json.loads(line) for line in (place / "corpus.jsonl").read_text().splitlines()]
        for c, vector in zip(corpus, vectors["V"], strict=True):
            at = datetime.fromisoformat(c["timestamp"]).replace(tzinfo=timezone.utc)
            rows.append(Row(c["id"], c["text"], c["source_id"], at, vector, space))
        gold: dict[str, set[str]] = {}
        for line in (place / "qrels.tsv").read_text().splitlines()[1:]:
            query, doc, _ = line.split("\t")
            gold.setdefault(query, set()).add(doc)
        asked = [json.loads(line) for line in (place / "queries.jsonl").read_text().splitlines()]
        for q, vector in zip(asked, vectors["Q"], strict=True):
            if q["id"] in gold:
                questions.append(Asked(q["text"], gold[q["id"]], vector, space))
    return rows + distractors(rows, size, seed), questions


def without_names(folder: Path) -> dict[str, np.ndarray]:
    """The vectors of the questions without the names of speakers, as the default recipe embeds them."""
    files = [np.load(place / "names_out.npz", allow_pickle=False) for place in sorted((folder / "locomo").iterdir())]
    return {text: vector for file in files for text, vector in zip(file["texts"].tolist(), file["Q"], strict=True)}


def distractors(real: list[Row], size: int, seed: int) -> list[Row]:
    """The first half of one real turn with the second half of another, in threads of 20, until all spaces are full."""
    rng, noise = random.Random(seed), np.random.default_rng(seed)
    held = {f"n{number}": 0 for number in range(SPACES)}
    for row in real:
        held[row.space] += 1
    made: list[Row] = []
    for space, count in held.items():
        for n in range(max(0, size // SPACES - count)):
            a, b = rng.choice(real), rng.choice(real)
            one, two = a.text.split(), b.text.split()
            text = " ".join(one[: len(one) // 2 + 1] + two[len(two) // 2 :])
            vector = a.vector + b.vector + 0.03 * noise.standard_normal(DIM, dtype=np.float32)
            thread = f"{space}/t{n // 20}"
            made.append(Row(f"d{len(made)}", text, thread, a.created_at, vector / np.linalg.norm(vector), space))
    return made


def kind(id_: str) -> str:
    """One in a hundred is rare, one in two common: for filters."""
    number = zlib.crc32(id_.encode()) % 100
    return "rare" if number == 0 else "common" if number <= 50 else ""


def memories(rows: list[Row]) -> list[Memory]:
    return [Memory(r.text, id=r.id, thread=r.thread, created_at=r.created_at, type=kind(r.id)) for r in rows]


def fill(url: str, schema: str, rows: list[Row], space_of: Callable[[Row], str]) -> float:
    """Load hybridmem's store; memories a second."""
    by_space: dict[str, list[Row]] = {}
    for row in rows:
        by_space.setdefault(space_of(row), []).append(row)
    with PostgresStore(url, schema=schema, statement_timeout=600) as store:
        start = time.perf_counter()
        for name, part in by_space.items():
            for at in range(0, len(part), 5000):
                chunk = part[at : at + 5000]
                store.put(memories(chunk), namespace=name, vectors=[row.vector for row in chunk])
        rate = len(rows) / (time.perf_counter() - start)
    with psycopg.connect(url, autocommit=True) as conn:
        tables = ("postings", "memories", "embeddings", "documents", "mentions", "pointers", "edges")
        conn.execute(f"VACUUM ANALYZE {', '.join(f'{schema}.{name}' for name in tables)}")
    return rate


def adding(url: str, schema: str, rows: list[Row]) -> dict[str, float]:
    """What a write costs: one by one (median ms), and 2,000 at once (memories a second); taken away again."""
    with PostgresStore(url, schema=schema, auto_index=False) as store:
        fresh = [row._replace(id=f"x{n}") for n, row in enumerate(rows[:2040])]
        taken = []
        for row in fresh[:40]:
            start = time.perf_counter()
            store.put(memories([row]), vectors=[row.vector])
            taken.append(time.perf_counter() - start)
        start = time.perf_counter()
        store.put(memories(fresh[40:]), vectors=[row.vector for row in fresh[40:]])
        rate = 2000 / (time.perf_counter() - start)
        store.erase([row.id for row in fresh])
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"VACUUM {schema}.postings, {schema}.embeddings")
    return {"one": 1000 * statistics.median(taken), "batch": rate}


def indexed(url: str, memory: HybridMemory, question: Asked) -> float:
    """Ask once, and wait for the index that this brings about; the seconds it took."""
    start = time.perf_counter()
    memory.search(question.text)
    with psycopg.connect(url, autocommit=True) as conn:
        query = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('one.embeddings_hnsw_384')"
        while conn.execute(query).fetchone() != (True,):
            if time.perf_counter() - start > 300:
                raise RuntimeError("the HNSW index was not built within 5 minutes")
            time.sleep(0.2)
    return time.perf_counter() - start


def agreement(near: HybridMemory, exact: HybridMemory, questions: list[Asked]) -> tuple[float, float]:
    """How much of the exact 10 and 100 nearest HNSW finds."""
    found = []
    spaces = [memory.store.search_view(View(), IndexSettings()) for memory in (near, exact)]
    for q in questions:
        ours, true = (space.search("vector", ArmQuery(q.text, q.vector), k=100).ids for space in spaces)
        found.append((len({*ours[:10]} & {*true[:10]}) / 10, len({*ours} & {*true}) / 100))
    return statistics.fmean(a for a, _ in found), statistics.fmean(b for _, b in found)


def filtered(near: HybridMemory, exact: HybridMemory, questions: list[Asked], type_: str) -> Filtered:
    """The vector arm among memories of one type: fewest hits of k = 10, agreement with exact, median ms of both."""
    spaces = [memory.store.search_view(View(), IndexSettings()) for memory in (near, exact)]
    chosen = near.store.lazy_ids(view=View(), filter={"type": type_})
    times: tuple[list[float], list[float]] = ([], [])
    counts, shared = [], []
    for q in questions:
        found = []
        for space, taken in zip(spaces, times, strict=True):
            start = time.perf_counter()
            found.append(space.search("vector", ArmQuery(q.text, q.vector, chosen), k=K).ids)
            taken.append(time.perf_counter() - start)
        counts.append(len(found[0]))
        shared.append(len({*found[0]} & {*found[1]}) / K)
    both = [1000 * statistics.median(taken) for taken in times]
    return Filtered(min(counts), statistics.fmean(shared), *both)


def ours(memory: HybridMemory, label: str = "") -> dict[str, Callable]:
    """The whole search and each arm; and the graph's own step, two hops from the 20 best of the words."""

    def whole(text, space):
        return [r.id for r in memory.search(text, k=K, namespace=space or "")]

    def arm(name):
        return lambda text, space: [r.id for r in memory.namespace(space or "").search_arm(name, text, k=K)]

    if label:
        return {f"hybridmem{label}": whole, f"vector arm{label}": arm("vector")}
    return {"hybridmem": whole, "bm25 arm": arm("bm25"), "vector arm": arm("vector"), "graph arm": arm("graph")}


def hops(memory: HybridMemory, questions: list[Asked], *, spaced: bool) -> float:
    """Median milliseconds of two hops from the 20 best hits of the words, fetched and spread."""
    taken = []
    for q in questions:
        space = memory.store.search_view(View(q.space if spaced else ""), IndexSettings())
        seeds = space.search("bm25", ArmQuery(q.text), k=20)
        start = time.perf_counter()
        space.graph().spread(dict(zip(*seeds, strict=True)))
        taken.append(time.perf_counter() - start)
    return 1000 * statistics.median(taken)


class Patience:
    """Waits before a measurement until the machine is quiet, but no longer than this in all."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def __call__(self) -> None:
        while os.getloadavg()[0] > QUIET and self.left > 0:
            time.sleep(5)
            self.left -= 5


def measure(rivals, questions: list[Asked], *, spaced: bool) -> dict[str, tuple[float, float]]:
    """Median milliseconds and recall@10 of each rival; each question goes to all of them, in changing order."""
    times = {name: [] for name in rivals}
    recall = {name: [] for name in rivals}
    names = list(rivals)
    for call in rivals.values():
        for q in questions[:6]:
            call(q.text, q.space if spaced else None)
    for turn, q in enumerate(questions):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            found = rivals[name](q.text, q.space if spaced else None)
            times[name].append(time.perf_counter() - start)
            recall[name].append(len(q.gold & set(found[:K])) / len(q.gold))
    return {name: (1000 * statistics.median(times[name]), statistics.fmean(recall[name])) for name in names}


def run(given: argparse.Namespace, figures: Figures) -> None:
    rows, questions = load(given.data, given.size, given.seed)
    questions = random.Random(given.seed).sample(questions, min(given.questions, len(questions)))
    figures.size, figures.asked = len(rows), len(questions)
    lookup = without_names(given.data) | {q.text: q.vector for q in questions}
    embedder = as_embedder(lambda texts: [lookup[text] for text in texts], name="minilm", dim=DIM)

    def opened(schema: str, **options) -> HybridMemory:
        return HybridMemory(PostgresStore(url, schema=schema, **options), embedder=embedder)

    quiet = Patience(given.patience)
    large = min(20_000, len(rows))  # the default, unless this is a trial run
    with postgres_server.server(**postgres_server.FAST, **SERVER) as server:
        url = server.database()
        figures.loaded = fill(url, "one", rows, lambda _: "")
        fill(url, "many", rows, lambda row: row.space)
        figures.adds["no index"] = adding(url, "one", rows)
        rivals = {"LangChain": langchain(url, rows, lookup), "LlamaIndex": llamaindex(url, rows, lookup)}
        say(f"loaded everything; ours at {figures.loaded:.0f} memories/s, adding {figures.adds}")
        with opened("one", exact_below=large) as one, opened("one", exact_below=10**9) as exact, opened("many") as many:
            figures.built = indexed(url, one, questions[0])
            say(f"HNSW built by itself in {figures.built:.1f} s")
            time.sleep(6)  # a space looks for an index every 5 s
            figures.agreement = agreement(one, exact, questions[:100])
            figures.adds["HNSW"] = adding(url, "one", rows)
            figures.filtered = {type_: filtered(one, exact, questions[:100], type_) for type_ in ("common", "rare")}
            say(f"HNSW with a filter: {figures.filtered}")
            say(f"HNSW agrees with exact in {figures.agreement}; adding {figures.adds}")
            quiet()
            step = measure({**ours(one), **ours(exact, ", exact"), **rivals}, questions, spaced=False)
            figures.note("one namespace, out of the box", step)
            quiet()
            figures.note("100 namespaces, out of the box", measure({**ours(many), **rivals}, questions, spaced=True))
            add_hnsw(url)
            quiet()
            figures.note("one namespace, HNSW for all", measure({**ours(one), **rivals}, questions, spaced=False))
            quiet()
            figures.note("100 namespaces, HNSW for all", measure({**ours(many), **rivals}, questions, spaced=True))
            figures.hops = {"one": hops(one, questions, spaced=False), "100": hops(many, questions, spaced=True)}
            say(f"two hops: {figures.hops}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait in all for a quiet machine")
    parser.add_argument("--write", action="store_true", help="write the page and the plot into docs/benchmarks")
    given = parser.parse_args()
    figures = Figures()
    run(given, figures)
    print(page(figures))
    if given.write:
        write(figures)


if __name__ == "__main__":
    main()
