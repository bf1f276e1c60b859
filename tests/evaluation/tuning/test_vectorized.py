"""The vectorized ranking equals `Fusion.run` on random lists, pools, graphs and recipes."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmem.core.types import ArmList, Candidates, MentionLink, SharedName
from hybridmem.evaluation.evaluate import Case
from hybridmem.evaluation.metrics import judge, metric
from hybridmem.evaluation.recording import Recorded, replay
from hybridmem.evaluation.tuning.candidates import Edges, Walks, possible_seeds, read_candidates, read_columns
from hybridmem.evaluation.tuning.vectorized import Setting, VectorizedRanking, _top, read_setting, with_setting
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import Competition, Evidence, HalfLife, QualityGate, SourceDedup, Spread
from hybridmem.fusion.stages.base import Pool

DAY = 86_400.0
NOW = 1_700_000_000.0
ITEMS = [
    {
        "id": f"m{number}",
        "source_id": [None, "s1", "s2"][number % 3],
        "thread": [None, "t1"][number % 2],
        "speaker": [None, "ana", "ben"][number % 3],
        "cues": number % 8,
        "updated_at": {3: True, 4: None, 6: 1}.get(number, NOW - number * 9 * DAY),
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
            for hop in range(1, hops + 1 if value > 0 else 1):
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
    lists = [draw(arms("bm25")), draw(arms("vector"))._replace(baseline=draw(st.sampled_from([0.0, 0.5])))]
    return Recorded(lists, Rows(), graph, NOW, draw(pools(lists)) if draw(st.booleans()) else None)


@st.composite
def pools(draw, lists):
    """Everything that an arm lists or knows, with a few more: some have neighbours, some a turn before them."""
    listed = [item["id"] for arm in lists for item in arm.items]
    ids = list(dict.fromkeys([*listed, *(f"m{number}" for number in draw(st.lists(numbers, max_size=3)))]))
    places = st.integers(-1, len(ids) - 1)
    window = [draw(st.sampled_from([0.0, 0.7, 5.0, math.nan])) for _ in ids]
    columns = Candidates(
        ids,
        {arm.name: [(arm.known or {}).get(key, 0.0) for key in ids] for arm in lists},
        {arm.name: arm.baseline for arm in lists},
        window=window if draw(st.booleans()) else None,
        previous=[draw(places) for _ in ids] if draw(st.booleans()) else None,
        mentions=[MentionLink(0, len(ids) - 1, 0.6, "m"), MentionLink(-1, 0, 0.3, "n")]
        if len(ids) > 1 and draw(st.booleans())
        else (),
        shared=[SharedName("s", 0.7, range(len(ids)))] if len(ids) > 1 and draw(st.booleans()) else (),
    )
    return Pool([BY_KEY[key] for key in ids], columns, draw(st.sampled_from([None, {"ana": 3}, {}])))


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
        spread=draw(
            st.sampled_from(
                [
                    None,
                    Spread(strength=0.6, seeds=3),
                    Spread(strength=0.5),
                    Spread(strength=1.2, seeds=1, hops=1, decay=0.75),
                ]
            )
        ),
        dedup=draw(
            st.sampled_from(
                [
                    None,
                    SourceDedup(),
                    SourceDedup(key=lambda item: item["source_id"]),
                    SourceDedup(max_per_source=2),
                ]
            )
        ),
        boost=draw(st.sampled_from([None, HalfLife(strength=0.3), HalfLife(half_life=40_000.0)])),
        evidence=draw(st.sampled_from([None, Evidence(), Evidence(window=0.7, thread=0.0), Evidence(thread=2.0)])),
    )


def ties(columns, cases, recipe, setting):
    """Which cases have equal scores before spreading or dedup: then either of two may be a seed or be kept."""
    plain = VectorizedRanking(columns, cases, recipe=replace(recipe, dedup=None))
    undecided = [False] * len(cases)
    for spread in (0.0, setting.spread):
        for row, scores in enumerate(plain.scores(replace(setting, boost=0.0, spread=spread))):
            rounded = [round(float(score), 9) for score in scores if np.isfinite(score)]
            undecided[row] |= len(set(rounded)) < len(rounded)
    return undecided


QUESTION = "When did Ana call, on 14 November 2023?"


@settings(max_examples=35, deadline=None)
@given(st.lists(recorded(), min_size=1, max_size=3), recipes())
def test_scores_are_those_of_the_recipe(records, recipe):
    cases = [Case(QUESTION, {"m1": 1.0, "m5": 2.0}) for _ in records]
    columns = read_columns(records, cases, recipe=recipe)
    board = VectorizedRanking(columns, cases, recipe=recipe)
    setting = read_setting(recipe, columns.names)
    found, undecided = board.scores(setting), ties(columns, cases, recipe, setting)
    for row, record in enumerate(records):
        if undecided[row]:
            continue
        ranking = with_weights(recipe, record).run(
            record.lists, reader=record.reader, query=QUESTION, now=NOW, graph=record.graph, pool=record.pool
        )
        expected = dict(zip(ranking.keys, ranking.scores, strict=True))
        mine = {key: score for key, score in zip(columns.keys[row], found[row], strict=False) if np.isfinite(score)}
        assert mine.keys() == expected.keys()
        assert mine == pytest.approx(expected, abs=1e-9)


settings_to_try = st.builds(
    Setting,
    mode=st.sampled_from(["rrf", "relative", "distribution", "convex"]),
    c=st.sampled_from([1.0, 20.0]),
    weights=st.sampled_from([(0.3, 0.7), (0.55, 0.45), (0.0, 1.0)]),
    floors=st.sampled_from([(None, None), (2.0, None), (6.0, 5.0)]),
    spread=st.sampled_from([0.0, 0.37, 1.1]),
    evidence=st.sampled_from(
        [(0.0,) * 8, (0.2, 0.3, 0.1, 0.2, 0.4, 0.2, 0.3, 0.2), (0.0, 1.0, 0.5, 0.0, 0.0, 0.7, 0.0, 0.3)]
    ),
    hops=st.sampled_from([1, 2]),
    decay=st.sampled_from([0.25, 0.61]),
    boost=st.sampled_from([0.0, 0.17]),
)
SEEDS = 2


@settings(max_examples=40, deadline=None)
@given(st.lists(recorded(), min_size=1, max_size=3), st.lists(settings_to_try, min_size=1, max_size=4), st.booleans())
def test_every_setting_puts_everything_where_the_fusion_puts_it(records, tried, complete):
    """One board, many settings in turn, as a search uses it: what is kept between them must not leak."""
    recipe = Fusion(
        mode="relative",
        complete=complete,
        smooth=True,
        spread=Spread(seeds=SEEDS),
        dedup=SourceDedup(),
        evidence=Evidence(),
    )
    cases = [Case(QUESTION, {item["id"]: 1.0 for item in ITEMS}) for _ in records]
    columns = read_columns(records, cases, recipe=recipe)
    board = VectorizedRanking(columns, cases, recipe=recipe)
    for setting in [*tried, *reversed(tried)]:
        changed = with_setting(recipe, setting, columns.names)
        lists = [replay(changed, record, query=QUESTION, k=99) for record in records]
        scores, found = board.scores(setting), iter(board.ranks(setting).tolist())
        undecided = ties(columns, cases, recipe, setting)
        for row, keys in enumerate(columns.keys):
            oracle = {key: place for place, key in enumerate(lists[row], start=1)}
            mine = {key: next(found) for key in keys}
            if undecided[row]:
                continue
            assert {key for key, place in mine.items() if np.isfinite(place)} == oracle.keys()
            if len({round(float(score), 9) for score in scores[row] if np.isfinite(score)}) == len(oracle):  # no ties
                assert {key: place for key, place in mine.items() if np.isfinite(place)} == oracle


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 12), st.integers(1, 4))
def test_who_is_no_possible_seed_is_never_among_the_best(data, arms, size, seeds):
    """Whatever the weights: at least `seeds` others stand above it."""
    numbers = st.lists(st.integers(0, 4), min_size=size, max_size=size)
    raw = np.array([data.draw(numbers) for _ in range(arms)], dtype=np.float64)
    rank = np.stack([np.argsort(np.argsort(-row, kind="stable"), kind="stable") + 1.0 for row in raw])
    able = possible_seeds(raw, rank, seeds=seeds)
    weights = np.array(data.draw(st.lists(st.floats(0.01, 1.0), min_size=arms, max_size=arms)))
    for scores in (weights @ raw, weights @ (1.0 / (60.0 + rank))):
        above = (scores[:, None] >= scores[None, :] - 1e-12).sum(axis=0) - 1
        assert able[above < seeds].all()


def test_what_not_every_arm_lists_may_be_a_seed_of_a_pool():
    """A gate removes only what arms with a weight list, so m3 stays when it removes the three that beat it."""
    items = ITEMS[:4]
    lists = [ArmList("bm25", items[:3], [4.0, 3.0, 2.0]), ArmList("vector", items, [4.0, 3.0, 2.0, 1.0])]
    scores = {"bm25": [4.0, 3.0, 2.0, 1.0], "vector": [4.0, 3.0, 2.0, 1.0]}
    pool = Pool(items, Candidates([item["id"] for item in items], scores, {"bm25": 0.0, "vector": 0.0}))
    record = Recorded(lists, Rows(), Ring(), NOW, pool)
    spread = Fusion(mode="relative", complete=True, spread=Spread(seeds=3))
    assert "m3" in read_candidates(record, spread, Walks(2)).reached
    assert "m3" not in read_candidates(record, replace(spread, complete=False), Walks(2)).reached


def test_hops_and_decay_are_turned_without_asking_again():
    graph, walks = Ring(), Walks(3)
    ways = dict(zip(*walks.of(graph, "m1"), strict=True))
    edges = Edges(np.arange(3), np.arange(3), np.array([ways[f"m{n}"] for n in (2, 3, 4)]).T)
    for hops in (1, 2, 3):
        for decay in (0.25, 0.5, 1.0):
            direct = graph.spread({"m1": 1.0}, hops=hops, decay=decay)
            assert edges.values(hops, decay).tolist() == [direct.get(f"m{n}", 0.0) for n in (2, 3, 4)]


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
    recipe = Fusion(
        mode="relative", spread=Spread(strength=0.4), evidence=Evidence(thread=0.2), boost=HalfLife(strength=0.1)
    )
    columns = read_columns(records, cases, recipe=recipe)
    board = VectorizedRanking(columns, cases, recipe=recipe)
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
    board = VectorizedRanking(columns, [Case("q", {"m2": 1.0})], recipe=recipe)
    assert board.figures(read_setting(recipe, columns.names), "mrr@10").tolist() == [1 / 3]


def test_of_equal_seeds_the_first_is_taken():
    scores = np.array([[0.5, 0.0, 0.5, 0.5], [0.1, 0.9, 0.2, 0.0]])
    assert _top(scores, 2).tolist() == [[True, False, True, False], [False, True, True, False]]
    assert _top(scores, 9).tolist() == [[True, False, True, True], [True, True, True, False]]
