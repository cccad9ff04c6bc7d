"""Bias towards one class under noise, in numbers: what accuracy would be without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from cudt.noise.base import scale_of
from cudt.report.class_bias import table
from cudt.report.collect import GroupKey, ReadRun
from cudt.report.figures.choose import main_kind, pair, with_curve
from cudt.report.figures.words import chosen_text, labels, short
from cudt.report.groups import Group
from cudt.report.material import Material
from cudt.report.sections.base import Content, SectionType
from cudt.report.text_table import Entry, TextTable

_HEADINGS = ["accuracy", "unbiased", "bias"]
_NOTE = (
    "Means over seeds, on test data. bias: how far the threshold between the two classes is from the middle, in "
    "standard deviations of the logit; positive: too many answers of class 0. unbiased: the accuracy with the "
    "threshold in the middle. Both come from the recall of the two classes, for normal logits of equal variance."
)


class BiasTables(SectionType):
    """For each recipe with two classes: the groups of the figure."""

    title = "Bias towards one class"
    order = 20

    def of_recipe(self, runs: Sequence[ReadRun], made: Material) -> Content | None:
        """One table, under the main kind of noise."""
        groups = made.groups_of(runs)
        kind = main_kind(groups)
        shown = pair(groups, kind) if kind is not None else []
        numbers = {group.key: _by_level(group, kind) for group in shown if kind is not None}
        known = [group for group in shown if not numbers[group.key].empty]
        if kind is None or not known:
            return None
        return Content(tables=[_text(known, kind, numbers, chosen_text(shown, with_curve(groups, kind)))])


def _by_level(group: Group, kind: str) -> pd.DataFrame:
    """The means over seeds, by level; empty without two classes."""
    rows = table(group.runs)
    return rows[rows["perturbation"] == kind].groupby("gamma")[_HEADINGS].mean()


def _text(groups: Sequence[Group], kind: str, numbers: Mapping[GroupKey, pd.DataFrame], note: str) -> TextTable:
    """A row for each level, and the columns of each objective."""
    named = labels(groups, kind, written=short)
    levels = sorted(set.intersection(*(set(numbers[group.key].index) for group in groups)))
    return TextTable(
        "class-bias",
        f"Accuracy with and without the bias towards one class, under {kind} noise{note}",
        groups=[("", 1), *((named[group.key], len(_HEADINGS)) for group in groups)],
        headings=[scale_of(kind).symbol, *(heading for _ in groups for heading in _HEADINGS)],
        rows=[
            [Entry(f"{level:g}"), *(cell for group in groups for cell in _cells(numbers[group.key].loc[level]))]
            for level in levels
        ],
        notes=[_NOTE],
    )


def _cells(found: pd.Series[float]) -> list[Entry]:
    # Adding 0 makes a rounded −0 positive.
    bias = f"{round(found['bias'], 2) + 0.0:+.2f}".replace("-", "−")
    return [Entry(f"{found['accuracy']:.3f}"), Entry(f"{found['unbiased']:.3f}"), Entry(bias)]


SECTION = BiasTables()
