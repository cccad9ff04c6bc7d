"""Early exit by confidence: an example leaves the model after the first layer whose largest class
probability is above a threshold, else after the last.

Everything follows from examples.parquet. The threshold is chosen on validation data at γ_train: of
the thresholds whose accuracy is at most half a percentage point below that of the full model, the
one with the least mean depth. Test data have no part in it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from cudt.data.loader import batches
from cudt.evaluation.intervals import Array
from cudt.evaluation.tables import layers_of
from cudt.models.layer_losses import LayerwiseLosses
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


def evaluated(
    examples: pd.DataFrame, threshold: float, flops: list[float] | None = None
) -> dict[str, float]:
    """Accuracy with and without early exit, the mean number of layers, and the share of the FLOPs
    of the full model; NaN if those of the layers are not known.
    """
    layers, hits = exit_layers(examples, threshold), layers_of(examples, "score")
    share = np.mean(np.array(flops)[layers - 1]) / flops[-1] if flops else np.nan
    return {
        "threshold": threshold,
        "accuracy": float(np.take_along_axis(hits, layers[None] - 1, 0).mean()),
        "full_accuracy": float(hits[-1].mean()),
        "mean_depth": float(layers.mean()),
        "flops": float(share),
    }


def operating_points(validation: pd.DataFrame) -> pd.DataFrame:
    """Every threshold on validation data, from those that let nearly all examples leave early to
    one that lets none.
    """
    confidence = layers_of(validation, "confidence")[:-1]
    thresholds = [*np.quantile(confidence, _SHARES).round(6).tolist(), 1.0]
    return pd.DataFrame([evaluated(validation, one) for one in dict.fromkeys(thresholds)])


def has_threshold(run: Run) -> bool:
    """Whether `cudt eval-ood --exits` has measured what `exit_table` needs."""
    return run.info().flops is not None and not _validation(run).empty


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
    threshold, flops = chosen_threshold(run), run.info().flops
    examples = run.read_examples(split="test", weights=run.weights, data=run.data)
    return pd.DataFrame(
        [
            {"noise": noise, "gamma": gamma, **evaluated(rows, threshold, flops)}
            for (noise, gamma), rows in examples.groupby(["noise", "gamma"])
        ]
    )


def count_flops(run: Run, layerwise: LayerwiseLosses) -> list[float]:
    """FLOPs (products and sums in matrix products and attention) of an example that leaves after
    layer 1 … L, with the readouts that the rule reads; and of one through all layers, with the last
    readout only. They are of the first validation batch: longer texts have more, in like shares.
    """
    model, task, totals, readouts = layerwise.eval().model, layerwise.task, [0], [0]
    device, size = next(layerwise.parameters()).device, run.recipe.settings.evaluation.batch_size
    batch = next(iter(batches(task, task.examples("validation")[:size], size, device)))

    def read(state: Tensor) -> None:
        before = counter.get_total_flops()
        model.readout(state, batch)
        totals.append(counter.get_total_flops())
        readouts.append(totals[-1] - before)

    # PyTorch counts attention on a GPU, but not its kernel for CPUs, which computes the same.
    on_cpu = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: (
            sdpa_flop_count(q, k, v)
        )
    }
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=on_cpu) as counter:
        model.visit_layers(model.signal(batch)[0], batch, read)
    every = [*totals[1:], totals[-1] - sum(readouts[:-1])]
    return [total / len(batch["ids"]) for total in every]
