"""Measure every system on every set: `python -m benchmarks.quality [--data ../shared/data] [--write]`."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.quality.page import Figures, write_page
from benchmarks.quality.peers import langchain_peers, llamaindex_peers
from benchmarks.quality.sets import Part, load_sets
from hybridmem.evaluation.calibration import calibrate
from hybridmem.evaluation.evaluate import evaluate
from hybridmem.evaluation.recording import memory_recorder, memory_systems
from hybridmem.evaluation.report import Report, Run
from hybridmem.evaluation.tuning.tune import DEPTH, Tuning, tune
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.recipes import RECIPES

ROOT = Path(__file__).parents[2]
OURS = "hybridmem, defaults"
NAMES = {"fused": OURS, "bm25": "our BM25 alone", "vector": "our vectors alone"}


def pooled(reports: list[Report]) -> Report:
    """One report over the cases of several stores."""
    first = reports[0]
    runs = []
    for place, run in enumerate(first.runs):
        parts = [report.runs[place] for report in reports]
        lists = tuple(answer for part in parts for answer in part.lists)
        seconds = tuple(second for part in parts for second in part.seconds)
        runs.append(Run(run.name, lists, seconds, arm=run.arm))
    return replace(first, cases=tuple(case for report in reports for case in report.cases), runs=tuple(runs))


def against_peers(parts: list[Part], from_rrf: Tuning) -> Report:
    """Our arms, our defaults, plain RRF before and after tuning, and the peers, over the same embeddings."""
    reports = []
    for part in parts:
        with part.open() as memory, part.open(recipe="rrf") as plain, part.open(recipe=from_rrf.recipe) as tuned:
            ours = {NAMES[one.name]: one for one in memory_systems(memory, stages=False)}
            ours["hybridmem, plain RRF"] = memory_systems(plain, stages=False)[-1]
            ours["hybridmem, plain RRF, tuned"] = memory_systems(tuned, stages=False)[-1]
            peers = langchain_peers(part) | llamaindex_peers(part)
            reports.append(evaluate(ours | peers, part.cases, id_key="id", baseline=OURS))
        print(f"  {part.name}: {len(part.cases)} questions", file=sys.stderr)
    return pooled(reports)


def stage_by_stage(parts: list[Part]) -> Report:
    """Our defaults, and what is lost when one stage is left out."""
    reports = []
    for part in parts:
        with part.open() as memory:
            systems = {NAMES.get(one.name, one.name): one for one in memory_systems(memory)}
            reports.append(evaluate(systems, part.cases, baseline=OURS))
    return pooled(reports)


def tune_on(parts: list[Part], start: Fusion) -> Tuning:
    """One recipe from the questions of several stores."""
    memories = [part.open() for part in parts]
    recorders = {}
    for part, memory in zip(parts, memories, strict=True):
        record = memory_recorder(memory, depth=DEPTH)
        recorders |= {id(case): record for case in part.cases}
    cases = [case for part in parts for case in part.cases]
    return tune(lambda case: recorders[id(case)](case), cases, recipe=start, depth=DEPTH)


def abstention(parts: list[Part]) -> list[tuple[str, float, float, float]]:
    """Store, threshold, and the shares refused: of its own questions not fitted on, and of all other stores'."""
    rows = []
    for part in parts:
        foreign = {query: vector for other in parts if other is not part for query, vector in other.questions.items()}
        strange = [case.query for other in parts if other is not part for case in other.cases]
        with part.open(foreign) as memory:
            fitted = calibrate(memory, part.cases[::2], off_topic=strange)
            refused = [not memory.search(case.query, min_confidence=fitted.threshold) for case in part.cases[1::2]]
        rows.append((part.name, fitted.threshold, sum(refused) / len(refused), fitted.off_topic))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--write", action="store_true", help="write docs/quality.md and its picture")
    parser.add_argument("--only", nargs="*", help="LoCoMo, SciFact, Cranfield")
    args = parser.parse_args()
    if not args.data.is_dir():
        parser.error(f"no folder {args.data}: give the evaluation sets by --data")
    sets = {name: parts for name, parts in load_sets(args.data).items() if not args.only or name in args.only}
    figures = {}
    for name, (tuning, held) in sets.items():
        print(name, file=sys.stderr)
        tuned, from_rrf = tune_on(tuning, RECIPES["default"]), tune_on(tuning, RECIPES["rrf"])
        held_out = against_peers(held, from_rrf)
        whole = held_out if name == "LoCoMo" else pooled([against_peers(tuning, from_rrf), held_out])
        figures[name] = Figures(tuned, from_rrf, held_out, whole, stage_by_stage(held))
        print(tuned, from_rrf, held_out, figures[name].stages, sep="\n\n")
    refusals = abstention(sets["LoCoMo"][1]) if "LoCoMo" in sets else []
    print(*refusals, sep="\n")
    if args.write:
        write_page(figures, refusals, docs=ROOT / "docs")


if __name__ == "__main__":
    main()
