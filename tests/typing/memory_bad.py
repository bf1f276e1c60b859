"""User code with one mistake in each marked line, which type checkers must reject."""

from __future__ import annotations

from hybridmem import HybridMemory, Memory
from hybridmem.embedding.embedder import as_embedder
from hybridmem.evaluation.evaluate import evaluate
from hybridmem.evaluation.tuning.tune import tune
from hybridmem.server.inspector import Inspector

memory = HybridMemory(embedder=None)
HybridMemory(namespace=5)  # bad
HybridMemory(k="eight")  # bad
HybridMemory("m.db", buzy_timeout=1.0)  # bad
HybridMemory("m.db", synchronous="off")  # bad
memory.add("text", tag=["home"])  # bad
memory.add("text", on_duplicate="drop")  # bad
memory.add(5)  # bad
memory.add_many("text", progess=None)  # bad
memory.update("id", txt="new")  # bad
memory.search("query", size=3)  # bad
memory.search("query", 3)  # bad
memory.search("query", k="3")  # bad
memory.search("query", filter="type=fact")  # bad
memory.search("query", time="exact")  # bad
memory.search_arm("bm25", "query", recipe="rrf")  # bad
str(memory.search("query")[0].socre)  # bad
str(memory.get("id").txt)  # bad
memory.link("a")  # bad
HybridMemory(embedder=5)  # bad
HybridMemory("m.db", vectors="faiss")  # bad
memory.nearest("text")  # bad
as_embedder("local", batchsize=3)  # bad
evaluate(3, [])  # bad
tune("m.db", [])  # bad
Inspector("m.db")  # bad
Memory("text", tags=5)  # bad


async def use() -> None:
    await memory.aadd("text", tag=["home"])  # bad
    await memory.asearch("query", size=3)  # bad
    await memory.asearch_many(["query"], k="3")  # bad
    await memory.aupdate("id", txt="new")  # bad
    str((await memory.aget("id")).txt)  # bad
