"""User code of the core that type checkers must accept."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np

from hybridmem import Fusion, HybridMemory, Memory
from hybridmem.embedding.embedder import as_embedder
from hybridmem.errors import NotFoundError
from hybridmem.evaluation.evaluate import Case, calibrate, evaluate
from hybridmem.evaluation.tuning.tune import tune
from hybridmem.memory.results import MemoryStats, Result
from hybridmem.server.inspector import Inspector
from langchain_hybridmem import BM25Retriever, FusionRetriever
from llamaindex_hybridmem import BM25Retriever as NodeRetriever


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), 1.0] for text in texts]


def use(path: Path) -> list[Result]:
    with HybridMemory(path, embedder=embed, namespace="ana", k=5, busy_timeout=1.0) as memory:
        first: str = memory.add("Ana moved to Lisbon", tags=["home"], ttl=timedelta(days=30), on_duplicate="merge")
        memory.add(Memory("Ana has a cat"), speaker="Ana", event_at="2024-05-01", metadata={"page": 3})
        many: list[str] = memory.add_many(["a", {"text": "b"}, Memory("c")], on_duplicate="skip")
        changed: Memory = memory.update(first, text="Ana lives in Lisbon", thread=None, expires_at=None)
        memory.link(first, many[0], "contradicts", weight=0.5)
        results: list[Result] = memory.search(
            "Where does Ana live?",
            k=3,
            filter={"tags": {"$contains": "home"}},
            as_of=datetime.now(timezone.utc),
            recipe=Fusion(),
            tokens=500,
            touch=True,
            time="strict",
            context=2,
        )
        batches: list[list[Result]] = memory.search_many(["a", "b"], min_confidence=0.2)
        memory.explain("a", k=3).why_not(first)
        memory.search_arm("graph", "a", hops=1, decay=0.3)
        stats: MemoryStats = memory.stats()
        data: dict[str, object] = {**changed.to_dict(), **stats.to_dict(), **results[0].to_dict()}
        memory.clear()
        memory.erase(namespace="bob")
        memory.sweep(erase=True)
        calibrate(memory, ["a question"])
        with suppress(NotFoundError):
            memory.get("missing", as_of="2024-01-01")
        return [*results, *batches[0]] if data else []


def measure(memory: HybridMemory, retriever: BM25Retriever, nodes: NodeRetriever) -> str:
    cases = [Case("Where does Ana live?", relevant={"m1": 1.0})]
    report = evaluate({"memory": memory, "bm25": retriever, "nodes": nodes, "own": lambda query: ["m1"]}, cases)
    evaluate(memory, cases)
    tuned = tune(FusionRetriever(retrievers=[retriever]), cases)
    memory.nearest([0.1, 0.2], k=2)
    memory.nearest(np.zeros(2, dtype=np.float32))
    HybridMemory(embedder=as_embedder(embed, batch_size=3), vectors={"host": "localhost", "port": 8000})
    Inspector(memory).close()
    return f"{report}{tuned}"


async def use_async(memory: HybridMemory) -> Memory:
    first: str = await memory.aadd("Ana moved to Lisbon", tags=["home"], ttl=60)
    many: list[str] = await memory.aadd_many(["a", "b"], on_duplicate="skip")
    results: list[Result] = await memory.asearch("Lisbon", k=3, context=1)
    more: list[list[Result]] = await memory.asearch_many(["a"], k=1)
    everything: list[Memory] = await memory.alist(filter={"type": "fact"})
    forgotten: int = await memory.aforget(first, *many)
    await memory.aupdate(first, text="x")
    await memory.areindex(embedder=embed)
    memories = [*everything, *(result.memory for result in [*results, *more[0]])]
    return memories[forgotten]
