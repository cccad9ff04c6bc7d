"""The effective weight w_l of each layer's loss over training, and how often it is negative.

Drawn for each recipe with a constrained group whose runs logged the weights
(../effective_weights.py). Where a weight is negative, the update raises that layer's loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from cudt.report import objectives
from cudt.report.effective_weights import negative_shares, with_weights
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import main_kind, pair, with_curve
from cudt.report.figures.panels import guide, layer_ticks, legend_below, panels
from cudt.report.figures.words import chosen_text, seeds_text
from cudt.report.groups import Group

#: Layers that are named in the legend; of more, the first and the last.
_MOST_NAMES = 8
#: The colour of negative weights.
_NEGATIVE = "#B22222"


class EffectiveWeights(FigureType):
    """For each recipe with a constrained group that logged its weights."""

    name = "effective-weights"
    order = 35

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One, of the constrained group that the other figures compare."""
        kind = main_kind(groups)
        shown = pair(groups, kind) if kind is not None else []
        for group in shown:
            if objectives.is_constrained(group.objective) and (weights := with_weights(group.runs)):
                note = chosen_text(shown, with_curve(groups, str(kind)))
                yield FigurePlan(self.name, partial(draw, group, weights, note))


def draw(group: Group, weights: dict[int, pd.DataFrame], note: str = "") -> Drawing:
    """Two panels: the weights of one seed over the updates, and how often each layer's is negative,
    of all seeds.

    `note` says how the group was chosen.
    """
    figure, ((over_training, shares),) = panels(1, 2, 4.5, 3.2)
    seed, first = next(iter(weights.items()))
    _draw_weights(over_training, first)
    over_training.set(title=f"Effective weights, seed {seed}", xlabel="update", ylabel="$w_l$")
    _draw_shares(shares, [negative_shares(mine) for mine in weights.values()])
    shares.set(
        title="Updates with a negative weight",
        xlabel="layer",
        ylabel="share of logged updates",
        ylim=(0, 1),
    )
    legend_below(figure)
    title = f"{group.recipe}: effective weights of the layer losses, {group.objective}, {seeds_text(len(weights))}"
    return Drawing(
        figure, f"{title}{note}; where a weight is negative, the update raises that layer's loss"
    )


def _draw_weights(axes: Any, weights: pd.DataFrame) -> None:
    """A line for each layer, from light to dark; red points where a weight is negative."""
    steps = weights.index.get_level_values("step")
    layers = [int(layer) for layer in weights.columns]
    named = layers if len(layers) <= _MOST_NAMES else [layers[0], layers[-1]]
    for layer, color in zip(
        layers, plt.get_cmap("viridis")(np.linspace(0.9, 0, len(layers))), strict=True
    ):
        values = weights[layer].to_numpy()
        label = f"layer {layer}" if layer in named else None
        axes.plot(steps, values, color=color, linewidth=1.3, label=label)
        is_negative = values < 0
        axes.plot(steps[is_negative], values[is_negative], ".", color=_NEGATIVE, markersize=3)
    guide(axes, y=0)


def _draw_shares(axes: Any, by_seed: Sequence[dict[int, float]]) -> None:
    """A bar for the mean over seeds, a point for each seed."""
    layers = [*by_seed[0]]
    values = np.array([[mine[layer] for layer in layers] for mine in by_seed])
    axes.bar(layers, values.mean(0), color=_NEGATIVE, alpha=0.5)
    for mine in values:
        axes.plot(layers, mine, ".", color="0.2")
    layer_ticks(axes, layers)


FIGURE = EffectiveWeights()
