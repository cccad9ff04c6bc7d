"""Predictions of a trained run for new texts, with early exit: layers that no text of a batch needs
do not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cudt.config.schema import Weights
from cudt.data.loader import Batch, batches
from cudt.evaluation.exits import chosen_threshold
from cudt.evaluation.intervals import Array
from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs.run import Run, check_same, open_run
from cudt.tasks.base import SEEN
from cudt.training.train import load
from cudt.utils.device import DeviceName
from cudt.utils.errors import UserError


@dataclass(frozen=True)
class Predictions:
    """The most likely class of each text as the training data call it, the probability of each of
    the `classes`, (texts, classes), and the layer, from 1 to `n_layers`, that each text left at.
    """

    labels: list[int | str]
    probabilities: Array
    classes: list[int | str]
    layers: Array
    n_layers: int


class _AllLeftError(Exception):
    """Leaves the forward pass when no text of the batch needs the next layer."""


def predict(
    run: Run,
    texts: Sequence[str | Sequence[str]],
    exit: str | Mapping[str, float] | None,  # noqa: A002 (what the literature calls it)
    device: DeviceName,
    data_root: Path | None,
) -> Predictions:
    """The class of each text; with `exit`, a text leaves at the first layer whose largest class
    probability is above the threshold. The model of the last call is kept in memory.
    """
    run.finished_info()
    threshold = _threshold(run, exit)
    stamp = run.weights_file(run.weights).stat().st_mtime_ns
    layerwise = _load(run.path, run.weights, stamp, device, data_root)
    task: Any = layerwise.task
    if not hasattr(task, "probabilities"):
        name = run.recipe.settings.task.name
        raise UserError(f"predict needs a run that classifies texts; its task is {name}")
    pairs = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    n_layers, size = layerwise.model.n_layers, run.recipe.settings.evaluation.batch_size
    probabilities, layers = np.zeros((len(texts), task.n_classes)), np.full(len(texts), n_layers)
    on = next(layerwise.parameters()).device
    for batch in batches(task, task.from_texts(pairs), size, on):
        rows = [int(one) for one in batch["ids"]]
        probabilities[rows], layers[rows] = _read(layerwise, batch, threshold)
    classes = [*task.classes] or [*range(task.n_classes)]
    labels = [classes[index] for index in probabilities.argmax(-1)]
    return Predictions(labels, probabilities, classes, layers, n_layers)


@torch.no_grad()
def _read(layerwise: LayerwiseLosses, batch: Batch, threshold: float | None) -> tuple[Array, Array]:
    """The class probabilities with which the texts of a batch leave, and after which layers."""
    model, task, found = layerwise.model, layerwise.task, list[Array]()
    left: Array = np.zeros(len(batch["ids"]), dtype=int)

    def visit(state: Tensor) -> None:
        is_last = len(found) == model.n_layers - 1
        found.append(np.empty(0))
        if threshold is None and not is_last:
            return
        answer = model.readout(state, batch).double()
        found[-1] = task.probabilities(answer).cpu().numpy()  # type: ignore[attr-defined]
        sure = threshold is not None and found[-1].max(-1) > threshold
        left[(left == 0) & (sure | is_last)] = len(found)
        if left.all():
            raise _AllLeftError

    with suppress(_AllLeftError):
        model.visit_layers(model.signal(batch)[0], batch, visit)
    return np.stack([found[layer - 1][row] for row, layer in enumerate(left)]), left


@lru_cache(maxsize=1)
def _load(
    path: Path, weights: Weights, stamp: int, device: DeviceName, data_root: Path | None
) -> LayerwiseLosses:
    """The model of a run; `stamp` changes with the file of its weights."""
    run = open_run(path, weights)
    layerwise = load(run, device, data_root)
    # Classes are numbered as in the training data.
    data = layerwise.task.fingerprint(SEEN)
    check_same(run, "training data or tokenizer", run.info().training_data, data)
    return layerwise


def _threshold(run: Run, wanted: str | Mapping[str, float] | None) -> float | None:
    """The threshold that a caller asks for, or the one chosen for the run."""
    if wanted is None:
        return None
    if wanted == "confidence":
        return chosen_threshold(run)
    given = wanted.get("confidence") if isinstance(wanted, Mapping) and len(wanted) == 1 else None
    if isinstance(given, float | int) and 0 <= given <= 1:
        return float(given)
    expected = '"confidence", or {"confidence": 0.9} with its threshold from 0 to 1'
    raise UserError(f"exit: expected {expected}, got {wanted!r}")
