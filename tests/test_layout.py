"""What an import costs and brings along; and that the core knows no framework."""

import ast
import subprocess
import sys
from pathlib import Path

import hybridmem

HEAVY = ("langchain", "langchain_core", "llama_index", "chromadb", "torch", "numba", "psycopg", "yaml", "wordllama",
         "matplotlib", "rank_bm25", "langchain_hybridmem", "llamaindex_hybridmem")  # fmt: skip
CORE = Path(hybridmem.__file__).parent


def loaded(statement):
    code = f"import sys; {statement}; print('\\n'.join(m.split('.')[0] for m in sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_core_brings_no_framework_along():
    assert loaded("import hybridmem") & set(HEAVY) == set()
    assert loaded("from hybridmem import HybridMemory; HybridMemory(embedder=None).add('x')") & set(HEAVY) == set()


def test_no_module_of_the_core_names_a_framework():
    for path in CORE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                first = name.split(".")[0]
                assert not first.startswith(("langchain", "llama")), f"{path} imports {name}"


def test_what_is_public_is_pinned():
    assert sorted(hybridmem.__all__) == [
        "Analyzer", "ArmList", "Competition", "Conflicts", "Context", "Diversity", "Edge", "Explanation", "Fusion",
        "GraphSettings", "HalfLife", "HybridMemory", "Memory", "NamedDate", "Pack", "QualityGate", "Ranking",
        "Receipt", "Rerank",
        "Result", "SourceDedup", "Spread", "Substance", "__version__", "load_recipe", "save_recipe", "weighted_rrf",
    ]  # fmt: skip
    for name in hybridmem.__all__:
        assert getattr(hybridmem, name) is not None
    assert dir(hybridmem) == sorted(hybridmem.__all__)
    assert not hasattr(hybridmem, "Nonsense")


def test_typed_packages_say_so():
    assert (CORE / "py.typed").exists()
