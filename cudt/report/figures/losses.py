"""A line of losses by layer with a band over seeds, which several figures share."""

from __future__ import annotations

from typing import Any

import pandas as pd

from cudt.report.figures.panels import line


def draw_losses(
    axes: Any, rows: pd.DataFrame, label: str, style: dict[str, Any], *, crowded: bool = False
) -> None:
    """Draw the loss by layer, given the rows of a group's `layers`; nothing where there are
    none.
    """
    if not rows.empty:
        low, high = rows["loss"] - rows["loss_std"], rows["loss"] + rows["loss_std"]
        line(axes, rows["layer"], rows["loss"], low, high, label, style, crowded=crowded)
