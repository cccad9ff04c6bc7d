"""The recall of each class against the noise level, for each objective: does noise make models prefer one class?

Drawn for each classification recipe under its main kind of noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cudt.noise.base import scale_of
from cudt.report.class_bias import by_level, with_recalls
from cudt.report.figures.base import Drawing, FigurePlan, FigureType
from cudt.report.figures.choose import main_kind, pair, with_curve
from cudt.report.figures.panels import legend_below, line, shade_seen, wrapped_panels
from cudt.report.figures.words import chosen_text, labels, seeds_range, styles
from cudt.report.groups import Group

#: More classes than these would be too many panels.
_MOST_CLASSES = 6


class ClassRecall(FigureType):
    """For each recipe whose runs have the recall of each class."""

    name = "class-recall"
    order = 27

    def of_recipe(self, groups: Sequence[Group]) -> Iterator[FigurePlan]:
        """One, under the main kind of noise."""
        kind = main_kind(groups)
        shown = with_recalls(pair(groups, kind), kind) if kind is not None else []
        if kind is not None and shown and by_level(shown[0], kind)["class"].nunique() <= _MOST_CLASSES:
            note = chosen_text(shown, with_curve(groups, kind))
            yield FigurePlan(self.name, partial(draw, shown, kind, note))


def draw(groups: Sequence[Group], kind: str, note: str = "") -> Drawing:
    """A panel for each class."""
    named, drawn = labels(groups, kind, counts=False), styles(groups)
    found = {group.key: by_level(group, kind) for group in groups}
    classes = sorted(set().union(*(set(rows["class"]) for rows in found.values())))
    figure, axes = wrapped_panels(len(classes), 3, sharey=True)
    seen = {group.level(kind) for group in groups}
    for panel, label in zip(axes, classes, strict=True):
        for group in groups:
            rows = found[group.key][found[group.key]["class"] == label]
            low, high = ((rows["mean"] + sign * rows["std"]).clip(0, 1) for sign in (-1, 1))
            line(panel, rows["gamma"], rows["mean"], low, high, named[group.key], drawn[group.key])
        if len(seen) == 1 and max(seen):
            shade_seen(panel, max(seen), low=True)
        panel.set(title=f"class {label}", xlabel=scale_of(kind).axis, ylim=(0, 1.03), xlim=(0, None))
    axes[0].set_ylabel("recall on test data")
    legend_below(figure)
    recipe, seeds = groups[0].recipe, seeds_range(groups, kind)
    return Drawing(figure, f"{recipe}: recall of each class under {kind} noise, {seeds}{note}")


FIGURE = ClassRecall()
