"""LangChain's FusionRetriever: the core's ranking over any retrievers, with k, filters, recipes and receipts."""

import asyncio
import copy
import threading
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_classic.retrievers import EnsembleRetriever as OriginalEnsemble
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStoreRetriever

from hybridmem.core.types import ArmList
from hybridmem.errors import ConfigError
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import HalfLife, Pack, QualityGate, SourceDedup
from langchain_hybridmem import BM25Retriever, EnsembleRetriever, FusionRetriever, GraphRetriever, VectorRetriever
from langchain_hybridmem._conversion import DocumentReader
from tests.support.langchain_fakes import DAY, NOW, Axes, Plain, Scored, ask, doc, docs, plain, scores, texts

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
        assert scores(found) == recipe.shares(expected.scores)
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
    assert texts(found) == ["b", "a"]  # first and second in turn: a tie, which goes to the retriever that comes first
    assert [document.id for document in found] == ["uuid-2", "uuid-1"]
    assert [d.id for d in ask(FusionRetriever(retrievers=[store, plain("ba")]))] == ["uuid-1", "uuid-2"]


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=8, unique=True), min_size=2, max_size=2))
def test_the_defaults_rank_like_the_ensemble_retriever_over_the_same_two_arms(lists):
    arms = [plain(letters) for letters in lists]
    theirs = OriginalEnsemble(retrievers=arms, weights=[0.5, 0.5]).invoke("?")
    assert texts(ask(FusionRetriever(retrievers=arms))) == texts(theirs)


def test_an_empty_id_is_none():
    nameless = Plain(docs=[doc("a", id=""), doc("b", id="")])
    named = Plain(docs=[doc("b", id="2")])
    assert [(d.page_content, d.id) for d in ask(FusionRetriever(retrievers=[nameless]))] == [("a", ""), ("b", "")]
    both = ask(FusionRetriever(retrievers=[nameless, named]))
    assert [(d.page_content, d.id) for d in both] == [("b", "2"), ("a", "")]


def test_it_can_be_dumped():
    for retrievers in ([plain("a")], {"one": plain("a")}):
        dumped = FusionRetriever(retrievers=retrievers, k=3).model_dump()
        assert (dumped["k"], len(dumped["retrievers"])) == (3, 1)


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
    assert arm.asked == [{"k": 100, "filter": {"x": 1}, "with_scores": True}]  # its own k, which is more than enough
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
    assert ask(outer)[0].metadata["hybridmem"]["rank"] == 2  # the receipt that the inner fusion was asked for
    assert texts(ask(outer, filter=lambda d: d.page_content != "b")) == ["a", "c", "d"]


def test_configurable_arms_are_asked_with_scores_too():
    store = InMemoryVectorStore(Axes())
    store.add_documents([doc("1,0"), doc("3,4"), doc("0,1")])
    arm = store.as_retriever(search_kwargs={"k": 3}).configurable_fields(search_kwargs=ConfigurableField(id="how"))
    retriever = FusionRetriever(retrievers={"vector": arm}, gate=0.5)
    assert [spec.id for spec in retriever.config_specs] == ["how"]
    assert texts(ask(retriever, "1,0")) == ["1,0", "3,4"]
    assert texts(retriever.invoke("1,0", {"configurable": {"how": {"k": 1}}})) == ["1,0"]
    words = BM25Retriever.from_texts(["red fox", "red"]).configurable_fields(k=ConfigurableField(id="k"))
    assert [d.page_content for d in FusionRetriever(retrievers={"bm25": words}, gate=0.5).invoke("fox")] == ["red fox"]
    assert FusionRetriever(retrievers={"bm25": words}).explain("fox").receipts[0].arms[0].score > 0
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


def test_an_arms_own_filter_stays_in_force():
    mixed = [doc(f"red {t}{n}", id=f"{t}{n}", tenant=t, n=n) for t in "ab" for n in (1, 2)]
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
    store.add_documents(mixed)
    own, by_hand = {"tenant": "a"}, lambda document: document.metadata["tenant"] == "a"
    words = BM25Retriever.from_documents(mixed)
    for arm in (
        BM25Retriever.from_documents(mixed, filter=own),
        BM25Retriever.from_documents(mixed, filter=by_hand),
        VectorRetriever(vectorstore=store, filter=own),
        VectorRetriever(vectorstore=store, search_kwargs={"filter": by_hand}),
        store.as_retriever(search_kwargs={"filter": by_hand}),
        GraphRetriever(documents=mixed, filter=own),
        FusionRetriever(retrievers=[words], filter=own),
        EnsembleRetriever(retrievers=[words], filter=own),
    ):
        fused = FusionRetriever(retrievers=[arm])
        assert {d.id for d in ask(fused, "red")} == {"a1", "a2"}
        assert [d.id for d in ask(fused, "red", filter={"n": 1})] == ["a1"]
        assert [d.id for d in ask(fused, "red", filter=lambda document: document.metadata["n"] == 1)] == ["a1"]


def test_dedup_and_filters_ask_deeper_until_k_is_filled():
    many = [doc(f"d{i}", source_id="big" if i < 300 else f"s{i}", even=i % 2 == 0) for i in range(400)]
    arm = Scored(docs=many, scores=list(range(400, 0, -1)), asked=[])
    retriever = FusionRetriever(retrievers={"bm25": arm}, dedup=True, k=5)
    assert texts(retriever.invoke("?")) == ["d0", "d300", "d301", "d302", "d303"]
    assert [asked["k"] for asked in arm.asked] == [100, 400]
    assert texts(asyncio.run(retriever.ainvoke("?"))) == ["d0", "d300", "d301", "d302", "d303"]
    arm.asked.clear()
    few = FusionRetriever(retrievers={"bm25": arm}, dedup=SourceDedup(key="even"), k=5)
    assert texts(few.invoke("?")) == ["d0", "d1"]  # there are no more
    assert [asked["k"] for asked in arm.asked] == [100, 400, 1600]
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
    assert scores(ask(retriever)) == pytest.approx([1.0, 1.5 / 61 / (2 / 62)])
    weak = FusionRetriever(
        retrievers=[Plain(docs=dated)], half_life=HalfLife(half_life=timedelta(30), strength=0.01), clock=lambda: NOW
    )
    assert texts(ask(weak)) == ["old", "new"]
    chunks = Plain(docs=[doc("a1", file="a"), doc("a2", file="a"), doc("b")])
    assert texts(ask(FusionRetriever(retrievers=[chunks], dedup="file"))) == ["a1", "b"]
    by_first = FusionRetriever(retrievers=[chunks], dedup=lambda d: d.page_content[0])
    assert texts(ask(by_first)) == ["a1", "b"]


def test_a_recipe_by_value_name_or_file_and_settings_over_it(tmp_path):
    from hybridmem.fusion.recipe import save_recipe

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


def test_what_is_changed_in_a_copy_counts_and_is_checked():
    retriever = FusionRetriever(retrievers=[plain("ab"), plain("ba")])
    copied = retriever.model_copy(update={"retrievers": [plain("a"), plain("b"), plain("c")], "weights": [1, 2, 3]})
    assert texts(ask(copied)) == ["c", "b", "a"]
    assert texts(ask(retriever)) == ["a", "b"]
    assert texts(ask(retriever.model_copy(update={"k": 1}, deep=True))) == ["a"]
    with pytest.raises(ConfigError, match="1 weights for 2 arms"):
        retriever.model_copy(update={"weights": [1]})
    with pytest.raises(ConfigError, match="no setting 'top'"):
        retriever.model_copy(update={"top": 1})


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
        assert shown.why_not("b") == "b: rank 2, and only k=1 results are returned"
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


@pytest.mark.parametrize("named", [True, False])
def test_the_default_recipe_counts_speakers_and_threads_in_metadata(named):
    turns = [
        Document("I live in Oslo.", id="b", metadata={"speaker": "Ben", "thread": "t"}),
        Document("I live in Lisbon.", id="a", metadata={"speaker": "Ana", "thread": "t"}),
        *[Document(f"Town {n} is large.", id=f"d{n}") for n in range(4)],
    ]
    arms = [Plain(docs=turns), Plain(docs=turns)]
    retriever = FusionRetriever(
        retrievers=dict(zip(("bm25", "vector"), arms, strict=True)) if named else arms, recipe="default", k=3
    )
    found = retriever.invoke("Where does Ana live?", with_scores=True)
    # b is first in both lists, of 6 hits: 1; a is second: 5/6, + 0.2 for the speaker, + 0.28 · 1/6 for the thread
    assert [document.id for document in found] == ["a", "b", "d0"]
    assert found[1].metadata["score"] == pytest.approx(1 / (5 / 6 + 0.2 + 0.28 / 6))
    told = str(retriever.explain("Where does Ana live?").receipts[0])
    assert "said by ana +0.2" in told
    assert "thread t +0.0467" in told
