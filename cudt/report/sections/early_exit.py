"""Early exit in numbers: what each rule costs in accuracy and saves in layers and FLOPs."""

from __future__ import annotations

from collections.abc import Sequence

from cudt.evaluation.exit_rules import RULES, RuleName
from cudt.noise import scale_of
from cudt.report.collect import ReadRun
from cudt.report.early_exit import at_chosen, has_exits, shown_levels
from cudt.report.figures.choose import main_kind, pair
from cudt.report.figures.words import labels, short
from cudt.report.groups import Group
from cudt.report.material import Material
from cudt.report.sections.base import Content, SectionType
from cudt.report.text_table import Entry, TextTable

_HEADINGS = ["accuracy", "layers", "FLOPs"]
_NOTE = (
    "Means over seeds, on test data. An example leaves at the first layer whose answer the rule "
    "accepts. Each run's "
    "threshold is the one with the least mean depth whose accuracy on validation data at γ_train "
    "is at most half a "
    "percentage point below that of the full model. accuracy: with early exit, in brackets what "
    "it changes against the "
    "full model, in percentage points. layers: the mean number. FLOPs: as a share of the full "
    "model's, with the "
    "readouts of all layers that the rule reads."
)


class ExitTables(SectionType):
    """For each recipe with early exits: the groups of the figure."""

    title = "Early exit"

    def of_recipe(self, runs: Sequence[ReadRun], made: Material) -> Content | None:
        """One table, under the main kind of noise."""
        groups = made.groups_of(runs)
        kind = main_kind(groups)
        shown = has_exits(pair(groups, kind), kind) if kind is not None else []
        if kind is None or not shown_levels(shown, kind):
            return None
        return Content(tables=[_table(shown, kind)])


def _table(groups: Sequence[Group], kind: str) -> TextTable:
    """A row for each rule and level, and the columns of each objective."""
    named = labels(groups, kind, written=short)
    symbol = scale_of(kind).symbol
    return TextTable(
        "early-exit",
        f"Early exit under {kind} noise, {groups[0].n_layers} layers",
        groups=[("", 2), *((named[group.key], len(_HEADINGS)) for group in groups)],
        headings=["rule", symbol, *(heading for _ in groups for heading in _HEADINGS)],
        rows=[
            [
                Entry(rule),
                Entry(f"{level:g}"),
                *(cell for group in groups for cell in _cells(group, kind, level, rule)),
            ]
            for rule in RULES
            for level in shown_levels(groups, kind)
        ],
        notes=[_NOTE],
    )


def _cells(group: Group, kind: str, level: float, rule: RuleName) -> list[Entry]:
    found = at_chosen(group, kind, level, rule)
    change = 100 * (found["accuracy"] - found["full_accuracy"])
    return [
        Entry(f"{found['accuracy']:.3f}", f"{change:+.1f}".replace("-", "−")),
        Entry(f"{found['mean_depth']:.2f}"),
        Entry(f"{found['share']:.0%}"),
    ]


SECTION = ExitTables()
