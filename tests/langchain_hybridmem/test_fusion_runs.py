"""FusionRetriever as a run: failures, bad settings, callbacks, and arms at the same time."""

import asyncio
import copy
import pickle
import threading

import pytest
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    BaseCallbackHandler,
    CallbackManagerForRetrieverRun,
)
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from hybridmem.errors import ArmError, ConfigError
from hybridmem.fusion.stages import QualityGate
from langchain_hybridmem import FusionRetriever
from tests.support.langchain_fakes import Axes, Plain, ask, doc, docs, plain, texts

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
        ({"weights": ["a", "b"]}, "weight .a. is not allowed"),
        ({"c": -1}, "c = -1 is not allowed"),
        ({"c": "many"}, "c = .many. is not allowed"),
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
        ({"gate": {"bm52": 1.0}}, "gate floor names unknown arm 'bm52': the arms are"),
        ({"gate": QualityGate(floor=1.0, fallback="bm52")}, "gate fallback names unknown arm 'bm52'"),
        ({"gate": float("inf")}, "gate floor = inf is not allowed"),
        ({"recipe": "unheard"}, "neither a file nor a name"),
        ({"on_error": "ignore"}, "on_error = 'ignore'"),
        ({"timeout": 0}, "timeout = 0"),
        ({"timeout": "2"}, "timeout = '2' is not allowed"),
        ({"timeout": {"retriever_1": -1}}, "timeout = -1"),
        ({"search_kwargs": {"x": {}}}, "unknown arm 'x'"),
        ({"with_scores": "perhaps"}, "with_scores = 'perhaps' is not allowed"),
        ({"top_k": 3}, "has no setting 'top_k' .did you mean 'k'.*: the settings are"),
    ],
)
def test_bad_settings_are_config_errors(bad, message):
    with pytest.raises(ConfigError, match=message):
        FusionRetriever(**{"retrievers": [plain("a"), plain("b")], **bad})


def test_unknown_keywords_and_arms_at_call_time_are_config_errors():
    retriever = FusionRetriever(retrievers=[plain("a")])
    for said, message in [
        ({"top_k": 3}, "invoke does not know 'top_k' .did you mean 'k'.*: it takes k, filter"),
        ({"search_kwargs": {"x": {}}}, "unknown arm 'x'"),
        ({"as_of": "2024-01-01"}, "arm 'retriever_1' does not understand 'as_of'"),
        ({"namespace": "ana"}, "does not understand 'namespace'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            retriever.invoke("?", **said)
        with pytest.raises(ConfigError, match=message):
            asyncio.run(retriever.ainvoke("?", **said))
    store = InMemoryVectorStore(Axes())
    with pytest.raises(ConfigError, match="arm 'vector' does not understand 'namespace'"):
        FusionRetriever(retrievers=[store.as_retriever()], on_error="skip").invoke("1,0", namespace="ana")


def test_an_unreadable_date_is_neutral():
    arm = Plain(docs=[doc("a", updated_at="soon"), doc("b", updated_at=["?"]), doc("c")])
    retriever = FusionRetriever(retrievers=[arm], half_life=30)
    assert texts(ask(retriever)) == ["a", "b", "c"]
    assert "is not a date" in str(retriever.explain("?"))


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
