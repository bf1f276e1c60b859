"""The drop-in against the class it replaces: langchain_classic's EnsembleRetriever is the oracle."""

import asyncio
import contextlib
import threading
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_classic.retrievers import EnsembleRetriever as Original
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.output_parsers import StrOutputParser
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import ValidationError

from hybridmem.errors import ArmError, ConfigError
from langchain_hybridmem import EnsembleRetriever

TEXTS = ["alpha", "beta", "gamma", "δέλτα", "ε", "", "書", "a b", "beta ", "BETA", "7"]
METADATA = st.dictionaries(st.sampled_from(["uid", "lang", "n"]), st.sampled_from(["x", "y", "z", 1, None]), max_size=3)
DOCUMENTS = st.builds(
    lambda text, metadata, name: Document(page_content=text, metadata=metadata, id=name),
    st.sampled_from(TEXTS),
    METADATA,
    st.sampled_from([None, "i1", "i2"]),
)
WEIGHTS = st.sampled_from([0, 0.0, 0.1, 0.25, 0.3, 0.5, 1, 1.0, 2.5, 7])


class Fixed(BaseRetriever):
    docs: list

    def _get_relevant_documents(self, query, *, run_manager):
        return self.docs


class Tenfold(BaseRetriever):
    docs: list
    k: int = 10

    def _get_relevant_documents(self, query, *, run_manager):
        return self.docs[: self.k]


def texts(documents):
    return [document.page_content for document in documents]


def fixed(*names):
    return Fixed(docs=[Document(page_content=name) for name in names])


@st.composite
def ensembles(draw, documents=DOCUMENTS, **unique):
    lists = draw(st.lists(st.lists(documents, max_size=8, **unique), min_size=1, max_size=4))
    size = len(lists)
    weights = draw(st.none() | st.just([]) | st.lists(WEIGHTS, min_size=size, max_size=size).filter(any))
    return lists, {"weights": weights, "c": draw(st.sampled_from([0, 1, 10, 60, 1000]))}


def both(lists, options):
    children = [Fixed(docs=documents) for documents in lists]
    return Original(retrievers=children, **options), EnsembleRetriever(retrievers=children, **options)


def same(found, expected):
    assert found == expected
    assert all(a is b for a, b in zip(found, expected, strict=True))


# --- the same documents in the same order


@settings(max_examples=100)
@given(ensembles(unique_by=lambda document: document.page_content))
def test_any_lists_give_what_the_original_gives(case):
    lists, options = case
    old, new = both(lists, options)
    assert new.weights == old.weights
    same(new.weighted_reciprocal_rank(lists), old.weighted_reciprocal_rank(lists))


@settings(max_examples=25)
@given(ensembles(unique_by=lambda document: document.page_content))
def test_any_lists_give_what_the_original_gives_through_invoke_and_ainvoke(case):
    old, new = both(*case)
    same(new.invoke("?"), old.invoke("?"))
    same(asyncio.run(new.ainvoke("?")), old.invoke("?"))


KEYED = st.builds(
    lambda document, uid: Document(document.page_content, metadata={**document.metadata, "uid": uid}),
    DOCUMENTS,
    st.sampled_from(["x", "y", "z", 1, 2, None]),
)


@settings(max_examples=40)
@given(ensembles(KEYED, unique_by=lambda document: document.metadata["uid"]))
def test_an_id_key_gives_what_the_original_gives(case):
    lists, options = case
    old, new = both(lists, {**options, "id_key": "uid"})
    same(new.invoke("?"), old.invoke("?"))


@settings(max_examples=40)
@given(ensembles())
def test_inputs_are_never_changed(case):
    lists, options = case
    before = [[document.model_copy(deep=True) for document in documents] for documents in lists]
    more = {"with_scores": True, "merge_metadata": True}
    EnsembleRetriever(retrievers=[Fixed(docs=documents) for documents in lists], **options, **more).invoke("?")
    assert lists == before


# --- where the original has a defect


@settings(max_examples=60)
@given(ensembles())
def test_defect_duplicates_inside_one_list_count_once_at_their_best_rank(case):
    """The original adds them up, so that a retriever which repeats itself wins. Else the same: order, documents."""
    lists, options = case
    once = []
    for documents in lists:
        seen = set()
        once.append([])
        for document in documents:
            again = document.page_content in seen
            seen.add(document.page_content)
            once[-1].append(Document(page_content=f"filler {uuid.uuid4()}") if again else document)
    old, new = both(lists, options)
    expected = [d for d in old.weighted_reciprocal_rank(once) if not d.page_content.startswith("filler ")]
    same(new.weighted_reciprocal_rank(lists), expected)


def test_defect_a_retriever_that_repeats_itself_does_not_win():
    lists = [["b"], ["x", "a", "a"]]
    children = [fixed(*names) for names in lists]
    assert texts(Original(retrievers=children).invoke("?")) == ["a", "b", "x"]  # a: 1/62 + 1/63 > 1/61
    assert texts(EnsembleRetriever(retrievers=children).invoke("?")) == ["b", "x", "a"]


def test_defect_a_missing_id_key_falls_back_to_the_id_and_then_the_text():
    one = Fixed(docs=[Document(page_content="a", metadata={"uid": 1}), Document(page_content="b", id="i")])
    two = Fixed(docs=[Document(page_content="B", id="i"), Document(page_content="c"), Document(page_content="c")])
    with pytest.raises(KeyError):
        Original(retrievers=[one, two], id_key="uid").invoke("?")
    assert texts(EnsembleRetriever(retrievers=[one, two], id_key="uid").invoke("?")) == ["b", "a", "c"]


def test_defect_no_retrievers_is_a_clear_error():
    with pytest.raises(ConfigError, match="at least one retriever"):
        EnsembleRetriever(retrievers=[])


def test_defect_k_and_filter_are_honoured():
    docs = [Document(page_content=name, metadata={"even": i % 2 == 0}) for i, name in enumerate("abcdef")]
    children = [Fixed(docs=docs[:4]), Fixed(docs=docs[2:])]
    whole = texts(Original(retrievers=children).invoke("?"))
    assert texts(EnsembleRetriever(retrievers=children, k=2).invoke("?")) == whole[:2]
    new = EnsembleRetriever(retrievers=children)
    assert texts(new.invoke("?", k=3)) == whole[:3]
    assert texts(asyncio.run(new.ainvoke("?", k=3))) == whole[:3]
    assert texts(new.invoke("?", filter={"even": True})) == ["c", "a", "e"]
    assert texts(EnsembleRetriever(retrievers=children, filter={"even": True}).invoke("?", k=1)) == ["c"]
    assert texts(new.invoke("?", filter=lambda document: document.page_content > "d")) == ["e", "f"]


def test_defect_scores_and_the_metadata_of_later_duplicates_are_there_when_asked_for():
    one = Fixed(docs=[Document(page_content="a", metadata={"n": 1})])
    two = Fixed(docs=[Document(page_content="b"), Document(page_content="a", metadata={"n": 2, "url": "u"})])
    plain = EnsembleRetriever(retrievers=[one, two])
    assert [document.metadata for document in plain.invoke("?")] == [{"n": 1}, {}]
    merged = EnsembleRetriever(retrievers=[one, two], merge_metadata=True)
    assert [document.metadata for document in merged.invoke("?")] == [{"n": 1, "url": "u"}, {}]
    scored = EnsembleRetriever(retrievers=[one, two], with_scores=True)
    assert [set(document.metadata) for document in scored.invoke("?")] == [{"n", "score"}, {"score"}]
    rich = EnsembleRetriever(retrievers=[one, two], with_scores=True, merge_metadata=True)
    assert [document.metadata for document in rich.invoke("?")] == [
        {"n": 1, "url": "u", "score": 0.5 / 61 + 0.5 / 62},
        {"score": 0.5 / 61},
    ]


def test_defect_a_failing_or_late_retriever_can_be_skipped():
    release = threading.Event()

    def fails(query):
        raise LookupError("gone")

    def hangs(query):
        release.wait(30)
        return ["late"]

    async def later(ensemble):
        try:
            return await ensemble.ainvoke("?")
        finally:
            release.set()  # else the loop would wait for its thread when it closes

    one = EnsembleRetriever(retrievers=[fixed("a"), RunnableLambda(fails)], on_error="skip")
    two = EnsembleRetriever(retrievers=[RunnableLambda(hangs)], on_error="skip", timeout=0.05)
    assert texts(one.invoke("?")) == ["a"]
    assert texts(two.invoke("?")) == []
    assert texts(asyncio.run(later(two))) == []
    assert texts(asyncio.run(later(one))) == ["a"]


def test_defect_none_from_a_retriever_is_a_clear_error():
    for bad, what in [(None, "None"), ("text", "a str"), ({}, "a dict"), (3, "a int"), ([3], "a list with a int")]:
        new = EnsembleRetriever(retrievers=[fixed("a"), RunnableLambda(lambda query, bad=bad: bad)])
        for _ in range(8):  # also once quick retrievers are asked without threads
            with pytest.raises(ArmError, match=f"arm 'retriever_2' returned {what}"):
                new.invoke("?")


def test_defect_the_run_carries_its_retriever_name():
    old, new = seen_by(Original(retrievers=[fixed("a")])), seen_by(EnsembleRetriever(retrievers=[fixed("a")]))
    assert old[0]["metadata"] == {}
    assert new[0]["metadata"] == {"ls_retriever_name": "ensemble"}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"weights": [1, -1]}, "weight -1 is not allowed"),
        ({"weights": [1, float("nan")]}, "weight nan is not allowed"),
        ({"weights": [1, float("inf")]}, "weight inf is not allowed"),
        ({"c": -1}, "c = -1 is not allowed"),
        ({"k": 0}, "k = 0 is not allowed"),
        ({"k": 1.5}, "k = 1.5 is not allowed"),
        ({"on_error": "ignore"}, "on_error = 'ignore' is not allowed"),
        ({"timeout": 0}, "timeout = 0 is not allowed"),
    ],
)
def test_defect_bad_settings_are_refused(bad, message):
    with pytest.raises(ConfigError, match=message):
        EnsembleRetriever(retrievers=[fixed("a"), fixed("b")], **bad)


def test_a_bad_k_at_call_time_is_refused():
    with pytest.raises(ConfigError, match="k = 0 is not allowed"):
        EnsembleRetriever(retrievers=[fixed("a")]).invoke("?", k=0)


# --- the contract


def test_it_is_keyword_only_and_takes_what_the_original_takes():
    with pytest.raises(TypeError):
        EnsembleRetriever([fixed("a")])
    new = EnsembleRetriever(retrievers=[fixed("a")], name="mine", tags=["t"], metadata={"m": 1}, unknown=3)
    assert (new.name, new.tags, new.metadata) == ("mine", ["t"], {"m": 1})
    assert not hasattr(new, "unknown")
    assert EnsembleRetriever.model_validate({"retrievers": [fixed("a"), fixed("b")]}).weights == [0.5, 0.5]


@pytest.mark.parametrize("make", [Original, EnsembleRetriever])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"weights": [1.0]}, r"Length of weights must match number of retrievers \(got 1 weights for 2 retrievers\)."),
        ({"weights": [0, 0]}, "At least one ensemble weight must be greater than zero."),
        ({"weights": ["a", "b"]}, None),
        ({"c": "many"}, None),
        ({"id_key": 3}, None),
    ],
)
def test_wrong_settings_are_the_originals_validation_errors(make, bad, message):
    with pytest.raises((ValidationError, TypeError), match=message):
        make(retrievers=[fixed("a"), fixed("b")], **bad)


@pytest.mark.parametrize("make", [Original, EnsembleRetriever])
def test_only_runnables_are_retrievers(make):
    for bad in ([lambda query: []], "abc", None):
        with pytest.raises((ValidationError, TypeError)):
            make(retrievers=bad, weights=[1.0])


@pytest.mark.parametrize("make", [Original, EnsembleRetriever])
def test_weights_and_c_can_be_changed_later(make):
    one, two = fixed("a", "b"), fixed("c")
    ensemble = make(retrievers=[one, two], weights=[1, 2])
    assert ensemble.weights == [1.0, 2.0]
    assert texts(ensemble.invoke("?")) == ["c", "a", "b"]
    ensemble.weights = [2, 1]
    assert texts(ensemble.invoke("?")) == ["a", "b", "c"]
    ensemble.c = 0
    assert texts(ensemble.invoke("?")) == ["a", "b", "c"]  # 2/1, 2/2, 1/1: a tie, in the retrievers' order
    ensemble.weights = [1]
    with pytest.raises(ValueError, match="Number of rank lists must be equal to the number of weights"):
        ensemble.invoke("?")


@pytest.mark.parametrize("make", [Original, EnsembleRetriever])
def test_configurable_settings_reach_the_children_and_the_ensemble(make):
    child = Tenfold(docs=[Document(page_content=name) for name in "abcd"]).configurable_fields(
        k=ConfigurableField(id="child_k")
    )
    ensemble = make(retrievers=[child, fixed("z")])
    assert [spec.id for spec in ensemble.config_specs] == ["child_k"]
    assert texts(ensemble.invoke("?", {"configurable": {"child_k": 1}})) == ["a", "z"]
    assert texts(asyncio.run(ensemble.ainvoke("?", {"configurable": {"child_k": 2}}))) == ["a", "z", "b"]
    turned = make(retrievers=[fixed("a"), fixed("z")]).configurable_fields(weights=ConfigurableField(id="w"))
    assert texts(turned.invoke("?", {"configurable": {"w": [0, 1]}})) == ["z", "a"]


@pytest.mark.parametrize("make", [Original, EnsembleRetriever])
def test_it_is_a_runnable_like_any_other(make):
    ensemble = make(retrievers=[fixed("a", "b"), RunnableLambda(lambda query: [query, "b"])])
    assert [texts(found) for found in ensemble.batch(["x", "y"])] == [["b", "a", "x"], ["b", "a", "y"]]
    assert [texts(found) for found in ensemble.stream("x")] == [["b", "a", "x"]]
    assert [texts(found) for found in asyncio.run(ensemble.abatch(["x"]))] == [["b", "a", "x"]]
    chain = ensemble | (lambda found: " ".join(texts(found))) | StrOutputParser()
    assert chain.invoke("x") == "b a x"
    nested = make(retrievers=[ensemble, fixed("x")])
    assert texts(nested.invoke("x")) == ["x", "b", "a"]


def test_a_subclass_may_replace_how_lists_are_made_or_fused():
    class Longest(EnsembleRetriever):
        def weighted_reciprocal_rank(self, doc_lists):
            return max(doc_lists, key=len)

    class Own(EnsembleRetriever):
        def rank_fusion(self, query, run_manager, *, config=None):
            return self.weighted_reciprocal_rank([[Document(page_content=query)], []])

    children = [fixed("a"), fixed("b", "c")]
    assert texts(Longest(retrievers=children).invoke("?")) == ["b", "c"]
    assert texts(Own(retrievers=children).invoke("q")) == ["q"]


def test_the_hooks_of_a_base_retriever_work_too():
    new = EnsembleRetriever(retrievers=[fixed("a", "b"), fixed("b")])
    assert texts(new._get_relevant_documents("?", run_manager=manager(), k=1)) == ["b"]

    async def later():
        return await new._aget_relevant_documents("?", run_manager=manager(later=True), k=1)

    assert texts(asyncio.run(later())) == ["b"]


def manager(*, later=False):
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun

    kind = AsyncCallbackManagerForRetrieverRun if later else CallbackManagerForRetrieverRun
    return kind.get_noop_manager()


# --- runs and callbacks, compared with the original's


class Recorder(BaseCallbackHandler):
    def __init__(self):
        self.runs = []
        self.lock = threading.Lock()

    def on_retriever_start(self, serialized, query, *, run_id, parent_run_id=None, tags=None, metadata=None, **more):
        with self.lock:
            names = {"name": more.get("name"), "tags": tags, "metadata": metadata}
            self.runs.append({"id": run_id, "parent": parent_run_id, "query": query, "ended": None, **names})

    def on_retriever_end(self, documents, *, run_id, **more):
        self.run(run_id)["ended"] = texts(documents)

    def on_retriever_error(self, error, *, run_id, **more):
        self.run(run_id)["ended"] = repr(error)

    def run(self, run_id):
        return next(run for run in self.runs if run["id"] == run_id)


def seen_by(ensemble, config=None, *, later=False):
    """What a handler sees of a call, ids replaced by what they point to."""
    recorder = Recorder()
    config = {**(config or {}), "callbacks": [recorder]}
    with contextlib.suppress(LookupError):
        asyncio.run(ensemble.ainvoke("?", config)) if later else ensemble.invoke("?", config)
    names = {run["id"]: run["name"] for run in recorder.runs}
    shown = [{**run, "parent": names.get(run["parent"]), "id": None} for run in recorder.runs]
    return sorted(shown, key=lambda run: (run["parent"] is not None, run["tags"]))


@pytest.mark.parametrize("later", [False, True])
def test_children_are_tagged_child_runs_with_the_configs_tags_but_not_the_ensembles(later):
    config = {"tags": ["c"], "metadata": {"from": "config"}, "run_name": "outer"}
    own = {"tags": ["own"], "metadata": {"mine": 1}}
    old = seen_by(Original(retrievers=[fixed("a"), fixed("b")], **own), config, later=later)
    new = seen_by(EnsembleRetriever(retrievers=[fixed("a"), fixed("b")], **own), config, later=later)
    assert new[0]["metadata"].pop("ls_retriever_name") == "ensemble"
    assert new == old
    assert [sorted(run["tags"]) for run in new] == [["c", "own"], ["c", "retriever_1"], ["c", "retriever_2"]]
    assert [run["parent"] for run in new] == [None, "outer", "outer"]


@pytest.mark.parametrize("later", [False, True])
def test_errors_propagate_unwrapped_and_are_told_on_both_runs(later):
    class Fails(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            raise LookupError("gone")

    old = seen_by(Original(retrievers=[fixed("a"), Fails()]), later=later)
    new = seen_by(EnsembleRetriever(retrievers=[fixed("a"), Fails()]), later=later)
    new[0]["metadata"].pop("ls_retriever_name")
    assert new == old
    assert [run["ended"] for run in new] == ["LookupError('gone')", ["a"], "LookupError('gone')"]
    with pytest.raises(LookupError, match="gone"):
        EnsembleRetriever(retrievers=[Fails()]).invoke("?")


def test_a_run_id_is_used_for_this_run_alone():
    recorder, chosen = Recorder(), uuid.uuid4()
    new = EnsembleRetriever(retrievers=[fixed("a"), fixed("b")])
    new.invoke("?", {"callbacks": [recorder], "run_id": chosen})
    assert [run["id"] == chosen for run in recorder.runs] == [True, False, False]
    recorder.runs.clear()
    new.invoke("?", {"callbacks": [recorder]}, run_id=chosen)
    assert [run["id"] == chosen for run in recorder.runs] == [True, False, False]


# --- at the same time


def meeting(barrier, name):
    def search(query):
        barrier.wait()
        return [name]

    return RunnableLambda(search)


def test_retrievers_run_at_the_same_time():
    together = threading.Barrier(2, timeout=30)
    new = EnsembleRetriever(retrievers=[meeting(together, "a"), meeting(together, "b")])
    assert texts(new.invoke("?")) == ["a", "b"]


def test_retrievers_run_at_the_same_time_on_the_loop_and_the_loop_goes_on():
    together, release = threading.Barrier(2, timeout=30), threading.Event()

    def search(query):
        together.wait()
        assert release.wait(30)
        return [query]

    async def tick():
        for _ in range(5):
            await asyncio.sleep(0.001)
        release.set()

    async def both_at_once():
        new = EnsembleRetriever(retrievers=[RunnableLambda(search), RunnableLambda(search)])
        return (await asyncio.gather(new.ainvoke("q"), tick()))[0]

    assert texts(asyncio.run(both_at_once())) == ["q"]


def test_max_concurrency_is_respected():
    running, most, lock = 0, 0, threading.Lock()

    def search(query):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.005)
        with lock:
            running -= 1
        return [query]

    new = EnsembleRetriever(retrievers=[RunnableLambda(search) for _ in range(4)])
    new.invoke("?", {"max_concurrency": 1})
    asyncio.run(new.ainvoke("?", {"max_concurrency": 1}))
    assert most == 1


def test_quick_retrievers_need_no_threads_and_are_noticed_when_they_become_slow():
    threads = set()
    slow = threading.Event()

    def search(query):
        threads.add(threading.current_thread().name)
        if slow.is_set():
            threading.Event().wait(0.02)
        return [query]

    new = EnsembleRetriever(retrievers=[RunnableLambda(search), RunnableLambda(search)])
    new.invoke("?")
    for latency in new._latencies:
        latency.seconds = 0.0
    threads.clear()
    new.invoke("?")
    assert threads == {threading.current_thread().name}
    slow.set()
    for _ in range(4):
        new.invoke("?")
    assert all(latency.seconds > 0.0005 for latency in new._latencies)
    threads.clear()
    new.invoke("?")
    assert threading.current_thread().name not in threads


def test_retrievers_can_be_changed_later():
    new = EnsembleRetriever(retrievers=[fixed("a")])
    for _ in range(8):
        new.invoke("?")
    new.retrievers.append(fixed("b"))
    new.weights.append(0.5)
    assert texts(new.invoke("?")) == ["a", "b"]
    new.retrievers = []
    with pytest.raises(ValueError, match="Number of rank lists"):
        new.invoke("?")


def test_a_vector_store_keeps_its_own_filter_beside_ours():
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    for i, name in enumerate("abcdef"):
        store.add_documents([Document(page_content=name, metadata={"n": i, "even": i % 2 == 0})])
    new = EnsembleRetriever(retrievers=[store.as_retriever(search_kwargs={"k": 6})])
    assert set(texts(new.invoke("a", filter={"n": {"$gte": 3}}))) == {"d", "e", "f"}
    own = store.as_retriever(search_kwargs={"k": 6, "filter": lambda document: document.metadata["even"]})
    assert texts(EnsembleRetriever(retrievers=[own]).invoke("a", filter={"n": {"$gte": 3}})) == ["e"]
