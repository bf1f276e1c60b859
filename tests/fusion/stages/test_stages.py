import math
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.core.times import epoch
from hybridmem.core.types import Activation, Ranking
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Trace
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import (
    Competition,
    Conflicts,
    Diversity,
    HalfLife,
    Pack,
    QualityGate,
    Rerank,
    SourceDedup,
    Spread,
    stage_name,
)
from hybridmem.fusion.stages.base import Context
from hybridmem.fusion.stages.boost import bounded
from hybridmem.fusion.stages.rerank import scores_of_order
from hybridmem.fusion.stages.selection import IdenticalTexts
from tests.support.items import READER, Row, arm

NOW = 1_700_000_000.0
DAY = 86_400.0


def context(**more):
    return Context("question", NOW, READER, **more)


def ranking(*rows):
    """Rows of (key, score, fields)."""
    return Ranking(
        [key for key, _, _ in rows], [Row(key, fields) for key, _, fields in rows], [score for _, score, _ in rows]
    )


def gate(lists, **settings):
    trace = Trace()
    told = Context("q", NOW, READER, trace=trace)
    kept = QualityGate(**settings).apply(lists, told)
    return {one.name: READER.keys(one.items) for one in kept}, trace._fallback is not None


# --- the gate


def test_an_absolute_floor_is_per_arm():
    lists = [arm("bm25", "ab", [3.0, 0.9]), arm("vector", "cd", [0.5, 0.49])]
    assert gate(lists, floor={"bm25": 1.0, "vector": 0.5}) == ({"bm25": ["a"], "vector": ["c"]}, False)
    assert gate(lists, floor=0.5) == ({"bm25": ["a", "b"], "vector": ["c"]}, False)


def test_a_relative_floor_is_a_share_of_the_arms_best():
    lists = [arm("a", "xyz", [10.0, 5.0, 4.9]), arm("b", "w", [0.1])]
    assert gate(lists, relative=0.5) == ({"a": ["x", "y"], "b": ["w"]}, False)
    assert gate(lists, relative={"a": 1.0}, floor=0.05) == ({"a": ["x"], "b": ["w"]}, False)
    assert gate(lists, relative=0.0, floor={"a": 5.0}) == ({"a": ["x", "y"], "b": ["w"]}, False)


def test_an_arm_without_scores_is_not_gated_and_nan_does_not_pass():
    assert gate([arm("a", "xy")], floor=5.0) == ({"a": ["x", "y"]}, False)
    assert gate([arm("a", "xy", [1.0, math.nan])], floor=0.5) == ({"a": ["x"]}, False)


def test_all_empty_falls_back_and_is_marked():
    lists = [arm("a", "", []), arm("b", "xy", [0.3, 0.2]), arm("c", "z", [0.1])]
    assert gate(lists, floor=0.5) == ({"a": [], "b": ["x", "y"], "c": []}, True)
    assert gate(lists, floor=0.5, fallback="c") == ({"a": [], "b": [], "c": ["z"]}, True)
    assert gate(lists, floor=0.5, fallback=None) == ({"a": [], "b": [], "c": []}, False)
    assert gate([arm("a", "", [])], floor=0.5) == ({"a": []}, False)


@pytest.mark.parametrize("settings", [{"floor": math.nan}, {"floor": {"a": math.inf}}, {"relative": 1.5}])
def test_bad_gates_are_refused(settings):
    with pytest.raises(ConfigError, match="not allowed"):
        QualityGate(**settings)


# --- dedup


def test_a_gate_for_an_arm_that_does_not_exist_is_refused():
    QualityGate(floor={"a": 1.0}, relative={"b": 0.5}, fallback="b").check_arms(["a", "b"])
    QualityGate(floor=1.0, fallback=None).check_arms(["a"])
    for bad in ({"floor": {"x": 1.0}}, {"relative": {"x": 0.5}}, {"fallback": "x"}):
        with pytest.raises(ConfigError, match=f"gate {next(iter(bad))} names unknown arm 'x': the arms are 'a', 'b'"):
            QualityGate(**bad).check_arms(["a", "b"])


def test_the_best_of_each_source_stays_and_no_source_is_no_duplicate():
    rows = ranking(("a", 5, {"source_id": "s"}), ("b", 4, {}), ("c", 3, {"source_id": "s"}), ("d", 2, {}))
    assert SourceDedup()(rows, context()).keys == ["a", "b", "d"]
    assert SourceDedup(max_per_source=2)(rows, context()) is rows
    assert SourceDedup(key=lambda item: item.key in "ab")(rows, context()).keys == ["a", "c"]
    assert SourceDedup(key="missing")(rows, context()) is rows


def test_without_missing_sources_the_first_of_each_stays():
    rows = ranking(*((key, 9 - i, {"source_id": s}) for i, (key, s) in enumerate(zip("abcd", "stst", strict=True))))
    assert SourceDedup()(rows, context()).keys == ["a", "b"]


@given(st.lists(st.tuples(st.text(max_size=2), st.sampled_from([None, "s", "t", "u"])), unique_by=lambda r: r[0]))
def test_dedup_is_idempotent(rows):
    given_ = ranking(*((key, 1.0, {"source_id": source}) for key, source in rows))
    for most in (1, 2):
        once = SourceDedup(max_per_source=most)(given_, context())
        assert SourceDedup(max_per_source=most)(once, context()) == once


@pytest.mark.parametrize("traced", [False, True])
def test_a_source_that_is_a_list_is_refused(traced):
    rows = [Row("a", {"tags": ["x"]}), Row("b", {"tags": ["x"]})]
    recipe = Fusion(dedup=SourceDedup(key="tags"))
    with pytest.raises(ConfigError, match="dedup by 'tags': a source is a text or a number"):
        recipe.run([arm("one", rows), arm("two", rows)], reader=READER, trace=Trace() if traced else None)


def test_bad_dedup_is_refused():
    with pytest.raises(ConfigError, match="max_per_source = 0"):
        SourceDedup(max_per_source=0)


# --- half-life


@pytest.mark.parametrize(
    ("days", "factor"), [(0, 2.0), (30, 1.5), (60, 1.25), (180, 1 + 0.5**6), (-10, 2.0)]
)  # 180 days: ×1.0156
def test_the_boost_for_an_age(days, factor):
    boosted = HalfLife()(ranking(("a", 1.0, {"updated_at": NOW - days * DAY})), context())
    assert boosted.scores == [pytest.approx(factor)]
    assert HalfLife().factor(days * DAY) == pytest.approx(factor)


@pytest.mark.parametrize(
    "value",
    [
        NOW - 30 * DAY,
        int(NOW - 30 * DAY),
        (NOW - 30 * DAY) * 1000,
        datetime.fromtimestamp(NOW - 30 * DAY, timezone.utc),
        datetime.fromtimestamp(NOW - 30 * DAY, timezone.utc).replace(tzinfo=None),
        datetime.fromtimestamp(NOW - 30 * DAY, timezone.utc).isoformat().replace("+00:00", "Z"),
    ],
)
def test_every_kind_of_date_is_read(value):
    assert HalfLife()(ranking(("a", 1.0, {"updated_at": value})), context()).scores == [pytest.approx(1.5)]


def test_milliseconds_before_1970_are_a_date():
    rows = ranking(("a", 1.0, {"updated_at": -NOW * 1000}))
    assert HalfLife(half_life=2 * NOW / DAY)(rows, context()).scores == [pytest.approx(1.5)]  # one half-life old


@pytest.mark.parametrize("value", [None, "soon", math.nan, [], True])
def test_a_missing_or_unreadable_date_is_neutral(value):
    rows = ranking(("a", 1.0, {"updated_at": value}), ("b", 0.5, {"updated_at": "2020-01-01"}))
    assert HalfLife()(rows, context()).scores[0] == 1.0


@given(
    st.lists(
        st.one_of(
            st.booleans(),
            st.integers(-2, 3),
            st.floats(NOW - 1e9, NOW + 1e9),
            st.sampled_from([-NOW * 1000, NOW * 1000, -1e11, -7e10]),
            st.sampled_from([None, math.nan, math.inf, -math.inf, "2020-01-01", "2019-01-01T00:00:00Z"]),
        ),
        min_size=1,
    ),
    st.sampled_from([NOW, 0.5]),
    st.sampled_from([30.0, 400.0, 40_000.0]),
)
def test_a_column_of_dates_is_boosted_as_each_date_is_read(values, now, half_life):
    """A boolean is no date: beside plain epoch seconds it must not become the year 1970."""
    stage = HalfLife(half_life=half_life)
    read = [epoch(value) for value in values]
    expected = [1.0 if when is None else stage.factor(now - when) for when in read]
    assert stage.boosted([1.0] * len(values), values, now) == pytest.approx(expected, rel=1e-12)


def test_the_half_life_may_be_a_timedelta_and_the_field_any():
    stage = HalfLife(half_life=timedelta(days=2), strength=0.5, field="seen")
    assert stage(ranking(("a", 1.0, {"seen": NOW - 2 * DAY})), context()).scores == [1 + 0.5 * 0.5]
    assert HalfLife()(ranking(), context()).keys == []


@given(st.lists(st.floats(-10, 1000), min_size=2, max_size=10))
def test_the_boost_never_grows_with_age(ages):
    rows = ranking(*((str(i), 1.0, {"updated_at": NOW - age * DAY}) for i, age in enumerate(ages)))
    boosted = HalfLife()(rows, context())
    by_age = sorted(zip(boosted.items, boosted.scores, strict=True), key=lambda row: -row[0].fields["updated_at"])
    assert [score for _, score in by_age] == sorted(boosted.scores, reverse=True)


@pytest.mark.parametrize(
    "settings", [{"half_life": 0}, {"half_life": math.nan}, {"strength": -1}, {"max_shift": -1}, {"half_life": -3.0}]
)
def test_bad_half_lives_are_refused(settings):
    with pytest.raises(ConfigError, match="not allowed"):
        HalfLife(**settings)


@given(st.lists(st.floats(0, 10), max_size=30), st.integers(0, 8))
def test_a_bound_lets_nothing_move_further(scores, places):
    rows = ranking(*((str(i), float(-i), {}) for i in range(len(scores))))
    moved = bounded(rows, scores, places=places)
    assert sorted(moved.keys) == sorted(rows.keys)
    for position, key in enumerate(moved.keys):
        assert abs(position - int(key)) <= places
    assert moved.scores == sorted(moved.scores, reverse=True)


def test_a_wide_bound_is_no_bound():
    rows = ranking(("a", 3.0, {}), ("b", 2.0, {"updated_at": NOW}), ("c", 1.9, {"updated_at": NOW}))
    assert HalfLife(max_shift=9)(rows, context()).keys == HalfLife()(rows, context()).keys == ["b", "c", "a"]
    assert HalfLife(max_shift=1)(rows, context()).keys == ["b", "a", "c"]
    assert HalfLife(max_shift=0)(rows, context()).keys == ["a", "b", "c"]


# --- competition and conflicts


def test_competition_is_the_written_sum_times_the_status():
    rows = ranking(
        ("a", 0.8, {"strength": 0.5, "confidence": 0.9, "last_accessed": NOW - 2 * DAY, "status": "active"}),
        ("b", 0.4, {"status": "superseded", "updated_at": NOW}),
        ("c", 0.4, {"status": "contradicted", "created_at": NOW}),
        ("d", 0.2, {}),
    )
    got = Competition()(rows, context(trace=Trace()))
    assert dict(zip(got.keys, got.scores, strict=True)) == {
        "a": pytest.approx(0.5 * 1.0 + 0.2 * math.exp(-0.05 * 2) + 0.2 * 0.5 + 0.1 * 0.9),
        "b": pytest.approx((0.5 * 0.5 + 0.2 * 1.0 + 0.2 + 0.1) * 0.5),
        "c": pytest.approx((0.5 * 0.5 + 0.2 * 1.0 + 0.2 + 0.1) * 0.3),
        "d": pytest.approx(0.5 * 0.25 + 0.2 * 0.0 + 0.2 + 0.1),
    }
    assert Competition()(ranking(), context()).keys == []
    zero = Competition()(ranking(("a", 0.0, {})), context())
    assert zero.scores == [pytest.approx(0.3)]


def test_bad_competition_is_refused():
    with pytest.raises(ConfigError, match="competition recency"):
        Competition(recency=-0.1)


def test_the_weaker_of_two_that_contradict_is_lowered():
    rows = ranking(
        ("old", 1.0, {"strength": 0.5, "updated_at": NOW, "contradicts": "new"}),
        ("new", 0.9, {"strength": 0.9, "updated_at": NOW}),
        ("else", 0.8, {}),
    )
    got = Conflicts()(rows, context(trace=Trace()))
    assert list(zip(got.keys, got.scores, strict=True)) == [("new", 0.9), ("else", 0.8), ("old", 1.0 * 0.3)]


def test_where_the_pairs_come_from():
    rows = ranking(("a", 1.0, {}), ("b", 0.5, {"contradicts": ["a", "zz"]}))
    assert Conflicts()(rows, context()).scores == [1.0, 0.5 * 0.3]  # equal standing: the lower-ranked yields
    assert Conflicts()(ranking(("a", 1.0, {})), context()).scores == [1.0]
    from_memory = context(contradictions=lambda keys: [("b", "a"), ("a", "a")])
    assert Conflicts(factor=0.5)(rows, from_memory).scores == [1.0, 0.25]
    own = Conflicts(pairs=lambda keys: [])
    assert own(rows, from_memory) is rows
    with pytest.raises(ConfigError, match="factor = 2"):
        Conflicts(factor=2)


# --- spread


class Line:
    """A graph a - b - c - … in which everything is known but `z`."""

    def spread(self, seeds, *, hops, decay, include_seeds):
        assert include_seeds
        order = "abcdez"
        got = {}
        for target in order:
            values = [
                value * decay ** abs(order.index(target) - order.index(seed))
                for seed, value in seeds.items()
                if 0 < abs(order.index(target) - order.index(seed)) <= hops
            ]
            if values:
                got[target] = max(values)
        return got

    def paths(self, seeds, targets, *, hops, decay):
        got = self.spread(seeds, hops=hops, decay=decay, include_seeds=True)
        return {key: Activation(got[key], 1, ("a", "thread", key)) for key in targets}

    def items(self, keys):
        return [None if key == "z" else Row(key) for key in keys]


def test_spreading_adds_what_neighbours_bring():
    rows = ranking(("a", 1.0, {}), ("e", 0.4, {}))
    trace = Trace()
    got = Spread(strength=0.6)(rows, context(graph=Line(), trace=trace))
    assert dict(zip(got.keys, got.scores, strict=True)) == {
        "a": pytest.approx(1.0),
        "b": pytest.approx(0.6 * 1.0 * 0.5),
        "c": pytest.approx(0.6 * max(1.0 * 0.25, 0.4 * 0.25)),
        "d": pytest.approx(0.6 * 0.4 * 0.5),
        "e": pytest.approx(0.4),
    }
    assert got.keys == ["a", "e", "b", "c", "d"]
    assert set(trace.path_keys()) == {"a", "b", "c", "d"}


def test_only_seeds_spread_and_without_a_graph_nothing_happens():
    rows = ranking(("a", 1.0, {}), ("e", 0.4, {}))
    assert "d" not in Spread(seeds=1)(rows, context(graph=Line())).keys
    assert Spread()(rows, context()) is rows
    assert Spread(strength=0)(rows, context(graph=Line())) is rows


def test_without_neighbours_nothing_happens():
    class Alone(Line):
        def spread(self, seeds, **_):
            return {}

    rows = ranking(("a", 1.0, {}))
    assert Spread()(rows, context(graph=Alone())) is rows
    empty = ranking()
    assert Spread()(empty, context(graph=Line())) is empty


@pytest.mark.parametrize("settings", [{"strength": -1}, {"hops": 0}, {"seeds": 0}, {"decay": 0}, {"decay": 1.1}])
def test_bad_spreads_are_refused(settings):
    with pytest.raises(ConfigError, match="not allowed"):
        Spread(**settings)


# --- the top


def test_rerank_orders_the_top_and_reassigns_its_scores():
    rows = ranking(("a", 3.0, {"text": "x"}), ("b", 2.0, {"text": "xxx"}), ("c", 1.0, {}))
    stage = Rerank(scorer=lambda query, texts: [len(query) * len(text) for text in texts], top=2)
    got = stage(rows, context(trace=Trace()))
    assert (got.keys, got.scores) == (["b", "a", "c"], [3.0, 2.0, 1.0])
    assert Rerank(scorer=lambda q, t: [])(ranking(), context()).keys == []


@pytest.mark.parametrize("bad", [[1.0], [1.0, math.nan]])
def test_a_reranker_with_invalid_scores_is_reported(bad):
    rows = ranking(("a", 2.0, {}), ("b", 1.0, {}))
    with pytest.raises(ConfigError, match="for 2 texts"):
        Rerank(scorer=lambda query, texts: bad)(rows, context())
    with pytest.raises(ConfigError, match="top = 0"):
        Rerank(scorer=lambda query, texts: bad, top=0)


def test_diversity_prefers_what_is_unlike_the_chosen():
    rows = ranking(
        ("a", 1.0, {"vector": [1.0, 0.0]}), ("b", 0.9, {"vector": [1.0, 0.0]}), ("c", 0.5, {"vector": [0.0, 1.0]})
    )
    # after a: b = 0.5·0.9 − 0.5·1 = −0.05, c = 0.5·0.5 − 0.5·0 = 0.25
    got = Diversity()(rows, context(trace=Trace()))
    assert (got.keys, got.scores) == (["a", "c", "b"], [1.0, 0.5, 0.5])
    assert Diversity(balance=1.0)(rows, context()).keys == ["a", "b", "c"]


def test_diversity_counts_what_is_the_opposite():
    rows = ranking(
        ("a", 1.0, {"vector": [1.0, 0.0]}), ("b", 0.9, {"vector": [0.0, 1.0]}), ("c", 0.5, {"vector": [-1.0, 0.0]})
    )
    # after a: b = 0.5·0.9 − 0.5·0 = 0.45, c = 0.5·0.5 + 0.5·1 = 0.75
    assert Diversity()(rows, context()).keys == ["a", "c", "b"]


def test_diversity_falls_back_to_words():
    rows = ranking(("a", 1.0, {"text": "the cat"}), ("b", 0.9, {"text": "The CAT"}), ("c", 0.5, {"text": "a dog"}))
    assert Diversity()(rows, context()).keys == ["a", "c", "b"]
    assert Diversity()(ranking(), context()).keys == []
    nothing = ranking(("a", 0.0, {"vector": [0.0]}), ("b", 0.0, {"vector": [0.0]}))
    assert Diversity(top=1)(nothing, context()).keys == ["a", "b"]
    assert Diversity()(nothing, context()).keys == ["a", "b"]


@pytest.mark.parametrize("settings", [{"balance": 1.5}, {"top": 0}])
def test_bad_diversity_is_refused(settings):
    with pytest.raises(ConfigError, match="not allowed"):
        Diversity(**settings)


def test_pack_cuts_to_k_or_to_the_budget():
    rows = ranking(("a", 3, {"text": "x" * 8}), ("b", 2, {"text": "x" * 40}), ("c", 1, {"text": "x" * 5}))
    assert Pack()(rows, context(k=2)).keys == ["a", "b"]
    assert Pack()(rows, context()) is rows
    assert Pack(tokens=4)(rows, context()).keys == ["a", "c"]  # 2 + 2 tokens, b needs 10
    assert Pack(tokens=99)(rows, context(k=1)).keys == ["a"]
    assert Pack(tokens=3, counter=lambda text: 1)(rows, context(k=9)).keys == ["a", "b", "c"]
    with pytest.raises(ConfigError, match="tokens = 0"):
        Pack(tokens=0)


def test_names_of_stages():
    def my_stage(ranking, context):
        return ranking

    class Named:
        name = "lamp"

    assert [stage_name(s) for s in (HalfLife(), my_stage, Named())] == ["half_life", "my_stage", "lamp"]


def test_an_openmem_style_run_with_every_number_written_out():
    """BM25 seeds, spread, competition, conflict and packing on three memories in a line a - b - c."""
    fields = {
        "a": {"strength": 1.0, "confidence": 1.0, "last_accessed": NOW, "text": "x" * 40},
        "b": {"strength": 0.5, "confidence": 0.8, "last_accessed": NOW - 10 * DAY, "text": "x" * 40},
        "c": {"strength": 1.0, "confidence": 0.6, "last_accessed": NOW, "text": "x" * 40},
    }

    class Three(Line):
        def items(self, keys):
            return [Row(key, fields[key]) if key in fields else None for key in keys]

    recipe = Fusion(
        mode="convex",
        spread=Spread(strength=1.0),
        boost=Competition(),
        conflicts=Conflicts(pairs=lambda keys: [("a", "b")]),
        pack=Pack(tokens=20),
    )
    seeds = arm("bm25", [Row("a", fields["a"])], [4.0])
    got = recipe.run([seeds], reader=READER, now=NOW, graph=Three(), k=3)
    a = 0.5 * 1.0 + 0.2 * 1.0 + 0.2 * 1.0 + 0.1 * 1.0
    b = (0.5 * 0.5 + 0.2 * math.exp(-0.5) + 0.2 * 0.5 + 0.1 * 0.8) * 0.3  # loses to a: 0.5·0.8·e^-0.5 < 1
    c = 0.5 * 0.25 + 0.2 * 1.0 + 0.2 * 1.0 + 0.1 * 0.6
    assert got.keys == ["a", "c"]  # 10 tokens each: b does not fit
    assert got.scores == [pytest.approx(a), pytest.approx(c)]
    unpacked = recipe.__class__(
        mode="convex", spread=recipe.spread, boost=recipe.boost, conflicts=recipe.conflicts
    ).run([seeds], reader=READER, now=NOW, graph=Three())
    assert dict(zip(unpacked.keys, unpacked.scores, strict=True))["b"] == pytest.approx(b)


# --- filling and identical texts


def chunks():
    rows = [("a1", 9, "a"), ("a2", 8, "a"), ("a3", 7, "a"), ("b1", 6, "b"), ("b2", 5, "b")]
    return ranking(*((key, score, {"source_id": source}) for key, score, source in rows))


def test_what_is_left_of_k_is_filled_below_all_others():
    got = SourceDedup(fill=True)(chunks(), context(k=4))
    assert (got.keys, got.scores) == (["a1", "b1", "a2", "a3"], [9, 6, 6, 6])
    for kept in (context(k=2), context(), context(k=4, fill=False)):
        assert SourceDedup(fill=True)(chunks(), kept).keys == ["a1", "b1"]
    assert SourceDedup()(chunks(), context(k=4)).keys == ["a1", "b1"]


def test_filling_and_not_filling_are_explained():
    lists = [arm("x", chunks().items, [5.0, 4.0, 3.0, 2.0, 1.0])]
    for fill in (True, False):
        trace = Trace()
        recipe = Fusion(dedup=SourceDedup(fill=fill))
        got = recipe.run(lists, reader=READER, k=3, trace=trace)
        told = trace.explanation(got, query="q", lists=lists, shown=recipe.shares(got.scores))
        if fill:
            assert str(told.receipts[2].steps[0]) == "fills k: another chunk of source a"
            assert told.remarks == ()
        else:
            assert told.remarks == ("2 of 3: 3 chunks collapsed into 2 sources",)
            assert told.remarks[0] in str(told)
            assert told.to_dict()["remarks"] == list(told.remarks)


def test_identical_texts_are_one_result_the_newest():
    rows = ranking(
        ("a", 9, {"text": "Ana likes  tea.", "updated_at": NOW - DAY}),
        ("b", 8, {"text": "Ben likes tea."}),
        ("c", 7, {"text": "ana likes TEA.", "updated_at": None, "created_at": NOW}),
        ("d", 6, {"text": "Ana likes tea.", "updated_at": NOW}),
        ("e", 5, {"text": ""}),
        ("f", 4, {}),
    )
    trace = Trace()
    got = IdenticalTexts()(rows, context(trace=trace))
    assert (got.keys, got.scores) == (["c", "b", "e", "f"], [9, 8, 5, 4])
    assert [item.key for item in got.items] == got.keys
    assert trace._notes == {("duplicates", "c"): "same text as a, d"}
    assert trace._dropped == dict.fromkeys("ad", "duplicates: same text as c")
    assert IdenticalTexts()(rows, context(k=2)).keys == ["c", "b", "e", "f"]  # looks at four
    assert IdenticalTexts(look_ahead=1)(rows, context(k=2)) is rows
    assert IdenticalTexts()(ranking(), context()) == ranking()
    with pytest.raises(ConfigError, match="look_ahead = 0"):
        IdenticalTexts(look_ahead=0)


def test_the_date_of_the_event_counts_before_that_of_the_record():
    rows = [Row("old", {"updated_at": NOW, "event_at": NOW - 30 * DAY}), Row("new", {"updated_at": NOW - 30 * DAY})]
    found = Fusion(boost=HalfLife(half_life=30, strength=1.0)).run([arm("a", rows)], reader=READER, now=NOW)
    assert dict(zip(found.keys, found.scores, strict=True)) == pytest.approx({"old": 1 / 61 * 1.5, "new": 1 / 62 * 1.5})


def test_texts_of_unique_length_are_not_read():
    read = []

    class Reader:
        def keys(self, items):
            return READER.keys(items)

        def column(self, items, name):
            read.extend([item.key for item in items] if name == "text" else [])
            return READER.column(items, name)

    rows = ranking(
        ("a", 3, {"text": "x y", "words": 2}),
        ("b", 2, {"text": "x", "words": 1}),
        ("c", 1, {"text": "X Y", "words": 2}),
    )
    assert IdenticalTexts()(rows, Context("q", NOW, Reader())).keys == ["a", "b"]
    assert read == ["a", "c"]


@pytest.mark.parametrize("bad", [3, "cross-encoder", Rerank])
def test_a_reranker_is_a_function_or_one_of_a_framework(bad):
    with pytest.raises(ConfigError, match="a LangChain document compressor or a LlamaIndex node postprocessor"):
        Rerank(scorer=bad)


def test_a_reranker_of_a_framework_has_to_be_converted_first():
    class Compressor:
        def compress_documents(self, documents, query):
            return documents

    with pytest.raises(ConfigError, match=r"is a framework's: use as_scorer\(\) of its adapter"):
        Rerank(scorer=Compressor())(ranking(("a", 1.0, {})), context())


def test_scores_of_an_order_that_leaves_texts_out():
    assert scores_of_order([3, 1], 4) == [-1.0, 1.0, -3.0, 2.0]
