"""The migration pages name every parameter, attribute and overridable step of the classes that ours replace."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest
from langchain_classic.retrievers import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever as LangChainBM25
from langchain_core.retrievers import BaseRetriever
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.retrievers.bm25 import BM25Retriever as LlamaBM25

DOCS = Path(__file__).parents[1] / "docs"
METHODS = ("from_texts", "from_documents", "from_defaults", "persist", "from_persist_dir")
"""Methods whose parameters are listed in the second column."""
INTERNAL = {"model_config", "model_post_init", "_abc_impl", "_sa_class_manager", "args", "self", "cls"}
"""Names that classes have for pydantic and abc alone."""


def parameters(function):
    return set(inspect.signature(function).parameters)


def assigned(function):
    """The attributes that a constructor sets and that have no leading underscore."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    targets = [target for node in ast.walk(tree) if isinstance(node, ast.Assign) for target in node.targets]
    names = {target.attr for target in targets if isinstance(target, ast.Attribute)}
    return {name for name in names if not name.startswith("_")}


def own_names(cls):
    """Everything that the class itself defines, without what Python and pydantic add."""
    return {name for name in vars(cls) if not name.startswith(("__", "_abc", "_new_arg", "_expects"))}


def names_of(cls):
    if hasattr(cls, "model_fields"):
        names = (set(cls.model_fields) - set(BaseRetriever.model_fields)) | own_names(cls)
        names |= {"name", "tags", "metadata"} if cls is EnsembleRetriever else set()
    else:
        names = own_names(cls) | parameters(cls.__init__) | assigned(cls.__init__)
    for method in METHODS:
        if method in vars(cls):
            names |= parameters(getattr(cls, method))
    return names - INTERNAL


def table(page, heading):
    """The names in the first column of the table under a heading, and parameters in the second column of a method."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    names = set()
    for first, second in re.findall(r"^\|([^|]+)\|([^|]+)\|", section, re.MULTILINE):
        own = set(re.findall(r"`(\w+)`", first))
        names |= own | (set(re.findall(r"`(\w+)`", second)) if own & set(METHODS) else set())
    return names


@pytest.mark.parametrize(
    ("cls", "page", "heading"),
    [
        (EnsembleRetriever, "migrate-from-ensemble.md", "Every name of the original"),
        (QueryFusionRetriever, "migrate-from-query-fusion.md", "Every name of the original"),
        (LangChainBM25, "migrate-from-bm25.md", "LangChain: every name of the original"),
        (LlamaBM25, "migrate-from-bm25.md", "LlamaIndex: every name of the original"),
    ],
    ids=["ensemble", "query-fusion", "langchain-bm25", "llamaindex-bm25"],
)
def test_every_name_of_the_original_is_in_its_table(cls, page, heading):
    missing = names_of(cls) - table(page, heading)
    assert not missing


@pytest.mark.parametrize(
    ("original", "ours"),
    [
        (LangChainBM25, ("langchain_hybridmem", "BM25Retriever")),
        (EnsembleRetriever, ("langchain_hybridmem", "EnsembleRetriever")),
        (QueryFusionRetriever, ("llamaindex_hybridmem", "QueryFusionRetriever")),
        (LlamaBM25, ("llamaindex_hybridmem", "BM25Retriever")),
    ],
    ids=["langchain-bm25", "ensemble", "query-fusion", "llamaindex-bm25"],
)
def test_the_parameters_of_the_original_are_taken_in_its_order(original, ours):
    module, name = ours
    cls = getattr(__import__(module), name)
    for method in ("__init__", *METHODS):
        if method not in vars(original) or (method == "__init__" and hasattr(original, "model_fields")):
            continue
        wanted = inspect.signature(getattr(original, method)).parameters
        given = inspect.signature(getattr(cls, method)).parameters
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names = [one.name for one in wanted.values() if one.kind in kinds]
        positional = [one.name for one in wanted.values() if one.kind is kinds[0]]
        assert list(given)[: len(positional)] == positional or method == "from_defaults", method
        passed_on = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in given.values())
        assert set(names) <= set(given) or passed_on, method
