"""What is left of descent under noise, in numbers: constraints kept, and the best layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cudt.noise import scale_of
from cudt.report.carry_over import has_descent, kept_by_level
from cudt.report.collect import ReadRun
from cudt.report.figures.choose import main_kind, pair, with_curve
from cudt.report.figures.words import chosen_text, labels, short
from cudt.report.groups import Group
from cudt.report.material import Material
from cudt.report.sections.base import Content, SectionType
from cudt.report.text_table import Entry, TextTable

_ABOUT_KEPT = (
    "On test data. kept: the number of constraints that are met or borderline (a violation "
    "within two standard "
    "errors), as a mean over seeds; every objective is judged by the α and f_0 of the "
    "constrained runs. best layer: "
    "the one with the lowest loss, as a range over seeds."
)


class DescentTable(SectionType):
    """For each recipe whose runs have the constraints of every noise level: the groups of the
    figure.
    """

    title = "Descent under noise"

    def of_recipe(self, runs: Sequence[ReadRun], made: Material) -> Content | None:
        """A table under the main kind of noise."""
        groups = made.groups_of(runs)
        kind = main_kind(groups)
        shown = has_descent(pair(groups, kind), kind) if kind is not None else []
        if not shown or kind is None:
            return None
        note = chosen_text(shown, with_curve(groups, kind))
        return Content(tables=[_table(shown, kind, note)])


def _table(groups: Sequence[Group], kind: str, note: str) -> TextTable:
    """A row for each noise level that all groups have, and two columns for each objective."""
    named = labels(groups, kind, written=short)
    of_groups = [_kept(group, kind, shown=groups) for group in groups]
    levels = set.intersection(*(set(kept_by_level(group, groups, kind).index) for group in groups))
    return TextTable(
        "constraints-kept",
        f"Constraints kept, and the layer with the lowest loss, under {kind} noise{note}",
        groups=[("", 1), *((named[group.key], 2) for group in groups)],
        headings=[scale_of(kind).symbol, *("kept", "best layer") * len(groups)],
        rows=[
            [Entry(f"{level:g}"), *(entry for at_level in of_groups for entry in at_level(level))]
            for level in sorted(levels)
        ],
        notes=[_ABOUT_KEPT],
    )


def _kept(group: Group, kind: str, *, shown: Sequence[Group]) -> Callable[[float], list[Entry]]:
    kept = kept_by_level(group, shown, kind)["mean"].to_dict()
    best_of_runs = [run.descent_numbers[kind, "best_layer"] for run in group.runs]

    def at_level(level: float) -> list[Entry]:
        layers = sorted({int(best[level]) for best in best_of_runs})
        best = str(layers[0]) if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"
        return [Entry(f"{round(kept[level], 1):g} of {group.n_layers}"), Entry(best)]

    return at_level


SECTION = DescentTable()
