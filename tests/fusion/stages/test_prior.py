from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridmem.core.types import Ranking
from hybridmem.errors import ConfigError
from hybridmem.fusion.explain import Trace
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import Spread
from hybridmem.fusion.stages.base import Context
from hybridmem.fusion.stages.prior import NamedDate, Period, Substance, named_period


class Rows:
    """Items are dicts; a key is its place."""

    def keys(self, items):
        return [item["id"] for item in items]

    def column(self, items, name):
        return [item.get(name) for item in items]


def context(query="", trace=None):
    return Context(query, 0.0, Rows(), trace=trace)


def ranking(*rows):
    items = [{"id": f"m{number}", **row} for number, (_, row) in enumerate(rows)]
    return Ranking([item["id"] for item in items], items, [score for score, _ in rows])


def test_substance_by_arithmetic():
    before = ranking((1.0, {"words": 3}), (0.9, {"words": 60}), (0.5, {"words": 15}), (0.1, {"words": 90}))
    after = Substance(strength=0.4, words=30)(before, context())
    # the mean is 42, so 30 words are enough: 3 → 1 - 0.4·(1 - 0.1), 15 → 1 - 0.4·(1 - 0.5)
    assert dict(zip(after.keys, after.scores, strict=True)) == {
        "m1": 0.9,
        "m0": pytest.approx(1.0 * (1 - 0.4 * 0.9)),
        "m2": pytest.approx(0.5 * (1 - 0.4 * 0.5)),
        "m3": 0.1,
    }
    assert after.keys == ["m1", "m0", "m2", "m3"]


def test_short_facts_are_measured_by_their_mean():
    before = ranking((1.0, {"text": "one two"}), (0.9, {"text": "one two three four five six"}))
    after = Substance(strength=0.5)(before, context())  # the mean is 4: 2 words → 1 - 0.5·(1 - 2/4)
    assert dict(zip(after.keys, after.scores, strict=True)) == {"m1": 0.9, "m0": pytest.approx(0.75)}


@pytest.mark.parametrize("words", [(5, 5), (40, 200)])
def test_nothing_changes_among_equals_and_among_the_long(words):
    before = ranking((1.0, {"words": words[0]}), (0.9, {"words": words[1]}))
    assert Substance()(before, context()) is before
    assert Substance()(ranking(), context()) == ranking()


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 100)), max_size=8))
def test_substance_never_raises_and_keeps_everything(rows):
    before = ranking(*((score, {"words": n}) for score, n in sorted(rows, reverse=True)))
    after = Substance()(before, context())
    assert sorted(after.keys) == sorted(before.keys)
    held = dict(zip(before.keys, before.scores, strict=True))
    assert all(
        0.6 * held[key] - 1e-12 <= score <= held[key] for key, score in zip(after.keys, after.scores, strict=True)
    )


@pytest.mark.parametrize(
    ("question", "period"),
    [
        ("What did Ana find on 1 February, 2023?", Period(2023, 2, 1)),
        ("What did Ana find on the 1st of February?", Period(None, 2, 1)),
        ("what happened on July 7, 2023", Period(2023, 7, 7)),
        ("what happened July 7th?", Period(None, 7, 7)),
        ("Who came in August 2022?", Period(2022, 8, None)),
        ("Who came during Sept. 2022?", Period(2022, 9, None)),
        ("Who came in May?", Period(None, 5, None)),
        ("logs of 2024-03-09", Period(2024, 3, 9)),
        ("logs of 2024-03", Period(2024, 3, None)),
        ("May I ask who may come?", None),
        ("a march of 20 people", None),
        ("version 2024-13-40", None),
        ("on 45 June", None),
        ("In 2023 she marched", None),
        ("", None),
    ],
)
def test_named_period(question, period):
    assert named_period(question) == period


def test_named_date_by_arithmetic():
    day = datetime(2023, 7, 7, 9, tzinfo=timezone.utc)
    other = datetime(2023, 7, 8, tzinfo=timezone.utc).timestamp()
    before = ranking((1.0, {"created_at": other}), (0.9, {"created_at": day}), (0.1, {}))
    after = NamedDate(strength=0.2)(before, context("What was said on 7 July 2023?"))
    assert (after.keys, after.scores) == (["m1", "m0", "m2"], [pytest.approx(0.9 + 0.2 * 1.0), 1.0, 0.1])


@pytest.mark.parametrize("question", ["What was said?", "What was said in March?"])
def test_without_a_date_or_a_match_nothing_changes(question):
    before = ranking((1.0, {"created_at": "2023-07-07"}), (0.9, {}))
    assert NamedDate()(before, context(question)) is before
    assert NamedDate()(ranking(), context("in July")) == ranking()
    assert NamedDate(strength=0)(before, context("in July")) is before


def test_both_say_what_they_did():
    trace = Trace()
    before = ranking((1.0, {"words": 5, "created_at": "2023-07-07"}), (0.9, {"words": 15}))
    NamedDate()(Substance()(before, context(trace=trace)), context("on 7 July", trace=trace))
    # the mean is 10 words: 1 − 0.4·(1 − 5/10) = 0.8, and the date adds 0.2 · the best score, 0.9
    assert trace._notes["substance", "m0"] == "short text ×0.80 (5 words; results average 10)"
    assert trace._notes["nameddate", "m0"] == "date 000*-07-07 +0.18"
    trace = Trace()
    Substance(words=8)(before, context(trace=trace))
    assert trace._notes == {("substance", "m0"): "short text ×0.85 (5 words; 8 are enough)"}  # 1 − 0.4·(1 − 5/8)


def test_a_thread_bonus_is_in_the_receipt_of_items_with_a_thread_only():
    trace = Trace()
    before = ranking((1.0, {}), (0.8, {"thread": "t"}), (0.2, {"thread": "t"}))
    Spread(strength=0.0, thread=0.5)(before, context(trace=trace))
    assert trace._notes == {
        ("spread", "m0"): "",
        ("spread", "m1"): "thread bonus +0.4 (t)",  # 0.5 · 0.8
        ("spread", "m2"): "thread bonus +0.4 (t)",
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: Substance(strength=1.5),
        lambda: Substance(words=0),
        lambda: NamedDate(strength=-1),
        lambda: NamedDate(strength=float("nan")),
    ],
)
def test_bad_settings(make):
    with pytest.raises(ConfigError, match="is not allowed"):
        make()


def test_period_as_text():
    assert str(Period(2023, 7, 7)) == "2023-07-07"
    assert str(Period(None, 7, None)).endswith("-07")


class Pair:
    """m0 reminds of m9, which no arm found."""

    def spread(self, seeds, /, *, hops=2, decay=0.5, include_seeds=False):
        return {"m9": seeds["m0"] * decay} if "m0" in seeds else {}

    def items(self, keys, /):
        return [{"id": key, "thread": "t"} for key in keys]


def test_the_thread_speaks_for_its_turns():
    before = ranking((1.0, {}), (0.8, {"thread": "t"}), (0.2, {"thread": "t"}), (0.1, {"thread": "u"}))
    stage = Spread(strength=0.0, thread=0.5)
    after = stage(before, context())
    # alone: its own score counts as its thread's; in t the best is 0.8
    assert dict(zip(after.keys, after.scores, strict=True)) == pytest.approx(
        {"m0": 1.0 + 0.5 * 1.0, "m1": 0.8 + 0.5 * 0.8, "m2": 0.2 + 0.5 * 0.8, "m3": 0.1 + 0.5 * 0.1}
    )
    assert stage(ranking(), context()) == ranking()


def test_thread_and_neighbours_look_at_the_same_scores():
    before = ranking((1.0, {}), (0.8, {"thread": "t"}))
    known = context()
    known.graph = Pair()
    after = Spread(strength=0.6, thread=0.5)(before, known)
    # m9 came by the graph, with 1.0 · 0.5, and its thread's best is 0.8
    assert dict(zip(after.keys, after.scores, strict=True)) == pytest.approx(
        {"m0": 1.0 + 0.5 * 1.0, "m1": 0.8 + 0.5 * 0.8, "m9": 0.6 * 0.5 + 0.5 * 0.8}
    )


def test_a_recipe_runs_the_priors_after_the_boost():
    recipe = Fusion(substance=Substance(), dated=NamedDate(), spread=Spread(thread=0.3))
    assert [type(stage) for stage in recipe._stages] == [Spread, Substance, NamedDate]
    with pytest.raises(ConfigError, match="spread thread = -1 is not allowed"):
        Spread(thread=-1)
