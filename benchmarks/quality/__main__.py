"""Measure every system on every set: `python -m benchmarks.quality [--data ../shared/data] [--write]`."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.quality.page import OURS, TUNED, Figures, Refusal, write_page
from benchmarks.quality.peers import langchain_systems, llamaindex_systems
from benchmarks.quality.readme import write_readme
from benchmarks.quality.sets import EvaluationSet, Part, load_sets
from hybridmem.evaluation.cases import Case
from hybridmem.evaluation.evaluate import System, calibrate, evaluate
from hybridmem.evaluation.recording import memory_recorder, memory_systems, replay, variants
from hybridmem.evaluation.report import Report, Run
from hybridmem.evaluation.tuning.tune import DEPTH, Tuning, tune
from hybridmem.fusion.recipe import RECIPES, Fusion

ROOT = Path(__file__).parents[2]
NAMES = {"fused": OURS, "bm25": "BM25 arm of HybridMemory", "vector": "vector arm of HybridMemory"}


def pooled(reports: Sequence[Report]) -> Report:
    """One report over the cases of several stores."""
    first = reports[0]
    runs = []
    for place, run in enumerate(first.runs):
        parts = [report.runs[place] for report in reports]
        lists = tuple(answer for part in parts for answer in part.lists)
        seconds = tuple(second for part in parts for second in part.seconds)
        runs.append(Run(run.name, lists, seconds, arm=run.arm))
    return replace(first, cases=tuple(case for report in reports for case in report.cases), runs=tuple(runs))


def compare(parts: Sequence[Part], tuned: Tuning | None) -> Report:
    """Our arms, our memory at its defaults, tuned, and with the local embedder, and the framework retrievers."""
    reports = []
    for part in parts:
        with part.open() as memory, part.open(embedder="local") as local:
            systems: dict[str, Any] = {NAMES[one.name]: one for one in memory_systems(memory, stages=False)}
            if tuned is not None and tuned.accepted:
                recipe = tuned.recipe
                systems[TUNED] = System(
                    "tuned",
                    lambda case, k, memory=memory, recipe=recipe: [
                        one.id for one in memory.search(case.query, k=k, recipe=recipe)
                    ],
                )
            systems["HybridMemory, defaults, local embedder"] = memory_systems(local, stages=False)[-1]
            systems |= langchain_systems(part) | llamaindex_systems(part)
            reports.append(evaluate(systems, part.cases, id_key="id", baseline=OURS))
        print(f"  {part.name}: {len(part.cases)} questions", file=sys.stderr)
    return pooled(reports)


def ablate(parts: Sequence[Part]) -> Report:
    """Our defaults, and what is lost when one stage or one part of evidence is left out: replays of recorded arms."""
    reports = []
    default = RECIPES["default"]
    for part in parts:
        with part.open() as memory, part.open(recipe=replace(default, omit_speakers=False)) as plain:
            recorders = {True: memory_recorder(memory, depth=DEPTH), False: memory_recorder(plain, depth=DEPTH)}
            records = {(id(one), names): record(one) for names, record in recorders.items() for one in part.cases}

            def replayed(recipe: Fusion, records: Any = records) -> System:
                def ask(case: Case, k: int) -> list[str]:
                    return replay(recipe, records[id(case), recipe.omit_speakers], query=case.query, k=k)

                return System("", ask)

            systems = {OURS: replayed(default)} | {name: replayed(recipe) for name, recipe in variants(default)}
            reports.append(evaluate(systems, part.cases, baseline=OURS))
    return pooled(reports)


def tune_on(parts: Sequence[Part]) -> Tuning | None:
    """One recipe from the questions of several stores; None where there is nothing to tune on."""
    if not parts:
        return None
    recorders = {}
    for part in parts:
        record = memory_recorder(part.open(), depth=DEPTH)
        recorders |= {id(case): record for case in part.cases}
    cases = [case for part in parts for case in part.cases]
    return tune(lambda case: recorders[id(case)](case), cases, recipe=RECIPES["default"], depth=DEPTH)


def abstention(parts: Sequence[Part]) -> list[Refusal]:
    """For each store: the threshold, and the shares of its own and of other stores' questions that are refused."""
    rows = []
    for part in parts:
        others = [other for other in parts if other is not part]
        more = {query: vector for other in others for query, vector in other.questions.items()}
        off_topic = [case.query for other in others for case in other.cases]
        with part.open(more, recipe=replace(RECIPES["default"], omit_speakers=False)) as memory:
            fitted = calibrate(memory, part.cases[::2], off_topic=off_topic)
            refused = [not memory.search(case.query, min_confidence=fitted.threshold) for case in part.cases[1::2]]
        rows.append(Refusal(part.name, fitted.threshold, sum(refused) / len(refused), fitted.off_topic or 0.0))
    return rows


def measure(one: EvaluationSet, *, tuning: bool) -> Figures:
    """Everything on one set."""
    tuned = tune_on(one.tuning) if tuning else None
    return Figures(one.about, compare(one.held, tuned), ablate(one.held), tuned, one.documents)


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--write", action="store_true", help="write docs/quality.md and its chart")
    parser.add_argument("--only", nargs="*", help="names of sets")
    parser.add_argument("--no-tuning", action="store_true", help="leave out the tuned recipes, which take longest")
    args = parser.parse_args()
    if not args.data.is_dir():
        parser.error(f"no folder {args.data}: give the evaluation sets by --data")
    figures, refusals = {}, []
    for name, load in load_sets(args.data).items():
        if args.only and name not in args.only:
            continue
        print(name, file=sys.stderr)
        loaded = load()
        figures[name] = measure(loaded, tuning=not args.no_tuning)
        if name == "LoCoMo":
            refusals = abstention(loaded.held)
        print(name, figures[name].systems, figures[name].stages, json.dumps([*map(list, refusals)]), sep="\n\n")
    if args.write:
        write_page(figures, refusals, docs=ROOT / "docs")
        if not args.only:
            write_readme(ROOT)


if __name__ == "__main__":
    main()
