"""What an import brings along: only what it needs, and the pip line when that is missing."""

import subprocess
import sys

import pytest

import langchain_hybridmem

BLOCK = """
import sys

class Block:
    def __init__(self, *names):
        self.names = names
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def block(*names):
    sys.meta_path.insert(0, Block(*names))
"""


def python(code):
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_everything_works_without_llama_index_and_the_old_packages():
    out = python(
        """
block("llama_index", "llamaindex_hybridmem", "chromadb", "langchain_classic", "langchain_community", "langchain")
import langchain_hybridmem
from langchain_core.runnables import RunnableLambda
from hybridmem.memory.memory import HybridMemory
arms = [RunnableLambda(lambda query: [query]), RunnableLambda(lambda query: ["b"])]
print(len(langchain_hybridmem.EnsembleRetriever(retrievers=arms).invoke("a")))
print(len(langchain_hybridmem.FusionRetriever(retrievers=arms).invoke("a")))
search, save, forget = langchain_hybridmem.memory_tools(HybridMemory(embedder=None))
print(save.invoke({"text": "a"}).partition(" ")[0])
print(sorted({name.partition(".")[0] for name in sys.modules} & {"llama_index", "chromadb", "langchain_classic"}))
"""
    )
    assert out == ["2", "2", "Saved", "[]"]


def test_without_langchain_core_the_error_is_the_pip_line():
    out = python(
        """
block("langchain_core")
try:
    import langchain_hybridmem
except ImportError as error:
    print(type(error).__name__, error)
"""
    )
    assert " ".join(out) == "MissingExtraError langchain-core is not installed: pip install 'hybridmem[langchain]'"


def test_the_import_itself_is_light():
    out = python(
        """
import langchain_hybridmem
print("langchain_core.retrievers" in sys.modules, "hybridmem.memory.memory" in sys.modules)
"""
    )
    assert out == ["False", "False"]


def test_the_names_are_pinned():
    names = [
        "BM25Retriever",
        "EnsembleRetriever",
        "FusionRetriever",
        "GraphRetriever",
        "HybridStore",
        "HybridVectorStore",
        "LocalEmbeddings",
        "MemoryMiddleware",
        "VectorRetriever",
        "aadd_documents",
        "add_documents",
        "as_scorer",
        "memory_tools",
    ]
    assert langchain_hybridmem.__all__ == names
    assert set(names) <= set(dir(langchain_hybridmem))
    for name in names:
        assert getattr(langchain_hybridmem, name).__name__ == name


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError, match="has no attribute 'Fusion': it has BM25Retriever"):
        langchain_hybridmem.Fusion  # noqa: B018
