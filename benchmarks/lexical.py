"""BM25 against rank-bm25, FTS5 and bm25s, on the same tokens: `python -m benchmarks.lexical [--sizes …] [--write]`.

Texts follow Zipf's law; questions have eight words, half of them from one text and half as common as words are, so the
most common ones are among them. A further run uses the real texts beside the project, where they are. Every rival
gets the same tokens and is asked the same questions in turn; what counts is the ratio of CPU times.
"""

from __future__ import annotations

import gc
import json
import sqlite3
import statistics
import sys
import time
from pathlib import Path

import bm25s
import numpy as np
from rank_bm25 import BM25Okapi

from benchmarks.common import OUT, alternate, arguments, table, write
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.text.analyzer import Analyzer

DATA = Path(__file__).parents[2] / "shared" / "data"
K = 10
SLOW = {10_000: 20, 100_000: 8, 1_000_000: 3}


def zipf(count, seed):
    """Token lists of lognormal length, mostly 10 to 30 words, and questions."""
    rng = np.random.default_rng(seed)
    words = max(20_000, count // 4)
    odds = np.cumsum(1 / np.arange(1, words + 1))
    odds /= odds[-1]

    def draw(size):
        return np.searchsorted(odds, rng.random(size))

    lengths = np.clip(rng.lognormal(2.9, 0.5, count).astype(int), 4, 200)
    ends = np.cumsum(lengths)
    flat = draw(int(ends[-1])).tolist()
    texts = [
        [f"t{n}" for n in flat[end - length : end]] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
    ]
    questions = []
    for _ in range(120):
        words_of = texts[int(rng.integers(count))]
        own = rng.choice(len(words_of), min(4, len(words_of)), replace=False)
        questions.append(list(dict.fromkeys([words_of[i] for i in own] + [f"t{n}" for n in draw(4)])))
    return texts, questions


def real(seed):
    """The sentences of the retrieval sets beside the project, and their questions; stop words kept in both."""
    analyzer = Analyzer(stopwords="none")
    texts, questions = [], []
    for path in sorted(DATA.rglob("corpus.jsonl")):
        for line in path.read_text().splitlines():
            texts += [piece for piece in json.loads(line)["text"].replace("! ", ". ").split(". ") if piece]
        questions += [json.loads(line)["text"] for line in (path.parent / "queries.jsonl").read_text().splitlines()]
    numbers: dict[str, int] = {}
    tokens = [[f"t{numbers.setdefault(term, len(numbers))}" for term in analyzer(text)] for text in texts]
    rng = np.random.default_rng(seed)
    asked = [questions[i] for i in rng.choice(len(questions), 120, replace=False)]
    return tokens, [list(dict.fromkeys(f"t{numbers[t]}" for t in analyzer(q) if t in numbers)) for q in asked]


def fts5(texts):
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='unicode61')")
    db.executemany(
        "INSERT INTO words(rowid, text) VALUES (?, ?)", ((n, " ".join(text)) for n, text in enumerate(texts))
    )
    ask = "SELECT rowid, bm25(words) FROM words WHERE words MATCH ? ORDER BY bm25(words) LIMIT ?"
    return lambda query: db.execute(ask, (" OR ".join(f'"{term}"' for term in query), K)).fetchall()


def rank_bm25(texts):
    engine = BM25Okapi(texts)
    names = range(len(texts))
    return lambda query: engine.get_top_n(query, names, n=K)


def bm25s_with(texts, backend):
    engine = bm25s.BM25(method="lucene", k1=1.2, b=0.75, backend=backend)
    begun = time.process_time()
    engine.index(texts, show_progress=False)
    took = time.process_time() - begun
    return lambda query: engine.retrieve([query], k=K, show_progress=False, n_threads=0), took


def bytes_of(index):
    """What an index holds: arrays, ids, the vocabulary, and where each id is."""
    state = index._state  # noqa: SLF001
    arrays = [state.lengths, state.stamps]
    for segment in state.segments:
        arrays += [getattr(segment, name) for name in ("terms", "starts", "rows", "codes", "most", "shortest")]
    strings = sum(map(sys.getsizeof, state.ids)) + sum(map(sys.getsizeof, state.vocabulary))
    tables = sys.getsizeof(state.ids) + sys.getsizeof(state.vocabulary) + sys.getsizeof(index._row_of)  # noqa: SLF001
    return sum(array.nbytes for array in arrays) + strings + tables


def timed(call):
    begun = time.process_time()
    value = call()
    return value, time.process_time() - begun


def ours(texts):
    """The index, and what making, keeping and reading it costs."""
    BM25Index(accelerate=True)  # numba's import is not part of loading an index
    joined = [(str(n), " ".join(text)) for n, text in enumerate(texts)]
    plain = BM25Index(str.split, accelerate=False)
    _, built = timed(lambda: plain.add_many(joined))
    memory = bytes_of(plain) / len(texts)
    blob, saved = timed(plain.to_bytes)
    quick, loaded = timed(lambda: BM25Index.from_bytes(blob, analyzer=str.split, accelerate=True))
    return (
        plain,
        quick,
        {"build": built, "save": saved, "load": loaded, "memory": memory, "file": len(blob) / len(texts)},
    )


def live(index, texts, questions):
    """Milliseconds from an add (a delete) to the end of the next query, beside the query alone."""
    alone, added, gone = [], [], []
    for n, query in enumerate(questions[:60]):
        alone.append(timed(lambda query=query: index.search(query, k=K))[1])
        write_ = timed(lambda n=n: index.add(f"new{n}", " ".join(texts[n])))[1]
        added.append((write_, write_ + timed(lambda query=query: index.search(query, k=K))[1]))
    for n, query in enumerate(questions[:60]):
        write_ = timed(lambda n=n: index.remove(str(n * 7)))[1]
        gone.append((write_, write_ + timed(lambda query=query: index.search(query, k=K))[1]))

    def middle(values):
        return statistics.median(values) * 1000

    return {
        "query": middle(alone),
        "add": middle([a for a, _ in added]),
        "add+query": middle([b for _, b in added]),
        "delete": middle([a for a, _ in gone]),
        "delete+query": middle([b for _, b in gone]),
    }


def check(index, rival, questions):
    """The same best scores as bm25s, whose lucene formula lacks the constant factor k1 + 1."""
    for query in questions[:20]:
        wanted = rival(query).scores[0] * 2.2
        found = index.search(query, k=K).scores
        assert np.allclose(found, wanted[: len(found)], rtol=1e-4), (query, found, wanted)


def measure(texts, questions, size):
    plain, quick, costs = ours(texts)
    compiled, bm25s_build = bm25s_with(texts, "numba")
    check(quick, compiled, questions)
    fast = {
        "hybridmem (numba)": lambda query: quick.search(query, k=K),
        "hybridmem (numpy)": lambda query: plain.search(query, k=K),
        "bm25s (numba)": compiled,
        "bm25s (numpy)": bm25s_with(texts, "numpy")[0],
    }
    for query in questions[:10]:
        for call in fast.values():
            call(query)
    times = alternate(fast, questions, rounds=3)
    few = questions[: SLOW[min((at for at in SLOW if at >= size), default=1_000_000)]]
    del fast
    times |= alternate({"FTS5": fts5(texts)}, few, rounds=1)
    times |= alternate({"rank-bm25": rank_bm25(texts)}, few, rounds=1)
    return times, costs | {"bm25s build": bm25s_build}, live(quick, texts, questions)


def report(name, times, costs, lively):
    base = times["hybridmem (numba)"]
    rows = [[who, f"{ms * 1000:.2f}", f"{ms / base:.1f} ×"] for who, ms in times.items()]
    text = [f"## {name}", table(["engine", "ms a query (CPU)", "against ours"], rows)]
    share = costs["load"] / costs["build"]
    text.append(
        f"Building {costs['build']:.2f} s (bm25s {costs['bm25s build']:.2f} s), saving {costs['save']:.3f} s, loading"
        f" {costs['load']:.3f} s ({share:.3f} of building); {costs['memory']:.0f} bytes of memory and"
        f" {costs['file']:.0f} of file a text."
    )
    text.append(
        f"An add takes {lively['add']:.2f} ms and is in the answer after {lively['add+query']:.2f} ms, the query"
        f" included; a delete {lively['delete']:.2f} and {lively['delete+query']:.2f} ms. The query alone:"
        f" {lively['query']:.2f} ms."
    )
    print("\n\n".join(text), flush=True)
    return text


def growth(results):
    """How time grows from the smallest to the largest run of made-up texts."""
    sizes = sorted(size for size in results if isinstance(size, int))
    small, large = results[sizes[0]][0], results[sizes[-1]][0]
    told = ", ".join(f"{who} {large[who] / small[who]:.0f} ×" for who in small)
    return f"## Growth\n\nFrom {sizes[0]:,} to {sizes[-1]:,} texts ({sizes[-1] // sizes[0]} ×), a query takes: {told}."


def plot(results):
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    sizes = sorted(size for size in results if isinstance(size, int))
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for who in results[sizes[0]][0]:
        axes.plot(sizes, [results[size][0][who] * 1000 for size in sizes], marker="o", label=who)
    axes.set(xscale="log", yscale="log", xlabel="texts", ylabel="ms a query (CPU, median)")
    axes.set_title("BM25, natural questions, the ten best")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(OUT / "lexical.png", dpi=130)


def main():
    chosen = arguments(__doc__, sizes=(10_000, 100_000, 1_000_000))
    results, parts = {}, []
    for size in chosen.sizes:
        texts, questions = zipf(size, chosen.seed)
        results[size] = measure(texts, questions, size)
        parts += report(f"{size:,} texts", *results[size])
        del texts
        gc.collect()
    if DATA.exists():
        texts, questions = real(chosen.seed)
        results["real"] = measure(texts, questions, len(texts))
        parts += report(f"{len(texts):,} real sentences", *results["real"])
    parts.append(growth(results))
    print(parts[-1])
    if chosen.write:
        OUT.mkdir(parents=True, exist_ok=True)
        plot(results)
        write(
            "lexical",
            "BM25: time, memory and liveness",
            [__doc__.split("\n\n", 1)[1].strip(), "![growth](lexical.png)", *parts],
        )


if __name__ == "__main__":
    main()
