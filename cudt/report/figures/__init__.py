"""The figures of a report: every one that the paper has and the runs have data for.

style.py     the look, and how figures are saved
choose.py    which groups (../groups.py) are shown    words.py     what they are called
descent.py   loss by layer beside the curve; ratios   curves.py    curves side by side
ablation.py  one setting                              depth.py     more layers
layers.py    errors over layers; infeasible runs; the average descent

A new figure is a function in one of these that `_of_recipe` or `_of_all` names.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from cudt.report.collect import ReadRun
from cudt.report.figures import ablation, curves, depth, descent, layers
from cudt.report.figures.choose import main_kind, middle_levels, pair
from cudt.report.figures.style import STYLES, Figure, save
from cudt.report.groups import Group, by_recipe, read_groups
from cudt.utils.files import file_name

__all__ = ["MOST_FIGURES", "STYLES", "Drawn", "Figure", "draw", "save"]

#: Figures of single recipes in one report; each takes a good part of a second.
MOST_FIGURES = 40


@dataclass(frozen=True)
class Drawn:
    """What was drawn, and a line about what was not."""

    figures: list[Figure]
    notes: list[str]


@dataclass(frozen=True)
class _Plan:
    """A figure that can be drawn; where there are too many, one of each sort comes before a second."""

    sort: str
    name: str
    recipe: str
    draw: Callable[[Path], Figure]
    is_main: bool = True
    """Under a recipe's main kind of noise: such come before the others of their sort."""


def draw(runs: Sequence[ReadRun], out: Path, table: pd.DataFrame | None = None) -> Drawn:
    """Every figure that the runs have data for; of very many, some, and what was left out.

    `table` saves the time for `tables.curves` where that is there already.
    """
    recipes = by_recipe(read_groups(runs, table))
    plans = [plan for groups in recipes.values() for plan in _of_recipe(groups)]
    kept = {id(plan) for plan in itertools.islice(_in_turn(plans), MOST_FIGURES)}
    stems = _stems(recipes)
    made = [plan.draw(out / f"{stems[plan.recipe]}-{plan.name}") for plan in plans if id(plan) in kept]
    made += [plan.draw(out / plan.name) for plan in _of_all(list(recipes.values()), runs)]
    return Drawn(made, _notes(len(plans) - len(kept)))


def _in_turn(plans: Sequence[_Plan]) -> Iterator[_Plan]:
    """One of each sort after the other, each time of a recipe that has come least often."""
    left: dict[str, list[_Plan]] = {}
    for plan in plans:
        left.setdefault(plan.sort, []).append(plan)
    times: Counter[str] = Counter()
    while left:
        for sort, mine in list(left.items()):
            plan = min(mine, key=lambda one: (not one.is_main, times[one.recipe]))
            times[plan.recipe] += 1
            mine.remove(plan)
            if not mine:
                del left[sort]
            yield plan


def _notes(left_out: int) -> list[str]:
    if not left_out:
        return []
    more = "report fewer recipes at once to have them"
    return [f"{left_out} figures of single recipes are not drawn, since more than {MOST_FIGURES} take long; {more}"]


def _stems(recipes: Iterable[str]) -> dict[str, str]:
    """The file name of each recipe; two that would share one are numbered."""
    stems: dict[str, str] = {}
    for recipe in recipes:
        stem, number = file_name(recipe), 2
        while stem in stems.values():
            stem, number = f"{file_name(recipe)}-{number}", number + 1
        stems[recipe] = stem
    return stems


def _of_recipe(groups: Sequence[Group]) -> list[_Plan]:
    """The figures of one recipe, in the order of the page."""
    kinds = sorted({kind for group in groups for kind in group.kinds})
    main = main_kind(groups)
    if main is None:
        return []
    recipe = groups[0].recipe
    plans = []
    for kind in kinds:
        drawers = {"descent-and-robustness": descent.descent_and_robustness}
        if descent.has_ratios(groups, kind):
            drawers["layer-ratios"] = descent.layer_ratios
        for sort, drawer in drawers.items():
            plans.append(_Plan(sort, f"{kind}-{sort}", recipe, partial(drawer, groups, kind), kind == main))
    if layers.compared_levels(pair(groups, main), main):
        plans.append(_plan("errors-over-layers", recipe, partial(layers.errors_over_layers, groups, main)))
    if len(kinds) > 1:
        plans.append(_plan("noise-kinds", recipe, partial(curves.noise_kinds, groups, kinds)))
    return plans + _of_settings(groups, main, recipe)


def _plan(name: str, recipe: str, drawer: Callable[[Path], Figure]) -> _Plan:
    """A figure whose name says its sort."""
    return _Plan(name, name, recipe, drawer)


def _of_settings(groups: Sequence[Group], kind: str, recipe: str) -> list[_Plan]:
    """What there is where a recipe was trained with several values of a setting."""
    plans = []
    if len(curves.levels_of_training(groups, kind)) > 1:
        plans.append(_plan("training-levels", recipe, partial(curves.training_levels, groups, kind)))
    if found := depth.depths(groups, kind):
        plans.append(_plan("depth-effect", recipe, partial(depth.depth_effect, found, kind)))
        plans.append(_plan("by-depth", recipe, partial(depth.by_depth, found, kind)))
    for key, mine in ablation.ablated(groups, kind).items():
        if middle_levels(mine, kind):
            name = f"ablation-{file_name(key)}"
            curved = partial(ablation.ablation_curves, mine, key, kind)
            plans.append(_Plan("ablation", name, recipe, partial(ablation.ablation, mine, key, kind)))
            plans.append(_Plan("ablation-curves", f"{name}-curves", recipe, curved))
    return plans


def _of_all(recipes: Sequence[Sequence[Group]], runs: Sequence[ReadRun]) -> list[_Plan]:
    """The figures over all recipes."""
    plans = []
    for (metric, kind), sharing in curves.sharing_a_metric(recipes).items():
        if len(sharing) > 1:
            plans += _grids(sharing, f"grid-{file_name(metric)}-{kind}", kind)
    if worst := layers.most_violated(runs):
        plans.append(_plan("infeasible-runs", "", partial(layers.infeasible_runs, worst)))
    groups = [group for mine in recipes for group in mine]
    if (descents := layers.trajectories(groups)) and sum(map(len, descents.values())) > 1:
        plans.append(_plan("average-descent", "", partial(layers.average_trajectory, descents, len(runs))))
    return plans


def _grids(recipes: Sequence[Sequence[Group]], name: str, kind: str) -> list[_Plan]:
    """One grid, or as many as it takes to keep each on a page."""
    most = curves.MOST_PANELS
    pages = [recipes[start : start + most] for start in range(0, len(recipes), most)]
    if len(pages) == 1:
        return [_plan(name, "", partial(curves.robustness_grid, recipes, kind))]
    return [
        _plan(f"{name}-{number}", "", partial(curves.robustness_grid, page, kind, page=f" ({number} of {len(pages)})"))
        for number, page in enumerate(pages, 1)
    ]
