"""The contract of a figure. A new figure is one file next to this one, which holds `FIGURE`, a
`FigureType`.

The file looks at the runs, says which drawings they have data for (`of_recipe`, `over_recipes`),
and draws them with Matplotlib. Saving and the page are done elsewhere. A figure outside cudt works
the same: `cudt report FOLDER --figure my_package.my_figure`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from cudt.report.groups import Group


class Drawing(NamedTuple):
    """A Matplotlib figure in memory, and its caption."""

    figure: Any
    title: str


@dataclass(frozen=True)
class FigurePlan:
    """A drawing that the runs have data for."""

    name: str
    """The file name, without the recipe and the extension."""
    draw: Callable[[], Drawing]
    position: int = 0
    """Sorts the drawings of figures that have the same `order`."""


class FigureType:
    """A sort of figure. It plans drawings for each recipe, or over all recipes, or both."""

    name: ClassVar[str]
    """What file names call it."""
    order: ClassVar[int]
    """The lower, the earlier on the page."""
    reads_ablations: ClassVar[bool] = False
    """Whether it is given the runs of ablation sweeps where the tables leave them out
    (../comparable.py)."""

    def of_recipe(self, groups: Sequence[Group]) -> Iterable[FigurePlan]:
        """The drawings for one recipe. Each group holds the runs that differ only in their seed.

        A recipe with several encoders or sets of test data comes in parts, one for each.
        """
        return ()

    def over_recipes(self, recipes: Sequence[Sequence[Group]]) -> Iterable[FigurePlan]:
        """The drawings that show all recipes together, given the groups of each."""
        return ()
