"""Two retrievers that take 0.2 s each: how long the fusions over them take, and what they do to an event loop."""

import asyncio
import statistics
import time

from langchain_classic.retrievers import EnsembleRetriever as OldEnsemble
from langchain_core.runnables import RunnableLambda
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import BaseRetriever as LlamaBase
from llama_index.core.retrievers import QueryFusionRetriever as OldQueryFusion

from benchmarks.common import table
from langchain_hybridmem import EnsembleRetriever, FusionRetriever
from llamaindex_hybridmem import FusionRetriever as LlamaFusion
from llamaindex_hybridmem import QueryFusionRetriever

TIMES = 7


def slow(query):
    time.sleep(0.2)
    return [str(query)]


class LlamaSlow(LlamaBase):
    def _retrieve(self, query_bundle):  # noqa: ARG002
        time.sleep(0.2)
        return []


def wall(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def wall_and_stall(call):
    """How long an async call takes, and the longest gap between two ticks of 5 ms on the same loop."""

    async def main():
        gaps, last, done = [], time.perf_counter(), asyncio.Event()

        async def tick():
            nonlocal last
            while not done.is_set():
                await asyncio.sleep(0.005)
                now = time.perf_counter()
                gaps.append(now - last)
                last = now

        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0.02)
        start = last = time.perf_counter()
        await call()
        taken = time.perf_counter() - start
        done.set()
        await ticking
        return taken, max(gaps)

    return asyncio.run(main())


def slow_arms():
    """The table, and what it says."""
    lang = [RunnableLambda(slow), RunnableLambda(slow)]
    llama = [LlamaSlow(), LlamaSlow()]
    how = {"mode": "reciprocal_rerank", "num_queries": 1, "use_async": False}
    old = OldQueryFusion(llama, MockLLM(), **how)
    rivals = {
        "LangChain EnsembleRetriever (original)": (OldEnsemble(retrievers=lang), "invoke", "ainvoke"),
        "langchain_hybridmem.EnsembleRetriever": (EnsembleRetriever(retrievers=lang), "invoke", "ainvoke"),
        "langchain_hybridmem.FusionRetriever": (FusionRetriever(retrievers=lang), "invoke", "ainvoke"),
        "LlamaIndex QueryFusionRetriever (original)": (old, "retrieve", "aretrieve"),
        "llamaindex_hybridmem.QueryFusionRetriever": (QueryFusionRetriever(llama, **how), "retrieve", "aretrieve"),
        "llamaindex_hybridmem.FusionRetriever": (LlamaFusion(llama), "retrieve", "aretrieve"),
    }  # fmt: skip
    rows = []
    for name, (retriever, at_once, on_loop) in rivals.items():
        call, acall = getattr(retriever, at_once), getattr(retriever, on_loop)
        sync = [wall(lambda call=call: call("?")) for _ in range(TIMES)]
        later = [wall_and_stall(lambda acall=acall: acall("?")) for _ in range(TIMES)]
        taken, stalls = zip(*later, strict=True)
        stall = f"{statistics.median(stalls) * 1e3:.0f} ms ({max(stalls) * 1e3:.0f} ms)"
        rows.append((name, f"{statistics.median(sync):.2f} s", f"{statistics.median(taken):.2f} s", stall))
    waits = f"Wall time, medians of {TIMES} calls; of the longest stalls the median and, in brackets, the worst."
    return [table(["retriever", "sync", "async", "longest stall of a ticker"], rows), waits]
