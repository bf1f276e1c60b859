"""Every Python block of README and docs runs, page by page, top to bottom, offline and in an empty folder."""

import subprocess
import sys

import pytest

from tests.support.pages import PAGES, ROOT, blocks, python_of


def run(script, folder):
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(script)],
        cwd=folder, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text(python_of(page), encoding="utf-8")
    run(script, tmp_path)


def test_readme_runs_twice_and_prints_what_it_shows(tmp_path):
    readme = ROOT / "README.md"
    (shown,) = blocks(readme, "text")
    script = tmp_path / "page.py"
    script.write_text(python_of(readme), encoding="utf-8")
    for _ in range(2):
        assert run(script, tmp_path).startswith(shown)


def test_readme_has_the_figures_of_the_quality_page():
    """`python -m benchmarks.quality.readme` copies them; `make quality` does so, too."""
    words = [sys.executable, "-m", "benchmarks.quality.readme", "--check"]
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == 0


def test_there_are_pages():
    assert ROOT / "README.md" in PAGES
