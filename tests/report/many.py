"""Many look-alike runs, as months of work leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cudt.runs.run import Run
from cudt.runs.tables import TABLES
from tests.report import make_run, make_scored_run

LEVELS = [round(0.15 * place, 2) for place in range(15)]
_ALPHAS = (0.05, 0.1, 0.2, 0.4)
_SEEDS = 5


def make_many(trained: Run, out: Path, *, recipes: int = 20, examples: int = 300) -> int:
    """25 runs of each recipe: four α and ERM on five seeds, at 15 levels; some not evaluated, some failed."""
    random = np.random.default_rng(0)
    made = 0
    for number in range(recipes):
        name = f"recipe-{number:02d}"
        for alpha in (*_ALPHAS, None):
            changes = {"objective": "erm"} if alpha is None else {"overrides": [f"descent.alpha={alpha}"]}
            for seed in range(_SEEDS):
                settings: dict[str, Any] = {"name": name, "seed": seed, **changes}
                if seed == 4 and number % 5 == 0:
                    run = make_run(trained, out / name, None, **settings)
                elif seed == 4 and number % 5 == 1:
                    run = make_run(trained, out / name, None, status="failed", reason="loss not finite", **settings)
                else:
                    ability = random.normal(0.9 - 0.1 * (alpha or 0.5), 0.01)
                    scores = {
                        gamma: (random.random(examples) < ability - 0.15 * gamma).astype(float) for gamma in LEVELS
                    }
                    run = make_scored_run(trained, out / name, scores, **settings)
                    add_levels(run, LEVELS)
                add_history(run, updates=400)
                made += 1
    return made


def add_levels(run: Run, levels: list[float], kind: str = "gaussian") -> None:
    """The losses of three layers at each level: 0.6, 0.5 and 0.4, and a tenth of the level more."""
    losses = [(level, layer, 0.7 - 0.1 * layer + 0.1 * level) for level in levels for layer in (1, 2, 3)]
    rows = [("test", kind, level, layer, loss, 0.5) for level, layer, loss in losses]
    run.merge_table("layers", pd.DataFrame(rows, columns=TABLES["layers"]), TABLES["layers"][:4])


def add_history(run: Run, updates: int = 20, rate: float = 0.01) -> None:
    """Multipliers that grow by a rate with each update, the more the deeper the layer; ERM has none."""
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
