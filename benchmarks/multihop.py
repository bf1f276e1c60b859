"""Questions that need several passages: `python -m benchmarks.multihop [--data ../shared/data] [--part PART …]`.

Parts: `defaults` (HybridMemory at its defaults against its arms and without mentions), `decision` (the alternatives of
decision 9), `spot` (entities spotted in every text, on every set).
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.quality.sets import Part, load_part, load_sets
from hybridmem.core.types import Memory
from hybridmem.evaluation.cases import Case
from hybridmem.evaluation.evaluate import System, evaluate
from hybridmem.evaluation.report import Report
from hybridmem.fusion.recipe import RECIPES, Fusion
from hybridmem.fusion.stages import evidence
from hybridmem.indexes import candidates
from hybridmem.indexes.graph.index import GraphSettings
from hybridmem.indexes.graph.names import Names
from hybridmem.memory.memory import HybridMemory

ROOT = Path(__file__).parents[1]
KS = (2, 5, 10)
SETS = {"HotpotQA": "multihop/hotpotqa", "MuSiQue": "multihop/musique"}
DEFAULTS = "HybridMemory, defaults"
PLAIN = "without mentions"


def ids_of(memory: HybridMemory, **how: Any) -> Callable[[str], list[str]]:
    """A system that returns the ids of a search."""
    return lambda query: [result.id for result in memory.search(query, k=max(KS), **how)]


def arm_of(memory: HybridMemory, arm: str) -> Callable[[str], list[str]]:
    """A system that returns the ids of one arm."""
    return lambda query: [result.id for result in memory.search_arm(arm, query, k=max(KS))]


def weighted(weight: float) -> Fusion:
    """The default recipe with this weight of mentions."""
    default = RECIPES["default"]
    return replace(default, evidence=replace(default.evidence, mention=weight))


def rows_of(report: Report, names: Sequence[str] = ()) -> list[str]:
    """recall@2 / @5 / @10 of each system, with the gain of the baseline over it and its 95 % interval."""
    rows = []
    for run in report.runs:
        if names and run.name not in names:
            continue
        means = " / ".join(f"{report.mean(run.name, f'recall@{k}'):.3f}" for k in KS)
        gains = ""
        if run.name != report.baseline:
            found = [report.gain(report.baseline, f"recall@{k}", over=run.name) for k in KS]
            gains = " | ".join(f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]" for gain in found)
        rows.append(f"| {run.name} | {means} | {gains} |")
    return rows


# --- defaults against arms, and the alternatives of decision 9


def defaults(part: Part) -> Report:
    """The defaults against each arm and against the fusion without mentions."""
    with part.open() as memory, part.open(graph=GraphSettings(mentions=0)) as plain:
        systems = {
            DEFAULTS: ids_of(memory),
            PLAIN: ids_of(plain),
            "BM25 arm": arm_of(memory, "bm25"),
            "vector arm": arm_of(memory, "vector"),
            "graph arm": arm_of(memory, "graph"),
        }
        return evaluate(systems, part.cases, ks=KS, baseline=DEFAULTS)


def decision(part: Part) -> Report:
    """Weights of the evidence, texts read, two hops, and personalised PageRank over the same links."""
    with part.open() as memory, part.open(graph=GraphSettings(mentions=0)) as plain:
        systems: dict[str, Any] = {DEFAULTS: ids_of(memory), PLAIN: ids_of(plain)}
        for weight in (0.2, 0.3, 0.4, 0.5):
            systems[f"weight {weight}"] = ids_of(memory, recipe=weighted(weight))
        for count in (20, 100):
            systems[f"{count} texts read"] = partial(_with, candidates, "MENTIONING", count, ids_of(memory))
        for share in (0.0, 0.5, 1.0):
            systems[f"backward {share}"] = partial(_with, evidence, "BACKWARD", share, ids_of(memory))
        links = mention_links(part.memories)
        scored = cached(lambda query: {one.id: one.score for one in plain.search(query, k=100)})
        systems["two hops"] = lambda query: two_hops(scored(query), links)
        for restart in (0.15, 0.3, 0.5, 0.7):
            for weight in (0.2, 0.4, 0.8):
                name = f"PageRank, restart {restart}, weight {weight}"
                systems[name] = partial(_ranked, scored, links, restart, weight)
        return evaluate(systems, part.cases, ks=KS, baseline=DEFAULTS)


def _with(module: Any, name: str, value: float, ask: Callable[[str], list[str]], query: str) -> list[str]:
    """An answer with another value of a constant."""
    with mock.patch.object(module, name, value):
        return ask(query)


def cached(compute: Callable[[str], dict[str, float]]) -> Callable[[str], dict[str, float]]:
    """The same function, computed once for each query."""
    known: dict[str, dict[str, float]] = {}
    return lambda query: known[query] if query in known else known.setdefault(query, compute(query))


def mention_links(memories: Sequence[Memory]) -> dict[str, list[str]]:
    """The memories that each text mentions by name."""
    names = Names()
    for memory in memories:
        names.put(memory.id, memory)
    return {memory.id: [one.id for one in names.mentions(memory.id, memory.text)] for memory in memories}


def two_hops(scores: Mapping[str, float], links: Mapping[str, Sequence[str]]) -> list[str]:
    """Score + 0.35 · the best activation that arrives over at most two mentions, the second worth half of the first."""
    first: dict[str, float] = {}
    for source, score in scores.items():
        for target in links[source]:
            first[target] = max(first.get(target, 0.0), score)
    second = dict(first)
    for source, value in first.items():
        for target in links[source]:
            second[target] = max(second.get(target, 0.0), value / 2)
    total = {key: scores.get(key, 0.0) + 0.35 * second.get(key, 0.0) for key in {*scores, *second}}
    return sorted(total, key=lambda key: (-total[key], key))[: max(KS)]


def _ranked(
    scored: Callable[[str], dict[str, float]],
    links: Mapping[str, Sequence[str]],
    restart: float,
    weight: float,
    query: str,
) -> list[str]:
    """Score + weight · personalised PageRank, scaled to 1, seeded by the scores; both directions of a link count."""
    scores = scored(query)
    place = {key: row for row, key in enumerate(links)}
    pairs = [(place[a], place[b]) for a, targets in links.items() for b in targets]
    ends = np.array(pairs + [(b, a) for a, b in pairs], np.intp)
    degree = np.bincount(ends[:, 0], minlength=len(place))
    seed = np.zeros(len(place))
    for key, score in scores.items():
        seed[place[key]] = max(score, 0.0)
    seed /= seed.sum() or 1.0
    rank = seed.copy()
    for _ in range(30):
        moved = np.bincount(ends[:, 1], (rank / np.maximum(degree, 1))[ends[:, 0]], minlength=len(place))
        rank = restart * seed + (1 - restart) * moved
    rank /= rank.max() or 1.0
    total = {key: scores.get(key, 0.0) + weight * float(rank[row]) for key, row in place.items()}
    return sorted(total, key=lambda key: (-total[key], key))[: max(KS)]


# --- spotted entities on every set


def spotted(parts: Sequence[Part], measure: str) -> str:
    """The default against the default with entities spotted in every text, over the questions of several stores."""
    first, second = [], []
    for part in parts:
        with part.open() as own, part.open(graph=GraphSettings(entities="spot")) as spot:
            report = evaluate({"own": System("own", _deep(own)), "spot": System("spot", _deep(spot))}, part.cases)
            values = report.values
            place = report.metrics.index(measure)
            first.append(values["own"][:, place])
            second.append(values["spot"][:, place])
    own, spot = np.concatenate(first), np.concatenate(second)
    drawn = np.random.default_rng(0).integers(0, len(own), (2000, len(own)))
    low, high = np.percentile((spot - own)[drawn].mean(axis=1), [2.5, 97.5])
    return f"{own.mean():.3f} | {spot.mean():.3f} | {(spot - own).mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def _deep(memory: HybridMemory) -> Callable[[Case, int], list[str]]:
    return lambda case, k: [result.id for result in memory.search(case.query, k=k)]


def main() -> None:
    """Measure the chosen parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--part", nargs="*", default=["defaults", "decision", "spot"])
    parser.add_argument("--only", nargs="*", help="names of sets")
    args = parser.parse_args()
    for name, folder in SETS.items():
        part = load_part(args.data / folder, threads=False)
        for kind, measure in (("defaults", defaults), ("decision", decision)):
            if kind in args.part:
                print(f"--- {name}, {kind}: recall@2 / @5 / @10; gain of the defaults, 95 % paired bootstrap intervals")
                print("\n".join(rows_of(measure(part))), flush=True)
    if "spot" in args.part:
        print("--- entities: own | spotted | gain with its 95 % paired bootstrap interval")
        for name, load in load_sets(args.data).items():
            if name == "CISI" or (args.only and name not in args.only):
                continue
            loaded = load()
            measure_of = "ndcg@10" if loaded.documents and name not in SETS else "recall@10"
            print(f"| {name} ({measure_of}) | {spotted(loaded.tuning or loaded.held, measure_of)} |", flush=True)


if __name__ == "__main__":
    main()
