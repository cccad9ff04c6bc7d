"""The figures of a report: every one that the paper has and the runs have data for.

style.py     the look, and how figures are saved      groups.py    runs with their rows of the tables
choose.py    which groups are shown                   words.py     what they are called
descent.py   loss by layer beside the curve; ratios   curves.py    curves side by side
ablation.py  one setting                              depth.py     more layers
layers.py    errors over layers; infeasible runs; the average descent

A new figure is a function in one of these that `_of_recipe` or `_of_all` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from cudt.files import file_name
from cudt.report.collect import ReadRun
from cudt.report.figures import ablation, curves, depth, descent, layers
from cudt.report.figures.choose import main_kind, middle_levels, pair
from cudt.report.figures.style import STYLES, Figure, save
from cudt.report.groups import Group, by_recipe, read_groups

__all__ = ["MOST_FIGURES", "STYLES", "Drawn", "Figure", "draw", "draw_all", "save"]

#: Figures of single recipes in one report; each takes a good part of a second.
MOST_FIGURES = 40


@dataclass(frozen=True)
class Drawn:
    """What was drawn, and a line about what was not."""

    figures: list[Figure]
    notes: list[str]


@dataclass(frozen=True)
class _Plan:
    """A figure that can be drawn; where there are too many, those of the highest rank are not."""

    rank: int
    name: str
    recipe: str
    draw: Callable[[Path], Figure]


def draw_all(runs: Sequence[ReadRun], out: Path) -> list[Figure]:
    """Every figure that the runs have data for; of very many, some."""
    return draw(runs, out).figures


def draw(runs: Sequence[ReadRun], out: Path, table: pd.DataFrame | None = None) -> Drawn:
    """The same, with what was left out; `table` saves the time for `tables.curves` where that is there already."""
    recipes = by_recipe(read_groups(runs, table))
    plans = [plan for groups in recipes.values() for plan in _of_recipe(groups)]
    kept = sorted(plans, key=lambda plan: plan.rank)[:MOST_FIGURES]
    stems = _stems(recipes)
    made = [plan.draw(out / f"{stems[plan.recipe]}-{plan.name}") for plan in plans if plan in kept]
    made += [plan.draw(out / plan.name) for plan in _of_all(list(recipes.values()), runs)]
    return Drawn(made, _notes(len(plans) - len(kept)))


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
        rank = 0 if kind == main else 4
        name = f"{kind}-descent-and-robustness"
        plans.append(_Plan(rank, name, recipe, partial(descent.descent_and_robustness, groups, kind)))
        if descent.has_ratios(groups, kind):
            name = f"{kind}-layer-ratios"
            plans.append(_Plan(rank + 3, name, recipe, partial(descent.layer_ratios, groups, kind)))
    if layers.compared_levels(pair(groups, main), main):
        plans.append(_Plan(2, "errors-over-layers", recipe, partial(layers.errors_over_layers, groups, main)))
    if len(kinds) > 1:
        plans.append(_Plan(1, "noise-kinds", recipe, partial(curves.noise_kinds, groups, kinds)))
    return plans + _of_settings(groups, main, recipe)


def _of_settings(groups: Sequence[Group], kind: str, recipe: str) -> list[_Plan]:
    """What there is where a recipe was trained with several values of a setting."""
    plans = []
    if len(curves.levels_of_training(groups, kind)) > 1:
        plans.append(_Plan(1, "training-levels", recipe, partial(curves.training_levels, groups, kind)))
    if found := depth.depths(groups, kind):
        plans.append(_Plan(1, "depth-effect", recipe, partial(depth.depth_effect, found, kind)))
        plans.append(_Plan(1, "by-depth", recipe, partial(depth.by_depth, found, kind)))
    for key, mine in ablation.ablated(groups, kind).items():
        if middle_levels(mine, kind):
            name = f"ablation-{file_name(key)}"
            plans.append(_Plan(1, name, recipe, partial(ablation.ablation, mine, key, kind)))
            plans.append(_Plan(1, f"{name}-curves", recipe, partial(ablation.ablation_curves, mine, key, kind)))
    return plans


def _of_all(recipes: Sequence[Sequence[Group]], runs: Sequence[ReadRun]) -> list[_Plan]:
    """The figures over all recipes."""
    plans = []
    for (metric, kind), sharing in curves.sharing_a_metric(recipes).items():
        if len(sharing) > 1:
            plans += _grids(sharing, f"grid-{file_name(metric)}-{kind}", kind)
    if worst := layers.most_violated(runs):
        plans.append(_Plan(0, "infeasible-runs", "", partial(layers.infeasible_runs, worst)))
    groups = [group for mine in recipes for group in mine]
    if (descents := layers.trajectories(groups)) and sum(map(len, descents.values())) > 1:
        plans.append(_Plan(0, "average-descent", "", partial(layers.average_trajectory, descents, len(runs))))
    return plans


def _grids(recipes: Sequence[Sequence[Group]], name: str, kind: str) -> list[_Plan]:
    """One grid, or as many as it takes to keep each on a page."""
    most = curves.MOST_PANELS
    pages = [recipes[start : start + most] for start in range(0, len(recipes), most)]
    if len(pages) == 1:
        return [_Plan(0, name, "", partial(curves.robustness_grid, recipes, kind))]
    return [
        _Plan(
            0, f"{name}-{number}", "", partial(curves.robustness_grid, page, kind, page=f" ({number} of {len(pages)})")
        )
        for number, page in enumerate(pages, 1)
    ]
