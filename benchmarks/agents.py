"""HybridStore beside LangGraph's InMemoryStore and PostgresStore: quality on LoCoMo, time of put and search."""

import math
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore

from benchmarks.common import OUT, arguments, machine, table, zipf_texts
from benchmarks.quality.sets import load_part
from hybridmem import HybridMemory
from langchain_hybridmem import HybridStore
from tests.support import postgres_server

DATA = Path(__file__).parents[2] / "shared" / "data"
DIM = 384
ITEMS, SPACES = 10_000, 100
BATCH = 100
CALLS, ROUNDS = 8, 5


def hashed(texts):
    """Vectors of texts by their words, so that equal words are near; no model takes part in the timing."""
    return [_vector(text) for text in texts]


def _vector(text):
    vector = np.zeros(DIM, np.float32)
    for word in text.split():
        vector[hash(word) % DIM] += 1
    return (vector / max(float(np.linalg.norm(vector)), 1e-9)).tolist()


def timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def median(call, inputs):
    call(inputs[0])
    return statistics.median(timed(lambda item=item: call(item)) for item in inputs)


# --- quality


def quality():
    parts = [load_part(folder, threads=False) for folder in sorted((DATA / "locomo").iterdir()) if folder.is_dir()]
    known = {}
    for part in parts:
        known |= dict(zip((memory.text for memory in part.memories), part.documents.tolist(), strict=True))
        known |= {text: vector.tolist() for text, vector in part.questions.items()}
        bare = np.load(DATA / "locomo" / part.name / "names_out.npz")
        known |= dict(zip(bare["texts"].tolist(), bare["Q"].tolist(), strict=True))
    questions = sorted({text for part in parts for text in part.questions}, key=len)

    def embed(texts):
        return [known[text if text in known else _longer(text, questions)] for text in texts]

    theirs = InMemoryStore(index={"dims": DIM, "embed": embed, "fields": ["text"]})
    with HybridMemory(embedder=embed) as memory:
        ours = HybridStore(memory, fields=["text"])
        for part in parts:
            puts = [PutOp(("locomo", part.name), one.id, {"text": one.text}) for one in part.memories]
            ours.batch(puts)
            for put in puts:  # InMemoryStore loses vectors of equal texts in one batch
                theirs.batch([put])
        rows = []
        for name, prefix in (("one conversation", None), ("all six conversations", ("locomo",))):
            scores = [_recall(store, parts, prefix) for store in (theirs, ours)]
            rows.append([name, *[f"{score:.3f}" for score in scores]])
    return table(["search over", "InMemoryStore", "HybridStore"], rows)


def _longer(text, questions):
    """The question that has every word of a text in order: the text is the question without names of speakers."""
    for question in questions:
        words = iter(question.split())
        if all(word in words for word in text.split()):
            return question
    raise KeyError(text)


def _recall(store, parts, prefix):
    found = []
    for part in parts:
        for case in part.cases:
            wanted = {(("locomo", part.name), id_) for id_ in case.relevant}
            if wanted:
                items = store.search(prefix or ("locomo", part.name), query=case.query, limit=10)
                found.append(len(wanted & {(item.namespace, item.key) for item in items}) / len(wanted))
    return statistics.mean(found)


# --- time


def items():
    texts = zipf_texts(ITEMS)
    return [(("users", f"u{n * SPACES // ITEMS}"), f"k{n}", {"text": text}) for n, text in enumerate(texts)], texts


def measured(stores):
    """Of each store the medians of put, search in one namespace, in all and list: the best of some rounds.

    The stores take turns, so that a busy moment of the machine does not fall on one of them alone.
    """
    _, texts = items()
    questions = [" ".join(text.split()[:4]) for text in texts[: CALLS * ROUNDS]]
    fresh = zipf_texts(CALLS * ROUNDS, seed=8)
    best = [[math.inf] * 4 for _ in stores]
    for start in range(0, CALLS * ROUNDS, CALLS):
        asked, new = questions[start : start + CALLS], fresh[start : start + CALLS]
        for place, store in enumerate(stores):
            calls = (
                (lambda text, to=store: to.put(("users", "u1"), f"new{hash(text)}", {"text": text}), new),
                (lambda text, of=store: of.search(("users", "u1"), query=text), asked),
                (lambda text, of=store: of.search(("users",), query=text), asked),
                (lambda _, of=store: of.search(("users", "u1"), limit=10), asked),
            )
            best[place] = [min(known, median(*call)) for known, call in zip(best[place], calls, strict=True)]
    return best


def batched(store):
    rows, _ = items()
    began = time.perf_counter()
    for start in range(0, ITEMS, BATCH):
        store.batch([PutOp(*row) for row in rows[start : start + BATCH]])
    return (time.perf_counter() - began) / ITEMS


def speed():
    index = {"dims": DIM, "embed": hashed, "fields": ["text"]}
    with tempfile.TemporaryDirectory() as folder, postgres_server.server() as server, ExitStack() as opened:
        theirs = opened.enter_context(PostgresStore.from_conn_string(server.database(), index=index))
        theirs.setup()
        file = opened.enter_context(HybridMemory(Path(folder) / "m.db", embedder=hashed))
        served = opened.enter_context(HybridMemory(server.database(), embedder=hashed))
        stores = {
            "InMemoryStore": InMemoryStore(index=index),
            "HybridStore, SQLite": HybridStore(file, fields=["text"]),
            "PostgresStore": theirs,
            "HybridStore, PostgreSQL": HybridStore(served, fields=["text"]),
        }
        each = [batched(store) for store in stores.values()]
        taken = measured(list(stores.values()))
    rows = [
        [name, *[f"{seconds * 1e3:.2f}" for seconds in (put, *row)]]
        for name, put, row in zip(stores, each, taken, strict=True)
    ]
    header = ["ms", "put, per item of 100", "put, one", "search one namespace", "search 100", "list 10"]
    return table(header, rows)


def prefix():
    """A search over 1,000 namespaces of ten items each, against one namespace of ten."""
    with HybridMemory(embedder=hashed) as memory:
        store = HybridStore(memory, fields=["text"])
        texts = zipf_texts(10_000)
        for n in range(1_000):
            rows = [PutOp(("users", f"u{n}"), f"k{i}", {"text": texts[10 * n + i]}) for i in range(10)]
            store.batch(rows)
        questions = [" ".join(text.split()[:4]) for text in texts[:60]]
        first = timed(lambda: store.search(("users",), query="first search"))

        def write_and_search(text):
            store.put(("users", "u7"), "again", {"text": text})
            store.search(("users",), query=text)

        calls = (
            lambda text: store.search(("users", "u1"), query=text),
            lambda text: store.search(("users",), query=text),
            write_and_search,
        )
        rounds = [[median(call, questions[start::ROUNDS]) for call in calls] for start in range(ROUNDS)]
        one, every, fresh = map(min, zip(*rounds, strict=True))
    rows = [
        ["one namespace of 10 items", f"{one * 1e3:.2f}", ""],
        ["1,000 namespaces of 10 items", f"{every * 1e3:.2f}", f"{every / one:.1f} ×"],
        ["the same with a put before each search", f"{fresh * 1e3:.2f}", f"{fresh / one:.1f} ×"],
        ["the first such search, which builds the index", f"{first * 1e3:.0f}", ""],
    ]
    return table(["search", "ms", "against one"], rows)


def main():
    asked = arguments(__doc__)
    made = {
        "## Recall@10 on LoCoMo\n\nSix conversations put as items, embedded by the same MiniLM model. Three of them "
        "were used to choose the weights of the default recipe. HybridStore leaves the names of speakers out of a "
        "question before it is embedded.": quality,
        f"## Time\n\n{ITEMS:,} items in {SPACES} namespaces; wall clock. The stores take turns, and each figure is the "
        f"best of {ROUNDS} medians of {CALLS} calls. Vectors of {DIM} numbers by hashing, so that no model takes part. "
        f"A batch holds {BATCH} items of one namespace. Both databases write every put to disk.": speed,
        f"## Search over a prefix\n\nWall clock, the best of {ROUNDS} medians of 12 calls.": prefix,
    }
    parts = []
    for title, measure in made.items():
        parts.append(f"{title}\n\n{measure()}")
        print(parts[-1], flush=True)
    if asked.write:
        page = ["# HybridStore beside LangGraph's stores", *parts, f"Measured on {machine()}."]
        (OUT / "agents.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
