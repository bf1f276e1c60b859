"""Controls of the inspector page: what is offered for a recipe, and the recipe that the page's values make."""

import pytest

from hybridmem import Competition, Fusion, HalfLife, QualityGate, Rerank, SourceDedup, Spread
from hybridmem.errors import ConfigError
from hybridmem.fusion.recipe import RECIPES, SLOTS, recipe_to_dict
from hybridmem.server.controls import changed_recipe, control_groups, python_source

ARMS = ("bm25", "vector")


def controls(recipe, arms=ARMS):
    return {control["path"]: control for group in control_groups(recipe, arms) for control in group["controls"]}


def test_groups_follow_the_table_of_slots():
    groups = control_groups(Fusion(), ARMS)
    expected = [slot.name for slot in SLOTS if slot.types and slot.in_file and slot.name != "pack"]
    assert [group["id"] for group in groups] == ["merge", *expected]
    assert {group["id"]: group["help"] for group in groups[1:]} == {
        slot.name: f"{slot.doc}." for slot in SLOTS if slot.name in expected
    }
    assert not any(group["on"] for group in groups[1:])


def test_only_what_has_an_effect_under_the_mode_is_offered():
    assert "c" in controls(Fusion())
    assert "smooth" not in controls(Fusion())
    assert "c" not in controls(Fusion(mode="relative"))
    assert "smooth" in controls(Fusion(mode="relative"))
    assert "boost/strength" not in controls(Fusion())
    assert controls(Fusion(boost=HalfLife(strength=0.05)))["boost/strength"]["value"] == 0.05
    assert controls(Fusion(boost=HalfLife()))["boost/kind"]["options"] == ["HalfLife", "Competition"]
    assert {"weights/bm25", "omit_speakers"} <= set(controls(Fusion()))
    assert not {"weights/bm25", "omit_speakers"} & set(controls(Fusion(), ("bm25",)))  # one arm, no vectors


def test_a_slider_reaches_its_value():
    assert controls(Fusion(c=500))["c"]["max"] == 500
    fine = controls(Fusion(boost=HalfLife(strength=0.033)))["boost/strength"]
    assert fine["step"] == 0.001
    floors = controls(Fusion(gate=QualityGate(floor={"vector": 0.2})))
    assert (floors["gate/floor/bm25"]["value"], floors["gate/floor/bm25"]["max"]) == (0.0, 20.0)
    assert (floors["gate/floor/vector"]["value"], floors["gate/floor/vector"]["max"]) == (0.2, 1)
    assert controls(Fusion(weights=(3.0, 1.0)))["weights/bm25"]["value"] == 3.0


def test_no_change_gives_the_same_recipe():
    for recipe in RECIPES.values():
        assert changed_recipe(recipe, {}, ARMS) == recipe
        same = {path: control["value"] for path, control in controls(recipe).items()}
        again = changed_recipe(recipe, same, ARMS)
        assert [group["controls"] for group in control_groups(again, ARMS)] == [
            group["controls"] for group in control_groups(recipe, ARMS)
        ]


def test_changes_are_applied_by_their_paths():
    recipe = Fusion(weights={"bm25": 0.25, "vector": 0.75})
    changed = changed_recipe(
        recipe,
        {
            "spread/strength": 0.4,  # before the switch in the alphabet of a page, after it when it is applied
            "spread": True,
            "weights/bm25": 0.5,
            "mode": "convex",
            "gate": True,
            "gate/floor/vector": 0.3,
            "boost": True,
            "boost/kind": "Competition",
            "boost/half_life": 3,  # left over from the other kind
            "diversity/balance": 0.2,  # the slot is off
        },
        ARMS,
    )
    assert changed == Fusion(
        mode="convex",
        weights={"bm25": 0.5, "vector": 0.75},
        gate=QualityGate(floor={"vector": 0.3}),
        spread=Spread(strength=0.4),
        boost=Competition(),
    )
    assert changed_recipe(Fusion(dedup=SourceDedup()), {"dedup": False}, ARMS).dedup is None
    one = changed_recipe(Fusion(gate=QualityGate(floor=1.0)), {"gate/floor/bm25": 0}, ARMS)
    assert one.gate.floor == {"vector": 1.0}
    assert changed_recipe(Fusion(weights=(1, 3)), {"weights/vector": 1}, ARMS).weights_for(ARMS) == [0.5, 0.5]


@pytest.mark.parametrize(
    "changes",
    [
        {"nothing": 1},
        {"mode": "sum"},
        {"mode/x": "rrf"},
        {"weights/nobody": 1},
        {"weights/bm25": "many"},
        {"weights/bm25": 0, "weights/vector": 0},
        {"spread": "yes"},
        {"boost": True, "boost/kind": "Nonsense"},
        {"gate": True, "gate/floor/bm25": None},
        {"spread": True, "spread/hops": 0},
    ],
)
def test_what_makes_no_recipe_is_refused(changes):
    with pytest.raises(ConfigError):
        changed_recipe(Fusion(), changes, ARMS)


@pytest.mark.parametrize("name", list(RECIPES))
def test_python_code_makes_the_same_recipe(name):
    scope = {}
    exec(python_source(RECIPES[name]), scope)
    assert scope["recipe"] == RECIPES[name]


def test_a_recipe_with_functions_is_not_written_as_code():
    with pytest.raises(ConfigError, match="function"):
        python_source(Fusion(rerank=Rerank(scorer=lambda query, texts: [1.0] * len(texts))))
    with pytest.raises(ConfigError, match="function"):
        python_source(Fusion(extra=(lambda ranking, context: ranking,)))
    assert recipe_to_dict(Fusion(c=20)) == {"hybridmem": 1, "c": 20}
