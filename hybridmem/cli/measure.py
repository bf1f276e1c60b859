"""Commands that measure and tune the ranking: eval, tune, health, calibrate."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridmem.cli.command import (
    NOTHING,
    Command,
    ProgressBar,
    check_output,
    open_memory,
    print_json,
    say,
    say_error,
    terminal_width,
    whole_number,
    write_json,
    write_text,
)
from hybridmem.core.protocols import View
from hybridmem.errors import ConfigError, MissingExtraError
from hybridmem.evaluation.evaluate import Case, System, evaluate, load_cases, load_questions
from hybridmem.fusion.recipe import load_recipe

if TYPE_CHECKING:
    from hybridmem.memory.memory import HybridMemory

__all__ = ["MEASURE"]

CASES = "a JSONL file (query, relevant, category?, as_of?), a BEIR-style folder, or - for standard input"
PLOTS = (".png", ".svg", ".pdf")
QUESTIONS = "a text file of questions, one a line, a JSONL file of cases, or - for standard input"


def _read_cases(path: str) -> list[Case]:
    return load_cases(sys.stdin if path == "-" else path)


def _read_questions(path: str, *, answerable: bool = False) -> list[str]:
    return load_questions(sys.stdin if path == "-" else path, answerable=answerable)


def _warn_unknown(memory: HybridMemory, cases: Sequence[Case]) -> None:
    """Warn about relevant ids that are not in the memory; raise ConfigError when none is."""
    wanted = list(dict.fromkeys(key for case in cases if case.as_of is None for key in case.relevant))
    stored = memory.store.get(wanted, view=View(memory.name, superseded=True))
    unknown = [key for key, memory_ in zip(wanted, stored, strict=True) if memory_ is None]
    if not unknown:
        return
    where = f"{len(unknown)} of {len(wanted)} relevant ids are not in this memory, such as {unknown[0]!r}"
    if len(unknown) == len(wanted) and all(case.as_of is None for case in cases):
        raise ConfigError(f"{where}: do these cases belong to another memory or namespace?")
    say_error(f"{where}; they count as not found")


# --- eval


def _eval_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("cases", help=CASES)
    sub.add_argument("--json", metavar="FILE", help="write the figures; - prints them instead of the table")
    sub.add_argument("--markdown", metavar="FILE", help="write the table; - prints it instead of the plain one")
    sub.add_argument("--html", metavar="FILE", help="write one page with tables, plots and failed cases; - prints it")
    sub.add_argument("--failures", type=whole_number(0), default=5, metavar="N", help="failed cases to explain (5)")
    sub.add_argument("--plot", metavar="FILE", help="draw recall curves and categories (PNG, SVG or PDF)")
    sub.add_argument("--ks", type=_depths, default=None, metavar="K,K", help="depths to measure at (1,3,5,8,10,20)")
    sub.add_argument("--no-stages", action="store_true", help="leave out the ablation of each stage")
    sub.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help="compare with another recipe; may be repeated",
    )


def _depths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers with commas, such as 1,5,10") from error


def _check_reports(args: argparse.Namespace) -> None:
    """Raise an error before the run for a file that `eval` could not write after it."""
    if args.plot and find_spec("matplotlib") is None:
        raise MissingExtraError("plot", needs="matplotlib")
    for option in ("json", "markdown", "html", "plot"):
        check_output(f"--{option}", getattr(args, option))
    if args.plot and (suffix := Path(args.plot).suffix.lower()) not in PLOTS:
        raise ConfigError(f"--plot {args.plot!r} ends with {suffix!r}: name a file with {', '.join(PLOTS)}")


def _eval(args: argparse.Namespace) -> int:
    _check_reports(args)
    cases = _read_cases(args.cases)
    for name in args.against:
        load_recipe(name)  # an unknown recipe fails before the run
    with ExitStack() as stack:
        memory = stack.enter_context(open_memory(args))
        _warn_unknown(memory, cases)
        systems: dict[str, Any] = {"": memory}
        for name in args.against:  # a memory of its own: a recipe may change the BM25 settings
            other = stack.enter_context(open_memory(args, recipe=name))
            systems[name] = System(name, _fused(other), dated=True)
        depths = {} if args.ks is None else {"ks": args.ks}
        progress = stack.enter_context(ProgressBar("queries"))
        stages = not args.no_stages
        report = evaluate(systems, cases, stages=stages, failures=args.failures, progress=progress, **depths)
    if "-" not in (args.json, args.markdown, args.html):
        say(report.to_text(width=terminal_width()))
        if args.failures and not report.failures:
            say("", "no case failed: the first 10 results have every relevant memory")
    if args.json:
        write_json(report.to_json(), args.json)
    if args.markdown:
        write_text(report.to_markdown(), args.markdown)
    if args.html:
        write_text(report.to_html(), args.html)
    if args.plot:
        report.plot(args.plot)
    return 0


def _fused(memory: HybridMemory) -> Callable[[Case, int], list[str]]:
    return lambda case, k: [result.id for result in memory.search(case.query, k=k, as_of=case.as_of)]


# --- tune


def _tune_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("cases", help=CASES)
    sub.add_argument("-o", "--output", default="recipe.json", metavar="FILE", help="the recipe to write (recipe.json)")
    sub.add_argument("--metric", default="ndcg@10", help="recall@k, hit@k, mrr@k or ndcg@k (ndcg@10)")
    sub.add_argument(
        "--folds", type=whole_number(2), default=5, metavar="N", help="parts that the cases are split into (5)"
    )
    sub.add_argument("--repeats", type=whole_number(), default=2, metavar="N", help="number of different splits (2)")
    sub.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="random seed (0)")
    sub.add_argument("--json", metavar="FILE", help="write all figures; - prints them instead of the summary")
    sub.add_argument("--force", action="store_true", help="write the best recipe even if its gain is not significant")


def _tune(args: argparse.Namespace) -> int:
    from hybridmem.evaluation.tuning.tune import tune

    cases = _read_cases(args.cases)
    check_output("--output", args.output)
    check_output("--json", args.json)
    with open_memory(args) as memory:
        _warn_unknown(memory, cases)
        how = {"metric": args.metric, "folds": args.folds, "repeats": args.repeats, "seed": args.seed}
        with ProgressBar("tuning", rate=False) as progress:
            tuned = tune(memory, cases, progress=progress, **how)
    if args.json:
        write_json(json.dumps(tuned.to_dict(), indent=2, ensure_ascii=False) + "\n", args.json)
    shown = sys.stderr if args.json == "-" else sys.stdout
    say(tuned, file=shown)
    if tuned.accepted or (args.force and tuned.changes):
        tuned.save(args.output, force=args.force)
        say(f"written to {args.output}: hybridmem search … --recipe {args.output}", file=shown)
    return 0 if tuned.accepted else NOTHING


# --- health, calibrate


def _health_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("queries", help=QUESTIONS)
    sub.add_argument("-k", type=whole_number(), default=8, help="how many results count (8)")
    sub.add_argument("--json", action="store_true", help="the figures as one JSON object")


def _health(args: argparse.Namespace) -> int:
    queries = _read_questions(args.queries)
    with open_memory(args) as memory:
        health = memory.health(queries, k=args.k)
    print_json(health.to_dict()) if args.json else say(health)
    return 0


def _calibrate_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("questions", help=f"questions that this memory can answer: {QUESTIONS}")
    sub.add_argument(
        "--off-topic", metavar="FILE", help="questions that it cannot answer, to count how many are refused"
    )
    sub.add_argument(
        "--rate", type=float, default=0.05, metavar="P", help="share of answerable questions that may be refused (0.05)"
    )
    sub.add_argument("--json", action="store_true", help="the figures as one JSON object")


def _calibrate(args: argparse.Namespace) -> int:
    from hybridmem.evaluation.evaluate import calibrate

    answerable = _read_questions(args.questions, answerable=True)
    unanswerable = _read_questions(args.off_topic) if args.off_topic else []
    with open_memory(args) as memory:
        fitted = calibrate(memory, answerable, rate=args.rate, off_topic=unanswerable)
    if args.json:
        print_json(fitted.to_dict())
    else:
        say(fitted, f"hybridmem search … --min-confidence {fitted.threshold:.4f}")
    return 0


MEASURE = (
    Command(
        "eval",
        "measure arms, stages and fusion on your cases",
        "hybridmem eval cases.jsonl --plot recall.png\n  hybridmem eval cases.jsonl --against recipe.json --no-stages",
        _eval_options,
        _eval,
        "Recall, MRR and nDCG of each arm alone, of the fused list, and without each stage in turn, with intervals.",
    ),
    Command(
        "tune",
        "search for a better recipe",
        "hybridmem tune cases.jsonl -o recipe.json\n  hybridmem tune cases.jsonl --metric recall@10 --recipe rrf",
        _tune_options,
        _tune,
        "Tries thousands of settings on some cases and measures the best on the others, starting from --recipe.\n"
        "Writes a recipe only when the held-out gain is significant; otherwise nothing is written, with exit code 3.",
    ),
    Command(
        "health",
        "how much each arm contributes",
        "hybridmem health questions.txt",
        _health_options,
        _health,
        "For each arm: how often it returns nothing, its share of the results, its share of results that no other arm\n"
        "returned, and the overlap with the other arms.",
    ),
    Command(
        "calibrate",
        "fit a threshold for --min-confidence",
        "hybridmem calibrate cases.jsonl --off-topic other.txt",
        _calibrate_options,
        _calibrate,
        "Prints the confidence that all but a share P of the answerable questions reach (0.05: at least 19 questions).",
    ),
)
