"""What tuning costs, part by part: `python -m benchmarks.tune [--data folder] [--write]`.

The three LoCoMo conversations that are tuned on, in one memory, with their MiniLM embeddings; CPU time of one core.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import OUT  # isort: skip  before numpy: it sets one thread for one core

import numpy as np

from benchmarks.quality.sets import Part, load_sets
from hybridmem.evaluation.recording import curve_recorder, memory_curve
from hybridmem.evaluation.tuning.tune import CURVES, DEPTH, Search, tune
from hybridmem.fusion.recipe import RECIPES

ROUNDS = 3


def median_of(work: Callable[[], Any], rounds: int = ROUNDS) -> tuple[float, Any]:
    """Median CPU seconds, and what the last round gave."""
    taken, value = [], None
    for _ in range(rounds):
        start = time.process_time()
        value = work()
        taken.append(time.process_time() - start)
    return statistics.median(taken), value


def one_memory(data: Path) -> Part:
    parts = load_sets(data)["LoCoMo"]().tuning
    questions = {query: vector for part in parts for query, vector in part.questions.items()}
    memories = [memory for part in parts for memory in part.memories]
    cases = [case for part in parts for case in part.cases]
    return Part("LoCoMo", memories, cases, np.concatenate([part.documents for part in parts]), questions)


def measure(part: Part) -> list[tuple[str, str, float, int]]:
    """Part of the work, how it is counted, CPU seconds, and how many of them."""
    vectors = part.vectors
    unknown = np.ones(part.documents.shape[1]) / part.documents.shape[1] ** 0.5
    # a question without the names of all speakers of the joined conversations may have no vector; only time is measured
    with part.open(embedder=lambda texts: [vectors.get(text, unknown) for text in texts]) as memory:
        own = memory_curve(memory)
        curves = [own, *(curve for curve in CURVES if curve != own)]
        record = curve_recorder(memory, depth=DEPTH, curves=[None, *curves[1:]])
        asking, answers = median_of(lambda: [record(case) for case in part.cases])
        records, default = list(zip(*answers, strict=True)), RECIPES["default"]
        laying, _ = median_of(lambda: Search(records, part.cases, default, "ndcg@10", curves))
        rows = [
            ("recording", "case", asking, len(part.cases)),
            ("columns of nine curves", "case", laying, len(part.cases)),
        ]
        for start in ("default", "rrf"):
            taken, found = median_of(lambda start=start: tune(memory, part.cases, recipe=RECIPES[start]), 1)
            rows.append(
                (f"all of `tune` from {start!r}: {found.settings:,} settings", "setting", taken, found.settings)
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--write", action="store_true", help=f"write {OUT / 'tune.md'}")
    args = parser.parse_args()
    if not args.data.is_dir():
        print(f"no folder {args.data}: give the evaluation sets by --data", file=sys.stderr)
        return
    part = one_memory(args.data)
    lines = ["| part | CPU s | each | ms |", "|---|---:|---|---:|"]
    lines += [f"| {name} | {s:.2f} | {unit} | {1000 * s / n:.2f} |" for name, unit, s, n in measure(part)]
    table = "\n".join(lines)
    print(table)
    if args.write:
        about = f"{len(part.cases)} cases over {len(part.memories):,} memories, two arms, graph, threads and dates"
        intro = (
            f"{about}; CPU time of one core, Python {platform.python_version()}: `python -m benchmarks.tune --write`."
        )
        (OUT / "tune.md").write_text(f"# What tuning costs\n\n{intro}\n\n{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
