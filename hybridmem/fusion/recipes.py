"""Named recipes (`RECIPES`) and recipe files: loading, saving, conversion to JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from hybridmem.core import validation
from hybridmem.errors import ConfigError
from hybridmem.fusion.recipe import SLOTS, Fusion, Slot
from hybridmem.fusion.stages import Competition, Conflicts, Evidence, HalfLife, IdenticalTexts, SourceDedup, Spread

__all__ = ["RECIPES", "load_recipe", "recipe_from_dict", "recipe_to_dict", "save_recipe"]

FORMAT = 1
_NOT_IN_FILE = tuple(slot.name for slot in SLOTS if not slot.in_file)
_IN_FILE = tuple(item.name for item in fields(Fusion) if item.init and item.name not in _NOT_IN_FILE)
_STAGES = {slot.name: slot for slot in SLOTS if slot.in_file}

_DEFAULT = Fusion(
    mode="convex",
    weights={"bm25": 0.5, "vector": 0.5},
    depth=100,
    complete=True,
    omit_speakers=True,
    evidence=Evidence(),
    spread=Spread(strength=0.3),
    dedup=SourceDedup(fill=True),
    boost=HalfLife(strength=0.01),
    duplicates=IdenticalTexts(),
)
"""Tuned on the tuning parts of the evaluation sets; docs/quality.md reports the effect of each part."""

RECIPES: dict[str, Fusion] = {
    "rrf": Fusion(),
    "default": _DEFAULT,
    "competition": replace(_DEFAULT, boost=Competition(), conflicts=Conflicts()),
}


def load_recipe(recipe: str | Path | Mapping[str, Any] | Fusion, /) -> Fusion:
    """A recipe from its name, a file written by `save_recipe` or `hybridmem tune`, a dict, or as it is."""
    if isinstance(recipe, Fusion):
        return recipe
    if isinstance(recipe, Mapping):
        return recipe_from_dict(recipe)
    if isinstance(recipe, str) and recipe in RECIPES:
        return RECIPES[recipe]
    named = ", ".join(map(repr, RECIPES))
    if not isinstance(recipe, str | Path):
        raise ConfigError(f"recipe = {recipe!r} is not allowed: a Fusion, a dict, a file, or one of {named}")
    path = Path(recipe)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"recipe {str(recipe)!r} is neither a file nor a name: the names are {named}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"recipe file {str(path)!r} cannot be read: {error}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"recipe file {str(path)!r} cannot be read: it holds a {type(data).__name__}, not an object")
    return recipe_from_dict(data)


def save_recipe(recipe: Fusion, path: str | Path, /) -> None:
    """Write a recipe as JSON, to be read by `HybridMemory(recipe=path)` and both `FusionRetriever`s."""
    text = json.dumps(recipe_to_dict(recipe), indent=2) + "\n"
    place = validation.file_path("path", path, "the name of a file")
    try:
        Path(place).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"recipe file {place!r} cannot be written: {error}") from error


def recipe_to_dict(recipe: Fusion, /) -> dict[str, Any]:
    """The recipe as JSON-ready data, without defaults; a recipe that holds functions is refused."""
    if not isinstance(recipe, Fusion):
        validation.refuse("recipe", recipe, "a Fusion(…)")
    for name in _NOT_IN_FILE:
        if getattr(recipe, name):
            raise ConfigError(f"the recipe's {name!r} slot holds a function, which a file cannot: set it in code")
    data: dict[str, Any] = {"hybridmem": FORMAT}
    for item in fields(recipe):
        value = getattr(recipe, item.name)
        if item.name not in _IN_FILE or value == item.default:
            continue
        slot = _STAGES.get(item.name)
        data[item.name] = _plain(value) if slot is None else _stage_to_dict(slot, value)
    return data


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _stage_to_dict(slot: Slot, stage: Any) -> dict[str, Any]:
    if not is_dataclass(stage):
        raise ConfigError(f"the recipe's {slot.name!r} slot holds a function, which a file cannot: set it in code")
    data: dict[str, Any] = {"kind": type(stage).__name__} if len(slot.types) > 1 else {}
    for item in fields(stage):
        value = getattr(stage, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if value == default:
            continue
        if callable(value):
            raise ConfigError(f"{slot.name}.{item.name} is a function, which a file cannot hold: set it in code")
        data[item.name] = _plain(value)
    return data


def recipe_from_dict(data: Mapping[str, Any], /) -> Fusion:
    """A recipe from the data of `recipe_to_dict`; an unknown name is an error that lists the known ones."""
    given = dict(data)
    version = given.pop("hybridmem", FORMAT)
    if version != FORMAT:
        raise ConfigError(f"recipe format {version!r} is not known: this version reads {FORMAT}")
    for name, value in given.items():
        if name not in _IN_FILE:
            raise ConfigError(f"recipe has an unknown slot {name!r}: the slots are {', '.join(_IN_FILE)}")
        if name in _STAGES and isinstance(value, Mapping):
            given[name] = _stage_from_dict(_STAGES[name], value)
    if isinstance(given.get("weights"), list):
        given["weights"] = tuple(given["weights"])
    return Fusion(**given)


def _stage_from_dict(slot: Slot, data: Mapping[str, Any]) -> Any:
    types = {kind.__name__: kind for kind in slot.types}
    given = dict(data)
    name = given.pop("kind", next(iter(types)))
    if name not in types:
        raise ConfigError(f"{slot.name} kind {name!r} is not known: {', '.join(types)}")
    allowed = [item.name for item in fields(types[name])]
    for key in given:
        if key not in allowed:
            raise ConfigError(f"{slot.name} has an unknown setting {key!r}: the settings are {', '.join(allowed)}")
    return types[name](**given)
