"""HTML of an explanation: scores as stacked bars, and the activated neighbourhood as SVG. No script, no requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from hybridmem.core.types import Activation
from hybridmem.fusion.stages.evidence import PARTS

if TYPE_CHECKING:
    from hybridmem.fusion.explain import ArmShare, Explanation, Receipt, StageStep

__all__ = ["ScorePart", "fragment", "neighbourhood_svg", "page", "receipt_html", "score_parts"]

_WIDTH, _ROW, _BOX, _INDENT, _MARGIN = 400, 60, 50, 24, 4
_DEEPEST = 5  # deeper rows are not indented further
_LETTER = 6.4  # the mean width of a letter of the small font
_COLOURS = 12
NEGLIGIBLE = 1e-6
"""A rest of a score below this is rounding."""
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_STYLE = """
.hm{--ink:#17202b;--dim:#586473;--line:#dde2e9;--hair:#eceff3;--paper:#fff;--seed:#fff6da;
--c0:#0072b2;--c1:#e69f00;--c2:#009e73;--c3:#cc79a7;--c4:#56b4e9;--c5:#d55e00;--c6:#8a7f12;--c7:#6b5fb5;--c8:#7d8894;--c9:#9a5b3c;
--c10:#a3174f;--c11:#39424e;
font:14px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:980px}
@media(prefers-color-scheme:dark){.hm{--ink:#e4e9ef;--dim:#a3aebb;--line:#303946;--hair:#262e39;--paper:#181e26;
--seed:#3a3214;--c0:#3d9be0;--c1:#f0b429;--c2:#2bbf95;--c3:#dd93bb;--c4:#7cc8f2;--c5:#f07f3c;--c6:#c9bb3a;--c7:#a99df0;
--c8:#a8b3bf;--c9:#cf9273;--c10:#ff86ad;--c11:#eef1f5}}
.hm *{box-sizing:border-box}
.hm h1{font-size:18px;line-height:1.3;margin:0;overflow-wrap:anywhere}
.hm h2{font-size:13px;margin:22px 0 8px}
.hm p{margin:4px 0;color:var(--dim);font-size:13px;overflow-wrap:anywhere}
.hm ol,.hm ul{list-style:none;margin:0;padding:0}
.hm-legend{display:flex;flex-wrap:wrap;gap:3px 14px;font-size:12px;color:var(--dim);margin:8px 0}
.hm-legend span{display:inline-flex;align-items:center;gap:5px}
.hm-swatch{width:10px;height:10px;border-radius:3px;background:var(--c);flex:none}
.hm-result{display:grid;grid-template-columns:24px minmax(0,1fr) auto;gap:0 10px;padding:9px 0;
border-top:1px solid var(--hair)}
.hm-rank{font-weight:650;text-align:right}
.hm-body{overflow-wrap:anywhere}
.hm-key{font:12px ui-monospace,monospace;color:var(--dim);overflow-wrap:anywhere}
.hm-score{font-variant-numeric:tabular-nums}
.hm-bar{grid-column:2/-1;display:flex;gap:1px;height:9px;margin:6px 0 2px;border-radius:3px;
background:var(--hair);overflow:hidden}
.hm-bar i{display:block;background:var(--c);min-width:1px}
.hm-bar i.hm-minus,.hm-swatch.hm-minus{
background:repeating-linear-gradient(135deg,var(--dim) 0 1px,transparent 1px 4px)}
.hm details{grid-column:2/-1;font-size:13px}
.hm summary{cursor:pointer;color:var(--dim);font-size:12px}
.hm-parts li{display:grid;grid-template-columns:10px 122px 60px minmax(0,1fr);gap:0 8px;
align-items:baseline;padding:2px 0}
.hm-parts .hm-swatch{align-self:start;margin-top:5px}
.hm-parts b{font-weight:400;text-align:right;font-variant-numeric:tabular-nums}
.hm-parts em{font-style:normal;color:var(--dim);overflow-wrap:anywhere}
.hm-left li{padding:2px 0;overflow-wrap:anywhere}
.hm svg{display:block;width:100%;height:auto;max-width:500px}
"""
_SVG_STYLE = """
.hm-box{fill:var(--paper,#fff);stroke:var(--line,#c9d1da);stroke-width:1.2}
.hm-seed .hm-box{fill:var(--seed,#fff6da);stroke:var(--c1,#e69f00)}
.hm-edge{fill:none;stroke:var(--c2,#009e73);stroke-linecap:round}
.hm-name{font:600 12.5px system-ui,sans-serif;fill:var(--ink,#17202b)}
.hm-value{font:12px system-ui,sans-serif;fill:var(--dim,#586473);text-anchor:end}
.hm-text{font:11.5px system-ui,sans-serif;fill:var(--dim,#586473)}
"""
_PAGE_STYLE = """
body{margin:0;background:#fff}
@media(prefers-color-scheme:dark){body{background:#181e26}}
.hm{margin:0 auto;padding:22px 20px}
@media(min-width:1100px){.hm:has(.hm-both){max-width:1280px}.hm-both{display:grid;gap:40px;
grid-template-columns:minmax(0,1.25fr) minmax(0,1fr)}}
@media(max-width:520px){.hm{padding:16px 12px}.hm-parts li{grid-template-columns:10px minmax(0,1fr) 60px}
.hm-parts em{grid-column:2/-1}}
"""


class ScorePart(NamedTuple):
    """One piece of evidence in a score: an arm or a stage, what it added to the shown score, and a sentence."""

    name: str
    value: float
    text: str


def score_parts(receipt: Receipt, /) -> tuple[ScorePart, ...]:
    """The parts that add up to a receipt's shown score: the arms' shares first, then the stages in order.

    A stage that lowers the score has a negative value; one that only kept or moved the result has 0.
    """
    scale = receipt.score / receipt.raw if receipt.raw else 0.0
    arms = [ScorePart(share.arm, share.share * scale, _arm_sentence(share)) for share in receipt.arms]
    stages = [part for step in receipt.steps for part in _step_parts(step, scale)]
    rest = receipt.score - sum(part.value for part in (*arms, *stages))
    other = [ScorePart("other", rest, "added by stages that report nothing")] if abs(rest) > NEGLIGIBLE else []
    return (*arms, *stages, *other)


def _arm_sentence(share: ArmShare) -> str:
    raw = "" if share.score is None else f", raw score {share.score:.4g}"
    return f"rank {share.rank}{raw}" + (f" [{share.note}]" if share.note else "")


def _step_parts(step: StageStep, scale: float) -> list[ScorePart]:
    """The named parts of a stage, or the stage as one part."""
    if step.parts:
        return [ScorePart(part.name.replace("_", " "), part.added * scale, part.text) for part in step.parts]
    text = step.text or f"{step.before:.4g} → {step.after:.4g}"
    return [ScorePart(step.stage.replace("_", " "), (step.after - step.before) * scale, text)]


# --- receipts


def fragment(explanation: Explanation, /) -> str:
    """The receipts of an explanation as one `<div>`, for notebooks."""
    return f'<div class="hm hybridmem"><style>{_STYLE}</style>{_head(explanation)}{_body(explanation)}</div>'


def receipt_html(receipt: Receipt, text: str = "", /) -> str:
    """One receipt as a `<div>`, for notebooks."""
    colours = _colours([receipt])
    top = sum(part.value for part in score_parts(receipt) if part.value > 0)
    return f'<div class="hm"><style>{_STYLE}</style><ol>{_result(receipt, text, colours, top)}</ol></div>'


def page(explanation: Explanation, /) -> str:
    """A whole HTML page: the receipts, and the activated neighbourhood where a graph took part."""
    drawing = _drawing(explanation)
    body = f"<div>{_body(explanation)}</div>{drawing}" if drawing else _body(explanation)
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_safe(_cut(explanation.query, 80))}</title><style>{_STYLE}{_PAGE_STYLE}</style></head>"
        f'<body><main class="hm hybridmem">{_head(explanation)}'
        f'<div class="{"hm-both" if drawing else "hm-one"}">{body}</div></main></body></html>'
    )
    return html.encode("utf-8", "replace").decode()  # a lone surrogate cannot be saved to a file


def _head(explanation: Explanation) -> str:
    arms = "; ".join(f"{arm}: {summary}" for arm, summary in explanation.arms.items())
    remarks = "".join(f"<p>{_safe(remark)}</p>" for remark in explanation.remarks)
    return f'<h1 dir="auto">{_safe(explanation.query)}</h1><p>{_safe(arms)}</p>{remarks}'


def _body(explanation: Explanation) -> str:
    receipts = explanation.receipts
    colours = _colours(receipts, explanation.hits)
    tops = [sum(part.value for part in score_parts(receipt) if part.value > 0) for receipt in receipts]
    top = max(tops, default=1.0) or 1.0
    rows = "".join(_result(one, explanation.texts.get(one.key, ""), colours, top) for one in receipts)
    values = [(part.name, part.value) for one in receipts for part in score_parts(one) if part.value]
    gains = {name for name, value in values if value > 0}
    legend = "".join(
        f"<span>{_swatch(name, colours, loss=name not in gains)}{_safe(name)}</span>" for name in dict(values)
    )
    results = f'<div class="hm-legend">{legend}</div><ol>{rows}</ol>' if rows else "<p>No results.</p>"
    reasons = {**explanation.gated, **explanation.dropped}
    items = "".join(f"<li>{_safe(f'{key}: {why}')}</li>" for key, why in reasons.items())
    more = f'<details><summary>left out: {len(reasons)}</summary><ul class="hm-left">{items}</ul></details>'
    return results + (more if reasons else "")


def _result(receipt: Receipt, text: str, colours: Mapping[str, int], top: float) -> str:
    parts = score_parts(receipt)
    lines = "".join(
        f"<li>{_swatch(part.name, colours, loss=part.value < 0)}<span>{_safe(part.name)}</span>"
        f"<b>{f'{part.value:+.3f}' if part.value else ''}</b><em>{_safe(part.text)}</em></li>"
        for part in parts
    )
    weak = "<p>Nothing passed the gate: this is the list of the fallback arm.</p>" if receipt.degraded else ""
    body = f'<span dir="auto">{_safe(text)}</span><br>' if text else ""
    return (
        f'<li class="hm-result"><span class="hm-rank">{receipt.rank}</span>'
        f'<span class="hm-body">{body}<span class="hm-key" dir="auto">{_safe(receipt.key)}</span></span>'
        f'<span class="hm-score">{receipt.score:.3f}</span>{_bar(parts, colours, top)}'
        f'<details><summary>receipt</summary><ul class="hm-parts">{lines}</ul>{weak}</details></li>'
    )


def _bar(parts: Sequence[ScorePart], colours: Mapping[str, int], top: float) -> str:
    """A stacked bar: a segment for each part that adds, and hatching for what other parts take away."""
    gains = sum(part.value for part in parts if part.value > 0)
    loss = min(gains, -sum(part.value for part in parts if part.value < 0))
    kept = (gains - loss) / gains if gains else 0.0
    pieces = "".join(
        f'<i style="width:{100 * part.value * kept / top:.2f}%;--c:var(--c{colours[part.name] % _COLOURS})" '
        f'title="{_safe(f"{part.name} {part.value:+.3f}: {part.text}")}"></i>'
        for part in parts
        if part.value > 0
    )
    losses = "; ".join(f"{part.name} {part.value:+.3f}: {part.text}" for part in parts if part.value < 0)
    if loss > 0:
        pieces += f'<i class="hm-minus" style="width:{100 * loss / top:.2f}%" title="{_safe(losses)}"></i>'
    return f'<span class="hm-bar">{pieces}</span>'


def _colours(receipts: Sequence[Receipt], arms: Iterable[str] = ()) -> dict[str, int]:
    """A colour number for each part: arms, the parts of the evidence in their order, then stages as they appear."""
    more = [share.arm for one in receipts for share in one.arms]
    evidence = [name.replace("_", " ") for name in PARTS]
    parts = [part.name for one in receipts for part in score_parts(one)]
    return {name: number for number, name in enumerate(dict.fromkeys([*arms, *more, *evidence, *parts]))}


def _swatch(name: str, colours: Mapping[str, int], *, loss: bool) -> str:
    kind = "hm-swatch hm-minus" if loss else "hm-swatch"
    return f'<span class="{kind}" style="--c:var(--c{colours[name] % _COLOURS})"></span>'


# --- the activated neighbourhood


def _drawing(explanation: Explanation) -> str:
    activations = explanation.activations
    if not activations:
        return ""
    notes = {
        receipt.key: f"{best.arm} #{best.rank}"
        for receipt in explanation.receipts
        if (best := min(receipt.arms, key=lambda share: share.rank, default=None)) is not None
    }
    seeds = dict.fromkeys(activation.path[0] for activation in activations.values())
    svg = neighbourhood_svg(list(seeds), activations, labels=explanation.texts, notes=notes)
    return f"<section><h2>Activated neighbourhood</h2>{svg}</section>"


class _Arrival(NamedTuple):
    """How a memory was reached: from which other memory, over which edge."""

    parent: str
    label: str


@dataclass(slots=True)
class _Forest:
    """Seeds as roots, and below each memory those that it activated; every memory stands once."""

    links: dict[str, _Arrival] = field(default_factory=dict)
    keys: dict[str, None] = field(default_factory=dict)

    def add(self, activation: Activation) -> None:
        nodes, labels = activation.path[::2], activation.path[1::2]
        self.keys.update(dict.fromkeys(nodes))
        for parent, label, child in zip(nodes, labels, nodes[1:], strict=False):
            if child not in self.links and not self._descends(parent, child):
                self.links[child] = _Arrival(parent, label)

    def _descends(self, key: str, ancestor: str) -> bool:
        while key != ancestor:
            if key not in self.links:
                return False
            key = self.links[key].parent
        return True

    def rows(self) -> list[tuple[str, int]]:
        """Keys with their depth, parents before children."""
        below: dict[str, list[str]] = {}
        for key in self.keys:
            if key in self.links:
                below.setdefault(self.links[key].parent, []).append(key)
        rows: list[tuple[str, int]] = []
        pending = [(key, 0) for key in reversed(self.keys) if key not in self.links]
        while pending:
            key, depth = pending.pop()
            rows.append((key, depth))
            pending += [(child, depth + 1) for child in reversed(below.get(key, ()))]
        return rows


def neighbourhood_svg(
    seeds: Iterable[str] | Mapping[str, float],
    activations: Mapping[str, Activation],
    /,
    *,
    labels: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
    most: int = 40,
) -> str:
    """The activated memories as an indented tree: seeds at the left, and below each what it activated.

    `labels` are the memories' texts, `notes` a word beside a key ("bm25 #1"). At most `most` paths are drawn, the
    strongest ones. A seed that activated nothing is not drawn. Each box names the edge that leads to it.
    """
    values = seeds if isinstance(seeds, Mapping) else dict.fromkeys(seeds, None)
    ranked = sorted(activations.items(), key=lambda item: (-item[1].value, item[0]))
    forest = _Forest()
    starts = {activation.path[0] for _, activation in ranked[:most]}
    forest.keys.update(dict.fromkeys(seed for seed in values if seed in starts))
    for _, activation in ranked[:most]:
        forest.add(activation)
    rows = forest.rows()
    reported = dict(notes or {})
    for key, value in values.items():
        reported.setdefault(key, "seed" if value is None else f"seed {value:.3g}")
    for key, activation in ranked:
        reported[key] = ", ".join(filter(None, (reported.get(key), f"+{activation.value:.3g}")))
    height = max(1, len(rows)) * _ROW + 2 * _MARGIN
    place = {
        key: (_MARGIN + min(depth, _DEEPEST) * _INDENT, _MARGIN + row * _ROW) for row, (key, depth) in enumerate(rows)
    }
    strongest = ranked[0][1].value if ranked else 1.0
    lines = "".join(
        _line(place[link.parent], place[key], activations[key].value / strongest if key in activations else 0.5)
        for key, link in forest.links.items()
    )
    boxes = "".join(
        _box(key, place[key], (labels or {}).get(key, ""), reported.get(key, ""), link=forest.links.get(key),
             seed=key in values)
        for key, _ in rows
    )  # fmt: skip
    left = len(ranked) - most
    more = f"; {left} weaker paths are not drawn" if left > 0 else ""
    title = f"{len(rows)} memories, {len(forest.links)} edges{more}"
    return (
        f'<svg class="hm-graph" xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}"><title>{_safe(title)}</title>'
        f"<style>{_SVG_STYLE}</style>{lines}{boxes}</svg>"
    )


def _line(parent: tuple[int, int], child: tuple[int, int], share: float) -> str:
    """From the lower edge of the parent's box down and to the left edge of the child's."""
    x, y = parent[0] + _INDENT // 2, parent[1] + _BOX
    right, down = child[0], child[1] + _BOX // 2
    return (
        f'<path class="hm-edge" d="M{x} {y}V{down - 8}Q{x} {down} {x + 8} {down}H{right}" '
        f'stroke-width="{1 + 2.5 * share:.2f}"/>'
    )


def _box(key: str, place: tuple[int, int], text: str, note: str, *, link: _Arrival | None, seed: bool) -> str:
    x, y = place
    width = _WIDTH - _MARGIN - x
    letters, note = int((width - 20) / _LETTER), _cut(note, 26)
    edge = "" if link is None else f"{_cut(link.label, 30)}: "
    title = f"{key}: {text}" if text else key
    if link is not None:
        title += f"\n{link.parent} → {link.label} → {key}"
    kind = "hm-node hm-seed" if seed else "hm-node"
    return (
        f'<g class="{kind}" data-key="{_safe(key)}"><title>{_safe(title)}</title>'
        f'<rect class="hm-box" x="{x}" y="{y}" width="{width}" height="{_BOX}" rx="7"/>'
        f'<text class="hm-name" x="{x + 10}" y="{y + 21}">{_safe(_cut(key, max(8, letters - 4 - len(note))))}</text>'
        f'<text class="hm-value" x="{x + width - 10}" y="{y + 21}">{_safe(note)}</text>'
        f'<text class="hm-text" x="{x + 10}" y="{y + 40}">{_safe(edge)}'
        f"{_safe(_cut(text, max(8, letters - len(edge))))}</text></g>"
    )


def _cut(text: str, most: int) -> str:
    """One line of at most so many characters."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _safe(text: str) -> str:
    """Text for XML: escaped, and without the characters that XML cannot hold."""
    return escape(_FORBIDDEN.sub("\ufffd", text))
