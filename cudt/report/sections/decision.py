"""Whether robustness goes with the descent or with early decisions: the correlations of the figure as a table."""

from __future__ import annotations

from cudt.report.decision import MEASURES, Correlation, Panel, correlate, decisions, panels, signed
from cudt.report.material import Material
from cudt.report.sections.base import Content, SectionType
from cudt.report.text_table import Entry, TextTable

_TEXT = (
    "A model whose layers all lower the loss also decides early, and so does one that is trained at every layer. This "
    "table says which of the two goes with accuracy above γ_train: Spearman's correlation of the mean OOD accuracy of "
    "runs with the layer at which they decide (as a share of depth; negative: early decisions go with robustness) and "
    "with the share of layers that lower the test loss at γ_train (positive: descent goes with robustness). Within "
    "objectives, the mean of each objective is subtracted first, so that a difference between objectives does not "
    "count. With the other fixed, it is the partial correlation. Correlations over few runs vary a lot, and none shows "
    "a cause."
)
_NOTE = (
    "The decision layer is the first whose test accuracy at γ_train reaches chance + 0.9·(accuracy of the last layer − "
    "chance). –: fewer than six runs, or no variation. decision.csv has every run."
)


class DecisionTable(SectionType):
    """At the end of the page, where a figure shows the runs."""

    title = "Descent or early decisions"
    order = 900

    def over_recipes(self, made: Material) -> Content | None:
        """A row for each panel of the figure."""
        found = panels(decisions(made.collected.runs))
        return Content([_TEXT], [_table(found)]) if found else None


def _table(found: list[Panel]) -> TextTable:
    heading = ["all runs", "within objectives", "other fixed"]
    rows = [
        [
            Entry(panel.family),
            Entry(f"L = {panel.cell.layers}, γ_train = {panel.cell.gamma_train:g}{panel.cell.apart}, {panel.noise}"),
            Entry(str(len(panel.shown))),
            *(entry for measure in MEASURES for entry in _entries(correlate(panel, measure))),
        ]
        for panel in found
    ]
    groups = [("", 3), *((name, len(heading)) for name in MEASURES.values())]
    headings = ["recipe", "setting", "runs", *heading * len(MEASURES)]
    return TextTable(
        "decision-correlations", "Correlations with the mean OOD accuracy", groups, headings, rows, [_NOTE]
    )


def _entries(one: Correlation) -> list[Entry]:
    return [Entry(signed(value)) for value in (one.over_all, one.within, one.other_fixed)]


SECTION = DecisionTable()
