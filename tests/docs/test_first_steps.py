"""The first three minutes of a LangChain user, a LlamaIndex user, an agent builder and a search engineer.

Each quick start is followed as written: its Python blocks, then its console commands, in an empty folder. They print
what the page shows.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.pages import ROOT, blocks, console_of, python_of

STARTS = ("langchain", "llamaindex", "agents", "search")
MINUTES = 3


@pytest.mark.parametrize("name", STARTS)
def test_a_quick_start_works_as_written(name, tmp_path):
    page = ROOT / "docs" / f"quickstart-{name}.md"
    started = time.monotonic()
    script = tmp_path / "start.py"
    script.write_text(python_of(page), encoding="utf-8")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("HYBRIDMEM", None)
    printed = ""
    for words in ([sys.executable, str(script)], ["bash", "-e", "-c", console_of(page)]):
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        printed += done.stdout
    shown = blocks(page, "text")
    assert shown
    for block in shown:  # in the order of the page; … stands for an id or a date
        found = re.search(re.escape(block).replace("…", r"\S+"), printed)
        assert found, f"{block}\nis not in\n{printed}"
        printed = printed[found.end() :]
    assert time.monotonic() - started < MINUTES * 60


def test_the_pages_are_linked_from_the_home_page():
    home = (ROOT / "docs" / "index.md").read_text("utf-8")
    for name in STARTS:
        assert f"quickstart-{name}.md" in home
