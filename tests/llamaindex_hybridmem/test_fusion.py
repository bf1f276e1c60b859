"""LlamaIndex's FusionRetriever: the core's ranking over any retrievers, with k and filters."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core import VectorStoreIndex
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from hybridmem.core.types import ArmList
from hybridmem.errors import ConfigError
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import Diversity, HalfLife, QualityGate, Rerank, SourceDedup
from llamaindex_hybridmem import BM25Retriever, FusionRetriever, GraphRetriever, VectorRetriever
from llamaindex_hybridmem._arms import is_natively_async
from llamaindex_hybridmem._conversion import NodeReader
from tests.support.llama_fakes import Fixed, Letters, example, ids, node, scored, told, years

NOW = 1_700_000_000.0
DAY = 86_400.0


# --- the ranking


def test_the_worked_example():
    found = example().retrieve("q")
    best = 2 / 61  # first in both arms
    assert told(found) == [
        ("A", pytest.approx((1 / 61 + 1 / 62) / best)),
        ("B", pytest.approx((1 / 63 + 1 / 61) / best)),
        ("D", pytest.approx((1 / 62 + 1 / 65) / best)),
        ("C", pytest.approx((1 / 65 + 1 / 64) / best)),
        ("F", pytest.approx((1 / 63) / best)),
        ("E", pytest.approx((1 / 64) / best)),
    ]


ROWS = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from([0.0, 0.2, 0.5, 0.5, 0.9, 3.0])),
    max_size=12,
    unique_by=lambda row: row[0],
)
RECIPES = st.sampled_from(
    [
        {},
        {"mode": "relative"},
        {"mode": "distribution"},
        {"mode": "convex", "retriever_weights": [0.7, 0.3]},
        {"gate": 0.3},
        {"dedup": True, "half_life": 30},
        {"gate": QualityGate(relative=0.5), "dedup": SourceDedup(max_per_source=2), "half_life": HalfLife(max_shift=1)},
        {"recipe": Fusion(diversity=Diversity(balance=0.6))},
    ]
)


@settings(max_examples=50)
@given(first=ROWS, second=ROWS, recipe=RECIPES, k=st.integers(1, 12))
def test_the_same_ids_and_scores_as_the_core(first, second, recipe, k):
    pool = [
        node(f"n{i}", metadata={"source_id": f"s{i % 4}" if i % 3 else None, "updated_at": NOW - i * 20 * DAY})
        for i in range(12)
    ]
    lists = [[(pool[i], score) for i, score in rows] for rows in (first, second)]
    ours = FusionRetriever(
        {
            name: Fixed(scored([n for n, _ in rows], [s for _, s in rows]))
            for name, rows in zip("ab", lists, strict=True)
        },
        similarity_top_k=k,
        clock=lambda: NOW,
        **recipe,
    )
    core = [ArmList(name, [n for n, _ in rows], [s for _, s in rows]) for name, rows in zip("ab", lists, strict=True)]
    ranking = ours.recipe.run(core, reader=NodeReader(), query="q", now=NOW, k=k)
    expected = list(zip(ranking.keys, ours.recipe.shares(ranking.scores), strict=True))
    assert told(ours.retrieve("q")) == expected
    assert told(asyncio.run(ours.aretrieve("q"))) == expected
    explained = ours.explain("q")
    assert [(r.key, r.score) for r in explained.receipts] == [(key, pytest.approx(score)) for key, score in expected]
    assert all(0 < score <= 1 for _, score in expected)


def test_weights_count_and_an_arm_without_weight_is_not_called():
    arms = {"words": Fixed(scored("AB")), "meaning": Fixed(scored("C")), "off": Fixed(scored("Z"))}
    ours = FusionRetriever(arms, retriever_weights={"words": 3, "meaning": 1})
    assert told(ours.retrieve("q")) == [("A", 0.75), ("B", pytest.approx(0.75 * 61 / 62)), ("C", 0.25)]
    assert arms["off"].asked == []
    assert ours.explain("q").arms["off"] == "skipped: weight 0"
    assert list(ours.retrievers) == ["words", "meaning", "off"]


def test_arms_are_named_by_what_they_are():
    class BM25Retriever(Fixed):
        pass

    index = VectorStoreIndex([], embed_model=Letters())
    ours = FusionRetriever([BM25Retriever([]), index.as_retriever(), BM25Retriever([]), Fixed([])])
    assert list(ours.retrievers) == ["bm25", "vector", "bm25_3", "retriever_4"]


def test_half_life_gate_and_dedup():
    nodes = [
        node("old", metadata={"updated_at": NOW - 60 * DAY}),
        node("new", metadata={"updated_at": "2023-11-14T22:13:20Z"}),
        node("chunk1", relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="doc")}),
        node("chunk2", relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="doc")}),
        node("weak"),
    ]
    arm = Fixed(scored(nodes, [0.9, 0.8, 0.7, 0.6, 0.1]))
    ours = FusionRetriever({"arm": arm}, half_life=30, dedup=True, gate={"arm": 0.5}, clock=lambda: NOW)
    assert told(ours.retrieve("q")) == [
        ("new", pytest.approx(1.0)),  # (1/62)·2: above 1/61, first in every arm, so it is the best
        ("old", pytest.approx(1.25 / 61 / (2 / 62))),
        ("chunk1", pytest.approx(1 / 63 / (2 / 62))),
    ]
    explained = ours.explain("q")
    assert "recency ×1.25 (60 days old)" in str(explained.receipts[1])
    assert "no updated_at" in str(explained.receipts[2])
    assert explained.why_not("chunk2") == "chunk2: dedup: collapsed into chunk1 of source doc"
    assert explained.why_not("weak") == "weak: gated: arm 0.1 < 0.5"
    assert "found by no arm" in explained.why_not("elsewhere")


def test_the_dates_of_llama_index_readers_are_read():
    arm = Fixed(scored([node("a"), node("b", metadata={"last_modified_date": "2023-11-14"})]))
    assert ids(FusionRetriever([arm], half_life=1, clock=lambda: NOW).retrieve("q")) == ["b", "a"]


def test_degraded_results_say_so():
    ours = FusionRetriever([Fixed(scored("AB", [0.2, 0.1]))], gate=0.5)
    found = ours.retrieve("q")
    assert ids(found) == ["A", "B"]
    assert found[0].receipt.degraded


def test_a_reranker_is_asked_once_even_when_receipts_are_read():
    calls = []

    def scorer(query, texts):
        calls.append(query)
        return [float(len(calls) * place) for place in range(len(texts))]  # moody: each call differs

    ours = FusionRetriever([Fixed(scored("ABC"))], recipe=Fusion(rerank=Rerank(scorer=scorer)))
    found = ours.retrieve("q")
    assert ids(found) == ["C", "B", "A"]
    assert found[0].receipt.rank == 1
    assert calls == ["q"]


def test_a_recipe_by_name_and_from_a_file(tmp_path):
    from hybridmem.fusion.recipe import save_recipe

    save_recipe(Fusion(mode="convex", c=1), tmp_path / "mine.json")
    ours = FusionRetriever([Fixed(scored("A"))], recipe=tmp_path / "mine.json", mode="rrf", c=2)
    assert (ours.recipe.mode, ours.recipe.c) == ("rrf", 2)
    assert FusionRetriever([Fixed([])], recipe="rrf").recipe.mode == "rrf"


# --- k, filters


def test_similarity_top_k_in_the_constructor_at_the_call_and_later():
    ours = example(similarity_top_k=2)
    assert ids(ours.retrieve("q")) == ["A", "B"]
    assert ids(ours.retrieve("q", similarity_top_k=3)) == ["A", "B", "D"]
    assert ids(asyncio.run(ours.aretrieve("q", similarity_top_k=1))) == ["A"]
    assert len(ours.explain("q", similarity_top_k=4).receipts) == 4
    ours.similarity_top_k = None
    assert ours.similarity_top_k is None
    assert len(ours.retrieve("q")) == 6
    with pytest.raises(ConfigError, match="similarity_top_k = 0"):
        ours.similarity_top_k = 0
    with pytest.raises(ConfigError, match="similarity_top_k = True"):
        ours.retrieve("q", similarity_top_k=True)


YEAR = MetadataFilters(filters=[MetadataFilter(key="year", value=2022, operator=FilterOperator.GTE)])


@pytest.mark.parametrize("filters", [YEAR, {"year": {"$gte": 2022}}])
def test_filters_reach_every_arm(filters):
    index = VectorStoreIndex(years(), embed_model=Letters())
    vectors = index.as_retriever(similarity_top_k=2)
    plain = Fixed(scored(years()))
    ours = FusionRetriever([vectors, plain], filters=filters)
    assert sorted(ids(ours.retrieve("abc"))) == ["C", "D", "E", "F"]
    assert {r.arm for r in ours.retrieve("abc")[0].receipt.arms} == {"vector", "retriever_2"}
    assert (vectors._filters, vectors._similarity_top_k) == (None, 2)  # the user's own stays as it is
    assert sorted(ids(ours.retrieve("abc", filters={"year": 2020}))) == ["A"]
    assert sorted(ids(asyncio.run(ours.aretrieve("abc", filters={"year": {"$in": [2021, 2023]}})))) == ["B", "D"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"$or": [{"year": 2020}, {"year": 2023}]}, ["D"]),  # no flat list: checked on the results
        ({"year": {"$gte": 2023}}, ["D", "E", "F"]),
        (MetadataFilters(filters=YEAR.filters, condition=FilterCondition.OR), ["C", "D", "E", "F"]),
    ],
)
def test_an_arms_own_filter_stays_in_force(filters, expected):
    index = VectorStoreIndex(years(), embed_model=Letters())
    own = MetadataFilters(filters=[MetadataFilter(key="year", value=2022, operator=FilterOperator.GTE)])
    ours = FusionRetriever([index.as_retriever(similarity_top_k=6, filters=own)], filters=filters)
    assert sorted(ids(ours.retrieve("abc"))) == expected


def test_the_filter_of_an_arm_of_ours_stays_in_force():
    early = {"year": {"$lt": 2024}}
    for arm in (
        BM25Retriever.from_nodes(years(), filters=early),
        VectorRetriever.from_nodes(years(), embed_model=Letters(), filters=early),
        VectorRetriever(VectorStoreIndex(years(), embed_model=Letters()), filters=early),
        GraphRetriever.from_nodes(years(), filters=early),
        FusionRetriever([BM25Retriever.from_nodes(years())], filters=early),
    ):
        fused = FusionRetriever([arm])
        assert sorted(ids(fused.retrieve("abc"))) == ["A", "B", "C", "D"]
        assert sorted(ids(fused.retrieve("abc", filters={"year": {"$gte": 2022}}))) == ["C", "D"]


def test_arms_are_asked_deeper_until_k_is_filled():
    hidden = {"excluded_embed_metadata_keys": ["source_id"]}
    chunks = [node(f"c{i}", text=f"abc {i}", metadata={"source_id": "one"}, **hidden) for i in range(90)]
    chunks += [node(f"d{i}", text=f"abcx {i}", metadata={"source_id": f"s{i}"}, **hidden) for i in range(5)]
    index = VectorStoreIndex(chunks, embed_model=Letters())
    asked = []

    class Counting(VectorIndexRetriever):
        def _retrieve(self, query_bundle):
            asked.append(self._similarity_top_k)
            return super()._retrieve(query_bundle)

    ours = FusionRetriever([Counting(index)], dedup=True, similarity_top_k=5)
    assert len(ours.retrieve("abc")) == 5
    assert asked == [20, 80, 320]
    assert len(asyncio.run(FusionRetriever([index.as_retriever()], dedup=True).aretrieve("abc"))) == 6
    own = FusionRetriever([index.as_retriever(similarity_top_k=3)], similarity_top_k=None)
    assert len(own.retrieve("abc")) == 3  # without a k, each arm keeps its own


def test_our_own_arms_are_asked_with_depth_and_filters():
    words = BM25Retriever.from_defaults(nodes=years(), similarity_top_k=1)
    vectors = VectorRetriever.from_nodes(years(), embed_model=Letters(), similarity_top_k=1)
    ours = FusionRetriever([words, vectors], filters=YEAR)
    assert list(ours.retrievers) == ["bm25", "vector"]
    assert sorted(ids(ours.retrieve("abc"))) == ["C", "D", "E", "F"]
    assert ids(ours.retrieve("abc", filters={"year": 2020})) == ["A"]
    assert len(words.retrieve("abc")) == len(vectors.retrieve("abc")) == 1
    assert is_natively_async(words)
    assert ids(asyncio.run(ours.aretrieve("abc", filters={"year": 2021}))) == ["B"]


def test_a_fusion_inside_a_fusion_is_asked_with_depth_and_filters():
    inner = FusionRetriever([Fixed(scored(years()))], similarity_top_k=1)
    outer = FusionRetriever({"inner": inner, "plain": Fixed(scored("A"))}, filters={"year": {"$gt": 2021}})
    assert sorted(ids(outer.retrieve("q"))) == ["C", "D", "E", "F"]
    assert inner.similarity_top_k == 1
    assert len(inner.retrieve("q")) == 1


class CallsInside(Fixed):
    """A retriever that goes around the public door of another."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__([])

    def _retrieve(self, query_bundle):
        return self.inner._retrieve(query_bundle)


def test_settings_of_a_call_do_not_leak_into_retrievers_inside():
    inner = FusionRetriever([Fixed(scored("ABC"))], similarity_top_k=3)
    outer = FusionRetriever({"one": CallsInside(inner)})
    outer.retrieve("q", similarity_top_k=1)
    assert len(outer.explain("q", similarity_top_k=1).dropped) == 2


def test_what_only_a_memory_understands_is_refused_elsewhere():
    with pytest.raises(ConfigError, match="as_of = '2024-01-01': arm 'retriever_1' does not understand 'as_of'"):
        example().retrieve("q", as_of="2024-01-01")


def test_over_text_nodes_without_scores():
    unscored = scored([TextNode(id_="A", text="a"), TextNode(id_="B", text="b")], [None, None])
    ours = FusionRetriever([Fixed(unscored)], gate=0.5, mode="relative")
    assert told(ours.retrieve("q")) == [("A", 1.0), ("B", 1e-9)]


def test_the_default_recipe_counts_speakers_and_threads_in_metadata():
    turns = [
        TextNode(text="I live in Oslo.", id_="b", metadata={"speaker": "Ben", "thread": "t"}),
        TextNode(text="I live in Lisbon.", id_="a", metadata={"speaker": "Ana", "thread": "t"}),
        *[TextNode(text=f"Town {n} is large.", id_=f"d{n}") for n in range(4)],
    ]
    hits = [NodeWithScore(node=turn, score=6.0 - place) for place, turn in enumerate(turns)]
    retriever = FusionRetriever([Fixed(hits), Fixed(hits)], recipe="default", similarity_top_k=3)
    # b is first in both lists: 1; a has 5/6 of the best score, + 0.2 for the speaker, + 0.28 · 1/6 for the thread
    best = 5 / 6 + 0.2 + 0.28 / 6
    found = retriever.retrieve("Where does Ana live?")
    assert told(found)[:2] == [("a", 1.0), ("b", pytest.approx(1 / best))]
    assert "said by ana +0.2" in str(retriever.explain("Where does Ana live?").receipts[0])
