"""The table of quality in README.md, copied from docs/quality.md: `python -m benchmarks.quality.readme [--check]`."""

import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["write_readme"]

ROOT = Path(__file__).parents[2]
SETS = ("LoCoMo", "SciFact (nDCG@10)", "Cranfield (nDCG@10)")
ROWS = {
    "LangChain `EnsembleRetriever`": ("LangChain EnsembleRetriever",),
    "LlamaIndex `QueryFusionRetriever`, the best of its modes in each figure": (
        "LlamaIndex QueryFusionRetriever, RRF",
        "LlamaIndex QueryFusionRetriever, relative",
    ),
    "`FusionRetriever` over our BM25 and the same vectors": ("FusionRetriever (LangChain), defaults",),
    "**`HybridMemory`**": ("**HybridMemory, defaults**",),
}
"""A row of README, and the rows of the page whose highest figures it shows."""


def figures(page: str) -> dict[str, dict[str, str]]:
    """The first table of the page: system → set → cell."""
    table = page[page.index("| system |") :].split("\n\n", maxsplit=1)[0]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


def best(cells: list[str]) -> str:
    """The highest of each figure of several cells."""
    return " / ".join(max(parts, key=float) for parts in zip(*(cell.split(" / ") for cell in cells), strict=True))


def with_figures(readme: str, table: Mapping[str, Mapping[str, str]]) -> str:
    """README with the rows of its table from the figures of the page."""
    lines = readme.splitlines()
    for label, systems in ROWS.items():
        (at,) = (n for n, line in enumerate(lines) if line.startswith(f"| {label} |"))
        cells = [best([table[system][name] for system in systems]) for name in SETS]
        mark = "**" if label.startswith("**") else ""
        lines[at] = "".join(f"| {cell} " for cell in (label, *(f"{mark}{one}{mark}" for one in cells))) + "|"
    return "\n".join(lines) + "\n"


def write_readme(root: Path = ROOT, *, check: bool = False) -> bool:
    """Write the figures of docs/quality.md into README.md; true if it had them already."""
    place = root / "README.md"
    old = place.read_text("utf-8")
    new = with_figures(old, figures((root / "docs" / "quality.md").read_text("utf-8")))
    if not check:
        place.write_text(new, encoding="utf-8")
    return old == new


if __name__ == "__main__":
    sys.exit(0 if write_readme(check="--check" in sys.argv) or "--check" not in sys.argv else 1)
