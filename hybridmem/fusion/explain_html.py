"""The activated neighbourhood as a drawing: self-contained SVG and HTML, no script, nothing fetched from anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from hybridmem.core.types import Activation

if TYPE_CHECKING:
    from hybridmem.fusion.explain import Explanation

__all__ = ["neighbourhood_svg", "page"]

_WIDTH, _HEIGHT = 190, 44  # of a box
_ACROSS, _DOWN = 330, 62  # from one box to the next
_MARGIN = 16
_LETTERS = 26  # that fit into a box

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_STYLE = """
.hm-box{fill:#f6f8fa;stroke:#8c959f;stroke-width:1.5}
.hm-seed .hm-box{fill:#fff8c5;stroke:#9a6700}
.hm-node:hover .hm-box{stroke-width:3}
.hm-edge{fill:none;stroke:#0969da;stroke-linecap:round}
.hm-key{font:600 12px system-ui,sans-serif;fill:#1f2328}
.hm-text{font:11px system-ui,sans-serif;fill:#59636e}
.hm-label{font:11px system-ui,sans-serif;fill:#0550ae;text-anchor:middle}
.hm-label{paint-order:stroke;stroke:#fff;stroke-width:3px}
"""
_PAGE_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;margin:24px;color:#1f2328;background:#fff}
.hm-page>div{overflow-x:auto}
@media(min-width:1100px){.hm-page{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:32px}}
table{border-collapse:collapse}
th,td{border:1px solid #d1d9e0;padding:6px 10px;text-align:left;vertical-align:top;overflow-wrap:break-word}
th{background:#f6f8fa;white-space:nowrap}
svg{max-width:100%;height:auto;background:#fff}
h2{margin:13px 0}
"""


class _Line(NamedTuple):
    """An edge as it is drawn: from box to box, under a label, as thick as what flowed along it."""

    first: str
    second: str
    label: str


@dataclass(slots=True)
class _Drawing:
    """Where the boxes go: one column for each hop, best first, each near the box it was reached from."""

    level: dict[str, int] = field(default_factory=dict)
    lines: dict[_Line, float] = field(default_factory=dict)
    place: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, won: Activation) -> None:
        keys, labels = won.path[::2], won.path[1::2]
        for hop, key in enumerate(keys):
            self.level[key] = min(hop, self.level.get(key, hop))
        for first, label, second in zip(keys, labels, keys[1:], strict=False):
            line = _Line(first, second, label)
            if (back := _Line(second, first, label)) in self.lines:  # walked both ways, drawn once
                line = back
            self.lines[line] = max(won.value, self.lines.get(line, 0.0))

    def arrange(self) -> tuple[int, int]:
        """Give every box its place; the size of the whole drawing."""
        columns: dict[int, list[str]] = {}
        for key, hop in self.level.items():
            columns.setdefault(hop, []).append(key)
        row: dict[str, float] = {}
        for hop in sorted(columns):
            order = {key: (self._pull(key, row), n) for n, key in enumerate(columns[hop])}
            for place, key in enumerate(sorted(order, key=order.__getitem__)):
                row[key] = place
                self.place[key] = (_MARGIN + hop * _ACROSS, _MARGIN + place * _DOWN)
        widest, longest = max(columns, default=0), max(map(len, columns.values()), default=0)
        return 2 * _MARGIN + widest * _ACROSS + _WIDTH, 2 * _MARGIN + max(0, longest - 1) * _DOWN + _HEIGHT

    def _pull(self, key: str, row: Mapping[str, float]) -> float:
        """The mean row of the boxes before it that it is tied to."""
        tied = [row[line.first] for line in self.lines if line.second == key and line.first in row]
        return sum(tied) / len(tied) if tied else 0.0


def neighbourhood_svg(
    seeds: Iterable[str] | Mapping[str, float],
    activations: Mapping[str, Activation],
    /,
    *,
    labels: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
    most: int = 40,
) -> str:
    """Seeds on the left, what they activated to the right, one column a hop; edges say what joins two memories.

    `labels` are the memories' texts, `notes` a word beside a key ("bm25 #1"). At most `most` paths are drawn, the
    strongest ones. A seed that activated nothing is not drawn.
    """
    values = seeds if isinstance(seeds, Mapping) else dict.fromkeys(seeds, None)
    ranked = sorted(activations.items(), key=lambda item: (-item[1].value, item[0]))
    drawing = _Drawing()
    for seed in values:
        if any(won.path[0] == seed for _, won in ranked[:most]):
            drawing.level[seed] = 0
    for _, won in ranked[:most]:
        drawing.add(won)
    width, height = drawing.arrange()
    texts, told = labels or {}, dict(notes or {})
    for key, value in values.items():
        told.setdefault(key, "seed" if value is None else f"seed {value:.3g}")
    for key, won in ranked:
        told[key] = ", ".join(filter(None, (told.get(key), f"+{won.value:.3g}")))
    strongest = ranked[0][1].value if ranked else 1.0
    lines = "".join(_line(line, value / strongest, drawing) for line, value in drawing.lines.items())
    boxes = "".join(
        _box(key, drawing.place[key], texts.get(key, ""), told.get(key, ""), seed=key in values)
        for key in drawing.place
    )
    left = len(ranked) - most
    more = f"; {left} weaker paths are not drawn" if left > 0 else ""
    title = f"{len(drawing.place)} memories, {len(drawing.lines)} edges{more}"
    return (
        f'<svg class="hm-graph" xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><title>{_safe(title)}</title><style>{_STYLE}</style>{lines}{boxes}</svg>'
    )


def _line(line: _Line, share: float, drawing: _Drawing) -> str:
    (x1, y1), (x2, y2) = drawing.place[line.first], drawing.place[line.second]
    y1, y2 = y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
    if x1 < x2:
        x1, middle = x1 + _WIDTH, (x1 + _WIDTH + x2) // 2
    elif x1 > x2:
        x2, middle = x2 + _WIDTH, (x2 + _WIDTH + x1) // 2
    else:  # within a column: a bow to its right
        x1 = x2 = x1 + _WIDTH
        middle = x1 + 70
    bow = f"M{x1} {y1}C{middle} {y1},{middle} {y2},{x2} {y2}"
    shown = middle if x1 != x2 else x1 + 52
    return (
        f'<g class="hm-line"><path class="hm-edge" d="{bow}" stroke-width="{1 + 3 * share:.2f}" '
        f'stroke-opacity="{0.3 + 0.5 * share:.2f}"/>'
        f'<text class="hm-label" x="{shown}" y="{(y1 + y2) // 2 - 4}">{_safe(_cut(line.label, 18))}'
        f"<title>{_safe(f'{line.first} → {line.label} → {line.second}')}</title></text></g>"
    )


def _box(key: str, place: tuple[int, int], text: str, note: str, *, seed: bool) -> str:
    x, y = place
    room = max(8, _LETTERS - len(note))
    head = f"{_cut(key, room)} {note}".strip()
    kind = "hm-node hm-seed" if seed else "hm-node"
    return (
        f'<g class="{kind}" data-key="{_safe(key)}"><title>{_safe(f"{key}: {text}" if text else key)}</title>'
        f'<rect class="hm-box" x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="7"/>'
        f'<text class="hm-key" x="{x + 9}" y="{y + 18}">{_safe(head)}</text>'
        f'<text class="hm-text" x="{x + 9}" y="{y + 34}">{_safe(_cut(text, _LETTERS + 4))}</text></g>'
    )


def _cut(text: str, most: int) -> str:
    """One line of at most so many characters."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _safe(text: str) -> str:
    """Text for XML: escaped, and without the characters that XML cannot hold even so."""
    return escape(_FORBIDDEN.sub("\ufffd", text))


def page(explanation: Explanation, /) -> str:
    """A whole HTML page: the receipts, and beside them the neighbourhood when the graph took part."""
    found = explanation.activations
    drawing = ""
    if found:
        notes = {
            receipt.key: f"{best.arm} #{best.rank}"
            for receipt in explanation.receipts
            if (best := min(receipt.arms, key=lambda share: share.rank, default=None)) is not None
        }
        seeds = dict.fromkeys(won.path[0] for won in found.values())
        svg = neighbourhood_svg(list(seeds), found, labels=explanation.texts, notes=notes)
        drawing = f"<div><h2>What reminded of what</h2>{svg}</div>"
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f'<meta name="viewport" content="width=device-width"><title>{_safe(_cut(explanation.query, 80))}</title>'
        f"<style>{_PAGE_STYLE}</style></head>"
        f'<body><div class="hm-page"><div>{explanation._repr_html_()}</div>{drawing}</div></body></html>'
    )
    return html.encode(
        "utf-8", "replace"
    ).decode()  # a lone surrogate in a text must not keep the page from being saved
