"""A figure: the last layer's validation loss of each run of a recipe."""

from __future__ import annotations

from collections.abc import Iterator

import altair as alt

from cudt.report.charts import Drawing, Figure, View


def last_losses(view: View) -> Iterator[Drawing]:
    """A bar for each run."""
    bars = alt.Chart(view.runs[["objective", "validation_loss"]]).mark_bar()
    chart = bars.encode(x="objective:N", y="mean(validation_loss):Q")
    yield Drawing(chart, "Validation loss of the last layer")


FIGURE = Figure("last-losses", last_losses)
