"""FusionRetriever as it is called: arms at the same time, failures, bad settings, events and spans."""

import asyncio
import math
import threading
import time

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.retrievers import BaseRetriever, RouterRetriever
from llama_index.core.schema import IndexNode, QueryBundle, TextNode
from llama_index.core.vector_stores import (
    SimpleVectorStore,
)

from hybridmem.errors import ArmError, ConfigError
from llamaindex_hybridmem import FusionRetriever
from llamaindex_hybridmem._arms import is_natively_async
from tests.support.llama_fakes import AsyncOnly, Fixed, Letters, example, ids, node, scored

NOW = 1_700_000_000.0


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
    assert found[0].explanation.arms == {"ok": "1 hit, lowest score 1", "bad": "skipped: RuntimeError: on fire"}
    assert "RuntimeError: on fire" in asyncio.run(ours.aexplain("q")).why_not("Z")
    nothing = FusionRetriever({"none": Fixed(None)}, on_error="skip").explain("q")
    assert nothing.arms["none"].startswith("skipped: TypeError")


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


@pytest.mark.parametrize("value", [3, [3], [TextNode(text="a")], "text", {"a": 1}, None])
def test_an_arm_that_returns_no_nodes_is_named(value):
    for ask in (lambda r: r.retrieve("q"), lambda r: asyncio.run(r.aretrieve("q"))):
        with pytest.raises(ArmError, match=r"arm 'retriever_1' failed: (TypeError|AttributeError)"):
            ask(FusionRetriever([Odd(value)]))


@pytest.mark.parametrize(("value", "kind"), [(None, "None"), ((1,), "a list with a int"), ("text", "a str")])
def test_an_object_that_returns_no_nodes_is_named(value, kind):
    class Duck:
        def retrieve(self, query):
            return value

    with pytest.raises(ArmError, match=f"arm 'duck' returned {kind}: a retriever returns a list of NodeWithScore"):
        FusionRetriever({"duck": Duck()}).retrieve("q")


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
        ({"gate": {"bm52": 1.0}}, "gate floor names unknown arm 'bm52': the arms are 'retriever_1', 'retriever_2'"),
        ({"mode": "best"}, "mode 'best' is not known"),
        ({"on_error": "ignore"}, "on_error = 'ignore'"),
        ({"timeout": 0}, "timeout = 0"),
        ({"timeout": "2"}, "timeout = '2' is not allowed"),
        ({"timeout": {"retriever_1": -1}}, "timeout = -1"),
        ({"timeout": {"nobody": 1}}, "timeout names unknown arm 'nobody': the arms are 'retriever_1', 'retriever_2'"),
        ({"filters": {"year": {"$near": 3}}}, "unknown operator '\\$near'"),
        ({"filters": 3}, "a filter is a mapping"),
        ({"recipe": "no such"}, "neither a file nor a name"),
        (
            {"weights": [1, 2]},
            "no setting 'weights' .did you mean 'retriever_weights'",
        ),
    ],
)
def test_bad_settings(bad, message):
    given_ = {"retrievers": [Fixed([]), Fixed([])], **bad}
    with pytest.raises(ConfigError, match=message):
        FusionRetriever(**given_)
    with pytest.raises(ConfigError, match="retrieve does not know 'deep'"):
        example().explain("q", deep=True)


def test_unreadable_dates_are_neutral():
    arm = Fixed(scored([node("a", metadata={"updated_at": "soon"}), node("b", metadata={"updated_at": NOW})]))
    found = FusionRetriever([arm], half_life=30, clock=lambda: NOW).retrieve("q")
    assert ids(found) == ["b", "a"]
    assert "'soon' is not a date" in str(found[1].receipt)


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
