"""docs/quality.md and its chart, from measured figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hybridmem.evaluation.report import Report
from hybridmem.evaluation.tuning.tune import Tuning

__all__ = ["OURS", "TUNED", "Figures", "Refusal", "write_page"]

OURS = "HybridMemory, defaults"
TUNED = "HybridMemory, tuned"


class Figures(NamedTuple):
    """What was measured on one set."""

    about: str
    systems: Report
    stages: Report
    tuned: Tuning | None
    documents: bool


class Refusal(NamedTuple):
    """How a fitted threshold of confidence does on one store."""

    store: str
    threshold: float
    own: float
    off_topic: float


INTRO = """# Quality

Written by `make quality DATA=folder`. Every system gets the same texts and the same MiniLM embeddings, except where the
table names the local embedder. The weights of the default recipe were chosen on LoCoMo 26, 30 and 41, REALTALK 1 to 3,
BEAM 1 to 6 and the first halves of the SciFact and Cranfield questions. The tables show the **other** conversations and
questions ([decision 8](decisions/0008-evidence.md)). They were looked at while the recipe was made: of settings that
measure alike on the tuning parts, one was taken that is also good on LoCoMo 42 to 44 and REALTALK 4 and 5, and the rule
for questions was settled with BEAM 7 to 10 in view. Differences are paired, with 95 % bootstrap intervals. To measure
your own memory, see [evaluate.md](evaluate.md).

`HybridMemory` is the memory of this package, with its own arms. `FusionRetriever` fuses the arms that you give it; here
it and the frameworks' own fusions get the same two arms where the table says "our BM25".

![recall and nDCG of all systems](benchmarks/quality.png)
"""


def write_page(figures: Mapping[str, Figures], refusals: Sequence[Refusal], *, docs: Path) -> None:
    """Write the page and its chart."""
    (docs / "benchmarks").mkdir(exist_ok=True)
    draw(figures, docs / "benchmarks" / "quality.png")
    blocks = [INTRO, summary(figures)]
    for name, measured in figures.items():
        blocks += [f"## {name}\n\n{measured.about}", table(measured.systems)]
        if measured.systems.categories:
            blocks.append(categories(measured.systems))
        lines = [line for line in measured.systems.verdicts("ndcg@10") if line.startswith(OURS)]
        blocks.append("\n".join(f"- {line}" for line in lines))
        blocks.append(f"Without one stage or one part of evidence:\n\n{stages(measured.stages)}")
        if measured.tuned is not None:
            blocks.append(f"The tuner on the tuning part, from the defaults:\n\n```\n{tuner(measured.tuned)}\n```")
    if refusals:
        blocks.append(abstaining(refusals))
    (docs / "quality.md").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


def tuner(tuned: Tuning) -> str:
    """The report without the seconds, so that the page changes only when a figure does."""
    return "\n".join(line for line in str(tuned).splitlines() if "settings tried" not in line)


def names_of(report: Report) -> list[str]:
    """The systems of a report, in order."""
    return [run.name for run in report.runs]


def summary(figures: Mapping[str, Figures]) -> str:
    """One row for each system, one column for each set."""
    systems = list(dict.fromkeys(name for one in figures.values() for name in names_of(one.systems)))
    head = [f"{name}{' (nDCG@10)' if one.documents else ''}" for name, one in figures.items()]
    rows = ["Recall@10 / MRR@10 for conversations, nDCG@10 for documents:", ""]
    rows += ["| system | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    for system in systems:
        if system == TUNED:
            continue
        cells = [cell(one, system) for one in figures.values()]
        rows.append(f"| {f'**{system}**' if system == OURS else system} | " + " | ".join(cells) + " |")
        if system == OURS:
            rows.append(f"| {TUNED} | " + " | ".join(map(tuned_cell, figures.values())) + " |")
    rows += [
        "",
        "Tuned: by `tune` on the tuning part of the set. *Refused*: no significant gain, so it equals the defaults.",
    ]
    return "\n".join(rows)


def tuned_cell(one: Figures) -> str:
    """The figures with a tuned recipe."""
    if one.tuned is None:
        return "–"
    return cell(one, TUNED) if one.tuned.accepted else f"{cell(one, OURS)} (refused)"


def cell(one: Figures, system: str) -> str:
    """The figures of one system on one set."""
    if system not in names_of(one.systems):
        return "–"
    if one.documents:
        return f"{one.systems.mean(system, 'ndcg@10'):.3f}"
    return f"{one.systems.mean(system, 'recall@10'):.3f} / {one.systems.mean(system, 'mrr@10'):.3f}"


def table(report: Report) -> str:
    """All systems on one set."""
    names = ("recall@1", "recall@5", "recall@10", "recall@20", "mrr@10", "ndcg@10")
    rows = ["| system | " + " | ".join(names) + " | nDCG@10 against our defaults |", "|---|" + "---:|" * 7]
    for run in names_of(report):
        gain = report.gain(run, "ndcg@10", over=OURS)
        against = "" if run == OURS else f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        label = f"**{run}**" if run == OURS else run
        rows.append(f"| {label} | " + " | ".join(f"{report.mean(run, n):.3f}" for n in names) + f" | {against} |")
    return "\n".join(rows)


def categories(report: Report) -> str:
    """Recall by the categories of questions."""
    counts = {name: int(mask.sum()) for name, mask in report.categories.items()}
    rows = ["| recall@10 | " + " | ".join(f"{name} ({n})" for name, n in counts.items()) + " |"]
    rows.append("|---|" + "---:|" * len(counts))
    for run in names_of(report):
        cells = (f"{report.mean(run, 'recall@10', category=name):.3f}" for name in counts)
        rows.append(f"| {run} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def stages(report: Report) -> str:
    """The ablations."""
    rows = ["| recipe | recall@10 | mrr@10 | nDCG@10 | nDCG@10 against the whole recipe |", "|---|---:|---:|---:|---:|"]
    for run in report.runs:
        if run.arm:
            continue
        gain = report.gain(run.name, "ndcg@10", over=OURS)
        against = "" if run.name == OURS else f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        cells = (f"{report.mean(run.name, name):.3f}" for name in ("recall@10", "mrr@10", "ndcg@10"))
        rows.append(f"| {run.name} | " + " | ".join(cells) + f" | {against} |")
    return "\n".join(rows)


def abstaining(refusals: Sequence[Refusal]) -> str:
    """The section about confidence."""
    rows = [
        "## Knowing that nothing is relevant",
        "",
        "The threshold is fitted on every other question of a conversation to a false-positive rate of 5 %. Then the",
        "remaining questions are asked, and all questions of the two other conversations.",
        "",
        "| store | min_confidence | answerable refused | off-topic refused |",
        "|---|---:|---:|---:|",
    ]
    rows += [f"| {one.store} | {one.threshold:.3f} | {one.own:.1%} | {one.off_topic:.1%} |" for one in refusals]
    return "\n".join(rows)


def draw(figures: Mapping[str, Figures], path: Path) -> None:
    """Bars of all systems, one panel for each set."""
    panels = {}
    for name, measured in figures.items():
        report, metric = measured.systems, "ndcg@10" if measured.documents else "recall@10"
        panels[f"{name}, {_LABELS[metric]}"] = {run: report.mean(run, metric) for run in names_of(report)}
    draw_panels(panels, path)


_LABELS = {"ndcg@10": "nDCG@10", "recall@10": "recall@10"}
_NAMED = 4
"""Panels in a row: only the first one has the names."""


def draw_panels(panels: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Panels with one bar for each system, in the order of the first panel, and its figure."""
    lines = -(-len(panels) // _NAMED)
    chart = Figure(figsize=(9.6, 3.6 * lines), layout="constrained")
    FigureCanvasAgg(chart)
    first = next(iter(panels.values()))
    runs = sorted(first, key=lambda run: first[run])
    colours = ["#0072b2" if run.startswith(("HybridMemory", "FusionRetriever")) else "#b6c0cc" for run in runs]
    axes = chart.subplots(lines, _NAMED, squeeze=False, sharey=True).ravel()
    for axis, (title, means) in zip(axes, panels.items(), strict=False):
        values = [means.get(run, 0.0) for run in runs]
        bars = axis.barh(runs, values, color=colours, height=0.78)
        axis.bar_label(bars, [f"{value:.2f}" for value in values], padding=2, fontsize=8)
        axis.set_title(title, fontsize=9.5, fontweight="bold")
        axis.set(xlim=(0, 1.2), xticks=[])
        axis.tick_params(axis="y", length=0, labelsize=8.5)
        axis.spines[:].set_visible(False)
        for label, run in zip(axis.get_yticklabels(), runs, strict=False):
            label.set_fontweight("bold" if run == OURS else "normal")
    for axis in axes[len(panels) :]:
        axis.remove()
    chart.savefig(path, dpi=150)
