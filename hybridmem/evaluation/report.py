"""Evaluation reports: tables, JSON, Markdown, plots, and the failed cases with their reasons."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridmem.errors import ConfigError, MissingExtraError
from hybridmem.evaluation.cases import Case
from hybridmem.evaluation.metrics import Interval, bootstrap_means, judge, metric
from hybridmem.fusion.explain import Explanation

__all__ = ["ExplainCase", "Failure", "Report", "Run", "find_failures"]

ExplainCase = Callable[[Case, int], Explanation]
SHOWN = 3
"""Results that a failure lists."""
WIDTH = 80
"""Characters of a text that a line shows."""
_LABEL = 9
"""The width of the labels of a failure's lines."""


@dataclass(frozen=True, slots=True)
class Run:
    """One system's lists of ids and seconds, for each case."""

    name: str
    lists: tuple[tuple[str, ...], ...]
    seconds: tuple[float, ...]
    notes: tuple[str, ...] = ()
    arm: bool = False
    """Whether this is a single arm, with which fused systems are compared."""
    of: str = ""
    """The system of which this one is an ablation."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case for which a relevant id is not among the first k results.

    `ranks`: the rank of that id in each arm and in the fused list, None where it is not listed. `instead`: the first
    results, as (id, text). `why`: the explanation of `why_not`.
    """

    case: Case
    missing: str
    k: int
    ranks: Mapping[str, int | None]
    instead: tuple[tuple[str, str], ...]
    text: str = ""
    """The text of the missing memory, where it is known."""
    why: str = ""

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, *, width: int | None = None) -> str:
        """The failure as lines of text; with a width in characters, they fit it."""
        ranks = ", ".join(f"{name} {'–' if rank is None else f'#{rank}'}" for name, rank in self.ranks.items())
        rows = [("missing", _line(self.missing, self.text, width)), ("ranks", ranks)]
        rows += [(f"#{place}", _line(key, text, width)) for place, (key, text) in enumerate(self.instead, start=1)]
        rows += [("why", self.why)] if self.why else []
        lines = [_wrapped(f"    {label:<{_LABEL}}{text}", width, indent=4 + _LABEL) for label, text in rows]
        return "\n".join([_wrapped(f"✗ {self.case.query}", width), *lines])

    def to_dict(self) -> dict[str, Any]:
        """The failure as JSON-ready data."""
        return {
            "query": self.case.query,
            "category": self.case.category,
            "missing": self.missing,
            "text": self.text,
            "ranks": dict(self.ranks),
            "instead": [{"id": key, "text": text} for key, text in self.instead],
            "why": self.why,
        }


@dataclass(frozen=True)
class Report:
    """The figures of several systems over the same cases. `str(report)` is a table for the terminal."""

    cases: tuple[Case, ...]
    runs: tuple[Run, ...]
    metrics: tuple[str, ...]
    baseline: str = ""
    unjudged: int = 0
    """Cases left out because they name nothing relevant."""
    failures: tuple[Failure, ...] = ()
    """Failed cases with their explanations, as many as `evaluate(failures=…)` was asked for."""
    resamples: int = field(default=2000, repr=False)
    seed: int = field(default=0, repr=False)

    def __repr__(self) -> str:
        systems = ", ".join(run.name for run in self.systems())
        return f"<Report over {len(self.cases)} cases: {systems}; print shows the figures>"

    @cached_property
    def values(self) -> dict[str, NDArray[np.float64]]:
        """Per system a (cases, metrics) array, in the order of `metrics`."""
        parsed = [metric(name) for name in self.metrics]
        depth = max(k for _, k in parsed)
        relevant = [case.relevant for case in self.cases]
        table = {}
        for run in self.runs:
            judged = judge(run.lists, relevant, depth=depth)
            table[run.name] = np.column_stack([measure(judged, k) for measure, k in parsed])
        return table

    @cached_property
    def categories(self) -> dict[str, NDArray[np.bool_]]:
        """Which cases belong to each category, in the order they first appear; empty when none is named."""
        names = [case.category for case in self.cases]
        return {name: np.array([other == name for other in names]) for name in dict.fromkeys(names) if name}

    @cached_property
    def _shown(self) -> list[Run]:
        """The runs without those ablations whose figures are the same as those of their system."""
        same = [
            run.of in self.values and np.array_equal(self.values[run.name], self.values[run.of]) for run in self.runs
        ]
        return [run for run, left in zip(self.runs, same, strict=True) if not left]

    @cached_property
    def _drawn(self) -> NDArray[np.float64]:
        """Bootstrap means of every system and metric under the same draws: (resamples, systems, metrics)."""
        side_by_side = np.concatenate([self.values[run.name] for run in self.runs], axis=1)
        means = bootstrap_means(side_by_side, resamples=self.resamples, seed=self.seed)
        return means.reshape(self.resamples, len(self.runs), len(self.metrics))

    def mean(self, system: str, name: str, *, category: str = "") -> float:
        """One figure: `report.mean("fused", "recall@10", category="temporal")`."""
        column = self._system(system)[:, self._metric(name)]
        return float(column[self._category(category)].mean() if category else column.mean())

    def interval(self, system: str, name: str, *, level: float = 0.95) -> Interval:
        """One figure with its bootstrap interval."""
        return self._bounds(self.mean(system, name), self._column(system, name), level)

    def gain(self, system: str, name: str, *, over: str = "", level: float = 0.95) -> Interval:
        """The paired difference to the baseline (or `over`); `.significant` when its interval excludes zero."""
        other = over or self.baseline
        difference = self.mean(system, name) - self.mean(other, name)
        return self._bounds(difference, self._column(system, name) - self._column(other, name), level)

    def latency(self, system: str) -> tuple[float, float]:
        """Median and 95th percentile of the seconds per query."""
        run = self.runs[self._index(system)]
        median, slow = np.quantile(run.seconds, [0.5, 0.95])
        return float(median), float(slow)

    def verdicts(self, name: str = "") -> list[str]:
        """Sentences: whether each system beats its best arm, and whether each stage improves the ranking."""
        chosen = name or self.metrics[-1]
        arms = [run.name for run in self.runs if run.arm]
        lines = []
        for run in self._shown:
            if run.of in self.values:
                gain = self.gain(run.name, chosen, over=run.of)
                lines.append(f"{run.name}: {chosen} {_signed(gain)} against {run.of}: {_stage_verdict(gain)}")
            elif arms and not run.arm:
                best = max(arms, key=lambda arm: self.mean(arm, chosen))
                gain = self.gain(run.name, chosen, over=best)
                word = "beats" if gain.low > 0 else "loses to" if gain.high < 0 else "is not clearly different from"
                lines.append(f"{run.name} {word} its best arm {best}: {chosen} {_signed(gain)}")
        unchanged = [run.name.removeprefix("without ") for run in self.runs if run not in self._shown]
        return [*lines, f"no change on these cases without {', '.join(unchanged)}"] if unchanged else lines

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready data."""
        systems = {}
        for run in self.runs:
            median, slow = self.latency(run.name)
            systems[run.name] = {
                "arm": run.arm,
                "metrics": {name: self.interval(run.name, name)._asdict() for name in self.metrics},
                "gain": {name: self.gain(run.name, name)._asdict() for name in self.metrics} if self.baseline else {},
                "categories": {
                    category: {name: self.mean(run.name, name, category=category) for name in self.metrics}
                    for category in self.categories
                },
                "seconds": {"median": median, "p95": slow},
                "notes": list(run.notes),
            }
        counts = {name: int(mask.sum()) for name, mask in self.categories.items()}
        return {
            "cases": len(self.cases),
            "unjudged": self.unjudged,
            "baseline": self.baseline,
            "categories": counts,
            "systems": systems,
            "failures": [failure.to_dict() for failure in self.failures],
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The same as JSON text, written to `path` when given."""
        return _written(json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n", path)

    def to_markdown(self, path: str | Path | None = None) -> str:
        """A table of all systems, one per category, and the verdicts."""
        blocks = [_markdown(self.rows())]
        if self.categories:
            blocks.append(_markdown(self.category_rows()))
        blocks += [f"- {line}" for line in [*self.verdicts(), *self.notes()]]
        if self.failures:
            blocks += ["", "Failed cases:", "", "```", *map(str, self.failures), "```"]
        return _written("\n\n".join(blocks[:2]) + "\n\n" + "\n".join(blocks[2:]) + "\n", path)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, *, width: int | None = None) -> str:
        """Tables, verdicts and failed cases as text; with a width in characters, columns that do not fit are left out.

        An ablation with the same figures as its system is named in a verdict and has no row.
        """
        rows, left = _fitted(self.rows(), self._optional(), width)
        blocks = [_plain(rows)]
        if self.categories:
            table = self.category_rows()
            fits = width is None or len(_plain(table).partition("\n")[0]) <= width
            blocks.append(_plain(table if fits else self._by_category()))
        lines = [*self.verdicts(), *self.notes(), *([f"too wide for this terminal: {', '.join(left)}"] if left else [])]
        if lines:
            blocks.append("\n".join(_wrapped(line, width, indent=2) for line in lines))
        if self.failures:
            failed = [failure.to_text(width=width) for failure in self.failures]
            blocks.append("\n".join(["failed cases, with what came instead (–: not listed):", *failed]))
        return "\n\n".join(blocks)

    def _optional(self) -> list[str]:
        """Columns of the main table, those that are left out first at the front."""
        depths = [name for name in self.metrics if name.startswith("recall@") and name != self.headline()]
        return [*depths, f"{self.metrics[-1]} against {self.baseline}", "median ms"]

    def _by_category(self) -> list[list[str]]:
        """The table of categories with a row for each category, without ablations."""
        chosen, systems = self.headline(), [run.name for run in self.systems()]
        rows = [
            [f"{name} ({int(mask.sum())})", *(f"{self.mean(system, chosen, category=name):.3f}" for system in systems)]
            for name, mask in self.categories.items()
        ]
        return [[chosen, *systems], *rows]

    def _repr_html_(self) -> str:
        from hybridmem.evaluation.report_html import report_body

        return report_body(self)

    def to_html(self, path: str | Path | None = None) -> str:
        """One self-contained page: tables, interval bars, recall curves and failed cases."""
        from hybridmem.evaluation.report_html import report_page

        return _written(report_page(self), path)

    def plot(self, path: str | Path) -> Path:
        """Draw recall@k curves and, where cases have categories, bars per category; needs the extra `plot`."""
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingExtraError("plot", needs="matplotlib") from error
        panels = 2 if self.categories else 1
        figure = Figure(figsize=(6.5 * panels, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, panels, squeeze=False)[0]
        self._draw_curves(axes[0])
        if self.categories:
            self._draw_bars(axes[1])
        figure.savefig(path, dpi=120)
        return Path(path)

    def systems(self) -> list[Run]:
        """The runs that are no ablation of another one, in their order."""
        return [run for run in self.runs if not run.of]

    # --- tables as rows of strings: the first row is the header
    def rows(self) -> list[list[str]]:
        """The main table: one row per system, the header first."""
        shown = [name for name in self.metrics if not name.startswith("hit@")] or list(self.metrics)
        header = ["system", *shown, "median ms"]
        if self.baseline:
            header.insert(-1, f"{self.metrics[-1]} against {self.baseline}")
        rows = [header]
        for run in self._shown:
            row = [run.name, *(f"{self.mean(run.name, name):.3f}" for name in shown)]
            if self.baseline:
                gain = self.gain(run.name, self.metrics[-1])
                same = run.name == self.baseline
                row.append("" if same else _signed(gain))
            rows.append([*row, f"{1000 * self.latency(run.name)[0]:.2f}"])
        return rows

    def category_rows(self) -> list[list[str]]:
        """The table of categories: one row per system, the header first."""
        chosen = self.headline()
        header = [chosen, *(f"{name} ({int(mask.sum())})" for name, mask in self.categories.items())]
        rows = [
            [run.name, *(f"{self.mean(run.name, chosen, category=name):.3f}" for name in self.categories)]
            for run in self._shown
        ]
        return [header, *rows]

    def notes(self) -> list[str]:
        """Remarks about the systems and the cases that were left out."""
        noted: dict[str, list[str]] = {}
        for run in self.runs:
            for note in run.notes:
                noted.setdefault(note, []).append(run.name)
        of = {run.name: run.of for run in self.runs}
        lines = []
        for note, names in noted.items():
            own = [name for name in names if of[name] not in names]  # an ablation repeats what its system has
            lines.append(f"{', '.join(own)}: {note}")
        if self.unjudged:
            count = "1 case names" if self.unjudged == 1 else f"{self.unjudged} cases name"
            lines.append(f"{count} nothing relevant, left out")
        return lines

    def headline(self) -> str:
        """The metric of category tables: recall@10, or the deepest recall."""
        recalls = [name for name in self.metrics if name.startswith("recall@")]
        return "recall@10" if "recall@10" in recalls else (recalls or list(self.metrics))[-1]

    def _draw_curves(self, axis: Any) -> None:
        names = sorted((name for name in self.metrics if name.startswith("recall@")), key=lambda name: metric(name)[1])
        ks = [metric(name)[1] for name in names]
        for run in self.systems():
            style = "--" if run.arm else "-"
            axis.plot(ks, [self.mean(run.name, name) for name in names], style, marker="o", ms=3, label=run.name)
        axis.set(xlabel="k", ylabel="recall@k", ylim=(0, 1), title=f"recall over {len(self.cases)} cases")
        axis.legend(fontsize="small")
        axis.grid(alpha=0.3)

    def _draw_bars(self, axis: Any) -> None:
        chosen = self.headline()
        places = np.arange(len(self.categories))
        width = 0.8 / len(self.systems())
        for number, run in enumerate(self.systems()):
            heights = [self.mean(run.name, chosen, category=name) for name in self.categories]
            axis.bar(places + (number + 0.5) * width - 0.4, heights, width, label=run.name)
        axis.set(ylabel=chosen, ylim=(0, 1), title=f"{chosen} by category")
        axis.set_xticks(places, list(self.categories), rotation=15)

    # --- lookups with errors that list the valid names
    def _index(self, system: str) -> int:
        names = [run.name for run in self.runs]
        if system not in names:
            raise ConfigError(f"system {system!r} is not in this report: it has {', '.join(names)}")
        return names.index(system)

    def _system(self, system: str) -> NDArray[np.float64]:
        return self.values[self.runs[self._index(system)].name]

    def _metric(self, name: str) -> int:
        if name not in self.metrics:
            raise ConfigError(f"metric {name!r} is not in this report: it has {', '.join(self.metrics)}")
        return self.metrics.index(name)

    def _category(self, name: str) -> NDArray[np.bool_]:
        if name not in self.categories:
            raise ConfigError(f"category {name!r} is not in this report: it has {', '.join(self.categories) or 'none'}")
        return self.categories[name]

    def _column(self, system: str, name: str) -> NDArray[np.float64]:
        column: NDArray[np.float64] = self._drawn[:, self._index(system), self._metric(name)]
        return column

    @staticmethod
    def _bounds(mean: float, drawn: NDArray[np.float64], level: float) -> Interval:
        low, high = np.quantile(drawn, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
        return Interval(mean, float(low), float(high))


def _stage_verdict(gain: Interval) -> str:
    """What the gain without a stage says about the stage."""
    if gain.high < 0:
        return "the stage helps"
    return "better without the stage" if gain.low > 0 else "no clear difference"


def _signed(gain: Interval) -> str:
    return f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"


def _fitted(
    rows: Sequence[Sequence[str]], optional: Sequence[str], width: int | None
) -> tuple[list[list[str]], list[str]]:
    """The rows without as many of the optional columns as needed to fit the width, and the names of those."""
    table, left = [list(row) for row in rows], list[str]()
    for name in optional:
        if width is None or len(_plain(table).partition("\n")[0]) <= width:
            break
        if name in table[0]:
            place = table[0].index(name)
            table = [row[:place] + row[place + 1 :] for row in table]
            left.append(name)
    return table, left


def _wrapped(text: str, width: int | None, *, indent: int = 0) -> str:
    """The text as lines of this width, all but the first indented; as it is without a width."""
    margin = " " * indent
    return text if width is None else textwrap.fill(text, width, subsequent_indent=margin, break_on_hyphens=False)


def _plain(rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to equal width, numbers aligned right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; pipes in names are escaped."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(rows[0]) - 1), *lines[1:]])


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


# --- failed cases


def find_failures(
    cases: Sequence[Case],
    lists: Sequence[Sequence[str]],
    others: Mapping[str, Sequence[Sequence[str]]],
    *,
    name: str,
    k: int,
    limit: int,
    explain: ExplainCase | None = None,
    text_of: Callable[[str], str] | None = None,
) -> Iterator[Failure]:
    """The first `limit` failures of one system, cases with no relevant id in the first k first.

    `lists` are the results of the system `name`, `others` those of its arms, for each case.
    """
    failed = []
    for place, (case, results) in enumerate(zip(cases, lists, strict=True)):
        absent = [key for key, grade in case.relevant.items() if grade > 0 and key not in results[:k]]
        if absent:
            found = sum(grade > 0 for grade in case.relevant.values()) - len(absent)
            failed.append((found > 0, place, max(absent, key=lambda key: case.relevant[key])))
    for _, place, missing in sorted(failed, key=lambda one: one[:2])[:limit]:
        case, results = cases[place], lists[place]
        ranks = {arm: _rank(listed[place], missing) for arm, listed in others.items()}
        why, texts = "", dict[str, str]()
        if explain is not None:
            explained = explain(case, k)
            ranks.update({arm: _rank([hit.key for hit in hits], missing) for arm, hits in explained.hits.items()})
            why, texts = explained.why_not(missing).removeprefix(f"{missing}: "), dict(explained.texts)
        rank = ranks[name] = _rank(results, missing)
        if why and rank is not None and missing not in explained.dropped:  # a longer list is fused from longer lists
            why = f"rank {rank} of {len(results)} results, not listed for k={k}"
        if text_of is not None:
            texts |= {key: text_of(key) for key in (missing, *results[:SHOWN]) if key not in texts}
        instead = tuple((key, texts.get(key, "")) for key in results[:SHOWN])
        yield Failure(case, missing, k, ranks, instead, texts.get(missing, ""), why)


def _rank(keys: Sequence[str], key: str) -> int | None:
    return keys.index(key) + 1 if key in keys else None


def _line(key: str, text: str, width: int | None = None) -> str:
    flat = " ".join(text.split())
    most = WIDTH if width is None else max(20, width - len(key) - _LABEL - 6)
    short = flat if len(flat) <= most else f"{flat[: most - 1]}…"
    return f"{key}  {short}" if short else key
