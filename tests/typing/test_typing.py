"""mypy --strict and pyright over user code: what must pass, and the typos that must not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOOD, BAD = HERE / "adapters_good.py", HERE / "adapters_bad.py"


def mypy(path):
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return {int(line) for line in re.findall(rf"{path.name}:(\d+): error", out)}, out


def pyright(path):
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(path)]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = json.loads(out)["generalDiagnostics"]
    errors = [one for one in found if one["severity"] == "error"]
    return {one["range"]["start"]["line"] + 1 for one in errors}, "\n".join(one["message"] for one in errors)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_good_code_passes_and_every_typo_fails(checker):
    lines, said = checker(GOOD)
    assert not lines, said
    wanted = {number for number, line in enumerate(BAD.read_text().splitlines(), start=1) if line.endswith("# bad")}
    assert checker(BAD)[0] == wanted
