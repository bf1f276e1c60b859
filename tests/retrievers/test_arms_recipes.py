"""Short settings make the recipe they say."""

from datetime import timedelta

import pytest

from hybridmem.errors import ConfigError
from hybridmem.fusion.recipe import Fusion
from hybridmem.fusion.stages import Competition, HalfLife, QualityGate, SourceDedup
from hybridmem.retrievers.arms import make_recipe

FULL = Fusion(gate=QualityGate(floor=1.0), dedup=SourceDedup(), boost=HalfLife(half_life=7, strength=0.1))


def test_nothing_said_leaves_the_recipe_as_it_is():
    assert make_recipe() == Fusion()
    assert make_recipe(FULL) == FULL
    assert make_recipe("rrf") == Fusion()
    assert make_recipe({"c": 7}) == Fusion(c=7)


def test_a_gate_names_only_arms_that_there_are():
    assert make_recipe(gate={"a": 1.0}, arms=["a"]).gate == QualityGate(floor={"a": 1.0})
    assert make_recipe(FULL, gate=True, arms=["a"]).gate == QualityGate(floor={"bm25": 1.0, "vector": 0.5})
    assert make_recipe(Fusion(gate=QualityGate(floor={"b": 1.0})), arms=["a"]).gate == QualityGate(floor={"b": 1.0})
    with pytest.raises(ConfigError, match="unknown arm 'b': the arms are 'a'"):
        make_recipe(gate={"b": 1.0}, arms=["a"])


def test_false_switches_a_part_off():
    assert make_recipe(FULL, gate=False, dedup=False, half_life=False) == Fusion()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"mode": "relative"}, Fusion(mode="relative")),
        ({"weights": [1, 2]}, Fusion(weights=(1, 2))),
        ({"weights": {"a": 1}}, Fusion(weights={"a": 1})),
        ({"c": 0}, Fusion(c=0)),
        ({"gate": 0.5}, Fusion(gate=QualityGate(floor=0.5))),
        ({"gate": 0}, Fusion(gate=QualityGate(floor=0))),
        ({"gate": {"bm25": 2.0}}, Fusion(gate=QualityGate(floor={"bm25": 2.0}))),
        ({"gate": True}, Fusion(gate=QualityGate(floor={"bm25": 1.0, "vector": 0.5}))),
        ({"gate": QualityGate(relative=0.5)}, Fusion(gate=QualityGate(relative=0.5))),
        ({"dedup": True}, Fusion(dedup=SourceDedup())),
        ({"dedup": "url"}, Fusion(dedup=SourceDedup(key="url"))),
        ({"dedup": len}, Fusion(dedup=SourceDedup(key=len))),
        ({"dedup": SourceDedup(max_per_source=2)}, Fusion(dedup=SourceDedup(max_per_source=2))),
        ({"half_life": True}, Fusion(boost=HalfLife())),
        ({"half_life": 7}, Fusion(boost=HalfLife(half_life=7))),
        ({"half_life": timedelta(days=7)}, Fusion(boost=HalfLife(half_life=7))),
        ({"half_life": HalfLife(strength=0.1)}, Fusion(boost=HalfLife(strength=0.1))),
        ({"half_life": Competition()}, Fusion(boost=Competition())),
    ],
)
def test_each_setting_says_one_part(said, expected):
    assert make_recipe(**said) == expected


def test_a_half_life_keeps_the_recipes_strength():
    assert make_recipe(FULL, half_life=30).boost == HalfLife(half_life=30, strength=0.1)


@pytest.mark.parametrize(
    "bad",
    [
        {"mode": "sum"},
        {"weights": ["a"]},
        {"weights": 3},
        {"c": "many"},
        {"c": -1},
        {"gate": "high"},
        {"dedup": 3},
        {"half_life": 0},
        {"half_life": "soon"},
    ],
)
def test_a_setting_that_makes_no_recipe_is_a_config_error(bad):
    with pytest.raises(ConfigError):
        make_recipe(**bad)
