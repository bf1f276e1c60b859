"""LangGraph's store over a memory: its contract, with InMemoryStore as the oracle, and hybrid search."""

import asyncio
import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from hybridmem import HybridMemory
from hybridmem.errors import ConfigError
from langchain_hybridmem import HybridStore
from langchain_hybridmem._store_items import indexed_text, join_path, key_of, memory_id, split_path

ANA, BOB = ("users", "ana"), ("users", "bob")


@pytest.fixture(scope="module")
def pg_url():
    from tests.support import postgres_server

    with postgres_server.server(**postgres_server.FAST) as server:
        yield server.database()


@pytest.fixture
def later():
    """Minutes by which the memory's clock is ahead."""
    return [0.0]


@pytest.fixture(params=["sqlite", "postgres"])
def memory(request, tmp_path, later):
    place, options = tmp_path / "memory.db", {}
    if request.param == "postgres":
        place, options = request.getfixturevalue("pg_url"), {"schema": f"s{time.monotonic_ns()}"}
    with HybridMemory(place, embedder="local", clock=lambda: time.time() + 60 * later[0], **options) as opened:
        yield opened


@pytest.fixture
def store(memory):
    return HybridStore(memory)


def keys(items):
    return [item.key for item in items]


# --- the contract


def test_put_get_update_delete(store):
    store.put(ANA, "cat", {"name": "Pixel", "age": 3, "toys": [{"kind": "ball"}], "none": None})
    item = store.get(ANA, "cat")
    assert item.value == {"name": "Pixel", "age": 3, "toys": [{"kind": "ball"}], "none": None}
    assert (item.key, item.namespace) == ("cat", ANA)
    assert store.get(BOB, "cat") is None
    store.put(ANA, "cat", {"name": "Tom"})
    newer = store.get(ANA, "cat")
    assert newer.value == {"name": "Tom"}
    assert newer.created_at == item.created_at
    assert newer.updated_at > item.updated_at
    store.delete(ANA, "cat")
    assert store.get(ANA, "cat") is None
    assert store.search(()) == []


def test_a_batch_reads_before_it_writes_and_the_last_put_wins(store):
    store.put(ANA, "k", {"n": 0})
    got, none, found, names, _ = store.batch(
        [
            GetOp(ANA, "k"),
            PutOp(ANA, "k", {"n": 1}),
            SearchOp(("users",)),
            ListNamespacesOp(),
            PutOp(ANA, "k", {"n": 2}),
        ]
    )
    assert (got.value, none, [item.value for item in found], names) == ({"n": 0}, None, [{"n": 0}], [ANA])
    assert store.get(ANA, "k").value == {"n": 2}


def test_the_async_twins_give_the_same_and_leave_the_loop_free(store):
    async def run():
        await store.aput(ANA, "cat", {"text": "Ana's cat is called Pixel"})
        await asyncio.gather(*(store.aput(BOB, f"k{n}", {"text": f"Bob's note {n}"}) for n in range(5)))
        one = await store.aget(ANA, "cat")
        found = await store.asearch(("users",), query="cat name")
        names = await store.alist_namespaces(prefix=("users",))
        await store.adelete(ANA, "cat")
        return one, found, names, await store.aget(ANA, "cat")

    one, found, names, gone = asyncio.run(run())
    assert one.value == {"text": "Ana's cat is called Pixel"}
    assert found[0].key == "cat"
    assert names == [ANA, BOB]
    assert gone is None


def test_search_without_a_query_keeps_the_order_of_creation(store):
    for n in range(5):
        store.put(ANA, f"k{9 - n}", {"n": n})
    store.put(BOB, "b", {"n": 7})
    store.put(ANA, "k9", {"n": 10})  # an update keeps its place
    assert keys(store.search(("users",))) == ["k9", "k8", "k7", "k6", "k5", "b"]
    assert keys(store.search(("users",), limit=2, offset=3)) == ["k6", "k5"]
    assert [item.score for item in store.search(ANA, limit=1)] == [None]
    assert store.search(("nobody",)) == []


def test_filters(store):
    store.put(ANA, "a", {"kind": "note", "stars": 4, "tags": ["x", "y"], "deep": {"in": 1}, "day": "2024-05-01"})
    store.put(ANA, "b", {"kind": "fact", "stars": 5, "metadata": {"kind": "odd"}, "a.b": "dots"})
    store.put(BOB, "c", {"stars": "3"})

    def found(filter, query=None):
        return keys(store.search(("users",), filter=filter, query=query))

    assert found({"kind": "note"}) == ["a"]
    assert found({"stars": {"$gt": 4}}) == ["b"]
    assert found({"stars": {"$gte": 3, "$lt": 5}}) == ["a", "c"]
    assert found({"kind": {"$ne": "note"}}) == ["b", "c"]
    assert found({"tags": ["x", "y"]}) == ["a"]
    assert found({"deep": {"in": 1}}) == ["a"]
    assert found({"a.b": "dots"}) == ["b"]
    assert found({"metadata": {"kind": "odd"}}) == ["b"]
    assert found({"tags": {"$contains": "x"}}) == ["a"]
    assert found({"kind": {"$in": ["note", "fact"]}}) == ["a", "b"]
    assert found({"$or": [{"kind": "note"}, {"stars": "3"}]}) == ["a", "c"]
    assert found({"$not": {"kind": {"$exists": True}}}) == ["c"]
    assert found({"day": {"$lt": "2024-06-01"}}) == ["a"]
    assert found({"kind": "fact"}, query="note") == ["b"]
    assert found({"stars": {"$lt": 0}}, query="note") == []
    with pytest.raises(ConfigError, match=r"\$near"):
        found({"kind": {"$near": 1}})


def test_equal_ids_in_two_namespaces_are_filtered_apart(store):
    store.put(ANA, "same", {"text": "the blue door", "ok": 1})
    store.put(BOB, "same", {"text": "the blue door too", "ok": 2})
    found = store.search(("users",), query="blue door", filter={"ok": 2})
    assert [item.namespace for item in found] == [BOB]


def test_list_namespaces(store):
    for path in [("a", "b", "c"), ("a", "b", "d"), ("a", "x", "c"), ("z",)]:
        store.put(path, "k", {"n": 1})
    assert store.list_namespaces() == [("a", "b", "c"), ("a", "b", "d"), ("a", "x", "c"), ("z",)]
    assert store.list_namespaces(prefix=("a", "b")) == [("a", "b", "c"), ("a", "b", "d")]
    assert store.list_namespaces(prefix=("a", "*", "c")) == [("a", "b", "c"), ("a", "x", "c")]
    assert store.list_namespaces(suffix=("c",)) == [("a", "b", "c"), ("a", "x", "c")]
    assert store.list_namespaces(max_depth=2) == [("a", "b"), ("a", "x"), ("z",)]
    assert store.list_namespaces(limit=1, offset=3) == [("z",)]
    store.delete(("z",), "k")
    assert store.list_namespaces(prefix=("z",)) == []


@pytest.mark.parametrize(
    "labels",
    [("a/b",), ("a", "b"), ("",), ("a", "", "b"), ("%:x", "%2F"), ("100%",), ("\x00", "\ud800"), ("日本", " ")],
)
def test_every_namespace_and_key_comes_back_as_it_was(store, labels):
    key = labels[0]
    store.batch([PutOp(labels, key, {"n": 1})])
    assert store.batch([GetOp(labels, key)])[0].value == {"n": 1}
    assert [(item.namespace, item.key) for item in store.search(())] == [(labels, key)]
    assert store.list_namespaces() == [labels]


@given(st.lists(st.text(alphabet="a/%:\x00é\ud800", max_size=4), max_size=4), st.sampled_from(["", "t", "t/u"]))
def test_namespaces_map_one_to_one(labels, base):
    assert split_path(join_path(labels, base), base) == tuple(labels)
    for label in labels:
        assert key_of(memory_id(label)) == label


def test_a_view_of_a_memory_is_the_root_of_its_store(memory):
    team = HybridStore(memory.namespace("team"))
    team.put(("ana",), "k", {"text": "hello"})
    team.batch([PutOp((), "root", {"text": "hello root"})])
    HybridStore(memory).put(("teams",), "other", {"text": "hello others"})
    assert team.list_namespaces() == [(), ("ana",)]
    assert {item.key for item in team.search((), query="hello")} == {"k", "root"}
    assert HybridStore(memory).list_namespaces() == [("team",), ("team", "ana"), ("teams",)]


def test_what_langgraph_refuses_is_refused(store):
    for path in [(), ("",), ("a.b",), ("langgraph",)]:
        with pytest.raises(InvalidNamespaceError):
            store.put(path, "k", {})
    with pytest.raises(ConfigError, match="reserved"):
        store.put(ANA, "k", {"_langgraph": 1})
    with pytest.raises(ConfigError, match="value = 'text' is not allowed: a dict"):
        store.put(ANA, "k", "text")
    with pytest.raises(ConfigError, match="fields"):
        HybridStore(store.memory, fields="text")
    with pytest.raises(ConfigError, match="unknown operation"):
        store.batch(["get"])
    for ttl in [float("inf"), float("nan"), 1e30, "10"]:
        with pytest.raises(ConfigError, match="ttl"):
            store.put(ANA, "k", {}, ttl=ttl)


# --- searching


def test_words_and_meaning_in_one_ranked_list(store):
    for n in range(30):
        store.put(("users", f"u{n}"), "note", {"text": f"User {n} enjoys long walks by the sea"})
    store.put(ANA, "ticket", {"text": "The import failed with error E0427 last night"})
    found = store.search(("users",), query="what happened with E0427?", limit=3)
    assert (found[0].namespace, found[0].key) == (ANA, "ticket")
    assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)
    assert 0 < found[0].score <= 1
    assert keys(store.search(ANA, query="E0427")) == ["ticket"]
    assert len(store.search(("users",), query="walks", limit=5, offset=28)) <= 3


@pytest.mark.parametrize("recipe", ["default", "rrf"])
def test_pages_of_a_search_neither_repeat_nor_leave_out_an_item(recipe):
    words = [f"w{n}" for n in range(12)]
    with HybridMemory(embedder="local", recipe=recipe) as memory:
        store = HybridStore(memory)
        store.batch(
            [
                PutOp(
                    ("u", f"n{n % 3}"), f"k{n}", {"text": " ".join(words[n * step % 12] for step in (1, 5, 7, n % 5))}
                )
                for n in range(260)
            ]
        )
        for prefix in [("u",), ("u", "n1")]:
            whole = store.search(prefix, query="w5 w7 w2", limit=250)
            pages = [
                item for at in range(0, 250, 7) for item in store.search(prefix, query="w5 w7 w2", limit=7, offset=at)
            ]
            assert [(item.namespace, item.key) for item in pages[: len(whole)]] == [
                (item.namespace, item.key) for item in whole
            ]
            assert len({(item.namespace, item.key) for item in pages}) == len(pages) > (75 if prefix[1:] else 200)
            assert [item.score for item in whole] == sorted((item.score for item in whole), reverse=True)


def test_equal_texts_under_two_keys_are_two_items(store):
    store.put(ANA, "a", {"text": "the same words"})
    store.put(ANA, "b", {"text": "the same words"})
    assert set(keys(store.search(ANA, query="same words"))) == {"a", "b"}


def test_index_false_and_paths(store, caplog):
    store.put(ANA, "hidden", {"text": "purple elephant"}, index=False)
    store.put(ANA, "part", {"title": "purple house", "body": "green elephant"}, index=["title"])
    store.put(ANA, "list", {"parts": [{"t": "yellow submarine"}, {"t": "red car"}]}, index=["parts[*].t"])
    assert keys(store.search(ANA, query="purple"))[0] == "part"
    assert "hidden" not in keys(store.search(("users",), query="purple elephant"))
    assert keys(store.search(ANA, query="submarine"))[0] == "list"
    assert keys(store.search(ANA)) == ["hidden", "part", "list"]
    assert store.get(ANA, "hidden").value == {"text": "purple elephant"}
    assert "without a vector" not in caplog.text
    store.put(ANA, "hidden", {"text": "purple elephant"})
    assert "hidden" in keys(store.search(ANA, query="purple elephant"))
    store.put(ANA, "hidden", {"text": "purple elephant"}, index=False)
    assert "hidden" not in keys(store.search(ANA, query="purple elephant"))


def test_fields_of_the_store(memory):
    store = HybridStore(memory, fields=["body"])
    store.put(ANA, "k", {"title": "purple", "body": "green"})
    assert keys(store.search(ANA, query="green")) == ["k"]
    assert memory.namespace("users/ana").get("k").text == "green"


def test_indexed_text():
    assert indexed_text({"a": {"b": "two words"}, "c": "x", "d": [True, None, ""]}, ["$"]) == "two words\nc x\nd True"
    assert indexed_text({"a": 1}, []) == ""


def test_memories_of_the_memory_are_items_of_the_store(memory, store):
    memory.namespace("users/ana").add("Ana was born in Porto", id="m1", metadata={"sure": True})
    assert store.get(ANA, "m1").value == {"text": "Ana was born in Porto", "sure": True}
    assert keys(store.search(ANA, query="Porto")) == ["m1"]


# --- expiry


def test_an_expired_item_is_gone_without_a_sweep(store, later):
    store.put(ANA, "brief", {"text": "the code is 4711"}, ttl=10)
    store.put(ANA, "long", {"text": "the other code is 4712"})
    assert set(keys(store.search(ANA, query="code", refresh_ttl=False))) == {"brief", "long"}
    later[0] += 9
    assert store.get(ANA, "brief", refresh_ttl=False) is not None
    later[0] += 2
    assert store.get(ANA, "brief") is None
    assert keys(store.search(ANA)) == ["long"]
    assert keys(store.search(ANA, query="the code is 4711")) == ["long"]
    store.put(BOB, "b", {"text": "no code"})
    assert "brief" not in keys(store.search(("users",), query="the code is 4711"))
    store.put(("gone",), "brief", {"n": 1}, ttl=10)
    assert ("gone",) in store.list_namespaces()
    later[0] += 11
    assert ("gone",) not in store.list_namespaces()
    store.put(ANA, "brief", {"text": "the code is 4711"})
    assert keys(store.search(ANA)) == ["long", "brief"]
    store.put(ANA, "swept", {"text": "soon gone"}, ttl=10)
    later[0] += 11
    assert store.sweep_ttl() >= 1
    assert store.memory.namespace("users/ana").history("swept")[-1].deleted


def test_reading_begins_the_ttl_anew_unless_told_otherwise(store, later):
    for key in ("read", "left", "found"):
        store.put(ANA, key, {"text": f"{key} it"}, ttl=10)
    for _ in range(3):
        later[0] += 6
        assert store.get(ANA, "read") is not None
        assert keys(store.search(ANA, query="found", limit=1)) == ["found"]
    assert store.get(ANA, "left") is None
    later[0] += 6
    assert store.get(ANA, "read", refresh_ttl=False) is not None
    later[0] += 6
    assert store.get(ANA, "read") is None


def test_the_ttl_of_the_store(memory, later):
    store = HybridStore(memory, ttl={"default_ttl": 10, "refresh_on_read": False})
    store.put(ANA, "a", {"n": 1})
    store.put(ANA, "b", {"n": 1}, ttl=None)
    later[0] += 7
    assert store.get(ANA, "a") is not None
    later[0] += 7
    assert store.get(ANA, "a") is None
    assert store.get(ANA, "b") is not None


# --- several at once


def test_threads_write_and_search_at_once(store):
    def work(n):
        for i in range(5):
            store.put(("users", f"u{n}"), f"k{i}", {"text": f"note {i} of user {n} about topic{n}"})
            assert store.get(("users", f"u{n}"), f"k{i}").value["text"].endswith(f"topic{n}")
            found = store.search(("users",), query=f"topic{n}", limit=20)
            assert f"k{i}" in [item.key for item in found if item.namespace == ("users", f"u{n}")]
        return len(store.search(("users", f"u{n}")))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [5] * 4
    assert len(store.search((), limit=100)) == 20


def test_two_stores_over_one_file_see_each_others_writes(tmp_path):
    with HybridMemory(tmp_path / "m.db", embedder=None) as one, HybridMemory(tmp_path / "m.db", embedder=None) as two:
        here, there = HybridStore(one), HybridStore(two)
        assert there.search((), query="tea") == []
        here.put(ANA, "a", {"text": "Ana drinks tea"})
        here.put(BOB, "b", {"text": "Bob drinks tea"})
        assert set(keys(there.search(("users",), query="tea"))) == {"a", "b"}
        there.delete(BOB, "b")
        assert keys(here.search(("users",), query="tea")) == ["a"]
        assert here.list_namespaces() == [ANA]


# --- in LangGraph


def test_in_a_compiled_graph_and_with_tools_that_reach_for_the_store(store):
    from langchain_core.tools import tool
    from langgraph.config import get_store
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.store.base import BaseStore

    @tool
    def manage_memory(content: str, key: str) -> str:
        """Save a memory, as LangMem's tool does."""
        get_store().put(("memories", "ana"), key, {"content": content})
        return "saved"

    def remember(state: MessagesState, *, store: BaseStore) -> dict:
        manage_memory.invoke({"content": state["messages"][-1].content, "key": "m1"})
        found = store.search(("memories",), query="favourite colour")
        return {"messages": [("ai", found[0].value["content"])]}

    graph = StateGraph(MessagesState).add_node("remember", remember)
    graph.add_edge(START, "remember").add_edge("remember", END)
    app = graph.compile(store=store)
    said = "My favourite colour is teal"
    assert app.invoke({"messages": [("user", said)]})["messages"][-1].content == said

    async def later():
        answer = await app.ainvoke({"messages": [("user", said)]})
        return answer["messages"][-1].content

    assert asyncio.run(later()) == said


def test_in_an_agent(store):
    from langchain.agents import create_agent
    from langchain.tools import ToolRuntime, tool
    from langchain_core.messages import AIMessage

    from tests.support.langchain_fakes import Scripted

    @tool
    def recall(query: str, runtime: ToolRuntime) -> str:
        """Search the long-term memory."""
        return runtime.store.search(("users",), query=query)[0].value["text"]

    store.put(ANA, "cat", {"text": "Ana's cat is called Pixel"})
    call = {"name": "recall", "args": {"query": "cat"}, "id": "1"}
    model = Scripted(answers=[AIMessage("", tool_calls=[call]), AIMessage("Pixel")])
    agent = create_agent(model, [recall], store=store)
    messages = agent.invoke({"messages": [("user", "What is the cat called?")]})["messages"]
    assert messages[-2].content == "Ana's cat is called Pixel"
    assert messages[-1].content == "Pixel"


# --- the oracle

KEYS = st.sampled_from(["a", "b", "%:", "a/b"])
PLAIN = [("u",), ("u", "v"), ("u", "w"), ("x",)]
PATHS = st.sampled_from([*PLAIN, ("u/v",), ("u", ""), ("%:x", "\ud800")])
WORDS = st.sampled_from(["p", "q", "é 日本", "3"])
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.sampled_from([0.5, -2.25, 1e300, 10**20]), WORDS)
INNER = st.one_of(
    LEAVES, st.lists(LEAVES, max_size=2), st.dictionaries(st.sampled_from(["n", "s"]), LEAVES, max_size=2)
)
VALUES = st.dictionaries(st.sampled_from(["n", "s", "a.b", "text"]), INNER, max_size=3)
OPERANDS = st.one_of(
    INNER,
    st.builds(lambda op, operand: {op: operand}, st.sampled_from(["$eq", "$ne"]), INNER),
    st.builds(lambda op, operand: {op: operand}, st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), st.integers(0, 3)),
)
FILTERS = st.one_of(st.none(), st.dictionaries(st.sampled_from(["n", "s", "a.b", "text", "no"]), OPERANDS, max_size=2))
PREFIXES = st.sampled_from([(), ("u",), ("u", "v"), ("x",), ("no",)])
INDEX = st.sampled_from([None, False, ["s"]])
PUT = st.tuples(PATHS, KEYS, st.one_of(st.none(), VALUES, VALUES), INDEX).map(lambda given: PutOp(*given))
CONDITIONS = st.builds(
    MatchCondition, st.sampled_from(["prefix", "suffix"]), st.lists(st.sampled_from(["u", "v", "w", "*"]), max_size=3)
)
DEPTHS = st.sampled_from([None, 1, 2])
READ = st.one_of(
    st.tuples(PATHS, KEYS).map(lambda given: GetOp(*given)),
    st.tuples(PREFIXES, FILTERS, st.integers(0, 4), st.integers(0, 3)).map(lambda given: SearchOp(*given)),
    st.tuples(PREFIXES, FILTERS, st.sampled_from(["p", "q", "n"])).map(
        lambda given: SearchOp(given[0], given[1], limit=50, query=given[2])
    ),
    st.builds(
        ListNamespacesOp, st.lists(CONDITIONS, max_size=2).map(tuple), DEPTHS, st.integers(0, 5), st.integers(0, 2)
    ),
)
BATCHES = st.lists(st.lists(st.one_of(PUT, PUT, READ), max_size=6), max_size=8)
RUNS = count()
REFUSED = object()


def plain(result):
    if isinstance(result, list):
        return [plain(item) for item in result]
    return None if result is None else (result.namespace, result.key, result.value)


class Oracle:
    """InMemoryStore with three differences: an emptied namespace is gone, it comes back last, and words are found."""

    def __init__(self):
        self.store, self.born, self.ticks, self.words = InMemoryStore(), {}, count(), {}

    def read(self, op):
        if isinstance(op, GetOp):
            return plain(self.store.batch([op])[0])
        try:
            everything = self.store.batch([op._replace(limit=10_000, offset=0)])[0]
        except (TypeError, ValueError):  # a range over a value that is no number: no item passes ours
            return REFUSED
        if isinstance(op, ListNamespacesOp):
            alive = {path for path, _ in self.born}
            everything = self.store.batch([op._replace(limit=10_000, offset=0, max_depth=None)])[0]
            paths = {path[: op.max_depth] for path in everything if path in alive}
            return sorted(paths)[op.offset : op.offset + op.limit]
        if op.query:  # the ranking is ours; what it ranks has the word
            return {
                (item.namespace, item.key) for item in everything if op.query in self.words[item.namespace, item.key]
            }
        first = {}
        for (path, _), tick in self.born.items():
            first[path] = min(tick, first.get(path, tick))
        ordered = sorted(everything, key=lambda item: (first[item.namespace], self.born[item.namespace, item.key]))
        return plain(ordered)[op.offset : op.offset + op.limit]

    def write(self, ops):
        puts = {(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}
        self.store.batch(list(puts.values()))
        for path in dict.fromkeys(path for path, _ in puts):  # a batch is written namespace by namespace
            for place, op in puts.items():
                if place[0] != path:
                    continue
                tick = next(self.ticks)
                if op.value is None:
                    self.born.pop(place, None)
                else:
                    self.born.setdefault(place, tick)
                    paths = ["$"] if op.index is None else op.index or []
                    self.words[place] = set(re.split(r"\W+", indexed_text(op.value, paths)))


def seen(op, result):
    """A result as the oracle gives it."""
    if isinstance(op, ListNamespacesOp):
        return result
    if isinstance(op, SearchOp) and op.query:
        return {(item.namespace, item.key) for item in result}
    return plain(result)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def roots(request):
    """Views of one memory, a new one for each example."""
    minute = [0.0]
    place, options = ":memory:", {}
    if request.param == "postgres":
        place, options = request.getfixturevalue("pg_url"), {"schema": "oracle"}
    with HybridMemory(place, embedder=None, clock=lambda: 1_700_000_000 + 60 * minute[0], **options) as memory:
        yield minute, lambda: memory.namespace(f"run{next(RUNS)}")


@settings(max_examples=60)
@given(BATCHES)
def test_the_same_as_the_in_memory_store(roots, batches):
    oracle, store = Oracle(), HybridStore(roots[1]())
    for ops in batches:
        expected = [None if isinstance(op, PutOp) else oracle.read(op) for op in ops]
        found = [seen(op, result) for op, result in zip(ops, store.batch(ops), strict=True)]
        assert [
            one if other is not REFUSED else REFUSED for one, other in zip(found, expected, strict=True)
        ] == expected
        oracle.write(ops)
    assert store.list_namespaces() == oracle.read(ListNamespacesOp(limit=100))


STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(PLAIN), KEYS, st.sampled_from([None, 1.0, 5.0])),
    st.tuples(st.just("wait"), st.integers(1, 4)),
    st.tuples(st.just("get"), st.sampled_from(PLAIN), KEYS, st.booleans()),
    st.tuples(st.just("search"), PREFIXES, st.booleans()),
    st.tuples(st.just("sweep")),
)


@settings(max_examples=40)
@given(st.lists(STEPS, max_size=25))
def test_any_sequence_of_ttls_and_reads_keeps_what_has_not_expired(roots, steps):
    (minute, root), living = roots, {}  # place -> (ttl, the minute in which it expires)
    store = HybridStore(root(), ttl={"refresh_on_read": True})
    for kind, *how in steps:
        now = minute[0]
        living = {place: one for place, one in living.items() if one[1] > now}
        if kind == "put":
            path, key, ttl = how
            store.put(path, key, {"text": "tea"}, ttl=ttl)
            living[path, key] = (ttl, math.inf if ttl is None else now + ttl)
        elif kind == "wait":
            minute[0] += how[0]
        elif kind == "sweep":
            store.sweep_ttl()
        else:
            refresh, read = how[-1], []
            if kind == "get":
                read = [store.get(how[0], how[1], refresh_ttl=refresh)]
                expected = {(how[0], how[1])} & living.keys()
            else:
                read = store.search(how[0], query="tea", limit=100, refresh_ttl=refresh)
                expected = {place for place in living if place[0][: len(how[0])] == how[0]}
            assert {(item.namespace, item.key) for item in read if item is not None} == expected
            for place in expected if refresh else ():
                ttl = living[place][0]
                living[place] = (ttl, math.inf if ttl is None else now + ttl)
    left = {path for (path, _), (_, end) in living.items() if end > minute[0]}
    assert store.list_namespaces() == sorted(left)
