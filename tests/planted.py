"""Run folders with numbers that can be checked by hand, for every test of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cudt.config.recipe import NamedRecipe
from cudt.runs.run import Run, write_recipe
from cudt.runs.tables import TABLES
from tests.conftest import tiny_recipe
from tests.examples import by_part
from tests.runs import plant_info, raw_info

#: The level that the tiny recipe trains at.
GAMMA_TRAIN = 0.4
#: How far the ends of every interval lie from its middle.
REACH = 0.05
#: The RMSE of the noisy input itself at γ = 1 in runs of video.
INPUT_RMSE = 45.0


def changed_info(info: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The values of a run.json with some changed; a test names only the parts of `best` and
    `verdicts` that matter."""
    if "best" in changes:
        changes["best"] = {**info["best"], **changes["best"]}
    if "verdicts" in changes:
        numbers = dict.fromkeys(("loss", "allowed", "violation", "standard_error", "slack"), 0.0)
        changes["verdicts"] = [
            {"layer": 1, **numbers, **dict(verdict)} for verdict in changes["verdicts"]
        ]
    return {**info, **changes}


def make_run(
    trained: Run,
    out: Path,
    accuracy: Mapping[float, float | Sequence[float]] | None = None,
    *,
    objective: str = "constrained",
    seed: int = 0,
    name: str = "reviews-ut",
    losses: Sequence[float] = (0.6, 0.5, 0.4),
    steps: Sequence[float] = (0.5, 0.3, 0.2),
    kind: str = "gaussian",
    overrides: Sequence[str] = (),
    recipe: NamedRecipe | None = None,
    validation: Sequence[float] = (),
    **info: Any,
) -> Run:
    """A finished run with this accuracy at each γ (a list stands for noise seeds), or with None not
    yet evaluated.

    `steps` are the shares of ratios below 1, from 1 to 2 and above. `overrides` are settings of its
    recipe, `validation` is the accuracy that a sweep measured at γ = 0, 1 …
    """
    tiny = tiny_recipe(*overrides, objective=objective, seed=seed)
    recipe = recipe or NamedRecipe(name, tiny.settings)
    name = recipe.name
    folder = out / f"{objective}-{recipe.identity()}"
    run = Run(folder, recipe)
    write_recipe(run)
    facts = {
        "recipe": name,
        "objective": objective,
        "seed": seed,
        "variant": recipe.identity(without_seed=True),
    }
    facts |= {"layers": len(losses)}
    plant_info(run, **changed_info(raw_info(trained), **{**facts, **info}))
    run.write_table("layers", trained.read_table("layers"))
    scored = [("gaussian", g, 0, "accuracy", value, 40) for g, value in enumerate(validation)]
    if scored:
        run.write_table("validation", pd.DataFrame(scored, columns=TABLES["validation"]))
    if accuracy is None:
        return run
    level = 0.0 if kind == "discrete" else GAMMA_TRAIN
    layers = [("test", kind, level, layer, loss, 0.5) for layer, loss in enumerate(losses, 1)]
    run.merge_table("layers", pd.DataFrame(layers, columns=TABLES["layers"]), TABLES["layers"][:4])
    ood = [
        (kind, gamma, noise_seed, f"{metric}{end}", value + away, 40)
        for gamma, values in accuracy.items()
        for noise_seed, accurate in enumerate(values if isinstance(values, Sequence) else [values])
        for metric, value in (("accuracy", accurate), ("loss", 1 - accurate))
        for end, away in (("", 0.0), ("_low", -REACH), ("_high", REACH))
    ]
    run.write_table("ood", pd.DataFrame(ood, columns=TABLES["ood"]))
    below, above, far = steps
    bins = [(0, 1, below, below), (1, 2, above, below + above), (2, math.inf, far, 1.0)]
    rows = [(kind, level, *row) for row in bins]
    run.write_table("ratio_bins", pd.DataFrame(rows, columns=TABLES["ratio_bins"]))
    return run


def plant_constraints(
    run: Run, levels: Mapping[float, Sequence[float]], error: float = 0.01
) -> None:
    """Write the test losses of a run's layers by level, with one standard error; the verdicts are
    not looked at."""
    rows = [
        ("gaussian", level, layer, loss, loss, 0.0, error, "met")
        for level, losses in levels.items()
        for layer, loss in enumerate(losses, 1)
    ]
    run.write_table("constraints", pd.DataFrame(rows, columns=TABLES["constraints"]))


def plant_weights(run: Run, updates: Sequence[Sequence[float]], per_epoch: int = 2) -> None:
    """Write a history of updates with these effective weights of the layers."""
    rows = [
        (step, (step - 1) // per_epoch + 1, "train", layer, "weight", value)
        for step, weights in enumerate(updates, 1)
        for layer, value in enumerate(weights, 1)
    ]
    run.write_table("history", pd.DataFrame(rows, columns=TABLES["history"]))


def make_video_run(trained: Run, out: Path, rmse: Mapping[float, float], **changes: Any) -> Run:
    """A finished run whose metric is an error, with a further metric beside it and losses of
    squared pixels."""
    metric = {"name": "RMSE", "higher_is_better": False, "of_mean": "root"}
    run = make_run(trained, out, rmse, metric=metric, **{"name": "shapes-dust", **changes})
    kind = changes.get("kind", "gaussian")
    ood = [
        (kind, gamma, 0, f"{name}{end}", value + away, 40)
        for gamma, error in rmse.items()
        for name, value in (
            ("RMSE", error),
            ("PSNR", 20 * math.log10(255 / error)),
            ("loss", 256 * error**2),
        )
        for end, away in (("", 0.0), ("_low", -REACH), ("_high", REACH))
    ]
    ood += [(kind, gamma, 0, "input_RMSE", INPUT_RMSE * gamma, 40) for gamma in rmse]
    run.write_table("ood", pd.DataFrame(ood, columns=TABLES["ood"]))
    return run


def save_samples(run: Run, *stems: str) -> None:
    """Files in place of pictures, each with its own name and run in it."""
    (run.path / "samples").mkdir()
    for stem in stems:
        (run.path / "samples" / f"{stem}.png").write_text(f"{run.path.name} {stem}.png")


def make_scored_run(
    trained: Run,
    out: Path,
    scores: Mapping[float, np.ndarray[Any, Any]],
    *,
    weights: np.ndarray[Any, Any] | None = None,
    ids: Sequence[str] | None = None,
    root: bool = False,
    kind: str = "gaussian",
    **changes: Any,
) -> Run:
    """A finished run with the scores of its examples: at each level (examples,), or (examples,
    noise seeds)."""
    n = len(next(iter(scores.values())))
    weights = np.ones(n) if weights is None else weights
    ids = [f"test-{number}" for number in range(n)] if ids is None else ids
    by_level = {gamma: values.reshape(n, -1) for gamma, values in scores.items()}
    curve = {
        gamma: (weights @ values / weights.sum()).tolist() for gamma, values in by_level.items()
    }
    if root:
        run = make_video_run(
            trained, out, {g: math.sqrt(mean) for g, (mean,) in curve.items()}, kind=kind, **changes
        )
    else:
        run = make_run(trained, out, curve, kind=kind, **changes)
    rows = [
        pd.DataFrame(
            {"gamma": gamma, "seed": seed, "id": ids, "weight": weights, "score": values[:, seed]}
        )
        for gamma, values in by_level.items()
        for seed in range(values.shape[1])
    ]
    run.merge_examples(
        by_part(pd.concat(rows).assign(perturbation=kind)), ["perturbation", "gamma"]
    )
    return run
