"""What the benchmarks share: fair timing (alternating rivals, medians of CPU time), text of natural shape, tables."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # CPU time of one core against CPU time of one core

import numpy as np

OUT = Path(__file__).parents[1] / "docs" / "benchmarks"


def arguments(
    description: str, *, sizes: Sequence[int] = (), flags: Mapping[str, str] | None = None
) -> argparse.Namespace:
    """--write, --sizes and --seed, and flags of a benchmark's own with what they do."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--write", action="store_true", help=f"write the table and the plot into {OUT}")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(sizes))
    parser.add_argument("--seed", type=int, default=7)
    for name, what in (flags or {}).items():
        parser.add_argument(f"--{name}", action="store_true", help=what)
    return parser.parse_args()


def alternate(
    rivals: Mapping[str, Callable[[object], object]], inputs: Sequence[object], *, rounds: int = 3
) -> dict[str, float]:
    """Median CPU seconds a call for each rival: each input goes to every rival in turn, in changing order."""
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for call in rivals.values():
        call(inputs[0])
    names = list(rivals)
    for turn in range(rounds):
        for at, item in enumerate(inputs):
            for name in names[(turn + at) % len(names) :] + names[: (turn + at) % len(names)]:
                start = time.process_time()
                rivals[name](item)
                times[name].append(time.process_time() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def zipf_texts(count: int, *, words: int = 14, vocabulary: int = 50_000, seed: int = 7) -> list[str]:
    """Short texts whose words follow Zipf's law, from common to rare."""
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, vocabulary + 1) ** 1.07
    picks = rng.choice(vocabulary, size=(count, words), p=chances / chances.sum())
    names = [spelled(number) for number in range(vocabulary)]
    return [" ".join([names[i] for i in row]) for row in picks.tolist()]


def spelled(number: int) -> str:
    """A number as a made-up word of syllables: letters alone, so that every tokeniser sees one plain word."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprtvz" for vowel in "aou"]
    word = "k"
    while number or len(word) == 1:
        number, rest = divmod(number, len(syllables))
        word = syllables[rest] + word
    return word


def clustered(count: int, *, dim: int = 384, seed: int = 7) -> np.ndarray:
    """Unit vectors in clusters, as embeddings of real texts are."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(8, count // 200), dim)).astype(np.float32)
    rows = centres[rng.integers(len(centres), size=count)] + 0.9 * rng.standard_normal((count, dim), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *[[str(cell) for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """Where this was measured."""
    return f"Python {platform.python_version()}, numpy {np.__version__}, {os.cpu_count()} cores, {platform.machine()}"


def write(
    name: str, title: str, parts: Sequence[str], *, measured: str = "medians of CPU time, rivals in turn"
) -> None:
    """docs/benchmarks/NAME.md."""
    OUT.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join([f"# {title}", *parts, f"Measured on {machine()}; {measured}."])
    (OUT / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    print(f"written: {OUT / name}.md")
