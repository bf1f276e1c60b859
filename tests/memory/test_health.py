import pytest

from hybridmem.errors import ConfigError
from hybridmem.fusion.merge import weighted_rrf
from hybridmem.fusion.recipe import Fusion
from hybridmem.memory.health import Observation, first_place, measure, reach_warnings

SEEN = [
    Observation({"bm25": ["a", "b", "c"], "vector": ["b", "d"]}, ["b", "a", "d"]),
    Observation({"bm25": [], "vector": ["x", "y"]}, ["x", "y"]),
]


def test_figures():
    health = measure(SEEN, k=2)
    bm25, vector = health.arms
    assert (bm25.name, bm25.empty, bm25.hits) == ("bm25", 1 / 2, 3 / 2)
    # final top 2: b a | x y; bm25 found b and a, vector found b, x and y
    assert (bm25.share, vector.share) == (2 / 4, 3 / 4)
    assert (bm25.solo, vector.solo) == (1 / 4, 2 / 4)
    # first 2 of each: {a, b} and {b, d}: 1 of 3; then {} and {x, y}: 0 of 2
    assert health.overlap == {("bm25", "vector"): (1 / 3 + 0) / 2}
    assert health.warnings == ()


def test_habits_are_reported():
    seen = [Observation({"bm25": ["a"], "vector": [], "graph": ["z"]}, ["a"])] * 3
    assert measure(seen, k=5).warnings == (
        "arm 'vector' was empty for all 3 queries",
        "arm 'graph' returned 1.0 hits per query, and none of them was among the results",
    )
    assert measure(seen, k=5).overlap["bm25", "graph"] == 0.0
    silent = measure([Observation({"a": [], "b": []}, [])], k=5)
    assert silent.overlap == {("a", "b"): 0.0}
    assert measure([], k=5).arms == ()


def test_output():
    health = measure(SEEN, k=2, recipe=Fusion(weights={"bm25": 0.5, "vector": 0.2}))
    text = str(health)
    assert "in top 2" in text
    assert "overlap of bm25 and vector: 17%" in text
    assert "warning: arm 'vector' (weight 0.29 of 1) cannot put a hit of its own into the top 2 at c=60" in text
    data = health.to_dict()
    assert data["arms"]["bm25"]["solo"] == 0.25
    assert list(data["overlap"]) == ["bm25/vector"]
    with pytest.raises(ConfigError, match="k = 0"):
        measure(SEEN, k=0)


def test_weight_02_against_05_is_heard_only_past_rank_92():
    # 0.5·61/0.2 - 60 = 92.5: the rival's ranks 1…92 are ahead
    assert first_place({"bm25": 0.5, "vector": 0.2}) == {"bm25": 1, "vector": 93}
    rival = [f"r{number:03}" for number in range(200)]
    ranked = [key for key, _ in weighted_rrf([rival, ["mine"]], weights=[0.5, 0.2])]
    assert ranked.index("mine") + 1 == 93


@pytest.mark.parametrize(("weight", "rival", "c"), [(0.3, 0.6, 60), (0.4, 0.6, 10), (0.1, 0.3, 0), (0.25, 0.5, 30)])
def test_first_place_is_what_fusing_gives(weight, rival, c):
    lists = [[f"r{number:04}" for number in range(500)], ["a"]]
    ranked = [key for key, _ in weighted_rrf(lists, weights=[rival, weight], c=c)]
    assert ranked.index("a") + 1 == first_place({"r": rival, "a": weight}, c=c)["a"]


def test_reach():
    assert reach_warnings(Fusion(weights={"a": 0.5, "b": 0.5}), ["a", "b"], k=8) == []
    assert reach_warnings(Fusion(weights={"a": 0.9, "b": 0.1}, mode="relative"), ["a", "b"], k=8) == []
    assert reach_warnings(Fusion(weights={"a": 1.0, "b": 0.0}), ["a", "b"], k=8) == []
    assert len(reach_warnings(Fusion(weights={"a": 0.9, "b": 0.1}), ["a", "b"], k=8)) == 1
    assert reach_warnings(Fusion(weights={"a": 0.9, "b": 0.1}), ["a", "b"], k=1000) == []
    assert first_place({"only": 1.0}) == {"only": 1}


def test_a_table_for_notebooks():
    page = measure(SEEN, k=2, recipe=Fusion(weights={"bm25": 0.5, "vector": 0.2}))._repr_html_()
    assert "<th>in top 2</th>" in page
    assert page.count("<tr>") == 1 + len({arm for one in SEEN for arm in one.arms})
    assert "overlap of bm25 and vector: 17%" in page
    hostile = measure([Observation({"<b>": ["x"]}, ["x"])], k=1)._repr_html_()
    assert "<b>" not in hostile
