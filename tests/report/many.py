"""Many look-alike runs, as months of work leave them."""

from __future__ import annotations

import pandas as pd

from cudt.runs.run import Run
from cudt.runs.tables import TABLES

LEVELS = [round(0.15 * place, 2) for place in range(15)]


def add_levels(run: Run, levels: list[float], kind: str = "gaussian") -> None:
    """The losses of three layers at each level: 0.6, 0.5 and 0.4, and a tenth of the level more."""
    losses = [
        (level, layer, 0.7 - 0.1 * layer + 0.1 * level) for level in levels for layer in (1, 2, 3)
    ]
    rows = [("test", kind, level, layer, loss, 0.5) for level, layer, loss in losses]
    run.merge_table("layers", pd.DataFrame(rows, columns=TABLES["layers"]), TABLES["layers"][:4])


def add_history(run: Run, updates: int = 20, rate: float = 0.01) -> None:
    """Multipliers that grow by a rate with each update, the more the deeper the layer; ERM has
    none."""
    is_erm = run.recipe.settings.objective == "erm"
    multipliers = [
        (step, 0, "train", layer, "multiplier", rate * layer * step)
        for step in range(updates)
        for layer in ((1, 2, 3) if not is_erm else ())
    ]
    losses = [
        (step, step, "validation", layer, "loss", 1 / (step + layer))
        for step in range(0, updates, 10)
        for layer in (1, 2, 3)
    ]
    run.write_table("history", pd.DataFrame([*multipliers, *losses], columns=TABLES["history"]))
