import json
import random
from dataclasses import replace

import pytest

from hybridmem.core.types import ArmList
from hybridmem.errors import ConfigError
from hybridmem.evaluation.evaluate import Case
from hybridmem.evaluation.recording import Curve, Recorded
from hybridmem.evaluation.tuning.tune import Tuning, simplex, tune
from hybridmem.evaluation.tuning.vectorized import Setting, changes
from hybridmem.fusion.recipe import Fusion, load_recipe
from hybridmem.fusion.stages import HalfLife, QualityGate
from hybridmem.fusion.stages.evidence import PARTS
from hybridmem.memory.memory import HybridMemory


class Keys:
    """Items are their own keys; they have no fields."""

    def keys(self, items):
        return list(items)

    def column(self, items, name):
        return [None] * len(items)


def good_and_bad(cases=40, seed=0):
    """One arm that knows the answer and one that knows nothing: any weight for the second is noise."""
    rng = random.Random(seed)
    rows, asked = {}, []
    for number in range(cases):
        query, right = f"q{number}", f"d{number}"
        noise = [f"n{number}-{place}" for place in range(12)]
        good = [right if place == number % 3 else f"g{number}-{place}" for place in range(12)]
        bad = rng.sample(noise, 12)
        rows[query] = Recorded(
            [
                ArmList("good", good, [12.0 - place for place in range(12)]),
                ArmList("bad", bad, [0.9 - place / 100 for place in range(12)]),
            ],
            Keys(),
        )
        asked.append(Case(query, {right: 1.0}))
    return (lambda case: rows[case.query]), asked


def test_a_real_gain_is_found_and_accepted():
    source, cases = good_and_bad()
    found = tune(source, cases, recipe=Fusion(weights={"good": 0.2, "bad": 0.8}), repeats=1)
    assert found.accepted
    assert found.recipe == found.proposed
    assert found.gain.low > 0
    assert found.chance < 0.005
    # only the good arm counts: its answer stands at 1, 2 and 3 in turn
    assert found.after == pytest.approx(found.arms["good"], abs=0.02)
    assert found.arms["bad"] == 0.0
    weights = found.recipe.weights
    assert weights["good"] > weights["bad"]
    assert any(change.startswith("weight of good: 0.2 →") for change in found.changes)
    assert "accepted: a held-out gain of +" in str(found)
    assert found.to_dict()["accepted"] is True
    assert len(found.picks) == 5


def test_the_same_seed_gives_the_same_answer():
    source, cases = good_and_bad()
    recipe = Fusion(weights={"good": 0.2, "bad": 0.8})
    one, two = (tune(source, cases, recipe=recipe, seed=3) for _ in range(2))
    assert replace(one, seconds=0.0) == replace(two, seconds=0.0)


def test_a_tuned_recipe_says_how_deep_the_arms_were_asked():
    source, cases = good_and_bad()
    recipe = Fusion(weights={"good": 0.2, "bad": 0.8})
    assert tune(source, cases, recipe=recipe, repeats=1, depth=12).recipe.depth == 12
    assert tune(source, cases, recipe=recipe, repeats=1).recipe.depth is None
    best = Fusion(weights={"good": 1.0, "bad": 0.0})
    assert tune(source, cases, recipe=best, repeats=1, depth=12).recipe == best  # refused: it stays as it was


def test_what_is_already_best_is_left_alone():
    source, cases = good_and_bad()
    recipe = Fusion(weights={"good": 1.0, "bad": 0.0})
    found = tune(source, cases, recipe=recipe, repeats=1)
    assert not found.accepted
    assert found.recipe == recipe
    assert found.gain.mean == 0.0
    assert found.changes == ()
    assert "refused" in str(found)
    assert "good alone is as good" in str(found)


def test_shuffled_labels_are_refused():
    refused = 0
    for seed in range(20):
        source, cases = good_and_bad(20, seed)
        labels = [case.relevant for case in cases]
        random.Random(seed).shuffle(labels)
        shuffled = [replace(case, relevant=label) for case, label in zip(cases, labels, strict=True)]
        found = tune(source, shuffled, recipe=Fusion(weights={"good": 0.5, "bad": 0.5}), folds=4, repeats=1, seed=seed)
        refused += not found.accepted
    assert refused >= 19


def test_noise_in_every_direction_is_refused():
    """Labels drawn from the candidates themselves: settings do move the figures, but only by chance."""
    refused = 0
    for seed in range(20):
        source, cases = good_and_bad(20, seed)
        rng = random.Random(seed)
        drawn = []
        for case in cases:
            record = source(case)
            everything = [*record.lists[0].items, *record.lists[1].items]
            drawn.append(replace(case, relevant={rng.choice(everything): 1.0}))
        found = tune(source, drawn, recipe=Fusion(weights={"good": 0.5, "bad": 0.5}), folds=4, repeats=1, seed=seed)
        refused += not found.accepted
    assert refused >= 19


def test_saved_recipes_are_read_back(tmp_path):
    source, cases = good_and_bad()
    path = tmp_path / "recipe.json"
    found = tune(source, cases, recipe=Fusion(weights={"good": 0.2, "bad": 0.8}), repeats=1)
    found.save(path)
    assert load_recipe(path) == found.recipe
    refused = replace(found, accepted=False)
    with pytest.raises(ConfigError, match="refused: a held-out gain of"):
        refused.save(path)
    refused.save(path, force=True)
    assert isinstance(refused, Tuning)


def vectors(texts):
    """Letters counted: enough to tell texts apart."""
    return [[1.0 + text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]


TOPICS = ["Lisbon", "Oslo", "Quito", "Hanoi", "Perth", "Dakar", "Lima", "Cairo"]


def small_memory(**settings):
    memory = HybridMemory(embedder=vectors, **settings)
    for number, town in enumerate(TOPICS):
        day = f"2024-0{number + 1}-01"
        memory.add(f"Have you been to {town}?", id=f"q{number}", thread=town, created_at=day)
        memory.add(f"Yes, the harbour there was closed {number} days.", id=f"a{number}", thread=town, created_at=day)
    cases = [Case(f"How was {town}?", {f"a{number}": 1.0}) for number, town in enumerate(TOPICS)]
    return memory, cases


def test_a_memory_is_tuned_from_its_arms():
    memory, cases = small_memory(b=0.75)
    seen = []
    with memory:
        found = tune(memory, cases, folds=2, repeats=1, progress=lambda done, total: seen.append((done, total)))
    assert set(found.arms) == {"bm25", "vector"}
    assert found.settings > 100
    totals = {total for _, total in seen}
    assert totals == {2 * len(cases)}  # half of it for recording, half for searching
    counts = [done for done, _ in seen]
    assert counts[: len(cases)] == list(range(1, len(cases) + 1))
    assert counts == sorted(counts)
    assert len(set(counts[len(cases) :])) > 3  # the searches tell of themselves too
    assert counts[-1] == 2 * len(cases)
    assert isinstance(found.curve, Curve)
    json.dumps(found.to_dict())


def test_curves_are_tried_and_written_down(tmp_path):
    """Only b = 0 keeps the long answer above the short noise."""
    memory = HybridMemory(embedder=None)
    with memory:
        for number in range(16):
            memory.add(f"harbour{number} " * 2 + "and much more to say about it " * 12, id=f"long{number}")
            memory.add(f"harbour{number} harbour{number} short", id=f"short{number}")
        cases = [Case(f"harbour{number}", {f"long{number}": 1.0}) for number in range(16)]
        found = tune(
            memory, cases, recipe=Fusion(), metric="mrr@10", repeats=1, curves=[Curve(1.2, 0.0), Curve(1.2, 1.0)]
        )
        assert not found.accepted  # the order stays: at b = 0 the two are equal, and the short one has the smaller id
    path = tmp_path / "recipe.json"
    replace(found, proposed=replace(found.proposed, k1=0.9, b=0.4)).save(path, force=True)
    with HybridMemory(embedder=None, recipe=path) as opened:
        assert (opened._engine.settings.k1, opened._engine.settings.b) == (0.9, 0.4)
    with HybridMemory(embedder=None, recipe=path, b=0.5) as opened:
        assert (opened._engine.settings.k1, opened._engine.settings.b) == (0.9, 0.5)


def test_every_change_is_named():
    old = Setting("relative", 60, (0.5, 0.5), (None, 0.2), spread=0.6, boost=0.05)
    evidence = tuple(0.4 if part == "thread" else 0.0 for part in PARTS)
    new = Setting("rrf", 10, (0.6, 0.4), (1.0, None), spread=0.2, hops=1, decay=0.75, evidence=evidence, lexical=1)
    assert list(changes(old, new, ("bm25", "vector"), [Curve(1.2, 0.75), Curve(0.9, 0.4)])) == [
        "mode: relative → rrf (c=10)",
        "weight of bm25: 0.5 → 0.6",
        "floor of bm25: none → 1",
        "weight of vector: 0.5 → 0.4",
        "floor of vector: 0.2 → none",
        "spread: 0.6 → 0.2",
        "hops: 2 → 1",
        "decay of a hop: 0.5 → 0.75",
        "half-life strength: 0.05 → 0",
        "thread evidence: 0 → 0.4",
        "BM25: k1=1.2, b=0.75 → k1=0.9, b=0.4",
    ]


def test_weights_to_try():
    assert simplex(1) == [(1.0,)]
    assert len(simplex(2)) == 21
    assert len(simplex(3)) == 66
    assert all(sum(weights) == pytest.approx(1.0) for arms in (1, 2, 3, 4) for weights in simplex(arms))


def test_bad_input():
    source, cases = good_and_bad(6)
    with pytest.raises(ConfigError, match="6 cases with relevant ids are too few for folds=5: give at least 10"):
        tune(source, cases, recipe=Fusion())
    with pytest.raises(ConfigError, match="folds = 1 is not allowed"):
        tune(source, cases, recipe=Fusion(), folds=1)
    with pytest.raises(ConfigError, match="cannot tune"):
        tune(source, cases * 3)
    with pytest.raises(ConfigError, match="cannot tune 3"):
        tune(3, cases * 3, recipe=Fusion())
    with pytest.raises(ConfigError, match="metric 'precision@3'"):
        tune(source, cases * 3, recipe=Fusion(), metric="precision@3")
    with pytest.raises(ConfigError, match="repeats = 0"):
        tune(source, cases * 3, recipe=Fusion(), repeats=0)
    with pytest.raises(ConfigError, match=r"level = 1\.5"):
        tune(source, cases * 3, recipe=Fusion(), level=1.5)


def test_gates_and_boosts_of_the_start_are_kept_where_nothing_changes():
    source, cases = good_and_bad(20)
    recipe = Fusion(
        weights={"good": 1.0, "bad": 0.0}, gate=QualityGate(relative=0.1), boost=HalfLife(strength=0.05), depth=50
    )
    assert tune(source, cases, recipe=recipe, repeats=1).recipe == recipe
