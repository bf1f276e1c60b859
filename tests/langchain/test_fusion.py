"""LangChain's FusionRetriever: the core's ranking over any retrievers, with scores, receipts, and clear errors."""

import asyncio
import copy
import pickle
import threading
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    BaseCallbackHandler,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStoreRetriever

from hybridmem.errors import ArmError, ConfigError
from hybridmem.fusion import Fusion
from hybridmem.memory import HybridMemory
from hybridmem.stages import HalfLife, Pack, QualityGate, SourceDedup
from hybridmem.types import ArmList
from langchain_hybridmem import BM25Retriever, EnsembleRetriever, FusionRetriever, GraphRetriever, VectorRetriever
from langchain_hybridmem._conversion import DocumentReader

NOW = 1_700_000_000.0
DAY = 86_400.0


class Scored(BaseRetriever):
    """Stands in for our own retrievers: k, filter and scores at call time."""

    docs: list
    scores: list
    asked: list
    k: int = 100

    def _get_relevant_documents(self, query, *, run_manager, k=None, filter=None, with_scores=None):
        self.asked.append({"k": k, "filter": filter, "with_scores": with_scores})
        rows = list(zip(self.docs, self.scores, strict=True))[: k or self.k]
        if not with_scores:
            return [document for document, _ in rows]
        return [d.model_copy(update={"metadata": {**d.metadata, "score": score}}) for d, score in rows]


Scored.__module__ = "langchain_hybridmem.scored"  # only classes of ours are asked for scores by keyword


class Plain(BaseRetriever):
    docs: list

    def _get_relevant_documents(self, query, *, run_manager):
        return self.docs


class Axes(Embeddings):
    """A text is a vector: "3,4" is (3, 4) brought to length 1."""

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        x, y = map(float, text.split(","))
        length = (x * x + y * y) ** 0.5
        return [x / length, y / length]


def doc(text, id=None, **metadata):
    return Document(page_content=text, id=id, metadata=metadata)


def docs(letters, **metadata):
    return [doc(letter, **metadata) for letter in letters]


def plain(letters, **metadata):
    return Plain(docs=docs(letters, **metadata))


def texts(documents):
    return [document.page_content for document in documents]


def scores(documents):
    return [document.metadata["score"] for document in documents]


def ask(retriever, query="?", **said):
    """The same through invoke and ainvoke."""
    found = retriever.invoke(query, **said)
    assert asyncio.run(retriever.ainvoke(query, **said)) == found
    return found


# --- the core's ranking, whatever goes in


ROWS = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.floats(0, 1),
        st.sampled_from([None, "s1", "s2", "s3"]),
        st.sampled_from([None, "soon", NOW - 10 * DAY, NOW - 1, "2023-01-01", "2030-01-01T00:00:00Z"]),
    ),
    max_size=10,
)
RECIPES = st.builds(
    Fusion,
    mode=st.sampled_from(["rrf", "relative", "distribution", "convex"]),
    c=st.sampled_from([0, 10, 60]),
    gate=st.none() | st.builds(QualityGate, floor=st.floats(0, 1), fallback=st.sampled_from(["first", None])),
    dedup=st.none() | st.just(SourceDedup()) | st.just(SourceDedup(max_per_source=2)),
    boost=st.none() | st.builds(HalfLife, strength=st.sampled_from([0.05, 1.0]), max_shift=st.sampled_from([None, 1])),
)


@settings(max_examples=80)
@given(st.lists(ROWS, min_size=1, max_size=3), RECIPES, st.sampled_from([None, 1, 3]))
def test_the_same_lists_give_the_same_ids_and_scores_as_the_core(lists, recipe, k):
    arms, core = {}, []
    for name, rows in zip(("bm25", "vector", "other"), lists, strict=False):
        found = [doc(f"text {key}", id=key, source_id=source, updated_at=when) for key, _, source, when in rows]
        raw = sorted((score for _, score, _, _ in rows), reverse=True)
        arms[name] = Scored(docs=found, scores=raw, asked=[])
        core.append(ArmList(name, found, raw))
    expected = recipe.run(core, reader=DocumentReader.over([arm.items for arm in core]), now=NOW, k=k)
    retriever = FusionRetriever(retrievers=arms, recipe=recipe, k=k, clock=lambda: NOW)
    for found in (retriever.invoke("?"), asyncio.run(retriever.ainvoke("?"))):
        assert [document.id for document in found] == expected.keys
        assert scores(found) == [recipe.share(score) for score in expected.scores]
    explained = retriever.explain("?")
    assert [receipt.key for receipt in explained.receipts] == expected.keys
    assert [receipt.raw for receipt in explained.receipts] == pytest.approx(expected.scores)


def test_the_worked_example():
    found = ask(FusionRetriever(retrievers=[plain("ADBEC"), plain("BAFCD")]))
    assert texts(found) == list("ABDCFE")
    best = 1 / 61  # first in both arms
    halves = [1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 62 + 1 / 65, 1 / 65 + 1 / 64, 1 / 63, 1 / 64]
    assert scores(found) == pytest.approx([0.5 * half / best for half in halves])


def test_inputs_are_never_changed():
    one, two = docs("ab", n=1), docs("bc", m=2)
    before = copy.deepcopy([one, two])
    found = ask(FusionRetriever(retrievers=[Plain(docs=one), Plain(docs=two)], receipts=True))
    found[0].metadata["n"] = "changed"
    assert [one, two] == before


# --- identity and metadata


def test_documents_are_the_same_by_id_then_by_text():
    one = Plain(docs=[doc("a", id="1"), doc("b")])
    two = Plain(docs=[doc("A!", id="1"), doc("b"), doc("c")])
    assert texts(ask(FusionRetriever(retrievers=[one, two]))) == ["a", "b", "c"]


def test_a_store_that_makes_up_ids_and_an_arm_without_ids_talk_of_the_same_text():
    store = Plain(docs=[doc("a", id="uuid-1"), doc("b", id="uuid-2")])
    found = ask(FusionRetriever(retrievers=[plain("ba"), store]))
    assert texts(found) == ["a", "b"]  # first and second in turn: a tie, by key
    assert [document.id for document in found] == ["uuid-1", "uuid-2"]
    assert [d.id for d in ask(FusionRetriever(retrievers=[store, plain("ba")]))] == ["uuid-1", "uuid-2"]


def test_an_id_key_is_a_metadata_key_or_a_function():
    one = Plain(docs=[doc("a", uid=1), doc("b", uid="2")])
    two = Plain(docs=[doc("other words", uid="1"), doc("b"), doc("c", id="2")])
    assert texts(ask(FusionRetriever(retrievers=[one, two], id_key="uid"))) == ["a", "b"]
    by_case = FusionRetriever(retrievers=[plain("ab"), plain("BA")], id_key=lambda d: d.page_content.lower())
    assert texts(ask(by_case)) == ["a", "b"]


def test_duplicates_bring_their_metadata_together_and_the_first_seen_wins():
    one = Plain(docs=[doc("a", n=1)])
    two = Plain(docs=[doc("a", n=2, url="u"), doc("b", n=3)])
    found = ask(FusionRetriever(retrievers=[one, two], with_scores=False))
    assert [document.metadata for document in found] == [{"n": 1, "url": "u"}, {"n": 3}]


def test_a_source_or_date_that_only_one_copy_has_counts():
    words = plain("ab")
    store = Plain(docs=[doc("b", source="f"), doc("a", source="f"), doc("c", source="g")])
    assert texts(ask(FusionRetriever(retrievers=[words, store], dedup=True))) == ["a", "c"]


def test_bare_strings_are_documents_and_lists_of_subclasses_stay_what_they_are():
    class Special(Document):
        pass

    special = RunnableLambda(lambda query: [Special(page_content="s")])
    found = ask(FusionRetriever(retrievers=[special, RunnableLambda(lambda query: (query, "s"))]))
    assert [(type(document), document.page_content) for document in found] == [(Special, "s"), (Document, "?")]


# --- arms


def test_our_own_retrievers_are_arms_with_scores_and_stories():
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    found = [doc("Ana moved to Lisbon.", thread="chat"), doc("It is by the sea.", thread="chat"), doc("Tea?")]
    store.add_documents(found)
    arms = [
        BM25Retriever.from_documents(found),
        VectorRetriever(vectorstore=store),
        GraphRetriever.from_documents(found),
    ]
    retriever = FusionRetriever(retrievers=arms, weights={"bm25": 2, "vector": 1, "graph": 1}, k=3)
    assert {document.page_content for document in ask(retriever, "Who moved to Lisbon?")} == set(texts(found))
    told = retriever.explain("Who moved to Lisbon?")
    assert list(told.arms) == ["bm25", "vector", "graph"]
    first = told.receipts[0]
    assert [share.arm for share in first.arms] == ["bm25", "vector", "graph"]
    assert all(share.score is not None for receipt in told.receipts for share in receipt.arms)
    assert any("seed" in share.note for share in first.arms)
    assert set(ask(retriever, "Who moved to Lisbon?")[0].metadata) == {"thread", "score"}


def test_arms_are_named_by_a_dict_or_by_what_they_are():
    class BM25Retriever(Plain):
        pass

    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
    listed = [BM25Retriever(docs=[]), store.as_retriever(), store.as_retriever(), plain("a")]
    shown = FusionRetriever(retrievers=listed).explain("?")
    assert list(shown.arms) == ["bm25", "vector", "vector_3", "retriever_4"]
    assert list(FusionRetriever(retrievers={"x": plain("a"), "y": plain("b")}).explain("?").arms) == ["x", "y"]


def test_weights_go_by_order_or_by_name_and_an_arm_of_weight_zero_is_not_asked():
    never = RunnableLambda(lambda query: pytest.fail("asked"))
    arms = {"a": plain("ab"), "b": plain("ba"), "never": never}
    assert texts(ask(FusionRetriever(retrievers=arms, weights=[2, 1, 0]))) == ["a", "b"]
    named = FusionRetriever(retrievers=arms, weights={"b": 3, "a": 1})
    assert texts(ask(named)) == ["b", "a"]
    assert named.explain("?").arms["never"] == "skipped: weight 0"


def test_a_plain_vector_store_is_asked_with_scores_so_that_gates_work():
    store = InMemoryVectorStore(Axes())
    store.add_documents([doc("1,0"), doc("3,4"), doc("0,1")])  # cosines with 1,0: 1, 0.6, 0
    gated = FusionRetriever(retrievers=[store.as_retriever()], gate={"vector": 0.5})
    assert texts(ask(gated, "1,0")) == ["1,0", "3,4"]
    shown = gated.explain("1,0")
    assert [share.score for receipt in shown.receipts for share in receipt.arms] == pytest.approx([1.0, 0.6])
    lost = next(key for key in shown.gated)
    assert shown.why_not(lost).endswith("gated: vector 0 < 0.5")


def test_a_vector_store_by_threshold_or_mmr_is_asked_as_it_was_set_up():
    store = InMemoryVectorStore(Axes())
    store.add_documents([doc("1,0"), doc("3,4"), doc("0,1")])
    mmr = store.as_retriever(search_type="mmr", search_kwargs={"k": 2})
    assert len(ask(FusionRetriever(retrievers=[mmr], k=3), "1,0")) == 2

    class Near(InMemoryVectorStore):
        def _select_relevance_score_fn(self):
            return lambda score: score

    near = Near(Axes())
    near.add_documents([doc("1,0"), doc("3,4"), doc("0,1")])
    by_threshold = near.as_retriever(search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.5})
    assert texts(ask(FusionRetriever(retrievers=[by_threshold]), "1,0")) == ["1,0", "3,4"]


def test_a_subclass_of_the_vector_retriever_keeps_its_own_search():
    class Own(VectorStoreRetriever):
        def _get_relevant_documents(self, query, *, run_manager, **kwargs):
            return docs("z")

        async def _aget_relevant_documents(self, query, *, run_manager, **kwargs):
            return docs("z")

    own = Own(vectorstore=InMemoryVectorStore(Axes()))
    assert texts(ask(FusionRetriever(retrievers=[own], k=1), "1,0")) == ["z"]


def test_arms_of_ours_are_asked_for_scores_k_and_filter():
    arm = Scored(docs=docs("abc"), scores=[3, 2, 1], asked=[])
    retriever = FusionRetriever(retrievers={"bm25": arm}, gate=1.5, with_scores=False)
    found = retriever.invoke("?", k=2, filter={"x": 1})
    assert arm.asked == [{"k": 20, "filter": {"x": 1}, "with_scores": True}]
    assert [(d.page_content, d.metadata) for d in found] == [("a", {}), ("b", {})]


def test_search_kwargs_reach_their_arm_and_the_call_wins():
    arm = Scored(docs=docs("abc"), scores=[3, 2, 1], asked=[])
    retriever = FusionRetriever(retrievers={"a": arm, "b": plain("z")}, search_kwargs={"a": {"k": 2, "filter": "x"}})
    assert texts(retriever.invoke("?")) == ["a", "z", "b"]
    assert texts(retriever.invoke("?", search_kwargs={"a": {"k": 1}})) == ["a", "z"]
    assert [(asked["k"], asked["filter"]) for asked in arm.asked] == [(2, "x"), (1, "x")]


def test_a_nested_fusion_and_the_drop_in_are_arms_too():
    inner = FusionRetriever(retrievers=[plain("ab"), plain("bc")], receipts=True)
    outer = FusionRetriever(retrievers={"inner": inner, "old": EnsembleRetriever(retrievers=[plain("ad")])}, k=3)
    assert texts(ask(outer)) == ["a", "b", "d"]
    share = outer.explain("?").receipts[0].arms[0]
    assert share.arm == "inner"
    assert share.score == pytest.approx(0.5)
    assert "hybridmem" not in ask(outer)[0].metadata
    assert texts(ask(outer, filter=lambda d: d.page_content != "b")) == ["a", "c", "d"]


def test_configurable_arms_are_asked_with_scores_too():
    store = InMemoryVectorStore(Axes())
    store.add_documents([doc("1,0"), doc("3,4"), doc("0,1")])
    arm = store.as_retriever(search_kwargs={"k": 3}).configurable_fields(search_kwargs=ConfigurableField(id="how"))
    retriever = FusionRetriever(retrievers={"vector": arm}, gate=0.5)
    assert [spec.id for spec in retriever.config_specs] == ["how"]
    assert texts(ask(retriever, "1,0")) == ["1,0", "3,4"]
    assert texts(retriever.invoke("1,0", {"configurable": {"how": {"k": 1}}})) == ["1,0"]
    own = FusionRetriever(retrievers=[plain("ab")], k=2).configurable_fields(k=ConfigurableField(id="k"))
    assert len(own.invoke("?")) == 2
    assert len(own.invoke("?", {"configurable": {"k": 1}})) == 1


# --- k, filter, dedup


def test_k_cuts_and_is_refused_below_one():
    retriever = FusionRetriever(retrievers=[plain("abc")], k=2)
    assert texts(ask(retriever)) == ["a", "b"]
    assert texts(ask(retriever, k=1)) == ["a"]
    assert texts(ask(FusionRetriever(retrievers=[plain("abc")]))) == ["a", "b", "c"]
    with pytest.raises(ConfigError, match="k = 0 is not allowed"):
        retriever.invoke("?", k=0)
    with pytest.raises(ConfigError, match="k = 0 is not allowed"):
        asyncio.run(retriever.ainvoke("?", k=0))


def test_a_filter_is_applied_to_arms_that_do_not_know_filters():
    arm = Plain(docs=[doc("a", lang="en", n=1), doc("b", lang="de"), doc("c", lang="en")])
    retriever = FusionRetriever(retrievers=[arm, RunnableLambda(lambda query: ["no metadata"])])
    assert texts(ask(retriever, filter={"lang": "en"})) == ["a", "c"]
    assert texts(ask(retriever, filter=lambda d: d.metadata.get("n") == 1)) == ["a"]
    set_up = FusionRetriever(retrievers=[arm], filter={"lang": {"$ne": "en"}})
    assert texts(ask(set_up)) == ["b"]
    assert texts(ask(set_up, filter={"lang": "en"})) == ["a", "c"]
    with pytest.raises(ConfigError):
        retriever.invoke("?", filter={"lang": {"$like": "e%"}})


def test_dedup_and_filters_ask_deeper_until_k_is_filled():
    many = [doc(f"d{i}", source_id="big" if i < 300 else f"s{i}", even=i % 2 == 0) for i in range(400)]
    arm = Scored(docs=many, scores=list(range(400, 0, -1)), asked=[])
    retriever = FusionRetriever(retrievers={"bm25": arm}, dedup=True, k=5)
    assert texts(retriever.invoke("?")) == ["d0", "d300", "d301", "d302", "d303"]
    assert [asked["k"] for asked in arm.asked] == [20, 80, 320]
    assert texts(asyncio.run(retriever.ainvoke("?"))) == ["d0", "d300", "d301", "d302", "d303"]
    arm.asked.clear()
    few = FusionRetriever(retrievers={"bm25": arm}, dedup=SourceDedup(key="even"), k=5)
    assert texts(few.invoke("?")) == ["d0", "d1"]  # there are no more
    assert [asked["k"] for asked in arm.asked] == [20, 80, 320, 1280]
    arm.asked.clear()
    fixed = FusionRetriever(retrievers={"bm25": arm}, dedup=True, k=5, search_kwargs={"bm25": {"k": 30}})
    assert texts(fixed.invoke("?")) == ["d0"]
    assert len(arm.asked) == 1


def test_a_store_that_cannot_filter_is_asked_deeper_too():
    store = InMemoryVectorStore(Axes())
    store.add_documents([doc(f"1,{i}", n=i) for i in range(60)])
    own = store.as_retriever(search_kwargs={"k": 2, "filter": lambda d: True})  # its filter stays in force beside ours
    found = ask(FusionRetriever(retrievers=[own], k=3), "1,0", filter={"n": {"$gte": 50}})
    assert [document.metadata["n"] for document in found] == [50, 51, 52]


# --- recipes and receipts


def test_short_settings_shape_the_recipe():
    dated = [doc("old", updated_at=NOW - 30 * DAY), doc("new", updated_at=NOW)]
    retriever = FusionRetriever(retrievers=[Plain(docs=dated)], half_life=30, clock=lambda: NOW)
    assert scores(ask(retriever)) == pytest.approx([2 / 62 / (2 / 61), 1.5 / 61 / (2 / 61)])
    weak = FusionRetriever(
        retrievers=[Plain(docs=dated)], half_life=HalfLife(half_life=timedelta(30), strength=0.01), clock=lambda: NOW
    )
    assert texts(ask(weak)) == ["old", "new"]
    chunks = Plain(docs=[doc("a1", file="a"), doc("a2", file="a"), doc("b")])
    assert texts(ask(FusionRetriever(retrievers=[chunks], dedup="file"))) == ["a1", "b"]
    by_first = FusionRetriever(retrievers=[chunks], dedup=lambda d: d.page_content[0])
    assert texts(ask(by_first)) == ["a1", "b"]


def test_a_recipe_by_value_name_or_file_and_settings_over_it(tmp_path):
    from hybridmem.recipes import save_recipe

    recipe = Fusion(mode="relative", c=10, dedup=SourceDedup(key="file"), pack=Pack(tokens=1))
    path = tmp_path / "recipe.json"
    save_recipe(Fusion(c=7, dedup=SourceDedup(key="file")), path)
    chunks = Plain(docs=[doc("a1", file="a"), doc("a2", file="a")])
    assert texts(ask(FusionRetriever(retrievers=[chunks], recipe=recipe))) == ["a1"]
    on_file = FusionRetriever(retrievers=[chunks], recipe=path)
    assert (on_file.c, texts(ask(on_file))) == (7, ["a1"])
    assert texts(ask(FusionRetriever(retrievers=[chunks], recipe=path, dedup=False))) == ["a1", "a2"]
    assert FusionRetriever(retrievers=[chunks], recipe="rrf", c=9).c == 9
    assert FusionRetriever(retrievers={"bm25": chunks, "vector": plain("z")}, recipe="default").mode != "rrf"


def test_settings_can_be_changed_later_and_are_checked_then():
    retriever = FusionRetriever(retrievers=[plain("ab"), plain("ba")])
    retriever.weights = [1, 2]
    assert texts(ask(retriever)) == ["b", "a"]
    retriever.k = 1
    retriever.with_scores = False
    assert [d.metadata for d in ask(retriever)] == [{}]
    with pytest.raises(ConfigError, match="c = -1"):
        retriever.c = -1
    assert retriever.c == 60
    retriever.recipe = Fusion(c=10)
    assert (retriever.c, retriever.weights) == (10, [1, 2])


def test_receipts_are_plain_data_in_the_metadata():
    retriever = FusionRetriever(retrievers={"bm25": plain("ab"), "vector": plain("b")}, receipts=True)
    receipt = ask(retriever)[0].metadata["hybridmem"]
    assert (receipt["key"], receipt["rank"], receipt["degraded"]) == ("b", 1, False)
    assert [share["arm"] for share in receipt["arms"]] == ["bm25", "vector"]
    assert "hybridmem" not in ask(retriever, receipts=False)[0].metadata
    assert "hybridmem" in ask(FusionRetriever(retrievers=[plain("a")]), receipts=True)[0].metadata


def test_explain_answers_why_and_why_not():
    chunks = [doc("a", source_id="1"), doc("a2", source_id="1"), doc("b"), doc("c")]
    arm = Scored(docs=chunks, scores=[4, 3, 2, 0.5], asked=[])
    late = RunnableLambda(lambda query: threading.Event().wait(0.3) and [])
    retriever = FusionRetriever(
        retrievers={"bm25": arm, "late": late},
        dedup=True,
        gate={"bm25": 1.0},
        k=1,
        on_error="skip",
        timeout={"late": 0.01},
    )
    for shown in (retriever.explain("?"), asyncio.run(retriever.aexplain("?"))):
        assert [receipt.key for receipt in shown.receipts] == ["a"]
        assert shown.why_not("a").startswith("a is a result")
        assert shown.why_not("a2") == "a2: dedup: collapsed into a of source 1"
        assert shown.why_not("b") == "b: rank 2 of k=1"
        assert shown.why_not("c") == "c: gated: bm25 0.5 < 1"
        assert shown.arms["late"] == "skipped: timeout after 0.01 s"
        assert "found by no arm" in shown.why_not("zzz")
    assert texts(ask(retriever)) == ["a"]


def test_results_of_the_fallback_are_marked_degraded():
    arm = Scored(docs=docs("ab"), scores=[0.2, 0.1], asked=[])
    retriever = FusionRetriever(retrievers={"vector": arm}, gate=0.5)
    assert [document.metadata["degraded"] for document in ask(retriever)] == [True, True]
    assert retriever.explain("?").receipts[0].degraded
    nothing = FusionRetriever(retrievers={"vector": arm}, gate=QualityGate(floor=0.5, fallback=None))
    assert ask(nothing) == []
    assert "degraded" not in ask(FusionRetriever(retrievers=[arm], gate=0.1))[0].metadata
    assert ask(FusionRetriever(retrievers=[plain("")], gate=0.1)) == []


# --- failures


def fails(query):
    raise LookupError("gone")


def test_a_failing_arm_raises_an_arm_error_that_keeps_the_original():
    retriever = FusionRetriever(retrievers={"good": plain("a"), "bad": RunnableLambda(fails)})
    for call in (retriever.invoke, lambda query: asyncio.run(retriever.ainvoke(query))):
        with pytest.raises(ArmError, match="arm 'bad' failed: LookupError: gone") as caught:
            call("?")
        assert caught.value.arm == "bad"
        assert isinstance(caught.value.__cause__, LookupError)


def test_a_failing_late_or_unreadable_arm_can_be_skipped():
    release = threading.Event()
    arms = {
        "good": plain("a"),
        "bad": RunnableLambda(fails),
        "none": RunnableLambda(lambda query: None),
        "late": RunnableLambda(lambda query: release.wait(30) and ["late"]),
    }
    retriever = FusionRetriever(retrievers=arms, on_error="skip", timeout={"late": 0.05})
    assert texts(retriever.invoke("?")) == ["a"]
    shown = retriever.explain("?").arms
    release.set()
    assert shown["bad"] == "skipped: LookupError: gone"
    assert shown["late"] == "skipped: timeout after 0.05 s"
    assert shown["none"].startswith("skipped: arm 'none' returned None")
    everything = FusionRetriever(retrievers={"bad": RunnableLambda(fails)}, on_error="skip")
    assert ask(everything) == []


@pytest.mark.parametrize(
    ("answer", "what"), [(None, "None"), ("text", "a str"), ({}, "a dict"), (7, "a int"), ([7], "a list with a int")]
)
def test_an_arm_that_returns_no_documents_is_a_clear_error(answer, what):
    retriever = FusionRetriever(retrievers={"odd": RunnableLambda(lambda query: answer)})
    with pytest.raises(ArmError, match=f"arm 'odd' returned {what}: a retriever returns"):
        retriever.invoke("?")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"retrievers": []}, "at least one retriever"),
        ({"retrievers": {}}, "at least one retriever"),
        ({"retrievers": "bm25"}, "a list of retrievers, or a dict"),
        ({"retrievers": [lambda query: []]}, "a Runnable from str"),
        ({"weights": [1]}, "1 weights for 2 arms"),
        ({"weights": [1, -1]}, "weight -1.0 is not allowed"),
        ({"weights": [1, float("nan")]}, "weight nan is not allowed"),
        ({"weights": [0, 0]}, "all zero"),
        ({"weights": {"x": 1}}, "unknown arm 'x'"),
        ({"weights": ["a", "b"]}, "could not convert"),
        ({"c": -1}, "c = -1 is not allowed"),
        ({"c": "many"}, "do not make a recipe"),
        ({"k": 0}, "k = 0 is not allowed"),
        ({"k": "3"}, "k = '3' is not allowed"),
        ({"k": True}, "k = True is not allowed"),
        ({"timeout": {"no": 1.0}}, "timeout names unknown arm 'no'"),
        ({"search_kwargs": 3}, "search_kwargs = 3 is not allowed"),
        ({"search_kwargs": {"words": 3}}, "search_kwargs = {'words': 3} is not allowed"),
        ({"half_life": 0}, "half_life = 0 is not allowed"),
        ({"half_life": "soon"}, "half_life = 'soon' is not allowed"),
        ({"mode": "sum"}, "mode 'sum' is not known"),
        ({"dedup": 3}, "dedup = 3 is not allowed"),
        ({"gate": float("inf")}, "gate floor = inf is not allowed"),
        ({"recipe": "unheard"}, "neither a file nor a name"),
        ({"on_error": "ignore"}, "on_error = 'ignore'"),
        ({"timeout": 0}, "timeout = 0"),
        ({"timeout": {"retriever_1": -1}}, "timeout = -1"),
        ({"search_kwargs": {"x": {}}}, "unknown arm 'x'"),
        ({"with_scores": "perhaps"}, "with_scores = 'perhaps' is not allowed"),
        ({"top_k": 3}, "has no setting 'top_k': the settings are"),
    ],
)
def test_bad_settings_are_config_errors(bad, message):
    with pytest.raises(ConfigError, match=message):
        FusionRetriever(**{"retrievers": [plain("a"), plain("b")], **bad})


def test_unknown_keywords_and_arms_at_call_time_are_config_errors():
    retriever = FusionRetriever(retrievers=[plain("a")])
    for said, message in [
        ({"top_k": 3}, "invoke does not know 'top_k': it takes k, filter"),
        ({"search_kwargs": {"x": {}}}, "unknown arm 'x'"),
        ({"as_of": "2024-01-01"}, "arm 'retriever_1' does not understand 'as_of'"),
        ({"namespace": "ana"}, "does not understand 'namespace'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            retriever.invoke("?", **said)
        with pytest.raises(ConfigError, match=message):
            asyncio.run(retriever.ainvoke("?", **said))
    store = InMemoryVectorStore(Axes())
    with pytest.raises(ConfigError, match="a plain vector store does not understand 'namespace'"):
        FusionRetriever(retrievers=[store.as_retriever()], on_error="skip").invoke("1,0", namespace="ana")


def test_an_unreadable_date_is_neutral():
    arm = Plain(docs=[doc("a", updated_at="soon"), doc("b", updated_at=["?"]), doc("c")])
    retriever = FusionRetriever(retrievers=[arm], half_life=30)
    assert texts(ask(retriever)) == ["a", "b", "c"]
    assert "is not a date: neutral" in str(retriever.explain("?"))


# --- runs


class Recorder(BaseCallbackHandler):
    def __init__(self):
        self.runs = {}

    def on_retriever_start(self, serialized, query, *, run_id, parent_run_id=None, tags=None, metadata=None, **more):
        self.runs[run_id] = {"name": more["name"], "parent": parent_run_id, "tags": tags, "metadata": metadata}

    def on_retriever_end(self, documents, *, run_id, **more):
        self.runs[run_id]["ended"] = texts(documents)

    def on_retriever_error(self, error, *, run_id, **more):
        self.runs[run_id]["ended"] = error


@pytest.mark.parametrize("later", [False, True])
def test_arms_are_tagged_child_runs(later):
    store = InMemoryVectorStore(Axes())
    store.add_documents([doc("1,0")])
    recorder = Recorder()
    retriever = FusionRetriever(retrievers=[store.as_retriever(tags=["own"]), plain("a")], tags=["mine"], k=1)
    config = {"callbacks": [recorder], "tags": ["c"]}
    asyncio.run(retriever.ainvoke("1,0", config)) if later else retriever.invoke("1,0", config)
    (parent, run), *children = sorted(recorder.runs.items(), key=lambda item: item[1]["parent"] is not None)
    assert (run["name"], sorted(run["tags"])) == ("FusionRetriever", ["c", "mine"])
    assert run["metadata"] == {"ls_retriever_name": "fusion"}
    assert all(child["parent"] == parent for _, child in children)
    shown = sorted((sorted(child["tags"]), child["name"], child["ended"]) for _, child in children)
    assert shown == [
        (["arm:retriever_2", "c", "retriever_2"], "Plain", ["a"]),
        (["arm:vector", "c", "own", "retriever_1"], "VectorStoreRetriever", ["1,0"]),
    ]
    names = {child["metadata"]["ls_retriever_name"] for _, child in children}
    assert names == {"plain", "vectorstore"}


def test_an_error_is_told_to_the_run():
    recorder = Recorder()
    retriever = FusionRetriever(retrievers=[plain("a")])
    with pytest.raises(ConfigError):
        retriever.invoke("?", {"callbacks": [recorder]}, top_k=3)
    assert [type(run["ended"]) for run in recorder.runs.values()] == [ConfigError]
    recorder.runs.clear()
    retriever.explain("?", {"callbacks": [recorder]})
    assert [run["ended"] for run in recorder.runs.values()] == [["a"], ["a"]]


def test_events_stream_from_the_arms_too():
    class Old(BaseRetriever):
        def _get_relevant_documents(self, query):  # as retrievers were written before runs had managers
            return docs("o")

    retriever = FusionRetriever(retrievers=[plain("a"), Old(), InMemoryVectorStore(Axes()).as_retriever()], k=2)

    async def events():
        return [event async for event in retriever.astream_events("1,0", version="v2")]

    ended = [event for event in asyncio.run(events()) if event["event"] == "on_retriever_end"]
    assert {event["name"] for event in ended} == {"FusionRetriever", "Plain", "Old", "VectorStoreRetriever"}
    root = next(event["run_id"] for event in ended if event["name"] == "FusionRetriever")
    assert all(event["parent_ids"] == [root] for event in ended if event["run_id"] != root)
    assert texts(ask(retriever, "1,0")) == ["a", "o"]


def test_the_hooks_of_a_base_retriever_work_too():
    retriever = FusionRetriever(retrievers=[plain("abc")])
    run = CallbackManagerForRetrieverRun.get_noop_manager()
    assert texts(retriever._get_relevant_documents("?", run_manager=run, k=1)) == ["a"]
    later = AsyncCallbackManagerForRetrieverRun.get_noop_manager()
    assert texts(asyncio.run(retriever._aget_relevant_documents("?", run_manager=later, k=2))) == ["a", "b"]


def test_it_composes_like_any_runnable():
    retriever = FusionRetriever(retrievers=[plain("ab"), RunnableLambda(lambda query: [query])])
    assert [len(found) for found in retriever.batch(["x", "y"])] == [3, 3]
    assert (retriever | len).invoke("x") == 3
    assert len(retriever.bind(k=1).invoke("x")) == 1
    assert texts(copy.copy(retriever).invoke("x")) == texts(retriever.invoke("x"))
    stored = FusionRetriever(retrievers=[InMemoryVectorStore(DeterministicFakeEmbedding(size=4)).as_retriever()])
    assert pickle.loads(pickle.dumps(stored)).invoke("x") == []


# --- at the same time


def test_arms_run_at_the_same_time():
    together = threading.Barrier(2, timeout=30)
    arms = [RunnableLambda(lambda query: together.wait() is None or [query]) for _ in range(2)]
    assert texts(FusionRetriever(retrievers=arms).invoke("q")) == ["q"]


def test_arms_run_at_the_same_time_on_the_loop_and_the_loop_goes_on():
    together, release = threading.Barrier(3, timeout=30), threading.Event()

    def search(query):
        together.wait()
        assert release.wait(30)
        return [query]

    class Blocking(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            return docs(search(query))

    class Slow(Axes):
        def embed_query(self, text):
            search(text)
            return super().embed_query(text)

    store = InMemoryVectorStore(Slow())

    async def tick():
        for _ in range(5):
            await asyncio.sleep(0.001)
        release.set()

    async def both():
        retriever = FusionRetriever(retrievers=[RunnableLambda(search), Blocking(), store.as_retriever()])
        return (await asyncio.gather(retriever.ainvoke("1,0"), tick()))[0]

    assert "1,0" in texts(asyncio.run(both()))


def test_max_concurrency_is_respected():
    running, most, lock = 0, 0, threading.Lock()

    def search(query):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.003)
        with lock:
            running -= 1
        return [query]

    retriever = FusionRetriever(retrievers=[RunnableLambda(search) for _ in range(4)])
    retriever.invoke("?", {"max_concurrency": 1})
    asyncio.run(retriever.ainvoke("?", {"max_concurrency": 1}))
    assert most == 1


# --- over a memory


@pytest.fixture
def memory():
    with HybridMemory(embedder=lambda texts: [[1.0, len(text) / 10] for text in texts], clock=lambda: NOW) as made:
        view = made.namespace("ana")
        view.add_many(
            [
                {"id": "m1", "text": "Ana moved to Lisbon", "tags": ["home"], "type": "fact"},
                {"id": "m2", "text": "Ana has a cat called Pixel", "type": "fact", "metadata": {"pet": "cat"}},
                {"id": "m3", "text": "Lisbon is by the sea", "created_at": datetime(2020, 1, 1, tzinfo=timezone.utc)},
            ]
        )
        made.namespace("bob").add("Bob moved to Lisbon too", id="b1")
        yield view


def test_a_memory_gives_the_same_ids_and_scores_as_its_own_search(memory):
    retriever = FusionRetriever.from_memory(memory)
    for said in ({}, {"k": 1}, {"filter": {"type": "fact"}}, {"namespace": "bob"}):
        expected = memory.search("Who moved to Lisbon?", **said)
        found = ask(retriever, "Who moved to Lisbon?", **said)
        assert [(d.id, d.page_content, d.metadata["score"]) for d in found] == [
            (result.id, result.text, result.score) for result in expected
        ]
        assert found
    set_up = FusionRetriever.from_memory(memory, k=1, namespace="bob", filter={"id": "b1"})
    assert [d.id for d in ask(set_up, "Lisbon")] == ["b1"]
    assert ask(set_up, "Lisbon", filter={"id": "m1"}) == []


def test_a_memorys_fields_are_metadata(memory):
    found = {d.id: d.metadata for d in ask(FusionRetriever(memory=memory, with_scores=False), "Lisbon Pixel")}
    assert (found["m1"]["tags"], found["m1"]["type"]) == (["home"], "fact")
    assert found["m2"]["pet"] == "cat"
    assert found["m3"]["created_at"] == "2020-01-01T00:00:00Z"
    assert "score" not in found["m1"]
    receipts = ask(FusionRetriever.from_memory(memory, receipts=True), "Lisbon")
    assert receipts[0].metadata["hybridmem"]["key"] == receipts[0].id


def test_a_memory_can_be_asked_as_of_a_time_and_by_another_recipe(memory):
    retriever = FusionRetriever.from_memory(memory)
    assert ask(retriever, "Lisbon", as_of="2001-01-01") == []
    assert ask(FusionRetriever.from_memory(memory, as_of="2001-01-01"), "Lisbon") == []
    plain_rrf = FusionRetriever.from_memory(memory, recipe="rrf", weights={"bm25": 1.0})
    expected = memory.search("Lisbon", recipe=Fusion(weights={"bm25": 1.0}))
    assert [(d.id, d.metadata["score"]) for d in ask(plain_rrf, "Lisbon")] == [(r.id, r.score) for r in expected]
    half = FusionRetriever.from_memory(memory, half_life=1)
    assert half.explain("Lisbon").receipts
    assert memory.explain("Lisbon").receipts == asyncio.run(retriever.aexplain("Lisbon")).receipts


def test_a_memory_has_arms_of_its_own(memory):
    for bad in ({"retrievers": [plain("a")]}, {"id_key": "x"}, {"search_kwargs": {"a": {}}}, {"clock": lambda: 0}):
        with pytest.raises(ConfigError, match="does not go with a memory"):
            FusionRetriever.from_memory(memory, **bad)
    with pytest.raises(ConfigError, match="k = 0"):
        FusionRetriever.from_memory(memory, k=0)
    with pytest.raises(ConfigError):
        FusionRetriever.from_memory(memory).invoke("x", filter={"a": {"$like": "b"}})


def test_a_memorys_receipts_tell_of_the_fallback(memory):
    nothing_passes = Fusion(weights={"bm25": 1.0}, gate=QualityGate(floor=1e9))
    found = ask(FusionRetriever.from_memory(memory, recipe=nothing_passes, receipts=True), "Lisbon")
    assert found
    assert all(document.metadata["hybridmem"]["degraded"] for document in found)


def test_a_failing_memory_is_skipped_when_asked():
    class Broken:
        recipe = Fusion()

        def search(self, query, **how):
            raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        FusionRetriever(memory=Broken()).invoke("?")
    assert FusionRetriever(memory=Broken(), on_error="skip").invoke("?") == []
