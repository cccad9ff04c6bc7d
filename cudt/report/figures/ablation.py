"""The metric against one setting, all others equal: the paper's ablations of α and of the dual
learning rate η₂.

Drawn for each recipe and each setting of which constrained runs have at least three values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cudt.config.differences import symbol
from cudt.noise import scale_of
from cudt.report import objectives
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import ablated, main_kind, middle_levels
from cudt.report.figures.panels import panels, points, scale_setting
from cudt.report.figures.words import seeds_range
from cudt.report.groups import Group
from cudt.utils.files import file_name


class Ablation(FigureType):
    """For each recipe and ablated setting."""

    name = "ablation"
    order = 70
    reads_ablations = True

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One for each setting, under the main kind of noise."""
        kind = main_kind(groups)
        if kind is None:
            return
        for position, (key, mine) in enumerate(ablated(groups, kind).items()):
            yield FigurePlan(
                f"{self.name}-{file_name(key)}", partial(draw, mine, key, kind), position=position
            )


def draw(groups: Sequence[Group], key: str, kind: str) -> Drawing:
    """A panel for a low, a middle and a high noise level, with error bars over seeds.

    The paper's appendix has it for α and η₂ at γ = 0, 1.05 and 1.65.
    """
    levels = middle_levels(groups, kind)
    figure, grid = panels(1, len(levels), 3.2, 2.7)
    values = [group.settings[key] for group in groups]
    label, style = objectives.label(groups[0].objective), objectives.style(groups[0].objective)
    for axes, level in zip(grid[0], levels, strict=True):
        rows = [group.curve(kind).set_index("gamma").loc[level] for group in groups]
        mean, lower, upper = ([row[name] for row in rows] for name in ("mean", "lower", "upper"))
        points(axes, values, mean, lower, upper, label, style)
        scale_setting(axes, values)
        axes.set(xlabel=symbol_and_key(key), title=f"{scale_of(kind).symbol} = {level:g}")
    grid[0, 0].set_ylabel(f"test {groups[0].metric}")
    title = (
        f"{groups[0].recipe}: {groups[0].metric} against {symbol_and_key(key)} under {kind} noise"
    )
    return Drawing(figure, f"{title}, all else equal, {seeds_range(groups, kind)} per value")


def symbol_and_key(key: str) -> str:
    """A setting's letter in the paper with its key, since a letter alone says little: `α
    (descent.alpha)`.
    """
    letter = symbol(key)
    return letter if letter == key else f"{letter} ({key})"


FIGURE = Ablation()
