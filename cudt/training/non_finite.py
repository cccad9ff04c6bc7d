"""Stop before an update that is not finite would be applied, and say what fits the cause."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from cudt.config.schema import Recipe
from cudt.data.loader import Batch
from cudt.method.objectives import Objective
from cudt.models.base import LayeredModel
from cudt.models.sharding import whole
from cudt.utils import processes
from cudt.utils.errors import TrainingStoppedError

#: Multipliers above it outweigh the loss of the last layer by far.
_LARGE = 1e3
#: Examples that are named.
_MOST = 3


def refuse_non_finite(
    update: int,
    f: Tensor,
    grad_norm: Tensor,
    objective: Objective,
    model: LayeredModel,
    batches: Sequence[Batch],
    recipe: Recipe,
) -> None:
    """Raise a TrainingStoppedError if a loss or the gradient is not finite, with advice that fits
    the cause.
    """
    if bool(torch.isfinite(f).all() & torch.isfinite(grad_norm)):
        return
    bad = [
        layer
        for layer, loss in zip(objective.layers, f.tolist(), strict=True)
        if not math.isfinite(loss)
    ]
    what = f"the loss of layer {bad[0]}" if bad else "the gradient"
    advice = (
        # Each process has examples of its own.
        next(filter(None, processes.gathered(_of_data(batches))), "")
        or _of_multipliers(objective)
        or _of_weights(model, recipe)
        or (_of_logarithm(objective, f) if not bad else "")
        or _of_overflow(recipe)
    )
    raise TrainingStoppedError(
        f"update {update}: {what} is not finite; this update was not applied. {advice}"
    )


@contextmanager
def stopping_if_refused(update: int) -> Iterator[None]:
    """Raise a TrainingStoppedError if a step refuses its numbers: finite losses may have violations
    that are not.
    """
    try:
        yield
    except ValueError as error:
        raise TrainingStoppedError(
            f"update {update}: {error}; this update was not applied"
        ) from None


def _of_data(batches: Iterable[Batch]) -> str:
    """Examples of the batch that are not finite."""
    found: list[str] = []
    for batch in batches:
        for value in batch.values():
            if (
                isinstance(value, Tensor)
                and value.is_floating_point()
                and len(value) == len(batch["ids"])
            ):
                is_bad = ~torch.isfinite(value).reshape(len(value), -1).all(1)
                found += [str(batch["ids"][row]) for row in is_bad.nonzero().flatten().tolist()]
    if not found:
        return ""
    named = ", ".join(dict.fromkeys(found[:_MOST]))
    return f"The data of this batch are not finite (example {named}): check the data files"


def _of_multipliers(objective: Objective) -> str:
    """Multipliers that have run away: constraints that cannot be met raise them in every update."""
    if not objective.constrains:
        return ""
    largest = float(objective.descent.multiplier_values.max())
    if math.isfinite(largest) and largest < _LARGE:
        return ""
    return (
        f"The multipliers have grown to {largest:.3g}: lower descent.dual.learning_rate or "
        "descent.alpha, or relax "
        "the constraints (descent.resilience)"
    )


def _of_weights(model: LayeredModel, recipe: Recipe) -> str:
    if all(bool(whole(torch.isfinite(weight).all())) for weight in model.parameters()):
        return ""
    return f"The weights are not finite since the update before: lower {_learning_rate(recipe)}"


def _of_logarithm(objective: Objective, f: Tensor) -> str:
    """Losses of which the log form has no finite gradient."""
    if objective.descent.form != "log" or float(f.min()) > torch.finfo(torch.float32).tiny:
        return ""
    layer, least = objective.layers[int(f.argmin())], float(f.min())
    return f"The log form needs losses above 0, and that of layer {layer} is {least:g}: set descent.form=linear"


def _of_overflow(recipe: Recipe) -> str:
    training = recipe.training
    ways = [f"Lower {_learning_rate(recipe)}"]
    if training.clip_norm is None:
        ways.append("set training.clip_norm")
    if training.precision != "fp32":
        ways.append("set training.precision=fp32")
    return ", or ".join(ways)


def _learning_rate(recipe: Recipe) -> str:
    return f"training.learning_rate (now {recipe.training.learning_rate:g})"
