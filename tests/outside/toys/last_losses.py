"""A figure: the last layer's validation loss of each run of a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import matplotlib.pyplot as plt

from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.groups import Group


class LastLosses(FigureType):
    """A bar for each run."""

    name = "last-losses"
    order = 1000

    def of_recipe(self, groups: Sequence[Group]) -> Iterable[FigurePlan]:
        """For every recipe."""
        return [FigurePlan(self.name, lambda: self._draw(groups))]

    def _draw(self, groups: Sequence[Group]) -> Drawing:
        figure, axes = plt.subplots()
        runs = [run for group in groups for run in group.runs]
        axes.bar(range(len(runs)), [run.info.best.validation_loss for run in runs])
        return Drawing(figure, "Validation loss of the last layer")


FIGURE = LastLosses()
