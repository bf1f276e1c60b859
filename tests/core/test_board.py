"""The board must give what the real fusion gives: `Fusion.run` is the oracle, on random lists, graphs and recipes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmem.board import Board, _top
from hybridmem.columns import read_columns
from hybridmem.evaluate import Case
from hybridmem.fusion import Fusion
from hybridmem.metrics import judge, metric
from hybridmem.replay import Recorded, replay
from hybridmem.setting import Setting, read_setting, with_setting
from hybridmem.stages import Competition, HalfLife, NamedDate, QualityGate, SourceDedup, Spread, Substance
from hybridmem.types import ArmList

DAY = 86_400.0
NOW = 1_700_000_000.0
ITEMS = [
    {
        "id": f"m{number}",
        "source_id": [None, "s1", "s2"][number % 3],
        "thread": [None, "t1"][number % 2],
        "words": 3 + 7 * number,
        "updated_at": None if number == 4 else NOW - number * 9 * DAY,
        "created_at": NOW - number * 9 * DAY,
    }
    for number in range(10)
]
BY_KEY = {item["id"]: item for item in ITEMS}


class Rows:
    def keys(self, items):
        return [item["id"] for item in items]

    def column(self, items, name):
        return [item.get(name) for item in items]


class Ring:
    """Each item reminds of the next, at half its worth and a quarter over two steps; the last one is a dangling end."""

    def spread(self, seeds, /, *, hops=2, decay=0.5, include_seeds=False):
        found = {}
        for key, value in seeds.items():
            number = int(key[1:])
            for hop in range(1, hops + 1):
                to = f"m{number + hop}"
                found[to] = max(found.get(to, 0.0), value * decay**hop)
        return found if include_seeds else {key: value for key, value in found.items() if key not in seeds}

    def items(self, keys, /):
        return [BY_KEY.get(key) for key in keys]


numbers = st.integers(0, 9)
scores = st.floats(0.1, 8.0).map(lambda value: round(value, 3))


@st.composite
def arms(draw, name):
    chosen = draw(st.lists(numbers, unique=True, max_size=7))
    values = sorted(draw(st.lists(scores, min_size=len(chosen), max_size=len(chosen), unique=True)), reverse=True)
    known = {f"m{number}": draw(scores) for number in draw(st.lists(numbers, unique=True, max_size=4))}
    listed = dict(zip([f"m{number}" for number in chosen], values, strict=True))
    return ArmList(name, [ITEMS[number] for number in chosen], values, known={**known, **listed})


@st.composite
def recorded(draw):
    graph = Ring() if draw(st.booleans()) else None
    return Recorded([draw(arms("bm25")), draw(arms("vector"))], Rows(), graph, NOW)


@st.composite
def recipes(draw):
    mode = draw(st.sampled_from(["rrf", "relative", "distribution", "convex"]))
    return Fusion(
        mode=mode,
        c=draw(st.sampled_from([1.0, 60.0])),
        weights=draw(st.sampled_from([(0.5, 0.5), (0.7, 0.3), (1.0, 0.0), (0.0, 1.0)])),
        complete=mode != "rrf" and draw(st.booleans()),
        smooth=draw(st.booleans()),
        gate=draw(
            st.sampled_from(
                [
                    None,
                    QualityGate(floor={"bm25": 4.0}),
                    QualityGate(floor=7.5, fallback="vector"),
                    QualityGate(floor=7.9, fallback=None),
                    QualityGate(relative=0.6),
                ]
            )
        ),
        spread=draw(st.sampled_from([None, Spread(strength=0.6, seeds=3), Spread(strength=0.5, thread=0.6)])),
        dedup=draw(st.sampled_from([None, SourceDedup(), SourceDedup(key=lambda item: item["source_id"])])),
        boost=draw(st.sampled_from([None, HalfLife(strength=0.3)])),
        substance=draw(st.sampled_from([None, Substance()])),
        dated=draw(st.sampled_from([None, NamedDate()])),
    )


QUESTION = "What happened on 14 November 2023?"


@settings(max_examples=35, deadline=None)
@given(st.lists(recorded(), min_size=1, max_size=3), recipes())
def test_scores_of_the_board_are_those_of_the_fusion(records, recipe):
    cases = [Case(QUESTION, {"m1": 1.0, "m5": 2.0}) for _ in records]
    columns = read_columns(records, cases, recipe=recipe)
    board = Board(columns, cases, recipe=recipe)
    found = board.scores(read_setting(recipe, columns.names))
    for row, record in enumerate(records):
        ranking = with_weights(recipe, record).run(
            record.lists, reader=record.reader, query=QUESTION, now=NOW, graph=record.graph
        )
        expected = dict(zip(ranking.keys, ranking.scores, strict=True))
        mine = {key: score for key, score in zip(columns.keys[row], found[row], strict=False) if np.isfinite(score)}
        assert mine.keys() == expected.keys()
        assert mine == pytest.approx(expected, abs=1e-9)


def with_weights(recipe, record):
    """The recipe, and the record without the list of an arm that has no weight, as a memory would run it."""
    for number, weight in enumerate(recipe.weights):
        if weight == 0:
            record.lists[number] = ArmList(record.lists[number].name, [])
    return recipe


def test_figures_are_those_of_the_replayed_lists():
    rng = np.random.default_rng(5)
    records, cases = [], []
    for _ in range(12):
        lists = []
        for name in ("bm25", "vector"):
            chosen = rng.permutation(10)[:6]
            values = sorted(rng.random(6).tolist(), reverse=True)
            lists.append(ArmList(name, [ITEMS[number] for number in chosen], values))
        records.append(Recorded(lists, Rows(), Ring(), NOW))
        cases.append(Case("q", {f"m{number}": float(rng.integers(1, 3)) for number in rng.permutation(10)[:3]}))
    recipe = Fusion(mode="relative", spread=Spread(strength=0.4, thread=0.2), boost=HalfLife(strength=0.1))
    columns = read_columns(records, cases, recipe=recipe)
    board = Board(columns, cases, recipe=recipe)
    for name in ("recall@3", "hit@1", "mrr@10", "ndcg@5"):
        measure, k = metric(name)
        for weights in ((0.5, 0.5), (0.9, 0.1), (0.2, 0.8)):
            setting = replace(read_setting(recipe, columns.names), weights=weights)
            changed = with_setting(recipe, setting, columns.names)
            lists = [replay(changed, record, query="q", k=k) for record in records]
            oracle = measure(judge(lists, [case.relevant for case in cases], depth=k), k)
            assert board.figures(setting, name) == pytest.approx(oracle, abs=1e-12), (name, weights)


def test_settings_and_recipes_are_each_other():
    names = ("bm25", "vector")
    recipe = Fusion(
        mode="relative",
        weights={"bm25": 0.6, "vector": 0.4},
        gate=QualityGate(floor={"vector": 0.2}),
        spread=Spread(strength=0.6),
        boost=HalfLife(strength=0.05),
    )
    setting = read_setting(recipe, names)
    assert setting == Setting("relative", 60, (0.6, 0.4), (None, 0.2), spread=0.6, boost=0.05)
    assert with_setting(recipe, setting, names) == recipe
    bare = with_setting(recipe, Setting("rrf", 5.0, (1.0, 0.0), (None, None)), names)
    assert bare == Fusion(mode="rrf", c=5.0, weights={"bm25": 1.0, "vector": 0.0})
    kept = with_setting(replace(recipe, boost=Competition()), setting, names)
    assert kept.boost == Competition()
    assert read_setting(kept, names).boost == 0.0


def test_arms_without_scores_count_by_rank():
    record = Recorded([ArmList("a", ITEMS[:3]), ArmList("b", [])], Rows())
    recipe = Fusion(mode="convex", weights=(1.0, 0.0))
    columns = read_columns([record], [Case("q", {"m2": 1.0})], recipe=recipe)
    board = Board(columns, [Case("q", {"m2": 1.0})], recipe=recipe)
    assert board.figures(read_setting(recipe, columns.names), "mrr@10").tolist() == [1 / 3]


def test_of_equal_seeds_the_first_is_taken():
    scores = np.array([[0.5, 0.0, 0.5, 0.5], [0.1, 0.9, 0.2, 0.0]])
    assert _top(scores, 2).tolist() == [[True, False, True, False], [False, True, True, False]]
    assert _top(scores, 9).tolist() == [[True, False, True, True], [True, True, True, False]]
