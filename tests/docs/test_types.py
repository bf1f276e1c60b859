"""The Python blocks of README and docs pass pyright and mypy, as in a user's editor."""

import json
import subprocess
import sys

import pytest

from tests.support.pages import PAGES, ROOT, python_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One module for each page."""
    place = tmp_path_factory.mktemp("blocks")
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix().removesuffix(".md").replace("/", "_").replace("-", "_").lower()
        (place / f"page_{name}.py").write_text(python_of(page), encoding="utf-8")
    return place


def test_pyright(folder):
    words = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(folder)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=230, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [f"{one['file']}:{one['range']['start']['line'] + 1}: {one['message']}" for one in found] == []


def test_mypy(folder):
    words = [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--config-file", "", str(folder)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=230, check=False)
    assert done.stdout.splitlines()[-1].startswith("Success"), done.stdout
