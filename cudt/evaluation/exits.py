"""Early exit by confidence: an example leaves the model after the first layer whose largest class
probability is above a threshold, else after the last.

Everything follows from examples.parquet. The threshold is chosen on validation data at γ_train: of
the thresholds whose accuracy is at most half a percentage point below that of the full model, the
one with the least mean depth. Test data have no part in it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from cudt.evaluation.intervals import Array
from cudt.evaluation.tables import layers_of
from cudt.runs.run import Run
from cudt.utils.errors import UserError
from cudt.utils.text import as_command

#: How far accuracy on validation data may fall below the full model's.
TOLERANCE = 0.005
#: Thresholds are these quantiles of confidence on validation data, and 1, which lets none leave.
_SHARES = [step / 20 for step in range(20)]


def check(run: Run) -> None:
    """Refuse a run without classes, of one layer, or without single examples."""
    info = run.finished_info()
    if info.metric.name != "accuracy" or info.layers < 2:
        raise UserError(f"'{run.path}': early exits need a classification task and several layers")
    if run.recipe.settings.evaluation.examples == "none":
        raise UserError(f"'{run.path}': early exits need evaluation.examples: all")


def exit_layers(examples: pd.DataFrame, threshold: float) -> Array:
    """The layer, from 1, after which each example leaves."""
    leaves = layers_of(examples, "confidence") > threshold
    leaves[-1] = True
    return leaves.argmax(0) + 1


def evaluated(examples: pd.DataFrame, threshold: float) -> dict[str, float]:
    """Accuracy with and without early exit, and the mean number of layers."""
    layers, hits = exit_layers(examples, threshold), layers_of(examples, "score")
    return {
        "threshold": threshold,
        "accuracy": float(np.take_along_axis(hits, layers[None] - 1, 0).mean()),
        "full_accuracy": float(hits[-1].mean()),
        "mean_depth": float(layers.mean()),
    }


def operating_points(validation: pd.DataFrame) -> pd.DataFrame:
    """Every threshold on validation data, from those that let nearly all examples leave early to
    one that lets none.
    """
    confidence = layers_of(validation, "confidence")[:-1]
    thresholds = [*np.quantile(confidence, _SHARES).round(6).tolist(), 1.0]
    return pd.DataFrame([evaluated(validation, one) for one in dict.fromkeys(thresholds)])


def has_threshold(run: Run) -> bool:
    """Whether `cudt eval-ood --exits` has measured what `chosen_threshold` needs."""
    return not _validation(run).empty


def _validation(run: Run) -> pd.DataFrame:
    return run.read_examples(split="validation", weights=run.weights)


def chosen_threshold(run: Run) -> float:
    """The threshold for a run; a UserError before `cudt eval-ood --exits`."""
    validation = _validation(run)
    if validation.empty:
        command = as_command("eval-ood", "--exits", run.path)
        raise UserError(f"'{run.path}' has no threshold for early exit yet; run `{command}`")
    points = operating_points(validation)
    # A little more, so that rounding does not refuse a point that is exactly at the limit.
    enough = points["accuracy"] >= points["full_accuracy"] - TOLERANCE - 1e-9
    order = points[enough].sort_values(["mean_depth", "accuracy"], ascending=[True, False])
    return float(order["threshold"].iloc[0])


def exit_table(run: Run) -> pd.DataFrame:
    """`evaluated` on the test data of each level, with the threshold of the run; over all noise
    seeds.
    """
    threshold = chosen_threshold(run)
    examples = run.read_examples(split="test", weights=run.weights, data=run.data)
    return pd.DataFrame(
        [
            {"noise": noise, "gamma": gamma, **evaluated(rows, threshold)}
            for (noise, gamma), rows in examples.groupby(["noise", "gamma"])
        ]
    )
