"""The multipliers λ_l and the effective weights w_l by layer, and how often a weight is
negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from cudt.report import objectives
from cudt.report.collect import ReadRun
from cudt.report.effective_weights import (
    any_negative,
    means,
    negative_shares,
    weights_at_end,
    with_weights,
)
from cudt.report.figures.choose import main_kind, pair, with_curve
from cudt.report.figures.words import chosen_text, seeds_text
from cudt.report.groups import Group
from cudt.report.material import Material
from cudt.report.sections.base import Content, SectionType
from cudt.report.text_table import Entry, TextTable

_HEADINGS = ["layer", "λ best", "λ last", "w evaluated", "w last", "negative"]
_NOTE = (
    "Means over seeds. λ: at the end of the best and of the last epoch. w: at the end of the "
    "epoch whose weights are "
    "evaluated, and of training. w_l is the weight of layer l's loss in the update: λ_l minus "
    "what the constraint of layer l + 1 takes away (nothing with the proxy gradient or on the "
    "ladder), plus 1 at "
    "the last layer. negative: the share of logged updates in which w_l < 0, so that the update "
    "raises the loss of "
    "layer l. Bold: negative weights."
)


class WeightTables(SectionType):
    """For each recipe with a constrained group that logged its weights: the group of the figure."""

    title = "Effective weights"

    def of_recipe(self, runs: Sequence[ReadRun], made: Material) -> Content | None:
        """A sentence and a table with a row for each layer."""
        groups = made.groups_of(runs)
        kind = main_kind(groups)
        shown = pair(groups, kind) if kind is not None else []
        for group in shown:
            if objectives.is_constrained(group.objective) and (logged := with_weights(group.runs)):
                note = chosen_text(shown, with_curve(groups, str(kind)))
                return Content([_sentence(group, logged)], [_table(group, logged, note)])
        return None


def _sentence(group: Group, logged: Mapping[int, pd.DataFrame]) -> str:
    shares = [f"{any_negative(weights):.0%} (seed {seed})" for seed, weights in logged.items()]
    return f"{group.objective}: updates in which some layer has a negative weight: {', '.join(shares)}."


def _table(group: Group, logged: Mapping[int, pd.DataFrame], note: str) -> TextTable:
    runs = [run for run in group.runs if run.seed in logged]
    columns = [
        _multipliers(runs, "best"),
        _multipliers(runs, "last"),
        means(weights_at_end(run) for run in runs),
        means(weights_at_end(run, "last") for run in runs),
    ]
    negative = means(negative_shares(weights) for weights in logged.values())
    return TextTable(
        stem="effective-weights",
        title=f"Multipliers and effective weights, {group.objective}, {seeds_text(len(runs))}{note}",
        groups=[("", len(_HEADINGS))],
        headings=_HEADINGS,
        rows=[
            [
                Entry(str(layer)),
                *(_entry(column.get(layer)) for column in columns),
                Entry(f"{negative[layer]:.0%}"),
            ]
            for layer in range(1, group.n_layers + 1)
        ],
        notes=[_NOTE],
    )


def _multipliers(runs: Sequence[ReadRun], which: str) -> dict[int, float]:
    """λ_l by layer; empty if a run does not have those of this epoch."""
    found = [getattr(run.info.multipliers, which, None) for run in runs]
    return means(dict(enumerate(values, 1)) for values in found if values) if all(found) else {}


def _entry(value: float | None) -> Entry:
    return Entry() if value is None else Entry(f"{value:.4f}", is_bold=value < 0)


SECTION = WeightTables()
