"""The metric under noise in the three settings in which the paper shows a trade-off between ID and
OOD quality.

Drawn over all recipes that are the paper's (`published`): a panel for UT on ShanghaiTech, ViT on
UCSD and DUST on Avenue, each at the paper's depth and γ_train, or where no runs have these at the
depth and γ_train of other figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cudt.report.collect import ReadRun
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import main_kind, pair
from cudt.report.figures.curves import draw_curves, panel_title
from cudt.report.figures.panels import legend_below, wrapped_panels
from cudt.report.figures.words import plain, seeds_range
from cudt.report.groups import Group
from cudt.report.published import is_published

#: Model, data set, depth and γ_train of the paper's three panels.
_SETTINGS = (
    ("UT", "ShanghaiTech", 7, 0.09),
    ("ViT", "UCSD", 12, 0.13),
    ("DUST", "Avenue", 7, 0.15),
)


class Tradeoffs(FigureType):
    """Over the recipes of the paper's three settings."""

    name = "tradeoffs"
    order = 105

    def over_recipes(self, recipes: Sequence[Sequence[Group]]) -> Iterator[FigurePlan]:
        """One with a panel for each setting that has runs."""
        shown, notes = [], []
        for model, dataset, layers, gamma in _SETTINGS:
            found = _shown(recipes, model, dataset, layers, gamma)
            if found:
                shown.append(found)
                is_same = all(
                    (group.n_layers, group.gamma_train) == (layers, gamma) for group in found
                )
                if not is_same:
                    notes.append(f"{model} on {dataset} has L = {layers} and γ_train = {gamma:g}")
        if shown:
            yield FigurePlan(self.name, partial(draw, shown, notes))


def _shown(
    recipes: Sequence[Sequence[Group]], model: str, dataset: str, layers: int, gamma: float
) -> list[Group]:
    """One group of each objective of a setting; empty without runs."""
    published = [
        [group for group in groups if _is_of(group.runs[0], model, dataset)] for groups in recipes
    ]
    mine = next((groups for groups in published if groups), [])
    kind = main_kind(mine)
    if kind is None:
        return []
    return pair([group for group in mine if group.n_layers == layers] or mine, kind, gamma)


def _is_of(run: ReadRun, model: str, dataset: str) -> bool:
    named = run.run.recipe.settings.published
    return (
        named is not None and (named.model, named.dataset) == (model, dataset) and is_published(run)
    )


def draw(shown: Sequence[Sequence[Group]], notes: Sequence[str]) -> Drawing:
    """A panel for each setting; `notes` name those that are not the paper's."""
    figure, axes = wrapped_panels(len(shown), 3)
    kinds = [main_kind(groups) or "" for groups in shown]
    for panel, groups, kind in zip(axes, shown, kinds, strict=True):
        draw_curves(
            panel, groups, kind, panel_title(plain(groups[0].recipe), groups, kind), counts=False
        )
        panel.title.set_fontsize(9)
    legend_below(figure)
    counts = seeds_range([group for groups in shown for group in groups], kinds[0])
    other = f" (in the paper, {'; '.join(notes)})" if notes else ""
    return Drawing(
        figure,
        f"In and out of distribution: {shown[0][0].metric} in the paper's three settings, "
        f"{counts}{other}",
    )


FIGURE = Tradeoffs()
