"""What the calls of a SQLite store cost: `python -m benchmarks.store [--sizes 100000] [--write]`.

Memories of about 200 characters with vectors of 384 dimensions; CPU time of the calling thread, medians.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.common import arguments, clustered, table, write, zipf_texts  # isort: skip  before numpy

from hybridmem import Memory
from hybridmem.core.protocols import View
from hybridmem.stores.sqlite.store import SQLiteStore

BATCH = 5_000
NOW = View()


def median(call, *, runs):
    """The median CPU seconds of a call."""
    taken = []
    for _ in range(runs):
        start = time.thread_time()
        call()
        taken.append(time.thread_time() - start)
    return statistics.median(taken)


def shown(seconds):
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def filled(path, size, seed):
    """A store with everything in it, and the seconds that one memory took."""
    texts, vectors = zipf_texts(size, words=40, seed=seed), clustered(size, seed=seed)
    memories = [Memory(text, id=f"m{n}", type="fact" if n % 2 else "note") for n, text in enumerate(texts)]
    store = SQLiteStore(path)
    start = time.thread_time()
    for at in range(0, size, BATCH):
        store.put(memories[at : at + BATCH], vectors=list(vectors[at : at + BATCH]))
    return store, (time.thread_time() - start) / size


def measure(size, seed):
    folder = Path(tempfile.mkdtemp(prefix="hybridmem-bench-"))
    path = folder / "memory.db"
    store, added = filled(path, size, seed)
    kilobytes = path.stat().st_size / size / 1e3
    some, newest = [f"m{n}" for n in range(0, 8 * 997, 997)], store.last_seq()
    numbers = iter(range(10**6))
    first = [median(lambda f=f: store.ids(view=NOW, filter=f), runs=1) for f in (None, {"type": "fact"})]
    rows = [
        ("open", median(lambda: SQLiteStore(path).close(), runs=5)),
        (f"`put` in batches of {BATCH:,}, with vectors, each", added),
        ("`put` of one memory", median(lambda: store.put([Memory("x", id=f"n{next(numbers)}")]), runs=50)),
        ("`last_seq` (before every search)", median(store.last_seq, runs=200)),
        ("`get` of 8 memories", median(lambda: store.get(some, view=NOW), runs=200)),
        ("`changes` when there are none", median(lambda: list(store.changes(newest + 50, view=NOW)), runs=50)),
        ("`ids` of all, the first time", first[0]),
        ("`ids` with a filter, the first time", first[1]),
        ("`ids` again", median(lambda: store.ids(view=NOW), runs=200)),
        ("`entries` of all", median(lambda: store.entries(view=NOW), runs=3)),
        ("`changes` from 0: every memory with its text", median(lambda: list(store.changes(0, view=NOW)), runs=2)),
    ]
    store.close()
    shutil.rmtree(folder, ignore_errors=True)
    return [*((name, shown(seconds)) for name, seconds in rows), ("file, for each memory", f"{kilobytes:.1f} kB")]


def main():
    args = arguments(__doc__, sizes=(100_000,))
    parts = []
    for size in args.sizes:
        parts += [f"## {size:,} memories", table(["what", "CPU time"], measure(size, args.seed))]
    print("\n\n".join(parts))
    if args.write:
        about = "Memories of about 200 characters with vectors of 384 dimensions, in one SQLite file."
        write("store", "What a store's calls cost", [about, *parts])


if __name__ == "__main__":
    main()
