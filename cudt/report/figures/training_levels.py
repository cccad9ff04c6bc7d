"""The metric against the noise level for each γ_train, constrained against ERM: the paper's curves
per training level.

Drawn for each recipe of which one depth was trained at more than one γ_train.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from cudt.report.comparable import constraint_kind
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import main_kind, pair, with_curve
from cudt.report.figures.curves import draw_curves, panel_title
from cudt.report.figures.panels import legend_below, share_height, wrapped_panels
from cudt.report.figures.words import chosen_text, seeds_range
from cudt.report.groups import Group
from cudt.report.objectives import is_constrained

#: Panels that fit on a page.
_MOST_PANELS = 9


class TrainingLevels(FigureType):
    """For each recipe with several γ_train."""

    name = "training-levels"
    order = 40

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One, under the main kind of noise."""
        kind = main_kind(groups)
        if kind is not None and len(levels_of_training(_alike(groups, kind), kind)) > 1:
            yield FigurePlan(self.name, partial(draw, groups, kind))


def draw(groups: Sequence[Group], kind: str) -> Drawing:
    """A panel for each γ_train, with one group of each objective."""
    groups = _alike(groups, kind)
    levels = levels_of_training(groups, kind)
    shown = {
        level: pair([group for group in groups if group.gamma_train == level], kind)
        for level in levels
    }
    figure, axes = wrapped_panels(len(levels), 3, height=2.7)
    for panel, level in zip(axes, levels, strict=True):
        draw_curves(panel, shown[level], kind, panel_title("", shown[level], kind), counts=False)
        panel.title.set_fontsize(9)
    share_height(axes)
    legend_below(figure)
    all_shown = [group for level in levels for group in shown[level]]
    title = f"{groups[0].recipe}: {groups[0].metric} under {kind} noise by γ_train, {seeds_range(all_shown, kind)}"
    return Drawing(figure, title + chosen_text(all_shown, with_curve(groups, kind)))


def _alike(groups: Sequence[Group], kind: str) -> list[Group]:
    """The groups of the depth and the kind of constraints that have most levels: panels are to
    differ in γ_train alone.

    Of several depths it is the deepest, of several kinds the paper's. If an objective has runs with
    the same settings at all levels, only these.
    """
    deep = _of_most_levels(groups, kind, lambda group: -group.n_layers)
    by_objective: dict[str, list[Group]] = {}
    for group in deep:
        by_objective.setdefault(group.objective, []).append(group)
    alike = []
    for objective, mine in by_objective.items():
        if is_constrained(objective):
            mine = _of_most_levels(mine, kind, lambda group: constraint_kind(group.runs[0]))
        same = _of_most_levels(mine, kind, _other_settings)
        alike += same if _levels(same, kind) == _levels(mine, kind) else mine
    return alike


def _other_settings(group: Group) -> str:
    return repr(
        sorted(item for item in group.runs[0].settings.items() if item[0] != "noise.gamma_train")
    )


def _of_most_levels(groups: Sequence[Group], kind: str, key: Callable[[Group], Any]) -> list[Group]:
    """The groups with the value of `key` that was trained at most levels, the lowest of several."""
    parts: dict[Any, list[Group]] = {}
    for group in groups:
        parts.setdefault(key(group), []).append(group)
    return max(
        (parts[value] for value in sorted(parts)),
        key=lambda mine: len(_levels(mine, kind)),
        default=[],
    )


def _levels(groups: Sequence[Group], kind: str) -> set[float]:
    return {group.gamma_train for group in with_curve(groups, kind)}


def levels_of_training(groups: Sequence[Group], kind: str) -> list[float]:
    """Every γ_train; of more than fit on a page, nine spread from the lowest to the highest."""
    levels = sorted(_levels(groups, kind))
    if len(levels) <= _MOST_PANELS:
        return levels
    return [
        levels[round(index * (len(levels) - 1) / (_MOST_PANELS - 1))]
        for index in range(_MOST_PANELS)
    ]


FIGURE = TrainingLevels()
