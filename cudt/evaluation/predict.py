"""Predictions of a trained run for new texts, with early exit: layers that no text of a batch needs
do not run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cudt.config.schema import Weights
from cudt.data.batching import Batch
from cudt.data.loading import batches
from cudt.data.splits import SEEN
from cudt.evaluation.exit_rules import RULES, ExitRule, LayerAnswers, RuleName
from cudt.evaluation.exits import chosen_rule
from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs.find import open_run
from cudt.runs.predictions import Predictions
from cudt.runs.run import Run, check_same_data
from cudt.tasks.classification import Classification
from cudt.training import train as training
from cudt.utils.device import DeviceName
from cudt.utils.errors import UserError, did_you_mean

Texts = Sequence[str | Sequence[str]]
Exit = str | Mapping[str, float] | None


def predict(
    run: Run, texts: Texts, rule: ExitRule | None, device: DeviceName, data_root: Path | None
) -> Predictions:
    """The class of each text; a text leaves the model at the layer that its rule accepts, without
    one at the last.

    The model of the last call is kept in memory.
    """
    run.finished_info()
    layerwise = _load(run.path, run.weights, _stamp(run), device, data_root)
    task = _task(layerwise)
    examples = task.from_texts(
        [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    )
    reader = _Reader(layerwise, task, rule, len(texts))
    size, on = run.recipe.settings.evaluation.batch_size, next(layerwise.parameters()).device
    for batch in batches(task, examples, size, on):
        reader.read(batch)
    classes = [*task.classes] or [*range(task.n_classes)]
    labels = [classes[index] for index in reader.probabilities.argmax(-1)] if len(texts) else []
    return Predictions(
        labels, reader.probabilities, classes, reader.layers, layerwise.model.n_layers
    )


@lru_cache(maxsize=1)
def _load(
    path: Path, weights: Weights, stamp: int, device: DeviceName, data_root: Path | None
) -> LayerwiseLosses:
    """The model of a run; `stamp` changes with the file of its weights."""
    run = open_run(path, weights)
    layerwise = training.load(run, device, data_root)
    # Classes are numbered as in the training data.
    check_same_data(run, layerwise.task.fingerprint(SEEN))
    return layerwise


def _stamp(run: Run) -> int:
    file = run.weights_file(run.weights)
    return file.stat().st_mtime_ns if file.is_file() else 0


def _task(layerwise: LayerwiseLosses) -> Classification:
    if not isinstance(layerwise.task, Classification):
        raise UserError(
            "predict needs a run that classifies texts; its task is "
            f"{type(layerwise.task).__name__}"
        )
    return layerwise.task


class _AllLeftError(Exception):
    """Leaves the forward pass when no text of the batch needs the next layer."""


class _Reader:
    """Reads the answers of all layers that texts need, and keeps the one that each leaves with."""

    def __init__(
        self, layerwise: LayerwiseLosses, task: Classification, rule: ExitRule | None, n: int
    ) -> None:
        self._model, self._task, self._rule = layerwise.model, task, rule
        self.probabilities = np.zeros((n, task.n_classes))
        self.layers: np.ndarray[Any, Any] = np.zeros(n, dtype=int)

    @torch.no_grad()
    def read(self, batch: Batch) -> None:
        layer, answers = 0, None
        ids = np.array([int(one) for one in batch["ids"]])
        stays: np.ndarray[Any, Any] = np.ones(len(ids), dtype=bool)

        def visit(state: Tensor) -> None:
            nonlocal layer, answers, stays
            layer += 1
            is_last = layer == self._model.n_layers
            if self._rule is None and not is_last:
                return
            probabilities = self._task.probabilities(self._model.readout(state, batch).double())
            answers = LayerAnswers.read(probabilities, answers)
            leaves = stays
            if self._rule is not None and not is_last:
                leaves = stays & self._rule.accepts(answers).cpu().numpy()
            self.probabilities[ids[leaves]], self.layers[ids[leaves]] = (
                probabilities.cpu().numpy()[leaves],
                layer,
            )
            stays = stays & ~leaves
            if not stays.any():
                raise _AllLeftError

        with suppress(_AllLeftError):
            self._model.visit_layers(self._model.signal(batch)[0], batch, visit)


def exit_rule(run: Run, wanted: Exit) -> ExitRule | None:
    """The rule that a caller asks for: none, a rule with the threshold chosen for the run, or
    {rule: threshold}.
    """
    if wanted is None:
        return None
    if isinstance(wanted, str):
        return chosen_rule(run, _known(wanted))
    if not isinstance(wanted, Mapping) or len(wanted) != 1:
        raise UserError(
            f'exit: expected a rule, or {{"confidence": 0.9}} with its threshold, got {wanted!r}'
        )
    ((name, threshold),) = wanted.items()
    return ExitRule(_known(name), _threshold(_known(name), threshold))


def _threshold(rule: RuleName, given: Any) -> float:
    """A threshold that the rule's values can reach; UserError for any other."""
    is_number = isinstance(given, Real) and not isinstance(given, bool) and math.isfinite(given)
    match rule:
        case "patience":
            is_valid, expected = (
                is_number and given >= 1 and given % 1 == 0,
                "a number of layers: 1, 2, …",
            )
        case "confidence":
            is_valid, expected = is_number and 0 <= given <= 1, "a probability between 0 and 1"
        case "entropy":
            is_valid, expected = is_number and given >= 0, "a number from 0 on"
    if not is_valid:
        raise UserError(f"exit: {rule}: expected {expected}, got {given!r}")
    return float(given)


def _known(name: str) -> RuleName:
    for rule in RULES:
        if rule == name:
            return rule
    hint = did_you_mean(str(name), RULES) or ";"
    raise UserError(f"exit: no rule '{name}'{hint} expected {', '.join(RULES)}")
