"""Run folders with numbers that can be checked by hand, for every test of the report."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cudt.config.recipe import NamedRecipe
from cudt.runs.info import RunInfo
from cudt.runs.run import OWN, TABLES, Run, write_recipe
from tests.conftest import tiny_recipe

#: The level that the tiny recipe trains at.
GAMMA_TRAIN = 0.4
#: How far the ends of every interval lie from its middle.
REACH = 0.05
#: The RMSE of the noisy input itself at γ = 1 in runs of video.
INPUT_RMSE = 45.0


def keys(kind: str, gamma: float, seed: int = 0) -> dict[str, Any]:
    """What the rows of a table belong to."""
    names = ("split", "data", "weights", "noise", "gamma", "seed")
    return dict(zip(names, ("test", OWN, "best", kind, gamma, seed), strict=True))


def add_rows(run: Run, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a table; numbers that they lack are NaN."""
    added = pd.DataFrame(rows).reindex(columns=[*TABLES[name]])
    before = run.read_table(name)
    run.write_table(name, pd.concat([before, added]) if len(before) else added)


def make_run(
    trained: Run,
    out: Path,
    accuracy: Mapping[float, float | Sequence[float]] | None = None,
    *,
    objective: str = "constrained",
    seed: int = 0,
    name: str = "reviews-ut",
    losses: Sequence[float] = (0.6, 0.5, 0.4),
    steps: Sequence[float] = (),
    kind: str = "gaussian",
    overrides: Sequence[str] = (),
    recipe: NamedRecipe | None = None,
    validation: Sequence[float] = (),
    **info: Any,
) -> Run:
    """A finished run with this accuracy at each γ (a list stands for noise seeds); with None it is not yet evaluated.

    `steps` are the shares of layer ratios of 0.51, 1.51 and 3. `overrides` are settings of its recipe,
    `validation` is the accuracy that a sweep measured at γ = 0, 1 …
    """
    recipe = recipe or NamedRecipe(
        name, tiny_recipe(*overrides, objective=objective, seed=seed).settings
    )
    run = Run(out / f"{objective}-{recipe.identity()}", recipe)
    write_recipe(run)
    shutil.copy(trained.path / "history.csv", run.path)
    known = trained.info().model_dump()
    facts = {"recipe": recipe.name, "objective": objective, "seed": seed, "files": {}}
    facts |= {"variant": recipe.identity(without_seed=True)}
    facts |= {"layers": len(losses), "rates": [0.1] * len(losses), **info}
    # A test names only what matters of the best epoch and of the verdicts.
    facts["best"] = {**known["best"], **info.get("best", {})}
    numbers = dict.fromkeys(("loss", "allowed", "violation", "standard_error", "slack"), 0.0)
    facts["verdicts"] = [{**numbers, **one} for one in info.get("verdicts", known["verdicts"])]
    run.update_info(RunInfo.model_validate({**known, **facts}))
    trained_layers = trained.read_table("layers")
    run.write_table("layers", trained_layers[trained_layers["split"] == "validation"])
    if validation:
        rows = [
            {**keys("gaussian", gamma), "split": "validation", "value": value, "n": 40}
            for gamma, value in enumerate(validation)
        ]
        add_rows(run, "ood", rows)
    if accuracy is None:
        return run
    level = 0.0 if kind == "discrete" else GAMMA_TRAIN
    plant_layers(run, {level: losses}, kind=kind)
    add_rows(run, "ood", [
        {**keys(kind, gamma, seed), "value": value, "low": value - REACH, "high": value + REACH, "n": 40}
        for gamma, values in accuracy.items()
        for seed, value in enumerate(values if isinstance(values, Sequence) else [values])
    ])  # fmt: skip
    if steps:
        shares = [round(100 * share) for share in steps]
        ratios: Any = np.repeat([0.51, 1.51, 3.0], shares)
        rows = pd.DataFrame({"id": [f"r{n}" for n in range(len(ratios))], "weight": 1.0})
        rows = rows.assign(**keys(kind, level), group=rows["id"])
        for layer in range(1, len(losses) + 1):
            rows[f"loss_{layer}"], rows[f"score_{layer}"] = ratios ** (layer - 1), 0.5
        run.write_examples(rows)
    return run


def plant_layers(
    run: Run,
    levels: Mapping[float, Sequence[float]],
    error: float = 0.01,
    *,
    kind: str = "gaussian",
) -> None:
    """Add the test losses of a run's layers by level, with one standard error."""
    add_rows(run, "layers", [
        {**keys(kind, level), "layer": layer, "loss": loss, "metric": 0.5,
         "standard_error": error}
        for level, losses in levels.items()
        for layer, loss in enumerate(losses, 1)
    ])  # fmt: skip


def plant_weights(run: Run, updates: Sequence[Sequence[float]], per_epoch: int = 2) -> None:
    """Write a history of updates with these effective weights of the layers."""
    rows = [
        (step, (step - 1) // per_epoch + 1, "train", layer, "weight", value)
        for step, weights in enumerate(updates, 1)
        for layer, value in enumerate(weights, 1)
    ]
    run.write_table("history", pd.DataFrame(rows, columns=[*TABLES["history"]]))


def make_video_run(trained: Run, out: Path, rmse: Mapping[float, float], **changes: Any) -> Run:
    """A finished run whose metric is an error, with a further metric beside it and losses of squared pixels."""
    metric = {"name": "RMSE", "higher_is_better": False, "of_mean": "root"}
    run = make_run(trained, out, rmse, metric=metric, **{"name": "shapes-dust", **changes})
    ood = run.read_table("ood")
    run.write_table("ood", ood.assign(input=INPUT_RMSE * ood["gamma"]))
    return run


def make_scored_run(
    trained: Run,
    out: Path,
    scores: Mapping[float, np.ndarray[Any, Any]],
    *,
    weights: np.ndarray[Any, Any] | None = None,
    ids: Sequence[str] | None = None,
    root: bool = False,
    **changes: Any,
) -> Run:
    """A finished run with the scores of its examples: at each level (examples,), or (examples, noise seeds)."""
    n = len(next(iter(scores.values())))
    weights = np.ones(n) if weights is None else weights
    ids = [f"test-{number}" for number in range(n)] if ids is None else ids
    columns = {gamma: values.reshape(n, -1) for gamma, values in scores.items()}
    curve = {g: (weights @ values / weights.sum()).tolist() for g, values in columns.items()}
    if root:
        rmse = {gamma: math.sqrt(mean) for gamma, (mean,) in curve.items()}
        run = make_video_run(trained, out, rmse, **changes)
    else:
        run = make_run(trained, out, curve, **changes)
    last, rows = run.finished_info().layers, []
    for gamma, values in columns.items():
        for seed, mine in enumerate(values.T):
            facts = {**keys("gaussian", gamma, seed), "id": ids, "group": ids, "weight": weights}
            losses = {f"loss_{layer}": 1.0 for layer in range(1, last + 1)}
            rows.append(pd.DataFrame({**facts, **losses, f"score_{last}": mine}))
    run.write_examples(pd.concat(rows, ignore_index=True))
    return run
