"""The layout of the packages: import cost, layers, names of modules, public names, and tests that mirror the tree."""

import ast
import subprocess
import sys
from pathlib import Path

import hybridmem

HEAVY = ("langchain", "langchain_core", "llama_index", "chromadb", "torch", "numba", "psycopg", "yaml", "wordllama",
         "matplotlib", "rank_bm25", "langchain_hybridmem", "llamaindex_hybridmem")  # fmt: skip
CORE = Path(hybridmem.__file__).parent
TESTS = Path(__file__).parent
TOP = {
    "__main__.py", "cli", "core", "embedding", "errors.py", "evaluation", "filters", "fusion", "indexes", "memory",
    "retrievers", "server", "stores", "testing", "text",
}  # fmt: skip
METAPHORS = {
    "asking", "board", "chains", "chosen", "climb", "express", "fronts", "ledger", "live", "opening", "outbox",
    "picture", "reach", "replay", "roster", "routing", "shaping", "shelf", "shelf_file", "sketch", "space",
    "together", "turns", "wording",
}  # fmt: skip
ACROSS = {
    "docs/test_blocks.py": "code blocks of the pages in docs/",
    "docs/test_first_steps.py": "the quick starts, followed as written",
    "docs/test_site.py": "the docs site and its reference",
    "docs/test_types.py": "pyright and mypy over the code blocks",
    "langchain_hybridmem/test_contracts.py": "contracts of LangChain that every class keeps",
    "langchain_hybridmem/test_imports.py": "import cost and public names of the package",
    "langchain_hybridmem/test_store_filters.py": "filters over LangChain's vector stores",
    "langchain_hybridmem/test_standard.py": "LangChain's own standard tests",
    "llamaindex_hybridmem/test_contracts.py": "contracts of LlamaIndex that every class keeps",
    "llamaindex_hybridmem/test_engines.py": "query and chat engines of LlamaIndex over our retrievers",
    "llamaindex_hybridmem/test_imports.py": "import cost and public names of the package",
    "llamaindex_hybridmem/test_store_filters.py": "filters over LlamaIndex's vector stores",
    "typing/test_typing.py": "mypy and pyright over user code",
    "stores/postgres/test_memory.py": "a whole memory on PostgreSQL compared with one on SQLite",
    "stores/sqlite/test_concurrency.py": "many threads and processes on one file",
    "stores/sqlite/test_crash.py": "killed writers",
}
"""Test files that belong to no single module, and what they test."""


def loaded(statement):
    code = f"import sys; {statement}; print('\\n'.join(m.split('.')[0] for m in sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_core_imports_no_framework():
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


def test_the_top_level_is_the_architecture():
    entries = {path.name for path in CORE.iterdir()} - {"__init__.py", "py.typed", "__pycache__"}
    assert entries == TOP
    assert len(entries) <= 15


def test_no_module_has_a_metaphor_as_its_name():
    assert {str(p.relative_to(CORE)) for p in CORE.rglob("*.py") if p.stem in METAPHORS} == set()


def modules_of(folder):
    """The modules that a folder of tests may test: those of its package, and the package itself."""
    first, *rest = folder.relative_to(TESTS).parts
    package = CORE.parent.joinpath(*((first,) if first.endswith("_hybridmem") else ("hybridmem", first)), *rest)
    return {package.name, *(path.stem.removeprefix("_") for path in package.iterdir())} if package.is_dir() else set()


def test_the_tests_mirror_the_tree():
    """`tests/a/b/test_c.py` or `test_c_aspect.py` tests `hybridmem/a/b/c.py`, the package `c` or the package `b`."""
    differences = []
    for path in sorted(TESTS.glob("*/**/test_*.py")):
        name, subject = path.relative_to(TESTS).as_posix(), path.stem.removeprefix("test_")
        mirrored = any(subject == module or subject.startswith(f"{module}_") for module in modules_of(path.parent))
        if not mirrored and name not in ACROSS:
            differences.append(name)
    assert differences == [], "rename these after the module they test, or add them to ACROSS with a reason"
    assert [name for name in ACROSS if not (TESTS / name).is_file()] == []


def test_public_names_are_pinned():
    assert sorted(hybridmem.__all__) == [
        "Analyzer", "ArmList", "Competition", "Conflicts", "Context", "Diversity", "Edge", "Evidence", "Explanation",
        "Fusion",
        "GraphSettings", "HalfLife", "HybridMemory", "IdenticalTexts", "Memory", "Pack", "QualityGate", "Ranking",
        "Receipt", "Rerank",
        "Result", "SourceDedup", "Spread", "__version__", "load_recipe", "save_recipe", "weighted_rrf",
    ]  # fmt: skip
    for name in hybridmem.__all__:
        assert getattr(hybridmem, name) is not None
    assert dir(hybridmem) == sorted(hybridmem.__all__)
    assert not hasattr(hybridmem, "Nonsense")


def test_the_packages_are_typed():
    for name in ("hybridmem", "langchain_hybridmem", "llamaindex_hybridmem"):
        assert (CORE.parent / name / "py.typed").exists()


def test_the_version_is_in_one_place():
    project = (TESTS.parent / "pyproject.toml").read_text("utf-8")
    assert 'dynamic = ["version"]' in project
    assert hybridmem.__version__ not in project
