"""Whatever comes in at a door is taken, or refused by an error of ours that names it: never a TypeError from inside."""

import asyncio
import inspect
import math
from collections.abc import Iterator

import numpy as np
import pytest

import hybridmem
from hybridmem import Fusion, HybridMemory, Memory
from hybridmem.core import validation
from hybridmem.core.protocols import View
from hybridmem.embedding.embedder import as_embedder
from hybridmem.errors import ConfigError, HybridMemError
from hybridmem.evaluation.evaluate import Case, calibrate, evaluate, threshold
from hybridmem.evaluation.tuning.tune import tune
from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.engines.fts5 import FTS5Index
from hybridmem.indexes.engines.rank_bm25 import RankBM25Index
from hybridmem.indexes.graph.index import GraphIndex
from hybridmem.indexes.vector.index import VectorIndex
from hybridmem.stores.markdown.store import MarkdownStore
from hybridmem.stores.sqlite.store import SQLiteStore

ODD = [
    *("a", "", None, 5, -1, 1.5, True, math.nan, math.inf, -math.inf, 10**400, 1j, b"x", object(), "\ud800", "a\0b"),
    *([], ["a"], [None], [5], (), ("a", "b", "c", "d", "e"), {}, {"a": 1}, {1: "a"}, {"a"}),
    np.array([1.0, 2.0]),
    np.array([math.nan]),
]


def lengths(texts):
    return [[float(len(text)), 1.0] for text in texts]


def offer(call):
    """Every odd value, one after the other; what is given back is used up."""
    for value in ODD:
        try:
            given = call(value)
            if inspect.iscoroutine(given):
                given = asyncio.run(given)
            if isinstance(given, Iterator):
                list(given)
        except HybridMemError as error:
            assert str(error)  # noqa: PT017 - taken or refused, both are fine
        except Exception as error:
            pytest.fail(f"{validation.display(value)} gave {error!r}")


def settings_of(kind):
    return [(kind, name) for name in inspect.signature(kind).parameters if not name.startswith("_")]


STAGES = [
    *(hybridmem.HalfLife, hybridmem.Competition, hybridmem.Conflicts, hybridmem.Diversity, hybridmem.Evidence),
    *(hybridmem.Pack, hybridmem.QualityGate, hybridmem.SourceDedup, hybridmem.Spread, hybridmem.IdenticalTexts, Fusion),
    *(hybridmem.GraphSettings, hybridmem.Analyzer),
]


@pytest.mark.parametrize(("kind", "name"), [pair for kind in STAGES for pair in settings_of(kind)])
def test_every_setting_of_a_recipe(kind, name):
    offer(lambda value: kind(**{name: value}))


@pytest.mark.parametrize("kind", [BM25Index, FTS5Index, RankBM25Index, GraphIndex])
def test_every_setting_of_an_index(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a text is a path to FTS5Index
    for _, name in settings_of(kind):
        offer(lambda value, name=name: kind(**{name: value}))


@pytest.fixture
def memory():
    with HybridMemory(embedder=lengths) as memory:
        memory.add_many([{"text": f"cat number {i}", "id": f"m{i}", "thread": "t"} for i in range(4)])
        memory.link("m0", "m1")
        yield memory


@pytest.mark.parametrize(
    "name", ["namespace", "recipe", "k", "k1", "b", "graph", "clock", "embedder", "synchronous", "busy_timeout", "odd"]
)
def test_opening(tmp_path, name):
    offer(lambda value: HybridMemory(tmp_path / "memory.db", **{"embedder": None, name: value}).close())


def test_every_field_of_a_memory(memory):
    for name in inspect.signature(Memory).parameters:
        offer(lambda value, name=name: memory.add(Memory(**{"text": "x", name: value})))
        offer(lambda value, name=name: memory.add({"text": "x", name: value}))
        if name not in ("id", "namespace"):
            offer(lambda value, name=name: memory.update("m0", **{name: value}))


@pytest.mark.parametrize("method", ["search", "asearch", "explain", "search_arm"])
def test_every_way_to_ask(memory, method):
    call = getattr(memory, method)
    first = ("graph",) if method == "search_arm" else ()
    offer(lambda value: call(*first, value))
    for name in [name for name in inspect.signature(call).parameters if name not in ("arm", "query")]:
        offer(lambda value, name=name: call(*first, "cat", **{name: value}))
    if first:
        offer(lambda value: call(value, "cat"))
        offer(lambda value: call("graph", "cat", hops=value))
        offer(lambda value: call("graph", "cat", decay=value))


def test_everything_else_of_a_memory(memory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("add", "add_many", "namespace", "forget", "erase", "get", "history", "reinforce", "decay", "backup"):
        offer(getattr(memory, name))
    memory.add_many([{"text": "cat", "id": f"m{i}"} for i in range(2)])
    offer(lambda value: memory.add_many(["x"], progress=value))
    offer(lambda value: memory.reinforce("m0", by=value))
    offer(lambda value: memory.link(value, "m1"))
    offer(lambda value: memory.link("m0", "m1", value))
    offer(lambda value: memory.link("m0", "m1", weight=value))
    offer(lambda value: memory.unlink("m0", value))
    offer(lambda value: list(memory.list(superseded=value)))
    offer(lambda value: list(memory.list(filter=value, as_of=value)))
    offer(lambda value: memory.explain("cat").why_not(value))
    offer(memory.health)
    offer(lambda value: memory.reindex(progress=value))


@pytest.mark.parametrize("kind", [SQLiteStore, MarkdownStore])
def test_every_call_of_a_store(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    offer(lambda value: kind(value).close())
    with kind(tmp_path / "here") as store:
        store.put([Memory("cat", id="a"), Memory("dog", id="b")])
        for name in ("put", "delete", "erase", "touch", "link", "unlink", "reinforce", "set_vectors", "history"):
            offer(getattr(store, name))
        for name in ("delete", "erase", "touch", "link", "unlink", "put"):
            offer(lambda value, name=name: getattr(store, name)([value]))
            offer(lambda value, name=name: getattr(store, name)([], namespace=value))
        for name in ("vectors", "base", "progress"):
            offer(lambda value, name=name: store.put([Memory("x", id="z")], **{name: value}))
        for name in ("list", "ids", "count", "edges", "entries"):
            offer(lambda value, name=name: getattr(store, name)(view=value))
            offer(lambda value, name=name: getattr(store, name)(view=View(value)))
            offer(lambda value, name=name: getattr(store, name)(view=View("", value)))
        for name in ("get", "vectors"):
            offer(lambda value, name=name: getattr(store, name)(value, view=View()))
            offer(lambda value, name=name: getattr(store, name)(["a"], view=value))
        for name in ("filter", "limit", "after"):
            offer(lambda value, name=name: list(store.list(view=View(), **{name: value})))
        for name in ("get_meta", "load_snapshot", "restore"):
            offer(getattr(store, name))
        offer(lambda value: store.set_meta("key", value))
        offer(lambda value: store.restore([value]))
        offer(lambda value: store.changes(value, view=View()))
        offer(lambda value: store.export(namespace=value))


def test_every_call_of_an_embedder():
    for name in ("name", "dim", "prefix", "batch_size", "retries", "backoff", "cache_size"):
        offer(lambda value, name=name: as_embedder(lengths, **{name: value}).documents(["a", "b"]))
    embedder = as_embedder(lengths)
    for call in (embedder.query, embedder.documents, embedder.aquery, embedder.adocuments):
        offer(call)
    offer(lambda value: embedder.documents([value]))
    offer(lambda value: as_embedder(lambda _: value).documents(["a"]))
    offer(lambda value: as_embedder(lambda _: [value]).documents(["a"]))


@pytest.mark.parametrize("kind", [BM25Index, FTS5Index, RankBM25Index])
def test_every_call_of_a_lexical_index(kind):
    index = kind()
    index.add("a", "cat dog")
    offer(lambda value: index.add(value, "x"))
    offer(lambda value: index.add("b", value))
    offer(lambda value: index.add("b", "x", updated_at=value))
    offer(index.add_many)
    offer(index.remove)
    for value in (5, None, [5], 1.5, object()):
        with pytest.raises(ConfigError, match="query"):
            index.search(value, k=1)
    offer(lambda value: index.search("cat", k=value))
    offer(lambda value: index.search("cat", k=1, allowed=value))


def test_every_call_of_a_vector_index():
    index = VectorIndex()
    index.add("a", [1.0, 0.0])
    offer(lambda value: index.add(value, [1.0, 0.0]))
    offer(lambda value: index.add("b", value))
    offer(lambda value: index.search(value, k=1))
    offer(lambda value: index.search([1.0, 0.0], k=value))
    offer(lambda value: index.search([1.0, 0.0], k=1, allowed=value))


def test_measuring(memory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = [Case("cat", {"m0": 1.0})] * 30
    offer(threshold)
    offer(lambda value: threshold([0.5] * 30, rate=value))
    offer(lambda value: calibrate(value, cases))
    offer(lambda value: calibrate(memory, value))
    offer(lambda value: calibrate(memory, cases, off_topic=value))
    for name in ("ks", "baseline", "stages", "progress"):
        offer(lambda value, name=name: evaluate(lambda _: ["m0"], cases, **{name: value}))
    offer(lambda value: evaluate(lambda _: ["m0"], value))
    offer(lambda value: tune(memory, value))
    for name in ("folds", "repeats", "level", "metric"):
        offer(lambda value, name=name: tune(memory, cases[:2], **{name: value}))
    offer(lambda value: hybridmem.save_recipe(value, "recipe.json"))
    offer(lambda value: hybridmem.save_recipe(Fusion(), value))
    offer(hybridmem.load_recipe)
    offer(hybridmem.weighted_rrf)
    offer(lambda value: hybridmem.weighted_rrf([["a"]], weights=value))
    offer(lambda value: hybridmem.weighted_rrf([["a"]], c=value))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda memory: memory.search("cat", tokens="a"), "tokens = 'a' is not allowed: a budget from 1 up, or None"),
        (lambda memory: memory.search("cat", min_confidence="a"), "min_confidence = 'a' .* a number from 0 to 1"),
        (lambda memory: memory.search("cat", touch="no"), "touch = 'no' is not allowed: True or False"),
        (lambda memory: memory.search_arm("graph", "cat", hops="a"), "hops = 'a' is not allowed: from 0 up"),
        (lambda memory: memory.embedder.query(None), "query = None is not allowed: a text"),
        (lambda memory: memory.embedder.documents([5]), "one of texts = 5 is not allowed: a text"),
        (lambda _: HybridMemory(k1="a"), "k1 = 'a' is not allowed: a finite number of at least 0"),
        (lambda _: HybridMemory(clock=5), "clock = 5 is not allowed: a function that gives epoch seconds"),
        (lambda _: HybridMemory(journal=5), "no option 'journal': it takes busy_timeout, synchronous"),
        (lambda _: Fusion(boost=hybridmem.HalfLife), "boost = .*HalfLife.* is not allowed: a HalfLife"),
        (lambda _: Fusion(smooth="false"), "smooth = 'false' is not allowed: True or False"),
        (lambda _: Fusion(gate=0.5), r"gate = 0.5 is not allowed: a QualityGate\(…\), or None"),
    ],
)
def test_the_value_and_what_is_allowed_are_reported(memory, call, told):
    with pytest.raises(ConfigError, match=told):
        call(memory)


def test_numbers_of_numpy_are_numbers():
    assert hybridmem.HalfLife(strength=np.float32(0.5)).strength == 0.5
    assert hybridmem.Spread(hops=np.int64(3)).hops == 3
    assert Fusion(weights=np.array([1.0, 3.0])).weights_for(["a", "b"]) == [1 / 4, 3 / 4]
    validation.flag("flag", np.bool_(True))


def test_a_value_is_shown_in_short():
    class Broken:
        def __repr__(self):
            raise ValueError

    assert validation.display(Broken()) == "a value of type Broken"
    assert validation.display("x" * 500) == "'" + "x" * 199 + "…"
