"""docs/quality.md and its picture, from measured figures."""

from pathlib import Path
from typing import NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hybridmem.evaluation.report import Report
from hybridmem.evaluation.tuning.tune import Tuning

OURS = "hybridmem, defaults"


class Figures(NamedTuple):
    """What was measured on one set."""

    tuned: Tuning
    from_rrf: Tuning
    held: Report
    whole: Report
    stages: Report


INTRO = """# Quality

Written by `make quality DATA=folder`. Every system gets the same texts and the same MiniLM embeddings; nothing but the
embedder is a model. Our defaults were chosen on three LoCoMo conversations and on the first half of the SciFact and
Cranfield questions; the tables show the questions that were **not** used for that (they were looked at once before the
recipe was final: [decision 2](decisions/0002-default-recipe.md)). Differences are paired, case by case, with 95 %
bootstrap intervals. To measure your own memory, see [evaluate.md](evaluate.md).

![recall and nDCG of all systems](benchmarks/quality.png)
"""

ABOUT = {
    "LoCoMo": "Long conversations; a memory is one turn, and the right ones hold the answer. Conversations 42, 43, 44.",
    "SciFact": "Scientific claims against abstracts. The second half of the questions.",
    "Cranfield": "Aerodynamics abstracts. The second half of the questions.",
}


def write_page(figures: dict[str, Figures], refusals: list[tuple[str, float, float, float]], *, docs: Path) -> None:
    (docs / "benchmarks").mkdir(exist_ok=True)
    draw(figures, docs / "benchmarks" / "quality.png")
    blocks = [INTRO]
    for name, found in figures.items():
        blocks += [f"## {name}\n\n{ABOUT[name]}", table(found.held)]
        if found.whole is not found.held:
            both = "\n".join(f"- {run} {found.whole.mean(run, 'ndcg@10'):.3f}" for run in shown(found.whole))
            blocks.append(f"nDCG@10 over all questions of the set, those tuned on included:\n\n{both}")
        if found.held.categories:
            blocks.append(categories(found.held))
        blocks.append("\n".join(f"- {line}" for line in found.held.verdicts("ndcg@10") if line.startswith(OURS)))
        blocks.append(f"What each stage is worth here:\n\n{stages(found.stages)}")
        blocks.append(f"The tuner on the tuning half, started from the defaults:\n\n```\n{tuner(found.tuned)}\n```")
        blocks.append(f"Started from plain RRF:\n\n```\n{tuner(found.from_rrf)}\n```")
    if refusals:
        blocks.append(abstaining(refusals))
    (docs / "quality.md").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


def tuner(tuned: Tuning) -> str:
    """The verdict without the seconds, so that the page only changes when a figure does."""
    return "\n".join(line for line in str(tuned).splitlines() if "settings tried" not in line)


def shown(report: Report) -> list[str]:
    return [run.name for run in report.runs]


def table(report: Report) -> str:
    names = ("recall@1", "recall@5", "recall@10", "recall@20", "mrr@10", "ndcg@10")
    rows = ["| system | " + " | ".join(names) + " | nDCG@10 against our defaults |", "|---|" + "---:|" * 7]
    for run in shown(report):
        gain = report.gain(run, "ndcg@10", over=OURS)
        against = "" if run == OURS else f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        label = f"**{run}**" if run == OURS else run
        rows.append(f"| {label} | " + " | ".join(f"{report.mean(run, n):.3f}" for n in names) + f" | {against} |")
    return "\n".join(rows)


def categories(report: Report) -> str:
    counts = {name: int(mask.sum()) for name, mask in report.categories.items()}
    rows = ["| recall@10 | " + " | ".join(f"{name} ({n})" for name, n in counts.items()) + " |"]
    rows.append("|---|" + "---:|" * len(counts))
    for run in shown(report):
        cells = (f"{report.mean(run, 'recall@10', category=name):.3f}" for name in counts)
        rows.append(f"| {run} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def stages(report: Report) -> str:
    rows = ["| recipe | recall@10 | mrr@10 | nDCG@10 | nDCG@10 against the whole recipe |", "|---|---:|---:|---:|---:|"]
    for run in report.runs:
        if run.arm:
            continue
        gain = report.gain(run.name, "ndcg@10", over=OURS)
        against = "" if run.name == OURS else f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        cells = (f"{report.mean(run.name, name):.3f}" for name in ("recall@10", "mrr@10", "ndcg@10"))
        rows.append(f"| {run.name} | " + " | ".join(cells) + f" | {against} |")
    return "\n".join(rows)


def abstaining(refusals: list[tuple[str, float, float, float]]) -> str:
    rows = [
        "## Knowing that nothing is relevant",
        "",
        "The threshold is fitted on every other question of a conversation to a false-positive rate of 5 %. Then the",
        "remaining questions are asked, and all questions of the two other conversations.",
        "",
        "| store | min_confidence | answerable refused | off-topic refused |",
        "|---|---:|---:|---:|",
    ]
    rows += [f"| {name} | {limit:.3f} | {own:.1%} | {strange:.1%} |" for name, limit, own, strange in refusals]
    return "\n".join(rows)


def draw(figures: dict[str, Figures], path: Path) -> None:
    picture = Figure(figsize=(5.4 * len(figures), 4.6), layout="constrained")
    FigureCanvasAgg(picture)
    for axis, (name, found) in zip(picture.subplots(1, len(figures), squeeze=False)[0], figures.items(), strict=True):
        metric = "recall@10" if name == "LoCoMo" else "ndcg@10"
        runs = sorted(shown(found.held), key=lambda run: found.held.mean(run, metric))
        bounds = [found.held.interval(run, metric) for run in runs]
        colours = ["#2b6cb0" if run.startswith("hybridmem") else "#a0aec0" for run in runs]
        errors = [[b.mean - b.low for b in bounds], [b.high - b.mean for b in bounds]]
        axis.barh(runs, [b.mean for b in bounds], xerr=errors, color=colours, error_kw={"lw": 1, "ecolor": "#4a5568"})
        axis.set(title=f"{name}: {metric}", xlim=(0, 1))
    picture.savefig(path, dpi=110)
