"""The trained model of a finished run."""

from __future__ import annotations

from pathlib import Path

from cudt.models.assemble import assemble_model
from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs.run import Run, check_same_base
from cudt.training.checkpoint import load_best_weights
from cudt.utils.device import DeviceName, choose


def load(run: Run, device: DeviceName, data_root: Path | None) -> LayerwiseLosses:
    """The run's best model and its task; refuses other pretrained weights than the run was trained with."""
    layerwise = assemble_model(run.recipe, data_root, choose(device))
    check_same_base(run, layerwise.frozen_digest())
    layerwise.load_learned_weights(load_best_weights(run))
    return layerwise.eval()
