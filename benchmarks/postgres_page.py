"""The page of benchmarks/postgres.py: tables, words whose numbers are filled in, and a plot."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.common import OUT, machine, table

OURS = "hybridmem"
Table = dict[str, tuple[float, float]]


class Filtered(NamedTuple):
    """A search by vectors with a filter."""

    fewest: int
    agreement: float
    near: float
    exact: float


@dataclass
class Figures:
    """Everything measured."""

    size: int = 0
    asked: int = 0
    loaded: float = 0.0
    built: float = 0.0
    agreement: tuple[float, float] = (0.0, 0.0)
    filtered: dict[str, Filtered] = field(default_factory=dict)
    hops: dict[str, float] = field(default_factory=dict)
    adds: dict[str, dict[str, float]] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    load: list[float] = field(default_factory=list)

    def note(self, title: str, measured: Table) -> None:
        self.tables[title] = measured
        self.load.append(os.getloadavg()[0])
        say(f"{title} (load {self.load[-1]:.1f})")
        for name, (milliseconds, recall) in measured.items():
            say(f"  {name:20} {milliseconds:8.1f} ms   recall@10 {recall:.3f}")


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def page(f: Figures) -> str:
    """The whole page."""
    intro = (
        f"{f.size:,} memories, {f.asked} natural questions (LoCoMo) with known answers, k = 10, 384 dimensions, "
        "PostgreSQL with pgvector. Medians of wall time, rivals alternating question by question. hybridmem's time is "
        "the whole search: both arms 50 deep, completion, spreading and fetching. Every conversation has a namespace "
        "of its own among the 100, filled up with distractors. `×` is the time in hybridmem's."
    )
    title = "# PostgreSQL: hybridmem, LangChain and LlamaIndex on one server"
    parts = [title, intro, "![time and recall](postgres.png)"]
    for title, measured in f.tables.items():
        base = measured[OURS][0]
        rows = [(n, f"{ms:.1f} ms", f"{r:.3f}", f"{ms / base:.2f} ×") for n, (ms, r) in measured.items()]
        parts += [f"## {title}", table(["", "median", "recall@10", "×"], rows)]
    parts += ["## What a write costs", _writes(f), "## How to read this", *_words(f)]
    parts.append(
        f"Measured by `python -m benchmarks.postgres --write` on {machine()}, shared with other work (load "
        f"{min(f.load):.1f} to {max(f.load):.1f}): compare columns, not machines."
    )
    return "\n\n".join(parts) + "\n"


def _writes(f: Figures) -> str:
    rows = [(name, f"{a['one']:.1f} ms", f"{a['batch']:,.0f}/s") for name, a in f.adds.items()]
    return table(["vector index", "one memory", "2,000 at once"], rows)


def _words(f: Figures) -> list[str]:
    one, hnsw = f.tables["one namespace, out of the box"], f.tables["one namespace, HNSW for all"]
    many, both = f.tables["100 namespaces, out of the box"], f.tables["100 namespaces, HNSW for all"]
    exact = f"{OURS}, exact"
    box = (
        "Out of the box neither rival has a vector index. hybridmem searches namespaces below 20,000 vectors exactly, "
        f"and has an HNSW index built in the background when a larger one is searched (here within {f.built:.0f} s of "
        f"the first search; half-precision, ef_search 200). It finds {100 * f.agreement[0]:.1f} % of the exact 10 "
        f"nearest and {100 * f.agreement[1]:.1f} % of the exact 100. In one namespace hybridmem is then "
        f"{_ratios(one)}. Without any index, every vector looked at (`{exact}`), it is {_ratios(one, exact)}."
    )
    everybody = (
        f"With HNSW for all three it is {_ratios(hnsw)}. LangChain joins the words of a question with AND, hybridmem "
        f"with OR, scored by exact BM25: that arm alone takes {hnsw['bm25 arm'][0]:.1f} ms of its {hnsw[OURS][0]:.1f}. "
        "What LangChain's two parts cost and find each was not measured apart."
    )
    spaces = (
        f"In 100 namespaces hybridmem is {_ratios(many)}. There both rivals have an index on the field that tells "
        f"users apart. With HNSW for all it is {_ratios(both)}."
    )
    graph = (
        "Two hops in the graph from 20 seeds, fetched by one statement and spread, take "
        f"{f.hops['one']:.1f} ms in one namespace and {f.hops['100']:.1f} ms in 100; `graph arm` has the search for "
        f"its 40 seeds by words in it. hybridmem loaded {f.loaded:,.0f} memories a second (batches of 5,000, no index)."
    )
    picky = (
        "By vectors with a filter, HNSW on: the scan of the index goes on until enough have passed, or 4,000 have been "
        "asked; what comes back short is searched exactly among those that pass. "
        f"{_picky('one memory in two', f.filtered['common'])} {_picky('one in a hundred', f.filtered['rare'])}"
    )
    return [box, everybody, spaces, picky, graph]


def _picky(who: str, f: Filtered) -> str:
    return (
        f"Where {who} passes, no question got fewer than {f.fewest} of its 10, {100 * f.agreement:.1f} % of them the "
        f"exact ones, in {f.near:.1f} ms (without the index {f.exact:.1f} ms)."
    )


def _ratios(measured: Table, mine: str = OURS) -> str:
    ms, recall = measured[mine]
    told = [
        f"{_times(measured[name][0] / ms)} {name} with {recall / measured[name][1]:.2f} × its recall"
        for name in ("LangChain", "LlamaIndex")
    ]
    return " and ".join(told)


def _times(ratio: float) -> str:
    return f"{ratio:.1f} × as fast as" if ratio >= 1 else f"{1 / ratio:.1f} × as slow as"


def write(f: Figures) -> None:
    """The page and the plot: time to the right, recall upwards; up and to the left is better."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "postgres.md").write_text(page(f), encoding="utf-8")
    figure, axes = plt.subplots(1, len(f.tables), figsize=(4.2 * len(f.tables), 4), sharey=True)
    for axis, (title, measured) in zip(axes, f.tables.items(), strict=True):
        for name, (milliseconds, recall) in measured.items():
            arm = "arm" in name
            color = "tab:blue" if arm or OURS in name else "tab:red"
            axis.scatter(milliseconds, recall, s=18 if arm else 50, color=color)
            axis.annotate(name, (milliseconds, recall), fontsize=8, xytext=(4, 4), textcoords="offset points")
        axis.set_xscale("log")
        axis.set_xlabel("median ms")
        axis.set_title(title, fontsize=9)
        axis.margins(0.25)
    axes[0].set_ylabel("recall@10")
    figure.tight_layout()
    figure.savefig(OUT / "postgres.png", dpi=110)
    print(f"written: {OUT / 'postgres.md'}")
