"""The docs site: it builds without warnings and offline, and its reference has an entry for every public name."""

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from hybridmem import HybridMemory
from hybridmem.fusion.recipe import SLOTS

ROOT = Path(__file__).parents[2]
PAGES = {"hybridmem": "hybridmem.md", "langchain_hybridmem": "langchain.md", "llamaindex_hybridmem": "llamaindex.md"}


@pytest.mark.parametrize("package", PAGES)
def test_every_public_name_is_in_the_reference(package):
    page = (ROOT / "docs" / "reference" / PAGES[package]).read_text("utf-8")
    described = set(re.findall(rf"^::: {package}\.(\w+)$", page, re.MULTILINE))
    described |= set(re.findall(rf"`{package}\.(\w+)` is", page))
    assert described == set(import_module(package).__all__)


def test_the_site_builds_without_warnings_and_loads_nothing_from_other_hosts(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text("utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)"', text)
        loaded += re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="(https?:[^"]+)"', text)
        assert loaded == [], page
    reference = (tmp_path / "site" / "reference" / "hybridmem.html").read_text("utf-8")
    assert "<blockquote>" not in reference  # the examples of docstrings are code
    signature = re.sub("<[^>]+>", "", reference[reference.index('id="hybridmem.HybridMemory"') :])
    assert "HybridMemory(\n    path: str" in signature  # one parameter a line
    named = set(re.findall(r'id="hybridmem\.HybridMemory\.(\w+)"', reference))
    public = {name for name, value in inspect.getmembers(HybridMemory) if not name.startswith("_") and callable(value)}
    assert {name for name in public if name[0] != "a" or name[1:] not in public} <= named  # all but async twins


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8")))
    assert {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")} == listed


def test_the_page_of_the_fusion_names_every_slot_in_order():
    text = (ROOT / "docs" / "fusion.md").read_text("utf-8")
    (line,) = re.findall(r"^arms → .*$", text, re.MULTILINE)
    gate, *others = (slot.name for slot in SLOTS)
    assert line.split(" → ") == ["arms", gate, "merge", *others]
    for slot in SLOTS:
        assert all(f"`{kind.__name__}(" in text for kind in slot.types)


def test_contributing_names_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    walks = text[text.index("## One query") : text.index("## Where a change goes")]
    named = set(re.findall(r"`([\w/]+\.py)`", walks))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / "hybridmem" / name).is_file()] == []
