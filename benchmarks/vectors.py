"""Exact vector search against the bare numpy product and Chroma: time, recall, and what one more vector costs.

Two kinds of vectors: real ones (all-MiniLM-L6-v2 embeddings of the evaluation sets, with noise to make more of them;
without the data, vectors with a spectrum like theirs) and random ones, which nothing can compress.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.common import OUT, alternate, arguments, np, table, write
from hybridmem.core.protocols import Change
from hybridmem.core.types import Memory
from hybridmem.indexes.vector import matrix
from hybridmem.indexes.vector.index import VectorIndex

DIM = 384
DATA = Path(__file__).parents[2] / "shared" / "data"
QUESTIONS = 25


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def real(count, rng):
    files = sorted(DATA.glob("**/minilm.npz"))
    if files:
        loaded = [np.load(file) for file in files]
        rows = np.concatenate([one["V"] for one in loaded])
        questions = np.concatenate([one["Q"] for one in loaded])
    else:
        spectrum = np.arange(1, DIM + 1) ** -0.45
        rows, questions = (unit(rng.standard_normal((many, DIM)) * spectrum) for many in (10_000, 500))
    rng.shuffle(rows)
    rng.shuffle(questions)
    more = [rows]
    while sum(map(len, more)) < count:
        more.append(unit(rows + 0.5 * rng.standard_normal(rows.shape) / DIM**0.5))
    return np.concatenate(more)[:count], questions[:QUESTIONS]


def random(count, rng):
    return unit(rng.standard_normal((count, DIM))), unit(rng.standard_normal((QUESTIONS, DIM)))


def bare(rows, k):
    def search(question):
        scores = rows @ question
        best = np.argpartition(scores, -k)[-k:]
        return best[np.argsort(-scores[best])]

    return search


def filled(rows):
    index = VectorIndex()
    note = Memory("")
    index.apply(Change(number + 1, str(number), note, row) for number, row in enumerate(rows))
    for row in rows[:12]:  # a sketch of a large matrix is made after a few searches
        index.search(row, k=10)
    return index


def filled_by_numpy_alone(rows):
    kernel, matrix.kernel = matrix.kernel, lambda: None
    try:
        return filled(rows)
    finally:
        matrix.kernel = kernel


def recall(found, rows, questions, k):
    shares = []
    for question in questions:
        best = {str(number) for number in bare(rows, k)(question)}
        shares.append(len(best & set(found(question))) / k)
    return statistics.mean(shares)


def measure(kind, rows, questions, k):
    ours, alone = filled(rows), filled_by_numpy_alone(rows)
    rivals = {
        "numpy": bare(rows, k),
        "hybridmem": lambda question: ours.search(question, k=k),
        "hybridmem, numpy alone": lambda question: alone.search(question, k=k),
    }
    times = alternate(rivals, list(questions), rounds=5)
    right = recall(lambda question: ours.search(question, k=k).ids, rows, questions, k)
    base = times["numpy"]
    cells = [f"{len(rows):,}", kind, k, f"{base * 1e3:.2f}"]
    for name in ("hybridmem", "hybridmem, numpy alone"):
        cells.append(f"{times[name] * 1e3:.2f} ({times[name] / base:.2f}×)")
    print(*cells, f"recall {right:.3f}")
    return [*cells, f"{right:.3f}"], times


def upkeep(rows):
    """Cost of writes: load, and one add."""
    start = time.process_time()
    index = filled(rows)
    load = time.process_time() - start
    fresh = rows[::-1][:200] * 1.0
    adds = []
    for number, row in enumerate(fresh):
        start = time.process_time()
        index.add(f"new {number}", row)
        adds.append(time.process_time() - start)
    add = statistics.median(adds)
    return [
        f"{len(rows):,}",
        f"{load:.2f} s",
        f"{add * 1e3:.3f} ms",
    ]


def chroma(rows, questions, k):
    """ChromaIndex (HNSW) on the same rows: approximate, and on disk."""
    from hybridmem.indexes.vector.chroma import ChromaIndex

    with tempfile.TemporaryDirectory() as folder:
        index = ChromaIndex(path=folder)
        start = time.process_time()
        index.apply(Change(n + 1, str(n), Memory(""), row) for n, row in enumerate(rows))
        load = time.process_time() - start
        taken = alternate({"chroma": lambda question: index.search(question, k=k)}, list(questions), rounds=3)["chroma"]
        right = recall(lambda question: index.search(question, k=k).ids, rows, questions, k)
        start = time.process_time()
        index.apply([Change(len(rows) + 1, "one more", Memory(""), rows[0])])
        add = time.process_time() - start
        index.close()
    return [f"{len(rows):,}", f"{load:.1f} s", f"{taken * 1e3:.2f} ms", f"{right:.3f}", f"{add * 1e3:.1f} ms"]


def plot(bars):
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4))
    names = list(next(iter(bars.values())))
    for at, name in enumerate(names):
        places = [i + (at - 1) * 0.27 for i in range(len(bars))]
        axes.bar(places, [times[name] * 1e3 for times in bars.values()], width=0.25, label=name)
    axes.set_xticks(range(len(bars)), list(bars))
    axes.set_ylabel("CPU ms per query")
    axes.set_title(f"10 nearest of n vectors of {DIM} dimensions")
    axes.legend()
    figure.tight_layout()
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / "vectors.png", dpi=120)


def main():
    args = arguments(__doc__, sizes=(10_000, 100_000))
    rng = np.random.default_rng(args.seed)
    searches, changes, bars = [], [], {}
    for size in args.sizes:
        for kind, make in (("real", real), ("random", random)):
            rows, questions = make(size, rng)
            for k in (10, 100):
                row, times = measure(kind, rows, questions, k)
                searches.append(row)
                if k == 10:
                    bars[f"{size:,}\n{kind}"] = times
        changes.append(upkeep(rows))
    small, questions = real(min(10_000, *args.sizes), rng)
    approximate = [chroma(small, questions, 10)]
    parts = [
        table(["vectors", "kind", "k", "numpy product, ms", "hybridmem, ms", "numpy alone, ms", "recall"], searches),
        "The rival is the bare product: `matrix @ query`, `argpartition`, sort. It knows no ids, no changes, no ties.",
        "![CPU time per query](vectors.png)",
        table(["vectors", "load and first searches", "one add"], changes),
        "The same rows in Chroma (HNSW, on disk), by `ChromaIndex`:",
        table(["vectors", "load", "query", "recall@10", "one add"], approximate),
    ]
    print("\n\n".join(parts))
    if args.write:
        write("vectors", "Vector search", parts)
        plot(bars)


if __name__ == "__main__":
    main()
