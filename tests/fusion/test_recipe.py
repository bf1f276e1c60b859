import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.core.types import Candidates
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Trace
from hybridmem.fusion.merge import merge, normalise_weights, weighted_rrf
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import Competition, Diversity, HalfLife, Pack, QualityGate, Rerank, SourceDedup
from hybridmem.fusion.stages.base import Pool
from tests.support.items import READER, Row, arm

KEYS = st.lists(st.sampled_from("ABCDEFGHIJ"), max_size=10)
NOW = 1_700_000_000.0
DAY = 86_400.0


def test_the_worked_example():
    fused = weighted_rrf([list("ADBEC"), list("BAFCD")])
    assert fused == [
        ("A", 1 / 61 + 1 / 62),
        ("B", 1 / 63 + 1 / 61),
        ("D", 1 / 62 + 1 / 65),
        ("C", 1 / 65 + 1 / 64),
        ("F", 1 / 63),
        ("E", 1 / 64),
    ]


def test_weights_count_and_a_missing_arm_adds_nothing():
    assert dict(weighted_rrf([["a"], ["b", "a"]], weights=[2.0, 0.5], c=10)) == {
        "a": 2.0 / 11 + 0.5 / 12,
        "b": 0.5 / 11,
    }
    with pytest.raises(ConfigError, match="1 weights for 2 lists"):
        weighted_rrf([["a"], ["b"]], weights=[1.0])
    assert weighted_rrf([]) == []
    assert weighted_rrf([["a", "b"]]) == [("a", 1 / 61), ("b", 1 / 62)]


@given(st.lists(KEYS, max_size=5), st.randoms())
def test_the_order_of_the_lists_does_not_matter(lists, shuffle):
    mixed = list(range(len(lists)))
    shuffle.shuffle(mixed)
    weights = [1.0 + i / 7 for i in range(len(lists))]
    again = weighted_rrf([lists[i] for i in mixed], weights=[weights[i] for i in mixed])
    assert again == weighted_rrf(lists, weights=weights)


@given(KEYS)
def test_a_single_list_keeps_its_order(keys):
    assert [key for key, _ in weighted_rrf([keys])] == list(dict.fromkeys(keys))


@given(KEYS, KEYS)
def test_a_repeated_key_counts_once_at_its_best_rank(one, two):
    scores = dict(weighted_rrf([one, two]))
    for key, score in scores.items():
        parts = [1 / (61 + keys.index(key)) for keys in (one, two) if key in keys]
        assert score == pytest.approx(math.fsum(parts), abs=0)


def test_ties_go_to_the_best_single_rank_then_to_the_key():
    assert [key for key, _ in weighted_rrf([["b", "x"], ["a", "y"]])] == ["a", "b", "x", "y"]
    assert weighted_rrf([["b"], ["a"], ["c"]]) == [("a", 1 / 61), ("b", 1 / 61), ("c", 1 / 61)]
    # 1 / (0 + 1) from one first place against 1 / (0 + 2) + 1 / (0 + 2) from two second places
    tied = weighted_rrf([["p", "q"], ["r", "q"]], c=0)
    assert tied == [("p", 1.0), ("r", 1.0), ("q", 1.0)]


def test_a_merge_gives_positions_by_sum_then_best_rank_then_list():
    order, totals = merge([["b", "q"], ["a", "q", "b"]], [[0.5, 0.25], [0.5, 0.25, 0.125]])
    keys = ["b", "q", "a", "q", "b"]
    assert [(keys[at], totals[at]) for at in order] == [("b", 0.5 + 0.125), ("a", 0.5), ("q", 0.25 + 0.25)]


def test_weights_are_normalised_to_one():
    fused = Fusion(weights=(3, 1)).run([arm("a", "x"), arm("b", "x")], reader=READER, now=NOW)
    assert fused.scores == [0.75 / 61 + 0.25 / 61]
    assert normalise_weights(["a", "b"], None) == [0.5, 0.5]
    assert normalise_weights(["a", "b"], {"a": 2.0}) == [1.0, 0.0]
    assert normalise_weights([], None) == []


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((1.0,), "1 weights for 2 arms"),
        ((0.0, 0.0), "all zero"),
        ((-1.0, 2.0), "-1.0 is not allowed"),
        ((math.nan, 1.0), "nan is not allowed"),
        ({"a": 1.0, "z": 1.0}, r"unknown arm 'z'.*'a', 'b'"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ConfigError, match=message):
        Fusion(weights=weights).run([arm("a", "x"), arm("b", "y")], reader=READER, now=NOW)


@pytest.mark.parametrize(
    "settings",
    [{"mode": "sum"}, {"c": -1}, {"c": math.inf}, {"depth": 0}, {"weights": {"a": -1.0}}, {"weights": (0,)}],
)
def test_bad_settings_are_refused_at_once(settings):
    with pytest.raises(ConfigError, match=r"not|zero"):
        Fusion(**settings)


def test_k_must_be_at_least_one():
    with pytest.raises(ConfigError, match="k = 0"):
        Fusion().run([arm("a", "x")], reader=READER, k=0)


def test_no_arms_and_empty_arms_give_nothing():
    assert Fusion().run([], reader=READER).keys == []
    assert Fusion().run([arm("a", ""), arm("b", "")], reader=READER).keys == []
    assert Fusion().run([arm("a", ""), arm("b", "xy")], reader=READER, k=1).keys == ["x"]


def scores_of(mode, lists, **settings):
    ranking = Fusion(mode=mode, **settings).run(lists, reader=READER, now=NOW)
    return dict(zip(ranking.keys, ranking.scores, strict=True))


def test_relative_is_min_max_with_weights():
    lists = [arm("a", "xyz", [8.0, 5.0, 4.0]), arm("b", "yw", [0.9, 0.1])]
    assert scores_of("relative", lists, weights=(0.75, 0.25)) == {
        "x": 0.75 * 1.0,
        "y": 0.75 * (5 - 4) / (8 - 4) + 0.25 * 1.0,
        "z": 0.0,
        "w": 0.0,
    }


def test_being_found_can_be_worth_something():
    lists = [arm("a", "xyz", [8.0, 5.0, 4.0])]
    got = scores_of("relative", lists, smooth=True)
    assert got == {"x": 1.0, "y": pytest.approx((1 + 3 * 0.25) / 4), "z": pytest.approx(1 / 4)}


def test_distribution_places_scores_within_three_sigma():
    mean, sigma = 2.0, math.sqrt(2 / 3)
    lists = [arm("a", "xyz", [3.0, 2.0, 1.0])]
    assert scores_of("distribution", lists) == {
        "x": pytest.approx((3.0 - mean + 3 * sigma) / (6 * sigma)),
        "y": pytest.approx(0.5),
        "z": pytest.approx((1.0 - mean + 3 * sigma) / (6 * sigma)),
    }


def test_convex_divides_by_the_best_and_prefers_vectors():
    lists = [arm("bm25", "xy", [8.0, 4.0]), arm("vector", "yz", [0.5, -0.1])]
    expected = {"x": 0.3 * 1.0, "y": 0.3 * 4 / 8 + 0.7 * 1.0, "z": 0.0}
    assert scores_of("convex", lists) == expected
    assert scores_of("convex", lists, weights=(0.5, 0.5))["x"] == 0.5
    assert scores_of("convex", [arm("a", "x", [-1.0])]) == {"x": 0.0}


@pytest.mark.parametrize("mode", ["relative", "distribution"])
def test_equal_scores_are_all_worth_the_same(mode):
    assert scores_of(mode, [arm("a", "xy", [2.0, 2.0])]) == {"x": 1.0, "y": 1.0}


@pytest.mark.parametrize("mode", ["relative", "distribution", "convex"])
def test_an_arm_without_scores_counts_by_its_ranks(mode):
    ranked = scores_of(mode, [arm("a", "xyz")])
    scored = scores_of(mode, [arm("a", "xyz", [1.0, 2 / 3, 1 / 3])])
    assert ranked == {key: pytest.approx(score) for key, score in scored.items()}


@given(
    st.sampled_from(["rrf", "relative", "distribution", "convex"]),
    st.lists(st.tuples(st.sampled_from("ABCDEF"), st.floats(-5, 5)), min_size=1, max_size=6, unique_by=lambda p: p[0]),
    st.lists(st.tuples(st.sampled_from("ABCDEF"), st.floats(-5, 5)), min_size=1, max_size=6, unique_by=lambda p: p[0]),
)
def test_no_mode_ignores_the_weights_or_leaves_its_range(mode, one, two):
    lists = [
        arm(name, [k for k, _ in rows], [s for _, s in rows])
        for name, rows in (("a", sorted(one, key=lambda r: -r[1])), ("b", sorted(two, key=lambda r: -r[1])))
    ]
    alone = scores_of(mode, lists, weights=(1.0, 0.0))
    other = scores_of(mode, lists, weights=(0.0, 1.0))
    mixed = scores_of(mode, lists, weights=(0.5, 0.5))
    for key, score in mixed.items():
        assert score == pytest.approx(0.5 * alone[key] + 0.5 * other[key])
        assert -1e-12 <= score <= 1 + 1e-12


def test_complete_lets_an_arm_score_what_only_others_listed():
    lists = [
        arm("a", "xy", [4.0, 2.0], known={"x": 4.0, "y": 2.0, "z": 1.0}),
        arm("b", "z", [0.8], known={"z": 0.8, "x": 0.2, "y": 0.0}),
    ]
    got = scores_of("relative", lists, complete=True, weights=(0.5, 0.5))
    assert got == {"x": 0.5 * 1.0 + 0.5 * 0.0, "y": 0.5 * (2 - 1) / (4 - 1), "z": 0.5 * 0.0 + 0.5 * 1.0}


RAW = st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(0.01, 9)
KNOWN = st.none() | st.dictionaries(st.sampled_from("ABCDEFGH"), RAW)
SCORED = st.lists(st.tuples(st.sampled_from("ABCDEFGH"), RAW), max_size=6)
ONCE = st.lists(st.tuples(st.sampled_from("ABCDEFGH"), st.floats(0.01, 9)), max_size=6, unique_by=lambda hit: hit[0])


@given(
    st.lists(st.tuples(ONCE | SCORED, KNOWN, st.integers(0, 5)), min_size=1, max_size=3),
    st.sampled_from(["relative", "convex"]),
    st.booleans(),
)
def test_a_completed_merge_is_the_same_with_tracing_enabled(answers, mode, smooth):
    """In arrays where scores alone decide, else in lists: repetitions, ties, ranks alone, one to three arms."""
    lists = []
    for number, (hits, known, scored) in enumerate(answers):
        hits.sort(key=lambda hit: -hit[1])
        scores = [score for _, score in hits] if scored else None
        lists.append(arm(f"arm {number}", [key for key, _ in hits], scores, known=known))
    recipe = Fusion(mode=mode, complete=True, smooth=smooth)
    quiet, told = recipe.run(lists, reader=READER), recipe.run(lists, reader=READER, trace=Trace())
    assert quiet == told


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_left_to_the_lists(odd):
    lists = [arm("a", "xy", [odd, 2.0], known={"z": 1.0}), arm("b", "zx", [0.9, 0.3], known={"y": 0.5})]
    recipe = Fusion(mode="relative", complete=True)
    quiet, told = recipe.run(lists, reader=READER), recipe.run(lists, reader=READER, trace=Trace())
    assert quiet.keys == told.keys
    assert repr(quiet.scores) == repr(told.scores)


def test_complete_without_knowledge_is_the_plain_merge():
    lists = [arm("a", "xy", [4.0, 2.0]), arm("b", "z"), arm("c", "")]
    assert scores_of("relative", lists, complete=True) == scores_of("relative", lists)
    apart = [arm("a", "xyw", [4.0, 3.0, 2.0]), arm("b", "zxv", [0.9, 0.8, 0.1])]
    got = scores_of("relative", apart, complete=True, weights=(0.6, 0.4), smooth=True)
    lifted = {"x": (4 - 2) / (4 - 2), "y": (3 - 2) / (4 - 2)}, {"x": (0.8 - 0.1) / (0.9 - 0.1)}
    assert got["x"] == pytest.approx(0.6 * (1 + 3 * lifted[0]["x"]) / 4 + 0.4 * (1 + 3 * lifted[1]["x"]) / 4)
    assert got["y"] == pytest.approx(0.6 * (1 + 3 * lifted[0]["y"]) / 4)
    silent = [arm("a", "xy", [4.0, 2.0]), arm("b", "", [])]
    assert scores_of("relative", silent, complete=True) == {"x": 0.5 * 1.0, "y": 0.5 * 0.0}


def test_a_gated_candidate_that_another_arm_keeps_is_still_scored():
    gate = QualityGate(floor={"a": 3.0})
    lists = [arm("a", "xy", [4.0, 2.0], known={"x": 4.0, "y": 2.0}), arm("b", "yx", [0.9, 0.3], known={})]
    got = scores_of("relative", lists, complete=True, gate=gate)
    assert got == {"x": 0.5 * 1.0 + 0.5 * 0.0, "y": 0.5 * 0.0 + 0.5 * 1.0}


def test_an_arm_gated_empty_still_scores_when_completing():
    gate = QualityGate(floor={"a": 9.0})
    lists = [arm("a", "xy", [4.0, 2.0], known={"x": 4.0, "y": 2.0}), arm("b", "yx", [0.9, 0.3], known={})]
    got = scores_of("relative", lists, complete=True, gate=gate)
    assert got == {"x": 0.5 * 1.0 + 0.5 * 0.0, "y": 0.5 * 0.0 + 0.5 * 1.0}


def test_depth_is_enough_to_fill_k():
    assert Fusion().depth_for(None) == 100
    assert Fusion().depth_for(50) == 50
    assert Fusion().depth_for(4) == 10
    assert Fusion(dedup=SourceDedup()).depth_for(4) == 20
    assert Fusion(dedup=SourceDedup()).depth_for(50) == 200
    assert Fusion(depth=30).depth_for(10) == 30
    assert Fusion(depth=30).depth_for(40) == 40


def test_shown_scores_compare_with_the_first_in_every_arm():
    recipe = Fusion(boost=HalfLife(strength=1.0))
    assert recipe.shares([1 / 61, 1 / 122, 0.0]) == [1.0, 0.5, 1e-9]
    assert recipe.shares([1 / 122]) == [0.5]
    assert recipe.shares([2 / 61, 1 / 61]) == [1.0, 0.5]  # a boost raised the first above that
    assert recipe.shares([]) == []
    assert Fusion(mode="convex").shares([0.9, 0.3]) == [0.9, 0.3]
    assert Fusion(boost=Competition()).shares([0.5]) == [pytest.approx(0.5)]


def test_ties_go_to_the_best_rank_then_to_the_earlier_list():
    lists = [arm("vector", "bdh", [0.9, 0.3, 0.1]), arm("bm25", "aei", [9.0, 8.0, 1.0])]
    assert Fusion().run(lists, reader=READER).keys == ["b", "a", "d", "e", "h", "i"]
    assert Fusion().run(lists[::-1], reader=READER).keys == ["a", "b", "e", "d", "i", "h"]
    uneven = [arm("bm25", "ab"), arm("vector", ""), arm("graph", "dce")]
    assert Fusion().run(uneven, reader=READER).keys == ["a", "d", "b", "c", "e"]


def test_convex_counts_from_the_score_of_an_unrelated_item():
    lists = [arm("bm25", "ab", [4.0, 1.0]), arm("vector", "bc", [0.8, 0.3])._replace(baseline=0.2)]
    ranking = Fusion(mode="convex", weights=(0.5, 0.5)).run(lists, reader=READER)
    expected = {"a": 0.5 * 1.0, "b": 0.5 * 1 / 4 + 0.5 * 1.0, "c": 0.5 * (0.3 - 0.2) / (0.8 - 0.2)}
    assert dict(zip(ranking.keys, ranking.scores, strict=True)) == pytest.approx(expected)
    for baseline in (0.2, 0.1, np.nextafter(0.1, 0)):  # the last: equal but for rounding
        below = Fusion(mode="convex").run([arm("vector", "a", [0.1])._replace(baseline=baseline)], reader=READER)
        assert below.scores == [0.0]


def test_a_pool_adds_candidates_that_no_arm_listed():
    rows = {key: Row(key) for key in "abcd"}
    columns = Candidates(list("abcd"), {"x": [2.0, 1.0, 0.5, 0.0]}, {"x": 0.0})
    pool = Pool(list(rows.values()), columns)
    lists = [
        arm("x", [rows["a"], rows["b"]], [2.0, 1.0])._replace(known=dict(zip("abcd", columns.scores["x"], strict=True)))
    ]
    ranking = Fusion(mode="convex", complete=True).run(lists, reader=READER, pool=pool)
    assert (ranking.keys, ranking.scores) == (list("abc"), [1.0, 0.5, 0.25])  # no arm and no part adds to d
    trace = Trace()
    Fusion(mode="convex", complete=True).run(lists, reader=READER, pool=pool, trace=trace)
    assert trace._dropped == {"d": "its score is 0: no arm listed it, and no evidence adds to it"}
    trace, last = Trace(), [arm("x", [rows["a"], rows["d"]], [2.0, 0.0])._replace(known=lists[0].known)]
    assert Fusion(mode="convex", complete=True).run(last, reader=READER, pool=pool, trace=trace).keys == list("abc")
    assert trace._dropped == {"d": "its score is 0: the last hit of an arm counts 0, and no evidence adds to it"}
    assert Fusion(mode="convex", complete=True).run([], reader=READER, pool=Pool([], Candidates([], {}, {}))).keys == []
    gated = Fusion(mode="convex", complete=True, gate=QualityGate(floor=1.5)).run(lists, reader=READER, pool=pool)
    assert gated.keys == ["a", "c"]  # b was listed, and is below the floor
    assert Fusion(mode="convex").run(lists, reader=READER, pool=pool).keys == ["a", "b"]


def test_a_pool_is_merged_by_rank_too():
    rows = {key: Row(key) for key in "abcde"}
    pool = Pool(list(rows.values()), Candidates(list("abcde"), {"x": [2.0, 1.0, 0.5, 0.0, 0.0]}, {"x": 0.0}))
    lists = [arm("x", [rows["a"], rows["b"]], [2.0, 1.0]), arm("ranks", [rows["d"]])]
    ranking = Fusion(mode="rrf", complete=True, c=1).run(lists, reader=READER, pool=pool)
    assert ranking.keys == list("adbc")  # no arm scores e
    assert ranking.scores == pytest.approx([0.5 / 2, 0.5 / 2, 0.5 / 3, 0.5 / 4])


def test_stages_run_in_their_order_and_a_plain_function_is_a_stage():
    seen = []

    def note(ranking, context):
        seen.append((list(ranking.keys), context.query))
        return ranking

    recipe = Fusion(
        dedup=SourceDedup(key="source"),
        extra=(note,),
        rerank=Rerank(scorer=lambda query, texts: [float(len(text)) for text in texts]),
        diversity=Diversity(balance=1.0),
        pack=Pack(tokens=2),
    )
    rows = [Row("x", {"source": 1, "text": "abc"}), Row("y", {"source": 1, "text": "zz"}), Row("z", {"text": "abcd"})]
    ranking = recipe.run([arm("a", rows)], reader=READER, query="q", now=NOW, k=5)
    assert seen == [(["x", "z"], "q")]
    assert ranking.keys == ["z", "x"]


def test_the_clock_is_injected_or_now():
    row = Row("x", {"updated_at": NOW})
    recipe = Fusion(boost=HalfLife(half_life=1.0))
    assert recipe.run([arm("a", [row])], reader=READER, now=NOW + 86_400).scores == [1 / 61 * 1.5]
    assert recipe.run([arm("a", [row])], reader=READER).scores[0] < 1 / 61 * 1.5
    both = [arm("a", [row]), arm("b", [row])]
    assert recipe.run(both, reader=READER).scores[0] < 1 / 61 * 1.5


def test_inputs_never_change_and_the_first_seen_item_is_returned():
    first, second = Row("x", {"from": "a"}), Row("x", {"from": "b"})
    lists = [arm("a", [first], [1.0]), arm("b", [Row("y"), second], [0.9, 0.2])]
    before = [(list(one.items), list(one.scores)) for one in lists]
    for trace in (None, Trace()):
        gate = QualityGate(floor=0.1)
        ranking = Fusion(gate=gate).run(lists, reader=READER, now=NOW, trace=trace)
        assert ranking.items[ranking.keys.index("x")] is first
    assert [(list(one.items), list(one.scores)) for one in lists] == before


ROWS = st.builds(
    lambda key, source, when: Row(key, {"source_id": source, "updated_at": when}),
    st.sampled_from("ABCDEFGH"),
    st.sampled_from([None, "s", "t", 3]),
    st.one_of(
        st.none(),
        st.floats(NOW - 1e8, NOW + 1e6),
        st.sampled_from([NOW * 1000, "2023-11-01T00:00:00Z", "soon", math.nan, True]),
    ),
)


@given(
    st.lists(st.lists(ROWS, max_size=8), min_size=2, max_size=3),
    st.one_of(st.none(), st.floats(-1, 1)),
    st.one_of(st.none(), st.floats(0, 1)),
    st.one_of(st.none(), st.integers(1, 6)),
    st.booleans(),
    st.booleans(),
)
def test_tracing_changes_no_result(lists, floor, relative, k, dedup, boost):
    rng = random.Random(len(lists[0]))
    arms = [arm(f"arm{i}", rows, sorted((rng.random() for _ in rows), reverse=True)) for i, rows in enumerate(lists)]
    recipe = Fusion(
        gate=QualityGate(floor=floor, relative=relative) if floor is not None else None,
        dedup=SourceDedup() if dedup else None,
        boost=HalfLife() if boost else None,
    )
    staged = recipe.run(arms, reader=READER, now=NOW, k=k, trace=Trace())
    plain = recipe.run(arms, reader=READER, now=NOW, k=k)
    assert plain.keys == staged.keys
    assert plain.scores == staged.scores
    assert [id(item) for item in plain.items] == [id(item) for item in staged.items]


def test_a_share_is_never_nothing():
    lists = [arm("a", "x"), arm("b", "y")]
    recipe = Fusion(weights={"a": 1, "b": 1e-15})
    assert recipe.shares(recipe.run(lists, reader=READER, now=NOW).scores) == [1.0, 1e-9]


def test_an_arm_without_a_floor_of_its_own_passes_whole():
    recipe = Fusion(gate=QualityGate(floor={"a": None, "c": 0.9}))
    lists = [arm("a", "xy", [0.3, 0.2]), arm("b", "yz", [0.9, 0.1])]
    assert recipe.run(lists, reader=READER, now=NOW).keys == ["y", "x", "z"]
    assert recipe.run(lists, reader=READER, now=NOW, trace=Trace()).keys == ["y", "x", "z"]


def test_of_two_chunks_at_the_same_rank_the_one_of_the_earlier_list_represents_the_source():
    fields = {"source_id": "s", "updated_at": NOW}
    for one, two in (("a", "b"), ("b", "a")):
        lists = [arm("arm0", [Row(one, fields)]), arm("arm1", [Row(two, fields)])]
        found = Fusion(dedup=SourceDedup(), boost=HalfLife()).run(lists, reader=READER, now=NOW)
        assert found.keys == [one]
        assert found.scores == [0.5 / 61 * 2]


def test_hits_without_a_source_are_never_collapsed():
    fields = {"source_id": None, "updated_at": NOW}
    lists = [arm("arm0", [Row("a", fields), Row("b", fields)]), arm("arm1", [Row("c", fields)])]
    found = Fusion(dedup=SourceDedup(), boost=HalfLife()).run(lists, reader=READER, now=NOW)
    assert found.keys == ["a", "c", "b"]


def test_lists_of_different_lengths():
    recipe = Fusion()
    for one, two in (("abc", "d"), ("d", "abc"), ("ab", "ba")):
        lists = [arm("a", one), arm("b", two)]
        plain = recipe.run(lists, reader=READER, now=NOW)
        staged = recipe.run(lists, reader=READER, now=NOW, trace=Trace())
        assert plain == staged


def test_the_gate_reads_only_arms_with_scores():
    recipe = Fusion(gate=QualityGate(floor=0.5))
    lists = [arm("a", "xy"), arm("b", "yz", [0.9, 0.1])]
    assert recipe.run(lists, reader=READER, now=NOW) == recipe.run(lists, reader=READER, now=NOW, trace=Trace())
    low = [arm("a", "x", [0.1]), arm("b", "y", [0.2])]
    assert recipe.run(low, reader=READER, now=NOW).keys == ["x"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"gate": 3}, r"gate = 3 is not allowed: a QualityGate\(…\), or None"),
        ({"pack": "all"}, r"pack = 'all' is not allowed: a Pack\(…\), or None"),
        ({"dedup": True}, r"dedup = True is not allowed: a SourceDedup\(…\)"),
        ({"boost": HalfLife}, r"boost = <class .*HalfLife'> is not allowed: a HalfLife\(…\) or Competition\(…\)"),
        ({"extra": [5]}, "a stage in extra = 5 is not allowed: a function"),
        ({"extra": [Diversity]}, "a stage in extra = <class .*Diversity'> is not allowed: a function"),
    ],
)
def test_a_slot_takes_its_own_kind_of_value_alone(settings, told):
    with pytest.raises(ConfigError, match=told):
        Fusion(**settings)


@pytest.mark.parametrize("weight", [-1.0, math.inf, math.nan])
def test_a_weight_is_a_finite_number_from_zero_up(weight):
    with pytest.raises(ConfigError, match=f"weight {weight!r} is not allowed"):
        normalise_weights(["a", "b"], [1.0, weight])
