"""Importing the package is light, needs no other framework, and says what is missing."""

import subprocess
import sys

import pytest

import llamaindex_hybridmem

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name in {blocked!r} or name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
LANGCHAIN = ["langchain", "langchain_core", "langchain_classic", "langchain_community", "langchain_hybridmem"]


def run(code, blocked=()):
    script = BLOCK.format(blocked=list(blocked)) + code
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)


def test_the_exports():
    assert llamaindex_hybridmem.__all__ == [
        "FUSION_MODES",
        "BM25Retriever",
        "FusedNode",
        "FusionRetriever",
        "GraphRetriever",
        "HybridMemoryBlock",
        "LocalEmbedding",
        "QueryFusionRetriever",
        "VectorRetriever",
        "aadd_nodes",
        "add_nodes",
        "as_scorer",
        "memory_tools",
        "to_filter",
    ]
    for name in llamaindex_hybridmem.__all__:
        assert getattr(llamaindex_hybridmem, name).__name__ == name
        assert name in dir(llamaindex_hybridmem)
    with pytest.raises(AttributeError, match="no attribute 'EnsembleRetriever'"):
        _ = llamaindex_hybridmem.EnsembleRetriever


def test_importing_loads_no_framework():
    heavy = ("llama_index.core", "langchain_core", "chromadb", "pydantic")
    code = f"import llamaindex_hybridmem; print([name for name in {heavy!r} if name in sys.modules])"
    assert run(code).stdout.strip() == "[]"


def test_everything_works_without_langchain_and_chroma():
    code = """
from llamaindex_hybridmem import *
from llama_index.core.schema import TextNode
from llama_index.core.retrievers import BaseRetriever
found = FusionRetriever([GraphRetriever([TextNode(id_="a", text="cats purr")])]).retrieve("cats")
assert not [name for name in sys.modules if name.startswith("langchain")]
print([n.node_id for n in found])
"""
    done = run(code, [*LANGCHAIN, "chromadb"])
    assert done.stdout.strip() == "['a']", done.stderr


@pytest.mark.parametrize("blocked", ["llama_index", "llama_index.core"])
def test_a_missing_extra_names_the_pip_line(blocked):
    code = """
try:
    import llamaindex_hybridmem
except ImportError as error:
    print(type(error).__name__, error)
"""
    done = run(code, [blocked])
    line = "MissingExtraError llama-index-core is not installed: pip install 'hybridmem[llamaindex]'"
    assert done.stdout.strip() == line, done.stderr


def test_another_missing_module_is_not_taken_for_the_extra():
    code = """
import llamaindex_hybridmem
try:
    llamaindex_hybridmem.FusionRetriever
except ModuleNotFoundError as error:
    print(type(error).__name__, error.name)
"""
    assert run(code, ["numpy"]).stdout.strip() == "ModuleNotFoundError numpy"
