"""Every public method that does I/O has an async twin: `search` and `asearch`."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest
from langchain_core.documents import Document
from llama_index.core.schema import TextNode

import langchain_hybridmem as lc
import llamaindex_hybridmem as li
from hybridmem import HybridMemory

PACKAGES = {"hybridmem", "langchain_hybridmem", "llamaindex_hybridmem"}
WITHOUT_IO = {
    "as_tool", "class_name", "explainer", "from_memory", "get_persist_args", "model_copy", "model_post_init",
    "namespace",
    "question", "session", "spanning", "state_schema", "weighted_reciprocal_rank",
    "as_scorer", "memory_tools", "to_filter",
}  # fmt: skip
INDEXING = {
    ("BM25Retriever", "from_documents"), ("BM25Retriever", "from_texts"), ("BM25Retriever", "from_nodes"),
    ("BM25Retriever", "from_defaults"), ("GraphRetriever", "from_documents"), ("GraphRetriever", "from_nodes"),
    ("GraphRetriever", "from_defaults"), ("GraphRetriever", "from_store"),
}  # fmt: skip
"""Constructors that only index what they are given, as `BM25Retriever(…)` does."""


def public_methods():
    """(class, name) of every public sync method that our packages define."""
    classes = [HybridMemory]
    for package in (lc, li):
        classes += [thing for name in package.__all__ if inspect.isclass(thing := getattr(package, name))]
    for cls in classes:
        for name in dir(cls):
            home = next((base for base in cls.__mro__ if name in vars(base)), None)
            ours = home is not None and home.__module__.partition(".")[0] in PACKAGES
            method = None if name.startswith("_") or not ours else inspect.getattr_static(cls, name)
            if method is not None and not isinstance(method, property) and callable(getattr(cls, name)):
                yield cls, name


def test_every_method_that_does_io_has_an_async_twin():
    checked, missing = 0, []
    for cls, name in public_methods():
        if inspect.iscoroutinefunction(getattr(cls, name)) or name in WITHOUT_IO or (cls.__name__, name) in INDEXING:
            continue
        checked += 1
        if not inspect.iscoroutinefunction(getattr(cls, f"a{name}", None)):
            missing.append(f"{cls.__module__}.{cls.__name__}.{name}")
    assert missing == []
    assert checked > 70


def test_every_function_that_does_io_has_an_async_twin():
    for package in (lc, li):
        for name in package.__all__:
            thing = getattr(package, name)
            if inspect.isfunction(thing) and name not in WITHOUT_IO and not inspect.iscoroutinefunction(thing):
                assert inspect.iscoroutinefunction(getattr(package, f"a{name}")), name


THREADS: list[int] = []


def embed(texts):
    THREADS.append(threading.get_ident())
    return [[float(len(text)), 1.0] for text in texts]


@pytest.mark.parametrize(
    "build",
    [
        lambda: lc.VectorRetriever.afrom_texts(["a", "bb"], embed),
        lambda: lc.VectorRetriever.afrom_documents([Document("a")], embed, k=2),
        lambda: lc.FusionRetriever.afrom_documents([Document("a")], embedder=embed),
        lambda: li.VectorRetriever.afrom_nodes([TextNode(text="a")], embed_model=embed),
        lambda: li.VectorRetriever.afrom_defaults(nodes=[TextNode(text="a")], embed_model=embed),
        lambda: li.FusionRetriever.afrom_nodes([TextNode(text="a")], embedder=embed),
    ],
)
def test_a_retriever_is_built_without_blocking_the_event_loop(build):
    THREADS.clear()

    async def use():
        made = await build()
        assert await (made.ainvoke("a") if hasattr(made, "ainvoke") else made.aretrieve("a"))
        if isinstance(made, (lc.VectorRetriever, li.VectorRetriever)):
            await made.aclose()
        else:
            made.memory.close()

    asyncio.run(use())
    assert THREADS
    assert threading.get_ident() not in THREADS


def test_a_folder_of_llama_indexs_bm25_async(tmp_path):
    async def use():
        await li.BM25Retriever([TextNode(text="tea", id_="n")]).apersist(tmp_path)
        return (await li.BM25Retriever.afrom_persist_dir(tmp_path, similarity_top_k=1)).retrieve("tea")

    assert [one.node_id for one in asyncio.run(use())] == ["n"]


def test_expired_items_and_scores_by_vector_async():
    with HybridMemory(embedder=embed) as memory:
        assert asyncio.run(lc.HybridStore(memory).asweep_ttl()) == 0
        store = lc.HybridVectorStore(memory)
        store.add_texts(["a", "bb"], ids=["1", "2"])
        search = store.asimilarity_search_with_score_by_vector
        assert asyncio.run(search([1.0, 1.0], k=1)) == store.similarity_search_with_score_by_vector([1.0, 1.0], k=1)
