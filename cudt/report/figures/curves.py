"""Curves of the metric against the level of noise, side by side: recipes, kinds of noise, levels of training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudt.config.differences import value_text
from cudt.report.figures.choose import CHOSEN, few, main_kind, pair, with_curve
from cudt.report.figures.descent import draw_curves
from cudt.report.figures.style import MOST_LINES, Figure, legend_below, panels, plain, save, wrapped
from cudt.report.figures.words import chosen_text, counted, seeds_of_each
from cudt.report.groups import Group

#: What fits on a page.
MOST_ROWS, MOST_PANELS = 6, 24
#: Characters that fit above a panel.
_TITLE_WIDTH = 42


def noise_kinds(groups: Sequence[Group], kinds: Sequence[str], stem: Path) -> Figure:
    """A panel for each kind of noise: the paper's figures of uniform and of discrete noise, beside Gaussian."""
    figure, axes = wrapped(len(kinds), 3)
    recipe, metric = groups[0].recipe, groups[0].metric
    # The same groups in every panel, where they were evaluated.
    everywhere = [group for group in groups if set(kinds) <= set(group.kinds)] or groups
    shown = {kind: few(everywhere, kind, MOST_LINES) or few(groups, kind, MOST_LINES) for kind in kinds}
    for panel, kind in zip(axes, kinds, strict=True):
        draw_curves(panel, shown[kind], kind, counts=False)
    _same_heights(axes)
    legend_below(figure)
    noises = ", ".join(kinds)
    chosen = chosen_text(shown[kinds[0]], with_curve(everywhere, kinds[0]))
    title = f"{recipe}: {metric} under {noises} noise, {counted(shown[kinds[0]], kinds[0])}{chosen}"
    return save(figure, recipe, title, stem)


def training_levels(groups: Sequence[Group], kind: str, stem: Path) -> Figure:
    """A panel for each γ_train, constrained against ERM: the paper's curves per level of training."""
    levels = levels_of_training(groups, kind)
    shown = {level: pair([group for group in groups if group.gamma_train == level], kind) for level in levels}
    figure, axes = wrapped(len(levels), 3, height=2.7)
    for panel, level in zip(axes, levels, strict=True):
        draw_curves(panel, shown[level], kind, _panel_title("", shown[level], kind), counts=False)
        panel.title.set_fontsize(9)
    _same_heights(axes)
    legend_below(figure)
    recipe, metric = groups[0].recipe, groups[0].metric
    all_shown = [group for level in levels for group in shown[level]]
    title = f"{recipe}: {metric} under {kind} noise by γ_train, {counted(all_shown, kind)}"
    more = "; of several variants the one with most seeds, then lowest validation loss"
    return save(figure, recipe, title + (more if len(all_shown) < len(with_curve(groups, kind)) else ""), stem)


def levels_of_training(groups: Sequence[Group], kind: str) -> list[float]:
    """Every γ_train; of more than fit on a page, some from the lowest to the highest."""
    levels = sorted({group.gamma_train for group in with_curve(groups, kind)})
    most = 9
    if len(levels) <= most:
        return levels
    return [levels[round(place * (len(levels) - 1) / (most - 1))] for place in range(most)]


def _panel_title(name: str, groups: Sequence[Group], kind: str) -> str:
    """At which γ_train and depth the lines were trained, and on how many seeds."""
    depths = " and ".join(str(depth) for depth in sorted({group.n_layers for group in groups}))
    trained = f"γ_train = {groups[0].gamma_train:g}, L = {depths}"
    seeds = seeds_of_each(groups, kind)
    lines = [name, f"{trained}, {seeds}"] if len(trained + seeds) <= _TITLE_WIDTH else [name, trained, seeds]
    return "\n".join(line for line in lines if line)


def _same_heights(axes: Sequence[Any]) -> None:
    """Panels that are compared have one y axis."""
    ends = [panel.get_ylim() for panel in axes]
    for panel in axes:
        panel.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))


# ---------------------------------------------------------------- data set × model


def robustness_grid(recipes: Sequence[Sequence[Group]], kind: str, stem: Path, page: str = "") -> Figure:
    """Curves of many recipes: models in rows, data sets in columns (the paper's Figures 2 and 6, text and video).

    Where two recipes would share a place, or most places were blank, each recipe has a panel of its own instead.
    """
    shown = [pair(groups, kind) for groups in recipes]
    places = [(model_name(groups[0]), task_name(groups[0])) for groups in shown]
    rows, columns = (list(dict.fromkeys(place[i] for place in places)) for i in (0, 1))
    matrix = is_matrix(places)
    if matrix:
        figure, grid = panels(len(rows), len(columns), 3.2, 2.5)
        axes = [grid[rows.index(row), columns.index(column)] for row, column in places]
        for blank in set(grid.flat) - set(axes):
            blank.set_axis_off()
    else:
        figure, axes = wrapped(len(shown), 4, width=3.2, height=2.5)
    for panel, groups, (model, task) in zip(axes, shown, places, strict=True):
        name = f"{task}, {model}" if matrix else groups[0].recipe
        draw_curves(panel, groups, kind, _panel_title(plain(name), groups, kind), counts=False)
        panel.title.set_fontsize(9)
        _only_outer_names(panel, axes)
    legend_below(figure)
    what = f"{shown[0][0].metric} under {kind} noise, {'data set × model' if matrix else 'by recipe'}{page}"
    title = f"{what}, {counted([group for groups in shown for group in groups], kind)} a line ({CHOSEN})"
    return save(figure, "", title, stem)


def is_matrix(places: Sequence[tuple[str, str]]) -> bool:
    """Whether models × data sets is a grid worth drawing: each place once, at least half of them taken."""
    rows, columns = ({place[i] for place in places} for i in (0, 1))
    fits = len(rows) <= MOST_ROWS and len(columns) <= MOST_ROWS
    return fits and len(set(places)) == len(places) and 2 * len(places) >= len(rows) * len(columns)


def _only_outer_names(panel: Any, axes: Sequence[Any]) -> None:
    """Names of axes on the left and below alone, or they would run into each other."""
    spot = panel.get_subplotspec()
    below = [other for other in axes if other.get_subplotspec().colspan == spot.colspan]
    if spot.rowspan.start < max(other.get_subplotspec().rowspan.start for other in below):
        panel.set_xlabel("")
    beside = [other for other in axes if other.get_subplotspec().rowspan == spot.rowspan]
    if spot.colspan.start > min(other.get_subplotspec().colspan.start for other in beside):
        panel.set_ylabel("")


def model_name(group: Group) -> str:
    """The pretrained model that a recipe takes, or the model's name."""
    pretrained = group.settings.get("model.pretrained")
    return value_text(pretrained if pretrained else group.settings["model.name"])


def task_name(group: Group) -> str:
    return value_text(group.settings["task.name"])


def sharing_a_metric(recipes: Sequence[Sequence[Group]]) -> dict[tuple[str, str], list[Sequence[Group]]]:
    """Recipes that have their metric and the noise they are shown under in common, in the order of places."""
    together: dict[tuple[str, str], list[Sequence[Group]]] = {}
    for groups in recipes:
        kind = main_kind(groups)
        if kind:
            together.setdefault((groups[0].metric, kind), []).append(groups)
    for found in together.values():
        found.sort(key=lambda groups: (model_name(groups[0]), task_name(groups[0]), groups[0].recipe))
    return together
