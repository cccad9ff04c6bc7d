"""Everything that can be wrong with a search file, found before anything is run and told at once."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError

from cudt.config import inheritance, mistakes
from cudt.config import recipe as recipes
from cudt.config.recipe import NamedRecipe
from cudt.sweep.search import Arm, Range, Scalar, Search, combinations, values_of

_ANY_SCORE = {"measure": "metric", "direction": "maximize"}
#: Cells of a grid, and combinations of settings, beyond which somebody mistyped.
_MOST = 10_000
#: Cells that are held against the recipe one by one, a millisecond each.
_MOST_TRIED = 500


# ---------------------------------------------------------------- shape


class Parsed(NamedTuple):
    """A search file as far as it makes sense."""

    search: Search | None
    """The file without what is wrong with its shape; None where nothing sensible is left."""
    lines: list[str]
    """What is wrong with its shape."""
    broken: frozenset[str]
    """Where, as dotted paths: what only follows from these is not told as well."""


def parse(values: dict[str, Any]) -> Parsed:
    """The search file, and what is wrong with its shape."""
    try:
        return Parsed(Search.model_validate(values), [], frozenset())
    except ValidationError as error:
        found = mistakes.explain(Search, error)
        lines, places = [str(mistake) for mistake in found], [list(mistake.path) for mistake in found]
    sound = copy.deepcopy(values)
    for place in places:
        _cut_out(sound, place)
    broken = frozenset(".".join(map(str, place)) for place in places)
    try:
        return Parsed(Search.model_validate(sound), lines, broken)
    except ValidationError:
        return Parsed(None, lines, broken)


def _cut_out(values: dict[str, Any], place: list[Any]) -> None:
    """Remove the smallest part that is wrong and can be missing, so that the rest can be looked at."""
    match place:
        case ["score", *_]:
            values["score"] = _ANY_SCORE
        case ["arms", _, "search" | "fixed", _, *_]:
            _remove(values, place[:4])
        case ["arms", _, "sampler", *_]:
            _remove(values, place[:2])
        case ["arms", _, _, *_]:
            _remove(values, place[:3])
        case ["arms" | "settings" | "fixed", _, *_]:
            _remove(values, place[:2])
        case [_, *_]:
            _remove(values, place[:1])


def _remove(values: Any, place: list[Any]) -> None:
    """Remove what stands at a place; with another mistake it may be gone already."""
    *sections, last = place
    for key in sections:
        values = values.get(key) if isinstance(values, dict) else None
    if isinstance(values, dict):
        values.pop(last, None)


def _holds(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(f"{outer}.")


def _is_broken(path: str, broken: Set[str]) -> bool:
    """Whether something is wrong at a path, or below it."""
    return any(_holds(path, place) for place in broken)


def _path(line: str) -> str:
    """What a line is about: `a.b` of `a.b: wrong`."""
    return re.split(r": | = ", line, maxsplit=1)[0]


# ---------------------------------------------------------------- sense


def in_itself(search: Search, broken: Set[str] = frozenset()) -> Iterator[str]:
    """What makes no sense whatever the recipe is."""
    for name in search.arms:
        yield from _name(name)
    found = [*_score(search), *_settings(search)]
    for name, arm in search.arms.items():
        found += _arm_in_itself(f"arms.{name}", arm, search, broken)
    yield from (line for line in found if not _is_broken(_path(line), broken))
    yield from _budgets(search, broken)


def _name(arm: str) -> Iterator[str]:
    if not re.fullmatch(r"\w[\w.-]*", arm):
        yield f"arms.{arm}: an arm's name is a word; it names a file"
    if arm == "recipe":
        yield "arms.recipe: an arm cannot be called so; a file of the sweep is"


def _score(search: Search) -> Iterator[str]:
    score = search.score
    if score.gammas is not None and score.measure != "grid":
        yield f"score.gammas: belongs to measure: grid, not to {score.measure}"
    if score.measure == "grid" and score.gammas is None:
        for name, arm in search.arms.items():
            section = arm.fixed.get("evaluation")
            if "evaluation.gammas" in arm.fixed or (isinstance(section, dict) and "gammas" in section):
                yield (
                    f"arms.{name}.fixed.evaluation.gammas: the arms would be judged on different grids; "
                    "give score.gammas, which is for all of them"
                )


def _settings(search: Search) -> Iterator[str]:
    for key, choices in search.settings.items():
        yield from _repeated(f"settings.{key}", choices)
        if key in search.fixed:
            yield f"settings.{key}: stands in fixed too"
    if (count := math.prod(len(choices) for choices in search.settings.values())) > _MOST:
        yield f"settings: {count:,} combinations; there can be {_MOST:,}"


def _arm_in_itself(path: str, arm: Arm, search: Search, broken: Set[str]) -> Iterator[str]:
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
    if arm.sampler == "seeds" and "seed" in search.settings:
        yield f"{path}.sampler: seeds sets the seed, which stands in settings too"
    yield from _sampler(path, arm, None if _is_broken(f"{path}.search", broken) else arm.n_combinations)


def _sampler(path: str, arm: Arm, cells: int | None) -> Iterator[str]:
    """Whether the arm has what its sampler wants; `cells` are the combinations that there are, if that is known."""
    if arm.sampler == "seeds":
        if arm.search:
            yield f"{path}.search: sampler seeds varies the seed alone; for more, make it a grid with seed: [0, 1, 2]"
    elif not arm.search:
        yield f"{path}.search: missing; sampler {arm.sampler} needs something to search"
    if arm.sampler != "grid" and arm.budget is None:
        yield f"{path}.budget: missing; how many runs?"
    if not arm.search or cells is None:
        return
    if arm.sampler in ("tpe", "random") and (arm.budget or 0) > cells:
        yield f"{path}.budget = {arm.budget}: there are {cells} combinations to draw; make it a grid, or give ranges"
    if arm.sampler == "grid" and cells > _MOST:
        yield f"{path}.search: a grid of {cells:,} cells; there can be {_MOST:,}, and random draws as many as you say"
    elif arm.sampler == "grid" and arm.budget not in (None, cells):
        yield f"{path}.budget = {arm.budget}: the grid has {cells} cells; leave the budget out, or change the grid"


def _repeated(path: str, choices: list[Scalar]) -> Iterator[str]:
    seen = set()
    for value in choices:
        if _as_equal(value) in seen:
            yield f"{path}: {value!r} stands twice"
        seen.add(_as_equal(value))


def _as_equal(value: Scalar) -> tuple[bool, Scalar]:
    """1 and 1.0 are the same, 1 and true are not."""
    return isinstance(value, bool), value


def _budgets(search: Search, broken: Set[str]) -> Iterator[str]:
    known = {}
    for name, arm in search.arms.items():
        comes_from = "search" if arm.sampler == "grid" else "budget"
        if not _is_broken(f"arms.{name}.{comes_from}", broken) and (runs := arm.runs_per_setting) is not None:
            known[name] = runs
    is_explained = search.unequal_budgets is not None or "unequal_budgets" in broken
    if len(set(known.values())) > 1 and not is_explained:
        told = ", ".join(f"{name} {runs}" for name, runs in known.items())
        yield (
            f"arms: unequal budgets ({told} runs): the best of more runs is better by luck alone; "
            "make them equal, or say why not in unequal_budgets"
        )
    are_all_known = len(known) == len(search.arms) and not _is_broken("arms", broken)
    if search.unequal_budgets is not None and are_all_known and len(set(known.values())) == 1:
        yield "unequal_budgets: the budgets are equal"


# ---------------------------------------------------------------- what the recipe says to it


@dataclass
class _Tried:
    """An arm that is held against the recipe."""

    place: str
    arm: Arm
    base: dict[str, Any]
    """The recipe, with what the file fixes for all arms."""
    centre: dict[str, Any]
    """The first setting, what the arm fixes, and the first value of whatever it searches."""
    left_out: list[str]
    """Keys that have a mistake already, and are not in the centre."""
    told: set[str] = field(default_factory=set)

    def refused(self, changes: dict[str, Any]) -> list[str]:
        """What is wrong with the recipe of a cell, but for what follows from the keys that are left out."""
        lines = _refused(self.base, {**self.centre, **changes})
        return [line for line in lines if not any(_holds(_path(line), key) for key in self.left_out)]


def against_recipe(search: Search, name: str, values: dict[str, Any], broken: Set[str] = frozenset()) -> Iterator[str]:
    """What the recipe refuses: every end of a range and every choice is tried, each with the first of the others.

    Settings can depend on each other, so what is fixed is judged together with what is searched; and the recipe with
    both, because it need not be whole without.
    """
    base, clashes = _with(values, search.fixed)
    yield from (f"fixed: {line}" for line in clashes)
    first = {key: choices[0] for key, choices in search.settings.items()}
    arms = list(_to_be_tried(search, base, first, broken))
    if not arms:
        return
    told: set[str] = set()
    in_all = set.intersection(*(set(one.refused({})) for one in arms))
    for place, tried in ((f"recipe {name}", (values, {})), ("fixed", (base, {})), ("settings", (base, first))):
        yield from _new(told, place, [line for line in _refused(*tried) if line in in_all])
    for one in arms:
        one.told |= told
        yield from _tried_alone(one, name)
        yield from _overlooked(one, search)
    yield from _tried_settings(arms, search, name)
    yield from _tried_cells(arms, search)


def _to_be_tried(search: Search, base: dict[str, Any], first: dict[str, Scalar], broken: Set[str]) -> Iterator[_Tried]:
    """The arms of which enough is sound."""
    for name, arm in search.arms.items():
        place = f"arms.{name}"
        sections = ("fixed", "settings", f"{place}.fixed", f"{place}.search")
        if broken.isdisjoint(sections):
            left_out = [path[len(one) + 1 :] for path in broken for one in sections if _holds(one, path)]
            left_out += [key for key, searched in arm.search.items() if not _probes(searched)]
            searched = {key: found[0] for key, one in arm.search.items() if (found := _probes(one))}
            yield _Tried(place, arm, base, {**first, **arm.fixed, **searched}, left_out)


def _probes(searched: Range | list[Scalar]) -> list[Scalar]:
    if not isinstance(searched, Range):
        return list(searched)
    return [] if searched.mistakes() else searched.ends()


def _tried_alone(one: _Tried, name: str) -> Iterator[str]:
    """What is wrong with the centre of an arm, and with each other value of each key that it searches."""
    lines = list(_new(one.told, one.place, one.refused({})))
    for key, searched in one.arm.search.items():
        values = _probes(searched)
        for value in values[1:]:
            lines += _new(one.told, one.place, one.refused({key: value}))
        if _says_nothing(one, key, values, name):
            lines.append(f"{one.place}: {key} says nothing about training, so every value of it is the same run")
    yield from (line + _hint(line, one.arm) for line in lines)


def _tried_settings(arms: list[_Tried], search: Search, name: str) -> Iterator[str]:
    """What is wrong with each other value of each setting."""
    told = {line for one in arms for line in one.told}
    for key, values in search.settings.items():
        for one in arms:
            for value in values[1:]:
                yield from _new(told, "settings", one.refused({key: value}))
        if _says_nothing(arms[0], key, values, name):
            yield f"settings: {key} says nothing about training, so every value of it is the same run"
    for one in arms:
        one.told |= told


def _tried_cells(arms: list[_Tried], search: Search) -> Iterator[str]:
    """What is wrong with values that are sound each for itself; without a grid, with the first in each setting."""
    settings = math.prod(len(choices) for choices in search.settings.values())
    room = _MOST_TRIED
    for one in arms:
        grid = one.arm.search if one.arm.sampler == "grid" else {}
        each = one.arm.n_combinations if grid else 1
        if one.left_out or each is None or (count := settings * each) > room:
            continue
        room -= count
        choices = {**search.settings, **{key: values_of(searched) for key, searched in grid.items()}}
        for lines in _refused_cells(one, choices):
            yield f"{one.place}: {len(lines)} of its {count} {'cells' if grid else 'settings'}: {lines[0]}"


def _refused_cells(one: _Tried, choices: dict[str, list[Scalar]]) -> list[list[str]]:
    """The same line of each cell that it is told of, for every line that is new."""
    found: dict[str, list[str]] = {}
    for cell in combinations(choices):
        for line in one.refused(cell):
            found.setdefault(_short(line), []).append(line)
    return [lines for short, lines in found.items() if short not in one.told]


def _overlooked(one: _Tried, search: Search) -> Iterator[str]:
    """Settings of the constraints, searched without constraints; the form is that of every objective."""
    own = one.arm.fixed.get("objective", one.base.get("objective"))
    objectives = one.arm.search.get("objective", search.settings.get("objective", [own]))
    if isinstance(objectives, Range) or ("objective" in one.arm.search and "constrained" in objectives):
        return
    if who := " or ".join(name for name in ("erm", "supervised") if name in objectives):
        for key in (key for key in one.arm.search if key.startswith("descent.") and key != "descent.form"):
            yield f"{one.place}.search.{key}: {who} does not look at it, so its runs would all be the same"


def _new(told: set[str], place: str, lines: list[str]) -> Iterator[str]:
    """What was not told before."""
    for line in lines:
        if (short := _short(line)) not in told:
            told.add(short)
            yield f"{place}: {line}"


def _short(line: str) -> str:
    """A line without the value: an unknown key is one mistake, whatever it is set to."""
    return line.partition(", got ")[0]


def _refused(base: dict[str, Any], changes: dict[str, Any]) -> list[str]:
    tried, clashes = _with(base, changes)
    return clashes + [str(mistake) for mistake in recipes.check(tried)[1]]


def _with(values: dict[str, Any], changes: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The recipe with those of its values set that can be, and why the others cannot."""
    changed = copy.deepcopy(values)
    clashes = []
    for path, value in changes.items():
        try:
            inheritance.put(changed, path, copy.deepcopy(value))
        except KeyError as error:
            clashes.append(f"{path}: {error.args[0]}")
    return changed, clashes


def _says_nothing(one: _Tried, key: str, values: list[Scalar], name: str) -> bool:
    """Whether the sound values of a key, two at least, lead to the same run."""
    runs = [(value, run) for value in values if (run := _run(one, key, value, name)) is not None]
    return len({_as_equal(value) for value, _ in runs}) > 1 and len({run for _, run in runs}) == 1


def _run(one: _Tried, key: str, value: Scalar, name: str) -> str | None:
    """The run that a value leads to, alone or, where it depends on others, with them."""
    for changes in ({key: value}, {**one.centre, key: value}):
        tried, clashes = _with(one.base, changes)
        recipe = recipes.check(tried)[0]
        if recipe is not None and not clashes:
            return NamedRecipe(name, recipe).identity()
    return None


def _hint(line: str, arm: Arm) -> str:
    """A range gives floats; whoever searches whole numbers has to say so."""
    floats = (key for key, searched in arm.search.items() if isinstance(searched, Range) and searched.type == "float")
    is_one = "integer" in line and any(f": {key}: " in line for key in floats)
    return "; give the range type: int" if is_one else ""
