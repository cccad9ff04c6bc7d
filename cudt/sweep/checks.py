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
    """What the recipe refuses: every end of a range and every choice is tried, each with the first of the others."""
    base, refused = _settled(values, search.fixed)
    yield from (f"fixed: {mistake}" for mistake in refused)
    first = {key: choices[0] for key, choices in search.settings.items()}
    yield from _tried("settings", base, search.settings, name)
    base, _ = _settled(base, first)
    for arm_name, arm in search.arms.items():
        own, refused = _settled(base, arm.fixed)
        yield from (f"arms.{arm_name}.fixed: {mistake}" for mistake in refused)
        probes = {key: _probes(searched) for key, searched in arm.search.items()}
        yield from _tried(f"arms.{arm_name}.search", own, probes, name)
        if own.get("objective") == "erm":
            for key in (key for key in arm.search if key.startswith("descent.")):
                yield f"arms.{arm_name}.search.{key}: erm does not look at it, so its runs would all be the same"


def _settled(values: dict[str, Any], changes: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The recipe with all changes that it takes, and what it says to the others."""
    settled = _with(values, changes)
    if isinstance(settled, dict):
        recipe, found = recipes.check(settled)
        if recipe is not None:
            return settled, []
    else:
        found = [settled]
    return values, found


def _with(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any] | str:
    changed = copy.deepcopy(values)
    for path, value in changes.items():
        try:
            recipes.put(changed, path, value)
        except KeyError as error:
            return f"{path}: {error.args[0]}"
    return changed


def _probes(searched: Range | list[Scalar]) -> list[Scalar]:
    if not isinstance(searched, Range):
        return list(searched)
    return [] if searched.mistakes() else searched.ends()


def _tried(place: str, base: dict[str, Any], probes: dict[str, list[Scalar]], name: str) -> Iterator[str]:
    """What is wrong with each value of each key, all the others at their first."""
    centre = {key: values[0] for key, values in probes.items() if values}
    told: set[str] = set()
    for key, values in probes.items():
        for value in values:
            tried = _with(base, {**centre, key: value})
            for mistake in recipes.check(tried)[1] if isinstance(tried, dict) else [tried]:
                # An unknown key is one, whatever it is set to.
                short = re.sub(r" = .*?: ", ": ", mistake)
                if short not in told:
                    told.add(short)
                    yield f"{place}: {mistake}{_hint(value, mistake)}"
        if len({repr(value) for value in values}) > 1 and len(_identities(base, key, values, name)) == 1:
            yield f"{place}.{key}: says nothing about training, so every value of it is the same run"


def _identities(base: dict[str, Any], key: str, values: list[Scalar], name: str) -> set[str]:
    """The runs that the values of one key lead to."""
    tried = (_with(base, {key: value}) for value in values)
    found = (recipes.check(one)[0] for one in tried if isinstance(one, dict))
    return {NamedRecipe(name, recipe).identity() for recipe in found if recipe is not None}


def _hint(value: Scalar, mistake: str) -> str:
    wants_whole = isinstance(value, float) and "valid integer" in mistake
    return "; give the range type: int" if wants_whole else ""
