"""What fusing costs, against the classes it replaces: `python -m benchmarks.fusion [--write]`.

1. Fusing 2×20, 2×100 and 2×1000 documents: hybridmem with gate, dedup and half-life on, against the peers' bare
   fusion. Half of the documents stand in both lists, the gate drops a tenth, every source has two chunks, dates are
   epoch seconds, texts have 400 characters. The same objects are fused again and again; the second table makes
   fresh ones for each call, as a store does.
2. A whole call of each drop-in against its original, two trivial retrievers of 20 documents.
3. Two retrievers that take 0.2 s each: wall time, and the longest stall of a ticker on the same event loop.
"""

import gc
import random
import statistics
import time

from langchain_classic.retrievers import EnsembleRetriever as OldEnsemble
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import BaseRetriever as LlamaBase
from llama_index.core.retrievers import QueryFusionRetriever as OldQueryFusion
from llama_index.core.schema import NodeWithScore, TextNode

from benchmarks.common import OUT, arguments, table, write
from benchmarks.waiting import slow_arms
from hybridmem.core.types import ArmList
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import HalfLife, QualityGate, SourceDedup
from hybridmem.retrievers.arms import FusedArms
from langchain_hybridmem import EnsembleRetriever, FusionRetriever
from langchain_hybridmem._conversion import DocumentReader
from llamaindex_hybridmem import QueryFusionRetriever
from llamaindex_hybridmem._arms import arm_list
from llamaindex_hybridmem._conversion import NodeReader
from llamaindex_hybridmem.fusion import nodes_of_ranking

NOW = 1_800_000_000.0
DAY = 86_400.0
RECIPE = Fusion(gate=QualityGate(floor={"a": 0.1, "b": 0.1}), dedup=SourceDedup(), boost=HalfLife())
SIZES = (20, 100, 1000)
READER = NodeReader()


def medians(rivals, make, *, rounds, calls=1, fresh=False):
    """Median CPU microseconds of each rival, in turn, in changing order; what they are given is made off the clock.

    Each rival has objects of its own, because one of them writes its scores into what it is given.
    """
    taken = {name: [] for name in rivals}
    given = {name: make() for name in rivals}
    names = list(rivals)
    clock = statistics.median([-(time.process_time() - time.process_time()) for _ in range(999)])  # its own cost
    gc.collect()
    gc.disable()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            lists, call = make() if fresh else given[name], rivals[name]
            start = time.process_time()
            for _ in range(calls):
                call(lists)
            taken[name].append((time.process_time() - start - clock) / calls * 1e6)
    gc.enable()
    return {name: statistics.median(times) for name, times in taken.items()}


# --- 1. fusing alone


def places(size, seed=1):
    """Which documents each arm lists, best first: half of them in both."""
    rng = random.Random(seed)
    one, two = list(range(size)), list(range(size // 2, size + size // 2))
    rng.shuffle(one)
    rng.shuffle(two)
    return one, two


def fields(number):
    return {"source_id": f"source {number // 2}", "updated_at": NOW - 0.3 * DAY * number}


def text(number):
    return f"Document {number}. " + "All that a chunk of text says. " * 13


def documents(numbers):
    return [Document(text(n), id=f"doc-{n}", metadata=fields(n)) for n in numbers]


def nodes(numbers, scores):
    made = [TextNode(text=text(n), id_=f"node-{n}", metadata=fields(n)) for n in numbers]
    return [NodeWithScore(node=node, score=score) for node, score in zip(made, scores, strict=True)]


def fuse_documents(size, *, fresh):
    one, two = places(size)
    scores = [1 - i / size for i in range(size)]
    old = OldEnsemble(retrievers=[RunnableLambda(list), RunnableLambda(list)])
    reader = DocumentReader()
    rivals = {
        "ours": lambda lists: RECIPE.run(lists, reader=reader, now=NOW),
        "theirs": lambda lists: old.weighted_reciprocal_rank([arm.items for arm in lists]),
    }

    def make():
        return [ArmList("a", documents(one), scores), ArmList("b", documents(two), scores)]

    return medians(rivals, make, rounds=max(31, 6_000 // size), calls=1 if fresh else max(1, 400 // size), fresh=fresh)


def fuse_nodes(size, k=None, *, fresh, bare=False):
    """From the retrievers' lists to a list of results, as each returns them: theirs are the nodes that came in.

    `bare`: the fusing alone, from lists in columns to a ranking.
    """
    one, two = places(size)
    scores = [1 - i / size for i in range(size)]
    old = OldQueryFusion([LlamaFixed([]), LlamaFixed([])], llm=MockLLM(), num_queries=1)

    def ours(lists):
        if bare:
            return RECIPE.run(lists[1], reader=READER, now=NOW)
        arms = [arm_list(name, results) for name, results in lists[0]]
        return nodes_of_ranking(FusedArms(RECIPE, arms, READER, query="?", now=NOW, k=k)).nodes

    def theirs(lists):
        return old._reciprocal_rerank_fusion({("?", i): found for i, (_, found) in enumerate(lists[0])})[:k]  # noqa: SLF001

    def make():
        lists = [("a", nodes(one, scores)), ("b", nodes(two, scores))]
        return lists, [arm_list(name, found) for name, found in lists]

    rivals = {"ours": ours, "theirs": theirs}
    return medians(rivals, make, rounds=max(31, 3_000 // size), calls=1 if fresh else max(1, 200 // size), fresh=fresh)


# --- 2. whole calls


class Fixed(BaseRetriever):
    docs: list

    def _get_relevant_documents(self, query, *, run_manager):  # noqa: ARG002
        return self.docs


class LlamaFixed(LlamaBase):
    def __init__(self, found):
        super().__init__()
        self.found = found

    def _retrieve(self, query_bundle):  # noqa: ARG002
        return list(self.found)


def whole_calls():
    one, two = places(20)
    children = [Fixed(docs=documents(one)), Fixed(docs=documents(two))]
    old, new = OldEnsemble(retrievers=children), EnsembleRetriever(retrievers=children)
    native = FusionRetriever(retrievers=children, k=8)
    lang = {"ours": new.invoke, "theirs": old.invoke, "native, k=8, scores": native.invoke}
    scores = [1 - i / 20 for i in range(20)]
    arms = [LlamaFixed(nodes(one, scores)), LlamaFixed(nodes(two, scores))]
    how = {"mode": "reciprocal_rerank", "num_queries": 1, "similarity_top_k": 10, "use_async": False}
    llama_old = OldQueryFusion(arms, llm=MockLLM(), **how)
    llama_new = QueryFusionRetriever(arms, **how)
    llama = {"ours": llama_new.retrieve, "theirs": llama_old.retrieve}
    for call in (*lang.values(), *llama.values()):
        for _ in range(30):  # until they know that these arms are quick
            call("?")
    return {
        "EnsembleRetriever.invoke": medians(lang, lambda: "?", rounds=101, calls=20),
        "QueryFusionRetriever.retrieve": medians(llama, lambda: "?", rounds=31, calls=5),
    }


# --- output


def row(name, found):
    ratio = found["ours"] / found["theirs"]
    return name, f"{found['ours']:.1f}", f"{found['theirs']:.1f}", f"{ratio:.2f}"


def plot(ratios):
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5))
    names = list(ratios)[::-1]
    bars = axes.barh(names, [ratios[name] for name in names], color="#3b7dd8")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(1.0, color="#888888", linestyle="--", linewidth=1)
    axes.set_xlabel("CPU time, ours / the original's (gate, dedup and half-life on in ours)")
    axes.set_xlim(0, max(1.15, 1.15 * max(ratios.values())))
    figure.tight_layout()
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / "fusion.png", dpi=120)


def fusing(sizes, *, fresh):
    """What each rival took, by what was measured."""
    found = {}
    for size in sizes:
        found[f"2×{size} documents, against EnsembleRetriever"] = fuse_documents(size, fresh=fresh)
    for size in sizes:
        found[f"2×{size} nodes, ranking alone, against QueryFusionRetriever"] = fuse_nodes(size, fresh=fresh, bare=True)
    for k, which in ((10, "top 10"), (None, "all")):
        for size in sizes:
            found[f"2×{size} nodes, {which}, against QueryFusionRetriever"] = fuse_nodes(size, k, fresh=fresh)
    return found


ABOUT = (
    "Ours fuses with quality gate, source dedup and half-life; theirs merge ranks only. Half of the documents stand"
    " in both lists, the gate drops a tenth, every source has two chunks, dates are epoch seconds, texts have 400 "
    "characters. Documents are fused from lists to a ranked list of the same documents, as EnsembleRetriever does. "
    "Nodes are fused from the retrievers' lists to a list of results: ours makes a new result object for each, with"
    " its score and a receipt on demand, where QueryFusionRetriever writes its score into the objects that came in;"
    " `ranking alone` leaves our conversions out."
    " Fresh objects are made for each call, as a store makes them: their strings have not been hashed yet, and "
    "little of them is in the processor's cache. Drop-ins return the top 10 (LlamaIndex) or the whole union "
    "(LangChain), as their originals do."
)


def main():
    args = arguments(__doc__, sizes=SIZES)
    again, fresh, calls = fusing(args.sizes, fresh=False), fusing(args.sizes, fresh=True), whole_calls()
    header = ["ours µs", "theirs µs", "ratio"]
    parts = [ABOUT, "![ratios](fusion.png)"]
    parts += ["## Fusing", table(["fusing", *header], [row(*one) for one in again.items()])]
    parts += ["## Fusing fresh objects", table(["fusing", *header], [row(*one) for one in fresh.items()])]
    native = calls["EnsembleRetriever.invoke"]["native, k=8, scores"]
    note = f"The native `FusionRetriever.invoke` with `k=8`, scores and merged metadata takes {native:.1f} µs."
    whole = table(["call", *header], [row(f"{name}, drop-in", found) for name, found in calls.items()])
    parts += ["## Whole calls, two trivial retrievers of 20", whole, note]
    ratios = {name: found["ours"] / found["theirs"] for name, found in again.items()}
    ratios |= {f"{name}, whole call": found["ours"] / found["theirs"] for name, found in calls.items()}
    parts += ["## Two retrievers of 0.2 s each", *slow_arms()]
    print("\n\n".join(parts))
    if args.write:
        plot(ratios)
        write("fusion", "What fusing costs", parts)


if __name__ == "__main__":
    main()
