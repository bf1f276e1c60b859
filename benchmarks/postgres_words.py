"""PostgreSQL's own ranking of words (tsvector) beside exact BM25, both in the server: what they agree on, and find.

Each set is a namespace (LoCoMo: one a conversation). Questions alternate between the engines; medians of wall time.

    python -m benchmarks.postgres_words --data DIR [--write]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import psycopg

from benchmarks import common
from hybridmem.core.protocols import ArmQuery, View
from hybridmem.core.types import Memory
from hybridmem.evaluation.evaluate import load_cases, load_corpus
from hybridmem.indexes.view import IndexSettings
from hybridmem.stores.postgres.store import PostgresStore
from tests.support import postgres_server

ENGINES = ("bm25", "tsvector")
TOP, K = 20, 10


def folders(data: Path) -> dict[str, list[Path]]:
    """The folders of each set."""
    conversations = sorted((data / "locomo").iterdir())
    return {"LoCoMo": conversations, "Cranfield": [data / "cranfield"], "SciFact": [data / "scifact"]}


def measure(stores: dict[str, PostgresStore], places: list[Path]) -> list[object]:
    """One row: agreement in the top 20, recall@10 and milliseconds of each engine."""
    same: list[float] = []
    recall: dict[str, list[float]] = {name: [] for name in ENGINES}
    times: dict[str, list[float]] = {name: [] for name in ENGINES}
    size = 0
    for place in places:
        corpus = [Memory(row["text"], id=row["id"], title=row.get("title") or "") for row in load_corpus(place)]
        size += len(corpus)
        for store in stores.values():
            store.put(corpus, namespace=place.name)
            with psycopg.connect(store.path, autocommit=True) as conn:
                conn.execute("VACUUM ANALYZE")
        cases = [case for case in load_cases(place) if case.relevant]
        for at, case in enumerate(cases):
            found = {}
            for name in ENGINES[at % 2 :] + ENGINES[: at % 2]:
                space = stores[name].search_view(View(place.name), IndexSettings())
                start = time.perf_counter()
                found[name] = space.search("bm25", ArmQuery(case.query), k=TOP).ids
                times[name].append(1000 * (time.perf_counter() - start))
                recall[name].append(len(set(found[name][:K]) & set(case.relevant)) / len(case.relevant))
            exact, other = (set(found[name]) for name in ENGINES)
            same.append(len(exact & other) / max(len(exact), 1))
    return [
        f"{size:,}",
        len(same),
        f"{statistics.fmean(same):.0%}",
        *(f"{statistics.fmean(recall[name]):.3f}" for name in ENGINES),
        *(f"{statistics.median(times[name]):.1f}" for name in ENGINES),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    header = ["set", "memories", "questions", "same top 20", "recall@10 bm25", "tsvector", "ms bm25", "tsvector"]
    with postgres_server.server(**postgres_server.FAST, shared_buffers="256MB") as server:
        stores = {name: PostgresStore(server.database(), lexical=name) for name in ENGINES}
        rows = [[name, *measure(stores, places)] for name, places in folders(given.data).items()]
        for store in stores.values():
            store.close()
    shown = common.table(header, rows)
    print(shown)
    if given.write:
        text = f"# Words in PostgreSQL: exact BM25 and tsvector\n\n{shown}\n\nMeasured on {common.machine()}; "
        text += "medians of wall time, engines in turn, both with the terms of our analyzer.\n"
        (common.OUT / "postgres_words.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
