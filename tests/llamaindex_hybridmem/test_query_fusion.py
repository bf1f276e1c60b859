"""The drop-in against its original: the same ids and scores, and each of its defects by name."""

import asyncio
import math
import threading

import chromadb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.llms import MockLLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.retrievers import QueryFusionRetriever as Original
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES as ORIGINAL_MODES
from llama_index.core.schema import ImageNode, IndexNode, NodeWithScore, QueryBundle, TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore

from hybridmem.errors import ArmError, ConfigError
from llamaindex_hybridmem import FUSION_MODES, QueryFusionRetriever
from llamaindex_hybridmem.query_fusion import identities
from tests.support.llama_fakes import AsyncOnly, Fixed, Letters, Reciting, node, scored

MODES = ["reciprocal_rerank", "relative_score", "dist_based_score", "simple"]
TEXTS = ["Ana moved to Lisbon", "日本語のテキスト", "naïve café", "", "same", "same", "same"]
METADATA = [{}, {"source": "a"}, {"n": 1, "tags": ["x"]}]

POOL = st.lists(
    st.tuples(st.sampled_from(TEXTS), st.sampled_from(METADATA)), min_size=1, max_size=8
).map(lambda rows: [node(f"n{i}", text=text, metadata=dict(meta)) for i, (text, meta) in enumerate(rows)])  # fmt: skip
SCORES = st.sampled_from([0.25, 0.5, 0.5, 0.75, 1.0, 12.5, -0.5])


@st.composite
def found(draw, count=2, scores=SCORES):
    """Lists over one pool of nodes, which may share texts under different ids; ties and empty lists included."""
    pool = draw(POOL)
    lists = []
    for _ in range(count):
        chosen = draw(st.lists(st.sampled_from(range(len(pool))), unique=True, max_size=len(pool)))
        lists.append([(pool[i], draw(scores)) for i in chosen])
    return lists


def retrievers(lists):
    return [Fixed([NodeWithScore(node=n, score=s) for n, s in rows]) for rows in lists]


def told(nodes):
    return [(n.node_id, n.score) for n in nodes]


def both(lists, **kwargs):
    """What the original and ours return for the same lists."""
    kwargs = {"similarity_top_k": 100, "num_queries": 1, **kwargs}
    original = Original(retrievers(lists), llm=MockLLM(), use_async=False, **kwargs)
    return told(original.retrieve("q")), told(QueryFusionRetriever(retrievers(lists), **kwargs).retrieve("q"))


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40)
@given(data=st.data())
def test_the_same_ids_and_scores_as_the_original(mode, data):
    lists = data.draw(found(count=data.draw(st.integers(1, 4))))
    theirs, ours = both(lists, mode=mode)
    assert ours == theirs


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25)
@given(lists=found(count=3), weight=st.sampled_from([0.1, 0.5, 1, 3.7]), k=st.integers(1, 4))
def test_equal_weights_of_any_size_change_nothing(mode, lists, weight, k):
    theirs, ours = both(lists, mode=mode, retriever_weights=[weight] * 3, similarity_top_k=k)
    assert ours == theirs


@pytest.mark.parametrize("mode", ["reciprocal_rerank", "simple"])
@settings(max_examples=25)
@given(lists=found(scores=st.one_of(st.none(), SCORES)))
def test_missing_scores_are_read_as_the_original_reads_them(mode, lists):
    theirs, ours = both(lists, mode=mode)
    assert ours == theirs


@pytest.mark.parametrize("mode", ["relative_score", "dist_based_score"])
@settings(max_examples=25)
@given(lists=found(), weights=st.lists(st.sampled_from([0.1, 0.3, 2.0]), min_size=2, max_size=2))
def test_where_the_original_knows_weights_they_mean_the_same(mode, lists, weights):
    theirs, ours = both(lists, mode=mode, retriever_weights=weights)
    assert ours == theirs


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=15)
@given(lists=found(count=6))
def test_generated_queries_give_the_same_too(mode, lists):
    answers = [dict(zip("abc", lists[i::2], strict=True)) for i in range(2)]
    kwargs = {"mode": mode, "num_queries": 3, "similarity_top_k": 100, "llm": Reciting(text="```b\n\n c \nd```")}

    def made(cls, **more):
        arms = [Fixed({q: [NodeWithScore(node=n, score=s) for n, s in rows] for q, rows in a.items()}) for a in answers]
        return cls(arms, **kwargs, **more)

    theirs = told(made(Original, use_async=False).retrieve("a"))
    assert told(made(QueryFusionRetriever).retrieve("a")) == theirs
    assert told(asyncio.run(made(QueryFusionRetriever).aretrieve("a"))) == theirs


def test_first_in_two_lists_is_two_sixtieths():
    ours = QueryFusionRetriever([Fixed(scored("AB")), Fixed(scored("AC"))], mode="reciprocal_rerank", num_queries=1)
    assert told(ours.retrieve("q")) == [("A", 1 / 60 + 1 / 60), ("B", 1 / 61)]


# --- the contract


def test_the_signature_is_the_originals():
    import inspect

    ours = inspect.signature(QueryFusionRetriever.__init__).parameters
    theirs = inspect.signature(Original.__init__).parameters
    assert list(ours) == list(theirs)
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]
    assert FUSION_MODES is ORIGINAL_MODES


def test_positional_arguments_and_modes_by_enum_or_name():
    for mode in [*FUSION_MODES, *MODES]:
        ours = QueryFusionRetriever([Fixed(scored("AB"))], None, None, mode, 1, 1, False, False)
        assert ours.mode == mode
        assert ours.mode is FUSION_MODES(mode)
        assert [n.node_id for n in ours.retrieve("q")] == ["A"]


def test_settings_can_be_changed_later():
    ours = QueryFusionRetriever([Fixed(scored("ABC"))], num_queries=1)
    assert len(ours.retrieve("q")) == 2
    ours.similarity_top_k = 3
    ours.mode = "reciprocal_rerank"
    ours.use_async = False
    assert told(ours.retrieve("q")) == [("A", 1 / 60), ("B", 1 / 61), ("C", 1 / 62)]
    ours.similarity_top_k = None
    assert len(ours.retrieve("q")) == 3


def test_prompts_can_be_read_and_changed():
    llm = Reciting(text="more", prompts=[])
    ours = QueryFusionRetriever(
        [Fixed(scored("A"))], llm=llm, num_queries=2, query_gen_prompt="{num_queries} of {query}"
    )
    assert ours.get_prompts()["query_gen_prompt"].get_template() == "{num_queries} of {query}"
    ours.retrieve("cats")
    ours.update_prompts({"query_gen_prompt": PromptTemplate("say {num_queries} like {query}"), "other": None})
    ours.retrieve("cats {x}")
    ours.update_prompts({})
    assert llm.prompts == ["1 of cats", "say 1 like cats {x}"]
    assert ours.query_gen_prompt == "say {num_queries} like {query}"


def test_verbose_shows_the_generated_queries(capsys):
    arm = Fixed(scored("A"))
    QueryFusionRetriever([arm], llm=Reciting(text="one\ntwo\nthree"), num_queries=3, verbose=True).retrieve("q")
    assert capsys.readouterr().out == "Generated queries:\none\ntwo\nthree\n"
    assert sorted(bundle.query_str for bundle in arm.asked) == ["one", "q", "two"]


def test_a_query_that_the_model_repeats_is_asked_once():
    arm = Fixed(scored("A"))
    QueryFusionRetriever([arm], llm=Reciting(text="q\nq"), num_queries=3).retrieve(QueryBundle("q", embedding=[1.0]))
    assert [(bundle.query_str, bundle.embedding) for bundle in arm.asked] == [("q", [1.0])]


def test_settings_llm_is_used_when_queries_are_generated(monkeypatch):
    llm = Reciting(text="more", prompts=[])
    monkeypatch.setattr(Settings, "_llm", llm)
    ours = QueryFusionRetriever([Fixed(scored("A"))], num_queries=2)
    ours.retrieve("cats")
    assert len(llm.prompts) == 1
    assert "cats" in llm.prompts[0]


def test_index_nodes_are_followed():
    inner = Fixed(scored("X"))
    pointer = IndexNode(text="pointer", index_id="p", id_="p")
    ours = QueryFusionRetriever([Fixed(scored([pointer]))], num_queries=1, object_map={"p": inner})
    assert [n.node_id for n in ours.retrieve("q")] == ["X"]
    ours = QueryFusionRetriever(
        [Fixed(scored([pointer]))], num_queries=1, objects=[IndexNode(text="", index_id="p", obj=node("Y"))]
    )
    assert [n.node_id for n in ours.retrieve("q")] == ["Y"]
    assert [n.node_id for n in asyncio.run(ours.aretrieve("q"))] == ["Y"]


def test_retrieval_events_for_it_and_each_child():
    handler = LlamaDebugHandler(print_trace_on_end=False)
    manager = CallbackManager([handler])
    arms = [Fixed(scored("A"), callback_manager=manager), Fixed(scored("B"), callback_manager=manager)]
    QueryFusionRetriever(arms, num_queries=1, callback_manager=manager).retrieve("q")
    assert len(handler.get_event_pairs(CBEventType.RETRIEVE)) == 3


def test_as_tool_passes_a_clean_query():
    arm = Fixed(scored("A"))
    said = QueryFusionRetriever([arm], num_queries=1).as_tool(name="notes", description="My notes")(
        input="where is Ana?"
    )
    assert [bundle.query_str for bundle in arm.asked] == ["where is Ana?"]
    assert said.content == "text of A"


# --- the defects of the original, each by name


def test_defect_weights_are_ignored_in_rrf():
    lists = [[(node("A"), 1.0), (node("B"), 0.5)], [(node("C"), 1.0)]]
    theirs, ours = both(lists, mode="reciprocal_rerank", retriever_weights=[3, 1])
    assert theirs == [("A", 1 / 60), ("C", 1 / 60), ("B", 1 / 61)]
    assert ours == [("A", 1.5 / 60), ("B", 1.5 / 61), ("C", 0.5 / 60)]


def test_defect_weights_are_ignored_in_simple_mode():
    lists = [[(node("A"), 0.4)], [(node("B"), 0.5)]]
    theirs, ours = both(lists, mode="simple", retriever_weights=[3, 1])
    assert theirs == [("B", 0.5), ("A", 0.4)]
    assert ours == [("A", pytest.approx(1.5 * 0.4)), ("B", 0.5 * 0.5)]


def test_defect_an_llm_is_needed_for_one_query(monkeypatch):
    def no_llm(self):
        raise ImportError("no llm here")

    monkeypatch.setattr(type(Settings), "llm", property(no_llm))
    with pytest.raises(ImportError, match="no llm"):
        Original([Fixed(scored("A"))], num_queries=1)
    assert QueryFusionRetriever([Fixed(scored("A"))], num_queries=1).retrieve("q")
    with pytest.raises(ImportError, match="no llm"):
        QueryFusionRetriever([Fixed(scored("A"))], num_queries=2).retrieve("q")


def test_defect_sync_children_run_one_after_another():
    meeting = threading.Barrier(2, timeout=30)  # passed only by two at the same time
    arms = [Fixed(scored("A"), lambda _: meeting.wait()), Fixed(scored("B"), lambda _: meeting.wait())]
    ours = QueryFusionRetriever(arms, num_queries=1)
    assert {n.node_id for n in ours.retrieve("q")} == {"A", "B"}


async def test_defect_sync_children_stall_the_event_loop():
    ticked = asyncio.Event()
    loop = asyncio.get_running_loop()
    meeting = threading.Barrier(2, timeout=30)

    def block(_):
        meeting.wait()  # the other arm runs too
        done = threading.Event()

        async def tick():
            ticked.set()
            done.set()

        asyncio.run_coroutine_threadsafe(tick(), loop)
        assert done.wait(30)  # only a loop that is free can do this

    ours = QueryFusionRetriever([Fixed(scored("A"), block), Fixed(scored("B"), block)], num_queries=1)
    assert {n.node_id for n in await ours.aretrieve("q")} == {"A", "B"}
    assert ticked.is_set()


def test_defect_chromas_async_is_serial_and_blocking():
    meeting = threading.Barrier(2, timeout=30)

    class Blocking(ChromaVectorStore):
        def query(self, query, **kwargs):
            meeting.wait()
            return super().query(query, **kwargs)

    client = chromadb.EphemeralClient()
    made = []
    for key in "AB":
        store = Blocking(chroma_collection=client.create_collection(f"defect-{key}"))
        store.add([node(key, embedding=Letters().get_text_embedding(key))])
        made.append(VectorStoreIndex.from_vector_store(store, embed_model=Letters()).as_retriever())
    found = asyncio.run(QueryFusionRetriever(made, num_queries=1).aretrieve("a"))
    assert {n.node_id for n in found} == {"A", "B"}


def test_defect_a_runtime_error_of_a_child_is_masked():
    def fail(_):
        raise RuntimeError("the index is on fire")

    arms = [Fixed(scored("A")), Fixed(scored("B"), fail)]
    for ours in (QueryFusionRetriever(arms, num_queries=1), QueryFusionRetriever(arms, num_queries=1, use_async=False)):
        with pytest.raises(RuntimeError, match=r"^the index is on fire$"):
            ours.retrieve("q")
        with pytest.raises(RuntimeError, match=r"^the index is on fire$"):
            asyncio.run(ours.aretrieve("q"))


def test_defect_the_same_node_with_other_metadata_is_not_fused():
    lists = [[(node("A"), 1.0)], [(node("A", metadata={"distance": 0.2}), 1.0), (node("B"), 0.5)]]
    theirs, ours = both(lists, mode="reciprocal_rerank")
    assert ("A", 2 / 60) not in theirs
    assert ours == [("A", 1 / 60 + 1 / 60), ("B", 1 / 61)]


def test_equal_content_under_different_ids_is_still_one_result():
    lists = [[(node("A", text="same"), 1.0)], [(node("C", text="same"), 1.0), (node("D", text="other"), 0.5)]]
    theirs, ours = both(lists, mode="reciprocal_rerank")
    assert ours == theirs == [("C", 1 / 60 + 1 / 60), ("D", 1 / 61)]


def test_identity_runs_through_ids_and_contents():
    one = [*scored("A", text="same"), *scored("B", text="other"), *scored("X", text="alone")]
    two = [*scored("C", text="same"), *scored("B", text="same"), *scored("Y", text="same", metadata={"other": 1})]
    (a, b, x), (c, again, y) = identities([one, two])
    assert a == b == c == again  # B is A by its second text, and C is A by its own
    assert len({a, x, y}) == 3
    assert identities([scored("AB"), scored("BC")]) == [["A", "B"], ["B", "C"]]


def test_nodes_that_are_no_text_are_distinguished_by_their_hash():
    images = [ImageNode(id_=f"i{n}", image_path=f"{n}.png", text="") for n in range(3)]
    images.append(ImageNode(id_="again", image_path="0.png", text=""))
    lists = [[(images[0], 1.0), (images[1], 0.5)], [(images[3], 1.0), (images[2], 0.5)]]
    theirs, ours = both(lists, mode="relative_score")
    assert ours == theirs == [("i0", 1.0), ("i1", 0.0), ("i2", 0.0)]


@pytest.mark.parametrize("mode", MODES)
def test_defect_scores_of_the_inputs_are_overwritten(mode):
    shared = scored("AB", [0.9, 0.4])

    class Raw(Fixed):
        def _retrieve(self, query_bundle):
            return self.found

    ours = QueryFusionRetriever([Raw(shared), Raw(shared)], mode=mode, num_queries=1)
    before = [n.node.hash for n in shared]
    first = told(ours.retrieve("q"))
    assert [n.score for n in shared] == [0.9, 0.4]
    assert [n.node.hash for n in shared] == before
    assert told(ours.retrieve("q")) == first


def test_defect_an_embedding_leaks_from_one_child_to_the_next():
    def embed(bundle):
        assert bundle.embedding is None
        bundle.embedding = [1.0]
        bundle.custom_embedding_strs.append("leak")

    arms = [Fixed(scored("A"), embed), Fixed(scored("B"), embed)]
    bundle = QueryBundle("q", custom_embedding_strs=["q"])
    QueryFusionRetriever(arms, num_queries=1).retrieve(bundle)
    assert [arm.asked[0].custom_embedding_strs for arm in arms] == [["q", "leak"], ["q", "leak"]]
    assert bundle == QueryBundle("q", custom_embedding_strs=["q"])
    last = Fixed(scored("A"))
    QueryFusionRetriever([last], num_queries=1).retrieve(QueryBundle("q", embedding=[0.5]))
    assert last.asked[0].embedding == [0.5]


def test_defect_a_node_that_scores_zero_twice_beats_a_real_hit():
    lists = [[(node("A"), 2.0), (node("pad"), 0.0)], [(node("B"), 0.8), (node("pad"), 0.0)]]
    theirs, ours = both(lists, mode="reciprocal_rerank")
    assert theirs[0] == ("pad", 2 / 61)
    assert ours == [("A", 1 / 60), ("B", 1 / 60), ("pad", 0.0)]


def test_zero_is_a_score_where_nothing_scores_more():
    lists = [[(node("A"), 0.0), (node("B"), 0.0)], [(node("A"), 0.0), (node("C"), -1.0)]]
    theirs, ours = both(lists, mode="reciprocal_rerank")
    assert ours == theirs == [("A", 2 / 60), ("B", 1 / 61), ("C", 1 / 61)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"retrievers": []}, r"retrievers = \[\] is not allowed"),
        ({"retrievers": None}, "retrievers = None is not allowed"),
        ({"retrievers": ["bm25"]}, "is a str: a LlamaIndex BaseRetriever is needed"),
        ({"retriever_weights": [1]}, "1 weights for 2 arms"),
        ({"retriever_weights": [0, 0]}, "are all zero"),
        ({"retriever_weights": [-1, 2]}, r"weight -1.0 is not allowed"),
        ({"retriever_weights": [math.nan, 2]}, "weight nan is not allowed"),
        ({"mode": "best"}, "mode = 'best' is not allowed: 'reciprocal_rerank'"),
        ({"similarity_top_k": 0}, "similarity_top_k = 0 is not allowed"),
        ({"similarity_top_k": 1.5}, "similarity_top_k = 1.5 is not allowed"),
        ({"num_queries": 0}, "num_queries = 0 is not allowed"),
        ({"num_queries": True}, "num_queries = True is not allowed"),
    ],
)
def test_defect_bad_settings_are_found_late_or_never(bad, message):
    given_ = {"retrievers": [Fixed(scored("A")), Fixed(scored("B"))], "num_queries": 1, **bad}
    with pytest.raises(ConfigError, match=message):
        QueryFusionRetriever(**given_)


@pytest.mark.parametrize("name", ["mode", "similarity_top_k", "num_queries"])
def test_a_bad_setting_is_refused_later_too(name):
    ours = QueryFusionRetriever([Fixed(scored("A"))], num_queries=1)
    with pytest.raises(ConfigError, match=name):
        setattr(ours, name, -1)


def test_without_async_the_children_run_in_the_callers_thread_in_order():
    turns = []
    arms = [Fixed(scored(name), lambda _, name=name: turns.append((name, threading.get_ident()))) for name in "ABC"]
    QueryFusionRetriever(arms, num_queries=1, use_async=False).retrieve("q")
    assert turns == [(name, threading.get_ident()) for name in "ABC"]


def test_a_type_error_of_a_child_stays_its_own():
    def fail(_):
        raise TypeError("no such type")

    with pytest.raises(TypeError, match=r"^no such type$"):
        QueryFusionRetriever([Fixed([], fail)], num_queries=1).retrieve("q")


class Duck:
    """Something that retrieves without being a BaseRetriever."""

    def __init__(self, value):
        self.value = value

    def retrieve(self, bundle):
        return self.value

    async def aretrieve(self, bundle):
        return self.value


def test_anything_that_retrieves_will_do():
    ours = QueryFusionRetriever([Duck(scored("A")), Duck(tuple(scored("B")))], num_queries=1)
    assert {n.node_id for n in ours.retrieve("q")} == {"A", "B"}
    assert {n.node_id for n in asyncio.run(ours.aretrieve("q"))} == {"A", "B"}
    for value, kind in [("text", "a str"), (["text"], "a list with a str"), (None, "None")]:
        with pytest.raises(ArmError, match=f"returned {kind}: a retriever returns"):
            QueryFusionRetriever([Duck(value)], num_queries=1).retrieve("q")


def test_a_child_with_only_an_async_side_answers_sync_code():
    ours = QueryFusionRetriever([AsyncOnly(scored("A")), Fixed(scored("B"))], num_queries=1)
    assert {n.node_id for n in ours.retrieve("q")} == {"A", "B"}

    async def inside_a_loop():
        return ours.retrieve("q")

    assert {n.node_id for n in asyncio.run(inside_a_loop())} == {"A", "B"}
    ours.use_async = False
    with pytest.raises(NotImplementedError, match="async only"):
        ours.retrieve("q")


def test_a_child_that_is_not_finished_is_reported():
    def fail(_):
        raise NotImplementedError("not yet")

    with pytest.raises(NotImplementedError, match="not yet"):
        QueryFusionRetriever([Fixed([], fail)], num_queries=1).retrieve("q")


async def test_native_async_children_stay_on_the_loop_together():
    meeting = []
    both_here = asyncio.Event()

    async def meet(_):
        meeting.append(1)
        if len(meeting) == 2:
            both_here.set()
        await asyncio.wait_for(both_here.wait(), 30)

    arms = [AsyncOnly(scored("A"), meet), AsyncOnly(scored("B"), meet)]
    ours = QueryFusionRetriever(arms, num_queries=1)
    assert {n.node_id for n in await ours.aretrieve("q")} == {"A", "B"}
    assert [arm.loops for arm in arms] == [[asyncio.get_running_loop()]] * 2


def test_over_real_indexes():
    nodes = [TextNode(id_=f"t{i}", text=text) for i, text in enumerate(["cats purr", "dogs bark", "birds sing"])]
    index = VectorStoreIndex(nodes, embed_model=Letters())
    arms = [index.as_retriever(similarity_top_k=3), index.as_retriever(similarity_top_k=1)]
    kwargs = {"mode": "reciprocal_rerank", "num_queries": 1, "similarity_top_k": 3}
    theirs = told(Original(arms, llm=MockLLM(), use_async=False, **kwargs).retrieve("purring cats"))
    ours = QueryFusionRetriever(arms, **kwargs)
    assert told(ours.retrieve("purring cats")) == theirs
    assert told(asyncio.run(ours.aretrieve("purring cats"))) == theirs
