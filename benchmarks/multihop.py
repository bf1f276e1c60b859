"""Questions that need several passages: `python -m benchmarks.multihop [--data ../shared/data] [--part PART …]`.

Parts: `defaults` (HybridMemory at its defaults against its arms and without mentions), `decision` (the alternatives of
decision 9), `spot` (entities spotted in every text, on every set), `peer` (GraphRetriever against
langchain-graph-retriever over the same metadata), `cost` (100,000 titled texts; on a quiet machine).
"""

import argparse
import contextlib
import itertools
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from graph_retriever.strategies import Eager, Mmr
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_graph_retriever import GraphRetriever as Peer

from benchmarks.quality.sets import Part, load_part, load_sets
from hybridmem.core.types import Memory
from hybridmem.evaluation.cases import Case
from hybridmem.evaluation.evaluate import System, evaluate
from hybridmem.evaluation.report import Report
from hybridmem.fusion.recipe import RECIPES, Fusion
from hybridmem.fusion.stages import evidence
from hybridmem.indexes import candidates
from hybridmem.indexes.candidates import NamesRead
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.indexes.graph.names import Names
from hybridmem.indexes.view import LocalView
from hybridmem.memory.memory import HybridMemory
from langchain_hybridmem import BM25Retriever, FusionRetriever, GraphRetriever

ROOT = Path(__file__).parents[1]
KS = (2, 5, 10)
SETS = {"HotpotQA": "multihop/hotpotqa", "MuSiQue": "multihop/musique"}
DEFAULTS = "HybridMemory, defaults"
PLAIN = "without mentions"


def ids_of(memory: HybridMemory, **how: Any) -> Callable[[str], list[str]]:
    """A system that returns the ids of a search."""
    return lambda query: [result.id for result in memory.search(query, k=max(KS), **how)]


def arm_of(memory: HybridMemory, arm: str) -> Callable[[str], list[str]]:
    """A system that returns the ids of one arm."""
    return lambda query: [result.id for result in memory.search_arm(arm, query, k=max(KS))]


def weighted(**weights: float) -> Fusion:
    """The default recipe with other weights of evidence."""
    default = RECIPES["default"]
    return replace(default, evidence=replace(default.evidence, **weights))


def rows_of(report: Report, names: Sequence[str] = ()) -> list[str]:
    """recall@2 / @5 / @10 of each system, with the gain of the baseline over it and its 95 % interval."""
    rows = []
    for run in report.runs:
        if names and run.name not in names:
            continue
        means = " / ".join(f"{report.mean(run.name, f'recall@{k}'):.3f}" for k in KS)
        gains = ""
        if run.name != report.baseline:
            found = [report.gain(report.baseline, f"recall@{k}", over=run.name) for k in KS]
            gains = " | ".join(f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]" for gain in found)
        rows.append(f"| {run.name} | {means} | {gains} |")
    return rows


# --- defaults against arms, and the alternatives of decision 9


def defaults(part: Part) -> Report:
    """The defaults against each arm and against the fusion without mentions."""
    with part.open() as memory, part.open(graph=GraphSettings(mentions=0)) as plain:
        systems = {
            DEFAULTS: ids_of(memory),
            PLAIN: ids_of(plain),
            "BM25 arm": arm_of(memory, "bm25"),
            "vector arm": arm_of(memory, "vector"),
            "graph arm": arm_of(memory, "graph"),
        }
        return evaluate(systems, part.cases, ks=KS, baseline=DEFAULTS)


def decision(part: Part) -> Report:
    """Weights of the evidence, texts read, two hops, and personalised PageRank over the same links."""
    with part.open() as memory, part.open(graph=GraphSettings(mentions=0)) as plain:
        systems: dict[str, Any] = {DEFAULTS: ids_of(memory), PLAIN: ids_of(plain)}
        for weight in (0.3, 0.35, 0.45, 0.5):
            systems[f"mention {weight}"] = ids_of(memory, recipe=weighted(mention=weight))
        for weight in (0.0, 0.1, 0.15, 0.25, 0.3):
            systems[f"shared_name {weight}"] = ids_of(memory, recipe=weighted(shared_name=weight))
        systems["names in the query not read"] = partial(_with, LocalView, "_read_names", _unasked, ids_of(memory))
        for count in (20, 30, 60, 100):
            systems[f"{count} texts read"] = partial(_with, candidates, "MENTIONING", count, ids_of(memory))
        for share in (0.0, 0.5, 1.0):
            systems[f"backward {share}"] = partial(_with, evidence, "BACKWARD", share, ids_of(memory))
        links = mention_links(part.memories)
        scored = cached(lambda query: {one.id: one.score for one in plain.search(query, k=100)})
        systems["two hops"] = lambda query: two_hops(scored(query), links)
        for restart in (0.15, 0.3, 0.5, 0.7):
            for weight in (0.2, 0.4, 0.8):
                name = f"PageRank, restart {restart}, weight {weight}"
                systems[name] = partial(_ranked, scored, links, restart, weight)
        return evaluate(systems, part.cases, ks=KS, baseline=DEFAULTS)


_READ_NAMES = LocalView._read_names  # noqa: SLF001 - an ablation replaces it


def _unasked(view: LocalView, query: str, ids: Sequence[str]) -> NamesRead:
    """The names in texts, without those in the query."""
    found = _READ_NAMES(view, query, ids)
    return found._replace(links=[link for link in found.links if link[0] is not None])


def _with(owner: Any, name: str, value: Any, ask: Callable[[str], list[str]], query: str) -> list[str]:
    """An answer with another value of a constant or a method."""
    with mock.patch.object(owner, name, value):
        return ask(query)


def cached(compute: Callable[[str], dict[str, float]]) -> Callable[[str], dict[str, float]]:
    """The same function, computed once for each query."""
    known: dict[str, dict[str, float]] = {}
    return lambda query: known[query] if query in known else known.setdefault(query, compute(query))


def mention_links(memories: Sequence[Memory]) -> dict[str, list[str]]:
    """The memories that each text mentions by name."""
    names = Names()
    for memory in memories:
        names.put(memory.id, memory)
    return {memory.id: [one.id for one in names.mentions(memory.id, memory.text)] for memory in memories}


def two_hops(scores: Mapping[str, float], links: Mapping[str, Sequence[str]]) -> list[str]:
    """Score + 0.4 · the best activation that arrives over at most two mentions, the second worth half of the first."""
    first: dict[str, float] = {}
    for source, score in scores.items():
        for target in links[source]:
            first[target] = max(first.get(target, 0.0), score)
    second = dict(first)
    for source, value in first.items():
        for target in links[source]:
            second[target] = max(second.get(target, 0.0), value / 2)
    total = {key: scores.get(key, 0.0) + 0.4 * second.get(key, 0.0) for key in {*scores, *second}}
    return sorted(total, key=lambda key: (-total[key], key))[: max(KS)]


def _ranked(
    scored: Callable[[str], dict[str, float]],
    links: Mapping[str, Sequence[str]],
    restart: float,
    weight: float,
    query: str,
) -> list[str]:
    """Score + weight · personalised PageRank, scaled to 1, seeded by the scores; both directions of a link count."""
    scores = scored(query)
    place = {key: row for row, key in enumerate(links)}
    pairs = [(place[a], place[b]) for a, targets in links.items() for b in targets]
    ends = np.array(pairs + [(b, a) for a, b in pairs], np.intp)
    degree = np.bincount(ends[:, 0], minlength=len(place))
    seed = np.zeros(len(place))
    for key, score in scores.items():
        seed[place[key]] = max(score, 0.0)
    seed /= seed.sum() or 1.0
    rank = seed.copy()
    for _ in range(30):
        moved = np.bincount(ends[:, 1], (rank / np.maximum(degree, 1))[ends[:, 0]], minlength=len(place))
        rank = restart * seed + (1 - restart) * moved
    rank /= rank.max() or 1.0
    total = {key: scores.get(key, 0.0) + weight * float(rank[row]) for key, row in place.items()}
    return sorted(total, key=lambda key: (-total[key], key))[: max(KS)]


# --- spotted entities on every set


def spotted(parts: Sequence[Part], measure: str) -> str:
    """The default against the default with entities spotted in every text, over the questions of several stores."""
    first, second = [], []
    for part in parts:
        with part.open() as own, part.open(graph=GraphSettings(entities="spot")) as spot:
            report = evaluate({"own": System("own", _deep(own)), "spot": System("spot", _deep(spot))}, part.cases)
            values = report.values
            place = report.metrics.index(measure)
            first.append(values["own"][:, place])
            second.append(values["spot"][:, place])
    own, spot = np.concatenate(first), np.concatenate(second)
    drawn = np.random.default_rng(0).integers(0, len(own), (2000, len(own)))
    low, high = np.percentile((spot - own)[drawn].mean(axis=1), [2.5, 97.5])
    return f"{own.mean():.3f} | {spot.mean():.3f} | {(spot - own).mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def _deep(memory: HybridMemory) -> Callable[[Case, int], list[str]]:
    return lambda case, k: [result.id for result in memory.search(case.query, k=k)]


# --- the same metadata edges in langchain-graph-retriever

EDGES = [("mentions", "title")]


class Stored(Embeddings):
    """The stored vectors of texts."""

    def __init__(self, vectors: Mapping[str, np.ndarray]) -> None:
        self.vectors = vectors

    def embed_query(self, text: str) -> list[float]:
        return self.vectors[text].tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return list(map(self.embed_query, texts))


def peer(part: Part) -> Report:
    """Both GraphRetrievers over one vector store in memory; the titles that a passage mentions are in its metadata."""
    titles = {memory.id: memory.title for memory in part.memories}
    mentions = {key: sorted({titles[one] for one in found}) for key, found in mention_links(part.memories).items()}
    documents = [
        Document(memory.embedded, id=memory.id, metadata={"title": memory.title, "mentions": mentions[memory.id]})
        for memory in part.memories
    ]
    store = InMemoryVectorStore(Stored(part.vectors))
    store.add_documents(documents)
    k, search = max(KS), store.as_retriever(search_kwargs={"k": max(KS)})
    fusion = FusionRetriever(retrievers=[BM25Retriever.from_documents(documents, k=40), search])
    plain: Any = {"k": k, "edges": EDGES, "title_key": "none"}
    systems: dict[str, Any] = {
        "GraphRetriever.from_store": GraphRetriever.from_store(store, **plain),
        "GraphRetriever.from_store, 4 seeds": GraphRetriever.from_store(store, seeds=4, **plain),
        "GraphRetriever.from_store, 8 seeds, seed_scale range": GraphRetriever.from_store(
            store, seeds=8, seed_scale="range", **plain
        ),
        "GraphRetriever.from_documents, seeds by the store": GraphRetriever.from_documents(
            documents, seed=search, **plain
        ),
        "GraphRetriever.from_documents, seeds by BM25": GraphRetriever.from_documents(documents, **plain),
        "GraphRetriever.from_documents, seeds by FusionRetriever": GraphRetriever.from_documents(
            documents, seed=fusion, **plain
        ),
        "the vector search alone": search,
        "langchain-graph-retriever, defaults": Peer(store=store, edges=EDGES, strategy=Eager(select_k=k)),
    }
    for start, depth in itertools.product((2, 3, 5, 8), (1, 2)):
        strategy = Eager(select_k=k, start_k=start, max_depth=depth)
        systems[f"langchain-graph-retriever, Eager, start {start}, depth {depth}"] = Peer(
            store=store, edges=EDGES, strategy=strategy
        )
    for start in (4, 10):
        systems[f"langchain-graph-retriever, Mmr, start {start}"] = Peer(
            store=store, edges=EDGES, strategy=Mmr(select_k=k, start_k=start)
        )
    return evaluate(systems, part.cases, ks=KS, baseline="GraphRetriever.from_store")


# --- cost at 100,000 titled texts


DIMENSION = 384


def titled(count: int, rng: random.Random) -> list[Memory]:
    """Texts of 40 words with titles of two words. Each mentions two titles at random, and all mention the first one."""
    words = [f"word{n}" for n in range(30_000)]
    filler = rng.choices(words, [1 / (n + 10) for n in range(len(words))], k=40 * count)
    titles = [f"First{n % 1000} Last{n // 1000}x{n % 97}" for n in range(count)]

    def text(n: int) -> str:
        one, other = titles[rng.randrange(count)], titles[rng.randrange(count)]
        return f"{' '.join(filler[40 * n : 40 * n + 40])} {one} and {other} of {titles[0]}"

    return [Memory(text(n), id=f"m{n}", title=titles[n]) for n in range(count)]


def cost(count: int) -> list[str]:
    """CPU of indexing, searching and seeing an add, with and without mentions, and the bytes of a name and a link."""
    memories = titled(count, random.Random(7))
    questions = [" ".join(memory.text.split()[place : place + 6]) for memory in memories[:50] for place in (0, 20, 40)]
    draw = np.random.default_rng(7).standard_normal
    with contextlib.ExitStack() as stack:
        rivals = [
            stack.enter_context(
                HybridMemory(
                    embedder=lambda texts: draw((len(texts), DIMENSION), np.float32),
                    graph=GraphSettings(mentions=mentions),
                )
            )
            for mentions in (1.0, 0.0)
        ]
        times = [[_seconds(memory.add_many, memories)] for memory in rivals]
        for memory in rivals:
            memory.search("word1")
        steps: list[Sequence[Callable[[HybridMemory], Any]]] = [
            [lambda memory, query=query: memory.search(query) for query in questions],
            [lambda memory, query=query: memory.search(query) for query in questions],
            [lambda memory, n=n: _add_and_search(memory, memories[n].title, n) for n in range(60)],
        ]
        for calls in steps:  # asked in turn, so that a busy machine disturbs both alike
            taken = [[_seconds(call, memory) for memory in rivals] for call in calls]
            for own, found in zip(times, zip(*taken, strict=True), strict=True):
                own.append(1000 * statistics.median(found))
    labels = (
        "add_many, s",
        "a search, ms",
        "the same search again, ms",
        "an add, followed by a search, ms",
    )
    rows = [
        f"| {label} | {one:.2f} | {other:.2f} | {one / other:.2f} |"
        for label, one, other in zip(labels, *times, strict=True)
    ]
    tracemalloc.start()
    names = Names()
    for memory in memories:
        names.put(memory.id, memory)
    size = tracemalloc.get_traced_memory()[0] / len(names)
    tracemalloc.stop()
    links = sum(len(names.mentions(memory.id, memory.text)) for memory in memories[:1000]) / 1000
    rows.append(f"| bytes for each name | {size:.0f} | | |")
    rows.append(f"| bytes for each link, at {links:.1f} links a text | {size / links:.0f} | | |")
    return rows


def _add_and_search(memory: HybridMemory, title: str, n: int) -> None:
    """Add a text with a title, and search with the question that its mention answers."""
    memory.add(f"fresh{n} about {title}", id=f"new{n}", title=f"Fresh Title{n}")
    memory.search_arm("graph", f"fresh{n}", k=3)


def _seconds(call: Callable[..., Any], *given: Any) -> float:
    begun = time.process_time()
    call(*given)
    return time.process_time() - begun


def main() -> None:
    """Measure the chosen parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--part", nargs="*", default=["defaults", "decision", "spot", "peer"])
    parser.add_argument("--count", type=int, default=100_000, help="texts of the part `cost`")
    parser.add_argument("--only", nargs="*", help="names of sets")
    args = parser.parse_args()
    if "cost" in args.part:
        print("--- 100,000 titled texts: CPU with mentions | without | ratio")
        print("\n".join(cost(args.count)), flush=True)
    for name, folder in SETS.items() if {"defaults", "decision", "peer"} & set(args.part) else ():
        part = load_part(args.data / folder, threads=False)
        for kind, measure in (("defaults", defaults), ("decision", decision)):
            if kind in args.part:
                print(f"--- {name}, {kind}: recall@2 / @5 / @10; gain of the defaults, 95 % paired bootstrap intervals")
                print("\n".join(rows_of(measure(part))), flush=True)
        if "peer" in args.part:
            report = peer(part)
            print(f"--- {name}: recall@2 / @5 / @10 | gain of GraphRetriever.from_store | median ms")
            for row, run in zip(rows_of(report), report.runs, strict=True):
                print(f"{row} {1000 * report.latency(run.name)[0]:.2f} |", flush=True)
    if "spot" in args.part:
        print("--- entities: own | spotted | gain with its 95 % paired bootstrap interval")
        for name, load in load_sets(args.data).items():
            if name == "CISI" or (args.only and name not in args.only):
                continue
            loaded = load()
            measure_of = "ndcg@10" if loaded.documents and name not in SETS else "recall@10"
            print(f"| {name} ({measure_of}) | {spotted(loaded.tuning or loaded.held, measure_of)} |", flush=True)


if __name__ == "__main__":
    main()
