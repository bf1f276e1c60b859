"""Opening a memory: what is said when there is no embedder."""

import inspect
import subprocess
import sys

from hybridmem.memory.factory import StoreOptions
from hybridmem.stores.markdown.store import MarkdownStore
from hybridmem.stores.postgres.store import PostgresStore
from hybridmem.stores.sqlite.store import SQLiteStore

WITHOUT_LOCAL = """
import sys
sys.modules["wordllama"] = None  # as if the extra were not installed
from importlib import util
found = util.find_spec
util.find_spec = lambda name, *more: None if name == "wordllama" else found(name, *more)
import hybridmem.embedding.local
hybridmem.embedding.local.find_spec = util.find_spec
from hybridmem import HybridMemory
"""


def said(code):
    words = [sys.executable, "-c", WITHOUT_LOCAL + code]
    return subprocess.run(words, capture_output=True, text=True, check=True).stderr


def test_a_memory_without_an_embedder_says_so_once():
    text = said("first, second = HybridMemory(), HybridMemory(); assert first.arms == ('bm25',)")
    assert text.count("\n") == 1
    assert "only BM25 and graph search" in text
    assert "pip install 'hybridmem[local]'" in text


def test_choosing_none_is_silent():
    assert said("HybridMemory(embedder=None)") == ""


def test_the_options_of_every_store_are_typed():
    stores = (SQLiteStore, MarkdownStore, PostgresStore)
    taken = {
        name
        for store in stores
        for name, parameter in inspect.signature(store).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert set(StoreOptions.__annotations__) == taken - {"clock"}
