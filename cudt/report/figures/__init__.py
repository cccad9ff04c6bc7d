"""The figures of a report: each of the paper's that the runs have data for, and those that come
from outside cudt.

One file is one figure. base.py has the contract; the other files are what figures share:

choose.py, depths.py    which groups of runs (../groups.py) are shown
words.py, style.py      what they are called, and their colours
panels.py, curves.py, losses.py    the parts that figures are drawn from
saving.py               PNG and PDF
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib

# Before pyplot is imported: a report needs no screen.
matplotlib.use("Agg")
from cudt.config import plugins
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.saving import Figure, save
from cudt.report.groups import Group, by_recipe
from cudt.utils.errors import UserError
from cudt.utils.files import file_name

__all__ = [
    "Drawing",
    "Figure",
    "FigurePlan",
    "FigureType",
    "Job",
    "figure_types",
    "plan",
    "save",
]

#: Draws and saves a figure.
Job = Callable[[], Figure]


@dataclass(frozen=True)
class _RecipePlan:
    """A drawing for one recipe that may or may not be made."""

    recipe: str
    figure: FigureType
    plan: FigurePlan


def plan(
    groups: Sequence[Group], out: Path, ablations: Sequence[Group] = (), extra: Sequence[str] = ()
) -> list[Job]:
    """Every figure that the runs have data for.

    `groups` are those that the tables compare; `ablations` are all groups, for figures of
    ablations, where the tables leave some out. `extra` has the import paths of figures outside
    cudt.
    """
    types = figure_types(extra)
    recipes, ablated = by_recipe(groups), by_recipe(ablations or groups)
    plans = [
        one
        for recipe in recipes
        for one in _plans_of(recipe, recipes[recipe], ablated[recipe], types)
    ]
    stems = _stems(recipes)
    jobs: list[Job] = [
        partial(
            _draw_titled, one, recipes[one.recipe], out / f"{stems[one.recipe]}-{one.plan.name}"
        )
        for one in plans
    ]
    of_all = {
        is_ablation: list(found.values())
        for is_ablation, found in ((False, recipes), (True, ablated))
    }
    over_all = [
        one for figure in types for one in figure.over_recipes(of_all[figure.reads_ablations])
    ]
    jobs += [partial(_draw, one, out / one.name) for one in over_all]
    return jobs


def _draw(one: FigurePlan, stem: Path) -> Figure:
    return save(one.draw(), "", stem)


def _draw_titled(one: _RecipePlan, groups: Sequence[Group], stem: Path) -> Figure:
    """Draw, and name the section in a caption that starts with the recipe: a recipe may have
    several.
    """
    drawing = one.plan.draw()
    recipe, separator, rest = drawing.title.partition(": ")
    if recipe == groups[0].recipe:
        drawing = Drawing(drawing.figure, f"{one.recipe}{separator}{rest}")
    return save(drawing, one.recipe, stem)


def figure_types(extra: Sequence[str] = ()) -> list[FigureType]:
    """All figures of cudt and those with an import path in `extra`, in the order of the page."""
    found: dict[str, FigureType] = {}
    for path in (*plugins.names("figure"), *dict.fromkeys(extra)):
        module = plugins.load("figure", path)
        figure = module.FIGURE
        if not isinstance(figure, FigureType):
            wanted = f"an instance of a subclass of {FigureType.__module__}.FigureType"
            raise UserError(f"figure '{path}': {module.__file__}: `FIGURE` must be {wanted}")
        if found.setdefault(figure.name, figure) is not figure:
            raise UserError(
                f"figure '{path}': {module.__file__}: another figure is named '{figure.name}'; "
                "rename it"
            )
    return sorted(found.values(), key=lambda figure: (figure.order, figure.name))


def _plans_of(
    recipe: str, groups: Sequence[Group], ablated: Sequence[Group], types: Sequence[FigureType]
) -> list[_RecipePlan]:
    """The drawings for one recipe, in the order of the page."""
    given = [(figure, ablated if figure.reads_ablations else groups) for figure in types]
    plans = [
        _RecipePlan(recipe, figure, plan)
        for figure, mine in given
        for plan in figure.of_recipe(mine)
    ]
    return sorted(plans, key=lambda one: (one.figure.order, one.plan.position))


def _stems(recipes: Iterable[str]) -> dict[str, str]:
    """The start of each recipe's file names; recipes that would share it are numbered."""
    stems: dict[str, str] = {}
    for recipe in recipes:
        stem, number = file_name(recipe), 2
        while stem in stems.values():
            stem, number = f"{file_name(recipe)}-{number}", number + 1
        stems[recipe] = stem
    return stems
