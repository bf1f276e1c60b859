"""What FusionRetriever gives: receipts that stay out of the way, and a HybridMemory as nodes."""

import asyncio
import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import MetadataMode

from hybridmem.core.types import Memory
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Trace
from hybridmem.fusion.stages import HalfLife, QualityGate
from hybridmem.memory.memory import HybridMemory
from hybridmem.retrievers.arms import FusedArms, make_recipe
from llamaindex_hybridmem import FusedNode, FusionRetriever, GraphRetriever
from llamaindex_hybridmem._arms import arm_list
from llamaindex_hybridmem._conversion import NodeReader, notes_of
from llamaindex_hybridmem.fusion import nodes_of_ranking
from tests.support.llama_fakes import Fixed, example, ids, node, scored, told, years

NOW = 1_700_000_000.0
DAY = 86_400.0


# --- receipts stay out of the way


def test_what_an_arm_notes_of_its_results_is_kept():
    graph = GraphRetriever(
        [node("t0", text="Ana left", metadata={"thread": "c"}), node("t1", metadata={"thread": "c"})]
    )
    found = {n.node_id: n for n in FusionRetriever({"graph": graph, "plain": Fixed(scored("A"))}).retrieve("Ana")}
    assert "[seed t0 → " in str(found["t1"].receipt)
    assert "[" not in str(found["A"].receipt)
    notes = notes_of(graph.retrieve("Ana"))
    assert [line.split(" ")[:2] for line in notes()] == [["seed", "t0"], ["seed", "t0"]]
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


def fuse(recipe, query, lists, now, k):
    arms = [arm_list(name, results) for name, results in lists]
    return nodes_of_ranking(FusedArms(recipe, arms, NodeReader(), query=query, now=now, k=k))


def test_receipts_show_the_scores_as_they_were():
    """LlamaIndex's own fusion writes into the nodes it is given; so may anyone who keeps them."""
    lists = [scored("AB", [0.9, 0.4]), scored("BA", [0.8, 0.7])]
    found = fuse(make_recipe(gate=0.5), "q", list(zip("ab", lists, strict=True)), NOW, None).nodes
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
    recipe = make_recipe(weights=weights, gate=gate, dedup=True, half_life=HalfLife(strength=strength))
    answer = fuse(recipe, "q", named, NOW, k)
    arms = [arm_list(name, rows) for name, rows in named]
    staged = recipe.run(arms, reader=NodeReader(), query="q", now=NOW, k=k, trace=Trace())
    assert told(answer.nodes) == list(zip(staged.keys, recipe.shares(staged.scores), strict=True))
    assert [id(one.node) for one in answer.nodes] == [id(one) for one in staged.items]
    assert [receipt.key for receipt in answer.why.explanation().receipts] == staged.keys


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
    other = FusionRetriever.from_memory(memory, dedup=False, half_life=HalfLife(strength=0))
    assert other.recipe.dedup is None
    assert other.recipe.mode == memory.recipe.mode
    assert {"m3", "m4"} <= set(ids(other.retrieve("Lisbon office trams")))
    with pytest.raises(ConfigError, match="gate floor names unknown arm 'words': the arms are 'bm25', 'vector'"):
        FusionRetriever.from_memory(memory, gate={"words": 1.0})
    with pytest.raises(ConfigError, match=r"has no setting 'k' .did you mean 'similarity_top_k'"):
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


async def test_the_turns_around_a_result_are_its_metadata(memory):
    memory.add_many(
        [
            {"id": f"t{n}", "text": text, "thread": "chat", "created_at": f"2024-05-0{n + 1}"}
            for n, text in enumerate(["Hello there", "The rocket lands at noon", "Good to hear"])
        ]
    )
    retriever = FusionRetriever.from_memory(memory, similarity_top_k=1)
    (found,) = retriever.retrieve("When does the rocket land?", context=1)
    turns = found.node.metadata["context"]
    assert (found.node_id, [turn["text"] for turn in turns]) == ("t1", ["Hello there", "Good to hear"])
    assert "context" in found.node.excluded_embed_metadata_keys
    assert found.receipt.key == "t1"
    set_up = FusionRetriever.from_memory(memory, similarity_top_k=1, context=1)
    assert (await set_up.aretrieve("rocket"))[0].node.metadata["context"] == turns
    assert "context" not in set_up.retrieve("rocket", context=0)[0].node.metadata
    with pytest.raises(ConfigError, match="context = 1: arm 'retriever_1' does not understand 'context'"):
        FusionRetriever([Fixed(scored("A"))]).retrieve("?", context=1)
    assert FusionRetriever([Fixed(scored("A"))]).retrieve("?", context=0)
