"""hybridmem against the embedded engines that a developer would pick instead, over the same texts and vectors.

Each engine runs in a process of its own. Questions alternate between the engines of a run, one by one. Every engine
fuses words and vectors: hybridmem by its default recipe, the others by reciprocal rank fusion (c = 60) of their best 50
of each. The question's embedding is given to all of them, so that only the engines are measured. Seconds are wall-clock
time.

    python -m benchmarks.engines --sizes 10000 100000 --write      (dependency group `engines`)

A run may be divided: `--only` names engines, and `--figures` collects what several runs have measured. `--sizes` alone
measures nothing, so that `--write` writes the page of these figures.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("LANCE_LOG", "error")

from benchmarks.common import OUT, clustered, table, write, zipf_texts  # isort: skip  before numpy

import numpy as np

K, DEPTH, DIM, QUESTIONS, ADDS = 10, 50, 384, 300, 7
METRICS = {
    "build": "load + index, s",
    "disk": "disk, MiB",
    "first": "open → first answer after the load, ms",
    "later": "open → first answer, later, ms",
    "median": "median search, ms",
    "p95": "p95 search, ms",
    "warm": "RSS when warm, MB",
    "added": "first add + search in a reopened process, ms",
    "after": "median search after 7 adds and a reopen, ms",
    "recall": "recall@10",
}


class Engine(Protocol):
    """An embedded store of texts and vectors."""

    modules: tuple[str, ...]
    """Imported before anything is timed."""

    def build(self, ids: Sequence[str], texts: Sequence[str], vectors: np.ndarray) -> None: ...
    def open(self) -> None: ...
    def search(self, text: str, vector: np.ndarray) -> list[str]: ...
    def add(self, id_: str, text: str, vector: np.ndarray) -> None: ...
    def close(self) -> None: ...


def rrf(*lists: Iterable[str]) -> list[str]:
    scores: dict[str, float] = {}
    for ids in lists:
        for rank, id_ in enumerate(ids, 1):
            scores[id_] = scores.get(id_, 0.0) + 1 / (60 + rank)
    return sorted(scores, key=lambda id_: -scores[id_])[:K]


class HybridMem:
    modules = ("hybridmem.memory.memory", "hybridmem.stores.sqlite.store", "hybridmem.indexes.view")

    def __init__(self, folder: Path) -> None:
        self.path = folder / "memory.db"
        self.vectors: dict[str, np.ndarray] = {}

    def open(self) -> None:
        from hybridmem import HybridMemory
        from hybridmem.embedding.embedder import as_embedder

        embedder = as_embedder(lambda texts: [self.vectors[text] for text in texts], name="lookup", cache_size=0)
        self.memory = HybridMemory(self.path, embedder=embedder)

    def build(self, ids: Sequence[str], texts: Sequence[str], vectors: np.ndarray) -> None:
        from hybridmem import Memory

        self.vectors = dict(zip(texts, vectors, strict=True))
        self.open()
        self.memory.add_many([Memory(text, id=id_) for id_, text in zip(ids, texts, strict=True)])

    def search(self, text: str, vector: np.ndarray) -> list[str]:
        self.vectors[text] = vector
        return [result.id for result in self.memory.search(text, k=K)]

    def add(self, id_: str, text: str, vector: np.ndarray) -> None:
        self.vectors[text] = vector
        self.memory.add(text, id=id_)

    def close(self) -> None:
        self.memory.close()


class Fts5SqliteVec:
    modules = ("apsw", "sqlite_vec")

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"

    def open(self) -> None:
        import apsw  # many builds of Python's own sqlite3 load no extensions
        import sqlite_vec

        self.db = apsw.Connection(str(self.path))
        self.db.enable_load_extension(True)
        self.db.load_extension(sqlite_vec.loadable_path())
        self.db.execute("PRAGMA journal_mode = WAL")

    def build(self, ids: Sequence[str], texts: Sequence[str], vectors: np.ndarray) -> None:
        self.open()
        self.db.execute("CREATE VIRTUAL TABLE words USING fts5(text, id UNINDEXED, tokenize='porter unicode61')")
        self.db.execute(f"CREATE VIRTUAL TABLE vecs USING vec0(v float[{DIM}] distance_metric=cosine, +id TEXT)")
        with self.db:
            self.db.executemany("INSERT INTO words (text, id) VALUES (?, ?)", zip(texts, ids, strict=True))
            rows = zip((vector.tobytes() for vector in vectors), ids, strict=True)
            self.db.executemany("INSERT INTO vecs (v, id) VALUES (?, ?)", rows)

    def search(self, text: str, vector: np.ndarray) -> list[str]:
        match = " OR ".join(f'"{word}"' for word in text.split())
        words = self.db.execute(f"SELECT id FROM words WHERE words MATCH ? ORDER BY rank LIMIT {DEPTH}", (match,))
        near = self.db.execute(f"SELECT id FROM vecs WHERE v MATCH ? AND k = {DEPTH}", (vector.tobytes(),))
        return rrf((row[0] for row in words.fetchall()), (row[0] for row in near.fetchall()))

    def add(self, id_: str, text: str, vector: np.ndarray) -> None:
        with self.db:
            self.db.execute("INSERT INTO words (text, id) VALUES (?, ?)", (text, id_))
            self.db.execute("INSERT INTO vecs (v, id) VALUES (?, ?)", (vector.tobytes(), id_))

    def close(self) -> None:
        self.db.close()


class TantivyNumpy:
    modules = ("tantivy",)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:
        import tantivy

        self.index = tantivy.Index(self._schema(), path=str(self.folder / "words"))
        self.matrix = np.load(self.folder / "vectors.npy", mmap_mode="r")
        self.ids = json.loads((self.folder / "ids.json").read_text())
        self.more: list[np.ndarray] = []

    @staticmethod
    def _schema() -> Any:
        import tantivy

        builder = tantivy.SchemaBuilder()
        builder.add_text_field("text", tokenizer_name="en_stem")
        builder.add_text_field("id", stored=True, tokenizer_name="raw")
        return builder.build()

    def build(self, ids: Sequence[str], texts: Sequence[str], vectors: np.ndarray) -> None:
        import tantivy

        (self.folder / "words").mkdir()
        index = tantivy.Index(self._schema(), path=str(self.folder / "words"))
        writer = index.writer()
        for id_, text in zip(ids, texts, strict=True):
            writer.add_document(tantivy.Document(text=text, id=id_))
        writer.commit()
        writer.wait_merging_threads()
        np.save(self.folder / "vectors.npy", vectors)
        (self.folder / "ids.json").write_text(json.dumps(list(ids)))
        self.open()

    def search(self, text: str, vector: np.ndarray) -> list[str]:
        searcher = self.index.searcher()
        query = self.index.parse_query(text, ["text"])
        words = [searcher.doc(address)["id"][0] for _, address in searcher.search(query, DEPTH).hits]
        scores = self.matrix @ vector
        if self.more:
            scores = np.concatenate([scores, np.stack(self.more) @ vector])
        top = np.argpartition(-scores, DEPTH)[:DEPTH]
        return rrf(words, (self.ids[i] for i in top[np.argsort(-scores[top])]))

    def add(self, id_: str, text: str, vector: np.ndarray) -> None:
        import tantivy

        writer = self.index.writer()
        writer.add_document(tantivy.Document(text=text, id=id_))
        writer.commit()
        self.index.reload()
        self.more.append(vector)
        self.ids.append(id_)
        with (self.folder / "more.bin").open("ab") as file:  # durable as the others' adds are
            file.write(vector.tobytes())
            os.fsync(file.fileno())

    def close(self) -> None:
        pass


class LanceDB:
    modules = ("lancedb", "pyarrow")
    indexed = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:
        import lancedb

        self.table = lancedb.connect(str(self.folder)).open_table("memories")

    def build(self, ids: Sequence[str], texts: Sequence[str], vectors: np.ndarray) -> None:
        import lancedb
        import pyarrow as pa

        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
        data = pa.table({"id": list(ids), "text": list(texts), "vector": column})
        self.table = lancedb.connect(str(self.folder)).create_table("memories", data)
        self.table.create_fts_index("text", replace=True)
        if self.indexed:
            self.table.create_index(metric="cosine", vector_column_name="vector", index_type="IVF_HNSW_SQ")

    def search(self, text: str, vector: np.ndarray) -> list[str]:
        near = self.table.search(vector).distance_type("cosine").select(["id", "_distance"]).limit(DEPTH).to_arrow()
        words = self.table.search(text, query_type="fts").select(["id", "_score"]).limit(DEPTH).to_arrow()
        return rrf(words["id"].to_pylist(), near["id"].to_pylist())

    def add(self, id_: str, text: str, vector: np.ndarray) -> None:
        self.table.add([{"id": id_, "text": text, "vector": vector.tolist()}])

    def close(self) -> None:
        pass


class LanceDBIndexed(LanceDB):
    indexed = True


class ChromaBm25s:
    modules = ("chromadb", "bm25s")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:
        import bm25s
        import chromadb

        self.items = chromadb.PersistentClient(str(self.folder / "chroma")).get_collection("memories")
        self.words = bm25s.BM25.load(str(self.folder / "bm25s"), mmap=True)
        self.ids = json.loads((self.folder / "ids.json").read_text())
        self.texts = json.loads((self.folder / "texts.json").read_text())

    def build(self, ids: Sequence[str], texts: Sequence[str], vectors: np.ndarray) -> None:
        import chromadb

        client = chromadb.PersistentClient(str(self.folder / "chroma"))
        self.items = client.create_collection("memories", metadata={"hnsw:space": "cosine"})
        for at in range(0, len(ids), 5000):
            part = slice(at, at + 5000)
            self.items.add(ids=list(ids[part]), embeddings=vectors[part], documents=list(texts[part]))
        self.ids, self.texts = list(ids), list(texts)
        self._index()

    def _index(self) -> None:
        import bm25s

        self.words = bm25s.BM25()
        self.words.index(bm25s.tokenize(self.texts, show_progress=False), show_progress=False)
        self.words.save(str(self.folder / "bm25s"))
        (self.folder / "ids.json").write_text(json.dumps(self.ids))
        (self.folder / "texts.json").write_text(json.dumps(self.texts))

    def search(self, text: str, vector: np.ndarray) -> list[str]:
        import bm25s

        rows, scores = self.words.retrieve(bm25s.tokenize([text], show_progress=False), k=DEPTH, show_progress=False)
        words = [self.ids[row] for row, score in zip(rows[0], scores[0], strict=True) if score > 0]
        near = self.items.query(query_embeddings=[vector], n_results=DEPTH, include=[])
        return rrf(words, near["ids"][0])

    def add(self, id_: str, text: str, vector: np.ndarray) -> None:
        self.items.add(ids=[id_], embeddings=[vector], documents=[text])
        self.ids.append(id_)
        self.texts.append(text)
        self._index()  # bm25s takes no adds

    def close(self) -> None:
        pass


class DuckDB:
    modules = ("duckdb", "duckdb_extensions", "pyarrow")

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.duckdb"

    def open(self) -> None:
        import duckdb
        from duckdb_extensions import import_extension

        import_extension("fts")
        self.db = duckdb.connect(str(self.path))
        self.db.execute("LOAD fts")

    def build(self, ids: Sequence[str], texts: Sequence[str], vectors: np.ndarray) -> None:
        import pyarrow as pa

        self.open()
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
        rows = pa.table({"id": list(ids), "text": list(texts), "v": column})  # noqa: F841  read by name
        self.db.execute(f"CREATE TABLE memories AS SELECT id, text, v::FLOAT[{DIM}] AS v FROM rows")
        self.db.execute("PRAGMA create_fts_index('memories', 'id', 'text')")

    def search(self, text: str, vector: np.ndarray) -> list[str]:
        words = self.db.execute(
            "SELECT id FROM (SELECT id, fts_main_memories.match_bm25(id, ?) AS score FROM memories) "
            f"WHERE score IS NOT NULL ORDER BY score DESC LIMIT {DEPTH}",
            [text],
        ).fetchall()
        near = self.db.execute(
            f"SELECT id FROM memories ORDER BY array_cosine_similarity(v, ?::FLOAT[{DIM}]) DESC LIMIT {DEPTH}",
            [vector.tolist()],
        ).fetchall()
        return rrf((row[0] for row in words), (row[0] for row in near))

    def add(self, id_: str, text: str, vector: np.ndarray) -> None:
        self.db.execute("INSERT INTO memories VALUES (?, ?, ?)", [id_, text, vector.tolist()])
        self.db.execute("PRAGMA create_fts_index('memories', 'id', 'text', overwrite = 1)")  # it takes no adds

    def close(self) -> None:
        self.db.close()


ENGINES: dict[str, type[Engine]] = {
    "hybridmem": HybridMem,
    "FTS5 + sqlite-vec": Fts5SqliteVec,
    "tantivy + numpy": TantivyNumpy,
    "LanceDB": LanceDB,
    "LanceDB HNSW": LanceDBIndexed,
    "Chroma + bm25s": ChromaBm25s,
    "DuckDB": DuckDB,
}


def make_data(size: int, seed: int) -> dict[str, Any]:
    """Texts and vectors, and questions with one right answer each: some of its words, others, and a vector near its."""
    rng = np.random.default_rng(seed)
    texts = list(dict.fromkeys(zipf_texts(size + size // 50, seed=seed)))[:size]
    vectors = clustered(size, dim=DIM, seed=seed)
    gold = rng.choice(size, QUESTIONS, replace=False)
    questions = []
    for at in gold:
        own = rng.choice(texts[at].split(), 3, replace=False)
        other = rng.choice(texts[rng.integers(size)].split(), 4, replace=False)
        questions.append(" ".join(rng.permutation([*own, *other])))
    noise = rng.standard_normal((QUESTIONS, DIM), dtype=np.float32)
    asked = vectors[gold] + 2.0 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    return {"texts": texts, "vectors": vectors, "questions": questions, "asked": asked, "gold": gold}


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def worker(name: str, folder: Path, data: Path) -> None:
    """Serve one engine over standard input and output: a JSON command a line."""
    asked = np.load(data / "asked.npy")
    questions = json.loads((data / "questions.json").read_text())
    engine = ENGINES[name](folder)
    for module in engine.modules:
        import_module(module)
    for line in sys.stdin:
        command, *rest = json.loads(line)
        start = time.perf_counter()
        answer: Any = None
        if command == "build":
            texts = json.loads((data / "texts.json").read_text())
            vectors = np.load(data / "vectors.npy")
            start = time.perf_counter()
            engine.build([f"m{i}" for i in range(len(texts))], texts, vectors)
            taken = time.perf_counter() - start
            engine.close()
        elif command == "open":
            engine.open()
            answer = engine.search(questions[0], asked[0])
            taken = time.perf_counter() - start
        elif command == "search":
            answer = engine.search(questions[rest[0]], asked[rest[0]])
            taken = time.perf_counter() - start
        elif command == "add":
            number = rest[0]
            engine.add(f"new{number}", f"kabadaga new {number} " + questions[number], asked[number])
            answer = engine.search(questions[number], asked[number])
            taken = time.perf_counter() - start
            if f"new{number}" not in answer:
                raise SystemExit(f"{name}: an added memory is not found")
        else:  # memory
            taken = resident()
        print(json.dumps([taken, answer]), flush=True)
    engine.close()


class Process:
    def __init__(self, name: str, folder: Path, data: Path) -> None:
        command = [sys.executable, "-m", __spec__.name, "--worker", name, "--folder", str(folder), "--data", str(data)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *command: Any) -> tuple[float, Any]:
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[3]} stopped")
        taken, answer = json.loads(line)
        return taken, answer

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)


def in_turn(processes: dict[str, Process], gold: Sequence[int], count: int) -> dict[str, tuple[list[float], float]]:
    """Times and recall of each engine: each question goes to every engine, in changing order."""
    names = list(processes)
    times: dict[str, list[float]] = {name: [] for name in names}
    hits = dict.fromkeys(names, 0)
    for at in range(count):
        for name in names[at % len(names) :] + names[: at % len(names)]:
            taken, answer = processes[name].ask("search", at)
            times[name].append(taken * 1000)
            hits[name] += f"m{gold[at]}" in answer
    return {name: (times[name], hits[name] / count) for name in names}


def measure(size: int, seed: int, names: Sequence[str]) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {name: {} for name in names}
    with tempfile.TemporaryDirectory(prefix="hybridmem-engines-") as place:
        root = Path(place)
        data = make_data(size, seed)
        for name in ("texts", "questions"):
            (root / f"{name}.json").write_text(json.dumps(data[name]))
        for name in ("vectors", "asked"):
            np.save(root / f"{name}.npy", data[name])
        gold = [int(i) for i in data["gold"]]
        folders = {name: root / f"engine{i}" for i, name in enumerate(names)}

        def started() -> dict[str, Process]:
            processes = {name: Process(name, folders[name], root) for name in names}
            for process in processes.values():
                process.ask("memory")  # its imports are done: nothing else runs while an engine is measured
            return processes

        for name in names:
            folders[name].mkdir()
            process = Process(name, folders[name], root)
            rows[name]["build"] = process.ask("build")[0]
            process.stop()
            rows[name]["disk"] = sum(file.stat().st_size for file in folders[name].rglob("*") if file.is_file()) / 2**20
            print(f"  {size}: {name} built in {rows[name]['build']:.1f} s", file=sys.stderr)
        for step in ("first", "later"):
            processes = started()
            for name, process in processes.items():
                rows[name][step] = process.ask("open")[0] * 1000
            if step == "later":
                in_turn(processes, gold, 30)  # warm
                for name, (times, recall) in in_turn(processes, gold, QUESTIONS).items():
                    rows[name] |= {"median": statistics.median(times), "recall": recall}
                    rows[name]["p95"] = statistics.quantiles(times, n=20)[18]
                    rows[name]["warm"] = processes[name].ask("memory")[0]
            for process in processes.values():
                process.stop()
        processes = started()
        for name, process in processes.items():
            process.ask("open")
            rows[name]["added"] = process.ask("add", 0)[0] * 1000
            for number in range(1, ADDS):
                process.ask("add", number)
            process.stop()
        processes = started()
        for process in processes.values():
            process.ask("open")
        in_turn(processes, gold, 30)
        for name, (times, _) in in_turn(processes, gold, QUESTIONS // 2).items():
            rows[name]["after"] = statistics.median(times)
        for process in processes.values():
            process.stop()
    return rows


def shown(metric: str, value: float) -> str:
    return f"{value:.3f}".lstrip("0") if metric == "recall" else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def plot(figures: dict[int, dict[str, dict[str, float]]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    chosen = ("recall", "median", "first", "warm")
    size = max(figures)
    rows = figures[size]
    figure, axes = plt.subplots(1, len(chosen), figsize=(14, 3.2), sharey=True)
    for axis, metric in zip(axes, chosen, strict=True):
        names = list(rows)[::-1]
        colours = ["#0072b2" if name == "hybridmem" else "#b8bec6" for name in names]
        bars = axis.barh(names, [rows[name][metric] for name in names], color=colours)
        axis.bar_label(bars, [shown(metric, rows[name][metric]) for name in names], padding=3, fontsize=8)
        axis.set_title(f"{METRICS[metric]}", fontsize=9)
        axis.margins(x=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{size:,} texts, {DIM} dimensions", fontsize=10)
    figure.tight_layout()
    figure.savefig(OUT / "engines.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--only", nargs="*", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--figures", type=Path, help="a JSON file to which the figures are added")
    parser.add_argument("--write", action="store_true", help="write the page, with all figures of the file")
    parser.add_argument("--worker")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.folder, args.data)
        return
    known = json.loads(args.figures.read_text()) if args.figures is not None and args.figures.exists() else {}
    figures = {int(size): rows for size, rows in known.items()}
    for size in args.sizes:
        figures[size] = figures.get(size, {}) | measure(size, args.seed, args.only)
        figures[size] = {name: figures[size][name] for name in ENGINES if name in figures[size]}
        if args.figures is not None:
            args.figures.write_text(json.dumps(figures))
    parts = [__doc__.split("\n\n")[1].replace("\n", " ")]
    for size, rows in sorted(figures.items()):
        header = [f"{size:,} texts", *rows]
        lines = [[label, *(shown(key, row[key]) for row in rows.values())] for key, label in METRICS.items()]
        parts.append(table(header, lines))
        print(parts[-1], end="\n\n")
        missing = [name for name in ENGINES if name not in rows]
        if missing:
            parts.append(f"Not measured with {size:,} texts: {', '.join(missing)}.")
    if args.write:
        plot(figures)
        plots = "![the largest size](engines.png)"
        title = "hybridmem and other embedded engines"
        write("engines", title, [*parts, plots], measured="wall-clock time, engines in turn")


if __name__ == "__main__":
    main()
