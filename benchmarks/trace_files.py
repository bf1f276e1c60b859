"""Files entered and switches between files during one call of each main entry point.

A call enters a file when a function defined there starts; a switch is two consecutive calls in different files. Only
files of `hybridmem`, `langchain_hybridmem` and `llamaindex_hybridmem` count. Each entry point is called several times
before it is traced: imports and the first build of an index do not count, and quick arms then run in the caller's
thread, where they are seen.

    python -m benchmarks.trace_files [--files] [--no-postgres]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

PACKAGES = ("hybridmem", "langchain_hybridmem", "llamaindex_hybridmem")
TEXTS = [
    "Ana has moved to Lisbon.",
    "Ana's cat is called Pixel.",
    "Where does Pixel sleep these days?",
    "On the blue sofa, of course.",
    "The export job fails with E0427 on POST /v2/exports.",
    "Imports through /v2/imports have been fine since Monday.",
]
QUESTION = "Where does the cat Pixel sleep?"
WARM_UP = 50


class Trace(NamedTuple):
    """The files that one call entered, in order of first entry, and how often the file changed."""

    files: tuple[str, ...]
    switches: int


def trace(call: Callable[[], object]) -> Trace:
    """Run `call` and record the file of every Python function of ours that starts, in any thread."""
    import hybridmem

    root = str(Path(hybridmem.__file__).parents[1]) + "/"
    entered: list[str] = []

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(root) and name[len(root) :].split("/")[0] in PACKAGES:
            entered.append(name[len(root) :])

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    switches = sum(before != after for before, after in itertools.pairwise(entered))
    return Trace(tuple(dict.fromkeys(entered)), switches)


def memories() -> list[dict[str, Any]]:
    """A small store: one conversation, three facts, one shared entity."""
    return [
        {"id": f"m{number}", "text": text, "thread": "chat" if number in (2, 3) else None}
        for number, text in enumerate(TEXTS)
    ]


def vectors(texts: list[str]) -> list[list[float]]:
    """Deterministic vectors: counts of three letters."""
    return [[text.count(letter) + 0.1 for letter in "aeo"] for text in texts]


def sqlite_calls(folder: Path) -> Iterator[tuple[str, Trace]]:
    """`search` and `add` of a memory in one SQLite file."""
    from hybridmem import HybridMemory

    with HybridMemory(folder / "trace.db", embedder=vectors) as memory:
        memory.add_many(memories())
        for _ in range(WARM_UP):
            memory.search(QUESTION, k=3)
        yield "memory.search (SQLite)", trace(lambda: memory.search(QUESTION, k=3))
        memory.add("A first memory.")
        yield "memory.add (SQLite)", trace(lambda: memory.add("Ana drinks tea."))


def postgres_calls() -> Iterator[tuple[str, Trace]]:
    """`search` of a memory on a PostgreSQL server of our own."""
    from hybridmem import HybridMemory
    from tests.support.postgres_server import server

    with server() as running, HybridMemory(running.url(), embedder=vectors) as memory:
        memory.add_many(memories())
        for _ in range(WARM_UP):
            memory.search(QUESTION, k=3)
        yield "memory.search (PostgreSQL)", trace(lambda: memory.search(QUESTION, k=3))


def langchain_calls() -> Iterator[tuple[str, Trace]]:
    """`EnsembleRetriever.invoke` over two BM25 retrievers."""
    from langchain_hybridmem import BM25Retriever, EnsembleRetriever

    arm = BM25Retriever.from_texts(TEXTS, k=3)
    other = BM25Retriever.from_texts(TEXTS[::-1], k=3)
    ensemble = EnsembleRetriever(retrievers=[arm, other], weights=[0.5, 0.5])
    for _ in range(WARM_UP):
        ensemble.invoke(QUESTION)
    yield "EnsembleRetriever.invoke", trace(lambda: ensemble.invoke(QUESTION))


def llama_calls() -> Iterator[tuple[str, Trace]]:
    """`FusionRetriever.retrieve` of LlamaIndex over two BM25 retrievers."""
    from llama_index.core.schema import TextNode

    from llamaindex_hybridmem import BM25Retriever, FusionRetriever

    nodes = [TextNode(id_=f"n{number}", text=text) for number, text in enumerate(TEXTS)]
    arms = {
        "a": BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=3),
        "b": BM25Retriever.from_defaults(nodes=nodes[::-1], similarity_top_k=3),
    }
    fused = FusionRetriever(retrievers=arms, similarity_top_k=3)
    for _ in range(WARM_UP):
        fused.retrieve(QUESTION)
    yield "FusionRetriever.retrieve (LlamaIndex)", trace(lambda: fused.retrieve(QUESTION))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", action="store_true", help="list the files of each call")
    parser.add_argument("--no-postgres", action="store_true", help="leave PostgreSQL out")
    parser.add_argument("--write", action="store_true", help="accepted for `make bench`; nothing is written")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        calls = [*sqlite_calls(Path(folder))]
    if not args.no_postgres:
        calls += postgres_calls()
    calls += [*langchain_calls(), *llama_calls()]
    print(f"{'call':<40} {'files':>6} {'switches':>9}")
    for name, found in calls:
        print(f"{name:<40} {len(found.files):>6} {found.switches:>9}")
        if args.files:
            print("\n".join(f"    {file}" for file in found.files))


if __name__ == "__main__":
    main()
