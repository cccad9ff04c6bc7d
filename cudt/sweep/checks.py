"""Everything that can be wrong with a search file, found before anything is run and told at once."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from cudt import mistakes
from cudt import recipe as recipes
from cudt.recipe import NamedRecipe
from cudt.sweep.search import Arm, Range, Scalar, Search, values_of

_ANY_SCORE = {"measure": "metric", "direction": "maximize"}


# ---------------------------------------------------------------- shape


def parse(values: dict[str, Any]) -> tuple[Search | None, list[str]]:
    """The search file, and what is wrong with its shape; the file without that, if it makes sense without."""
    try:
        return Search.model_validate(values), []
    except ValidationError as error:
        found = mistakes.explain(Search, error, "the file")
        sound = copy.deepcopy(values)
        for mistake in error.errors(include_url=False):
            _cut_out(sound, [part for part in mistake["loc"] if not mistakes.is_tag(part)])
    try:
        return Search.model_validate(sound), found
    except ValidationError:
        return None, found


def _cut_out(values: dict[str, Any], location: list[Any]) -> None:
    """Remove the smallest part that is wrong and can be missing, so that the rest can be looked at."""
    match location:
        case ["score", *_]:
            values["score"] = _ANY_SCORE
        case ["arms", arm, "search" | "fixed" as part, key, *_]:
            values["arms"][arm][part].pop(key, None)
        case ["arms", arm, "sampler", *_]:
            values["arms"].pop(arm, None)
        case ["arms", arm, key, *_] if isinstance(values["arms"][arm], dict):
            values["arms"][arm].pop(key, None)
        case ["arms", arm, *_]:
            values["arms"].pop(arm, None)
        case [key, *_]:
            values.pop(key, None)


# ---------------------------------------------------------------- sense


def in_itself(search: Search) -> Iterator[str]:
    """What makes no sense whatever the recipe is."""
    if search.score.gammas is not None and search.score.measure != "grid":
        yield f"score.gammas: belongs to measure: grid, not to {search.score.measure}"
    for key, choices in search.settings.items():
        yield from _repeated(f"settings.{key}", choices)
    for name, arm in search.arms.items():
        yield from _arm_in_itself(name, arm, search)
    yield from _budgets(search)


def _arm_in_itself(name: str, arm: Arm, search: Search) -> Iterator[str]:
    path = f"arms.{name}"
    if not re.fullmatch(r"\w[\w.-]*", name):
        yield f"{path}: an arm's name is a word; it names a file"
    for key, searched in arm.search.items():
        if isinstance(searched, Range):
            yield from (f"{path}.search.{key}: {mistake}" for mistake in searched.mistakes())
            if arm.sampler == "grid" and searched.is_continuous:
                yield f"{path}.search.{key}: a grid over a continuous range; list its values, or give it a step"
        else:
            yield from _repeated(f"{path}.search.{key}", searched)
    for key in arm.search:
        others = {"settings": search.settings, "fixed": search.fixed, f"{path}.fixed": arm.fixed}
        for place in (place for place, keys in others.items() if key in keys):
            yield f"{path}.search.{key}: stands in {place} too"
    for key in arm.fixed:
        if key in search.settings:
            yield f"{path}.fixed.{key}: stands in settings too"
    yield from _sampler(path, arm)


def _sampler(path: str, arm: Arm) -> Iterator[str]:
    """Whether the arm has what its sampler wants."""
    if arm.sampler == "seeds":
        if arm.search:
            yield f"{path}.search: sampler seeds varies the seed alone; for more, make it a grid with seed: [0, 1, 2]"
    elif not arm.search:
        yield f"{path}.search: missing; sampler {arm.sampler} needs something to search"
    if arm.sampler != "grid" and arm.budget is None:
        yield f"{path}.budget: missing; how many runs?"
    if arm.sampler in ("tpe", "random") and arm.search and (arm.budget or 0) > ((possible := _cells(arm)) or math.inf):
        yield f"{path}.budget = {arm.budget}: there are {possible} combinations to draw; make it a grid, or give ranges"
    if arm.sampler == "grid" and arm.budget is not None and (cells := _cells(arm)) not in (None, arm.budget):
        yield f"{path}.budget = {arm.budget}: the grid has {cells} cells; leave the budget out, or change the grid"


def _repeated(path: str, choices: list[Scalar]) -> Iterator[str]:
    for place, value in enumerate(choices):
        if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in choices[:place]):
            yield f"{path}: {value!r} stands twice"


def _budgets(search: Search) -> Iterator[str]:
    budgets = {name: budget(arm) for name, arm in search.arms.items()}
    known = {name: runs for name, runs in budgets.items() if runs is not None}
    if len(set(known.values())) > 1 and search.unequal_budgets is None:
        told = ", ".join(f"{name} {runs}" for name, runs in known.items())
        yield (
            f"arms: unequal budgets ({told} runs): the best of more runs is better by luck alone; "
            "make them equal, or say why not in unequal_budgets"
        )
    if len(set(known.values())) <= 1 and search.unequal_budgets is not None and len(known) == len(budgets):
        yield "unequal_budgets: the budgets are equal"


def budget(arm: Arm) -> int | None:
    """Runs in each setting; None where that cannot be told."""
    return _cells(arm) if arm.sampler == "grid" else arm.budget


def _cells(arm: Arm) -> int | None:
    counts = []
    for searched in arm.search.values():
        if isinstance(searched, Range) and (searched.mistakes() or searched.is_continuous):
            return None
        counts.append(len(values_of(searched)))
    return math.prod(counts)


# ---------------------------------------------------------------- what the recipe says to it


def against_recipe(search: Search, name: str, values: dict[str, Any]) -> Iterator[str]:
    """What the recipe refuses: every end of a range and every choice is tried, each with the first of the others.

    Settings can depend on each other, so what is fixed is judged together with what is searched.
    """
    base = _with(values, search.fixed)
    if isinstance(base, str):
        yield f"fixed: {base}"
        base = values
    first = {key: choices[0] for key, choices in search.settings.items()}
    probes = {
        arm_name: {key: found for key, searched in arm.search.items() if (found := _probes(searched))}
        for arm_name, arm in search.arms.items()
    }
    centres = {
        arm_name: {**first, **arm.fixed, **{key: found[0] for key, found in probes[arm_name].items()}}
        for arm_name, arm in search.arms.items()
    }
    told: set[str] = set()
    in_all = [set(_refused(base, centre)) for centre in centres.values()]
    yield from _new(told, "fixed", [line for line in _refused(base, {}) if all(line in found for found in in_all)])
    for arm_name, centre in centres.items():
        for line in _tried(f"arms.{arm_name}", base, centre, probes[arm_name], name, told):
            yield line + _hint(line, search.arms[arm_name])
        if search.arms[arm_name].fixed.get("objective", base.get("objective")) == "erm":
            for key in (key for key in search.arms[arm_name].search if key.startswith("descent.")):
                yield f"arms.{arm_name}.search.{key}: erm does not look at it, so its runs would all be the same"
    yield from _tried("settings", base, next(iter(centres.values())), search.settings, name, told)


def _probes(searched: Range | list[Scalar]) -> list[Scalar]:
    if not isinstance(searched, Range):
        return list(searched)
    return [] if searched.mistakes() else searched.ends()


def _tried(
    place: str,
    base: dict[str, Any],
    centre: dict[str, Any],
    probes: dict[str, list[Scalar]],
    name: str,
    told: set[str],
) -> Iterator[str]:
    """What is wrong with the centre, and with each other value of each key."""
    yield from _new(told, place, _refused(base, centre))
    for key, values in probes.items():
        for value in values[1:]:
            yield from _new(told, place, _refused(base, {**centre, key: value}))
        if len({repr(value) for value in values}) > 1 and len(_identities(base, centre, key, values, name)) == 1:
            yield f"{place}: {key} says nothing about training, so every value of it is the same run"


def _new(told: set[str], place: str, lines: list[str]) -> Iterator[str]:
    """What was not told before; an unknown key is one mistake, whatever it is set to."""
    for line in lines:
        short = re.sub(r" = .*?: ", ": ", line)
        if short not in told:
            told.add(short)
            yield f"{place}: {line}"


def _refused(base: dict[str, Any], changes: dict[str, Any]) -> list[str]:
    tried = _with(base, changes)
    return [tried] if isinstance(tried, str) else recipes.check(tried)[1]


def _with(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any] | str:
    """The recipe with some of its values set, or why that cannot be."""
    changed = copy.deepcopy(values)
    for path, value in changes.items():
        try:
            recipes.put(changed, path, copy.deepcopy(value))
        except KeyError as error:
            return f"{path}: {error.args[0]}"
    return changed


def _identities(base: dict[str, Any], centre: dict[str, Any], key: str, values: list[Scalar], name: str) -> set[str]:
    """The runs that the values of one key lead to, alone or, where it depends on others, with them."""
    found = set()
    for value in values:
        for changes in ({key: value}, {**centre, key: value}):
            tried = _with(base, changes)
            recipe = recipes.check(tried)[0] if isinstance(tried, dict) else None
            if recipe is not None:
                found.add(NamedRecipe(name, recipe).identity())
                break
    return found


def _hint(line: str, arm: Arm) -> str:
    """A range gives floats; whoever searches whole numbers has to say so."""
    floats = (key for key, searched in arm.search.items() if isinstance(searched, Range) and searched.type == "float")
    is_one = "valid integer" in line and any(f": {key} = " in line for key in floats)
    return "; give the range type: int" if is_one else ""
