"""mypy --strict and pyright over user code: what must pass, and the typos that must not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOOD, BAD = sorted(HERE.glob("*_good.py")), sorted(HERE.glob("*_bad.py"))


def mypy(*paths):
    """(file name, line) of each error, and the whole output."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, paths)]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return {(name, int(line)) for name, line in re.findall(r"(\w+\.py):(\d+): error", out)}, out


def pyright(*paths):
    """(file name, line) of each error, and the messages."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, paths)]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = json.loads(out)["generalDiagnostics"]
    errors = [one for one in found if one["severity"] == "error"]
    places = {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in errors}
    return places, "\n".join(one["message"] for one in errors)


@pytest.mark.parametrize("package", ["langchain_hybridmem", "llamaindex_hybridmem"])
def test_every_public_name_is_checked(package):
    alias = {"langchain_hybridmem": "lc", "llamaindex_hybridmem": "li"}[package]
    used = set(re.findall(rf"\b{alias}\.(\w+)", (HERE / "adapters_good.py").read_text()))
    assert set(import_module(package).__all__) - used == set()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_good_code_passes_and_every_typo_fails(checker):
    found, output = checker(*GOOD, *BAD)
    marked = {
        (path.name, number)
        for path in BAD
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if line.endswith("# bad")
    }
    assert found == marked, output
    assert {name for name, _ in marked} == {"adapters_bad.py", "memory_bad.py"}
