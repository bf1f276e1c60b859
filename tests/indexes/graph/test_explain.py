from hybridmem.core.protocols import Change
from hybridmem.core.types import Activation, Edge, Hits, Memory
from hybridmem.indexes.graph.explain import arm_paths, explain_arm, path_line
from hybridmem.indexes.graph.index import GraphIndex


def pair():
    index = GraphIndex()
    index.apply([Change(n, key, Memory("text", id=key)) for n, key in enumerate("abc", 1)])
    index.apply([Change(9, "", edge=Edge("a", "b"))])
    return index.snapshot()


def test_a_seed_of_its_own_strength_is_its_own_path():
    paths = arm_paths(pair(), {"a": 4.0, "b": 1.0, "c": 0.0}, ["a", "b", "c"])
    assert paths == {"a": (1.0, 0, ("a",)), "b": (0.5, 1, ("a", "related", "b"))}


def test_a_path_is_one_line_of_text():
    path = Activation(0.25, 1, ("m12", "entity Lisbon", "m40"))
    assert path_line(path, seed="bm25 #1") == "seed m12 (bm25 #1) → entity Lisbon → m40 (0.25)"
    assert path_line(Activation(1.0, 0, ("m12",))) == "seed m12 (1)"


def test_receipts_of_the_arm():
    explained = explain_arm(pair(), "q", Hits(["a"], [3.0]), Hits(["a", "b", "lost"], [1.0, 0.5, 0.1]))
    assert [receipt.arms[0].note for receipt in explained.receipts] == [
        "seed a (bm25 #1) (1)",
        "seed a (bm25 #1) → related → b (0.5)",
    ]
    assert explained.arms == {"graph": "3 hits from 1 seeds of bm25"}
    assert explained.why_not("b").startswith("b is a result")
