"""The demo: a small memory that answers questions, with the reason behind each result. Runs offline.

The embedder comes from a package, and the store is one SQLite file in a temporary folder.
"""

import os
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

from hybridmem import HybridMemory, Memory

now = datetime.now(timezone.utc)


def days(count: int) -> datetime:
    """The time some days ago."""
    return now - timedelta(days=count)


MEMORIES = [
    Memory("Ana: My cat Pixel sleeps on the blue sofa these days.", id="sofa", thread="chat-7", created_at=days(3)),
    Memory("Ben: Mine prefers the warm oven.", id="oven", thread="chat-7", created_at=days(3)),
    Memory("Ana lives in Porto.", id="porto", subject="ana", created_at=days(400)),
    Memory("The export job fails with E0427 on POST /v2/exports.", id="ticket", type="incident", created_at=days(9)),
    Memory("Imports through /v2/imports are fine since Monday.", id="imports", type="incident", created_at=days(8)),
    Memory("The car was in the garage for new brakes.", id="car", created_at=days(60)),
]


def show(memory: HybridMemory, question: str, *, k: int = 2) -> str:
    """Print the results of one question with their receipts; return the id of the best."""
    results = memory.search(question, k=k)
    print(f"? {question}")
    for result in results:
        receipt = str(result.receipt).split(": ", 1)[1]
        print(f"  {result.score:.2f}  {result.text}\n        {receipt}")
    print()
    return results[0].id


with tempfile.TemporaryDirectory() as folder, HybridMemory(Path(folder) / "memory.db") as memory:
    memory.add_many(MEMORIES)
    memory.add("Ana has moved to Lisbon.", id="lisbon", subject="ana", supersedes="porto")
    print(f"A memory of {len(memory)} facts in one SQLite file, searched by {', '.join(memory.arms)} and a graph.\n")

    assert show(memory, "Where does Ana's cat sleep?") == "sofa"
    assert show(memory, "Where does Ana live?") == "lisbon"  # Porto is superseded
    assert show(memory, "what about /v2/exports") == "ticket"  # an identifier: BM25
    if "vector" in memory.arms:
        assert show(memory, "vehicle repair") == "car"  # no word in common: vectors

    explanation = memory.explain("Where does Ana live?", k=2)
    print("Where does Ana live? Why these memories are not among the results:")
    for one in (memory.get("porto"), memory.get("ticket")):
        print(f"  {one.text}\n        {explanation.why_not(one.id).split(': ', 1)[1]}")

here = Path(sys.executable).parent  # `make demo` installs the command into .venv
near = here.is_relative_to(Path.cwd())
command, python = (os.path.relpath(here / name) if near else name for name in ("hybridmem", "python"))
print(
    f"""
--- From LangChain's EnsembleRetriever: change two imports ---

- from langchain_classic.retrievers import EnsembleRetriever
- from langchain_community.retrievers import BM25Retriever
+ from langchain_hybridmem import BM25Retriever, EnsembleRetriever

  The same documents in the same order, and now: arms at the same time, k and filter at call time, scores,
  a BM25 index that takes adds and deletes.
  Run it: {python} -m pip install '.[langchain]' && {python} examples/migrate_from_ensemble.py

--- See it in a browser ---

  {command} add "Ana has moved to Lisbon."
  {command} inspect --open"""
)
