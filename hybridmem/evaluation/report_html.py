"""Evaluation report as one self-contained HTML page: tables, interval bars, recall curves and failed cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from hybridmem.evaluation.metrics import metric

if TYPE_CHECKING:
    from hybridmem.evaluation.report import Failure, Report

__all__ = ["report_body", "report_page"]

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7f12", "#6b5fb5")
_ABLATION = "#7d8894"
_STYLE = """
.hm-report{font:14px/1.5 system-ui,sans-serif;color:#17202b;max-width:78rem}
.hm-report h1{font-size:20px;margin:0 0 .6rem}
.hm-report h2{font-size:14px;margin:1.8rem 0 .4rem}
.hm-report p{margin:.5rem 0;max-width:52rem}
.hm-report ul{margin:0;padding-left:1.1rem}
.hm-report table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
.hm-report th,.hm-report td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #8883;white-space:nowrap}
.hm-report th:first-child,.hm-report td:first-child{text-align:left;padding-left:0}
.hm-report details{border-top:1px solid #8884;padding:.5rem 0}
.hm-report summary{cursor:pointer;font-weight:600}
.hm-report svg{width:100%;max-width:620px;height:auto;display:block;margin:0 0 .4rem}
.hm-report svg text{fill:currentColor;font-size:13px}
.hm-report .scroll{overflow-x:auto}
.hm-report .bars{display:grid;grid-template-columns:minmax(0,max-content) minmax(80px,1fr) max-content;gap:3px 10px;
align-items:center;font-size:13px;max-width:52rem;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
.hm-report .bar{position:relative;height:13px}
.hm-report .bar i{position:absolute;inset:0 auto 0 0;opacity:.6;border-radius:2px}
.hm-report .bar b{position:absolute;inset:2px auto 2px 0;border:solid currentColor;border-width:0 1px;
background:linear-gradient(currentColor,currentColor) center/100% 1px no-repeat}
.hm-report .hm-legend{display:flex;flex-wrap:wrap;gap:2px 18px;font-size:13px}
.hm-report .hm-legend i{display:inline-block;width:20px;border-top:2px solid;vertical-align:middle;margin-right:6px}
@media (prefers-color-scheme:dark){.hm-report{color:#e4e8ef}}
"""
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Evaluation</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{margin:2rem auto;padding:0 1rem;max-width:80rem;background:#fff}}
@media (prefers-color-scheme:dark){{body{{background:#151a22}}}}</style></head><body>{body}</body></html>
"""
_METRICS = (
    "recall@k: the share of the relevant ids among the first k results. mrr@10: 1 / rank of the first relevant one. "
    "ndcg@10: 1 where all relevant ids come first, less where they are lower. In brackets: 95 % intervals."
)
_RANKS = "Ranks of the missing memory (– where it is not listed):"


def report_page(report: Report) -> str:
    """The whole page."""
    return _PAGE.format(body=report_body(report))


def report_body(report: Report) -> str:
    """The report as an HTML fragment with its own style, for a page or a notebook."""
    remarks = [*report.verdicts(), *report.notes()]
    parts = [
        f"<style>{_STYLE}</style>",
        f"<h1>Evaluation over {len(report.cases)} cases</h1>",
        "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in remarks) + "</ul>" if remarks else "",
        f"<h2>{escape(report.metrics[-1])} with 95 % intervals</h2>",
        _intervals(report, report.metrics[-1]),
        "<h2>Recall by depth</h2>",
        _curves(report),
        "<h2>All figures</h2>",
        _table(report.rows()),
        f"<p>{_METRICS}</p>",
    ]
    if report.categories:
        parts += ["<h2>By category</h2>", _table(report.category_rows())]
    if report.failures:
        parts += ["<h2>Failed cases</h2>", *(_failure(one, first=not n) for n, one in enumerate(report.failures))]
    return f'<div class="hm-report">{"".join(parts)}</div>'


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = rows
    body = "".join(f"<tr>{_cells(row, 'td')}</tr>" for row in others)
    return f'<div class="scroll"><table><tr>{_cells(head, "th")}</tr>{body}</table></div>'


def _cells(row: Iterable[str], tag: str) -> str:
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)


def _intervals(report: Report, name: str) -> str:
    """One horizontal bar per system from 0 to its mean, with its interval."""
    rows = []
    shown = {row[0] for row in report.rows()[1:]}
    for number, run in enumerate(report.runs):
        if run.name not in shown:
            continue
        bounds = report.interval(run.name, name)
        colour = _ABLATION if run.of else _COLOURS[number % len(_COLOURS)]
        low, length = 100 * bounds.low, 100 * (bounds.high - bounds.low)
        rows.append(
            f'<span>{escape(run.name)}</span><div class="bar">'
            f'<i style="width:{100 * bounds.mean:.2f}%;background:{colour}"></i>'
            f'<b style="left:{low:.2f}%;width:{length:.2f}%"></b></div><span>{bounds.mean:.3f}</span>'
        )
    return f'<div class="bars" role="img" aria-label="{escape(name)} by system">{"".join(rows)}</div>'


def _curves(report: Report) -> str:
    """Recall at each depth, one line per system; ablations are left out."""
    names = sorted((name for name in report.metrics if name.startswith("recall@")), key=lambda name: metric(name)[1])
    if not names:
        return ""
    left, top, width, height = 40, 10, 420, 240
    step = width / max(1, len(names) - 1)
    lines = [f'<svg viewBox="0 0 {left + width + 10} {top + height + 30}" role="img" aria-label="recall by depth">']
    for tenth in range(0, 11, 2):
        y = top + height - height * tenth / 10
        lines.append(f'<path d="M{left} {y:.1f}H{left + width}" stroke="currentColor" opacity=".15"/>')
        lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>')
    for number, name in enumerate(names):
        x = left + step * number
        lines.append(f'<text x="{x:.1f}" y="{top + height + 18}" text-anchor="middle">{metric(name)[1]}</text>')
    legend = []
    for number, run in enumerate(report.systems()):
        colour = _COLOURS[number % len(_COLOURS)]
        means = [report.mean(run.name, name) for name in names]
        points = " ".join(
            f"{left + step * place:.1f},{top + height * (1 - mean):.1f}" for place, mean in enumerate(means)
        )
        dashes = ' stroke-dasharray="5 4"' if run.arm else ""
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        kind = "dashed" if run.arm else "solid"
        legend.append(f'<span><i style="border-color:{colour};border-top-style:{kind}"></i>{escape(run.name)}</span>')
    return "".join([*lines, "</svg>", '<div class="hm-legend">', *legend, "</div>"])


def _failure(failure: Failure, *, first: bool) -> str:
    """A failed case; where it is open: the reason, the ranks, and the results instead of it."""
    ranks = _table(
        [tuple(failure.ranks), tuple("–" if rank is None else f"#{rank}" for rank in failure.ranks.values())]
    )
    items = "".join(f'<li dir="auto"><b>{escape(key)}</b> {escape(text)}</li>' for key, text in failure.instead)
    category = f" <small>({escape(failure.case.category)})</small>" if failure.case.category else ""
    why = f"<p>Why: {escape(failure.why)}</p>" if failure.why else ""
    return (
        f"<details{' open' if first else ''}><summary>{escape(failure.case.query)}{category}</summary>"
        f'<p dir="auto">Missing: <b>{escape(failure.missing)}</b> {escape(failure.text)}</p>{why}<p>{_RANKS}</p>{ranks}'
        f"<p>Results instead:</p><ol>{items}</ol></details>"
    )
