"""The same lists give the same ids and scores through the core, LangChain and LlamaIndex, in sync and async code."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever as LangChainRetriever
from llama_index.core.schema import TextNode

import langchain_hybridmem
import llamaindex_hybridmem
from hybridmem.core.types import ArmList, Memory
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import Competition, Conflicts, Diversity, HalfLife, Pack, QualityGate, SourceDedup
from hybridmem.memory.memory import HybridMemory
from hybridmem.retrievers.arms import make_recipe
from tests.support.items import READER, Row
from tests.support.llama_fakes import Fixed, scored

NOW = 1_700_000_000.0
DAY = 86_400.0
NAMES = ("bm25", "vector", "extra")
TEXTS = ["Ana moved to Lisbon", "日本語のテキスト", "naïve café", "E0427 in POST /v2/exports", "x", "y"]


def fields(i):
    """Metadata with gaps: some items have no source, no date, an unreadable date, a status."""
    return {
        **({"source_id": f"s{i % 3}"} if i % 4 else {}),
        **({"updated_at": NOW - i * 11 * DAY} if i % 5 else {"updated_at": "soon"} if i % 2 else {}),
        **({"status": "superseded"} if i == 7 else {}),
        **({"contradicts": "n2"} if i == 3 else {}),
    }


class Listed(LangChainRetriever):
    """A LangChain arm over fixed documents with raw scores, as our own arms give them."""

    found: list[tuple[Document, float]]

    def _get_relevant_documents(self, query, *, run_manager=None, with_scores=False):
        return [Document(d.page_content, id=d.id, metadata={**d.metadata, "score": s}) for d, s in self.found]

    async def _aget_relevant_documents(self, query, *, run_manager, with_scores=False):
        return self._get_relevant_documents(query)


Listed.__module__ = "langchain_hybridmem.tests"  # only our own retrievers are asked for scores in this way

ARM = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([0.1, 0.3, 0.5, 0.5, 1.25, 7.0])),
    max_size=10,
    unique_by=lambda row: row[0],
)
RECIPES = st.sampled_from(
    [
        {},
        {"mode": "relative"},
        {"mode": "distribution", "c": 5},
        {"mode": "convex"},
        {"gate": 0.4, "dedup": True, "half_life": 30},
        {"gate": {"bm25": 1.0}, "half_life": HalfLife(strength=0.05, max_shift=1)},
        {"gate": QualityGate(floor=100.0, fallback=None)},
        {"dedup": SourceDedup(max_per_source=2), "recipe": Fusion(mode="relative", diversity=Diversity())},
        {"recipe": Fusion(boost=Competition(), conflicts=Conflicts(), pack=Pack(tokens=12))},
        {"recipe": "rrf", "half_life": 3},
    ]
)


@settings(max_examples=40)
@given(
    arms=st.lists(ARM, min_size=1, max_size=3),
    weights=st.lists(st.sampled_from([0.3, 1.0, 2.0]), min_size=3, max_size=3),
    recipe=RECIPES,
    k=st.one_of(st.none(), st.integers(1, 8)),
)
def test_lists(arms, weights, recipe, k):
    names, weights = NAMES[: len(arms)], weights[: len(arms)]
    made = make_recipe(recipe.get("recipe"), **{n: v for n, v in recipe.items() if n != "recipe"}, weights=weights)
    rows = [[(Row(f"n{i}", {"text": TEXTS[i % 6], **fields(i)}), s) for i, s in arm] for arm in arms]
    lists = [ArmList(n, [r for r, _ in arm], [s for _, s in arm]) for n, arm in zip(names, rows, strict=True)]
    ranking = made.run(lists, reader=READER, query="q", now=NOW, k=k)
    core = list(zip(ranking.keys, made.shares(ranking.scores), strict=True))

    documents = [[(Document(TEXTS[i % 6], id=f"n{i}", metadata=fields(i)), s) for i, s in arm] for arm in arms]
    chain = langchain_hybridmem.FusionRetriever(
        retrievers={n: Listed(found=found) for n, found in zip(names, documents, strict=True)},
        weights=weights, k=k, clock=lambda: NOW, **recipe,
    )  # fmt: skip
    nodes = [[(TextNode(id_=f"n{i}", text=TEXTS[i % 6], metadata=fields(i)), s) for i, s in arm] for arm in arms]
    llama = llamaindex_hybridmem.FusionRetriever(
        {n: Fixed(scored([x for x, _ in a], [s for _, s in a])) for n, a in zip(names, nodes, strict=True)},
        retriever_weights=weights, similarity_top_k=k, clock=lambda: NOW, **recipe,
    )  # fmt: skip
    assert [(d.id, d.metadata["score"]) for d in chain.invoke("q")] == core
    assert [(d.id, d.metadata["score"]) for d in asyncio.run(chain.ainvoke("q"))] == core
    assert [(n.node_id, n.score) for n in llama.retrieve("q")] == core
    assert [(n.node_id, n.score) for n in asyncio.run(llama.aretrieve("q"))] == core


@pytest.mark.parametrize("how", [{}, {"k": 2}, {"filter": {"tags": {"$contains": "home"}}}, {"namespace": "bob"}])
def test_memories(how):
    with HybridMemory(embedder=lambda texts: [[float(len(t)), 1.0] for t in texts], clock=lambda: NOW) as memory:
        memory.add_many([Memory(f"Ana note {i} about Lisbon", id=f"m{i}", tags=("home",) * (i % 2)) for i in range(6)])
        memory.namespace("bob").add("Bob lives in Lisbon", id="b1")
        core = [(r.id, r.score) for r in memory.search("Lisbon notes", **how)]
        names = {"k": "similarity_top_k", "filter": "filters"}
        chain = langchain_hybridmem.FusionRetriever.from_memory(memory, **how)
        llama = llamaindex_hybridmem.FusionRetriever.from_memory(memory, **{names.get(n, n): v for n, v in how.items()})
        assert core
        assert [(d.id, d.metadata["score"]) for d in chain.invoke("Lisbon notes")] == core
        assert [(d.id, d.metadata["score"]) for d in asyncio.run(chain.ainvoke("Lisbon notes"))] == core
        assert [(n.node_id, n.score) for n in llama.retrieve("Lisbon notes")] == core
        assert [(n.node_id, n.score) for n in asyncio.run(llama.aretrieve("Lisbon notes"))] == core
