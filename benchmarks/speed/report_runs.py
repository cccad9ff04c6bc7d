"""Run folders as months of work leave them, written without training: what the benches of the report read."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cudt.config import recipe as recipes
from cudt.config.recipe import NamedRecipe
from cudt.runs.examples import EXAMPLES
from cudt.runs.info import FORMAT
from cudt.runs.tables import TABLES

LEVELS = [round(0.15 * step, 2) for step in range(15)]
_GAMMA_TRAIN, _LAYERS, _EXAMPLES = 0.4, (1, 2, 3), 300
_ALPHAS = (0.05, 0.1, 0.2, 0.4)
_REACH = 0.05


def make_runs(out: Path, *, n_recipes: int, seeds: int) -> int:
    """Write the runs of each recipe below a folder and return their number: each α and ERM, on some seeds.

    If there are more than two, the last seed of every fifth recipe is not evaluated, and of every fifth it failed.
    """
    random = np.random.default_rng(0)
    for number in range(n_recipes):
        for alpha in (*_ALPHAS, None):
            for seed in range(seeds):
                named = _recipe(alpha, seed)
                run = NamedRecipe(f"recipe-{number:02d}", named.settings)
                folder = out / run.name / f"{named.settings.objective}-{run.identity()}"
                folder.mkdir(parents=True)
                is_last = seed == seeds - 1 > 1
                has_failed = is_last and number % 5 == 1
                (folder / "recipe.yaml").write_text(_recipe_text(alpha, seed).replace("smoke-text", run.name, 1))
                (folder / "run.json").write_text(json.dumps(_info(run, has_failed), indent=2))
                _write_table(folder, "history", _history(alpha is None))
                if not has_failed and not (is_last and number % 5 == 0):
                    _evaluate(folder, random, random.normal(0.9 - 0.1 * (alpha or 0.5), 0.01))
    return n_recipes * (len(_ALPHAS) + 1) * seeds


@cache
def _recipe(alpha: float | None, seed: int) -> NamedRecipe:
    """The recipe of all names: validating it takes milliseconds."""
    overrides = [] if alpha is None else [f"descent.alpha={alpha}"]
    return recipes.load("smoke-text", overrides, objective="erm" if alpha is None else "constrained", seed=seed)


@cache
def _recipe_text(alpha: float | None, seed: int) -> str:
    return _recipe(alpha, seed).text()


def _info(run: NamedRecipe, has_failed: bool) -> dict[str, Any]:
    loss = {"loss": 0.5, "allowed": 0.6, "violation": -0.1, "standard_error": 0.01, "slack": 0.0, "verdict": "met"}
    return {
        "format": FORMAT,
        "status": "failed" if has_failed else "finished",
        "reason": "loss not finite" if has_failed else None,
        "recipe": run.name,
        "objective": run.settings.objective,
        "seed": run.settings.seed,
        "variant": run.identity(without_seed=True),
        "metric": {"name": "accuracy", "higher_is_better": True, "of_mean": "mean"},
        "has_texts": False,
        "gamma_train": _GAMMA_TRAIN,
        "layers": len(_LAYERS),
        "reference": 0.7,
        "rates": [0.1] * len(_LAYERS),
        "form": "linear",
        "command": f"cudt train --recipe {run.name}",
        "best": {"epoch": 2, "validation_loss": 0.4},
        "sigma_x": {"training": 1.0, "evaluation": 1.0},
        "feasible": True,
        "monotone": True,
        "verdicts": [{"layer": layer, **loss} for layer in _LAYERS],
        "multipliers": {"best": [0.1] * len(_LAYERS), "last": [0.2] * len(_LAYERS)},
        "test_data": "generated",
    }


def _evaluate(folder: Path, random: np.random.Generator, ability: float) -> None:
    """Write what an evaluation under Gaussian noise leaves."""
    kind, scores = "gaussian", {}
    for level in LEVELS:
        scores[level] = (random.random(_EXAMPLES) < ability - 0.15 * level).astype(float)
    means = {level: float(values.mean()) for level, values in scores.items()}
    ood = [
        (kind, level, 0, f"{name}{end}", value + away, _EXAMPLES)
        for level, mean in means.items()
        for name, value in (("accuracy", mean), ("loss", 1 - mean))
        for end, away in (("", 0.0), ("_low", -_REACH), ("_high", _REACH))
    ]
    losses = [(level, layer, 0.7 - 0.1 * layer + 0.1 * level) for level in [*LEVELS, _GAMMA_TRAIN] for layer in _LAYERS]
    layers = [("test", kind, level, layer, loss, 0.5) for level, layer, loss in losses]
    layers += [("validation", kind, _GAMMA_TRAIN, layer, 0.5, 0.5) for layer in _LAYERS]
    bins = [(0, 1, 0.5, 0.5), (1, 2, 0.3, 0.8), (2, "inf", 0.2, 1.0)]
    summary = {"mean": 0.8, "median": 0.75, "decreasing": 0.5, "n": 80.0}
    _write_table(folder, "ood", ood)
    _write_table(folder, "layers", layers)
    _write_table(folder, "ratio_bins", [(kind, _GAMMA_TRAIN, *row) for row in bins])
    _write_table(folder, "ratios", [(kind, _GAMMA_TRAIN, layer, *pair) for layer in (0, 2) for pair in summary.items()])
    _write_constraints(folder, kind, losses)
    _write_examples(folder, scores)


def _write_constraints(folder: Path, kind: str, losses: list[tuple[float, int, float]]) -> None:
    """Write the constraints of each level, all of them kept."""
    measured = ("kept", "kept_share", "largest_violation", "best_layer", "best_loss", "gap", "rate")
    names = (*measured, "zeta", "shift", "bound", "bound_at_depth")
    levels = dict.fromkeys(level for level, _, _ in losses)
    _write_table(folder, "descent", [(kind, level, 0, name, len(_LAYERS)) for level in levels for name in names])
    _write_table(
        folder, "constraints", [(kind, level, layer, loss, loss, 0.0, 0.01, "met") for level, layer, loss in losses]
    )


@cache
def _history(is_erm: bool) -> list[tuple[Any, ...]]:
    """400 updates: growing multipliers and weights of the layers, and a validation loss every ten."""
    steps = range(400)
    multipliers = [
        (step, 0, "train", layer, name, 0.01 * layer * step)
        for step in steps
        for name in ("multiplier", "weight")
        for layer in _LAYERS
    ]
    losses = [
        (step, step, "validation", layer, "loss", 1 / (step + layer)) for step in steps[::10] for layer in _LAYERS
    ]
    return losses if is_erm else [*multipliers, *losses]


def _write_table(folder: Path, name: str, rows: list[tuple[Any, ...]]) -> None:
    # Not as `Run.write_table`, which waits for the disk.
    lines = [",".join(TABLES[name]), *(",".join(map(str, row)) for row in rows)]
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def _write_examples(folder: Path, scores: dict[float, np.ndarray[Any, Any]]) -> None:
    ids = [f"test-{number}" for number in range(_EXAMPLES)]
    table = pd.DataFrame(
        {
            "perturbation": "gaussian",
            "gamma": np.repeat(np.array([*scores]), _EXAMPLES),
            "seed": 0,
            "id": np.tile(np.array(ids, dtype=object), len(scores)),
            "weight": 1.0,
            "score": np.concatenate([*scores.values()]),
        }
    )
    table.astype(EXAMPLES).to_parquet(folder / "examples.parquet", index=False, compression="zstd")
