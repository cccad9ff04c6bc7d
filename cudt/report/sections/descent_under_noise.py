"""What is left of descent under noise, in numbers: constraints kept, the best layer, and the theory's bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cudt.noise.base import scale_of
from cudt.report.carry_over import by_level, has_descent, has_promise, kept_by_level
from cudt.report.collect import ReadRun
from cudt.report.figures.choose import main_kind, pair, with_curve
from cudt.report.figures.words import chosen_text, labels, short
from cudt.report.groups import Group
from cudt.report.material import Material
from cudt.report.sections.base import Content, SectionType
from cudt.report.text_table import Entry, TextTable
from cudt.utils.numbers import short_number

#: Column of a table, row of descent.csv.
_LOSSES = {"min f_k": "best_loss", "bound": "bound_at_depth", "bound, L → ∞": "bound", "f_L − min f_k": "gap"}
#: The columns that the theory promises to runs that keep their constraints.
_PROMISED = ("bound_at_depth", "bound")
_ABOUT_KEPT = (
    "On test data. kept: the number of constraints that are met or borderline (a violation within two standard "
    "errors), as a mean over seeds; every objective is judged by the α and f_0 of the constrained runs. best layer: "
    "the one with the lowest loss, as a range over seeds."
)
_ABOUT_BOUND = (
    "Means over seeds. min f_k: the lowest layer loss. bound: what the theory promises it stays below, if training "
    "keeps the constraints; – where it did not, or did not ask for them. The bound is b_L of b_l = (1−α)·b_{l−1} + ζ + "
    "Cτ from b_0 = f_0. bound, L → ∞: (1/α)(ζ + Cτ), which it tends to as layers are added. On the ladder, both have "
    "ζ + Cτ only once. ζ is how far the layer losses move from training to validation data, up and down; "
    "Cτ is how far they move from γ_train. f_L − min f_k: what reading the last layer costs; the theory "
    "does not bound it."
)


class DescentTables(SectionType):
    """For each recipe whose runs have the constraints of every noise level: the groups of the figure."""

    title = "Descent under noise"

    def of_recipe(self, runs: Sequence[ReadRun], made: Material) -> Content | None:
        """Two tables under the main kind of noise."""
        groups = made.groups_of(runs)
        kind = main_kind(groups)
        shown = has_descent(pair(groups, kind), kind) if kind is not None else []
        if not shown or kind is None:
            return None
        note = chosen_text(shown, with_curve(groups, kind))
        return Content(tables=[_kept_table(shown, kind, note), _bound_table(shown, kind, note)])


def _kept_table(groups: Sequence[Group], kind: str, note: str) -> TextTable:
    title = f"Constraints kept, and the layer with the lowest loss, under {kind} noise{note}"
    return _table(
        "constraints-kept", title, groups, kind, ["kept", "best layer"], partial(_kept, shown=groups), _ABOUT_KEPT
    )


def _bound_table(groups: Sequence[Group], kind: str, note: str) -> TextTable:
    title = f"The lowest layer loss, and the theory's bound, under {kind} noise{note}"
    return _table("descent-bound", title, groups, kind, [*_LOSSES], _losses, _ABOUT_BOUND)


def _table(
    stem: str,
    title: str,
    groups: Sequence[Group],
    kind: str,
    headings: list[str],
    cells: Callable[[Group, str], Callable[[float], list[Entry]]],
    note: str,
) -> TextTable:
    """A row for each noise level that all groups have, and the columns of each objective."""
    named = labels(groups, kind, written=short)
    of_groups = [cells(group, kind) for group in groups]
    levels = set.intersection(*(set(kept_by_level(group, groups, kind).index) for group in groups))
    return TextTable(
        stem,
        title,
        groups=[("", 1), *((named[group.key], len(headings)) for group in groups)],
        headings=[scale_of(kind).symbol, *(heading for _ in groups for heading in headings)],
        rows=[
            [Entry(f"{level:g}"), *(entry for at_level in of_groups for entry in at_level(level))]
            for level in sorted(levels)
        ],
        notes=[note],
    )


def _kept(group: Group, kind: str, *, shown: Sequence[Group]) -> Callable[[float], list[Entry]]:
    kept = kept_by_level(group, shown, kind)["mean"].to_dict()
    best_of_runs = [run.descent_numbers[kind, "best_layer"] for run in group.runs]

    def at_level(level: float) -> list[Entry]:
        layers = sorted({int(best[level]) for best in best_of_runs})
        best = str(layers[0]) if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"
        return [Entry(f"{round(kept[level], 1):g} of {group.n_layers}"), Entry(best)]

    return at_level


def _losses(group: Group, kind: str) -> Callable[[float], list[Entry]]:
    numbers = {name: by_level(group.runs, kind, name)["mean"].to_dict() for name in _LOSSES.values()}
    is_shown = {name: has_promise(group) or name not in _PROMISED for name in numbers}
    return lambda level: [
        Entry(short_number(found[level]) if is_shown[name] else "–") for name, found in numbers.items()
    ]


SECTION = DescentTables()
