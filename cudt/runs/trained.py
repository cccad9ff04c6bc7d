"""The model of a finished run, on the data and the pretrained weights that it was trained with."""

from __future__ import annotations

from pathlib import Path

import torch

from cudt.models.assemble import assemble_model
from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs.run import Run, check_same_base


def load(run: Run, data_root: Path | None, device: torch.device) -> LayerwiseLosses:
    """The run's best model and its task."""
    layerwise = assemble_model(run.recipe, data_root, device)
    check_same_base(run, layerwise.frozen_digest())
    layerwise.load_learned_weights(run.load_best_weights())
    return layerwise.eval()
