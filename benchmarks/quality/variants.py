"""The defaults in other shapes of the same data: `python -m benchmarks.quality.variants --data ../shared/data`.

Conversations without threads, in one thread, without dates, all in one store, with other role names or vectors that
say nothing: the defaults against the best arm, nDCG@10, over the questions of all conversations of a set.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality.__main__ import pooled
from benchmarks.quality.sets import Part, load_sets
from hybridmem.core.types import Memory
from hybridmem.evaluation.evaluate import evaluate
from hybridmem.evaluation.recording import memory_systems
from hybridmem.evaluation.report import Report

CONVERSATIONS = ("LoCoMo", "REALTALK", "BEAM")


def changed(change: Callable[[Memory], Memory]) -> Callable[[Sequence[Part]], list[Part]]:
    """Every memory of every part, changed."""
    return lambda parts: [replace(part, memories=list(map(change, part.memories))) for part in parts]


def joined(parts: Sequence[Part]) -> list[Part]:
    """All parts as one store."""
    whole = Part("all", [], [], np.concatenate([part.documents for part in parts]), {})
    for part in parts:
        whole.memories.extend(part.memories)
        whole.cases.extend(part.cases)
        whole.questions.update(part.questions)
    return [whole]


def renamed(memory: Memory) -> Memory:
    """The roles under other names."""
    text = re.sub(r"^Assistant:", "AI:", re.sub(r"^User:", "Human:", memory.text))
    return replace(memory, text=text)


SHAPES: dict[str, tuple[Callable[[Sequence[Part]], Sequence[Part]], dict[str, Any]]] = {
    "as they are": (list, {}),
    "all in one store": (joined, {}),
    "without threads": (changed(lambda memory: replace(memory, thread=None)), {}),
    "all in one thread": (changed(lambda memory: replace(memory, thread="all")), {}),
    "without dates": (changed(lambda memory: replace(memory, created_at=None)), {}),
    "neither threads nor dates": (changed(lambda memory: replace(memory, thread=None, created_at=None)), {}),
    "Human and AI for User and Assistant": (changed(renamed), {}),
    "no embedder": (list, {"embedder": None}),
    "all vectors equal": (list, {"embedder": lambda texts: [np.ones(8, np.float32)] * len(texts)}),
}


def nearest(part: Part, texts: Sequence[str]) -> list[np.ndarray]:
    """The vectors of texts; a question without the names of other conversations has that of the most similar one."""
    known, words = part.vectors, partial(re.findall, r"\w+")

    def likeness(text: str, other: str) -> float:
        one, two = set(words(text.lower())), set(words(other.lower()))
        return len(one & two) / len(one | two)

    return [known[text] if text in known else known[max(part.questions, key=partial(likeness, text))] for text in texts]


def measured(parts: Sequence[Part], settings: dict[str, Any]) -> Report:
    """The arms and the defaults over all parts."""
    reports = []
    for part in parts:
        with part.open(**({"embedder": partial(nearest, part)} | settings)) as memory:
            reports.append(
                evaluate({one.name: one for one in memory_systems(memory, stages=False)}, part.cases, baseline="fused")
            )
    return pooled(reports)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data
    print("| | " + " | ".join(CONVERSATIONS) + " |\n|---|" + "---|" * len(CONVERSATIONS))
    loaded = {name: load_sets(data)[name]() for name in CONVERSATIONS}
    for shape, (change, settings) in SHAPES.items():
        cells = []
        for one in loaded.values():
            report = measured(change([*one.tuning, *one.held]), settings)
            best = max((run.name for run in report.runs if run.arm), key=lambda arm: report.mean(arm, "ndcg@10"))
            gain = report.gain("fused", "ndcg@10", over=best)
            own = report.mean("fused", "ndcg@10")
            cells.append(f"{own:.3f}, {gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]")
        print(f"| {shape} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
