"""The metric against the noise level, models in rows and data sets in columns: the paper's Figures
2 and 6.

Drawn over all recipes, for each metric and kind of noise that at least two of them share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from cudt.config.differences import value_text
from cudt.report.comparable import families
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import best_depths, main_kind
from cudt.report.figures.curves import draw_curves, panel_title
from cudt.report.figures.panels import legend_below, panels, wrapped_panels
from cudt.report.figures.words import plain, seeds_range
from cudt.report.groups import Group
from cudt.utils.files import file_name

#: What fits on a page.
_MOST_ROWS, _MOST_PANELS = 6, 24
#: γ_train of the paper's grids for text and for video, by metric.
PAPER_LEVELS = {"accuracy": 0.8, "RMSE": 0.13}


class RobustnessGrid(FigureType):
    """Over all recipes with the same metric and main kind of noise."""

    name = "grid"
    order = 100

    def over_recipes(self, recipes: Sequence[Sequence[Group]]) -> Iterator[FigurePlan]:
        """One for each metric and kind of noise; several where the panels do not fit on a page."""
        for (metric, kind), sharing in sharing_a_metric(recipes).items():
            if len(sharing) > 1:
                yield from _pages(sharing, f"{self.name}-{file_name(metric)}-{kind}", kind)


def _pages(recipes: Sequence[Sequence[Group]], name: str, kind: str) -> Iterator[FigurePlan]:
    pages = [
        recipes[start : start + _MOST_PANELS] for start in range(0, len(recipes), _MOST_PANELS)
    ]
    if len(pages) == 1:
        yield FigurePlan(name, partial(draw, recipes, kind))
        return
    for number, page in enumerate(pages, 1):
        yield FigurePlan(
            f"{name}-{number}", partial(draw, page, kind, f" ({number} of {len(pages)})")
        )


def sharing_a_metric(
    recipes: Sequence[Sequence[Group]],
) -> dict[tuple[str, str], list[Sequence[Group]]]:
    """Recipes by metric and main kind of noise, sorted by model, then by data set."""
    together: dict[tuple[str, str], list[Sequence[Group]]] = {}
    for groups in recipes:
        kind = main_kind(groups)
        if kind:
            together.setdefault((groups[0].metric, kind), []).append(groups)
    for found in together.values():
        found.sort(
            key=lambda groups: (model_name(groups[0]), task_name(groups[0]), groups[0].recipe)
        )
    return together


def draw(recipes: Sequence[Sequence[Group]], kind: str, page: str = "") -> Drawing:
    """A panel for each recipe: models × data sets, or one recipe after the other where that grid
    would not be full.
    """
    wanted = PAPER_LEVELS.get(recipes[0][0].metric)
    shown = [best_depths(groups, kind, wanted) for groups in recipes]
    # A recipe may have several sections, with different weights or losses.
    found = families(run for groups in shown for group in groups for run in group.runs)
    named = {run.group: name for name, runs in found.items() for run in runs}
    cells = [(model_name(groups[0]), task_name(groups[0])) for groups in shown]
    is_matrix = fills_matrix(cells)
    figure, axes = (
        _matrix(cells) if is_matrix else wrapped_panels(len(shown), 4, width=3.2, height=2.5)
    )
    for panel, groups, (model, task) in zip(axes, shown, cells, strict=True):
        name = f"{task}, {model}" if is_matrix else named[groups[0].key]
        draw_curves(panel, groups, kind, panel_title(plain(name), groups, kind), counts=False)
        panel.title.set_fontsize(9)
        _label_outer_axes_only(panel, axes)
    legend_below(figure)
    what = f"{shown[0][0].metric} under {kind} noise, {'data set × model' if is_matrix else 'by recipe'}{page}"
    seeds = seeds_range([group for groups in shown for group in groups], kind)
    levels = {named[groups[0].key]: groups[0].gamma_train for groups in shown}
    return Drawing(figure, f"{what}, {seeds} per line ({_chosen(levels, wanted)})")


def _chosen(levels: Mapping[str, float], wanted: float | None) -> str:
    """How variants were chosen, given each panel's γ_train, for the caption."""
    rule = "each objective at its best depth on validation data"
    if wanted is None:
        return f"{rule}, at the highest γ_train of each recipe"
    others = [name for name, level in levels.items() if level != wanted]
    if len(others) == len(levels):
        return f"{rule}, at the highest γ_train of each recipe; the paper's figure has {wanted:g}"
    but = f", except {', '.join(others)}, without runs at it" if others else ""
    return f"γ_train = {wanted:g} as in the paper{but}; {rule}"


def _matrix(cells: Sequence[tuple[str, str]]) -> tuple[Any, list[Any]]:
    """A figure, and the axes of each cell (model, data set); the others are blank."""
    rows, columns = (list(dict.fromkeys(cell[i] for cell in cells)) for i in (0, 1))
    figure, grid = panels(len(rows), len(columns), 3.2, 2.5)
    axes = [grid[rows.index(row), columns.index(column)] for row, column in cells]
    for blank in set(grid.flat) - set(axes):
        blank.set_axis_off()
    return figure, axes


def fills_matrix(cells: Sequence[tuple[str, str]]) -> bool:
    """Whether models × data sets is worth drawing: each cell occurs once, and at least half of them
    occur.
    """
    rows, columns = ({cell[i] for cell in cells} for i in (0, 1))
    fits = len(rows) <= _MOST_ROWS and len(columns) <= _MOST_ROWS
    return fits and len(set(cells)) == len(cells) and 2 * len(cells) >= len(rows) * len(columns)


def _label_outer_axes_only(panel: Any, axes: Sequence[Any]) -> None:
    """Remove the names of inner axes, which would overlap with the panels next to them."""
    spot = panel.get_subplotspec()
    same_column = [other for other in axes if other.get_subplotspec().colspan == spot.colspan]
    if spot.rowspan.start < max(other.get_subplotspec().rowspan.start for other in same_column):
        panel.set_xlabel("")
    same_row = [other for other in axes if other.get_subplotspec().rowspan == spot.rowspan]
    if spot.colspan.start > min(other.get_subplotspec().colspan.start for other in same_row):
        panel.set_ylabel("")


def model_name(group: Group) -> str:
    """The pretrained model that a recipe starts from, or the model's name."""
    pretrained = group.settings.get("model.pretrained")
    return value_text(pretrained if pretrained else group.settings["model.name"])


def task_name(group: Group) -> str:
    """The task's name, without the path of a plug-in."""
    return value_text(group.settings["task.name"])


FIGURE = RobustnessGrid()
