"""Every example runs as a user would run it, offline and in an empty folder."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example, tmp_path):
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip()


def test_the_examples_are_there():
    names = {path.name for path in EXAMPLES}
    assert {
        "quickstart.py",
        "migrate_from_ensemble.py",
        "langchain_rag_chain.py",
        "llamaindex_query_engine.py",
    } <= names
    assert {"agent_memory.py", "langgraph_memory.py", "llamaindex_agent.py", "mcp_client.py"} <= names


NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=180, resources={"metadata": {"path": "."}}).execute()
"""


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(notebook, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(notebook)],
        cwd=tmp_path, capture_output=True, text=True, timeout=220, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    assert any(cell.get("outputs") for cell in cells), "stored with its outputs, as a reader sees it"


def test_there_are_two_notebooks():
    assert {path.name for path in NOTEBOOKS} == {"replace_ensemble.ipynb", "tune_on_your_questions.ipynb"}


EXTRAS = {
    "langchain_core": "langchain",
    "langchain_hybridmem": "langchain",
    "langchain": "agents",
    "llama_index": "llamaindex",
    "llamaindex_hybridmem": "llamaindex",
    "mcp": "mcp",
}
"""The extra of each module; `agents` brings LangChain's core, too."""


def _modules(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_how_to_install_what_it_imports(example):
    tree = ast.parse(example.read_text("utf-8"))
    imported = {name.split(".")[0] for node in ast.walk(tree) for name in _modules(node)}
    needed = {extra for module, extra in EXTRAS.items() if module in imported}
    if "agents" in needed:
        needed.discard("langchain")
    line = re.search(r"pip install 'hybridmem\[(.*?)\]' && python examples/(.*)", ast.get_docstring(tree) or "")
    assert needed <= set(line[1].split(",") if line else ())
    assert line is None or line[2] == example.name
