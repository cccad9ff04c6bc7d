"""Predictions of a trained run for new texts, with early exit: layers that no text of a batch needs
do not run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cudt.data.loader import Batch, batches
from cudt.evaluation.evaluate import load_on_same_data
from cudt.evaluation.exits import chosen_threshold
from cudt.evaluation.intervals import Array
from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs.run import Run, open_run
from cudt.tasks.text import Classification
from cudt.utils.device import DeviceName
from cudt.utils.errors import UserError


@dataclass(frozen=True)
class Predictions:
    """The most likely class of each text as the training data call it, the probability of each of
    the `classes`, (texts, classes), and the layer, from 1, that each text left at.
    """

    labels: list[int | str]
    probabilities: Array
    classes: list[int | str]
    layers: Array


class _AllLeftError(Exception):
    """Leaves the forward pass when no text of the batch needs the next layer."""


def predict(
    run: Run | str | Path,
    texts: Sequence[str | Sequence[str]],
    exit: str | Mapping[str, float] | None = None,  # noqa: A002 (what the literature calls it)
    *,
    device: DeviceName = "auto",
    data_root: str | Path | None = None,
) -> Predictions:
    """The class of each text that a finished run predicts; a text of a pair task is a pair.

    With `exit`, a text leaves the model at the first layer that is sure enough, and later layers
    are not computed for it: `{"confidence": 0.9}` (the largest class probability is above 0.9), or
    "confidence" alone, for the threshold that `cudt eval-ood --exits` sets on validation data.
    Every call loads the model, and the training data, which number the classes.
    """
    if isinstance(texts, str):
        raise TypeError("texts must be a list of texts, not one text")
    run = run if isinstance(run, Run) else open_run(run)
    run.finished_info()
    threshold = chosen_threshold(run) if exit == "confidence" else math.inf
    if isinstance(exit, Mapping):
        threshold = float(exit["confidence"])
    root = data_root and Path(data_root)
    layerwise = load_on_same_data(run, device, root or None)
    task, on = layerwise.task, next(layerwise.parameters()).device
    if not isinstance(task, Classification):
        raise UserError(f"predict needs a run that classifies texts, not {type(task).__name__}")
    given = task.from_texts([(text,) if isinstance(text, str) else tuple(text) for text in texts])
    size = run.recipe.settings.evaluation.batch_size
    probabilities: Array = np.zeros((len(texts), task.n_classes))
    layers: Array = np.zeros(len(texts), dtype=int)
    for batch in batches(task, given, size, on):
        rows = [int(one) for one in batch["ids"]]
        probabilities[rows], layers[rows] = _read(layerwise, batch, threshold)
    classes = [*task.classes]
    labels = [classes[index] for index in probabilities.argmax(-1)]
    return Predictions(labels, probabilities, classes, layers)


@torch.no_grad()
def _read(layerwise: LayerwiseLosses, batch: Batch, threshold: float) -> tuple[Array, Array]:
    """The class probabilities with which the texts of a batch leave, and after which layers."""
    model, n, layer = layerwise.model, len(batch["ids"]), 0
    task: Any = layerwise.task
    left: Array = np.zeros(n, dtype=int)
    found: Array = np.zeros((n, task.n_classes))

    def visit(state: Tensor) -> None:
        nonlocal layer
        layer += 1
        is_last = layer == model.n_layers
        if math.isinf(threshold) and not is_last:
            return
        answers = task.probabilities(model.readout(state, batch).double()).cpu().numpy()
        leaves = (left == 0) & (is_last | (answers.max(-1) > threshold))
        left[leaves], found[leaves] = layer, answers[leaves]
        if left.all():
            raise _AllLeftError

    with suppress(_AllLeftError):
        model.visit_layers(model.signal(batch)[0], batch, visit)
    return found, left
