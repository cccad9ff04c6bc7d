"""Loss by layer and the metric against the noise level, a line for each value of one setting: the
paper's Figure 4.

Drawn for each recipe and each setting of which constrained runs have at least three values, all
else equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cudt.config.differences import symbol, value_text
from cudt.report.figures.ablation import symbol_and_key
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import ablated, main_kind
from cudt.report.figures.curves import draw_curve, dress_curves
from cudt.report.figures.losses import draw_losses
from cudt.report.figures.panels import layer_ticks, legend_below, panels, scale_losses
from cudt.report.figures.style import MOST_BANDS, ordered_styles
from cudt.report.figures.words import plain, seeds_range
from cudt.report.groups import Group
from cudt.utils.files import file_name


class AblationCurves(FigureType):
    """For each recipe and ablated setting; on the page, each follows the ablation of its
    setting.
    """

    name = "ablation-curves"
    order = 70
    reads_ablations = True

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One for each setting, under the main kind of noise."""
        kind = main_kind(groups)
        if kind is None:
            return
        for position, (key, mine) in enumerate(ablated(groups, kind).items()):
            yield FigurePlan(
                f"ablation-{file_name(key)}-curves",
                partial(draw, mine, key, kind),
                position=position,
            )


def draw(groups: Sequence[Group], key: str, kind: str) -> Drawing:
    """Two panels: validation loss by layer, and the metric against γ."""
    figure, grid = panels(1, 2, 4.5, 3.1)
    left, right = grid[0]
    crowded = len(groups) > MOST_BANDS
    for group, style in zip(groups, ordered_styles(len(groups)), strict=True):
        label = plain(f"{symbol(key)} = {value_text(group.settings[key])}")
        draw_curve(right, group, kind, label, style, crowded=crowded)
        draw_losses(
            left, group.layers[group.layers["split"] == "validation"], label, style, crowded=crowded
        )
    dress_curves(right, groups, kind)
    layers = [group.layers[group.layers["split"] == "validation"] for group in groups]
    layer_ticks(left, (layer for rows in layers for layer in rows["layer"]))
    scale_losses(left, (loss for rows in layers for loss in rows["loss"]))
    left.set(xlabel="layer", ylabel="validation loss", title="Loss by layer")
    right.set_title(f"Under {kind} noise")
    legend_below(figure)
    title = f"{groups[0].recipe}: loss by layer, and {groups[0].metric} under {kind} noise, by {symbol_and_key(key)}"
    return Drawing(figure, f"{title}, {seeds_range(groups, kind)} per line")


FIGURE = AblationCurves()
