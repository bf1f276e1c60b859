import json
from dataclasses import replace

import pytest

from hybridmem import (
    Competition,
    Conflicts,
    Diversity,
    Fusion,
    HalfLife,
    Pack,
    QualityGate,
    Rerank,
    SourceDedup,
    Spread,
    load_recipe,
    save_recipe,
)
from hybridmem.errors import ConfigError
from hybridmem.fusion.recipe import RECIPES, SLOTS, recipe_from_dict, recipe_to_dict

WHOLE = Fusion(
    mode="relative",
    weights={"bm25": 0.6, "vector": 0.4},
    c=10,
    depth=50,
    complete=True,
    gate=QualityGate(floor={"vector": 0.3}, relative=0.1, fallback=None),
    spread=Spread(strength=0.7),
    dedup=SourceDedup(max_per_source=2),
    boost=HalfLife(half_life=7.0, strength=0.2, max_shift=3),
    conflicts=Conflicts(factor=0.5),
    diversity=Diversity(balance=0.7),
    pack=Pack(tokens=100),
)


@pytest.mark.parametrize("recipe", [*RECIPES.values(), WHOLE, Fusion(weights=(0.2, 0.8)), Fusion(boost=Competition())])
def test_a_recipe_comes_back_from_its_file(recipe, tmp_path):
    save_recipe(recipe, tmp_path / "recipe.json")
    assert load_recipe(tmp_path / "recipe.json") == recipe
    assert load_recipe(str(tmp_path / "recipe.json")) == recipe
    assert recipe_from_dict(json.loads(json.dumps(recipe_to_dict(recipe)))) == recipe


def test_names_dicts_and_recipes_are_recipes():
    assert load_recipe("default") is RECIPES["default"]
    assert load_recipe({"mode": "convex"}) == Fusion(mode="convex")
    assert load_recipe(WHOLE) is WHOLE
    assert isinstance(RECIPES["competition"].boost, Competition)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"wieghts": {}}, "unknown slot 'wieghts': the slots are mode, weights"),
        ({"gate": {"flor": 1}}, "unknown setting 'flor': the settings are floor, relative, fallback"),
        ({"boost": {"kind": "Rocket"}}, "boost kind 'Rocket' is not known: HalfLife, Competition"),
        ({"hybridmem": 99}, "recipe format 99"),
        ({"mode": "sum"}, "mode 'sum'"),
    ],
)
def test_a_wrong_recipe_is_reported_with_what_is_allowed(data, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(data)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="neither a file nor a name: the names are 'rrf', 'default', 'competition'"):
        load_recipe("nowhere.json")
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_recipe(tmp_path / "bad.json")


def test_functions_cannot_be_written_down():
    for recipe in (
        Fusion(rerank=Rerank(scorer=lambda query, texts: [])),
        Fusion(extra=(lambda ranking, context: ranking,)),
        Fusion(dedup=SourceDedup(key=lambda item: item)),
        Fusion(boost=lambda ranking, context: ranking),
        replace(WHOLE, pack=Pack(tokens=5, counter=len)),
    ):
        with pytest.raises(ConfigError, match="function"):
            recipe_to_dict(recipe)


def test_what_is_no_recipe_is_refused(tmp_path):
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds a list, not an object"):
        load_recipe(tmp_path / "list.json")
    with pytest.raises(ConfigError, match=r"recipe = 5 is not allowed.*'default'"):
        load_recipe(5)


def test_files_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        save_recipe(WHOLE, tmp_path / "no folder" / "recipe.json")
    with pytest.raises(ConfigError, match="recipe = 'default' is not allowed"):
        save_recipe("default", tmp_path / "recipe.json")


def test_every_slot_is_documented_and_takes_stages_of_its_types_alone():
    names = [slot.name for slot in SLOTS]
    assert (names[0], names[-1]) == ("gate", "pack")  # docs/fusion.md has the whole order, and a test compares it
    assert [slot.name for slot in SLOTS if not slot.in_file] == ["extra", "rerank"]
    assert all(slot.doc for slot in SLOTS)
    for slot in SLOTS:
        with pytest.raises(ConfigError, match=slot.name):
            Fusion(**{slot.name: 5})
        assert slot.types or slot.many
