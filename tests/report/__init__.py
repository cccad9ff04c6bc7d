"""Run folders with numbers that can be checked by hand, for every test of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cudt import runs
from cudt.recipe import NamedRecipe
from cudt.runs import TABLES, Run
from tests.conftest import tiny_recipe

#: The level that the tiny recipe trains at.
GAMMA_TRAIN = 0.4


def make_run(
    trained: Run,
    out: Path,
    accuracy: Mapping[float, float | Sequence[float]] | None = None,
    *,
    objective: str = "constrained",
    seed: int = 0,
    name: str = "reviews-ut",
    losses: Sequence[float] = (0.6, 0.5, 0.4),
    kind: str = "gaussian",
    **info: Any,
) -> Run:
    """A finished run with this accuracy at each γ (a list stands for noise seeds), or with None not yet evaluated."""
    recipe = NamedRecipe(name, tiny_recipe(objective=objective, seed=seed).settings)
    folder = out / f"{objective}-{recipe.identity()}"
    run = Run(folder, recipe)
    runs.write_recipe(run)
    facts = {"recipe": name, "objective": objective, "seed": seed, "variant": recipe.identity(without_seed=True)}
    run.update_info(**{**trained.info(), **facts, **info})
    run.write_table("layers", trained.read_table("layers"))
    if accuracy is None:
        return run
    layers = [("test", kind, GAMMA_TRAIN, layer, loss, 0.5) for layer, loss in enumerate(losses, 1)]
    run.merge_table("layers", pd.DataFrame(layers, columns=TABLES["layers"]), TABLES["layers"][:4])
    ood = [
        (kind, gamma, noise_seed, metric, value, 40)
        for gamma, values in accuracy.items()
        for noise_seed, accurate in enumerate(values if isinstance(values, Sequence) else [values])
        for metric, value in (("accuracy", accurate), ("loss", 1 - accurate))
    ]
    run.write_table("ood", pd.DataFrame(ood, columns=TABLES["ood"]))
    return run
