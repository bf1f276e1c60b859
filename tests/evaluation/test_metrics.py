import math

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridmem.errors import ConfigError
from hybridmem.evaluation.metrics import bootstrap_means, hit, interval, judge, metric, mrr, ndcg, recall, sign_flip

ids = st.sampled_from([f"d{number}" for number in range(30)])
lists = st.lists(ids, unique=True, max_size=25)
grades = st.dictionaries(ids, st.integers(0, 3), min_size=1, max_size=15)


def test_worked_example():
    judged = judge([["x", "a", "y", "b"]], [{"a": 1.0, "b": 2.0, "c": 1.0, "d": 0.0}], depth=4)
    assert recall(judged, 1).tolist() == [0.0]
    assert recall(judged, 2).tolist() == [1 / 3]
    assert recall(judged, 4).tolist() == [2 / 3]
    assert hit(judged, 1).tolist() == [0.0]
    assert hit(judged, 2).tolist() == [1.0]
    assert mrr(judged, 1).tolist() == [0.0]
    assert mrr(judged, 4).tolist() == [1 / 2]
    gained = 1 / math.log2(3) + 2 / math.log2(5)
    best = 2 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)
    assert ndcg(judged, 4) == pytest.approx([gained / best], abs=1e-12)


def test_a_repeated_id_counts_once_at_its_first_place():
    judged = judge([["a", "a", "b"]], [{"a": 1.0, "b": 1.0}], depth=3)
    assert judged.grades.tolist() == [[1.0, 1.0, 0.0]]


def test_nothing_relevant_is_zero_not_an_error():
    judged = judge([["a"], []], [{}, {"a": -1.0}], depth=5)
    for measure in (recall, hit, mrr, ndcg):
        assert measure(judged, 5).tolist() == [0.0, 0.0]


def test_no_cases():
    judged = judge([], [], depth=5)
    for measure in (recall, hit, mrr, ndcg):
        assert measure(judged, 5).tolist() == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(lists, grades), min_size=1, max_size=6), st.sampled_from([1, 3, 5, 10, 20]))
def test_equal_to_trec_eval(pairs, k):
    pairs = [(ranked, graded) for ranked, graded in pairs if any(graded.values())]
    if not pairs:
        return
    qrels = {str(number): graded for number, (_, graded) in enumerate(pairs)}
    run = {
        str(number): {key: float(-rank) for rank, key in enumerate(ranked[:k])} or {"nothing": 0.0}
        for number, (ranked, _) in enumerate(pairs)
    }
    expected = pytrec_eval.RelevanceEvaluator(qrels, {f"recall.{k}", f"ndcg_cut.{k}", "recip_rank", f"success.{k}"})
    figures = expected.evaluate(run)
    judged = judge([ranked for ranked, _ in pairs], [graded for _, graded in pairs], depth=20)
    for name, measure in ((f"recall_{k}", recall), (f"ndcg_cut_{k}", ndcg), ("recip_rank", mrr), (f"success_{k}", hit)):
        oracle = [figures[str(number)][name] for number in range(len(pairs))]
        assert measure(judged, k) == pytest.approx(oracle, abs=1e-9), name


def test_counts_must_agree():
    with pytest.raises(ConfigError, match="2 lists for 1 cases"):
        judge([[], []], [{}], depth=1)


@pytest.mark.parametrize("name", ["recall", "recall@", "recall@0", "recall@-1", "precision@5", "recall@x"])
def test_unknown_metric(name):
    with pytest.raises(ConfigError, match="recall, hit, mrr, ndcg"):
        metric(name)


def test_bootstrap_is_seeded_paired_and_near_the_normal_interval():
    rng = np.random.default_rng(7)
    values = rng.random((400, 2))
    drawn = bootstrap_means(values, resamples=1000, seed=3)
    assert drawn.shape == (1000, 2)
    assert np.array_equal(drawn, bootstrap_means(values, resamples=1000, seed=3))
    assert not np.array_equal(drawn, bootstrap_means(values, resamples=1000, seed=4))
    found = interval(values[:, 0], resamples=4000)
    spread = 1.96 * values[:, 0].std() / math.sqrt(400)
    assert found.mean == pytest.approx(values[:, 0].mean())
    assert found.high - found.mean == pytest.approx(spread, rel=0.15)
    assert found.mean - found.low == pytest.approx(spread, rel=0.15)
    # equal columns move together: their difference never leaves zero
    twins = bootstrap_means(np.column_stack([values[:, 0], values[:, 0]]), resamples=50)
    assert np.array_equal(twins[:, 0], twins[:, 1])


def test_bootstrap_in_pieces_equals_its_size(monkeypatch):
    monkeypatch.setattr("hybridmem.evaluation.metrics._CHUNK", 10)
    drawn = bootstrap_means(np.ones(7), resamples=5)
    assert drawn.tolist() == [[1.0]] * 5


def test_significance():
    assert interval(np.full(30, 0.2)).significant
    assert interval(np.full(30, -0.2)).significant
    assert not interval(np.array([0.2, -0.2] * 15)).significant
    with pytest.raises(ConfigError, match="no cases"):
        interval(np.array([]))


def test_sign_flip():
    assert sign_flip(np.zeros(10)) == 1.0
    assert sign_flip(np.array([])) == 1.0
    # four gains and no loss: only 1 of the 16 ways to set the signs reaches the sum
    assert sign_flip(np.array([0.0, 1.0, 1.0, 1.0, 1.0])) == pytest.approx(1 / 16, abs=0.01)
    assert sign_flip(np.array([1.0, -1.0])) == pytest.approx(3 / 4, abs=0.02)
    assert sign_flip(np.full(40, 0.1)) == 1 / 10_000
    assert sign_flip(np.full(40, -0.1)) == 1.0


def test_sign_flip_in_pieces(monkeypatch):
    monkeypatch.setattr("hybridmem.evaluation.metrics._CHUNK", 30)
    assert sign_flip(np.array([1.0, 1.0, 1.0]), resamples=999) == pytest.approx(1 / 8, abs=0.04)
