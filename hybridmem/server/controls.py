"""A recipe as the controls of a page: groups of switches and sliders, derived from the recipe's table of slots.

A control has a path: `mode`, `weights/bm25`, `spread`, `spread/strength`, `gate/floor/vector`. The page sends the
values that differ from the recipe by these paths, and `changed_recipe` applies them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, NamedTuple

from hybridmem.core import validation
from hybridmem.errors import ConfigError
from hybridmem.fusion.recipe import MODES, SLOTS, Fusion, Slot

__all__ = ["changed_recipe", "control_groups", "python_source"]

_SLOTS = {slot.name: slot for slot in SLOTS if slot.types and slot.in_file and slot.name != "pack"}
_MODE_HELP = {
    "rrf": "Weighted reciprocal ranks: Σ weight / (c + rank). Raw scores are not read.",
    "relative": "Scores scaled between each arm's lowest and highest, then weighted.",
    "distribution": "Scores scaled between mean − 3σ and mean + 3σ, then weighted.",
    "convex": "Scores divided by each arm's highest, then weighted.",
}


class _Range(NamedTuple):
    """The bounds of a slider and its explanation."""

    low: float
    high: float
    step: float
    help: str = ""


_RANGES = {
    "weight": _Range(0, 1, 0.01, "Weights count relative to each other."),
    "c": _Range(0, 120, 1, "Larger values make the first ranks count less."),
    "depth": _Range(10, 300, 10, "How many hits each arm is asked for."),
    "floor": _Range(0, 1, 0.01, "Hits of an arm below its raw score are removed."),
    "relative": _Range(0, 1, 0.01, "Hits below this share of the arm's best score are removed."),
    "strength": _Range(0, 2, 0.05, "How much this part adds; 0 switches it off."),
    "thread": _Range(0, 1, 0.01, "Another turn of the thread matches well."),
    "hops": _Range(1, 4, 1, "How many links activation may follow."),
    "decay": _Range(0.05, 1, 0.05, "How much activation is left after each link."),
    "seeds": _Range(1, 100, 1, "How many of the best results pass on activation."),
    "half_life": _Range(1, 365, 1, "Age in days at which half of the boost is left."),
    "max_shift": _Range(0, 20, 1, "No result moves more places than this through the boost."),
    "window": _Range(0, 1, 0.01, "The turns before and after match the question too."),
    "previous_question": _Range(0, 1, 0.01, "The turn before asks a question that matches."),
    "speaker": _Range(0, 1, 0.01, "The question names who said it."),
    "date": _Range(0, 1, 0.01, "Near a date that the question names."),
    "mention": _Range(0, 1, 0.01, "A good result mentions this one by name."),
    "shared_name": _Range(0, 1, 0.01, "A good result has the same name in its text."),
    "time_word": _Range(0, 1, 0.01, "The question asks when, and the text says when."),
    "max_per_source": _Range(1, 10, 1, "How many chunks of one source may be returned."),
    "look_ahead": _Range(1, 5, 1, "Texts are compared among this many times k results."),
    "balance": _Range(0, 1, 0.05, "1 is relevance alone, 0 is variety alone."),
    "top": _Range(1, 100, 1, "How many of the first results take part."),
}
_BM25_FLOOR = 20.0
_FURTHER = frozenset(
    {"complete", "smooth", "omit_speakers", "depth", "hops", "decay", "seeds", "threads", "fill", "look_ahead"}
)
"""Settings that few people change; the page folds them."""
_FLAGS = {
    "complete": "Each arm also scores what only other arms listed.",
    "smooth": "The last hit of a list counts more than 0.",
    "omit_speakers": "The question is embedded without speakers' names.",
    "threads": "Activation also follows the turns of a thread.",
    "fill": "Further chunks of a source fill the places that are left.",
}


def control_groups(recipe: Fusion, arms: Sequence[str], /) -> list[dict[str, Any]]:
    """The groups of controls that have an effect under this recipe, each with its present values."""
    groups: list[dict[str, Any]] = [
        {"id": "merge", "label": "merge", "help": _MODE_HELP[recipe.mode], "controls": _merge(recipe, arms)}
    ]
    for slot in _SLOTS.values():
        stage = getattr(recipe, slot.name)
        controls: list[dict[str, Any]] = []
        if stage is not None and len(slot.types) > 1:
            kinds = [kind.__name__ for kind in slot.types]
            controls.append(_choice(f"{slot.name}/kind", "kind", type(stage).__name__, kinds))
        if is_dataclass(stage):
            controls += _stage_controls(slot, stage, arms)
        groups.append(
            {"id": slot.name, "label": slot.name, "help": slot.doc + ".", "on": stage is not None, "controls": controls}
        )
    for group in groups:
        for control in group["controls"]:
            control["further"] = control["path"].removeprefix(f"{group['id']}/") in _FURTHER
    return groups


def _merge(recipe: Fusion, arms: Sequence[str]) -> list[dict[str, Any]]:
    controls = [_choice("mode", "mode", recipe.mode, list(MODES))]
    if len(arms) > 1:  # the weight of a single arm changes nothing
        weights = _weights(recipe, arms)
        sliders = [_slider(f"weights/{arm}", arm, round(weight, 4), "weight") for arm, weight in weights.items()]
        controls += _explained_once(sliders)
    if recipe.mode == "rrf":
        controls.append(_slider("c", "c", recipe.c, "c"))
    else:
        controls.append(_flag("complete", "complete", recipe.complete))
        controls.append(_flag("smooth", "smooth", recipe.smooth))
    if "vector" in arms:
        controls.append(_flag("omit_speakers", "omit_speakers", recipe.omit_speakers))
    if recipe.depth is not None:
        controls.append(_slider("depth", "depth", recipe.depth, "depth"))
    return controls


def _stage_controls(slot: Slot, stage: Any, arms: Sequence[str]) -> list[dict[str, Any]]:
    controls: list[dict[str, Any]] = []
    for item in fields(stage):
        value, path = getattr(stage, item.name), f"{slot.name}/{item.name}"
        if slot.name == "gate" and item.name in ("floor", "relative"):
            if item.name == "floor" or value is not None:
                controls += _per_arm(path, item.name, value, arms)
        elif isinstance(value, bool):
            controls.append(_flag(path, item.name, value))
        elif isinstance(value, int | float):
            controls.append(_slider(path, item.name, value, item.name))
        elif isinstance(value, Mapping):
            numbers = {key: number for key, number in value.items() if isinstance(number, int | float)}
            controls += [_slider(f"{path}/{key}", str(key), number, "strength") for key, number in numbers.items()]
    return controls


def _per_arm(path: str, name: str, value: Any, arms: Sequence[str]) -> list[dict[str, Any]]:
    """One slider per arm; the raw scores of BM25 have no upper bound, cosines and shares end at 1."""
    controls = []
    for arm in arms:
        number = value.get(arm) if isinstance(value, Mapping) else value
        control = _slider(f"{path}/{arm}", f"{name} {arm}", number or 0.0, name)
        if name == "floor" and arm.startswith("bm25"):
            control.update(max=max(_BM25_FLOOR, control["max"]), step=0.1)
        controls.append(control)
    return _explained_once(controls)


def _explained_once(controls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sliders of one kind, with the explanation below the last one only."""
    return [*({**control, "help": ""} for control in controls[:-1]), *controls[-1:]]


def _slider(path: str, label: str, value: float, name: str) -> dict[str, Any]:
    default = _Range(0, max(1.0, 2.0 * abs(value)), 1 if isinstance(value, int) else 0.05)
    low, high, step, text = _RANGES.get(name, default)
    if isinstance(value, float) and not math.isclose(value / step, round(value / step), abs_tol=1e-6):
        step = 10 ** math.floor(math.log10(step) - 1)  # a value between two steps stays as it is
    bounds = {"min": min(low, value), "max": max(high, value), "step": round(step, 6)}
    return {"path": path, "kind": "range", "label": label.replace("_", " "), "value": value, "help": text, **bounds}


def _choice(path: str, label: str, value: str, options: Sequence[str]) -> dict[str, Any]:
    return {"path": path, "kind": "choice", "label": label, "value": value, "options": list(options), "help": ""}


def _flag(path: str, name: str, value: bool) -> dict[str, Any]:
    label = name.replace("_", " ")
    return {"path": path, "kind": "flag", "label": label, "value": value, "help": _FLAGS.get(name, "")}


# --- from the page's values to a recipe


def changed_recipe(recipe: Fusion, changes: Mapping[str, Any], arms: Sequence[str], /) -> Fusion:
    """The recipe with the values of a page; ConfigError names a path that does not exist."""
    values = {item.name: getattr(recipe, item.name) for item in fields(Fusion) if item.init}
    for path in sorted(changes, key=lambda path: (path.count("/"), path)):  # switches before their settings
        name, _, rest = path.partition("/")
        value = changes[path]
        if name == "weights" and rest in arms:
            values["weights"] = {**_weights(replace(recipe, weights=values["weights"]), arms), rest: value}
        elif name in _SLOTS:
            values[name] = _changed_slot(_SLOTS[name], values[name], rest, value, arms)
        elif name in ("mode", "c", "depth", "complete", "smooth", "omit_speakers") and not rest:
            values[name] = value
        else:
            raise ConfigError(f"the recipe has no setting {validation.display(path)}")
    return Fusion(**values)


def _weights(recipe: Fusion, arms: Sequence[str]) -> dict[str, float]:
    """The weights by arm as they were given, or equal ones."""
    if isinstance(recipe.weights, Mapping):
        return {arm: recipe.weights.get(arm, 0.0) for arm in arms}
    return dict(zip(arms, recipe.weights or recipe.weights_for(arms), strict=True))


def _changed_slot(slot: Slot, stage: Any, setting: str, value: Any, arms: Sequence[str]) -> Any:
    kinds: dict[str, type[Any]] = {kind.__name__: kind for kind in slot.types}
    if not setting:
        validation.flag(slot.name, value)
        return (stage if stage is not None else slot.types[0]()) if value else None
    if stage is None:  # a setting of a part that is switched off has no effect
        return None
    name, _, key = setting.partition("/")
    if setting == "kind":
        if value not in kinds:
            raise ConfigError(f"{slot.name} kind {validation.display(value)} is not known: {', '.join(kinds)}")
        return stage if type(stage) is kinds[value] else kinds[value]()
    known = [item.name for item in fields(stage)] if is_dataclass(stage) else []
    if name not in known:  # left over from another kind of stage
        return stage
    if not key:
        return replace(stage, **{name: value})
    return replace(stage, **{name: _changed_mapping(getattr(stage, name), key, value, arms)})


def _changed_mapping(current: Any, key: str, value: Any, arms: Sequence[str]) -> dict[str, float]:
    """A mapping with one number changed; a floor of 0 for an arm is no floor."""
    validation.number(key, value, "a finite number")
    if key not in arms:
        return {**current, key: value}
    whole = dict(current) if isinstance(current, Mapping) else dict.fromkeys(arms, current)
    return {arm: number for arm, number in {**whole, key: value}.items() if number}


# --- a recipe as Python


def python_source(recipe: Fusion, /) -> str:
    """Python code that makes this recipe; a recipe with functions is refused.

    >>> print(python_source(Fusion(c=20)))
    from hybridmem import Fusion
    <BLANKLINE>
    recipe = Fusion(
        c=20,
    )
    <BLANKLINE>
    """
    names = {"Fusion"}
    lines = []
    for item in fields(Fusion):
        value = getattr(recipe, item.name)
        if item.init and value != item.default:
            lines.append(f"    {item.name}={_source(item.name, value, names)},\n")
    return f"from hybridmem import {', '.join(sorted(names))}\n\nrecipe = Fusion(\n{''.join(lines)})\n"


def _source(name: str, value: Any, names: set[str]) -> str:
    if not is_dataclass(value):
        if callable(value) or (isinstance(value, tuple) and any(map(callable, value))):
            raise ConfigError(f"the recipe's {name!r} slot is a function: copy that part from your own code")
        return repr(value)
    names.add(type(value).__name__)
    given = []
    for item in fields(value):
        own = getattr(value, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if own != default:
            given.append(f"{item.name}={_source(f'{name}.{item.name}', own, names)}")
    return f"{type(value).__name__}({', '.join(given)})"
