"""FusionRetriever: the core's fusion over LlamaIndex retrievers."""

import asyncio
import copy
import math
import pickle
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_fakes import AsyncOnly, Fixed, Letters, node, scored
from llama_index.core import VectorStoreIndex
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.retrievers import BaseRetriever, RouterRetriever, VectorIndexRetriever
from llama_index.core.schema import IndexNode, MetadataMode, NodeRelationship, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
)

from hybridmem.errors import ArmError, ConfigError
from hybridmem.explain import Trace
from hybridmem.fusion import Fusion
from hybridmem.memory import HybridMemory
from hybridmem.shaping import shaped
from hybridmem.stages import Diversity, HalfLife, QualityGate, Rerank, SourceDedup
from hybridmem.types import ArmList, Memory
from llamaindex_hybridmem import (
    BM25Retriever,
    FusedNode,
    FusionRetriever,
    GraphRetriever,
    QueryFusionRetriever,
    VectorRetriever,
)
from llamaindex_hybridmem._arms import is_natively_async
from llamaindex_hybridmem._conversion import NodeReader, to_arm_list
from llamaindex_hybridmem._results import notes_of
from llamaindex_hybridmem._sources import fuse

NOW = 1_700_000_000.0
DAY = 86_400.0


def ids(nodes):
    return [n.node_id for n in nodes]


def told(nodes):
    return [(n.node_id, n.score) for n in nodes]


def example(**more):
    return FusionRetriever([Fixed(scored("ADBEC")), Fixed(scored("BAFCD"))], **more)


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
    expected = list(zip(ranking.keys, map(ours.recipe.share, ranking.scores), strict=True))
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
        ("new", pytest.approx(61 / 62)),  # ×2 of a ceiling of ×2
        ("old", pytest.approx(1.25 / 2)),
        ("chunk1", pytest.approx(61 / 63 / 2)),
    ]
    explained = ours.explain("q")
    assert "×1.25 for age 60 days" in str(explained.receipts[1])
    assert "no updated_at: neutral" in str(explained.receipts[2])
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
    from hybridmem.recipes import save_recipe

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


def years(keys="ABCDEF"):
    return [node(key, text=f"{key} abc", metadata={"year": 2020 + place}) for place, key in enumerate(keys)]


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


# --- at the same time


def test_two_sync_arms_run_at_the_same_time():
    meeting = threading.Barrier(2, timeout=30)  # passed only by two at the same time
    ours = FusionRetriever([Fixed(scored("A"), lambda _: meeting.wait()), Fixed(scored("B"), lambda _: meeting.wait())])
    for _ in range(3):
        assert sorted(ids(ours.retrieve("q"))) == ["A", "B"]


async def test_the_event_loop_stays_free_while_sync_arms_block():
    meeting = threading.Barrier(3, timeout=30)
    done = threading.Event()
    ticks = []

    def block(_):
        meeting.wait()
        assert done.wait(30)

    async def ticker():
        await asyncio.get_running_loop().run_in_executor(None, meeting.wait)  # both arms are blocked now
        for _ in range(20):
            ticks.append(time.monotonic())
            await asyncio.sleep(0)
        done.set()

    ours = FusionRetriever([Fixed(scored("A"), block), Fixed(scored("B"), block)])
    found, _ = await asyncio.gather(ours.aretrieve("q"), ticker())
    assert sorted(ids(found)) == ["A", "B"]
    assert len(ticks) == 20


def test_what_counts_as_natively_async():
    class AsyncStore(SimpleVectorStore):
        stores_text: bool = True

        async def aquery(self, query, **kwargs):
            return self.query(query, **kwargs)

    blocking = VectorStoreIndex([], embed_model=Letters()).as_retriever()
    real = VectorStoreIndex.from_vector_store(AsyncStore(), embed_model=Letters()).as_retriever()
    assert is_natively_async(AsyncOnly([]))
    assert is_natively_async(real)
    assert is_natively_async(example())
    assert not is_natively_async(Fixed([]))
    assert not is_natively_async(blocking)
    router = RouterRetriever.__new__(RouterRetriever)
    router._retrievers = [blocking]
    assert not is_natively_async(router)
    router._retrievers = [real]
    assert is_natively_async(router)


async def test_arms_with_real_async_stay_on_the_loop():
    arm = AsyncOnly(scored("A"))
    assert ids(await FusionRetriever([arm, Fixed(scored("A"))]).aretrieve("q")) == ["A"]
    assert arm.loops == [asyncio.get_running_loop()]


def test_an_async_arm_answers_sync_code_even_inside_a_loop():
    ours = FusionRetriever([AsyncOnly(scored("A"))])
    assert ids(ours.retrieve("q")) == ["A"]

    async def inside():
        return ours.retrieve("q")

    assert ids(asyncio.run(inside())) == ["A"]


# --- failures


def fail(_):
    raise RuntimeError("on fire")


def test_a_failing_arm_is_named_and_its_error_kept():
    ours = FusionRetriever({"ok": Fixed(scored("A")), "bad": Fixed([], fail)})
    for ask in (lambda: ours.retrieve("q"), lambda: asyncio.run(ours.aretrieve("q"))):
        with pytest.raises(ArmError, match="arm 'bad' failed: RuntimeError: on fire") as caught:
            ask()
        assert caught.value.arm == "bad"
        assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_failing_arm_can_be_skipped():
    ours = FusionRetriever({"ok": Fixed(scored("A")), "bad": Fixed([], fail)}, on_error="skip")
    found = ours.retrieve("q")
    assert ids(found) == ["A"]
    assert found[0].explanation.arms == {"ok": "1 hits, the last at 1", "bad": "skipped: RuntimeError: on fire"}
    assert "RuntimeError: on fire" in asyncio.run(ours.aexplain("q")).why_not("Z")
    nothing = FusionRetriever({"none": Fixed(None)}, on_error="skip").explain("q")
    assert "returned None" in nothing.arms["none"]


def test_a_slow_arm_is_left_behind():
    hold = threading.Event()
    arms = {"ok": Fixed(scored("A")), "slow": Fixed(scored("B"), lambda _: hold.wait(30))}
    try:
        everyone = FusionRetriever(arms, on_error="skip", timeout=0.2)
        assert everyone.explain("q").arms["slow"] == "skipped: timeout after 0.2 s"
        named = FusionRetriever(arms, on_error="skip", timeout={"slow": 0.1})
        assert named.explain("q").arms["slow"] == "skipped: timeout after 0.1 s"
        assert ids(named.retrieve("q")) == ids(asyncio.run(named.aretrieve("q"))) == ["A"]
        with pytest.raises(ArmError, match=r"arm 'slow' failed: timeout after 0\.1 s"):
            FusionRetriever(arms, timeout={"slow": 0.1}).retrieve("q")
    finally:
        hold.set()
        for thread in threading.enumerate():  # those left behind must not be heard in another test
            if thread.name.startswith("hybridmem"):
                thread.join(30)


class Odd(BaseRetriever):
    """Returns what a retriever must not."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def _retrieve(self, query_bundle):
        return self.value


@pytest.mark.parametrize(
    ("value", "kind"), [(3, "a int"), ([3], "a list with a int"), ("text", "a str"), ({"a": 1}, "a dict")]
)
def test_an_arm_that_returns_no_nodes_is_named(value, kind):
    for ours in (FusionRetriever([Odd(value)]), QueryFusionRetriever([Odd(value)], num_queries=1)):
        for ask in (ours.retrieve, lambda query, ours=ours: asyncio.run(ours.aretrieve(query))):
            with pytest.raises(ArmError, match=f"arm 'retriever_1' returned {kind}: a retriever returns a list"):
                ask("q")


def test_an_arm_that_returns_none_is_named():
    for ask in (lambda r: r.retrieve("q"), lambda r: asyncio.run(r.aretrieve("q"))):
        with pytest.raises(ArmError, match="arm 'retriever_1' returned None"):
            ask(FusionRetriever([Fixed(None)]))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"retrievers": []}, "at least one retriever"),
        ({"retrievers": "bm25"}, "a list of retrievers, or a dict"),
        ({"retrievers": {"a": 1}}, "retriever 'a' is a int"),
        ({"retriever_weights": [1, 2, 3]}, "3 weights for 2 arms"),
        ({"retriever_weights": {"nobody": 1}}, "unknown arm 'nobody': the arms are 'retriever_1', 'retriever_2'"),
        ({"retriever_weights": [-1, 1]}, "weight -1.0"),
        ({"retriever_weights": [math.nan, 1]}, "weight nan"),
        ({"retriever_weights": [0, 0]}, "all zero"),
        ({"c": -1}, "c = -1"),
        ({"similarity_top_k": 0}, "similarity_top_k = 0"),
        ({"half_life": 0}, "half_life = 0"),
        ({"half_life": "soon"}, "half_life = 'soon'"),
        ({"mode": "best"}, "mode 'best' is not known"),
        ({"on_error": "ignore"}, "on_error = 'ignore'"),
        ({"timeout": 0}, "timeout = 0"),
        ({"timeout": {"retriever_1": -1}}, "timeout = -1"),
        ({"timeout": {"nobody": 1}}, "timeout names unknown arm 'nobody': the arms are 'retriever_1', 'retriever_2'"),
        ({"filters": {"year": {"$near": 3}}}, "unknown operator '\\$near'"),
        ({"filters": 3}, "a filter is a mapping"),
        ({"recipe": "no such"}, "neither a file nor a name"),
        ({"weights": [1, 2]}, "unknown setting 'weights': the settings are retrievers, retriever_weights"),
    ],
)
def test_bad_settings(bad, message):
    given_ = {"retrievers": [Fixed([]), Fixed([])], **bad}
    with pytest.raises(ConfigError, match=message):
        FusionRetriever(**given_)
    with pytest.raises(ConfigError, match="unknown setting 'deep'"):
        example().explain("q", deep=True)


def test_unreadable_dates_are_neutral():
    arm = Fixed(scored([node("a", metadata={"updated_at": "soon"}), node("b", metadata={"updated_at": NOW})]))
    found = FusionRetriever([arm], half_life=30, clock=lambda: NOW).retrieve("q")
    assert ids(found) == ["b", "a"]
    assert "'soon' is not a date: neutral" in str(found[1].receipt)


# --- receipts stay out of the way


def test_what_an_arm_says_of_its_results_is_noted():
    graph = GraphRetriever(
        [node("t0", text="Ana left", metadata={"thread": "c"}), node("t1", metadata={"thread": "c"})]
    )
    found = {n.node_id: n for n in FusionRetriever({"graph": graph, "plain": Fixed(scored("A"))}).retrieve("Ana")}
    assert "[seed t0 → " in str(found["t1"].receipt)
    assert "[" not in str(found["A"].receipt)
    notes = notes_of(graph.retrieve("Ana"))
    assert sorted(notes) == ["t0", "t1"]
    assert notes_of(scored("A")) is None


def test_receipts_leave_no_trace_in_nodes_prompts_and_hashes():
    given_ = scored(years())
    before = [(n.node.hash, n.node.model_dump(), n.score) for n in given_]
    found = FusionRetriever([Fixed(given_)], dedup=True, half_life=3).retrieve("q")
    assert str(found[0].receipt).startswith("#1 A ")
    assert [(n.node.hash, n.node.model_dump(), n.score) for n in given_] == before
    assert found[0].node.get_content(MetadataMode.ALL) == given_[0].node.get_content(MetadataMode.ALL)
    assert set(found[0].to_dict()) == {"node", "score", "class_name"}
    assert found[0].to_dict()["class_name"] == "NodeWithScore"
    assert found[0] == FusedNode(node=found[0].node, score=found[0].score)


def test_results_can_be_copied_and_pickled_with_their_receipts():
    found = example().retrieve("q")[0]
    line = str(found.receipt)
    for again in (copy.copy(found), copy.deepcopy(found), found.model_copy(), pickle.loads(pickle.dumps(found))):
        assert str(again.receipt) == line
    bare = FusedNode(node=found.node, score=1.0)
    assert bare.receipt is None


def test_results_are_whole_pydantic_models():
    found = example().retrieve("q")[0]
    same = FusedNode(node=found.node, score=found.score)
    assert found == same
    assert found.model_fields_set == {"node", "score"}
    assert found.model_extra is None
    for how in ({}, {"exclude_unset": True}, {"exclude_defaults": True}, {"exclude": {"node"}}):
        assert found.model_dump(**how) == same.model_dump(**how)
        assert found.model_dump_json(**how) == same.model_dump_json(**how)
    assert repr(found) == repr(same)
    assert FusedNode.model_validate(found) is found
    changed = found.model_copy(update={"score": 0.25})
    assert (changed.score, changed.node) == (0.25, found.node)
    with pytest.raises(AttributeError, match="'FusedNode' object has no attribute 'nonsense'"):
        _ = found.nonsense


@pytest.mark.parametrize("first", ["score", "copy", "deepcopy", "pickle", "equal", "dump", "setstate"])
def test_a_result_may_be_handled_in_any_way_first(first):
    found, other = example().retrieve("q")[:2]
    how = {
        "score": lambda: setattr(found, "score", 0.5),
        "copy": lambda: copy.copy(found),
        "deepcopy": lambda: copy.deepcopy(found),
        "pickle": lambda: pickle.loads(pickle.dumps(found)),
        "equal": lambda: found == other,
        "dump": found.to_json,
        "setstate": lambda: found.__setstate__(found.__getstate__()),
    }
    how[first]()
    assert found.model_fields_set == {"node", "score"}
    found.score = 0.125
    assert found.score == found.to_dict()["score"] == 0.125
    assert other.score != 0.125
    assert str(found.receipt).startswith("#1 A ")


def test_receipts_tell_of_the_scores_as_they_were():
    """LlamaIndex's own fusion writes into the nodes it is given; so may anyone who keeps them."""
    lists = [scored("AB", [0.9, 0.4]), scored("BA", [0.8, 0.7])]
    found = fuse(shaped(gate=0.5), "q", list(zip("ab", lists, strict=True)), NOW, None).nodes
    for rows in lists:
        for row in rows:
            row.score = 0.01
        rows.clear()
    assert [[arm.score for arm in one.receipt.arms] for one in found] == [[0.9, 0.7], [0.8]]


HITS = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from([None, 0.0, 0.2, 0.5, 0.9])),
    max_size=12,
    unique_by=lambda row: row[0],
)


@given(
    lists=st.lists(HITS, min_size=2, max_size=2),
    gate=st.sampled_from([None, 0.3, {"b": 0.5}, QualityGate(floor=0.1, relative=0.5)]),
    weights=st.sampled_from([None, {"a": 0.7, "b": 0.3}]),
    strength=st.sampled_from([0.0, 0.05, 1.0]),
    dates=st.lists(st.sampled_from([NOW, NOW - 3 * DAY, NOW - 90 * DAY, "2023-01-01", None]), min_size=12, max_size=12),
    k=st.sampled_from([None, 1, 3]),
)
def test_straight_from_the_hits_as_through_the_stages(lists, gate, weights, strength, dates, k):
    pool = [node(f"n{i:02}", metadata={"source_id": f"s{i % 5}", "updated_at": dates[i]}) for i in range(12)]
    named = [
        (name, scored([pool[i] for i, _ in rows], [s for _, s in rows])) for name, rows in zip("ab", lists, strict=True)
    ]
    recipe = shaped(weights=weights, gate=gate, dedup=True, half_life=HalfLife(strength=strength))
    answer = fuse(recipe, "q", named, NOW, k)
    arms = [to_arm_list((name, rows, [row.score for row in rows])) for name, rows in named]
    staged = recipe.run(arms, reader=NodeReader(), query="q", now=NOW, k=k, trace=Trace())
    assert told(answer.nodes) == list(zip(staged.keys, recipe.shares(staged.scores), strict=True))
    assert [id(one.node) for one in answer.nodes] == [id(one) for one in staged.items]
    assert [receipt.key for receipt in answer.why.explanation().receipts] == staged.keys


def test_arms_never_share_a_query_bundle():
    def embed(bundle):
        assert bundle.embedding is None
        bundle.embedding = [1.0]

    bundle = QueryBundle("q")
    FusionRetriever([Fixed(scored("A"), embed), Fixed(scored("B"), embed)]).retrieve(bundle)
    assert bundle == QueryBundle("q")


def test_index_nodes_are_followed():
    pointer = IndexNode(text="pointer", index_id="p", id_="p")
    ours = FusionRetriever([Fixed(scored([pointer, "B"]))], object_map={"p": Fixed(scored("X"))})
    assert ids(ours.retrieve("q")) == ["X", "B"]
    ours = FusionRetriever([Fixed(scored([pointer]))], objects=[IndexNode(text="", index_id="p", obj=node("Y"))])
    assert ids(asyncio.run(ours.aretrieve("q"))) == ["Y"]


class Events(BaseEventHandler):
    seen: list = []  # noqa: RUF012

    @classmethod
    def class_name(cls):
        return "Events"

    def handle(self, event, **kwargs):
        self.seen.append(event)


def test_events_and_spans_of_children_hang_under_the_fusion():
    root = get_dispatcher()
    events, spans = Events(seen=[]), SimpleSpanHandler()
    root.add_event_handler(events)
    root.add_span_handler(spans)
    meeting = threading.Barrier(2, timeout=30)
    arms = [Fixed(scored("A"), lambda _: meeting.wait()), Fixed(scored("B"), lambda _: meeting.wait())]
    try:
        FusionRetriever(arms).retrieve("heard?")
        asyncio.run(FusionRetriever([AsyncOnly(scored("A")), Fixed(scored("B"))]).aretrieve("heard?"))
    finally:
        root.event_handlers.remove(events)
        root.span_handlers.remove(spans)
    heard = [e for e in events.seen if str(getattr(e, "str_or_query_bundle", "")) == "heard?"]
    assert [isinstance(e, RetrievalStartEvent) for e in heard].count(True) == 6
    assert [isinstance(e, RetrievalEndEvent) for e in heard].count(True) == 6
    parents = {span.id_.partition("-")[0]: (span.parent_id or "").partition("-")[0] for span in spans.completed_spans}
    assert parents["Fixed.retrieve"] in ("FusionRetriever._retrieve", "FusionRetriever._aretrieve")
    assert parents["AsyncOnly.aretrieve"] == "FusionRetriever._aretrieve"
    assert parents["FusionRetriever._retrieve"] == "FusionRetriever.retrieve"
    assert parents["FusionRetriever._aretrieve"] == "FusionRetriever.aretrieve"
    assert all(span.parent_id for span in spans.completed_spans if span.id_.startswith("Fixed"))


# --- over a memory


@pytest.fixture
def memory():
    with HybridMemory(embedder=None, clock=lambda: NOW) as opened:
        opened.add_many(
            [
                Memory("Ana moved to Lisbon in May", id="m1", thread="t", tags=("home",)),
                Memory("Ana's cat is called Pixel", id="m2", thread="t", metadata={"mood": "good"}),
                Memory("The Lisbon office opens at nine", id="m3", source_id="handbook", title="Office hours"),
                Memory("Lisbon has trams", id="m4", source_id="handbook"),
            ]
        )
        opened.namespace("bob").add("Bob lives in Lisbon", id="b1")
        yield opened


@pytest.mark.parametrize("how", [{}, {"k": 2}, {"filter": {"tags": {"$contains": "home"}}}, {"namespace": "bob"}])
def test_a_memory_gives_the_same_ids_and_scores_as_its_own_search(memory, how):
    names = {"k": "similarity_top_k", "filter": "filters"}
    given_ = {names.get(name, name): value for name, value in how.items()}
    expected = [(r.id, r.score) for r in memory.search("Where in Lisbon?", **how)]
    assert expected
    assert told(FusionRetriever.from_memory(memory, **given_).retrieve("Where in Lisbon?")) == expected
    ours = FusionRetriever.from_memory(memory)
    assert told(ours.retrieve("Where in Lisbon?", **given_)) == expected
    assert told(asyncio.run(ours.aretrieve("Where in Lisbon?", **given_))) == expected
    assert [r.key for r in ours.explain("Where in Lisbon?", **given_).receipts] == [key for key, _ in expected]
    assert ours.retrievers == {}


def test_a_memory_as_nodes(memory):
    found = {n.node_id: n for n in FusionRetriever.from_memory(memory).retrieve("Lisbon office, Ana's cat")}
    assert found["m2"].node.metadata["mood"] == "good"
    assert found["m3"].node.ref_doc_id == "handbook"
    assert "source_id" not in found["m3"].node.get_content(MetadataMode.LLM)
    assert "Office hours" in found["m3"].node.get_content(MetadataMode.LLM)
    assert found["m1"].receipt.key == "m1"
    assert FusionRetriever.from_memory(memory, filters={"tags": "nothing"}).retrieve("Lisbon") == []
    assert FusionRetriever.from_memory(memory).explain("zebra").receipts == ()


def test_a_memory_with_another_recipe(memory):
    plain = FusionRetriever.from_memory(memory, recipe="rrf", retriever_weights={"bm25": 1}, verbose=True)
    assert plain.recipe.mode == "rrf"
    assert told(plain.retrieve("Lisbon")) == [(r.id, r.score) for r in memory.search("Lisbon", recipe=plain.recipe)]
    shaped = FusionRetriever.from_memory(memory, dedup=False, half_life=HalfLife(strength=0))
    assert shaped.recipe.dedup is None
    assert shaped.recipe.mode == memory.recipe.mode
    assert {"m3", "m4"} <= set(ids(shaped.retrieve("Lisbon office trams")))
    with pytest.raises(ConfigError, match="unknown setting 'k': the settings are similarity_top_k"):
        FusionRetriever.from_memory(memory, k=3)


def test_a_memory_as_one_arm_of_a_fusion_understands_namespaces(memory):
    ours = FusionRetriever({"memory": FusionRetriever.from_memory(memory)})
    assert ids(ours.retrieve("Lisbon", namespace="bob")) == ["b1"]
    assert "b1" not in ids(ours.retrieve("Lisbon"))


def test_a_memory_as_of():
    clock = [NOW]
    with HybridMemory(embedder=None, clock=lambda: clock[0]) as memory:
        memory.add("Ana lives in Porto", id="m1")
        clock[0] = NOW + 100
        memory.update("m1", text="Ana lives in Lisbon")
        ours = FusionRetriever.from_memory(memory)
        assert ours.retrieve("Where does Ana live?")[0].text == "Ana lives in Lisbon"
        assert ours.retrieve("Where does Ana live?", as_of=NOW + 50)[0].text == "Ana lives in Porto"
        past = FusionRetriever.from_memory(memory, as_of=NOW + 50)
        assert asyncio.run(past.aretrieve("Where does Ana live?"))[0].text == "Ana lives in Porto"
        with pytest.raises(ConfigError, match="as_of = 'yesterday'"):
            FusionRetriever.from_memory(memory, as_of="yesterday").retrieve("Ana")


def test_over_text_nodes_without_scores():
    unscored = scored([TextNode(id_="A", text="a"), TextNode(id_="B", text="b")], [None, None])
    ours = FusionRetriever([Fixed(unscored)], gate=0.5, mode="relative")
    assert told(ours.retrieve("q")) == [("A", 1.0), ("B", 1e-9)]
