"""How fast activation spreads: `python -m benchmarks.graph [--small] [--write]`.

Medians of CPU time, rivals asked in turn. Rivals: the same spreading as plain Python over dicts, networkx, and for
whole retrievals over a LangChain vector store langchain-graph-retriever, where they are installed.
"""

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hybridmem.core.protocols import Change
from hybridmem.core.types import Edge, Memory
from hybridmem.indexes.graph.index import GraphIndex

ROOT = Path(__file__).parents[1]
DEGREE = 10
SEEDS = 80


def medians(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median CPU milliseconds of each, asked in turn so that a busy machine disturbs all alike."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begun = time.process_time()
            call()
            taken[name].append(time.process_time() - begun)
    return {name: statistics.median(times) * 1000 for name, times in taken.items()}


# --- spreading alone


def linked_graph(edges: int, rng: random.Random) -> tuple[GraphIndex, list[Edge]]:
    """A random graph in which every memory has about ten neighbours."""
    nodes = max(100, 2 * edges // DEGREE)
    index = GraphIndex()
    index.apply(Change(n, f"m{n}", Memory("", id=f"m{n}")) for n in range(nodes))
    made = [Edge(f"m{rng.randrange(nodes)}", f"m{rng.randrange(nodes)}") for _ in range(edges)]
    index.apply(Change(nodes + n, "", edge=edge) for n, edge in enumerate(made))
    return index, made


def thread_graph(turns: int) -> GraphIndex:
    """Conversations of thirty turns, and no other edge."""
    index = GraphIndex()
    index.apply(Change(n, f"m{n}", Memory("", id=f"m{n}", thread=f"t{n // 30}")) for n in range(turns))
    return index


def some_seeds(count: int, nodes: int, rng: random.Random) -> dict[str, float]:
    return {f"m{n}": rng.uniform(0.1, 1.0) for n in rng.sample(range(nodes), count)}


def plain_python(near: dict[str, list[str]], seeds: dict[str, float], hops: int = 2) -> dict[str, float]:
    """The same rule as loops over dicts."""
    best, front = dict(seeds), dict(seeds)
    for _ in range(hops):
        reached: dict[str, float] = {}
        for key, value in front.items():
            for other in near.get(key, ()):
                if value * 0.5 > max(best.get(other, 0.0), reached.get(other, 0.0)):
                    reached[other] = value * 0.5
        best.update(reached)
        front = reached
    return {key: value for key, value in best.items() if key not in seeds}


def with_networkx(graph: Any, seeds: dict[str, float]) -> dict[str, float]:
    """The same rule with the library's breadth-first walk from each seed."""
    import networkx as nx

    best: dict[str, float] = {}
    for seed, value in seeds.items():
        for key, hops in nx.single_source_shortest_path_length(graph, seed, cutoff=2).items():
            if key not in seeds and value * 0.5**hops > best.get(key, 0.0):
                best[key] = value * 0.5**hops
    return best


def spreading(sizes: list[int], rounds: int, rng: random.Random) -> list[list[str]]:
    rows = []
    for edges in sizes:
        index, made = linked_graph(edges, rng)
        near: dict[str, list[str]] = {}
        for a, b, *_ in made:
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
        picture = index.snapshot()
        choices = [some_seeds(SEEDS, len(index), rng) for _ in range(8)]
        turn = [0]

        def ask(work: Callable[[dict[str, float]], Any], choices: Any = choices, turn: Any = turn) -> None:
            turn[0] += 1
            work(choices[turn[0] // 4 % len(choices)])

        calls = {
            "spread": partial(ask, picture.spread),
            "arm": partial(ask, partial(picture.search, k=10)),
            "plain": partial(ask, partial(plain_python, near)),
        }
        if edges <= 100_000:  # a million edges take networkx gigabytes
            calls["networkx"] = partial(ask, partial(with_networkx, _networkx(made)))
        found = medians(calls, rounds)
        link = linking(index, rng, rounds * 5)
        rival = f"{found['networkx'] / found['spread']:.1f}×" if "networkx" in found else "–"
        rows.append(
            [
                f"{edges:,}",
                f"{found['spread']:.2f}",
                f"{found['arm']:.2f}",
                f"{found['plain'] / found['spread']:.1f}×",
                rival,
                f"{link:.3f}",
            ]
        )
        print(" | ".join(rows[-1]))
    return rows


def _networkx(edges: list[Edge]) -> Any:
    import networkx as nx

    graph = nx.Graph()
    graph.add_edges_from((edge.a, edge.b) for edge in edges)
    return graph


def linking(index: GraphIndex, rng: random.Random, rounds: int) -> float:
    """Median milliseconds from a new edge to a search that has seen it."""
    taken, nodes = [], len(index)
    for _ in range(rounds):
        edge = Edge(f"m{rng.randrange(nodes)}", f"m{rng.randrange(nodes)}", "new")
        begun = time.process_time()
        index.apply([Change(index.watermark + 1, "", edge=edge)])
        found = index.snapshot().spread({edge.a: 1.0}, hops=1)
        taken.append(time.process_time() - begun)
        assert edge.a == edge.b or edge.b in found
    return statistics.median(taken) * 1000


def threads(sizes: list[int], rounds: int, rng: random.Random) -> list[list[str]]:
    rows = []
    for turns in sizes:
        picture = thread_graph(turns).snapshot()
        calls = {}
        for count in (20, 100):
            seeds = some_seeds(count, turns, rng)
            calls[f"{count}"] = partial(picture.spread, seeds, include_seeds=True)
        found = medians(calls, rounds * 5)
        rows.append([f"{turns:,}", *(f"{value:.3f}" for value in found.values())])
        print(" | ".join(rows[-1]))
    return rows


# --- whole retrievals over a LangChain vector store


def retrievals(count: int, rounds: int) -> list[list[str]]:
    from langchain_core.documents import Document
    from langchain_core.embeddings import DeterministicFakeEmbedding
    from langchain_core.vectorstores import InMemoryVectorStore

    from langchain_hybridmem.graph import GraphRetriever

    documents = [
        Document(f"text {n}", id=f"d{n}", metadata={"links": [f"d{(7 * n + j) % count}" for j in range(3)]})
        for n in range(count)
    ]
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=64))
    store.add_documents(documents)
    ours = GraphRetriever.from_store(store, k=10)
    whole = GraphRetriever.from_documents(documents, k=10)
    calls: dict[str, Callable[[], Any]] = {
        "GraphRetriever.from_store": lambda: ours.invoke("text 5"),
        "GraphRetriever.from_documents (BM25 seeds)": lambda: whole.invoke("text 5"),
        "the vector search alone": lambda: store.as_retriever(search_kwargs={"k": 40}).invoke("text 5"),
    }
    try:
        from graph_retriever.strategies import Eager
        from langchain_graph_retriever import GraphRetriever as Peer
    except ModuleNotFoundError:
        print("langchain-graph-retriever is not installed: left out")
    else:
        peer = Peer(store=store, edges=[("links", "$id")], strategy=Eager(k=10, start_k=40, max_depth=2))
        calls["langchain-graph-retriever"] = lambda: peer.invoke("text 5")
    found = medians(calls, rounds)
    base = found["GraphRetriever.from_store"]
    rows = [[name, f"{value:.2f}", f"{value / base:.2f}×"] for name, value in found.items()]
    for row in rows:
        print(" | ".join(row))
    return rows


# --- telling


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def write(parts: dict[str, str], spread_rows: list[list[str]]) -> None:
    folder = ROOT / "docs" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(f"## {title}\n\n{body}" for title, body in parts.items())
    where = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}"
    intro = f"CPU milliseconds, medians, rivals asked in turn ({where}): `python -m benchmarks.graph --write`."
    page = folder / "graph.md"
    _, head, multihop = page.read_text("utf-8").partition("\n## Questions that need several passages")
    page.write_text(
        f"# Spreading activation\n\n{intro}\n\n![](graph.png)\n\n{text}\n{head}{multihop}", encoding="utf-8"
    )
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5))
    edges = [int(row[0].replace(",", "")) for row in spread_rows]
    for label, column in (("80 seeds, 2 hops", 1), ("one link, then searched", 5)):
        axes.plot(edges, [float(row[column]) for row in spread_rows], marker="o", label=label)
    axes.set(xscale="log", xlabel="edges (ten per memory)", ylabel="CPU ms", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(folder / "graph.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a quick run")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/graph.md and graph.png")
    args = parser.parse_args()
    rng = random.Random(7)
    sizes = [1_000, 10_000] if args.small else [10_000, 100_000, 1_000_000]
    rounds = 8 if args.small else 40
    head = [
        "edges",
        "spread, ms",
        "as an arm (k = 10), ms",
        "plain Python takes",
        "networkx takes",
        "a link is seen after, ms",
    ]
    print(f"--- {SEEDS} seeds, 2 hops, ten neighbours each\n{' | '.join(head)}")
    spread_rows = spreading(sizes, rounds, rng)
    thread_head = ["turns", "20 seeds, ms", "100 seeds, ms"]
    print(f"--- threads alone, 2 hops\n{' | '.join(thread_head)}")
    thread_rows = threads([1_000] if args.small else [10_000, 100_000, 1_000_000], rounds, rng)
    documents = 300 if args.small else 3_000
    print(f"--- whole retrievals over {documents:,} linked documents")
    retrieval_rows = retrievals(documents, rounds)
    if args.write:
        parts = {
            f"{SEEDS} seeds, 2 hops, ten neighbours each": table(head, spread_rows),
            "Threads alone, 2 hops": table(thread_head, thread_rows),
            f"Whole retrievals over {documents:,} linked documents": table(["", "ms", "ratio"], retrieval_rows),
        }
        write(parts, spread_rows)


if __name__ == "__main__":
    main()
